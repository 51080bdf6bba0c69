//! Mounting through fusermount3, for users that may not call mount(2).
//!
//! The helper opens /dev/fuse, mounts, and passes the descriptor back over a socket (SCM_RIGHTS). The socket is its
//! standard input, so that it inherits no other descriptor.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

use super::MountOptions;
use crate::error::FuseError;

const HELPER: &str = "fusermount3";

fn failed(path: &Path, what: impl Into<String>) -> FuseError {
    FuseError::Fusermount { path: path.into(), what: what.into() }
}

/// The helper did not start.
fn not_started(path: &Path, e: &std::io::Error) -> FuseError {
    match e.kind() {
        std::io::ErrorKind::NotFound => failed(path, "there is no program fusermount3 (on Debian: apt install fuse3)"),
        _ => failed(path, e.to_string()),
    }
}

/// A value inside `-o`: the helper splits at commas unless they are escaped.
fn escape(value: &OsStr) -> OsString {
    let mut escaped = Vec::with_capacity(value.len());
    for byte in value.as_bytes() {
        if matches!(byte, b'\\' | b',') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    OsString::from_vec(escaped)
}

fn option_list(options: &MountOptions) -> OsString {
    let mut o = OsString::from("fsname=");
    o.push(escape(&options.fsname));
    o.push(format!(",subtype={}", options.subtype));
    o.push(options.fuse_options());
    let switches = [
        (options.read_only, ",ro"),
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
        (options.noatime, ",noatime"),
        (options.sync, ",sync"),
        (options.dirsync, ",dirsync"),
    ];
    for (_, word) in switches.iter().filter(|s| s.0) {
        o.push(word);
    }
    o
}

pub(super) fn mount(path: &Path, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    let socket_failed = |e: Errno| failed(path, format!("socket: {e}"));
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(socket_failed)?;
    let mut child = Command::new(HELPER)
        .arg("-o")
        .arg(option_list(options))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", "0")
        .stdin(theirs)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| not_started(path, &e))?;
    let received = receive(&ours);
    drop(ours);
    let mut stderr = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut stderr);
    }
    let status = child.wait().map_err(|e| failed(path, e.to_string()))?;
    match received {
        Ok(Some(fd)) if status.success() => {
            // The close-on-exec flag is not passed along with the descriptor.
            fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(socket_failed)?;
            Ok(fd)
        }
        Err(e) => Err(socket_failed(e)),
        _ if stderr.trim().is_empty() => Err(failed(path, status.to_string())),
        _ if stderr.contains("/dev/fuse: Permission denied") => {
            Err(failed(path, format!("{} (you need to be able to read and write it: ls -l /dev/fuse)", stderr.trim())))
        }
        _ => Err(failed(path, stderr.trim())),
    }
}

fn receive(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
            Ok(_) => {}
        }
        let mut fds = control.drain().filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        return Ok(fds.next());
    }
}

pub(super) fn unmount(path: &Path, lazy: bool) -> Result<(), FuseError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let out = command.arg("--").arg(path).stdin(Stdio::null()).output().map_err(|e| not_started(path, &e))?;
    if out.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&out.stderr);
    // fusermount3 reports EBUSY only in its message, which it does not translate.
    if stderr.contains("resource busy") {
        return Err(FuseError::Unmount { path: path.into(), errno: Errno::BUSY });
    }
    let what = if stderr.trim().is_empty() { out.status.to_string() } else { stderr.trim().to_owned() };
    Err(failed(path, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_names_are_escaped() {
        let o = MountOptions { fsname: "/a,dev,b\\c".into(), read_only: true, ..MountOptions::default() };
        let list = option_list(&o).into_string().expect("UTF-8");
        assert!(list.starts_with("fsname=/a\\,dev\\,b\\\\c,subtype=extant"), "{list}");
        assert!(list.contains(",ro"), "{list}");
    }
}
