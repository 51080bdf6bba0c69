//! The raw 1024 bytes of a superblock.
//!
//! Main type: [`RawSuperBlock`]. It validates nothing: [`super::SuperBlock::decode`] does.
//!
//! # Locking
//! None.

use crate::csum::crc32c;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of a superblock in bytes.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// The offset of the primary superblock from the start of the device, in bytes, for any block size.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;

/// Whether these bytes, the beginning of a superblock, have the magic number of ext2, ext3 and ext4.
pub fn has_magic(bytes: &[u8]) -> bool {
    bytes.get(MAGIC_AT..MAGIC_AT + 2) == Some(&MAGIC.to_le_bytes())
}

const MAGIC_AT: usize = offset_of!(RawSuperBlock, s_magic);

/// The fields in their order on disk (Linux: `struct ext4_super_block`, fs/ext4/ext4.h).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSuperBlock {
    /// The number of inodes in all groups.
    pub s_inodes_count: U32,
    /// Low half of the block count.
    pub s_blocks_count_lo: U32,
    /// Low half of the number of blocks that only root may use.
    pub s_r_blocks_count_lo: U32,
    /// Low half of the number of free blocks.
    pub s_free_blocks_count_lo: U32,
    /// The number of free inodes.
    pub s_free_inodes_count: U32,
    /// The block where group 0 starts: 1 with blocks of 1 KiB, otherwise 0.
    pub s_first_data_block: U32,
    /// A block has 2^(10 + this) bytes.
    pub s_log_block_size: U32,
    /// A cluster has 2^(10 + this) bytes; equal to `s_log_block_size` without `bigalloc`.
    pub s_log_cluster_size: U32,
    /// The number of blocks in a group.
    pub s_blocks_per_group: U32,
    /// The number of clusters in a group; equal to `s_blocks_per_group` without `bigalloc`.
    pub s_clusters_per_group: U32,
    /// The number of inodes in a group.
    pub s_inodes_per_group: U32,
    /// Last mount, seconds since 1970.
    pub s_mtime: U32,
    /// Last write, seconds since 1970.
    pub s_wtime: U32,
    /// The number of mounts since the last check.
    pub s_mnt_count: U16,
    /// The number of mounts after which a check is due; -1 or 0 for never.
    pub s_max_mnt_count: U16,
    /// 0xEF53, see [`MAGIC`].
    pub s_magic: U16,
    /// 1 clean, 2 damaged, 4 orphans being recovered.
    pub s_state: U16,
    /// The reaction to an error: 1 continue, 2 read only, 3 panic.
    pub s_errors: U16,
    /// Minor revision; not used.
    pub s_minor_rev_level: U16,
    /// Last check, seconds since 1970.
    pub s_lastcheck: U32,
    /// The number of seconds after which a check is due; 0 for never.
    pub s_checkinterval: U32,
    /// The system that created it: 0 Linux, 1 Hurd, 2 Masix, 3 FreeBSD, 4 Lites.
    pub s_creator_os: U32,
    /// 0: the first format, whose fields end at `s_def_resgid`; 1: the current format.
    pub s_rev_level: U32,
    /// User who may use reserved blocks.
    pub s_def_resuid: U16,
    /// Group that may use reserved blocks.
    pub s_def_resgid: U16,
    /// First inode that is not reserved.
    pub s_first_ino: U32,
    /// The size of an inode in bytes.
    pub s_inode_size: U16,
    /// The group of this copy; 65535 for all groups with a larger number.
    pub s_block_group_nr: U16,
    /// See [`crate::features::Compat`].
    pub s_feature_compat: U32,
    /// See [`crate::features::Incompat`].
    pub s_feature_incompat: U32,
    /// See [`crate::features::RoCompat`].
    pub s_feature_ro_compat: U32,
    /// The volume's UUID.
    pub s_uuid: [u8; 16],
    /// The label, with a NUL at the end unless it fills the field.
    pub s_volume_name: [u8; 16],
    /// The directory of the last mount, with a NUL at the end.
    pub s_last_mounted: [u8; 64],
    /// For compression; not used by Linux.
    pub s_algorithm_usage_bitmap: U32,
    /// The number of blocks to allocate ahead for files; not used by Linux.
    pub s_prealloc_blocks: u8,
    /// The number of blocks to allocate ahead for directories; not used by Linux.
    pub s_prealloc_dir_blocks: u8,
    /// The number of blocks per group reserved for future descriptors.
    pub s_reserved_gdt_blocks: U16,
    /// UUID of the journal on another device.
    pub s_journal_uuid: [u8; 16],
    /// Inode of the journal; 0 for a journal on another device.
    pub s_journal_inum: U32,
    /// Device number of the journal on another device; it may have changed since.
    pub s_journal_dev: U32,
    /// First inode of the orphan list.
    pub s_last_orphan: U32,
    /// Seed of directory hashes; all zero for the default.
    pub s_hash_seed: [U32; 4],
    /// Hash of new directory indexes (`DX_HASH_*`).
    pub s_def_hash_version: u8,
    /// 1 if `s_jnl_blocks` contains the backup of the journal inode.
    pub s_jnl_backup_type: u8,
    /// The size of a descriptor with `64bit`, in bytes; 32 without it.
    pub s_desc_size: U16,
    /// Options for each mount (`EXT4_DEFM_*`, `tune2fs -o`).
    pub s_default_mount_opts: U32,
    /// Index of the first descriptor block that `meta_bg` places.
    pub s_first_meta_bg: U32,
    /// Creation time, in seconds since 1970.
    pub s_mkfs_time: U32,
    /// Copy of the journal inode: its `i_block`, then the high and the low half of its size.
    pub s_jnl_blocks: [U32; 17],
    /// High half of the block count, with `64bit`.
    pub s_blocks_count_hi: U32,
    /// High half of the number of reserved blocks, with `64bit`.
    pub s_r_blocks_count_hi: U32,
    /// High half of the number of free blocks, with `64bit`.
    pub s_free_blocks_count_hi: U32,
    /// The size of the extra fields that every inode has, in bytes.
    pub s_min_extra_isize: U16,
    /// The size of the extra fields that new inodes get, in bytes.
    pub s_want_extra_isize: U16,
    /// See [`super::SuperFlags`].
    pub s_flags: U32,
    /// The number of file system blocks on one disk of a RAID before the next disk follows.
    pub s_raid_stride: U16,
    /// The interval of the updates of the MMP block, in seconds.
    pub s_mmp_update_interval: U16,
    /// Block of multi-mount protection.
    pub s_mmp_block: U64,
    /// The number of file system blocks on all data disks of a RAID before the first disk follows again.
    pub s_raid_stripe_width: U32,
    /// 2^this groups store their bitmaps and tables together, with `flex_bg`.
    pub s_log_groups_per_flex: u8,
    /// 1: CRC32C, with `metadata_csum`.
    pub s_checksum_type: u8,
    /// Version of the encryption format.
    pub s_encryption_level: u8,
    /// Preserved.
    pub s_reserved_pad: u8,
    /// The number of KiB written since the file system was created.
    pub s_kbytes_written: U64,
    /// Inode of the active snapshot; not used by Linux.
    pub s_snapshot_inum: U32,
    /// Number of the active snapshot; not used by Linux.
    pub s_snapshot_id: U32,
    /// The number of blocks reserved for the active snapshot; not used by Linux.
    pub s_snapshot_r_blocks_count: U64,
    /// First inode of the list of snapshots; not used by Linux.
    pub s_snapshot_list: U32,
    /// The number of errors found since the last check.
    pub s_error_count: U32,
    /// First error, seconds since 1970.
    pub s_first_error_time: U32,
    /// Inode of the first error; 0 if none.
    pub s_first_error_ino: U32,
    /// Block of the first error; 0 if none.
    pub s_first_error_block: U64,
    /// The function that found the first error, with a NUL at the end.
    pub s_first_error_func: [u8; 32],
    /// The source line that found the first error.
    pub s_first_error_line: U32,
    /// Most recent error, seconds since 1970.
    pub s_last_error_time: U32,
    /// Inode of the most recent error; 0 if none.
    pub s_last_error_ino: U32,
    /// The source line that found the most recent error.
    pub s_last_error_line: U32,
    /// Block of the most recent error; 0 if none.
    pub s_last_error_block: U64,
    /// The function that found the most recent error, with a NUL at the end.
    pub s_last_error_func: [u8; 32],
    /// Options for each mount as text (`tune2fs -E mount_opts=`), with a NUL at the end.
    pub s_mount_opts: [u8; 64],
    /// Inode of the user quota.
    pub s_usr_quota_inum: U32,
    /// Inode of the group quota.
    pub s_grp_quota_inum: U32,
    /// The number of clusters of the file system's own metadata; 0 if not counted yet.
    pub s_overhead_clusters: U32,
    /// The two groups with backups with `sparse_super2`; 0 for none.
    pub s_backup_bgs: [U32; 2],
    /// Encryption algorithms in use (`EXT4_ENCRYPTION_MODE_*`).
    pub s_encrypt_algos: [u8; 4],
    /// Salt for the passwords of the encryption.
    pub s_encrypt_pw_salt: [u8; 16],
    /// Inode of lost+found.
    pub s_lpf_ino: U32,
    /// Inode of the project quota.
    pub s_prj_quota_inum: U32,
    /// The seed of checksums, with `metadata_csum_seed`.
    pub s_checksum_seed: U32,
    /// Bits 32 to 39 of `s_wtime`.
    pub s_wtime_hi: u8,
    /// Bits 32 to 39 of `s_mtime`.
    pub s_mtime_hi: u8,
    /// Bits 32 to 39 of `s_mkfs_time`.
    pub s_mkfs_time_hi: u8,
    /// Bits 32 to 39 of `s_lastcheck`.
    pub s_lastcheck_hi: u8,
    /// Bits 32 to 39 of `s_first_error_time`.
    pub s_first_error_time_hi: u8,
    /// Bits 32 to 39 of `s_last_error_time`.
    pub s_last_error_time_hi: u8,
    /// `EXT4_ERR_*` of the first error.
    pub s_first_error_errcode: u8,
    /// `EXT4_ERR_*` of the most recent error.
    pub s_last_error_errcode: u8,
    /// Character set of names with `casefold`: 1 is UTF-8 by Unicode 12.1.
    pub s_encoding: U16,
    /// 1: names that are not valid text in `s_encoding` are rejected.
    pub s_encoding_flags: U16,
    /// Inode of the orphan file.
    pub s_orphan_file_inum: U32,
    /// Preserved.
    pub s_reserved: [U32; 94],
    /// CRC32C of the bytes before it, with `metadata_csum`.
    pub s_checksum: U32,
}

