//! Enlarging the last group, and adding groups.
//!
//! What it does not do: choose places for the structures of groups ([`extant_ondisk::growth`]), or write them.
//!
//! # Locking
//! That of [`super`]. One thread at a time may grow a file system.

use extant_base::sync::Mutex;
use extant_journal::Handle;
use extant_mballoc::GroupSummary;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{GroupNr, bitmap};

use super::{Counts, DESC_CLASS, FlexSums, Groups, Prepared, too_many};
use crate::error::{CannotGrow, Error, Result};

impl Groups {
    /// Refuses a layout with more groups than are supported.
    pub fn check_count(geo: &Geometry) -> Result<()> {
        match too_many(geo) {
            Some(most) => Err(Error::CannotGrow(CannotGrow::Groups { groups: geo.group_count, most })),
            None => Ok(()),
        }
    }

    /// Marks the new blocks of the last group as free; the group then has `blocks` blocks. The layout has not changed
    /// yet. 2 credits.
    pub fn lengthen_last(&self, handle: &mut Handle, prepared: &Prepared, blocks: u32) -> Result<()> {
        let geo: &Geometry = &self.geo;
        let last = GroupNr(geo.group_count - 1);
        let was = geo.blocks_in_group(last);
        self.update_prepared(handle, last, prepared, |desc, bytes| {
            bitmap::clear_range(bytes, was..blocks);
            desc.free_clusters += blocks - was;
            desc.flags.remove(GroupFlags::BLOCK_UNINIT);
            desc.set_block_bitmap_csum(bytes, geo);
            Ok(())
        })
    }

    /// Appends descriptors in memory. Their groups come into use when the layout includes them.
    pub fn append(&self, descs: Vec<GroupDesc>) {
        let per_flex = self.geo.groups_per_flex.max(1) as usize;
        let first = self.descs.len();
        let flexes = (first + descs.len()).div_ceil(per_flex);
        (self.flexes.len()..flexes).for_each(|_| self.flexes.push(FlexSums::default()));
        for (nr, desc) in (first as u32..).zip(descs) {
            let counts = Counts::of(&desc);
            self.descs.push(Mutex::new(&DESC_CLASS, desc));
            self.note(GroupNr(nr), Counts::default(), counts);
        }
    }

    /// The summaries of new groups for the allocator.
    pub fn summaries_of_new(descs: &[GroupDesc]) -> Vec<GroupSummary> {
        let summary = |desc: &GroupDesc| GroupSummary {
            free: desc.free_clusters,
            block_uninit: desc.flags.contains(GroupFlags::BLOCK_UNINIT),
            maps: 0,
        };
        descs.iter().map(summary).collect()
    }
}
