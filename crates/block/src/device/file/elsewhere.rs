//! Opening a file on systems other than Linux.
//!
//! As on Linux, an open image excludes other users, but only as a whole: by flock(2) on Unix, by the share mode on
//! Windows. A loop device or a mount of the system itself is not recognized.
//!
//! What it does not do: open block devices, whose size these systems report in different ways.
//!
//! # Locking
//! The lock of the host, which is held until the file is closed.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::IoMode;
use super::options::{OpenOptions, Opened};
use crate::device::Limits;
use crate::error::{BusyBy, Error, Result};

const TRANSFER_MAX: u32 = 1 << 20;
const PHYSICAL_BLOCK: u32 = 4096;

/// The kernel's use of an image, which is unknown on this system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    /// The device in between.
    pub through: Option<PathBuf>,
    /// The directory.
    pub at: Option<String>,
}

impl fmt::Display for KernelMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mounted by the system at {}", self.at.as_deref().unwrap_or("an unknown place"))
    }
}

/// The kernel's use of the image at `path`, which is never known on this system.
///
/// # Errors
/// None.
pub fn same_image_in_use(_: &Path) -> io::Result<Option<KernelMount>> {
    Ok(None)
}

/// The same as [`same_image_in_use`], for a range of it.
///
/// # Errors
/// None.
pub fn range_in_use(_: &Path, _: u64, _: Option<u64>) -> io::Result<Option<KernelMount>> {
    Ok(None)
}

/// The loop device that could write to the image; this system has none.
pub fn writing_loop_device(_: &Path, _: u64, _: Option<u64>) -> Option<String> {
    None
}

/// Whether any of the bytes is locked.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`]: this system locks whole files, and does not show locks.
pub fn is_locked(_: &Path, _: u64, _: Option<u64>) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether any of the bytes is locked for writing.
///
/// # Errors
/// As [`is_locked`].
pub fn has_writer(_: &Path, _: u64, _: Option<u64>) -> io::Result<bool> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(windows)]
fn excluding(how: &mut std::fs::OpenOptions, read_only: bool) {
    use std::os::windows::fs::OpenOptionsExt;
    /// Windows: `FILE_SHARE_READ`, winnt.h.
    const FILE_SHARE_READ: u32 = 1;
    how.share_mode(if read_only { FILE_SHARE_READ } else { 0 });
}

#[cfg(not(windows))]
fn excluding(_: &mut std::fs::OpenOptions, _: bool) {}

/// Windows: `ERROR_SHARING_VIOLATION`, winerror.h.
#[cfg(windows)]
fn is_busy(e: &io::Error) -> bool {
    e.raw_os_error() == Some(32)
}

#[cfg(not(windows))]
fn is_busy(_: &io::Error) -> bool {
    false
}

/// Returns false if another process has the file locked.
#[cfg(unix)]
fn lock(file: &File, read_only: bool) -> io::Result<bool> {
    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;
    let kind = if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    match flock(file, kind) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// The share mode has already excluded the others.
#[cfg(windows)]
fn lock(_: &File, _: bool) -> io::Result<bool> {
    Ok(true)
}

pub(super) fn open(path: &Path, name: &str, options: &OpenOptions, create: Option<u64>) -> Result<Opened> {
    let failed = |e: io::Error| Error::open(name, e);
    let mut how = std::fs::OpenOptions::new();
    how.read(true).write(!options.read_only).create(create.is_some() && !options.read_only);
    excluding(&mut how, options.read_only);
    let busy = || Error::Busy { device: name.to_owned(), by: BusyBy::Lock };
    let data = how.open(path).map_err(|e| if is_busy(&e) { busy() } else { failed(e) })?;
    let meta = data.metadata().map_err(failed)?;
    if !meta.is_file() {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a file: only image files work here")));
    }
    if !lock(&data, options.read_only).map_err(failed)? {
        return Err(busy());
    }
    if let Some(size) = create
        && meta.len() < size
    {
        data.set_len(size).map_err(failed)?;
    }
    let end = data.metadata().map_err(failed)?.len();
    let start = options.offset;
    let size = options.len.unwrap_or(end.saturating_sub(start));
    if start > end || start.checked_add(size).is_none_or(|e| e > end) {
        let what = format!("{size} bytes at byte {start} wanted, but it ends at {end}");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
    }
    let limits = Limits {
        logical_block: 512,
        physical_block: PHYSICAL_BLOCK,
        max_transfer: TRANSFER_MAX,
        discard: false,
        volatile_cache: true,
    };
    if !start.is_multiple_of(u64::from(limits.logical_block)) {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "offset is not a multiple of the block size")));
    }
    Ok(Opened { data, io: IoMode::Buffered, start, size, limits, unguarded: Vec::new() })
}

/// The same open file, for flushes. These systems report a lost write to every flush, or have no better way.
pub(super) fn reopen(file: &File, _: &Path, _: bool) -> io::Result<File> {
    file.try_clone()
}
