//! Read locks that a writer may ignore.
//!
//! Any user who may read a file may lock all of it for reading, for ever. Such a lock must not prevent the owner of an
//! image from writing it. A write lock proves that its holder may write, but a read lock proves nothing. On the other
//! hand, legitimate holders have nothing else: Extant's own readers, and QEMU, which takes read locks on single bytes
//! when it writes. So a read lock counts if its holder could have a write lock:
//!
//! - some process has the file open for writing, which a lease shows for any process;
//! - or the lock belongs to a process of the caller, of root or of the file's owner, and /proc shows it. The real user
//!   counts, because a set-user-id program may have received the lock from its caller.
//!
//! If either check is impossible, every lock counts. A writer that ignores readers takes a read lock itself, because it
//! cannot get a write lock. A second writer finds the first one's descriptor, because each checks after opening its
//! own.
//!
//! # Locking
//! The same as [`super::lock`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};

use super::ioctl::is_open_for_writing;
use super::lock::{Range, WRITES, is_refused_to, lock};

/// Whether only read locks of other users prevent a writer from using `range`. `file` is open only for reading, and the
/// caller does not have it open for writing anywhere.
pub(super) fn are_all(file: &File, range: Range) -> io::Result<bool> {
    Ok(!is_refused_to(file, range, libc::F_RDLCK)? && !is_open_for_writing(file)?)
}

/// Locks `range` of `file`, which is open for writing, despite read locks of other users.
pub(super) fn pass(file: &File, range: Range) -> io::Result<bool> {
    Ok(lock(file, range, false)? && lock(file, WRITES, false)? && !has_peer(file)?)
}

/// Whether a descriptor other than `file` is open for writing, or holds a lock for a process that could write.
fn has_peer(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    let users = [0, rustix::process::geteuid().as_raw(), meta.uid()];
    let (own_process, own_file) = (std::process::id().to_string(), file.as_raw_fd().to_string());
    let is_same = |path: &Path| {
        // This sends no request to the server of a FUSE mount, which may not answer.
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        statx(CWD, path, flags, StatxFlags::INO)
            .is_ok_and(|st| (makedev(st.stx_dev_major, st.stx_dev_minor), st.stx_ino) == (meta.dev(), meta.ino()))
    };
    // Digits only, which also excludes "self", a second name of this process.
    let is_number = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit);
    for entry in fs::read_dir("/proc")?.flatten().filter(|entry| is_number(&entry.file_name())) {
        let process = entry.path();
        let is_own = entry.file_name() == *own_process;
        // A process that may not be examined belongs to another user. The lease has already shown whether it writes.
        let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        for fd in files.filter(|fd| !(is_own && fd.file_name() == *own_file) && is_same(&fd.path())) {
            let info = fs::read_to_string(process.join("fdinfo").join(fd.file_name())).unwrap_or_default();
            let is_trusted = || real_user(&process).is_none_or(|uid| users.contains(&uid));
            if writes(&info) || info.lines().any(|line| line.starts_with("lock:")) && is_trusted() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether a descriptor is open for writing, according to /proc.
fn writes(info: &str) -> bool {
    let flags = info.lines().find_map(|line| i32::from_str_radix(line.strip_prefix("flags:")?.trim(), 8).ok());
    flags.is_none_or(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

fn real_user(process: &Path) -> Option<u32> {
    let text = fs::read_to_string(process.join("status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Uid:")?.split_ascii_whitespace().next()?.parse().ok())
}
