//! Locks on the bytes of an image file, owned by the open file description (Linux: F_OFD_SETLK).
//!
//! Each byte has one writer or many readers. So two partitions of one image can be in use at the same time, but two
//! users of the same bytes cannot. The locks are advisory: other programs obey them only if they ask (QEMU does); the
//! kernel's loop driver does not. [`super::readers`] decides which read locks a writer may ignore.
//!
//! QEMU gives single bytes of a file a meaning (block/file-posix.c): a read lock on byte 100 + N means that its owner
//! does N, and one on byte 200 + N that others must not. Each user sets its bytes and then looks for contradictions.
//! [`claim`] follows this, so that a guest and Extant can read an image at the same time, and no program writes at the
//! same time as another.
//!
//! | user | its own range | sets | must be free |
//! |---|---|---|---|
//! | reads the image | read lock, without QEMU's bytes | 100; 201 203 | 101 103 |
//! | reads a partition | read lock | 100; 203 | 103 |
//! | writes the image | write lock, with QEMU's bytes | | |
//! | writes a partition | write lock | 100 101 | 201 |
//!
//! A reader ignores bytes of the last column if no process has the file open for writing ([`super::readers`]). A
//! partition's reader does not deny writing (201), because a writer of another partition must be allowed. QEMU may also
//! resize an image that it writes (103), but a writer of a partition never does.
//!
//! # Locking
//! The locks of the host, as above, which are held until the description is closed.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};

use super::ioctl::is_open_for_writing;

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

/// QEMU's bytes for the operations of an owner, and for those that others must not do.
const DOES: u64 = 100;
const DENIES: u64 = 200;
/// QEMU's numbers of the operations: reading, writing, changing the size.
const READ: u64 = 0;
const WRITE: u64 = 1;
const RESIZE: u64 = 3;
/// The number of operations that QEMU knows or has known.
const OPERATIONS: u64 = 5;

const fn byte(start: u64) -> Range {
    Range { start, len: Some(1) }
}

/// QEMU's byte of users that write.
pub(super) const WRITES: Range = byte(DOES + WRITE);

impl Range {
    /// Whether QEMU considers the range to be the whole image.
    fn covers_protocol(self) -> bool {
        self.start <= DOES && self.len.is_none_or(|len| self.start.saturating_add(len) >= DENIES + OPERATIONS)
    }

    /// The range without QEMU's bytes.
    fn pieces(self) -> [Range; 3] {
        let end = self.len.map(|len| self.start.saturating_add(len));
        let between = |from: u64, to: Option<u64>| {
            let (from, to) = (from.max(self.start), to.into_iter().chain(end).min());
            Range { start: from, len: to.map(|to| to.saturating_sub(from)) }
        };
        [between(0, Some(DOES)), between(DOES + OPERATIONS, Some(DENIES)), between(DENIES + OPERATIONS, None)]
    }
}

/// Locks the range for a reader, or for a writer with `exclusive`, and sets QEMU's bytes. Returns false if another user
/// has locked any of the bytes; then `file` has no lock.
pub(super) fn claim(file: &File, range: Range, exclusive: bool) -> io::Result<bool> {
    let claimed = try_claim(file, range, exclusive);
    if !matches!(claimed, Ok(true)) {
        unlock(file);
    }
    claimed
}

fn try_claim(file: &File, range: Range, exclusive: bool) -> io::Result<bool> {
    let whole = range.covers_protocol();
    if whole && exclusive {
        return lock(file, range, true);
    }
    let own = if whole { range.pieces().to_vec() } else { vec![range] };
    for piece in own {
        if !lock(file, piece, exclusive)? {
            return Ok(false);
        }
    }
    let (sets, free): (&[u64], &[u64]) = match (whole, exclusive) {
        (true, _) => (&[DOES + READ, DENIES + WRITE, DENIES + RESIZE], &[DOES + WRITE, DOES + RESIZE]),
        (false, false) => (&[DOES + READ, DENIES + RESIZE], &[DOES + RESIZE]),
        (false, true) => (&[DOES + READ, DOES + WRITE], &[DENIES + WRITE]),
    };
    for at in sets {
        if !lock(file, byte(*at), false)? {
            return Ok(false);
        }
    }
    let mut taken = false;
    for at in free {
        taken |= is_refused_to(file, byte(*at), libc::F_WRLCK)?;
    }
    // Any user may lock these bytes for reading, but only a writer's lock is reliable.
    Ok(!taken || !exclusive && !is_open_for_writing(file).unwrap_or(true))
}

/// Returns false if another holder has locked any of the bytes. `exclusive` needs `file` to be open for writing.
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

/// Whether an error of a lock means that the host cannot lock this file at all. The file system may have no locks, its
/// server may not answer lock requests, or the kernel (for example an emulation of Linux) may not know them.
pub(super) fn is_missing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ENOLCK | libc::ENOSYS | libc::EOPNOTSUPP | libc::EINVAL))
}

/// Releases all locks of `file`.
pub(super) fn unlock(file: &File) {
    if let Ok(request) = WHOLE.request(libc::F_UNLCK) {
        let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&request));
    }
}

/// Whether any of `len` bytes (`None` for all) from `start` on of the image file at `path` is locked.
///
/// # Errors
/// It cannot be opened for reading, or the host cannot lock files ([`io::ErrorKind::Unsupported`]).
pub fn is_locked(path: &Path, start: u64, len: Option<u64>) -> io::Result<bool> {
    is_refused(path, Range { start, len }, libc::F_WRLCK)
}

/// Whether any of `len` bytes (`None` for all) from `start` on of the image file at `path` is locked for writing.
///
/// # Errors
/// As [`is_locked`].
pub fn has_writer(path: &Path, start: u64, len: Option<u64>) -> io::Result<bool> {
    is_refused(path, Range { start, len }, libc::F_RDLCK)
}

/// Whether a lock of this kind would be refused.
fn is_refused(path: &Path, range: Range, kind: libc::c_int) -> io::Result<bool> {
    // A FIFO that has replaced the file must not block us.
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
