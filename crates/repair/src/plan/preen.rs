//! Decides which steps need no confirmation (`-p`).
//!
//! Main function: [`is_safe`]. The table of problems specifies what `e2fsck -p` repairs by itself. The exceptions here
//! were found in its runs (1.47.0, `tests/table.rs`), in which a later pass decides otherwise.
//!
//! # Locking
//! None.

use extant_check::{Finding, InodeState, Preen, Problem as P};

use extant_ondisk::InodeNr;
use extant_ondisk::group_desc::{GroupDesc, GroupFlags};
use extant_ondisk::superblock::DescChecksum;

use super::Action;
use crate::view::Image;

/// Whether `-p` may carry out an action that answers this finding.
pub fn is_safe(image: &Image, action: &Action, cause: &Finding) -> bool {
    match cause.problem {
        // Their content is known without the damaged part.
        P::OrphanIllegalHeadInode
        | P::OrphanFileHole
        | P::OrphanFileBadMagic
        | P::OrphanFileBadChecksum
        | P::OrphanFileWrongSize
        | P::DirSizeHighZero
        | P::BadCharDev
        | P::BadBlockDev
        | P::BadFifo
        | P::BadSocket => true,
        P::UnattachedInode => match *action {
            Action::Clear(ino) => image.facts.inode(ino).has(InodeState::EMPTY),
            _ => cause.problem.preen() == Preen::Fix,
        },
        // If blocks have checksums and that of a wrong index is correct, some program has written the index so.
        P::HtreeSet
        | P::HtreeHashv
        | P::HtreeIncompat
        | P::HtreeDepth
        | P::HtreeNeedsSiphash
        | P::HtreeCannotSiphash
        | P::HtreeBadCount
        | P::HtreeNodeCsumInvalid
        | P::FeatureLargeDirs
            if image.geo.metadata_csum =>
        {
            false
        }
        // The name may be right, and the end of the used part of the table wrong.
        P::UnusedInode if matches!(*action, Action::DropEntry { ino, .. } if is_never_used(image, ino)) => false,
        // Descriptors have had checksums since there have been extents.
        P::ExtentFeature if image.geo.desc_checksum != DescChecksum::None => true,
        // The list of bad blocks is dropped.
        P::InvalidBadInode => false,
        // Either the attribute or the inode with its value is the wrong one.
        P::AttrHash if image.geo.ea_inode => false,
        _ => cause.problem.preen() == Preen::Fix,
    }
}

/// Whether an inode is in the part of its table that was never used.
fn is_never_used(image: &Image, ino: InodeNr) -> bool {
    let Ok(place) = image.geo.inode_location(ino) else { return false };
    let behind = |desc: &GroupDesc| {
        let unused = desc.itable_unused.min(image.geo.inodes_per_group);
        desc.flags.contains(GroupFlags::INODE_UNINIT) || place.index >= image.geo.inodes_per_group - unused
    };
    image.descs.get(place.group.0 as usize).is_some_and(behind)
}
