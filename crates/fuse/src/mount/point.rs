//! A mount point, resolved once.
//!
//! Purpose: the owner of a directory in the path of a mount point can replace it by a symbolic link at any time. If a
//! privileged process resolved the path again, it would act on another place. [`MountPoint`] resolves the path once and
//! keeps the parent directory open. From there it uses only the last name, which must no longer be a symbolic link.
//! [`Top`] identifies the mount that is there; each change compares it first.
//!
//! A descriptor of the mount itself would keep the mount busy. The calls mount(2) and umount2(2) take only paths, and
//! /proc may be missing. So a thread with a working directory of its own makes these calls.
//!
//! What it does not do: between the comparison and umount2(2), a user can still swap two mount points in directories
//! that they own, by renaming them from another mount namespace. By descriptor the kernel unmounts only lazily.
//!
//! # Locking
//! None.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use extant_base::clock::Clock;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, fstatfs, mkdirat, openat, readlinkat, statx,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_remount, unmount};

use super::{MountOptions, fusermount};
use crate::error::FuseError;
use crate::sys;

/// The kernel's limit on symbolic links in a path.
const LINKS_MAX: usize = 40;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory to mount on, or to unmount from.
#[derive(Debug)]
pub struct MountPoint {
    parent: OwnedFd,
    name: OsString,
    path: PathBuf,
}

/// The topmost mount at a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Top {
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// The mount ID, as in /proc/self/mountinfo. Linux 5.8.
    pub id: Option<u64>,
    /// Whether there is a mount. Linux 5.8.
    pub is_mount: bool,
}

/// How to unmount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unmounting {
    /// Detach the mount at once; processes that use it may finish.
    pub lazy: bool,
    /// End the connection to a server that does not answer. Requests that are still in the kernel are lost. Root only.
    pub force: bool,
}

/// How often, and how many times, to check whether the connection of a killed server has ended.
const ENDING_LOOK: Duration = Duration::from_millis(1);
const ENDING_LOOKS: u32 = 5000;

impl MountPoint {
    /// Resolves `path`. Sends no request to a server there, unless the path ends in `.` or `..`.
    ///
    /// # Errors
    /// There is nothing at `path`, or it is the root directory.
    pub fn open(path: &Path) -> Result<MountPoint, FuseError> {
        resolve(path).map_err(|errno| FuseError::MountPoint { path: path.into(), errno })
    }

