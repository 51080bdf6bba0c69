//! The one place with `unsafe`: an ioctl that no safe wrapper offers.
//!
//! # Locking
//! None.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// Linux: `FUSE_DEV_IOC_CLONE`, include/uapi/linux/fuse.h: _IOR(229, 0, uint32_t).
const FUSE_DEV_IOC_CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Opens /dev/fuse, not attached to any connection yet.
pub fn open_device() -> Result<OwnedFd> {
    open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// A second descriptor of the connection behind `fd`, with its own queue of requests in processing: replies must go to
/// the descriptor that the request was read from.
pub fn clone_device(fd: impl AsFd) -> Result<OwnedFd> {
    let clone = open_device()?;
    let source = u32::try_from(fd.as_fd().as_raw_fd()).map_err(|_| Errno::BADF)?;
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the number of an open descriptor, through the pointer that `Setter`
    // passes, and writes nothing. `fd` is borrowed for the whole call, so the number stays valid.
    unsafe { ioctl(&clone, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(source))? };
    Ok(clone)
}
