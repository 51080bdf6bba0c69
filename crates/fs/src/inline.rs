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
    fn inline_parts(&self, inode: &Arc<Inode>) -> Result<([u8; inline::ROOM], Option<Vec<u8>>)> {
        let first = inode.meta.read().desc.i_block;
        let rest = xattr::get_in_inode(&XattrView { fs: self, inode }, inline::DATA).map_err(Error::from)?;
        Ok((first, rest))
    }

    /// The stored content of a file or symbolic link without blocks; `None` for others. A regular file may be longer
    /// ([`inline::fits`]): it continues with zeros.
    pub(crate) fn inline_content(&self, inode: &Arc<Inode>) -> Result<Option<Vec<u8>>> {
        if !self.is_inline(inode) {
            return Ok(None);
        }
        let (first, rest) = self.inline_parts(inode)?;
        let (size, mut content) = (inode.size(), first.to_vec());
        let is_whole = inline::fits(inode.file_type(), size, rest.as_ref().map(Vec::len));
        content.extend(rest.unwrap_or_default());
        let stored = content.len() as u64;
        if size > stored && !is_whole {
            let detail = format!("{size} bytes in an inode that holds {stored}");
            let e = Error::corrupt(Damage::Inode, detail).of(inode.ino);
            if !self.rescues() {
                return Err(e);
            }
            self.doubt(inode, e);
        }
        content.truncate(size.min(stored) as usize);
        Ok(Some(content))
    }

    /// The content of a directory without blocks, as a block of an ordinary directory, and under rescue the first
    /// damage that hides a part of it; `None` for others.
    #[allow(clippy::type_complexity)] // one caller
    pub(crate) fn inline_directory(&self, dir: &Arc<Inode>) -> Result<Option<(Vec<u8>, Option<Error>)>> {
        if !self.is_inline(dir) {
            return Ok(None);
        }
        let (first, rest) = self.inline_parts(dir)?;
        let mut passed = None;
        let mut damaged = |detail: String| {
            let e = Error::corrupt(Damage::Directory, detail).of(dir.ino);
            if self.rescues() {
                passed.get_or_insert(e);
                return Ok(());
            }
            Err(e)
        };
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
        let rest = rest.unwrap_or_default();
        for part in [first, &rest].into_iter().filter(|part| !part.is_empty()) {
            for entry in format.entries(part) {
                match entry {
                    Err(e) => damaged(format!("in the inode: {e:?}"))?,
                    Ok(entry) if !entry.is_used() => {}
                    Ok(entry) => match format.insert(&mut block, entry.name, entry.ino, entry.file_type) {
                        Ok(Insert::Done { .. }) => {}
                        other => damaged(format!("names in the inode: {other:?}"))?,
                    },
                }
            }
        }
        Ok(Some((block, passed)))
    }
}
