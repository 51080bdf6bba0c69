//! Faults of a superblock, and the layout that can be derived from a superblock that is not trusted.
//!
//! Main types: [`SuperDamage`]; [`SuperContext`], the facts that the superblock does not contain. Main function:
//! [`SuperBlock::parse`]. It compares the fields of one copy with each other. The checker compares them with
//! descriptors, inodes and bitmaps.
//!
//! # Locking
//! None.

use std::fmt;

use zerocopy::FromBytes;
use zerocopy::little_endian::U32;

use super::{
    BackupRule, CHECKSUM_TYPE_CRC32C, DESC_SIZE_GOOD_OLD, DescChecksum, EXTRA_ISIZE_DEFAULT, FIRST_INO_GOOD_OLD,
    Geometry, INODE_SIZE_GOOD_OLD, MAGIC, RawSuperBlock, SUPERBLOCK_SIZE, SuperBlock, SuperFlags, join,
};
use crate::csum::ChecksumSeed;
use crate::damage::Damage;
use crate::features::{CREATOR_OS_HURD, Compat, Incompat, RoCompat, refusal};
use crate::{Error, Structure};

/// A cluster has at most 2^(10 + this) bytes (Linux: `EXT4_MAX_CLUSTER_LOG_SIZE`).
const LOG_CLUSTER_SIZE_MAX: u32 = 20;
/// The same limit in e2fsprogs (`EXT2_MAX_CLUSTER_LOG_SIZE`).
const LOG_CLUSTER_SIZE_CHECKED: u32 = 19;
/// A flex group has at most 2^this groups.
const FLEX_LOG_MAX: u8 = 31;
/// The only valid encoding of names (Linux: `EXT4_ENC_UTF8_12_1`).
const ENCODING_UTF8: u16 = 1;
/// The reserved inodes that are never quota inodes: all except 3 and 4.
const NEVER_QUOTA: [u32; 8] = [1, 2, 5, 6, 7, 8, 9, 10];

/// An inode that the superblock refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpecialInode {
    /// `s_journal_inum`.
    Journal,
    /// `s_usr_quota_inum`.
    UserQuota,
    /// `s_grp_quota_inum`.
    GroupQuota,
    /// `s_prj_quota_inum`.
    ProjectQuota,
    /// `s_orphan_file_inum`.
    OrphanFile,
    /// `s_last_orphan`.
    LastOrphan,
}

impl fmt::Display for SpecialInode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SpecialInode::Journal => "journal",
            SpecialInode::UserQuota => "user quota",
            SpecialInode::GroupQuota => "group quota",
            SpecialInode::ProjectQuota => "project quota",
            SpecialInode::OrphanFile => "orphan file",
            SpecialInode::LastOrphan => "first orphan",
        })
    }
}

