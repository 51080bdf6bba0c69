//! Errors of decoding.

use std::fmt;

/// The structures in which decoding can find damage. They are displayed so that a number can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Numbered by the offset of its first byte.
    SuperBlock,
    /// Numbered by group, like the bitmaps.
    GroupDescriptor,
    /// Numbered by group.
    BlockBitmap,
    /// Numbered by group.
    InodeBitmap,
    /// Numbered by inode number.
    Inode,
    /// Numbered by block; 0 for the root in the inode.
    ExtentNode,
    /// Numbered by logical block.
    ExtentList,
    /// Numbered by block.
    IndirectBlock,
    /// Numbered by logical block.
    DirectoryBlock,
    /// Numbered by block.
    XattrBlock,
    /// Numbered by block.
    OrphanFileBlock,
    /// Numbered by block.
    JournalSuperBlock,
    /// Numbered by transaction.
    RevokeBlock,
    /// Numbered by block of the journal.
    FastCommit,
    /// Numbered by sector.
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
