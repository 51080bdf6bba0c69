//! The storage below the mapping layer: metadata blocks under a journal handle, and allocation and freeing of blocks.
//!
//! Main types: [`MapStore`] (implemented over the journal by the mount, in memory by the tests), [`MapError`],
//! [`Shared`].
//!
//! # Locking
//! None of its own. An implementation takes cache, journal and group locks within a call and holds none across calls.

use std::ops::Range;

use extant_ondisk::indirect::PointerBlock;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

use super::ClusterSize;

/// The errors of the mapping layer itself. Stores wrap it in their own error type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The map of an inode breaks a rule of the format. `block` is the node or pointer block, `None` for `i_block`.
    #[error("map of {ino}, {}: {detail}", .block.map_or_else(|| "i_block".to_owned(), |b| b.to_string()))]
    Corrupt {
        /// The inode that the map belongs to.
        ino: InodeNr,
        /// The node or pointer block; `None` for `i_block`.
        block: Option<BlockNr>,
        /// The broken rule, for messages.
        detail: String,
    },
    /// There is no block for a new node. The map has not changed.
    #[error("no space for the map of {ino}")]
    NoSpace {
        /// The inode that the map belongs to.
        ino: InodeNr,
    },
    /// The range extends past the blocks that this kind of map can address.
    #[error("logical block {lblk} of {ino} is beyond the end of what its map can address")]
    TooBig {
        /// The inode that the map belongs to.
        ino: InodeNr,
        /// The first block of the file that cannot be addressed.
        lblk: u64,
    },
    /// The range to map is mapped already.
    #[error("logical block {lblk} of {ino} is mapped already")]
    Mapped {
        /// The inode that the map belongs to.
        ino: InodeNr,
        /// The first block of the file that is already mapped.
        lblk: u32,
    },
    /// The request is invalid for this map, which is a bug of the caller.
    #[error("map of {ino}: {detail}")]
    Invalid {
        /// The inode that the map belongs to.
        ino: InodeNr,
        /// The reason.
        detail: &'static str,
    },
}

/// A new node of a map, for which the allocator chooses a block.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// The place of a block of pointers in the map; `None` for a node of an extent tree.
    pub pointers: Option<PointerBlock>,
    /// The block that will point to it, or the adjacent node; `None` for the inode itself.
    pub parent: Option<BlockNr>,
    /// The data that the node will map.
    pub data: Option<BlockNr>,
}

/// The clusters at the ends of a run of blocks that remain in use, because the file has other blocks in them or frees
/// them with another run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// The cluster of the first block remains in use.
    pub first: bool,
    /// The cluster of the last block remains in use.
    pub last: bool,
}

impl Shared {
    /// The clusters of `start..start + len` that become free.
    pub fn freed(self, size: ClusterSize, start: BlockNr, len: u32) -> Range<u64> {
        let clusters = size.around(start.0..start.0 + u64::from(len));
        let from = clusters.start + u64::from(self.first);
        from..(clusters.end - u64::from(self.last)).max(from)
    }
}

/// Access to metadata blocks, and allocation and freeing of blocks.
///
/// The mapping layer verifies every block through closures and checks every pointer before it follows it, so an
/// implementation need not inspect the blocks. All changes of one call belong to the handle in `txn`. The closures
/// call [`MapStore::block_range_valid`] while `read` or `modify` may hold the block's lock, so that method must not
/// take one.
pub trait MapStore {
    /// A journal handle.
    type Txn;
    /// A failure of the underlying storage, or an error of the map itself.
    type Error: From<MapError>;

    /// The block size, in bytes.
    fn block_size(&self) -> u32;

    /// The unit of allocation, as a cluster size.
    fn cluster_size(&self) -> ClusterSize {
        ClusterSize::new(0)
    }

    /// The number of blocks of the file system.
    fn blocks_count(&self) -> u64;

    /// The group of `block`. A free operation touches the bitmap and the descriptor of each group only once.
    fn group_of(&self, block: BlockNr) -> GroupNr;

    /// Whether a file may own these blocks. A mount that knows its system zones refuses blocks in them as well.
    fn block_range_valid(&self, start: BlockNr, len: u32) -> bool {
        start.0 > 0 && start.0.checked_add(u64::from(len)).is_some_and(|end| end <= self.blocks_count())
    }

