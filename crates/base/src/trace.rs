//! Trace points, with Linux's names (`jbd2_run_stats`, `ext4_mb_new_group_pa` …).
//!
//! Main types: [`TracePoint`], a `static` that [`trace_point!`](crate::trace_point) creates; [`Event`], a record of it.
//! While a point is off, it costs one relaxed load. While it is on, its numbers are stored unformatted in a bounded
//! ring that few threads share; they are formatted when an event is printed ([`Event`] is `Display`). [`drain`] empties
//! the rings; without it, the oldest events are dropped (and counted).
//!
//! What it does not do: filter, or write anywhere.
//!
//! # Locking
//! Each ring has a leaf lock (`trace ring`), which is taken only while a point is on, and which every sixteenth thread
//! shares. The list of points has a leaf lock without a class.

use std::collections::VecDeque;
use std::sync::OnceLock;
// These are not the atomics of `crate::sync`: statics outlive one schedule of a model checker, and its atomics must
// not.
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::clock::Clock;
use crate::sync::{LockClass, Mutex};

/// One trace point. [`trace_point!`](crate::trace_point) creates it, and [`enable`] switches it on.
pub struct TracePoint {
    pub name: &'static str,
    keys: &'static [&'static str],
    state: AtomicU8,
}

const OFF: u8 = 0;
const ON: u8 = 1;
/// The point was not reached yet, so it is not registered.
const UNKNOWN: u8 = 2;

/// The maximum number of values of an event.
pub const FIELDS_MAX: usize = 5;

/// One recorded event. Displayed as `key=value` pairs separated by spaces.
#[derive(Clone, Debug)]
pub struct Event {
    /// Nanoseconds since the first event of the process.
    pub time_ns: u64,
    point: &'static TracePoint,
    values: [u64; FIELDS_MAX],
    text: Option<Box<str>>,
}

impl Event {
    /// The name of the point.
    pub fn name(&self) -> &'static str {
        self.point.name
    }

    /// The number called `key`.
    pub fn get(&self, key: &str) -> Option<u64> {
        Some(self.values[self.point.keys.iter().position(|k| *k == key)?])
    }
}

impl std::fmt::Display for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut blank = "";
        for (key, value) in self.point.keys.iter().zip(self.values) {
            write!(f, "{blank}{key}={value}")?;
            blank = " ";
        }
        self.text.as_ref().map_or(Ok(()), |text| write!(f, "{blank}{text}"))
    }
}

impl std::fmt::Debug for TracePoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The maximum number of events that one ring holds.
const RING_EVENTS_MAX: usize = 32_768;
/// The number of rings; threads are assigned to them round robin.
const RINGS: usize = 16;

static RING_CLASS: LockClass = LockClass::new("trace ring", 1000);
static RING: [Mutex<VecDeque<Event>>; RINGS] = [const { Mutex::new(&RING_CLASS, VecDeque::new()) }; RINGS];
static DROPPED: AtomicU64 = AtomicU64::new(0);
static POINTS: parking_lot::Mutex<Points> = parking_lot::Mutex::new(Points { known: Vec::new(), wanted: Vec::new() });

struct Points {
    known: Vec<&'static TracePoint>,
    wanted: Vec<String>,
}

impl Points {
    fn state(&self, point: &TracePoint) -> u8 {
        if self.wanted.iter().any(|w| w == point.name || w == "*") { ON } else { OFF }
    }
}

fn clock() -> &'static Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::real)
}

