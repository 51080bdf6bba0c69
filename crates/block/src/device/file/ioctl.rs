//! The one request to block devices that rustix does not offer.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Linux: `_IO(0x12, 119)`.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// Discards `len` bytes of the block device `file` from `offset` on; both are multiples of its logical block.
pub(super) fn blkdiscard(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let range: [u64; 2] = [offset, len];
    // SAFETY: BLKDISCARD reads two u64 from the address, which outlive the call; the descriptor is open.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
