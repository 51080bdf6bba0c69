//! Many threads; the store checks every mark.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task::spawn;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::model::*;
use crate::{
    Allocator, InodePreallocation, Kind, MetaPolicy, MetaRequest, MetaRole, Options, Pointers, Policy, Request,
    RequestFlags,
};

fn run(policy: Policy, meta_policy: MetaPolicy, bpg: u32, rounds: u32, fill: bool, slow: bool) {
    let geometry = geometry(if slow { 2 } else { 10 }, bpg, bpg / 3);
    let store = Arc::new(ModelStore::new(crate::Geometry { flex_bg_size: 4, ..geometry }));
    store.slow.store(slow, Ordering::Relaxed);
    let total = store.count(Block::Free);
    let options = Options { policy, meta_policy, locality_groups: 2, ..Options::default() };
    let a = Arc::new(allocator(&store, options));
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..4u64)
        .map(|t| {
            let (a, store) = (a.clone(), store.clone());
            spawn("alloc", move || work(&a, &store, t, rounds, fill)).expect("thread")
        })
        .collect();
    let shrinker = {
        let (a, stop) = (a.clone(), stop.clone());
        spawn("shrink", move || {
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    a.drop_unused_buddies(4096);
                    extant_base::task::yield_now();
                }
                a.discard_all_under_pressure();
                extant_base::task::yield_now();
            }
        })
        .expect("thread")
    };
    let kept: u64 = workers.into_iter().map(|w| w.join().expect("joined")).sum();
    stop.store(true, Ordering::Relaxed);
    shrinker.join().expect("joined");
    assert_eq!(store.count(Block::Used), kept);
    assert_eq!(store.count(Block::Free), total - kept);
    assert_eq!(a.reserved_blocks(), 0);
    assert_agrees(&a, &store);
}

fn work(a: &Allocator<ModelStore>, store: &ModelStore, seed: u64, rounds: u32, fill: bool) -> u64 {
    let mut rng = Rng::new(seed);
    let mut mine: Vec<(BlockNr, u32)> = Vec::new();
    let mut pending = Vec::new();
    let owners: Vec<_> = (0..4).map(|i| InodePreallocation::new(InodeNr((seed * 10 + i) as u32))).collect();
    for _ in 0..rounds {
        let owner = &owners[rng.below(4) as usize];
        let len = 1 + rng.below(if fill { 60 } else { 12 }) as u32;
        let goal = Some(BlockNr(rng.below(store.geometry.blocks_count)));
        let logical = rng.below(3000) as u32;
        match rng.below(10) {
            0..=5 => {
                let promised = rng.one_in(2) && a.reserve(u64::from(len), true).is_ok();
                let mut r = Request::data(owner, goal, LogicalBlock(logical), len, u64::from(logical + len));
                if rng.one_in(3) {
                    r = Request::data(owner, goal, LogicalBlock(0), len, u64::from(len));
                }
                if rng.one_in(8) {
                    r.flags = RequestFlags::NO_PREALLOC | RequestFlags::TRY_GOAL;
                }
                if let Kind::Data { reserved, .. } = &mut r.kind {
                    *reserved = promised;
                }
                let (blocks, end) = pointer_blocks(logical, rng.below(4) as usize);
                if a.puts_pointers_in_front() && rng.one_in(2) {
                    r.pointers = Some(Pointers { owner, blocks: &blocks, end });
                }
                let got = a.allocate(&mut Txn::default(), &r);
                if promised {
                    let left = len - got.as_ref().map_or(0, |x| x.len);
                    a.unreserve(u64::from(left));
                    // Promised blocks exist, at the latest after a commit.
                    assert!(!matches!(&got, Err(TestError::Alloc(crate::Error::NoSpace { .. }))), "{got:?}");
                }
                match got {
                    Ok(x) => mine.push(extent(x)),
                    Err(e) => assert!(e.no_space(), "{e:?}"),
                }
            }
            6 => {
                let role = MetaRole::ALL[rng.below(5) as usize];
                let meta = MetaRequest { home: goal, ..of_owner(role, owner.ino().0) };
                let mut r = Request { flags: RequestFlags::USE_RESERVED, ..Request::meta(meta, len) };
                let (blocks, end) = pointer_blocks(logical, 1);
                if rng.one_in(2) {
                    r.len = 1;
                    r.pointers = Some(Pointers { owner, blocks: &blocks, end });
                }
                match a.allocate(&mut Txn::default(), &r) {
                    Ok(x) => mine.push(extent(x)),
                    Err(e) => assert!(e.no_space(), "{e:?}"),
                }
            }
            7 | 8 => {
                let n = if fill && !rng.one_in(4) { 0 } else { 2 };
                for _ in 0..n.min(mine.len()) {
                    let (start, len) = mine.swap_remove(rng.below(mine.len() as u64) as usize);
                    pending.extend(a.free(&mut Txn::default(), start, u64::from(len)).expect("mine"));
                }
                if rng.one_in(3) {
                    store.commit(&pending);
                    a.release(&pending);
                    pending.clear();
                }
            }
            _ => a.discard_preallocations(owner),
        }
    }
    store.commit(&pending);
    a.release(&pending);
    mine.iter().map(|m| u64::from(m.1)).sum()
}

