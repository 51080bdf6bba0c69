//! Places bitmaps and inode tables as mke2fs does.
//!
//! Main function: [`place`].
//!
//! # Locking
//! None.

use extant_ondisk::GroupNr;
use extant_ondisk::superblock::Geometry;

use super::space::{Space, no_space};
use crate::Result;

/// A group's bitmaps and inode table, as blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tables {
    pub block_bitmap: u64,
    pub inode_bitmap: u64,
    pub inode_table: u64,
}

/// Takes superblocks and descriptors, then places the tables of all groups.
///
/// # Errors
/// They do not fit.
pub(super) fn place(space: &mut Space, geo: &Geometry, stride: u64, packed: bool) -> Result<Vec<Tables>> {
    let table = u64::from(geo.inode_table_blocks);
    for group in geo.groups() {
        for (start, count) in geo.base_metadata(group).ranges() {
            space.mark(start.0, count.into());
        }
        let base = geo.base_metadata(group).blocks();
        let mut free = u64::from(geo.blocks_in_group(group)).wrapping_sub(2 + table + base);
        if geo.groups_per_flex > 1 {
            free = free.wrapping_add(2 + table);
        }
        space.counted[group.0 as usize] = free as u32;
    }
    if geo.block_size == 1024 && geo.cluster_bits > 0 {
        // The first cluster begins before the superblock.
        space.mark(0, 1);
    }
    if packed && geo.flex_bg {
        return place_packed(space, geo);
    }
    let mut all: Vec<Tables> = Vec::with_capacity(geo.group_count as usize);
    for group in geo.groups() {
        let before = all.last().copied();
        let tables = if geo.groups_per_flex > 1 {
            place_in_flex_group(space, geo, group, before.unwrap_or_default())?
        } else {
            place_in_group(space, geo, group, stride)?
        };
        all.push(tables);
    }
    Ok(all)
}

fn last_block(geo: &Geometry, group: u32) -> u64 {
    let start = geo.first_block_of_group(GroupNr(group)).0;
    start + u64::from(geo.blocks_in_group(GroupNr(group))) - 1
}

fn place_in_group(space: &mut Space, geo: &Geometry, group: GroupNr, stride: u64) -> Result<Tables> {
    let (first, last) = (geo.first_block_of_group(group).0, last_block(geo, group.0));
    let table = u64::from(geo.inode_table_blocks);
    let mut start = first;
    if stride != 0 {
        start = space.free_run(first, last, 1).ok_or_else(no_space)? + table;
        // e2fsprogs divide by the length of the rest, which may be 0.
        if start <= last {
            start += (stride * u64::from(group.0)) % (last - start + 1);
        }
        if start >= last {
            start = first;
        }
    }
    let block_bitmap = bitmap_from(space, start, first, last)?;
    space.mark(block_bitmap, 1);
    let inode_bitmap = bitmap_from(space, start, first, last)?;
    space.mark(inode_bitmap, 1);
    let inode_table = space.free_run(first, last, table).ok_or_else(no_space)?;
    space.mark(inode_table, table);
    Ok(Tables { block_bitmap, inode_bitmap, inode_table })
}

fn place_in_flex_group(space: &mut Space, geo: &Geometry, group: GroupNr, before: Tables) -> Result<Tables> {
    let flex = u64::from(geo.groups_per_flex);
    let table = u64::from(geo.inode_table_blocks);
    let first = geo.first_block_of_group(group).0;
    let last_group = (u64::from(group.0) | (flex - 1)).min(u64::from(geo.group_count) - 1) as u32;
    let last = last_block(geo, last_group);
    let place = u64::from(group.0) % flex;
    let left = u64::from(last_group - group.0) + 1;
    // A last flex group that is not full leaves no room for missing groups, unless it is a single group.
    let room = if place == 0 && last_group == geo.group_count - 1 && left > 1 { left } else { flex };

    let goal = if place == 0 { 0 } else { before.block_bitmap + 1 };
    let start = flex_start(space, geo, group, goal, left, 1);
    let block_bitmap = bitmap_from(space, start, first, last)?;
    space.take(block_bitmap, 1);
    let goal = if place == 0 { block_bitmap + room } else { before.inode_bitmap + 1 };
    let start = flex_start(space, geo, group, goal, left, 1);
    let inode_bitmap = bitmap_from(space, start, first, last)?;
    space.take(inode_bitmap, 1);
    let goal = if place == 0 { inode_bitmap + room } else { before.inode_table + table };
    let start = flex_start(space, geo, group, goal, left, table);
    let inode_table = space.free_run(start, last, table).ok_or_else(no_space)?;
    space.take(inode_table, table);
    Ok(Tables { block_bitmap, inode_bitmap, inode_table })
}

fn bitmap_from(space: &Space, start: u64, first: u64, last: u64) -> Result<u64> {
    space.free_run(start, last, 1).or_else(|| space.free_run(first, last, 1)).ok_or_else(no_space)
}

/// The start of the search for a bitmap or table of a flex group (e2fsprogs: `flexbg_offset`). 0 for the beginning.
fn flex_start(space: &Space, geo: &Geometry, group: GroupNr, goal: u64, left: u64, blocks: u64) -> u64 {
    let flex = u64::from(geo.groups_per_flex);
    let size = (left * blocks).min(u64::from(geo.blocks_per_group) / 4);
    if goal != 0
        && goal < geo.blocks_count
        && let Some(found) = space.free_run(goal, goal + size, blocks)
    {
        return found;
    }
    let start = geo.first_block_of_group(GroupNr((u64::from(group.0) / flex * flex) as u32)).0;
    let last_group = (u64::from(group.0) | (flex - 1)).min(u64::from(geo.group_count) - 1) as u32;
    let last = last_block(geo, last_group);
    let found = space.free_run(start, last, size).or_else(|| space.free_run(start, last, blocks));
    found.or_else(|| space.free_run(0, last, blocks)).unwrap_or(0)
}

/// All block bitmaps, all inode bitmaps, all tables.
fn place_packed(space: &mut Space, geo: &Geometry) -> Result<Vec<Tables>> {
    let mut all = vec![Tables::default(); geo.group_count as usize];
    let mut goal = 0;
    for tables in &mut all {
        goal = space.take_new_block(goal)?;
        tables.block_bitmap = goal;
    }
    for tables in &mut all {
        goal = space.take_new_block(goal)?;
        tables.inode_bitmap = goal;
    }
    let table = u64::from(geo.inode_table_blocks);
    for tables in &mut all {
        goal = space.free_run(goal, geo.blocks_count - 1, table).ok_or_else(no_space)?;
        space.take(goal, table);
        tables.inode_table = goal;
    }
    Ok(all)
}
