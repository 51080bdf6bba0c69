//! The file system as the owner of its inodes and of their data.
//!
//! Main types: none; [`Filesystem`] implements [`InodeOwner`] for inodes and their queues, and [`FrameOwner`] for
//! reclaim.
//!
//! What it does not do: decide what leaves memory (reclaim's policy does), or when data is written (the flusher does).
//!
//! # Locking
//! None of its own. The callers' locks are documented with the traits.

use std::sync::Arc;

use extant_cache::reclaim::{FrameId, FrameOwner, Key, Tried};

use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeOwner};
use crate::writeback::asks::Ask;
use crate::writeback::batch::{Retirer, WritebackReason};
use crate::writeback::plug;

impl InodeOwner for Filesystem {
    fn let_go(&self, inode: &Arc<Inode>, is_unlinked: bool) {
        match is_unlinked {
            true => self.evictor().queue(inode.clone()),
            false => self.release_preallocations(inode),
        }
    }

    fn forget(&self, inode: &Inode) {
        self.placement.alloc.discard_preallocations(&inode.prealloc);
    }

    fn write(&self, inodes: &[Arc<Inode>]) {
        plug::write_inodes(self, inodes, WritebackReason::Background);
    }

    fn batch_completed(&self, inode: &Arc<Inode>) {
        self.retirement().retire(inode, Retirer::Completion);
    }

    fn bulk_completed(&self, bytes: u64) {
        self.writeback.bulk.completed(bytes);
    }

    fn resume(&self, asks: Vec<Ask>) {
        drop(self.writeback.asks.push(asks));
    }

    fn distrust(&self) {
        self.abort("a thread panicked");
    }
}

impl FrameOwner for Filesystem {
    fn try_free(&self, key: Key, id: FrameId) -> Tried {
        self.inodes.try_free_data(key, id)
    }

    fn want_written(&self, bytes: u64) {
        self.writeback.flusher.demand(bytes);
    }

    fn unwritten(&self) -> u64 {
        self.writeback.flusher.dirty_bytes()
    }
}
