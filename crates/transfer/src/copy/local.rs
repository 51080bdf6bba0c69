//! The source side of a copy on the host; [`super::local_sink`] is the destination side.
//!
//! Everything below the user's path is reached through descriptors of directories and without following links. So a
//! concurrent change of the tree does not lead elsewhere, and the tree may be deeper than a path can be long.
//!
//! # Locking
//! None.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_ondisk::inode::{DeviceNr, FileType};
use extant_ondisk::time::Timestamp;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, SeekFrom, Stat, fgetxattr, flistxattr, fstat, lgetxattr, llistxattr, major, minor,
    openat, readlinkat, seek, statat,
};
use rustix::io::Errno;
use rustix::process::{fchdir, geteuid};

use super::side::{Content, Id, Node, Source};
use crate::attributes::Xattrs;
use crate::content::CHUNK_BYTES;
use crate::error::{Cause, Place, Result, Step};
use crate::watch::Watch;

pub(super) fn os(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// An empty path means the current directory.
pub(super) fn dir_path(path: &[u8]) -> &Path {
    if path.is_empty() { Path::new(".") } else { os(path) }
}

pub(super) fn id(stat: &Stat) -> Id {
    (stat.st_dev, stat.st_ino)
}

pub(super) fn kind(stat: &Stat) -> Option<FileType> {
    FileType::from_mode(stat.st_mode as u16)
}

/// The parent directory, if it still is `wanted`.
pub(super) fn directory_above(below: BorrowedFd<'_>, wanted: Id) -> Step<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
    let fd = openat(below, "..", flags, Mode::empty())?;
    if id(&fstat(&fd)?) != wanted {
        return Err(Cause::refused("it was moved during the copy"));
    }
    Ok(fd)
}

/// The files of the host, as the source of a copy.
pub struct LocalSource<'a> {
    root: bool,
    watch: &'a dyn Watch,
    left_out: Cell<u64>,
}

impl LocalSource<'_> {
    /// Copies from the host.
    pub fn new(watch: &dyn Watch) -> LocalSource<'_> {
        LocalSource { root: geteuid().is_root(), watch, left_out: Cell::new(0) }
    }

    /// How many attributes were left out because an ordinary user cannot copy them.
    pub fn left_out(&self) -> u64 {
        self.left_out.get()
    }

    /// Opens the file at a path from `dir` on.
    fn open(&self, dir: BorrowedFd<'_>, path: &Path, follow: bool) -> Step<LocalEntry> {
        let at = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        let stat = statat(dir, path, at)?;
        match kind(&stat) {
            // As cp(1): the content of a device or fifo that the user names is read.
            Some(FileType::Fifo | FileType::CharDevice | FileType::BlockDevice) if follow => {
                // Opened without waiting for a writer: the later wait can end at a signal.
                let fd = openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
                let stat = fstat(&fd)?;
                Ok(LocalEntry {
                    stat,
                    fd: Some(File::from(fd)),
                    stream: true,
                    target: Vec::new(),
                    xattrs: Ok(Vec::new()),
                })
            }
            // A socket cannot be read by its name.
            Some(FileType::Socket) if follow => Err(Errno::NXIO.into()),
            Some(kind @ (FileType::Regular | FileType::Directory)) => {
                // If a fifo has replaced the file, the open must not wait.
                let mut flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
                flags.set(OFlags::DIRECTORY, kind == FileType::Directory);
                flags.set(OFlags::NOFOLLOW, !follow);
                let fd = openat(dir, path, flags, Mode::empty())?;
                // The file may have changed since: the open one counts.
                let stat = fstat(&fd)?;
                Ok(LocalEntry {
                    stat,
                    fd: Some(File::from(fd)),
                    stream: false,
                    target: Vec::new(),
                    xattrs: Ok(Vec::new()),
                })
            }
            kind => {
                let target = match kind {
                    Some(FileType::Symlink) => readlinkat(dir, path, Vec::new())?.into_bytes(),
                    _ => Vec::new(),
                };
                // Such a file has no descriptor that gives attributes.
                let xattrs = within(dir, path, |path| {
                    let list = match listed(|buf| llistxattr(path, buf)) {
                        Err(Errno::NOENT) => Ok(Vec::new()),
                        list => list,
                    };
                    list.and_then(|list| self.wanted(&list, |name, buf| lgetxattr(path, name, buf)))
                });
                Ok(LocalEntry { stat, fd: None, stream: false, target, xattrs })
            }
        }
    }

    fn wanted(
        &self,
        list: &[u8],
        get: impl Fn(&OsStr, &mut [u8]) -> std::result::Result<usize, Errno>,
    ) -> std::result::Result<Xattrs, Errno> {
        let mut xattrs = Vec::new();
        for name in list.split(|b| *b == 0).filter(|n| !n.is_empty()) {
            let privileged = name.starts_with(b"trusted.") || name == b"security.capability";
            if privileged && !self.root {
                self.left_out.set(self.left_out.get() + 1);
                continue;
            }
            // Other attributes belong to the host, for example security labels.
            if !(privileged || name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")) {
                continue;
            }
            let mut value = vec![0; 65536];
            match get(OsStr::from_bytes(name), &mut value) {
                Ok(len) => value.truncate(len),
                // Removed meanwhile, or only listed.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
                Err(e) => return Err(e),
            }
            xattrs.push((name.to_vec(), value));
        }
        Ok(xattrs)
    }
}

