//! The heartbeat of a mount, which `mount/mmp.rs` writes for other hosts (multi-mount protection).
//!
//! Main type: [`Heart`], whose methods are in `mount/mmp.rs`.
//!
//! What it does not do: read or write the block.
//!
//! # Locking
//! `heart` (9), held while the MMP block is written.

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_ondisk::BlockNr;
use extant_ondisk::mmp::Mmp;

static CLASS: LockClass = LockClass::new("heart", 9);

/// The heartbeat of a mount.
pub(crate) struct Heart {
    pub block: BlockNr,
    /// Nanoseconds between two writes of the MMP block.
    pub interval_ns: u64,
    pub last: Mutex<Last>,
    pub wake: Condvar,
}

/// The last write of the MMP block.
pub(crate) struct Last {
    /// The content of the block as this mount wrote it.
    pub sign: Mmp,
    /// When it was written, by the mount's clock.
    pub at_ns: u64,
    /// The mount writes the block no more.
    pub stopped: bool,
}

impl Heart {
    pub fn new(block: BlockNr, interval_ns: u64, last: Last) -> Heart {
        Heart { block, interval_ns, last: Mutex::new(&CLASS, last), wake: Condvar::new() }
    }
}
