//! The signs of life that a mount gives, for `mount/mmp.rs`.
//!
//! Main type: [`Heart`].
//!
//! # Locking
//! `heart` (9) while a sign is given.

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_ondisk::BlockNr;
use extant_ondisk::mmp::Mmp;

static CLASS: LockClass = LockClass::new("heart", 9);

/// The signs of life of a mount.
pub(crate) struct Heart {
    pub block: BlockNr,
    /// Nanoseconds between two signs.
    pub interval_ns: u64,
    pub last: Mutex<Last>,
    pub wake: Condvar,
}

/// The last sign.
pub(crate) struct Last {
    pub sign: Mmp,
    /// By the clock of the mount.
    pub at_ns: u64,
    pub stopped: bool,
}

impl Heart {
    pub fn new(block: BlockNr, interval_ns: u64, last: Last) -> Heart {
        Heart { block, interval_ns, last: Mutex::new(&CLASS, last), wake: Condvar::new() }
    }
}
