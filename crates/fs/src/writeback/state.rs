//! The part of a mount that has data on its way to the device.
//!
//! Main type: [`Writeback`]. It owns the list of dirty inodes and the pace of writers ([`Flusher`]), the limit of what
//! is in flight ([`BulkWindow`]), the queues of the two threads that continue the work of others, and the ledger of
//! lost writes.
//!
//! What it does not do: choose blocks, send requests or map what was written ([`super`]). It knows inodes (`I`), writes
//! of callers that do not wait (`A`) and completed batches (`C`) by their types only.
//!
//! # Locking
//! None of its own. A writer that waits here holds no lock and no handle.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::LockClass;
use extant_block::BlockDevice;
use extant_cache::{
    AddressSpace, AddressSpaceOps, Budget, BulkWindow, Flusher, FlusherOptions, LossLedger, Writebacks,
    longest_pause_ns,
};
use extant_ondisk::InodeNr;

use crate::error::Error;
use crate::ops::sync::policy::SyncPolicy;
use crate::options::{DIRTY_BYTES_MIN, MountOptions};
use crate::writeback::work::WorkQueue;

/// How long data may stay dirty (Linux: `dirty_expire_interval`, 30 seconds).
const DIRTY_EXPIRE_NS: u64 = 5_000_000_000;
/// Writers of less than this in one call do not wait for memory.
const LIGHT_BYTES: u64 = 64 << 10;

/// Dirty data, and what is under way to the device.
pub(crate) struct Writeback<I, A, C> {
    pub(crate) flusher: Arc<Flusher<I>>,
    /// Limits the file data that is under way to the device.
    pub(crate) bulk: BulkWindow,
    /// Batches whose data is on the device and that still need a handle.
    pub(crate) completed: WorkQueue<C>,
    pub(crate) asks: WorkQueue<A>,
    pub(crate) sync_policy: Box<dyn SyncPolicy>,
    /// The lost writes of all files.
    pub(crate) losses: LossLedger<Error>,
    budget: Arc<Budget>,
    clock: Clock,
    /// Whether the mount has threads. Otherwise each writer writes what it has made dirty.
    threads: bool,
}

impl<I: AddressSpaceOps, A, C> Writeback<I, A, C> {
    /// `asks` and `completed` are the classes of the queues' locks.
    pub(crate) fn new(
        options: &MountOptions,
        budget: Arc<Budget>,
        dev: Arc<dyn BlockDevice>,
        inodes_per_group: u32,
        [asks, completed]: [&'static LockClass; 2],
    ) -> Writeback<I, A, C> {
        let limit_bytes = options.dirty_bytes.unwrap_or(budget.limit() / 2).max(DIRTY_BYTES_MIN);
        let flusher_options =
            FlusherOptions { background_bytes: limit_bytes / 2, limit_bytes, expire_ns: DIRTY_EXPIRE_NS };
        Writeback {
            flusher: Flusher::new(options.clock.clone(), flusher_options),
            bulk: BulkWindow::new(options.clock.clone(), dev),
            completed: WorkQueue::new(completed),
            asks: WorkQueue::new(asks),
            sync_policy: options.sync_policy.state(inodes_per_group),
            losses: LossLedger::default(),
            budget,
            clock: options.clock.clone(),
            threads: options.threads,
        }
    }

    /// Adds the inode to the flusher's list of dirty inodes.
    pub(crate) fn note_dirty(&self, ino: InodeNr, inode: &Arc<I>, bytes: u64) {
        self.flusher.dirtied(u64::from(ino.0), bytes, inode);
    }

    /// Drops cached blocks from `from` on; the caller holds the writeback lock of their inode.
    pub(crate) fn drop_pages(&self, writes: &Writebacks, pages: &AddressSpace, from: u64) {
        // Pages under writeback must not be written to blocks that are freed next.
        writes.wait();
        let gone = pages.discard(from, u64::MAX);
        self.flusher.dropped(gone);
    }

    /// Waits until there is memory for the data of a writer: clean frames are evicted, and the flushers of all mounts
    /// that share the budget clean more. The wait is bounded by the time that the device needs to write this amount.
    /// Small writes do not wait, because they do not fill memory.
    pub(crate) fn await_memory(&self, bytes: u64) {
        const AT_MOST: u64 = 1 << 20;
        let bytes = bytes.min(AT_MOST);
        if bytes < LIGHT_BYTES || self.budget.make_room(bytes) || !self.threads {
            return;
        }
        let now = || self.clock.now_ns();
        let until = now() + longest_pause_ns(bytes, self.bulk.rate());
        while self.budget.is_dirty() && !self.budget.make_room(bytes) {
            let Some(left) = until.checked_sub(now()).filter(|left| *left > 0) else { break };
            self.budget.wait_for_writes(bytes, Duration::from_nanos(left));
        }
    }

    /// Makes a writer pause for this number of dirty bytes. Without a flusher thread, the writer writes them itself.
    pub(crate) fn pause_writer(&self, inode: &I, bytes: u64) {
        match self.threads {
            true => self.flusher.throttle(inode.listed(), bytes, self.bulk.rate()),
            false => self.flusher.throttle_alone(),
        }
    }

    /// How long a writer that does not wait should be delayed for this number of dirty bytes.
    pub(crate) fn pause_of(&self, inode: &I, bytes: u64) -> Duration {
        let rate = self.bulk.rate();
        let for_memory = match bytes >= LIGHT_BYTES && !self.budget.make_room(0) && self.budget.is_dirty() {
            true => longest_pause_ns(bytes, rate),
            false => 0,
        };
        Duration::from_nanos(self.flusher.pause_ns(inode.listed(), bytes, rate).max(for_memory))
    }

    /// Records that data of an inode has reached the device and can be read from there.
    pub(super) fn written(&self, bytes: u64) {
        self.losses.written();
        self.flusher.written(bytes);
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
