//! A directory of the host as a source.
//!
//! No symbolic link below it is followed: everything is accessed through the descriptor of its root, and each opened
//! file is compared with the entry that the walk found. Linux reads extended attributes only by a path or of an open
//! file. So a thread enters each directory through its descriptor, and reads them by the bare name. If the system does
//! not allow threads to have their own working directory, the descriptor is used as a path below /proc. Calls go
//! through the C library (rustix's `use-libc`), so that fakeroot(1) can intercept them.
//!
//! Threads list directories. One thread builds the tree from their entries, for which the order does not matter.
//!
//! # Locking
//! None: the threads communicate through channels.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc;

use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::time::Timestamp;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, SeekFrom, Stat, fgetxattr, flistxattr, fstat, ioctl_getflags, lgetxattr,
    llistxattr, major, minor, openat, readlinkat, seek, stat, statat,
};
use rustix::io::Errno;
use rustix::process::fchdir;

use super::left_out::LeftOut;
use super::{Options, Source, entry_error};
use crate::error::shown;
use crate::tree::{Attributes, Builder, Content, ReadAt, Xattr, stored_name};
use crate::{Error, Result};

/// The maximum length of a path that is passed to the kernel, with some margin (`PATH_MAX` is 4096).
const PATH_BYTES: usize = 4000;
/// The maximum size of a value or list of names (`XATTR_SIZE_MAX`, `XATTR_LIST_MAX`).
const XATTR_BYTES: usize = 65536;

/// A directory that was found: the end of its path in [`Names::bytes`], and its parent.
struct Place {
    parent: u32,
    name: Range<u64>,
}

/// A regular file that was found.
struct FoundFile {
    dir: u32,
    /// The offset of its name in [`Names::bytes`], times 256, plus its length.
    name: u64,
    /// A fingerprint of the fields that [`SourceRoot::fingerprint`] reads.
    fingerprint: u64,
}

/// The source's directory.
struct SourceRoot {
    /// The source's own path, for messages.
    path: Vec<u8>,
    root: OwnedFd,
    /// Whether the descriptors of this process are visible in /proc.
    has_proc: bool,
    hasher: RandomState,
}

/// The names by which files are opened again.
struct Names {
    below: SourceRoot,
    bytes: Vec<u8>,
    dirs: Vec<Place>,
    files: Vec<FoundFile>,
}

/// A directory that has not been listed yet.
struct Job {
    dir: u32,
    /// The path from the root on.
    path: Vec<u8>,
    id: (u64, u64),
}

/// Some entries of a directory.
struct Chunk {
    worker: usize,
    dir: u32,
    /// The path before the names.
    prefix: Vec<u8>,
    found: Vec<FoundEntry>,
    left_out: LeftOut,
    /// No more chunks of this directory will come.
    last: bool,
}

/// An entry that a thread reports.
struct FoundEntry {
    name: Box<[u8]>,
    attributes: Attributes,
    id: (u64, u64),
    /// Whether there are other names, unless it is a directory.
    several: bool,
    what: EntryKind,
}

enum EntryKind {
    Directory,
    File { size: u64, data: Option<Vec<Range<u64>>>, fingerprint: u64 },
    Symlink(Vec<u8>),
    Device { major: u32, minor: u32 },
    Special,
}

/// The number of entries that are sent in one message.
const CHUNK_ENTRIES: usize = 128;
/// The maximum number of chunks that wait until they are added to the tree.
const CHUNKS: usize = 16;
/// The number of directories that wait for a thread: only enough to keep it busy, because others may be faster.
const JOBS: usize = 4;
/// More threads than this would only wait for each other in the kernel.
const THREADS_MAX: usize = 8;

pub(super) fn read(path: &Path, options: Options) -> Result<Source> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, path, flags, Mode::empty()).and_then(|root| fstat(&root).map(|stat| (root, stat)));
    let path = path.as_os_str().as_bytes();
    let (root, stat) = opened.map_err(|e| super::source_error(shown(path), &e.into()))?;
    let below = SourceRoot::new(path.to_vec(), root);
    let mut builder = Builder::new(options.tree);
    let mut lister = Lister::new(&below);
    let xattrs = lister.xattrs(&below.root, b".", b"")?;
    let left_out = lister.left_out;
    builder.directory(b".", Attributes { flags: case_flag(&below.root), ..attributes(&stat, xattrs) })?;
    let mut walk = Walk {
        builder,
        bytes: Vec::new(),
        dirs: vec![Place { parent: 0, name: 0..0 }],
        files: Vec::new(),
        waiting: vec![Job { dir: 0, path: Vec::new(), id: id(&stat) }],
        linked: HashMap::new(),
        left_out,
    };
    walk.run(&below)?;
    let Walk { builder, mut bytes, dirs, mut files, left_out, .. } = walk;
    bytes.shrink_to_fit();
    files.shrink_to_fit();
    let warnings = left_out.warning(&shown(&below.path)).into_iter().collect();
    let content = Box::new(Names { below, bytes, dirs, files });
    Ok(Source { tree: builder.finish()?, content, warnings })
}

