//! The places of everything: geometry, the number of each inode, the place of each block.
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;

use crate::Result;

/// Some consecutive blocks, and the key by which their bytes are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<K> {
    /// The first block.
    pub start: BlockNr,
    /// The number of blocks, at least 1.
    pub blocks: u32,
    /// Their contents.
    pub key: K,
}

impl<K> Piece<K> {
    /// The same blocks, by another key.
    pub fn map<L>(self, key: impl FnOnce(K) -> L) -> Piece<L> {
        Piece { start: self.start, blocks: self.blocks, key: key(self.key) }
    }
}

/// A whole image, planned.
pub trait Plan: Sync {
    /// The contents of a piece.
    type Key: Copy + Send + Sync;

    /// Bytes of a block.
    fn block_size(&self) -> u32;

    /// Blocks of the file system.
    fn blocks_count(&self) -> u64;

    /// All but the superblocks, in ascending order, without overlaps. Blocks that no piece has are zeroes.
    fn pieces(&self) -> impl Iterator<Item = Piece<Self::Key>> + Send;

    /// The blocks with a copy of the superblock, the primary first. Each on its own makes a file system of the image.
    fn superblocks(&self) -> impl Iterator<Item = Piece<Self::Key>>;

    /// Makes `buf.len()` bytes of a piece, from its block `first` on. `buf` is zeroed.
    ///
    /// # Errors
    /// The source of the bytes cannot be read.
    fn fill(&self, key: Self::Key, first: u32, buf: &mut [u8]) -> Result<()>;
}
