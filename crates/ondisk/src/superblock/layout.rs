//! Computes the superblock of a new file system: it turns sizes and features into numbers of groups, inodes and
//! descriptors, with the same results as mke2fs.
//!
//! Main types: [`LayoutRequest`] (the parameters), [`Layout`] (the result), [`LayoutError`] (the reason why there is
//! none). Main functions: [`Layout::compute`], [`SuperBlock::create`]. This module does not know which combinations of
//! features make sense, nor where bitmaps and tables are placed.
//!
//! # Locking
//! None.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::{
    DESC_SIZE_GOOD_OLD, EXTRA_ISIZE_DEFAULT, FIRST_INO_GOOD_OLD, FsState, INODE_SIZE_GOOD_OLD, MAGIC, RawSuperBlock,
    SUPERBLOCK_OFFSET, SuperBlock, SuperFlags,
};
use crate::csum::crc32c;
use crate::features::{Compat, Incompat, RoCompat};
use crate::{BlockNr, InodeNr, Result};

/// The size of a descriptor with `64bit`, in bytes (Linux: `EXT4_MIN_DESC_SIZE_64BIT`).
const DESC_SIZE_64BIT: u32 = 64;
/// The maximum number of clusters that the 16-bit counters of a descriptor can hold (e2fsprogs:
/// `EXT2_MAX_CLUSTERS_PER_GROUP`).
const CLUSTERS_PER_GROUP_MAX: u32 = (1 << 16) - 8;
/// A last group with fewer blocks than this, apart from its own metadata, is left out.
const LAST_GROUP_FREE_MIN: u64 = 50;
/// `s_checksum_type`.
pub(super) const CHECKSUM_CRC32C: u8 = 1;
/// `s_def_hash_version` of half MD4.
pub(super) const HASH_HALF_MD4: u8 = 1;
/// If the descriptors and the blocks reserved for them took more than this many quarters of a group, `meta_bg` is used.
const GDT_QUARTERS_MAX: u64 = 3;
/// The encryption modes of data and names with `encrypt` (fscrypt: AES-256-XTS, AES-256-CTS).
const ENCRYPT_ALGOS: [u8; 4] = [1, 4, 0, 0];

/// The parameters of a new file system.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutRequest {
    /// Compatible features.
    pub compat: Compat,
    /// Incompatible features.
    pub incompat: Incompat,
    /// Read-only compatible features.
    pub ro_compat: RoCompat,
    /// The revision, 0 or 1.
    pub revision: u32,
    /// The block size in bytes: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// The cluster size in bytes: a power of two, at least `block_size`; equal to it without `bigalloc`.
    pub cluster_size: u32,
    /// The number of blocks of the device.
    pub blocks_count: u64,
    /// The number of blocks reserved for root.
    pub reserved_blocks: u64,
    /// The number of blocks in a group, or of clusters with `bigalloc`; 0 for as many as a bitmap has bits.
    pub per_group: u32,
    /// The minimum number of inodes; there are more if that fills the blocks of the tables.
    pub inodes_count: u32,
    /// The inode size in bytes: a power of two from 128 to the block size.
    pub inode_size: u16,
    /// log2 of the number of groups whose bitmaps and tables are stored together.
    pub log_groups_per_flex: u8,
    /// The number of blocks reserved for more descriptors; `None` for enough for a file system 1024 times as large.
    pub reserved_gdt_blocks: Option<u16>,
    /// The first descriptor block that `meta_bg` places.
    pub first_meta_bg: u32,
    /// The groups with backups with `sparse_super2`; `u32::MAX` means the last one, 0 none.
    pub backup_groups: [u32; 2],
    /// The number of blocks on one disk of a RAID.
    pub stride: u16,
    /// The number of blocks on all data disks of a RAID.
    pub stripe_width: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// The label; truncated to 16 bytes.
    pub label: Vec<u8>,
    /// The directory of the last mount; truncated to 64 bytes.
    pub last_mounted: Vec<u8>,
    /// The creation time, in seconds since 1970.
    pub time: i64,
    /// `s_errors`.
    pub errors: u16,
    /// `s_default_mount_opts`.
    pub default_mount_opts: u32,
    /// The size of a descriptor with `64bit`, in bytes; 0 for 64.
    pub desc_size: u16,
    /// `s_creator_os`.
    pub creator_os: u32,
    /// Whether the file system is for development code.
    pub test_filesystem: bool,
    /// `s_encoding` and `s_encoding_flags`.
    pub encoding: (u16, u16),
    /// The interval of the updates of the MMP block with `mmp`, in seconds.
    pub mmp_interval: u16,
}