/// One fault of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperDamage {
    /// There are too few bytes.
    #[error("{found} bytes, {SUPERBLOCK_SIZE} needed")]
    Length {
        /// The number of bytes.
        found: u32,
    },
    /// `s_magic` is wrong.
    #[error("magic {found:#06x}, expected {MAGIC:#06x}")]
    Magic {
        /// The stored value.
        found: u16,
    },
    /// The device contains a journal for another file system, and no file system.
    #[error("the journal of a file system on another device, and no file system (feature {})", names(*.features))]
    JournalDevice {
        /// The unknown incompatible features, and `journal_dev`.
        features: u32,
    },
    /// There are incompatible features that this code does not know.
    #[error("feature {}", names(*.unknown))]
    Features {
        /// The bits of these features.
        unknown: u32,
    },
    /// There are compatible features that this code does not know.
    #[error("feature {}", Compat::from_bits_retain(*.unknown).names().join(", "))]
    CompatFeatures {
        /// The bits of these features.
        unknown: u32,
    },
    /// There are read-only compatible features that this code does not know.
    #[error("feature {}", RoCompat::from_bits_retain(*.unknown).names().join(", "))]
    RoCompatFeatures {
        /// The bits of these features.
        unknown: u32,
    },
    /// `s_checksum_type` is unknown.
    #[error("metadata checksums of type {found}")]
    ChecksumType {
        /// The stored value.
        found: u8,
    },
    /// The checksum does not match the bytes.
    #[error("checksum {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// `s_rev_level` is unknown.
    #[error("revision {found}")]
    Revision {
        /// The stored value.
        found: u32,
    },
    /// `s_log_block_size` is too large.
    #[error("log block size {found}")]
    LogBlockSize {
        /// The stored value.
        found: u32,
    },
    /// `s_log_cluster_size` is not valid with this block size.
    #[error("log cluster size {found} with log block size {log_block_size}")]
    LogClusterSize {
        /// The stored value.
        found: u32,
        /// `s_log_block_size`.
        log_block_size: u32,
    },
    /// The Linux kernel mounts clusters of this size, but e2fsprogs neither creates nor checks them.
    #[error("log cluster size {found}, at most {LOG_CLUSTER_SIZE_CHECKED} for e2fsprogs")]
    LargeClusters {
        /// `s_log_cluster_size`.
        found: u32,
    },
    /// The high half of the block count is set without `64bit`.
    #[error("more than 2^32 blocks without 64bit")]
    BlocksHigh {
        /// The stored value.
        found: u32,
    },
    /// `s_first_data_block` does not match the block size.
    #[error("first data block {found}, expected {expected}")]
    FirstDataBlock {
        /// The stored value.
        found: u32,
        /// The value that the block size implies.
        expected: u32,
    },
    /// The file system has fewer blocks than it needs, or more than it can have.
    #[error("{found} blocks")]
    BlocksCount {
        /// The stored value.
        found: u64,
    },
    /// The device ends before the file system.
    #[error("{blocks} blocks on a device of {device}")]
    DeviceSize {
        /// The number of blocks in the file system.
        blocks: u64,
        /// The number of whole blocks on the device.
        device: u64,
    },
    /// `s_blocks_per_group` or `s_clusters_per_group` is invalid.
    #[error("{blocks} blocks and {clusters} clusters per group")]
    BlocksPerGroup {
        /// The stored number of blocks.
        blocks: u32,
        /// The stored number of clusters; the number of blocks without `bigalloc`.
        clusters: u32,
    },
    /// `s_clusters_per_group` is wrong without `bigalloc`. Only e2fsprogs checks this.
    #[error("{found} clusters per group without bigalloc, expected {expected}")]
    UnusedClusters {
        /// The stored value.
        found: u32,
        /// `s_blocks_per_group`.
        expected: u32,
    },
    /// `s_log_groups_per_flex` is too large.
    #[error("log groups per flex group {found}, at most {FLEX_LOG_MAX} possible")]
    GroupsPerFlex {
        /// The stored value.
        found: u8,
    },
    /// `s_inode_size` is invalid.
    #[error("inode size {found}")]
    InodeSize {
        /// The stored value.
        found: u16,
    },
    /// `s_inodes_per_group` does not fit the bitmap, or its inode table does not fit a group.
    #[error("{found} inodes per group")]
    InodesPerGroup {
        /// The stored value.
        found: u32,
        /// The maximum number that fits.
        most: u32,
    },
    /// `s_inodes_count` differs from the sum over the groups.
    #[error("{found} inodes in {groups} groups of {per_group}")]
    InodesCount {
        /// The stored value.
        found: u32,
        /// The number of groups that the block count implies.
        groups: u64,
        /// `s_inodes_per_group`.
        per_group: u32,
    },
    /// `s_first_ino` is invalid.
    #[error("first inode {found} of {inodes_count}")]
    FirstInode {
        /// The stored value.
        found: u32,
        /// The number of inodes in all groups.
        inodes_count: u32,
    },
    /// `s_desc_size` is invalid.
    #[error("group descriptor size {found}")]
    DescSize {
        /// The stored value.
        found: u16,
    },
    /// `s_desc_size` is wrong without `64bit`. Only e2fsprogs checks this.
    #[error("group descriptor size {found} without 64bit")]
    UnusedDescSize {
        /// The stored value.
        found: u16,
    },
    /// `s_first_meta_bg` is too large.
    #[error("first meta block group {found}")]
    FirstMetaBg {
        /// The stored value.
        found: u32,
        /// The number of blocks of descriptors.
        most: u32,
    },
    /// `s_reserved_gdt_blocks` is more than the resize inode can map.
    #[error("{found} reserved descriptor blocks")]
    ReservedGdtBlocks {
        /// The stored value.
        found: u16,
        /// The number of pointers in a block.
        most: u32,
    },
    /// The descriptors do not fit into the first group.
    #[error("{found} descriptor blocks do not fit a group")]
    DescBlocks {
        /// The number of blocks of descriptors.
        found: u32,
    },
    /// The superblock refers to an inode that does not exist.
    #[error("{what} inode {found} of {most}")]
    Inode {
        /// The special inode.
        what: SpecialInode,
        /// The stored value.
        found: u32,
        /// The number of inodes in all groups.
        most: u32,
    },

    /// The superblock refers to a reserved inode that cannot have this role.
    #[error("{what} inode {found} cannot be that")]
    InodeRole {
        /// The special inode.
        what: SpecialInode,
        /// The stored value.
        found: u32,
    },
    /// More than half of the blocks are reserved for root.
    #[error("{found} blocks reserved, at most {most} possible")]
    ReservedBlocks {
        /// The stored value.
        found: u64,
        /// Half of the blocks.
        most: u64,
    },
    /// The count of free blocks is greater than the number of blocks.
    #[error("{found} free blocks of {most}")]
    FreeBlocks {
        /// The stored value.
        found: u64,
        /// The number of blocks.
        most: u64,
    },
    /// The count of free inodes is greater than the number of inodes.
    #[error("{found} free inodes of {most}")]
    FreeInodes {
        /// The stored value.
        found: u32,
        /// The number of inodes.
        most: u32,
    },
    /// There are feature bits in a file system of revision 0, which has no fields for them.
    #[error("feature bits in a revision 0 file system")]
    RevisionFeatures,
    /// Both `metadata_csum` and `uninit_bg` are set.
    #[error("metadata_csum together with uninit_bg")]
    BothChecksums,
    /// `64bit` is set without `extent`.
    #[error("64bit without extent")]
    Bit64WithoutExtents,
    /// `metadata_csum_seed` is set without `metadata_csum`.
    #[error("metadata_csum_seed without metadata_csum")]
    SeedWithoutChecksums,
    /// `meta_bg` is set together with `resize_inode`.
    #[error("meta_bg together with resize_inode")]
    MetaBgWithResizeInode,
    /// There are reserved descriptor blocks without `resize_inode`.
    #[error("{found} reserved descriptor blocks without resize_inode, expected 0")]
    ReservedWithoutResizeInode {
        /// The stored value.
        found: u16,
    },
    /// `has_journal` is set, but neither a journal inode nor a journal device is given.
    #[error("has_journal without a journal")]
    JournalMissing,
    /// Both a journal inode and a journal device are given.
    #[error("journal inode {found} beside a journal on another device")]
    JournalTwice {
        /// `s_journal_inum`.
        found: u32,
    },
    /// A journal is given, but `has_journal` is not set.
    #[error("journal inode {found} without has_journal")]
    JournalWithoutFeature {
        /// `s_journal_inum`; 0 for a journal on another device.
        found: u32,
    },
    /// `needs_recovery` is set without `has_journal`.
    #[error("needs_recovery without has_journal")]
    RecoveryWithoutJournal,
    /// `orphan_present` is set without `orphan_file`.
    #[error("orphan_present without orphan_file")]
    OrphanPresentWithoutFile,
    /// `orphan_file` is set without `has_journal`.
    #[error("orphan_file without has_journal")]
    OrphanFileWithoutJournal,
    /// `s_min_extra_isize` is invalid.
    #[error("{found} extra bytes at least, in inodes that have room for {most}")]
    MinExtraIsize {
        /// The stored value.
        found: u16,
        /// The number of bytes in an inode after the first 128.
        most: u16,
    },
    /// `s_want_extra_isize` is invalid.
    #[error("{found} extra bytes wanted, in inodes that have room for {most}")]
    WantExtraIsize {
        /// The stored value.
        found: u16,
        /// The number of bytes in an inode after the first 128.
        most: u16,
    },
    /// `s_mmp_block` lies outside the file system.
    #[error("multiple mount protection in block {found} of {most}")]
    MmpBlock {
        /// The stored value.
        found: u64,
        /// The number of blocks in the file system.
        most: u64,
    },
    /// `s_encoding` is not a known encoding of case-insensitive names.
    #[error("encoding {found} of names, expected {ENCODING_UTF8}")]
    Encoding {
        /// The stored value.
        found: u16,
    },
    /// The file system is marked as created for development code.
    #[error("marked as a test file system")]
    TestFlag,
    /// `filetype` is set on a file system of the Hurd, whose entries have no room for the type.
    #[error("filetype on a file system of the Hurd")]
    HurdFiletype,
    /// The last mount is in the future.
    #[error("last mounted at {found}, but now it is {now}")]
    FutureMount {
        /// `s_mtime`.
        found: i64,
        /// The caller's clock.
        now: i64,
    },
    /// The last write is in the future.
    #[error("last written at {found}, but now it is {now}")]
    FutureWrite {
        /// `s_wtime`.
        found: i64,
        /// The caller's clock.
        now: i64,
    },
}

