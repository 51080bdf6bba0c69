//! The destination side of a copy on the host.
//!
//! The data comes from an image, and the destination may be writable for other users. So nothing below the
//! destination is reached by a path. Directories are descriptors, opened without following links. Files get their
//! owner and mode through the descriptor that made them. Links, fifos and devices have no descriptor: they are made
//! in a directory that only this user can enter, and renamed to their place when they are complete. Privileges in an
//! image are copied only on request.
//!
//! Owners and modes are set through functions of the C library (nix): rustix makes some of these calls itself, and
//! fakeroot(1) would not see them.
//!
//! # Locking
//! None.

use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};

use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use nix::fcntl::AtFlags as NixAtFlags;
use nix::sys::stat::{FchmodatFlags, Mode as NixMode, fchmod, fchmodat};
use nix::unistd::{fchown, fchownat};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Stat, Timespec, Timestamps, XattrFlags, fsetxattr, fstat, linkat, makedev,
    mkdirat, mknodat, openat, renameat, renameat_with, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::rand::{GetRandomFlags, getrandom};

use super::local::{dir_path, directory_above, id, kind, os};
use super::side::{Id, Node, Rules, Sink};
use crate::attributes::Xattrs;
use crate::error::{Cause, Place, Step};
use crate::watch::Watch;

/// The temporary name of an unfinished file.
const UNFINISHED: &str = "unfinished";

/// A directory, by its descriptor.
pub struct LocalDir {
    fd: OwnedFd,
    workshop: OnceCell<Workshop>,
}

/// A directory within a [`LocalDir`] that only this user can enter.
struct Workshop {
    fd: OwnedFd,
    name: String,
}

impl LocalDir {
    fn new(fd: OwnedFd) -> LocalDir {
        LocalDir { fd, workshop: OnceCell::new() }
    }

    fn workshop(&self) -> Step<&OwnedFd> {
        if self.workshop.get().is_none() {
            let mut lot = [0; 8];
            getrandom(&mut lot, GetRandomFlags::empty())?;
            let name = format!(".extant-{:016x}", u64::from_le_bytes(lot));
            mkdirat(&self.fd, &name, Mode::RWXU)?;
            let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
            let fd = openat(&self.fd, &name, flags, Mode::empty())?;
            let stat = fstat(&fd)?;
            if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
                return Err(Cause::refused(format!("{name} is not the directory that was just made")));
            }
            let _ = self.workshop.set(Workshop { fd, name });
        }
        self.workshop.get().map(|w| &w.fd).ok_or_else(|| Cause::refused("no directory to work in"))
    }

    fn tidy(&mut self) {
        if let Some(workshop) = self.workshop.take() {
            // Removes the rest of a file whose copy failed.
            let _ = unlinkat(&workshop.fd, UNFINISHED, AtFlags::empty());
            let _ = unlinkat(&self.fd, &workshop.name, AtFlags::REMOVEDIR);
        }
    }
}

impl Drop for LocalDir {
    fn drop(&mut self) {
        self.tidy();
    }
}

/// Counts of privileges that were not copied because the image is not trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Devices.
    pub devices: u64,
    /// Set-user-id and set-group-id bits.
    pub modes: u64,
    /// Attributes of `security` and `trusted`.
    pub attributes: u64,
}

/// A place on the host that files are copied to.
pub struct LocalSink<'a> {
    root: bool,
    rules: Rules,
    watch: &'a dyn Watch,
    left_out: Cell<LeftOut>,
}

