//! `vanilla`: an fsync writes its own file (Linux: `ext4_sync_file`, fs/ext4/fsync.c).
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;

use super::SyncPolicy;

pub(super) struct Vanilla;

impl SyncPolicy for Vanilla {
    fn carry(&self, _: InodeNr) -> u64 {
        0
    }
}
