//! Answers to findings about links, bitmaps, counts and quota.
//!
//! # Locking
//! None.

use extant_check::{Finding, InodeState, KEPT_MAX, Place, Problem as P};
use extant_ondisk::features::{Compat, RoCompat};
use extant_ondisk::inode::InodeFlags as F;
use extant_ondisk::{BlockNr, InodeNr};

use super::{Action, Answer, InodeField, Layer, Planner, Word, field, flags, group, ino};

fn act(layer: Layer, action: Action) -> Option<Answer> {
    Some(Answer::Act(layer, action))
}

/// The answer to a problem from 0x040000 on.
pub fn answer(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let one = ino(finding);
    match finding.problem {
        P::ZeroLenInode | P::DirOverflowRefCount => Some(Answer::Leave),
        P::UnattachedInode if of.image.facts.inode(one).has(InodeState::EMPTY) => act(Layer::Names, Action::Clear(one)),
        P::UnattachedInode => act(Layer::Names, Action::Attach(one)),
        P::BadRefCount => act(Layer::Links, Action::Links(one, finding.expected.min(u16::MAX.into()) as u16)),
        P::EaInodeRefCount => field(Layer::Links, finding, InodeField::References, finding.expected),
        P::EaInodeSpuriousFlag => flags(finding, 0, F::EA_INODE.bits()),
        P::DirNlinkFeature => {
            let set = RoCompat::DIR_NLINK.bits();
            act(Layer::Volume, Action::Feature { word: Word::RoCompat, set, clear: 0 })
        }
        P::Unreadable => Some(Answer::Refuse("the device cannot read it, so it stays as it is")),
        P::UnknownFeatures => Some(Answer::Refuse("what belongs to the features is not known here")),
        P::ExtentTooDeep => act(Layer::Maps, Action::Map(one)),
        _ => bitmaps(of, finding).or_else(|| orphans(finding)),
    }
}

fn bitmaps(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let geo = &of.image.geo;
    let recount = |group| act(Layer::Bitmaps, Action::Recount(group));
    match finding.problem {
        P::BlockUnused | P::BlockUsed => {
            let block = finding.place.block().unwrap_or(BlockNr(0));
            geo.group_of_block(block).map_or(Some(Answer::Follows), |(group, _)| recount(group))
        }
        P::InodeUnused | P::InodeUsed => {
            geo.inode_location(ino(finding)).map_or(Some(Answer::Follows), |place| recount(place.group))
        }
        P::InodeBmapPadding
        | P::BlockBmapPadding
        | P::FreeInodeCountGroup
        | P::FreeDirCountGroup
        | P::FreeBlockCountGroup
        | P::BlockUninit
        | P::InodeUninit
        | P::InodeBitmapCsumInvalid
        | P::BlockBitmapCsumInvalid => group(finding).map_or(Some(Answer::Follows), recount),
        // The totals are set whenever something is written.
        P::FreeInodeCount | P::FreeBlockCount => Some(Answer::Leave),
        P::UpdateQuotas => act(Layer::Quota, Action::Quota(quota_file(finding))),
        _ => None,
    }
}

fn quota_file(finding: &Finding) -> InodeNr {
    match finding.place {
        Place::Usage { file, .. } => file,
        _ => ino(finding),
    }
}

fn orphans(finding: &Finding) -> Option<Answer> {
    match finding.problem {
        P::OrphanFileWithoutJournal => {
            let clear = Compat::ORPHAN_FILE.bits();
            act(Layer::Volume, Action::Feature { word: Word::Compat, set: 0, clear })
        }
        P::OrphanBlockDirty => act(Layer::Maps, Action::OrphanFile),
        P::OrphanPresentCleanFile | P::OrphanPresentNoFile => {
            let clear = RoCompat::ORPHAN_PRESENT.bits();
            act(Layer::Volume, Action::Feature { word: Word::RoCompat, set: 0, clear })
        }
        _ => None,
    }
}

/// Adds steps for findings beyond the number that a report stores, if the facts contain all of them.
pub fn complete(of: &Planner<'_>, add: &mut dyn FnMut(Layer, Action, &Finding)) {
    let facts = &of.image.facts;
    let is_cut = |problem| of.report.count(problem) > KEPT_MAX as u64;
    let first = |problem| of.report.findings.iter().find(|finding| finding.problem == problem);
    if let Some(cause) = first(P::BadRefCount).filter(|_| is_cut(P::BadRefCount)) {
        for group in of.image.geo.groups() {
            for (ino, state) in facts.inodes_of(group) {
                if let Some(links) = facts.links(ino).filter(|links| *links != state.links()) {
                    add(Layer::Links, Action::Links(ino, links), cause);
                }
            }
        }
    }
    for problem in [P::BlockUsed, P::BlockUnused, P::InodeUsed, P::InodeUnused] {
        if let Some(cause) = first(problem).filter(|_| is_cut(problem)) {
            of.image.geo.groups().for_each(|group| add(Layer::Bitmaps, Action::Recount(group), cause));
        }
    }
}
