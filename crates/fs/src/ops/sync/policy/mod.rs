//! The choice of files that an fsync writes as well.
//!
//! An fsync of one file pays for a commit and its flushes. New files that are in the running transaction already, and
//! whose data only waits for its own fsync, cost next to nothing in the same commit. Programs that put many files in
//! place fsync them one after the other (initdb, rpm, dpkg, git): for these a policy guesses the next files.
//!
//! | name | idea in one sentence | after | judged by |
//! |---|---|---|---|
//! | `vanilla` | an fsync writes its own file | Linux, `ext4_sync_file` | experiments/014 |
//! | `ahead` | an fsync in a row of fsyncs of new files writes the next ones as well | none | experiments/014 |
//!
//! A policy decides how much; the caller picks the files and checks that they are new and small. The error of a carried
//! file is recorded with that file, for its own fsync.
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

/// The most that one carries along: what a disk writes while it flushes its cache once or twice.
pub(crate) const BYTES_MAX: u64 = 1 << 20;
/// The most files that are carried with one.
pub(crate) const FILES_MAX: usize = 256;
/// The largest of them.
pub(crate) const FILE_BYTES_MAX: u64 = 128 << 10;

/// A policy.
pub(crate) trait SyncPolicy: Send + Sync {
    /// An fsync of a file begins of which nothing has reached the disk yet. How many bytes of other such files are
    /// written with it, at most [`BYTES_MAX`]; none for the first of a mount. Any number of threads may call at once.
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
    /// A policy of its own for a mount whose groups have so many inodes.
    pub(crate) fn state(self, inodes_per_group: u32) -> Box<dyn SyncPolicy> {
        match self {
            SyncPolicyKind::Vanilla => Box::new(Vanilla),
            SyncPolicyKind::Ahead => Box::new(Ahead::new(inodes_per_group)),
        }
    }
}
