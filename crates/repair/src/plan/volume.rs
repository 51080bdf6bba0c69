//! Answers to findings about superblock, journal, descriptors and orphans.
//!
//! # Locking
//! None.

use extant_check::{Finding, Place, Problem as P};
use extant_ondisk::InodeNr;
use extant_ondisk::features::{Compat, Incompat, RoCompat};

use super::{Action, Answer, Layer, Planner, SuperField, Word, group};

fn act(layer: Layer, action: Action) -> Option<Answer> {
    Some(Answer::Act(layer, action))
}

fn feature(word: Word, set: u32, clear: u32) -> Option<Answer> {
    act(Layer::Volume, Action::Feature { word, set, clear })
}

fn super_field(field: SuperField, value: u64) -> Option<Answer> {
    act(Layer::Volume, Action::SuperField(field, value))
}

/// The number of extra bytes of inodes that mke2fs chooses.
const EXTRA_ISIZE: u64 = 32;

/// The answer to a problem below 0x010000.
pub fn answer(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    if let Some(group) = group(finding) {
        return groups(finding).map(|action| Answer::Act(Layer::Groups, action(group)));
    }
    match finding.problem {
        P::SbCorrupt | P::FsSizeWrong | P::FirstDataBlock | P::InodeCountWrong | P::InodeCountBig => {
            act(Layer::Volume, Action::SuperBlock)
        }
        P::MiscCorruptSuper => match finding.place {
            Place::Field("s_r_blocks_count") => super_field(SuperField::ReservedBlocks, of.image.geo.blocks_count / 20),
            _ => act(Layer::Volume, Action::SuperBlock),
        },
        P::FirstMetaBgTooBig => act(Layer::Volume, Action::SuperBlock),
        P::BadMinExtraIsize => super_field(SuperField::MinExtraIsize, EXTRA_ISIZE.min(finding.expected)),
        P::BadWantExtraIsize => super_field(SuperField::WantExtraIsize, EXTRA_ISIZE.min(finding.expected)),
        P::NonzeroReservedGdtBlocks => super_field(SuperField::ReservedGdtBlocks, 0),
        P::DisableResizeInode => feature(Word::Compat, 0, Compat::RESIZE_INODE.bits()),
        P::InvalidQuotaIno => quota_number(of, finding),
        P::MmpInvalidBlk | P::MmpInvalidMagic | P::MmpCsumInvalid => act(Layer::Groups, Action::MultiMount),
        P::ClearResizeInode => act(Layer::Inodes, Action::Clear(InodeNr::RESIZE)),
        P::ResizeInodeInvalid => act(Layer::Groups, Action::ResizeInode),
        _ => journal(of, finding).or_else(|| rest(finding.problem)),
    }
}

/// Sets the number of a quota's inode. The inodes for users and groups are reserved.
fn quota_number(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let (field, own) = match finding.place {
        Place::Field("s_usr_quota_inum") => (SuperField::UserQuota, 3),
        Place::Field("s_grp_quota_inum") => (SuperField::GroupQuota, 4),
        _ => (SuperField::ProjectQuota, 0),
    };
    let is_file = own != 0 && of.image.inode(InodeNr(own)).is_ok_and(|inode| inode.is_file() && inode.links() > 0);
    let named = is_file && of.image.sb.ro_compat().contains(RoCompat::QUOTA);
    super_field(field, if named { own.into() } else { 0 })
}

fn groups(finding: &Finding) -> Option<fn(extant_ondisk::GroupNr) -> Action> {
    Some(match finding.problem {
        P::BbNotGroup | P::IbNotGroup | P::ItableNotGroup => Action::Places,
        P::GdtCsum | P::GdtUninit | P::GdtItableUnused | P::BbUninitLast => Action::Descriptor,
        _ => return None,
    })
}

fn journal(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let found = finding.found as u32;
    match finding.problem {
        P::JournalBadInode
        | P::JournalBadSuper
        | P::JournalUnsuppIncompat
        | P::JournalUnsuppRocompat
        | P::JournalUnsuppVersion => act(Layer::Volume, Action::NewJournal),
        P::CantFindJournal => act(Layer::Volume, Action::ForgetExternalJournal),
        P::JournalHasJournal => {
            let is_journal = found == InodeNr::JOURNAL.0
                && of.image.inode(InodeNr(found)).is_ok_and(|inode| inode.is_file() && inode.links() > 0);
            match is_journal {
                true => feature(Word::Compat, Compat::HAS_JOURNAL.bits(), 0),
                false => super_field(SuperField::Journal, 0),
            }
        }
        P::JournalRecoverSet => feature(Word::Incompat, 0, Incompat::NEEDS_RECOVERY.bits()),
        P::JournalRecoveryClear => act(Layer::Volume, Action::UnmentionedLog),
        // The transactions before the damage have been replayed; the log is empty now.
        P::JnlTxnCorrupt => Some(Answer::Follows),
        P::OrphanIllegalHeadInode | P::OrphanIllegalInode => act(Layer::Volume, Action::FinishOrphans),
        P::OrphanFileHole | P::OrphanFileBadMagic | P::OrphanFileBadChecksum | P::OrphanFileWrongSize => {
            act(Layer::Maps, Action::OrphanFile)
        }
        _ => None,
    }
}

fn rest(problem: P) -> Option<Answer> {
    // This is no damage: the owner may want it, or it has no effect.
    let is_advice = [
        P::HurdClearFiletype,
        P::FsRevLevel,
        P::FutureSbLastMount,
        P::FutureSbLastWrite,
        P::ClearTestfsFlag,
        P::MetaAndGdtCsumSet,
        P::Bit64WithoutExtents,
        P::CsumSeedWithoutMetaCsum,
    ];
    // These findings contain a group.
    let of_groups = [
        P::BbNotGroup,
        P::IbNotGroup,
        P::ItableNotGroup,
        P::GdtCsum,
        P::GdtUninit,
        P::GdtItableUnused,
        P::BbUninitLast,
    ];
    match problem {
        _ if is_advice.contains(&problem) => Some(Answer::Leave),
        _ if of_groups.contains(&problem) => Some(Answer::Follows),
        _ => None,
    }
}