    /// Runs `f` on the content of a metadata block. `verify` runs once, when the block enters the cache; if it fails,
    /// `read` returns an error that names the block. The most recently read blocks can be read and modified again
    /// without failure. A change relies on that: it first reads all blocks that it needs.
    ///
    /// # Errors
    /// The store's error, if the device or `verify` fails.
    fn read<R>(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Self::Error>;

    /// As [`MapStore::read`], for a block that has failed its verification, or may fail it: `f` uses only the parts
    /// that are valid on their own. The block does not count as verified.
    ///
    /// # Errors
    /// The store's error if the device fails.
    fn read_damaged<R>(&self, block: BlockNr, f: impl FnOnce(&[u8]) -> R) -> Result<R, Self::Error>;

    /// Whether lookups use the valid parts of damaged nodes, because the mount is a rescue.
    fn salvages(&self) -> bool {
        false
    }

    /// Reports that a lookup has used a node in spite of this damage.
    fn doubt(&self, e: Self::Error) {
        let _ = e;
    }

    /// Whether `block` can be read without I/O.
    fn in_memory(&self, block: BlockNr) -> bool {
        let _ = block;
        true
    }

    /// Announces a read of `block`; `siblings` returns the blocks that the same array or node refers to. If `block` is
    /// not in memory, the store calls `siblings` and may read nearby ones in the same request. It ignores errors, which
    /// [`MapStore::read`] reports.
    fn read_ahead(&self, block: BlockNr, siblings: impl FnOnce() -> Vec<BlockNr>) {
        let _ = (block, siblings);
    }

    /// Changes an existing metadata block under the handle. 1 credit.
    ///
    /// # Errors
    /// As [`MapStore::read`].
    fn modify<R>(
        &self,
        txn: &mut Self::Txn,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Self::Error>;

    /// Allocates a block for a node. 2 credits (bitmap, descriptor); [`MapStore::init`] uses a third.
    ///
    /// # Errors
    /// [`MapError::NoSpace`] if no block is free.
    fn allocate_meta(&self, txn: &mut Self::Txn, node: NewNode) -> Result<BlockNr, Self::Error>;

    /// Writes the first content of a newly allocated block, which is zeroed when `f` gets it. 1 credit.
    ///
    /// # Errors
    /// The store's error if the block cannot enter the transaction.
    fn init<R>(&self, txn: &mut Self::Txn, block: BlockNr, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, Self::Error>;

    /// Frees a metadata block and revokes it. 2 credits and one revoke record.
    ///
    /// # Errors
    /// The store's error if the bitmap or descriptor cannot be read.
    fn free_meta(&self, txn: &mut Self::Txn, block: BlockNr) -> Result<(), Self::Error>;

    /// Frees the clusters of data blocks that are no longer in the map, except those of `shared`. 2 credits for each
    /// group. The store revokes the blocks if the data was journalled (directories, symlinks).
    ///
    /// # Errors
    /// As [`MapStore::free_meta`].
    fn free_data(&self, txn: &mut Self::Txn, start: BlockNr, len: u32, shared: Shared) -> Result<(), Self::Error>;

    /// Checks that `block`, a node that a removal is about to change, is allocated. A free block may belong to
    /// another file by the time it is written. Removals call this before their first change.
    ///
    /// # Errors
    /// The store's error if `block` is free, or if its bitmap cannot be read; the default never fails.
    fn check_in_use(&self, block: BlockNr) -> Result<(), Self::Error> {
        let _ = block;
        Ok(())
    }

    /// Whether the whole map is being removed and its unreadable parts may be dropped. Extents and pointers to blocks
    /// that no file can own do not make a node unreadable then.
    fn gives_up(&self) -> bool {
        false
    }

    /// Whether a removal continues past this damage and leaves the blocks below it allocated. The store has recorded
    /// the damage then. True only if [`MapStore::gives_up`] is.
    fn passes(&self, e: &Self::Error) -> bool {
        let _ = e;
        false
    }

    /// Whether the handle has credits for `blocks` more distinct metadata blocks. If not, the caller stops in a
    /// consistent state of the map, and continues with a new handle.
    fn has_credits(&self, txn: &mut Self::Txn, blocks: u32) -> bool;
}
