//! The 1024 bytes of a superblock, field for field.
//!
//! Main type: [`RawSuperBlock`].
//! It validates nothing: [`super::SuperBlock::decode`] does.
//!
//! # Locking
//! None.

use crate::csum::crc32c;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// Where the primary superblock starts, in bytes from the start of the device, whatever the block size.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;

/// Linux: `struct ext4_super_block`, fs/ext4/ext4.h.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawSuperBlock {
    pub s_inodes_count: U32,
    pub s_blocks_count_lo: U32,
    pub s_r_blocks_count_lo: U32,
    pub s_free_blocks_count_lo: U32,
    pub s_free_inodes_count: U32,
    pub s_first_data_block: U32,
    pub s_log_block_size: U32,
    pub s_log_cluster_size: U32,
    pub s_blocks_per_group: U32,
    pub s_clusters_per_group: U32,
    pub s_inodes_per_group: U32,
    pub s_mtime: U32,
    pub s_wtime: U32,
    pub s_mnt_count: U16,
    pub s_max_mnt_count: U16,
    pub s_magic: U16,
    pub s_state: U16,
    pub s_errors: U16,
    pub s_minor_rev_level: U16,
    pub s_lastcheck: U32,
    pub s_checkinterval: U32,
    pub s_creator_os: U32,
    pub s_rev_level: U32,
    pub s_def_resuid: U16,
    pub s_def_resgid: U16,
    pub s_first_ino: U32,
    pub s_inode_size: U16,
    pub s_block_group_nr: U16,
    pub s_feature_compat: U32,
    pub s_feature_incompat: U32,
    pub s_feature_ro_compat: U32,
    pub s_uuid: [u8; 16],
    pub s_volume_name: [u8; 16],
    pub s_last_mounted: [u8; 64],
    pub s_algorithm_usage_bitmap: U32,
    pub s_prealloc_blocks: u8,
    pub s_prealloc_dir_blocks: u8,
    pub s_reserved_gdt_blocks: U16,
    pub s_journal_uuid: [u8; 16],
    pub s_journal_inum: U32,
    pub s_journal_dev: U32,
    pub s_last_orphan: U32,
    pub s_hash_seed: [U32; 4],
    pub s_def_hash_version: u8,
    pub s_jnl_backup_type: u8,
    pub s_desc_size: U16,
    pub s_default_mount_opts: U32,
    pub s_first_meta_bg: U32,
    pub s_mkfs_time: U32,
    pub s_jnl_blocks: [U32; 17],
    pub s_blocks_count_hi: U32,
    pub s_r_blocks_count_hi: U32,
    pub s_free_blocks_count_hi: U32,
    pub s_min_extra_isize: U16,
    pub s_want_extra_isize: U16,
    pub s_flags: U32,
    pub s_raid_stride: U16,
    pub s_mmp_update_interval: U16,
    pub s_mmp_block: U64,
    pub s_raid_stripe_width: U32,
    pub s_log_groups_per_flex: u8,
    pub s_checksum_type: u8,
    pub s_encryption_level: u8,
    pub s_reserved_pad: u8,
    pub s_kbytes_written: U64,
    pub s_snapshot_inum: U32,
    pub s_snapshot_id: U32,
    pub s_snapshot_r_blocks_count: U64,
    pub s_snapshot_list: U32,
    pub s_error_count: U32,
    pub s_first_error_time: U32,
    pub s_first_error_ino: U32,
    pub s_first_error_block: U64,
    pub s_first_error_func: [u8; 32],
    pub s_first_error_line: U32,
    pub s_last_error_time: U32,
    pub s_last_error_ino: U32,
    pub s_last_error_line: U32,
    pub s_last_error_block: U64,
    pub s_last_error_func: [u8; 32],
    pub s_mount_opts: [u8; 64],
    pub s_usr_quota_inum: U32,
    pub s_grp_quota_inum: U32,
    pub s_overhead_clusters: U32,
    pub s_backup_bgs: [U32; 2],
    pub s_encrypt_algos: [u8; 4],
    pub s_encrypt_pw_salt: [u8; 16],
    pub s_lpf_ino: U32,
    pub s_prj_quota_inum: U32,
    pub s_checksum_seed: U32,
    pub s_wtime_hi: u8,
    pub s_mtime_hi: u8,
    pub s_mkfs_time_hi: u8,
    pub s_lastcheck_hi: u8,
    pub s_first_error_time_hi: u8,
    pub s_last_error_time_hi: u8,
    pub s_first_error_errcode: u8,
    pub s_last_error_errcode: u8,
    pub s_encoding: U16,
    pub s_encoding_flags: U16,
    pub s_orphan_file_inum: U32,
    pub s_reserved: [U32; 94],
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
    /// What `s_checksum` should be under `metadata_csum`: everything before it, unseeded, so that it can be checked
    /// before the UUID is trusted.
    pub fn compute_checksum(&self) -> u32 {
        crc32c(!0, &self.as_bytes()[..offset_of!(RawSuperBlock, s_checksum)])
    }

    /// A 40-bit time from its two halves.
    pub(crate) fn time(low: U32, high: u8) -> i64 {
        i64::from(low.get()) | i64::from(high) << 32
    }

    /// The two halves of a time; a moment before 1970 or after 36812 is clamped.
    pub(crate) fn split_time(seconds: i64) -> (U32, u8) {
        let clamped = seconds.clamp(0, (1 << 40) - 1);
        (U32::new(clamped as u32), (clamped >> 32) as u8)
    }
}
