//! A deterministic scheduler: one seed determines the threads, locks, waits, sleeps and clocks of a whole stack.
//!
//! [`run`] calls a closure on a simulated thread. Each simulated thread is a thread of the operating system. Exactly
//! one of them holds the baton and runs; the others are parked. A thread calls the scheduler when it starts a thread,
//! takes or releases a lock, waits, notifies, sleeps or passes a [`point`]. The scheduler may then run another thread,
//! which the seed determines. So the same seed gives the same run, on any number of processors, and [`Outcome::trace`]
//! is identical byte for byte.
//!
//! Simulation is chosen at run time, in the same build. A thread-local value says whether a thread belongs to a run; it
//! is read only while some run is in progress in the process. Concurrent runs and unsimulated threads do not affect
//! each other. The threads of a run must wait only through this crate. A thread that waits elsewhere keeps the baton,
//! and a watchdog reports it.
//!
//! Main items: [`run`], [`search`] (runs a closure with all schedules), [`Options`] and [`Strategy`], [`Outcome`],
//! [`Failure`], [`Trace`].
//!
//! Time is virtual. While exploring, it moves when no thread can run: to the end of the next sleep or timeout. With
//! [`Options::leap_permille`] it also moves while threads could run, as on a busy machine. With [`Options::costs`] the
//! run models a machine: threads share its processors, and computing, locks and shared cache lines take time.
//!
//! A run ends when the closure returns, or when a thread panics. It also ends when no thread can run and no timer is
//! due ([`Failure::Deadlock`]), after too many steps ([`Failure::Livelock`]), or when a thread does not return to the
//! scheduler ([`Failure::Stuck`]). The remaining threads are never woken. They and their data are leaked, because
//! unwinding them would run destructors that wait. After a success, [`Outcome::left`] contains their names; a run that
//! joins its threads leaks nothing.
//!
//! What it does not do: treat atomics as events (a thread that spins on one must call [`crate::task::yield_now`]),
//! cover weak memory orders, or control input and output of the operating system.
//!
//! # Locking
//! One lock without a class per run, held for one decision. The locks of [`crate::sync`] are real: a simulated thread
//! only tries to take them. If that fails, it is blocked on the lock's address until another thread releases the lock.

mod code;
mod contention;
mod core;
mod machine;
mod trace;
mod watchdog;

#[cfg(test)]
mod known_cases;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use code::{Code, CodeTable, Place, Segment};
pub use contention::ContentionCost;
pub use trace::Trace;

use crate::sync::mode::{MODE, MODELLED, SIMULATED};

/// Decides which thread runs next at a place where threads may switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// At each place, another ready thread, chosen at random, takes over with this probability (of 1000).
    Random { preempt_permille: u32 },
    /// Priorities are random, and the ready thread with the highest one runs. At `changes` places of the first `steps`,
    /// the running thread gets the lowest priority (Burckhardt et al. 2010, "A randomized scheduler with probabilistic
    /// guarantees": a bug that needs d ordering constraints is found with a probability of at least 1 / (n · k^(d-1))).
    Priorities { changes: u32, steps: u64 },
    /// The threads run in turn, each for `quantum` places.
    RoundRobin { quantum: u32 },
    /// [`Options::path`] decides: the running thread continues unless the path lets another take over, at most
    /// `preemptions` times (Musuvathi and Qadeer 2007, "Iterative context bounding": few preemptions show most bugs).
    Path { preemptions: u32 },
}

/// The times that a modelled machine takes for the events that the scheduler sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// The time from when a thread that has waited takes a processor until its first instruction.
    pub switch_ns: u64,
    /// The time of the thread that notifies, for each thread that wakes.
    pub wake_ns: u64,
    /// The time to take and release a lock whose cache line the processor has.
    pub lock_ns: u64,
    /// The time until a cache line that another processor has changed arrives.
    pub bounce_ns: u64,
    /// The time from the release of a lock until the waiting thread has it.
    pub contended_ns: u64,
    /// The addition to `contended_ns` for each other waiting thread: 0 for queued locks, not for ticket locks.
    pub waiter_ns: u64,
}