impl Damage for SuperDamage {
    fn is_fatal(&self) -> bool {
        use SuperDamage::*;
        match self {
            Length { .. } | Magic { .. } | JournalDevice { .. } | Features { .. } | ChecksumType { .. } => true,
            Checksum { .. } | Revision { .. } | LogBlockSize { .. } | LogClusterSize { .. } | BlocksHigh { .. } => true,
            FirstDataBlock { .. } | BlocksCount { .. } | BlocksPerGroup { .. } | InodeSize { .. } => true,
            InodesPerGroup { .. } | InodesCount { .. } | FirstInode { .. } | DescSize { .. } => true,
            FirstMetaBg { .. } | ReservedGdtBlocks { .. } | DescBlocks { .. } => true,
            Inode { what, .. } => {
                matches!(what, SpecialInode::Journal | SpecialInode::UserQuota | SpecialInode::GroupQuota)
            }
            _ => false,
        }
    }
}

impl SuperDamage {
    /// Whether a reader that recovers as much as possible can still use the rest of the superblock.
    pub fn is_doubt(&self) -> bool {
        // The number of inodes also follows from the groups. Without the journal or quotas, files can still be read.
        use SuperDamage::{Checksum, Features, Inode, InodesCount};
        matches!(self, Features { .. } | Checksum { .. } | InodesCount { .. } | Inode { .. })
    }

