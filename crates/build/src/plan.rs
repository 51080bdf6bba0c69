//! The places of everything: geometry, the number of each inode, the place of each block.
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;

use crate::Result;

/// Consecutive blocks, and the key from which their bytes are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<K> {
    /// The first block.
    pub start: BlockNr,
    /// The number of blocks, at least 1.
    pub blocks: u32,
    /// Determines their content.
    pub key: K,
}

impl<K> Piece<K> {
    /// The same blocks, with another key.
    pub fn map<L>(self, key: impl FnOnce(K) -> L) -> Piece<L> {
        Piece { start: self.start, blocks: self.blocks, key: key(self.key) }
    }
}

/// The plan of a whole image.
pub trait Plan: Sync {
    /// Determines the content of a piece.
    type Key: Copy + Send + Sync;

    /// The size of a block in bytes.
    fn block_size(&self) -> u32;

    /// The number of blocks in the file system.
    fn blocks_count(&self) -> u64;

    /// All pieces except the superblocks, in ascending order, without overlaps. Blocks that are in no piece are zeros.
    fn pieces(&self) -> impl Iterator<Item = Piece<Self::Key>> + Send;

    /// The blocks with a copy of the superblock, the primary first. Any one of them suffices to make the image a file
    /// system.
    fn superblocks(&self) -> impl Iterator<Item = Piece<Self::Key>>;

    /// Creates `buf.len()` bytes of a piece, from its block `first` on. `buf` is zeroed.
    ///
    /// # Errors
    /// The source of the bytes cannot be read.
    fn fill(&self, key: Self::Key, first: u32, buf: &mut [u8]) -> Result<()>;
}
