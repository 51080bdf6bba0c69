//! The skeleton with files on it: counts, flags, and the bytes of all pieces.
//!
//! Main types: [`Usage`], [`Finished`], [`Key`], [`Inodes`].
//!
//! # Locking
//! None.

use std::ops::Range;

use extant_ondisk::group_desc::{GroupDesc, GroupFlags, RawGroupDesc};
use extant_ondisk::superblock::{DescChecksum, Geometry, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, bitmap, inode};

use super::Skeleton;
use super::file::Part;
use super::quota::OwnerUsage;
use super::space::no_space;
use crate::plan::Piece;
use crate::{Error, Result};

const FLAGS_AT: usize = std::mem::offset_of!(RawGroupDesc, bg_flags);

/// The blocks and inodes of a skeleton that files use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The blocks, in ascending order, not adjacent, all from [`Skeleton::free_runs`].
    pub blocks: Vec<Range<u64>>,
    /// The highest inode number in use. All lower ones are in use, too.
    pub last_ino: u32,
    /// The inodes that are directories, in ascending order, including the root and lost+found.
    pub directories: Vec<InodeNr>,
    /// The owners for which the skeleton was planned; empty without quota files.
    pub owned: OwnerUsage,
}

/// Creates the bytes of inodes that do not belong to the skeleton.
pub trait Inodes {
    /// Fills the `inode_size` bytes of an inode, with its checksum. `out` is zeroed.
    ///
    /// # Errors
    /// The inode cannot be created.
    fn fill(&self, ino: InodeNr, out: &mut [u8]) -> Result<()>;
}

/// A piece of the skeleton.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The block with a group's copy of the superblock.
    SuperBlock(GroupNr),
    /// The descriptors of a group, after its copy of the superblock.
    Descriptors(GroupNr),
    /// A block bitmap.
    BlockBitmap(GroupNr),
    /// An inode bitmap.
    InodeBitmap(GroupNr),
    /// The used part of an inode table.
    InodeTable(GroupNr),
    /// A part of one of the file system's own files.
    File(FilePart),
}

/// A part of one of the file system's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilePart {
    file: u32,
    part: Part,
}

/// The skeleton with files on it.
pub struct Finished {
    skeleton: Skeleton,
    usage: Usage,
    superblock: SuperBlock,
    descs: Vec<GroupDesc>,
}

impl Finished {
    pub(super) fn new(mut skeleton: Skeleton, mut usage: Usage) -> Result<Finished> {
        for file in &mut skeleton.files {
            file.set_usage(&usage.owned);
        }
        let geo = skeleton.geometry();
        usage.last_ino = usage.last_ino.max(skeleton.first_free_ino.0 - 1);
        if usage.last_ino > geo.inodes_count {
            return Err(Error::Options(format!(
                "{} inodes are needed, and the file system has {}; ask for more with -N",
                usage.last_ino, geo.inodes_count
            )));
        }
        let mut used = vec![0u32; geo.group_count as usize];
        let mut by_files = vec![false; geo.group_count as usize];
        for run in skeleton.space.taken() {
            count(geo, run, &mut used, None)?;
        }
        for run in &usage.blocks {
            count(geo, run.clone(), &mut used, Some(&mut by_files))?;
        }
        let superblock = skeleton.superblock.clone();
        let mut finished = Finished { skeleton, usage, superblock, descs: Vec::new() };
        finished.describe(&used, &by_files);
        finished.total();
        Ok(finished)
    }

