//! Tests of the contract of every tag policy, and of the additional guarantees of [`TagPolicyKind::HandOff`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex, Waiter};
use extant_base::task;

use super::super::Start;
use super::super::{TagConfig, TagGuard, TagSet, while_completing};
use super::hand_off::BYTES_MAX;
use super::{TagPolicyKind, Tags};

static CLASS: LockClass = LockClass::new("tags in use", 0);

fn tags(kind: TagPolicyKind, depth: u32) -> Tags {
    Tags::new(kind, depth, 8)
}

fn set(policy: TagPolicyKind, depth: u32, wait_queues: u32) -> Arc<TagSet> {
    Arc::new(TagSet::new(TagConfig { depth, policy, wait_queues }))
}

#[test]
fn names_are_found_and_in_the_table() {
    for kind in TagPolicyKind::ALL {
        assert_eq!(TagPolicyKind::from_name(kind.name()), Ok(kind));
    }
    assert!(TagPolicyKind::from_name("none").is_err());
    for row in TagPolicyKind::TABLE.rows {
        assert!(include_str!("mod.rs").contains(&format!("//! | `{}` |", row.name)), "{}", row.name);
    }
}

#[test]
fn one_thread_finds_every_tag_and_none_twice() {
    for kind in TagPolicyKind::ALL {
        for depth in (1..70).chain([127, 128, 129, 255, 256, 257, 1000, 4096]) {
            let tags = tags(kind, depth);
            for hint in [0, 7, 1_000_003] {
                let all: BTreeSet<u32> = (0..depth).map(|_| tags.try_get(hint).expect("one is free")).collect();
                assert_eq!(all.len(), depth as usize, "{kind:?} {depth}");
                assert!(all.last() < Some(&depth));
                assert_eq!(tags.try_get(hint + 1), None);
                // Any released tag is found again.
                for &tag in all.iter().rev() {
                    assert!(tags.put(tag, hint + 2).is_none());
                    assert_eq!(tags.try_get(hint), Some(tag));
                }
                all.iter().for_each(|&t| assert!(tags.put(t, hint).is_none()));
            }
            assert_eq!(tags.ledger().stats(), Default::default());
        }
    }
}

#[test]
fn the_same_calls_give_the_same_tags() {
    for kind in TagPolicyKind::ALL {
        let run = || {
            let (tags, mut held, mut seen) = (tags(kind, 37), Vec::new(), Vec::new());
            let mut rng = Rng::new(11);
            for _ in 0..2000 {
                if !held.is_empty() && rng.one_in(2) {
                    tags.put(held.swap_remove(rng.below(held.len() as u64) as usize), rng.below(4) as usize);
                } else if let Some(t) = tags.try_get(rng.below(4) as usize) {
                    held.push(t);
                    seen.push(t);
                }
            }
            seen
        };
        assert_eq!(run(), run());
    }
}

/// The requests in flight, each with its waiter.
type Device = Mutex<VecDeque<(TagGuard, Waiter<()>)>>;

/// Starts a request and asserts that its tag is free.
fn starts(held: &Arc<Vec<AtomicBool>>, device: &Arc<Device>, done: Waiter<()>) -> Start {
    let (held, device) = (held.clone(), device.clone());
    Box::new(move |guard: TagGuard| {
        let out = held[guard.tag() as usize].swap(true, Ordering::SeqCst);
        assert!(!out, "tag {} is out twice", guard.tag());
        device.lock().push_back((guard, done));
    })
}

