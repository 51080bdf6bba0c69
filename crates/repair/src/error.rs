//! Errors: of a repair as a whole, and of a single step.
//!
//! # Locking
//! None.

use extant_block::BioOp;
use extant_ondisk::BlockNr;

/// The number of times that the blocks of a file system may be mapped by files that share some, for each to be
/// repaired.
pub(crate) const SHARED_MAX: u64 = 8;

/// The reason why a repair could not be planned or written.
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
    /// Files claim the same blocks so often that a repair would take too much memory and time.
    #[error(
        "inode {ino}: up to here, files map more than {SHARED_MAX} times the blocks of the file system, or directories \
         more than all of them; it is not repaired"
    )]
    Oversized {
        /// The inode at which the limit was reached.
        ino: u32,
    },
    /// A file is not an undo file, or is damaged.
    #[error("{file}: no undo file that can be used: {why}")]
    Undo {
        /// The device that contains it.
        file: String,
        /// The fault.
        why: String,
    },
    /// The repair could not be written, or only partly.
    #[error("{error}")]
    Write {
        /// The resulting state of the image.
        stands: ImageState,
        /// The fault.
        error: Box<Error>,
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

/// The state of an image after a failed write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageState {
    /// Nothing of the repair was written.
    Old,
    /// The old state or the new one, which the next replay of the log decides.
    Log,
    /// A part of the repair was written. A durable record can undo it.
    Recorded,
    /// A part of the repair was written.
    Mixture,
}

impl ImageState {
    /// An error after which the image is in this state.
    pub fn after(self) -> impl FnOnce(Error) -> Error {
        move |error| match error {
            // The inner error describes the outcome more exactly.
            Error::Write { .. } => error,
            error => Error::Write { stands: self, error: Box::new(error) },
        }
    }
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// The reason why a step cannot be carried out. The step is left out, and the rest is planned without it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// No block is free.
    #[error("no block is free")]
    NoBlock,
    /// No inode is free.
    #[error("no inode is free")]
    NoInode,
    /// A block cannot be read, so it is not written, either.
    #[error("{0} cannot be read, so it is not written")]
    Unreadable(BlockNr),
    /// The bytes that the step needs are missing.
    #[error("{0}")]
    Lost(&'static str),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
}

/// The reason for damage that is left because its repair depends on unreadable blocks.
pub const UNREADABLE: &str = "its repair depends on a block that the device cannot read";

impl Refusal {
    /// Whether a device could not read, which affects only one step. Other failures end the repair.
    pub fn is_unreadable(&self) -> bool {
        match self {
            Refusal::Unreadable(_) => true,
            Refusal::Device(extant_block::Error::Io { op, .. }) => *op == BioOp::Read,
            _ => false,
        }
    }
}

/// The result of a step.
pub type StepResult<T = ()> = std::result::Result<T, Refusal>;
