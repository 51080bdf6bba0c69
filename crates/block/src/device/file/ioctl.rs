//! Operations on block devices and files that rustix does not offer.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Linux: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Linux: include/uapi/asm-generic/fcntl.h.
const F_SETSIG: libc::c_int = 10;

/// Discards `len` bytes of the block device `file` from `offset` on; both are multiples of its logical block.
pub(super) fn blkdiscard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range: [u64; 2] = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the address, which outlive the call; the descriptor is open.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether any process has the file open for writing. `file` is open only for reading. The caller must own it, or be
/// allowed to take leases of any file.
///
/// # Errors
/// The caller may not take a lease, or the file system does not support it.
pub(super) fn is_open_for_writing(file: &File) -> io::Result<bool> {
    let request = |command, value: libc::c_int| {
        // SAFETY: these commands take an integer, and no address.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // If a process opens the file for writing in the meantime, the kernel sends a signal. By default that would be
    // SIGIO, which ends this process.
    request(F_SETSIG, libc::SIGURG)?;
    match request(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => request(libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(true),
        Err(e) => Err(e),
    }
}
