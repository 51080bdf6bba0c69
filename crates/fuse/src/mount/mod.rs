//! Mounting and unmounting.
//!
//! Purpose: attach a /dev/fuse descriptor to a directory. It uses mount(2) where the process may (root, or root of a
//! user namespace), else the set-user-ID helper fusermount3. A new mount replaces one whose server died.
//!
//! Main types: [`MountPoint`], a directory that is resolved once; [`MountOptions`], [`Unmounter`]; [`Callers`], their
//! privileges; [`Agent`], a process with the rights that the server has dropped.
//!
//! What it does not do: it maintains no /etc/mtab and no table of mounts.
//!
//! # Locking
//! None but [`Agent`]'s.

mod agent;
mod bdi;
mod caller;
mod fusermount;
mod point;

use std::ffi::{CString, OsString};
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use rustix::mount::MountFlags;

pub use self::agent::{Agent, serve_agent};
pub use self::caller::Callers;
use self::point::in_directory;
pub use self::point::{MountPoint, Top, Unmounting};
use crate::error::FuseError;
use crate::sys::{self, kernel_gid, kernel_uid};

/// The type of mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MountKind {
    /// Over any source: the kernel sends no SYNCFS, and umount(2) does not wait for the server.
    #[default]
    Fuse,
    /// Over a block device ([`MountOptions::fsname`] is its path): the kernel sends SYNCFS, and umount(2) waits until
    /// the server has answered DESTROY. Root only. The kernel opens the device exclusively, so the server must have
    /// closed its own exclusive open.
    FuseBlk {
        /// Bytes; a power of two from 512 to the page size.
        blksize: u32,
    },
}

/// The way to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum MountMethod {
    /// mount(2) if the effective user is root and mount(2) is permitted, else fusermount3.
    #[default]
    Auto,
    Direct,
    Fusermount,
}

/// How to mount and serve.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub kind: MountKind,
    pub method: MountMethod,
    /// Shown as the source of the mount: the image or the device.
    pub fsname: OsString,
    /// Shown after the dot: `fuse.extant`. Letters, digits, `_` and `-`.
    pub subtype: String,
    /// Users other than the mounting one may access the mount.
    pub allow_other: bool,
    /// The kernel checks permissions by mode, owner and group.
    pub default_permissions: bool,
    pub read_only: bool,
    pub nosuid: bool,
    pub nodev: bool,
    pub noexec: bool,
    /// Symbolic links are not followed. mount(2) only; fusermount3 has no option for it.
    pub nosymfollow: bool,
    pub noatime: bool,
    /// Only shown by the kernel, for directories. mount(2) only.
    pub nodiratime: bool,
    /// Only shown by the kernel, as is `noatime`. With neither, the kernel shows `relatime`.
    pub strictatime: bool,
    /// Only shown by the kernel; the server does the waiting ([`crate::ServerOptions`]).
    pub sync: bool,
    pub dirsync: bool,
    /// Largest READ, bytes; `None` for the kernel's default.
    pub max_read: Option<u32>,
    /// Worker threads; by default one per processor, at least 8, at most 16. Idle workers are parked. `fuseblk` has at
    /// least two, for [`Session::when_lost`](crate::Session::when_lost).
    pub workers: Option<usize>,
    /// Each worker reads through its own descriptor.
    pub clone_fd: bool,
    pub transport: Transport,
    /// The kernel's readahead, KiB. Setting it after mounting requires root; ignored otherwise.
    pub read_ahead_kb: Option<u32>,
    /// Lift the limits on dirty pages of FUSE mounts (max_ratio=100, strict_limit=0). Requires root; ignored otherwise.
    pub lift_dirty_limits: bool,
}

/// How requests arrive from the kernel, and replies return to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// io_uring if it is available, else the device.
    #[default]
    Auto,
    /// read(2) and write(2) on /dev/fuse.
    Device,
    /// io_uring, or the mount fails.
    Ring,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            kind: MountKind::Fuse,
            method: MountMethod::Auto,
            fsname: "extant".into(),
            subtype: "extant".into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            nosuid: true,
            nodev: true,
            noexec: false,
            nosymfollow: false,
            noatime: false,
            nodiratime: false,
            strictatime: false,
            sync: false,
            dirsync: false,
            max_read: None,
            workers: None,
            clone_fd: true,
            transport: Transport::Auto,
            read_ahead_kb: Some(1024),
            lift_dirty_limits: true,
        }
    }
}