/// Threads that wait, threads whose bios wait, and completions that submit, with a device that releases the tags on a
/// separate thread.
#[test]
fn no_tag_is_out_twice_and_every_waiter_ends() {
    for kind in TagPolicyKind::ALL {
        for (depth, wait_queues) in [(1, 8), (3, 1), (8, 8), (61, 8), (64, 1)] {
            let set = set(kind, depth, wait_queues);
            let held: Arc<Vec<AtomicBool>> = Arc::new((0..depth).map(|_| AtomicBool::new(false)).collect());
            let device: Arc<Device> = Arc::new(Mutex::new(&CLASS, VecDeque::new()));
            let total = Arc::new(AtomicU64::new(0));
            const THREADS: u32 = 24;
            const EACH: u32 = 600;
            // This many completions submit one more bio, as those of failed merged requests do.
            const MORE: u32 = THREADS * EACH / 4;
            let completes = {
                let (set, device, held, total) = (set.clone(), device.clone(), held.clone(), total.clone());
                task::spawn("completes", move || {
                    let mut more = MORE;
                    while total.load(Ordering::SeqCst) < u64::from(THREADS * EACH + MORE) {
                        let taken = std::mem::take(&mut *device.lock());
                        if taken.is_empty() {
                            task::yield_now();
                        }
                        for (guard, done) in taken {
                            held[guard.tag() as usize].store(false, Ordering::SeqCst);
                            let again = more > 0;
                            while_completing(|| {
                                if again {
                                    let start = starts(&held, &device, Waiter::new());
                                    TagSet::start(&set, more % 2, 4096, start);
                                }
                                drop(guard);
                            });
                            more -= u32::from(again);
                            total.fetch_add(1, Ordering::SeqCst);
                            done.set(());
                        }
                    }
                })
                .expect("thread")
            };
            let threads: Vec<_> = (0..THREADS)
                .map(|t| {
                    let (set, held, device, total) = (set.clone(), held.clone(), device.clone(), total.clone());
                    task::spawn("tags", move || {
                        for i in 0..EACH {
                            if t % 3 == 0 {
                                let guard = TagSet::get(&set, t % 2);
                                let out = held[guard.tag() as usize].swap(true, Ordering::SeqCst);
                                assert!(!out, "tag {} is out twice", guard.tag());
                                if (i + t) % 16 == 0 {
                                    task::yield_now();
                                }
                                held[guard.tag() as usize].store(false, Ordering::SeqCst);
                                drop(guard);
                                total.fetch_add(1, Ordering::SeqCst);
                                continue;
                            }
                            let done = Waiter::new();
                            TagSet::start(&set, t % 2, 4096, starts(&held, &device, done.clone()));
                            if i % 8 != 0 || i + 1 == EACH {
                                done.wait();
                            }
                        }
                    })
                    .expect("thread")
                })
                .collect();
            threads.into_iter().for_each(|t| t.join().expect("joined"));
            completes.join().expect("joined");
            let all: Vec<_> = (0..depth).map(|_| TagSet::try_get(&set).expect("all are back")).collect();
            assert!(TagSet::try_get(&set).is_none());
            drop(all);
            assert_eq!(total.load(Ordering::SeqCst), u64::from(THREADS * EACH + MORE), "{kind:?}: each once");
            let stats = set.stats();
            if kind == TagPolicyKind::HandOff {
                assert_eq!((stats.wakes_in_vain, stats.overtakings), (0, 0), "{stats:?}");
                assert!(stats.wakes <= stats.waits, "{stats:?}");
            }
        }
    }
}

/// A completion that submits never sleeps, because it may be the one that must release the tag.
#[test]
fn a_completion_submits_when_no_tag_is_free() {
    for kind in TagPolicyKind::ALL {
        let set = set(kind, 1, 8);
        let held = TagSet::try_get(&set).expect("free");
        let started = Arc::new(AtomicU64::new(0));
        while_completing(|| {
            for _ in 0..10 {
                let started = started.clone();
                TagSet::start(&set, 0, 4096, Box::new(move |_tag| _ = started.fetch_add(1, Ordering::SeqCst)));
            }
        });
        assert_eq!(started.load(Ordering::SeqCst), 0);
        drop(held);
        assert_eq!(started.load(Ordering::SeqCst), 10, "{kind:?}");
        assert!(TagSet::try_get(&set).is_some());
    }
}