#[test]
fn no_block_is_handed_out_twice() {
    for policy in Policy::ALL {
        run(policy, MetaPolicy::Vanilla, 2048, 4000, false, false);
        run(policy, MetaPolicy::Vanilla, 2048, 2000, false, true);
    }
}

#[test]
fn no_block_is_handed_out_twice_on_a_full_disk() {
    for policy in Policy::ALL {
        run(policy, MetaPolicy::Vanilla, 512, 3000, true, false);
        run(policy, MetaPolicy::Vanilla, 512, 2000, true, true);
    }
}

/// The same with zones for metadata, which are lent and returned meanwhile.
#[test]
fn zones_lose_no_block_to_races() {
    for meta_policy in MetaPolicy::ALL {
        run(Policy::default(), meta_policy, 2048, 4000, false, false);
        run(Policy::default(), meta_policy, 512, 3000, true, false);
        run(Policy::default(), meta_policy, 512, 2000, true, true);
    }
}

/// Four threads take single blocks until none is left: each block goes to exactly one.
#[test]
fn threads_share_the_last_blocks_exactly() {
    let of_data = Policy::ALL.map(|policy| (policy, MetaPolicy::Vanilla));
    let of_metadata = MetaPolicy::ALL.map(|meta_policy| (Policy::default(), meta_policy));
    for (policy, meta_policy) in of_data.into_iter().chain(of_metadata) {
        let store = Arc::new(ModelStore::new(geometry(5, 512, 100)));
        store.slow.store(true, Ordering::Relaxed);
        let total = store.count(Block::Free);
        let options = Options { policy, meta_policy, locality_groups: 4, ..Options::default() };
        let a = Arc::new(allocator(&store, options));
        let workers: Vec<_> = (0..4u32)
            .map(|t| {
                let a = a.clone();
                spawn("fill", move || {
                    let owner = InodePreallocation::new(InodeNr(t));
                    let mut got = 0u64;
                    for i in 0.. {
                        let r = if i % 3 == 0 {
                            Request::meta(of_owner(MetaRole::ALL[i as usize % 5], t), 1)
                        } else {
                            Request::data(&owner, None, LogicalBlock(i % 7 * 100), 1, u64::from(i % 2 * 900 + 1))
                        };
                        match a.allocate(&mut Txn::default(), &r) {
                            Ok(x) => got += u64::from(x.len),
                            Err(e) => {
                                assert!(e.no_space());
                                return got;
                            }
                        }
                    }
                    got
                })
                .expect("thread")
            })
            .collect();
        let got: u64 = workers.into_iter().map(|w| w.join().expect("joined")).sum();
        assert_eq!(got, total, "{} {}", policy.name(), meta_policy.name());
        assert_agrees(&a, &store);
    }
}

fn of_owner(role: MetaRole, owner: u32) -> MetaRequest {
    MetaRequest { role, owner: InodeNr(owner), home: None, parent: None, data: None }
}

