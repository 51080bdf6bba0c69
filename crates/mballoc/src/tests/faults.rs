//! Broken bitmaps, faulty callers, failing stores: errors name the block, and no block is lost or wrongly allocated.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::atomic::Ordering;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{Allocator, Error, InodePreallocation, Options, Policy, Request, RequestFlags};

fn corrupt_at(e: TestError) -> u64 {
    match e {
        TestError::Alloc(Error::Corrupt { block, .. }) => block.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn bad_frees_name_the_block_and_change_nothing() {
    let store = Arc::new(ModelStore::new(geometry(3, 256, 100)));
    let mut a = allocator(&store, Options::default());
    store.set(0, 0, 8, Block::Used);
    let mut a2 = allocator(&store, Options::default());
    std::mem::swap(&mut a, &mut a2);
    a.protect([(BlockNr(1), 8)]);
    let mut txn = Txn::default();
    let x = a.allocate(&mut txn, &Request::metadata(Some(BlockNr(300)), 10)).expect("free");
    let end = a.geometry().blocks_count;
    let before = store.marks.load(Ordering::Relaxed);
    assert_eq!(corrupt_at(a.free(&mut txn, BlockNr(0), 1).expect_err("before the first")), 0);
    assert_eq!(corrupt_at(a.free(&mut txn, BlockNr(end - 1), 2).expect_err("past the end")), end - 1);
    assert!(a.free(&mut txn, BlockNr(u64::MAX), u64::MAX).is_err());
    assert!(a.free(&mut txn, x.start, 0).is_err());
    assert_eq!(corrupt_at(a.free(&mut txn, BlockNr(5), 1).expect_err("metadata")), 5);
    let next = x.start.0 + u64::from(x.len);
    assert_eq!(corrupt_at(a.free(&mut txn, x.start, u64::from(x.len) + 3).expect_err("free")), next);
    // The range crosses a border: the second group's part is bad, so the first group's part must not change.
    store.set(1, 250, 6, Block::Used);
    let a = allocator(&store, Options::default());
    assert_eq!(corrupt_at(a.free(&mut txn, BlockNr(1 + 256 + 250), 8).expect_err("free")), 513);
    assert_eq!(store.marks.load(Ordering::Relaxed), before);
    // The second free of the same blocks fails.
    let freed = a.free(&mut txn, x.start, 4).expect("once");
    assert!(a.free(&mut txn, x.start, 4).is_err());
    assert!(a.free(&mut txn, BlockNr(x.start.0 + 3), 2).is_err());
    store.commit(&freed);
    a.release(&freed);
    assert!(a.free(&mut txn, x.start, 4).is_err());
    // Releasing blocks twice, or blocks that were never freed, is counted and ignored.
    a.release(&freed);
    a.release(&[(BlockNr(x.start.0 + 5), 1), (BlockNr(end), 5), (BlockNr(0), 1)]);
    assert_eq!(a.statistics().bad_releases, 4);
    assert_eq!(a.free_blocks(), store.count(Block::Free));
}

/// In a run that is partly free and partly freed already, exactly the other blocks can be freed.
#[test]
fn freeable_runs_cover_exactly_the_blocks_that_can_be_freed() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let store = Arc::new(ModelStore::new(geometry(2, 256, 0)));
        for _ in 0..20 {
            let at = rng.below(250) as u32;
            store.set(0, at, 1 + rng.below(6) as u32, Block::Used);
        }
        let a = allocator(&store, Options::default());
        let start = a.geometry().first_data_block;
        let can = |b: &u64| a.check_free(BlockNr(*b), 1).is_ok();
        let mut txn = Txn::default();
        for b in (start..start + 256).filter(can).collect::<Vec<_>>() {
            if rng.one_in(3) {
                a.free(&mut txn, BlockNr(b), 1).expect("used");
            }
        }
        let wanted: Vec<u64> = (start..start + 256).filter(can).collect();
        let (mut found, mut at, mut runs) = (Vec::new(), start, 0);
        while let Some((from, n)) = a.next_freeable(BlockNr(at), (start + 256 - at) as u32).expect("loaded") {
            assert!(from.0 >= at && n > 0);
            found.extend(from.0..from.0 + u64::from(n));
            at = from.0 + u64::from(n);
            runs += 1;
        }
        assert_eq!(found, wanted, "seed {seed}");
        let breaks = wanted.windows(2).filter(|w| w[1] != w[0] + 1).count();
        assert_eq!(runs, if wanted.is_empty() { 0 } else { breaks + 1 }, "whole runs");
    }
}

