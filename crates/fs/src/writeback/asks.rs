//! Who wants dirty data written and waits for nobody: asynchronous fsyncs and syncs.
//!
//! Who asks writes it himself, as far as that can be done at once. What stands in the way of the rest (somebody holds
//! the inode's writeback lock; an earlier write of the same block is on its way; space comes with the next commit) has
//! the [`Ask`] put aside until it is gone. Then one thread of the mount goes on with all asks that can
//! ([`Filesystem::ask_step`](crate::Filesystem)), together, so that their requests merge. What is in the way a second
//! time is waited for there, so that nobody's fsync is put off for ever by those of others.
//!
//! Linux has a worker wait for each (io_uring's io-wq; the workqueue of the aio_fsync patches).
//!
//! Main types: [`Ask`], [`Asks`], [`WritebackLock`].
//!
//! # Locking
//! `asks` (207) and `asks of an inode` (208) are leaves.

use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use extant_base::sync::{Condvar, LockClass, Mutex, MutexGuard};
use extant_cache::{Epoch, Writebacks};

use crate::inode::Inode;
use crate::writeback::batch::WritebackReason;

static WB_CLASS: LockClass = LockClass::new("inode writeback", 25);
static ASKS_CLASS: LockClass = LockClass::new("asks", 207);
static INODE_CLASS: LockClass = LockClass::new("asks of an inode", 208);

/// Calls something once all that it was told of is over: at once, or from the thread that ends the last.
pub(crate) struct Countdown {
    /// And one for who counts.
    left: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Countdown {
    /// It begins to end with [`Countdown::one_less`] by who made it.
    pub(crate) fn new(then: impl FnOnce() + Send + 'static) -> Arc<Countdown> {
        Arc::new(Countdown { left: AtomicUsize::new(1), then: Mutex::new(&INODE_CLASS, Some(Box::new(then))) })
    }

    /// Something more to wait for, by somebody it still waits for.
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

    /// What was on its way before `epoch`.
    pub(crate) fn add(self: &Arc<Self>, writes: &Writebacks, epoch: Epoch) {
        self.one_more();
        let this = self.clone();
        writes.when_closed(epoch, move || this.one_less());
    }

    /// What the inode has on its way now.
    pub(crate) fn add_inode(self: &Arc<Self>, inode: &Inode) {
        if !inode.writes.is_idle() {
            self.add(&inode.writes, inode.writes.epoch());
        }
    }
}

/// An inode to be written for somebody who does not wait. Dropped when it is on its way, or never will be.
pub(crate) struct Ask {
    pub(super) inode: Arc<Inode>,
    pub(super) why: WritebackReason,
    /// Something was in the way before: now it is waited for.
    pub(super) again: bool,
    pub(super) closed: Arc<Countdown>,
}

impl Drop for Ask {
    fn drop(&mut self) {
        // Who waits for it is told something, but not that it is durable.
        if std::thread::panicking()
            && let Some(fs) = self.inode.fs.upgrade()
        {
            fs.abort("a thread panicked");
        }
        self.closed.one_less();
    }
}

/// The asks of a mount.
pub(crate) struct Asks {
    pub(super) queue: Mutex<Queue>,
    pub(super) more: Condvar,
}

#[derive(Default)]
pub(super) struct Queue {
    /// Those with which the mount's thread may go on.
    pub(super) ready: Vec<Ask>,
    /// Those, the ones that are put aside, and the ones that the thread has in hand.
    pub(super) open: usize,
    pub(super) stop: bool,
    /// The thread has ended: the mount has, and with it everything was written.
    pub(super) ended: bool,
}

impl Asks {
    pub(crate) fn new() -> Asks {
        Asks { queue: Mutex::new(&ASKS_CLASS, Queue::default()), more: Condvar::new() }
    }

    pub(super) fn push(&self, asks: Vec<Ask>) {
        let mut queue = self.queue.lock();
        if queue.ended {
            drop(queue);
            return drop(asks);
        }
        queue.ready.extend(asks);
        self.more.notify_one();
    }

    /// Ends [`Filesystem::ask_step`](crate::Filesystem) once none is open.
    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.more.notify_all();
    }

    /// Those with which to go on; `None` when there will be no more.
    pub(super) fn take(&self, wait: Duration) -> Option<Vec<Ask>> {
        let mut queue = self.queue.lock();
        if queue.ready.is_empty() {
            if queue.stop && queue.open == 0 {
                queue.ended = true;
                return None;
            }
            self.more.wait_for(&mut queue, wait);
        }
        Some(std::mem::take(&mut queue.ready))
    }
}

/// Writeback of an inode excludes truncation and other writeback, but not writers. Who finds it taken and does not wait
/// leaves an ask, which whoever has it hands on.
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

    /// Queues the ask once nobody has the lock.
    pub(super) fn ask(&self, ask: Ask) {
        self.asks.lock().push(ask);
        self.asked.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        // Whoever has it now sees the ask when he lets go of it; if nobody has, this is who does.
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
                fs.asks.push(asks);
            }
        }
    }
}
