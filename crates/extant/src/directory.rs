//! Listings of one directory and of a tree.
//!
//! Main types: [`ReadDir`], [`DirEntry`], [`Walk`].
//!
//! Memory is bounded, also for a directory of millions of names or one that contains itself.
//!
//! # Locking
//! None held between calls.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use extant_fs::walk::{Name, Visit, Walk as Steps};
use extant_fs::{Filesystem, InodeRef};

use crate::error::{Error, Result};
use crate::fs::Fs;
use crate::metadata::{FileType, Metadata};
use crate::path;

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    dir: PathBuf,
    name: Name,
    fs: Fs,
}

impl DirEntry {
    /// The name alone.
    pub fn file_name(&self) -> &OsStr {
        path::name(&self.name.name)
    }

    /// The path of the directory, as it was given, and the name.
    pub fn path(&self) -> PathBuf {
        self.dir.join(self.file_name())
    }

    /// The inode number.
    pub fn ino(&self) -> u64 {
        u64::from(self.name.ino.0)
    }

    /// The kind that the directory records, or the inode's if it records none. A symbolic link is not followed.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`].
    pub fn file_type(&self) -> Result<FileType> {
        match self.name.kind {
            Some(kind) => Ok(FileType::of(Some(kind))),
            None => self.metadata().map(|metadata| metadata.file_type()),
        }
    }

    /// The attributes. A symbolic link is not followed.
    ///
    /// # Errors
    /// ENOENT if it was removed meanwhile; EUCLEAN if the inode is damaged.
    pub fn metadata(&self) -> Result<Metadata> {
        self.fs.symlink_metadata(self.path())
    }
}

/// The names of a directory in the order of their bytes, without `.` and `..`.
///
/// ```
/// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
/// fs.create_dir("/d")?;
/// fs.write("/d/b", "")?;
/// fs.write("/d/a", "")?;
/// let names: Vec<_> = fs.read_dir("/d")?.map(|e| Ok(e?.path())).collect::<extant::Result<_>>()?;
/// assert_eq!(names, ["/d/a", "/d/b"].map(std::path::PathBuf::from));
/// # Ok::<(), extant::Error>(())
/// ```
pub struct ReadDir {
    inode: InodeRef,
    fs: Fs,
    path: PathBuf,
    names: std::vec::IntoIter<Name>,
    last: Option<Name>,
    more: bool,
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ReadDir").field(&self.path).finish()
    }
}

impl ReadDir {
    pub(crate) fn new(fs: Fs, inode: InodeRef, path: &Path) -> Result<ReadDir> {
        let mut listing =
            ReadDir { inode, fs, path: path.to_path_buf(), names: Vec::new().into_iter(), last: None, more: true };
        // A path that is no directory fails here, not at the first name.
        listing.read_on()?;
        Ok(listing)
    }

    fn read_on(&mut self) -> Result<()> {
        // An error ends the listing.
        self.more = false;
        let fs = self.fs.shared().live(&self.path)?;
        let found =
            fs.list_after(&self.inode, self.last.as_ref()).map_err(|e| Error::fs(fs.image(), Some(&self.path), e))?;
        (self.names, self.more) = (found.names.into_iter(), found.more);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        loop {
            if let Some(name) = self.names.next() {
                self.last = Some(name.clone());
                return Some(Ok(DirEntry { dir: self.path.clone(), name, fs: self.fs.clone() }));
            }
            if !self.more {
                return None;
            }
            if let Err(e) = self.read_on() {
                return Some(Err(e));
            }
        }
    }
}

/// Everything below a directory, each directory before its content. Symbolic links are not followed.
///
/// A part that cannot be read gives an error, and the walk goes on behind it.
///
/// ```
/// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
/// fs.create_dir_all("/a/b")?;
/// fs.write("/a/b/c", "")?;
/// let paths: Vec<_> = fs.walk("/a")?.map(|e| Ok(e?.0)).collect::<extant::Result<_>>()?;
/// assert_eq!(paths, ["/a/b", "/a/b/c"].map(std::path::PathBuf::from));
/// # Ok::<(), extant::Error>(())
/// ```
pub struct Walk<'f> {
    fs: &'f Filesystem,
    steps: Steps<'f>,
}

impl std::fmt::Debug for Walk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Walk").field(&path::name(self.steps.path())).finish()
    }
}

impl<'f> Walk<'f> {
    pub(crate) fn new(fs: &'f Filesystem, path: &Path, top: InodeRef) -> Walk<'f> {
        Walk { fs, steps: Steps::new(fs, &path::raw(path), top) }
    }

    /// Leaves out the content of the directory that [`Walk::next`] has just returned.
    pub fn skip_content(&mut self) {
        self.steps.skip();
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<(PathBuf, Metadata)>;

    fn next(&mut self) -> Option<Result<(PathBuf, Metadata)>> {
        loop {
            let step = self.steps.next()?;
            let path = PathBuf::from(path::name(self.steps.path()));
            match step {
                Ok(Visit::Name(inode)) => return Some(Ok((path, Metadata(self.fs.getattr(&inode))))),
                Ok(Visit::Left(_)) => {}
                Err(e) => return Some(Err(Error::fs(self.fs.image(), Some(&path), e))),
            }
        }
    }
}
