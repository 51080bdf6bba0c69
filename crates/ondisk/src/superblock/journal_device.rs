//! The superblock of a device that contains only a journal (`INCOMPAT_JOURNAL_DEV`).
//!
//! Main types: [`JournalDevice`] (the fields that a user of the journal needs), [`NewJournalDevice`] (those that its
//! creator chooses), [`NotAJournal`] (the reason why a device is not a journal). The block after this superblock
//! contains the journal's own superblock ([`crate::jbd2::JournalSuperBlock`]), and the log follows (e2fsprogs:
//! `ext2fs_journal_sb_start`).
//!
//! # Locking
//! None.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::layout::{CHECKSUM_CRC32C, HASH_HALF_MD4, put};
use super::{EXTRA_ISIZE_DEFAULT, FIRST_INO_GOOD_OLD, FsState, MAGIC, RawSuperBlock, SUPERBLOCK_SIZE, join};
use crate::features::{Incompat, RoCompat};

/// The inode size that mke2fs writes, in bytes, although there are no inodes.
const INODE_SIZE: u16 = 256;

/// The journal's device, as its superblock describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalDevice {
    /// The UUID by which file systems refer to the journal (`s_journal_uuid`).
    pub uuid: [u8; 16],
    /// The block size, in bytes.
    pub block_size: u32,
    /// The number of blocks of the device, including these superblocks.
    pub blocks_count: u64,
}

/// The values of a new journal device. Those that describe files have no meaning, but mke2fs writes them, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJournalDevice {
    /// The block size in bytes: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// The number of blocks of the device.
    pub blocks_count: u32,
    /// The UUID by which file systems refer to it.
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
    /// `s_creator_os`.
    pub creator_os: u32,
    /// Whether the superblock has a checksum.
    pub metadata_csum: bool,
}

/// The reason why a device has no usable journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAJournal {
    /// There is no superblock, or it belongs to a file system.
    #[error("not a journal device")]
    Other,
    /// The block size is impossible.
    #[error("its superblock has an impossible block size (2^{log} KiB)")]
    BlockSize {
        /// `s_log_block_size`.
        log: u32,
    },
    /// `metadata_csum` is set and the checksum is wrong.
    #[error("its superblock has checksum {found:#010x} and not {expected:#010x}")]
    Checksum {
        /// `s_checksum`.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
}

impl JournalDevice {
    /// Decodes the 1024 bytes at byte 1024 of a device.
    ///
    /// # Errors
    /// The device has no journal, or its superblock is damaged.
    pub fn decode(bytes: &[u8]) -> Result<JournalDevice, NotAJournal> {
        let (raw, _) = RawSuperBlock::ref_from_prefix(bytes).map_err(|_| NotAJournal::Other)?;
        let incompat = Incompat::from_bits_retain(raw.s_feature_incompat.get());
        if raw.s_magic.get() != MAGIC || !incompat.contains(Incompat::JOURNAL_DEV) {
            return Err(NotAJournal::Other);
        }
        let ro_compat = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
        let (found, expected) = (raw.s_checksum.get(), raw.compute_checksum());
        if ro_compat.contains(RoCompat::METADATA_CSUM) && found != expected {
            return Err(NotAJournal::Checksum { found, expected });
        }
        let log = raw.s_log_block_size.get();
        if log > 6 {
            return Err(NotAJournal::BlockSize { log });
        }
        Ok(JournalDevice {
            uuid: raw.s_uuid,
            block_size: 1024 << log,
            // Without `64bit`, the high half has no meaning.
            blocks_count: join(raw.s_blocks_count_lo, raw.s_blocks_count_hi, incompat.contains(Incompat::BIT64)),
        })
    }

    /// The block that contains the journal's own superblock: the one after this superblock.
    pub fn journal_super(block_size: u32) -> u32 {
        if block_size <= 1024 { 2 } else { 1 }
    }

