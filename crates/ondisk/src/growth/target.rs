//! The superblock of a larger file system.
//!
//! Main functions: [`target`] (all at once), [`step`] (one transaction of a growth in steps). Main type: [`Backups`].
//!
//! # Locking
//! None.

use zerocopy::IntoBytes;

use super::{NoGrowth, neighbours};
use crate::GroupNr;
use crate::features::{Compat, Incompat, RoCompat};
use crate::superblock::{BackupRule, Geometry, SUPERBLOCK_OFFSET, SuperBlock};

/// The place of the second backup of `sparse_super2`, which `mke2fs` puts into the last group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backups {
    /// It moves to the new last group, if it was in the last one.
    Move,
    /// It stays in its group (Linux: a growth while mounted).
    Stay,
}

/// The minimum number of blocks for files in a new last group; a smaller group is left out (as in e2fsprogs).
const LAST_GROUP_FREE_MIN: u64 = 50;

/// The superblock of `sb`'s file system enlarged to at most `bytes` bytes. The numbers of free blocks and inodes, and
/// of the file system's own clusters, are still the old ones. If the number of blocks does not change, there is nothing
/// to do.
///
/// A last group without room for files is left out.
///
/// # Errors
/// [`NoGrowth`] if no such file system exists.
pub fn target(sb: &SuperBlock, bytes: u64, moves: Backups) -> Result<SuperBlock, NoGrowth> {
    let old = sb.geometry();
    let asked = bytes >> old.block_bits;
    if asked < old.blocks_count {
        return Err(NoGrowth::Smaller { now: old.blocks_count << old.block_bits, asked: bytes });
    }
    let blocks = asked & !(u64::from(old.blocks_per_cluster()) - 1);
    let with = |blocks: u64| {
        let root_only = share(sb, old.blocks_count, blocks);
        with_blocks(sb, blocks, root_only, moves)
    };
    let larger = with(blocks.max(old.blocks_count))?;
    let geo = larger.geometry();
    let rest = (geo.blocks_count - geo.first_data_block) % u64::from(geo.blocks_per_group);
    let last = GroupNr(geo.group_count - 1);
    let needed = 2 + u64::from(geo.inode_table_blocks) + geo.base_metadata(last).blocks() + LAST_GROUP_FREE_MIN;
    if last.0 >= old.group_count && rest != 0 && rest < needed {
        let blocks = geo.blocks_count - rest;
        return with(blocks.max(old.blocks_count));
    }
    Ok(larger)
}

/// The superblock after the next transaction of a growth to `blocks` blocks, which [`target`] has found possible. First
/// the last group is completed; then the new groups of a flex group are added together. `begin` is the superblock
/// before the growth, which determines the share of blocks that only root may use. The backups do not move.
///
/// # Errors
/// As [`target`].
pub fn step(begin: &SuperBlock, now: &SuperBlock, blocks: u64) -> Result<SuperBlock, NoGrowth> {
    let old = now.geometry();
    let groups = (blocks - old.first_data_block).div_ceil(old.blocks_per_group.into());
    let whole = old.first_block_of_group(GroupNr(old.group_count)).0;
    let end = if old.blocks_count < whole {
        whole
    } else {
        let mut later = old.clone();
        later.group_count = u32::try_from(groups).unwrap_or(u32::MAX);
        let first = old.group_count;
        old.first_block_of_group(GroupNr(neighbours(&later, first, first).end)).0
    };
    let end = end.min(blocks);
    with_blocks(now, end, share(begin, begin.blocks_count, end), Backups::Stay)
}

/// The number of blocks for root in a file system of `blocks` blocks, in proportion to that in one of `of` blocks.
fn share(sb: &SuperBlock, of: u64, blocks: u64) -> u64 {
    (u128::from(sb.reserved_blocks()) * u128::from(blocks) / u128::from(of.max(1))) as u64
}

