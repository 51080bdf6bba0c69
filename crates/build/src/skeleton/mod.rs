//! A file system without files: superblock, descriptors, bitmaps, inode tables, journal, resize inode, quota and orphan
//! files, each at the place that mke2fs chooses.
//!
//! Main types: [`Skeleton`] (the places of everything), [`Usage`] (the blocks and inodes of a tree's files),
//! [`OwnerUsage`] (their owners), [`Finished`] (the skeleton's pieces with their bytes), [`Inodes`] (creates the bytes
//! of inodes that do not belong to the skeleton). The memory depends on the number of groups, not of blocks.
//!
//! # Locking
//! None.

mod empty;
mod file;
mod finish;
mod map;
mod quota;
mod space;
mod tables;

pub use empty::Empty;
pub use finish::{Finished, Inodes, Key, Usage};
pub use quota::OwnerUsage;

use std::ops::Range;

use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::inode::{GOOD_OLD_INODE_SIZE, InodeFlags};
use extant_ondisk::jbd2::{MIN_LOG_BLOCKS, default_blocks};
use extant_ondisk::mmp;
use extant_ondisk::quota::{BLOCK_BYTES, QuotaKind};
use extant_ondisk::superblock::{Geometry, Layout, LayoutError, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr};

use crate::options::Options;
use crate::{Error, Result};
use file::{Kind, SystemFile};
use map::{Mapped, Owner};
use space::{Space, no_space};
use tables::Tables;

/// The inode of bad blocks; there are none here.
const BAD_BLOCKS: InodeNr = InodeNr(1);
/// The inodes of user and group quota.
const USER_QUOTA: InodeNr = InodeNr(3);
const GROUP_QUOTA: InodeNr = InodeNr(4);
/// The maximum number of blocks of a journal.
const JOURNAL_BLOCKS_MAX: u32 = 10_240_000;
/// The fraction of the journal that fast commits get is one over this.
const FAST_COMMIT_PART: u32 = 64;

/// The places of everything in a file system without files.
pub struct Skeleton {
    options: Options,
    superblock: SuperBlock,
    space: Space,
    tables: Vec<Tables>,
    files: Vec<SystemFile>,
    directories: Vec<Mapped>,
    first_free_ino: InodeNr,
}

impl Skeleton {
    /// Places everything except directories. If there are quota files, they get room for these owners.
    ///
    /// # Errors
    /// The options contradict each other or the size.
    pub fn plan(options: &Options, owned: &OwnerUsage) -> Result<Skeleton> {
        Skeleton::plan_with_directories(options, &[], owned)
    }

    /// Places everything. The directories, as inodes and numbers of blocks, come before the structures that mke2fs
    /// creates after its directories.
    fn plan_with_directories(
        options: &Options,
        directories: &[(InodeNr, u64)],
        owned: &OwnerUsage,
    ) -> Result<Skeleton> {
        let layout = Layout::compute(&options.wanted).map_err(|error| match error {
            LayoutError::TooSmall => no_space(),
            LayoutError::TooFewInodes { found, least } => Error::Options(format!(
                "there is room for {found} inodes, and a file system needs {least} for itself; make it larger, or ask \
                 for inodes with -N"
            )),
            error => Error::Options(error.to_string()),
        })?;
        let mut superblock = SuperBlock::create(&layout).map_err(|e| Error::Options(e.to_string()))?;
        let geo = superblock.geometry().clone();
        let journal_blocks = journal_blocks(options, &geo)?;
        let mut space = Space::new(&geo);
        let stride = options.wanted.stride.into();
        let tables = tables::place(&mut space, &geo, stride, options.packed_meta_blocks)?;
        space.count_clusters();
        let mut overhead: u64 = space.taken().map(|run| run.end - run.start).sum::<u64>() >> geo.cluster_bits;

        let lost_found = InodeNr(geo.first_ino);
        let mut skeleton = Skeleton {
            options: options.clone(),
            superblock: superblock.clone(),
            space,
            tables,
            files: Vec::new(),
            directories: Vec::new(),
            first_free_ino: InodeNr(lost_found.0 + 1),
        };
        for (ino, blocks) in directories {
            let owner = Owner { geo: &geo, ino: *ino };
            let mapped = skeleton.map_blocks(&owner, *blocks, owner.goal())?;
            skeleton.directories.push(mapped);
        }
        let now = Timestamp::from_seconds(options.wanted.time);
        skeleton.files.push(SystemFile::bad_blocks(BAD_BLOCKS, now));
        if superblock.compat().contains(Compat::RESIZE_INODE) {
            let file = SystemFile::resize(&mut skeleton.space, &geo, now)?;
            skeleton.files.push(file);
        }
        if let Some((blocks, fast_commit)) = journal_blocks {
            let file = skeleton.journal(&geo, blocks, fast_commit)?;
            let inode = file.inode(&geo);
            superblock.set_internal_journal(&extant_ondisk::superblock::JournalPlace {
                i_block: inode.i_block,
                size: inode.size,
            });
            overhead += u64::from(blocks + fast_commit).div_ceil(geo.blocks_per_cluster().into());
            skeleton.files.push(file);
        }
        if let Some(journal) = options.external_journal {
            superblock.set_external_journal(journal.uuid, journal.number);
        }
        if superblock.incompat().contains(Incompat::MMP) {
            let block = skeleton.space.take_new_block(0)?;
            let interval = match options.wanted.mmp_interval {
                0 => mmp::INTERVAL,
                interval => interval,
            };
            superblock.set_mmp(BlockNr(block), interval);
            skeleton.files.push(SystemFile::mmp(block));
        }
        superblock.set_overhead_clusters(overhead + geo.first_data_block);
        if options.quota.contains(&true) {
            let inodes = skeleton.quota_files(&geo, now, owned)?;
            superblock.set_quota_inodes(inodes);
        }
        if let Some(blocks) = options.orphan_file.filter(|_| superblock.compat().contains(Compat::HAS_JOURNAL)) {
            let ino = skeleton.take_ino();
            let file = skeleton.orphan_file(&geo, ino, blocks, now)?;
            superblock.set_orphan_file(ino);
            skeleton.files.push(file);
        }
        skeleton.superblock = superblock;
        Ok(skeleton)
    }

