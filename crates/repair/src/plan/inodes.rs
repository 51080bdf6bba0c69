//! Answers to findings about inodes, their maps, and their attributes.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_check::{Finding, InodeState, Place, Problem as P};
use extant_ondisk::InodeNr;
use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::inode::InodeFlags as F;

use super::{Action, Answer, InodeField, Layer, Planner, Word, field, flags, group, ino};

fn act(layer: Layer, action: Action) -> Option<Answer> {
    Some(Answer::Act(layer, action))
}

/// The answer to a problem from 0x010000 to 0x01ffff.
pub fn answer(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    fields(of, finding)
        .or_else(|| kinds(of, finding))
        .or_else(|| maps(finding))
        .or_else(|| attributes(of, finding))
        .or_else(|| inline(of, finding))
}

/// The answer to a finding about a single field.
fn fields(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let (one, now) = (ino(finding), of.image.now.clamp(1, u32::MAX.into()) as u64);
    match finding.problem {
        P::RootDtime | P::SetDtime => field(Layer::Inodes, finding, InodeField::Dtime, 0),
        P::ZeroDtime if is_alive(of, one) => act(Layer::Inodes, Action::Revive(one)),
        P::ZeroDtime => field(Layer::Inodes, finding, InodeField::Dtime, now),
        P::LowDtime => {
            let used = of.image.facts.inode(one).has(InodeState::USED);
            field(Layer::Inodes, finding, InodeField::Dtime, if used { 0 } else { now })
        }
        P::InodeOnlyCsumInvalid => act(Layer::Inodes, Action::InodeSeal(one)),
        P::ExtraIsize => act(Layer::Inodes, Action::ExtraIsize(one)),
        P::SetNonzsize => field(Layer::Inodes, finding, InodeField::Size, 0),
        P::SetImagic => flags(finding, 0, F::IMAGIC.bits()),
        P::HtreeSet | P::HtreeNodir => flags(finding, 0, F::INDEX.bits()),
        P::CasefoldNondir | P::CasefoldFeature => flags(finding, 0, F::CASEFOLD.bits()),
        P::MissingEncryptionXattr | P::CorruptEncryptionXattr => flags(finding, 0, F::ENCRYPT.bits()),
        P::EaInodeNonreg => flags(finding, 0, F::EA_INODE.bits()),
        P::SetImmutable | P::EaTimeOutOfRange | P::ClearUninitExtent => Some(Answer::Leave),
        P::BadISize if is_map_wrong(of, finding) => act(Layer::Maps, Action::Map(one)),
        P::BadISize => field(Layer::Maps, finding, InodeField::Size, finding.expected),
        P::BadIBlocks => act(Layer::Links, Action::Blocks(one, finding.expected)),
        _ => None,
    }
}

/// Whether a file that seems to be longer than its size has a wrong map, and the right size.
fn is_map_wrong(of: &Planner<'_>, finding: &Finding) -> bool {
    let one = ino(finding);
    let Ok(inode) = of.image.inode(one) else { return false };
    if !inode.is_file() || finding.expected <= finding.found || of.without.contains_key(&Action::Map(one)) {
        return false;
    }
    let mapped = of.image.map(&inode);
    let is_settled = mapped.end() <= inode.size().div_ceil(of.image.geo.block_size.into());
    is_settled || of.image.is_astray(&inode, &mapped)
}

/// Whether an inode without links was never deleted: it has no deletion time, the bitmap has it in use, and a name
/// refers to it.
fn is_alive(of: &Planner<'_>, ino: InodeNr) -> bool {
    let named = |finding: &Finding| {
        finding.problem == P::UnusedInode && matches!(finding.place, Place::Entry { ino: to, .. } if to == ino)
    };
    of.image.inode(ino).is_ok_and(|inode| inode.kind().is_some() && inode.raw.i_dtime.get() == 0)
        && of.report.findings.iter().any(named)
}

