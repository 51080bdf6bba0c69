//! The layout of a file system: the arithmetic between blocks, groups, inodes and descriptors.
//!
//! Main types: [`Geometry`] (the unchanging part of a mounted layout; cheap to clone and share without a lock),
//! [`InodeLocation`], [`BaseMetadata`] (the superblock and descriptor copies of a group), [`BackupRule`]. It does not
//! know the places of bitmaps and inode tables: the group descriptors do.
//!
//! All arithmetic stays in range because [`super::SuperBlock::decode`] checked the fields from which the layout is
//! derived: at most 2^48 blocks, at most 2^32 - 1 inodes, and at most 2^32 blocks in a group.
//!
//! # Locking
//! None.

use crate::csum::ChecksumSeed;
use crate::{BlockNr, Error, GroupNr, InodeNr, Result, Structure};

/// Which groups have a copy of the superblock and of the descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackupRule {
    /// Every group (no `sparse_super`).
    All,
    /// Groups 0, 1 and the powers of 3, 5 and 7.
    Sparse,
    /// Group 0 and these two; 0 means none (`sparse_super2`).
    Two([u32; 2]),
}

/// How group descriptors are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescChecksum {
    /// There is no checksum, and the uninit flags have no meaning.
    None,
    /// `uninit_bg`: a CRC16 that begins with the UUID, never with the stored seed.
    Crc16,
    /// `metadata_csum`.
    Crc32c,
}

/// The validated layout from the superblock (Linux: the unchanging part of `struct ext4_sb_info`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Geometry {
    /// The block size in bytes: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// log2 of `block_size`.
    pub block_bits: u32,
    /// log2 of the number of blocks in a cluster; 0 without `bigalloc`.
    pub cluster_bits: u32,
    /// The number of blocks in the file system, including those before group 0; at most 2^48.
    pub blocks_count: u64,
    /// The block where group 0 starts: 1 with blocks of 1 KiB, otherwise 0.
    pub first_data_block: u64,
    /// The number of blocks in every group except possibly the last.
    pub blocks_per_group: u32,
    /// The number of bits that are used in a block bitmap; `blocks_per_group` without `bigalloc`.
    pub clusters_per_group: u32,
    /// The number of bits that are used in an inode bitmap.
    pub inodes_per_group: u32,
    /// The number of inodes in all groups.
    pub inodes_count: u32,
    /// The size of an inode in the table, in bytes.
    pub inode_size: usize,
    /// The first inode number that is not reserved.
    pub first_ino: u32,
    /// The number of blocks in an inode table.
    pub inode_table_blocks: u32,
    /// The number of groups, at least 1.
    pub group_count: u32,
    /// The size of a group descriptor in bytes.
    pub desc_size: usize,
    /// The number of blocks that one copy of all descriptors takes.
    pub desc_blocks: u32,
    /// The index of the first descriptor block that `meta_bg` places; `None` without the feature.
    pub first_meta_bg: Option<u32>,
    /// The number of blocks reserved for growth after the descriptors, in every group with a backup.
    pub reserved_gdt_blocks: u32,
    /// Which groups have copies of the superblock and of the descriptors.
    pub backups: BackupRule,
    /// The number of groups whose bitmaps and tables are stored together; 1 without `flex_bg`.
    pub groups_per_flex: u32,
    /// How descriptors are protected.
    pub desc_checksum: DescChecksum,
    /// `metadata_csum`: every metadata block and inode has a CRC32C.
    pub metadata_csum: bool,
    /// `64bit`: the high halves of block numbers are valid.
    pub bit64: bool,
    /// `flex_bg`: a group's bitmaps and table may lie in another group.
    pub flex_bg: bool,
    /// `huge_file`: `i_blocks` has 48 bits.
    pub huge_file: bool,
    /// `ea_inode`: values of attributes may be stored in separate inodes.
    pub ea_inode: bool,
    /// `large_dir`: directories may be larger than 4 GiB and have one more index level.
    pub large_dir: bool,
    /// `filetype`: directory entries contain the type.
    pub filetype: bool,
    /// `extent`: inodes may map their blocks with extents.
    pub extents: bool,
    /// `inline_data`: the content of a file may be stored in the inode.
    pub inline_data: bool,
    /// `casefold`: directories may look up names case-insensitively.
    pub casefold: bool,
    /// `dir_index`: directories may have a hash tree.
    pub dir_index: bool,
    /// `imagic_inodes`: inodes may belong to AFS.
    pub imagic_inodes: bool,
    /// Created by the Hurd: some inode fields have other meanings.
    pub hurd: bool,
    /// The number of extra bytes that a new inode uses; 0 with inodes of 128 bytes.
    pub want_extra_isize: u16,
    /// The UUID of the volume (`s_uuid`).
    pub uuid: [u8; 16],
    /// The start value of every metadata checksum.
    pub seed: ChecksumSeed,
}

