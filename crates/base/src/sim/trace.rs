//! The events of a run, in order.
//!
//! Main type: [`Trace`]. An event is a thread, a kind, a name and a number. All events go into a fingerprint. The
//! last ones are always recorded, and all of them on request.
//!
//! # Locking
//! None.

use std::collections::VecDeque;
use std::fmt;

/// The number of events that are recorded if the trace is not recorded as a whole.
const TAIL: usize = 400;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Run,
    Spawn,
    End,
    Join,
    Lock,
    Blocked,
    Release,
    Wait,
    Notify,
    TimedOut,
    Sleep,
    Yield,
    Point,
    Choose,
    Leap,
    Key,
    Compute,
    Interrupt,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Run => "runs",
            Kind::Spawn => "starts",
            Kind::End => "ends",
            Kind::Join => "joins",
            Kind::Lock => "lock",
            Kind::Blocked => "blocked",
            Kind::Release => "release",
            Kind::Wait => "waits",
            Kind::Notify => "notify",
            Kind::TimedOut => "time is up",
            Kind::Sleep => "sleeps",
            Kind::Yield => "yields",
            Kind::Point => "point",
            Kind::Choose => "choose",
            Kind::Leap => "time leaps",
            Kind::Key => "key",
            Kind::Compute => "computes",
            Kind::Interrupt => "interrupts",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    thread: u32,
    kind: Kind,
    name: &'static str,
    value: u64,
}

/// The events of a run. Displayed as one event per line.
#[derive(Clone, Debug)]
pub struct Trace {
    whole: bool,
    events: VecDeque<Event>,
    names: Vec<String>,
    count: u64,
    fingerprint: u64,
}

impl Trace {
    pub(super) fn new(whole: bool) -> Trace {
        Trace { whole, events: VecDeque::new(), names: Vec::new(), count: 0, fingerprint: 0xCBF2_9CE4_8422_2325 }
    }

    pub(super) fn thread(&mut self, name: &str) {
        self.names.push(name.to_owned());
    }

    pub(super) fn push(&mut self, thread: usize, kind: Kind, name: &'static str, value: u64) {
        self.count += 1;
        let text = name.bytes().fold(name.len() as u64, |h, b| h.rotate_left(5) ^ u64::from(b));
        for part in [(thread as u64) << 8 | kind as u64, text, value] {
            self.fingerprint = (self.fingerprint ^ part).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
        }
        if !self.whole && self.events.len() == TAIL {
            self.events.pop_front();
        }
        self.events.push_back(Event { thread: thread as u32, kind, name, value });
    }

    /// The fingerprint. Equal traces have the same one, regardless of how many events are recorded.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The number of events, including those that are not recorded.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn last_of(&self, thread: usize) -> String {
        let last = self.events.iter().rev().find(|e| e.thread as usize == thread);
        last.map_or_else(|| "nothing".into(), |e| format!("{} {} {}", e.kind.word(), e.name, e.value))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = self.count - self.events.len() as u64;
        for (i, e) in self.events.iter().enumerate() {
            let thread = self.names.get(e.thread as usize).map_or("?", String::as_str);
            writeln!(f, "{} {}.{thread} {} {} {}", first + i as u64, e.thread, e.kind.word(), e.name, e.value)?;
        }
        Ok(())
    }
}
