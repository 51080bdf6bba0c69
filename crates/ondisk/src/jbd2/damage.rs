//! Damage of the journal's superblock.
//!
//! Main types: [`JournalSuperDamage`], [`JournalContext`] (facts that the superblock does not contain).
//!
//! # Locking
//! None.

use super::MAGIC;
use super::super_block::CRC32C_CHKSUM;
use crate::damage::Damage;
use crate::{Error, Structure};

/// One fault of the journal's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalSuperDamage {
    /// There are too few bytes.
    #[error("shorter than 1024 bytes")]
    Length {
        /// The number of bytes.
        found: u32,
    },
    /// `h_magic` is wrong.
    #[error("magic {found:#x}, not {MAGIC:#x}")]
    Magic {
        /// The stored value.
        found: u32,
    },
    /// `h_blocktype` is not that of a superblock.
    #[error("block type {found}, not 3 or 4")]
    Kind {
        /// The stored value.
        found: u32,
    },
    /// There are incompatible features that this code does not support.
    #[error("journal incompat features {unknown:#x}")]
    Incompat {
        /// The bits of these features.
        unknown: u32,
    },
    /// There are read-only compatible features, although none is defined.
    #[error("journal ro_compat features {unknown:#x}")]
    RoCompat {
        /// The bits of these features.
        unknown: u32,
    },
    /// Checksums of versions 2 and 3 are both set.
    #[error("checksums v2 and v3 at once")]
    ChecksumsV2V3,
    /// Checksums of version 1 are set together with newer ones.
    #[error("checksums v1 and v2/v3 at once")]
    ChecksumsV1,
    /// `s_checksum_type` is unknown.
    #[error("checksum type {found}, not {CRC32C_CHKSUM}")]
    ChecksumType {
        /// The stored value.
        found: u8,
    },
    /// The checksum does not match the bytes.
    #[error("checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// `s_blocksize` differs from the file system's block size, or is not possible for a journal.
    #[error("block size {found}, not {expected}")]
    BlockSize {
        /// The stored value.
        found: u32,
        /// The file system's block size, in bytes.
        expected: u32,
    },
    /// `s_first` and `s_maxlen` leave no room for a log.
    #[error("log from block {first} to {max_len}")]
    Log {
        /// `s_first`.
        first: u32,
        /// `s_maxlen`.
        max_len: u32,
    },
    /// `s_start` lies outside the log.
    #[error("log starts at {found}, outside {first}..{last}")]
    Start {
        /// The stored value.
        found: u32,
        /// The first block of the log.
        first: u32,
        /// One past the last block of the log.
        last: u32,
    },
    /// The journal claims more blocks than its file has.
    #[error("{found} blocks, in a file of {most}")]
    TooLong {
        /// `s_maxlen`.
        found: u32,
        /// The number of blocks in the file.
        most: u32,
    },
    /// The journal is shared by several file systems.
    #[error("used by {found} file systems")]
    Users {
        /// `s_nr_users`.
        found: u32,
    },
}

impl Damage for JournalSuperDamage {
    fn is_fatal(&self) -> bool {
        !matches!(self, JournalSuperDamage::TooLong { .. } | JournalSuperDamage::Users { .. })
    }
}

impl JournalSuperDamage {
    /// The damage as an error of this crate.
    pub fn error(self) -> Error {
        match self {
            JournalSuperDamage::Incompat { .. } | JournalSuperDamage::RoCompat { .. } => {
                Error::unsupported(self.to_string())
            }
            _ => Error::corrupt(Structure::JournalSuperBlock, 0u64, self.to_string()),
        }
    }
}

/// Facts that the journal's superblock does not contain.
#[derive(Clone, Copy, Debug)]
pub struct JournalContext {
    /// The file system's block size, in bytes.
    pub block_size: u32,
    /// The number of blocks in the file or device that contains the journal; `None` to skip the comparison.
    pub blocks: Option<u32>,
}
