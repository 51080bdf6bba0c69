//! Writes for callers that do not wait: asynchronous fsyncs and syncs.
//!
//! The caller's thread writes as much as it can at once. Three things may stop it: another thread holds the inode's
//! writeback lock; an earlier write of the same block is pending; space comes only with the next commit. Then the
//! [`Ask`] is put aside until that is over. One thread of the mount goes on with all asks that can continue
//! ([`Filesystem::ask_step`](crate::Filesystem)), together, so that their requests merge. It waits for whatever stops
//! an ask a second time, so that other callers' fsyncs cannot delay one for ever.
//!
//! Linux has a worker wait for each (io_uring's io-wq; the workqueue of the aio_fsync patches).
//!
//! Main types: [`Ask`], [`Countdown`], [`WritebackLock`]; the queue is a [`super::work::WorkQueue`].
//!
//! # Locking
//! `asks` (207) and `asks of an inode` (208) are leaves.

use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use extant_base::sync::{LockClass, Mutex, MutexGuard};
use extant_cache::{Epoch, Writebacks};

use crate::inode::Inode;
use crate::writeback::batch::WritebackReason;

static WB_CLASS: LockClass = LockClass::new("inode writeback", 25);
pub(crate) static ASKS_CLASS: LockClass = LockClass::new("asks", 207);
static INODE_CLASS: LockClass = LockClass::new("asks of an inode", 208);

/// Calls a function once everything that was added to it has ended: at once, or from the thread that ends the last.
pub(crate) struct Countdown {
    /// Plus one for the thread that adds.
    left: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Countdown {
    /// The thread that made it ends with [`Countdown::one_less`].
    pub(crate) fn new(then: impl FnOnce() + Send + 'static) -> Arc<Countdown> {
        Arc::new(Countdown { left: AtomicUsize::new(1), then: Mutex::new(&INODE_CLASS, Some(Box::new(then))) })
    }

    /// One more to wait for. The caller is one that it still waits for.
    pub(super) fn one_more(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let then = self.then.lock().take();
            if let Some(then) = then {
                then();
            }
        }
    }

    /// Adds the writes that were pending before `epoch`.
    pub(crate) fn add(self: &Arc<Self>, writes: &Writebacks, epoch: Epoch) {
        self.one_more();
        let this = self.clone();
        writes.when_closed(epoch, move || this.one_less());
    }

    /// Adds the inode's pending writes.
    pub(crate) fn add_inode(self: &Arc<Self>, inode: &Inode) {
        if !inode.writes.is_idle() {
            self.add(&inode.writes, inode.writes.epoch());
        }
    }
}

/// An inode to be written for a caller that does not wait. Dropped once its write is pending, or never will be.
pub(crate) struct Ask {
    pub(super) inode: Arc<Inode>,
    pub(super) why: WritebackReason,
    /// Something stopped it before: the thread waits now.
    pub(super) again: bool,
    pub(super) closed: Arc<Countdown>,
}

impl Drop for Ask {
    fn drop(&mut self) {
        // Its caller gets an answer, but not that the data is durable.
        if std::thread::panicking()
            && let Some(fs) = self.inode.fs.upgrade()
        {
            fs.abort("a thread panicked");
        }
        self.closed.one_less();
    }
}

/// Writeback of an inode excludes truncation and other writeback, but not writers. A thread that finds the lock taken
/// and does not wait leaves an ask, and the holder of the lock queues it.
pub(crate) struct WritebackLock {
    lock: Mutex<()>,
    asks: Mutex<Vec<Ask>>,
    asked: AtomicBool,
}

impl WritebackLock {
    pub(crate) fn new() -> WritebackLock {
        let asks = Mutex::new(&INODE_CLASS, Vec::new());
        WritebackLock { lock: Mutex::new(&WB_CLASS, ()), asks, asked: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> WritebackGuard<'_> {
        WritebackGuard { of: self, held: Some(self.lock.lock()) }
    }

    pub(crate) fn try_lock(&self) -> Option<WritebackGuard<'_>> {
        self.lock.try_lock().map(|held| WritebackGuard { of: self, held: Some(held) })
    }

    /// Queues the ask once the lock is free.
    pub(super) fn ask(&self, ask: Ask) {
        self.asks.lock().push(ask);
        self.asked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // The holder sees the ask when it releases the lock. If the lock is free, this thread is the holder.
        drop(self.try_lock());
    }
}

/// The lock is held.
pub(crate) struct WritebackGuard<'i> {
    of: &'i WritebackLock,
    held: Option<MutexGuard<'i, ()>>,
}

impl Drop for WritebackGuard<'_> {
    fn drop(&mut self) {
        self.held = None;
        fence(Ordering::SeqCst);
        if self.of.asked.swap(false, Ordering::Relaxed) {
            let asks = std::mem::take(&mut *self.of.asks.lock());
            if let Some(fs) = asks.first().and_then(|ask| ask.inode.fs.upgrade()) {
                drop(fs.asks.push(asks));
            }
        }
    }
}
