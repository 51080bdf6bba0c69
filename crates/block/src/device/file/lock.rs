//! Who has which bytes of an image file: locks of the open file description (Linux: F_OFD_SETLK).
//!
//! One writer or many readers of each byte, so that two partitions of one image can be in use at once and two users of
//! the same bytes cannot. They are advisory: other programs heed them if they ask (QEMU does), the kernel's loop driver
//! does not. Which locks for reading a writer need not heed: [`super::readers`].
//!
//! # Locking
//! The locks of the host, as above; held until the description is closed.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};

/// Bytes of a file; `len` is `None` for all from `start` on, those that are still to come included.
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
            // 0 stands for "to the end, wherever that is".
            l_len: place(self.len.unwrap_or(0))?,
            l_pid: 0,
        })
    }
}

/// False when somebody has bytes of it. `exclusive` wants `file` open for writing.
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

/// Whether an error of a lock says that the host cannot lock this file at all: the file system has no locks, or its
/// server does not answer for them, or the kernel (another one that plays Linux, say) does not know them.
pub(super) fn is_missing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// Lets go of all that `file` has.
pub(super) fn unlock(file: &File) {
    if let Ok(request) = WHOLE.request(libc::F_UNLCK) {
        let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&request));
    }
}

/// Whether anybody has any of `len` bytes (`None`: all) from `start` on of the image file at `path`.
///
/// # Errors
/// It cannot be opened for reading, or the host cannot lock files ([`io::ErrorKind::Unsupported`]).
pub fn is_locked(path: &Path, start: u64, len: Option<u64>) -> io::Result<bool> {
    is_refused(path, Range { start, len }, libc::F_WRLCK)
}

/// Whether anybody may write `len` bytes (`None`: all) from `start` on of the image file at `path`.
///
/// # Errors
/// As [`is_locked`].
pub fn has_writer(path: &Path, start: u64, len: Option<u64>) -> io::Result<bool> {
    is_refused(path, Range { start, len }, libc::F_RDLCK)
}

/// Whether a lock of this kind would be refused.
fn is_refused(path: &Path, range: Range, kind: libc::c_int) -> io::Result<bool> {
    // A fifo that has its name by now must not make us wait.
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
