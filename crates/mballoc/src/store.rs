//! What the allocator wants of the file system: bitmaps, read and changed.
//!
//! Main types: [`GroupStore`], [`GroupSummary`].
//!
//! # Locking
//! None of its own; which call comes with the group's lock held, and which may do I/O, is said at each.

use std::ops::Range;

use extant_ondisk::GroupNr;

use crate::Error;

/// What the file system does for the allocator.
pub trait GroupStore: Send + Sync {
    /// A journal handle of the caller; opaque here.
    type Txn;
    /// The caller's error; the allocator's own errors are turned into it.
    type Error: From<Error>;
    /// What [`GroupStore::prepare`] has read, kept in memory for [`GroupStore::mark`].
    type Prepared;

    /// The group's on-disk block bitmap as it is now, changes of running transactions included: verified, built when
    /// the group is BLOCK_UNINIT; one bit per block, least significant first, 1 = used. May do I/O; called without the
    /// group's lock (except, rarely, when other threads keep changing the group during the load). An error makes the
    /// group unusable until the next mount, and so does a free count that disagrees with the descriptor's.
    fn load(&self, group: GroupNr) -> Result<Vec<u8>, Self::Error>;

    /// The bitmaps of these groups, of one flex group and in order, will be loaded: they are best read in one request.
    /// Errors are left for the load. Called without locks.
    fn read_ahead(&self, groups: &[GroupNr]) {
        let _ = groups;
    }

    /// Whether the blocks of this group could be marked: its bitmap and descriptor can be read and are good. Asked
    /// before blocks of the group are chosen; an error makes the group unusable and the request goes on with another
    /// one. May do I/O; called without locks.
    fn check(&self, group: GroupNr) -> Result<(), Self::Error> {
        let _ = group;
        Ok(())
    }

    /// The group turned out to be unusable because of `error`; the request goes on without it. For `errors=`. May be
    /// called with the group's lock held.
    fn damaged(&self, group: GroupNr, error: &Self::Error) {
        let _ = (group, error);
    }

    /// Announces a [`GroupStore::mark`] of this group in `txn`: bring the bitmap and descriptor blocks into memory, get
    /// journal access to them. They stay there while what is returned lives: meanwhile [`GroupStore::load`] of this
    /// group does no I/O, nor does the mark. May do I/O itself; called without locks.
    fn prepare(&self, txn: &mut Self::Txn, group: GroupNr) -> Result<Self::Prepared, Self::Error>;

    /// Journals: marks `range` of the group used or free in the on-disk bitmap, and updates the
    /// descriptor (free count, checksum, clears BLOCK_UNINIT). Called with the group's lock held, with what `prepare`
    /// returned for this group. On an error nothing may have changed.
    fn mark(
        &self,
        txn: &mut Self::Txn,
        group: GroupNr,
        prepared: &Self::Prepared,
        range: Range<u32>,
        used: bool,
    ) -> Result<(), Self::Error>;
}

/// What the descriptor of a group says at mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSummary {
    /// Free blocks.
    pub free: u32,
    /// BLOCK_UNINIT is set (and means something): loading the bitmap costs no I/O.
    pub block_uninit: bool,
    /// Blocks of maps that its inodes have, at a guess; rather too many than too few.
    pub maps: u32,
}
