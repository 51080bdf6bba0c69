//! Descriptors, bitmaps, and the places of bitmaps and tables.
//!
//! # Locking
//! None.

use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::inode::FileType;
use extant_ondisk::superblock::DescChecksum;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap, indirect, mmp};

use crate::error::{Refusal, StepResult};
use crate::view::Image;

fn desc(image: &Image, group: GroupNr) -> StepResult<GroupDesc> {
    image.descs.get(group.0 as usize).cloned().ok_or(Refusal::Lost("the group has no descriptor"))
}

fn set_desc(image: &mut Image, group: GroupNr, desc: GroupDesc) -> StepResult {
    image.descs[group.0 as usize] = desc;
    image.put_desc(group)
}

/// Rewrites a descriptor. Flags that need checksums are cleared if there are none; the counts are those of the files.
pub fn descriptor(image: &mut Image, group: GroupNr) -> StepResult {
    if image.geo.desc_checksum == DescChecksum::None {
        clear_flags(image, group)?;
    } else {
        let mut known = desc(image, group)?;
        // A flag in a damaged descriptor may be wrong.
        known.flags.remove(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
        known.itable_unused = known.itable_unused.min(unused(image, group, &known));
        set_desc(image, group, known)?;
    }
    recount(image, group)
}

/// The number of inodes at the end of a table that are zero.
fn unused(image: &Image, group: GroupNr, known: &GroupDesc) -> u32 {
    let per_group = image.geo.inodes_per_group;
    let last = (1..=per_group).rev().find(|index| {
        let ino = InodeNr(group.0 * per_group + index);
        image.inode(ino).map_or(true, |inode| !inode.is_zero())
    });
    if known.inode_table.0 == 0 { 0 } else { per_group - last.unwrap_or(0) }
}

/// Clears the flags and the count of unused inodes, which the encoder does not change without checksums.
pub fn clear_flags(image: &Image, group: GroupNr) -> StepResult {
    let (block, at) = image.geo.group_desc_block(group).ok_or(Refusal::Lost("the group has no descriptor"))?;
    let at = (block.0 << image.geo.block_bits) + at as u64;
    let mut bytes = image.bytes(at, image.geo.desc_size)?;
    for range in [0x12..0x14, 0x1c..0x20, 0x32..0x34] {
        if let Some(field) = bytes.get_mut(range) {
            field.fill(0);
        }
    }
    image.write(at, &bytes)
}

/// Moves the beginning of the unused part of a table so that it follows this inode.
pub fn open_table(image: &mut Image, ino: InodeNr) -> StepResult {
    let lost = Refusal::Lost("there is no such inode");
    let place = image.geo.inode_location(ino).map_err(|_| lost)?;
    let mut known = desc(image, place.group)?;
    known.flags.remove(GroupFlags::INODE_UNINIT);
    known.itable_unused = known.itable_unused.min(image.geo.inodes_per_group - place.index - 1);
    set_desc(image, place.group, known)
}

/// Sets the bitmaps, their checksums and the counts of a group as the files need them.
pub fn recount(image: &mut Image, group: GroupNr) -> StepResult {
    let mut known = desc(image, group)?;
    let blocks = image.facts.block_bitmap(group);
    let (inodes, directories) = image.facts.inode_bitmap(group);
    let geo = image.geo.clone();
    let clusters = geo.clusters_in_group(group);
    if known.flags.contains(GroupFlags::BLOCK_UNINIT) && initial(image, group)? == blocks {
        // The bitmap need not be written.
    } else {
        known.flags.remove(GroupFlags::BLOCK_UNINIT);
        write_bitmap(image, known.block_bitmap, &blocks)?;
        known.set_block_bitmap_csum(&blocks, &geo);
    }
    let is_empty = bitmap::is_clear(&inodes, 0..geo.inodes_per_group);
    if !(known.flags.contains(GroupFlags::INODE_UNINIT) && is_empty) {
        known.flags.remove(GroupFlags::INODE_UNINIT);
        write_bitmap(image, known.inode_bitmap, &inodes)?;
        known.set_inode_bitmap_csum(&inodes, &geo);
    }
    known.free_clusters = bitmap::count_zeros(&blocks, 0..clusters);
    known.free_inodes = bitmap::count_zeros(&inodes, 0..geo.inodes_per_group);
    known.used_dirs = directories;
    known.itable_unused = known.itable_unused.min(known.free_inodes);
    set_desc(image, group, known)
}

fn write_bitmap(image: &Image, place: BlockNr, bytes: &[u8]) -> StepResult {
    if place.0 == 0 {
        return Err(Refusal::Lost("the bitmap has no place"));
    }
    if image.block(place)? == bytes { Ok(()) } else { image.put_block(place, bytes) }
}

/// The initial block bitmap of a group whose bitmap was never written, computed from the layout.
fn initial(image: &Image, group: GroupNr) -> StepResult<Vec<u8>> {
    let mut bytes = vec![0; image.geo.block_size as usize];
    bitmap::init_block_bitmap(&mut bytes, group, image.descs.iter(), &image.geo);
    Ok(bytes)
}

/// Writes the places that the check took from a backup. A place that is still unknown, or that other metadata takes, is
/// chosen again: the place of mke2fs if that is free, otherwise a free block.
pub fn places(image: &mut Image, group: GroupNr) -> StepResult {
    // If two tables are in the same place, the one that mke2fs would not put there is in the wrong place.
    let astray = tables_astray(image, group);
    for other in &astray {
        own_places(image, *other)?;
    }
    if astray.is_empty() {
        own_places(image, group)?;
    }
    // A bitmap of another group on the table is moved, because its content is known.
    for other in bitmaps_on_table(image, group) {
        own_places(image, other)?;
    }
    Ok(())
}

/// The places in which mke2fs puts a group's bitmaps and table. Of the places that its versions choose, those that
/// agree with more of the nearby descriptors are returned.
fn usual_places(image: &Image, group: GroupNr) -> [BlockNr; 3] {
    const NEAR: u32 = 64;
    let [new, old] = image.geo.default_tables(group);
    if new == old {
        return new;
    }
    let mut agree = [0, 0];
    for other in (group.0.saturating_sub(NEAR)..group.0.saturating_add(NEAR)).map(GroupNr) {
        let Some(desc) = image.descs.get(other.0 as usize) else { break };
        let now = [desc.block_bitmap, desc.inode_bitmap, desc.inode_table];
        for (count, places) in agree.iter_mut().zip(image.geo.default_tables(other)) {
            *count += now.iter().zip(&places).filter(|(now, place)| now == place).count();
        }
    }
    if agree[1] > agree[0] { old } else { new }
}

/// The groups whose tables are not where mke2fs puts them.
pub fn unusual(image: &Image) -> impl Iterator<Item = GroupNr> + '_ {
    let all = image.geo.groups().zip(&image.descs);
    all.filter(|(group, desc)| !is_usual(image, *group, desc)).map(|(group, _)| group)
}

