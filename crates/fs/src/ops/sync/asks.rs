//! Who wants dirty data written and waits for nobody: asynchronous fsyncs and syncs.
//!
//! Who asks writes it himself, as far as that can be done at once. What stands in the way of the rest (somebody holds
//! the inode's writeback lock; an earlier write of the same block is on its way; space comes with the next commit) has
//! the [`Ask`] put aside until it is gone. Then one thread of the mount goes on with all asks that can
//! ([`Filesystem::ask_step`]), together, so that their requests merge. What is in the way a second time is waited for
//! there, so that nobody's fsync is put off for ever by those of others.
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

use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::ops::writeback::{Later, WritebackReason};

static WB_CLASS: LockClass = LockClass::new("inode writeback", 25);
static ASKS_CLASS: LockClass = LockClass::new("asks", 207);
static INODE_CLASS: LockClass = LockClass::new("asks of an inode", 208);

/// Calls something once all that it was told of is over: at once, or from the thread that ends the last.
pub(super) struct Countdown {
    /// And one for who counts.
    left: AtomicUsize,
    then: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Countdown {
    /// It begins to end with [`Countdown::one_less`] by who made it.
    pub(super) fn new(then: impl FnOnce() + Send + 'static) -> Arc<Countdown> {
        Arc::new(Countdown { left: AtomicUsize::new(1), then: Mutex::new(&INODE_CLASS, Some(Box::new(then))) })
    }

    /// Something more to wait for, by somebody it still waits for.
    fn one_more(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let then = self.then.lock().take();
            if let Some(then) = then {
                then();
            }
        }
    }

    /// What was on its way before `epoch`.
    pub(super) fn add(self: &Arc<Self>, writes: &Writebacks, epoch: Epoch) {
        self.one_more();
        let this = self.clone();
        writes.when_closed(epoch, move || this.one_less());
    }

    /// What the inode has on its way now.
    pub(super) fn add_inode(self: &Arc<Self>, inode: &Inode) {
        if !inode.writes.is_idle() {
            self.add(&inode.writes, inode.writes.epoch());
        }
    }
}

/// An inode to be written for somebody who does not wait. Dropped when it is on its way, or never will be.
pub(crate) struct Ask {
    inode: Arc<Inode>,
    why: WritebackReason,
    /// Something was in the way before: now it is waited for.
    again: bool,
    closed: Arc<Countdown>,
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
    queue: Mutex<Queue>,
    more: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Those with which the mount's thread may go on.
    ready: Vec<Ask>,
    /// Those, the ones that are put aside, and the ones that the thread has in hand.
    open: usize,
    stop: bool,
    /// The thread has ended: the mount has, and with it everything was written.
    ended: bool,
}

impl Asks {
    pub(crate) fn new() -> Asks {
        Asks { queue: Mutex::new(&ASKS_CLASS, Queue::default()), more: Condvar::new() }
    }

    fn push(&self, asks: Vec<Ask>) {
        let mut queue = self.queue.lock();
        if queue.ended {
            drop(queue);
            return drop(asks);
        }
        queue.ready.extend(asks);
        self.more.notify_one();
    }

    /// Ends [`Filesystem::ask_step`] once none is open.
    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.more.notify_all();
    }

    /// Those with which to go on; `None` when there will be no more.
    fn take(&self, wait: Duration) -> Option<Vec<Ask>> {
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
    fn ask(&self, ask: Ask) {
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

/// The mount's thread dies: nobody goes on with what is left, or with what will come.
struct EndOnPanic<'a>(&'a Asks);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let left = {
                let mut queue = self.0.queue.lock();
                queue.ended = true;
                std::mem::take(&mut queue.ready)
            };
            drop(left);
        }
    }
}

impl Filesystem {
    /// Starts writing everything dirty of the inode once what is in the way is gone; `closed` counts that down once it
    /// can be read from the device.
    pub(super) fn ask(&self, inode: &Arc<Inode>, why: WritebackReason, later: Later, closed: &Arc<Countdown>) {
        {
            let mut queue = self.asks.queue.lock();
            if queue.ended {
                return;
            }
            queue.open += 1;
        }
        closed.one_more();
        self.put_aside(Ask { inode: inode.clone(), why, again: false, closed: closed.clone() }, later);
    }

    /// Until what is in its way is gone.
    fn put_aside(&self, mut ask: Ask, later: Later) {
        let inode = ask.inode.clone();
        match later {
            Later::Locked => inode.wb.ask(ask),
            Later::OnItsWay(epoch) => {
                let fs = self.arc();
                inode.writes.when_closed(epoch, move || fs.asks.push(vec![ask]));
            }
            Later::NoSpace => {
                ask.again = true;
                self.asks.push(vec![ask]);
            }
        }
    }

    /// One round of the thread that goes on with asks; false when it should end.
    pub(crate) fn ask_step(&self, wait: Duration) -> bool {
        let Some(mut asks) = self.asks.take(wait) else { return false };
        let _end = EndOnPanic(&self.asks);
        asks.sort_by_key(|ask| ask.inode.ino);
        let (patient, quick): (Vec<_>, Vec<_>) = asks.into_iter().partition(|ask| ask.again);
        let (mut begun, mut left) = (Vec::new(), Vec::new());
        {
            let mut plug = self.writeback_plug(WritebackReason::Fsync).impatient();
            for ask in quick {
                plug.because(ask.why);
                match plug.try_write_pages(&ask.inode) {
                    Ok(()) => begun.push(ask),
                    Err(later) => left.push((ask, later)),
                }
            }
        }
        for (mut ask, later) in left {
            ask.again = true;
            self.put_aside(ask, later);
        }
        for ask in &patient {
            self.writeback_plug(ask.why).write_pages(&ask.inode);
        }
        begun.extend(patient);
        self.asks.queue.lock().open -= begun.len();
        begun.iter().for_each(|ask| ask.closed.add_inode(&ask.inode));
        true
    }
}