/// Where an inode is within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeLocation {
    /// The group whose table contains the inode.
    pub group: GroupNr,
    /// The 0-based index in the group, which is the bit in the inode bitmap.
    pub index: u32,
    /// The offset of the block from the start of the group's inode table, in blocks.
    pub table_block: u32,
    /// The offset in that block, in bytes.
    pub offset: usize,
}

/// The blocks at the start of a group that are not its bitmaps or inode table. Ranges are clipped to the group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseMetadata {
    /// The copy of the superblock; in group 0 the primary superblock.
    pub superblock: Option<BlockNr>,
    /// The first block of the descriptor copy, and the number of its blocks.
    pub descriptors: Option<(BlockNr, u32)>,
    /// The first of the blocks reserved for growth, and their number.
    pub reserved: Option<(BlockNr, u32)>,
}

impl BaseMetadata {
    /// All these blocks as ranges: the first block and the number of blocks.
    pub fn ranges(&self) -> impl Iterator<Item = (BlockNr, u32)> {
        [self.superblock.map(|block| (block, 1)), self.descriptors, self.reserved].into_iter().flatten()
    }

    /// The total number of these blocks.
    pub fn blocks(&self) -> u64 {
        self.ranges().map(|(_, count)| u64::from(count)).sum()
    }
}

impl Geometry {
    /// The same as the field, for iterators and messages.
    pub fn group_count(&self) -> u32 {
        self.group_count
    }

    /// All groups in order.
    pub fn groups(&self) -> impl DoubleEndedIterator<Item = GroupNr> + use<> {
        (0..self.group_count).map(GroupNr)
    }

    /// The number of blocks in a cluster; 1 without `bigalloc`.
    pub fn blocks_per_cluster(&self) -> u32 {
        1 << self.cluster_bits
    }