/// Builds the tree, on one thread.
struct Walk {
    builder: Builder,
    /// The names, stored as in [`Names`].
    bytes: Vec<u8>,
    dirs: Vec<Place>,
    files: Vec<FoundFile>,
    waiting: Vec<Job>,
    /// The builder's numbers of files with several names.
    linked: HashMap<(u64, u64), u32>,
    left_out: LeftOut,
}

impl Walk {
    /// Starts threads that list directories, and takes their entries in any order.
    fn run(&mut self, below: &SourceRoot) -> Result<()> {
        std::thread::scope(|threads| {
            // Both ends of all channels are dropped with this closure, even if it fails. Then the threads end.
            let (results, found) = mpsc::sync_channel(CHUNKS);
            let mut workers = Vec::new();
            for number in 0..extant_base::task::processors().min(THREADS_MAX) {
                let (jobs, next) = mpsc::channel::<Job>();
                let results = results.clone();
                let builder = std::thread::Builder::new().name("extant-walk".into());
                let work = move || {
                    let mut lister = Lister::new(below);
                    // A thread shares its working directory with the others unless the system lets it have its own.
                    lister.enters = unshare(CloneFlags::CLONE_FS).is_ok();
                    work(&mut lister, number, &next, &results);
                };
                builder.spawn_scoped(threads, work).map_err(|e| Error::Thread(e.to_string()))?;
                workers.push((jobs, 0));
            }
            drop(results);
            loop {
                while let Some(job) = self.waiting.pop() {
                    let (jobs, busy) = workers.iter_mut().min_by_key(|(_, busy)| *busy).expect("a processor");
                    if *busy == JOBS {
                        self.waiting.push(job);
                        break;
                    }
                    *busy += 1;
                    // A thread that has ended has panicked; the end of the scope passes the panic on.
                    if jobs.send(job).is_err() {
                        return Ok(());
                    }
                }
                if workers.iter().all(|(_, busy)| *busy == 0) {
                    return Ok(());
                }
                let Ok(chunk) = found.recv() else { return Ok(()) };
                let chunk: Chunk = chunk?;
                if chunk.last {
                    workers[chunk.worker].1 -= 1;
                }
                self.take(chunk)?;
            }
        })
    }

    fn take(&mut self, chunk: Chunk) -> Result<()> {
        let Chunk { dir, prefix, found, left_out, .. } = chunk;
        self.left_out.add(left_out);
        let mut path = prefix;
        let prefix = path.len();
        for FoundEntry { name, attributes, id, several, what } in found {
            path.truncate(prefix);
            path.extend_from_slice(&name);
            if several && let Some(node) = self.linked.get(&id) {
                self.builder.link_to(&path, &path, *node)?;
                continue;
            }
            match what {
                EntryKind::Directory => {
                    self.builder.directory(&path, attributes)?;
                    let number = self.dirs.len() as u32;
                    let start = self.add(&name);
                    self.dirs.push(Place { parent: dir, name: start..start + name.len() as u64 });
                    self.waiting.push(Job { dir: number, path: path.clone(), id });
                }
                EntryKind::File { size, data, fingerprint } => {
                    let content = self.files.len() as u64;
                    let start = self.add(&name);
                    self.files.push(FoundFile { dir, name: start << 8 | name.len() as u64, fingerprint });
                    self.builder.file(&path, attributes, size, data, content)?;
                }
                EntryKind::Symlink(target) => self.builder.symlink(&path, attributes, &target)?,
                EntryKind::Device { major, minor } => self.builder.device(&path, attributes, major, minor)?,
                EntryKind::Special => self.builder.special(&path, attributes)?,
            }
            if several && let Some(node) = self.builder.target(&path) {
                self.linked.insert(id, node);
            }
        }
        Ok(())
    }

    fn add(&mut self, name: &[u8]) -> u64 {
        let start = self.bytes.len() as u64;
        self.bytes.extend_from_slice(name);
        start
    }
}

