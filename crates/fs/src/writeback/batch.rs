//! Data between an inode's dirty folios and the device.
//!
//! Main types: [`Batch`] (blocks taken at once; it owns them through a [`WritebackToken`] until they can be read from
//! the device), [`Batches`] (those of one inode, retired in the order in which they were taken, so that the size on
//! disk never passes over data that is not there), [`Retirer`] (the handles that a thread may take for that).
//!
//! What it does not do: send requests ([`super::plug`]), or map blocks ([`super`]).
//!
//! # Locking
//! `batches` (202), `completed batches` (203) and `failed pieces` (204) are leaves.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{LockClass, Mutex, Waiter};
use extant_cache::WritebackToken;
use extant_ondisk::LogicalBlock;

use crate::clusters::Chosen;
use crate::inode::Inode;

static BATCHES_CLASS: LockClass = LockClass::new("batches", 202);
pub(crate) static COMPLETED_CLASS: LockClass = LockClass::new("completed batches", 203);
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

    /// The oldest batch, if it has completed and no thread retires one.
    pub(super) fn begin(&self) -> Option<Arc<Batch>> {
        let mut q = self.0.lock();
        if q.busy {
            return None;
        }
        let oldest = q.batches.front().filter(|b| b.pending.load(Ordering::Acquire) == 0)?.clone();
        q.busy = true;
        Some(oldest)
    }

    /// The oldest batch is retired, or left (not `retired`) to a thread that the caller wakes next.
    pub(super) fn end(&self, retired: bool) {
        let mut q = self.0.lock();
        q.busy = false;
        if retired {
            q.batches.pop_front();
        }
    }
}

/// An inode with completed batches that wait for a thread that may take a handle. With a token: its times must be
/// written before the token closes.
pub(crate) type Completed = (Arc<Inode>, Option<WritebackToken>);

/// The thread that retires batches: the handles that it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retirer {
    /// None: a request completes.
    Completion,
    /// One that it gets at once: a writer that does not wait.
    Tries,
    /// All that it needs.
    Waits,
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
        fs.retire(&self.inode, Retirer::Completion);
    }
}