    /// The superblock of a new journal device, as mke2fs writes it.
    pub fn create(wanted: &NewJournalDevice) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = RawSuperBlock::new_zeroed();
        let log = U32::new(wanted.block_size.ilog2() - 10);
        (raw.s_log_block_size, raw.s_log_cluster_size) = (log, log);
        raw.s_blocks_count_lo = U32::new(wanted.blocks_count);
        raw.s_first_data_block = U32::new(u32::from(wanted.block_size == 1024));
        raw.s_blocks_per_group = U32::new(wanted.block_size * 8);
        raw.s_clusters_per_group = raw.s_blocks_per_group;
        raw.s_max_mnt_count = U16::new(u16::MAX);
        raw.s_magic = U16::new(MAGIC);
        raw.s_state = U16::new(FsState::VALID.bits());
        raw.s_errors = U16::new(wanted.errors);
        raw.s_creator_os = U32::new(wanted.creator_os);
        raw.s_rev_level = U32::new(1);
        raw.s_first_ino = U32::new(FIRST_INO_GOOD_OLD);
        raw.s_inode_size = U16::new(INODE_SIZE);
        raw.s_feature_incompat = U32::new(Incompat::JOURNAL_DEV.bits());
        raw.s_uuid = wanted.uuid;
        put(&mut raw.s_volume_name, &wanted.label);
        put(&mut raw.s_last_mounted, &wanted.last_mounted);
        for (word, bytes) in raw.s_hash_seed.iter_mut().zip(wanted.hash_seed.as_chunks::<4>().0) {
            *word = U32::from_bytes(*bytes);
        }
        raw.s_def_hash_version = HASH_HALF_MD4;
        raw.s_default_mount_opts = U32::new(wanted.default_mount_opts);
        raw.s_min_extra_isize = U16::new(EXTRA_ISIZE_DEFAULT);
        raw.s_want_extra_isize = U16::new(EXTRA_ISIZE_DEFAULT);
        (raw.s_mkfs_time, raw.s_mkfs_time_hi) = RawSuperBlock::split_time(wanted.time);
        (raw.s_lastcheck, raw.s_lastcheck_hi) = (raw.s_mkfs_time, raw.s_mkfs_time_hi);
        (raw.s_wtime, raw.s_wtime_hi) = (raw.s_mkfs_time, raw.s_mkfs_time_hi);
        if wanted.metadata_csum {
            raw.s_feature_ro_compat = U32::new(RoCompat::METADATA_CSUM.bits());
            raw.s_checksum_type = CHECKSUM_CRC32C;
            raw.s_checksum = U32::new(raw.compute_checksum());
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(metadata_csum: bool) -> NewJournalDevice {
        NewJournalDevice {
            block_size: 4096,
            blocks_count: 4096,
            uuid: [7; 16],
            hash_seed: [1; 16],
            label: b"log".to_vec(),
            last_mounted: Vec::new(),
            time: 1_700_000_000,
            errors: 1,
            default_mount_opts: 0,
            creator_os: 0,
            metadata_csum,
        }
    }

    #[test]
    fn created_superblock_decodes_and_damage_is_named() {
        for metadata_csum in [false, true] {
            let bytes = JournalDevice::create(&wanted(metadata_csum));
            let journal = JournalDevice { uuid: [7; 16], block_size: 4096, blocks_count: 4096 };
            assert_eq!(JournalDevice::decode(&bytes), Ok(journal));
            let changed = |at: usize| {
                let mut bytes = bytes;
                bytes[at] ^= 0x80;
                JournalDevice::decode(&bytes)
            };
            assert_eq!(changed(0x38), Err(NotAJournal::Other));
            // This byte belongs to the label.
            let flipped = changed(0x78);
            assert_eq!(matches!(flipped, Err(NotAJournal::Checksum { .. })), metadata_csum, "{flipped:?}");
        }
        assert_eq!(JournalDevice::decode(&[0; 100]), Err(NotAJournal::Other));
        let mut bytes = JournalDevice::create(&wanted(false));
        bytes[0x18] = 7;
        assert_eq!(JournalDevice::decode(&bytes), Err(NotAJournal::BlockSize { log: 7 }));
    }
}