    /// Converts the fault to the crate's error, for the copy at byte `place`.
    pub fn error(self, place: u64) -> Error {
        match self {
            SuperDamage::Features { unknown } => refusal(Incompat::from_bits_retain(unknown)),
            SuperDamage::JournalDevice { .. } | SuperDamage::ChecksumType { .. } | SuperDamage::Revision { .. } => {
                Error::unsupported(self.to_string())
            }
            _ => Error::corrupt(Structure::SuperBlock, place, self.to_string()),
        }
    }
}

/// The names of incompatible features.
fn names(bits: u32) -> String {
    Incompat::from_bits_retain(bits).names().join(", ")
}

/// Facts that a superblock does not contain. A fact that is `None` is not checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct SuperContext {
    /// The size of the device in bytes.
    pub device_bytes: Option<u64>,
    /// The current time in seconds since 1970, plus the possible error of the clock.
    pub now: Option<i64>,
}

impl SuperBlock {
    /// Reports every fault of a superblock, and returns it if a layout can be derived from it. The superblock may have
    /// unknown features, a wrong checksum, or bad fields that can be derived from others (the numbers of inodes, of
    /// reserved descriptor blocks and of metagroups). A mount uses [`SuperBlock::decode`].
    pub fn parse(bytes: &[u8], context: &SuperContext, sink: &mut impl FnMut(SuperDamage)) -> Option<SuperBlock> {
        let Ok((raw, _)) = RawSuperBlock::read_from_prefix(bytes) else {
            sink(SuperDamage::Length { found: bytes.len() as u32 });
            return None;
        };
        let geometry = raw.damage(context, sink)?;
        Some(SuperBlock { raw, geometry })
    }
}

impl RawSuperBlock {
    /// Reports every fault, and derives the layout if that is possible.
    pub fn damage(&self, context: &SuperContext, sink: &mut impl FnMut(SuperDamage)) -> Option<Geometry> {
        if self.s_magic.get() != MAGIC {
            sink(SuperDamage::Magic { found: self.s_magic.get() });
            return None;
        }
        let features = Features::of(self);
        let unknown = features.incompat.difference(Incompat::KNOWN);
        if unknown.contains(Incompat::JOURNAL_DEV) {
            sink(SuperDamage::JournalDevice { features: unknown.bits() });
            return None;
        }
        if !unknown.is_empty() {
            sink(SuperDamage::Features { unknown: unknown.bits() });
        }
        let unknown = features.compat.difference(Compat::KNOWN).bits();
        if unknown != 0 {
            sink(SuperDamage::CompatFeatures { unknown });
        }
        let unknown = features.ro_compat.difference(RoCompat::KNOWN).bits();
        if unknown != 0 {
            sink(SuperDamage::RoCompatFeatures { unknown });
        }
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            let (found, expected) = (self.s_checksum.get(), self.compute_checksum());
            if self.s_checksum_type != CHECKSUM_TYPE_CRC32C {
                sink(SuperDamage::ChecksumType { found: self.s_checksum_type });
            } else if found != expected {
                sink(SuperDamage::Checksum { found, expected });
            }
        }
        let geometry = layout(self, features, sink);
        feature_damage(self, features, sink);
        if let Some(geometry) = &geometry {
            unused_damage(self, features, sink);
            count_damage(self, geometry, features, context, sink);
        }
        time_damage(self, context, sink);
        geometry
    }
}

#[derive(Clone, Copy)]
struct Features {
    compat: Compat,
    incompat: Incompat,
    ro_compat: RoCompat,
}

