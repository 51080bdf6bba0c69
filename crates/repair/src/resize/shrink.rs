//! A smaller file system: what lies behind the new end moves, and the groups there go.
//!
//! Main function: [`shrink`]. Main type: [`CannotShrink`].
//!
//! Blocks of files, maps and attributes behind the new end are copied to free blocks before it. Bitmaps and counts are
//! then made from what a check of the result finds.
//!
//! What it does not do: give inodes other numbers. A file whose inode lies in a group that would go refuses the size.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_check::{InodeState, Options};
use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::group_desc::GroupFlags;
use extant_ondisk::map::Run;
use extant_ondisk::superblock::{BackupRule, RawSuperBlock, SUPERBLOCK_OFFSET, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, orphan, xattr};
use zerocopy::IntoBytes;

use super::Growth;
use crate::apply::{groups, journal, super_block};
use crate::error::{Done, Error, Refusal};
use crate::sound::{Sound, Unsound, look, prove};
use crate::tune::reseal;
use crate::view::inode::Inode;
use crate::view::{Image, seal_super};

/// Blocks for files that the last group has at least.
const LAST_GROUP_FREE_MIN: u64 = 50;
/// The list of bad blocks.
const BAD_BLOCKS: InodeNr = InodeNr(1);

/// Why a file system does not shrink. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum CannotShrink {
    /// It is damaged, or cannot be checked.
    #[error(transparent)]
    Unsound(#[from] Unsound),
    /// A file would need another inode number.
    #[error("inode {ino} is in use, and its group would go; {least} bytes are the least that keep it")]
    Inode {
        /// The inode with the highest number.
        ino: u32,
        /// Bytes up to the end of its group.
        least: u64,
    },
    /// Something that is not moved lies behind the new end.
    #[error("{0}")]
    Fixed(&'static str),
    /// The content does not fit.
    #[error("its files do not fit into so few blocks")]
    Room,
    /// The numbers break a rule of the format.
    #[error("the smaller layout is not valid: {0}")]
    Layout(extant_ondisk::Error),
    /// The check of the result found damage: a fault of this program.
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

/// Makes the file system on `device` smaller, to at most `bytes` bytes, and checks the result. The check's time becomes
/// that of the last write. `None`: it is no larger, and nothing changed.
///
/// # Errors
/// [`CannotShrink`]; the changes count for nothing then.
pub fn shrink(device: Arc<CowDevice>, check: &Options, bytes: u64) -> Result<Option<Growth>, CannotShrink> {
    let Sound { image: old, report, replayed } = Sound::open(&device, check)?;
    let Some(sb) = target(&old, bytes)? else { return Ok(None) };
    let (before, after) = (old.geo.clone(), sb.geometry().clone());
    if !old.facts.orphans().is_empty() {
        return Err(CannotShrink::Fixed(
            "it has files that were deleted while they were open, which a mount or 'extant fsck -p' removes first",
        ));
    }
    let mut new = old.with(device.clone());
    new.descs.truncate(after.group_count as usize);
    (new.geo, new.sb) = (after.clone(), sb);
    check_fixed(&old, &new)?;
    write_super(&new)?;
    move_all(&old, &mut new)?;
    if new.sb.compat().contains(Compat::RESIZE_INODE) {
        groups::resize_inode(&mut new)?;
    }
    reseal::descriptors(&new)?;
    let checked = look(&device, check)?;
    let lost = || CannotShrink::Step("the changed superblock cannot be read".to_owned());
    let (mut fresh, _) = Image::new(device.clone(), checked, check.now).ok_or_else(lost)?;
    // Every implementation writes the bitmap of the last group, whose end is not that of its bits.
    if let Some(desc) = fresh.descs.last_mut() {
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
    }
    for group in fresh.geo.groups() {
        groups::recount(&mut fresh, group)?;
    }
    super_block::totals(&mut fresh)?;
    reseal::descriptors(&fresh)?;
    write_copies(&fresh)?;
    let outcome = prove(device, check, (report, replayed), None)?;
    let outcome = outcome.map_err(|first| CannotShrink::Unproved { first })?;
    Ok(Some(Growth { outcome, before, after }))
}

/// The superblock of the smaller file system; `None`: it has that size.
fn target(old: &Image, bytes: u64) -> Result<Option<SuperBlock>, CannotShrink> {
    let geo = &old.geo;
    let per_group = u64::from(geo.blocks_per_group);
    let mut blocks = (bytes >> geo.block_bits) & !(u64::from(geo.blocks_per_cluster()) - 1);
    if blocks >= geo.blocks_count {
        return Ok(None);
    }
    if blocks <= geo.first_data_block {
        return Err(CannotShrink::Room);
    }
    if geo.cluster_bits != 0 {
        return Err(CannotShrink::Fixed("with bigalloc, blocks are not moved"));
    }
    if old.sb.ro_compat().contains(RoCompat::QUOTA) {
        return Err(CannotShrink::Fixed("with quota, blocks are not moved"));
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
        // Blocks of descriptors that go are reserved, so that those behind them stay where they are.
        let gone = geo.desc_blocks - groups.div_ceil(geo.descs_per_block());
        let reserved = (geo.reserved_gdt_blocks + gone).min(geo.block_size / 4);
        raw.s_reserved_gdt_blocks.set(reserved as u16);
    }
    let lost: u64 = (groups..geo.group_count)
        .map(|group| geo.base_metadata(GroupNr(group)).blocks() + 2 + u64::from(geo.inode_table_blocks))
        .sum();
    let overhead = u64::from(raw.s_overhead_clusters.get());
    raw.s_overhead_clusters.set(overhead.saturating_sub(lost) as u32);
    raw.s_wtime.set(old.now as u32);
    raw.s_wtime_hi = (old.now >> 32) as u8;
    seal_super(&mut raw);
    SuperBlock::decode(raw.as_bytes(), SUPERBLOCK_OFFSET).map(Some).map_err(CannotShrink::Layout)
}

/// Refuses what is not moved.
fn check_fixed(old: &Image, new: &Image) -> Result<(), CannotShrink> {
    let end = new.geo.blocks_count;
    for group in (new.geo.group_count..old.geo.group_count).rev() {
        let used = old.facts.inodes_of(GroupNr(group)).filter(|(_, state)| state.has(InodeState::USED));
        if let Some((ino, _)) = used.last() {
            let group_end = old.geo.first_block_of_group(GroupNr(group + 1)).0.min(old.geo.blocks_count);
            return Err(CannotShrink::Inode { ino: ino.0, least: group_end << old.geo.block_bits });
        }
    }
    let table = u64::from(old.geo.inode_table_blocks);
    for desc in &new.descs {
        let last = [(desc.block_bitmap.0, 1), (desc.inode_bitmap.0, 1), (desc.inode_table.0, table)];
        if last.iter().any(|(start, len)| start + len > end) {
            return Err(CannotShrink::Fixed("bitmaps or inode tables of groups that stay lie behind the new end"));
        }
    }
    if old.sb.incompat().contains(Incompat::MMP) && old.sb.raw().s_mmp_block.get() >= end {
        return Err(CannotShrink::Fixed("the block of multi-mount protection lies behind the new end"));
    }
    let bad = old.inode(BAD_BLOCKS)?;
    if !old.map(&bad).runs.is_empty() {
        return Err(CannotShrink::Fixed("it has a list of bad blocks, which would name other ones"));
    }
    Ok(())
}

/// Moves everything behind the new end.
fn move_all(old: &Image, new: &mut Image) -> Done {
    let mut attributes: BTreeMap<u64, BlockNr> = BTreeMap::new();
    for group in new.geo.groups() {
        let used = old.facts.inodes_of(group).filter(|(_, state)| state.has(InodeState::USED));
        for ino in used.map(|(ino, _)| ino).collect::<Vec<_>>() {
            if ino != InodeNr::RESIZE {
                move_attributes(old, new, ino, &mut attributes)?;
                move_blocks(old, new, ino)?;
            }
        }
    }
    Ok(())
}

/// The block of attributes, which several inodes may share.
fn move_attributes(old: &Image, new: &mut Image, ino: InodeNr, moved: &mut BTreeMap<u64, BlockNr>) -> Done {
    let end = new.geo.blocks_count;
    let Some(block) = old.inode(ino)?.file_acl(old).filter(|block| block.0 >= end) else { return Ok(()) };
    let place = match moved.get(&block.0) {
        Some(place) => *place,
        None => {
            let place = new.take_block(BlockNr(0))?;
            let mut bytes = old.block(block)?;
            xattr::seal_block(&mut bytes, place, new.geo.metadata_csum.then(|| new.geo.seed.raw()));
            new.put_block(place, &bytes)?;
            moved.insert(block.0, place);
            place
        }
    };
    new.change_inode(ino, |raw| {
        raw.i_file_acl_lo.set(place.0 as u32);
        raw.l_i_file_acl_high.set((place.0 >> 32) as u16);
    })
}

/// Data and map of one inode.
fn move_blocks(old: &Image, new: &mut Image, ino: InodeNr) -> Done {
    let end = new.geo.blocks_count;
    let inode = old.inode(ino)?;
    let mapped = old.map(&inode);
    let is_behind = |run: &Run| run.pblk.0 + u64::from(run.len) > end;
    if !mapped.runs.iter().any(is_behind) && mapped.nodes.iter().all(|block| block.0 < end) {
        return Ok(());
    }
    let mut runs: Vec<Run> = Vec::new();
    for run in &mapped.runs {
        for step in 0..run.len {
            let from = BlockNr(run.pblk.0 + u64::from(step));
            let to = if from.0 < end { from } else { copy(old, new, &inode, from, run.unwritten)? };
            let lblk = extant_ondisk::LogicalBlock(run.lblk.0 + step);
            runs.push(Run { lblk, len: 1, pblk: to, unwritten: run.unwritten });
        }
    }
    new.set_map(ino, &runs)?;
    if old.sb.journal_inode() == Some(ino) {
        journal::note(new, ino)?;
    }
    Ok(())
}

fn copy(old: &Image, new: &mut Image, inode: &Inode, from: BlockNr, unwritten: bool) -> Done<BlockNr> {
    let to = new.take_block(BlockNr(0))?;
    if !unwritten {
        let mut bytes = old.block(from)?;
        if old.sb.orphan_file() == Some(inode.ino) {
            orphan::update_checksum(&mut bytes, to, new.seed(inode.ino, inode.generation()));
        }
        new.put_block(to, &bytes)?;
    }
    Ok(to)
}

fn write_super(new: &Image) -> Done {
    let mut bytes = [0; extant_ondisk::superblock::SUPERBLOCK_SIZE];
    new.sb.encode_into(&mut bytes);
    new.write(SUPERBLOCK_OFFSET, &bytes)
}

/// Writes the superblock on the device to its copies, too.
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
