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

use extant_ondisk::dirent::{DirBlockFormat, InlineDir, Insert, REC_LEN_MIN};
use extant_ondisk::inode::inline::ROOM;

use super::attributes::split_around;
use super::{ContentPlan, Placement};
use crate::Result;
use crate::tree::{Body, Id};

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
            Body::Directory { entries, .. } if entries.len() * REC_LEN_MIN <= most => self.directory_len(id),
            _ => return None,
        };
        (len <= most).then_some(len)
    }

    fn directory_len(&self, id: Id) -> usize {
        ROOM + InlineDir::rest_for(self.entries(id).map(|place| self.tree.entry(place).0.len()))
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
        let mut dir = InlineDir::new(self.numbers.ino(parent).0, self.directory_len(id) - ROOM);
        for place in self.entries(id) {
            let (name, target) = self.tree.entry(place);
            let (ino, kind) = (self.numbers.ino(target).0, self.file_type(target));
            match dir.insert(format, name, ino, Some(kind)).map_err(|e| self.entry(id, e))? {
                Insert::Done { .. } => {}
                _ => return Err(self.entry(id, "has names that its inode has no room for")),
            }
        }
        Ok(dir.to_bytes())
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