/// Sets the places of a group's bitmaps and table to those where mke2fs puts them.
pub fn usual(image: &mut Image, group: GroupNr) -> StepResult {
    let mut known = desc(image, group)?;
    [known.block_bitmap, known.inode_bitmap, known.inode_table] = usual_places(image, group);
    set_desc(image, group, known)
}

/// Whether a group's table is where mke2fs puts it.
fn is_usual(image: &Image, group: GroupNr, desc: &GroupDesc) -> bool {
    usual_places(image, group)[2] == desc.inode_table
}

/// The other groups whose tables overlap this group's table, if this one is in its usual place and theirs are not.
fn tables_astray(image: &Image, group: GroupNr) -> Vec<GroupNr> {
    let len = u64::from(image.geo.inode_table_blocks);
    let Some(own) = image.descs.get(group.0 as usize).filter(|own| is_usual(image, group, own)) else {
        return Vec::new();
    };
    let meets = |desc: &GroupDesc| desc.inode_table.0 != 0 && desc.inode_table.0.abs_diff(own.inode_table.0) < len;
    let others = image.geo.groups().zip(&image.descs).filter(|(other, desc)| *other != group && meets(desc));
    others.filter(|(other, desc)| !is_usual(image, *other, desc)).map(|(other, _)| other).collect()
}