    /// The number of inodes in one block of an inode table.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / self.inode_size as u32
    }

    /// The number of descriptors in one block of their table.
    pub fn descs_per_block(&self) -> u32 {
        self.block_size / self.desc_size as u32
    }

    /// Whether the block can belong to the file system. Block 0 of an image with blocks of 1 KiB cannot.
    pub fn contains(&self, block: BlockNr) -> bool {
        block.0 >= self.first_data_block && block.0 < self.blocks_count
    }

    /// Whether all `count` blocks from `start` on exist. For an empty range, whether its start exists.
    pub fn contains_range(&self, start: BlockNr, count: u64) -> bool {
        self.contains(start) && start.0.checked_add(count).is_some_and(|end| end <= self.blocks_count)
    }

    /// The first block of a group, which must exist.
    pub fn first_block_of_group(&self, group: GroupNr) -> BlockNr {
        BlockNr(self.first_data_block + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// The number of blocks in a group: fewer in the last one; 0 for a group that does not exist.
    pub fn blocks_in_group(&self, group: GroupNr) -> u32 {
        if group.0 >= self.group_count {
            return 0;
        }
        let rest = self.blocks_count - self.first_block_of_group(group).0;
        rest.min(u64::from(self.blocks_per_group)) as u32
    }

    /// The number of clusters in a group; the last one may be partial. Equals [`Geometry::blocks_in_group`] without
    /// `bigalloc`.
    pub fn clusters_in_group(&self, group: GroupNr) -> u32 {
        self.blocks_in_group(group).div_ceil(self.blocks_per_cluster())
    }

    /// The group of a block and the block's offset in it, or `None` outside the file system.
    pub fn group_of_block(&self, block: BlockNr) -> Option<(GroupNr, u32)> {
        if !self.contains(block) {
            return None;
        }
        let relative = block.0 - self.first_data_block;
        let per_group = u64::from(self.blocks_per_group);
        Some((GroupNr((relative / per_group) as u32), (relative % per_group) as u32))
    }

    /// Whether the group has a copy of the superblock; group 0 has the primary.
    pub fn has_super_backup(&self, group: GroupNr) -> bool {
        let group = group.0;
        match self.backups {
            _ if group == 0 => true,
            BackupRule::All => true,
            BackupRule::Two(groups) => groups.contains(&group),
            BackupRule::Sparse => {
                group == 1 || (group % 2 == 1 && [3, 5, 7].iter().any(|&base| is_power_of(group, base)))
            }
        }
    }

    /// The groups after 0 that have a copy of the superblock.
    pub fn backup_groups(&self) -> impl Iterator<Item = GroupNr> + '_ {
        (1..self.group_count).map(GroupNr).filter(|group| self.has_super_backup(*group))
    }

    /// The place of a group's copy of the superblock: its block, and its offset in that block in bytes (0 except for
    /// the primary superblock with blocks larger than 1 KiB). [`Geometry::has_super_backup`] tells whether the copy
    /// exists.
    pub fn super_location(&self, group: GroupNr) -> (BlockNr, usize) {
        if group.0 == 0 {
            return if self.block_size == 1024 { (BlockNr(1), 0) } else { (BlockNr(0), 1024) };
        }
        (self.first_block_of_group(group), 0)
    }

    /// The block of the descriptor table with this index (primary copy); `None` if there is no such index (Linux:
    /// `descriptor_loc`, fs/ext4/super.c).
    pub fn desc_table_block(&self, index: u32) -> Option<BlockNr> {
        if index >= self.desc_blocks {
            return None;
        }
        let primary = self.super_location(GroupNr(0)).0.0;
        if self.first_meta_bg.is_none_or(|first| index < first) {
            return Some(BlockNr(primary + 1 + u64::from(index)));
        }
        // In a metagroup, the descriptors are in its first group, after the superblock if that group has one.
        let group = GroupNr(index * self.descs_per_block());
        let start = if group.0 == 0 { primary } else { self.first_block_of_group(group).0 };
        Some(BlockNr(start + u64::from(self.has_super_backup(group))))
    }

    /// The block that contains a group's descriptor (primary copy), and the byte offset in it.
    pub fn group_desc_block(&self, group: GroupNr) -> Option<(BlockNr, usize)> {
        if group.0 >= self.group_count {
            return None;
        }
        let per_block = self.descs_per_block();
        let block = self.desc_table_block(group.0 / per_block)?;
        Some((block, (group.0 % per_block) as usize * self.desc_size))
    }

    /// The copies of the descriptor block with this index, the primary first. `backups` are the groups whose copies of
    /// the whole table may be used ([`Geometry::backup_groups`], or some of them). A block that `meta_bg` places has
    /// its copies in its own metagroup, so it needs no `backups`.
    pub fn desc_block_copies<'a>(&'a self, index: u32, backups: &'a [GroupNr]) -> impl Iterator<Item = BlockNr> + 'a {
        let per_block = self.descs_per_block();
        let in_metagroup = self.first_meta_bg.is_some_and(|first| index >= first);
        let metagroup = index.saturating_mul(per_block);
        let own = [1, per_block - 1].map(|place| GroupNr(metagroup.saturating_add(place)));
        let own = own.into_iter().filter(move |group| in_metagroup && group.0 > metagroup);
        let whole = backups.iter().copied().filter(move |_| !in_metagroup);
        let behind = if in_metagroup { 0 } else { u64::from(index) };
        let copies = own.chain(whole).filter(|group| group.0 < self.group_count).map(move |group| {
            let has_super = u64::from(self.has_super_backup(group));
            BlockNr(self.first_block_of_group(group).0 + has_super + behind)
        });
        self.desc_table_block(index).into_iter().chain(copies.filter(|block| self.contains(*block)))
    }

    /// The indexes of the descriptor blocks whose copies follow the superblock of `group`, in order.
    pub fn desc_blocks_behind(&self, group: GroupNr) -> impl Iterator<Item = u32> + use<> {
        let whole = self.first_meta_bg.map_or(self.desc_blocks, |first| first.min(self.desc_blocks));
        // Each metagroup has three copies of its own block.
        let (index, place) = (group.0 / self.descs_per_block(), group.0 % self.descs_per_block());
        let own = index >= whole && index < self.desc_blocks;
        let own = own && (place <= 1 || place == self.descs_per_block() - 1);
        let table = if index < whole { 0..whole } else { 0..0 };
        table.chain(own.then_some(index))
    }

    /// The places of a group's block bitmap, inode bitmap and inode table in versions of `mke2fs`, if nothing else is
    /// there: after the copies of superblock and descriptors, with those of a flex group next to each other. If there
    /// are fewer groups than in a whole flex group, older versions left room for all of them.
    pub fn default_tables(&self, group: GroupNr) -> [[BlockNr; 3]; 2] {
        let flex = self.groups_per_flex.max(1);
        let (first, place) = (GroupNr(group.0 - group.0 % flex), u64::from(group.0 % flex));
        let base = self.base_metadata(first).ranges().map(|(start, count)| start.0 + u64::from(count)).max();
        let start = base.unwrap_or(self.first_block_of_group(first).0);
        let table = u64::from(self.inode_table_blocks);
        let there = flex.min(self.group_count.saturating_sub(first.0));
        [there, flex]
            .map(u64::from)
            .map(|count| [start + place, start + count + place, start + 2 * count + place * table].map(BlockNr))
    }

    /// Reduces the layout to the first `groups` groups: the known part of an image whose descriptors end there.
    pub fn cut_to(&mut self, groups: u32) {
        if groups < self.group_count {
            self.blocks_count = self.first_block_of_group(GroupNr(groups)).0;
            self.group_count = groups;
        }
    }

    /// The superblock copy, descriptor blocks and reserved descriptor blocks at the start of a group (Linux:
    /// `ext4_num_base_meta_clusters`, fs/ext4/balloc.c).
    pub fn base_metadata(&self, group: GroupNr) -> BaseMetadata {
        let blocks = self.blocks_in_group(group);
        if blocks == 0 {
            return BaseMetadata::default();
        }
        let has_super = self.has_super_backup(group);
        let metagroup = group.0 / self.descs_per_block();
        let (descriptors, reserved) = match self.first_meta_bg {
            Some(first) if metagroup >= first => {
                // A metagroup keeps three copies of its one descriptor block: in its first, second and last group.
                let place = group.0 % self.descs_per_block();
                (u32::from(place <= 1 || place == self.descs_per_block() - 1), 0)
            }
            Some(first) if has_super => (first, self.reserved_gdt_blocks),
            None if has_super => (self.desc_blocks, self.reserved_gdt_blocks),
            _ => (0, 0),
        };
        let end = self.first_block_of_group(group).0 + u64::from(blocks);
        let mut next = if group.0 == 0 { self.super_location(group).0.0 } else { self.first_block_of_group(group).0 };
        let mut take = |wanted: u32| {
            let count = u64::from(wanted).min(end.saturating_sub(next)) as u32;
            let start = next;
            next += u64::from(count);
            (count > 0).then_some((BlockNr(start), count))
        };
        BaseMetadata {
            superblock: take(u32::from(has_super)).map(|(block, _)| block),
            descriptors: take(descriptors),
            reserved: take(reserved),
        }
    }

    /// The number of blocks that contain no file's data and belong to no journal: superblocks, descriptors and blocks
    /// reserved for them, bitmaps, inode tables. statfs subtracts these and the journal's blocks (Linux:
    /// `ext4_calculate_overhead`).
    pub fn overhead_blocks(&self) -> u64 {
        let per_group = 2 + u64::from(self.inode_table_blocks);
        let base: u64 = self.groups().map(|group| self.base_metadata(group).blocks()).sum();
        self.first_data_block + base + per_group * u64::from(self.group_count)
    }

    /// Whether this is the number of an inode of this file system, including reserved ones.
    pub fn contains_inode(&self, ino: InodeNr) -> bool {
        ino.0 >= 1 && ino.0 <= self.inodes_count
    }

    /// The place of an inode's bytes.
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode: the number came from a directory entry or an orphan list.
    pub fn inode_location(&self, ino: InodeNr) -> Result<InodeLocation> {
        if !self.contains_inode(ino) {
            return Err(Error::corrupt(
                Structure::Inode,
                ino.0,
                format!("number out of range 1..={}", self.inodes_count),
            ));
        }
        let zero_based = ino.0 - 1;
        let index = zero_based % self.inodes_per_group;
        let per_block = self.inodes_per_block();
        Ok(InodeLocation {
            group: GroupNr(zero_based / self.inodes_per_group),
            index,
            table_block: index / per_block,
            offset: (index % per_block) as usize * self.inode_size,
        })
    }

    /// The inode with this 0-based index in the group's bitmap.
    pub fn inode_at(&self, group: GroupNr, index: u32) -> Option<InodeNr> {
        if group.0 >= self.group_count || index >= self.inodes_per_group {
            return None;
        }
        Some(InodeNr(group.0 * self.inodes_per_group + index + 1))
    }

    /// The maximum size of a file mapped by extents, in bytes. Logical block 2^32 - 1 cannot be mapped, because the
    /// block after the end of an extent must have a number, too (Linux: `ext4_max_size`).
    pub fn max_extent_file_size(&self) -> u64 {
        let by_mapping = u64::from(u32::MAX) << self.block_bits;
        let by_blocks = if self.huge_file {
            i64::MAX as u64
        } else {
            (u64::from(u32::MAX) >> (self.block_bits - 9)) << self.block_bits
        };
        by_mapping.min(by_blocks)
    }

    /// The maximum size of a file mapped by indirect blocks, in bytes: the range of the three levels, or less if
    /// `i_blocks` could not count data and indirect blocks (Linux: `ext4_max_bitmap_size`).
    pub fn max_indirect_file_size(&self) -> u64 {
        let pointers = u64::from(self.block_size / 4);
        let reach = 12 + pointers + pointers * pointers + pointers * pointers * pointers;
        let count_limit = if self.huge_file { (1 << 48) - 1 } else { u64::from(u32::MAX) >> (self.block_bits - 9) };
        // The number of indirect blocks never decreases as the data grows, so the maximum can be found by bisection.
        let (mut fits, mut too_many) = (0, reach + 1);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if middle + indirect_blocks(middle, pointers) <= count_limit {
                fits = middle;
            } else {
                too_many = middle;
            }
        }
        fits << self.block_bits
    }

    /// Checks that the file system fits on the device.
    ///
    /// # Errors
    /// `Corrupt`, with both sizes, if the device ends before the end of the file system.
    pub fn check_device_size(&self, device_bytes: u64) -> Result<()> {
        let needed = self.blocks_count << self.block_bits;
        if device_bytes < needed {
            let detail = format!("file system of {needed} bytes on a device of {device_bytes}");
            return Err(Error::corrupt(Structure::SuperBlock, super::SUPERBLOCK_OFFSET, detail));
        }
        Ok(())
    }
}

