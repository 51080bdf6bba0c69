//! "No space" is reported exactly when it is true.

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{Error, InodePreallocation, Kind, Options, Policy, Request, RequestFlags};

#[test]
fn filling_up_gives_every_free_block_once() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(6, 512, 200)));
        let mut rng = Rng::new(3);
        for _ in 0..300 {
            let (g, i) = (rng.below(7) as u32, rng.below(190) as u32);
            store.set(g, i, 1, Block::Used);
        }
        let free = store.count(Block::Free);
        let a = allocator(&store, Options { policy, ..Options::default() });
        let owners: Vec<_> = (0..5).map(|i| InodePreallocation::new(InodeNr(12 + i))).collect();
        let (mut got, mut written) = (0u64, [0u32; 5]);
        loop {
            let i = rng.below(5) as usize;
            let len = 1 + rng.below(40) as u32;
            let size = u64::from(written[i] + len);
            let goal = Some(BlockNr(rng.below(3000)));
            let r = Request::data(&owners[i], goal, LogicalBlock(written[i]), len, size);
            match a.allocate(&mut Txn::default(), &r) {
                Ok(x) => {
                    assert!(x.len >= 1 && x.len <= len);
                    written[i] += x.len;
                    got += u64::from(x.len);
                }
                Err(e) => {
                    assert!(matches!(e, TestError::Alloc(Error::NoSpace { .. })), "{e:?}");
                    break;
                }
            }
        }
        assert_eq!(got, free, "{}", policy.name());
        assert_eq!(store.count(Block::Free), 0);
        assert_agrees(&a, &store);
    }
}

#[test]
fn pending_blocks_wait_for_their_commit() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(2, 256, 0)));
        let a = allocator(&store, Options { policy, ..Options::default() });
        let mut txn = Txn::default();
        let mut all = Vec::new();
        while let Ok(x) = a.allocate(&mut txn, &Request::metadata(None, 100)) {
            all.push(extent(x));
        }
        let freed = a.free(&mut txn, all[0].0, u64::from(all[0].1)).expect("freed");
        let n = u64::from(all[0].1);
        assert_eq!((a.pending_blocks(), a.free_blocks()), (n, n));
        let e = a.allocate(&mut txn, &Request::metadata(None, 1)).expect_err("not yet");
        assert_eq!(e, TestError::Alloc(Error::NoSpaceUntilCommit { wanted: 1, pending: n }));
        // Also after the buddies have been rebuilt.
        assert!(a.drop_unused_buddies(usize::MAX) > 0);
        assert_eq!(a.memory_used(), 0);
        assert!(a.allocate(&mut txn, &Request::metadata(None, 1)).expect_err("not yet").no_space());
        store.commit(&freed);
        a.release(&freed);
        let x = a.allocate(&mut txn, &Request::metadata(None, 1)).expect("now");
        assert_eq!(x.start, all[0].0);
        assert_agrees(&a, &store);
    }
}

#[test]
fn reservations_are_honoured_and_never_oversold() {
    let store = Arc::new(ModelStore::new(geometry(4, 256, 0)));
    let options = Options { root_reserve: 50, pool_reserve: 10, ..Options::default() };
    let a = allocator(&store, options);
    assert_eq!(a.available_blocks(false), 1024 - 60);
    a.reserve(900, false).expect("there");
    assert_eq!(a.reserve(65, false), Err(Error::NoSpace { wanted: 65 }));
    a.reserve(64, false).expect("exactly the rest");
    a.reserve(50, true).expect("root may");
    assert!(a.reserve(1, true).is_err());
    assert_eq!(a.reserved_blocks(), 1014);
    // Without a promise, a request fails; with one, it gets all of its blocks.
    let mut txn = Txn::default();
    assert!(a.allocate(&mut txn, &Request::metadata(None, 1)).expect_err("promised").no_space());
    let all = Request { flags: RequestFlags::USE_RESERVED, ..Request::metadata(None, 20) };
    assert_eq!(a.allocate(&mut txn, &all).expect("the pool").len, 10);
    let owner = InodePreallocation::new(InodeNr(12));
    let mut done = 0;
    while done < 1014 {
        let mut r = Request::data(&owner, None, LogicalBlock(done), 1014 - done, 1014);
        if let Kind::Data { reserved, .. } = &mut r.kind {
            *reserved = true;
        }
        done += a.allocate(&mut txn, &r).expect("promised").len;
    }
    assert_eq!((a.reserved_blocks(), a.free_blocks()), (0, 0));
    a.unreserve(0);
    assert_agrees(&a, &store);
}

#[test]
fn the_root_reserve_is_for_root() {
    let store = Arc::new(ModelStore::new(geometry(4, 256, 0)));
    let a = allocator(&store, Options { root_reserve: 100, ..Options::default() });
    let mut txn = Txn::default();
    let mut got = 0;
    while let Ok(x) = a.allocate(&mut txn, &Request::metadata(None, 30)) {
        got += x.len;
    }
    assert_eq!(got, 924);
    let root = Request { flags: RequestFlags::USE_ROOT_RESERVE, ..Request::metadata(None, 300) };
    while let Ok(x) = a.allocate(&mut txn, &root) {
        got += x.len;
    }
    assert_eq!(got, 1024);
}

#[test]
fn indirect_files_stay_below_their_limit() {
    for policy in Policy::ALL {
        let store = Arc::new(ModelStore::new(geometry(8, 256, 0)));
        let a = allocator(&store, Options { policy, ..Options::default() });
        let owner = InodePreallocation::new(InodeNr(12));
        let mut txn = Txn::default();
        let mut next = 0;
        // Groups 0..3 end at block 768; group 3 extends beyond 1000.
        let bound = |r: Request<'static>| Request { max_block: Some(BlockNr(1000)), goal: Some(BlockNr(1500)), ..r };
        // Another file's preallocation beyond the limit is not used either.
        let small = Request::data(&owner, Some(BlockNr(1500)), LogicalBlock(0), 1, 1);
        a.allocate(&mut txn, &small).expect("free");
        loop {
            let small = Request {
                max_block: Some(BlockNr(1000)),
                ..Request::data(&owner, Some(BlockNr(1500)), LogicalBlock(next), 1, 1)
            };
            match a.allocate(&mut txn, &small) {
                Ok(x) => assert!(x.start.0 <= 768, "{x:?}"),
                Err(e) => {
                    assert!(e.no_space());
                    break;
                }
            }
            next += 1;
        }
        assert_eq!(next, 768, "{}", policy.name());
        assert!(a.allocate(&mut txn, &bound(Request::metadata(None, 1))).is_err());
        assert!(a.allocate(&mut txn, &Request::metadata(None, 1)).is_ok());
        assert_agrees(&a, &store);
    }
}
