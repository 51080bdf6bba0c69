//! Errors: of a repair as a whole, and of a single step.
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;

/// How often the blocks of a file system may be mapped by files that share some, for each to be repaired.
pub(crate) const SHARED_MAX: u64 = 8;

/// Why a repair could not be planned or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The check failed.
    #[error(transparent)]
    Check(#[from] extant_check::Error),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// The journal could not be read or written.
    #[error(transparent)]
    Journal(#[from] extant_recovery::Error),
    /// A structure could not be encoded.
    #[error(transparent)]
    Format(#[from] extant_ondisk::Error),
    /// Files claim the same blocks so often that a repair would take more memory and time than the image is worth.
    #[error(
        "inode {ino}: with it, files map more blocks than {SHARED_MAX} times those of the file system; it is not repaired"
    )]
    Oversized {
        /// The inode at which the limit was reached.
        ino: u32,
    },
    /// A file is no undo file, or is damaged.
    #[error("{file}: no undo file that can be used: {why}")]
    Undo {
        /// The device that holds it.
        file: String,
        /// The fault.
        why: String,
    },
    /// The image is not the one of the undo file, or has changed since.
    #[error("{image}: block {block} has changed since the repair; undoing it would lose the change")]
    Changed {
        /// The image.
        image: String,
        /// The first block that differs from what the repair wrote.
        block: u64,
    },
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a step cannot be carried out. The step is left out, and the rest is planned without it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// No block is free.
    #[error("no block is free")]
    NoBlock,
    /// No inode is free.
    #[error("no inode is free")]
    NoInode,
    /// A block cannot be read, so it is not written either.
    #[error("{0} cannot be read, so it is not written")]
    Unreadable(BlockNr),
    /// The bytes that the step needs are not there.
    #[error("{0}")]
    Lost(&'static str),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
}

/// The result of a step.
pub type Done<T = ()> = std::result::Result<T, Refusal>;
