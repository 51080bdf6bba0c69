//! Recomputes all checksums of a file system's metadata with the seed that the superblock now has.
//!
//! Main functions: [`everything`], [`descriptors`].
//!
//! # Locking
//! None.

use std::collections::BTreeSet;

use extant_ondisk::extent::NodeMut;
use extant_ondisk::features::Incompat;
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::inode::{is_zeros, update_checksum};
use extant_ondisk::map::Form;
use extant_ondisk::{BlockNr, GroupNr, InodeNr, orphan, xattr};

use crate::apply::{directories, groups};
use crate::error::{Refusal, StepResult};
use crate::view::Image;

/// Recomputes the checksums of inodes, maps, directories, attributes, the orphan file, bitmaps and descriptors.
pub fn everything(image: &mut Image) -> StepResult {
    let mut shared = BTreeSet::new();
    for group in image.geo.groups() {
        table(image, group)?;
        for ino in inodes(image, group) {
            content(image, ino, &mut shared)?;
        }
    }
    if image.sb.incompat().contains(Incompat::MMP) {
        groups::multi_mount(image)?;
    }
    bitmaps(image)?;
    descriptors(image)
}

/// The inodes of a group in the part of the table that was ever used.
fn inodes(image: &Image, group: GroupNr) -> impl Iterator<Item = InodeNr> + use<> {
    let per_group = image.geo.inodes_per_group;
    let desc = &image.descs[group.0 as usize];
    let used = match desc.flags.contains(GroupFlags::INODE_UNINIT) {
        true => 0,
        false => per_group - desc.itable_unused.min(per_group),
    };
    (0..used).map(move |index| InodeNr(group.0 * per_group + index + 1))
}

/// Recomputes the checksums of a group's inodes, block by block. An inode of zeros has no checksum.
fn table(image: &Image, group: GroupNr) -> StepResult {
    let (size, per_block) = (image.geo.inode_size, image.geo.inodes_per_block());
    let start = image.descs[group.0 as usize].inode_table.0;
    let all: Vec<InodeNr> = inodes(image, group).collect();
    for (index, chunk) in all.chunks(per_block as usize).enumerate() {
        let block = BlockNr(start + index as u64);
        let mut bytes = image.block(block)?;
        let mut is_changed = false;
        for (ino, bytes) in chunk.iter().zip(bytes.chunks_mut(size)) {
            if !is_zeros(bytes) {
                update_checksum(bytes, *ino, &image.geo);
                is_changed = true;
            }
        }
        if is_changed {
            image.put_block(block, &bytes)?;
        }
    }
    Ok(())
}

/// Recomputes the checksums in the blocks of one inode. `shared` are the blocks of attributes that are done.
fn content(image: &mut Image, ino: InodeNr, shared: &mut BTreeSet<u64>) -> StepResult {
    let inode = image.inode(ino)?;
    if inode.links() == 0 {
        return Ok(());
    }
    let fs_seed = image.geo.metadata_csum.then(|| image.geo.seed.raw());
    if let Some(block) = inode.file_acl(image).filter(|block| shared.insert(block.0)) {
        let mut bytes = image.block(block)?;
        xattr::seal_block(&mut bytes, block, fs_seed);
        image.put_block(block, &bytes)?;
    }
    let mapped = image.map(&inode);
    let seed = image.seed(ino, inode.generation());
    if inode.form(image) == Form::Extents {
        for block in &mapped.nodes {
            let mut bytes = image.block(*block)?;
            let lost = |_| Refusal::Lost("a block of a map is no node");
            NodeMut::parse(&mut bytes, block.0).map_err(lost)?.seal(seed.map(|seed| seed.raw()));
            image.put_block(*block, &bytes)?;
        }
    }
    if inode.is_dir() {
        directories::reseal(image, &inode)?;
    }
    if image.sb.orphan_file() == Some(ino) {
        for (_, block) in mapped.blocks() {
            let mut bytes = image.block(block)?;
            orphan::update_checksum(&mut bytes, block, seed);
            image.put_block(block, &bytes)?;
        }
    }
    Ok(())
}

/// Recomputes the checksums of bitmaps, which are in the descriptors.
fn bitmaps(image: &mut Image) -> StepResult {
    let geo = image.geo.clone();
    for at in 0..image.descs.len() {
        let mut desc = image.descs[at].clone();
        if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let bytes = image.block(desc.block_bitmap)?;
            desc.set_block_bitmap_csum(&bytes, &geo);
        }
        if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
            let bytes = image.block(desc.inode_bitmap)?;
            desc.set_inode_bitmap_csum(&bytes, &geo);
        }
        image.descs[at] = desc;
    }
    Ok(())
}

/// Writes all descriptors, and their copies.
pub fn descriptors(image: &Image) -> StepResult {
    let geo = &image.geo;
    let per_block = geo.descs_per_block();
    let backups: Vec<GroupNr> = geo.backup_groups().collect();
    for index in 0..geo.desc_blocks {
        let place = geo.desc_table_block(index).ok_or(Refusal::Lost("the descriptors have no place"))?;
        let mut bytes = image.block(place)?;
        for group in index * per_block..(index + 1).saturating_mul(per_block).min(geo.group_count) {
            let at = (group - index * per_block) as usize * geo.desc_size;
            image.descs[group as usize].encode_into(&mut bytes[at..], GroupNr(group), geo);
        }
        image.put_block(place, &bytes)?;
        for copy in geo.desc_block_copies(index, &backups) {
            image.put_block(copy, &bytes)?;
        }
    }
    Ok(())
}
