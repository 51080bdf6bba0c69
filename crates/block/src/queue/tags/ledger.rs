//! The requests that wait for a tag, since when, and statistics of the waits, with which policies are compared.
//!
//! Main types: [`Ledger`] (one per set of tags), [`Ticket`] (an entry in it, from the failed attempt to the tag),
//! [`TagStats`].
//!
//! What it does not do: enforce an order. A policy does that, and the ledger counts whether it did.
//!
//! # Locking
//! `block tag ledger`, a leaf, which requests that wait take. A request that gets a tag immediately reads one atomic.

use std::collections::BTreeSet;

use extant_base::clock::Clock;
use extant_base::counter::{self, Counter};
use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::ranks::TAG_LEDGER;

/// Statistics of the waits for tags so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagStats {
    /// The number of requests that found no tag and had to wait, as a thread or as a bio.
    pub waits: u64,
    /// The number of threads that were woken for a tag.
    pub wakes: u64,
    /// The number of threads that were woken and found no tag.
    pub wakes_in_vain: u64,
    /// The number of tags that a request got while an older one of the same queue waited.
    pub overtakings: u64,
    /// The maximum time from a failed attempt to the tag.
    pub longest_wait_ns: u64,
}

/// A request that waits.
pub(super) struct Ticket {
    /// Queue, and the order of arrival.
    key: (u32, u64),
    since_ns: u64,
}

#[derive(Default)]
struct Line {
    next: u64,
    waiting: BTreeSet<(u32, u64)>,
}

/// The requests that wait; see the module.
pub(super) struct Ledger {
    line: Mutex<Line>,
    /// The length of `line.waiting`, for requests that do not wait.
    waiting: AtomicUsize,
    clock: Clock,
    waits: Counter,
    wakes: Counter,
    in_vain: Counter,
    overtakings: Counter,
    longest_ns: AtomicU64,
}

impl Ledger {
    pub fn new() -> Ledger {
        let [waits, wakes, in_vain, overtakings] = counter::group();
        Ledger {
            line: Mutex::new(&TAG_LEDGER, Line::default()),
            waiting: AtomicUsize::new(0),
            clock: Clock::real(),
            waits,
            wakes,
            in_vain,
            overtakings,
            longest_ns: AtomicU64::new(0),
        }
    }

    /// Records that a request of the queue `user` starts to wait.
    pub fn begin(&self, user: u32) -> Ticket {
        self.waits.inc();
        let mut line = self.line.lock();
        line.next += 1;
        let key = (user, line.next);
        line.waiting.insert(key);
        self.waiting.store(line.waiting.len(), Ordering::Relaxed);
        drop(line);
        Ticket { key, since_ns: self.clock.now_ns() }
    }

    /// Records that the request has got its tag.
    pub fn end(&self, ticket: Ticket) {
        self.longest_ns.fetch_max(self.clock.now_ns() - ticket.since_ns, Ordering::Relaxed);
        let mut line = self.line.lock();
        let oldest = line.waiting.range((ticket.key.0, 0)..).next().copied();
        line.waiting.remove(&ticket.key);
        self.waiting.store(line.waiting.len(), Ordering::Relaxed);
        drop(line);
        if oldest != Some(ticket.key) {
            self.overtakings.inc();
        }
    }

    /// Records that a request has got a tag without waiting.
    pub fn at_once(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            self.overtakings.inc();
        }
    }

    /// Records that `threads` threads were woken for a tag.
    pub fn woke(&self, threads: usize) {
        self.wakes.add(threads as u64);
    }

    /// Records that one of the woken threads found no tag.
    pub fn in_vain(&self) {
        self.in_vain.inc();
    }

    pub fn stats(&self) -> TagStats {
        TagStats {
            waits: self.waits.get(),
            wakes: self.wakes.get(),
            wakes_in_vain: self.in_vain.get(),
            overtakings: self.overtakings.get(),
            longest_wait_ns: self.longest_ns.load(Ordering::Relaxed),
        }
    }
}
