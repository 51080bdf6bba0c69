//! What the mapping layer needs from below: metadata blocks under a journal handle, and the allocator's two ends.
//!
//! Main types: [`MapStore`] (implemented over the journal by the mount, in memory by the tests), [`MapError`].
//!
//! # Locking
//! None of its own; an implementation takes cache, journal and group locks inside of the calls, never across them.

use extant_ondisk::indirect::PointerBlock;
use extant_ondisk::{BlockNr, GroupNr, InodeNr};

/// What the mapping layer itself can refuse. Stores wrap it in their own error type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The map of an inode breaks a rule of the format. `block` is the node or pointer block, `None` for `i_block`.
    #[error("map of {ino}, {}: {detail}", .block.map_or_else(|| "i_block".to_owned(), |b| b.to_string()))]
    Corrupt {
        /// The inode whose map it is.
        ino: InodeNr,
        /// The node or pointer block; `None` for `i_block`.
        block: Option<BlockNr>,
        /// The rule that is broken, for messages.
        detail: String,
    },
    /// No block for a new node. The map is as it was.
    #[error("no space for the map of {ino}")]
    NoSpace {
        /// The inode whose map it is.
        ino: InodeNr,
    },
    /// The range reaches beyond what this kind of map can address.
    #[error("logical block {lblk} of {ino} is beyond the end of what its map can address")]
    TooBig {
        /// The inode whose map it is.
        ino: InodeNr,
        /// The first block of the file that is out of reach.
        lblk: u64,
    },
    /// The range to map is mapped already.
    #[error("logical block {lblk} of {ino} is mapped already")]
    Mapped {
        /// The inode whose map it is.
        ino: InodeNr,
        /// The first block of the file that is mapped.
        lblk: u32,
    },
    /// The request makes no sense for this map; a bug of the caller.
    #[error("map of {ino}: {detail}")]
    Invalid {
        /// The inode whose map it is.
        ino: InodeNr,
        /// What is wrong with the request.
        detail: &'static str,
    },
}

/// What is known of a new node of a map before it has a place.
#[derive(Clone, Copy, Debug)]
pub struct NewNode {
    /// Which block of pointers it is; `None` for a node of an extent tree.
    pub pointers: Option<PointerBlock>,
    /// The block that will point to it, or the node beside it; `None` for the inode itself.
    pub parent: Option<BlockNr>,
    /// The data that it will map.
    pub data: Option<BlockNr>,
}

/// Metadata blocks, read and changed; blocks, allocated and freed.
///
/// The mapping layer verifies what it reads through closures and checks every pointer before following it, so an
/// implementation need not look into the blocks. All changes of one call belong to the handle in `txn`. The closures
/// call [`MapStore::block_range_valid`] while the block is held, so that one must not take a block's lock.
pub trait MapStore {
    /// A journal handle.
    type Txn;
    /// A failure of the storage underneath, or the map's own.
    type Error: From<MapError>;

    /// Bytes.
    fn block_size(&self) -> u32;

    /// Blocks of the file system.
    fn blocks_count(&self) -> u64;

    /// The group that `block` lies in: freeing touches the bitmap and the descriptor of each group once.
    fn group_of(&self, block: BlockNr) -> GroupNr;

    /// May a file own these blocks? A mount that knows its system zone refuses that as well.
    fn block_range_valid(&self, start: BlockNr, len: u32) -> bool {
        start.0 > 0 && start.0.checked_add(u64::from(len)).is_some_and(|end| end <= self.blocks_count())
    }

    /// Runs `f` on the content of a metadata block. `verify` runs once, when the block enters the cache; what it
    /// complains about comes back as an error that names the block. The few blocks that were read last can be read and
    /// modified again without fail: a change reads all that it needs before it begins.
    fn read<R>(
        &self,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, Self::Error>;

    /// Whether reading `block` costs no I/O.
    fn in_memory(&self, block: BlockNr) -> bool {
        let _ = block;
        true
    }

    /// `block` is about to be read, and the same array or node names `siblings`, which are asked for only if `block` is
    /// not in memory: those that lie beside it may be read in the same request. What fails is left to
    /// [`MapStore::read`].
    fn read_ahead(&self, block: BlockNr, siblings: impl FnOnce() -> Vec<BlockNr>) {
        let _ = (block, siblings);
    }

    /// Changes an existing metadata block under the handle. 1 credit.
    fn modify<R>(
        &self,
        txn: &mut Self::Txn,
        block: BlockNr,
        verify: impl FnOnce(&[u8]) -> Result<(), String>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Self::Error>;

    /// Allocates a block for a node. 2 credits (bitmap, descriptor); [`MapStore::init`] takes the third.
    ///
    /// # Errors
    /// [`MapError::NoSpace`] when there is none.
    fn allocate_meta(&self, txn: &mut Self::Txn, node: NewNode) -> Result<BlockNr, Self::Error>;

    /// Gives a freshly allocated block its first content: `f` sees it zeroed. 1 credit.
    fn init<R>(&self, txn: &mut Self::Txn, block: BlockNr, f: impl FnOnce(&mut [u8]) -> R) -> Result<R, Self::Error>;

    /// Frees a metadata block and revokes it. 2 credits and one revoke record.
    fn free_meta(&self, txn: &mut Self::Txn, block: BlockNr) -> Result<(), Self::Error>;

    /// Frees data blocks. 2 credits for each group. The store revokes them when the data was journalled (directories,
    /// symlinks).
    fn free_data(&self, txn: &mut Self::Txn, start: BlockNr, len: u32) -> Result<(), Self::Error>;

    /// Whether `block`, a node that a removal is about to change, is in use: one that is free may be another file's by
    /// the time it is written. Asked before anything is changed.
    fn check_in_use(&self, block: BlockNr) -> Result<(), Self::Error> {
        let _ = block;
        Ok(())
    }

    /// All of the map is removed, and what cannot be read of it is left: extents and pointers that no file can own do
    /// not make a node unreadable.
    fn gives_up(&self) -> bool {
        false
    }

    /// Whether a removal goes on past this damage, without what it hides; it has been noted then. Only where
    /// [`MapStore::gives_up`].
    fn passes(&self, e: &Self::Error) -> bool {
        let _ = e;
        false
    }

    /// May the operation go on for `blocks` more distinct metadata blocks under this handle? `false` makes the caller
    /// stop where the map is consistent and come back with a new handle.
    fn has_credits(&self, txn: &mut Self::Txn, blocks: u32) -> bool;
}