impl TracePoint {
    pub const fn new(name: &'static str, keys: &'static [&'static str]) -> TracePoint {
        TracePoint { name, keys, state: AtomicU8::new(UNKNOWN) }
    }

    /// Whether the point is switched on.
    #[inline]
    pub fn on(&'static self) -> bool {
        match self.state.load(Ordering::Relaxed) {
            OFF => false,
            state => state == ON || self.introduce(),
        }
    }

    #[cold]
    fn introduce(&'static self) -> bool {
        let mut points = POINTS.lock();
        if self.state.load(Ordering::Relaxed) == UNKNOWN {
            points.known.push(self);
            self.state.store(points.state(self), Ordering::Relaxed);
        }
        self.state.load(Ordering::Relaxed) == ON
    }

    /// Records an event; called through [`trace_point!`](crate::trace_point) after `on()`.
    pub fn record<const N: usize>(&'static self, numbers: [u64; N], text: Option<Box<str>>) {
        const { assert!(N <= FIELDS_MAX, "an event has room for five numbers") };
        let mut values = [0; FIELDS_MAX];
        values[..N].copy_from_slice(&numbers);
        self.push(values, text);
    }

    fn push(&'static self, values: [u64; FIELDS_MAX], text: Option<Box<str>>) {
        let mut ring = RING[crate::task::shard_index() % RINGS].lock();
        // The time is read under the lock, so that times in a ring never decrease.
        let time_ns = clock().now_ns();
        if ring.len() == RING_EVENTS_MAX {
            ring.pop_front();
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
        ring.push_back(Event { time_ns, point: self, values, text });
    }
}

/// A type that can be a value of an event.
pub trait Number {
    fn number(self) -> u64;
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl Number for $type {
            #[inline]
            fn number(self) -> u64 {
                self as u64
            }
        })*
    };
}

numbers!(bool u8 u16 u32 u64 usize);

/// Switches the points called `name` on (`*` for all).
pub fn enable(name: &str) {
    let mut points = POINTS.lock();
    points.wanted.push(name.to_owned());
    points.known.iter().for_each(|p| p.state.store(points.state(p), Ordering::Relaxed));
}

/// Switches every point off.
pub fn disable_all() {
    let mut points = POINTS.lock();
    points.wanted.clear();
    points.known.iter().for_each(|p| p.state.store(OFF, Ordering::Relaxed));
}

/// Takes the recorded events, oldest first, and the number of events that were dropped since the last call. Events that
/// are recorded during the call are left for the next one, so that the results of successive calls are in order, too.
pub fn drain() -> (Vec<Event>, u64) {
    let now_ns = clock().now_ns();
    let mut events = Vec::new();
    for ring in &RING {
        let mut ring = ring.lock();
        // The times in a ring never decrease.
        let due = ring.partition_point(|e| e.time_ns <= now_ns);
        events.extend(ring.drain(..due));
    }
    events.sort_by_key(|e| e.time_ns);
    (events, DROPPED.swap(0, Ordering::Relaxed))
}

/// `trace_point!(jbd2_run_stats, tid = tid.0, blocks = n)`: up to five numbers, which are evaluated only while the
/// point is on. Text follows a semicolon, as for `format!`; such events cost more: `trace_point!(ext4_error, ino = 3;
/// "error={e}")`.
#[macro_export]
macro_rules! trace_point {
    (@text) => { None };
    (@text $($text:tt)+) => { Some(format!($($text)+).into_boxed_str()) };
    ($name:ident $(, $key:ident = $value:expr)* $(,)? $(; $($text:tt)+)?) => {{
        static POINT: $crate::trace::TracePoint =
            $crate::trace::TracePoint::new(stringify!($name), &[$(stringify!($key)),*]);
        if POINT.on() {
            POINT.record(
                [$($crate::trace::Number::number($value)),*],
                $crate::trace_point!(@text $($($text)+)?),
            );
        }
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(n: u32) {
        trace_point!(test_point, n = n, twice = 2 * n; "name={}", "x");
    }

    #[test]
    fn a_point_records_only_while_it_is_on() {
        hit(1);
        enable("test_point");
        hit(2);
        crate::task::spawn("other", || hit(4)).expect("thread").join().expect("joined");
        disable_all();
        hit(3);
        let (events, _) = drain();
        let mine: Vec<&Event> = events.iter().filter(|e| e.name() == "test_point").collect();
        let texts: Vec<String> = mine.iter().map(|e| e.to_string()).collect();
        assert_eq!(texts, ["n=2 twice=4 name=x", "n=4 twice=8 name=x"]);
        assert_eq!((mine[1].get("twice"), mine[1].get("name")), (Some(8), None));
        assert!(drain().0.iter().all(|e| e.name() != "test_point"), "taken once");
    }
}
