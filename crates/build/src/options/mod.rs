//! The options of a new file system, with the meanings and defaults of mke2fs.
//!
//! Main types: [`Request`] (a user's words and numbers, each of which may be missing) and [`Options`] (every value
//! decided, and warnings). [`Request::resolve`] makes the second from the first. Defaults are those of Debian's
//! /etc/mke2fs.conf for e2fsprogs 1.47.0; no file is read.
//!
//! # Locking
//! None.

mod extended;
mod features;
mod profile;
mod request;

pub use features::makeable;
pub use request::{Fact, Request, SizeAsked, UuidAsked, parse_bytes, parse_uuid, random_uuid, time_uuid};

use extant_ondisk::superblock::Wanted;

/// A journal to be made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalOptions {
    /// Blocks; `None`: by the size of the file system, and none if that is too small.
    pub blocks: Option<u32>,
    /// Blocks of the fast-commit area; `None`: by the size, under `fast_commit`.
    pub fast_commit_blocks: Option<u32>,
    /// The block to begin the search at; `None`: in the middle.
    pub location: Option<u64>,
}

/// A journal on a device of its own, which exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalJournal {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The number of its device in Linux; 0 if not known.
    pub number: u32,
    /// Bytes of a block, which those of the file system must have.
    pub block_size: u32,
}

/// The options, all decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The superblock's values.
    pub wanted: Wanted,
    /// The journal; `None` if there is none in the file system.
    pub journal: Option<JournalOptions>,
    /// The journal on a device of its own.
    pub external_journal: Option<ExternalJournal>,
    /// Whether there is an orphan file, and its blocks; 0: by the size of the file system.
    pub orphan_file: Option<u32>,
    /// Kinds of quota to keep: user, group, project; none without `quota`.
    pub quota: [bool; 3],
    /// All bitmaps and tables are at the beginning.
    pub packed_meta_blocks: bool,
    /// Owner of the root directory: user, group.
    pub root_owner: (u32, u32),
    /// Whether the kernel need not zero the rest of the inode tables: they are known to be zeroes, or are written.
    pub tables_zeroed: bool,
    /// The warnings that mke2fs would print.
    pub warnings: Vec<String>,
}

impl Options {
    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        self.wanted.block_size
    }
}
