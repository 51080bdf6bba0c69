//! Writes for callers that do not wait: asynchronous fsyncs and syncs.
//!
//! The caller's thread writes as much as it can without waiting. Three obstacles may stop it: another thread holds the
//! inode's writeback lock, an earlier write of the same block is pending, or space becomes free only with the next
//! commit. Then the [`Ask`] is deferred until the obstacle is gone. One thread of the mount continues all asks that are
//! ready ([`ask_step`](super::ask_step)), together, so that their requests merge. If an ask meets a second obstacle,
//! that thread waits for it, so that other callers' fsyncs cannot delay an ask forever.
//!
//! Linux has a worker wait for each write (io_uring's io-wq; the workqueue of the aio_fsync patches).
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

/// Calls a function once everything that was added to it has ended, on the thread that ends the last one.
pub(crate) struct Countdown {
    /// The number of pending items, plus one for the thread that adds them.
    left: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Countdown {
    /// The thread that creates it must finally call [`Countdown::one_less`].
    pub(crate) fn new(then: impl FnOnce() + Send + 'static) -> Arc<Countdown> {
        Arc::new(Countdown { left: AtomicUsize::new(1), then: Mutex::new(&INODE_CLASS, Some(Box::new(then))) })
    }

    /// Adds one item. The countdown must not have ended, so the caller must hold an item itself.
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

/// An inode to be written for a caller that does not wait. It is dropped once its write is pending, or will never be.
pub(crate) struct Ask {
    pub(super) inode: Arc<Inode>,
    pub(super) why: WritebackReason,
    /// It has met an obstacle before, so the thread waits now.
    pub(super) again: bool,
    pub(super) closed: Arc<Countdown>,
}

impl Drop for Ask {
    fn drop(&mut self) {
        // The caller gets a result, but it must not be that the data is durable.
        if std::thread::panicking()
            && let Some(owner) = self.inode.owner.upgrade()
        {
            owner.distrust();
        }
        self.closed.one_less();
    }
}

/// The lock for writeback of an inode. It excludes truncation and other writeback, but not writers. A thread that finds
/// it taken and does not wait leaves an ask, and the holder of the lock queues it.
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

    /// Queues the ask when the lock becomes free.
    pub(super) fn ask(&self, ask: Ask) {
        self.asks.lock().push(ask);
        self.asked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // The holder sees the ask when it releases the lock. If the lock is free, this thread takes and releases it.
        drop(self.try_lock());
    }
}

/// The writeback lock, held.
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
            if let Some(owner) = asks.first().and_then(|ask| ask.inode.owner.upgrade()) {
                owner.resume(asks);
            }
        }
    }
}
