//! Extent trees as bytes: entries, nodes, checksums, and a packer for whole trees.
//!
//! Main types: [`Extent`] and [`Index`] (one entry each, 12 bytes), [`NodeRef`] (a checked view of one node),
//! [`NodeMut`] (edits one node in place), [`ExtentDamage`] (one fault), [`pack_tree`] (lays out a tree for a sorted
//! list of extents). A node is either the 60 bytes of `i_block` (the root, with room for 4 entries and without a
//! checksum) or a whole block. A block ends with a checksum directly after the room for its last entry.
//!
//! Linux: `struct ext4_extent`, `ext4_extent_idx`, `ext4_extent_header`, `ext4_extent_tail`, fs/ext4/ext4_extents.h.
//!
//! What it does not do: I/O, or work on more than one node at a time. The mapping layer in `extant-fs` descends, splits
//! nodes and frees blocks.
//!
//! # Locking
//! None.

mod damage;
mod node;
mod pack;

pub use damage::{ExtentDamage, NodeContext, NodeEntry, Promise};
pub use node::{NodeMut, NodeRef, capacity, header_damage};
pub use pack::{PackedTree, pack_tree};

use crate::{BlockNr, LogicalBlock};

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// The size of a node's header, in bytes.
pub const HEADER_BYTES: usize = 12;
/// The size of one entry, extent or index, in bytes.
pub const ENTRY_BYTES: usize = 12;
/// The size of the checksum at the end of a block node, in bytes.
pub const TAIL_BYTES: usize = 4;
/// The size of the root node, which is the inode's whole `i_block`, in bytes.
pub const ROOT_BYTES: usize = 60;
/// The maximum depth of a tree: five levels of blocks below the root.
pub const DEPTH_MAX: u16 = 5;
/// The maximum length of a written extent, in blocks.
pub const WRITTEN_LEN_MAX: u32 = 32_768;
/// The maximum length of an unwritten extent, in blocks. Lengths above 32768 on disk mean "unwritten, minus 32768", so
/// that 32768 itself means a written extent.
pub const UNWRITTEN_LEN_MAX: u32 = 32_767;
/// One past the last logical block that can be mapped. Lengths and ends must fit in 32 bits, so block 0xFFFF_FFFF
/// cannot be mapped.
pub const LOGICAL_END: u32 = u32::MAX;

/// The bytes of one entry on disk. In both kinds of node, the first four bytes are its key (little endian).
pub type RawEntry = [u8; ENTRY_BYTES];

/// The maximum length of an extent in that state, in blocks.
pub const fn len_max(unwritten: bool) -> u32 {
    if unwritten { UNWRITTEN_LEN_MAX } else { WRITTEN_LEN_MAX }
}

/// The key of a raw entry: its first logical block.
pub fn raw_key(raw: &RawEntry) -> u32 {
    u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])
}

