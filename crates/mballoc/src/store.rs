//! The allocator's interface to the file system: bitmaps, read and changed.
//!
//! Main types: [`GroupStore`], [`GroupSummary`].
//!
//! # Locking
//! None of its own. Each call says whether the group's lock is held, and whether it may do I/O.

use std::ops::Range;

use extant_ondisk::GroupNr;

use crate::Error;

/// The services of the file system for the allocator.
pub trait GroupStore: Send + Sync {
    /// A journal handle of the caller; opaque here.
    type Txn;
    /// The caller's error; the allocator's own errors are converted into it.
    type Error: From<Error>;
    /// The blocks that [`GroupStore::prepare`] has read, pinned in memory for [`GroupStore::mark`].
    type Prepared;

    /// Loads the group's current block bitmap, verified, with the changes of running transactions; builds it if the
    /// group is BLOCK_UNINIT. One bit per block, least significant first, 1 = used. May do I/O. Called without the
    /// group's lock (except, rarely, when other threads keep changing the group during the load). An error makes the
    /// group unusable until the next mount, and so does a free count that disagrees with the descriptor's.
    fn load(&self, group: GroupNr) -> Result<Vec<u8>, Self::Error>;

    /// Announces that the bitmaps of these groups will be loaded. They belong to one flex group and are in order, so
    /// reading them in one request is best. Errors are left for the load. Called without locks.
    fn read_ahead(&self, groups: &[GroupNr]) {
        let _ = groups;
    }

    /// Checks that blocks of this group can be marked: its bitmap and descriptor are readable and valid. Called
    /// before blocks of the group are chosen. An error makes the group unusable, and the request continues with
    /// another one. May do I/O; called without locks.
    fn check(&self, group: GroupNr) -> Result<(), Self::Error> {
        let _ = group;
        Ok(())
    }

    /// Reports that the group is unusable because of `error`; the request continues without it. The store applies
    /// `errors=`. May be called with the group's lock held.
    fn damaged(&self, group: GroupNr, error: &Self::Error) {
        let _ = (group, error);
    }

    /// Announces a [`GroupStore::mark`] of this group in `txn`: reads the bitmap and descriptor blocks and gets journal
    /// access to them. They stay in memory while the returned value exists; meanwhile neither [`GroupStore::load`] of
    /// this group nor the mark does I/O. May do I/O itself; called without locks.
    fn prepare(&self, txn: &mut Self::Txn, group: GroupNr) -> Result<Self::Prepared, Self::Error>;

    /// Journals a change: marks `range` of the group used or free in the on-disk bitmap, and updates the descriptor
    /// (free count, checksum, clears BLOCK_UNINIT). Called with the group's lock held, with the result of `prepare`
    /// for this group. On an error nothing may have changed.
    fn mark(
        &self,
        txn: &mut Self::Txn,
        group: GroupNr,
        prepared: &Self::Prepared,
        range: Range<u32>,
        used: bool,
    ) -> Result<(), Self::Error>;
}

/// A group's numbers at mount, from its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Free blocks.
    pub free: u32,
    /// Whether BLOCK_UNINIT is set and valid: loading the bitmap then costs no I/O.
    pub block_uninit: bool,
    /// An estimate of the map blocks of its inodes; preferably too high.
    pub maps: u32,
}
