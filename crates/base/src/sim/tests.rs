//! Tests that the same seed gives the same run, and that every kind of end is reported.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;
use crate::clock::Clock;
use crate::hash::HashSet;
use crate::sync::{Condvar, LockClass, Mutex, RwLock, Waiter};
use crate::task;

static OUTER: LockClass = LockClass::new("test sim outer", 0);
static INNER: LockClass = LockClass::new("test sim inner", 0);
static LEAF: LockClass = LockClass::new("test sim leaf", 0);

const STRATEGIES: [Strategy; 3] = [
    Strategy::Random { preempt_permille: 200 },
    Strategy::Priorities { changes: 3, steps: 300 },
    Strategy::RoundRobin { quantum: 2 },
];

fn options(seed: u64, strategy: Strategy) -> Options {
    Options { strategy, trace: true, leap_permille: 20, steps_max: 100_000, ..Options::new(seed) }
}

/// Uses every primitive, and returns a record of the results.
fn everything() -> Vec<u64> {
    let queue = Arc::new((Mutex::new(&OUTER, Vec::new()), Condvar::new()));
    let table = Arc::new(RwLock::new(&INNER, HashSet::default()));
    let threads: Vec<_> = (0..3u64)
        .map(|n| {
            let (queue, table) = (queue.clone(), table.clone());
            task::spawn("worker", move || {
                let clock = Clock::real();
                for i in 0..4 {
                    table.write().insert(n * 10 + i);
                    clock.sleep(Duration::from_millis(choose(3)));
                    let seen = table.read().iter().fold(0u64, |h, x| h.wrapping_mul(31).wrapping_add(*x));
                    let stamp = clock.now_ns() ^ (task::shard_index() as u64) << 32 ^ seen;
                    queue.0.lock().push(stamp);
                    queue.1.notify_one();
                    task::yield_now();
                }
            })
            .expect("thread")
        })
        .collect();
    let mut all = Vec::new();
    while all.len() < 12 {
        let mut q = queue.0.lock();
        if q.is_empty() && queue.1.wait_for(&mut q, Duration::from_millis(1)) {
            all.push(0);
            all.pop();
        }
        all.append(&mut q);
    }
    threads.into_iter().for_each(|t| t.join().expect("joined"));
    all.push(task::processors() as u64);
    all
}

#[test]
fn the_same_seed_gives_the_same_run_on_one_and_on_two_processors() {
    let before = rustix::thread::sched_getaffinity(None).expect("affinity");
    let cpus: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| before.is_set(*c)).take(2).collect();
    let mut different = HashSet::default();
    for strategy in STRATEGIES {
        for seed in 0..40 {
            let mut runs = Vec::new();
            for width in [1, 2, 2] {
                let mut set = rustix::thread::CpuSet::new();
                cpus.iter().take(width).for_each(|c| set.set(*c));
                rustix::thread::sched_setaffinity(None, &set).expect("affinity");
                let outcome = run(&options(seed, strategy), everything);
                let text = outcome.trace.to_string();
                runs.push((outcome.result.expect("it ends"), text, outcome.trace.fingerprint(), outcome.steps));
            }
            assert!(runs[0] == runs[1] && runs[1] == runs[2], "seed {seed}, {strategy:?}");
            different.insert(runs[0].2);
        }
    }
    rustix::thread::sched_setaffinity(None, &before).expect("affinity");
    assert!(different.len() > 90, "only {} different runs of 120", different.len());
}

#[test]
fn concurrent_runs_and_unsimulated_threads_do_not_disturb_each_other() {
    let alone = run(&options(7, STRATEGIES[0]), everything).trace.to_string();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    // This thread is not simulated, and uses a lock that the runs take, too.
    static SHARED: Mutex<u64> = Mutex::new(&LEAF, 0);
    let noise = {
        let stop = stop.clone();
        task::spawn("noise", move || {
            while !stop.load(Ordering::Relaxed) {
                *SHARED.lock() += 1;
            }
        })
    };
    let others: Vec<_> = (0..4)
        .map(|_| {
            task::spawn("a run", || {
                let outcome = run(&options(7, STRATEGIES[0]), everything);
                (outcome.trace.to_string(), run(&options(8, STRATEGIES[0]), || drop(SHARED.lock())).result)
            })
            .expect("thread")
        })
        .collect();
    for t in others {
        let (trace, shared) = t.join().expect("joined");
        assert!(trace == alone && shared == Ok(()));
    }
    stop.store(true, Ordering::Relaxed);
    noise.expect("thread").join().expect("joined");
    assert!(!active());
}

