//! Growth while requests are served: no block is allocated twice, and none is missing.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{Allocator, Geometry, InodePreallocation, MetaPolicy, Options, Policy, Request};

const BEFORE: u32 = 3;
const AFTER: u32 = 40;

/// A store with all groups, and an allocator that knows three of them, the last only in part. The first ten blocks of
/// each new group are the group's own.
fn small(options: Options) -> (Arc<ModelStore>, Allocator<ModelStore>, Geometry) {
    let whole = Geometry { flex_bg_size: 4, ..geometry(AFTER, 256, 0) };
    let store = Arc::new(ModelStore::new(whole.clone()));
    (BEFORE..AFTER).for_each(|group| store.set(group, 0, 10, Block::Used));
    let begin = Geometry { blocks_count: 1 + 2 * 256 + 100, groups: BEFORE, ..whole.clone() };
    let mut summaries = store.summaries();
    summaries.truncate(BEFORE as usize);
    summaries[BEFORE as usize - 1].free = 100;
    let a = Allocator::new(store.clone(), begin, &summaries, options).expect("made");
    (store, a, whole)
}

/// Adds all groups, a few at a time.
fn grow(store: &ModelStore, a: &Allocator<ModelStore>, whole: &Geometry) {
    a.lengthen_last(1 + u64::from(BEFORE) * 256, || Ok::<(), TestError>(())).expect("longer");
    let mut first = BEFORE;
    while first < AFTER {
        let end = (first + 1 + first % 4).min(AFTER);
        let longer = Geometry { blocks_count: 1 + u64::from(end) * 256, groups: end, ..whole.clone() };
        let own = (first..end).map(|group| (BlockNr(1 + u64::from(group) * 256), 10));
        a.append(longer, &store.summaries()[first as usize..end as usize], own);
        first = end;
        task::yield_now();
    }
}

#[test]
fn every_new_block_is_handed_out_once_with_every_policy() {
    for policy in Policy::ALL {
        for meta_policy in MetaPolicy::ALL {
            let (store, a, whole) = small(Options { policy, meta_policy, locality_groups: 1, ..Options::default() });
            let mut txn = Txn::default();
            let mut got = 0;
            let mut take_all = |a: &Allocator<ModelStore>| {
                while let Ok(found) = a.allocate(&mut txn, &Request::metadata(None, 30)) {
                    got += u64::from(found.len);
                }
                got
            };
            assert_eq!(take_all(&a), 2 * 256 + 100, "{} {}", policy.name(), meta_policy.name());
            grow(&store, &a, &whole);
            assert!(a.is_protected(BlockNr(1 + 20 * 256 + 9), 1) && !a.is_protected(BlockNr(1 + 20 * 256 + 10), 9));
            let all = 3 * 256 + u64::from(AFTER - BEFORE) * 246;
            assert_eq!(take_all(&a), all, "{} {}", policy.name(), meta_policy.name());
            assert_eq!(store.count(Block::Free), 0);
            assert_agrees(&a, &store);
        }
    }
}

#[test]
fn requests_go_on_while_groups_join() {
    for policy in Policy::ALL {
        let (store, a, whole) = small(Options { policy, ..Options::default() });
        store.slow.store(true, Ordering::Relaxed);
        let (a, stop) = (Arc::new(a), Arc::new(AtomicBool::new(false)));
        let threads: Vec<_> = (0..3u32)
            .map(|nr| {
                let (a, store, stop) = (a.clone(), store.clone(), stop.clone());
                let work = move || {
                    let (mut rng, mut have) = (Rng::new(nr.into()), Vec::new());
                    let owner = InodePreallocation::new(InodeNr(12 + nr));
                    let mut written = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let len = 1 + rng.below(12) as u32;
                        let goal = Some(BlockNr(1 + rng.below(a.geometry().blocks_count - 1)));
                        let request = Request::data(&owner, goal, LogicalBlock(written), len, (written + len).into());
                        if let Ok(found) = a.allocate(&mut Txn::default(), &request) {
                            written += found.len;
                            have.push(extent(found));
                        }
                        if rng.one_in(2) && !have.is_empty() {
                            let at = rng.below(have.len() as u64) as usize;
                            free_now(&a, &store, have.swap_remove(at));
                        }
                    }
                    a.discard_preallocations(&owner);
                };
                task::spawn("requests", work).expect("thread")
            })
            .collect();
        grow(&store, &a, &whole);
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("joined"));
        assert_agrees(&a, &store);
    }
}

#[test]
fn reserves_follow_the_size() {
    let (store, a, whole) = small(Options { root_reserve: 30, pool_reserve: 10, ..Options::default() });
    assert_eq!(a.available_blocks(false), 612 - 40);
    grow(&store, &a, &whole);
    a.set_reserves(500, 100);
    assert_eq!(
        (a.available_blocks(true) - a.available_blocks(false), a.available_blocks(false)),
        (500, 3 * 256 + 37 * 246 - 600)
    );
}
