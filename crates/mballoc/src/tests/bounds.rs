//! The cost of a search, in groups: the bounds that `sure-fit` guarantees, over random states.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::atomic::Ordering;
use extant_base::task::spawn;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{Allocator, InodePreallocation, Options, Policy, Request, RequestFlags};

const GROUPS: u32 = 300;
const BLOCKS: u32 = 1024;

/// A disk whose groups are at random full, empty, or have runs of one length.
fn worn(rng: &mut Rng) -> Arc<ModelStore> {
    let store = Arc::new(ModelStore::new(crate::Geometry { flex_bg_size: 16, ..geometry(GROUPS, BLOCKS, 0) }));
    let longest = 1 + rng.below(400) as u32;
    let (full, empty) = (rng.below(10), rng.below(3));
    for g in 0..GROUPS {
        let lot = rng.below(10);
        if lot < full {
            store.set(g, 0, BLOCKS, Block::Used);
        } else if lot >= full + empty {
            let mut at = rng.below(40) as u32;
            while at < BLOCKS {
                let used = (1 + rng.below(30) as u32).min(BLOCKS - at);
                store.set(g, at, used, Block::Used);
                at += used + 1 + rng.below(u64::from(longest)) as u32;
            }
        }
    }
    store
}

fn made(store: &Arc<ModelStore>) -> Allocator<ModelStore> {
    allocator(store, Options { policy: Policy::SureFit, ..Options::default() })
}

fn wish(rng: &mut Rng) -> Request<'static> {
    let len = if rng.one_in(2) { 1 << rng.below(9) } else { 1 + rng.below(300) as u32 };
    Request::metadata(Some(BlockNr(1 + rng.below(u64::from(GROUPS * BLOCKS)))), len)
}

#[test]
fn a_request_searches_one_group_if_bitmaps_are_known() {
    let mut rng = Rng::new(1);
    for _ in 0..30 {
        let store = worn(&mut rng);
        let a = made(&store);
        // Read every bitmap.
        for g in 0..GROUPS {
            a.read_ahead(g);
            if let Ok(chosen) = a.choose(&Request::metadata(Some(BlockNr(1 + u64::from(g * BLOCKS))), 1)) {
                a.cancel(chosen);
            }
        }
        let mut kept = Vec::new();
        for _ in 0..300 {
            let before = a.statistics();
            let r = wish(&mut rng);
            let Ok(chosen) = a.choose(&r) else {
                assert!(a.groups.iter().all(|g| g.free() == 0), "no blocks, although some are free");
                break;
            };
            let after = a.statistics();
            let (searched, looked) = (
                after.groups_scanned - before.groups_scanned,
                (0..4).map(|c| after.groups_considered[c] - before.groups_considered[c]).sum::<u64>(),
            );
            assert_eq!(searched, 1, "{r:?}");
            assert!(looked <= 3, "{looked} groups looked at for {r:?}");
            // A request that got less than it wanted got nearly the longest run.
            if chosen.len < r.len {
                let longest = (0..GROUPS as usize)
                    .filter_map(|g| a.groups.get(g)?.lock().buddy.as_ref().map(|b| b.long_run()))
                    .max()
                    .unwrap_or(0);
                assert!(
                    longest <= chosen.len + chosen.len / 3 + 1,
                    "{} of {}, {longest} were there",
                    chosen.len,
                    r.len
                );
            }
            if rng.one_in(3) { kept.push(chosen) } else { a.cancel(chosen) }
        }
        kept.into_iter().for_each(|chosen| a.cancel(chosen));
        assert_agrees(&a, &store);
    }
}

/// With no bitmap known: at most two reads of a flex group's bitmaps, and at most two groups.
#[test]
fn a_request_reads_at_most_twice_if_no_bitmap_is_known() {
    let mut rng = Rng::new(2);
    for _ in 0..300 {
        let store = worn(&mut rng);
        let a = made(&store);
        let r = wish(&mut rng);
        let Ok(chosen) = a.choose(&r) else { continue };
        let s = a.statistics();
        let bitmaps = store.loads.load(Ordering::Relaxed);
        assert!(s.read_aheads <= 2 && bitmaps <= 2 * 16, "{} read-aheads, {bitmaps} bitmaps: {r:?}", s.read_aheads);
        assert!(s.groups_scanned <= 2, "{} groups for {r:?}", s.groups_scanned);
        a.cancel(chosen);
    }
}

/// Threads race for the same groups.
#[test]
fn races_lose_no_block() {
    let mut rng = Rng::new(3);
    for round in 0..6 {
        let store = worn(&mut rng);
        let a = Arc::new(made(&store));
        let workers: Vec<_> = (0..4u64)
            .map(|t| {
                let a = a.clone();
                spawn("race", move || {
                    let mut rng = Rng::new(round * 10 + t);
                    let mut requests = 0u64;
                    let mut kept = std::collections::VecDeque::new();
                    for _ in 0..2000 {
                        let Ok(chosen) = a.choose(&wish(&mut rng)) else { continue };
                        requests += 1;
                        kept.push_back(chosen);
                        if kept.len() > 20
                            && let Some(oldest) = kept.pop_front()
                        {
                            a.cancel(oldest);
                        }
                    }
                    kept.into_iter().for_each(|chosen| a.cancel(chosen));
                    requests
                })
                .expect("thread")
            })
            .collect();
        let requests: u64 = workers.into_iter().map(|w| w.join().expect("joined")).sum();
        assert!(requests > 0);
        assert_agrees(&a, &store);
    }
}

/// After a mount the known groups are fragmented, and guesses have failed there. A long run must not be split into many
/// pieces while other groups are half empty.
#[test]
fn a_request_for_a_long_run_guesses_at_unread_groups() {
    let store = Arc::new(ModelStore::new(large(256, 16)));
    let worn = |g: u32| (0..32768).step_by(128).for_each(|at| store.set(g, at, 64, Block::Used));
    (0..192).for_each(worn);
    (192..256).for_each(|g| store.set(g, 0, 16384, Block::Used));
    let a = made(&store);
    let owner = InodePreallocation::new(InodeNr(20));
    let data = |len: u32| {
        let flags = RequestFlags::NO_PREALLOC;
        Request { flags, ..Request::data(&owner, Some(BlockNr(32768)), LogicalBlock(0), len, u64::from(len)) }
    };
    let mut lengths = Vec::new();
    for len in [128; 8].into_iter().chain([32768; 40]) {
        lengths.push(a.allocate(&mut Txn::default(), &data(len)).expect("space").len);
    }
    let long = lengths[8..].iter().filter(|len| **len >= 16384).count();
    // On the way, each of twelve fragmented flex groups is read at most once.
    assert!(long >= 40 - 12, "{lengths:?}");
    assert_agrees(&a, &store);
}

/// A request that one seek or two would serve does not read bitmaps in search of a longer run.
#[test]
fn a_request_for_a_short_run_does_not_guess_after_failed_guesses() {
    let store = Arc::new(ModelStore::new(large(512, 16)));
    (0..512).for_each(|g| (0..32768).step_by(32).for_each(|at| store.set(g, at, 16, Block::Used)));
    let a = made(&store);
    let owner = InodePreallocation::new(InodeNr(20));
    for _ in 0..60 {
        let flags = RequestFlags::NO_PREALLOC;
        let r = Request { flags, ..Request::data(&owner, Some(BlockNr(32768)), LogicalBlock(0), 128, 128) };
        a.allocate(&mut Txn::default(), &r).expect("space");
    }
    let read = a.statistics().read_aheads;
    assert!(read <= 12, "{read} of 32 flex groups");
    assert_agrees(&a, &store);
}
