//! The host's side of a copy with the calls that every system has: names, content, times and permissions.
//!
//! What it does not do: owners, extended attributes, hard links of sources, devices. It reaches files by their paths,
//! so a program that changes the tree meanwhile can lead it elsewhere.
//!
//! # Locking
//! None.

use std::fs::{self, File, FileTimes, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use extant_fs::Error as FsError;
use extant_ondisk::inode::FileType;
use extant_ondisk::time::Timestamp;

use super::side::{Content, Id, Node, Rules, Sink, Source};
use crate::attributes::Xattrs;
use crate::content::CHUNK_BYTES;
use crate::error::{Cause, Place, Result, Step};
use crate::watch::Watch;

/// The bytes of an image as a path of this system.
fn path(bytes: &[u8]) -> Step<PathBuf> {
    let text = std::str::from_utf8(bytes).map_err(|_| Cause::refused("a name that is not UTF-8"))?;
    Ok(PathBuf::from(if text.is_empty() { "." } else { text }))
}

/// `name` in `dir`, unless this system takes it for a path.
fn below(dir: &Path, name: &[u8]) -> Step<PathBuf> {
    let name = path(name)?;
    let mut parts = name.components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name.as_os_str() => Ok(dir.join(part)),
        _ => Err(Cause::refused("a name that the host takes for a path")),
    }
}

/// The path identifies a file: no call does so on all systems, and links are not followed.
fn id(path: &Path) -> Id {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    (0, hasher.finish())
}

fn kind(meta: &Metadata) -> Option<FileType> {
    let kind = meta.file_type();
    match (kind.is_symlink(), kind.is_dir(), kind.is_file()) {
        (true, ..) => Some(FileType::Symlink),
        (_, true, _) => Some(FileType::Directory),
        (_, _, true) => Some(FileType::Regular),
        _ => None,
    }
}

#[cfg(unix)]
fn mode(meta: &Metadata) -> u16 {
    use std::os::unix::fs::PermissionsExt;
    meta.permissions().mode() as u16 & 0o7777
}

#[cfg(not(unix))]
fn mode(meta: &Metadata) -> u16 {
    if meta.is_dir() { 0o755 } else { 0o644 }
}

#[cfg(unix)]
fn set_mode(at: &Path, mode: u16) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(at, fs::Permissions::from_mode(u32::from(mode & 0o1777)))
}