/// Calls `f` with a name for `path` from `dir` on, for calls that take no descriptor of a directory. Without /proc it
/// changes the working directory meanwhile: no other code in this process relies on that.
fn within<R>(
    dir: BorrowedFd<'_>,
    path: &Path,
    f: impl FnOnce(&Path) -> std::result::Result<R, Errno>,
) -> std::result::Result<R, Errno> {
    if path.is_absolute() || dir.as_raw_fd() < 0 {
        return f(path);
    }
    let number = Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string());
    if number.exists() {
        return f(&number.join(path));
    }
    let here = openat(CWD, ".", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    fchdir(dir)?;
    let result = f(path);
    fchdir(here)?;
    result
}

/// The error for attributes that exist and cannot be read.
fn unread(e: Errno) -> Cause {
    Cause::Attributes(e.into())
}

/// The names, each ended by NUL. Empty if attributes are not supported.
fn listed(list: impl Fn(&mut [u8]) -> std::result::Result<usize, Errno>) -> std::result::Result<Vec<u8>, Errno> {
    let mut buf = vec![0; 65536];
    let n = match list(&mut buf) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
        n => n?,
    };
    buf.truncate(n);
    Ok(buf)
}

/// A file that is copied.
pub struct LocalEntry {
    stat: Stat,
    /// The descriptor of a file or a directory.
    fd: Option<File>,
    /// A fifo or a device whose content is copied.
    stream: bool,
    target: Vec<u8>,
    /// For files without a descriptor. An error is reported when the attributes are needed.
    xattrs: std::result::Result<Xattrs, Errno>,
}

impl LocalEntry {
    fn file(&self) -> Step<&File> {
        self.fd.as_ref().ok_or_else(|| Cause::refused("not a regular file"))
    }
}

