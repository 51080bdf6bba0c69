//! Content in the inode itself (`inline_data`): in `i_block`, and continued in the attribute `system.data`.
//!
//! Main functions: [`Filesystem::inline_content`] (files, symbolic links), [`Filesystem::inline_directory`].
//!
//! What it does not do: write. Images with the feature are mounted read-only.
//!
//! # Locking
//! As for reading attributes: the caller holds the inode's `inode` lock, or no thread changes anything.

use std::sync::Arc;

use extant_ondisk::dirent::{DirBlockFormat, Insert};
use extant_ondisk::inode::{InodeFlags, inline};

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::xattr;
use crate::xattr_store::XattrView;

/// A directory's content begins with the number of its parent, in place of `.` and `..` (Linux:
/// `EXT4_INLINE_DOTDOT_SIZE`).
const PARENT_LEN: usize = 4;

impl Filesystem {
    pub(crate) fn is_inline(&self, inode: &Inode) -> bool {
        self.inline_data && inode.meta.read().desc.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// The bytes of `i_block`, and those in the attribute.
    fn inline_parts(&self, inode: &Arc<Inode>) -> Result<([u8; inline::ROOM], Vec<u8>)> {
        let first = inode.meta.read().desc.i_block;
        let rest = xattr::get_in_inode(&XattrView { fs: self, inode }, inline::DATA).map_err(Error::from)?;
        Ok((first, rest.unwrap_or_default()))
    }

    /// The stored content of a file or symbolic link without blocks; `None` for others. A regular file may be longer
    /// ([`inline::fits`]): it continues with zeros.
    pub(crate) fn inline_content(&self, inode: &Arc<Inode>) -> Result<Option<Vec<u8>>> {
        if !self.is_inline(inode) {
            return Ok(None);
        }
        let (first, rest) = self.inline_parts(inode)?;
        let (size, mut content) = (inode.size(), first.to_vec());
        content.extend(rest);
        let stored = content.len() as u64;
        if size > stored && !inline::fits(inode.file_type(), size, stored) {
            let detail = format!("{size} bytes in an inode that holds {stored}");
            return Err(Error::corrupt(Damage::Inode, detail).of(inode.ino));
        }
        content.truncate(size.min(stored) as usize);
        Ok(Some(content))
    }

    /// The content of a directory without blocks, as a block of an ordinary directory; `None` for others.
    pub(crate) fn inline_directory(&self, dir: &Arc<Inode>) -> Result<Option<Vec<u8>>> {
        if !self.is_inline(dir) {
            return Ok(None);
        }
        let (first, rest) = self.inline_parts(dir)?;
        let damaged = |detail: String| Error::corrupt(Damage::Directory, detail).of(dir.ino);
        let (parent, first) = first.split_at(PARENT_LEN);
        let parent = u32::from_le_bytes(parent.try_into().expect("4 bytes"));
        let format = DirBlockFormat {
            has_filetype: self.geo.filetype,
            has_csum: false,
            inodes_count: self.geo.inodes_count,
            encrypted: false,
        };
        let mut block = vec![0; self.geo.block_size as usize];
        format.init_dots(&mut block, dir.ino.0, parent);
        for part in [first, &rest].into_iter().filter(|part| !part.is_empty()) {
            for entry in format.entries(part) {
                let entry = entry.map_err(|e| damaged(format!("in the inode: {e:?}")))?;
                if entry.is_used() {
                    match format.insert(&mut block, entry.name, entry.ino, entry.file_type) {
                        Ok(Insert::Done { .. }) => {}
                        other => return Err(damaged(format!("names in the inode: {other:?}"))),
                    }
                }
            }
        }
        Ok(Some(block))
    }
}
