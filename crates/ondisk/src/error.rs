//! What decoding can find wrong.

use std::fmt;

/// The structures that decoding can find damaged; displayed so that their number can follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Structure {
    /// Numbered by its first byte.
    SuperBlock,
    /// By group, as the bitmaps.
    GroupDescriptor,
    BlockBitmap,
    InodeBitmap,
    Inode,
    /// By block, or 0 for the root in the inode.
    ExtentNode,
    /// By logical block.
    ExtentList,
    IndirectBlock,
    /// By logical block.
    DirectoryBlock,
    XattrBlock,
    OrphanFileBlock,
    JournalSuperBlock,
    /// By transaction.
    RevokeBlock,
    /// By sector.
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
            Structure::PartitionTable => "partition table sector",
        })
    }
}

/// An on-disk structure that cannot be used, and why. The caller adds the image's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes break a rule of the format. `number` is the block, inode, group … that `structure` names.
    #[error("{structure} {number}: {detail}")]
    Corrupt { structure: Structure, number: u64, detail: String },
    /// The bytes are well formed but use something that Extant does not do.
    #[error("unsupported: {detail}")]
    Unsupported { detail: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn corrupt(structure: Structure, number: impl Into<u64>, detail: impl Into<String>) -> Error {
        Error::Corrupt { structure, number: number.into(), detail: detail.into() }
    }

    pub fn unsupported(detail: impl Into<String>) -> Error {
        Error::Unsupported { detail: detail.into() }
    }
}