impl MountOptions {
    fn check(&self) -> Result<(), FuseError> {
        let bad = |option: &str, reason| Err(FuseError::Option { option: option.into(), reason });
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.subtype.is_empty() || !self.subtype.chars().all(plain) {
            return bad("subtype", "only letters, digits, '_' and '-' can be shown");
        }
        if self.fsname.is_empty() || self.fsname.as_bytes().contains(&0) {
            return bad("fsname", "empty, or contains NUL");
        }
        if let MountKind::FuseBlk { blksize } = self.kind {
            if !blksize.is_power_of_two() || blksize < 512 {
                return bad("blksize", "not a power of two of at least 512");
            }
            if self.method == MountMethod::Fusermount || !kernel_uid().is_root() {
                return bad("fuseblk", "only root can mount a block device through FUSE");
            }
        }
        Ok(())
    }

    fn flags(&self) -> MountFlags {
        let mut flags = MountFlags::empty();
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NOSYMFOLLOW, self.nosymfollow);
        // Always set one of the three: a remount with none keeps the present setting.
        flags.set(MountFlags::NOATIME, self.noatime);
        flags.set(MountFlags::STRICTATIME, self.strictatime && !self.noatime);
        flags.set(MountFlags::RELATIME, !self.strictatime && !self.noatime);
        flags.set(MountFlags::NODIRATIME, self.nodiratime);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags
    }

    /// FUSE's own options, which both methods of mounting share, each preceded by a comma.
    fn fuse_options(&self) -> String {
        let mut o = String::new();
        if self.allow_other {
            o.push_str(",allow_other");
        }
        if self.default_permissions {
            o.push_str(",default_permissions");
        }
        if let Some(n) = self.max_read {
            let _ = write!(o, ",max_read={n}");
        }
        o
    }
}

/// A finished mount: the descriptor that requests come from, and its [`Unmounter`].
pub(crate) struct Mounted {
    pub fd: OwnedFd,
    pub unmounter: Unmounter,
}

/// Mounts. The INIT request is pending on the returned descriptor.
pub(crate) fn mount(point: &MountPoint, options: &MountOptions) -> Result<Mounted, FuseError> {
    options.check()?;
    detach_dead(point)?;
    let at = |errno| FuseError::MountPoint { path: point.path().into(), errno };
    let dir = point.open_directory().map_err(at)?;
    let direct = match options.method {
        MountMethod::Direct => true,
        MountMethod::Fusermount => false,
        MountMethod::Auto => kernel_uid().is_root(),
    };
    let made = if direct { Some(mount_direct(point, &dir, options)) } else { None };
    let fd = match made {
        Some(Err(FuseError::Mount { errno: Errno::PERM, .. }))
            if options.method == MountMethod::Auto && options.kind == MountKind::Fuse =>
        {
            mount_by_helper(point, options)?
        }
        Some(made) => made?,
        None => mount_by_helper(point, options)?,
    };
    let device = point.top().ok().map(|top| top.device);
    Ok(Mounted { fd, unmounter: Unmounter::new(point.current_path(), device) })
}

fn mount_by_helper(point: &MountPoint, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    if options.nosymfollow {
        let reason = "fusermount3 does not know it; root can mount so";
        return Err(FuseError::Option { option: "nosymfollow".into(), reason });
    }
    fusermount::mount(&point.current_path(), options)
}

/// Mounts on `dir`, the directory at `point`.
fn mount_direct(point: &MountPoint, dir: &OwnedFd, options: &MountOptions) -> Result<OwnedFd, FuseError> {
    let fd = sys::open_device().map_err(|errno| FuseError::Device { errno })?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}{}",
        fd.as_raw_fd(),
        kernel_uid().as_raw(),
        kernel_gid().as_raw(),
        options.fuse_options()
    );
    let kind = match options.kind {
        MountKind::Fuse => "fuse",
        MountKind::FuseBlk { blksize } => {
            let _ = write!(data, ",blksize={blksize}");
            "fuseblk"
        }
    };
    let data = CString::new(data).map_err(|_| FuseError::Option { option: "fsname".into(), reason: "contains NUL" })?;
    let fstype = format!("{kind}.{}", options.subtype);
    // The source of a device mount is a path, too, but an absolute one: the working directory does not affect it.
    in_directory(dir, || rustix::mount::mount(&*options.fsname, ".", &*fstype, options.flags(), data.as_c_str()))
        .map_err(|errno| FuseError::Mount { kind, path: point.path().into(), errno })?;
    Ok(fd)
}

/// True if there is a FUSE mount at `path` whose server has died.
pub fn is_dead(path: &Path) -> bool {
    MountPoint::open(path).is_ok_and(|point| point.is_dead())
}

/// How many dead mounts to remove from one directory: a deeper stack means that some program mounts in a loop.
const DEAD_STACKED_MAX: usize = 16;

fn detach_dead(point: &MountPoint) -> Result<(), FuseError> {
    let at = |errno| FuseError::MountPoint { path: point.path().into(), errno };
    for _ in 0..DEAD_STACKED_MAX {
        let top = point.top().map_err(at)?;
        if !point.is_dead() {
            return Ok(());
        }
        point.unmount(top, Unmounting { lazy: true, force: false })?;
    }
    Err(at(Errno::NOTCONN))
}

