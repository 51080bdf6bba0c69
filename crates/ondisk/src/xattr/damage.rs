//! Faults of attributes.
//!
//! Main types: [`XattrDamage`], [`XattrContext`] (facts that the bytes do not contain). The checker counts the inodes
//! that share a block, and checks the inodes that contain values.
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
        /// The number of bytes.
        found: u32,
    },
    /// `h_magic` is wrong.
    #[error("magic is {found:#x}, not {MAGIC:#x}")]
    Magic {
        /// The stored value.
        found: u32,
    },
    /// `h_blocks` is not 1.
    #[error("h_blocks is {found}, not 1")]
    Blocks {
        /// The stored value.
        found: u32,
    },
    /// `h_refcount` is 0.
    #[error("in use with a refcount of 0")]
    NoReferences,
    /// The checksum does not match the bytes.
    #[error("checksum is {found:#010x}, not {expected:#010x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// There is no zero word after the names.
    #[error("the attribute names are not terminated")]
    Unterminated,
    /// The bytes end inside an entry.
    #[error("attribute entry at {at} is cut off")]
    EntryCut {
        /// The offset of the entry.
        at: u32,
    },
    /// The bytes end inside a name.
    #[error("attribute name of {len} bytes at {at} is cut off")]
    NameCut {
        /// The offset of the entry.
        at: u32,
        /// `e_name_len`.
        len: u8,
    },
    /// There is neither a prefix nor a name.
    #[error("attribute at {at} has no name")]
    NoName {
        /// The offset of the entry.
        at: u32,
    },
    /// The name has no prefix.
    #[error("attribute at {at} has a name index of 0")]
    NoIndex {
        /// The offset of the entry.
        at: u32,
    },
    /// The name contains a NUL.
    #[error("attribute name at {at} contains NUL")]
    NameByte {
        /// The offset of the entry.
        at: u32,
    },
    /// A value ends after the end of the bytes.
    #[error("attribute value of {size} bytes at {start} is past the end")]
    ValuePastEnd {
        /// The offset of its entry.
        at: u32,
        /// The offset of the value.
        start: u32,
        /// `e_value_size`.
        size: u32,
    },
    /// A value overlaps the names or another value.
    #[error("attribute value at {start} overlaps bytes that end at {end}")]
    Overlap {
        /// The offset of the value.
        start: u32,
        /// The end of the preceding value.
        end: u32,
    },
    /// `e_hash` does not match the name and the value.
    #[error("attribute at {at} has hash {found:#010x}, computed {expected:#010x}")]
    Hash {
        /// The offset of the entry.
        at: u32,
        /// The stored value.
        found: u32,
        /// The hash of the name and the value.
        expected: u32,
    },
    /// A value is in a separate inode without `ea_inode`.
    #[error("attribute at {at} has its value in {inode} without ea_inode")]
    ValueInodeFeature {
        /// The offset of the entry.
        at: u32,
        /// `e_value_inum`.
        inode: InodeNr,
    },
    /// A value is in an inode that does not exist or cannot contain it.
    #[error("attribute at {at} has its value in {inode}, which cannot be")]
    ValueInode {
        /// The offset of the entry.
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

/// Facts about the file system that the attributes do not contain.
#[derive(Clone, Copy, Debug)]
pub struct XattrContext {
    /// The file system's checksum seed with `metadata_csum`; used for blocks.
    pub seed: Option<u32>,
    /// Whether values may be stored in separate inodes.
    pub ea_inode: bool,
    /// The first inode that is not reserved, and the last inode.
    pub inodes: (u32, u32),
}

impl XattrContext {
    /// The context for a decoder, which rejects only fatal damage.
    pub(super) fn decoding(seed: Option<u32>) -> XattrContext {
        XattrContext { seed, ea_inode: true, inodes: (0, u32::MAX) }
    }
}