#[test]
fn a_deadlock_report_names_each_thread_and_its_lock() {
    let two_orders = || {
        let (a, b) = (Arc::new(Mutex::new(&OUTER, ())), Arc::new(Mutex::new(&INNER, ())));
        let (c, d) = (a.clone(), b.clone());
        let other = task::spawn("other", move || {
            let _inner = d.lock();
            let _outer = c.lock();
        });
        {
            let _outer = a.lock();
            let _inner = b.lock();
        }
        other.expect("thread").join().expect("joined");
    };
    for strategy in [STRATEGIES[0], STRATEGIES[1]] {
        let met = (0..400).find_map(|seed| run(&options(seed, strategy), two_orders).result.err());
        let text = met.expect("some schedule").to_string();
        for part in [
            "0.root: waits for the lock 'test sim inner', held by other; holds test sim outer",
            "1.other: waits for the lock 'test sim outer', held by root; holds test sim inner",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
    let for_ever = run(&options(1, STRATEGIES[0]), || {
        let never = Waiter::<()>::new();
        never.wait();
    });
    assert!(for_ever.result.unwrap_err().to_string().contains("waits for a condition under 'waiter'"));
}

#[test]
fn time_is_virtual_and_moves_when_no_thread_can_run() {
    let start = Instant::now();
    let outcome = run(&Options::new(3), || {
        let clock = Clock::real();
        let wall = clock.wall();
        let late = task::spawn("late", move || Clock::real().sleep(Duration::from_secs(7200))).expect("thread");
        let (lock, never) = (Mutex::new(&OUTER, ()), Condvar::new());
        assert!(never.wait_for(&mut lock.lock(), Duration::from_secs(3600)));
        let at_timeout = clock.now_ns();
        late.join().expect("joined");
        (wall.sec, at_timeout, clock.now_ns(), clock.wall().sec)
    });
    assert_eq!(outcome.result, Ok((1_700_000_000, 3_600_000_000_000, 7_200_000_000_000, 1_700_007_200)));
    assert_eq!(outcome.left, Vec::<String>::new());
    assert!(start.elapsed() < Duration::from_secs(600), "of the machine's own time");
}

#[test]
fn notify_one_wakes_one_thread_and_each_under_some_seed() {
    let mut first = HashSet::default();
    for seed in 0..60 {
        let outcome = run(&Options::new(seed), || {
            let shared = Arc::new((Mutex::new(&OUTER, (0, Vec::new())), Condvar::new()));
            let threads: Vec<_> = (0..3)
                .map(|n| {
                    let shared = shared.clone();
                    task::spawn("waits", move || {
                        let mut s = shared.0.lock();
                        s.0 += 1;
                        shared.1.wait(&mut s);
                        s.1.push(n);
                    })
                    .expect("thread")
                })
                .collect();
            while shared.0.lock().0 < 3 {
                task::yield_now();
            }
            shared.1.notify_one();
            Clock::real().sleep(Duration::from_secs(1));
            let woken = shared.0.lock().1.clone();
            shared.1.notify_all();
            threads.into_iter().for_each(|t| t.join().expect("joined"));
            woken
        });
        let woken = outcome.result.expect("it ends");
        assert_eq!(woken.len(), 1);
        first.insert(woken[0]);
    }
    assert_eq!(first.len(), 3);
}

#[test]
fn a_panic_in_any_thread_ends_the_run_and_leaks_the_rest() {
    let outcome = run(&Options::new(1), || {
        let waits = task::spawn("waits", || Waiter::<()>::new().wait()).expect("thread");
        let panics = task::spawn("panics", || {
            Clock::real().sleep(Duration::from_secs(1));
            panic!("on purpose");
        })
        .expect("thread");
        let _ = (waits.join(), panics.join());
    });
    assert_eq!(outcome.left, ["root", "waits"]);
    let Err(Failure::Panic { thread, message }) = outcome.result else { panic!("{:?}", outcome.result) };
    assert!(thread == "panics" && message.starts_with("on purpose at "), "{thread}: {message}");
}

#[test]
fn a_run_with_too_many_steps_is_ended() {
    let outcome = run(&Options { steps_max: 1000, ..Options::new(1) }, || {
        loop {
            task::yield_now();
        }
    });
    assert!(matches!(outcome.result, Err::<(), _>(Failure::Livelock { steps: 1001, .. })));
}

#[test]
fn a_thread_that_waits_outside_the_scheduler_is_named() {
    let options = Options { watchdog: Duration::from_millis(300), ..Options::new(1) };
    let outcome = run(&options, || {
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        let stuck = task::spawn("blind", move || receiver.recv().is_ok()).expect("thread");
        point("before the join");
        stuck.join().expect("joined")
    });
    let Err(Failure::Stuck { thread, last }) = outcome.result else { panic!("{:?}", outcome.result) };
    assert!(thread == "blind" && last.contains("runs"), "{thread}: {last}");
}

#[test]
fn a_thread_that_computes_without_end_is_named() {
    static ENOUGH: AtomicBool = AtomicBool::new(false);
    let options = Options { watchdog: Duration::from_millis(300), ..Options::new(1) };
    let outcome = run(&options, || {
        while !ENOUGH.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    ENOUGH.store(true, Ordering::Relaxed);
    let Err(Failure::Stuck { thread, .. }) = outcome.result else { panic!("{:?}", outcome.result) };
    assert_eq!(thread, "root");
}

#[test]
fn a_lost_update_is_found_by_each_strategy() {
    let racy = || {
        let n = Arc::new(Mutex::new(&OUTER, 0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let n = n.clone();
                task::spawn("adds", move || {
                    let seen = *n.lock();
                    *n.lock() = seen + 1;
                })
                .expect("thread")
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        Arc::into_inner(n).expect("all have ended").into_inner()
    };
    for strategy in STRATEGIES {
        let strategy = match strategy {
            Strategy::Priorities { .. } => Strategy::Priorities { changes: 2, steps: 20 },
            other => other,
        };
        assert!((0..300).any(|seed| run(&options(seed, strategy), racy).result == Ok(1)), "{strategy:?}");
    }
}

#[test]
fn a_search_runs_every_schedule_once_and_finds_bugs_of_two_preemptions() {
    let letters = || {
        let text = Arc::new(Mutex::new(&OUTER, String::new()));
        let threads: Vec<_> = ["a", "b", "c"]
            .map(|letter| {
                let text = text.clone();
                task::spawn("writes", move || text.lock().push_str(letter)).expect("thread")
            })
            .into();
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        Arc::into_inner(text).expect("all have ended").into_inner()
    };
    let mut all = std::collections::BTreeSet::new();
    let mut traces = HashSet::default();
    let options = Options { trace: true, ..Options::new(0) };
    let runs = search(&options, 1, letters, |outcome| {
        assert!(traces.insert(outcome.trace.fingerprint()), "no schedule runs twice");
        all.insert(outcome.result.expect("it ends"));
    });
    assert_eq!((all.len(), traces.len() as u64), (6, runs));

    let racy = || {
        let n = Arc::new(Mutex::new(&OUTER, 0));
        let threads = [(); 2].map(|()| {
            let n = n.clone();
            task::spawn("adds", move || {
                let seen = *n.lock();
                *n.lock() = seen + 1;
            })
            .expect("thread")
        });
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        Arc::into_inner(n).expect("all have ended").into_inner()
    };
    let mut sums = HashSet::default();
    search(&Options::new(0), 2, racy, |outcome| {
        sums.insert(outcome.result.expect("it ends"));
    });
    assert_eq!(sums.len(), 2);
}
