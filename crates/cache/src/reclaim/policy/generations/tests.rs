//! Tests the rules of the policy one by one, and their effect on a cache of 1,024 frames.

use super::super::ReclaimPolicy;
use super::super::test_cache::Cache;
use super::*;

const FRAMES: u64 = 1024;

fn generations(cache: &mut Cache) -> &mut Generations {
    match cache.zones[0].parts().1 {
        super::super::Policy::Generations(generations) => generations,
        _ => unreachable!("the policy of this cache"),
    }
}

#[test]
fn tiers_are_powers_of_two_of_the_reads() {
    assert_eq!([0, 1, 2, 3, 4].map(tier_of), [0, 1, 2, 2, 3]);
}

/// The expected values were computed by hand from `positive_ctrl_err`.
#[test]
fn tiers_are_spared_when_they_come_back_more_than_twice_as_often_as_the_first() {
    let tiers = |first: u64, second: u64| Tiers {
        evicted: [1000, 1000, 0, 0],
        refaulted: [first, second, 0, 0],
        ..Tiers::default()
    };
    assert_eq!(tiers(10, 63).last_to_go(), 3, "fewer than a batch came back");
    assert_eq!(tiers(10, 64).last_to_go(), 0, "64 * 1064 > 11 * 1000 * 2");
    assert_eq!(tiers(34, 64).last_to_go(), 3, "64 * 1064 <= 35 * 1000 * 2");
    assert_eq!(tiers(33, 64).last_to_go(), 0, "64 * 1064 > 34 * 1000 * 2");
    let mut tiers = tiers(10, 64);
    tiers.protected[1] = 400;
    assert_eq!(tiers.position(1), (64, 1400));
    tiers.carry_over();
    assert_eq!((tiers.position(0), tiers.position(1)), ((5, 500), (32, 700)));
    tiers.refaulted[1] = 8;
    tiers.carry_over();
    assert_eq!((tiers.position(0), tiers.position(1)), ((2, 250), (20, 350)), "each round halves the sum");
}

#[test]
fn new_pages_join_the_second_oldest_generation_of_four_and_the_oldest_of_three() {
    let mut cache = Cache::new(ReclaimPolicy::Generations, FRAMES);
    assert_eq!((generations(&mut cache).min_seq, generations(&mut cache).max_seq), (0, 3));
    cache.access(1);
    assert_eq!(cache.list(1), Some(Generations::list(1)));
    generations(&mut cache).min_seq = 1;
    cache.access(2);
    assert_eq!(cache.list(2), Some(Generations::list(1)));
}

#[test]
fn pages_read_once_leave_in_the_order_of_arrival() {
    let mut cache = Cache::new(ReclaimPolicy::Generations, FRAMES);
    assert_eq!(cache.read(0..4 * FRAMES), 4 * FRAMES);
    let left: Vec<u64> = (0..4 * FRAMES).filter(|item| cache.frame(*item).is_some()).collect();
    assert!(left.len() as u64 > FRAMES - BATCH);
    assert_eq!(left, (4 * FRAMES - left.len() as u64..4 * FRAMES).collect::<Vec<_>>());
    assert!((GENS_MIN..=GENS_MAX).contains(&generations(&mut cache).gens()));
}

/// A page whose count is full is spared immediately; one with a lower count is spared only after pages of its tier were
/// needed again.
#[test]
fn pages_read_six_times_survive_a_stream_as_long_as_the_cache() {
    let mut cache = Cache::new(ReclaimPolicy::Generations, FRAMES);
    cache.read((0..6).flat_map(|_| 0..200));
    cache.read((0..2).flat_map(|_| 200..400));
    cache.read(10_000..10_000 + FRAMES);
    let present = |cache: &Cache, from: u64| (from..from + 200).filter(|item| cache.frame(*item).is_some()).count();
    assert_eq!((present(&cache, 0), present(&cache, 200)), (200, 0));
}

#[test]
fn pages_read_twice_are_spared_once_their_tier_comes_back() {
    let mut cache = Cache::new(ReclaimPolicy::Generations, FRAMES);
    let misses: Vec<u64> = (0..20)
        .map(|round| {
            let hot = cache.read((0..2).flat_map(|_| 0..200));
            cache.read(10_000 * (round + 1)..10_000 * (round + 1) + 900);
            hot
        })
        .collect();
    assert!(misses[0] == 200 && misses[1] > 150, "{misses:?}");
    assert!(misses[10..].iter().sum::<u64>() < 10 * 200 / 4, "{misses:?}");
    assert!(cache.zones[0].counts().refaulted >= BATCH);
}

#[test]
fn written_pages_go_first_and_dirty_ones_drive_the_flusher() {
    let mut cache = Cache::new(ReclaimPolicy::Generations, FRAMES);
    for item in 0..FRAMES {
        cache.insert(item, State::DIRTY);
    }
    assert!(matches!(cache.make_room(), Next::Drive { bytes: 4096 }));
    assert!(cache.zones[0].counts().unqueued >= FRAMES);
    let written = cache.frame(700).expect("in the cache");
    cache.zones[0].set_state(written, State::WRITEBACK);
    cache.zones[0].set_state(written, State::CLEAN);
    assert_eq!(cache.make_room(), Next::Enough);
    assert_eq!(cache.frame(700), None);
    assert_eq!(cache.zones[0].frames(), FRAMES - 1);
}
