//! Writes the structures of a larger file system to an overlay.
//!
//! Main function: [`enlarge`]: makes the old last group longer, creates bitmaps, tables and descriptors of new groups,
//! and updates the copies of superblock and descriptors and the resize inode.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::Compat;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::growth::{ReservedBlocks, Tables, neighbours, new_group, place};
use extant_ondisk::superblock::{DescChecksum, Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap, indirect};

use super::CannotGrow;
use crate::error::{Refusal, StepResult};
use crate::view::Image;

/// The number of bytes of an inode table that are zeroed at once.
const ZERO_BYTES: u64 = 1 << 20;

/// Writes the file system of `old` with the layout of `sb` to the changes of its device.
pub fn enlarge(old: &Image, sb: SuperBlock) -> Result<(), CannotGrow> {
    let first_new = old.geo.group_count;
    let mut new = old.with(old.device.clone());
    (new.geo, new.sb) = (sb.geometry().clone(), sb);
    let freed = lengthen_last(old, &mut new)?;
    let tables = place(&new.geo, first_new)?;
    let taken = add_groups(&mut new, first_new, &tables)?;
    write_descs(old, &new)?;
    resize_inode(&new)?;
    let overhead = u64::from(old.sb.raw().s_overhead_clusters.get());
    if overhead != 0 {
        new.sb.set_overhead_clusters((overhead + taken).saturating_sub(freed));
    }
    write_supers(old, &mut new)?;
    Ok(())
}

/// Clears the bits of the blocks that the last group gets, and of a backup that moves to the new last group. Returns
/// the number of clusters of that backup.
fn lengthen_last(old: &Image, new: &mut Image) -> StepResult<u64> {
    let group = GroupNr(old.geo.group_count - 1);
    let (was, is) = (old.geo.clusters_in_group(group), new.geo.clusters_in_group(group));
    let moves = old.geo.has_super_backup(group) && !new.geo.has_super_backup(group);
    if was == is && !moves {
        return Ok(0);
    }
    let mut desc = new.descs.pop().ok_or(Refusal::Lost("the last group has no descriptor"))?;
    let mut bits = vec![0; old.geo.block_size as usize];
    match desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
        true => bitmap::init_block_bitmap(&mut bits, group, &old.descs, &old.geo),
        false => bits = new.block(desc.block_bitmap)?,
    }
    bitmap::clear_range(&mut bits, was..is);
    let mut freed = 0;
    if moves {
        let first = old.geo.first_block_of_group(group).0;
        for (start, count) in old.geo.base_metadata(group).ranges() {
            let from = (start.0 - first) as u32;
            bitmap::clear_range(&mut bits, from..from + count);
            freed += u64::from(count);
        }
    }
    desc.free_clusters = bitmap::count_zeros(&bits, 0..is);
    desc.flags.remove(GroupFlags::BLOCK_UNINIT);
    desc.set_block_bitmap_csum(&bits, &new.geo);
    new.put_block(desc.block_bitmap, &bits)?;
    new.descs.push(desc);
    Ok(freed)
}

/// Creates the new groups, except for their descriptors on the device. Returns the number of clusters that they take.
fn add_groups(new: &mut Image, first_new: u32, tables: &[Tables]) -> StepResult<u64> {
    let geo = new.geo.clone();
    let has_flags = geo.desc_checksum != DescChecksum::None;
    let mut taken = 0;
    let mut bits = vec![0; geo.block_size as usize];
    for group in (first_new..geo.group_count).map(GroupNr) {
        let around = neighbours(&geo, first_new, group.0);
        let first = GroupNr(around.start);
        let around = &tables[(around.start - first_new) as usize..(around.end - first_new) as usize];
        let mut desc = new_group(&geo, group, first, around, &mut bits);
        taken += u64::from(geo.clusters_in_group(group) - desc.free_clusters);
        if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            new.put_block(desc.block_bitmap, &bits)?;
        }
        if is_zero(new, &desc)? {
            desc.flags.set(GroupFlags::INODE_ZEROED, has_flags);
        } else if !has_flags {
            zero_table(new, &desc)?;
        }
        if !has_flags {
            bitmap::init_inode_bitmap(&mut bits, &geo);
            new.put_block(desc.inode_bitmap, &bits)?;
        }
        new.descs.push(desc);
    }
    Ok(taken)
}

