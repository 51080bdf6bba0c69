//! A smaller file system: everything after the new end is moved, and the groups there are removed.
//!
//! Main function: [`shrink`]. Main types: [`ShrinkTarget`], [`CannotShrink`].
//!
//! Inodes of the removed groups get new numbers; blocks after the new end are copied to free blocks before it. Bitmaps
//! and counts are then created from the results of a check.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_check::{Options, Problem};
use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::superblock::{BackupRule, Geometry, RawSuperBlock, SUPERBLOCK_OFFSET, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use zerocopy::IntoBytes;

use super::Growth;
use super::content::{Content, behind};
use super::plan::{fits, plan};
use super::relocate::relocate;
use super::renumber::{Numbers, carry_out};
use crate::apply::{groups, quota, super_block};
use crate::error::{Error, Refusal, StepResult};
use crate::prove::FreshBlocks;
use crate::sound::{Sound, Unsound, look, prove};
use crate::tune::reseal;
use crate::view::inode::BAD_BLOCKS;
use crate::view::{Image, seal_super};

/// The minimum number of blocks for files in the last group.
const LAST_GROUP_FREE_MIN: u64 = 50;

/// The size of a smaller file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShrinkTarget {
    /// At most this many bytes.
    To(u64),
    /// The smallest size for its files, with their inodes and the tables of its groups.
    Least,
}

/// The reason why a file system does not shrink. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum CannotShrink {
    /// It is damaged, or cannot be checked.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// The remaining groups have too few free inodes.
    #[error("{moving} files would get other inodes, and the groups that stay have {there} that are free")]
    Inodes {
        /// The number of inodes of the removed groups.
        moving: usize,
        /// The number of free inodes in the remaining groups.
        there: usize,
    },
    /// Something that cannot be moved is after the new end.
    #[error("{0}")]
    Fixed(&'static str),
    /// The content does not fit.
    #[error("its files do not fit into so few blocks")]
    Room,
    /// The numbers break a rule of the format.
    #[error("the smaller layout is not valid: {0}")]
    Layout(extant_ondisk::Error),
    /// The check of the result found damage, which is a fault of this program.
    #[error("the smaller file system would be damaged, which is a fault of extant: {first}")]
    Unproved {
        /// The first finding.
        first: String,
    },
    /// A structure cannot be changed.
    #[error("{0}")]
    Step(String),
    /// A device or the check failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Refusal> for CannotShrink {
    fn from(refusal: Refusal) -> CannotShrink {
        match refusal {
            Refusal::Device(e) => CannotShrink::Failed(e.into()),
            Refusal::NoBlock => CannotShrink::Room,
            other => CannotShrink::Step(other.to_string()),
        }
    }
}

/// Makes the file system on `device` smaller, and checks the result. The check's time becomes that of the last write.
/// `None` if it is not larger than that, and nothing changed.
///
/// # Errors
/// [`CannotShrink`]; the changes must then not be used.
pub fn shrink(device: Arc<CowDevice>, check: &Options, size: ShrinkTarget) -> Result<Option<Growth>, CannotShrink> {
    let Sound { image: old, report, replayed } = Sound::open(&device, check)?;
    let (sb, contents) = match size {
        ShrinkTarget::To(bytes) => {
            let Some(sb) = target(&old, bytes, false)? else { return Ok(None) };
            refuse(&old)?;
            let contents = behind(&old, sb.blocks_count)?;
            // The smallest size, given as a number, fits if at most as much is reserved as with
            // [`ShrinkTarget::Least`].
            let narrow = if fits(&old, sb.geometry(), &contents) { None } else { target(&old, bytes, true)? };
            (narrow.unwrap_or(sb), contents)
        }
        ShrinkTarget::Least => {
            refuse(&old)?;
            let mut contents = behind(&old, 0)?;
            let Some(sb) = least(&old, &contents) else { return Ok(None) };
            contents.retain(|content| content.is_behind(sb.blocks_count));
            (sb, contents)
        }
    };
    let (before, after) = (old.geo.clone(), sb.geometry().clone());
    let fresh = if replayed == 0 { FreshBlocks::Unclaimed(old.facts.clone()) } else { FreshBlocks::Nothing };
    let renumbered = make(&old, &device, sb, &contents)?;
    count(&device, check)?;
    let outcome = prove(device, check, (report, replayed), fresh)?;
    let outcome = outcome.map_err(|first| CannotShrink::Unproved { first })?;
    Ok(Some(Growth { outcome, before, after, renumbered }))
}

