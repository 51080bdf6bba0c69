//! What `extant_ondisk` says is wrong with one structure, as findings.
//!
//! `extant_ondisk` owns the rules of a structure by itself, and this crate owns what structures say about each other.
//! Here each value of its damage enums becomes the problem with e2fsck's number, one `match` without a wildcard for each
//! enum, so that a new rule there asks for an answer here. `None`: another pass sees the same, and more of it.
//!
//! # Locking
//! None.

use extant_ondisk::group_desc::{BitmapDamage, Counted, DescDamage, Piece};
use extant_ondisk::jbd2::JournalSuperDamage;
use extant_ondisk::superblock::{MAGIC, SpecialInode, SuperDamage};
use extant_ondisk::{GroupNr, InodeNr};

use crate::finding::{Finding, Place};
use crate::problem::Problem;

/// Of a superblock.
pub fn super_block(damage: SuperDamage) -> Option<Finding> {
    use SuperDamage as D;
    let at = |problem, found: u64, expected: u64| Some(Finding::new(problem, Place::Volume, found, expected));
    let misc = |found: u64, expected: u64| at(Problem::MiscCorruptSuper, found, expected);
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
        D::LogBlockSize { found } => misc(found.into(), 6),
        D::LogClusterSize { found, log_block_size } => misc(found.into(), log_block_size.into()),
        D::LargeClusters { found } => misc(found.into(), 19),
        D::BlocksHigh { found } => misc(found.into(), 0),
        D::FirstDataBlock { found, expected } => at(Problem::FirstDataBlock, found.into(), expected.into()),
        D::BlocksCount { found } => misc(found, 1 << 48),
        D::DeviceSize { blocks, device } => at(Problem::FsSizeWrong, blocks, device),
        D::BlocksPerGroup { blocks, clusters } => misc(blocks.into(), clusters.into()),
        D::UnusedClusters { found, expected } => misc(found.into(), expected.into()),
        D::GroupsPerFlex { found } => misc(found.into(), 31),
        D::InodeSize { found } => misc(found.into(), 128),
        D::InodesPerGroup { found, most } => misc(found.into(), most.into()),
        D::InodesCount { found, groups, per_group } => {
            let expected = groups.saturating_mul(per_group.into());
            if expected > u32::MAX.into() {
                at(Problem::InodeCountBig, expected, u32::MAX.into())
            } else {
                at(Problem::InodeCountWrong, found.into(), expected)
            }
        }
        D::FirstInode { found, inodes_count } => misc(found.into(), inodes_count.into()),
        D::DescSize { found } | D::UnusedDescSize { found } => misc(found.into(), 1024),
        D::FirstMetaBg { found, most } => at(Problem::FirstMetaBgTooBig, found.into(), most.into()),
        D::ReservedGdtBlocks { found, most } => misc(found.into(), most.into()),
        D::DescBlocks { found } => misc(found.into(), 0),
        D::Inode { what, found, .. } | D::InodeRole { what, found } => match what {
            SpecialInode::Journal => Some(Finding::new(Problem::JournalBadInode, Place::Journal, found, 0u64)),
            SpecialInode::UserQuota | SpecialInode::GroupQuota | SpecialInode::ProjectQuota => {
                at(Problem::InvalidQuotaIno, found.into(), 0)
            }
            SpecialInode::OrphanFile => Some(Finding::at(Problem::OrphanFileBadMode, Place::Inode(InodeNr(found)))),
            SpecialInode::LastOrphan => at(Problem::OrphanIllegalHeadInode, found.into(), 0),
        },
        D::ReservedBlocks { found, most } => misc(found, most),
        // The bitmaps tell how many are free.
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
        D::TestFlag => at(Problem::ClearTestfsFlag, 0, 0),
        D::HurdFiletype => at(Problem::HurdClearFiletype, 0, 0),
        D::FutureMount { found, now } => at(Problem::FutureSbLastMount, found as u64, now.max(0) as u64),
        D::FutureWrite { found, now } => at(Problem::FutureSbLastWrite, found as u64, now.max(0) as u64),
    }
}

/// Of the superblock of the journal in this inode.
pub fn journal(damage: JournalSuperDamage, ino: InodeNr) -> Finding {
    use JournalSuperDamage as D;
    let at = |problem, found: u32, expected: u32| Finding::new(problem, Place::Journal, found, expected);
    let bad = |found, expected| at(Problem::JournalBadSuper, found, expected);
    match damage {
        D::Magic { .. } => at(Problem::JournalBadInode, ino.0, 0),
        // A descriptor, a commit or a revoke block; later versions have other numbers.
        D::Kind { found: found @ (1 | 2 | 5) } => bad(found, 4),
        D::Kind { found } => at(Problem::JournalUnsuppVersion, found, 4),
        D::Incompat { unknown } => at(Problem::JournalUnsuppIncompat, unknown, 0),
        D::RoCompat { unknown } => at(Problem::JournalUnsuppRocompat, unknown, 0),
        D::Length { found } => bad(found, 1024),
        D::ChecksumsV2V3 | D::ChecksumsV1 => bad(0, 0),
        D::ChecksumType { found } => bad(found.into(), 4),
        D::Checksum { found, expected } | D::BlockSize { found, expected } => bad(found, expected),
        D::Log { first, max_len } => bad(first, max_len),
        D::Start { found, last, .. } => bad(found, last),
        D::TooLong { found, most } => bad(found, most),
        D::Users { found } => bad(found, 1),
    }
}

/// Of a group's descriptor.
pub fn descriptor(damage: DescDamage, group: GroupNr) -> Option<Finding> {
    use DescDamage as D;
    let at = |problem, found: u64, expected: u64| Some(Finding::new(problem, Place::Group(group), found, expected));
    match damage {
        D::Checksum { found, expected } => at(Problem::GdtCsum, found.into(), expected.into()),
        D::Outside { piece, start, first, .. } => match piece {
            Piece::BlockBitmap => at(Problem::BbNotGroup, start, first),
            Piece::InodeBitmap => at(Problem::IbNotGroup, start, first),
            Piece::InodeTable => at(Problem::ItableNotGroup, start, first),
        },
        // The metadata of all groups is claimed, and those two are conflicts among others.
        D::Shared { .. } | D::OnFixed { .. } => None,
        D::Count { what: Counted::UnusedInodes, found, most } | D::UnusedAboveFree { unused: found, free: most } => {
            at(Problem::GdtItableUnused, found.into(), most.into())
        }
        // The bitmaps tell how many there are.
        D::Count { what: Counted::FreeBlocks | Counted::FreeInodes | Counted::Directories, .. } => None,
        D::Uninit { flags, unused } => at(Problem::GdtUninit, u64::from(flags) | u64::from(unused), 0),
        D::UninitLast => at(Problem::BbUninitLast, 0, 0),
    }
}

/// Of a group's bitmap of blocks or inodes.
pub fn bitmap(damage: BitmapDamage, piece: Piece, group: GroupNr) -> Finding {
    let is_blocks = piece == Piece::BlockBitmap;
    let (problem, found, expected) = match damage {
        BitmapDamage::Checksum { found, expected } if is_blocks => (Problem::BlockBitmapCsumInvalid, found, expected),
        BitmapDamage::Checksum { found, expected } => (Problem::InodeBitmapCsumInvalid, found, expected),
        BitmapDamage::Padding { bit, bits } if is_blocks => (Problem::BlockBmapPadding, bit, bits),
        BitmapDamage::Padding { bit, bits } => (Problem::InodeBmapPadding, bit, bits),
    };
    Finding::new(problem, Place::Group(group), found, expected)
}
