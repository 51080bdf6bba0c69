//! Data on its way from an inode's dirty folios to the device.
//!
//! Main types: [`Batch`] (blocks that were taken together; it owns them through a [`WritebackToken`] until they can be
//! read from the device), [`Batches`] (the batches of one inode, retired in the order in which they were taken, so that
//! the size on disk never advances over missing data), [`Retirer`] (the handles that a thread may take for that).
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

/// The reason for writing dirty folios (Linux: `enum wb_reason`). A policy of the allocator may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritebackReason {
    /// An fsync waits for this inode.
    Fsync,
    /// Writeback because of the data's age, a lack of memory, or a sync of the whole mount.
    Background,
}

/// The step that makes the blocks of a piece readable once its data is on the device.
pub(super) enum Then {
    /// None: the blocks are mapped and written already.
    Nothing,
    /// The blocks are mapped as unwritten and must be converted.
    Convert,
    /// The blocks are chosen for this batch and must be mapped.
    Map(Chosen),
}

/// Adjacent blocks of a batch in one state.
pub(super) struct Piece {
    pub(super) lblk: LogicalBlock,
    pub(super) len: u32,
    pub(super) then: Then,
}

impl Piece {
    /// The byte of the file after the piece.
    pub(super) fn end_bytes(&self, block_bits: u32) -> u64 {
        (u64::from(self.lblk.0) + u64::from(self.len)) << block_bits
    }
}

/// Blocks that were taken together from an inode's dirty folios.
pub(crate) struct Batch {
    pub(super) inode: Arc<Inode>,
    /// The size of the file when the blocks were taken. It limits the valid bytes of the last block.
    pub(super) size: u64,
    /// The number of requests that have not completed, plus one for the sender.
    pub(super) pending: AtomicU32,
    /// Its requests pass the mount's [`extant_cache::BulkWindow`]; set when they are sent.
    pub(super) bulk: AtomicBool,
    /// No handle is needed: neither the map nor the size on disk changes.
    pub(super) plain: bool,
    pub(super) failed: Mutex<Vec<(usize, extant_block::Error)>>,
    /// The pieces and the token; the thread that retires the batch takes them.
    pub(super) work: Mutex<Option<(Vec<Piece>, WritebackToken)>>,
    /// The sender waits until all other parts of `pending` have completed.
    pub(super) waited: AtomicBool,
    pub(super) complete: Waiter<()>,
}

/// The batches of an inode in flight, oldest first.
pub(crate) struct Batches(pub(super) Mutex<Queue>);

#[derive(Default)]
pub(super) struct Queue {
    pub(super) batches: VecDeque<Arc<Batch>>,
    /// A thread is retiring the oldest batch; it checks again before it stops.
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

    /// Ends the retirement of the oldest batch. If it is not `retired`, the caller next wakes a thread that retires it.
    pub(super) fn end(&self, retired: bool) {
        let mut q = self.0.lock();
        q.busy = false;
        if retired {
            q.batches.pop_front();
        }
    }
}

/// An inode with completed batches that need a thread which may take a handle. If there is a token, the inode's times
/// must be written before the token closes.
pub(crate) type Completed = (Arc<Inode>, Option<WritebackToken>);

/// The thread that retires batches, by the handles that it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retirer {
    /// It takes no handle, because it completes a request.
    Completion,
    /// It takes a handle that is available without waiting, because its writer does not wait.
    Tries,
    /// It waits for all handles that it needs.
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

    /// Called when a request has completed, on any thread; this must not wait.
    pub(super) fn request_done(&self) {
        match self.pending.fetch_sub(1, Ordering::SeqCst) {
            1 => {}
            2 if self.waited.load(Ordering::SeqCst) => return self.complete.set(()),
            _ => return,
        }
        if let Some(owner) = self.inode.owner.upgrade() {
            owner.batch_completed(&self.inode);
        }
    }
}
