//! A mounted image: the operations of `std::fs` as methods.
//!
//! Main types: [`Fs`], [`Space`].
//!
//! What it does not do: check permissions; the caller is root in the image.
//!
//! # Locking
//! None of its own; see docs/locking.md for the engine's.

use std::fmt;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use extant_fs::walk::{Visit, Walk as Steps};
use extant_fs::{Error as FsError, Filesystem, InodeRef, NewNode, RenameFlags, SetAttr, SetMode, SetTime, Unsupported};

use crate::directory::{ReadDir, Walk};
use crate::error::{Error, Result};
use crate::file::File;
use crate::metadata::{FileType, Metadata, timestamp};
use crate::open::OpenOptions;
use crate::path::{self, LastPart};
use crate::shared::Shared;

/// The file system of a mounted image. Clones share the mount.
///
/// Dropping the last clone, when no [`File`] is open, unmounts; an error is lost then, so a program that has written
/// calls [`Fs::unmount`].
#[derive(Clone)]
pub struct Fs(Arc<Shared>);

impl fmt::Debug for Fs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fs").field(&self.image()).finish()
    }
}

/// The space of a file system. Sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All of it, without the file system's own structures.
    pub total: u64,
    /// Free, the reserve for root included.
    pub free: u64,
    /// Free for users without privilege.
    pub available: u64,
    /// Files that there can be.
    pub files: u64,
    /// Files that can still be created.
    pub files_free: u64,
}

