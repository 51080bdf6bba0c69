//! Path lookup for embedding programs and tools. (Under FUSE, the kernel resolves paths itself.)
//!
//! Main functions: [`Filesystem::walk`], [`Filesystem::walk_at`], [`Filesystem::make_dirs`].
//!
//! What it does not do: visit trees ([`crate::walk`]).
//!
//! # Locking
//! None of its own.

use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

use crate::error::{Damage, Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::ops::{Cred, NewNode};

/// The maximum number of symbolic links that one lookup follows (Linux: MAXSYMLINKS).
const SYMLINKS_MAX: u32 = 40;

impl Filesystem {
    /// The inode at `path`, starting at the root. `follow` says whether a symbolic link at the end is followed; links
    /// within the path always are.
    ///
    /// # Errors
    /// [`Error::NotFound`] and [`Error::NotDirectory`] for a component of the path; [`Error::TooManySymlinks`] after 40
    /// links.
    ///
    /// ```no_run
    /// # fn show(fs: &extant_fs::Filesystem) -> extant_fs::Result<()> {
    /// let file = fs.walk(b"/etc/hostname", true)?;
    /// let mut text = vec![0; fs.getattr(&file).size as usize];
    /// let len = fs.read(&file, 0, &mut text)?;
    /// print!("{}", String::from_utf8_lossy(&text[..len]));
    /// # Ok(())
    /// # }
    /// ```
    pub fn walk(&self, path: &[u8], follow: bool) -> Result<InodeRef> {
        let mut left = SYMLINKS_MAX;
        self.walk_from(self.root()?, path, follow, &mut left)
    }

    /// As [`Filesystem::walk`], but a path without a leading slash starts at `dir`.
    ///
    /// # Errors
    /// As [`Filesystem::walk`].
    pub fn walk_at(&self, dir: &InodeRef, path: &[u8], follow: bool) -> Result<InodeRef> {
        let mut left = SYMLINKS_MAX;
        self.walk_from(dir.clone(), path, follow, &mut left)
    }

    /// Whether `dir` is the directory `ancestor`, or lies below it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a loop of directories; otherwise as [`Filesystem::parent`].
    pub fn is_within(&self, dir: &InodeRef, ancestor: InodeNr) -> Result<bool> {
        let mut at = dir.clone();
        // No tree is deeper than the number of its directories.
        for _ in 0..self.geo.inodes_count {
            if at.ino == ancestor {
                return Ok(true);
            }
            if at.ino == InodeNr::ROOT {
                return Ok(false);
            }
            at = self.parent(&at)?;
        }
        Err(Error::corrupt(Damage::Tree, "a loop of directories").of(dir.ino))
    }

    /// Follows `path` from `start`, or from the root if it begins with a slash. `left`: how many symbolic links may
    /// still be followed.
    fn walk_from(&self, start: InodeRef, path: &[u8], follow: bool, left: &mut u32) -> Result<InodeRef> {
        let mut at = if path.starts_with(b"/") { self.root()? } else { start };
        let mut parts = path.split(|b| *b == b'/').filter(|p| !p.is_empty() && *p != b".").peekable();
        while let Some(part) = parts.next() {
            at.check_dir()?;
            if part == b".." {
                at = self.parent(&at)?;
                continue;
            }
            let next = self.lookup(&at, part)?;
            let last = parts.peek().is_none();
            if next.file_type() == Some(FileType::Symlink) && (!last || follow) {
                *left = left.checked_sub(1).ok_or(Error::TooManySymlinks)?;
                let target = self.read_link(&next)?;
                at = self.walk_from(at, &target, true, left)?;
            } else {
                at = next;
            }
        }
        Ok(at)
    }

    /// The directory at `path`; missing directories are created.
    ///
    /// # Errors
    /// [`Error::NotDirectory`] if a component is not a directory; otherwise as [`Filesystem::walk`] and
    /// [`Filesystem::create`].
    pub fn make_dirs(&self, path: &[u8], permissions: u16, cred: Cred) -> Result<InodeRef> {
        let mut at = self.root()?;
        for part in path.split(|b| *b == b'/').filter(|p| !p.is_empty()) {
            let next = match self.walk_at(&at, part, true) {
                Err(Error::NotFound) => self.create(&at, part, NewNode::directory(permissions), cred)?,
                other => other?,
            };
            next.check_dir()?;
            at = next;
        }
        Ok(at)
    }

    /// The directory of the last component of `path`, and that component.
    ///
    /// # Errors
    /// [`Error::Exists`] for a path without a last component, such as `/`; otherwise as [`Filesystem::walk`].
    pub fn walk_parent<'p>(&self, path: &'p [u8]) -> Result<(InodeRef, &'p [u8])> {
        let end = path.iter().rposition(|b| *b != b'/').ok_or(Error::Exists)? + 1;
        let path = &path[..end];
        let cut = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        let (dir, name) = path.split_at(cut);
        let dir = self.walk(dir, true)?;
        dir.check_dir()?;
        Ok((dir, name))
    }
}