/// A run of logical blocks that maps to one run of physical blocks (Linux: `struct ext4_extent`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// The first block of the run within the file (`ee_block`).
    pub lblk: LogicalBlock,
    /// The number of blocks; in a valid extent from 1 to [`len_max`] of its state.
    pub len: u32,
    /// The first block of the run on the device (`ee_start`): 48 bits.
    pub pblk: BlockNr,
    /// Allocated but never written: reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// One past the last logical block, in 64 bits so that it cannot overflow.
    pub fn end(&self) -> u64 {
        u64::from(self.lblk.0) + u64::from(self.len)
    }

    /// Whether the extent contains `lblk`.
    pub fn contains(&self, lblk: u32) -> bool {
        self.lblk.0 <= lblk && u64::from(lblk) < self.end()
    }

    /// The extent that covers `self` followed by `next`, if the two may merge: they have the same state, are adjacent
    /// logically and physically, and together are not longer than the state allows.
    pub fn merged(&self, next: &Extent) -> Option<Extent> {
        let len = self.len.checked_add(next.len)?;
        let adjacent =
            self.end() == u64::from(next.lblk.0) && self.pblk.0.checked_add(u64::from(self.len)) == Some(next.pblk.0);
        (adjacent && self.unwritten == next.unwritten && len <= len_max(self.unwritten))
            .then_some(Extent { len, ..*self })
    }

    /// The part inside `from..end` (logical blocks), if any.
    pub fn clip(&self, from: u64, end: u64) -> Option<Extent> {
        let start = from.max(u64::from(self.lblk.0));
        let stop = end.min(self.end());
        if start >= stop {
            return None;
        }
        let skip = start - u64::from(self.lblk.0);
        Some(Extent {
            lblk: LogicalBlock(start as u32),
            len: (stop - start) as u32,
            pblk: BlockNr(self.pblk.0.wrapping_add(skip)),
            unwritten: self.unwritten,
        })
    }

    /// Decodes an entry. A stored length of 0 yields `len: 0`, which [`NodeRef::validate`] refuses.
    pub fn decode(raw: &RawEntry) -> Extent {
        let stored = u32::from(u16::from_le_bytes([raw[4], raw[5]]));
        let unwritten = stored > WRITTEN_LEN_MAX;
        let high = u64::from(u16::from_le_bytes([raw[6], raw[7]]));
        let low = u64::from(u32::from_le_bytes([raw[8], raw[9], raw[10], raw[11]]));
        Extent {
            lblk: LogicalBlock(raw_key(raw)),
            len: if unwritten { stored - WRITTEN_LEN_MAX } else { stored },
            pblk: BlockNr(high << 32 | low),
            unwritten,
        }
    }

    /// Encodes the entry. Lengths above the maximum of the state, and physical blocks above 48 bits, do not fit.
    /// Callers observe both limits, and debug builds check them.
    pub fn encode(&self) -> RawEntry {
        debug_assert!(self.len >= 1 && self.len <= len_max(self.unwritten) && self.pblk.0 < 1 << 48);
        let stored = if self.unwritten { self.len + WRITTEN_LEN_MAX } else { self.len } as u16;
        encode_entry(self.lblk.0, stored, (self.pblk.0 >> 32) as u16, self.pblk.0 as u32)
    }
}

/// A child of an index node, with the first logical block below it (Linux: `struct ext4_extent_idx`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Index {
    /// The first logical block below the child (`ei_block`).
    pub lblk: LogicalBlock,
    /// The block of the node one level down (`ei_leaf`): 48 bits.
    pub child: BlockNr,
}

impl Index {
    /// Decodes the entry. Its block is not checked: see [`NodeRef::validate`].
    pub fn decode(raw: &RawEntry) -> Index {
        let low = u64::from(u32::from_le_bytes([raw[4], raw[5], raw[6], raw[7]]));
        let high = u64::from(u16::from_le_bytes([raw[8], raw[9]]));
        Index { lblk: LogicalBlock(raw_key(raw)), child: BlockNr(high << 32 | low) }
    }

    /// Encodes the entry; `ei_unused` is 0.
    pub fn encode(&self) -> RawEntry {
        debug_assert!(self.child.0 < 1 << 48);
        let mut raw = [0; ENTRY_BYTES];
        raw[0..4].copy_from_slice(&self.lblk.0.to_le_bytes());
        raw[4..8].copy_from_slice(&(self.child.0 as u32).to_le_bytes());
        raw[8..10].copy_from_slice(&((self.child.0 >> 32) as u16).to_le_bytes());
        raw
    }
}

fn encode_entry(lblk: u32, len: u16, pblk_high: u16, pblk_low: u32) -> RawEntry {
    let mut raw = [0; ENTRY_BYTES];
    raw[0..4].copy_from_slice(&lblk.to_le_bytes());
    raw[4..6].copy_from_slice(&len.to_le_bytes());
    raw[6..8].copy_from_slice(&pblk_high.to_le_bytes());
    raw[8..12].copy_from_slice(&pblk_low.to_le_bytes());
    raw
}

/// The header of a node (Linux: `struct ext4_extent_header`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The number of entries in use.
    pub entries: u16,
    /// The number of entries that there is room for.
    pub max: u16,
    /// The number of levels below this node; 0 for a leaf.
    pub depth: u16,
    /// Unused, but preserved.
    pub generation: u32,
}

#[cfg(test)]
mod tests;
