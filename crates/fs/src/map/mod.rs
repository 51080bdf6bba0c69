//! The mapping of a file's logical blocks to physical blocks: extent trees and indirect blocks.
//!
//! Main types: [`MapRoot`] (an inode's `i_block` with its identity; all operations are its methods), [`Mapping`] (a run
//! of logical blocks in one state), [`MapStore`] (the storage below), [`Progress`] (how far an operation came before
//! its handle ran out of credits). The extent-status cache above this layer is the crate `es`. Linux:
//! `ext4_map_blocks`, fs/ext4/inode.c; fs/ext4/extents.c; fs/ext4/indirect.c.
//!
//! Crash safety: every call leaves the map consistent in its handle. An operation that may not fit one handle
//! (remove, state changes) stops between two consistent states and returns where to continue. New nodes are allocated
//! before the first change, so running out of space changes nothing.
//!
//! What it does not do: choose data blocks, touch data, know sizes, start handles, or write the inode. The caller
//! copies `i_block` back when [`MapRoot::dirty`] is set, and adds [`MapRoot::blocks_delta`] to `i_blocks`.
//!
//! # Locking
//! None of its own: the caller holds the inode's map lock (Linux: `i_data_sem`), shared for `&self` methods, exclusive
//! for `&mut self` ones.

mod cluster_size;
mod extents;
mod indirect;
pub mod neighbours;
mod store;

use std::ops::ControlFlow;

use extant_ondisk::extent::{self, NodeMut, ROOT_BYTES};
use extant_ondisk::indirect::PointerBlock;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

pub use cluster_size::ClusterSize;
pub use store::{MapError, MapStore, NewNode, Shared};

/// The state of a run of logical blocks. The block is the physical place of the run's first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapState {
    /// Nothing allocated; reads as zeros.
    Hole,
    /// Allocated, with data.
    Written(BlockNr),
    /// Allocated, never written; reads as zeros.
    Unwritten(BlockNr),
}

/// A run of logical blocks in one state (Linux: `struct ext4_map_blocks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its first block within the file.
    pub lblk: LogicalBlock,
    /// The number of blocks, at least 1.
    pub len: u32,
    /// The state of all its blocks.
    pub state: MapState,
}

/// A part of a map that damage hides.
#[derive(Debug)]
pub struct Lost<E> {
    /// One past its last logical block.
    pub end: u64,
    /// The damage.
    pub error: E,
}

/// The maximum number of neighbours that [`MapRoot::leaf`] returns on each side: all of a leaf of 4 KiB.
const NEIGHBOURS: usize = 340;

/// How far an operation came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// The operation has processed the whole range.
    Done,
    /// The handle has too few credits left. The map is consistent. Call again under a new handle, with `at` instead of
    /// `to` for [`MapRoot::remove`], which works from right to left, or instead of `from` for changes of state.
    Stopped {
        /// The block to continue at.
        at: LogicalBlock,
    },
}

/// The root of an inode's map.
#[derive(Clone, Debug)]
pub struct MapRoot {
    /// The inode, for error messages.
    pub ino: InodeNr,
    /// The inode's `i_block`.
    pub i_block: [u8; ROOT_BYTES],
    /// EXTENTS_FL: the map is an extent tree, not block pointers.
    pub extents: bool,
    /// crc32c(crc32c(fs seed, le32 ino), le32 generation) with metadata_csum.
    pub csum_seed: Option<u32>,
    /// The number of blocks (data and nodes, in whole clusters) that this map has gained or lost since the caller last
    /// read the number; for `i_blocks`.
    pub blocks_delta: i64,
    /// `i_block` has changed since the caller last cleared this flag.
    pub dirty: bool,
}

impl MapRoot {
    /// The map of an inode as read from disk.
    pub fn new(ino: InodeNr, i_block: [u8; ROOT_BYTES], extents: bool, csum_seed: Option<u32>) -> MapRoot {
        MapRoot { ino, i_block, extents, csum_seed, blocks_delta: 0, dirty: false }
    }

    /// The map of a new, empty file.
    pub fn empty(ino: InodeNr, extents: bool, csum_seed: Option<u32>) -> MapRoot {
        let mut root = MapRoot::new(ino, [0; ROOT_BYTES], extents, csum_seed);
        if extents {
            NodeMut::init(&mut root.i_block, 0);
        }
        root.dirty = true;
        root
    }

    /// Validates the `i_block` of an inode read from disk, without reading any block below it.
    ///
    /// # Errors
    /// [`MapError::Corrupt`].
    pub fn check_root<S: MapStore>(&self, store: &S) -> Result<(), S::Error> {
        if self.extents { extents::check_root(self, store) } else { indirect::check_root(self, store) }
    }

    /// One past the last logical block that this map can address (Linux: `s_maxbytes`, `s_bitmap_maxbytes`).
    pub fn logical_end(&self, block_size: u32) -> u32 {
        if self.extents {
            extent::LOGICAL_END
        } else {
            extant_ondisk::indirect::Geometry::new(block_size).logical_end()
        }
    }