#[test]
fn preallocated_blocks_cannot_be_freed() {
    let store = Arc::new(ModelStore::new(geometry(3, 1024, 0)));
    let a = allocator(&store, Options::default());
    let owner = InodePreallocation::new(InodeNr(12));
    let x = a.allocate(&mut Txn::default(), &Request::data(&owner, None, LogicalBlock(20), 1, 21)).expect("free");
    assert!(owner.blocks() > 0);
    assert!(a.free(&mut Txn::default(), BlockNr(x.start.0 + 1), 1).is_err());
    a.discard_preallocations(&owner);
    assert_eq!(owner.blocks(), 0);
    assert_agrees(&a, &store);
}

#[test]
fn zones_are_never_handed_out() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(4, 256, 0)));
        // The bitmaps show these blocks as free.
        store.set(1, 10, 50, Block::Zone);
        store.set(3, 200, 56, Block::Zone);
        let mut a = allocator(&store, Options { policy, ..Options::default() });
        let x = a.allocate(&mut Txn::default(), &Request::metadata(Some(BlockNr(1)), 1)).expect("free");
        a.protect([(BlockNr(1 + 256 + 10), 30), (BlockNr(1 + 256 + 40), 20), (BlockNr(1 + 3 * 256 + 200), u64::MAX)]);
        let mut got = x.len;
        while let Ok(x) = a.allocate(&mut Txn::default(), &Request::metadata(None, 17)) {
            got += x.len;
        }
        assert_eq!(got, 1024 - 106, "{}", policy.name());
        assert_eq!(a.free_blocks(), 0);
        a.drop_unused_buddies(usize::MAX);
        assert!(a.allocate(&mut Txn::default(), &Request::metadata(None, 1)).is_err());
        let goal = Request { flags: RequestFlags::GOAL_ONLY, ..Request::metadata(Some(BlockNr(267)), 1) };
        assert!(a.allocate(&mut Txn::default(), &goal).is_err());
        assert_eq!(a.statistics().groups_bad, 0);
    }
}

#[test]
fn a_group_that_contradicts_itself_is_not_used() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(4, 256, 0)));
        let mut summaries = store.summaries();
        summaries[1].free = 100;
        store.fail_loads.store(2, Ordering::Relaxed);
        let options = Options { policy, ..Options::default() };
        let a = Allocator::new(store.clone(), store.geometry.clone(), &summaries, options).expect("made");
        let mut got = 0;
        let error = loop {
            match a.allocate(&mut Txn::default(), &Request::metadata(Some(BlockNr(300)), 20)) {
                Ok(x) => got += x.len,
                Err(e) => break e,
            }
        };
        assert_eq!(got, 512, "{}", policy.name());
        assert!(error.no_space() || error == TestError::Io);
        assert_eq!((a.statistics().groups_bad, store.damaged.load(Ordering::Relaxed)), (2, 2), "both are reported");
        assert_eq!(a.free_blocks(), 0);
        assert!(a.group(GroupNr(1)).expect("group").bad && a.group(GroupNr(2)).expect("group").bad);
        assert_eq!(corrupt_at(a.free(&mut Txn::default(), BlockNr(300), 1).expect_err("bad group")), 300);
    }
}

/// A walk over free blocks reports an unreadable group once, and continues.
#[test]
fn visit_free_reports_bad_groups() {
    let store = Arc::new(ModelStore::new(geometry(4, 256, 0)));
    store.fail_loads.store(2, Ordering::Relaxed);
    let a = allocator(&store, Options::default());
    for _ in 0..2 {
        let mut seen = 0;
        let visit = |_, len| {
            seen += len;
            Ok::<(), ()>(())
        };
        a.visit_free(BlockNr(1), 4 * 256, 1, visit).expect("visited");
        assert_eq!((seen, store.damaged.load(Ordering::Relaxed)), (3 * 256, 1));
    }
    assert!(a.group(GroupNr(2)).expect("group").bad);
}

