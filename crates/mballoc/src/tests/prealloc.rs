//! Preallocations: allocated in place, discarded on request and under pressure.

use std::sync::Arc;

use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{InodePreallocation, Options, Policy, Request, RequestFlags};

#[test]
fn a_file_gets_its_preallocated_blocks_in_place() {
    let store = Arc::new(ModelStore::new(large(4, 1)));
    let a = allocator(&store, Options { policy: Policy::SizeClasses, ..Options::default() });
    let owner = InodePreallocation::new(InodeNr(12));
    let mut txn = Txn::default();
    let at = |logical, len| Request::data(&owner, None, LogicalBlock(logical), len, 1000);
    let x = a.allocate(&mut txn, &at(600, 4)).expect("free");
    // 4 MiB file: an aligned chunk of 2 MiB, logical blocks 512..1024.
    assert_eq!(owner.blocks(), 512 - 4);
    let y = a.allocate(&mut txn, &at(512, 8)).expect("free");
    assert_eq!(extent(y), (BlockNr(x.start.0 - 88), 8));
    let z = a.allocate(&mut txn, &at(598, 9)).expect("free");
    assert_eq!(extent(z), (BlockNr(x.start.0 - 2), 2), "up to the blocks already handed out");
    let last = a.allocate(&mut txn, &at(1020, 9)).expect("free");
    assert_eq!(last.len, 4, "up to the end");
    assert_eq!(a.statistics().inode_pa_hits, 3);
    // A block that was allocated and freed again is not allocated from the preallocation.
    let freed = a.free(&mut txn, x.start, 1).expect("freed");
    let again = a.allocate(&mut txn, &at(600, 1)).expect("free");
    assert_ne!(again.start, x.start);
    store.commit(&freed);
    a.release(&freed);
    a.discard_preallocations(&owner);
    assert_agrees(&a, &store);
}

#[test]
fn finished_and_fixed_files_get_exactly_the_requested_blocks() {
    let store = Arc::new(ModelStore::new(large(4, 1)));
    let a = allocator(&store, Options { policy: Policy::SizeClasses, ..Options::default() });
    let owner = InodePreallocation::new(InodeNr(12));
    let r = Request::data(&owner, None, LogicalBlock(0), 100, 100);
    for flags in [RequestFlags::NO_PREALLOC, RequestFlags::CLOSED] {
        assert_eq!(a.allocate(&mut Txn::default(), &Request { flags, ..r }).expect("free").len, 100);
        assert_eq!(owner.blocks(), 0);
    }
    // Large requests: one extent, but never across a group's end.
    let r =
        Request { flags: RequestFlags::NO_PREALLOC, ..Request::data(&owner, None, LogicalBlock(0), 40_000, 40_000) };
    assert_eq!(a.allocate(&mut Txn::default(), &r).expect("free").len, 32768);
    let r = Request::data(&owner, None, LogicalBlock(0), 32768, 40_000);
    assert_eq!(a.allocate(&mut Txn::default(), &r).expect("free").len, 32768);
}

#[test]
fn preallocations_are_discarded_under_pressure() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(4, 4096, 0)));
        let a = allocator(&store, Options { policy, ..Options::default() });
        let owners: Vec<_> = (0..8).map(|i| InodePreallocation::new(InodeNr(12 + i))).collect();
        let mut txn = Txn::default();
        for (i, o) in owners.iter().enumerate() {
            a.allocate(&mut txn, &Request::data(o, None, LogicalBlock(3000), 1, 3001)).expect("free");
            a.allocate(&mut txn, &Request::data(o, None, LogicalBlock(0), 1, 1 + i as u64)).expect("free");
        }
        let held: u64 = owners.iter().map(|o| o.blocks()).sum();
        // Few blocks are free, so a growing file gets no preallocation, if the policy checks that.
        assert!(held > 8 * 1000 || policy == Policy::SureFit, "{}: {held}", policy.name());
        let mut got = 0;
        while let Ok(x) = a.allocate(&mut txn, &Request::metadata(None, 1000)) {
            got += u64::from(x.len);
        }
        assert_eq!(got, 4 * 4096 - 16, "{}", policy.name());
        assert!(owners.iter().all(|o| o.blocks() == 0));
        assert_agrees(&a, &store);
    }
}

#[test]
fn a_dropped_owner_loses_no_block() {
    let store = Arc::new(ModelStore::new(geometry(4, 4096, 0)));
    let a = allocator(&store, Options { policy: Policy::SizeClasses, ..Options::default() });
    for i in 0..6 {
        let owner = InodePreallocation::new(InodeNr(12 + i));
        a.allocate(&mut Txn::default(), &Request::data(&owner, None, LogicalBlock(3000), 1, 3001)).expect("free");
    }
    let free: u32 = (0..4).map(|g| a.group(GroupNr(g)).expect("group").free).sum();
    assert!(free < 4 * 4096 - 6 * 1000);
    assert!(a.discard_all_under_pressure() > 6 * 1000);
    assert_agrees(&a, &store);
}

#[test]
fn serving_from_a_preallocation_needs_no_buddy() {
    let store = Arc::new(ModelStore::new(large(4, 1)));
    let a = allocator(&store, Options { locality_groups: 1, ..Options::default() });
    let small = |i: u32| InodePreallocation::new(InodeNr(100 + i));
    a.allocate(&mut Txn::default(), &Request::data(&small(0), None, LogicalBlock(0), 2, 2)).expect("free");
    assert!(a.drop_unused_buddies(1) > 0);
    for i in 1..200 {
        a.allocate(&mut Txn::default(), &Request::data(&small(i), None, LogicalBlock(0), 2, 2)).expect("free");
    }
    assert_eq!(a.memory_used(), 0, "no buddy was loaded");
    assert_eq!(a.statistics().group_pa_new, 1);
    assert_agrees(&a, &store);
    let x = a.allocate(&mut Txn::default(), &Request::metadata(None, 512)).expect("free");
    assert_eq!(x.len, 512);
    assert_agrees(&a, &store);
}
