//! [`TransitTracker`]: tracks whether blocks are in flight between two places.
//!
//! A thread that finds no free block must not report "no space" while another thread holds more than it will need. That
//! may be an extent that is about to become a preallocation, or a preallocation that is being discarded. This counts
//! both, and the moments at which such blocks become visible again.
//!
//! # Locking
//! [`crate::lock::IN_TRANSIT`] while waiting, which happens only after a request has found nothing.

use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::counter::{self, Counter};
use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_base::sync::{Condvar, Mutex};

use crate::lock;

/// The maximum time of one wait. The other thread may be reading a bitmap from disk.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// How long a request that has already searched several times lets other threads run.
const PAUSE: Duration = Duration::from_millis(1);

pub struct TransitTracker {
    begun: Counter,
    ended: Counter,
    turns: Counter,
    waiting: AtomicU32,
    gate: Mutex<()>,
    rested: Condvar,
}

impl Default for TransitTracker {
    fn default() -> TransitTracker {
        let [begun, ended, turns] = counter::group();
        TransitTracker {
            begun,
            ended,
            turns,
            waiting: AtomicU32::new(0),
            gate: Mutex::new(&lock::IN_TRANSIT, ()),
            rested: Condvar::new(),
        }
    }
}

impl TransitTracker {
    /// Reports that blocks have left the buddy or a preallocation, and only one thread has them.
    pub fn begin(&self, blocks: u64) {
        self.begun.add(blocks);
    }

    /// Reports that other threads can see the blocks again.
    pub fn end(&self, blocks: u64) {
        self.ended.add(blocks);
    }

    /// Waits until blocks have become visible since `turns` was read, nothing is in flight, or a short while has
    /// passed.
    ///
    /// `again`: the caller has searched several times. On a busy disk, blocks become visible all the time, while the
    /// missing ones may belong to a thread that waits for a processor. So the caller sleeps to release its own
    /// processor.
    pub fn wait(&self, turns: u64, again: bool) {
        if again {
            Clock::real().sleep(PAUSE);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut gate = self.gate.lock();
        if self.turns() == turns && self.in_flight() {
            self.rested.wait_for(&mut gate, WAIT_MAX);
        }
        drop(gate);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Reports that blocks became visible: allocated, preallocated, or freed. A concurrent search may have missed a
    /// group that was just changing its place in the policy's sets.
    pub fn turned(&self) {
        self.turns.inc();
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.gate.lock());
            self.rested.notify_all();
        }
    }

    /// How often blocks became visible. It reads every shard, so only a search that follows a failed one asks for it.
    pub fn turns(&self) -> u64 {
        self.turns.get()
    }

    pub fn in_flight(&self) -> bool {
        let ended = self.ended.get();
        self.begun.get() != ended
    }
}
