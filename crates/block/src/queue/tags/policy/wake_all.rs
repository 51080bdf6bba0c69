//! The policy of Linux 3.16-rc, which the mail thread of 2014 discusses. After a number of releases, all waiters of one
//! wait queue are woken for a few tags.
//!
//! - A waiter enters the next queue, not exclusively: a wake of the queue wakes all of its waiters.
//! - Each queue counts the releases that are still missing before it is woken. The count starts at a batch: an eighth
//!   of the depth, at most eight. Every thread that goes to sleep resets the count to a whole batch.
//! - Counts are decremented and set without synchronization, as they were in Linux.
//!
//! What it does not do: lose a waiter permanently. If the last tag is released and no thread was woken, all are woken;
//! Linux had hangs there until Alexander Gordeev's fixes.
//!
//! # Locking
//! Those of [`super::wait_queue`].

use extant_base::sync::atomic::{AtomicI64, Ordering};

use super::super::ledger::Ledger;
use super::bitmap::Bitmap;
use super::wait_queue::{QueueEnd, WaitQueues};
use super::{TagHandOff, TagPolicy, wake_batch};

pub(in crate::queue::tags) struct WakeAll {
    bits: Bitmap,
    queues: WaitQueues,
    wait_cnt: Vec<AtomicI64>,
    batch: i64,
    ledger: Ledger,
}

impl WakeAll {
    pub fn new(depth: u32, wait_queues: u32) -> WakeAll {
        let (queues, batch) = (WaitQueues::new(wait_queues), wake_batch(depth).into());
        let wait_cnt = (0..queues.len()).map(|_| AtomicI64::new(batch)).collect();
        WakeAll { bits: Bitmap::new(depth), queues, wait_cnt, batch, ledger: Ledger::new() }
    }
}

impl TagPolicy for WakeAll {
    fn try_get(&self, hint: usize) -> Option<u32> {
        let tag = self.bits.get(hint)?;
        self.ledger.at_once();
        Some(tag)
    }

    fn get(&self, hint: usize, user: u32) -> u32 {
        let set_back = |queue: usize| self.wait_cnt[queue].store(self.batch, Ordering::SeqCst);
        self.queues.wait(user, QueueEnd::Head, &self.ledger, || self.bits.get(hint), set_back)
    }

    fn put(&self, tag: u32, hint: usize) -> Option<TagHandOff> {
        self.bits.put(tag, hint);
        let queue = self.queues.first_active()?;
        let mut woken = 0;
        if self.wait_cnt[queue].fetch_sub(1, Ordering::SeqCst) == 1 {
            self.wait_cnt[queue].store(self.batch, Ordering::SeqCst);
            self.queues.advance();
            woken = self.queues.wake(queue, usize::MAX, &self.ledger);
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