impl LocalSink<'_> {
    /// Copies to the host.
    pub fn new(rules: Rules, watch: &dyn Watch) -> LocalSink<'_> {
        LocalSink { root: geteuid().is_root(), rules, watch, left_out: Cell::default() }
    }

    /// The privileges that were not copied.
    pub fn left_out(&self) -> LeftOut {
        self.left_out.get()
    }

    fn count(&self, add: impl FnOnce(&mut LeftOut)) {
        let mut counts = self.left_out.get();
        add(&mut counts);
        self.left_out.set(counts);
    }

    /// Whether files get the owners that they have in the image.
    fn gives_owners(&self) -> bool {
        self.root && !self.rules.own
    }

    /// Mode bits to set. Without the original owner, set-user-id and set-group-id would mean another user.
    fn mode(&self, node: &Node) -> Mode {
        // A directory's set-group-id bit gives no privileges.
        let whole = self.gives_owners() && (self.rules.privileges || node.is_dir());
        if self.root && !whole && node.mode & 0o6000 != 0 {
            self.count(|left| left.modes += 1);
        }
        let mask = if whole { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode((node.mode & mask).into())
    }

    fn set_xattrs(&self, fd: &impl AsFd, xattrs: &Xattrs) {
        for (name, value) in xattrs {
            let privileged = name.starts_with(b"security.") || name.starts_with(b"trusted.");
            if privileged && !self.rules.privileges {
                if self.root {
                    self.count(|left| left.attributes += 1);
                }
                continue;
            }
            if let Err(e) = fsetxattr(fd, OsStr::from_bytes(name), value, XattrFlags::empty()) {
                self.watch.attribute_refused(name, &e.into());
            }
        }
    }

    /// Whether this user may change owner, mode and times.
    fn may_change(&self, stat: &Stat) -> bool {
        self.root || stat.st_uid == geteuid().as_raw()
    }

    fn finish(&self, fd: impl AsFd, node: &Node, xattrs: &Xattrs) -> Step<()> {
        if self.gives_owners() {
            fchown(&fd, Some(node.uid.into()), Some(node.gid.into())).map_err(errno)?;
        }
        // The mode comes after the owner, whose change clears bits, and after the attributes, since ACLs change it.
        self.set_xattrs(&fd, xattrs);
        fchmod(&fd, nix_mode(self.mode(node))).map_err(errno)?;
        Ok(rustix::fs::futimens(&fd, &times(node))?)
    }

    /// Makes a file that has no descriptor, complete except for its name.
    fn make(&self, workshop: &OwnedFd, node: &Node, target: &[u8]) -> Step<Id> {
        let name = UNFINISHED;
        if node.kind == FileType::Symlink {
            symlinkat(os(target), workshop, name)?;
        } else {
            let device = node.device.map_or(0, |d| makedev(d.major, d.minor));
            let kind = rustix::fs::FileType::from_raw_mode(node.kind.mode_bits().into());
            mknodat(workshop, name, kind, Mode::empty(), device)?;
        }
        // By name: no other user can have replaced it here.
        if self.gives_owners() {
            let (uid, gid) = (Some(node.uid.into()), Some(node.gid.into()));
            fchownat(workshop, name, uid, gid, NixAtFlags::AT_SYMLINK_NOFOLLOW).map_err(errno)?;
        }
        if node.kind != FileType::Symlink {
            // In this directory the name is no link.
            let follow = FchmodatFlags::FollowSymlink;
            fchmodat(workshop, name, nix_mode(self.mode(node)), follow).map_err(errno)?;
        }
        utimensat(workshop, name, &times(node), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(id(&statat(workshop, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    fn open_file(&self, parent: &LocalDir, name: &[u8], named: bool) -> Step<File> {
        let mut flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags.set(OFlags::NOFOLLOW, !named);
        let mode = Mode::RUSR | Mode::WUSR;
        if self.rules.only_new {
            return Ok(openat(&parent.fd, os(name), flags | OFlags::CREATE | OFlags::EXCL, mode)?.into());
        }
        let in_the_way = |what| Err(Cause::refused(format!("{what} is in the way")));
        let opened = match openat(&parent.fd, os(name), flags, mode) {
            Err(Errno::NOENT) => openat(&parent.fd, os(name), flags | OFlags::CREATE | OFlags::EXCL, mode),
            other => other,
        };
        let file = match opened {
            Ok(fd) => File::from(fd),
            Err(Errno::EXIST) if named => return Err(Cause::refused("not written through a dangling symbolic link")),
            Err(Errno::LOOP) if !named => return in_the_way("a symbolic link"),
            Err(Errno::ISDIR) => return in_the_way("a directory"),
            Err(Errno::NXIO) => return in_the_way("a file that is not a regular file"),
            Err(e) => return Err(e.into()),
        };
        let stat = fstat(&file)?;
        if kind(&stat) != Some(FileType::Regular) {
            return in_the_way("a file that is not a regular file");
        }
        if self.watch.is_image(id(&stat)) {
            return Err(Cause::refused(IS_IMAGE));
        }
        // The destination may have the name of a private file: no other user may read it before it has its mode. But
        // if the user names another user's file, then, as with cp(1), it gets the content and keeps its mode.
        if !named || self.may_change(&stat) {
            fchmod(&file, nix_mode(mode)).map_err(errno)?;
        }
        rustix::fs::ftruncate(&file, 0)?;
        Ok(file)
    }

    /// Refuses to replace an open image: its content would be lost when its last user closes it.
    fn no_image(&self, dir: &LocalDir, name: &[u8]) -> Step<()> {
        match statat(&dir.fd, os(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if self.watch.is_image(id(&stat)) => Err(Cause::refused(IS_IMAGE)),
            _ => Ok(()),
        }
    }

    /// Gives the file in a workshop its name.
    fn name_it(&self, workshop: &OwnedFd, parent: &LocalDir, name: &[u8]) -> std::result::Result<(), Errno> {
        if !self.rules.only_new {
            return renameat(workshop, UNFINISHED, &parent.fd, os(name));
        }
        match renameat_with(workshop, UNFINISHED, &parent.fd, os(name), RenameFlags::NOREPLACE) {
            // This file system cannot rename and refuse an existing name in one call.
            Err(Errno::INVAL | Errno::NOSYS) => match statat(&parent.fd, os(name), AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => renameat(workshop, UNFINISHED, &parent.fd, os(name)),
                found => found.and(Err(Errno::EXIST)),
            },
            done => done,
        }
    }

    fn open_below(&self, parent: &OwnedFd, name: &[u8]) -> Step<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
        Ok(openat(parent, os(name), flags, Mode::empty())?)
    }
}

fn nix_mode(mode: Mode) -> NixMode {
    NixMode::from_bits_truncate(mode.as_raw_mode())
}

fn errno(e: nix::Error) -> Errno {
    Errno::from_raw_os_error(e as i32)
}

/// The message for an image that would be overwritten.
const IS_IMAGE: &str = "is the image that is copied from";

/// Closes a written file: a network file system, or one in user space, may report only now that it is full. The
/// descriptor is closed in any case.
pub fn closed(fd: OwnedFd) -> std::result::Result<(), Errno> {
    match nix::unistd::close(fd) {
        Ok(()) | Err(nix::Error::EINTR) => Ok(()),
        Err(e) => Err(Errno::from_raw_os_error(e as i32)),
    }
}

fn times(node: &Node) -> Timestamps {
    let spec = |t: Timestamp| Timespec { tv_sec: t.seconds, tv_nsec: t.nanos.into() };
    Timestamps { last_access: spec(node.atime), last_modification: spec(node.mtime) }
}

impl Sink for LocalSink<'_> {
    type Dir = LocalDir;
    type File = File;

    fn image(&self) -> Option<usize> {
        None
    }

    fn top(&self, path: &[u8]) -> Step<LocalDir> {
        // The user named this path: links are followed.
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        Ok(LocalDir::new(openat(CWD, dir_path(path), flags, Mode::empty())?))
    }

    fn existing(&self, path: &[u8]) -> Step<Option<FileType>> {
        match os(path).metadata() {
            Ok(meta) => Ok(FileType::from_mode(meta.mode() as u16)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn id(&self, dir: &LocalDir) -> Step<Id> {
        Ok(id(&fstat(&dir.fd)?))
    }

    fn is_within(&self, _dir: &LocalDir, _id: Id) -> Step<bool> {
        // The source is an image, so it cannot contain the destination.
        Ok(false)
    }

    fn look(&self, dir: &LocalDir, name: &[u8]) -> Step<Option<(FileType, Id)>> {
        match statat(&dir.fd, os(name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some((kind(&stat).unwrap_or(FileType::Regular), id(&stat)))),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Follows no links on the host.
    fn directory(&self, parent: &LocalDir, name: &[u8], _follow: bool) -> Step<LocalDir> {
        match mkdirat(&parent.fd, os(name), Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) if !self.rules.only_new => {}
            Err(e) => return Err(e.into()),
        }
        self.open_below(&parent.fd, name).map(LocalDir::new)
    }

    fn parent(&self, below: &LocalDir, id: Id) -> Step<LocalDir> {
        directory_above(below.fd.as_fd(), id).map(LocalDir::new)
    }

    fn file(&self, parent: &LocalDir, name: &[u8], named: bool, _source: Option<Id>) -> Step<File> {
        self.open_file(parent, name, named)
    }

    fn write(&self, file: &File, offset: u64, data: &[u8]) -> Step<()> {
        Ok(file.write_all_at(data, offset)?)
    }

    fn finish_file(&self, file: File, node: &Node, xattrs: &Xattrs) -> Step<Id> {
        // Restores a hole at the end.
        file.set_len(node.size)?;
        let stat = fstat(&file)?;
        if self.may_change(&stat) {
            self.finish(&file, node, xattrs)?;
        }
        closed(file.into())?;
        Ok(id(&stat))
    }

    fn finish_directory(&self, mut dir: LocalDir, node: &Node, xattrs: &Xattrs) -> Step<()> {
        // This changes the directory, so it comes before the times are set.
        dir.tidy();
        self.finish(&dir.fd, node, xattrs)
    }

    fn special(
        &self,
        parent: &LocalDir,
        name: &[u8],
        node: &Node,
        target: &[u8],
        _xattrs: &Xattrs,
    ) -> Step<Option<Id>> {
        if node.kind.is_device() && !self.rules.privileges {
            self.count(|left| left.devices += 1);
            return Ok(None);
        }
        self.no_image(parent, name)?;
        let workshop = parent.workshop()?;
        let made = match self.make(workshop, node, target) {
            Ok(made) => made,
            Err(e) => {
                let _ = unlinkat(workshop, UNFINISHED, AtFlags::empty());
                return Err(e);
            }
        };
        if let Err(e) = self.name_it(workshop, parent, name) {
            let _ = unlinkat(workshop, UNFINISHED, AtFlags::empty());
            return Err(match e {
                Errno::ISDIR => Cause::refused("a directory is in the way"),
                e => e.into(),
            });
        }
        Ok(Some(made))
    }

    fn link(&self, made: Id, path: &[&[u8]], parent: &LocalDir, name: &[u8]) -> Step<bool> {
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let there = |dir: &OwnedFd, name: &[u8]| statat(dir, os(name), nofollow).is_ok_and(|stat| id(&stat) == made);
        if there(&parent.fd, name) {
            return Ok(true);
        }
        let ([top, dirs @ ..], Some((file, _))) = (path, path.split_last()) else { return Ok(false) };
        let mut from = self.top(top)?.fd.try_clone()?;
        for dir in &dirs[..dirs.len().saturating_sub(1)] {
            from = self.open_below(&from, dir)?;
        }
        // Another process has moved the file: copy it again.
        if !there(&from, file) {
            return Ok(false);
        }
        self.no_image(parent, name)?;
        // Under a secret name first, so that the rename replaces the old file at once, and the link can be checked
        // before.
        let workshop = parent.workshop()?;
        match linkat(&from, os(file), workshop, UNFINISHED, AtFlags::empty()) {
            Ok(()) => {}
            Err(Errno::MLINK | Errno::PERM | Errno::XDEV | Errno::OPNOTSUPP | Errno::NOENT) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        let linked = there(workshop, UNFINISHED.as_bytes());
        let renamed = if linked { self.name_it(workshop, parent, name) } else { Ok(()) };
        // A rename onto another name of the same file leaves both.
        let _ = unlinkat(workshop, UNFINISHED, AtFlags::empty());
        match renamed {
            Ok(()) => Ok(linked),
            Err(Errno::ISDIR) => Err(Cause::refused("a directory is in the way")),
            Err(e) => Err(e.into()),
        }
    }

    fn place(&self, path: &[u8]) -> Place {
        Place::host(path)
    }
}