    /// As [`MountPoint::open`], but creates missing directories.
    ///
    /// # Errors
    /// As for [`MountPoint::open`], or a directory cannot be created.
    pub fn create(path: &Path, mode: Mode) -> Result<MountPoint, FuseError> {
        let failed = |errno| FuseError::MountPoint { path: path.into(), errno };
        match resolve(path) {
            Err(Errno::NOENT) => {}
            found => return found.map_err(failed),
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(failed(Errno::NOENT)) };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let parent = match openat(CWD, above, DIRECTORY, Mode::empty()) {
            Err(Errno::NOENT) => MountPoint::create(above, mode)?.open_directory(),
            opened => opened,
        };
        let parent = parent.map_err(failed)?;
        match mkdirat(&parent, name, mode) {
            Ok(()) | Err(Errno::EXIST) => Ok(MountPoint::within(parent, name.into())),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// A mount point that another process has resolved, from its parent directory and its whole path.
    ///
    /// # Errors
    /// The path has no last name.
    pub fn handed_over(parent: OwnedFd, path: &Path) -> Result<MountPoint, FuseError> {
        let name = path.file_name().ok_or(FuseError::MountPoint { path: path.into(), errno: Errno::INVAL })?;
        Ok(MountPoint { parent, name: name.into(), path: path.into() })
    }

    /// The mount point at `path`, which contains no symbolic links; its last name is not followed.
    pub(super) fn again(path: &Path) -> Result<MountPoint, Errno> {
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
        let parent = openat(CWD, above, DIRECTORY, Mode::empty())?;
        Ok(MountPoint { parent, name: name.into(), path: path.into() })
    }

    /// Another handle to the same mount point.
    ///
    /// # Errors
    /// Too many files are open.
    pub fn try_clone(&self) -> std::io::Result<MountPoint> {
        Ok(MountPoint { parent: self.parent.try_clone()?, name: self.name.clone(), path: self.path.clone() })
    }

    fn within(parent: OwnedFd, name: OsString) -> MountPoint {
        let path = path_of(&parent).map_or_else(|_| PathBuf::from(&name), |dir| dir.join(&name));
        MountPoint { parent, name, path }
    }

    /// Its path when it was resolved, absolute and without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path now, because a directory above may have been renamed.
    pub(super) fn current_path(&self) -> PathBuf {
        path_of(&self.parent).map_or_else(|_| self.path.clone(), |dir| dir.join(&self.name))
    }

    /// The directory that contains the mount point.
    pub fn parent(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// The topmost mount. Sends no request to its server.
    pub fn top(&self) -> Result<Top, Errno> {
        top_of(&self.parent, &self.name)
    }

    /// The directory, or the root of the mount on it. Sends no request to a server. The descriptor keeps the mount
    /// busy.
    pub fn open_directory(&self) -> Result<OwnedFd, Errno> {
        openat(&self.parent, &self.name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())
    }

    /// Opens the root of the mount `top`, for reading.
    ///
    /// # Errors
    /// Another mount or none is on top (EINVAL); the server refuses.
    pub fn open_root(&self, top: Top) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(&self.parent, &self.name, flags, Mode::empty())?;
        same(top, top_of(&root, OsStr::new("")))?;
        Ok(root)
    }

    /// True if there is a FUSE mount here whose server has died.
    pub(super) fn is_dead(&self) -> bool {
        let clock = Clock::real();
        for _ in 0..ENDING_LOOKS {
            match self.open_directory().and_then(fstatfs) {
                // The server used rings and was killed. The kernel ends the connection a little later.
                Err(Errno::CANCELED) => clock.sleep(ENDING_LOOK),
                Err(Errno::NOTCONN | Errno::CONNABORTED) => return true,
                _ => return false,
            }
        }
        true
    }

    /// Unmounts `top`: umount2(2) for root, else fusermount3.
    ///
    /// # Errors
    /// EINVAL: another mount or none is on top now.
    pub fn unmount(&self, top: Top, how: Unmounting) -> Result<(), FuseError> {
        let mut flags = UnmountFlags::NOFOLLOW;
        flags.set(UnmountFlags::DETACH, how.lazy);
        flags.set(UnmountFlags::FORCE, how.force);
        let done = in_directory(&self.parent, || {
            same(top, self.top())?;
            unmount(&*self.name, flags)
        });
        match done {
            // fusermount3 does not follow the last name either, and it checks the user.
            Err(Errno::PERM) if !how.force => fusermount::unmount(&self.current_path(), how.lazy),
            done => done.map_err(|errno| FuseError::Unmount { path: self.path.clone(), errno }),
        }
    }

    /// Changes how the kernel treats the mount `top`: whether it is read-only, and the flags of `options`. Root only.
    ///
    /// # Errors
    /// EINVAL: another mount or none is on top now.
    pub fn remount(&self, top: Top, options: &MountOptions) -> Result<(), FuseError> {
        let done = self.open_directory().and_then(|root| {
            same(top, top_of(&root, OsStr::new("")))?;
            in_directory(&root, || mount_remount(".", options.flags(), ""))
        });
        done.map_err(|errno| FuseError::Mount { kind: "fuse", path: self.path.clone(), errno })
    }
}

fn same(wanted: Top, found: Result<Top, Errno>) -> Result<(), Errno> {
    if found? == wanted { Ok(()) } else { Err(Errno::INVAL) }
}

/// The mount at `name` in `dir`, or at `dir` if `name` is empty. It requests no attributes: FUSE denies them to users
/// that the mount does not serve, including root.
fn top_of(dir: impl AsFd, name: &OsStr) -> Result<Top, Errno> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let st = statx(dir, name, flags, StatxFlags::empty())?;
    let has_id = st.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Ok(Top {
        device: (st.stx_dev_major, st.stx_dev_minor),
        id: has_id.then_some(st.stx_mnt_id),
        is_mount: st.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
    })
}

/// Follows symbolic links of the last name itself, to find the directory that contains the final name.
fn resolve(path: &Path) -> Result<MountPoint, Errno> {
    let mut from: Option<OwnedFd> = None;
    let mut rest = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let from_fd = from.as_ref().map_or(CWD, AsFd::as_fd);
        let (Some(above), Some(name)) = (rest.parent(), rest.file_name()) else {
            return resolve_directory(from_fd, &rest);
        };
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        let parent = openat(from_fd, above, DIRECTORY, Mode::empty())?;
        match readlinkat(&parent, name, Vec::new()) {
            Err(Errno::INVAL) => return Ok(MountPoint::within(parent, name.into())),
            Err(e) => return Err(e),
            Ok(target) => (rest, from) = (OsString::from_vec(target.into_bytes()).into(), Some(parent)),
        }
    }
    Err(Errno::LOOP)
}

/// Resolves a path without a last name: `.`, `..`, and paths that end in these.
fn resolve_directory(from: BorrowedFd<'_>, path: &Path) -> Result<MountPoint, Errno> {
    let dir = openat(from, path, DIRECTORY, Mode::empty())?;
    let parent = openat(&dir, "..", DIRECTORY, Mode::empty())?;
    let path = path_of(&dir)?;
    let name = path.file_name().ok_or(Errno::INVAL)?;
    // The directory may have been renamed since.
    let is = |dir: &OwnedFd, name: &OsStr| {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
        let st = statx(dir, name, flags, StatxFlags::INO)?;
        Ok::<_, Errno>((st.stx_dev_major, st.stx_dev_minor, st.stx_ino))
    };
    if is(&parent, name)? != is(&dir, OsStr::new(""))? {
        return Err(Errno::NOENT);
    }
    Ok(MountPoint { parent, name: name.into(), path })
}

