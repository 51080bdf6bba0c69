//! Compares a modelled machine with queues whose answers are known, and with itself.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::Clock;
use crate::rng::Rng;
use crate::sync::{Condvar, LockClass, Mutex, RwLock};
use crate::task;

static SERVER: LockClass = LockClass::new("test server", 0);
static TABLE: LockClass = LockClass::new("test table", 0);

fn machine<T: Send + 'static>(
    processors: usize,
    costs: Costs,
    seed: u64,
    f: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    let options = Options { processors, costs: Some(costs), steps_max: u64::MAX, ..Options::new(seed) };
    run(&options, f)
}

/// Starts `n` threads, each with its number, and returns their results in order.
fn crowd<T: Send + 'static>(n: usize, f: impl Fn(usize) -> T + Send + Sync + 'static) -> Vec<T> {
    let f = Arc::new(f);
    let threads: Vec<_> = (0..n)
        .map(|i| {
            let f = f.clone();
            task::spawn("one", move || f(i)).expect("thread")
        })
        .collect();
    threads.into_iter().map(|t| t.join().expect("joined")).collect()
}

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -mean * (1.0 - rng.below(1 << 53) as f64 / (1u64 << 53) as f64).ln()
}

/// The times between arrivals, in nanoseconds. No two arrivals are simultaneous.
fn gaps(seed: u64, n: usize, mean: f64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| 1 + exponential(&mut rng, mean - 0.5) as u64).collect()
}

/// The waits of each arrival (Lindley 1952, "The theory of queues with a single server").
fn lindley(gaps: &[u64], service: u64) -> Vec<u64> {
    // The server is idle when the first arrival comes.
    let mut free_at_ns = 0;
    let mut at_ns = 0;
    let wait = |gap: &u64| {
        at_ns += gap;
        let wait = u64::saturating_sub(free_at_ns, at_ns);
        free_at_ns = at_ns + wait + service;
        wait
    };
    gaps.iter().map(wait).collect()
}

fn mean(values: &[u64]) -> f64 {
    values.iter().sum::<u64>() as f64 / values.len() as f64
}

const SERVICE: u64 = 1_000;

/// Poisson arrivals at one lock that each thread holds for the same time are an M/D/1 queue. The mean wait is given by
/// the formula of Pollaczek and Khinchine, load · service / (2 · (1 - load)).
#[test]
fn a_lock_with_poisson_arrivals_is_the_queue_m_d_1() {
    const ARRIVALS: usize = 6_000;
    // More threads than ever wait at the same time with this load.
    const THREADS: usize = 64;
    for load in [0.3, 0.7] {
        let expected = load * SERVICE as f64 / (2.0 * (1.0 - load));
        let long = lindley(&gaps(7, 4_000_000, SERVICE as f64 / load), SERVICE);
        assert!((mean(&long) / expected - 1.0).abs() < 0.01, "{} {expected}", mean(&long));

        let gaps = gaps(7, ARRIVALS, SERVICE as f64 / load);
        let due: Arc<Vec<u64>> = Arc::new(
            gaps.iter()
                .scan(1_000_000, |at, gap| {
                    *at += gap;
                    Some(*at)
                })
                .collect(),
        );
        // The service time includes the cost of the lock, which is 1 ns. A thread that waited has no additional cost.
        let costs = Costs { lock_ns: 1, ..Costs::default() };
        let outcome = machine(THREADS + 1, costs, 3, move || {
            let lock = Arc::new(Mutex::new(&SERVER, ()));
            let waits = crowd(THREADS, move |i| {
                let clock = Clock::real();
                let mine = due.iter().skip(i).step_by(THREADS);
                mine.map(|&due| {
                    clock.sleep(Duration::from_nanos(due - clock.now_ns()));
                    let held = lock.lock();
                    compute(SERVICE - 1);
                    drop(held);
                    clock.now_ns() - due - SERVICE
                })
                .collect::<Vec<_>>()
            });
            (0..ARRIVALS).map(|i| waits[i % THREADS][i / THREADS]).collect::<Vec<u64>>()
        });
        let waits = outcome.result.expect("it ends");
        let differs = waits.iter().zip(lindley(&gaps, SERVICE)).position(|(wait, expected)| *wait != expected);
        assert_eq!(differs, None, "load {load}");
        let row = &outcome.uses[0];
        assert_eq!((row.name, row.taken), ("test server", ARRIVALS as u64));
        assert_eq!(row.wait_ns, waits.iter().sum::<u64>());
    }
}