fn with_blocks(sb: &SuperBlock, blocks: u64, root_only: u64, moves: Backups) -> Result<SuperBlock, NoGrowth> {
    let old = sb.geometry();
    if blocks == old.blocks_count {
        return Ok(sb.clone());
    }
    if !old.bit64 && blocks > u64::from(u32::MAX) {
        return Err(NoGrowth::BlockNumbers { most: u64::from(u32::MAX) << old.block_bits });
    }
    let groups = (blocks - old.first_data_block).div_ceil(old.blocks_per_group.into());
    let inodes = groups.checked_mul(old.inodes_per_group.into()).and_then(|inodes| u32::try_from(inodes).ok());
    let inodes = inodes.ok_or(NoGrowth::InodeNumbers { per_group: old.inodes_per_group })?;
    let reserved = reserved_descriptors(sb, groups)?;
    let mut raw = *sb.raw();
    let wide = |count: u64| (count as u32, (count >> 32) as u32);
    let (low, high) = wide(blocks);
    raw.s_blocks_count_lo.set(low);
    if old.bit64 {
        raw.s_blocks_count_hi.set(high);
    }
    let (low, high) = wide(root_only);
    raw.s_r_blocks_count_lo.set(low);
    if old.bit64 {
        raw.s_r_blocks_count_hi.set(high);
    }
    raw.s_inodes_count.set(inodes);
    raw.s_reserved_gdt_blocks.set(reserved as u16);
    if let (BackupRule::Two(backups), Backups::Move) = (old.backups, moves) {
        let moved = moved_backups(old, backups, groups as u32);
        raw.s_backup_bgs[0].set(moved[0]);
        raw.s_backup_bgs[1].set(moved[1]);
    }
    if sb.ro_compat().contains(RoCompat::METADATA_CSUM) {
        let checksum = raw.compute_checksum();
        raw.s_checksum.set(checksum);
    }
    let larger = SuperBlock::decode(raw.as_bytes(), SUPERBLOCK_OFFSET).map_err(NoGrowth::Layout)?;
    if sb.compat().contains(Compat::RESIZE_INODE) {
        let pointers = u64::from(old.block_size / 4);
        let backups = larger.backup_groups().count() as u64;
        if backups > pointers || blocks > u64::from(u32::MAX) {
            return Err(NoGrowth::ResizeInode);
        }
    }
    Ok(larger)
}

/// The number of blocks that remain reserved for descriptors.
fn reserved_descriptors(sb: &SuperBlock, groups: u64) -> Result<u32, NoGrowth> {
    let old = sb.geometry();
    let has_inode = sb.compat().contains(Compat::RESIZE_INODE);
    if sb.incompat().contains(Incompat::META_BG) {
        return if has_inode { Err(NoGrowth::Descriptors) } else { Ok(old.reserved_gdt_blocks) };
    }
    let per_block = u64::from(old.descs_per_block());
    let more = groups.div_ceil(per_block).saturating_sub(old.desc_blocks.into());
    let there = if has_inode { old.reserved_gdt_blocks } else { 0 };
    match u32::try_from(more) {
        Ok(0) => Ok(old.reserved_gdt_blocks),
        Ok(more) if more <= there => Ok(old.reserved_gdt_blocks - more),
        _ => {
            let most = u64::from(old.desc_blocks + there) * per_block;
            let blocks = old.first_data_block + most * u64::from(old.blocks_per_group);
            Err(NoGrowth::DescriptorRoom { most: blocks << old.block_bits })
        }
    }
}

/// The groups with backups with `sparse_super2`. `mke2fs` puts the second into the last group; if it is there, it moves
/// to the new last group. With clusters it does not move, because the blocks that it would leave may share clusters
/// with others.
fn moved_backups(old: &Geometry, backups: [u32; 2], groups: u32) -> [u32; 2] {
    let mut moved = backups;
    let (was_last, is_last) = (old.group_count - 1, groups - 1);
    if was_last == is_last {
        return moved;
    }
    if was_last == 0 && moved[0] == 0 {
        moved[0] = 1;
    }
    let fills = old.group_count < 3 && groups > 2 && moved[1] == 0 && moved[0] != 0;
    let moves = moved[1] != 0 && moved[1] == was_last && old.cluster_bits == 0;
    if fills || moves {
        moved[1] = is_last;
    }
    moved
}
