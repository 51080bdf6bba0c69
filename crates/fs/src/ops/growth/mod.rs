//! Growing a mounted file system (Linux: `ext4_resize_fs`, fs/ext4/resize.c).
//!
//! Main function: [`Volume::grow`]. Main types: [`GrowTo`], [`Grown`]. `step.rs` makes one step. `backups.rs` updates
//! the copies of superblock and descriptors at the end.
//!
//! A step is one transaction: the last group is completed, or the new groups of a flex group are added. Before that,
//! the structures of new groups are durable on the device, past the end of the old file system. So a power cut leaves
//! the file system in the state of one of the steps.
//!
//! Other operations continue meanwhile. They see new groups only when the superblock and descriptors are home. The
//! kernel reads its number of groups there before it replays the log, and returns EIO for inodes of other groups until
//! its next mount. Writing them home takes a checkpoint, so the steps of a round share one.
//!
//! | part | who learns of the growth, and when |
//! |---|---|
//! | device | first: the file is longer, durably |
//! | `mballoc` | room for the groups: before the first step |
//! | superblock, descriptors and resize inode on the device; the superblock in memory | under the step's handle |
//! | descriptors in memory, hints for inodes, layout, allocator | in this order, at the end of a round |
//!
//! What it does not do: move the second backup of `sparse_super2`, which stays in its group; make room for descriptors
//! (a growth needs reserved blocks, or `meta_bg`); or shrink.
//!
//! # Locking
//! `growth` (3), from the first check to the last write. Each round passes the gate ([`crate::lifecycle`]) separately,
//! so that a freeze or an unmount waits only for one round.

mod backups;
mod join;
mod step;

use extant_base::sync::MutexGuard;
use extant_base::sync::atomic::Ordering;
use extant_ondisk::growth::{Backups, target};
use extant_ondisk::superblock::SuperBlock;

use crate::error::{CannotGrow, Error, Result};
use crate::groups::Groups;
use crate::lifecycle::Right;
use crate::volume::Volume;

/// The requested size, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowTo {
    /// The given total size.
    Bytes(u64),
    /// The current size plus the given number.
    More(u64),
    /// The current size of the device.
    Device,
}

/// A growth that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grown {
    /// The number of blocks before the growth.
    pub before: u64,
    /// The number of blocks after the growth.
    pub after: u64,
    /// The number of groups before the growth.
    pub groups_before: u32,
    /// The number of groups after the growth.
    pub groups: u32,
}

/// A growth in progress. Only one runs at a time.
pub(super) struct Growth<'v> {
    volume: &'v Volume,
    /// The superblock when the growth began.
    begin: SuperBlock,
    _alone: MutexGuard<'v, ()>,
}

impl Volume {
    /// Enlarges the file system while it is in use. If needed and possible, this first extends the image file. Bytes
    /// that do not fill a block are not used, nor is a last group with hardly any room for files.
    ///
    /// # Errors
    /// [`Error::CannotGrow`] and [`Error::Device`] if nothing has changed, though the file may be longer. Later errors,
    /// such as those of the device, end the growth after one of its steps. [`Error::ReadOnly`], also if the mount ends
    /// meanwhile.
    pub fn grow(&self, size: GrowTo) -> Result<Grown> {
        let alone = self.growth.lock();
        if !self.lifecycle.allows(Right::Change) {
            return Err(Error::ReadOnly);
        }
        if !self.has_log {
            return Err(Error::CannotGrow(CannotGrow::NoLog));
        }
        if !self.placement.alloc.cluster_size().is_one() {
            return Err(Error::CannotGrow(CannotGrow::Clusters));
        }
        let growth = Growth { volume: self, begin: self.superblock(), _alone: alone };
        let begin = &growth.begin;
        let now = begin.blocks_count << begin.block_bits;
        let bytes = match size {
            GrowTo::Bytes(bytes) => bytes,
            GrowTo::More(more) => now.saturating_add(more),
            GrowTo::Device => self.dev.measure()?.max(now),
        };
        let goal = target(begin, bytes, Backups::Stay).map_err(refused)?;
        Groups::check_count(&goal)?;
        growth.check_log(&goal)?;
        let (before, groups_before) = (begin.blocks_count, begin.group_count);
        let done = Grown { before, after: goal.blocks_count, groups_before, groups: goal.group_count };
        if goal.blocks_count == begin.blocks_count {
            return Ok(done);
        }
        growth.check_reserved()?;
        self.dev.grow(goal.blocks_count << goal.block_bits)?;
        self.placement.alloc.in_blocks().make_room(goal.group_count);
        let mut stepped = Ok(());
        while stepped.is_ok() && self.geo.blocks_count < goal.blocks_count {
            stepped = growth.grow_round(goal.blocks_count);
        }
        growth.charge_groups();
        // Update the copies for the steps that have succeeded, even if a later step has failed.
        let copied = if self.geo.blocks_count > begin.blocks_count { growth.renew_backups() } else { Ok(()) };
        stepped.and(copied)?;
        self.sync_names()?;
        Ok(done)
    }
}

impl Growth<'_> {
    /// Charges the budget for the memory that each group always takes; their number has grown.
    fn charge_groups(&self) {
        let fixed = self.volume.placement.fixed_bytes().min(self.volume.budget.limit() / 2);
        let before = self.volume.charged.fetch_max(fixed, Ordering::Relaxed);
        self.volume.budget.charge(fixed.saturating_sub(before));
    }
}

/// The error of a growth that is not possible.
fn refused(why: impl Into<CannotGrow>) -> Error {
    Error::CannotGrow(why.into())
}
