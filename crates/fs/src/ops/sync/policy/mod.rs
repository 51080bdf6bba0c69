//! Choosing the files that an fsync writes as well.
//!
//! An fsync of one file pays for a commit and its flushes. Other new files may already be in the running transaction,
//! with data that only waits for its own fsync. In the same commit they cost almost nothing. Programs that install many
//! files fsync them one after the other (initdb, rpm, dpkg, git). For these, a policy guesses the next files.
//!
//! | name | idea in one sentence | after | judged by |
//! |---|---|---|---|
//! | `vanilla` | an fsync writes its own file | Linux, `ext4_sync_file` | experiments/014 |
//! | `ahead` | an fsync in a row of fsyncs of new files writes the next ones as well | none | experiments/014 |
//!
//! A policy decides how many bytes to add. The caller selects the files, and checks that they are new and small. An
//! error of such a file is recorded with that file, for its own fsync.
//!
//! # Locking
//! None.

mod ahead;
#[cfg(test)]
mod contract;
mod vanilla;

use extant_ondisk::InodeNr;

use self::ahead::Ahead;
use self::vanilla::Vanilla;

/// The maximum number of bytes to add: the amount that a disk writes while it flushes its cache once or twice.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// The maximum number of files to add.
pub(crate) const FILES_MAX: usize = 256;
/// The maximum size of each added file, in bytes.
pub(crate) const FILE_BYTES_MAX: u64 = 128 << 10;

/// A policy for the files that an fsync adds.
pub(crate) trait SyncPolicy: Send + Sync {
    /// Called when an fsync begins for a file of which nothing has reached the disk yet. Returns how many bytes of
    /// other such files to write with it, at most [`BYTES_MAX`], and 0 for the first file of a mount. Any number of
    /// threads may call this at once.
    fn carry(&self, ino: InodeNr) -> u64;
}

extant_base::policies! {
    /// The policies by name.
    pub enum SyncPolicyKind: "sync_policy", "which other files an fsync writes as well", default Ahead {
        Vanilla = "vanilla", "none, an fsync writes its own file (Linux)";
        Ahead = "ahead", "an fsync in a row of fsyncs of new files writes the next ones as well, up to 1 MiB";
    }
}

impl SyncPolicyKind {
    /// The policy's state for a mount whose groups have this number of inodes.
    pub(crate) fn state(self, inodes_per_group: u32) -> Box<dyn SyncPolicy> {
        match self {
            SyncPolicyKind::Vanilla => Box::new(Vanilla),
            SyncPolicyKind::Ahead => Box::new(Ahead::new(inodes_per_group)),
        }
    }
}