/// The answer to a finding about an inode whose kind may be wrong, or about places of metadata.
fn kinds(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let one = ino(finding);
    match finding.problem {
        P::RootNoDir | P::BadMode | P::TreatAsDirectory => act(Layer::Inodes, Action::Kind(one)),
        P::JournalBadMode | P::QuotaBadMode | P::OrphanFileBadMode => act(Layer::Inodes, Action::Kind(one)),
        P::ReservedBadMode | P::InvalidBadInode | P::JournalInodeNotClear | P::QuotaInodeNotClear => {
            act(Layer::Inodes, Action::Clear(one))
        }
        P::OrphanFileNotClear => act(Layer::Inodes, Action::Clear(one)),
        P::InodeIsGarbage if of.has(P::InodeOnlyCsumInvalid, one) && !is_plausible(of, one) => {
            act(Layer::Inodes, Action::Clear(one))
        }
        // Its other findings show the damage.
        P::InodeIsGarbage => Some(Answer::Follows),
        P::BbConflict | P::IbConflict | P::ItableConflict => {
            group(finding).map(|group| Answer::Act(Layer::Groups, Action::Places(group)))
        }
        _ => None,
    }
}

/// Whether an inode with a wrong checksum may still be a file: its kind is valid and its map refers to blocks.
fn is_plausible(of: &Planner<'_>, ino: InodeNr) -> bool {
    let Ok(inode) = of.image.inode(ino) else { return false };
    let has_blocks = !inode.has_map(of.image) || !of.image.map(&inode).runs.is_empty() || inode.size() == 0;
    inode.kind().is_some() && has_blocks
}

fn maps(finding: &Finding) -> Option<Answer> {
    match finding.problem {
        P::IllegalBlockNum
        | P::ToobigDir
        | P::ToobigReg
        | P::ToobigSymlink
        | P::ExtentBadStartBlk
        | P::ExtentEndsBeyond
        | P::OutOfOrderExtents
        | P::ExtentHeaderInvalid
        | P::ExtentLengthZero
        | P::ExtentOnlyCsumInvalid
        | P::ExtentIndexStartInvalid
        | P::ExtentEndOutOfBounds
        | P::UninitDblock
        | P::ExtentCollision
        | P::MissingExtentHeader
        | P::CriticalMetadataCollision
        | P::MisalignedCluster
        | P::NoBigallocBlockmapFiles => act(Layer::Maps, Action::Map(ino(finding))),
        P::CollapseDblock | P::ZeroLengthDir => act(Layer::Directories, Action::Directory(ino(finding))),
        P::UnsetExtentFl => flags(finding, F::EXTENTS.bits(), 0),
        P::FastSymlinkExtentFl => flags(finding, 0, F::EXTENTS.bits()),
        // All owners are known, and `sharers` has the steps.
        P::DupBlock => Some(Answer::Follows),
        P::HtreeBadroot | P::HtreeHashv | P::HtreeIncompat | P::HtreeDepth => {
            act(Layer::Directories, Action::Directory(ino(finding)))
        }
        P::HtreeNeedsSiphash | P::HtreeCannotSiphash => act(Layer::Directories, Action::Directory(ino(finding))),
        _ => None,
    }
}

fn attributes(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let block = match finding.place {
        Place::Attributes { block, .. } => Some(block),
        _ => None,
    };
    match (finding.problem, block) {
        (P::BadEaBlock, Some(block)) if of.image.facts.is_shared(of.image.facts.clusters(block, 1)) => {
            act(Layer::Attributes, Action::DropAttributeBlock(block))
        }
        (P::ExtattrRefcount, Some(block)) => {
            act(Layer::Links, Action::AttributeBlock { block, references: finding.expected as u32 })
        }
        (P::BadEaBlock | P::EaMultiBlock | P::EaAllocCollision | P::EaBadName | P::EaBadValue, Some(block))
        | (P::AttrHash | P::EaBlockOnlyCsumInvalid | P::AttrValueEaInode, Some(block)) => {
            act(Layer::Attributes, Action::AttributeBlock { block, references: 0 })
        }
        (P::AttrNameLen | P::AttrValueSize | P::AttrHash | P::InodeEaAllocCollision | P::AttrValueEaInode, None) => {
            act(Layer::Attributes, Action::Attributes(ino(finding)))
        }
        (P::AttrNoEaInodeFl, _) if is_value(of, InodeNr(finding.found as u32)) => Some(Answer::Follows),
        (P::AttrNoEaInodeFl, _) => act(Layer::Attributes, Action::Attributes(ino(finding))),
        (P::AttrSetEaInodeFl, _) if is_value(of, InodeNr(finding.found as u32)) => {
            let (ino, set) = (InodeNr(finding.found as u32), F::EA_INODE.bits());
            act(Layer::Attributes, Action::InodeFlags { ino, set, clear: 0 })
        }
        (P::AttrSetEaInodeFl, _) => Some(Answer::Follows),
        (P::EaInodeFeature, _) => {
            let set = Incompat::EA_INODE.bits();
            act(Layer::Volume, Action::Feature { word: Word::Incompat, set, clear: 0 })
        }
        // Only blocks can have these problems.
        (P::BadEaBlock | P::ExtattrRefcount | P::EaMultiBlock | P::EaAllocCollision, None) => Some(Answer::Follows),
        (P::EaBadName | P::EaBadValue | P::EaBlockOnlyCsumInvalid, None) => Some(Answer::Follows),
        _ => None,
    }
}