/// A promise is honoured even while another thread sets all other blocks aside.
#[test]
fn a_promise_is_honoured_while_other_threads_preallocate() {
    for policy in Policy::ALL {
        for _ in 0..20 {
            let store = Arc::new(ModelStore::new(geometry(1, 64, 40)));
            store.slow.store(true, Ordering::Relaxed);
            let a = Arc::new(allocator(&store, Options { policy, locality_groups: 4, ..Options::default() }));
            let workers: Vec<_> = (0..4u32)
                .map(|t| {
                    let a = a.clone();
                    spawn("promise", move || {
                        let owner = InodePreallocation::new(InodeNr(t));
                        let mut got = 0u64;
                        while a.reserve(1, true).is_ok() {
                            let logical = LogicalBlock(got as u32 % 5 * 700);
                            let mut r = Request::data(&owner, None, logical, 1, 4000);
                            if let Kind::Data { reserved, .. } = &mut r.kind {
                                *reserved = true;
                            }
                            got += u64::from(a.allocate(&mut Txn::default(), &r).expect("promised").len);
                        }
                        got
                    })
                    .expect("thread")
                })
                .collect();
            let got: u64 = workers.into_iter().map(|w| w.join().expect("joined")).sum();
            assert_eq!(got, 104, "{}", policy.name());
            assert_agrees(&a, &store);
        }
    }
}

/// A request is promised a block while another thread frees the only one. In every order it gets the block, or an
/// error that a commit will free it.
#[test]
fn a_promise_of_a_block_that_is_being_freed_is_honoured() {
    let mut promised = 0;
    for seed in 0..300 {
        let outcome = sim::run(&sim::Options::new(seed), || {
            let store = Arc::new(ModelStore::new(geometry(1, 64, 0)));
            let a = Arc::new(allocator(&store, Options::default()));
            let all: Vec<_> =
                std::iter::from_fn(|| a.allocate(&mut Txn::default(), &Request::metadata(None, 1)).ok()).collect();
            let frees = {
                let (a, one) = (a.clone(), extent(all[7]));
                spawn("frees", move || a.free(&mut Txn::default(), one.0, u64::from(one.1)).expect("mine"))
                    .expect("thread")
            };
            let mut got = None;
            if a.reserve(1, true).is_ok() {
                got = Some(a.allocate(&mut Txn::default(), &promised_block(&InodePreallocation::new(InodeNr(1)))));
            }
            frees.join().expect("joined");
            got
        });
        match outcome.result.expect("ends") {
            None => {}
            Some(Ok(_) | Err(TestError::Alloc(crate::Error::NoSpaceUntilCommit { .. }))) => promised += 1,
            Some(Err(e)) => panic!("seed {seed}: {e:?}"),
        }
    }
    assert!(promised > 0, "no promise was made in between");
}

/// A thread that does not run holds the last blocks in flight, and others are busy all the time. A request with a
/// promise waits for them.
#[test]
fn a_promise_waits_for_a_thread_that_does_not_run() {
    let outcome = sim::run(&sim::Options::new(1), || {
        let store = Arc::new(ModelStore::new(geometry(1, 64, 0)));
        let a = Arc::new(allocator(&store, Options::default()));
        let all: Vec<_> =
            std::iter::from_fn(|| a.allocate(&mut Txn::default(), &Request::metadata(None, 1)).ok()).collect();
        free_now(&a, &store, extent(all[7]));
        let holds = {
            let a = a.clone();
            spawn("holds", move || {
                let visit = |_, _| {
                    Clock::real().sleep(Duration::from_millis(200));
                    Ok::<_, ()>(())
                };
                a.visit_free(BlockNr(1), 64, 1, visit).expect("visited");
            })
            .expect("thread")
        };
        Clock::real().sleep(Duration::from_millis(1));
        let stop = Arc::new(AtomicBool::new(false));
        let busy = {
            let (a, stop) = (a.clone(), stop.clone());
            spawn("busy", move || {
                while !stop.load(Ordering::Relaxed) {
                    // No such block is pending, but after the call it looks as if blocks had become visible.
                    a.release(&[(BlockNr(1), 1)]);
                    Clock::real().sleep(Duration::from_nanos(500));
                }
            })
            .expect("thread")
        };
        a.reserve(1, true).expect("a block is free");
        let got = a.allocate(&mut Txn::default(), &promised_block(&InodePreallocation::new(InodeNr(1))));
        stop.store(true, Ordering::Relaxed);
        busy.join().expect("joined");
        holds.join().expect("joined");
        got.map(|got| got.start == all[7].start)
    });
    assert!(matches!(outcome.result, Ok(Ok(true))), "{:?}", outcome.result);
}

fn promised_block(owner: &InodePreallocation) -> Request<'_> {
    let mut request = Request::data(owner, None, LogicalBlock(0), 1, 1);
    if let Kind::Data { reserved, .. } = &mut request.kind {
        *reserved = true;
    }
    request
}
