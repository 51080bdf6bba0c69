//! The fingerprint of a directory tree: everything that a user can see of it, except values that depend on time and
//! location.
//!
//! Main types: [`NodeInfo`], [`Fingerprint`]; functions [`fingerprint`] and [`diff`].
//!
//! What it does not do: it does not compare inode numbers (hard links are shown as groups), ctime, the size of
//! directories, or anything above the given directory. `blocks` is recorded but not compared: two allocators may
//! differ.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, lgetxattr, llistxattr, major, minor, seek};
use rustix::io::Errno;

use crate::{Error, Result};

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// The visible properties of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    pub kind: Kind,
    /// Permission and special bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u64,
    /// Bytes; 0 for directories.
    pub size: u64,
    /// Hash of a file's content; holes and written zeros are equivalent.
    pub content: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
    pub atime: (i64, u32),
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    pub target: Option<PathBuf>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, that refers to the same inode, if it is not this one.
    pub same_as: Option<PathBuf>,
    /// Units of 512 bytes; not compared.
    pub blocks: u64,
}

/// Paths relative to the top (whose path is empty), in order.
pub type Fingerprint = BTreeMap<PathBuf, NodeInfo>;

/// Reads the whole tree under `top`. Each inode's times are read before its content, and reading uses O_NOATIME.
pub fn fingerprint(top: &Path) -> Result<Fingerprint> {
    let mut out = Fingerprint::new();
    let mut links: HashMap<(u64, u64), PathBuf> = HashMap::new();
    walk(top, &mut |relative, path| {
        let info = read_node(path, relative, &mut links)?;
        out.insert(relative.to_owned(), info);
        Ok(())
    })?;
    Ok(out)
}

/// Visits `top` and everything below, a directory before its entries, entries in byte order. Stays on one file system.
pub(crate) fn walk(top: &Path, visit: &mut dyn FnMut(&Path, &Path) -> Result<()>) -> Result<()> {
    let mut pending = vec![PathBuf::new()];
    while let Some(relative) = pending.pop() {
        let path = if relative.as_os_str().is_empty() { top.to_owned() } else { top.join(&relative) };
        let meta = path.symlink_metadata().map_err(Error::io(format!("stat {}", path.display())))?;
        visit(&relative, &path)?;
        if meta.is_dir() {
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&path).map_err(Error::io(format!("readdir {}", path.display())))? {
                let entry = entry.map_err(Error::io(format!("readdir {}", path.display())))?;
                names.push(entry.file_name());
            }
            names.sort();
            if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
                let what = format!("{} lists a name twice", path.display());
                return Err(Error::Mismatch { what, difference: format!("{:?}", pair[0]) });
            }
            pending.extend(names.into_iter().rev().map(|n| relative.join(n)));
        }
    }
    Ok(())
}

fn read_node(path: &Path, relative: &Path, links: &mut HashMap<(u64, u64), PathBuf>) -> Result<NodeInfo> {
    let m = path.symlink_metadata().map_err(Error::io(format!("stat {}", path.display())))?;
    let t = m.file_type();
    let kind = if t.is_file() {
        Kind::File
    } else if t.is_dir() {
        Kind::Directory
    } else if t.is_symlink() {
        Kind::Symlink
    } else if t.is_fifo() {
        Kind::Fifo
    } else if t.is_socket() {
        Kind::Socket
    } else if t.is_char_device() {
        Kind::CharDevice
    } else {
        Kind::BlockDevice
    };
    let xattrs = read_xattrs(path)?;
    let same_as = (kind != Kind::Directory && m.nlink() > 1)
        .then(|| links.entry((m.dev(), m.ino())).or_insert_with(|| relative.to_owned()).clone())
        .filter(|first| first != relative);
    let content = if kind == Kind::File && same_as.is_none() { hash_content(path, m.size())? } else { 0 };
    let target = match kind {
        Kind::Symlink => Some(std::fs::read_link(path).map_err(Error::io(format!("readlink {}", path.display())))?),
        _ => None,
    };
    Ok(NodeInfo {
        kind,
        mode: m.mode() & 0o7777,
        uid: m.uid(),
        gid: m.gid(),
        nlink: m.nlink(),
        size: if kind == Kind::Directory { 0 } else { m.size() },
        content,
        mtime: (m.mtime(), m.mtime_nsec() as u32),
        atime: (m.atime(), m.atime_nsec() as u32),
        rdev: (major(m.rdev()), minor(m.rdev())),
        target,
        xattrs,
        same_as,
        blocks: m.blocks(),
    })
}

