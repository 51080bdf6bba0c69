//! [`InTransit`]: are blocks on their way somewhere?
//!
//! A thread that finds nothing free must not report "no space" while another thread holds more than it will keep: an
//! extent that is about to become a preallocation, or a preallocation that is being given back. This counts both, and
//! what came to rest since.
//!
//! # Locking
//! [`crate::lock::IN_TRANSIT`] around the waiting, which happens only when a request found nothing.

use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_base::sync::{Condvar, Mutex};

use crate::lock;

/// One wait. The thread that is waited for may be reading a bitmap from disk.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// How long one who has looked often lets others run.
const PAUSE: Duration = Duration::from_millis(1);

pub struct InTransit {
    begun: Counter,
    ended: Counter,
    turns: Counter,
    waiting: AtomicU32,
    gate: Mutex<()>,
    rested: Condvar,
}

impl Default for InTransit {
    fn default() -> InTransit {
        InTransit {
            begun: Counter::new(),
            ended: Counter::new(),
            turns: Counter::new(),
            waiting: AtomicU32::new(0),
            gate: Mutex::new(&lock::IN_TRANSIT, ()),
            rested: Condvar::new(),
        }
    }
}

impl InTransit {
    /// Blocks left the buddy or a preallocation and are in one thread's hands.
    pub fn begin(&self, blocks: u64) {
        self.begun.add(blocks);
    }

    /// They are where others can see them again.
    pub fn end(&self, blocks: u64) {
        self.ended.add(blocks);
    }

    /// Waits until something came to rest after `turns` was read, nothing is in flight, or a short while has passed.
    /// `again`: the caller has looked for it several times. Where others are busy something comes to rest all the time,
    /// and what he waits for may be in the hands of a thread that waits for a processor: he lets them have his.
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

    /// Something came to rest: blocks handed out, a preallocation made, blocks freed. A search that ran meanwhile may
    /// have missed a group that was just changing its place in the policy's sets.
    pub fn turned(&self) {
        self.turns.inc();
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.gate.lock());
            self.rested.notify_all();
        }
    }

    pub fn turns(&self) -> u64 {
        self.turns.get()
    }

    pub fn in_flight(&self) -> bool {
        let ended = self.ended.get();
        self.begun.get() != ended
    }
}
