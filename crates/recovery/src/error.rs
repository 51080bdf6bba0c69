//! Errors and damage of a journal.
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::Tid;

pub type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] extant_block::Error),
    /// A structure on disk is corrupt, or uses an unsupported feature.
    #[error(transparent)]
    Format(#[from] extant_ondisk::Error),
    /// The file system maps the journal's blocks to impossible places.
    #[error("journal: block {block}: {detail}")]
    Map { block: u64, detail: String },
    /// The log breaks its own rules. Transactions before the damage are complete. A checker may decide to use them; a
    /// mount may not.
    #[error("journal damaged: {first} ({count} findings)")]
    Damaged { first: Damage, count: usize },
    /// The log continues in fast commits, which the caller has not turned into a transaction. Emptying the log would
    /// lose fsynced changes.
    #[error("journal has fast commits ahead of {tid}, which are not replayed here")]
    FastCommits { tid: Tid },
    /// The log, or the map of its blocks, exceeds a memory bound.
    #[error("journal: more than {most} {what}; let the kernel or e2fsck replay it")]
    TooMuch { most: usize, what: &'static str },
    /// A transaction does not fit the log.
    #[error(
        "{needed} blocks of the journal would be needed to do all of it at once, and it has {there}; nothing was done"
    )]
    NoRoom { needed: usize, there: usize },
    /// The expected journal does not exist.
    #[error("no journal: {detail}")]
    NoJournal { detail: String },
}

impl From<crate::read::Error> for Error {
    fn from(e: crate::read::Error) -> Error {
        match e {
            crate::read::Error::Device(e) => Error::Device(e),
            crate::read::Error::Format(e) => Error::Format(e),
        }
    }
}

impl Error {
    pub(crate) fn map(block: impl Into<u64>, detail: impl Into<String>) -> Error {
        Error::Map { block: block.into(), detail: detail.into() }
    }
}

/// One fault of the log. Block numbers called `log_block` count from the start of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A transaction that must have been complete has a commit block with a bad checksum. The log ends before it.
    #[error("{tid}: bad checksum in the commit block at log block {log_block}")]
    Commit { tid: Tid, log_block: u32 },
    /// A descriptor or revoke block in a committed transaction has a bad checksum. The log ends before it.
    #[error("{tid}: bad checksum in log block {log_block}")]
    Block { tid: Tid, log_block: u32 },
    /// A copy to be replayed has a bad checksum; it is left out.
    #[error("{tid}: bad checksum in the copy of {block} at log block {log_block}")]
    Copy { tid: Tid, block: BlockNr, log_block: u32 },
    /// A copy's home is past the end of the device; it is left out.
    #[error("{tid}: the copy at log block {log_block} belongs to {block}, past the end of the device")]
    HomeOutOfRange { tid: Tid, block: BlockNr, log_block: u32 },
    /// A copy's home is in the journal itself; it is left out.
    #[error("{tid}: the copy at log block {log_block} belongs to {block}, inside the journal")]
    HomeInJournal { tid: Tid, block: BlockNr, log_block: u32 },
    /// A revoke block has an impossible count; its records are left out.
    #[error("{tid}: invalid revoke block at log block {log_block}")]
    Revoke { tid: Tid, log_block: u32 },
}