/// The number of indirect blocks that map the first `data` blocks of a file without holes.
fn indirect_blocks(data: u64, pointers: u64) -> u64 {
    let single = data.saturating_sub(12).min(pointers).div_ceil(pointers);
    let in_double = data.saturating_sub(12 + pointers).min(pointers * pointers);
    let in_triple = data.saturating_sub(12 + pointers + pointers * pointers);
    let double = if in_double > 0 { 1 + in_double.div_ceil(pointers) } else { 0 };
    let triple =
        if in_triple > 0 { 1 + in_triple.div_ceil(pointers * pointers) + in_triple.div_ceil(pointers) } else { 0 };
    single + double + triple
}

pub(super) fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 {
        if !number.is_multiple_of(base) {
            return false;
        }
        number /= base;
    }
    number == 1
}

/// Places to look for a backup if the primary superblock is bad and the block size unknown: the byte offset, and the
/// block size with which a backup would be there. Groups of the usual size (8 blocks per byte of a block) come first,
/// the nearest first; then the last group of a device of `device_bytes` (`sparse_super2`); then the second group for
/// other sizes of groups (`mke2fs -g`, `bigalloc`).
pub fn backup_candidates(device_bytes: u64) -> impl Iterator<Item = (u64, u32)> {
    const GROUPS: [u64; 10] = [1, 3, 5, 7, 9, 25, 27, 49, 81, 125];
    const GROUP_BLOCKS_LOG2: std::ops::RangeInclusive<u32> = 8..=25;
    let sizes = || (10..=16).map(|bits| 1u64 << bits);
    let place = |block_size: u64, block: u64| {
        let first_data_block = u64::from(block_size == 1024);
        ((block + first_data_block) * block_size, block_size as u32)
    };
    let usual = GROUPS.into_iter().flat_map(move |group| sizes().map(move |size| place(size, group * 8 * size)));
    let last = sizes().filter_map(move |size| {
        let blocks = (device_bytes / size).checked_sub(u64::from(size == 1024) + 1)?;
        Some(place(size, blocks / (8 * size) * (8 * size)))
    });
    let odd = GROUP_BLOCKS_LOG2.flat_map(move |log2| sizes().map(move |size| place(size, 1 << log2)));
    usual
        .chain(last)
        .chain(odd)
        .filter(move |(at, _)| at.checked_add(super::SUPERBLOCK_SIZE as u64).is_some_and(|end| end <= device_bytes))
}
