//! The one place with `unsafe`: an ioctl, a scheduling policy, a thread's own working directory, and the process's
//! user and group as the kernel sees them. There are no safe wrappers for these.
//!
//! # Locking
//! None.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, Result};
use rustix::ioctl::{NoArg, Opcode, Setter, ioctl, opcode};
use rustix::process::{Gid, Pid, Uid};

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

/// Our own ioctls on the root directory of a mount. They have no argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Freeze,
    Thaw,
    ReadOnly,
    ReadWrite,
}

impl Control {
    pub(crate) const FREEZE: u32 = opcode::none(0xEB, 1) as u32;
    pub(crate) const THAW: u32 = opcode::none(0xEB, 2) as u32;
    pub(crate) const READ_ONLY: u32 = opcode::none(0xEB, 3) as u32;
    pub(crate) const READ_WRITE: u32 = opcode::none(0xEB, 4) as u32;
}

/// Sends the ioctl to the server of the mount whose root `dir` is.
pub fn control(dir: impl AsFd, what: Control) -> Result<()> {
    // SAFETY: these carry no argument, and no driver gives their numbers another meaning for a directory of a FUSE
    // mount.
    unsafe {
        match what {
            Control::Freeze => ioctl(dir, NoArg::<{ Control::FREEZE as Opcode }>::new()),
            Control::Thaw => ioctl(dir, NoArg::<{ Control::THAW as Opcode }>::new()),
            Control::ReadOnly => ioctl(dir, NoArg::<{ Control::READ_ONLY as Opcode }>::new()),
            Control::ReadWrite => ioctl(dir, NoArg::<{ Control::READ_WRITE as Opcode }>::new()),
        }
    }
}

/// The effective user as the kernel knows it. Under fakeroot(1) the C library's geteuid(2) returns root, while
/// mount(2) and other processes see this one.
pub fn kernel_uid() -> Uid {
    // SAFETY: takes no argument and cannot fail.
    Uid::from_raw(unsafe { libc::syscall(libc::SYS_geteuid) } as u32)
}

/// As [`kernel_uid`], the effective group.
pub fn kernel_gid() -> Gid {
    // SAFETY: takes no argument and cannot fail.
    Gid::from_raw(unsafe { libc::syscall(libc::SYS_getegid) } as u32)
}

/// Gives the calling thread a working directory of its own, instead of the process's shared one.
pub fn own_working_directory() -> Result<()> {
    // SAFETY: no descriptor, which others might rely on, is affected: the flag covers only working directory, root
    // and umask.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}

/// Sets the policy of a thread of this process (None: the calling one) to SCHED_IDLE, or back to SCHED_OTHER. The way
/// back requires a privilege.
pub fn set_idle_policy(thread: Option<Pid>, idle: bool) -> Result<()> {
    let policy = if idle { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one sched_param through the pointer; the first argument is a thread's number.
    match unsafe { libc::sched_setscheduler(Pid::as_raw(thread), policy, &param) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// Whether a thread (None: the calling one) has the scheduling policy `policy`, and no flag.
pub fn has_policy(thread: Option<Pid>, policy: i32) -> bool {
    // SAFETY: the argument is a thread's number; nothing else is passed.
    unsafe { libc::sched_getscheduler(Pid::as_raw(thread)) == policy }
}
