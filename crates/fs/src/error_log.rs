//! The errors that are still to be reported, and when.
//!
//! Main types: [`ErrorLog`], which knows the pending reports, and how many may be made now. The first error of each
//! kind is due at once; further ones with the next write of the superblock, or [`WRITE_INTERVAL_NS`] after the last
//! write for their sake.
//!
//! What it does not do: write the superblock or give messages (`reports.rs`).
//!
//! # Locking
//! `error reports` (211), a leaf.

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};

static CLASS: LockClass = LockClass::new("error reports", 211);

/// At least so long between two writes of the superblock that only count errors of known kinds.
const WRITE_INTERVAL_NS: u64 = 5_000_000_000;
/// In this time at most [`LINES_MAX`] messages are given, besides the first of each kind (Linux:
/// `DEFAULT_RATELIMIT_INTERVAL`, `DEFAULT_RATELIMIT_BURST`).
const LINES_INTERVAL_NS: u64 = 5_000_000_000;
const LINES_MAX: u32 = 10;

/// The pending reports of errors, and when they are due.
pub(crate) struct ErrorLog {
    /// The superblock on the device lacks some.
    unwritten: AtomicBool,
    /// The log's superblock lacks some.
    unlogged: AtomicBool,
    pace: Mutex<Pace>,
}

#[derive(Default)]
struct Pace {
    /// The checks that have found something since the mount: as many as [`Error::check`] has names.
    kinds: Vec<&'static str>,
    /// One of them is not on the device yet.
    urgent: bool,
    /// When errors were last written.
    written_ns: u64,
    /// The present interval of messages, how many were given in it, and how many were not.
    since_ns: u64,
    given: u32,
    suppressed: u64,
}

impl Pace {
    /// Whether a message may be given now, and how many were suppressed before it.
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

    /// Whether errors are to be written now: of a new kind, or so long after the last ones.
    pub(crate) fn due(&self, now_ns: u64) -> bool {
        self.unwritten.load(Ordering::SeqCst) && {
            let pace = self.pace.lock();
            pace.urgent || now_ns.saturating_sub(pace.written_ns) >= WRITE_INTERVAL_NS
        }
    }

    /// The caller writes what there is; false if there is nothing.
    pub(crate) fn take_unwritten(&self, now_ns: u64) -> bool {
        let taken = self.unwritten.swap(false, Ordering::SeqCst);
        if taken {
            let mut pace = self.pace.lock();
            (pace.urgent, pace.written_ns) = (false, now_ns);
        }
        taken
    }

    /// Notes an error that the check `function` found. Returns how many messages were suppressed before this one, if
    /// this one may be given.
    pub(crate) fn note(&self, function: &'static str, now_ns: u64) -> Option<u64> {
        let mut pace = self.pace.lock();
        let is_new = !pace.kinds.contains(&function);
        if is_new {
            pace.kinds.push(function);
            pace.urgent = true;
        }
        pace.line(now_ns, is_new)
    }

    /// The caller puts the fields into a transaction; false if the log has them.
    pub(crate) fn take_unlogged(&self) -> bool {
        self.unlogged.load(Ordering::Acquire) && self.unlogged.swap(false, Ordering::AcqRel)
    }

    /// The messages that were suppressed since the last one that was given.
    pub(crate) fn take_suppressed(&self) -> u64 {
        std::mem::take(&mut self.pace.lock().suppressed)
    }
}
