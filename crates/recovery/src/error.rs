//! What can be wrong with a journal.
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
    /// A structure on disk is corrupt, or uses something that is not supported.
    #[error(transparent)]
    Format(#[from] extant_ondisk::Error),
    /// The journal's blocks cannot be where the file system says.
    #[error("journal: block {block}: {detail}")]
    Map { block: u64, detail: String },
    /// The log breaks its own rules. Transactions before the damage are whole; whether to use them is a checker's
    /// decision, not a mount's.
    #[error("journal damaged: {first} ({count} findings)")]
    Damaged { first: Damage, count: usize },
    /// The log goes on in fast commits, which the caller has not turned into a transaction. Emptying the log would lose
    /// fsynced changes.
    #[error("journal has fast commits ahead of {tid}, which are not replayed here")]
    FastCommits { tid: Tid },
    /// The log, or the map to it, has more of something than memory is given to.
    #[error("journal: more than {most} {what}; let the kernel or e2fsck replay it")]
    TooMuch { most: usize, what: &'static str },
    /// The file system has no journal where one was looked for.
    #[error("no journal: {detail}")]
    NoJournal { detail: String },
}

impl Error {
    pub(crate) fn map(block: impl Into<u64>, detail: impl Into<String>) -> Error {
        Error::Map { block: block.into(), detail: detail.into() }
    }
}

/// One thing that is wrong in the log. Block numbers called `log_block` count from the start of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A commit block of a transaction that must have been complete has a bad checksum. The log ends before it.
    #[error("{tid}: bad checksum in the commit block at log block {log_block}")]
    Commit { tid: Tid, log_block: u32 },
    /// A descriptor or revoke block in a committed transaction has a bad checksum. The log ends before it.
    #[error("{tid}: bad checksum in log block {log_block}")]
    Block { tid: Tid, log_block: u32 },
    /// A copy that should be replayed has a bad checksum; it is left out.
    #[error("{tid}: bad checksum in the copy of {block} at log block {log_block}")]
    Copy { tid: Tid, block: BlockNr, log_block: u32 },
    /// A copy's home is past the end of the device; it is left out.
    #[error("{tid}: the copy at log block {log_block} belongs to {block}, past the end of the device")]
    HomeOutOfRange { tid: Tid, block: BlockNr, log_block: u32 },
    /// A copy's home is in the journal itself; it is left out.
    #[error("{tid}: the copy at log block {log_block} belongs to {block}, inside the journal")]
    HomeInJournal { tid: Tid, block: BlockNr, log_block: u32 },
    /// A revoke block's count does not fit it; its records are left out.
    #[error("{tid}: nonsense in the revoke block at log block {log_block}")]
    Revoke { tid: Tid, log_block: u32 },
}