#[test]
fn an_impossible_descriptor_costs_only_its_group() {
    let store = Arc::new(ModelStore::new(geometry(2, 256, 10)));
    let make = |s: &[crate::GroupSummary]| Allocator::new(store.clone(), store.geometry.clone(), s, Options::default());
    let mut s = store.summaries();
    s[1].free = 257;
    let a = make(&s).expect("made");
    assert!(a.group(GroupNr(1)).expect("group").bad);
    assert_eq!(a.free_blocks(), 266);
    let mut got = 0;
    while let Ok(x) = a.allocate(&mut Txn::default(), &Request::metadata(Some(BlockNr(257)), 50)) {
        got += x.len;
    }
    assert_eq!(got, 266);
    assert!(matches!(make(&s[..2]), Err(Error::Invalid { .. })));
}

#[test]
fn a_failing_journal_loses_no_block() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(4, 1024, 77)));
        let a = allocator(&store, Options { policy, ..Options::default() });
        let owner = InodePreallocation::new(InodeNr(12));
        let mut txn = Txn::default();
        let small = Request::data(&owner, None, LogicalBlock(0), 4, 4);
        let big = Request::data(&owner, None, LogicalBlock(50), 4, 54);
        let x = a.allocate(&mut txn, &small).expect("free");
        a.reserve(10, false).expect("there");
        let before = (a.free_blocks(), a.available_blocks(true), a.reserved_blocks());
        store.fail_marks.store(true, Ordering::Relaxed);
        for r in [small, big, Request::metadata(None, 30)] {
            assert_eq!(a.allocate(&mut txn, &r), Err(TestError::Io));
        }
        assert_eq!(a.free(&mut txn, x.start, 4), Err(TestError::Io));
        assert_eq!((a.free_blocks(), a.available_blocks(true), a.reserved_blocks()), before);
        store.fail_marks.store(false, Ordering::Relaxed);
        assert_agrees(&a, &store);
        free_now(&a, &store, extent(x));
        assert_agrees(&a, &store);
        assert_eq!(a.free_blocks(), 4 * 1024 + 77);
    }
}

/// The bitmap of the second group is unreadable; the first group's could be changed.
#[test]
fn a_free_across_a_border_changes_both_groups_or_none() {
    let store = Arc::new(ModelStore::new(geometry(3, 256, 0)));
    store.set(0, 250, 6, Block::Used);
    store.set(1, 0, 4, Block::Used);
    let a = allocator(&store, Options::default());
    let mut txn = Txn::default();
    let before = a.free_blocks();
    store.fail_prepares.store(1, Ordering::Relaxed);
    assert_eq!(a.free(&mut txn, BlockNr(251), 10), Err(TestError::Io));
    assert_eq!((a.pending_blocks(), a.free_blocks(), store.marks.load(Ordering::Relaxed)), (0, before, 0));
    store.fail_prepares.store(u64::MAX, Ordering::Relaxed);
    free_now(&a, &store, (BlockNr(251), 10));
    assert_eq!((a.pending_blocks(), a.free_blocks()), (0, before + 10));
    assert_agrees(&a, &store);
}

#[test]
fn requests_for_no_blocks_are_refused() {
    let store = Arc::new(ModelStore::new(geometry(1, 256, 0)));
    let a = allocator(&store, Options::default());
    let e = a.allocate(&mut Txn::default(), &Request::metadata(None, 0)).expect_err("nothing");
    assert!(matches!(e, TestError::Alloc(Error::Invalid { .. })));
    let huge = a.allocate(&mut Txn::default(), &Request::metadata(Some(BlockNr(u64::MAX)), u32::MAX)).expect("some");
    assert_eq!(huge.len, 256);
}

/// Blocks that were chosen in a group that then turns out to be bad are given up with it, once.
#[test]
fn chosen_blocks_of_a_group_that_becomes_bad_are_given_up_once() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(large(2, 1)));
        let a = allocator(&store, Options { policy, ..Options::default() });
        let goal = Request { flags: RequestFlags::TRY_GOAL, ..Request::metadata(Some(BlockNr(1000)), 100) };
        let chosen = a.choose(&goal).expect("free");
        assert_eq!(chosen.start, BlockNr(1000));
        let group = a.groups.get(0).expect("a group");
        a.mark_bad(GroupNr(0), group, &mut group.lock(), "a test");
        a.cancel(chosen);
        assert_eq!((a.free_blocks(), a.available_blocks(true)), (32768, 32768), "{}", policy.name());
    }
}