impl Features {
    fn of(raw: &RawSuperBlock) -> Features {
        Features {
            compat: Compat::from_bits_retain(raw.s_feature_compat.get()),
            incompat: Incompat::from_bits_retain(raw.s_feature_incompat.get()),
            ro_compat: RoCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
        }
    }
}

/// Checks the features against each other.
fn feature_damage(raw: &RawSuperBlock, features: Features, sink: &mut impl FnMut(SuperDamage)) {
    let Features { compat, incompat, ro_compat } = features;
    let mut note = |wrong: bool, damage| {
        if wrong {
            sink(damage);
        }
    };
    let has_any = !(compat.is_empty() && incompat.is_empty() && ro_compat.is_empty());
    let has_journal = compat.contains(Compat::HAS_JOURNAL);
    let metadata_csum = ro_compat.contains(RoCompat::METADATA_CSUM);
    note(raw.s_rev_level.get() == 0 && has_any, SuperDamage::RevisionFeatures);
    note(metadata_csum && ro_compat.contains(RoCompat::GDT_CSUM), SuperDamage::BothChecksums);
    note(incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENTS), SuperDamage::Bit64WithoutExtents);
    note(incompat.contains(Incompat::CSUM_SEED) && !metadata_csum, SuperDamage::SeedWithoutChecksums);
    let resize_inode = compat.contains(Compat::RESIZE_INODE);
    note(incompat.contains(Incompat::META_BG) && resize_inode, SuperDamage::MetaBgWithResizeInode);
    let found = raw.s_reserved_gdt_blocks.get();
    note(!resize_inode && found != 0, SuperDamage::ReservedWithoutResizeInode { found });
    let found = raw.s_journal_inum.get();
    let elsewhere = raw.s_journal_uuid != [0; 16];
    let is_named = found != 0 || elsewhere || raw.s_journal_dev.get() != 0;
    note(!has_journal && is_named, SuperDamage::JournalWithoutFeature { found });
    note(has_journal && !is_named, SuperDamage::JournalMissing);
    note(has_journal && found != 0 && elsewhere, SuperDamage::JournalTwice { found });
    let needs_recovery = incompat.contains(Incompat::NEEDS_RECOVERY);
    note(!has_journal && needs_recovery, SuperDamage::RecoveryWithoutJournal);
    let orphan_file = compat.contains(Compat::ORPHAN_FILE);
    let orphan_present = ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    note(orphan_present && !orphan_file, SuperDamage::OrphanPresentWithoutFile);
    note(orphan_file && !has_journal, SuperDamage::OrphanFileWithoutJournal);
    let flags = SuperFlags::from_bits_retain(raw.s_flags.get());
    note(flags.contains(SuperFlags::TEST_FILESYS), SuperDamage::TestFlag);
    let found = raw.s_encoding.get();
    note(incompat.contains(Incompat::CASEFOLD) && found != ENCODING_UTF8, SuperDamage::Encoding { found });
    let hurd = raw.s_creator_os.get() == CREATOR_OS_HURD;
    note(hurd && incompat.contains(Incompat::FILETYPE), SuperDamage::HurdFiletype);
}

/// Checks the fields that the Linux kernel ignores, because their feature is not set or because it uses a default.
fn unused_damage(raw: &RawSuperBlock, features: Features, sink: &mut impl FnMut(SuperDamage)) {
    let (found, expected) = (raw.s_clusters_per_group.get(), raw.s_blocks_per_group.get());
    if !features.ro_compat.contains(RoCompat::BIGALLOC) && found != expected {
        sink(SuperDamage::UnusedClusters { found, expected });
    }
    let found = raw.s_log_cluster_size.get();
    if found > LOG_CLUSTER_SIZE_CHECKED {
        sink(SuperDamage::LargeClusters { found });
    }
    if raw.s_log_groups_per_flex > FLEX_LOG_MAX {
        sink(SuperDamage::GroupsPerFlex { found: raw.s_log_groups_per_flex });
    }
    let found = raw.s_desc_size.get();
    let is_odd = found > 1024 || (found != 0 && !found.is_power_of_two());
    if is_odd && !features.incompat.contains(Incompat::BIT64) {
        sink(SuperDamage::UnusedDescSize { found });
    }
}