/// Lists directories until there are no more, or the walk has ended.
fn work(lister: &mut Lister<'_>, worker: usize, jobs: &mpsc::Receiver<Job>, results: &mpsc::SyncSender<Result<Chunk>>) {
    for job in jobs {
        let mut send = |chunk| results.send(Ok(chunk)).is_ok();
        match lister.list(job, worker, &mut send) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                // The receiver is dropped only if another error ended the walk.
                let _ = results.send(Err(error));
                return;
            }
        }
    }
}

/// The state of a thread that lists.
struct Lister<'a> {
    below: &'a SourceRoot,
    /// Whether this thread has its own working directory, which is that of [`Lister::list`].
    enters: bool,
    left_out: LeftOut,
    list: Vec<u8>,
    value: Vec<u8>,
}

impl Lister<'_> {
    fn new(below: &SourceRoot) -> Lister<'_> {
        Lister {
            below,
            enters: false,
            left_out: LeftOut::default(),
            list: vec![0; XATTR_BYTES],
            value: vec![0; XATTR_BYTES],
        }
    }

    /// Lists a directory. Returns `false` if the walk has ended, and takes no more entries.
    fn list(&mut self, job: Job, worker: usize, send: &mut dyn FnMut(Chunk) -> bool) -> Result<bool> {
        let Job { dir, path, id } = job;
        let below = self.below;
        let wrong = |e: Errno| entry_error(below.shown(&path), "cannot be listed", e);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = below.open(&path, flags).map_err(wrong)?;
        if self::id(&fstat(&fd).map_err(wrong)?) != id {
            let why = "another directory took its place".into();
            return Err(Error::Entry { entry: below.shown(&path), why });
        }
        if self.enters {
            fchdir(&fd).map_err(wrong)?;
        }
        let mut at = path.clone();
        if !at.is_empty() {
            at.push(b'/');
        }
        let prefix = at.len();
        let mut found = Vec::new();
        for entry in Dir::read_from(&fd).map_err(wrong)? {
            let entry = entry.map_err(wrong)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            at.truncate(prefix);
            at.extend_from_slice(name);
            found.push(self.entry(&fd, name, &at)?);
            if found.len() == CHUNK_ENTRIES {
                let (found, left_out) = (std::mem::take(&mut found), std::mem::take(&mut self.left_out));
                if !send(Chunk { worker, dir, prefix: at[..prefix].to_vec(), found, left_out, last: false }) {
                    return Ok(false);
                }
            }
        }
        at.truncate(prefix);
        let left_out = std::mem::take(&mut self.left_out);
        Ok(send(Chunk { worker, dir, prefix: at, found, left_out, last: true }))
    }

    fn entry(&mut self, fd: &OwnedFd, name: &[u8], path: &[u8]) -> Result<FoundEntry> {
        let below = self.below;
        let stat = statat(fd, os(name), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|e| entry_error(below.shown(path), "cannot be examined", e))?;
        let kind = FileType::from_mode(stat.st_mode as u16);
        let xattrs = self.xattrs(fd, name, path)?;
        let what = match kind {
            Some(FileType::Directory) => EntryKind::Directory,
            Some(FileType::Regular) => {
                let size = stat.st_size as u64;
                let sparse = (stat.st_blocks as u64).saturating_mul(512) < size;
                let data = if sparse { self.data(fd, name, path, &stat)? } else { None };
                EntryKind::File { size, data, fingerprint: below.fingerprint(&stat) }
            }
            Some(FileType::Symlink) => {
                let target = readlinkat(fd, os(name), Vec::new())
                    .map_err(|e| entry_error(below.shown(path), "the link cannot be read", e))?;
                EntryKind::Symlink(target.into_bytes())
            }
            Some(FileType::CharDevice | FileType::BlockDevice) => {
                EntryKind::Device { major: major(stat.st_rdev), minor: minor(stat.st_rdev) }
            }
            Some(FileType::Fifo | FileType::Socket) => EntryKind::Special,
            None => {
                let why = format!("mode {:o} is of no known type", stat.st_mode);
                return Err(Error::Entry { entry: below.shown(path), why });
            }
        };
        let several = stat.st_nlink > 1 && kind != Some(FileType::Directory);
        let mut attributes = attributes(&stat, xattrs);
        if kind == Some(FileType::Directory)
            && let Ok(dir) = openat(fd, os(name), OPEN | OFlags::DIRECTORY, Mode::empty())
        {
            attributes.flags = case_flag(&dir);
        }
        Ok(FoundEntry { name: name.into(), attributes, id: id(&stat), several, what })
    }

    /// The ranges with data of a file with holes; `None` if it has data everywhere, according to the host.
    fn data(&self, fd: &OwnedFd, name: &[u8], path: &[u8], stat: &Stat) -> Result<Option<Vec<Range<u64>>>> {
        let wrong = |e: Errno| entry_error(self.below.shown(path), "cannot be opened", e);
        let file = openat(fd, os(name), OPEN, Mode::empty()).map_err(wrong)?;
        let opened = fstat(&file).map_err(wrong)?;
        self.below.compare(self.below.fingerprint(stat), &opened, path)?;
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

    /// The attributes of a name in a directory that an image can contain. `path` is for messages.
    fn xattrs(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8]) -> Result<Vec<Xattr>> {
        if self.enters {
            let name = os(name);
            return self.xattrs_by(path, |list| llistxattr(name, list), |key, value| lgetxattr(name, key, value));
        }
        if self.below.has_proc {
            // The directory is the opened one, regardless of where its path leads by now; its entry is not followed.
            let host = [format!("/proc/self/fd/{}/", dir.as_raw_fd()).as_bytes(), name].concat();
            let host = os(&host);
            return self.xattrs_by(path, |list| llistxattr(host, list), |name, value| lgetxattr(host, name, value));
        }
        // Opening a device may change it. Only files and directories usually have attributes.
        let wrong = |e: Errno| entry_error(self.below.shown(path), "cannot be opened", e);
        let kind = FileType::from_mode(statat(dir, os(name), AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?.st_mode as u16);
        if !matches!(kind, Some(FileType::Regular | FileType::Directory)) {
            return Ok(Vec::new());
        }
        let file = openat(dir, os(name), OPEN, Mode::empty()).map_err(wrong)?;
        self.xattrs_by(path, |list| flistxattr(&file, list), |name, value| fgetxattr(&file, name, value))
    }

    fn xattrs_by(
        &mut self,
        path: &[u8],
        list: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>,
        get: impl Fn(&Path, &mut [u8]) -> rustix::io::Result<usize>,
    ) -> Result<Vec<Xattr>> {
        let wrong = |e: Errno| entry_error(self.below.shown(path), "its extended attributes cannot be read", e);
        let len = match list(&mut self.list[..]) {
            Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
            Ok(len) => len,
            Err(e) => return Err(wrong(e)),
        };
        let mut xattrs = Vec::new();
        for name in self.list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            if stored_name(name).is_none() {
                self.left_out.attribute(name);
                continue;
            }
            match get(os(name), &mut self.value[..]) {
                Ok(len) => xattrs.push((name.into(), self.value[..len].into())),
                // The attribute is listed, but this caller has no access to it.
                Err(Errno::OPNOTSUPP) => {}
                Err(e) => return Err(wrong(e)),
            }
        }
        Ok(xattrs)
    }
}

