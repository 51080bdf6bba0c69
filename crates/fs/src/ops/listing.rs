//! Listing a directory (Linux: `ext4_readdir`, fs/ext4/dir.c).
//!
//! # Locking
//! The directory's `inode` lock, shared; the callback runs under it and may load inodes.

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use crate::dir;
use crate::dir_store::DirView;
use crate::encrypted;
use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItem<'a> {
    /// What the name leads to.
    pub ino: InodeNr,
    /// `None` where the file system does not record it.
    pub kind: Option<FileType>,
    /// Without a slash or NUL, up to 255 bytes.
    pub name: &'a [u8],
    /// Listing from here goes on behind this entry.
    pub next_cookie: u64,
}

impl Filesystem {
    /// Calls `f` for each entry from `cookie` on (0 to begin) until it returns false, which leaves that entry for the
    /// next call. Returns the cookie to go on from. Names that are there all the time come exactly once, whatever else
    /// changes meanwhile.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] at the end of a directory in which damage hides names: from the call that has no
    /// name to give, after all names that can be read, whatever its cookie. The damage is counted once, when it is met
    /// ([`crate::FsStats::errors`]). At once where the listing cannot go on behind the damage.
    pub fn read_dir(&self, dir: &InodeRef, cookie: u64, mut f: impl FnMut(DirItem<'_>) -> bool) -> Result<u64> {
        self.check_dir(dir)?;
        let mut given = false;
        let next = self.list_from(dir, cookie, |item| {
            given = true;
            f(item)
        })?;
        if !given {
            // The inode may have left memory since the listing passed the damage.
            if cookie > 0 && !dir.listings.have_begun() && dir.listings.damage().is_none() {
                self.list_from(dir, 0, |_| true)?;
            }
            if let Some(e) = dir.listings.damage() {
                return Err(e.clone());
            }
        }
        self.touch_atime(dir);
        Ok(next)
    }

    fn list_from(&self, dir: &InodeRef, cookie: u64, mut f: impl FnMut(DirItem<'_>) -> bool) -> Result<u64> {
        if cookie == 0 {
            dir.listings.note_beginning();
        }
        let _shared = dir.rw.read();
        let view = DirView::new(self, dir);
        let listed = self.watch(dir::readdir(&view, &view.params, cookie, |e| {
            let shown;
            let name = match view.params.encrypted && e.name != b"." && e.name != b".." {
                true => {
                    shown = encrypted::name(e.name);
                    &shown
                }
                false => e.name,
            };
            f(DirItem { ino: e.ino, kind: e.file_type, name, next_cookie: e.next_cookie })
        }))?;
        if let Some(damage) = listed.damage {
            let damage = damage.of(dir.ino);
            if dir.listings.note_damage(&damage) {
                self.note_error(&damage);
            }
        }
        Ok(listed.next)
    }
}
