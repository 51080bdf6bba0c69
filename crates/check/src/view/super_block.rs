//! Converts the superblock's damage, which `extant_ondisk` finds, to findings.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::superblock::{MAGIC, SpecialInode, SuperDamage};

use crate::finding::{Finding, Place};
use crate::problem::Problem;

/// Converts damage of the superblock to a finding; `None` if another pass reports the same in more detail.
pub fn finding(damage: SuperDamage) -> Option<Finding> {
    use SuperDamage as D;
    let at = |problem, found: u64, expected: u64| Some(Finding::new(problem, Place::Volume, found, expected));
    let misc = |field, found: u64, expected: u64| {
        Some(Finding::new(Problem::MiscCorruptSuper, Place::Field(field), found, expected))
    };
    let quota = |field, found: u32| Some(Finding::new(Problem::InvalidQuotaIno, Place::Field(field), found, 0u64));
    match damage {
        D::Length { found } => at(Problem::SbCorrupt, found.into(), 0),
        D::Magic { found } => at(Problem::SbCorrupt, found.into(), MAGIC.into()),
        D::JournalDevice { features } => at(Problem::SbCorrupt, features.into(), 0),
        D::ChecksumType { found } => at(Problem::SbCorrupt, found.into(), 1),
        D::Checksum { found, expected } => at(Problem::SbCorrupt, found.into(), expected.into()),
        D::Revision { found } => at(Problem::SbCorrupt, found.into(), 1),
        D::Features { unknown } | D::CompatFeatures { unknown } | D::RoCompatFeatures { unknown } => {
            at(Problem::UnknownFeatures, unknown.into(), 0)
        }
        D::LogBlockSize { found } => misc("s_log_block_size", found.into(), 6),
        D::LogClusterSize { found, log_block_size } => misc("s_log_cluster_size", found.into(), log_block_size.into()),
        D::LargeClusters { found } => misc("s_log_cluster_size", found.into(), 19),
        D::BlocksHigh { found } => misc("s_blocks_count_hi", found.into(), 0),
        D::FirstDataBlock { found, expected } => at(Problem::FirstDataBlock, found.into(), expected.into()),
        D::BlocksCount { found } => misc("s_blocks_count", found, 1 << 48),
        D::DeviceSize { blocks, device } => at(Problem::FsSizeWrong, blocks, device),
        D::BlocksPerGroup { blocks, clusters } => misc("s_blocks_per_group", blocks.into(), clusters.into()),
        D::UnusedClusters { found, expected } => misc("s_clusters_per_group", found.into(), expected.into()),
        D::GroupsPerFlex { found } => misc("s_log_groups_per_flex", found.into(), 31),
        D::InodeSize { found } => misc("s_inode_size", found.into(), 128),
        D::InodesPerGroup { found, most } => misc("s_inodes_per_group", found.into(), most.into()),
        D::InodesCount { found, groups, per_group } => {
            let expected = groups.saturating_mul(per_group.into());
            if expected > u32::MAX.into() {
                at(Problem::InodeCountBig, expected, u32::MAX.into())
            } else {
                at(Problem::InodeCountWrong, found.into(), expected)
            }
        }
        D::FirstInode { found, inodes_count } => misc("s_first_ino", found.into(), inodes_count.into()),
        D::DescSize { found } | D::UnusedDescSize { found } => misc("s_desc_size", found.into(), 1024),
        D::FirstMetaBg { found, most } => at(Problem::FirstMetaBgTooBig, found.into(), most.into()),
        D::ReservedGdtBlocks { found, most } => misc("s_reserved_gdt_blocks", found.into(), most.into()),
        D::DescBlocks { found } => misc("s_blocks_count", found.into(), 0),
        D::Inode { what, found, .. } | D::InodeRole { what, found } => match what {
            SpecialInode::Journal => Some(Finding::new(Problem::JournalBadInode, Place::Journal, found, 0u64)),
            SpecialInode::UserQuota => quota("s_usr_quota_inum", found),
            SpecialInode::GroupQuota => quota("s_grp_quota_inum", found),
            SpecialInode::ProjectQuota => quota("s_prj_quota_inum", found),
            SpecialInode::OrphanFile => Some(Finding::at(Problem::OrphanFileBadMode, Place::Inode(InodeNr(found)))),
            SpecialInode::LastOrphan => at(Problem::OrphanIllegalHeadInode, found.into(), 0),
        },
        D::ReservedBlocks { found, most } => misc("s_r_blocks_count", found, most),
        // The pass over the bitmaps reports these counts.
        D::FreeBlocks { .. } | D::FreeInodes { .. } => None,
        D::RevisionFeatures => at(Problem::FsRevLevel, 0, 1),
        D::BothChecksums => at(Problem::MetaAndGdtCsumSet, 0, 0),
        D::Bit64WithoutExtents => at(Problem::Bit64WithoutExtents, 0, 0),
        D::SeedWithoutChecksums => at(Problem::CsumSeedWithoutMetaCsum, 0, 0),
        D::MetaBgWithResizeInode => at(Problem::DisableResizeInode, 0, 0),
        D::ReservedWithoutResizeInode { found } => at(Problem::NonzeroReservedGdtBlocks, found.into(), 0),
        D::JournalMissing => Some(Finding::at(Problem::JournalBadInode, Place::Journal)),
        D::JournalTwice { found } => Some(Finding::new(Problem::CantFindJournal, Place::Journal, found, 0u64)),
        D::JournalWithoutFeature { found } => {
            Some(Finding::new(Problem::JournalHasJournal, Place::Journal, found, 0u64))
        }
        D::RecoveryWithoutJournal => Some(Finding::at(Problem::JournalRecoverSet, Place::Journal)),
        D::OrphanPresentWithoutFile => at(Problem::OrphanPresentNoFile, 0, 0),
        D::OrphanFileWithoutJournal => at(Problem::OrphanFileWithoutJournal, 0, 0),
        D::MinExtraIsize { found, most } => at(Problem::BadMinExtraIsize, found.into(), most.into()),
        D::WantExtraIsize { found, most } => at(Problem::BadWantExtraIsize, found.into(), most.into()),
        D::MmpBlock { found, .. } => at(Problem::MmpInvalidBlk, found, 0),
        D::Encoding { found } => misc("s_encoding", found.into(), 1),
        D::TestFlag => at(Problem::ClearTestfsFlag, 0, 0),
        D::HurdFiletype => at(Problem::HurdClearFiletype, 0, 0),
        D::FutureMount { found, now } => at(Problem::FutureSbLastMount, found as u64, now.max(0) as u64),
        D::FutureWrite { found, now } => at(Problem::FutureSbLastWrite, found as u64, now.max(0) as u64),
    }
}