fn table_bytes(geo: &Geometry, desc: &GroupDesc) -> std::ops::Range<u64> {
    let start = desc.inode_table.0 << geo.block_bits;
    start..start + (u64::from(geo.inode_table_blocks) << geo.block_bits)
}

/// Whether the device is known to contain only zeros in the place of an inode table.
fn is_zero(new: &Image, desc: &GroupDesc) -> StepResult<bool> {
    let table = table_bytes(&new.geo, desc);
    Ok(new.device.base().next_data(table.start)?.is_none_or(|data| data >= table.end))
}

/// Zeroes an inode table.
fn zero_table(new: &Image, desc: &GroupDesc) -> StepResult {
    let table = table_bytes(&new.geo, desc);
    let zeros = vec![0; ZERO_BYTES as usize];
    let mut at = table.start;
    while at < table.end {
        let len = ZERO_BYTES.min(table.end - at);
        new.device.write_at(at, &[&zeros[..len as usize]], BioFlags::META)?;
        at += len;
    }
    Ok(())
}

/// Writes descriptors and their copies.
fn write_descs(old: &Image, new: &Image) -> StepResult {
    let geo = &new.geo;
    let (per_block, first_new) = (geo.descs_per_block(), old.geo.group_count);
    let first_changed = first_new - 1;
    let backups: Vec<GroupNr> = geo.backup_groups().collect();
    for index in 0..geo.desc_blocks {
        let place = geo.desc_table_block(index).ok_or(Refusal::Lost("the descriptors have no place"))?;
        let mut bytes = match index < old.geo.desc_blocks {
            true => new.block(place)?,
            // A reserved block contains pointers of the resize inode.
            false => vec![0; geo.block_size as usize],
        };
        let groups = index * per_block..(index + 1).saturating_mul(per_block).min(geo.group_count);
        let is_changed = groups.end > first_changed;
        for group in groups.start.max(first_changed)..groups.end {
            let at = (group - groups.start) as usize * geo.desc_size;
            new.descs[group as usize].encode_into(&mut bytes[at..], GroupNr(group), geo);
        }
        for copy in geo.desc_block_copies(index, &backups) {
            if is_changed || copy.0 >= old.geo.blocks_count {
                new.put_block(copy, &bytes)?;
            }
        }
    }
    Ok(())
}

/// Makes the resize inode map the blocks that are still reserved, and their copies.
fn resize_inode(new: &Image) -> StepResult {
    let geo = &new.geo;
    if !new.sb.compat().contains(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let inode = new.inode(InodeNr::RESIZE)?;
    let double = BlockNr(indirect::pointer(&inode.raw.i_block, ReservedBlocks::DOUBLE).unwrap_or(0).into());
    if !new.can_have(double, 1) {
        return Err(Refusal::Lost("the resize inode has no double indirect block"));
    }
    let reserved = ReservedBlocks::new(geo);
    let few =
        Refusal::Lost("the reserved descriptor blocks and their copies do not fit into the resize inode's pointers");
    for block in reserved.blocks() {
        new.put_block(block, &reserved.copies(block).ok_or(few.clone())?)?;
    }
    new.put_block(double, &reserved.double().ok_or(few)?)?;
    let sectors = reserved.sectors();
    new.change_inode(InodeNr::RESIZE, |raw| raw.i_blocks_lo.set(sectors))
}

/// Writes the superblock and its copies.
fn write_supers(old: &Image, new: &mut Image) -> StepResult {
    let clusters: u64 = new.descs.iter().map(|desc| u64::from(desc.free_clusters)).sum();
    let inodes: u64 = new.descs.iter().map(|desc| u64::from(desc.free_inodes)).sum();
    new.sb.set_free_blocks(clusters << new.geo.cluster_bits);
    new.sb.set_free_inodes(inodes.min(u32::MAX.into()) as u32);
    new.sb.set_write_time(new.now);
    for group in new.geo.backup_groups() {
        let (block, _) = new.geo.super_location(group);
        let mut bytes = match block.0 < old.geo.blocks_count {
            true => new.block(block)?,
            false => vec![0; new.geo.block_size as usize],
        };
        new.sb.backup_for(group).encode_into(&mut bytes);
        new.put_block(block, &bytes)?;
    }
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    new.sb.encode_into(&mut bytes);
    new.write(SUPERBLOCK_OFFSET, &bytes)
}
