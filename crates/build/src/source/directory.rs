//! A directory of the host as a source.
//!
//! Nothing below it is followed: what it holds is reached through the descriptor of its root, and what is opened is
//! compared with what was met on the walk. Calls go through the C library (rustix's `use-libc`), so that fakeroot(1)
//! can answer them.
//!
//! # Locking
//! None.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, SeekFrom, Stat, fstat, lgetxattr, llistxattr, major, minor, openat, readlinkat,
    seek, statat,
};
use rustix::io::Errno;

use super::{Options, Progress, Source, entry_error};
use crate::error::shown;
use crate::tree::{Attributes, Builder, Content, ReadAt, Xattr};
use crate::{Error, Result};

/// So many bytes of a path the kernel takes at once, with room to spare (`PATH_MAX` is 4096).
const PATH_BYTES: usize = 4000;
/// As long as a value or a list of names can be (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_BYTES: usize = 65536;

/// A directory that was met: where its path ends in [`Names::bytes`], and the directory above.
struct Place {
    parent: u32,
    name: Range<u64>,
}

/// A regular file that was met.
struct Met {
    dir: u32,
    /// Where its name begins in [`Names::bytes`], times 256, and its length.
    name: u64,
    /// Of what [`Names::fingerprint`] looks at.
    fingerprint: u64,
}

/// What is needed to find files again.
struct Names {
    /// The source's own path, for messages.
    path: Vec<u8>,
    root: OwnedFd,
    bytes: Vec<u8>,
    dirs: Vec<Place>,
    files: Vec<Met>,
    hasher: RandomState,
}

/// A directory that is still to be listed.
struct Waiting {
    dir: u32,
    id: (u64, u64),
}

pub(super) fn read(path: &Path, options: Options<'_>) -> Result<Source> {
    let shown_path = shown(path.as_os_str().as_bytes());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty())
        .and_then(|root| fstat(&root).map(|stat| (root, stat)))
        .map_err(|e| Error::Source { name: shown_path.clone(), why: super::plain(&e.into()) })?;
    let (root, stat) = root;
    let progress = Progress::new(&options);
    let mut walk = Walk {
        names: Names {
            path: path.as_os_str().as_bytes().to_vec(),
            root,
            bytes: Vec::new(),
            dirs: vec![Place { parent: 0, name: 0..0 }],
            files: Vec::new(),
            hasher: RandomState::new(),
        },
        builder: Builder::new(options.tree),
        progress,
        waiting: vec![Waiting { dir: 0, id: id(&stat) }],
        linked: HashMap::new(),
        list: vec![0; XATTR_BYTES],
        value: vec![0; XATTR_BYTES],
    };
    let xattrs = walk.xattrs(path, b"")?;
    walk.builder.directory(b".", attributes(&stat, xattrs))?;
    while let Some(next) = walk.waiting.pop() {
        walk.list(&next)?;
    }
    walk.progress.end();
    let mut names = walk.names;
    names.bytes.shrink_to_fit();
    names.files.shrink_to_fit();
    Ok(Source { tree: walk.builder.finish()?, content: Box::new(names) })
}

