//! Wait queues like those of the kernel (`wait_queue_head_t`), several of them for one set of tags.
//!
//! Main types: [`WaitQueues`] and its [`wait`](WaitQueues::wait), the loop of a waiter: enter a queue, look once more,
//! sleep, and choose another queue after each wake.
//!
//! What it does not do: decide which threads are woken, how many, and when. The policies that use it differ in that.
//!
//! # Locking
//! `block tag waiters`, one per queue. No wake-up is lost between looking and sleeping, because a waiter is in the
//! queue before it looks, and a wake removes it.

use std::collections::BTreeMap;

use extant_base::sim;
use extant_base::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use extant_base::sync::{Mutex, Waiter};

use super::super::ledger::Ledger;
use crate::ranks::{TAG_SLEEPER, TAG_WAITERS};

/// The order in which a queue is woken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QueueEnd {
    /// At the head (Linux: `prepare_to_wait`): the newest first.
    Head,
    /// At the tail (Linux: `prepare_to_wait_exclusive`): the oldest first.
    Tail,
}

#[repr(align(128))]
struct WaitQueue {
    asleep: Mutex<BTreeMap<i64, Waiter<()>>>,
    /// The number of waiters, for `waitqueue_active`.
    active: AtomicUsize,
}

/// A number of wait queues (Linux: `BT_WAIT_QUEUES`).
pub(super) struct WaitQueues {
    queues: Vec<WaitQueue>,
    /// The queue that the next waiter enters.
    wait_index: AtomicUsize,
    /// The queue that the next wake-up tries first.
    wake_index: AtomicUsize,
    /// The number of entries so far, which determines the place in a queue.
    entered: AtomicI64,
}

impl WaitQueues {
    pub fn new(count: u32) -> WaitQueues {
        let queue = || WaitQueue { asleep: Mutex::new(&TAG_WAITERS, BTreeMap::new()), active: AtomicUsize::new(0) };
        WaitQueues {
            queues: (0..count.max(1)).map(|_| queue()).collect(),
            wait_index: AtomicUsize::new(0),
            wake_index: AtomicUsize::new(0),
            entered: AtomicI64::new(0),
        }
    }

    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Sleeps until `look` finds a tag. `before_sleep` is called with the queue after the first failed look in that
    /// queue.
    pub fn wait(
        &self,
        user: u32,
        enter: QueueEnd,
        ledger: &Ledger,
        look: impl Fn() -> Option<u32>,
        before_sleep: impl Fn(usize),
    ) -> u32 {
        let ticket = ledger.begin(user);
        let me = Waiter::of_class(&TAG_SLEEPER);
        let mut woken = false;
        loop {
            let index = self.wait_index.fetch_add(1, Ordering::SeqCst) % self.queues.len();
            let queue = &self.queues[index];
            let place = self.entered.fetch_add(1, Ordering::SeqCst);
            let place = if enter == QueueEnd::Head { -place } else { place };
            queue.enter(place, me.clone());
            sim::point("tag: entered a queue");
            if let Some(tag) = look() {
                queue.leave(place);
                ledger.end(ticket);
                return tag;
            }
            if woken {
                ledger.in_vain();
            }
            before_sleep(index);
            me.wait();
            woken = true;
        }
    }

    /// The queue whose turn it is, or the first non-empty queue after it (Linux: `bt_wake_ptr`). The turn moves to
    /// that queue.
    pub fn first_active(&self) -> Option<usize> {
        let n = self.queues.len();
        let from = self.wake_index.load(Ordering::SeqCst) % n;
        let found = (0..n).map(|i| (from + i) % n).find(|i| self.queues[*i].active.load(Ordering::SeqCst) > 0)?;
        if found != from {
            let _ = self.wake_index.compare_exchange(from, found, Ordering::SeqCst, Ordering::SeqCst);
        }
        Some(found)
    }

    /// Moves the turn to the next queue (Linux: `bt_index_atomic_inc`): of two simultaneous calls, one has an effect.
    pub fn advance(&self) {
        let now = self.wake_index.load(Ordering::SeqCst);
        let next = (now + 1) % self.queues.len();
        let _ = self.wake_index.compare_exchange(now, next, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Wakes up to `most` waiters of the queue and returns their number.
    pub fn wake(&self, index: usize, most: usize, ledger: &Ledger) -> usize {
        let woken = self.queues[index].take(most);
        ledger.woke(woken.len());
        woken.iter().for_each(|waiter| waiter.set(()));
        woken.len()
    }

    /// Wakes up to `most` waiters of all queues, queue after queue from the one whose turn it is.
    pub fn wake_around(&self, most: usize, ledger: &Ledger) -> usize {
        let mut left = most;
        for _ in 0..self.queues.len() {
            let index = self.wake_index.load(Ordering::SeqCst) % self.queues.len();
            // This is before the wake, because a woken thread may release a tag immediately, and should find the next
            // queue.
            self.advance();
            if self.queues[index].active.load(Ordering::SeqCst) > 0 {
                left -= self.wake(index, left, ledger);
                if left == 0 {
                    break;
                }
            }
        }
        most - left
    }

    /// Wakes all waiters.
    pub fn wake_all(&self, ledger: &Ledger) {
        (0..self.queues.len()).for_each(|index| {
            self.wake(index, usize::MAX, ledger);
        });
    }
}

impl WaitQueue {
    fn enter(&self, place: i64, waiter: Waiter<()>) {
        let mut asleep = self.asleep.lock();
        asleep.insert(place, waiter);
        self.active.store(asleep.len(), Ordering::SeqCst);
    }

    /// Removes a waiter from the queue, unless a wake has already done so.
    fn leave(&self, place: i64) {
        let mut asleep = self.asleep.lock();
        asleep.remove(&place);
        self.active.store(asleep.len(), Ordering::SeqCst);
    }

    fn take(&self, most: usize) -> Vec<Waiter<()>> {
        let mut asleep = self.asleep.lock();
        let woken = (0..most).map_while(|_| asleep.pop_first()).map(|(_, waiter)| waiter).collect();
        self.active.store(asleep.len(), Ordering::SeqCst);
        woken
    }
}
