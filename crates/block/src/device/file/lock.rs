//! Locks on the bytes of an image file, owned by the open file description (Linux: F_OFD_SETLK).
//!
//! Each byte has one writer or many readers. So two partitions of one image can be in use at once, and two users of
//! the same bytes cannot. The locks are advisory: other programs heed them only if they ask (QEMU does); the kernel's
//! loop driver does not. [`super::readers`] decides which read locks a writer may ignore.
//!
//! # Locking
//! The locks of the host, as above; held until the description is closed.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};

/// Bytes of a file; `len` is `None` for everything from `start` on, including bytes that are added later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub start: u64,
    pub len: Option<u64>,
}

const WHOLE: Range = Range { start: 0, len: None };

impl Range {
    fn request(self, kind: libc::c_int) -> io::Result<libc::flock> {
        let place = |n: u64| libc::off_t::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        Ok(libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: place(self.start)?,
            // 0 means "to the end, wherever that is".
            l_len: place(self.len.unwrap_or(0))?,
            l_pid: 0,
        })
    }
}

/// False if another holder has locked any of the bytes. `exclusive` wants `file` open for writing.
pub(super) fn lock(file: &File, range: Range, exclusive: bool) -> io::Result<bool> {
    if range.len == Some(0) {
        return Ok(true);
    }
    let request = range.request(if exclusive { libc::F_WRLCK } else { libc::F_RDLCK })?;
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&request)) {
            Ok(_) => return Ok(true),
            Err(nix::Error::EINTR) => {}
            Err(nix::Error::EAGAIN | nix::Error::EACCES) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
}

/// Whether an error of a lock means that the host cannot lock this file at all. The file system may have no locks,
/// its server may not answer lock requests, or the kernel (an emulation of Linux, say) may not know them.
pub(super) fn is_missing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// Releases all locks of `file`.
pub(super) fn unlock(file: &File) {
    if let Ok(request) = WHOLE.request(libc::F_UNLCK) {
        let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&request));
    }
}

/// Whether any of `len` bytes (`None`: all) from `start` on of the image file at `path` is locked.
///
/// # Errors
/// It cannot be opened for reading, or the host cannot lock files ([`io::ErrorKind::Unsupported`]).
pub fn is_locked(path: &Path, start: u64, len: Option<u64>) -> io::Result<bool> {
    is_refused(path, Range { start, len }, libc::F_WRLCK)
}

/// Whether any of `len` bytes (`None`: all) from `start` on of the image file at `path` is locked for writing.
///
/// # Errors
/// As [`is_locked`].
pub fn has_writer(path: &Path, start: u64, len: Option<u64>) -> io::Result<bool> {
    is_refused(path, Range { start, len }, libc::F_RDLCK)
}

/// Whether a lock of this kind would be refused.
fn is_refused(path: &Path, range: Range, kind: libc::c_int) -> io::Result<bool> {
    // A fifo that has this name by now must not block us.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    is_refused_to(&file, range, kind)
}

/// Whether a lock of this kind would be refused to `file`.
pub(super) fn is_refused_to(file: &File, range: Range, kind: libc::c_int) -> io::Result<bool> {
    let mut request = range.request(kind)?;
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request)).map_err(|e| match io::Error::from(e) {
        e if is_missing(&e) => io::Error::new(io::ErrorKind::Unsupported, e),
        e => e,
    })?;
    Ok(libc::c_int::from(request.l_type) != libc::F_UNLCK)
}