/// Whether an inode to which an attribute refers can be a value: a file without a name.
fn is_value(of: &Planner<'_>, ino: InodeNr) -> bool {
    let is_file = of.image.inode(ino).is_ok_and(|inode| inode.is_file() && inode.links() > 0);
    is_file && of.image.facts.inode(ino).names() == 0
}

/// The answer to a finding about inline data, or about a feature that contents need.
fn inline(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let incompat =
        |set: Incompat| act(Layer::Volume, Action::Feature { word: Word::Incompat, set: set.bits(), clear: 0 });
    match finding.problem {
        P::ExtentFeature => incompat(Incompat::EXTENTS),
        // If trees show that the feature is missing, the flags are correct.
        P::ExtentsSet if of.any(P::ExtentFeature) => Some(Answer::Follows),
        P::ExtentsSet => flags(finding, 0, F::EXTENTS.bits()),
        P::InlineDataFeature => incompat(Incompat::INLINE_DATA),
        P::InlineDataSet if of.any(P::InlineDataFeature) => Some(Answer::Follows),
        P::InlineDataSet => flags(finding, 0, F::INLINE_DATA.bits()),
        P::SpecialExtentsIdata => flags(finding, 0, (F::EXTENTS | F::INLINE_DATA).bits()),
        P::ClearInlineDataForExtent => flags(finding, 0, F::INLINE_DATA.bits()),
        P::ClearExtentForInlineData => flags(finding, 0, F::EXTENTS.bits()),
        P::ClearExtentInlineDataFlags => flags(finding, 0, (F::EXTENTS | F::INLINE_DATA).bits()),
        // Without the flag, there is no inline data that could lack an attribute.
        P::InlineDataNoAttr if of.has(P::ClearInlineDataForExtent, ino(finding)) => Some(Answer::Follows),
        P::ClearExtentInlineDataInode | P::InlineDataNoAttr => act(Layer::Inodes, Action::Inline(ino(finding))),
        _ => None,
    }
}

/// The answer that sets the feature for attribute blocks.
pub fn attribute_feature() -> Option<Answer> {
    let set = Compat::EXT_ATTR.bits();
    act(Layer::Volume, Action::Feature { word: Word::Compat, set, clear: 0 })
}

/// All inodes that share blocks that they must not share, each with a finding that shows this.
pub fn sharers<'a>(of: &Planner<'a>) -> Vec<(InodeNr, &'a Finding)> {
    let mut shown: BTreeMap<u32, &Finding> = BTreeMap::new();
    for finding in of.report.findings.iter().filter(|finding| finding.problem == P::DupBlock) {
        if let Some(ino) = finding.place.ino() {
            shown.entry(ino.0).or_insert(finding);
        }
    }
    // A report has a limited number of findings, and may have none for some inodes.
    let Some(any) = shown.values().next().copied() else { return Vec::new() };
    let cause = |ino: &u32| shown.get(ino).copied().unwrap_or(any);
    of.image.facts.sharers().iter().map(|ino| (InodeNr(*ino), cause(ino))).collect()
}
