//! The sides of a copy that lie on the host.
//!
//! Writing goes through directory descriptors, opened without following links, because what is written comes from an
//! image: a name in it that is a link first and a directory later must not lead anywhere else.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_ondisk::inode::{DeviceNr, FileType};
use extant_ondisk::time::Timestamp;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, SeekFrom, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
    fsetxattr, lgetxattr, llistxattr, major, makedev, minor, mkdirat, mknodat, openat, readlinkat, seek, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{CHUNK_BYTES, Node, Sink, Source, Xattrs};
use crate::failure::{Failure, Result, plain, warn};
use crate::text::{join, shown};

fn os(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// An empty path means the directory we are in.
fn dir_path(path: &[u8]) -> &Path {
    if path.is_empty() { Path::new(".") } else { os(path) }
}

fn failed(path: &[u8], e: impl Into<io::Error>) -> Failure {
    Failure::op(format!("{}: {}", shown(path), plain(&e.into())))
}

pub struct LocalSource {
    root: bool,
}

impl LocalSource {
    pub fn new() -> LocalSource {
        LocalSource { root: geteuid().is_root() }
    }
}

/// A path, and what is there.
pub struct Entry {
    path: PathBuf,
    meta: Metadata,
}

impl Entry {
    fn bytes(&self) -> &[u8] {
        self.path.as_os_str().as_bytes()
    }

    fn failed(&self, e: impl Into<io::Error>) -> Failure {
        failed(self.bytes(), e)
    }
}

impl Source for LocalSource {
    type Entry = Entry;

    fn top(&self, path: &[u8], follow: bool) -> Result<Entry> {
        let path = os(path).to_owned();
        let meta = if follow { path.metadata() } else { path.symlink_metadata() };
        let meta = meta.map_err(|e| Failure::io(&path, e))?;
        Ok(Entry { path, meta })
    }

    fn node(&self, entry: &Entry) -> Result<Node> {
        let meta = &entry.meta;
        let mode = meta.mode() as u16;
        let kind = FileType::from_mode(mode).ok_or_else(|| entry.failed(Errno::INVAL))?;
        let time = |seconds, nanos| Timestamp { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        let device = kind.is_device().then(|| DeviceNr { major: major(meta.rdev()), minor: minor(meta.rdev()) });
        Ok(Node {
            kind,
            mode: mode & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            size: meta.len(),
            atime: time(meta.atime(), meta.atime_nsec()),
            mtime: time(meta.mtime(), meta.mtime_nsec()),
            device,
            id: (meta.dev(), meta.ino()),
        })
    }

    fn names(&self, dir: &Entry) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&dir.path).map_err(|e| dir.failed(e))? {
            names.push(entry.map_err(|e| dir.failed(e))?.file_name().as_bytes().to_vec());
        }
        names.sort();
        Ok(names)
    }

    fn child(&self, dir: &Entry, name: &[u8]) -> Result<Entry> {
        let path = dir.path.join(os(name));
        let meta = path.symlink_metadata().map_err(|e| Failure::io(&path, e))?;
        Ok(Entry { path, meta })
    }

    fn target(&self, link: &Entry) -> Result<Vec<u8>> {
        let target = readlinkat(CWD, &link.path, Vec::new()).map_err(|e| link.failed(e))?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, entry: &Entry) -> Result<Xattrs> {
        // Where attributes are not supported there are none.
        let Some(list) = list_xattrs(&entry.path) else { return Ok(Vec::new()) };
        let names = list.split(|b| *b == 0).filter(|n| !n.is_empty());
        // Others are the host's own: labels, say.
        let wanted = |n: &&[u8]| {
            n.starts_with(b"user.")
                || n.starts_with(b"system.posix_acl_")
                || self.root && (n.starts_with(b"trusted.") || *n == b"security.capability")
        };
        Ok(names.filter(wanted).filter_map(|n| Some((n.to_vec(), get_xattr(&entry.path, n)?))).collect())
    }

    fn read(&self, entry: &Entry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let mut options = std::fs::OpenOptions::new();
        // A fifo that took the file's place must not make us wait.
        let file = options.read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&entry.path);
        let file = file.map_err(|e| entry.failed(e))?;
        let size = entry.meta.len();
        let mut buf = vec![0; CHUNK_BYTES];
        let mut pos = 0;
        while pos < size {
            let end = match data_range(&file, pos, size) {
                Ok(Some((start, end))) => {
                    pos = start;
                    end
                }
                Ok(None) => break,
                Err(e) => return Err(entry.failed(e)),
            };
            while pos < end {
                let want = (end - pos).min(buf.len() as u64) as usize;
                match file.read_at(&mut buf[..want], pos) {
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(entry.failed(e)),
                    // It has shrunk; the rest is a hole.
                    Ok(0) => return Ok(()),
                    Ok(n) => {
                        write(pos, &buf[..n])?;
                        pos += n as u64;
                    }
                }
            }
        }
        Ok(())
    }

    fn show(&self, entry: &Entry) -> String {
        shown(entry.bytes())
    }
}