    fn describe(&mut self, used: &[u32], by_files: &[bool]) {
        let geo = self.skeleton.geometry().clone();
        let geo = &geo;
        let csum = geo.desc_checksum != DescChecksum::None;
        let mut dirs = self.usage.directories.iter().copied().peekable();
        for group in geo.groups() {
            let at = group.0 as usize;
            let tables = self.skeleton.tables[at];
            let first_ino = group.0 * geo.inodes_per_group;
            let inodes = self.usage.last_ino.saturating_sub(first_ino).min(geo.inodes_per_group);
            let mut used_dirs = 0;
            while dirs.next_if(|ino| ino.0 <= first_ino + geo.inodes_per_group).is_some() {
                used_dirs += 1;
            }
            let mut flags = GroupFlags::empty();
            if csum {
                let last = group.0 + 1 == geo.group_count;
                let touched = self.skeleton.space.is_touched(group.0) || by_files[at] || inodes > 0;
                flags.set(GroupFlags::BLOCK_UNINIT, !last && !touched);
                flags.set(GroupFlags::INODE_UNINIT, inodes == 0);
            }
            flags.set(GroupFlags::INODE_ZEROED, self.skeleton.options.tables_zeroed);
            let mut desc = GroupDesc {
                block_bitmap: BlockNr(tables.block_bitmap),
                inode_bitmap: BlockNr(tables.inode_bitmap),
                inode_table: BlockNr(tables.inode_table),
                free_clusters: geo.clusters_in_group(group) - used[at],
                free_inodes: geo.inodes_per_group - inodes,
                used_dirs,
                flags,
                itable_unused: if csum { geo.inodes_per_group - inodes } else { 0 },
                block_bitmap_csum: 0,
                inode_bitmap_csum: 0,
            };
            let mut block = vec![0; geo.block_size as usize];
            if !flags.contains(GroupFlags::BLOCK_UNINIT) {
                self.fill_block_bitmap(group, &mut block);
                desc.set_block_bitmap_csum(&block, geo);
            }
            if !flags.contains(GroupFlags::INODE_UNINIT) {
                self.fill_inode_bitmap(group, &mut block);
                desc.set_inode_bitmap_csum(&block, geo);
            }
            self.descs.push(desc);
        }
    }

    fn total(&mut self) {
        let geo = self.skeleton.geometry();
        let free: u64 = self.descs.iter().map(|desc| u64::from(desc.free_clusters)).sum();
        self.superblock.set_free_blocks(free << geo.cluster_bits);
        self.superblock.set_free_inodes(geo.inodes_count - self.usage.last_ino);
    }

    /// The skeleton below the files.
    pub fn skeleton(&self) -> &Skeleton {
        &self.skeleton
    }

    /// The superblock as it is written.
    pub fn superblock(&self) -> &SuperBlock {
        &self.superblock
    }