/// The throughput of a ticket lock that `n` threads use, in acquisitions per nanosecond. Each thread computes for
/// `think` on average and then holds the lock for `hold`; passing the lock on takes `waiter` for each waiting thread
/// (Boyd-Wickizer et al. 2012, "Non-scalable locks are dangerous", as a birth-death chain).
fn ticket_lock(n: u32, think: f64, hold: f64, waiter: f64) -> f64 {
    let mut share = vec![1.0];
    for k in 1..=n {
        let arrivals = f64::from(n - k + 1) / think;
        let service = 1.0 / (hold + waiter * f64::from(k - 1));
        share.push(share[k as usize - 1] * arrivals / service);
    }
    let all: f64 = share.iter().sum();
    (1..=n).map(|k| share[k as usize] / all / (hold + waiter * f64::from(k - 1))).sum()
}

#[test]
fn a_ticket_lock_has_the_throughput_of_its_closed_form() {
    const UNTIL_NS: u64 = 3_000_000;
    const WAITER: u64 = 20;
    for (n, think, hold) in [(4, 4_000.0, 400.0), (16, 8_000.0, 400.0), (32, 8_000.0, 100.0)] {
        let costs = Costs { waiter_ns: WAITER, ..Costs::default() };
        let outcome = machine(n + 1, costs, 5, move || {
            let lock = Arc::new(Mutex::new(&SERVER, 0u64));
            let done = crowd(n, move |i| {
                let (mut rng, clock) = (Rng::new(i as u64), Clock::real());
                let mut done = 0;
                while clock.now_ns() < UNTIL_NS {
                    compute(exponential(&mut rng, think) as u64);
                    let held = lock.lock();
                    compute(exponential(&mut rng, hold) as u64);
                    drop(held);
                    done += 1;
                }
                done
            });
            done.iter().sum::<u64>()
        });
        let measured = outcome.result.expect("it ends") as f64 / UNTIL_NS as f64;
        let expected = ticket_lock(n as u32, think, hold, WAITER as f64);
        assert!((measured / expected - 1.0).abs() < 0.05, "{n} threads: {measured} {expected}");
    }
}

/// If a lock is always contended, one cycle is the time for which it is held, plus the hand-over and its additional
/// cost for the other waiters.
#[test]
fn a_saturated_lock_is_handed_over_in_turn_at_its_cost() {
    const EACH: u64 = 200;
    for (waiter_ns, cycle_ns) in [(0, 500 + 10 + 90), (7, 500 + 10 + 90 + 7 * 6)] {
        let costs = Costs { lock_ns: 10, contended_ns: 90, bounce_ns: 60, waiter_ns, ..Costs::default() };
        let outcome = machine(9, costs, 5, move || {
            let lock = Arc::new(Mutex::new(&SERVER, Vec::new()));
            let turns = lock.clone();
            crowd(8, move |i| {
                for _ in 0..EACH {
                    let mut held = lock.lock();
                    compute(500);
                    held.push(i);
                }
            });
            std::mem::take(&mut *turns.lock())
        });
        let (ns, turns) = (outcome.virtual_ns, outcome.result.expect("it ends"));
        let expected = 8 * EACH * cycle_ns;
        assert!(ns.abs_diff(expected) < expected / 100, "{ns} {expected}");
        // First come, first served: no thread is overtaken by more than one round.
        let (from, to) = (100, 8 * EACH as usize - 100);
        assert!(turns[from..to].windows(8).all(|w| (0..8).all(|i| w.contains(&i))));
        let row = &outcome.uses[0];
        assert!(row.contended * 100 >= 8 * EACH * 98 && row.moved >= row.contended, "{row:?}");
    }
}

#[test]
fn a_line_that_all_write_moves_at_its_cost_and_one_that_all_read_does_not() {
    const EACH: u64 = 100;
    let cycle = |writes: bool| {
        let costs = Costs { bounce_ns: 80, ..Costs::default() };
        let outcome = machine(5, costs, 1, move || {
            let line = Arc::new(0u64);
            crowd(4, move |_| {
                for _ in 0..EACH {
                    if writes {
                        line_written("shared", &*line)
                    } else {
                        line_read("shared", &*line)
                    }
                    compute(1);
                }
            });
        });
        (outcome.virtual_ns, outcome.uses)
    };
    let (ns, uses) = cycle(true);
    let expected = 4 * EACH * 80;
    assert!(ns.abs_diff(expected) < expected / 20, "{ns}");
    assert!(uses[0].name == "shared" && uses[0].moved > 4 * EACH * 9 / 10, "{uses:?}");
    let (ns, uses) = cycle(false);
    assert!(ns < 500 && uses[0].moved == 3, "{ns} {uses:?}");
}