struct Walk<'a> {
    names: Names,
    builder: Builder,
    progress: Progress<'a>,
    waiting: Vec<Waiting>,
    /// Of files with several names: what the builder calls them.
    linked: HashMap<(u64, u64), u32>,
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Walk<'_> {
    fn list(&mut self, waiting: &Waiting) -> Result<()> {
        let path = self.names.dir_path(waiting.dir);
        let here = |names: &Names| names.shown(&path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = self.names.open(&path, flags).map_err(|e| entry_error(here(&self.names), "cannot be listed", e))?;
        let stat = fstat(&fd).map_err(|e| entry_error(here(&self.names), "cannot be listed", e))?;
        if id(&stat) != waiting.id {
            return Err(Error::Entry { entry: here(&self.names), why: "another directory took its place".into() });
        }
        let mut found = Vec::new();
        for entry in Dir::read_from(&fd).map_err(|e| entry_error(here(&self.names), "cannot be listed", e))? {
            let entry = entry.map_err(|e| entry_error(here(&self.names), "cannot be listed", e))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                found.push(Box::<[u8]>::from(name));
            }
        }
        found.sort_unstable();
        let mut at = path;
        if !at.is_empty() {
            at.push(b'/');
        }
        let prefix = at.len();
        // What the kernel needs no descriptor for, where it takes the path at once.
        let mut host = [&self.names.path[..], b"/", &at].concat();
        if host.len() + 256 > PATH_BYTES {
            host = format!("/proc/self/fd/{}/", fd.as_raw_fd()).into_bytes();
        }
        let host_prefix = host.len();
        let first = self.waiting.len();
        for name in found {
            at.truncate(prefix);
            at.extend_from_slice(&name);
            host.truncate(host_prefix);
            host.extend_from_slice(&name);
            self.entry(&fd, waiting.dir, &name, &at, &host)?;
            self.progress.entry();
        }
        self.waiting[first..].reverse();
        Ok(())
    }

    fn entry(&mut self, fd: &OwnedFd, dir: u32, name: &[u8], path: &[u8], host: &[u8]) -> Result<()> {
        let stat = statat(fd, os(name), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| entry_error(self.names.shown(path), "cannot be examined", e))?;
        let kind = FileType::from_mode(stat.st_mode as u16);
        let several = stat.st_nlink > 1 && kind != Some(FileType::Directory);
        if several && let Some(node) = self.linked.get(&id(&stat)) {
            return self.builder.link_to(path, path, *node);
        }
        let xattrs = self.xattrs(os(host), path)?;
        let attributes = attributes(&stat, xattrs);
        match kind {
            Some(FileType::Directory) => {
                self.builder.directory(path, attributes)?;
                let number = self.names.dirs.len() as u32;
                let start = self.names.add(name);
                let name = start..start + name.len() as u64;
                self.names.dirs.push(Place { parent: dir, name });
                self.waiting.push(Waiting { dir: number, id: id(&stat) });
            }
            Some(FileType::Regular) => {
                let size = stat.st_size as u64;
                let sparse = (stat.st_blocks as u64).saturating_mul(512) < size;
                let data = if sparse { self.data(fd, name, path, &stat)? } else { None };
                let content = self.names.files.len() as u64;
                let start = self.names.add(name);
                let fingerprint = self.names.fingerprint(&stat);
                self.names.files.push(Met { dir, name: start << 8 | name.len() as u64, fingerprint });
                self.builder.file(path, attributes, size, data, content)?;
            }
            Some(FileType::Symlink) => {
                let target = readlinkat(fd, os(name), Vec::new())
                    .map_err(|e| entry_error(self.names.shown(path), "the link cannot be read", e))?;
                self.builder.symlink(path, attributes, target.as_bytes())?;
            }
            Some(FileType::CharDevice | FileType::BlockDevice) => {
                self.builder.device(path, attributes, major(stat.st_rdev), minor(stat.st_rdev))?;
            }
            Some(FileType::Fifo | FileType::Socket) => self.builder.special(path, attributes)?,
            None => {
                let why = format!("mode {:o} is of no known type", stat.st_mode);
                return Err(Error::Entry { entry: self.names.shown(path), why });
            }
        }
        if several && let Some(node) = self.builder.target(path) {
            self.linked.insert(id(&stat), node);
        }
        Ok(())
    }

    /// Where a file that has holes has data; `None`: everywhere, as far as the host knows.
    fn data(&self, fd: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat) -> Result<Option<Vec<Range<u64>>>> {
        let wrong = |e: Errno| entry_error(self.names.shown(path), "cannot be opened", e);
        let file = openat(fd, os(name), OPEN, Mode::empty()).map_err(wrong)?;
        let opened = fstat(&file).map_err(wrong)?;
        self.names.compare(self.names.fingerprint(stat), &opened, path)?;
        let size = stat.st_size as u64;
        let mut ranges = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
                Err(e) => return Err(wrong(e)),
            };
            let end = seek(&file, SeekFrom::Hole(start)).map_err(wrong)?.min(size);
            if start >= end {
                break;
            }
            ranges.push(start..end);
            at = end;
        }
        Ok(Some(ranges))
    }

    /// The attributes that an image can hold. `path` is for messages.
    fn xattrs(&mut self, host: &Path, path: &[u8]) -> Result<Vec<Xattr>> {
        let wrong = |e: Errno| entry_error(self.names.shown(path), "its extended attributes cannot be read", e);
        let len = match llistxattr(host, &mut self.list[..]) {
            Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
            Ok(len) => len,
            Err(e) => return Err(wrong(e)),
        };
        let mut xattrs = Vec::new();
        for name in self.list[..len].split(|byte| *byte == 0).filter(|name| super::is_stored(name)) {
            match lgetxattr(host, os(name), &mut self.value[..]) {
                Ok(len) => xattrs.push((name.into(), self.value[..len].into())),
                // Listed, but not for us.
                Err(Errno::OPNOTSUPP) => {}
                Err(e) => return Err(wrong(e)),
            }
        }
        Ok(xattrs)
    }
}