/// The other groups with a bitmap on this group's table.
fn bitmaps_on_table(image: &Image, group: GroupNr) -> Vec<GroupNr> {
    let start = image.descs.get(group.0 as usize).map_or(0, |desc| desc.inode_table.0);
    let table = start..start + u64::from(image.geo.inode_table_blocks);
    let lies_there = |desc: &GroupDesc| [desc.block_bitmap.0, desc.inode_bitmap.0].iter().any(|at| table.contains(at));
    let others = image.geo.groups().zip(&image.descs).filter(|(other, desc)| *other != group && lies_there(desc));
    others.map(|(other, _)| other).take_while(|_| start != 0).collect()
}

fn own_places(image: &mut Image, group: GroupNr) -> StepResult {
    let mut known = desc(image, group)?;
    let stored = stored_places(image, group)?;
    let now = [known.block_bitmap, known.inode_bitmap, known.inode_table];
    if stored != now && now.iter().all(|block| block.0 != 0) {
        return set_desc(image, group, known);
    }
    let usual = usual_places(image, group);
    let table = u64::from(image.geo.inode_table_blocks);
    for (which, (block, len)) in [(0, (usual[0], 1)), (1, (usual[1], 1)), (2, (usual[2], table))] {
        let place = [known.block_bitmap, known.inode_bitmap, known.inode_table][which];
        let taken = place.0 == 0 || overlaps(image, (group, which), &known, (place, len));
        if !taken {
            continue;
        }
        let fresh = if is_free(image, block, len) {
            block
        } else if which < 2 {
            image.take_block(usual[which])?
        } else {
            return Err(Refusal::Lost("the inode table is lost, and its usual place is taken"));
        };
        match which {
            0 => known.block_bitmap = fresh,
            1 => known.inode_bitmap = fresh,
            _ => known.inode_table = fresh,
        }
    }
    set_desc(image, group, known)
}

/// The places in the descriptor on the device.
fn stored_places(image: &Image, group: GroupNr) -> StepResult<[BlockNr; 3]> {
    let (block, at) = image.geo.group_desc_block(group).ok_or(Refusal::Lost("the group has no descriptor"))?;
    let bytes = image.bytes((block.0 << image.geo.block_bits) + at as u64, image.geo.desc_size)?;
    let stored = GroupDesc::parse(&bytes, group, &image.geo).map_err(|_| Refusal::Lost("the descriptor is cut off"))?;
    Ok([stored.block_bitmap, stored.inode_bitmap, stored.inode_table])
}

/// Whether neither a file nor metadata uses the blocks. Metadata may share a cluster.
fn is_free(image: &Image, first: BlockNr, blocks: u64) -> bool {
    let bits = image.geo.cluster_bits;
    let is_metadata = |mut blocks: std::ops::Range<u64>| blocks.any(|block| image.facts.is_metadata(BlockNr(block)));
    let has_room = |cluster: u64| {
        let claimed = image.facts.is_claimed(cluster..cluster + 1);
        !claimed || is_metadata(cluster << bits..(cluster + 1) << bits) && !image.facts.is_shared(cluster..cluster + 1)
    };
    image.can_have(first, blocks)
        && !is_metadata(first.0..first.0 + blocks)
        && image.facts.clusters(first, blocks).all(has_room)
}

/// Whether a piece of a group's metadata overlaps another piece, or copies of superblock and descriptors. `own` is the
/// group's future descriptor. A table is kept in its place and a bitmap on it is moved, because its content is known.
fn overlaps(image: &Image, (group, which): (GroupNr, usize), own: &GroupDesc, (first, blocks): (BlockNr, u64)) -> bool {
    let end = first.0 + blocks;
    let meets = |start: u64, len: u64| start != 0 && first.0 < start + len && start < end;
    let table = u64::from(image.geo.inode_table_blocks);
    let others = image.descs.iter().enumerate().any(|(at, desc)| {
        let is_own = at == group.0 as usize;
        let desc = if is_own { own } else { desc };
        let pieces = [(desc.block_bitmap, 1), (desc.inode_bitmap, 1), (desc.inode_table, table)];
        let rivals = pieces.iter().enumerate().filter(|(piece, _)| which < 2 || *piece == 2);
        rivals.into_iter().any(|(piece, (start, len))| !(is_own && piece == which) && meets(start.0, *len))
    });
    let fixed = || {
        let mut bases =
            image.geo.groups().flat_map(|group| image.geo.base_metadata(group).ranges().collect::<Vec<_>>());
        bases.any(|(start, count)| meets(start.0, count.into()))
    };
    others || fixed()
}