/// The next range with data from `pos` on; all of the rest where the host does not know holes.
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

/// The names, each ended by NUL.
fn list_xattrs(path: &Path) -> Option<Vec<u8>> {
    let mut buf = vec![0; 65536];
    let n = llistxattr(path, &mut buf[..]).ok()?;
    buf.truncate(n);
    Some(buf)
}

fn get_xattr(path: &Path, name: &[u8]) -> Option<Vec<u8>> {
    let mut buf = vec![0; 65536];
    let n = lgetxattr(path, OsStr::from_bytes(name), &mut buf[..]).ok()?;
    buf.truncate(n);
    Some(buf)
}

/// A directory, by its descriptor; the path is for messages.
pub struct Dir {
    fd: OwnedFd,
    path: Vec<u8>,
}

pub struct NewFile {
    file: File,
    path: Vec<u8>,
}

pub struct LocalSink {
    root: bool,
    /// Once is enough.
    warned: std::cell::Cell<bool>,
}

impl LocalSink {
    pub fn new() -> LocalSink {
        LocalSink { root: geteuid().is_root(), warned: false.into() }
    }

    /// Mode bits to set. Without the owner, set-user-id and set-group-id would mean somebody else.
    fn mode(&self, node: &Node) -> Mode {
        let mask = if self.root { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode((node.mode & mask).into())
    }

    fn set_xattrs(&self, fd: &impl std::os::fd::AsFd, path: &[u8], xattrs: &Xattrs) {
        for (name, value) in xattrs {
            let set = fsetxattr(fd, OsStr::from_bytes(name), value, XattrFlags::empty());
            if let Err(e) = set
                && !self.warned.replace(true)
            {
                let e = plain(&e.into());
                warn(&format!(
                    "{}: attribute {}: {e} (further attributes are left out silently)",
                    shown(path),
                    shown(name)
                ));
            }
        }
    }

    fn finish(&self, fd: impl std::os::fd::AsFd, path: &[u8], node: &Node, xattrs: &Xattrs) -> Result<()> {
        if self.root {
            fchown(&fd, Some(Uid::from_raw(node.uid)), Some(Gid::from_raw(node.gid))).map_err(|e| failed(path, e))?;
        }
        // After the owner, whose change clears bits; the attributes before it, since ACLs change the mode.
        self.set_xattrs(&fd, path, xattrs);
        fchmod(&fd, self.mode(node)).map_err(|e| failed(path, e))?;
        rustix::fs::futimens(&fd, &times(node)).map_err(|e| failed(path, e))
    }
}

fn times(node: &Node) -> Timestamps {
    let spec = |t: Timestamp| Timespec { tv_sec: t.seconds, tv_nsec: t.nanos.into() };
    Timestamps { last_access: spec(node.atime), last_modification: spec(node.mtime) }
}

impl Sink for LocalSink {
    type Dir = Dir;
    type File = NewFile;

