//! Tests pages that are needed again after different times.

use super::super::super::core::Class;
use super::super::super::frame::{Key, State};
use super::super::ReclaimPolicy;
use super::super::test_cache::Cache;

const FRAMES: u64 = 1024;
const ACTIVE: u64 = 400;
const INACTIVE_LIST: u8 = 3;
const ACTIVE_LIST: u8 = 4;

/// A cache whose active list contains the items below [`ACTIVE`], after a stream of items from 10,000 on.
fn cache(policy: ReclaimPolicy) -> Cache {
    let mut cache = Cache::new(policy, FRAMES);
    cache.read((0..2).flat_map(|_| 0..ACTIVE));
    cache.read(10_000..10_000 + 3 * FRAMES);
    assert!((0..ACTIVE).all(|item| cache.list(item) == Some(ACTIVE_LIST)));
    cache
}

/// The item of the stream that was evicted last.
fn last_evicted(cache: &Cache) -> u64 {
    (10_000..10_000 + 3 * FRAMES).rev().find(|item| cache.frame(*item).is_none()).expect("an item that left")
}

#[test]
fn pages_that_were_away_for_no_longer_than_the_active_list_are_activated() {
    let mut cache = cache(ReclaimPolicy::Workingset);
    let last = last_evicted(&cache);
    // An access frees one page or a batch of 32.
    for (away, list) in [(0, ACTIVE_LIST), (ACTIVE - 70, ACTIVE_LIST), (ACTIVE + 1, INACTIVE_LIST)] {
        assert!(!cache.access(last - away));
        assert_eq!(cache.list(last - away), Some(list), "{away}");
    }
    assert_eq!(cache.zones[0].counts().refaulted, 2);
}

#[test]
fn loops_take_the_place_of_pages_out_of_use() {
    let misses = |policy| {
        let mut cache = cache(policy);
        let items = FRAMES * 7 / 10;
        cache.read((0..10).flat_map(|_| 50_000..50_000 + items)) as f64 / items as f64
    };
    assert_eq!(misses(ReclaimPolicy::StallOnce), 10.0, "the inactive list is shorter than the loop");
    let misses = misses(ReclaimPolicy::Workingset);
    assert!(misses < 4.0, "{misses} of 10 rounds");
}

#[test]
fn pages_of_programs_count_as_pages_that_may_give_way() {
    for (programs, list) in [(0, INACTIVE_LIST), (300, ACTIVE_LIST)] {
        let mut cache = Cache::new(ReclaimPolicy::Workingset, FRAMES);
        let owner = cache.zones[0].register(Class::Anonymous);
        for page in 0..programs {
            cache.zones[0].insert(owner, Key { object: 1, page }, 4096, State::DIRTY);
        }
        cache.read(10_000..10_000 + 3 * FRAMES);
        let item = last_evicted(&cache) - 100;
        assert!(!cache.access(item));
        assert_eq!(cache.list(item), Some(list), "beside {programs} pages of programs");
    }
}