const _: () = {
    assert!(size_of::<RawSuperBlock>() == SUPERBLOCK_SIZE);
    assert!(offset_of!(RawSuperBlock, s_magic) == 0x38);
    assert!(offset_of!(RawSuperBlock, s_uuid) == 0x68);
    assert!(offset_of!(RawSuperBlock, s_reserved_gdt_blocks) == 0xce);
    assert!(offset_of!(RawSuperBlock, s_last_orphan) == 0xe8);
    assert!(offset_of!(RawSuperBlock, s_desc_size) == 0xfe);
    assert!(offset_of!(RawSuperBlock, s_blocks_count_hi) == 0x150);
    assert!(offset_of!(RawSuperBlock, s_flags) == 0x160);
    assert!(offset_of!(RawSuperBlock, s_checksum_type) == 0x175);
    assert!(offset_of!(RawSuperBlock, s_error_count) == 0x194);
    assert!(offset_of!(RawSuperBlock, s_mount_opts) == 0x200);
    assert!(offset_of!(RawSuperBlock, s_backup_bgs) == 0x24c);
    assert!(offset_of!(RawSuperBlock, s_checksum_seed) == 0x270);
    assert!(offset_of!(RawSuperBlock, s_orphan_file_inum) == 0x280);
    assert!(offset_of!(RawSuperBlock, s_checksum) == 0x3fc);
};

impl RawSuperBlock {
    /// The correct `s_checksum` with `metadata_csum`. It covers everything before it and has no seed, so that it can be
    /// checked before the UUID is trusted.
    pub fn compute_checksum(&self) -> u32 {
        crc32c(!0, &self.as_bytes()[..offset_of!(RawSuperBlock, s_checksum)])
    }

    /// A 40-bit time from its two halves.
    pub fn time(low: U32, high: u8) -> i64 {
        i64::from(low.get()) | i64::from(high) << 32
    }

    /// The two halves of a time; a time before 1970 or after 36812 is clamped.
    pub(crate) fn split_time(seconds: i64) -> (U32, u8) {
        let clamped = seconds.clamp(0, (1 << 40) - 1);
        (U32::new(clamped as u32), (clamped >> 32) as u8)
    }
}
