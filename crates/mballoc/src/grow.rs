//! Adds blocks and groups while requests are served. Linux: `ext4_mb_add_groupinfo`, `ext4_group_add_blocks`.
//!
//! What it does not do: it does not decide where the new groups' own blocks are, and it writes nothing.
//!
//! # Locking
//! [`crate::lock::GROUP`], one at a time. One thread at a time may grow an allocator.

use extant_base::sync::atomic::Ordering;
use extant_ondisk::{BlockNr, GroupNr};

use crate::allocator::Allocator;
use crate::group::{BAD, Group, KNOWN, UNINIT};
use crate::{Geometry, GroupStore, GroupSummary};

/// The capacity for groups grows at least by one part in this many, so that many small growths do not copy it each
/// time.
const ROOM_STEP: u32 = 4;

impl<S: GroupStore> Allocator<S> {
    /// Gives the policy capacity for this many groups. Requests that run meanwhile wait rather than miss a free block.
    pub fn make_room(&self, groups: u32) {
        let room = self.choice_groups.load(Ordering::Relaxed);
        if groups <= room {
            return;
        }
        let room = groups.max(room.saturating_add(room / ROOM_STEP));
        let choice = self.options.policy.state(&Geometry { groups: room, ..(*self.geometry).clone() });
        let highest = self.geometry.highest_order();
        let all = || (0..self.groups.len() as u32).rev().filter_map(|nr| Some((nr, self.group_ref(GroupNr(nr))?)));
        all().for_each(|(nr, group)| choice.changed(nr, group.info(None, highest)));
        // In flight until every group has been published: otherwise another thread may conclude that no block is free.
        self.in_transit.begin(1);
        self.choice.publish(choice);
        for (nr, group) in all() {
            let inner = group.lock();
            self.publish(GroupNr(nr), group, &inner);
        }
        self.choice_groups.store(room, Ordering::Relaxed);
        self.in_transit.turned();
        self.in_transit.end(1);
    }

    /// Extends the last group up to block `end`. `change` marks the blocks free in the on-disk bitmap, under the
    /// group's lock; on an error nothing may have changed.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn lengthen_last<E>(&self, end: u64, change: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let nr = GroupNr(self.geometry.groups - 1);
        let longer = Geometry { blocks_count: end, ..(*self.geometry).clone() };
        let more = longer.blocks_in_group(nr) - self.geometry.blocks_in_group(nr);
        let Some(group) = self.group_ref(nr) else { return change() };
        let mut inner = group.lock();
        change()?;
        // The buddy has the old length, and areas for metadata may be elsewhere now.
        let aside = self.forget_aside(nr, &mut inner);
        self.drop_buddy(group, &mut inner);
        // A bitmap that is being loaded may or may not have these blocks.
        inner.generation = inner.generation.wrapping_add(1);
        self.geometry.publish(longer);
        if group.has(BAD) {
            return Ok(());
        }
        group.set_free(group.free() + aside + more);
        group.clear(KNOWN | UNINIT);
        group.unlearn();
        self.publish(nr, group, &inner);
        drop(inner);
        self.space.disk_gained(more.into());
        self.in_transit.turned();
        Ok(())
    }

    /// Adds groups behind the last one, which must be complete: `geometry` is that of the larger file system. `zones`
    /// are the groups' own blocks, as for [`Allocator::protect`]. The store already knows these groups.
    pub fn append(&self, geometry: Geometry, groups: &[GroupSummary], zones: impl IntoIterator<Item = (BlockNr, u64)>) {
        self.make_room(geometry.groups);
        let (first, end) = (self.geometry.groups, geometry.blocks_count);
        let zones = zones.into_iter().map(|(start, len)| (start.0, start.0.saturating_add(len).min(end)));
        self.zones.append(geometry.group_start(GroupNr(first)).0, zones);
        groups.iter().for_each(|group| self.groups.push(Group::new(group.free, group.block_uninit)));
        let highest = geometry.highest_order();
        self.geometry.publish(geometry);
        for nr in (first..first + groups.len() as u32).rev() {
            if let Some(group) = self.group_ref(GroupNr(nr)) {
                // Under the lock, because a request may already have found the group.
                let inner = group.lock();
                self.choice.changed(nr, group.info(inner.buddy.as_deref(), highest));
            }
        }
        self.space.disk_gained(groups.iter().map(|group| u64::from(group.free)).sum());
        self.in_transit.turned();
    }

    /// Changes how many blocks are reserved ([`crate::Options`]).
    pub fn set_reserves(&self, root: u64, pool: u64) {
        self.space.set_reserves(root, pool);
    }
}
