//! The rules of the superblock's fields.
//!
//! Main functions: [`layout`] (what the layout is computed from; a fatal answer means that nothing can be checked with
//! this copy), [`fields`] (the rest). Both look at the raw bytes, so that they also work on what cannot be decoded.
//!
//! # Locking
//! None.

use extant_ondisk::features::{Compat, Incompat, RoCompat};
use extant_ondisk::superblock::{MAGIC, RawSuperBlock, SuperFlags};

use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

const GOOD_OLD_INODE_SIZE: u32 = 128;
/// Features that have a name.
const COMPAT_KNOWN: u32 = 0x1f7f;
const RO_COMPAT_KNOWN: u32 = 0x1_ffff;
const CREATOR_HURD: u32 = 1;
/// The only encoding of names there is.
const ENCODING_UTF8: u16 = 1;
/// The largest cluster: 2^(10 + this) bytes.
const LOG_CLUSTER_SIZE_MAX: u32 = 19;
const LOG_BLOCK_SIZE_MAX: u32 = 6;
/// Flex groups are 2^(this) groups at most.
const LOG_GROUPS_PER_FLEX_MAX: u8 = 31;
/// Inodes that can hold no quota: bad blocks, root, boot loader, undelete, resize, journal, exclude, replica.
const NEVER_QUOTA: [u32; 8] = [1, 2, 5, 6, 7, 8, 9, 10];

/// Checks what the layout is computed from, up to the first field that makes it impossible. True if the layout can be
/// used.
pub fn layout(raw: &RawSuperBlock, device_bytes: u64, sink: &mut Sink) -> bool {
    let mut bad = |problem, found: u64, expected: u64| {
        sink.push(Finding::new(problem, Place::Volume, found, expected));
        false
    };
    let misc = Problem::MiscCorruptSuper;
    if raw.s_magic.get() != MAGIC {
        return bad(Problem::SbCorrupt, raw.s_magic.get().into(), MAGIC.into());
    }
    let incompat = Incompat::from_bits_retain(raw.s_feature_incompat.get());
    let ro_compat = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
    let bit64 = incompat.contains(Incompat::BIT64);
    let blocks =
        u64::from(raw.s_blocks_count_lo.get()) | if bit64 { u64::from(raw.s_blocks_count_hi.get()) << 32 } else { 0 };
    let reserved = u64::from(raw.s_r_blocks_count_lo.get())
        | if bit64 { u64::from(raw.s_r_blocks_count_hi.get()) << 32 } else { 0 };
    let log = raw.s_log_block_size.get();
    if log > LOG_BLOCK_SIZE_MAX {
        return bad(misc, log.into(), LOG_BLOCK_SIZE_MAX.into());
    }
    let block_size = 1024u32 << log;
    let bigalloc = ro_compat.contains(RoCompat::BIGALLOC);
    let log_cluster = raw.s_log_cluster_size.get();
    if log_cluster < log || log_cluster > LOG_CLUSTER_SIZE_MAX || (!bigalloc && log_cluster != log) {
        return bad(misc, log_cluster.into(), log.into());
    }
    let ratio = 1u64 << (log_cluster - log);
    if raw.s_inodes_count.get() == 0 {
        return bad(misc, 0, 1);
    }
    if blocks == 0 || blocks >= 1 << 48 {
        return bad(misc, blocks, (1 << 48) - 1);
    }
    let first = u64::from(raw.s_first_data_block.get());
    let first_expected = u64::from(block_size == 1024 && ratio == 1);
    if first != first_expected {
        return bad(Problem::FirstDataBlock, first, first_expected);
    }
    let bits = u64::from(block_size) * 8;
    let blocks_per_group = u64::from(raw.s_blocks_per_group.get());
    let clusters_per_group = if bigalloc { u64::from(raw.s_clusters_per_group.get()) } else { blocks_per_group };
    if !(8..=bits).contains(&clusters_per_group) || !clusters_per_group.is_multiple_of(8) {
        return bad(misc, clusters_per_group, bits);
    }
    if blocks_per_group != clusters_per_group * ratio {
        return bad(misc, blocks_per_group, clusters_per_group * ratio);
    }
    // Without clusters the field means nothing, but e2fsprogs refuse it.
    let stored = u64::from(raw.s_clusters_per_group.get());
    if stored != clusters_per_group {
        bad(misc, stored, clusters_per_group);
    }
    if raw.s_log_groups_per_flex > LOG_GROUPS_PER_FLEX_MAX {
        bad(misc, raw.s_log_groups_per_flex.into(), LOG_GROUPS_PER_FLEX_MAX.into());
    }
    let old = raw.s_rev_level.get() == 0;
    let inode_size = if old { GOOD_OLD_INODE_SIZE } else { raw.s_inode_size.get().into() };
    if inode_size < GOOD_OLD_INODE_SIZE || inode_size > block_size || !inode_size.is_power_of_two() {
        return bad(misc, inode_size.into(), block_size.into());
    }
    let per_block = u64::from(block_size / inode_size);
    let per_group = u64::from(raw.s_inodes_per_group.get());
    // A group holds its own table (with flex_bg another one's in its place), so this also bounds memory by the device.
    let most = (per_block * blocks_per_group.saturating_sub(4)).min(bits);
    if per_group < per_block || per_group > most {
        return bad(misc, per_group, most);
    }
    if reserved > blocks / 2 {
        return bad(misc, reserved, blocks / 2);
    }
    let reserved_gdt = u64::from(raw.s_reserved_gdt_blocks.get());
    if reserved_gdt > u64::from(block_size) / 4 {
        return bad(misc, reserved_gdt, u64::from(block_size) / 4);
    }
    let desc_size = raw.s_desc_size.get();
    if desc_size > 1024 || (desc_size != 0 && !desc_size.is_power_of_two()) {
        return bad(misc, desc_size.into(), 1024);
    }
    if blocks <= first + 1 {
        return bad(misc, blocks, first + 2);
    }
    let groups = (blocks - first).div_ceil(blocks_per_group);
    let descs_per_block = u64::from(block_size) / if bit64 { u64::from(desc_size).max(32) } else { 32 };
    let desc_blocks = groups.div_ceil(descs_per_block.max(1));
    if incompat.contains(Incompat::META_BG) && u64::from(raw.s_first_meta_bg.get()) > desc_blocks {
        return bad(Problem::FirstMetaBgTooBig, raw.s_first_meta_bg.get().into(), desc_blocks);
    }
    let inodes = groups * per_group;
    if inodes > u64::from(u32::MAX) {
        return bad(Problem::InodeCountBig, inodes, u32::MAX.into());
    }
    if u64::from(raw.s_inodes_count.get()) != inodes {
        return bad(Problem::InodeCountWrong, raw.s_inodes_count.get().into(), inodes);
    }
    if !old && (raw.s_first_ino.get() < 11 || raw.s_first_ino.get() > raw.s_inodes_count.get()) {
        return bad(misc, raw.s_first_ino.get().into(), 11);
    }
    if blocks.saturating_mul(block_size.into()) > device_bytes {
        bad(Problem::FsSizeWrong, blocks, device_bytes / u64::from(block_size));
    }
    true
}

