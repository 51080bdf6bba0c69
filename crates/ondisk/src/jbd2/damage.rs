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
    /// Too few bytes.
    #[error("shorter than 1024 bytes")]
    Length {
        /// Bytes.
        found: u32,
    },
    /// `h_magic`.
    #[error("magic {found:#x}, not {MAGIC:#x}")]
    Magic {
        /// As stored.
        found: u32,
    },
    /// `h_blocktype` is that of no superblock.
    #[error("block type {found}, not 3 or 4")]
    Kind {
        /// As stored.
        found: u32,
    },
    /// Incompatible features that this code does not know.
    #[error("journal incompat features {unknown:#x}")]
    Incompat {
        /// Their bits.
        unknown: u32,
    },
    /// Read-only compatible features, of which none is known.
    #[error("journal ro_compat features {unknown:#x}")]
    RoCompat {
        /// Their bits.
        unknown: u32,
    },
    /// Checksums of version 2 and 3 at once.
    #[error("checksums v2 and v3 at once")]
    ChecksumsV2V3,
    /// Checksums of version 1 beside newer ones.
    #[error("checksums v1 and v2/v3 at once")]
    ChecksumsV1,
    /// `s_checksum_type`.
    #[error("checksum type {found}, not {CRC32C_CHKSUM}")]
    ChecksumType {
        /// As stored.
        found: u8,
    },
    /// The checksum does not fit the bytes.
    #[error("checksum {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// As stored.
        found: u32,
        /// Of the bytes.
        expected: u32,
    },
    /// `s_blocksize` is not the file system's, or none that a journal can have.
    #[error("block size {found}, not {expected}")]
    BlockSize {
        /// As stored.
        found: u32,
        /// The file system's.
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
        /// As stored.
        found: u32,
        /// The log's first block.
        first: u32,
        /// One past its last.
        last: u32,
    },
    /// The journal claims more blocks than its file has.
    #[error("{found} blocks, in a file of {most}")]
    TooLong {
        /// `s_maxlen`.
        found: u32,
        /// Blocks of the file.
        most: u32,
    },
    /// The journal is shared.
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
    /// As the crate's error.
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
    /// Of the file system, in bytes.
    pub block_size: u32,
    /// Blocks of the file or device that holds the journal; `None`: not compared.
    pub blocks: Option<u32>,
}
