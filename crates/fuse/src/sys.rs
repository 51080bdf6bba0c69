//! The one place with `unsafe`: an ioctl and a scheduling policy that no safe wrapper offers.
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

/// Gives the calling thread the policy SCHED_IDLE, or SCHED_OTHER again. Only a privileged thread comes back.
pub fn set_idle_policy(idle: bool) -> Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one sched_param through the pointer; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Whether the calling thread has the policy SCHED_IDLE.
#[cfg(test)]
pub fn has_idle_policy() -> bool {
    // SAFETY: 0 is the calling thread; nothing is passed.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}