impl Costs {
    /// Whether locks take time and have queues. If not, as while exploring, any waiting thread may be next.
    pub fn models_locks(&self) -> bool {
        self.lock_ns + self.bounce_ns + self.contended_ns + self.waiter_ns > 0
    }
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Options {
    pub seed: u64,
    pub strategy: Strategy,
    /// The number of places, of 1000, at which time moves to the end of the next sleep or timeout although threads can
    /// run.
    pub leap_permille: u32,
    /// The result of [`crate::task::processors`].
    pub processors: usize,
    /// If set, threads need one of the `processors` to continue, and computing takes time.
    pub costs: Option<Costs>,
    /// The time of code between calls of the scheduler.
    pub code: Code,
    /// For [`Strategy::Path`]: the way to take at each fork. After its end, the first way is taken.
    pub path: Vec<u32>,
    /// A run with more steps is a [`Failure::Livelock`].
    pub steps_max: u64,
    /// A thread that keeps the baton and computes or waits for this long is [`Failure::Stuck`]. The time for which it
    /// waits for a processor or a disk does not count.
    pub watchdog: Duration,
    /// Whether to record the whole trace, not only its fingerprint and its end.
    pub trace: bool,
    /// The wall-clock time at the start of the run, in seconds since 1970.
    pub epoch_sec: i64,
}

impl Options {
    pub fn new(seed: u64) -> Options {
        Options {
            seed,
            strategy: Strategy::Random { preempt_permille: 100 },
            leap_permille: 0,
            processors: 4,
            costs: None,
            code: Code::Free,
            path: Vec::new(),
            steps_max: 10_000_000,
            watchdog: Duration::from_secs(20),
            trace: false,
            epoch_sec: 1_700_000_000,
        }
    }
}

/// The wait of one thread when no thread can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedThread {
    pub thread: String,
    pub on: String,
    /// The names of the locks that it holds.
    pub holds: Vec<&'static str>,
}

/// The reason why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A thread panicked.
    Panic { thread: String, message: String },
    /// No thread can run, and no sleep or timeout is due.
    Deadlock { waiting: Vec<BlockedThread> },
    /// There were too many steps.
    Livelock { steps: u64, threads: Vec<BlockedThread> },
    /// A thread waits for something that the scheduler does not know, or computes without end.
    Stuck { thread: String, last: String },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = |f: &mut fmt::Formatter<'_>, threads: &[BlockedThread]| {
            for w in threads {
                write!(f, "\n    {}: {}", w.thread, w.on)?;
                if !w.holds.is_empty() {
                    write!(f, "; holds {}", w.holds.join(", "))?;
                }
            }
            Ok(())
        };
        match self {
            Failure::Panic { thread, message } => write!(f, "thread '{thread}' panicked: {message}"),
            Failure::Deadlock { waiting } => {
                write!(f, "deadlock: no thread can run and no timer is due")?;
                table(f, waiting)
            }
            Failure::Livelock { steps, threads } => {
                write!(f, "no end after {steps} steps")?;
                table(f, threads)
            }
            Failure::Stuck { thread, last } => {
                write!(f, "thread '{thread}' has not returned to the scheduler; its last event was: {last}")
            }
        }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome<T> {
    pub result: Result<T, Failure>,
    pub trace: Trace,
    /// The number of places at which threads could have switched.
    pub steps: u64,
    /// The number of times that another thread took over.
    pub switches: u64,
    /// The virtual time that passed.
    pub virtual_ns: u64,
    /// The threads that had not ended. They are leaked.
    pub left: Vec<String>,
    /// With [`Strategy::Path`]: for each fork, the way that was taken and the number of ways.
    pub forks: Vec<(u32, u32)>,
    /// On a modelled machine: the cost of each lock class and of each kind of line, the longest waits first.
    pub uses: Vec<ContentionCost>,
    /// With [`Code::Measured`]: the time of each segment of all threads except the first.
    pub code: Vec<Segment>,
}