/// The reason why there is no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Not even one group fits.
    #[error("the file system is too small for its own structures")]
    TooSmall,
    /// There are fewer inodes than the format reserves.
    #[error("{found} inodes, at least {least} are needed")]
    TooFewInodes {
        /// The number of inodes in all groups.
        found: u32,
        /// The number of the first inode that is not reserved, which is lost+found.
        least: u32,
    },
    /// The inode tables do not fit into the groups.
    #[error("too many inodes for the groups")]
    TooManyInodes,
    /// The resize inode cannot map that many blocks.
    #[error("{found} reserved descriptor blocks, at most {most} possible")]
    ReservedGdtBlocks {
        /// The number of blocks.
        found: u32,
        /// The number of pointers in a block.
        most: u32,
    },
    /// The sizes contradict each other.
    #[error("block size, cluster size and group size do not fit each other")]
    Sizes,
}

/// A consistent layout.
#[derive(Clone, Debug, PartialEq)]
pub struct Layout {
    wanted: LayoutRequest,
    blocks_count: u64,
    reserved_blocks: u64,
    blocks_per_group: u32,
    clusters_per_group: u32,
    inodes_per_group: u32,
    group_count: u32,
    reserved_gdt_blocks: u16,
    meta_bg_forced: bool,
    backup_groups: [u32; 2],
}

impl Layout {
    /// Computes the layout.
    ///
    /// # Errors
    /// The parameters contradict each other, or the file system is too small.
    pub fn compute(wanted: &LayoutRequest) -> std::result::Result<Layout, LayoutError> {
        let block_size = wanted.block_size;
        let sizes_fit = block_size.is_power_of_two()
            && (1024..=1 << 16).contains(&block_size)
            && wanted.cluster_size.is_power_of_two()
            && wanted.cluster_size >= block_size
            && wanted.cluster_size <= 1 << 29
            && wanted.inode_size.is_power_of_two()
            && (INODE_SIZE_GOOD_OLD.into()..=block_size).contains(&u32::from(wanted.inode_size))
            && wanted.blocks_count < 1 << 48;
        if !sizes_fit {
            return Err(LayoutError::Sizes);
        }
        let ratio = wanted.cluster_size / block_size;
        let bigalloc = wanted.ro_compat.contains(RoCompat::BIGALLOC);
        let per_group = if wanted.per_group != 0 {
            wanted.per_group
        } else if wanted.cluster_size >= 1 << 27 {
            // The number of blocks in a group must fit into 32 bits.
            (block_size - 1) * 8
        } else {
            block_size * 8
        };
        let per_group = per_group.min(CLUSTERS_PER_GROUP_MAX);
        let mut layout = Layout {
            wanted: wanted.clone(),
            blocks_count: wanted.blocks_count & !u64::from(ratio - 1),
            reserved_blocks: wanted.reserved_blocks,
            blocks_per_group: per_group.checked_mul(ratio).ok_or(LayoutError::Sizes)?,
            clusters_per_group: per_group,
            inodes_per_group: 0,
            group_count: 0,
            reserved_gdt_blocks: 0,
            meta_bg_forced: false,
            backup_groups: wanted.backup_groups,
        };
        if wanted.reserved_blocks >= wanted.blocks_count {
            return Err(LayoutError::TooSmall);
        }
        // Each round has smaller groups or fewer of them, so the loop ends.
        while !layout.settle(bigalloc)? {}
        let found = layout.inodes_per_group * layout.group_count;
        if found < FIRST_INO_GOOD_OLD {
            return Err(LayoutError::TooFewInodes { found, least: FIRST_INO_GOOD_OLD });
        }
        layout.settle_backups();
        Ok(layout)
    }

    fn first_data_block(&self) -> u64 {
        u64::from(self.wanted.cluster_size == 1024)
    }

