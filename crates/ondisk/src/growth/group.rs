//! Descriptors and bitmaps of new groups.
//!
//! Main function: [`new_group`].
//!
//! # Locking
//! None.

use super::place::Tables;
use crate::group_desc::{GroupDesc, GroupFlags};
use crate::superblock::{DescChecksum, Geometry};
use crate::{GroupNr, bitmap};

/// Creates the descriptor of a new group, and its block bitmap in `bits`. `first` is the first group of `around`, which
/// contains the tables of all groups whose tables may lie in this one, including its own ([`super::neighbours`]).
///
/// Unless the descriptor has `BLOCK_UNINIT`, the bitmap must be written. The inode table is not marked as zeroed.
///
/// # Panics
/// If `around` lacks the group.
pub fn new_group(geo: &Geometry, group: GroupNr, first: GroupNr, around: &[Tables], bits: &mut [u8]) -> GroupDesc {
    let has_flags = geo.desc_checksum != DescChecksum::None;
    let descs: Vec<GroupDesc> = around.iter().map(|tables| blank(geo, has_flags, *tables)).collect();
    let own = (group.0 - first.0) as usize;
    let is_host = descs.iter().enumerate().any(|(at, desc)| at != own && lies_in(geo, desc, group));
    bitmap::init_block_bitmap(bits, group, &descs, geo);
    let mut desc = descs[own].clone();
    desc.free_clusters = bitmap::count_zeros(bits, 0..geo.clusters_in_group(group));
    // A kernel that builds such a bitmap itself knows only the group's own tables.
    if has_flags && !is_host && group.0 + 1 < geo.group_count {
        desc.flags.insert(GroupFlags::BLOCK_UNINIT);
    } else {
        desc.set_block_bitmap_csum(bits, geo);
    }
    desc
}

fn blank(geo: &Geometry, has_flags: bool, [block_bitmap, inode_bitmap, inode_table]: Tables) -> GroupDesc {
    GroupDesc {
        block_bitmap,
        inode_bitmap,
        inode_table,
        free_clusters: 0,
        free_inodes: geo.inodes_per_group,
        used_dirs: 0,
        flags: if has_flags { GroupFlags::INODE_UNINIT } else { GroupFlags::empty() },
        itable_unused: if has_flags { geo.inodes_per_group } else { 0 },
        block_bitmap_csum: 0,
        inode_bitmap_csum: 0,
    }
}

/// Whether a structure of another group lies in this one.
fn lies_in(geo: &Geometry, desc: &GroupDesc, group: GroupNr) -> bool {
    let first = geo.first_block_of_group(group).0;
    let end = first + u64::from(geo.blocks_in_group(group));
    let table = desc.inode_table.0..desc.inode_table.0 + u64::from(geo.inode_table_blocks);
    let bitmaps = [desc.block_bitmap.0, desc.inode_bitmap.0];
    bitmaps.iter().any(|block| (first..end).contains(block)) || (table.start < end && first < table.end)
}
