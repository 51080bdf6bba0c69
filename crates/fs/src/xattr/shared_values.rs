//! The values of a mount that have inodes of their own: the lock of their counts, and the index in which equal values
//! are found (Linux: `s_ea_inode_cache`).
//!
//! Main type: [`SharedValues`]. The index is only a hint: its users compare the bytes. It has a fixed number of slots,
//! see
//! [`super::hints`].
//!
//! What it does not do: read values or change counts.
//!
//! # Locking
//! `attribute values` (52), `value index` (78).

use extant_base::counter::Counter;
use extant_base::sync::{LockClass, Mutex, MutexGuard};
use extant_ondisk::InodeNr;

use super::hints::Hints;

static COUNTS_CLASS: LockClass = LockClass::new("attribute values", 52);
static INDEX_CLASS: LockClass = LockClass::new("value index", 78);

/// The values of one mount.
pub struct SharedValues {
    counts: Mutex<()>,
    index: Mutex<Hints<InodeNr>>,
    /// How often an attribute began to share a value.
    pub shared: Counter,
}

impl Default for SharedValues {
    fn default() -> SharedValues {
        SharedValues {
            counts: Mutex::new(&COUNTS_CLASS, ()),
            index: Mutex::new(&INDEX_CLASS, Hints::default()),
            shared: Counter::new(),
        }
    }
}

impl SharedValues {
    /// Locks the reference counts. The locks of the owners do not suffice, because a value may have several owners.
    pub fn hold_counts(&self) -> MutexGuard<'_, ()> {
        self.counts.lock()
    }

    /// Inodes that may have a value of this hash, newest first.
    pub fn candidates(&self, hash: u32) -> Vec<InodeNr> {
        self.index.lock().candidates(hash)
    }

    /// Records that the inode has a value of this hash.
    pub fn note(&self, hash: u32, ino: InodeNr) {
        self.index.lock().note(hash, ino);
    }

    /// Records that the inode no longer has such a value.
    pub fn forget(&self, hash: u32, ino: InodeNr) {
        self.index.lock().forget(hash, ino);
    }
}
