//! Which steps need no person: the decision of `-p`.
//!
//! Main function: [`is_safe`]. The table of problems says what `e2fsck -p` repairs by itself. The exceptions here are
//! those that its runs show (1.47.0, `tests/table.rs`), where a later pass of it decides otherwise.
//!
//! # Locking
//! None.

use extant_check::{Finding, InodeState, Preen, Problem as P};

use super::Action;
use crate::view::Image;

/// Whether `-p` may take an action that answers this finding.
pub fn is_safe(image: &Image, action: &Action, cause: &Finding) -> bool {
    match cause.problem {
        // The content of these is known without what is damaged.
        P::OrphanIllegalHeadInode
        | P::OrphanFileHole
        | P::OrphanFileBadMagic
        | P::OrphanFileBadChecksum
        | P::OrphanFileWrongSize
        | P::ExtentFeature
        | P::InvalidQuotaIno
        | P::DirSizeHighZero
        | P::BadCharDev
        | P::BadBlockDev
        | P::BadFifo
        | P::BadSocket => true,
        P::UnattachedInode => match *action {
            Action::Clear(ino) => image.facts.inode(ino).has(InodeState::EMPTY),
            _ => cause.problem.preen() == Preen::Fix,
        },
        // Where blocks have checksums, a wrong index has a right one: some program has written it so.
        P::HtreeSet
        | P::HtreeHashv
        | P::HtreeIncompat
        | P::HtreeDepth
        | P::HtreeNeedsSiphash
        | P::HtreeCannotSiphash
        | P::HtreeBadCount
        | P::HtreeNodeCsumInvalid
        | P::HtreeBadRoot
            if image.geo.metadata_csum =>
        {
            false
        }
        // The list of bad blocks is dropped.
        P::InvalidBadInode => false,
        // Either the attribute or the inode with its value is the wrong one.
        P::AttrHash if image.geo.ea_inode => false,
        _ => cause.problem.preen() == Preen::Fix,
    }
}
