//! Allocating and freeing inodes (Linux: fs/ext4/ialloc.c).
//!
//! Placement, as a hierarchy:
//! 1. A directory below the root (or below one marked TOPDIR) is spread. Of the flex groups with at least average free
//!    inodes and free blocks, it gets the one with the fewest directories. The search starts at a hash of the name
//!    (Orlov).
//! 2. Any other directory stays near its parent, in the first flex group that is not crowded: its directories, free
//!    inodes and free blocks are within bounds around the average.
//! 3. Any other inode goes into the first group with room of its parent's flex group, then of the flex group of its
//!    most recent sibling, and then of a flex group chosen as for a directory. Without flex groups, it goes into its
//!    parent's group, then into groups at quadratically growing distance, then anywhere.
//!
//! With `errors=continue`, a group whose bitmap is unreadable or contradicts its descriptor is recorded once and
//! skipped from then on (Linux: `EXT4_GROUP_INFO_IBITMAP_CORRUPT`).
//!
//! # Locking
//! Takes `group descriptor` (72) and buffer locks within the calls. Choosing a group uses sums that need no lock.

use std::ops::Range;

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_journal::Handle;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::superblock::{DescChecksum, Geometry};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

use crate::error::{Damage, Error, Result};
use crate::groups::Prepared;
use crate::placement::Placement;

/// The hint of a group that is skipped. Freeing an inode in the group resets the hint, since it shows that the bitmap
/// is readable.
const PASSED_OVER: u32 = u32::MAX;

/// Marks an inode as used. Returns the never-used slots up to and including its own, which come into use with it. The
/// range is empty if the slot was in use before.
fn take(geo: &Geometry, desc: &mut GroupDesc, bytes: &mut [u8], index: u32, is_dir: bool) -> Range<u32> {
    bitmap::set(bytes, index);
    desc.free_inodes = desc.free_inodes.saturating_sub(1);
    if is_dir {
        desc.used_dirs += 1;
    }
    let mut fresh = 0..0;
    if geo.desc_checksum != DescChecksum::None {
        let used = if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            0
        } else {
            geo.inodes_per_group.saturating_sub(desc.itable_unused)
        };
        desc.flags.remove(GroupFlags::INODE_UNINIT);
        fresh = used..(index + 1).max(used);
        if !fresh.is_empty() {
            desc.itable_unused = geo.inodes_per_group - fresh.end;
        }
    }
    desc.set_inode_bitmap_csum(bytes, geo);
    fresh
}

fn unmarked(ino: InodeNr, bitmap: BlockNr) -> Error {
    Error::corrupt(Damage::InodeBitmap, "freed, but its bit is clear").of(ino).at(bitmap)
}

/// A new inode, as the choice of its number sees it.
pub(crate) struct NewNumber<'a> {
    pub is_dir: bool,
    pub parent: InodeNr,
    /// The group of the parent's latest child.
    pub last_group: &'a AtomicU32,
    /// For a directory that should be far from its parent, the hash of its name.
    pub spread: Option<u32>,
    /// Counts the descriptors that were examined.
    pub looks: &'a Counter,
}

impl Placement {
    /// The numbers of all inodes in the group of this one.
    pub(crate) fn inodes_beside(&self, ino: InodeNr) -> Range<u64> {
        let per_group = u64::from(self.geo.inodes_per_group);
        let first = (u64::from(ino.0).saturating_sub(1)) / per_group * per_group + 1;
        first..first + per_group
    }

    /// Allocates an inode number. Also returns whether its slot was never used; the slot's content is then undefined. 3
    /// credits (bitmap and descriptor; the group's block bitmap does not change), plus the inode's table block, which
    /// the caller fills.
    ///
    /// Groups whose bitmap is unreadable or contradicts its descriptor go to `skipped`, if there is one, with their
    /// errors. The caller records these.
    ///
    /// # Errors
    /// [`Error::NoInodes`]; the error of a group that may not be skipped; if groups were skipped and no other has a
    /// free inode, the error of the first skipped group.
    pub(crate) fn allocate_inode(
        &self,
        handle: &mut Handle,
        new: &NewNumber<'_>,
        mut skipped: Option<&mut Vec<Error>>,
    ) -> Result<(InodeNr, bool)> {
        let parent_group = GroupNr((new.parent.0 - 1) / self.geo.inodes_per_group);
        let groups = self.groups.count();
        let flexible = self.geo.groups_per_flex > 1;
        let first = if new.is_dir {
            self.orlov_group(new, parent_group)?
        } else if flexible {
            self.group_near(new, parent_group)?
        } else {
            parent_group
        };
        let mut tried = 0u32;
        // Without flex groups, the search probes at quadratic distances from the first choice, and then all groups in
        // turn.
        let mut step = 0u32;
        let mut group = first.0;
        loop {
            match self.try_inode_in_group(handle, GroupNr(group), new.is_dir) {
                Ok(Some(found)) => {
                    new.last_group.store(group, Ordering::Relaxed);
                    return Ok(found);
                }
                Ok(None) => {}
                Err(e) => {
                    let Some(skipped) = &mut skipped else { return Err(e) };
                    self.inode_hint(GroupNr(group)).store(PASSED_OVER, Ordering::Relaxed);
                    skipped.push(e);
                }
            }
            tried += 1;
            if !flexible && step < 16 && step < groups {
                step = if step == 0 { 1 } else { step * 2 };
                group = (first.0 + step) % groups;
            } else if tried > 2 * groups + 32 {
                let first = skipped.and_then(|skipped| skipped.first().cloned());
                return Err(first.unwrap_or(Error::NoInodes));
            } else {
                group = (group + 1) % groups;
            }
        }
    }