/// Moves inodes and blocks, and writes the smaller layout. Returns how many inodes have a new number.
fn make(old: &Image, device: &Arc<CowDevice>, sb: SuperBlock, contents: &[Content]) -> Result<usize, CannotShrink> {
    let mut new = old.with(device.clone());
    (new.geo, new.sb) = (sb.geometry().clone(), sb);
    new.descs.truncate(new.geo.group_count as usize);
    check_fixed(old, &new.geo)?;
    let numbers = Numbers::new(old, &new.geo)?;
    let plan = plan(old, &new.geo, contents).ok_or(CannotShrink::Room)?;
    write_super(&new)?;
    carry_out(old, &mut new, &numbers)?;
    relocate(old, &mut new, contents, plan, &numbers)?;
    if let Some(block) = mmp_behind(old, new.geo.blocks_count) {
        let place = new.take_block(BlockNr(0))?;
        new.put_block(place, &old.block(block)?)?;
        new.change_super(|raw| raw.s_mmp_block.set(place.0))?;
    }
    if new.sb.compat().contains(Compat::RESIZE_INODE) {
        groups::resize_inode(&mut new)?;
    }
    reseal::descriptors(&new)?;
    Ok(numbers.len())
}

/// The block of multi-mount protection, if it is after the end.
pub fn mmp_behind(old: &Image, end: u64) -> Option<BlockNr> {
    let block = BlockNr(old.sb.raw().s_mmp_block.get());
    (old.sb.incompat().contains(Incompat::MMP) && block.0 >= end).then_some(block)
}

/// Creates usage, bitmaps and counts from the results of a check.
fn count(device: &Arc<CowDevice>, check: &Options) -> Result<(), CannotShrink> {
    let lost = || CannotShrink::Step("the changed superblock cannot be read".to_owned());
    let seen =
        || -> Result<_, CannotShrink> { Image::new(device.clone(), look(device, check)?, check.now).ok_or_else(lost) };
    let (mut fresh, report) = seen()?;
    if report.findings.iter().any(|finding| finding.problem == Problem::UpdateQuotas) {
        // Maps that were packed again may have fewer or more blocks.
        let raw = fresh.sb.raw();
        let files = [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), fresh.facts.project_quota()];
        for ino in files.into_iter().filter(|ino| *ino != 0) {
            quota::renew(&mut fresh, InodeNr(ino))?;
        }
        (fresh, _) = seen()?;
    }
    // All implementations write the bitmap of the last group, because its end is not the end of its bits.
    if let Some(desc) = fresh.descs.last_mut() {
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
    }
    for group in fresh.geo.groups() {
        groups::recount(&mut fresh, group)?;
    }
    super_block::totals(&mut fresh)?;
    reseal::descriptors(&fresh)?;
    write_copies(&fresh)
}

/// Rejects a file system that cannot shrink at all.
fn refuse(old: &Image) -> Result<(), CannotShrink> {
    if !old.facts.orphans().is_empty() {
        return Err(CannotShrink::Fixed(
            "it has files that were deleted while they were open, which a mount or 'extant fsck -p' removes first",
        ));
    }
    let bad = old.inode(BAD_BLOCKS)?;
    if !old.map(&bad).runs.is_empty() {
        return Err(CannotShrink::Fixed("it has a list of bad blocks, which would name other ones"));
    }
    Ok(())
}

/// The superblock of the smallest file system; `None` if that is the current one.
///
/// With as many groups as are needed, the last of them is made as short as possible.
fn least(old: &Image, contents: &[Content]) -> Option<SuperBlock> {
    let geo = &old.geo;
    let made = |blocks: u64| {
        let sb = target(old, blocks << geo.block_bits, true).ok()??;
        let new = sb.geometry();
        let is_enough = check_fixed(old, new).is_ok() && Numbers::new(old, new).is_ok() && fits(old, new, contents);
        is_enough.then_some(sb)
    };
    let end_of = |groups: u64| (geo.first_data_block + groups * u64::from(geo.blocks_per_group)).min(geo.blocks_count);
    // The current number of groups is enough.
    let (mut few, mut groups) = (0, u64::from(geo.group_count));
    while few + 1 < groups {
        let half = few.midpoint(groups);
        match made(end_of(half)) {
            Some(_) => groups = half,
            None => few = half,
        }
    }
    let mut found = if groups < u64::from(geo.group_count) { made(end_of(groups)) } else { None };
    // The search counts clusters.
    let bits = geo.cluster_bits;
    let (mut short, mut enough) = (end_of(groups - 1) >> bits, ((end_of(groups) - 1) >> bits) + 1);
    while short + 1 < enough {
        let half = short.midpoint(enough);
        // A last group that would be too short is left out.
        match made(half << bits).filter(|sb| sb.blocks_count == half << bits) {
            Some(sb) => (enough, found) = (half, Some(sb)),
            None => short = half,
        }
    }
    found
}

