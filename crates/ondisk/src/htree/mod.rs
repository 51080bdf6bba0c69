//! Hash trees (directory indexes) as bytes: the name hashes and the index blocks.
//!
//! Main types: [`hash::Hasher`] (name → hash), [`DxFormat`] (the limits of this file system's index blocks),
//! [`DxNode`] (a validated view of an index block), [`DxTable`] (its entries as stored), [`DxRootInfo`] (the header of
//! the root).
//!
//! Block 0 of an indexed directory is the root: `.`, a `..` whose `rec_len` hides the rest, an eight-byte header, and
//! the entries. Other index blocks are one unused entry as long as the block, followed by the entries. An entry is a
//! key and a block number. The key is the lowest hash below it. If its lowest bit is set, the leaf before it ends with
//! the same hash, so a search for that hash must continue in this leaf. Entry 0 has no key; the limit and the count are
//! in its place.
//!
//! What it does not do: read other blocks; the caller walks the tree. SipHash, which directories with both encrypted
//! and folded names use, is not supported.
//!
//! # Locking
//! None: pure functions over slices. No function panics on any bytes.

mod hash;
mod node;

#[cfg(test)]
mod tests;

pub use hash::{HashVersion, Hasher, NameHash};
pub use node::{DxFormat, DxNode, DxRootInfo, DxTable, PackedRoot, RawDxEntry, RawDxRootInfo, shape_of};

/// The significant bits of an entry's block number (Linux: `dx_get_block`, fs/ext4/namei.c).
pub const DX_BLOCK_MASK: u32 = 0x0FFF_FFFF;

/// The two forms of an index block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DxShape {
    /// Block 0 of the directory, with `.`, `..` and the header (Linux: `struct dx_root`).
    Root,
    /// Every other index block (Linux: `struct dx_node`).
    Node,
}

impl DxShape {
    /// The offset of the entries, in bytes.
    pub const fn base(self) -> usize {
        match self {
            DxShape::Root => 32,
            DxShape::Node => 8,
        }
    }
}