    fn inode_hint(&self, group: GroupNr) -> &AtomicU32 {
        self.inode_hints.get(group.0 as usize).expect("made before its group joins")
    }

    fn try_inode_in_group(&self, handle: &mut Handle, group: GroupNr, is_dir: bool) -> Result<Option<(InodeNr, bool)>> {
        let hint = self.inode_hint(group).load(Ordering::Relaxed);
        if hint == PASSED_OVER || self.groups.with(group, |d| d.free_inodes)? == 0 {
            return Ok(None);
        }
        let buffer = self.groups.inode_bitmap(group)?;
        let per_group = self.geo.inodes_per_group;
        // Inodes below s_first_ino are reserved, regardless of the bitmap.
        let reserved = if group.0 == 0 { self.geo.first_ino - 1 } else { 0 };
        let geo = &self.geo;
        let found = self.groups.update_bitmap(handle, group, &buffer, |desc, bytes| {
            let from = hint.max(reserved).min(per_group);
            let free = bitmap::find_next_zero(bytes, from..per_group)
                .or_else(|| bitmap::find_next_zero(bytes, reserved..per_group));
            if desc.free_inodes == 0 {
                return Ok(None); // another thread took the last one
            }
            let Some(index) = free else {
                return Err(Error::corrupt(
                    Damage::InodeBitmap,
                    format!("that of {group} is full, its descriptor says {} are free", desc.free_inodes),
                )
                .at(buffer.block));
            };
            let fresh = !take(geo, desc, bytes, index, is_dir).is_empty();
            Ok(Some((index, fresh)))
        })?;
        let Some((index, fresh)) = found else { return Ok(None) };
        self.inode_hint(group).store(index + 1, Ordering::Relaxed);
        self.free_inodes.fetch_sub(1, Ordering::Relaxed);
        Ok(Some((InodeNr(group.0 * self.geo.inodes_per_group + index + 1), fresh)))
    }

    /// Whether the inode's bit is set.
    pub(crate) fn is_inode_marked(&self, ino: InodeNr) -> Result<bool> {
        let place = self.geo.inode_location(ino)?;
        Ok(self.groups.inode_bitmap(place.group)?.read(|bytes| bitmap::test(bytes, place.index)))
    }

