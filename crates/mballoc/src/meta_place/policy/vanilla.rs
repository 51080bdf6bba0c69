//! `vanilla`: the search for a block of metadata begins in the group of the block that points to it, else of the data
//! that it maps, else of its owner. Linux: `ext4_alloc_branch`, `ext4_ext_find_goal`, `ext4_append`,
//! `ext4_xattr_block_set`.
//!
//! Drawback: it does not cluster the blocks of a map. On a new disk they are adjacent, because data is preallocated in
//! long runs; on an aged disk they are wherever a block is free.
//!
//! # Locking
//! None.

use extant_ondisk::BlockNr;

use super::MetaPlace;
use crate::{MetaRequest, MetaRole};

/// This policy has no state.
pub struct Vanilla;

/// The place where Linux searches.
pub fn goal(meta: &MetaRequest) -> Option<BlockNr> {
    // A directory continues behind its last block, which may be in the next group.
    let beside = u64::from(meta.role == MetaRole::Directory);
    meta.parent.map(|parent| BlockNr(parent.0.saturating_add(beside))).or(meta.data).or(meta.home)
}

impl MetaPlace for Vanilla {
    fn goal(&self, meta: &MetaRequest) -> Option<BlockNr> {
        goal(meta)
    }
}