    fn take_ino(&mut self) -> InodeNr {
        let ino = self.first_free_ino;
        self.first_free_ino.0 += 1;
        ino
    }

    /// Takes blocks one by one, mapped like those of the file system's files.
    fn map_blocks(&mut self, owner: &Owner<'_>, blocks: u64, goal: u64) -> Result<Mapped> {
        if owner.geo.extents {
            Mapped::by_blocks(&mut self.space, owner, blocks, goal)
        } else {
            Mapped::with_pointers(&mut self.space, owner, blocks, goal)
        }
    }

    fn journal(&mut self, geo: &Geometry, blocks: u32, fast_commit: u32) -> Result<SystemFile> {
        let owner = Owner { geo, ino: InodeNr::JOURNAL };
        let asked = self.options.journal.and_then(|journal| journal.location);
        let len = u64::from(blocks + fast_commit);
        let mapped = if geo.extents {
            let goal = asked.unwrap_or_else(|| self.middle(geo));
            Mapped::in_ranges(&mut self.space, &owner, len, goal)?
        } else {
            Mapped::with_pointers(&mut self.space, &owner, len, owner.goal())?
        };
        let kind = Kind::Journal { blocks: blocks + fast_commit, fast_commit };
        Ok(SystemFile::new(owner.ino, kind, mapped, len, Timestamp::from_seconds(self.options.wanted.time), geo))
    }

    fn orphan_file(&mut self, geo: &Geometry, ino: InodeNr, blocks: u32, now: Timestamp) -> Result<SystemFile> {
        let ratio = geo.blocks_per_cluster();
        let blocks = match (blocks, geo.blocks_count) {
            (0, 0..0x2_0000) => 32,
            (0, count @ 0x2_0000..0x20_0000) => (count / 4096) as u32,
            (0, _) => 512,
            (asked, _) => asked,
        };
        let blocks =
            u64::from(if self.options.orphan_file == Some(0) { blocks.next_multiple_of(ratio) } else { blocks });
        let owner = Owner { geo, ino };
        let mapped = if geo.extents {
            Mapped::by_blocks(&mut self.space, &owner, blocks, 0)?
        } else {
            Mapped::with_pointers(&mut self.space, &owner, blocks, 0)?
        };
        Ok(SystemFile::new(ino, Kind::Orphans, mapped, blocks, now, geo))
    }

    fn quota_files(&mut self, geo: &Geometry, now: Timestamp, owned: &OwnerUsage) -> Result<[Option<InodeNr>; 3]> {
        let mut inodes = [None; 3];
        let wanted = self.options.quota;
        for (i, kind) in QuotaKind::ALL.into_iter().enumerate().filter(|(i, _)| wanted[*i]) {
            if kind == QuotaKind::Project && geo.inode_size == GOOD_OLD_INODE_SIZE {
                continue;
            }
            let ino = match kind {
                QuotaKind::User => USER_QUOTA,
                QuotaKind::Group => GROUP_QUOTA,
                QuotaKind::Project => self.take_ino(),
            };
            let bytes = quota::file(kind, owned.of(kind));
            let owner = Owner { geo, ino };
            let blocks = (bytes.len() as u64).div_ceil(geo.block_size.into());
            let mut mapped = self.map_blocks(&owner, blocks, owner.goal())?;
            if geo.extents && geo.cluster_bits == 0 && geo.block_size == BLOCK_BYTES as u32 {
                // mke2fs writes the root of the tree last; within a cluster, its place is fixed.
                mapped.put_second_behind_sixth(&owner)?;
            }
            mapped.flags |= InodeFlags::IMMUTABLE;
            self.files.push(SystemFile::quota(ino, Kind::Quota { kind, bytes }, mapped, now, geo));
            inodes[i] = Some(ino);
        }
        Ok(inodes)
    }

