//! Errors of decoding.

use std::fmt;

/// The structures in which decoding can find damage. They are displayed so that a number can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// The superblock; the number is the offset of its first byte.
    SuperBlock,
    /// A group descriptor; the number is that of its group.
    GroupDescriptor,
    /// A block bitmap; the number is that of its group.
    BlockBitmap,
    /// An inode bitmap; the number is that of its group.
    InodeBitmap,
    /// An inode; the number is the inode number.
    Inode,
    /// A node of an extent tree; the number is that of its block, or 0 for the root in the inode.
    ExtentNode,
    /// A list of extents; the number is a logical block.
    ExtentList,
    /// An indirect block; the number is that of the block.
    IndirectBlock,
    /// A block of a directory; the number is the logical block.
    DirectoryBlock,
    /// An xattr block; the number is that of the block.
    XattrBlock,
    /// A block of the orphan file; the number is that of the block.
    OrphanFileBlock,
    /// The superblock of the journal; the number is that of its block.
    JournalSuperBlock,
    /// A revoke block of the journal; the number is that of its transaction.
    RevokeBlock,
    /// A block of the fast-commit area; the number is the block in the journal.
    FastCommit,
    /// A partition table; the number is that of the sector.
    PartitionTable,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Structure::SuperBlock => "superblock at byte",
            Structure::GroupDescriptor => "group descriptor",
            Structure::BlockBitmap => "block bitmap of group",
            Structure::InodeBitmap => "inode bitmap of group",
            Structure::Inode => "inode",
            Structure::ExtentNode => "extent node in block",
            Structure::ExtentList => "extent list at logical block",
            Structure::IndirectBlock => "indirect block",
            Structure::DirectoryBlock => "directory block",
            Structure::XattrBlock => "xattr block",
            Structure::OrphanFileBlock => "orphan file block",
            Structure::JournalSuperBlock => "journal superblock",
            Structure::RevokeBlock => "revoke block of transaction",
            Structure::FastCommit => "fast commit at log block",
            Structure::PartitionTable => "partition table sector",
        })
    }
}

/// An on-disk structure cannot be used, for this reason. The caller adds the image's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes break a rule of the format. `number` is the block, inode, group or other number that `structure`
    /// implies.
    #[error("{structure} {number}: {detail}")]
    Corrupt {
        /// The damaged structure.
        structure: Structure,
        /// The number of the structure; [`Structure`] says how each kind is numbered.
        number: u64,
        /// The field, its value and the expected value, for messages.
        detail: String,
    },
    /// The bytes are well formed but use something that Extant does not support.
    #[error("unsupported: {detail}")]
    Unsupported {
        /// The feature or value, for messages.
        detail: String,
    },
}

/// The result of a decoder of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An [`Error::Corrupt`].
    pub fn corrupt(structure: Structure, number: impl Into<u64>, detail: impl Into<String>) -> Error {
        Error::Corrupt { structure, number: number.into(), detail: detail.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(detail: impl Into<String>) -> Error {
        Error::Unsupported { detail: detail.into() }
    }
}