impl Source for LocalSource<'_> {
    type Entry = LocalEntry;

    fn image(&self) -> Option<usize> {
        None
    }

    fn top(&self, path: &[u8], follow: bool) -> Step<LocalEntry> {
        self.open(CWD, dir_path(path), follow || path.ends_with(b"/"))
    }

    fn node(&self, entry: &LocalEntry) -> Step<Node> {
        let stat = &entry.stat;
        let kind = if entry.stream { FileType::Regular } else { kind(stat).ok_or(Errno::INVAL)? };
        let time = |seconds, nanos| Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        let device = kind.is_device().then(|| DeviceNr { major: major(stat.st_rdev), minor: minor(stat.st_rdev) });
        // The type is narrower on some machines.
        #[allow(clippy::useless_conversion)]
        let links = stat.st_nlink.into();
        Ok(Node {
            kind,
            mode: stat.st_mode as u16 & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links,
            size: stat.st_size as u64,
            atime: time(stat.st_atime, stat.st_atime_nsec),
            mtime: time(stat.st_mtime, stat.st_mtime_nsec),
            device,
            id: id(stat),
        })
    }

    fn names(&self, dir: &LocalEntry, after: Option<&[u8]>) -> Step<(Vec<Vec<u8>>, bool)> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir.file()?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && after.is_none_or(|after| name > after) {
                names.push(name.to_vec());
            }
        }
        names.sort();
        Ok((names, false))
    }

    fn child(&self, dir: &LocalEntry, name: &[u8]) -> Step<LocalEntry> {
        self.open(dir.file()?.as_fd(), os(name), false)
    }

    fn parent(&self, below: &LocalEntry, id: Id) -> Step<LocalEntry> {
        let fd = directory_above(below.file()?.as_fd(), id)?;
        Ok(LocalEntry {
            stat: fstat(&fd)?,
            fd: Some(File::from(fd)),
            stream: false,
            target: Vec::new(),
            xattrs: Ok(Vec::new()),
        })
    }

    fn target(&self, link: &LocalEntry) -> Step<Vec<u8>> {
        Ok(link.target.clone())
    }

    fn xattrs(&self, entry: &LocalEntry) -> (Xattrs, Step<()>) {
        let read = match &entry.fd {
            None => entry.xattrs.clone(),
            Some(file) => listed(|buf| flistxattr(file, buf))
                .and_then(|list| self.wanted(&list, |name, buf| fgetxattr(file, name, buf))),
        };
        match read {
            Ok(xattrs) => (xattrs, Ok(())),
            Err(e) => (Xattrs::new(), Err(unread(e))),
        }
    }

    fn doubt(&self, _entry: &LocalEntry) -> Step<()> {
        Ok(())
    }

    fn read(&self, entry: &LocalEntry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Step<Content> {
        let file = entry.file()?;
        let mut buf = vec![0; CHUNK_BYTES];
        let (mut pos, mut written) = (0, 0);
        if entry.stream {
            let mut input = self.watch.input(file);
            loop {
                let read = input.read(&mut buf);
                if self.watch.is_stopped() {
                    return Err(Cause::Stopped);
                }
                let n = match read {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                if n == 0 {
                    return Ok(Content { size: pos, shrank: false, missing: None });
                }
                write(pos, &buf[..n])?;
                pos += n as u64;
            }
        }
        let size = entry.stat.st_size as u64;
        let mut read = |pos: u64, len: u64| loop {
            let want = len.min(CHUNK_BYTES as u64) as usize;
            match file.read_at(&mut buf[..want], pos) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Cause::from(e)),
                Ok(0) => return Ok(0),
                Ok(n) => {
                    write(pos, &buf[..n])?;
                    written = pos + n as u64;
                    return Ok(n as u64);
                }
            }
        };
        'data: while pos < size {
            let Some((start, end)) = data_range(file, pos, size)? else {
                pos = size;
                break;
            };
            pos = start;
            while pos < end {
                match read(pos, end - pos)? {
                    0 => break 'data,
                    n => pos += n,
                }
            }
        }
        // The size may be 0, as in /proc, or out of date.
        loop {
            match read(pos, CHUNK_BYTES as u64)? {
                0 => break,
                n => pos += n,
            }
        }
        let now = fstat(file)?.st_size as u64;
        Ok(match now < size && pos <= size {
            true => Content { size: now.max(written), shrank: true, missing: None },
            false => Content { size: pos, shrank: false, missing: None },
        })
    }

    fn place(&self, path: &[u8]) -> Place {
        Place::host(path)
    }
}

/// The next range with data from `pos` on; the whole rest if the host does not report holes.
fn data_range(file: &File, pos: u64, size: u64) -> io::Result<Option<(u64, u64)>> {
    let start = match seek(file, SeekFrom::Data(pos)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((pos, size))),
        Err(e) => return Err(e.into()),
    };
    let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size);
    Ok((start < size).then_some((start, end.clamp(start, size))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_during_a_read_is_copied_as_far_as_it_goes() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("file");
        let source = LocalSource::new(&crate::Silent);
        let read_after = |change: &dyn Fn(&File)| {
            std::fs::write(&path, [7; 5000]).expect("written");
            let entry = source.top(path.as_os_str().as_bytes(), true).expect("opened");
            change(&File::options().append(true).open(&path).expect("opened"));
            let mut bytes = 0;
            let content = source.read(&entry, &mut |at, data| {
                assert_eq!(at, bytes);
                bytes += data.len() as u64;
                Ok(())
            });
            let Content { size, shrank, missing } = content.expect("read");
            assert!(missing.is_none());
            ((size, shrank), bytes)
        };
        let content = |size: u64, shrank: bool| (size, shrank);
        assert_eq!(read_after(&|_| {}), (content(5000, false), 5000));
        assert_eq!(read_after(&|file| file.set_len(1000).expect("cut")), (content(1000, true), 1000));
        assert_eq!(read_after(&|file| file.set_len(0).expect("emptied")), (content(0, true), 0));
        let grown = |file: &File| io::Write::write_all(&mut { file }, &[7; 100]).expect("written");
        assert_eq!(read_after(&grown), (content(5100, false), 5100));
    }
}
