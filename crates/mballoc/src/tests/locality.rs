//! Where things land.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{InodePreallocation, Neighbour, Options, Policy, Request, RequestFlags};

/// stress-unlink in small: 16 directories in 7 flex groups; create, write 22,528 bytes, fsync, unlink.
#[test]
fn small_files_of_sixteen_directories_stay_in_their_groups() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(large(128, 16)));
        let a = allocator(&store, Options { policy, locality_groups: 1, ..Options::default() });
        let homes = [1u32, 17, 33, 49, 81, 97, 113];
        let mut touched = BTreeSet::new();
        let mut waiting = std::collections::VecDeque::new();
        for round in 0..100u32 {
            let mut txn = Txn::default();
            for dir in 0..16u32 {
                let owner = InodePreallocation::new(InodeNr(1000 + dir + round * 16));
                let goal = BlockNr(u64::from(homes[dir as usize % 7]) * 32768);
                let x = a.allocate(&mut txn, &Request::data(&owner, Some(goal), LogicalBlock(0), 6, 6)).expect("free");
                waiting.push_back(a.free(&mut txn, x.start, u64::from(x.len)).expect("freed"));
                a.discard_preallocations(&owner);
            }
            touched.extend(txn.groups);
            // The commit that makes the frees durable is two rounds behind.
            while waiting.len() > 32 {
                let freed = waiting.pop_front().expect("some");
                store.commit(&freed);
                a.release(&freed);
            }
        }
        assert!(touched.len() <= homes.len(), "{}: {touched:?}", policy.name());
        let s = a.statistics();
        assert!(s.group_pa_hits > s.requests * 9 / 10, "{s:?}");
    }
}

#[test]
fn a_growing_file_is_contiguous() {
    for (policy, by_goal) in Policy::ALL.into_iter().flat_map(|p| [(p, false), (p, true)]) {
        for step in [1u32, 7, 16, 100] {
            let store = Arc::new(ModelStore::new(large(8, 1)));
            let a = allocator(&store, Options { policy, ..Options::default() });
            let owners: Vec<_> = (0..3).map(|i| InodePreallocation::new(InodeNr(100 + i))).collect();
            let mut ends: Vec<Option<Neighbour>> = vec![None; 3];
            let mut extents = [0u32; 3];
            let mut written = [0u32; 3];
            // Three files grow in turn.
            while written[2] < 6000 {
                for i in 0..3 {
                    let mut r =
                        Request::data(&owners[i], None, LogicalBlock(written[i]), step, u64::from(written[i] + step));
                    if let (true, Some(end)) = (by_goal, ends[i]) {
                        r.goal = Some(BlockNr(end.block.0 + 1));
                        r.flags = RequestFlags::TRY_GOAL;
                    } else if let crate::Kind::Data { left, .. } = &mut r.kind {
                        *left = ends[i];
                    }
                    let x = a.allocate(&mut Txn::default(), &r).expect("free");
                    if ends[i].is_none_or(|e| e.block.0 + 1 != x.start.0) {
                        extents[i] += 1;
                    }
                    written[i] += x.len;
                    ends[i] = Some(Neighbour {
                        logical: LogicalBlock(written[i] - 1),
                        block: BlockNr(x.start.0 + u64::from(x.len) - 1),
                    });
                }
            }
            // While they are small they share a chunk, block by block when they grow by blocks.
            let most = 10 + 16 / step;
            assert!(extents.iter().all(|&e| e <= most), "{} step {step}: {extents:?}", policy.name());
        }
    }
}

#[test]
fn the_goal_is_taken_when_it_is_free() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(large(4, 1)));
        let a = allocator(&store, Options { policy, ..Options::default() });
        let goal = BlockNr(2 * 32768 + 777);
        let at_goal = Request { flags: RequestFlags::TRY_GOAL, ..Request::metadata(Some(goal), 9) };
        let x = a.allocate(&mut Txn::default(), &at_goal).expect("free");
        assert_eq!(extent(x), (goal, 9));
        let y = a.allocate(&mut Txn::default(), &at_goal).expect("free");
        assert_eq!(y.start.0 / 32768, 2, "the same group at least");
        let only = Request { flags: RequestFlags::GOAL_ONLY, ..at_goal };
        assert!(a.allocate(&mut Txn::default(), &only).expect_err("taken").no_space());
        let only = Request { flags: RequestFlags::GOAL_ONLY, ..Request::metadata(Some(BlockNr(goal.0 - 2)), 9) };
        assert_eq!(a.allocate(&mut Txn::default(), &only).expect("two before").len, 2);
        assert_eq!(a.statistics().goal_hits, 2);
    }
}

#[test]
fn stripes_are_kept() {
    let store = Arc::new(ModelStore::new(crate::Geometry { stripe: 48, ..large(4, 1) }));
    store.set(0, 0, 5, Block::Used);
    let a = allocator(&store, Options::default());
    let owner = InodePreallocation::new(InodeNr(12));
    for i in 0..5 {
        let r = Request {
            flags: RequestFlags::NO_PREALLOC,
            ..Request::data(&owner, None, LogicalBlock(1000 * i), 48 * 3, 100_000)
        };
        let x = a.allocate(&mut Txn::default(), &r).expect("free");
        assert_eq!((x.start.0 % 48, x.len), (0, 144));
    }
}

/// 65 TB in which no group has a free run of 2 MiB: `goal-first` does not look at groups that cannot fit.
#[test]
fn a_hopeless_criterion_costs_nothing_with_sets() {
    let groups = 20_000;
    let store = Arc::new(ModelStore::new(geometry(groups, 64, 0)));
    for g in 0..groups {
        store.set(g, 31, 1, Block::Used);
    }
    let a = allocator(&store, Options { policy: Policy::GoalFirst, group_prealloc: 0, ..Options::default() });
    let mut txn = Txn::default();
    // Teach it every group.
    for g in 0..groups {
        let goal = BlockNr(1 + u64::from(g) * 64);
        let r = Request { flags: RequestFlags::TRY_GOAL, ..Request::metadata(Some(goal), 1) };
        a.allocate(&mut txn, &r).expect("free");
    }
    let before = a.statistics();
    a.allocate(&mut txn, &Request::metadata(Some(BlockNr(40_000)), 64)).expect("some");
    let after = a.statistics();
    let considered: u64 = (0..4).map(|c| after.groups_considered[c] - before.groups_considered[c]).sum();
    assert!(considered <= 8, "{considered}");
    assert!(after.groups_scanned - before.groups_scanned <= 1);
}