/// These flags prevent waiting for a FIFO that has replaced a file.
const OPEN: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

impl Names {
    /// The path from the root on, without a slash at its ends.
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
}

impl SourceRoot {
    fn new(path: Vec<u8>, root: OwnedFd) -> SourceRoot {
        let seen = stat(format!("/proc/self/fd/{}", root.as_raw_fd())).and_then(|seen| Ok((seen, fstat(&root)?)));
        let has_proc = seen.is_ok_and(|(seen, root)| id(&seen) == id(&root));
        SourceRoot { path, root, has_proc, hasher: RandomState::new() }
    }

    /// The path in the user's form.
    fn shown(&self, path: &[u8]) -> String {
        let slash: &[u8] = if path.is_empty() || self.path.ends_with(b"/") { b"" } else { b"/" };
        shown(&[&self.path, slash, path].concat())
    }

    /// Opens a path below the root, regardless of its length.
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

    /// A fingerprint of the fields that differ if a file is another one, or has another content.
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
        let below = &self.below;
        let met = &self.files[content as usize];
        let mut path = self.dir_path(met.dir);
        if !path.is_empty() {
            path.push(b'/');
        }
        let start = (met.name >> 8) as usize;
        path.extend_from_slice(&self.bytes[start..start + (met.name & 0xff) as usize]);
        let fd = below.open(&path, OPEN).map_err(|e| entry_error(below.shown(&path), "cannot be opened", e))?;
        let reader = Reader { below, path, file: fd.into(), fingerprint: met.fingerprint };
        reader.finish()?;
        Ok(Box::new(reader))
    }
}