/// The superblock of the smaller file system; `None` if it has that size. `is_least` means that it reserves no more
/// blocks for descriptors than mke2fs does.
fn target(old: &Image, bytes: u64, is_least: bool) -> Result<Option<SuperBlock>, CannotShrink> {
    let geo = &old.geo;
    let per_group = u64::from(geo.blocks_per_group);
    let mut blocks = (bytes >> geo.block_bits) & !(u64::from(geo.blocks_per_cluster()) - 1);
    if blocks >= geo.blocks_count {
        return Ok(None);
    }
    if blocks <= geo.first_data_block {
        return Err(CannotShrink::Room);
    }
    // A last group without room for files is left out.
    let rest = (blocks - geo.first_data_block) % per_group;
    let last = GroupNr(((blocks - geo.first_data_block) / per_group) as u32);
    let needed = 2 + u64::from(geo.inode_table_blocks) + geo.base_metadata(last).blocks() + LAST_GROUP_FREE_MIN;
    if rest != 0 && rest < needed {
        blocks -= rest;
    }
    if blocks <= geo.first_data_block {
        return Err(CannotShrink::Room);
    }
    let groups = (blocks - geo.first_data_block).div_ceil(per_group) as u32;
    let mut raw = *old.sb.raw();
    let root_only = u128::from(old.sb.reserved_blocks()) * u128::from(blocks) / u128::from(geo.blocks_count.max(1));
    raw.s_blocks_count_lo.set(blocks as u32);
    raw.s_r_blocks_count_lo.set(root_only as u32);
    if geo.bit64 {
        raw.s_blocks_count_hi.set((blocks >> 32) as u32);
        raw.s_r_blocks_count_hi.set((root_only as u64 >> 32) as u32);
    }
    raw.s_inodes_count.set(groups * geo.inodes_per_group);
    if let BackupRule::Two(backups) = geo.backups {
        for (field, group) in raw.s_backup_bgs.iter_mut().zip(backups) {
            field.set(if group < groups { group } else { 0 });
        }
    }
    let is_meta_bg = old.sb.incompat().contains(Incompat::META_BG);
    if old.sb.compat().contains(Compat::RESIZE_INODE) && !is_meta_bg {
        // Blocks of descriptors that are removed become reserved, so that those after them keep their places.
        let gone = geo.desc_blocks - groups.div_ceil(geo.descs_per_block());
        let most = if is_least { usual_reserve(geo, blocks) } else { u32::MAX };
        let reserved = (geo.reserved_gdt_blocks + gone).min(geo.block_size / 4).min(most);
        raw.s_reserved_gdt_blocks.set(reserved as u16);
    }
    let lost: u64 = (groups..geo.group_count)
        .map(|group| geo.base_metadata(GroupNr(group)).blocks() + 2 + u64::from(geo.inode_table_blocks))
        .sum();
    let overhead = u64::from(raw.s_overhead_clusters.get());
    // With clusters it is 0, so that a mount counts them, because groups share clusters.
    raw.s_overhead_clusters.set(if geo.cluster_bits == 0 { overhead.saturating_sub(lost) as u32 } else { 0 });
    raw.s_wtime.set(old.now as u32);
    raw.s_wtime_hi = (old.now >> 32) as u8;
    seal_super(&mut raw);
    SuperBlock::decode(raw.as_bytes(), SUPERBLOCK_OFFSET).map(Some).map_err(CannotShrink::Layout)
}

/// The number of blocks that mke2fs reserves for descriptors: with them, a file system can grow to 1024 times its size
/// (e2fsprogs: `calc_reserved_gdt_blocks`).
fn usual_reserve(geo: &Geometry, blocks: u64) -> u32 {
    let descriptors = |blocks: u64| {
        let groups = (blocks - geo.first_data_block).div_ceil(geo.blocks_per_group.into());
        groups.div_ceil(geo.descs_per_block().into()) as u32
    };
    descriptors(blocks.saturating_mul(1024).min(u32::MAX.into())) - descriptors(blocks)
}

/// Rejects a size that would cut off something that cannot be moved.
fn check_fixed(old: &Image, new: &Geometry) -> Result<(), CannotShrink> {
    let end = new.blocks_count;
    let table = u64::from(old.geo.inode_table_blocks);
    for desc in &old.descs[..new.group_count as usize] {
        let last = [(desc.block_bitmap.0, 1), (desc.inode_bitmap.0, 1), (desc.inode_table.0, table)];
        if last.iter().any(|(start, len)| start + len > end) {
            return Err(CannotShrink::Fixed("bitmaps or inode tables of groups that stay lie behind the new end"));
        }
    }
    Ok(())
}

fn write_super(new: &Image) -> StepResult {
    let mut bytes = [0; extant_ondisk::superblock::SUPERBLOCK_SIZE];
    new.sb.encode_into(&mut bytes);
    new.write(SUPERBLOCK_OFFSET, &bytes)
}

/// Also writes the superblock on the device to its copies.
fn write_copies(image: &Image) -> Result<(), CannotShrink> {
    let bytes = image.bytes(SUPERBLOCK_OFFSET, size_of::<RawSuperBlock>())?;
    let sb = SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET).map_err(CannotShrink::Layout)?;
    for group in sb.geometry().backup_groups() {
        let (block, _) = sb.geometry().super_location(group);
        let mut copy = image.block(block)?;
        sb.backup_for(group).encode_into(&mut copy);
        image.put_block(block, &copy)?;
    }
    Ok(())
}
