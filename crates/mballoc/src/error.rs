//! Errors of the allocator itself. The store's own errors pass through unchanged.

use extant_ondisk::{BlockNr, GroupNr};

/// The store's error type is constructed from this one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No block that the request may use is free.
    #[error("no space for {wanted} blocks")]
    NoSpace { wanted: u64 },
    /// No block is free now, but `pending` blocks will be once the running transaction is durable and released: stop
    /// the handle, force a commit, retry.
    #[error("no space for {wanted} blocks until a commit returns {pending}")]
    NoSpaceUntilCommit { wanted: u64, pending: u64 },
    /// The bitmap and the request contradict each other: double free, block outside the file system, block of the
    /// file system's own metadata, group with an unreliable bitmap.
    #[error("{block} in {group}: {detail}")]
    Corrupt { group: GroupNr, block: BlockNr, detail: String },
    /// The caller's request is invalid.
    #[error("bad request: {detail}")]
    Invalid { detail: String },
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn corrupt(group: GroupNr, block: BlockNr, detail: impl Into<String>) -> Error {
        Error::Corrupt { group, block, detail: detail.into() }
    }

    /// True for both kinds of "no space".
    pub fn is_no_space(&self) -> bool {
        matches!(self, Error::NoSpace { .. } | Error::NoSpaceUntilCommit { .. })
    }
}
