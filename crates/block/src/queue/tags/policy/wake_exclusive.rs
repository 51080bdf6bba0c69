//! The patch in the thread's last message (Jens Axboe, 2014; the idea was included in Linux 4.16). Not all waiters of a
//! wait queue are woken, but only a batch, the oldest first.
//!
//! - A waiter enters the next queue at its end. If it is woken but finds no tag, it enters another queue, also at its
//!   end.
//! - Each queue's count starts at a batch, and waiters do not reset it. The thread that brings it to zero adds a
//!   batch and wakes a batch. A thread that finds it negative undoes its decrement.
//!
//! With one wait queue, it is the last variant that was tried in the thread.
//!
//! What it does not do: lose a waiter permanently; see [`super::wake_all`].
//!
//! # Locking
//! Those of [`super::wait_queue`].

use extant_base::sync::atomic::{AtomicI64, Ordering};

use super::super::ledger::Ledger;
use super::bitmap::Bitmap;
use super::wait_queue::{QueueEnd, WaitQueues};
use super::{TagHandOff, TagPolicy, wake_batch};

pub(in crate::queue::tags) struct WakeExclusive {
    bits: Bitmap,
    queues: WaitQueues,
    wait_cnt: Vec<AtomicI64>,
    batch: i64,
    ledger: Ledger,
}

impl WakeExclusive {
    pub fn new(depth: u32, wait_queues: u32) -> WakeExclusive {
        let (queues, batch) = (WaitQueues::new(wait_queues), wake_batch(depth).into());
        let wait_cnt = (0..queues.len()).map(|_| AtomicI64::new(batch)).collect();
        WakeExclusive { bits: Bitmap::new(depth), queues, wait_cnt, batch, ledger: Ledger::new() }
    }

    /// Counts a release. Returns whether the queue must be woken.
    fn due(&self, queue: usize) -> bool {
        let count = &self.wait_cnt[queue];
        let left = count.fetch_sub(1, Ordering::SeqCst) - 1;
        left == 0 || (left < 0 && count.fetch_add(1, Ordering::SeqCst) + 1 == 0)
    }
}

impl TagPolicy for WakeExclusive {
    fn try_get(&self, hint: usize) -> Option<u32> {
        let tag = self.bits.get(hint)?;
        self.ledger.at_once();
        Some(tag)
    }

    fn get(&self, hint: usize, user: u32) -> u32 {
        self.queues.wait(user, QueueEnd::Tail, &self.ledger, || self.bits.get(hint), |_| {})
    }

    fn put(&self, tag: u32, hint: usize) -> Option<TagHandOff> {
        self.bits.put(tag, hint);
        let queue = self.queues.first_active()?;
        let mut woken = 0;
        if self.due(queue) {
            self.wait_cnt[queue].fetch_add(self.batch, Ordering::SeqCst);
            self.queues.advance();
            woken = self.queues.wake(queue, self.batch as usize, &self.ledger);
        }
        if woken == 0 && self.bits.all_free() {
            self.queues.wake_all(&self.ledger);
        }
        None
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