    fn desc_size(&self) -> u32 {
        match (self.wanted.incompat.contains(Incompat::BIT64), self.wanted.desc_size) {
            (false, _) => DESC_SIZE_GOOD_OLD.into(),
            (true, 0) => DESC_SIZE_64BIT,
            (true, size) => size.into(),
        }
    }

    fn desc_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.wanted.block_size / self.desc_size())
    }

    fn inode_table_blocks(&self) -> u32 {
        (u64::from(self.inodes_per_group) * u64::from(self.wanted.inode_size)).div_ceil(self.wanted.block_size.into())
            as u32
    }

    /// Does one round. Returns whether the numbers fit; if not, the next round uses other numbers.
    fn settle(&mut self, bigalloc: bool) -> std::result::Result<bool, LayoutError> {
        let (block_size, first) = (self.wanted.block_size, self.first_data_block());
        let inside = self.blocks_count.checked_sub(first).filter(|n| *n > 0).ok_or(LayoutError::TooSmall)?;
        let groups = inside.div_ceil(self.blocks_per_group.into());
        self.group_count = u32::try_from(groups).map_err(|_| LayoutError::Sizes)?;

        let blocks_per_inode = u64::from(4096u32.div_ceil(block_size)).max(1);
        let asked = match self.wanted.inodes_count {
            0 => u32::try_from(self.blocks_count / blocks_per_inode).unwrap_or(u32::MAX),
            inodes => inodes,
        };
        let per_group = asked.max(FIRST_INO_GOOD_OLD + 1).div_ceil(self.group_count);
        if per_group > block_size * 8 {
            if bigalloc || self.blocks_per_group < 256 {
                return Err(LayoutError::TooManyInodes);
            }
            self.blocks_per_group -= 8;
            self.clusters_per_group = self.blocks_per_group;
            self.blocks_count = self.wanted.blocks_count;
            return Ok(false);
        }
        let inode_size = u32::from(self.wanted.inode_size);
        let mut per_group = per_group.min((1 << 16) - block_size / inode_size);
        loop {
            let table = (u64::from(per_group) * u64::from(inode_size)).div_ceil(block_size.into());
            // The tables fill their blocks, and the inode bitmaps fill whole bytes.
            let filled = (table * u64::from(block_size) / u64::from(inode_size)) as u32;
            self.inodes_per_group = filled.max(8) & !7;
            if u64::from(self.inodes_per_group) * groups <= u64::from(u32::MAX) {
                break;
            }
            per_group = per_group.checked_sub(1).ok_or(LayoutError::TooManyInodes)?;
        }

        let desc_blocks = self.desc_blocks();
        let pointers = block_size / 4;
        let resize = self.wanted.compat.contains(Compat::RESIZE_INODE) && !self.meta_bg_forced;
        let default = if resize { self.default_reserved_gdt_blocks(desc_blocks, pointers) } else { 0 };
        let asked = self.wanted.reserved_gdt_blocks.map(u32::from).filter(|n| *n != 0);
        let mut reserved = asked.unwrap_or(default);
        if reserved > pointers {
            return Err(LayoutError::ReservedGdtBlocks { found: reserved, most: pointers });
        }
        if u64::from(reserved + desc_blocks) > u64::from(self.blocks_per_group) * GDT_QUARTERS_MAX / 4 {
            self.meta_bg_forced = true;
            reserved = asked.unwrap_or(0);
        }
        self.reserved_gdt_blocks = reserved as u16;

        let table = u64::from(self.inode_table_blocks());
        let descriptors = if self.meta_bg() { 1 } else { u64::from(desc_blocks) };
        if 3 + table + u64::from(reserved) + descriptors > u64::from(self.blocks_per_group) {
            return Err(LayoutError::TooManyInodes);
        }
        let mut needed = 2 + table;
        if self.last_group_has_backup() {
            needed += 1 + u64::from(desc_blocks) + u64::from(reserved);
        }
        let rest = inside % u64::from(self.blocks_per_group);
        if self.group_count == 1 && rest != 0 && rest < needed {
            return Err(LayoutError::TooSmall);
        }
        if rest != 0 && rest < needed + LAST_GROUP_FREE_MIN {
            self.blocks_count -= rest;
            let percent = 100.0 * self.wanted.reserved_blocks as f64 / self.wanted.blocks_count as f64;
            self.reserved_blocks = (percent * self.blocks_count as f64 / 100.0) as u64;
            return Ok(false);
        }
        Ok(true)
    }

    /// Enough blocks for 1024 times the size, or for 2^32 blocks.
    fn default_reserved_gdt_blocks(&self, desc_blocks: u32, pointers: u32) -> u32 {
        let most = u64::from(u32::MAX);
        let blocks = if self.blocks_count < most / 1024 { self.blocks_count * 1024 } else { most };
        let groups = (blocks - self.first_data_block()).div_ceil(self.blocks_per_group.into());
        let needed = groups.div_ceil(u64::from(self.wanted.block_size / self.desc_size())) as u32;
        // For a file system of more than 2^32 blocks the result is negative, and wraps to a large number.
        needed.wrapping_sub(desc_blocks).min(pointers)
    }

    fn meta_bg(&self) -> bool {
        self.meta_bg_forced || self.wanted.incompat.contains(Incompat::META_BG)
    }

    fn last_group_has_backup(&self) -> bool {
        let last = self.group_count - 1;
        if self.wanted.compat.contains(Compat::SPARSE_SUPER2) {
            // This is the behaviour of mke2fs before the number of groups is final: with one group, it reads the second
            // backup.
            return self.wanted.backup_groups[usize::from(self.group_count != 2)] != 0;
        }
        let sparse = self.wanted.ro_compat.contains(RoCompat::SPARSE_SUPER);
        last <= 1 || !sparse || [3, 5, 7].iter().any(|&base| super::geometry::is_power_of(last, base))
    }

    fn settle_backups(&mut self) {
        if !self.wanted.compat.contains(Compat::SPARSE_SUPER2) {
            return;
        }
        let mut groups = self.backup_groups.map(|group| group.min(self.group_count - 1));
        if groups[0] == groups[1] {
            groups[1] = 0;
        }
        groups.sort_unstable();
        self.backup_groups = groups;
    }
}