    /// The state of `lblk`, and of the blocks after it that have the same state. Mapped blocks must also be physically
    /// adjacent. The result has at most `max_len` blocks, which is at least 1. Blocks that the map cannot address are
    /// holes. Adjacent extents are not joined.
    ///
    /// # Errors
    /// [`MapError::Corrupt`] if the map breaks a rule of the format; the store's error if a read fails.
    pub fn lookup<S: MapStore>(&self, store: &S, lblk: LogicalBlock, max_len: u32) -> Result<Mapping, S::Error> {
        self.lookup_at_least(store, lblk, max_len, max_len)
    }

    /// As [`MapRoot::lookup`] for `wanted` blocks. It returns up to `max_len` blocks if that needs no further read of
    /// map blocks.
    ///
    /// # Errors
    /// As [`MapRoot::lookup`].
    pub fn lookup_at_least<S: MapStore>(
        &self,
        store: &S,
        lblk: LogicalBlock,
        wanted: u32,
        max_len: u32,
    ) -> Result<Mapping, S::Error> {
        let max_len = max_len.max(1);
        if lblk.0 >= self.logical_end(store.block_size()) {
            return Ok(Mapping { lblk, len: max_len.min((u32::MAX - lblk.0).max(1)), state: MapState::Hole });
        }
        match self.extents {
            false => indirect::lookup(self, store, lblk.0, wanted, max_len),
            true if store.salvages() => extents::salvage(self, store, lblk.0, max_len).map_err(|lost| lost.error),
            true => extents::lookup(self, store, lblk.0, max_len),
        }
    }

    /// As [`MapRoot::lookup`], but uses the valid parts of damaged nodes. `lblk` is below [`MapRoot::logical_end`].
    ///
    /// # Errors
    /// The damage that hides `lblk`, and where it ends.
    pub fn salvage<S: MapStore>(&self, store: &S, lblk: LogicalBlock, max_len: u32) -> Result<Mapping, Lost<S::Error>> {
        if self.extents {
            return extents::salvage(self, store, lblk.0, max_len);
        }
        let found = indirect::lookup(self, store, lblk.0, 1, max_len);
        found.map_err(|error| Lost { end: indirect::lost_end(self, store, lblk.0), error })
    }

    /// The block to which `lblk`, a hole, must be mapped because another block of its cluster is mapped; `None` if none
    /// is. Without extents, a file has no clusters.
    ///
    /// # Errors
    /// As [`MapRoot::lookup`]; also [`MapError::Corrupt`] if damage places the cluster across physical clusters.
    pub fn place_in_cluster<S: MapStore>(&self, store: &S, lblk: LogicalBlock) -> Result<Option<BlockNr>, S::Error> {
        match self.extents && !store.cluster_size().is_one() {
            true => extents::place(self, store, lblk.0),
            false => Ok(None),
        }
    }

    /// The entries of the extent tree's leaf that covers `lblk`, at most 340 on each side, not clipped. Empty if the
    /// root is the only node, or the map is not an extent tree.
    ///
    /// # Errors
    /// [`MapError::Corrupt`].
    pub fn leaf<S: MapStore>(&self, store: &S, lblk: LogicalBlock) -> Result<Vec<Mapping>, S::Error> {
        if self.extents { extents::leaf(self, store, lblk.0) } else { Ok(Vec::new()) }
    }

    /// The pointer blocks that an indirect map lacks on the path to `lblk`, from the top, and one past the last logical
    /// block that the array of `lblk` maps.
    ///
    /// # Errors
    /// [`MapError::TooBig`], [`MapError::Corrupt`].
    pub fn missing<S: MapStore>(&self, store: &S, lblk: LogicalBlock) -> Result<(Vec<PointerBlock>, u64), S::Error> {
        debug_assert!(!self.extents);
        indirect::missing(self, store, lblk.0)
    }

    /// Maps `len` blocks from `lblk`, which must be a hole, to the blocks from `pblk`. These are in new clusters,
    /// except where [`MapRoot::place_in_cluster`] gives a place. Returns the number of mapped blocks, at least 1. It is
    /// less than `len` if one extent cannot be longer, or if an indirect map runs out of space or credits part of the
    /// way. Needs [`MapRoot::credits_for_insert`].
    ///
    /// # Errors
    /// [`MapError::Mapped`], [`MapError::TooBig`], [`MapError::NoSpace`] (nothing changed), [`MapError::Corrupt`].
    pub fn insert<S: MapStore>(
        &mut self,
        store: &S,
        txn: &mut S::Txn,
        lblk: LogicalBlock,
        pblk: BlockNr,
        len: u32,
        unwritten: bool,
    ) -> Result<u32, S::Error> {
        let end = u64::from(lblk.0) + u64::from(len);
        if end > u64::from(self.logical_end(store.block_size())) {
            return Err(MapError::TooBig { ino: self.ino, lblk: end - 1 }.into());
        }
        if len == 0 {
            return Err(MapError::Invalid { ino: self.ino, detail: "an empty range to map" }.into());
        }
        if !store.block_range_valid(pblk, len) {
            return Err(MapError::Invalid { ino: self.ino, detail: "blocks to map that no file can own" }.into());
        }
        if self.extents {
            extents::insert(self, store, txn, lblk.0, pblk, len, unwritten)
        } else if unwritten {
            Err(MapError::Invalid { ino: self.ino, detail: "indirect maps have no unwritten blocks" }.into())
        } else {
            indirect::insert(self, store, txn, lblk.0, pblk, len)
        }
    }

