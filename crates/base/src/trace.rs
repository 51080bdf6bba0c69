//! Trace points, named as Linux names them (`jbd2_run_stats`, `ext4_mb_new_group_pa` …).
//!
//! A point is a `static` made by [`trace_point!`]; while off, it costs one relaxed load. While on, its events go to one
//! bounded ring that [`drain`] empties; the oldest are dropped (and counted) when nobody drains.
//!
//! # Locking
//! The ring has one leaf lock (`trace ring`), taken only while a point is on.

use std::collections::VecDeque;
use std::sync::OnceLock;
// Not the atomics of `crate::sync`: statics outlive one schedule of a model checker, and its atomics must not.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::sync::{LockClass, Mutex};

/// One trace point. Made by [`trace_point!`], switched on by [`enable`].
pub struct TracePoint {
    pub name: &'static str,
    enabled: AtomicBool,
    registered: AtomicBool,
}

/// One event as recorded.
#[derive(Clone, Debug)]
pub struct Event {
    /// Nanoseconds since the first event of the process.
    pub time_ns: u64,
    pub name: &'static str,
    /// `key=value` pairs separated by a blank.
    pub args: String,
}

/// Events kept when nobody drains them.
const RING_EVENTS_MAX: usize = 65_536;

static RING_CLASS: LockClass = LockClass::new("trace ring", 1000);
static DROPPED: AtomicU64 = AtomicU64::new(0);
static WANTED: AtomicBool = AtomicBool::new(false);

struct Ring {
    start: Instant,
    events: VecDeque<Event>,
    points: Vec<&'static TracePoint>,
    wanted: Vec<String>,
}

fn ring() -> &'static Mutex<Ring> {
    static RING: OnceLock<Mutex<Ring>> = OnceLock::new();
    RING.get_or_init(|| {
        Mutex::new(
            &RING_CLASS,
            Ring { start: Instant::now(), events: VecDeque::new(), points: Vec::new(), wanted: Vec::new() },
        )
    })
}

impl TracePoint {
    pub const fn new(name: &'static str) -> TracePoint {
        TracePoint { name, enabled: AtomicBool::new(false), registered: AtomicBool::new(false) }
    }

    /// True while somebody listens. Points learn of [`enable`] at their first hit after it.
    pub fn on(&'static self) -> bool {
        if WANTED.load(Ordering::Relaxed) && !self.registered.swap(true, Ordering::Relaxed) {
            let mut r = ring().lock();
            r.points.push(self);
            let wanted = r.wanted.iter().any(|w| w == self.name || w == "*");
            self.enabled.store(wanted, Ordering::Relaxed);
        }
        self.enabled.load(Ordering::Relaxed)
    }

    /// Records an event; called through [`trace_point!`] after `on()`.
    pub fn record(&'static self, args: String) {
        let mut r = ring().lock();
        let time_ns = r.start.elapsed().as_nanos() as u64;
        if r.events.len() == RING_EVENTS_MAX {
            r.events.pop_front();
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        r.events.push_back(Event { time_ns, name: self.name, args });
    }
}

/// Switches the points called `name` on (`*` for all).
pub fn enable(name: &str) {
    let mut r = ring().lock();
    r.wanted.push(name.to_owned());
    for p in &r.points {
        if name == "*" || p.name == name {
            p.enabled.store(true, Ordering::Relaxed);
        }
    }
    WANTED.store(true, Ordering::Relaxed);
}

/// Switches every point off.
pub fn disable_all() {
    let mut r = ring().lock();
    r.wanted.clear();
    for p in &r.points {
        p.enabled.store(false, Ordering::Relaxed);
    }
}

/// Takes the recorded events, oldest first, and the number that were dropped since the last call.
pub fn drain() -> (Vec<Event>, u64) {
    let events = ring().lock().events.drain(..).collect();
    (events, DROPPED.swap(0, Ordering::Relaxed))
}

/// `trace_point!(jbd2_run_stats, "tid={} blocks={}", tid, blocks)`: the arguments are formatted only while it is on.
#[macro_export]
macro_rules! trace_point {
    ($name:ident, $($arg:tt)*) => {{
        static POINT: $crate::trace::TracePoint = $crate::trace::TracePoint::new(stringify!($name));
        if POINT.on() {
            POINT.record(format!($($arg)*));
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(n: u32) {
        trace_point!(test_point, "n={}", n);
    }

    #[test]
    fn silent_when_off_recorded_when_on() {
        hit(1);
        enable("test_point");
        hit(2);
        disable_all();
        hit(3);
        let (events, _) = drain();
        let mine: Vec<_> = events.iter().filter(|e| e.name == "test_point").map(|e| e.args.as_str()).collect();
        assert_eq!(mine, ["n=2"]);
    }
}