    /// The default place of a journal: the group with the most room near the middle.
    fn middle(&self, geo: &Geometry) -> u64 {
        let middle = (geo.blocks_count - geo.first_data_block) / 2;
        let middle = BlockNr(middle.max(geo.first_data_block));
        let mut group = geo.group_of_block(middle).map_or(0, |(group, _)| group.0);
        let count = geo.group_count;
        let mut best = if geo.groups_per_flex > 1 && group > geo.groups_per_flex {
            group &= !(geo.groups_per_flex - 1);
            while group < count && self.space.counted[group as usize] == 0 {
                group += 1;
            }
            group %= count;
            group
        } else {
            group.saturating_sub(1)
        };
        let end = if group + 1 < count { group + 1 } else { group };
        for other in best + 1..=end {
            if self.space.counted[other as usize] > self.space.counted[best as usize] {
                best = other;
            }
        }
        geo.first_block_of_group(extant_ondisk::GroupNr(best)).0
    }

    /// The layout.
    pub fn geometry(&self) -> &Geometry {
        self.superblock.geometry()
    }

    /// The superblock before the counts of blocks and inodes are known.
    pub fn superblock(&self) -> &SuperBlock {
        &self.superblock
    }

    /// The options from which it was planned.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The inode number of lost+found, which every file system has.
    pub fn lost_found_ino(&self) -> InodeNr {
        InodeNr(self.geometry().first_ino)
    }

    /// The first inode number that neither the skeleton nor lost+found has.
    pub fn first_free_ino(&self) -> InodeNr {
        self.first_free_ino
    }

    /// The blocks that do not belong to the skeleton, in ascending order. With `bigalloc`, whole clusters.
    pub fn free_runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let geo = self.geometry();
        let mut at = geo.first_data_block;
        let end = geo.blocks_count;
        self.space.taken().chain(std::iter::once(end..end)).filter_map(move |taken| {
            let free = at..taken.start;
            at = at.max(taken.end);
            (!free.is_empty()).then_some(free)
        })
    }

    /// Adds files.
    ///
    /// # Errors
    /// There are too many inodes or blocks.
    pub fn finish(self, usage: Usage) -> Result<Finished> {
        Finished::new(self, usage)
    }
}

/// The numbers of blocks in the journal and in its fast-commit area.
fn journal_blocks(options: &Options, geo: &Geometry) -> Result<Option<(u32, u32)>> {
    let Some(asked) = options.journal else { return Ok(None) };
    // A file system that is too small for a journal has none.
    let Some(default) = default_blocks(geo.blocks_count) else { return Ok(None) };
    let blocks = asked.blocks.unwrap_or(default);
    let fast = if options.wanted.compat.contains(Compat::FAST_COMMIT) {
        asked.fast_commit_blocks.unwrap_or(default / FAST_COMMIT_PART)
    } else {
        0
    };
    let total = u64::from(blocks) + u64::from(fast);
    if asked.blocks.is_some() || (asked.fast_commit_blocks.is_some() && fast > 0) {
        if !(u64::from(MIN_LOG_BLOCKS)..=u64::from(JOURNAL_BLOCKS_MAX)).contains(&total) {
            return Err(Error::Options(format!(
                "the journal has {total} blocks; it must have {MIN_LOG_BLOCKS} to {JOURNAL_BLOCKS_MAX}: change -J size"
            )));
        }
        let table = u64::from(geo.inode_table_blocks);
        let base: u64 = geo.groups().map(|group| geo.base_metadata(group).blocks()).sum();
        let tables = if geo.groups_per_flex > 1 { 0 } else { u64::from(geo.group_count) * (2 + table) };
        let free = (geo.blocks_count - geo.first_data_block).saturating_sub(base + tables);
        if total > free / 2 {
            return Err(Error::Options(format!(
                "a journal of {total} blocks is too big for {free} free blocks; make it at most half of them with -J size"
            )));
        }
    }
    Ok(Some((blocks, fast)))
}