    /// Converts the unwritten blocks in the range of `len` blocks from `lblk` to written ones. Holes and written blocks
    /// do not change.
    ///
    /// # Errors
    /// [`MapError::NoSpace`] if a split needs a node. Only the blocks to the left of the failing extent have been
    /// converted then.
    pub fn convert_unwritten<S: MapStore>(
        &mut self,
        store: &S,
        txn: &mut S::Txn,
        lblk: LogicalBlock,
        len: u32,
    ) -> Result<Progress, S::Error> {
        if !self.extents {
            return Ok(Progress::Done);
        }
        extents::set_state(self, store, txn, lblk.0, len, false)
    }

    /// Converts the written blocks in the range of `len` blocks from `lblk` to unwritten ones, which zeroes them
    /// without a write.
    ///
    /// # Errors
    /// [`MapError::Invalid`] for an indirect map; [`MapError::NoSpace`] if a split needs a node and no block is free;
    /// otherwise as [`MapRoot::lookup`].
    pub fn mark_unwritten<S: MapStore>(
        &mut self,
        store: &S,
        txn: &mut S::Txn,
        lblk: LogicalBlock,
        len: u32,
    ) -> Result<Progress, S::Error> {
        if !self.extents {
            return Err(MapError::Invalid { ino: self.ino, detail: "indirect maps have no unwritten blocks" }.into());
        }
        extents::set_state(self, store, txn, lblk.0, len, true)
    }

    /// Unmaps `from..=to`, from right to left. Frees its blocks (each cluster with its last block) and the nodes that
    /// become empty. A truncation passes `to` = 0xFFFF_FFFE; a hole punch passes any range. Without
    /// [`MapRoot::credits_for_remove`] it may make no progress.
    ///
    /// # Errors
    /// [`MapError::NoSpace`] only if a hole in the middle of an extent needs a node; that extent then does not
    /// change.
    pub fn remove<S: MapStore>(
        &mut self,
        store: &S,
        txn: &mut S::Txn,
        from: LogicalBlock,
        to: LogicalBlock,
    ) -> Result<Progress, S::Error> {
        let to = to.0.min(self.logical_end(store.block_size()) - 1);
        if self.extents {
            extents::remove(self, store, txn, from.0, to)
        } else {
            indirect::remove(self, store, txn, from.0, to)
        }
    }

    /// Calls `f` with every mapped run from `from` on, in order, until `f` breaks. No lock and no reference to a block
    /// is held while `f` runs.
    ///
    /// # Errors
    /// As [`MapRoot::lookup`], after `f` has run for everything before the damage.
    pub fn walk<S: MapStore>(
        &self,
        store: &S,
        from: LogicalBlock,
        f: impl FnMut(Mapping) -> ControlFlow<()>,
    ) -> Result<(), S::Error> {
        if self.extents { extents::walk(self, store, from.0, f) } else { indirect::walk(self, store, from.0, f) }
    }

    /// Calls `f` with every metadata block of the map (nodes below the root, pointer blocks), parents first.
    ///
    /// # Errors
    /// As [`MapRoot::walk`].
    pub fn walk_meta<S: MapStore>(&self, store: &S, mut f: impl FnMut(BlockNr)) -> Result<(), S::Error> {
        if self.extents { extents::walk_meta(self, store, &mut f) } else { indirect::walk_meta(self, store, &mut f) }
    }

    /// The credits for one [`MapRoot::insert`] of `len` blocks, or for one extent's change of state. The caller adds
    /// the inode's own block and the allocation of the data blocks.
    pub fn credits_for_insert(&self, block_size: u32, len: u32) -> u32 {
        if self.extents { extents::credits_for_insert(self) } else { indirect::credits_for_insert(block_size, len) }
    }

    /// The credits with which [`MapRoot::remove`] makes progress: by one extent in `groups` groups, by the part of an
    /// extent in its last groups, or by one pointer block. With more credits, a removal needs fewer handles.
    pub fn credits_for_remove(&self, groups: u32) -> u32 {
        if self.extents { extents::credits_for_remove(self, groups) } else { indirect::credits_for_remove(groups) }
    }

    fn corrupt<E: From<MapError>>(&self, block: Option<BlockNr>, detail: impl Into<String>) -> E {
        MapError::Corrupt { ino: self.ino, block, detail: detail.into() }.into()
    }
}

#[cfg(test)]
mod tests;