#[test]
fn readers_share_a_lock_and_a_writer_waits_for_all_of_them() {
    let costs = Costs { lock_ns: 1, ..Costs::default() };
    let outcome = machine(8, costs, 1, || {
        let table = Arc::new(RwLock::new(&TABLE, ()));
        crowd(6, move |i| {
            let clock = Clock::real();
            clock.sleep(Duration::from_nanos(1_000 + i as u64));
            if i == 3 {
                let _held = table.write();
                compute(1_000);
            } else {
                let _held = table.read();
                compute(1_000);
            }
            clock.now_ns()
        })
    });
    let ends = outcome.result.expect("it ends");
    // Readers that arrive while others read join them.
    assert!(ends[..3].iter().chain(&ends[4..]).all(|ns| (2_000..2_020).contains(ns)), "{ends:?}");
    assert!((3_000..3_030).contains(&ends[3]), "{ends:?}");
}

#[test]
fn code_takes_the_time_of_its_table() {
    let mut table = CodeTable::default();
    table.insert(("took", "test server"), ("release", "test server"), 700_500, 900_000);
    let options = Options {
        processors: 2,
        costs: Some(Costs { lock_ns: 10, ..Costs::default() }),
        code: Code::Table(Arc::new(table)),
        ..Options::new(1)
    };
    let outcome = run(&options, || {
        let lock = Mutex::new(&SERVER, ());
        (0..10).for_each(|_| drop(lock.lock()));
        Clock::real().now_ns()
    });
    assert_eq!(outcome.result, Ok(10 * 710 + 5));
}

#[test]
fn the_time_of_code_is_measured_between_calls() {
    let options = Options { code: Code::Measured, ..Options::new(1) };
    let body = || {
        let lock = Mutex::new(&SERVER, 0u64);
        for _ in 0..200 {
            let mut held = lock.lock();
            for i in 0..2_000u64 {
                *held = std::hint::black_box(*held ^ i);
            }
        }
    };
    let outcome = run(&options, move || {
        body();
        task::spawn("works", body).expect("thread").join().expect("joined");
    });
    let time = |from: &str, to: &str| {
        let found = outcome.code.iter().find(|s| s.from.call == from && s.to.call == to);
        found.map(|s| (s.count, s.median_ns)).expect("a segment")
    };
    let (held, free) = (time("took", "release"), time("release", "lock"));
    assert!((150..=200).contains(&held.0) && (150..=200).contains(&free.0), "{:?}", outcome.code);
    assert!(held.1 > 4 * free.1, "the work is under the lock: {:?}", outcome.code);
}

/// Uses all kinds of waits, on as many processors as threads.
fn everything() -> Vec<u64> {
    let shared = Arc::new((Mutex::new(&SERVER, 0u64), Condvar::new(), RwLock::new(&TABLE, 0u64)));
    crowd(12, move |i| {
        let mut rng = Rng::new(i as u64);
        for _ in 0..20 {
            compute(rng.below(300));
            *shared.0.lock() += 1;
            shared.1.notify_one();
            if rng.one_in(3) {
                *shared.2.write() += 1;
            } else {
                line_written("counter", &shared.2);
                let _ = *shared.2.read();
            }
            if rng.one_in(5) {
                shared.1.wait_for(&mut shared.0.lock(), Duration::from_nanos(500));
            }
            if let Some(mut n) = shared.0.try_lock() {
                *n += 1;
            }
        }
        Clock::real().now_ns()
    })
}

#[test]
fn twenty_modelled_runs_on_one_and_on_two_real_processors_are_identical() {
    let before = rustix::thread::sched_getaffinity(None).expect("affinity");
    let all: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| before.is_set(*c)).take(2).collect();
    let costs = Costs { switch_ns: 30, wake_ns: 20, lock_ns: 10, bounce_ns: 60, contended_ns: 90, waiter_ns: 1 };
    let mut runs = std::collections::BTreeSet::new();
    for turn in 0..20 {
        let mut set = rustix::thread::CpuSet::new();
        all.iter().take(1 + turn % 2).for_each(|c| set.set(*c));
        rustix::thread::sched_setaffinity(None, &set).expect("affinity");
        let outcome = machine(13, costs, 9, everything);
        let uses = format!("{:?}", outcome.uses);
        runs.insert((outcome.result.expect("it ends"), outcome.trace.fingerprint(), outcome.virtual_ns, uses));
    }
    rustix::thread::sched_setaffinity(None, &before).expect("affinity");
    assert_eq!(runs.len(), 1);
    let (ends, ..) = runs.first().expect("a run");
    assert!(ends.iter().all(|ns| *ns > 10_000), "{ends:?}");
}