pub(crate) fn read_xattrs(path: &Path) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let len = match llistxattr(path, names.as_mut_slice()) {
        Ok(len) => len,
        Err(Errno::OPNOTSUPP) => 0,
        Err(e) => return Err(Error::io(format!("listxattr {}", path.display()))(e)),
    };
    let mut all = BTreeMap::new();
    for name in names[..len].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let mut value = vec![0; 65536];
        let len = lgetxattr(path, name, value.as_mut_slice()).map_err(Error::io(format!(
            "getxattr {} of {}",
            name.escape_ascii(),
            path.display()
        )))?;
        value.truncate(len);
        all.insert(name.to_vec(), value);
    }
    Ok(all)
}

const PAGE: usize = 4096;

/// Hashes the pages that are not all zero, with their numbers, so that a hole and written zeros are the same. Reads
/// only the data ranges, if the file system reports them.
fn hash_content(path: &Path, size: u64) -> Result<u64> {
    let what = || format!("read {}", path.display());
    let mut file = std::fs::File::options()
        .read(true)
        .custom_flags(OFlags::NOATIME.bits() as i32)
        .open(path)
        .map_err(Error::io(what()))?;
    let mut hasher = DefaultHasher::new();
    let mut buffer = vec![0; 64 * PAGE];
    let mut at = 0;
    while at < size {
        at = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data / PAGE as u64 * PAGE as u64,
            Err(Errno::NXIO) => break,
            Err(_) => at,
        };
        seek(&file, SeekFrom::Start(at)).map_err(Error::io(what()))?;
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..]).map_err(Error::io(what()))? {
                0 => break,
                n => filled += n,
            }
        }
        for (i, page) in buffer[..filled].chunks(PAGE).enumerate() {
            if let Some(last) = page.iter().rposition(|&b| b != 0) {
                hasher.write_u64(at / PAGE as u64 + i as u64);
                hasher.write(&page[..=last]);
            }
        }
        at += filled as u64;
        if filled < buffer.len() {
            break;
        }
    }
    if at < size && seek(&file, SeekFrom::Data(at)).is_ok() {
        let difference = format!("data ends at {at}, the size is {size}");
        return Err(Error::Mismatch { what: what(), difference });
    }
    Ok(hasher.finish())
}

/// How many differences [`diff`] describes.
const DIFF_LINES: usize = 40;

/// The differences between two trees, one line each; empty if they are equal.
pub fn diff(left: &Fingerprint, right: &Fingerprint) -> String {
    let mut lines = Vec::new();
    for (path, l) in left {
        match right.get(path) {
            None => lines.push(format!("{}: only left ({:?})", show(path), l.kind)),
            Some(r) => lines.extend(node_diff(l, r).into_iter().map(|d| format!("{}: {d}", show(path)))),
        }
    }
    let only_right = right.iter().filter(|(path, _)| !left.contains_key(*path));
    lines.extend(only_right.map(|(path, r)| format!("{}: only right ({:?})", show(path), r.kind)));
    let more = lines.len().saturating_sub(DIFF_LINES);
    lines.truncate(DIFF_LINES);
    let mut out = lines.join("\n");
    if more > 0 {
        let _ = write!(out, "\n… and {more} more");
    }
    out
}

fn show(path: &Path) -> String {
    let shown = path.as_os_str().as_bytes().escape_ascii().to_string();
    if shown.is_empty() { ".".into() } else { shown }
}

fn node_diff(l: &NodeInfo, r: &NodeInfo) -> Vec<String> {
    let mut out = Vec::new();
    let mut field = |name: &str, l: &dyn std::fmt::Debug, r: &dyn std::fmt::Debug| {
        let (l, r) = (format!("{l:?}"), format!("{r:?}"));
        if l != r {
            out.push(format!("{name} {l} / {r}"));
        }
    };
    field("kind", &l.kind, &r.kind);
    field("mode", &format_args!("{:o}", l.mode), &format_args!("{:o}", r.mode));
    field("owner", &(l.uid, l.gid), &(r.uid, r.gid));
    field("nlink", &l.nlink, &r.nlink);
    field("size", &l.size, &r.size);
    field("content", &format_args!("{:x}", l.content), &format_args!("{:x}", r.content));
    field("mtime", &l.mtime, &r.mtime);
    field("atime", &l.atime, &r.atime);
    field("rdev", &l.rdev, &r.rdev);
    field("target", &l.target, &r.target);
    field("same_as", &l.same_as, &r.same_as);
    for name in l.xattrs.keys().chain(r.xattrs.keys().filter(|n| !l.xattrs.contains_key(*n))) {
        let value = |n: &NodeInfo| n.xattrs.get(name).map(|v| v.escape_ascii().to_string());
        field(&name.escape_ascii().to_string(), &value(l), &value(r));
    }
    out
}

/// A name of bytes as a path component.
pub(crate) fn name_of(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}
