//! Walking a directory tree, for embedding programs and tools.
//!
//! Main types: [`Walk`] (depth first, names sorted, every directory once before and once after what is in it),
//! [`Visit`], [`Name`]. [`Filesystem::list`] reads one directory.
//!
//! Neither the depth of a tree nor a damaged image, in which a directory contains itself or has many names, decides
//! about our memory: there is one path, a few open directories, and of the others the number and the names that are
//! still to come.
//!
//! # Locking
//! None held between calls.

use std::collections::HashSet;

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;

/// More than any tree of three index levels is used for; bounds memory.
const ENTRIES_MAX: usize = 50_000_000;
/// With so many names, and with each doubling, a directory is searched for names that come again. A map that leads to
/// one block many times gives its names as often: a small image could take any memory.
const REPEATED_CHECK: usize = 65_536;

/// Directories on the way down that stay in use; one further up is got again by its number.
const OPEN_MAX: usize = 64;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Any bytes but slash and NUL, 1 to 255 of them.
    pub name: Vec<u8>,
    /// What it stands for.
    pub ino: InodeNr,
    /// `None` where the directory does not say.
    pub kind: Option<FileType>,
}

impl Filesystem {
    /// The entries of `dir`, sorted by their bytes, without `.` and `..`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where the listing cannot go on, or most of its names are repeated.
    pub fn list(&self, dir: &InodeRef) -> Result<Vec<Name>> {
        let mut entries: Vec<Name> = Vec::new();
        let mut cookie = 0;
        let mut check_at = REPEATED_CHECK;
        loop {
            let mut left = 4096;
            let next = self.read_dir(dir, cookie, |item| {
                if left == 0 {
                    return false;
                }
                left -= 1;
                if item.name != b"." && item.name != b".." {
                    entries.push(Name { name: item.name.to_vec(), ino: item.ino, kind: item.kind });
                }
                true
            })?;
            // The end: nothing was held back. A cookie that does not move would be a loop.
            if left > 0 || next == cookie {
                break;
            }
            if entries.len() >= check_at {
                let all = entries.len();
                entries.sort_by(|a, b| a.name.cmp(&b.name));
                entries.dedup_by(|a, b| a.name == b.name);
                // A few: a name that was removed and made again meanwhile comes twice.
                if entries.len() < all / 2 {
                    let detail = format!("{all} entries with {} names", entries.len());
                    return Err(Error::corrupt(Damage::Directory, detail).of(dir.ino));
                }
                check_at = entries.len() * 2;
            }
            // More names than inodes and links can explain.
            if entries.len() > ENTRIES_MAX {
                return Err(Error::corrupt(Damage::Directory, format!("more than {ENTRIES_MAX} entries")).of(dir.ino));
            }
            cookie = next;
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

/// What a [`Walk`] has come to.
#[derive(Clone, Debug)]
pub enum Visit {
    /// A name. If it is a directory, the walk goes on in it, unless told to [`Walk::skip`] it.
    Name(InodeRef),
    /// A directory, the top among them, with everything in it visited.
    Left(InodeRef),
}

/// A directory that is being walked.
#[derive(Debug)]
struct Level {
    ino: InodeNr,
    /// `None` far up.
    dir: Option<InodeRef>,
    rest: std::vec::IntoIter<Name>,
    /// The length of its path.
    path_len: usize,
}

/// A walk under way. Not an iterator, because what it has come to is best asked of it: [`Walk::path`], [`Walk::name`],
/// [`Walk::dir`].
pub struct Walk<'f> {
    fs: &'f Filesystem,
    levels: Vec<Level>,
    path: Vec<u8>,
    /// Where the last name in `path` begins.
    name_at: usize,
    /// To be entered next.
    below: Option<InodeRef>,
    seen: HashSet<InodeNr>,
}

impl<'f> Walk<'f> {
    /// Walks what is in `top`, whose path is `path`; a file contains nothing.
    pub fn new(fs: &'f Filesystem, path: &[u8], top: InodeRef) -> Walk<'f> {
        let below = Some(top).filter(|top| top.is_dir());
        Walk { fs, levels: Vec::new(), path: path.to_vec(), name_at: path.len(), below, seen: HashSet::new() }
    }

    /// The path of what was visited last.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }

    /// The directory that has it; none for the top.
    pub fn dir(&self) -> Option<&InodeRef> {
        self.levels.last().and_then(|level| level.dir.as_ref())
    }

    /// How far below the top it is: 1 for what the top contains.
    pub fn depth(&self) -> usize {
        self.levels.len()
    }

    /// For each directory from the top down to [`Walk::dir`], whether it has further names to visit.
    pub fn more(&self) -> impl Iterator<Item = bool> {
        self.levels.iter().map(|level| level.rest.len() > 0)
    }

    /// Leaves out what is in the directory that was just visited.
    pub fn skip(&mut self) {
        self.below = None;
    }

    /// Goes on. After an error, which concerns [`Walk::path`], too, leaving out what cannot be read; only an error of a
    /// directory on the way back ends the walk. Not an [`Iterator`]: a `for` would keep the walk from being asked.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<Visit>> {
        if let Some(dir) = self.below.take()
            && let Err(e) = self.enter(dir)
        {
            return Some(Err(e));
        }
        let level = self.levels.last_mut()?;
        let path_len = level.path_len;
        match level.rest.next() {
            Some(entry) => {
                self.point_at(path_len, &entry.name);
                let found = match level_dir(&self.levels) {
                    Ok(dir) => self.fs.lookup(dir, &entry.name),
                    Err(e) => Err(e),
                };
                Some(found.map(|inode| {
                    self.below = inode.is_dir().then(|| inode.clone());
                    Visit::Name(inode)
                }))
            }
            None => Some(self.leave()),
        }
    }

    fn point_at(&mut self, path_len: usize, name: &[u8]) {
        self.path.truncate(path_len);
        if !self.path.ends_with(b"/") {
            self.path.push(b'/');
        }
        self.name_at = self.path.len();
        self.path.extend_from_slice(name);
    }

    fn enter(&mut self, dir: InodeRef) -> Result<()> {
        if !self.seen.insert(dir.ino) {
            // Directories have one name.
            return Err(Error::corrupt(Damage::Tree, "a directory that is reached a second time").of(dir.ino));
        }
        let rest = self.fs.list(&dir)?.into_iter();
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX) {
            self.levels[far].dir = None;
        }
        self.levels.push(Level { ino: dir.ino, dir: Some(dir), rest, path_len: self.path.len() });
        Ok(())
    }

    fn leave(&mut self) -> Result<Visit> {
        let done = self.levels.pop().ok_or(Error::NotFound)?;
        self.path.truncate(done.path_len);
        self.name_at = match self.levels.last() {
            Some(up) if up.path_len < done.path_len => {
                let slash = usize::from(self.path.get(up.path_len) == Some(&b'/'));
                up.path_len + slash
            }
            _ => done.path_len,
        };
        if let Some(up) = self.levels.last_mut()
            && up.dir.is_none()
        {
            match self.fs.iget(up.ino) {
                Ok(dir) => up.dir = Some(dir),
                Err(e) => {
                    self.levels.clear();
                    return Err(e);
                }
            }
        }
        done.dir.map(Visit::Left).ok_or(Error::NotFound)
    }
}

fn level_dir(levels: &[Level]) -> Result<&InodeRef> {
    levels.last().and_then(|level| level.dir.as_ref()).ok_or(Error::NotFound)
}
