//! An open file.
//!
//! Main type: [`File`].
//!
//! # Locking
//! None of its own.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use extant_base::sync::Waiter;
use extant_fs::{Error as FsError, Filesystem, InodeRef, LossCursor, SetAttr, SetTime, WriteFlags};

use crate::error::{Error, Result, number};
use crate::fs::Fs;
use crate::metadata::{Metadata, timestamp};

/// An open file of an image, as `std::fs::File`.
///
/// Written data is durable after [`File::sync_all`], or when the image has been unmounted. Dropping the file closes it
/// and reports nothing. A file that has been removed stays usable while it is open.
///
/// ```
/// use std::io::{Read, Seek, SeekFrom, Write};
///
/// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
/// let mut file = fs.create("/data")?;
/// file.write_all(b"0123456789")?;
/// file.write_at(b"ABC", 4)?;
/// file.sync_all()?;
///
/// let mut file = fs.open("/data")?;
/// file.seek(SeekFrom::Start(3))?;
/// let mut text = String::new();
/// file.read_to_string(&mut text)?;
/// assert_eq!(text, "3ABC789");
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct File {
    /// In front of `fs`, whose last handle unmounts.
    inode: InodeRef,
    cursor: Option<LossCursor>,
    fs: Fs,
    path: PathBuf,
    position: u64,
    reads: bool,
    writes: bool,
    appends: bool,
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File").field("path", &self.path).field("position", &self.position).finish_non_exhaustive()
    }
}

impl File {
    pub(crate) fn new(fs: Fs, inode: InodeRef, path: &Path, reads: bool, writes: bool, appends: bool) -> File {
        let cursor = Some(fs.shared().mounted.serving().open_cursor(&inode));
        File { inode, cursor, fs, path: path.to_path_buf(), position: 0, reads, writes: writes || appends, appends }
    }

    /// Runs an operation on the open inode.
    fn on<T>(&self, operation: impl FnOnce(&Filesystem, &InodeRef) -> extant_fs::Result<T>) -> Result<T> {
        let fs = self.fs.shared().live(&self.path)?;
        operation(fs, &self.inode).map_err(|e| Error::fs(fs.image(), Some(&self.path), e))
    }

    fn permit(&self, permitted: bool, why: &'static str) -> Result<()> {
        let image = self.fs.shared().mounted.image();
        if permitted { Ok(()) } else { Err(Error::wrong_use(image, Some(&self.path), number::EBADF, why)) }
    }

    /// Reads from byte `offset` on, without moving the position; returns how many bytes there were.
    ///
    /// # Errors
    /// EISDIR; EBADF if the file was not opened to read; EUCLEAN if its map is damaged; EIO.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.permit(self.reads, "not opened to read")?;
        self.on(|fs, inode| fs.read(inode, offset, buf))
    }

    /// Writes at byte `offset`, without moving the position; returns how many bytes were written, which is all of them
    /// unless the image is full.
    ///
    /// # Errors
    /// ENOSPC; EFBIG; EROFS; EBADF if the file was not opened to write; EPERM by the file's flags; EIO.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        self.permit(self.writes, "not opened to write")?;
        self.on(|fs, inode| {
            let offset = if self.appends { fs.getattr(inode).size } else { offset };
            fs.write(inode, offset, data, WriteFlags::default())
        })
    }

    /// Makes content and attributes durable, and reports a write of this file that was lost since it was opened or
    /// last asked (fsync(2)).
    ///
    /// # Errors
    /// EIO or ENOSPC if something is lost.
    pub fn sync_all(&self) -> Result<()> {
        self.sync(false)
    }

    /// As [`File::sync_all`], without attributes that reading the content does not need (fdatasync(2)).
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn sync_data(&self) -> Result<()> {
        self.sync(true)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.on(|fs, inode| {
            let waiter = Waiter::new();
            let answer = waiter.clone();
            let cursor = self.cursor.clone().unwrap_or_else(LossCursor::thread);
            fs.serving().fsync_async(inode, cursor, data_only, Box::new(move |result| answer.set(result)));
            waiter.wait()
        })
    }

    /// Cuts the file, or extends it with zeroes that take no space.
    ///
    /// # Errors
    /// EBADF if the file was not opened to write; EFBIG; EPERM by the file's flags; EROFS.
    pub fn set_len(&self, size: u64) -> Result<()> {
        self.permit(self.writes, "not opened to write")?;
        self.on(|fs, inode| fs.setattr(inode, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop))
    }

    /// The file's attributes.
    ///
    /// # Errors
    /// EBADF if the image has been unmounted.
    pub fn metadata(&self) -> Result<Metadata> {
        self.on(|fs, inode| Ok(Metadata(fs.getattr(inode))))
    }

    /// Sets the permission bits.
    ///
    /// # Errors
    /// EPERM by the file's flags; EROFS.
    pub fn set_permissions(&self, mode: u32) -> Result<()> {
        let mode = Some((mode & 0o7777) as u16);
        self.on(|fs, inode| fs.setattr(inode, &SetAttr { mode, ..SetAttr::default() }).map(drop))
    }

    /// Sets the times of the last access and the last change; `None` leaves one as it is.
    ///
    /// # Errors
    /// EPERM by the file's flags; EROFS.
    pub fn set_times(&self, accessed: Option<SystemTime>, modified: Option<SystemTime>) -> Result<()> {
        let at = |time: Option<SystemTime>| time.map(|time| SetTime::At(timestamp(time)));
        let set = SetAttr { atime: at(accessed), mtime: at(modified), ..SetAttr::default() };
        self.on(|fs, inode| fs.setattr(inode, &set).map(drop))
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if self.writes
            && let Ok(fs) = self.fs.shared().live(&self.path)
        {
            fs.release(&self.inode);
        }
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.read_at(buf, self.position)?;
        self.position += n as u64;
        Ok(n)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.appends {
            self.position = self.metadata()?.len();
        }
        let n = self.write_at(data, self.position)?;
        self.position += n as u64;
        Ok(n)
    }

    /// Nothing to do: no data waits in this handle. [`File::sync_all`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.metadata()?.len().checked_add_signed(by),
        };
        // As lseek(2): an offset is a signed number.
        let at = at.filter(|at| i64::try_from(*at).is_ok()).ok_or(FsError::Invalid("a seek out of range"));
        self.position = self.on(|_, _| at)?;
        Ok(self.position)
    }
}
