//! The options of a new file system, with the meanings and defaults of mke2fs.
//!
//! Main types: [`Request`] (a user's words and numbers, each of which may be missing) and [`Options`] (every value, and
//! warnings). [`Request::resolve`] turns the first into the second. Defaults are those of Debian's /etc/mke2fs.conf for
//! e2fsprogs 1.47.0; no file is read.
//!
//! # Locking
//! None.

mod extended;
mod features;
mod profile;
mod request;

pub use features::makeable;
pub use request::{Fact, Request, SizeAsked, UuidAsked, parse_bytes, parse_uuid, random_uuid, time_uuid};

use extant_ondisk::superblock::LayoutRequest;

/// The parameters of a new journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalOptions {
    /// The number of blocks; `None` for a default by the size of the file system, and no journal if that is too small.
    pub blocks: Option<u32>,
    /// The number of blocks in the fast-commit area; `None` for a default by the size, with `fast_commit`.
    pub fast_commit_blocks: Option<u32>,
    /// The block at which the search begins; `None` for the middle.
    pub location: Option<u64>,
}

/// An existing journal on a separate device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalJournal {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The number of its device in Linux; 0 if not known.
    pub number: u32,
    /// The block size in bytes, which must be that of the file system.
    pub block_size: u32,
}

/// The options with all values.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The superblock's values.
    pub wanted: LayoutRequest,
    /// The journal; `None` if there is none in the file system.
    pub journal: Option<JournalOptions>,
    /// The journal on a separate device.
    pub external_journal: Option<ExternalJournal>,
    /// Whether there is an orphan file, and its number of blocks; 0 for a default by the size of the file system.
    pub orphan_file: Option<u32>,
    /// The kinds of quota to keep: user, group, project; none without `quota`.
    pub quota: [bool; 3],
    /// Whether all bitmaps and tables are at the beginning.
    pub packed_meta_blocks: bool,
    /// The owner of the root directory: user, group.
    pub root_owner: (u32, u32),
    /// Whether the kernel need not zero the rest of the inode tables, because they are known to be zeros, or are
    /// written.
    pub tables_zeroed: bool,
    /// The warnings that mke2fs would print.
    pub warnings: Vec<String>,
}

impl Options {
    /// The size of a block in bytes.
    pub fn block_size(&self) -> u32 {
        self.wanted.block_size
    }
}
