//! Damage of attributes.
//!
//! Main types: [`XattrDamage`], [`XattrContext`] (facts that the bytes do not contain). The checker counts how many
//! inodes share a block, and checks the inodes of values.
//!
//! # Locking
//! None.

use super::MAGIC;
use crate::InodeNr;
use crate::damage::Damage;

/// One fault of an xattr block or of the attributes in an inode. Offsets are in bytes from the start of the block, or
/// of the area in the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrDamage {
    /// The block has no room for its header.
    #[error("{found} bytes, shorter than its header")]
    Length {
        /// Bytes.
        found: u32,
    },
    /// `h_magic`.
    #[error("magic is {found:#x}, not {MAGIC:#x}")]
    Magic {
        /// As stored.
        found: u32,
    },
    /// `h_blocks`.
    #[error("h_blocks is {found}, not 1")]
    Blocks {
        /// As stored.
        found: u32,
    },
    /// `h_refcount` is 0.
    #[error("in use with a refcount of 0")]
    NoReferences,
    /// The checksum does not fit the bytes.
    #[error("checksum is {found:#010x}, not {expected:#010x}")]
    Checksum {
        /// As stored.
        found: u32,
        /// Of the bytes.
        expected: u32,
    },
    /// No zero word ends the names.
    #[error("the attribute names are not terminated")]
    Unterminated,
    /// The bytes end inside an entry.
    #[error("attribute entry at {at} is cut off")]
    EntryCut {
        /// Where the entry starts.
        at: u32,
    },
    /// The bytes end inside a name.
    #[error("attribute name of {len} bytes at {at} is cut off")]
    NameCut {
        /// Where the entry starts.
        at: u32,
        /// `e_name_len`.
        len: u8,
    },
    /// Neither prefix nor name.
    #[error("attribute at {at} has no name")]
    NoName {
        /// Where the entry starts.
        at: u32,
    },
    /// A name without a prefix.
    #[error("attribute at {at} has a name index of 0")]
    NoIndex {
        /// Where the entry starts.
        at: u32,
    },
    /// A name with a NUL.
    #[error("attribute name at {at} contains NUL")]
    NameByte {
        /// Where the entry starts.
        at: u32,
    },
    /// A value ends behind the bytes.
    #[error("attribute value of {size} bytes at {start} is past the end")]
    ValuePastEnd {
        /// Where its entry starts.
        at: u32,
        /// Where the value starts.
        start: u32,
        /// `e_value_size`.
        size: u32,
    },
    /// A value lies on the names or on another value.
    #[error("attribute value at {start} overlaps bytes that end at {end}")]
    Overlap {
        /// Where the value starts.
        start: u32,
        /// The end of the preceding value.
        end: u32,
    },
    /// `e_hash` does not fit name and value.
    #[error("attribute at {at} has hash {found:#010x}, computed {expected:#010x}")]
    Hash {
        /// Where the entry starts.
        at: u32,
        /// As stored.
        found: u32,
        /// Of name and value.
        expected: u32,
    },
    /// A value in an inode of its own without `ea_inode`.
    #[error("attribute at {at} has its value in {inode} without ea_inode")]
    ValueInodeFeature {
        /// Where the entry starts.
        at: u32,
        /// `e_value_inum`.
        inode: InodeNr,
    },
    /// A value in an inode that does not exist or cannot have it.
    #[error("attribute at {at} has its value in {inode}, which cannot be")]
    ValueInode {
        /// Where the entry starts.
        at: u32,
        /// `e_value_inum`.
        inode: InodeNr,
    },
}

impl Damage for XattrDamage {
    fn is_fatal(&self) -> bool {
        use XattrDamage::{Hash, NoIndex, ValueInode, ValueInodeFeature};
        !matches!(self, NoIndex { .. } | Hash { .. } | ValueInode { .. } | ValueInodeFeature { .. })
    }
}

/// Facts about their file system that attributes do not contain.
#[derive(Clone, Copy, Debug)]
pub struct XattrContext {
    /// The file system's checksum seed under `metadata_csum`; for blocks.
    pub seed: Option<u32>,
    /// Whether values may lie in inodes of their own.
    pub ea_inode: bool,
    /// The first inode that is not reserved, and the highest.
    pub inodes: (u32, u32),
}

impl XattrContext {
    /// For a decoder, which refuses only fatal damage.
    pub(super) fn decoding(seed: Option<u32>) -> XattrContext {
        XattrContext { seed, ea_inode: true, inodes: (0, u32::MAX) }
    }
}