/// Waiters as numbers, in the order in which they got the tag.
type Order = Arc<Mutex<Vec<u32>>>;

fn order() -> Order {
    Arc::new(Mutex::new(&CLASS, Vec::new()))
}

fn bio(set: &Arc<TagSet>, user: u32, bytes: u64, order: &Order, number: u32) {
    let order = order.clone();
    TagSet::start(set, user, bytes, Box::new(move |_tag| order.lock().push(number)));
}

fn until_waits(set: &TagSet, waits: u64) {
    while set.stats().waits < waits {
        task::yield_now();
    }
}

#[test]
fn threads_and_bios_are_served_in_order_of_arrival() {
    let set = set(TagPolicyKind::HandOff, 1, 8);
    let held = TagSet::try_get(&set).expect("free");
    let (order, mut threads) = (order(), Vec::new());
    for number in 0..30 {
        if number % 3 > 0 {
            bio(&set, 0, 4096, &order, number);
        } else {
            let (set, order) = (set.clone(), order.clone());
            let waits = move || {
                let _tag = TagSet::get(&set, 0);
                order.lock().push(number);
            };
            threads.push(task::spawn("waits", waits).expect("thread"));
        }
        until_waits(&set, u64::from(number) + 1);
        assert!(TagSet::try_get(&set).is_none());
    }
    drop(held);
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    let _last = TagSet::get(&set, 0);
    assert_eq!(*order.lock(), (0..30).collect::<Vec<_>>());
    let stats = set.stats();
    assert_eq!((stats.waits, stats.wakes, stats.wakes_in_vain, stats.overtakings), (30, 10, 0, 0));
    assert!(stats.longest_wait_ns > 0);
}

#[test]
fn queues_that_share_tags_are_served_in_turn() {
    let set = set(TagPolicyKind::HandOff, 1, 8);
    let users = [set.join(), set.join(), set.join()];
    assert_eq!(users, [0, 1, 2]);
    let held = TagSet::try_get(&set).expect("free");
    let order = order();
    for number in 0..6 {
        bio(&set, 0, 4096, &order, number);
    }
    bio(&set, 2, 4096, &order, 20);
    bio(&set, 1, 4096, &order, 10);
    bio(&set, 2, 4096, &order, 21);
    drop(held);
    assert_eq!(*order.lock(), [10, 20, 0, 21, 1, 2, 3, 4, 5]);
    assert_eq!(set.stats().overtakings, 0, "no request of a queue overtakes another");
}

#[test]
fn a_thread_waits_itself_once_waiting_bios_exceed_the_byte_limit() {
    let set = set(TagPolicyKind::HandOff, 1, 8);
    let held = TagSet::try_get(&set).expect("free");
    let order = order();
    for number in 0..4 {
        bio(&set, 0, BYTES_MAX / 4, &order, number);
    }
    let beyond = {
        let (set, order) = (set.clone(), order.clone());
        task::spawn("beyond", move || bio(&set, 0, 4096, &order, 4)).expect("thread")
    };
    until_waits(&set, 5);
    // A completion is not a thread that may wait.
    while_completing(|| bio(&set, 0, 4096, &order, 5));
    assert!(!beyond.is_finished());
    drop(held);
    beyond.join().expect("joined");
    let _last = TagSet::get(&set, 0);
    assert_eq!((order.lock().clone(), set.stats().wakes), (vec![0, 1, 2, 3, 4, 5], 1));
}

#[test]
fn a_long_queue_of_bios_that_complete_at_once_uses_little_stack() {
    let set = set(TagPolicyKind::HandOff, 1, 8);
    let held = TagSet::try_get(&set).expect("free");
    let order = order();
    (0..100_000).for_each(|number| bio(&set, 0, 0, &order, number));
    drop(held);
    assert_eq!(order.lock().len(), 100_000);
}
