//! Answers to findings about directories, names and the tree.
//!
//! # Locking
//! None.

use extant_check::{Finding, Place, Problem as P};
use extant_ondisk::InodeNr;
use extant_ondisk::features::{Incompat, RoCompat};
use extant_ondisk::inode::InodeFlags as F;

use super::inodes::attribute_feature;
use super::{Action, Answer, InodeField, Layer, Planner, Word, field, flags, ino};
use crate::error::UNREADABLE;

fn act(layer: Layer, action: Action) -> Option<Answer> {
    Some(Answer::Act(layer, action))
}

/// The answer to a problem from 0x020000 to 0x03ffff.
pub fn answer(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    fields(of, finding)
        .or_else(|| blocks(finding))
        .or_else(|| indexes(finding))
        .or_else(|| entries(of, finding))
        .or_else(|| tree(of, finding))
}

/// The answer to a finding about an inode's field that the pass over directories reports.
fn fields(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let zero = |what| field(Layer::Inodes, finding, what, 0);
    match finding.problem {
        P::FaddrZero => zero(InodeField::Faddr),
        P::FragZero => zero(InodeField::Frag),
        P::FsizeZero => zero(InodeField::Fsize),
        P::DirSizeHighZero => zero(InodeField::SizeHigh),
        P::BlocksHiZero => zero(InodeField::BlocksHigh),
        P::IFileAclHiZero => zero(InodeField::AclHigh),
        P::FileAclBad => zero(InodeField::Acl),
        P::FileAclZero => attribute_feature(),
        P::BadMode => act(Layer::Inodes, Action::Kind(ino(finding))),
        P::BadCharDev | P::BadBlockDev | P::BadFifo | P::BadSocket => {
            flags(finding, 0, (F::EXTENTS | F::INLINE_DATA | F::INDEX | F::IMMUTABLE | F::APPEND).bits())
        }
        // A symlink without a target is not a symlink.
        P::InvalidSymlink if of.without.contains_key(&Action::Target(ino(finding))) => {
            act(Layer::Inodes, Action::Clear(ino(finding)))
        }
        P::InvalidSymlink => act(Layer::Maps, Action::Target(ino(finding))),
        P::FeatureLargeFiles => {
            let set = RoCompat::LARGE_FILE.bits();
            act(Layer::Volume, Action::Feature { word: Word::RoCompat, set, clear: 0 })
        }
        P::FeatureLargeDirs => {
            let set = Incompat::LARGE_DIR.bits();
            act(Layer::Volume, Action::Feature { word: Word::Incompat, set, clear: 0 })
        }
        _ => None,
    }
}

/// The answer to a finding for which a block's entries are rewritten.
fn blocks(finding: &Finding) -> Option<Answer> {
    let block = |finding: &Finding| {
        let lblk = finding.place.lblk().unwrap_or(0) as u32;
        act(Layer::Directories, Action::DirBlock(ino(finding), lblk))
    };
    match finding.problem {
        P::MissingDot
        | P::MissingDotDot
        | P::FirstNotDot
        | P::SecondNotDotDot
        | P::DotNullTerm
        | P::DotDotNullTerm
        | P::BadInodeDot
        | P::DirCorrupted
        | P::FinalReclen
        | P::NullName
        | P::BadName
        | P::BadEncodedName
        | P::DuplicateDirent
        | P::LeafNodeMissingCsum
        | P::LeafNodeOnlyCsumInvalid => block(finding),
        P::DirectoryHole => act(Layer::Directories, Action::Directory(ino(finding))),
        P::BadInlineDirSize => act(Layer::Inodes, Action::Inline(ino(finding))),
        P::SplitDot | P::SetFiletype => Some(Answer::Leave),
        _ => None,
    }
}

fn indexes(finding: &Finding) -> Option<Answer> {
    match finding.problem {
        P::HtreeNotref
        | P::HtreeDupref
        | P::HtreeMinHash
        | P::HtreeMaxHash
        | P::HtreeBadblk
        | P::HtreeBadRoot
        | P::HtreeBadLimit
        | P::HtreeBadCount
        | P::HtreeHashOrder
        | P::HtreeBadDepth
        | P::UnexpectedHtreeBlock
        | P::HtreeRootCsumInvalid
        | P::HtreeNodeCsumInvalid => act(Layer::Directories, Action::Directory(ino(finding))),
        _ => None,
    }
}

fn entries(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let Place::Entry { dir, lblk, offset, ino } = finding.place else { return None };
    let dots = lblk == 0 && of.image.is_dots(dir, offset);
    let drop = Some(Answer::Act(Layer::Entries, Action::DropEntry { dir, lblk, offset, ino }));
    match finding.problem {
        // `.` is repaired with its block, and `..` when the parent is known.
        P::BadIno | P::UnusedInode | P::LinkDot | P::LinkRoot | P::EaInodeDirLink if dots => Some(Answer::Follows),
        P::UnusedInode if of.has(P::ZeroDtime, ino) && of.image.inode(ino).is_ok_and(|one| one.kind().is_some()) => {
            Some(Answer::Follows)
        }
        P::UnusedInode if !of.image.is_inode_readable(ino) => Some(Answer::Refuse(UNREADABLE)),
        P::BadIno | P::UnusedInode | P::LinkDot | P::LinkRoot | P::EaInodeDirLink => drop,
        P::DupDot | P::DupDotDot => drop,
        P::UnencryptedFile | P::InconsistentEncryptionPolicy | P::BadEncryptedName => drop,
        P::LinkDir => act(Layer::Entries, Action::OneName(InodeNr(finding.found as u32))),
        P::BadFiletype => act(Layer::Entries, Action::EntryKind { dir, lblk, offset, kind: finding.expected as u8 }),
        P::ClearFiletype => act(Layer::Entries, Action::EntryKind { dir, lblk, offset, kind: 0 }),
        P::InorefBgInoUninit | P::InorefInUnused => {
            let target = InodeNr(finding.found as u32);
            let in_use = of.image.inode(target).is_ok_and(|inode| inode.links() > 0 && inode.kind().is_some());
            if in_use { act(Layer::Groups, Action::Table(target)) } else { Some(Answer::Follows) }
        }
        _ => None,
    }
}

fn tree(of: &Planner<'_>, finding: &Finding) -> Option<Answer> {
    let one = ino(finding);
    match finding.problem {
        P::NoRootInode => act(Layer::Inodes, Action::Root),
        P::BadDotDot => act(Layer::Parents, Action::Parent(one, InodeNr(finding.expected as u32))),
        P::UnconnectedDir if one == InodeNr::ROOT => Some(Answer::Follows),
        P::UnconnectedDir | P::LoopedDir => act(Layer::Names, Action::Attach(one)),
        P::NoLfDir | P::LpfNotdir | P::LpfInlineData | P::LpfEncrypted => Some(Answer::Leave),
        // Only entries can have these problems.
        P::BadIno | P::UnusedInode | P::LinkDot | P::LinkDir | P::LinkRoot | P::DupDot | P::DupDotDot => {
            Some(Answer::Follows)
        }
        P::BadFiletype | P::ClearFiletype | P::InorefBgInoUninit | P::InorefInUnused | P::EaInodeDirLink => {
            Some(Answer::Follows)
        }
        P::UnencryptedFile | P::InconsistentEncryptionPolicy | P::BadEncryptedName => Some(Answer::Follows),
        _ => {
            let _ = of;
            None
        }
    }
}