/// Makes the resize inode map the blocks that are reserved for descriptors, and their copies in the groups with
/// backups, through one double indirect block (e2fsprogs: `ext2fs_create_resize_inode`).
pub fn resize_inode(image: &mut Image) -> StepResult {
    const DOUBLE: usize = 13;
    let (geo, ino) = (image.geo.clone(), InodeNr::RESIZE);
    let lost = Refusal::Lost("the reserved blocks lie behind those that its map can name");
    let (size, pointers) = (geo.block_size as usize, geo.block_size / indirect::POINTER_BYTES as u32);
    let first = geo.super_location(GroupNr(0)).0.0 + 1 + u64::from(geo.desc_blocks);
    let reserved = geo.reserved_gdt_blocks;
    let old = indirect::pointer(&image.inode(ino)?.raw.i_block, DOUBLE).map(|block| BlockNr(block.into()));
    let slot = |step: u32| ((geo.desc_blocks + step) % pointers) as usize;
    // A block that refers to the first reserved one belongs to the resize inode.
    let is_own = |block: &BlockNr| {
        let plain = image.can_have(*block, 1) && !image.facts.is_metadata(*block);
        let bytes = if plain { image.block(*block).ok() } else { None };
        let names = bytes.and_then(|bytes| indirect::pointer(&bytes, slot(0)));
        names.is_some_and(|named| u64::from(named) == first) && !image.facts.is_shared(image.facts.clusters(*block, 1))
    };
    let double = match old.filter(is_own) {
        Some(block) => block,
        None => image.take_block(BlockNr(first))?,
    };
    let name = |bytes: &mut [u8], slot: usize, block: u64| match u32::try_from(block) {
        Ok(block) if indirect::set_pointer(bytes, slot, block) => Ok(()),
        _ => Err(lost.clone()),
    };
    let mut root = vec![0; size];
    for step in 0..reserved {
        let block = first + u64::from(step);
        name(&mut root, slot(step), block)?;
        let mut copies = vec![0; size];
        for (at, group) in geo.backup_groups().enumerate() {
            name(&mut copies, at, block + u64::from(group.0) * u64::from(geo.blocks_per_group))?;
        }
        image.put_block(BlockNr(block), &copies)?;
    }
    image.put_block(double, &root)?;
    super::inodes::fresh(image, ino, FileType::Regular, 0o600, 1)?;
    let blocks = u64::from(pointers) * u64::from(pointers) + u64::from(pointers) + u64::from(indirect::DIRECT);
    let clusters = 1 + u64::from(reserved) * (1 + geo.backup_groups().count() as u64);
    let mut i_block = [0; 60];
    name(&mut i_block, DOUBLE, double.0)?;
    image.change_inode(ino, |raw| {
        raw.i_flags.set(0);
        raw.i_block = i_block;
        raw.i_size_lo.set((blocks * size as u64) as u32);
        raw.i_size_high.set(((blocks * size as u64) >> 32) as u32);
        raw.i_blocks_lo.set(((clusters << geo.cluster_bits) << (geo.block_bits - 9)) as u32);
    })
}

/// Rewrites the block of multi-mount protection, which then says that no mount uses the file system: the current block,
/// or a free one if that is impossible.
pub fn multi_mount(image: &mut Image) -> StepResult {
    let stored = BlockNr(image.sb.raw().s_mmp_block.get());
    let block = match image.can_have(stored, 1) {
        true => stored,
        false => image.take_block(image.geo.first_block_of_group(GroupNr(0)))?,
    };
    let mut bytes = vec![0; image.geo.block_size as usize];
    mmp::fill_clean(&image.sb, &mut bytes);
    image.put_block(block, &bytes)?;
    image.change_super(|raw| raw.s_mmp_block.set(block.0))
}
