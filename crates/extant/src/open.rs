//! How a file is opened.
//!
//! Main type: [`OpenOptions`].
//!
//! # Locking
//! None.

use std::path::Path;

use extant_fs::{Cred, Error as FsError, Filesystem, InodeRef, NewNode, OpenFor, SetAttr};

use crate::error::Result;
use crate::file::File;
use crate::fs::Fs;
use crate::metadata::FileType;
use crate::path::{self, LastPart};

/// Symbolic links at the end of a path that are followed before a file is created (Linux: MAXSYMLINKS).
const SYMLINKS_MAX: u32 = 40;

/// How to open a file, as `std::fs::OpenOptions`.
///
/// ```
/// use std::io::Write;
///
/// use extant::OpenOptions;
///
/// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
/// let mut log = OpenOptions::new().append(true).create(true).mode(0o600).open(&fs, "/log")?;
/// log.write_all(b"first\n")?;
/// let again = OpenOptions::new().write(true).create_new(true).open(&fs, "/log");
/// assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u16,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing is permitted yet.
    pub fn new() -> OpenOptions {
        OpenOptions {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Reads are permitted.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.read = read;
        self
    }

    /// Writes are permitted.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.write = write;
        self
    }

    /// Each write goes to the end of the file.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.append = append;
        self
    }

    /// The content is removed.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.truncate = truncate;
        self
    }

    /// A missing file is created.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.create = create;
        self
    }

    /// The file is created and must not exist.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.create_new = create_new;
        self
    }

    /// The permission bits of a file that is created: `0o644` if they are not given. There is no umask.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.mode = (mode & 0o7777) as u16;
        self
    }

    /// Opens the file at `path`.
    ///
    /// # Errors
    /// As open(2): ENOENT, EEXIST with `create_new`, EISDIR to write a directory, ENOTDIR, ELOOP, EROFS, ENOSPC, EPERM
    /// by the file's flags. EINVAL for options that contradict each other, as in `std::fs`.
    pub fn open(&self, fs: &Fs, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let shared = fs.shared();
        let inode = shared.on(path, |engine, bytes| self.find(engine, bytes, shared.cred))?;
        Ok(File::new(fs.clone(), inode, path, self.read, self.write, self.append))
    }

    fn writes(&self) -> bool {
        self.write || self.append
    }

    fn find(&self, fs: &Filesystem, bytes: &[u8], cred: Cred) -> extant_fs::Result<InodeRef> {
        let creates = self.create || self.create_new;
        if !(self.read || self.writes()) || (creates || self.truncate) && !self.writes() || self.append && self.truncate
        {
            return Err(FsError::Invalid("these options cannot open a file"));
        }
        if self.create_new || !creates {
            let inode = if self.create_new { self.make(fs, bytes, cred)? } else { path::walk(fs, bytes, true)? };
            return self.admit(fs, inode);
        }
        let inode = self.make(fs, bytes, cred)?;
        self.admit(fs, inode)
    }

    /// The file at `path`, created where it is missing. A symbolic link whose target is missing creates the target.
    fn make(&self, fs: &Filesystem, path: &[u8], cred: Cred) -> extant_fs::Result<InodeRef> {
        let (mut start, mut path) = (None, path.to_vec());
        for _ in 0..=SYMLINKS_MAX {
            let (dir, last) = path::parent(fs, start.as_ref(), &path)?;
            let (name, slash) = match last {
                LastPart::Name { name, slash } => (name, slash),
                _ if self.create_new => return Err(FsError::Exists),
                _ => return Err(FsError::IsDirectory),
            };
            let found = match fs.lookup(&dir, name) {
                Err(FsError::NotFound) if slash => return Err(FsError::IsDirectory),
                Err(FsError::NotFound) => match fs.create(&dir, name, NewNode::file(self.mode), cred) {
                    // Another thread was faster.
                    Err(FsError::Exists) => fs.lookup(&dir, name)?,
                    made => return made,
                },
                other => other?,
            };
            if self.create_new {
                return Err(FsError::Exists);
            }
            if slash {
                return Err(FsError::IsDirectory);
            }
            if !FileType::of_mode(fs.getattr(&found).mode).is_symlink() {
                return Ok(found);
            }
            let target = fs.read_link(&found)?;
            (start, path) = (Some(dir), target);
        }
        Err(FsError::TooManySymlinks)
    }

    /// Checks that the file may be opened like this, and empties it on request.
    fn admit(&self, fs: &Filesystem, inode: InodeRef) -> extant_fs::Result<InodeRef> {
        let kind = FileType::of_mode(fs.getattr(&inode).mode);
        if self.writes() {
            if kind.is_dir() {
                return Err(FsError::IsDirectory);
            }
            if fs.is_read_only() {
                return Err(FsError::ReadOnly);
            }
        }
        fs.may_open(&inode, OpenFor { write: self.writes(), append: self.append, truncate: self.truncate })?;
        if self.truncate && kind.is_file() {
            fs.setattr(&inode, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        }
        Ok(inode)
    }
}