    fn top(&self, path: &[u8]) -> Result<Dir> {
        // Named by the user: links are followed.
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = openat(CWD, dir_path(path), flags, Mode::empty()).map_err(|e| failed(path, e))?;
        Ok(Dir { fd, path: path.to_vec() })
    }

    fn existing(&self, path: &[u8]) -> Result<Option<FileType>> {
        match os(path).metadata() {
            Ok(meta) => Ok(FileType::from_mode(meta.mode() as u16)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(path, e)),
        }
    }

    fn directory(&self, parent: &Dir, name: &[u8]) -> Result<Dir> {
        let path = join_local(&parent.path, name);
        match mkdirat(&parent.fd, os(name), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(failed(&path, e)),
        }
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::RDONLY;
        let fd = openat(&parent.fd, os(name), flags, Mode::empty()).map_err(|e| failed(&path, e))?;
        Ok(Dir { fd, path })
    }

    fn file(&self, parent: &Dir, name: &[u8]) -> Result<NewFile> {
        let path = join_local(&parent.path, name);
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(openat(&parent.fd, os(name), flags, mode).map_err(|e| failed(&path, e))?);
        if !file.metadata().is_ok_and(|m| m.is_file()) {
            return Err(Failure::op(format!("{}: something that is no regular file is in the way", shown(&path))));
        }
        // What is copied may be under the name of something private: nobody reads it before it has its mode.
        fchmod(&file, mode).and_then(|()| rustix::fs::ftruncate(&file, 0)).map_err(|e| failed(&path, e))?;
        Ok(NewFile { file, path })
    }

    fn write(&self, file: &NewFile, offset: u64, data: &[u8]) -> Result<()> {
        file.file.write_all_at(data, offset).map_err(|e| failed(&file.path, e))
    }

    fn finish_file(&self, file: NewFile, node: &Node, xattrs: &Xattrs) -> Result<()> {
        // A hole at the end.
        file.file.set_len(node.size).map_err(|e| failed(&file.path, e))?;
        self.finish(&file.file, &file.path, node, xattrs)
    }

    fn finish_directory(&self, dir: &Dir, node: &Node, xattrs: &Xattrs) -> Result<()> {
        self.finish(&dir.fd, &dir.path, node, xattrs)
    }

    fn special(&self, parent: &Dir, name: &[u8], node: &Node, target: &[u8], _xattrs: &Xattrs) -> Result<()> {
        let path = join_local(&parent.path, name);
        let name = os(name);
        let make = || match node.kind {
            FileType::Symlink => symlinkat(os(target), &parent.fd, name),
            kind => {
                let device = node.device.map_or(0, |d| makedev(d.major, d.minor));
                let kind = rustix::fs::FileType::from_raw_mode(kind.mode_bits().into());
                mknodat(&parent.fd, name, kind, self.mode(node), device)
            }
        };
        let made = match make() {
            Err(Errno::EXIST) => unlinkat(&parent.fd, name, AtFlags::empty()).and_then(|()| make()),
            other => other,
        };
        made.map_err(|e| failed(&path, e))?;
        if self.root {
            let (uid, gid) = (Some(Uid::from_raw(node.uid)), Some(Gid::from_raw(node.gid)));
            chownat(&parent.fd, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| failed(&path, e))?;
        }
        if node.kind != FileType::Symlink {
            // mknod's mode went through the umask, and chown may have cleared bits. We have just made it: no link.
            rustix::fs::chmodat(&parent.fd, name, self.mode(node), AtFlags::empty()).map_err(|e| failed(&path, e))?;
        }
        utimensat(&parent.fd, name, &times(node), AtFlags::SYMLINK_NOFOLLOW).map_err(|e| failed(&path, e))
    }
}

/// As [`join`], for paths that may be empty.
fn join_local(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { join(dir, name) }
}
