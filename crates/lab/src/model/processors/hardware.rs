//! The costs of what two processors do to each other, measured.
//!
//! Main item: [`measure`]. Each figure is the least of several runs: a busy host only makes them longer.
//!
//! # Locking
//! `calibrated lock` is the lock that is measured; no other is taken under it.

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::time::Instant;

use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex, Waiter};
use extant_base::task;

use super::Hardware;
use crate::error::{Error, Result};
use crate::model::thread;

static CLASS: LockClass = LockClass::new("calibrated lock", 0);

/// Runs of each measurement, and the turns of a run.
const RUNS: u32 = 25;
const TURNS: u64 = 4_000;
/// Lines that are handed over with the token.
const LINES: usize = 16;
/// A run that takes longer met a host that does not let both processors run.
const PATIENCE_NS: u64 = 2_000_000_000;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

/// The processors that this process may use.
pub(super) fn processors() -> Result<[usize; 2]> {
    let allowed = rustix::thread::sched_getaffinity(None).map_err(std::io::Error::from).map_err(thread)?;
    let mut found = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    match (found.next(), found.next()) {
        (Some(a), Some(b)) => Ok([a, b]),
        _ => Err(Error::Failed("costs are measured on two processors, and this process may use one".into())),
    }
}

/// Keeps the calling thread on a processor.
pub(super) fn pin(processor: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(processor);
    rustix::thread::sched_setaffinity(None, &set).map_err(std::io::Error::from).map_err(thread)
}

/// The least time of an operation, in nanoseconds, over several runs of so many each.
pub(super) fn least(runs: u32, operations: u64, mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64 / operations as f64
    };
    (0..runs).map(time).fold(f64::INFINITY, f64::min)
}

/// See the module.
pub(super) fn measure() -> Result<Hardware> {
    let processors = processors()?;
    pin(processors[0])?;
    const N: u64 = 100_000;
    let lock = Mutex::new(&CLASS, 0u64);
    // Taking is half of it; the release is a part of the measured code.
    let lock_ns = least(RUNS, N, || (0..N).for_each(|i| *lock.lock() = black_box(i))) / 2.0;
    let lines: [Line; LINES] = Default::default();
    let add = || {
        lines.iter().for_each(|line| {
            black_box(line.0.fetch_add(1, Ordering::AcqRel));
        })
    };
    let add_ns = least(RUNS, N * LINES as u64, || (0..N).for_each(|_| add()));

    let token_ns = hand_over(processors, 0)?;
    let with_lines_ns = hand_over(processors, LINES)?;
    let bounce_ns = ((with_lines_ns - token_ns) / LINES as f64 - add_ns).max(0.0);
    let (wake_ns, woken_ns) = wake(processors)?;
    let switch_ns = (woken_ns - wake_ns).max(0.0);
    Ok(Hardware { lock_ns, bounce_ns, contended_ns: token_ns, switch_ns, wake_ns })
}

/// A token goes between two spinning threads, and so many lines with it: the time of one way.
fn hand_over(processors: [usize; 2], lines: usize) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let shared: Arc<(Line, [Line; LINES], AtomicBool)> = Arc::default();
        let side = |which: u64| {
            let shared = shared.clone();
            move || -> Result<f64> {
                pin(processors[which as usize])?;
                let (token, payload, gave_up) = &*shared;
                let start = Instant::now();
                for turn in 0..TURNS {
                    while token.0.load(Ordering::Acquire) != 2 * turn + which {
                        if gave_up.load(Ordering::Relaxed) {
                            return Ok(f64::INFINITY);
                        }
                        if turn.is_multiple_of(256) && start.elapsed().as_nanos() as u64 > PATIENCE_NS {
                            gave_up.store(true, Ordering::Relaxed);
                        }
                        spin_loop();
                    }
                    for line in &payload[..lines] {
                        line.0.fetch_add(1, Ordering::AcqRel);
                    }
                    token.0.store(2 * turn + which + 1, Ordering::Release);
                }
                Ok(start.elapsed().as_nanos() as f64 / (2 * TURNS) as f64)
            }
        };
        let other = task::spawn("calibrate", side(1)).map_err(thread)?;
        let mine = side(0)();
        let theirs = other.join().map_err(|_| Error::Failed("a thread panicked".into()))?;
        best = best.min(mine?.max(theirs?));
    }
    match best.is_finite() {
        true => Ok(best),
        false => Err(Error::Failed("two threads were never on two processors at the same time".into())),
    }
}

/// Two threads wake each other in turn: the time of the waking call, and of one way.
fn wake(processors: [usize; 2]) -> Result<(f64, f64)> {
    const WAKES: u64 = 500;
    let (mut best_call, mut best_way) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..RUNS {
        let there: Arc<Vec<Waiter<()>>> = Arc::new((0..WAKES).map(|_| Waiter::new()).collect());
        let back: Arc<Vec<Waiter<()>>> = Arc::new((0..WAKES).map(|_| Waiter::new()).collect());
        let other = {
            let (there, back) = (there.clone(), back.clone());
            task::spawn("calibrate", move || -> Result<()> {
                pin(processors[1])?;
                there.iter().zip(back.iter()).for_each(|(there, back)| {
                    there.wait();
                    back.set(());
                });
                Ok(())
            })
        };
        let other = other.map_err(thread)?;
        pin(processors[0])?;
        let (start, mut calls) = (Instant::now(), 0);
        for (there, back) in there.iter().zip(back.iter()) {
            let call = Instant::now();
            there.set(());
            calls += call.elapsed().as_nanos();
            back.wait();
        }
        best_way = best_way.min(start.elapsed().as_nanos() as f64 / (2 * WAKES) as f64);
        best_call = best_call.min(calls as f64 / WAKES as f64);
        other.join().map_err(|_| Error::Failed("a thread panicked".into()))??;
    }
    Ok((best_call, best_way))
}
