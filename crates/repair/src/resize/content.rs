//! The blocks of all inodes, read before anything is moved.
//!
//! Main type: [`Content`].
//!
//! # Locking
//! None.

use extant_check::InodeState;
use extant_ondisk::map::{Form, Run};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Refusal, StepResult};
use crate::view::Image;
use crate::view::inode::BAD_BLOCKS;
use crate::view::map::Mapped;

/// The blocks of one inode.
pub struct Content {
    pub ino: InodeNr,
    pub form: Form,
    pub mapped: Mapped,
    /// The block of attributes, which several inodes may share.
    pub attributes: Option<BlockNr>,
}

impl Content {
    /// Whether a block of data or of the map is after the end.
    pub fn has_map_behind(&self, end: u64) -> bool {
        let is_behind = |run: &Run| run.pblk.0 + u64::from(run.len) > end;
        self.mapped.runs.iter().any(is_behind) || self.mapped.nodes.iter().any(|block| block.0 >= end)
    }

    /// Whether any of its blocks is after the end.
    pub fn is_behind(&self, end: u64) -> bool {
        self.attributes.is_some_and(|block| block.0 >= end) || self.has_map_behind(end)
    }
}

/// The inodes with blocks after the end, except for the one that reserves blocks for descriptors.
pub fn behind(old: &Image, end: u64) -> StepResult<Vec<Content>> {
    let mut all = Vec::new();
    for group in old.geo.groups() {
        let used = old.facts.inodes_of(group).filter(|(_, state)| state.has(InodeState::USED));
        for (ino, _) in used.filter(|(ino, _)| ![InodeNr::RESIZE, BAD_BLOCKS].contains(ino)) {
            let inode = old.inode(ino)?;
            let mut mapped = old.map(&inode);
            if let Some(block) = mapped.unread {
                return Err(Refusal::Unreadable(block));
            }
            mapped.runs.shrink_to_fit();
            let content = Content { ino, form: inode.form(old), mapped, attributes: inode.file_acl(old) };
            if content.is_behind(end) {
                all.push(content);
            }
        }
    }
    Ok(all)
}