/// Checks the fields that the layout does not hang on.
pub fn fields(raw: &RawSuperBlock, now: i64, sink: &mut Sink) {
    let mut bad = |problem, found: u64, expected: u64| sink.push(Finding::new(problem, Place::Volume, found, expected));
    let compat = Compat::from_bits_retain(raw.s_feature_compat.get());
    let incompat = Incompat::from_bits_retain(raw.s_feature_incompat.get());
    let ro_compat = RoCompat::from_bits_retain(raw.s_feature_ro_compat.get());
    let old = raw.s_rev_level.get() == 0;
    let inode_size = if old { GOOD_OLD_INODE_SIZE } else { raw.s_inode_size.get().into() };
    if inode_size > GOOD_OLD_INODE_SIZE {
        let most = inode_size - GOOD_OLD_INODE_SIZE;
        for (problem, value) in [
            (Problem::BadMinExtraIsize, u32::from(raw.s_min_extra_isize.get())),
            (Problem::BadWantExtraIsize, u32::from(raw.s_want_extra_isize.get())),
        ] {
            if value != 0 && (value < 4 || value > most || !value.is_multiple_of(4)) {
                bad(problem, value.into(), most.into());
            }
        }
    }
    if ro_compat.contains(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM) {
        bad(Problem::MetaAndGdtCsumSet, 0, 0);
    }
    if incompat.contains(Incompat::CSUM_SEED) && !ro_compat.contains(RoCompat::METADATA_CSUM) {
        bad(Problem::CsumSeedWithoutMetaCsum, 0, 0);
    }
    for unknown in [
        incompat.difference(Incompat::KNOWN).bits(),
        compat.bits() & !COMPAT_KNOWN,
        ro_compat.bits() & !RO_COMPAT_KNOWN,
    ] {
        if unknown != 0 {
            bad(Problem::UnknownFeatures, unknown.into(), 0);
        }
    }
    if incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENTS) {
        bad(Problem::Bit64WithoutExtents, 0, 0);
    }
    if old && (compat.bits() | incompat.bits() | ro_compat.bits()) != 0 {
        bad(Problem::FsRevLevel, 0, 1);
    }
    if raw.s_creator_os.get() == CREATOR_HURD && incompat.contains(Incompat::FILETYPE) {
        bad(Problem::HurdClearFiletype, 0, 0);
    }
    if SuperFlags::from_bits_retain(raw.s_flags.get()).contains(SuperFlags::TEST_FILESYS) {
        bad(Problem::ClearTestfsFlag, 0, 0);
    }
    if compat.contains(Compat::RESIZE_INODE) && incompat.contains(Incompat::META_BG) {
        bad(Problem::DisableResizeInode, 0, 0);
    }
    if !compat.contains(Compat::RESIZE_INODE) && raw.s_reserved_gdt_blocks.get() != 0 {
        bad(Problem::NonzeroReservedGdtBlocks, raw.s_reserved_gdt_blocks.get().into(), 0);
    }
    let time = |low: u32, high: u8| i64::from(low) | i64::from(high) << 32;
    for (problem, when) in [
        (Problem::FutureSbLastMount, time(raw.s_mtime.get(), raw.s_mtime_hi)),
        (Problem::FutureSbLastWrite, time(raw.s_wtime.get(), raw.s_wtime_hi)),
    ] {
        if when > now {
            bad(problem, when as u64, now.max(0) as u64);
        }
    }
    for ino in [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), raw.s_prj_quota_inum.get()] {
        if NEVER_QUOTA.contains(&ino) || ino > raw.s_inodes_count.get() {
            bad(Problem::InvalidQuotaIno, ino.into(), 0);
        }
    }
    if incompat.contains(Incompat::CASEFOLD) && raw.s_encoding.get() != ENCODING_UTF8 {
        bad(Problem::MiscCorruptSuper, raw.s_encoding.get().into(), ENCODING_UTF8.into());
    }
    let orphan_present = ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    if compat.contains(Compat::ORPHAN_FILE) && !compat.contains(Compat::HAS_JOURNAL) {
        bad(Problem::OrphanFileWithoutJournal, 0, 0);
    }
    if orphan_present && !compat.contains(Compat::ORPHAN_FILE) {
        bad(Problem::OrphanPresentNoFile, 0, 0);
    }
}
