//! Writes the structures of a larger file system beside the device.
//!
//! Main function: [`enlarge`]: the old last group gets longer, new groups get bitmaps, tables and descriptors, and the
//! copies of superblock and descriptors and the resize inode follow.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::features::Compat;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::superblock::{DescChecksum, Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap, indirect};

use super::CannotGrow;
use super::place::{Tables, neighbours, place};
use crate::error::{Done, Refusal};
use crate::view::Image;

/// The slot of the resize inode's double indirect block, the only one in use.
const DOUBLE: usize = 13;
/// Bytes of an inode table that are zeroed at once.
const ZERO_BYTES: u64 = 1 << 20;

/// Writes the file system of `old` with the layout of `sb` to the changes of its device.
pub fn enlarge(old: &Image, sb: SuperBlock) -> Result<(), CannotGrow> {
    let first_new = old.geo.group_count;
    let mut new = old.with(old.device.clone());
    (new.geo, new.sb) = (sb.geometry().clone(), sb);
    let freed = lengthen_last(old, &mut new)?;
    let tables = place(&new.geo, first_new).ok_or(CannotGrow::Tables)?;
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
/// how many clusters that backup had.
fn lengthen_last(old: &Image, new: &mut Image) -> Done<u64> {
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

/// Makes the new groups, all but their descriptors on the device. Returns the clusters that they take.
fn add_groups(new: &mut Image, first_new: u32, tables: &[Tables]) -> Done<u64> {
    let geo = new.geo.clone();
    let has_flags = geo.desc_checksum != DescChecksum::None;
    for [block_bitmap, inode_bitmap, inode_table] in tables.iter().copied() {
        new.descs.push(GroupDesc {
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
        });
    }
    let mut taken = 0;
    let mut bits = vec![0; geo.block_size as usize];
    for group in (first_new..geo.group_count).map(GroupNr) {
        let around = neighbours(&geo, first_new, group.0);
        let others = around.clone().filter(|other| *other != group.0);
        let is_host = others.map(|other| &new.descs[other as usize]).any(|desc| lies_in(&geo, desc, group));
        bitmap::init_block_bitmap(&mut bits, group, &new.descs[around.start as usize..around.end as usize], &geo);
        let mut desc = new.descs[group.0 as usize].clone();
        let clusters = geo.clusters_in_group(group);
        desc.free_clusters = bitmap::count_zeros(&bits, 0..clusters);
        taken += u64::from(clusters - desc.free_clusters);
        // A kernel that makes such a bitmap itself knows only the group's own tables.
        if has_flags && !is_host && group.0 + 1 < geo.group_count {
            desc.flags.insert(GroupFlags::BLOCK_UNINIT);
        } else {
            desc.set_block_bitmap_csum(&bits, &geo);
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
        new.descs[group.0 as usize] = desc;
    }
    Ok(taken)
}

/// Whether a piece of another group's lies in this one.
fn lies_in(geo: &Geometry, desc: &GroupDesc, group: GroupNr) -> bool {
    let first = geo.first_block_of_group(group).0;
    let end = first + u64::from(geo.blocks_in_group(group));
    let table = desc.inode_table.0..desc.inode_table.0 + u64::from(geo.inode_table_blocks);
    let bitmaps = [desc.block_bitmap.0, desc.inode_bitmap.0];
    bitmaps.iter().any(|block| (first..end).contains(block)) || (table.start < end && first < table.end)
}

fn table_bytes(geo: &Geometry, desc: &GroupDesc) -> std::ops::Range<u64> {
    let start = desc.inode_table.0 << geo.block_bits;
    start..start + (u64::from(geo.inode_table_blocks) << geo.block_bits)
}

/// Whether the device is known to have nothing but zeros in the place of an inode table.
fn is_zero(new: &Image, desc: &GroupDesc) -> Done<bool> {
    let table = table_bytes(&new.geo, desc);
    Ok(new.device.base().next_data(table.start)?.is_none_or(|data| data >= table.end))
}

/// Zeroes an inode table.
fn zero_table(new: &Image, desc: &GroupDesc) -> Done {
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
fn write_descs(old: &Image, new: &Image) -> Done {
    let geo = &new.geo;
    let (per_block, first_new) = (geo.descs_per_block(), old.geo.group_count);
    let first_changed = first_new - 1;
    let backups: Vec<GroupNr> = geo.backup_groups().collect();
    for index in 0..geo.desc_blocks {
        let place = geo.desc_table_block(index).ok_or(Refusal::Lost("the descriptors have no place"))?;
        let mut bytes = match index < old.geo.desc_blocks {
            true => new.block(place)?,
            // A reserved block has pointers of the resize inode in it.
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

/// Makes the resize inode name what is still reserved, and its copies.
fn resize_inode(new: &Image) -> Done {
    let geo = &new.geo;
    if !new.sb.compat().contains(Compat::RESIZE_INODE) {
        return Ok(());
    }
    let inode = new.inode(InodeNr::RESIZE)?;
    let double = BlockNr(indirect::pointer(&inode.raw.i_block, DOUBLE).unwrap_or(0).into());
    if !new.can_have(double, 1) {
        return Err(Refusal::Lost("the resize inode has no double indirect block"));
    }
    let size = geo.block_size as usize;
    let per_block = geo.block_size / 4;
    let backups: Vec<GroupNr> = geo.backup_groups().collect();
    let first = geo.super_location(GroupNr(0)).0.0 + 1 + u64::from(geo.desc_blocks);
    let mut firsts = vec![0; size];
    for step in 0..geo.reserved_gdt_blocks {
        let block = first + u64::from(step);
        let slot = (geo.desc_blocks + step) % per_block;
        let mut fits = indirect::set_pointer(&mut firsts, slot as usize, block as u32);
        let mut copies = vec![0; size];
        for (slot, group) in backups.iter().enumerate() {
            let copy = block + u64::from(group.0) * u64::from(geo.blocks_per_group);
            fits &= indirect::set_pointer(&mut copies, slot, copy as u32);
        }
        if !fits {
            return Err(Refusal::Lost("the resize inode's blocks have too few pointers"));
        }
        new.put_block(BlockNr(block), &copies)?;
    }
    new.put_block(double, &firsts)?;
    let blocks = 1 + u64::from(geo.reserved_gdt_blocks) * (1 + backups.len() as u64);
    let sectors = (blocks << geo.cluster_bits) * u64::from(geo.block_size / 512);
    new.change_inode(InodeNr::RESIZE, |raw| raw.i_blocks_lo.set(sectors as u32))
}

/// Writes the superblock and its copies.
fn write_supers(old: &Image, new: &mut Image) -> Done {
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