struct Reader<'a> {
    below: &'a SourceRoot,
    path: Vec<u8>,
    file: File,
    fingerprint: u64,
}

impl ReadAt for Reader<'_> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                Error::Entry { entry: self.below.shown(&self.path), why: "became shorter while it was read".into() }
            }
            _ => entry_error(self.below.shown(&self.path), "cannot be read", e),
        })
    }

    fn finish(&self) -> Result<()> {
        let stat = fstat(&self.file).map_err(|e| entry_error(self.below.shown(&self.path), "cannot be examined", e))?;
        self.below.compare(self.fingerprint, &stat, &self.path)
    }
}

/// The flag of a directory that ignores case, if the host's does: the one flag that is a part of what names mean.
fn case_flag(dir: &OwnedFd) -> InodeFlags {
    let flags = ioctl_getflags(dir).map_or(0, |flags| flags.bits());
    InodeFlags::from_bits_retain(flags as u32) & InodeFlags::CASEFOLD
}

fn os(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn id(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn attributes(stat: &Stat, xattrs: Vec<Xattr>) -> Attributes {
    let mtime = Timestamp { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 };
    let mode = stat.st_mode as u16;
    Attributes { mode, uid: stat.st_uid, gid: stat.st_gid, mtime, xattrs, ..Attributes::default() }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{XattrFlags, setxattr};

    use super::*;

    fn below(dir: &Path) -> SourceRoot {
        let root = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        SourceRoot::new(b"top".to_vec(), root)
    }

    #[test]
    fn a_directory_that_took_the_place_of_another_is_refused() {
        let dir = tempfile::tempdir().expect("directory");
        std::fs::create_dir(dir.path().join("inner")).expect("directory");
        let below = below(dir.path());
        let met = id(&statat(&below.root, "inner", AtFlags::SYMLINK_NOFOLLOW).expect("there"));
        let list = |id| Lister::new(&below).list(Job { dir: 1, path: b"inner".to_vec(), id }, 0, &mut |_| true);
        assert!(list(met).expect("listed"));
        let said = list((met.0, met.1 + 1)).expect_err("refused").to_string();
        assert_eq!(said, "top/inner: another directory took its place");
    }

    #[test]
    fn attributes_are_those_of_the_directory_that_was_opened_whatever_has_its_name_by_now() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("directory");
        let at = |name: &str| dir.path().join(name);
        for place in ["tree/inner", "secret"] {
            std::fs::create_dir_all(at(place)).expect("directory");
            std::fs::write(at(place).join("f"), "content").expect("file");
            let set = |path: &Path| setxattr(path, "user.of", place.as_bytes(), XattrFlags::empty());
            set(&at(place).join("f")).and_then(|()| set(&at(place))).expect("attributes");
        }
        std::os::unix::fs::symlink(at("secret/f"), at("tree/inner/link")).expect("a link");
        for (has_proc, enters) in [(true, false), (false, false), (false, true)] {
            let below = SourceRoot { has_proc, ..below(&at("tree")) };
            let inner = below.open(b"inner", OFlags::RDONLY | OFlags::DIRECTORY).expect("opened");
            std::fs::rename(at("tree/inner"), at("tree/old")).expect("renamed");
            std::os::unix::fs::symlink(at("secret"), at("tree/inner")).expect("a link");
            let look = || {
                let mut lister = Lister { enters, ..Lister::new(&below) };
                let mut of = |fd: &OwnedFd, name: &[u8]| {
                    if enters {
                        unshare(CloneFlags::CLONE_FS).expect("a directory of its own");
                        fchdir(fd).expect("entered");
                    }
                    lister.xattrs(fd, name, name).expect("read")
                };
                let expected: Xattr = (Box::from(*b"user.of"), Box::from(*b"tree/inner"));
                assert_eq!(of(&inner, b"f"), std::slice::from_ref(&expected));
                assert_eq!(of(&inner, b"."), [expected]);
                assert_eq!(of(&inner, b"link"), [], "a link's own");
                assert_eq!(of(&below.root, b"inner"), [], "a link's own");
            };
            std::thread::scope(|threads| threads.spawn(look).join().expect("the attributes of what was opened"));
            std::fs::remove_file(at("tree/inner")).expect("removed");
            std::fs::rename(at("tree/old"), at("tree/inner")).expect("renamed");
        }
    }
}