/// Runs `f` as the first thread of a simulation and waits for its end.
pub fn run<T: Send + 'static>(options: &Options, f: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    core::run(options, f)
}

/// Runs `f` once with each schedule in which threads are preempted at most `preemptions` times, depth first. Calls
/// `seen` with each outcome. Returns the number of runs.
pub fn search<T: Send + 'static>(
    options: &Options,
    preemptions: u32,
    f: impl Fn() -> T + Clone + Send + 'static,
    mut seen: impl FnMut(Outcome<T>),
) -> u64 {
    let mut options = Options { strategy: Strategy::Path { preemptions }, path: Vec::new(), ..options.clone() };
    for runs in 1.. {
        let outcome = run(&options, f.clone());
        let mut forks = outcome.forks.clone();
        seen(outcome);
        while forks.pop_if(|(way, ways)| *way + 1 == *ways).is_some() {}
        let Some(last) = forks.last_mut() else { return runs };
        last.0 += 1;
        options.path = forks.iter().map(|(way, _)| *way).collect();
    }
    0
}

/// Whether the calling thread belongs to a run.
#[inline]
pub fn active() -> bool {
    MODE.load(Ordering::Relaxed) & SIMULATED != 0 && core::inside()
}

/// A place where another thread may take over; `name` appears in the trace. Has no effect outside a run.
#[inline]
pub fn point(name: &'static str) {
    if MODE.load(Ordering::Relaxed) & SIMULATED != 0 {
        core::point(name);
    }
}

/// Returns a number below `bound` from the run's seed; 0 outside a run. Devices use this.
#[inline]
pub fn choose(bound: u64) -> u64 {
    if MODE.load(Ordering::Relaxed) & SIMULATED != 0 { core::choose(bound) } else { 0 }
}

/// Occupies the calling thread's processor for this time, if the run has [`Options::costs`].
#[inline]
pub fn compute(ns: u64) {
    if MODE.load(Ordering::Relaxed) & SIMULATED != 0 {
        core::compute(ns);
    }
}

/// Records that the calling thread writes the shared cache line of `at`, which no lock protects. This takes time only
/// on a modelled machine; `name` is the line's row in [`Outcome::uses`].
#[inline]
pub fn line_written<T>(name: &'static str, at: &T) {
    if MODE.load(Ordering::Relaxed) & MODELLED != 0 {
        core::line(name, std::ptr::from_ref(at) as usize, true);
    }
}

/// The same as [`line_written`] for a line that the thread reads.
#[inline]
pub fn line_read<T>(name: &'static str, at: &T) {
    if MODE.load(Ordering::Relaxed) & MODELLED != 0 {
        core::line(name, std::ptr::from_ref(at) as usize, false);
    }
}

/// The value at `at`, of which the run knows as a line, is dropped. The run forgets which processors have it: another
/// value may be there soon, and the reuse of memory must not decide how long something takes.
#[inline]
pub fn line_dropped<T>(at: &T) {
    if MODE.load(Ordering::Relaxed) & MODELLED != 0 {
        core::forget(std::ptr::from_ref(at) as usize);
    }
}

/// Makes the calling thread a device: it needs no processor, and notifying it costs nothing.
pub fn device() {
    if active() {
        core::device();
    }
}

/// Runs `f` as an interrupt of the calling device: on the next free processor, before all threads.
pub fn interrupt<T>(f: impl FnOnce() -> T) -> T {
    if active() { core::interrupt(f) } else { f() }
}

/// The number of times that the calling thread has waited for anything except a lock or a processor, which are its
/// voluntary switches.
pub fn sleeps() -> u64 {
    if active() { core::sleeps() } else { 0 }
}

/// The number of steps of this run so far, which is a timestamp that orders the events of its threads.
pub fn steps() -> u64 {
    if active() { core::steps() } else { 0 }
}

pub(crate) use core::{
    JoinTarget, Task, acquired, before_lock, block_on_lock, child, forget, hash_key, holding, is_done, join, missed,
    notify, now, processors, released, shard, sleep, wait, yield_now,
};
