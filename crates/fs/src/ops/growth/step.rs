//! One step of a growth, which is one transaction.
//!
//! Main type: [`Step`], the blocks that the step changes, read before the first change.
//!
//! # Locking
//! `group` (70) of the last group while that group is extended; otherwise only within the calls.

use std::sync::Arc;

use extant_block::BioFlags;
use extant_cache::{BufKind, Buffer};
use extant_journal::Handle;
use extant_ondisk::features::Compat;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::growth::{ReservedBlocks, neighbours, new_group, place, step};
use extant_ondisk::superblock::{DescChecksum, Geometry, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap};

use super::Growth;
use super::refused;
use crate::error::{CannotGrow, Damage, Error, Result};
use crate::ops::credits;

/// The superblock, the inode and double indirect block of the resize inode, and one more block of descriptors than the
/// groups of a step fill.
const FEW: u32 = credits::SUPER + credits::INODE + 2;
/// The maximum number of groups that one step adds.
const GROUPS_MAX: u32 = 64;
/// The number of steps that share a checkpoint.
const ROUND: usize = 32;

/// The changes of a step in existing blocks. Each block stays in memory until the step ends.
pub(super) struct Step {
    /// The first new group, and the numbers of blocks and inodes before the step.
    pub first: u32,
    before: (u64, u32),
    pub next: SuperBlock,
    pub descs: Vec<GroupDesc>,
    /// Blocks of descriptors: the group of the first descriptor, and whether the block was only reserved until now.
    tables: Vec<(Arc<Buffer>, u32, bool)>,
    /// Blocks of the resize inode, with their new content.
    pointers: Vec<(Arc<Buffer>, Vec<u8>)>,
    /// The table block of the resize inode, and the offset in it.
    resize_inode: Option<(Arc<Buffer>, usize)>,
    superblock: Arc<Buffer>,
}

