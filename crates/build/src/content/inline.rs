//! Contents that fit into their inodes (`inline_data`): the first bytes in `i_block`, the rest in the attribute
//! `system.data`.
//!
//! Main functions: [`Placement::fits_inode`], [`ContentPlan::inline_bytes`].
//!
//! Files and directories are stored this way. The root and lost+found have blocks, as with mke2fs. Files with holes
//! have blocks, too, because an inode has no holes. Symbolic links that are too long for `i_block` have a block, as
//! with the kernel: for a link without one, e2fsck neither counts its quota nor finds its attributes.
//!
//! # Locking
//! None.

use extant_ondisk::dirent::{DirBlockFormat, Insert};
use extant_ondisk::inode::inline::ROOM;

use super::attributes::split_around;
use super::{ContentPlan, Placement};
use crate::Result;
use crate::tree::{Body, Id};

/// The size of the parent's number, with which a directory begins in place of `.` and `..` (Linux:
/// `EXT4_INLINE_DOTDOT_SIZE`).
const PARENT_LEN: usize = 4;
/// The size of a directory entry without its name.
const ENTRY_LEN: usize = 8;

/// The number of bytes in the entry of a name.
fn entry_len(name: &[u8]) -> usize {
    (ENTRY_LEN + name.len()).next_multiple_of(4)
}

impl Placement<'_> {
    /// Whether the content of an inode is stored in the inode.
    ///
    /// # Errors
    /// It has an attribute that cannot be stored.
    pub(super) fn fits_inode(&self, id: Id) -> Result<bool> {
        let Some(len) = self.inline_len(id) else { return Ok(false) };
        let rest = vec![0; len.saturating_sub(ROOM)];
        let set = self.tree.node(id).xattrs.map_or(&[][..], |set| self.tree.xattrs(set));
        let split = split_around(self.geometry(), set, &rest).map_err(|e| self.entry(id, e))?;
        Ok(split.is_some())
    }

    /// The number of bytes that the content of an inode takes in it; `None` if it can certainly not be stored there.
    pub(super) fn inline_len(&self, id: Id) -> Option<usize> {
        let geo = self.geometry();
        if !geo.inline_data || id == Id(0) || self.numbers.is_lost_found(id) {
            return None;
        }
        let most = ROOM + geo.inode_size;
        let len = match &self.tree.node(id).body {
            Body::File { size, sparse: None, .. } => usize::try_from(*size).ok()?,
            Body::Directory { entries, .. } if entries.len() * entry_len(b"x") <= most => self.directory_len(id),
            _ => return None,
        };
        (len <= most).then_some(len)
    }

    /// The names that are stored in `i_block`, and those that are stored in the rest. The first part is as full as
    /// possible.
    fn names(&self, id: Id) -> impl Iterator<Item = (u32, usize, bool)> + '_ {
        let mut room = ROOM - PARENT_LEN;
        self.entries(id).map(move |place| {
            let len = entry_len(self.tree.entry(place).0);
            let first = len <= room;
            room -= if first { len } else { 0 };
            (place, len, first)
        })
    }

    fn directory_len(&self, id: Id) -> usize {
        ROOM + self.names(id).filter(|(_, _, first)| !first).map(|(_, len, _)| len).sum::<usize>()
    }

    fn directory_bytes(&self, id: Id) -> Result<Vec<u8>> {
        let geo = self.geometry();
        let format = DirBlockFormat {
            has_filetype: geo.filetype,
            has_csum: false,
            inodes_count: geo.inodes_count,
            encrypted: false,
        };
        let parent = if let Body::Directory { parent, .. } = self.tree.node(id).body { parent } else { id };
        let mut bytes = vec![0; self.directory_len(id)];
        let (first, rest) = bytes.split_at_mut(ROOM);
        let (number, first) = first.split_at_mut(PARENT_LEN);
        number.copy_from_slice(&self.numbers.ino(parent).0.to_le_bytes());
        for part in [&mut *first, &mut *rest].into_iter().filter(|part| !part.is_empty()) {
            format.init_leaf(part);
        }
        for (place, _, is_first) in self.names(id) {
            let (name, target) = self.tree.entry(place);
            let part = if is_first { &mut *first } else { &mut *rest };
            let (ino, kind) = (self.numbers.ino(target).0, self.file_type(target));
            match format.insert(part, name, ino, Some(kind)).map_err(|e| self.entry(id, e))? {
                Insert::Done { .. } => {}
                _ => return Err(self.entry(id, "has names that its inode has no room for")),
            }
        }
        Ok(bytes)
    }
}

impl ContentPlan<'_> {
    /// The content that is stored in an inode; `None` if it has blocks.
    ///
    /// # Errors
    /// The source of a file cannot be read.
    pub(super) fn inline_bytes(&self, id: Id) -> Result<Option<Vec<u8>>> {
        if !self.placement.placed.records[id.0 as usize].inline {
            return Ok(None);
        }
        Ok(Some(match &self.placement.tree.node(id).body {
            Body::File { size, content, .. } => {
                let mut bytes = vec![0; *size as usize];
                let file = self.content.open(*content)?;
                file.read_at(0, &mut bytes)?;
                file.finish()?;
                bytes
            }
            _ => self.placement.directory_bytes(id)?,
        }))
    }
}
