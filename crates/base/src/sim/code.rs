//! The duration of the code between two calls of the scheduler: measured, or taken from a table of measured times.
//!
//! Main types: [`Code`] (selects one of the two), [`Place`] (a call of the scheduler), [`Segment`] (two consecutive
//! calls and the time between them), [`CodeTable`]. For example, the segment from taking a lock to releasing it is the
//! time for which it is held. So the same code, unchanged, takes its measured time on a modelled machine.
//!
//! A segment has two times: with its data in the processor's cache, and under a lock that another processor held last.
//!
//! What it does not do: subtract the cost of measuring, or remove outliers shorter than [`INTERRUPTED`].
//!
//! # Locking
//! None of its own. Each thread has its own stopwatch; the sums are in the run's state.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How the duration of code between calls of the scheduler is determined.
#[derive(Clone, Debug, Default)]
pub enum Code {
    /// Code takes no time, except for [`super::compute`].
    #[default]
    Free,
    /// The real time is recorded in [`super::Outcome::code`]. This is not deterministic.
    Measured,
    /// Code takes the virtual time that the table contains. Needs [`super::Options::costs`].
    Table(Arc<CodeTable>),
}

/// A segment longer than this was interrupted, and is not recorded.
const INTERRUPTED: Duration = Duration::from_micros(20);

/// A call of the scheduler: its kind, and the name of the lock, line or point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub call: &'static str,
    pub name: &'static str,
}

/// The code between two calls.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    pub from: Place,
    pub to: Place,
    /// How often it ran.
    pub count: u64,
    pub median_ns: u64,
    /// The mean without the longest 1 %, which depend more on interrupts of the host than on the code.
    pub mean_ns: f64,
}

/// The picoseconds of each segment. A segment that is not in the table takes no time.
#[derive(Clone, Debug, Default)]
pub struct CodeTable(HashMap<u64, (u64, u64)>);

fn key(parts: [&str; 4]) -> u64 {
    parts.iter().fold(0xCBF2_9CE4_8422_2325, |hash, part| {
        let add = |hash: u64, b: u8| (hash ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01B3);
        add(part.bytes().fold(hash, add), 0xFF)
    })
}

impl CodeTable {
    /// `from` and `to` are the call and the name at each end of the segment.
    pub fn insert(&mut self, from: (&str, &str), to: (&str, &str), warm_ps: u64, cold_ps: u64) {
        self.0.insert(key([from.0, from.1, to.0, to.1]), (warm_ps, cold_ps));
    }

    fn ps(&self, from: Place, to: Place, cold: bool) -> u64 {
        let times = self.0.get(&key([from.call, from.name, to.call, to.name]));
        times.map_or(0, |&(warm, when_cold)| if cold { when_cold } else { warm })
    }
}

/// The measured segments of a run, each with a histogram of its times in nanoseconds.
pub(super) type SegmentTimes = BTreeMap<(Place, Place), BTreeMap<u32, u64>>;

pub(super) fn segments(measured: &SegmentTimes) -> Vec<Segment> {
    let row = |(&(from, to), times): (&(Place, Place), &BTreeMap<u32, u64>)| {
        let count: u64 = times.values().sum();
        let most = count - count / 100;
        let (mut below, mut sum, mut median_ns) = (0, 0, None);
        for (&ns, &n) in times {
            let counted = n.min(most - below);
            below += counted;
            sum += u64::from(ns) * counted;
            if below * 2 >= count {
                median_ns.get_or_insert(u64::from(ns));
            }
        }
        Segment { from, to, count, median_ns: median_ns.unwrap_or(0), mean_ns: sum as f64 / most.max(1) as f64 }
    };
    measured.iter().map(row).collect()
}

thread_local! {
    static FROM: Cell<Place> = const { Cell::new(Place { call: "start", name: "" }) };
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    static OWED_PS: Cell<u64> = const { Cell::new(0) };
    static COLD: Cell<bool> = const { Cell::new(false) };
}

/// While this value exists, the calling thread is inside the scheduler and its stopwatch is stopped.
pub(super) struct SchedulerScope {
    to: Place,
    measured: bool,
}

/// The reading of the stopwatch at a call. It must be taken first.
pub(super) fn stop(code: &Code) -> Option<Instant> {
    matches!(code, Code::Measured).then(Instant::now)
}

/// The thread enters the scheduler at `to`. `record` gets a measured segment.
pub(super) fn enter(
    code: &Code,
    stopped: Option<Instant>,
    to: Place,
    record: impl FnOnce((Place, Place), u32),
) -> Option<SchedulerScope> {
    match code {
        Code::Free => return None,
        Code::Measured => {
            if let (Some(since), Some(at)) = (SINCE.take(), stopped) {
                let took = at.saturating_duration_since(since);
                if took < INTERRUPTED {
                    record((FROM.get(), to), took.as_nanos() as u32);
                }
            }
        }
        Code::Table(table) => owe_ps(table.ps(FROM.get(), to, COLD.get())),
    }
    Some(SchedulerScope { to, measured: stopped.is_some() })
}

impl Drop for SchedulerScope {
    fn drop(&mut self) {
        FROM.set(self.to);
        if self.measured {
            SINCE.set(Some(Instant::now()));
        }
    }
}

/// Adds to the time for which the calling thread's processor will be busy before the thread's next visible action.
pub(super) fn owe_ps(ps: u64) {
    OWED_PS.set(OWED_PS.get() + ps);
}

/// Returns the whole nanoseconds that the thread owes, and keeps the rest.
pub(super) fn owed_ns() -> u64 {
    let ps = OWED_PS.get();
    OWED_PS.set(ps % 1000);
    ps / 1000
}

/// Sets whether the data under the lock that was just taken comes from another processor.
pub(super) fn set_cold(cold: bool) {
    COLD.set(cold);
}