impl SuperBlock {
    /// The superblock of a new file system: every block and inode is still free, and there is no journal, quota or
    /// orphan file.
    ///
    /// # Errors
    /// The fields break a rule of the format. After [`Layout::compute`], only unusual group sizes can cause this.
    pub fn create(layout: &Layout) -> Result<SuperBlock> {
        let wanted = &layout.wanted;
        let (mut compat, mut incompat) = (wanted.compat, wanted.incompat);
        if layout.meta_bg_forced {
            incompat |= Incompat::META_BG;
            compat -= Compat::RESIZE_INODE;
        }
        // The features of the journal and the orphan file are set with their inodes.
        compat -= Compat::HAS_JOURNAL | Compat::ORPHAN_FILE;
        let mut raw = RawSuperBlock::new_zeroed();
        let log = |size: u32| U32::new(size.ilog2() - 10);
        raw.s_magic = U16::new(MAGIC);
        raw.s_state = U16::new(FsState::VALID.bits());
        raw.s_log_block_size = log(wanted.block_size);
        raw.s_log_cluster_size = log(wanted.cluster_size);
        raw.s_first_data_block = U32::new(layout.first_data_block() as u32);
        raw.s_max_mnt_count = U16::new(u16::MAX);
        raw.s_errors = U16::new(wanted.errors);
        raw.s_feature_compat = U32::new(compat.bits());
        raw.s_feature_incompat = U32::new(incompat.bits());
        raw.s_feature_ro_compat = U32::new(wanted.ro_compat.bits());
        raw.s_default_mount_opts = U32::new(wanted.default_mount_opts);
        raw.s_first_meta_bg = U32::new(wanted.first_meta_bg);
        raw.s_raid_stride = U16::new(wanted.stride);
        raw.s_raid_stripe_width = U32::new(wanted.stripe_width);
        raw.s_log_groups_per_flex = wanted.log_groups_per_flex;
        raw.s_backup_bgs = layout.backup_groups.map(U32::new);
        (raw.s_encoding, raw.s_encoding_flags) = (U16::new(wanted.encoding.0), U16::new(wanted.encoding.1));
        raw.s_rev_level = U32::new(wanted.revision);
        raw.s_first_ino = U32::new(FIRST_INO_GOOD_OLD);
        raw.s_inode_size = U16::new(wanted.inode_size);
        if wanted.inode_size > INODE_SIZE_GOOD_OLD {
            raw.s_min_extra_isize = U16::new(EXTRA_ISIZE_DEFAULT);
            raw.s_want_extra_isize = U16::new(EXTRA_ISIZE_DEFAULT);
        }
        raw.s_creator_os = U32::new(wanted.creator_os);
        raw.s_blocks_per_group = U32::new(layout.blocks_per_group);
        raw.s_clusters_per_group = U32::new(layout.clusters_per_group);
        raw.s_inodes_per_group = U32::new(layout.inodes_per_group);
        raw.s_inodes_count = U32::new(layout.inodes_per_group * layout.group_count);
        raw.s_free_inodes_count = raw.s_inodes_count;
        (raw.s_blocks_count_lo, raw.s_blocks_count_hi) = split(layout.blocks_count);
        (raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi) = split(layout.reserved_blocks);
        (raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi) = split(layout.blocks_count);
        if wanted.incompat.contains(Incompat::BIT64) {
            raw.s_desc_size = U16::new(layout.desc_size() as u16);
        }
        raw.s_reserved_gdt_blocks = U16::new(layout.reserved_gdt_blocks);
        let test = if wanted.test_filesystem { SuperFlags::TEST_FILESYS } else { SuperFlags::empty() };
        // The signedness of `char` on x86.
        raw.s_flags = U32::new((SuperFlags::SIGNED_HASH | test).bits());
        raw.s_uuid = wanted.uuid;
        for (word, bytes) in raw.s_hash_seed.iter_mut().zip(wanted.hash_seed.as_chunks::<4>().0) {
            *word = U32::from_bytes(*bytes);
        }
        raw.s_def_hash_version = HASH_HALF_MD4;
        put(&mut raw.s_volume_name, &wanted.label);
        put(&mut raw.s_last_mounted, &wanted.last_mounted);
        if incompat.contains(Incompat::CSUM_SEED) {
            raw.s_checksum_seed = U32::new(crc32c(!0, &wanted.uuid));
        }
        if wanted.ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.s_checksum_type = CHECKSUM_CRC32C;
        }
        if incompat.contains(Incompat::ENCRYPT) {
            raw.s_encrypt_algos = ENCRYPT_ALGOS;
        }
        raw.s_mmp_update_interval = U16::new(wanted.mmp_interval);
        (raw.s_mkfs_time, raw.s_mkfs_time_hi) = RawSuperBlock::split_time(wanted.time);
        (raw.s_lastcheck, raw.s_lastcheck_hi) = (raw.s_mkfs_time, raw.s_mkfs_time_hi);
        (raw.s_wtime, raw.s_wtime_hi) = (raw.s_mkfs_time, raw.s_mkfs_time_hi);
        if wanted.ro_compat.contains(RoCompat::METADATA_CSUM) {
            raw.s_checksum = U32::new(raw.compute_checksum());
        }
        SuperBlock::decode(raw.as_bytes(), SUPERBLOCK_OFFSET)
    }

    /// Sets the number of clusters of the file system's own metadata.
    pub fn set_overhead_clusters(&mut self, clusters: u64) {
        self.raw.s_overhead_clusters = U32::new(clusters as u32);
    }

    /// Sets the inode of the orphan file, and the feature.
    pub fn set_orphan_file(&mut self, ino: InodeNr) {
        self.raw.s_feature_compat = U32::new((self.compat() | Compat::ORPHAN_FILE).bits());
        self.raw.s_orphan_file_inum = U32::new(ino.0);
    }

    /// Sets the inodes of user, group and project quota; `None` if there is no quota of that kind.
    pub fn set_quota_inodes(&mut self, inodes: [Option<InodeNr>; 3]) {
        let [user, group, project] = inodes.map(|ino| U32::new(ino.map_or(0, |ino| ino.0)));
        self.raw.s_usr_quota_inum = user;
        self.raw.s_grp_quota_inum = group;
        self.raw.s_prj_quota_inum = project;
    }

    /// Sets the block of multi-mount protection, and the interval of its updates in seconds.
    pub fn set_mmp(&mut self, block: BlockNr, interval: u16) {
        self.raw.s_mmp_block = U64::new(block.0);
        self.raw.s_mmp_update_interval = U16::new(interval);
    }
}