/// A FIFO that took a file's place must not make us wait.
const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

impl Names {
    fn add(&mut self, name: &[u8]) -> u64 {
        let start = self.bytes.len() as u64;
        self.bytes.extend_from_slice(name);
        start
    }

    /// From the root on, without a slash at its ends.
    fn dir_path(&self, dir: u32) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = dir;
        while at != 0 {
            let place = &self.dirs[at as usize];
            parts.push(&self.bytes[place.name.start as usize..place.name.end as usize]);
            at = place.parent;
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// As the user knows it.
    fn shown(&self, path: &[u8]) -> String {
        let slash: &[u8] = if path.is_empty() || self.path.ends_with(b"/") { b"" } else { b"/" };
        shown(&[&self.path, slash, path].concat())
    }

    /// Opens what lies below the root, however long the path is.
    fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        if path.is_empty() {
            return openat(&self.root, ".", flags, Mode::empty());
        }
        let mut dir: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > PATH_BYTES {
            let at = rest[..PATH_BYTES].iter().rposition(|byte| *byte == b'/').ok_or(Errno::NAMETOOLONG)?;
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            dir = Some(openat(self.from(&dir), os(&rest[..at]), flags, Mode::empty())?);
            rest = &rest[at + 1..];
        }
        openat(self.from(&dir), os(rest), flags, Mode::empty())
    }

    fn from<'a>(&'a self, dir: &'a Option<OwnedFd>) -> BorrowedFd<'a> {
        dir.as_ref().unwrap_or(&self.root).as_fd()
    }

    /// What is another when a file is another, or has another content.
    fn fingerprint(&self, stat: &Stat) -> u64 {
        let kind = FileType::from_mode(stat.st_mode as u16).map(FileType::mode_bits);
        self.hasher.hash_one((kind, id(stat), stat.st_size, stat.st_mtime, stat.st_mtime_nsec))
    }

    fn compare(&self, expected: u64, stat: &Stat, path: &[u8]) -> Result<()> {
        if self.fingerprint(stat) == expected {
            return Ok(());
        }
        Err(Error::Entry { entry: self.shown(path), why: "changed while it was read".into() })
    }
}

impl Content for Names {
    fn open(&self, content: u64) -> Result<Box<dyn ReadAt + '_>> {
        let met = &self.files[content as usize];
        let mut path = self.dir_path(met.dir);
        if !path.is_empty() {
            path.push(b'/');
        }
        let start = (met.name >> 8) as usize;
        path.extend_from_slice(&self.bytes[start..start + (met.name & 0xff) as usize]);
        let fd = Names::open(self, &path, OPEN).map_err(|e| entry_error(self.shown(&path), "cannot be opened", e))?;
        let reader = Reader { names: self, path, file: fd.into(), fingerprint: met.fingerprint };
        reader.finish()?;
        Ok(Box::new(reader))
    }
}

struct Reader<'a> {
    names: &'a Names,
    path: Vec<u8>,
    file: File,
    fingerprint: u64,
}

impl ReadAt for Reader<'_> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::Entry { entry: self.names.shown(&self.path), why: "became shorter while it was read".into() }
            }
            _ => entry_error(self.names.shown(&self.path), "cannot be read", e),
        })
    }

    fn finish(&self) -> Result<()> {
        let stat = fstat(&self.file).map_err(|e| entry_error(self.names.shown(&self.path), "cannot be examined", e))?;
        self.names.compare(self.fingerprint, &stat, &self.path)
    }
}

fn os(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn attributes(stat: &Stat, xattrs: Vec<Xattr>) -> Attributes {
    let mtime = Timestamp { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
    Attributes { mode: stat.st_mode as u16, uid: stat.st_uid, gid: stat.st_gid, mtime, xattrs }
}