impl Growth<'_> {
    /// Refuses a growth with a step that is too large for the log.
    pub(super) fn check_log(&self, goal: &SuperBlock) -> Result<()> {
        let joins = goal.backup_groups().any(|group| group.0 >= self.begin.group_count);
        let reserved = if self.begin.compat().contains(Compat::RESIZE_INODE) && joins {
            self.begin.reserved_gdt_blocks
        } else {
            0
        };
        let descs =
            GROUPS_MAX.min(goal.group_count - self.begin.group_count + 1).div_ceil(self.begin.descs_per_block());
        let (needed, most) = (FEW + credits::GROUP + reserved + descs, self.volume.journal.max_alone());
        if needed > most { Err(refused(CannotGrow::SmallLog { needed, most })) } else { Ok(()) }
    }

    /// Checks that the resize inode refers to exactly the blocks that the layout gives, because a growth replaces it.
    pub(super) fn check_reserved(&self) -> Result<()> {
        if !self.begin.compat().contains(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let reserved = ReservedBlocks::new(&self.begin);
        let double = self.double_of_resize_inode()?;
        let wrong = |block| {
            Error::corrupt(Damage::Map, "the block does not list the reserved descriptor blocks as the layout requires")
                .of(InodeNr::RESIZE)
                .at(block)
        };
        let is = |buffer: &Buffer, content: Option<Vec<u8>>| {
            let same = content.is_some_and(|content| buffer.read(|bytes| bytes[..] == content[..]));
            if same { Ok(()) } else { Err(wrong(buffer.block)) }
        };
        is(&double, reserved.double())?;
        reserved.blocks().try_for_each(|block| is(&*self.volume.cache.get(block)?, reserved.copies(block)))
    }

    /// The double indirect block of the resize inode.
    fn double_of_resize_inode(&self) -> Result<Arc<Buffer>> {
        let (table, offset) = self.volume.inode_slot(InodeNr::RESIZE)?;
        let block = table.read(|bytes| ReservedBlocks::double_of(&bytes[offset..]));
        if !self.volume.geo.contains(block) || self.volume.placement.alloc.is_protected(block, 1) {
            let e = Error::corrupt(Damage::Map, format!("its double indirect block is {block}"));
            return Err(e.of(InodeNr::RESIZE));
        }
        Ok(self.volume.cache.get(block)?)
    }

    /// Makes the next steps of the growth to `blocks` blocks, and brings the new blocks into use.
    pub(super) fn grow_round(&self, blocks: u64) -> Result<()> {
        let _change = self.volume.begin_change()?;
        let old: Geometry = (*self.volume.geo).clone();
        if old.blocks_count < old.first_block_of_group(GroupNr(old.group_count)).0 {
            return self.lengthen(&old, blocks);
        }
        // The superblock must be written home last: the kernel reads it, and the descriptors that it counts, before it
        // replays the log.
        self.volume.journal.write_home_last(self.volume.sb_place.0);
        let (mut logged, mut failed) = (Vec::new(), Ok(()));
        while failed.is_ok() && logged.len() < ROUND && self.volume.superblock().blocks_count < blocks {
            failed = self.log_step(blocks).map(|step| logged.push(step));
        }
        let home = self.volume.journal.checkpoint();
        if home.is_ok() {
            logged.into_iter().for_each(|step| self.join(step));
        }
        failed.and(home.map_err(Error::from))
    }

    /// Extends the last group, to its full size or to the end of the larger file system.
    fn lengthen(&self, old: &Geometry, blocks: u64) -> Result<()> {
        let last = GroupNr(old.group_count - 1);
        let next = step(&self.begin, &self.volume.superblock(), blocks).map_err(refused)?;
        let prepared = self.volume.placement.groups.hold_blocks(last)?;
        let step = self.prepare_step(old, next)?;
        let mut handle = self.start_alone(step.credits() + credits::GROUP)?;
        let (end, len) = (step.next.blocks_count, step.next.blocks_in_group(last));
        let changed = self.volume.placement.alloc.in_blocks().lengthen_last(end, || {
            self.change_superblock(&mut handle, &step, blocks)?;
            self.volume.placement.groups.lengthen_last(&mut handle, &prepared, len)?;
            self.publish(&step);
            Ok(())
        });
        self.volume.end(handle, changed)
    }

    /// Logs the next step, which adds groups. They come into use when the step is home.
    fn log_step(&self, blocks: u64) -> Result<Step> {
        let now = self.volume.superblock();
        let next = step(&self.begin, &now, blocks).map_err(refused)?;
        let step = self.prepare_step(now.geometry(), next)?;
        let mut handle = self.start_alone(step.credits())?;
        let changed = self.change_tables(&mut handle, &step, blocks);
        self.volume.end(handle, changed)?;
        // A later step of the round may read descriptors in these groups.
        self.volume.cache.grow(step.next.blocks_count);
        Ok(step)
    }

    /// Reads the blocks that the step changes, and writes the blocks past the old end.
    fn prepare_step(&self, old: &Geometry, next: SuperBlock) -> Result<Step> {
        let superblock = self.volume.cache.get(self.volume.sb_place.0)?;
        let (first, end) = (old.group_count, next.group_count);
        let mut step = Step {
            first,
            before: (old.blocks_count, old.inodes_count),
            next,
            descs: Vec::new(),
            tables: Vec::new(),
            pointers: Vec::new(),
            resize_inode: None,
            superblock,
        };
        if first == end {
            return Ok(step);
        }
        let geo = step.next.geometry().clone();
        step.descs = self.write_groups(&geo, first)?;
        let per_block = geo.descs_per_block();
        for index in first / per_block..end.div_ceil(per_block) {
            let block = geo.desc_table_block(index).filter(|block| block.0 < old.blocks_count);
            if let Some(block) = block {
                step.tables.push((self.volume.cache.get(block)?, index * per_block, index >= old.desc_blocks));
            }
        }
        self.prepare_reserved(&mut step, &geo)?;
        self.write_copies(old, &step)?;
        self.volume.dev.flush()?;
        Ok(step)
    }

    /// Writes the bitmaps and tables of the new groups that cannot be left uninitialized, and returns the descriptors.
    fn write_groups(&self, geo: &Geometry, first: u32) -> Result<Vec<GroupDesc>> {
        let tables = place(geo, first).map_err(refused)?;
        let has_flags = geo.desc_checksum != DescChecksum::None;
        let mut bits = vec![0; geo.block_size as usize];
        let mut descs = Vec::with_capacity(tables.len());
        let write =
            |block: BlockNr, bits: &[u8]| self.volume.dev.write_at(block.0 << geo.block_bits, &[bits], BioFlags::META);
        for group in first..geo.group_count {
            let around = neighbours(geo, first, group);
            let places = &tables[(around.start - first) as usize..(around.end - first) as usize];
            let mut desc = new_group(geo, GroupNr(group), GroupNr(around.start), places, &mut bits);
            if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                write(desc.block_bitmap, &bits)?;
            }
            if !has_flags {
                bitmap::init_inode_bitmap(&mut bits, geo);
                write(desc.inode_bitmap, &bits)?;
            }
            let (at, len) = (desc.inode_table.0 << geo.block_bits, u64::from(geo.inode_table_blocks) << geo.block_bits);
            if self.volume.dev.next_data(at)?.is_none_or(|data| data >= at + len) {
                desc.flags.set(GroupFlags::INODE_ZEROED, has_flags);
            } else if !has_flags {
                self.volume.dev.write_zeroes(at, len, BioFlags::META | BioFlags::UNMAP)?;
            }
            descs.push(desc);
        }
        Ok(descs)
    }

    /// Writes the copies of superblock and descriptors, and the primary descriptors, if they lie in new groups.
    fn write_copies(&self, old: &Geometry, step: &Step) -> Result<()> {
        let geo = step.next.geometry();
        let (first, per_block) = (old.group_count, geo.descs_per_block());
        let backups: Vec<GroupNr> = geo.backup_groups().filter(|group| group.0 >= first).collect();
        // If the new groups have no copies of the whole table, they may have copies of its last blocks, with meta_bg.
        let from = if backups.is_empty() { first / per_block } else { 0 };
        let mut bytes = vec![0; geo.block_size as usize];
        for index in from..geo.desc_blocks {
            let copies: Vec<BlockNr> =
                geo.desc_block_copies(index, &backups).filter(|block| block.0 >= old.blocks_count).collect();
            if copies.is_empty() {
                continue;
            }
            let place = geo.desc_table_block(index).filter(|_| index < old.desc_blocks);
            match place {
                Some(block) => self.volume.cache.get(block)?.read(|now| bytes.copy_from_slice(now)),
                None => bytes.fill(0),
            }
            step.encode_descs(&mut bytes, index * per_block);
            for copy in copies {
                self.volume.dev.write_at(copy.0 << geo.block_bits, &[&bytes], BioFlags::META)?;
            }
        }
        for group in backups {
            bytes.fill(0);
            self.backup_of(&step.next, group).encode_into(&mut bytes);
            let (block, _) = geo.super_location(group);
            self.volume.dev.write_at(block.0 << geo.block_bits, &[&bytes], BioFlags::META)?;
        }
        Ok(())
    }

    /// Reads the blocks of the resize inode that change.
    fn prepare_reserved(&self, step: &mut Step, geo: &Geometry) -> Result<()> {
        if !step.next.compat().contains(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let reserved = ReservedBlocks::new(geo);
        let unnamed = || refused(extant_ondisk::growth::NoGrowth::ResizeInode);
        let double = self.double_of_resize_inode()?;
        let mut contents = vec![(double, reserved.double().ok_or_else(unnamed)?)];
        for block in reserved.blocks() {
            contents.push((self.volume.cache.get(block)?, reserved.copies(block).ok_or_else(unnamed)?));
        }
        contents.retain(|(buffer, content)| buffer.read(|bytes| bytes[..] != content[..]));
        if !contents.is_empty() {
            let (table, offset) = self.volume.inode_slot(InodeNr::RESIZE)?;
            step.resize_inode = Some((table, offset));
        }
        step.pointers = contents;
        Ok(())
    }

    /// Starts a handle with these credits; it may be the only one that fits in its transaction.
    fn start_alone(&self, credits: u32) -> Result<Handle> {
        self.volume.before_handle()?;
        self.volume.log_errors()?;
        Ok(self.volume.journal.start_alone(credits)?)
    }

    /// Changes the blocks of the step.
    fn change_tables(&self, handle: &mut Handle, step: &Step, blocks: u64) -> Result<()> {
        let geo = step.next.geometry();
        self.change_superblock(handle, step, blocks)?;
        for (buffer, start, is_new) in &step.tables {
            handle.modify(buffer, BufKind::Table, |bytes| {
                if *is_new {
                    bytes.fill(0);
                }
                step.encode_descs(bytes, *start);
            });
        }
        for (buffer, content) in &step.pointers {
            handle.modify(buffer, BufKind::Table, |bytes| bytes.copy_from_slice(content));
        }
        if let Some((table, offset)) = &step.resize_inode {
            let reserved = ReservedBlocks::new(geo);
            let slot = *offset..*offset + geo.inode_size;
            handle.modify(table, BufKind::Table, |bytes| reserved.store_blocks(&mut bytes[slot]));
        }
        Ok(())
    }

    /// Changes the superblock in memory and in the transaction. This is the first change of a step. It keeps other
    /// changes that were made since the step began. After an error nothing has changed.
    fn change_superblock(&self, handle: &mut Handle, step: &Step, blocks: u64) -> Result<()> {
        let (more, inodes) = step.gains();
        let mut sb = self.volume.sb.lock();
        let mut next = extant_ondisk::growth::step(&self.begin, &sb, blocks).map_err(refused)?;
        next.set_free_blocks(sb.free_blocks() + more);
        next.set_free_inodes(sb.free_inodes().saturating_add(inodes));
        let overhead = u64::from(sb.raw().s_overhead_clusters.get());
        if overhead != 0 {
            next.set_overhead_clusters(overhead + step.taken());
        }
        let at = self.volume.sb_place.1;
        handle.modify(&step.superblock, BufKind::Table, |b| next.encode_into(&mut b[at..at + 1024]));
        *sb = next;
        Ok(())
    }
}