impl Fs {
    pub(crate) fn new(shared: Shared) -> Fs {
        Fs(Arc::new(shared))
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    fn set(&self, path: &Path, follow: bool, set: &SetAttr) -> Result<()> {
        self.0.on(path, |fs, bytes| fs.setattr(&path::walk(fs, bytes, follow)?, set).map(drop))
    }

    /// Opens a file or directory to read.
    ///
    /// ```
    /// use std::io::Read;
    ///
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "text")?;
    /// let mut text = String::new();
    /// fs.open("/a")?.read_to_string(&mut text)?;
    /// assert_eq!(text, "text");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// ENOENT, ENOTDIR or ELOOP for the path; EUCLEAN if the image is damaged there.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().read(true).open(self, path)
    }

    /// Opens a file to write; it is created, or emptied.
    ///
    /// ```
    /// use std::io::Write;
    ///
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// writeln!(fs.create("/new")?, "line")?;
    /// assert_eq!(fs.read("/new")?, b"line\n");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(self, path)
    }

    /// The content of a file.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", [1, 2, 3])?;
    /// assert_eq!(fs.read("/a")?, [1, 2, 3]);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::open`] and [`File::read_at`]; ENOMEM if it does not fit the memory.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let mut file = self.open(path)?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).map_err(|e| self.passed(path, e))?;
        Ok(content)
    }

    /// The content of a file as text.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "text")?;
    /// assert_eq!(fs.read_to_string("/a")?, "text");
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::read`]; EINVAL if it is not UTF-8.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        let content = self.read(path)?;
        String::from_utf8(content)
            .map_err(|_| Error::fs(self.image(), Some(path), FsError::Invalid("the content is not UTF-8")))
    }

    /// Writes a file with this content; it is created, or replaced.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "old and long")?;
    /// fs.write("/a", "new")?;
    /// assert_eq!(fs.read("/a")?, b"new");
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::create`] and [`File::write_at`].
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.create(path)?.write_all(content.as_ref()).map_err(|e| self.passed(path, e))
    }

    /// The error that `read_to_end` or `write_all` passes through, or the one that std made there.
    fn passed(&self, path: &Path, e: std::io::Error) -> Error {
        let why = if e.kind() == std::io::ErrorKind::WriteZero { FsError::NoSpace } else { no_memory() };
        match e.downcast::<Error>() {
            Ok(own) => own,
            Err(_) => Error::fs(self.image(), Some(path), why),
        }
    }

    /// The names in a directory.
    ///
    /// # Errors
    /// ENOTDIR, and as [`Fs::open`]. The iterator returns EUCLEAN where the directory is damaged.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        ReadDir::new(self.clone(), self.0.inode(path, true)?, path)
    }

    /// Everything below a directory.
    ///
    /// # Errors
    /// ENOTDIR, and as [`Fs::open`]; see [`Walk`].
    pub fn walk(&self, path: impl AsRef<Path>) -> Result<Walk<'_>> {
        let path = path.as_ref();
        let top = self.0.on(path, |fs, bytes| {
            let top = path::walk(fs, bytes, true)?;
            if path::is_dir(fs, &top) { Ok(top) } else { Err(FsError::NotDirectory) }
        })?;
        Ok(Walk::new(self.0.live(path)?, path, top))
    }

    /// The attributes of a file. A symbolic link is followed.
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.0.on(path.as_ref(), |fs, bytes| Ok(Metadata(fs.getattr(&path::walk(fs, bytes, true)?))))
    }

    /// The attributes of a file, or of the symbolic link itself.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.symlink("nowhere", "/link")?;
    /// assert!(fs.symlink_metadata("/link")?.is_symlink());
    /// assert!(fs.metadata("/link").is_err());
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        self.0.on(path.as_ref(), |fs, bytes| Ok(Metadata(fs.getattr(&path::walk(fs, bytes, false)?))))
    }

    /// Whether the path leads to something.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// assert!(fs.try_exists("/lost+found")? && !fs.try_exists("/a")?);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::open`], except for ENOENT.
    pub fn try_exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Makes a directory with the permissions `0o755`.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.create_dir("/d")?;
    /// assert_eq!(fs.create_dir("/d").unwrap_err().raw_os_error(), 17); // EEXIST
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// EEXIST; ENOENT or ENOTDIR for the directory above; ENOSPC; EROFS.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let cred = self.0.cred;
        self.0.on(path.as_ref(), |fs, bytes| match path::parent(fs, None, bytes)? {
            (dir, LastPart::Name { name, .. }) => fs.create(&dir, name, NewNode::directory(0o755), cred).map(drop),
            _ => Err(FsError::Exists),
        })
    }

    /// Makes a directory and all that are missing above it.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.create_dir_all("/a/b/c")?;
    /// fs.create_dir_all("/a/b/c")?;
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// ENOTDIR if a part of the path is something else; otherwise as [`Fs::create_dir`].
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let cred = self.0.cred;
        self.0.on(path.as_ref(), |fs, bytes| fs.make_dirs(bytes, 0o755, cred).map(drop))
    }

    /// Encrypts the empty directory `path` with the first key of [`crate::Image::keys`]: what is made in it from now on
    /// is encrypted, as `fscryptctl set_policy` would have it.
    ///
    /// # Errors
    /// ENOTEMPTY; EEXIST if it has another policy; ENOKEY without a key; EPERM for the root; EOPNOTSUPP without the
    /// feature `encrypt`; otherwise as [`Fs::create_dir`].
    pub fn encrypt(&self, path: impl AsRef<Path>) -> Result<()> {
        self.0.on(path.as_ref(), |fs, bytes| {
            let dir = path::walk(fs, bytes, true)?;
            let lacking = FsError::Unsupported(Unsupported::Content { ino: dir.ino });
            fs.set_encryption_policy(&dir, fs.default_policy().ok_or(lacking)?)
        })
    }

    /// Makes a symbolic link at `link` that leads to `target`, which need not exist.
    ///
    /// # Errors
    /// EEXIST; ENOENT for an empty target; ENAMETOOLONG for one as long as a block; ENOSPC; EROFS.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let cred = self.0.cred;
        self.0.on(link.as_ref(), |fs, bytes| {
            let target = path::bytes(target.as_ref())?;
            let (dir, name) = new_name(fs, bytes)?;
            fs.create(&dir, name, NewNode::symlink(&target), cred).map(drop)
        })
    }

    /// The target of a symbolic link.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.symlink("../etc", "/link")?;
    /// assert_eq!(fs.read_link("/link")?.to_str(), Some("../etc"));
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// EINVAL if it is none; otherwise as [`Fs::open`].
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.0.on(path.as_ref(), |fs, bytes| {
            let inode = path::walk(fs, bytes, false)?;
            if !FileType::of_mode(fs.getattr(&inode).mode).is_symlink() {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            Ok(PathBuf::from(path::name(&fs.read_link(&inode)?)))
        })
    }

    /// Gives the file at `original` another name. A symbolic link is not followed.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "")?;
    /// fs.hard_link("/a", "/b")?;
    /// assert_eq!(fs.metadata("/a")?.nlink(), 2);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// EEXIST; EPERM for a directory; EMLINK; ENOSPC; EROFS.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let inode = self.0.inode(original.as_ref(), false)?;
        self.0.on(link.as_ref(), |fs, bytes| {
            let (dir, name) = new_name(fs, bytes)?;
            match fs.link(&inode, &dir, name) {
                // The kernel looks at the new name first.
                Err(FsError::NotPermitted) if fs.lookup(&dir, name).is_ok() => Err(FsError::Exists),
                result => result,
            }
        })
    }

    /// Renames a file or directory. A file at `to`, or an empty directory, is replaced, without a moment in which
    /// neither is there.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "new")?;
    /// fs.write("/b", "old")?;
    /// fs.rename("/a", "/b")?;
    /// assert!(fs.read("/b")? == b"new" && !fs.try_exists("/a")?);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// ENOENT; ENOTEMPTY, EISDIR or ENOTDIR if the target cannot be replaced; EINVAL for a directory below itself;
    /// ENOSPC; EROFS. The error names `from`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.0.on(from.as_ref(), |fs, from| {
            let to = path::bytes(to.as_ref())?;
            let ((old_dir, old), (new_dir, new)) = (path::parent(fs, None, from)?, path::parent(fs, None, &to)?);
            let (LastPart::Name { name: old, slash }, LastPart::Name { name: new, slash: to_slash }) = (old, new)
            else {
                return Err(FsError::DotName);
            };
            if (slash || to_slash) && !path::is_dir(fs, &fs.lookup(&old_dir, old)?) {
                return Err(FsError::NotDirectory);
            }
            fs.rename(&old_dir, old, &new_dir, new, RenameFlags::default())
        })
    }

    /// Removes a file or a symbolic link.
    ///
    /// # Errors
    /// ENOENT; EISDIR; EPERM by the file's flags; EROFS.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        self.0.on(path.as_ref(), |fs, bytes| match path::parent(fs, None, bytes)? {
            (dir, LastPart::Name { name, slash: false }) => fs.unlink(&dir, name),
            (dir, LastPart::Name { name, .. }) => {
                let is_dir = path::is_dir(fs, &fs.lookup(&dir, name)?);
                Err(if is_dir { FsError::IsDirectory } else { FsError::NotDirectory })
            }
            _ => Err(FsError::IsDirectory),
        })
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// ENOENT; ENOTDIR; ENOTEMPTY; EBUSY for the root; EROFS.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.0.on(path.as_ref(), |fs, bytes| match path::parent(fs, None, bytes)? {
            (dir, LastPart::Name { name, .. }) => fs.rmdir(&dir, name),
            (_, LastPart::Root) => Err(FsError::Busy("the root directory")),
            (_, LastPart::Dot) => Err(FsError::Invalid("'.' cannot be removed")),
            (_, LastPart::DotDot) => Err(FsError::NotEmpty),
        })
    }

    /// Removes a directory and everything below it. A symbolic link is removed itself.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.create_dir_all("/a/b/c")?;
    /// fs.write("/a/b/file", "")?;
    /// fs.remove_dir_all("/a")?;
    /// assert!(!fs.try_exists("/a")?);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// The first that stops it, with the path at which it did: as [`Fs::remove_file`] and [`Fs::remove_dir`]. ENOTDIR
    /// for a file.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let top = self.0.inode(path, false)?;
        let fs = self.0.live(path)?;
        if FileType::of_mode(fs.getattr(&top).mode).is_symlink() {
            return self.remove_file(path);
        }
        if !path::is_dir(fs, &top) {
            return Err(Error::fs(fs.image(), Some(path), FsError::NotDirectory));
        }
        let mut steps = Steps::new(fs, &path::raw(path), top);
        while let Some(step) = steps.next() {
            let done = match (step, steps.dir()) {
                (Ok(Visit::Name(inode)), _) if path::is_dir(fs, &inode) => continue,
                (Ok(Visit::Name(_)), Some(dir)) => fs.unlink(dir, steps.name()),
                (Ok(Visit::Left(_)), Some(dir)) => fs.rmdir(dir, steps.name()),
                // The top itself is not in a directory of the walk.
                (Ok(_), None) => break,
                (Err(e), _) => Err(e),
            };
            done.map_err(|e| Error::fs(fs.image(), Some(Path::new(path::name(steps.path()))), e))?;
        }
        drop(steps);
        self.remove_dir(path)
    }

    /// Sets the permission bits.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "")?;
    /// fs.set_permissions("/a", 0o4755)?;
    /// assert_eq!(fs.metadata("/a")?.mode(), 0o4755);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::open`]; EPERM by the file's flags; EROFS.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let mode = Some((mode & 0o7777) as u16);
        self.set(path.as_ref(), true, &SetAttr { mode, ..SetAttr::default() })
    }

    /// Sets the times of the last access and the last change; `None` leaves one as it is.
    ///
    /// # Errors
    /// As [`Fs::set_permissions`].
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SystemTime>,
        modified: Option<SystemTime>,
    ) -> Result<()> {
        let at = |time: Option<SystemTime>| time.map(|time| SetTime::At(timestamp(time)));
        self.set(path.as_ref(), true, &SetAttr { atime: at(accessed), mtime: at(modified), ..SetAttr::default() })
    }

    /// Sets owner and group; `None` leaves one as it is. A symbolic link is followed.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "")?;
    /// fs.chown("/a", Some(1000), None)?;
    /// let metadata = fs.metadata("/a")?;
    /// assert_eq!((metadata.uid(), metadata.gid()), (1000, 0));
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Fs::set_permissions`].
    pub fn chown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(path.as_ref(), true, &SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// As [`Fs::chown`], of a symbolic link itself.
    ///
    /// # Errors
    /// As [`Fs::chown`].
    pub fn lchown(&self, path: impl AsRef<Path>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        self.set(path.as_ref(), false, &SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// The value of an extended attribute; `name` has its prefix, as in `user.mime_type`.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "")?;
    /// fs.set_xattr("/a", "user.mime_type", "text/plain")?;
    /// assert_eq!(fs.get_xattr("/a", "user.mime_type")?, b"text/plain");
    /// assert_eq!(fs.list_xattrs("/a")?, [b"user.mime_type"]);
    /// fs.remove_xattr("/a", "user.mime_type")?;
    /// assert_eq!(fs.get_xattr("/a", "user.mime_type").unwrap_err().raw_os_error(), 61); // ENODATA
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// ENODATA; EOPNOTSUPP for an unknown prefix; otherwise as [`Fs::open`].
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        self.0.on(path.as_ref(), |fs, bytes| fs.get_xattr(&path::walk(fs, bytes, true)?, name.as_ref()))
    }

    /// Sets an extended attribute, new or not.
    ///
    /// # Errors
    /// ENOSPC if the inode has no room; EOPNOTSUPP; E2BIG; otherwise as [`Fs::set_permissions`].
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.0.on(path.as_ref(), |fs, bytes| {
            fs.set_xattr(&path::walk(fs, bytes, true)?, name.as_ref(), value.as_ref(), SetMode::Any)
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// ENODATA; otherwise as [`Fs::set_permissions`].
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl AsRef<[u8]>) -> Result<()> {
        self.0.on(path.as_ref(), |fs, bytes| fs.remove_xattr(&path::walk(fs, bytes, true)?, name.as_ref()))
    }

    /// The names of a file's extended attributes.
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Result<Vec<Vec<u8>>> {
        self.0.on(path.as_ref(), |fs, bytes| fs.list_xattrs(&path::walk(fs, bytes, true)?))
    }

    /// The space of the file system.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// let space = fs.space()?;
    /// assert!(space.available <= space.free && space.free < space.total && space.total < 16 << 20);
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// EBADF if the image has been unmounted.
    pub fn space(&self) -> Result<Space> {
        let found = self.0.live(Path::new("/"))?.statfs();
        let bytes = |blocks: u64| blocks.saturating_mul(found.block_size.into());
        Ok(Space {
            total: bytes(found.blocks),
            free: bytes(found.blocks_free),
            available: bytes(found.blocks_available),
            files: found.inodes,
            files_free: found.inodes_free,
        })
    }

    /// Makes everything that was written so far durable.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// fs.write("/a", "text")?;
    /// fs.sync()?;
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// EIO or ENOSPC with the first write that was lost.
    pub fn sync(&self) -> Result<()> {
        let fs = self.0.live(Path::new("/"))?;
        fs.sync().map_err(|e| Error::fs(fs.image(), None, e))
    }

    /// Whether nothing can be changed: by request, or after an error.
    pub fn is_read_only(&self) -> bool {
        self.0.mounted.is_read_only()
    }

    /// The image's name.
    pub fn image(&self) -> &str {
        self.0.mounted.image()
    }

    /// Makes everything durable, marks the image clean and ends the mount, for clones and open files as well: they fail
    /// with EBADF from now on. The image stays locked until they are dropped.
    ///
    /// ```
    /// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
    /// let other = fs.clone();
    /// fs.unmount()?;
    /// assert_eq!(other.read("/a").unwrap_err().raw_os_error(), 9); // EBADF
    /// # Ok::<(), extant::Error>(())
    /// ```
    ///
    /// # Errors
    /// EIO or ENOSPC with the first thing that could not be made durable. The mount has ended all the same.
    pub fn unmount(self) -> Result<()> {
        self.0.end()
    }
}

fn no_memory() -> FsError {
    FsError::NoMemory { detail: "the content does not fit the memory".to_owned() }
}

/// The directory and the name of something that is not a directory and is to be created.
fn new_name<'p>(fs: &Filesystem, path: &'p [u8]) -> extant_fs::Result<(InodeRef, &'p [u8])> {
    match path::parent(fs, None, path)? {
        (dir, LastPart::Name { name, slash: false }) => Ok((dir, name)),
        (dir, LastPart::Name { name, .. }) => match fs.lookup(&dir, name) {
            Ok(_) => Err(FsError::Exists),
            Err(e) => Err(e),
        },
        _ => Err(FsError::Exists),
    }
}
