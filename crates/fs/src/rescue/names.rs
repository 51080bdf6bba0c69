//! Names under rescue. Inodes that no name refers to appear in `lost+found`, named `#` and their number, as after
//! e2fsck.
//!
//! Main functions: `Rescue::list`, `Rescue::lookup`, `Rescue::parent`, which replace those of an ordinary mount.
//!
//! A real `lost+found` shows its own names first. If there is none, the root contains a stand-in. If the root cannot be
//! read, another stand-in replaces it, with `lost+found` as its only entry. The image does not change.
//!
//! # Locking
//! No lock is held between the parts of a listing. The survey runs before the first part.

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use super::inodes::make_stand_in;
use super::state::{LOST_FOUND, Rescue, Survey};
use super::survey;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::ops::DirItem;

/// The name of the directory for inodes without a name.
pub(super) const NAME: &[u8] = b"lost+found";
/// Cookies of entries that a rescue adds begin here. The cookies of a directory's own entries are places in the
/// directory.
const ADDED: u64 = 1 << 62;

/// The entries that a rescue adds to a directory.
enum Addition<'r> {
    /// The entry of a stand-in for `lost+found`. It hides an entry of this name that is not a directory.
    LostFound,
    /// Inodes that no name refers to.
    Nameless(&'r Survey),
}

impl Rescue<InodeRef> {
    /// Replaces the root of a mount whose root is damaged.
    pub fn replace_root(&self, fs: &Filesystem) {
        let _ = self.root.set(make_stand_in(fs, InodeNr::ROOT, 0o755));
    }

    fn is_stand_in(&self, dir: &InodeRef) -> bool {
        self.stand_in(dir.ino).is_some()
    }

    /// The directory `lost+found` of the image.
    fn real_lost_found(&self, fs: &Filesystem) -> Option<InodeNr> {
        *self.real_lost_found.get_or_init(|| {
            let root = fs.root().ok().filter(|root| !self.is_stand_in(root))?;
            fs.lookup_own(&root, NAME).ok().filter(|found| found.is_dir()).map(|found| found.ino)
        })
    }

    /// The survey, with the inodes that no name refers to.
    pub fn survey(&self, fs: &Filesystem) -> &Survey {
        let real = self.real_lost_found(fs);
        self.survey_by(|| {
            let survey = survey::run(fs, self, real);
            if real.is_none() && survey.count > 0 {
                let _ = self.lost_found.set(make_stand_in(fs, LOST_FOUND, 0o700));
            }
            survey
        })
    }

    fn addition(&self, fs: &Filesystem, dir: &InodeRef) -> Option<Addition<'_>> {
        if dir.ino != InodeNr::ROOT && dir.ino != LOST_FOUND && Some(dir.ino) != self.real_lost_found(fs) {
            return None;
        }
        let survey = self.survey(fs);
        match dir.ino {
            InodeNr::ROOT => self.lost_found.get().map(|_| Addition::LostFound),
            _ => Some(Addition::Nameless(survey)),
        }
    }

    /// As [`Filesystem::read_dir`], but without the error at its end.
    pub fn list(
        &self,
        fs: &Filesystem,
        dir: &InodeRef,
        cookie: u64,
        mut f: impl FnMut(DirItem<'_>) -> bool,
    ) -> Result<u64> {
        let addition = self.addition(fs, dir);
        if self.is_stand_in(dir) {
            // A stand-in has no blocks in which a listing could find damage.
            dir.listings.note_beginning();
        }
        let mut next = cookie;
        if cookie < ADDED {
            let mut stopped = false;
            let mut own = |item: DirItem<'_>| {
                let is_hidden = matches!(addition, Some(Addition::LostFound)) && item.name == NAME;
                stopped = !is_hidden && !f(item);
                !stopped
            };
            next = match self.is_stand_in(dir) {
                true => self.list_dots(fs, dir, cookie, &mut own),
                false => fs.list_from(dir, cookie, &mut own)?,
            };
            if stopped {
                return Ok(next);
            }
        }
        let directory = Some(FileType::Directory);
        match addition {
            None => {}
            Some(Addition::LostFound) if next <= ADDED => {
                let item = DirItem { ino: LOST_FOUND, kind: directory, name: NAME, next_cookie: ADDED + 1 };
                next = if f(item) { ADDED + 1 } else { ADDED };
            }
            Some(Addition::LostFound) => {}
            Some(Addition::Nameless(survey)) => {
                let mut from = next.saturating_sub(ADDED);
                while let Some(number) = survey.adopted.next_from(from) {
                    let ino = InodeNr(number as u32);
                    let name = survey.name_of(ino);
                    let kind = if survey.directories.contains(number) { directory } else { None };
                    if !f(DirItem { ino, kind, name: &name, next_cookie: ADDED + number + 1 }) {
                        return Ok(ADDED + number);
                    }
                    from = number + 1;
                }
                next = ADDED + from;
            }
        }
        Ok(next)
    }

    /// Lists the names `.` and `..` of a stand-in.
    fn list_dots(&self, fs: &Filesystem, dir: &InodeRef, cookie: u64, f: &mut impl FnMut(DirItem<'_>) -> bool) -> u64 {
        let parent = self.parent(fs, dir).map_or(dir.ino, |parent| parent.ino);
        for (own, name, ino) in [(0, &b"."[..], dir.ino), (1, b"..", parent)] {
            let item = DirItem { ino, kind: Some(FileType::Directory), name, next_cookie: own + 1 };
            if own >= cookie && !f(item) {
                return own;
            }
        }
        cookie.max(2)
    }

    /// As [`Filesystem::lookup`].
    pub fn lookup(&self, fs: &Filesystem, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
        let own = match self.is_stand_in(dir) {
            true => Err(Error::NotFound),
            false => fs.lookup_own(dir, name),
        };
        match name {
            b"." if own.is_err() => Ok(dir.clone()),
            b".." if own.is_err() => self.parent(fs, dir),
            _ if dir.ino == InodeNr::ROOT && name == NAME && !own.as_ref().is_ok_and(|found| found.is_dir()) => {
                self.survey(fs);
                self.lost_found.get().cloned().map_or(own, Ok)
            }
            _ if own.is_err() && name.starts_with(b"#") => match self.addition(fs, dir) {
                Some(Addition::Nameless(survey)) => survey.find(name).map_or(own, |ino| self.iget(fs, ino)),
                _ => own,
            },
            _ => own,
        }
    }

    /// As [`Filesystem::parent`].
    pub fn parent(&self, fs: &Filesystem, dir: &InodeRef) -> Result<InodeRef> {
        let is_adopted = |survey: &Survey| survey.adopted.contains(dir.ino.0.into());
        match dir.ino {
            InodeNr::ROOT => fs.root(),
            _ if self.is_stand_in(dir) => fs.root(),
            _ if self.surveyed().is_some_and(is_adopted) => {
                let lost_found = self.real_lost_found(fs).unwrap_or(LOST_FOUND);
                self.iget(fs, lost_found)
            }
            _ => fs.parent_own(dir),
        }
    }
}