    /// The blocks with a copy of the superblock, the primary first.
    pub fn superblocks(&self) -> impl Iterator<Item = Piece<Key>> + '_ {
        let geo = self.skeleton.geometry();
        std::iter::once(GroupNr(0)).chain(geo.backup_groups()).filter_map(|group| {
            let start = geo.base_metadata(group).superblock?;
            Some(Piece { start, blocks: 1, key: Key::SuperBlock(group) })
        })
    }

    /// The other pieces of the skeleton, in ascending order.
    pub fn pieces(&self) -> Vec<Piece<Key>> {
        let geo = self.skeleton.geometry();
        let mut pieces = Vec::with_capacity(self.descs.len() * 2);
        let mut push = |start: u64, blocks: u32, key| {
            if blocks > 0 {
                pieces.push(Piece { start: BlockNr(start), blocks, key });
            }
        };
        for (group, desc) in geo.groups().zip(&self.descs) {
            if let Some((start, _)) = geo.base_metadata(group).descriptors {
                push(start.0, geo.desc_blocks_behind(group).count() as u32, Key::Descriptors(group));
            }
            let written = |flag| u32::from(!desc.flags.contains(flag));
            push(desc.block_bitmap.0, written(GroupFlags::BLOCK_UNINIT), Key::BlockBitmap(group));
            push(desc.inode_bitmap.0, written(GroupFlags::INODE_UNINIT), Key::InodeBitmap(group));
            let inodes = geo.inodes_per_group - desc.free_inodes;
            push(desc.inode_table.0, inodes.div_ceil(geo.inodes_per_block()), Key::InodeTable(group));
        }
        for (i, file) in self.skeleton.files.iter().enumerate() {
            for (start, blocks, part) in file.parts(geo) {
                push(start, blocks, Key::File(FilePart { file: i as u32, part }));
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.start.0);
        pieces
    }

    /// Creates `buf.len()` bytes of a piece, from its block `first` on. `buf` is zeroed.
    ///
    /// # Errors
    /// An inode cannot be created.
    pub fn fill(&self, key: Key, first: u32, buf: &mut [u8], inodes: &dyn Inodes) -> Result<()> {
        let block_size = self.skeleton.geometry().block_size as usize;
        match key {
            Key::SuperBlock(group) => self.fill_superblock(group, buf),
            Key::Descriptors(group) => {
                let indexes = self.skeleton.geometry().desc_blocks_behind(group).skip(first as usize);
                for (index, block) in indexes.zip(buf.chunks_exact_mut(block_size)) {
                    self.fill_descriptors(index, block);
                }
            }
            Key::BlockBitmap(group) => self.fill_block_bitmap(group, buf),
            Key::InodeBitmap(group) => self.fill_inode_bitmap(group, buf),
            Key::InodeTable(group) => self.fill_inodes(group, first, buf, inodes)?,
            Key::File(FilePart { file, part }) => {
                self.skeleton.files[file as usize].fill(part, first, &self.superblock, buf);
            }
        }
        Ok(())
    }

    fn fill_superblock(&self, group: GroupNr, out: &mut [u8]) {
        let at = self.skeleton.geometry().super_location(group).1;
        let copy = if group.0 == 0 { self.superblock.clone() } else { self.superblock.backup_for(group) };
        copy.encode_into(&mut out[at..at + SUPERBLOCK_SIZE]);
    }

    /// The block of the descriptor table with this index.
    fn fill_descriptors(&self, index: u32, out: &mut [u8]) {
        let geo = self.skeleton.geometry();
        let per_block = geo.descs_per_block();
        for (slot, bytes) in out.chunks_exact_mut(geo.desc_size).enumerate() {
            let group = GroupNr(index * per_block + slot as u32);
            if let Some(desc) = self.descs.get(group.0 as usize) {
                desc.encode_into(bytes, group, geo);
                if geo.desc_checksum == DescChecksum::None {
                    // Without checksums, no program reads the flags, but mke2fs sets them.
                    bytes[FLAGS_AT..FLAGS_AT + 2].copy_from_slice(&desc.flags.bits().to_le_bytes());
                }
            }
        }
    }

    fn fill_block_bitmap(&self, group: GroupNr, out: &mut [u8]) {
        let geo = self.skeleton.geometry();
        out.fill(0);
        let first = geo.first_block_of_group(group).0;
        let range = first..first + u64::from(geo.blocks_in_group(group));
        let at = self.usage.blocks.partition_point(|run| run.end <= range.start);
        let files = self.usage.blocks[at..].iter().take_while(|run| run.start < range.end);
        let files = files.map(|run| run.start.max(range.start)..run.end.min(range.end));
        for run in self.skeleton.space.taken_in(range.clone()).chain(files) {
            let bits = geo.cluster_bits;
            let (from, to) = ((run.start - first) >> bits, ((run.end - 1 - first) >> bits) + 1);
            bitmap::set_range(out, from as u32..to as u32);
        }
        bitmap::set_padding(out, geo.clusters_in_group(group));
    }

    fn fill_inode_bitmap(&self, group: GroupNr, out: &mut [u8]) {
        let geo = self.skeleton.geometry();
        bitmap::init_inode_bitmap(out, geo);
        let used = self.usage.last_ino.saturating_sub(group.0 * geo.inodes_per_group).min(geo.inodes_per_group);
        bitmap::set_range(out, 0..used);
    }

    fn fill_inodes(&self, group: GroupNr, first: u32, buf: &mut [u8], inodes: &dyn Inodes) -> Result<()> {
        let geo = self.skeleton.geometry();
        let start = group.0 * geo.inodes_per_group + first * geo.inodes_per_block() + 1;
        for (i, out) in buf.chunks_exact_mut(geo.inode_size).enumerate() {
            let ino = InodeNr(start + i as u32);
            if ino.0 > self.usage.last_ino || i as u32 + first * geo.inodes_per_block() >= geo.inodes_per_group {
                break;
            }
            if let Some(file) = self.skeleton.files.iter().find(|file| file.ino == ino) {
                let desc = file.inode(geo);
                desc.encode_into(out, ino, geo).map_err(|e| Error::Options(e.to_string()))?;
            } else if ino.0 < geo.first_ino && ino != InodeNr::ROOT {
                inode::update_checksum(out, ino, geo);
            } else {
                inodes.fill(ino, out)?;
            }
        }
        Ok(())
    }
}

/// Counts the clusters of a run, by group.
fn count(geo: &Geometry, run: Range<u64>, used: &mut [u32], mut mark: Option<&mut Vec<bool>>) -> Result<()> {
    let mut at = run.start;
    while at < run.end {
        let Some((group, offset)) = geo.group_of_block(BlockNr(at)) else { return Err(no_space()) };
        let n = (run.end - at).min(u64::from(geo.blocks_per_group - offset));
        let bits = geo.cluster_bits;
        used[group.0 as usize] += (((u64::from(offset) + n - 1) >> bits) + 1 - (u64::from(offset) >> bits)) as u32;
        if let Some(mark) = &mut mark {
            mark[group.0 as usize] = true;
        }
        at += n;
    }
    Ok(())
}