/// Checks the counts, the extra inode sizes, the MMP block and the special inode numbers against the layout.
fn count_damage(
    raw: &RawSuperBlock,
    geometry: &Geometry,
    features: Features,
    context: &SuperContext,
    sink: &mut impl FnMut(SuperDamage),
) {
    let blocks = geometry.blocks_count;
    if let Some(device) = context.device_bytes.map(|bytes| bytes >> geometry.block_bits)
        && device < blocks
    {
        sink(SuperDamage::DeviceSize { blocks, device });
    }
    let reserved = join(raw.s_r_blocks_count_lo, raw.s_r_blocks_count_hi, geometry.bit64);
    if reserved > blocks / 2 {
        sink(SuperDamage::ReservedBlocks { found: reserved, most: blocks / 2 });
    }
    let free = join(raw.s_free_blocks_count_lo, raw.s_free_blocks_count_hi, geometry.bit64);
    if free > blocks {
        sink(SuperDamage::FreeBlocks { found: free, most: blocks });
    }
    let free = raw.s_free_inodes_count.get();
    if free > geometry.inodes_count {
        sink(SuperDamage::FreeInodes { found: free, most: geometry.inodes_count });
    }
    let most = geometry.inode_size as u16 - INODE_SIZE_GOOD_OLD;
    if most > 0 {
        let is_bad = |found: u16| found > most || !found.is_multiple_of(4);
        let (least, wanted) = (raw.s_min_extra_isize.get(), raw.s_want_extra_isize.get());
        if is_bad(least) {
            sink(SuperDamage::MinExtraIsize { found: least, most });
        }
        if is_bad(wanted) {
            sink(SuperDamage::WantExtraIsize { found: wanted, most });
        }
    }
    if features.incompat.contains(Incompat::MMP) {
        let found = raw.s_mmp_block.get();
        if found <= geometry.first_data_block || found >= blocks {
            sink(SuperDamage::MmpBlock { found, most: blocks });
        }
    }
    let most = geometry.inodes_count;
    let has_quota = features.ro_compat.contains(RoCompat::QUOTA);
    let has_orphan_file = features.compat.contains(Compat::ORPHAN_FILE);
    // 0 means that there is none, except for an orphan file. Without the quota feature, e2fsck still rejects some
    // inodes. It also reserves the inode of the project quota, which could otherwise be any file's.
    let quota = |own: u32| move |ino: u32| if has_quota { ino == 0 || ino == own } else { !NEVER_QUOTA.contains(&ino) };
    let plain = |ino: u32| ino == 0 || ino >= geometry.first_ino;
    let project = |ino: u32| if has_quota { plain(ino) } else { ino == 0 };
    for (what, found, is_used, fits) in [
        (SpecialInode::UserQuota, raw.s_usr_quota_inum.get(), true, &quota(3) as &dyn Fn(u32) -> bool),
        (SpecialInode::GroupQuota, raw.s_grp_quota_inum.get(), true, &quota(4)),
        (SpecialInode::ProjectQuota, raw.s_prj_quota_inum.get(), true, &project),
        (SpecialInode::OrphanFile, raw.s_orphan_file_inum.get(), has_orphan_file, &|ino| ino >= geometry.first_ino),
        (SpecialInode::LastOrphan, raw.s_last_orphan.get(), true, &plain),
    ] {
        let is_named = matches!(what, SpecialInode::UserQuota | SpecialInode::GroupQuota);
        if is_used && found > most && !is_named {
            sink(SuperDamage::Inode { what, found, most });
        } else if is_used && found <= most && !fits(found) {
            sink(SuperDamage::InodeRole { what, found });
        }
    }
}

fn time_damage(raw: &RawSuperBlock, context: &SuperContext, sink: &mut impl FnMut(SuperDamage)) {
    let Some(now) = context.now else { return };
    let mounted = RawSuperBlock::time(raw.s_mtime, raw.s_mtime_hi);
    if mounted > now {
        sink(SuperDamage::FutureMount { found: mounted, now });
    }
    let written = RawSuperBlock::time(raw.s_wtime, raw.s_wtime_hi);
    if written > now {
        sink(SuperDamage::FutureWrite { found: written, now });
    }
}