fn split(number: u64) -> (U32, U32) {
    (U32::new(number as u32), U32::new((number >> 32) as u32))
}

/// Copies as many bytes as fit, without a terminating NUL.
pub(super) fn put(field: &mut [u8], value: &[u8]) {
    let n = value.len().min(field.len());
    field[..n].copy_from_slice(&value[..n]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GroupNr;

    fn wanted(blocks_count: u64, block_size: u32) -> LayoutRequest {
        LayoutRequest {
            compat: Compat::RESIZE_INODE,
            incompat: Incompat::FILETYPE | Incompat::BIT64 | Incompat::EXTENTS,
            ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM,
            revision: 1,
            block_size,
            cluster_size: block_size,
            blocks_count,
            reserved_blocks: blocks_count / 20,
            per_group: 0,
            inodes_count: (blocks_count * u64::from(block_size) / 16384) as u32,
            inode_size: 256,
            log_groups_per_flex: 4,
            reserved_gdt_blocks: None,
            first_meta_bg: 0,
            backup_groups: [0; 2],
            stride: 0,
            stripe_width: 0,
            uuid: [7; 16],
            hash_seed: [9; 16],
            label: b"seventeen letters".to_vec(),
            last_mounted: Vec::new(),
            time: 1_700_000_000,
            errors: 1,
            default_mount_opts: 0,
            desc_size: 0,
            creator_os: 0,
            test_filesystem: false,
            encoding: (0, 0),
            mmp_interval: 0,
        }
    }

    #[test]
    fn a_created_superblock_decodes_with_the_computed_geometry() {
        let sb = SuperBlock::create(&Layout::compute(&wanted(1 << 18, 4096)).unwrap()).unwrap();
        assert_eq!((sb.group_count, sb.blocks_per_group, sb.inodes_per_group), (8, 32768, 8192));
        assert_eq!((sb.reserved_gdt_blocks, sb.desc_size, sb.first_data_block), (127, 64, 0));
        assert_eq!(sb.volume_name(), "seventeen letter");
        let mut bytes = [0; crate::superblock::SUPERBLOCK_SIZE];
        sb.encode_into(&mut bytes);
        assert_eq!(SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET).unwrap().geometry(), sb.geometry());
    }

    #[test]
    fn a_last_group_without_room_is_left_out() {
        let sb = SuperBlock::create(&Layout::compute(&wanted(2 * 32768 + 100, 4096)).unwrap()).unwrap();
        assert_eq!((sb.group_count, sb.blocks_count), (2, 2 * 32768));
        assert_eq!(sb.reserved_blocks(), 2 * 32768 / 20);
        assert_eq!(Layout::compute(&wanted(20, 1024)).unwrap_err(), LayoutError::TooSmall);
    }

    #[test]
    fn sizes_that_contradict_each_other_are_errors() {
        let bad = [
            LayoutRequest { block_size: 3000, ..wanted(1000, 4096) },
            LayoutRequest { cluster_size: 1024, ..wanted(1000, 4096) },
            LayoutRequest { inode_size: 8192, ..wanted(1000, 4096) },
            LayoutRequest { blocks_count: 1 << 50, ..wanted(1000, 4096) },
        ];
        for wanted in bad {
            assert_eq!(Layout::compute(&wanted).unwrap_err(), LayoutError::Sizes);
        }
        let many = LayoutRequest { inodes_count: u32::MAX, ..wanted(1 << 16, 4096) };
        assert_eq!(Layout::compute(&many).unwrap_err(), LayoutError::TooManyInodes);
    }

    #[test]
    fn a_backup_of_a_group_beyond_16_bits_has_the_highest_number() {
        let sb = SuperBlock::create(&Layout::compute(&wanted(1 << 18, 4096)).unwrap()).unwrap();
        assert_eq!(sb.backup_for(GroupNr(78_125)).raw().s_block_group_nr.get(), u16::MAX);
    }
}
