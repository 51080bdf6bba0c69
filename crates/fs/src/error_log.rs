//! The errors that have not been reported yet, and when they are due.
//!
//! Main types: [`ErrorLog`], which counts the pending reports and limits their rate. The first error of each kind is
//! due at once. Further ones are due with the next write of the superblock, or [`WRITE_INTERVAL_NS`] after the last
//! write that recorded errors.
//!
//! What it does not do: write the superblock, or send messages (`reports.rs`).
//!
//! # Locking
//! `error reports` (211), a leaf.

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};

static CLASS: LockClass = LockClass::new("error reports", 211);

/// The minimum time between two writes of the superblock that only count errors of known kinds.
const WRITE_INTERVAL_NS: u64 = 5_000_000_000;
/// In this time at most [`LINES_MAX`] messages are sent, not counting the first of each kind (Linux:
/// `DEFAULT_RATELIMIT_INTERVAL`, `DEFAULT_RATELIMIT_BURST`).
const LINES_INTERVAL_NS: u64 = 5_000_000_000;
const LINES_MAX: u32 = 10;

/// The pending reports of errors, and when they are due.
pub(crate) struct ErrorLog {
    /// The superblock on the device lacks some of the errors.
    unwritten: AtomicBool,
    /// The superblock in the log lacks some of the errors.
    unlogged: AtomicBool,
    pace: Mutex<Pace>,
}

#[derive(Default)]
struct Pace {
    /// The checks that have found something since the mount. Their number is bounded by the names that
    /// [`crate::Error::check`] returns.
    kinds: Vec<&'static str>,
    /// An error of a new kind has not been written to the device yet.
    urgent: bool,
    /// The time of the last write of errors.
    written_ns: u64,
    /// The start of the current interval, and the numbers of messages sent and suppressed in it.
    since_ns: u64,
    given: u32,
    suppressed: u64,
}

impl Pace {
    /// Whether a message may be sent now: `None`, or the number of messages that were suppressed before it.
    fn line(&mut self, now_ns: u64, first_of_kind: bool) -> Option<u64> {
        if now_ns.saturating_sub(self.since_ns) >= LINES_INTERVAL_NS {
            (self.since_ns, self.given) = (now_ns, 0);
        }
        if self.given >= LINES_MAX && !first_of_kind {
            self.suppressed += 1;
            return None;
        }
        self.given += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl ErrorLog {
    pub(crate) fn new() -> ErrorLog {
        ErrorLog {
            unwritten: AtomicBool::new(false),
            unlogged: AtomicBool::new(false),
            pace: Mutex::new(&CLASS, Pace::default()),
        }
    }

    pub(crate) fn is_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Acquire)
    }

    pub(crate) fn note_unwritten(&self) {
        self.unlogged.store(true, Ordering::Release);
        self.unwritten.store(true, Ordering::SeqCst);
    }

    /// Whether errors must be written now: one is of a new kind, or the last write is long enough ago.
    pub(crate) fn due(&self, now_ns: u64) -> bool {
        self.unwritten.load(Ordering::SeqCst) && {
            let pace = self.pace.lock();
            pace.urgent || now_ns.saturating_sub(pace.written_ns) >= WRITE_INTERVAL_NS
        }
    }

    /// Marks the errors as written; the caller then writes them. Returns false if there are none.
    pub(crate) fn take_unwritten(&self, now_ns: u64) -> bool {
        let taken = self.unwritten.swap(false, Ordering::SeqCst);
        if taken {
            let mut pace = self.pace.lock();
            (pace.urgent, pace.written_ns) = (false, now_ns);
        }
        taken
    }

    /// Records an error that the check `function` found. If a message about it may be sent, returns how many were
    /// suppressed before it.
    pub(crate) fn note(&self, function: &'static str, now_ns: u64) -> Option<u64> {
        let mut pace = self.pace.lock();
        let is_new = !pace.kinds.contains(&function);
        if is_new {
            pace.kinds.push(function);
            pace.urgent = true;
        }
        pace.line(now_ns, is_new)
    }

    /// Marks the errors as logged; the caller then adds them to a transaction. Returns false if the log already has
    /// them.
    pub(crate) fn take_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Acquire) && self.unlogged.swap(false, Ordering::AcqRel)
    }

    /// The number of messages suppressed since the last one that was sent. Resets it.
    pub(crate) fn take_suppressed(&self) -> u64 {
        std::mem::take(&mut self.pace.lock().suppressed)
    }
}
