//! The places of bitmaps and inode tables of new groups.
//!
//! Main function: [`place`]. The tables of a flex group lie together after the first copies of superblock and
//! descriptors (Linux: `setup_new_flex_group_blocks`, fs/ext4/resize.c). Without `flex_bg`, or if there is no room,
//! they lie in the group itself.
//!
//! # Locking
//! None.

use std::ops::Range;

use super::NoGrowth;
use crate::superblock::Geometry;
use crate::{BlockNr, GroupNr};

/// The maximum number of groups whose tables are placed together, so that the work for each group is bounded.
const TOGETHER_MAX: u32 = 64;

/// The block bitmap, the inode bitmap, and the start of the inode table.
pub type Tables = [BlockNr; 3];

/// The groups whose tables may lie together with this group's: the new groups of its flex group.
pub fn neighbours(geo: &Geometry, first_new: u32, group: u32) -> Range<u32> {
    let flex = if geo.flex_bg { geo.groups_per_flex.clamp(1, TOGETHER_MAX) } else { 1 };
    let start = group - group % flex;
    start.max(first_new)..start.saturating_add(flex).min(geo.group_count)
}

/// Places the tables of the groups from `first_new` on.
///
/// # Errors
/// [`NoGrowth::Tables`] if they do not fit.
pub fn place(geo: &Geometry, first_new: u32) -> Result<Vec<Tables>, NoGrowth> {
    place_all(geo, first_new).ok_or(NoGrowth::Tables)
}

fn place_all(geo: &Geometry, first_new: u32) -> Option<Vec<Tables>> {
    let mut all = Vec::new();
    let mut at = first_new;
    while at < geo.group_count {
        let groups = neighbours(geo, first_new, at);
        at = groups.end;
        match together(geo, groups.clone()) {
            Some(tables) => all.extend(tables),
            None => {
                for group in groups {
                    all.extend(together(geo, group..group + 1)?);
                }
            }
        }
    }
    Some(all)
}

/// Places the tables of these groups: first all block bitmaps, then all inode bitmaps, then all inode tables.
fn together(geo: &Geometry, groups: Range<u32>) -> Option<Vec<Tables>> {
    let copies = groups.clone().map(|group| geo.base_metadata(GroupNr(group)));
    let copies: Vec<Range<u64>> = copies
        .flat_map(|base| base.ranges().map(|(start, count)| start.0..start.0 + u64::from(count)).collect::<Vec<_>>())
        .collect();
    let last = GroupNr(groups.end.checked_sub(1)?);
    let end = geo.first_block_of_group(last).0 + u64::from(geo.blocks_in_group(last));
    let mut at = geo.first_block_of_group(GroupNr(groups.start)).0;
    let mut take = |blocks: u64| {
        for copy in &copies {
            if at < copy.end && copy.start < at + blocks {
                at = copy.end;
            }
        }
        let found = at;
        at += blocks;
        (at <= end).then_some(BlockNr(found))
    };
    let count = groups.len();
    let mut run = |blocks: u64| (0..count).map(|_| take(blocks)).collect::<Option<Vec<_>>>();
    let (blocks, inodes) = (run(1)?, run(1)?);
    let tables = run(geo.inode_table_blocks.into())?;
    Some((0..count).map(|at| [blocks[at], inodes[at], tables[at]]).collect())
}