    /// Marks this inode number as used, unless it is already. Returns the never-used slots that come into use with it.
    /// 2 credits.
    pub(crate) fn mark_inode(&self, handle: &mut Handle, ino: InodeNr, is_dir: bool) -> Result<Range<u32>> {
        let place = self.geo.inode_location(ino)?;
        let buffer = self.groups.inode_bitmap(place.group)?;
        let fresh = self.groups.update_bitmap(handle, place.group, &buffer, |desc, bytes| {
            Ok((!bitmap::test(bytes, place.index)).then(|| take(&self.geo, desc, bytes, place.index, is_dir)))
        })?;
        if fresh.is_some() {
            self.free_inodes.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(fresh.unwrap_or_default())
    }

    /// Checks that an inode number can be freed. As long as the result exists, [`Placement::free_inode_number`] need
    /// not read these blocks, and so cannot fail for lack of them.
    pub(crate) fn check_free_inode_number(&self, ino: InodeNr) -> Result<Prepared> {
        let place = self.geo.inode_location(ino)?;
        let held = self.groups.hold_inodes(place.group)?;
        if !held.bitmap.read(|bytes| bitmap::test(bytes, place.index)) {
            return Err(unmarked(ino, held.bitmap.block));
        }
        Ok(held)
    }

    /// Frees an inode number. 2 credits.
    pub(crate) fn free_inode_number(&self, handle: &mut Handle, ino: InodeNr, was_dir: bool) -> Result<()> {
        let place = self.geo.inode_location(ino)?;
        let buffer = self.groups.inode_bitmap(place.group)?;
        let geo = &self.geo;
        self.groups.update_bitmap(handle, place.group, &buffer, |desc, bytes| {
            if !bitmap::test(bytes, place.index) {
                return Err(unmarked(ino, buffer.block));
            }
            bitmap::clear(bytes, place.index);
            desc.free_inodes += 1;
            if was_dir {
                desc.used_dirs = desc.used_dirs.saturating_sub(1);
            }
            desc.set_inode_bitmap_csum(bytes, geo);
            Ok(())
        })?;
        let hint = self.inode_hint(place.group);
        hint.fetch_min(place.index, Ordering::Relaxed);
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The first group with room in the parent's flex group or in the flex group of its latest child; otherwise a group
    /// chosen as for a directory (Linux: `find_group_other`).
    fn group_near(&self, new: &NewNumber<'_>, parent_group: GroupNr) -> Result<GroupNr> {
        let groups = self.groups.count();
        let flex = self.geo.groups_per_flex;
        let last = new.last_group.load(Ordering::Relaxed);
        for near in [parent_group.0, last].into_iter().filter(|&g| g < groups) {
            let first = near - near % flex;
            for group in first..(first + flex).min(groups) {
                if self.groups.with(GroupNr(group), |d| d.free_inodes)? > 0 {
                    return Ok(GroupNr(group));
                }
            }
        }
        self.orlov_group(new, parent_group)
    }

    /// Chooses a group as for a new directory.
    fn orlov_group(&self, new: &NewNumber<'_>, parent_group: GroupNr) -> Result<GroupNr> {
        let flex = self.geo.groups_per_flex.max(1);
        let groups = self.groups.count();
        let flexes = groups.div_ceil(flex);
        let free_inodes = self.free_inodes.load(Ordering::Relaxed).max(0);
        let free_blocks = i64::try_from(self.alloc.free_clusters()).unwrap_or(i64::MAX);
        let (avg_inodes, avg_blocks) = (free_inodes / i64::from(flexes), free_blocks / i64::from(flexes));
        let free_inodes_of = |g: GroupNr| -> Result<i64> {
            new.looks.inc();
            self.groups.with(g, |d| i64::from(d.free_inodes))
        };
        let first_with_inode = |f: u32| -> Result<Option<GroupNr>> {
            for g in f * flex..((f + 1) * flex).min(groups) {
                if free_inodes_of(GroupNr(g))? > 0 {
                    return Ok(Some(GroupNr(g)));
                }
            }
            Ok(None)
        };
        if let Some(hash) = new.spread {
            let start = hash % flexes;
            let mut best: Option<(i64, u32)> = None;
            for i in 0..flexes {
                let f = (start + i) % flexes;
                let c = self.groups.flex_counts(f);
                if c.free_inodes <= 0 || c.free_inodes < avg_inodes || c.free_blocks < avg_blocks {
                    continue;
                }
                if best.is_none_or(|(d, _)| c.dirs < d) {
                    best = Some((c.dirs, f));
                }
            }
            if let Some((_, f)) = best
                && let Some(g) = first_with_inode(f)?
            {
                return Ok(g);
            }
        } else {
            let (ipg, bpg) = (i64::from(self.geo.inodes_per_group), i64::from(self.geo.clusters_per_group));
            let width = i64::from(flex);
            // Until Linux 6.0 the bound was that of one group, so few directories filled a flex group.
            let bound = if self.alloc.orlov_unscaled() { ipg / 16 } else { ipg * width / 16 };
            let max_dirs = self.groups.dirs() / i64::from(flexes) + bound;
            let min_inodes = (avg_inodes - ipg * width / 4).max(1);
            let min_blocks = avg_blocks - bpg * width / 4;
            let last = new.last_group.load(Ordering::Relaxed);
            let start = if last < groups { last } else { parent_group.0 } / flex;
            for i in 0..flexes {
                let f = (start + i) % flexes;
                let c = self.groups.flex_counts(f);
                if c.dirs < max_dirs
                    && c.free_inodes >= min_inodes
                    && c.free_blocks >= min_blocks
                    && let Some(g) = first_with_inode(f)?
                {
                    return Ok(g);
                }
            }
        }
        // No flex group is within the bounds: take a group with at least the average of free inodes, or else any group.
        for least in [(free_inodes / i64::from(groups)).max(1), 1] {
            for i in 0..groups {
                let g = GroupNr((parent_group.0 + i) % groups);
                if free_inodes_of(g)? >= least {
                    return Ok(g);
                }
            }
        }
        Err(Error::NoInodes)
    }
}