/// Checks every field that arithmetic elsewhere depends on, and derives the layout. Returns `None` if a field is wrong
/// and cannot be derived from another one.
#[expect(clippy::too_many_lines, reason = "one check a field, in the order in which they depend on each other")]
fn layout(raw: &RawSuperBlock, features: Features, sink: &mut impl FnMut(SuperDamage)) -> Option<Geometry> {
    let Features { compat, incompat, ro_compat } = features;
    let revision = raw.s_rev_level.get();
    if revision > 1 {
        sink(SuperDamage::Revision { found: revision });
    }
    let log_block_size = raw.s_log_block_size.get();
    if log_block_size > 6 {
        sink(SuperDamage::LogBlockSize { found: log_block_size });
        return None;
    }
    // The checks continue after a wrong field, in order to report the others.
    let mut is_sound = true;
    let mut bad = |damage| {
        is_sound = false;
        sink(damage);
    };
    let block_bits = 10 + log_block_size;
    let block_size = 1u32 << block_bits;

    let bigalloc = ro_compat.contains(RoCompat::BIGALLOC);
    let log_cluster_size = raw.s_log_cluster_size.get();
    let cluster_bits = match log_cluster_size.checked_sub(log_block_size) {
        Some(0) => 0,
        Some(bits) if bigalloc && log_cluster_size <= LOG_CLUSTER_SIZE_MAX => bits,
        _ => {
            bad(SuperDamage::LogClusterSize { found: log_cluster_size, log_block_size });
            0
        }
    };

    let bit64 = incompat.contains(Incompat::BIT64);
    if !bit64 && raw.s_blocks_count_hi.get() != 0 {
        bad(SuperDamage::BlocksHigh { found: raw.s_blocks_count_hi.get() });
    }
    let blocks_count = join(raw.s_blocks_count_lo, raw.s_blocks_count_hi, bit64);
    let expected = u32::from(block_size == 1024 && cluster_bits == 0);
    let first_data_block = u64::from(expected);
    if raw.s_first_data_block.get() != expected {
        bad(SuperDamage::FirstDataBlock { found: raw.s_first_data_block.get(), expected });
    }
    let has_blocks = blocks_count > first_data_block + 1 && blocks_count <= 1 << 48;
    if !has_blocks {
        bad(SuperDamage::BlocksCount { found: blocks_count });
    }

    let bits_per_block = block_size * 8;
    let blocks_per_group = raw.s_blocks_per_group.get();
    let clusters_per_group = if bigalloc { raw.s_clusters_per_group.get() } else { blocks_per_group };
    let has_groups = clusters_per_group != 0
        && clusters_per_group.is_multiple_of(8)
        && clusters_per_group <= bits_per_block
        && u64::from(clusters_per_group) << cluster_bits == u64::from(blocks_per_group);
    if !has_groups {
        bad(SuperDamage::BlocksPerGroup { blocks: blocks_per_group, clusters: clusters_per_group });
    }

    let inode_size = if revision == 0 { INODE_SIZE_GOOD_OLD } else { raw.s_inode_size.get() };
    let has_inodes =
        inode_size >= INODE_SIZE_GOOD_OLD && inode_size.is_power_of_two() && u32::from(inode_size) <= block_size;
    if !has_inodes {
        bad(SuperDamage::InodeSize { found: inode_size });
    }
    let inodes_per_group = raw.s_inodes_per_group.get();
    let inodes_per_block = if has_inodes { block_size / u32::from(inode_size) } else { 1 };
    // A group holds its own table (or another group's, with flex_bg), so the size of the device limits the tables.
    let room = if has_groups { blocks_per_group.saturating_sub(4) } else { bits_per_block };
    let most = inodes_per_block.saturating_mul(room).min(bits_per_block);
    let has_tables =
        inodes_per_group >= inodes_per_block && inodes_per_group.is_multiple_of(8) && inodes_per_group <= most;
    if !has_tables {
        bad(SuperDamage::InodesPerGroup { found: inodes_per_group, most });
    }
    let desc_size = if bit64 { raw.s_desc_size.get() } else { DESC_SIZE_GOOD_OLD };
    let has_descs = desc_size.is_power_of_two() && desc_size <= 1024 && (!bit64 || desc_size >= 64);
    if !has_descs {
        bad(SuperDamage::DescSize { found: desc_size });
    }
    let most = block_size / 4;
    let found = raw.s_reserved_gdt_blocks.get();
    if u32::from(found) > most {
        sink(SuperDamage::ReservedGdtBlocks { found, most });
    }
    if !(is_sound && has_blocks && has_groups && has_inodes && has_tables && has_descs) {
        return None;
    }
    let reserved_gdt_blocks = u32::from(found).min(most);
    let inode_table_blocks = inodes_per_group.div_ceil(inodes_per_block);

    let groups = (blocks_count - first_data_block).div_ceil(u64::from(blocks_per_group));
    let found = raw.s_inodes_count.get();
    let per_group = inodes_per_group;
    let inodes = groups.checked_mul(u64::from(per_group)).and_then(|inodes| u32::try_from(inodes).ok());
    if inodes != Some(found) {
        sink(SuperDamage::InodesCount { found, groups, per_group });
    }
    let inodes_count = inodes?;
    // Inodes are counted with 32 bits and each group has at least one, so 32 bits suffice for the groups, too.
    let group_count = groups as u32;

    let mut first_ino = if revision == 0 { FIRST_INO_GOOD_OLD } else { raw.s_first_ino.get() };
    if first_ino < FIRST_INO_GOOD_OLD || first_ino > inodes_count {
        sink(SuperDamage::FirstInode { found: first_ino, inodes_count });
        first_ino = FIRST_INO_GOOD_OLD;
    }

    let desc_blocks = group_count.div_ceil(block_size / u32::from(desc_size));
    let mut first_meta_bg = incompat.contains(Incompat::META_BG).then(|| raw.s_first_meta_bg.get());
    if let Some(found) = first_meta_bg.filter(|first| *first > desc_blocks) {
        sink(SuperDamage::FirstMetaBg { found, most: desc_blocks });
        first_meta_bg = Some(desc_blocks);
    }
    let in_group_zero = u64::from(first_meta_bg.unwrap_or(desc_blocks)) + 2;
    if in_group_zero > u64::from(blocks_per_group) || first_data_block + in_group_zero > blocks_count {
        sink(SuperDamage::DescBlocks { found: desc_blocks });
        return None;
    }

    for (what, found) in [
        (SpecialInode::Journal, raw.s_journal_inum.get()),
        (SpecialInode::UserQuota, raw.s_usr_quota_inum.get()),
        (SpecialInode::GroupQuota, raw.s_grp_quota_inum.get()),
    ] {
        if revision > 0 && found > inodes_count {
            sink(SuperDamage::Inode { what, found, most: inodes_count });
        }
    }

    let flex_bg = incompat.contains(Incompat::FLEX_BG);
    let metadata_csum = ro_compat.contains(RoCompat::METADATA_CSUM);
    let backup_bgs = raw.s_backup_bgs.map(U32::get);
    let extra_max = inode_size - INODE_SIZE_GOOD_OLD;
    let wanted = raw.s_want_extra_isize.get().max(raw.s_min_extra_isize.get());
    let want_extra_isize = match wanted {
        _ if extra_max == 0 => 0,
        // Growing beyond the known size would set unknown fields to zero, and only their definition can allow that.
        wanted if wanted.is_multiple_of(4) && wanted >= 4 && wanted <= extra_max && wanted <= EXTRA_ISIZE_DEFAULT => {
            wanted
        }
        _ => EXTRA_ISIZE_DEFAULT.min(extra_max),
    };
    Some(Geometry {
        block_size,
        block_bits,
        cluster_bits,
        blocks_count,
        first_data_block,
        blocks_per_group,
        clusters_per_group,
        inodes_per_group,
        inodes_count,
        inode_size: usize::from(inode_size),
        first_ino,
        inode_table_blocks,
        group_count,
        desc_size: usize::from(desc_size),
        desc_blocks,
        first_meta_bg,
        reserved_gdt_blocks,
        backups: if compat.contains(Compat::SPARSE_SUPER2) {
            BackupRule::Two(backup_bgs)
        } else if ro_compat.contains(RoCompat::SPARSE_SUPER) {
            BackupRule::Sparse
        } else {
            BackupRule::All
        },
        groups_per_flex: match raw.s_log_groups_per_flex {
            log @ 1..=31 if flex_bg => 1 << log,
            _ => 1,
        },
        desc_checksum: if metadata_csum {
            DescChecksum::Crc32c
        } else if ro_compat.contains(RoCompat::GDT_CSUM) {
            DescChecksum::Crc16
        } else {
            DescChecksum::None
        },
        metadata_csum,
        bit64,
        flex_bg,
        huge_file: ro_compat.contains(RoCompat::HUGE_FILE),
        ea_inode: incompat.contains(Incompat::EA_INODE),
        large_dir: incompat.contains(Incompat::LARGE_DIR),
        filetype: incompat.contains(Incompat::FILETYPE),
        extents: incompat.contains(Incompat::EXTENTS),
        inline_data: incompat.contains(Incompat::INLINE_DATA),
        casefold: incompat.contains(Incompat::CASEFOLD),
        dir_index: compat.contains(Compat::DIR_INDEX),
        imagic_inodes: compat.contains(Compat::IMAGIC_INODES),
        hurd: raw.s_creator_os.get() == CREATOR_OS_HURD,
        want_extra_isize,
        uuid: raw.s_uuid,
        seed: if incompat.contains(Incompat::CSUM_SEED) {
            ChecksumSeed::from_raw(raw.s_checksum_seed.get())
        } else {
            ChecksumSeed::from_uuid(&raw.s_uuid)
        },
    })
}