/// Unmounts one mount. May be cloned and called from any thread except one of the mount's workers.
#[derive(Clone, Debug)]
pub struct Unmounter {
    path: PathBuf,
    device: Option<(u32, u32)>,
    /// Shared by all clones.
    agent: Arc<OnceLock<Agent>>,
}

impl Unmounter {
    /// The mount of this device at `path`, which contains no symbolic links.
    fn new(path: PathBuf, device: Option<(u32, u32)>) -> Unmounter {
        Unmounter { path, device, agent: Arc::default() }
    }

    /// The mount point, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Major and minor number of the mount's file system.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// The mount point and this mount on top of it. It holds no descriptor afterwards: that would keep the file system
    /// of the mount point busy.
    fn at(&self) -> Result<(MountPoint, Top), Errno> {
        let point = MountPoint::again(&self.path)?;
        let top = point.top()?;
        if self.device == Some(top.device) { Ok((point, top)) } else { Err(Errno::INVAL) }
    }

    /// True while this mount (and not another one) is on top at its mount point. Also true if this process can no
    /// longer check: it has dropped its privileges, and a directory above is not accessible.
    pub fn is_mounted(&self) -> bool {
        match self.at() {
            Ok(_) => true,
            Err(Errno::ACCESS) => self.device.is_some(),
            Err(_) => false,
        }
    }

    /// Examines the callers of this mount.
    pub(crate) fn callers(&self) -> Callers {
        Callers { agent: Arc::clone(&self.agent) }
    }

    /// Unmounts. Fails with EBUSY while the mount is in use, unless `lazy`, and with EINVAL if another mount or none is
    /// there. For `fuseblk`, returns after the server's `destroy`.
    pub fn unmount(&self, lazy: bool) -> Result<(), FuseError> {
        match self.agent.get() {
            Some(agent) => agent.unmount(&self.path, lazy),
            None => self.unmount_here(lazy),
        }
    }

    fn unmount_here(&self, lazy: bool) -> Result<(), FuseError> {
        let (point, top) = self.at().map_err(|errno| FuseError::Unmount { path: self.path.clone(), errno })?;
        point.unmount(top, Unmounting { lazy, force: false })
    }

    /// Detaches the mount if its server has died. The agent checks that, if there is one. Another mount with the same
    /// device number may have taken its place, so only a dead mount is detached.
    pub(crate) fn detach_if_dead(&self) {
        let _ = match self.agent.get() {
            Some(agent) => agent.detach_if_dead(&self.path),
            None => self.detach_if_dead_here(),
        };
    }

    fn detach_if_dead_here(&self) -> Result<(), FuseError> {
        match self.at() {
            Ok((point, top)) if point.is_dead() => point.unmount(top, Unmounting { lazy: true, force: false }),
            _ => Ok(()),
        }
    }

    /// Makes `agent` unmount, and examine callers, for this object and all its clones. Only the first call has an
    /// effect.
    pub fn delegate(&self, agent: Agent) {
        let _ = self.agent.set(agent);
    }

    /// Applies the options that only sysfs can set. Errors are ignored: most users may not write there.
    pub(crate) fn tune(&self, options: &MountOptions) {
        if let Some(device) = self.device {
            bdi::tune(device, options);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_options_are_refused() {
        let bad = [
            MountOptions { subtype: "a,b".into(), ..MountOptions::default() },
            MountOptions { subtype: String::new(), ..MountOptions::default() },
            MountOptions { fsname: "a\0b".into(), ..MountOptions::default() },
            MountOptions { kind: MountKind::FuseBlk { blksize: 1000 }, ..MountOptions::default() },
        ];
        for o in bad {
            assert!(matches!(o.check(), Err(FuseError::Option { .. })), "{o:?}");
        }
    }

    #[test]
    fn exactly_one_flag_for_access_times_is_set() {
        let flags = |noatime, strictatime| MountOptions { noatime, strictatime, ..MountOptions::default() }.flags();
        let all = MountFlags::NOATIME | MountFlags::STRICTATIME | MountFlags::RELATIME;
        assert_eq!(flags(false, false) & all, MountFlags::RELATIME);
        assert_eq!(flags(true, false) & all, MountFlags::NOATIME);
        assert_eq!(flags(true, true) & all, MountFlags::NOATIME);
        assert_eq!(flags(false, true) & all, MountFlags::STRICTATIME);
    }

    #[test]
    fn an_ordinary_directory_is_not_dead() {
        let dir = tempfile::tempdir().expect("directory");
        assert!(!is_dead(dir.path()));
        assert!(!is_dead(&dir.path().join("missing")));
    }
}
