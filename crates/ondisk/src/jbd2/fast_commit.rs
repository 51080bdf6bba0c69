//! The head of a fast commit: enough to see that one is there (Linux: `struct ext4_fc_head`, fs/ext4/fast_commit.h).
//!
//! Fast commits hold fsynced changes that no full commit repeats yet. Extant does not replay them; it must notice them,
//! or it would lose what was promised. Their tags are little-endian, unlike the rest of the journal.
//!
//! # Locking
//! None.

use super::Tid;

const TAG_HEAD: u16 = 9;

/// How a fast commit begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCommitHead {
    /// Fast-commit features, none defined so far.
    pub features: u32,
    /// The full commit that the fast commit runs ahead of: the one after the newest in the log.
    pub tid: Tid,
}

/// The head tag at the start of `block`, a block of the fast-commit area; `None` when there is something else.
pub fn fast_commit_head(block: &[u8]) -> Option<FastCommitHead> {
    let raw = block.first_chunk::<12>()?;
    let le16 = |at: usize| u16::from_le_bytes([raw[at], raw[at + 1]]);
    let le32 = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
    (le16(0) == TAG_HEAD && le16(2) == 8).then(|| FastCommitHead { features: le32(4), tid: Tid(le32(8)) })
}
