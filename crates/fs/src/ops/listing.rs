//! Listing a directory (Linux: `ext4_readdir`, fs/ext4/dir.c).
//!
//! Main function: [`Filesystem::read_dir`].
//!
//! What it does not do: know the format of directories ([`crate::dir`]).
//!
//! # Locking
//! The directory's `inode` lock, shared; the callback runs under it and may load inodes.

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use crate::crypt::nokey;
use crate::dir;
use crate::dir_store::DirView;
use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirItem<'a> {
    /// The inode that the name refers to.
    pub ino: InodeNr,
    /// The type in the entry; `None` if the file system does not store it.
    pub kind: Option<FileType>,
    /// The name: up to 255 bytes, without a slash or NUL.
    pub name: &'a [u8],
    /// A listing from this cookie continues after this entry.
    pub next_cookie: u64,
}

impl Filesystem {
    /// Calls `f` for each entry from `cookie` on; 0 begins the listing. If `f` returns false, the listing stops, and
    /// the next call begins with that entry. Returns the cookie to continue from. A name that exists throughout the
    /// listing appears exactly once, regardless of other changes.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] at the end of a directory in which damage hides names. The call that finds no more
    /// names fails, after all readable names, whatever its cookie. The damage is counted once, when a listing finds it
    /// ([`crate::FsStats::errors`]). A call fails immediately if the listing cannot continue after the damage.
    pub fn read_dir(&self, dir: &InodeRef, cookie: u64, mut f: impl FnMut(DirItem<'_>) -> bool) -> Result<u64> {
        dir.check_dir()?;
        let mut given = false;
        let note = |item: DirItem<'_>| {
            given = true;
            f(item)
        };
        let next = match &self.rescue {
            Some(rescue) => rescue.list(self, dir, cookie, note)?,
            None => self.list_from(dir, cookie, note)?,
        };
        if !given {
            // The inode may have been evicted since the listing skipped the damage.
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

    /// Calls `f` for each entry of the directory. Damage is reported at the end ([`crate::inode::Listings`]).
    pub(crate) fn list_from(&self, dir: &InodeRef, cookie: u64, mut f: impl FnMut(DirItem<'_>) -> bool) -> Result<u64> {
        if cookie == 0 {
            dir.listings.note_beginning();
        }
        let _shared = dir.rw.read();
        let view = DirView::new(self, dir);
        let key = if view.params.encrypted { self.watch(self.encryption(dir).name_key())? } else { None };
        let mut undecided = None;
        let listed = self.watch(dir::readdir(&view, &view.params, cookie, |e| {
            let shown;
            let name = match view.params.encrypted && e.name != b"." && e.name != b".." {
                true => {
                    shown = match key {
                        None => Some(nokey::name(e.name)),
                        Some(key) => key.open_name(e.name),
                    };
                    let Some(shown) = &shown else {
                        let detail = format!("a name of {} bytes that is no ciphertext of a name", e.name.len());
                        undecided.get_or_insert(Error::corrupt(Damage::Directory, detail));
                        return true;
                    };
                    &shown[..]
                }
                false => e.name,
            };
            f(DirItem { ino: e.ino, kind: e.file_type, name, next_cookie: e.next_cookie })
        }))?;
        if let Some(damage) = listed.damage.or_else(|| view.damage()).or(undecided) {
            let damage = damage.of(dir.ino);
            if dir.listings.note_damage(&damage) {
                self.note_hurt(&damage);
            }
        }
        Ok(listed.next)
    }
}
