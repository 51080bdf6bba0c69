//! Data between an inode's dirty folios and the device.
//!
//! Main types: [`Batch`] (blocks taken at once; it owns them through a [`WritebackToken`] until they can be read from
//! the device), [`Batches`] (those of one inode, retired in the order in which they were taken, so that the size on
//! disk never passes over data that is not there), [`Completed`] (inodes whose batches wait for a handle).
//!
//! What it does not do: send requests ([`super::plug`]), or map blocks ([`super`]).
//!
//! # Locking
//! `batches` (202), `completed batches` (203) and `failed pieces` (204) are leaves.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, Waiter};
use extant_cache::WritebackToken;
use extant_mballoc::Chosen;
use extant_ondisk::LogicalBlock;

use crate::inode::Inode;

static BATCHES_CLASS: LockClass = LockClass::new("batches", 202);
static COMPLETED_CLASS: LockClass = LockClass::new("completed batches", 203);
pub(super) static FAILED_CLASS: LockClass = LockClass::new("failed pieces", 204);

/// Why dirty folios are written (Linux: `enum wb_reason`). A policy of the allocator may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritebackReason {
    /// An fsync waits for this inode.
    Fsync,
    /// Time, memory, a sync of everything.
    Background,
}

/// How the blocks of a piece become readable once its data is on the device.
pub(super) enum Then {
    /// They are mapped and written already.
    Nothing,
    /// They are mapped as unwritten.
    Convert,
    /// They are chosen, and belong to this batch alone.
    Map(Chosen),
}

/// Adjacent blocks of a batch in one state.
pub(super) struct Piece {
    pub(super) lblk: LogicalBlock,
    pub(super) len: u32,
    pub(super) then: Then,
}

/// The blocks taken from an inode's dirty folios at once.
pub(crate) struct Batch {
    pub(super) inode: Arc<Inode>,
    /// The size of the file when they were taken. It bounds the valid bytes of the last block.
    pub(super) size: u64,
    /// Requests that have not completed, plus one for the sender.
    pub(super) pending: AtomicU32,
    /// Its requests pass the mount's [`extant_cache::BulkWindow`]; set when they are sent.
    pub(super) bulk: AtomicBool,
    /// No handle is needed: neither the map nor the size on disk changes.
    pub(super) plain: bool,
    pub(super) failed: Mutex<Vec<(usize, extant_block::Error)>>,
    /// The thread that retires the batch takes it.
    pub(super) work: Mutex<Option<(Vec<Piece>, WritebackToken)>>,
    /// The sender waits until it is the last of `pending`.
    pub(super) waited: AtomicBool,
    pub(super) complete: Waiter<()>,
}

/// The batches of an inode in flight, oldest first.
pub(crate) struct Batches(pub(super) Mutex<Queue>);

#[derive(Default)]
pub(super) struct Queue {
    pub(super) batches: VecDeque<Arc<Batch>>,
    /// A thread retires the oldest batch; it checks again before it stops.
    pub(super) busy: bool,
}

impl Batches {
    pub(crate) fn new() -> Batches {
        Batches(Mutex::new(&BATCHES_CLASS, Queue::default()))
    }

    /// The oldest batch, if it has completed and no thread retires one. `may`: a further condition.
    pub(super) fn begin(&self, may: impl FnOnce(&Batch) -> bool) -> Option<Arc<Batch>> {
        let mut q = self.0.lock();
        if q.busy {
            return None;
        }
        let oldest = q.batches.front().filter(|b| b.pending.load(Ordering::Acquire) == 0 && may(b))?.clone();
        q.busy = true;
        Some(oldest)
    }

    pub(super) fn end(&self) {
        let mut q = self.0.lock();
        q.busy = false;
        q.batches.pop_front();
    }

    /// The oldest batch, if it has completed and no thread retires one.
    pub(super) fn oldest_ready(&self) -> Option<Arc<Batch>> {
        let q = self.0.lock();
        q.batches.front().filter(|b| !q.busy && b.pending.load(Ordering::Acquire) == 0).cloned()
    }
}

/// Inodes with completed batches that wait for a thread that may take a handle. An entry with a token is for an inode
/// whose times must be written before the token closes.
pub(crate) struct Completed {
    pub(super) queue: Mutex<CompletedQueue>,
    pub(super) more: Condvar,
}

#[derive(Default)]
pub(super) struct CompletedQueue {
    pub(super) waiting: VecDeque<(Arc<Inode>, Option<WritebackToken>)>,
    pub(super) stop: bool,
    /// The thread has ended; no entry will be taken.
    pub(super) ended: bool,
}

impl Completed {
    pub(crate) fn new() -> Completed {
        Completed { queue: Mutex::new(&COMPLETED_CLASS, CompletedQueue::default()), more: Condvar::new() }
    }

    /// Ends [`Filesystem::retire_step`] once nothing waits.
    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.more.notify_all();
    }
}

impl Batch {
    /// Called by the sender: waits until all requests have completed.
    pub(super) fn wait_for_requests(&self) {
        self.waited.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) > 1 {
            self.complete.wait();
        }
    }

    /// One request has completed, on any thread; this must not wait.
    pub(super) fn request_done(&self) {
        match self.pending.fetch_sub(1, Ordering::SeqCst) {
            1 => {}
            2 if self.waited.load(Ordering::SeqCst) => return self.complete.set(()),
            _ => return,
        }
        let Some(fs) = self.inode.fs.upgrade() else { return };
        fs.retire_while(&self.inode, |b| b.plain && b.failed.lock().is_empty(), &mut None);
        if self.inode.batches.oldest_ready().is_some() {
            fs.retire_later(self.inode.clone(), None);
        }
    }
}