#[cfg(not(unix))]
#[allow(clippy::unnecessary_wraps, reason = "as on Unix")]
fn set_mode(_: &Path, _: u16) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn make_symlink(target: &Path, at: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(not(unix))]
fn make_symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn timestamp(time: io::Result<SystemTime>) -> Timestamp {
    let Ok(time) = time else { return Timestamp::default() };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() },
        Err(e) => {
            let (seconds, nanos) = (e.duration().as_secs() as i64, e.duration().subsec_nanos());
            match nanos {
                0 => Timestamp { seconds: -seconds, nanos: 0 },
                nanos => Timestamp { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

fn system_time(time: Timestamp) -> Option<SystemTime> {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second?.checked_add(Duration::from_nanos(time.nanos.into()))
}

/// The files of the host, as the source of a copy.
#[derive(Debug)]
pub struct PortableSource;

impl PortableSource {
    /// Copies from the host.
    pub fn new(_watch: &dyn Watch) -> PortableSource {
        PortableSource
    }
}

/// A file that is copied.
#[derive(Debug)]
pub struct PortableEntry {
    path: PathBuf,
    meta: Metadata,
}

fn entry(path: PathBuf, follow: bool) -> Step<PortableEntry> {
    let meta = if follow { path.metadata()? } else { path.symlink_metadata()? };
    Ok(PortableEntry { path, meta })
}

impl Source for PortableSource {
    type Entry = PortableEntry;

    fn image(&self) -> Option<usize> {
        None
    }

    fn top(&self, at: &[u8], follow: bool) -> Step<PortableEntry> {
        entry(path(at)?, follow)
    }

    fn node(&self, entry: &PortableEntry) -> Step<Node> {
        let meta = &entry.meta;
        // Pipes and the like are sockets here: nothing of them is copied.
        let kind = kind(meta).unwrap_or(FileType::Socket);
        Ok(Node {
            kind,
            mode: mode(meta),
            uid: 0,
            gid: 0,
            links: 1,
            size: meta.len(),
            atime: timestamp(meta.accessed()),
            mtime: timestamp(meta.modified()),
            device: None,
            id: id(&entry.path),
        })
    }

    fn names(&self, dir: &PortableEntry, after: Option<&[u8]>) -> Step<(Vec<Vec<u8>>, bool)> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir.path)? {
            let name = entry?.file_name().as_encoded_bytes().to_vec();
            if after.is_none_or(|after| &name[..] > after) {
                names.push(name);
            }
        }
        names.sort();
        Ok((names, false))
    }

    fn child(&self, dir: &PortableEntry, name: &[u8]) -> Step<PortableEntry> {
        entry(below(&dir.path, name)?, false)
    }

    fn parent(&self, below: &PortableEntry, _id: Id) -> Step<PortableEntry> {
        let above = below.path.parent().ok_or_else(|| Cause::refused("it has no directory above it"))?;
        entry(above.to_path_buf(), false)
    }

    fn target(&self, link: &PortableEntry) -> Step<Vec<u8>> {
        let target = fs::read_link(&link.path)?.into_os_string().into_encoded_bytes();
        let slash = |byte: u8| if byte == b'\\' && cfg!(not(unix)) { b'/' } else { byte };
        Ok(target.into_iter().map(slash).collect())
    }

    fn xattrs(&self, _entry: &PortableEntry) -> (Xattrs, Step<()>) {
        (Xattrs::new(), Ok(()))
    }

    fn read(&self, entry: &PortableEntry, write: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Step<Content> {
        let mut file = File::open(&entry.path)?;
        let mut buf = vec![0; CHUNK_BYTES];
        let mut size = 0;
        loop {
            match file.read(&mut buf) {
                Ok(0) => return Ok(Content { size, shrank: size < entry.meta.len(), missing: None }),
                Ok(n) => {
                    write(size, &buf[..n])?;
                    size += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn doubt(&self, _entry: &PortableEntry) -> Step<()> {
        Ok(())
    }

    fn place(&self, path: &[u8]) -> Place {
        Place::host(path)
    }
}

/// A place on the host that files are copied to. They are always new.
#[derive(Debug)]
pub struct PortableSink;

impl PortableSink {
    /// Copies to the host. Of the rules, none makes a difference here.
    pub fn new(_rules: Rules, _watch: &dyn Watch) -> PortableSink {
        PortableSink
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct PortableFile {
    path: PathBuf,
    file: File,
}

impl Sink for PortableSink {
    type Dir = PathBuf;
    type File = PortableFile;

    fn image(&self) -> Option<usize> {
        None
    }

    fn top(&self, at: &[u8]) -> Step<PathBuf> {
        let dir = path(at)?;
        if dir.metadata()?.is_dir() { Ok(dir) } else { Err(FsError::NotDirectory.into()) }
    }

    fn existing(&self, at: &[u8]) -> Step<Option<FileType>> {
        match path(at)?.metadata() {
            Ok(meta) => Ok(kind(&meta)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn id(&self, dir: &PathBuf) -> Step<Id> {
        Ok(id(dir))
    }

    fn is_within(&self, _dir: &PathBuf, _id: Id) -> Step<bool> {
        // The source is an image, so it cannot contain the destination.
        Ok(false)
    }

    fn look(&self, dir: &PathBuf, name: &[u8]) -> Step<Option<(FileType, Id)>> {
        let path = below(dir, name)?;
        match path.symlink_metadata() {
            Ok(meta) => Ok(Some((kind(&meta).unwrap_or(FileType::Regular), id(&path)))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    fn directory(&self, parent: &PathBuf, name: &[u8], _follow: bool) -> Step<PathBuf> {
        let path = below(parent, name)?;
        fs::create_dir(&path)?;
        set_mode(&path, 0o700)?;
        Ok(path)
    }

    fn parent(&self, below: &PathBuf, _id: Id) -> Step<PathBuf> {
        below.parent().map(Path::to_path_buf).ok_or_else(|| Cause::refused("it has no directory above it"))
    }

    fn file(&self, parent: &PathBuf, name: &[u8], _named: bool, _source: Option<Id>) -> Step<PortableFile> {
        let path = below(parent, name)?;
        let file = File::options().write(true).create_new(true).open(&path)?;
        Ok(PortableFile { path, file })
    }

    fn write(&self, file: &PortableFile, offset: u64, data: &[u8]) -> Step<()> {
        let mut file = &file.file;
        file.seek(SeekFrom::Start(offset))?;
        Ok(file.write_all(data)?)
    }

    fn finish_file(&self, file: PortableFile, node: &Node, _xattrs: &Xattrs) -> Step<Id> {
        file.file.set_len(node.size)?;
        set_times(&file.file, node)?;
        set_mode(&file.path, node.mode)?;
        Ok(id(&file.path))
    }

    fn finish_directory(&self, dir: PathBuf, node: &Node, _xattrs: &Xattrs) -> Step<()> {
        // Elsewhere a directory cannot be opened like a file.
        if cfg!(unix) {
            set_times(&File::open(&dir)?, node)?;
        }
        Ok(set_mode(&dir, node.mode)?)
    }

    fn special(&self, parent: &PathBuf, name: &[u8], node: &Node, target: &[u8], _xattrs: &Xattrs) -> Step<Option<Id>> {
        if node.kind != FileType::Symlink {
            return Err(FsError::NotSupported("a device, a pipe or a socket cannot be copied").into());
        }
        let path = below(parent, name)?;
        make_symlink(&self::path(target)?, &path)?;
        Ok(Some(id(&path)))
    }

    fn link(&self, _made: Id, path: &[&[u8]], parent: &PathBuf, name: &[u8]) -> Step<bool> {
        let [top, names @ ..] = path else { return Ok(false) };
        let mut from = self::path(top)?;
        for name in names {
            from = below(&from, name)?;
        }
        // Where it fails, the file is copied again.
        Ok(fs::hard_link(from, below(parent, name)?).is_ok())
    }

    fn place(&self, path: &[u8]) -> Place {
        Place::host(path)
    }
}

fn set_times(file: &File, node: &Node) -> io::Result<()> {
    match (system_time(node.atime), system_time(node.mtime)) {
        (Some(accessed), Some(modified)) => {
            file.set_times(FileTimes::new().set_accessed(accessed).set_modified(modified))
        }
        // The host has no such time.
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;
    use crate::copy::{Copy, Options};

    #[test]
    fn a_tree_is_copied_with_content_times_and_links() {
        let dir = tempfile::tempdir().expect("directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("from/a/b")).expect("directories");
        let content = [vec![7; 3], vec![0; 300_000], vec![8; 5]].concat();
        fs::write(at("from/a/b/file"), &content).expect("a file");
        make_symlink(Path::new("../nowhere"), &at("from/link")).expect("a link");
        let then = UNIX_EPOCH - Duration::from_millis(1500);
        File::options().write(true).open(at("from/a/b/file")).and_then(|f| f.set_modified(then)).expect("a time");
        let bytes = |name: &str| at(name).into_os_string().into_encoded_bytes();
        let (sink, source) = (PortableSink::new(Rules::default(), &Silent), PortableSource::new(&Silent));
        let options = Options { recursive: true, makes_holes: true, ..Options::default() };
        let mut copy = Copy::new(&sink, options, &Silent);
        copy.source(&source, &bytes("from"), &bytes("to"), false).expect("copied");
        assert!(fs::read(at("to/a/b/file")).expect("read") == content);
        let modified = fs::metadata(at("to/a/b/file")).and_then(|m| m.modified()).expect("a time");
        assert_eq!((fs::read_link(at("to/link")).expect("a link"), modified), ("../nowhere".into(), then));
        let again = copy.source(&source, &bytes("from"), &bytes("to"), false).expect_err("nothing is replaced");
        assert!(matches!(&again.cause, Cause::Host(e) if e.kind() == io::ErrorKind::AlreadyExists), "{again}");
    }
}