/// The present path of `dir`.
fn path_of(dir: &OwnedFd) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", dir.as_raw_fd());
    match readlinkat(CWD, link, Vec::new()) {
        Ok(path) => Ok(OsStr::from_bytes(path.as_bytes()).into()),
        Err(_) => {
            in_directory(dir, || std::env::current_dir().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)))
        }
    }
}

/// Calls `f` on a thread whose working directory is `dir`; that of the process does not change. The thread is not
/// created by [`extant_base::task`], whose threads may drop the privileges that `f` needs.
pub(super) fn in_directory<R: Send>(dir: &OwnedFd, f: impl FnOnce() -> Result<R, Errno> + Send) -> Result<R, Errno> {
    std::thread::scope(|threads| {
        let thread = std::thread::Builder::new().name("extant-mount".into()).spawn_scoped(threads, || {
            sys::own_working_directory()?;
            rustix::process::fchdir(dir)?;
            f()
        });
        match thread {
            Ok(thread) => thread.join().unwrap_or(Err(Errno::IO)),
            Err(e) => Err(Errno::from_io_error(&e).unwrap_or(Errno::AGAIN)),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().canonicalize().expect("path");
        (dir, path)
    }

    #[test]
    fn a_mount_point_has_one_path_under_all_its_names() {
        let (_dir, top) = directory();
        fs::create_dir_all(top.join("a/vm")).expect("directories");
        symlink("a/vm", top.join("relative")).expect("link");
        symlink(top.join("relative"), top.join("absolute")).expect("link");
        for name in ["a/vm", "a/vm/", "a/vm/.", "relative", "absolute", "a/vm/../vm", "a/../a/./vm"] {
            let point = MountPoint::open(&top.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!((point.path(), &*point.name), (&*top.join("a/vm"), OsStr::new("vm")), "{name}");
        }
        assert_eq!(MountPoint::open(&top.join("a/vm/..")).expect("open").path(), top.join("a"));
        symlink("loop", top.join("loop")).expect("link");
        for (name, errno) in [("none", Errno::NOENT), ("loop", Errno::LOOP), ("/", Errno::INVAL)] {
            let e = MountPoint::open(&top.join(name)).expect_err(name);
            assert!(matches!(e, FuseError::MountPoint { errno: e, .. } if e == errno), "{name}: {e}");
        }
    }

    #[test]
    fn a_mount_point_stays_when_a_link_replaces_its_directory() {
        let (_dir, top) = directory();
        fs::create_dir_all(top.join("a/vm/mine")).expect("directories");
        fs::create_dir_all(top.join("etc/vm")).expect("directories");
        let point = MountPoint::open(&top.join("a/vm")).expect("open");
        fs::rename(top.join("a"), top.join("b")).expect("renamed");
        symlink("etc", top.join("a")).expect("link");
        assert_eq!((point.path(), point.current_path()), (&*top.join("a/vm"), top.join("b/vm")));
        let dir = point.open_directory().expect("open");
        assert!(statx(&dir, "mine", AtFlags::empty(), StatxFlags::TYPE).is_ok());
        // A symbolic link replaces the last name.
        fs::rename(top.join("b/vm"), top.join("b/old")).expect("renamed");
        symlink(top.join("etc/vm"), top.join("b/vm")).expect("link");
        assert_eq!(point.open_directory().expect_err("a link"), Errno::NOTDIR);
        assert_eq!(point.open_root(point.top().expect("top")).expect_err("a link"), Errno::NOTDIR);
    }

    #[test]
    fn create_makes_missing_directories() {
        let (_dir, top) = directory();
        let point = MountPoint::create(&top.join("x/y/z"), Mode::from_raw_mode(0o750)).expect("made");
        assert_eq!(point.path(), top.join("x/y/z"));
        assert!(top.join("x/y/z").is_dir());
        MountPoint::create(&top.join("x/y/z"), Mode::RWXU).expect("there already");
        fs::write(top.join("file"), "").expect("file");
        assert!(MountPoint::create(&top.join("file/x"), Mode::RWXU).is_err());
    }

    #[test]
    fn the_working_directory_of_the_process_does_not_change() {
        let (_dir, top) = directory();
        let before = std::env::current_dir().expect("directory");
        let dir = openat(CWD, &top, DIRECTORY, Mode::empty()).expect("open");
        let seen = in_directory(&dir, || Ok(std::env::current_dir().expect("directory")));
        assert_eq!((seen, std::env::current_dir().expect("directory")), (Ok(top), before));
    }
}