impl Step {
    /// The credits of the step, without those for a group that it extends.
    fn credits(&self) -> u32 {
        let inode = u32::from(self.resize_inode.is_some());
        credits::SUPER + inode + (self.tables.len() + self.pointers.len()) as u32
    }

    /// Writes the new descriptors into a block whose first descriptor is that of group `start`.
    fn encode_descs(&self, bytes: &mut [u8], start: u32) {
        let geo = self.next.geometry();
        let end = start.saturating_add(geo.descs_per_block());
        for (group, desc) in (self.first..end).zip(&self.descs).filter(|(group, _)| *group >= start) {
            desc.encode_into(&mut bytes[(group - start) as usize * geo.desc_size..], GroupNr(group), geo);
        }
    }

    /// The numbers of free blocks and free inodes that the step adds.
    pub(super) fn gains(&self) -> (u64, u32) {
        let (blocks, inodes) = self.before;
        if self.descs.is_empty() {
            return (self.next.blocks_count - blocks, 0);
        }
        let blocks = self.descs.iter().map(|desc| u64::from(desc.free_clusters)).sum();
        (blocks, self.next.inodes_count - inodes)
    }

    /// The number of blocks that the new groups' own structures take.
    pub(super) fn taken(&self) -> u64 {
        let groups = (self.first..).map(GroupNr).zip(&self.descs);
        groups.map(|(group, desc)| u64::from(self.next.blocks_in_group(group) - desc.free_clusters)).sum()
    }
}
