//! New groups come into use in memory: from then on other operations may use them.
//!
//! # Locking
//! `group` (70), within the calls; nothing else.

use extant_ondisk::{BlockNr, GroupNr};

use super::Growth;
use super::step::Step;
use crate::groups::Groups;

impl Growth<'_> {
    /// Brings the groups of a step into use; they are already on the device. The allocator comes last, because all
    /// other parts must know the blocks that it hands out.
    pub(super) fn join(&self, step: Step) {
        self.publish(&step);
        let geo = step.next.geometry();
        let longer = extant_mballoc::Geometry {
            blocks_count: geo.blocks_count,
            groups: geo.group_count,
            ..self.volume.placement.alloc.in_blocks().geometry().clone()
        };
        self.volume.placement.alloc.in_blocks().append(longer, &Groups::summaries_of_new(&step.descs), step.zones());
    }

    /// Makes the blocks and groups of the step known to all parts except the allocator.
    pub(super) fn publish(&self, step: &Step) {
        let geo = step.next.geometry();
        self.volume.cache.grow(geo.blocks_count);
        let (_, inodes) = step.gains();
        self.volume.placement.join(&step.next, &step.descs, step.taken(), inodes);
    }
}

impl Step {
    /// The blocks of the new groups' own structures.
    fn zones(&self) -> Vec<(BlockNr, u64)> {
        let geo = self.next.geometry();
        let mut zones = Vec::new();
        for (group, desc) in (self.first..).map(GroupNr).zip(&self.descs) {
            zones.extend(geo.base_metadata(group).ranges().map(|(start, len)| (start, u64::from(len))));
            zones.extend([(desc.block_bitmap, 1), (desc.inode_bitmap, 1)]);
            zones.push((desc.inode_table, geo.inode_table_blocks.into()));
        }
        zones
    }
}
