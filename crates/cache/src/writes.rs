//! Tracks dirty data during its write to the device: [`WritebackToken`], and the open tokens of one inode,
//! [`Writebacks`].
//!
//! A token is opened when blocks are taken from the address space. It is closed when their data can be read back from
//! the device (written, mapped or converted, and the size on disk moved), or when they are lost. Until then, the folios
//! hold the data. So data is on the device when no token that was opened before is open any more.
//!
//! Main types: [`Writebacks`] (one per inode), [`WritebackToken`], [`Epoch`] (a point in time, to wait for the tokens
//! opened before it). Linux has PG_writeback, `i_unwritten` and ordered lists of the journal for parts of this.
//!
//! What it does not do: handle errors. A lost write is recorded in the ledgers of its inode and of the mount
//! ([`crate::LossLedger`]) before its token closes, so a thread that has waited for the token finds it there.
//!
//! # Locking
//! One leaf lock (`writebacks`, 200). Callbacks run without it.

use std::collections::BTreeSet;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex, Waiter};

static CLASS: LockClass = LockClass::new("writebacks", 200);

/// A point in time, which represents all tokens opened before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

type Call = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    opened: u64,
    open: BTreeSet<u64>,
    waiting: Vec<(Epoch, Call)>,
}

/// The open tokens of one inode.
pub struct Writebacks {
    state: Mutex<State>,
    /// The number of open tokens, readable without the lock.
    count: AtomicU64,
}

/// Dirty data that is being written. Dropping it closes it.
pub struct WritebackToken {
    of: Arc<Writebacks>,
    number: u64,
}

impl Default for Writebacks {
    fn default() -> Writebacks {
        Writebacks { state: Mutex::new(&CLASS, State::default()), count: AtomicU64::new(0) }
    }
}

impl Writebacks {
    pub fn new() -> Arc<Writebacks> {
        Arc::default()
    }

    /// Opens a token.
    pub fn open(self: &Arc<Self>) -> WritebackToken {
        let mut s = self.state.lock();
        let number = s.opened;
        s.opened += 1;
        s.open.insert(number);
        self.count.fetch_add(1, Ordering::AcqRel);
        WritebackToken { of: self.clone(), number }
    }

    /// Whether no token is open.
    pub fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The current point in time.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.state.lock().opened)
    }

    /// Calls `then` when every token opened before `epoch` is closed: immediately, or from the thread that closes the
    /// last one.
    pub fn when_closed(&self, epoch: Epoch, then: impl FnOnce() + Send + 'static) {
        {
            let mut s = self.state.lock();
            if s.open.first().is_some_and(|&oldest| oldest < epoch.0) {
                s.waiting.push((epoch, Box::new(then)));
                return;
            }
        }
        then();
    }

    /// Waits until every token opened before now is closed.
    pub fn wait(&self) {
        self.wait_for(self.epoch());
    }

    /// Waits until every token opened before `epoch` is closed.
    pub fn wait_for(&self, epoch: Epoch) {
        if self.is_idle() {
            return;
        }
        let waiter = Waiter::new();
        let done = waiter.clone();
        self.when_closed(epoch, move || done.set(()));
        waiter.wait();
    }
}

impl Drop for WritebackToken {
    fn drop(&mut self) {
        let ready: Vec<Call> = {
            let mut s = self.of.state.lock();
            s.open.remove(&self.number);
            self.of.count.fetch_sub(1, Ordering::AcqRel);
            if s.waiting.is_empty() {
                return;
            }
            let oldest = s.open.first().copied().unwrap_or(u64::MAX);
            let (ready, rest) = std::mem::take(&mut s.waiting).into_iter().partition(|(e, _)| e.0 <= oldest);
            s.waiting = rest;
            ready.into_iter().map(|(_, call): (Epoch, Call)| call).collect()
        };
        for call in ready {
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_waits_for_the_tokens_opened_before_it_and_no_others() {
        let w = Writebacks::new();
        let called = Arc::new(AtomicU64::new(0));
        let wait = |epoch| {
            let called = called.clone();
            w.when_closed(epoch, move || {
                called.fetch_add(1, Ordering::Relaxed);
            });
        };
        wait(w.epoch());
        assert_eq!(called.load(Ordering::Relaxed), 1, "nothing was open");
        let (a, b) = (w.open(), w.open());
        let before = w.epoch();
        let c = w.open();
        wait(before);
        drop(b);
        assert_eq!(called.load(Ordering::Relaxed), 1, "a is open");
        drop(a);
        assert_eq!(called.load(Ordering::Relaxed), 2, "c came later");
        wait(w.epoch());
        assert!(!w.is_idle());
        drop(c);
        assert_eq!(called.load(Ordering::Relaxed), 3);
        assert!(w.is_idle());
        w.wait();
    }
}
