//! The content of an image as a mount shows it: every path with its content, and every path for which it reports
//! damage. It is used to compare a rescue with other tools.
//!
//! Main types: [`ImageContents`], [`Entry`]; function [`shown`].
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};

use extant_fs::walk::{Visit, Walk};
use extant_fs::{Error, Filesystem, InodeRef, Seek};
use extant_ondisk::inode::FileType;

/// The length of a file, and a hash of its bytes, in which holes and zeros are alike.
pub type Content = (u64, u64);

/// The file that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: u32,
    pub kind: FileType,
    /// The content of a regular file, with zeros for unreadable parts.
    pub content: Option<Content>,
}

/// Everything in an image.
#[derive(Clone, Debug, Default)]
pub struct ImageContents {
    pub entries: BTreeMap<String, Entry>,
    /// The errors, by path.
    pub hurt: BTreeMap<String, String>,
}

/// Hashes the blocks of a file in order, except those of zeros.
#[derive(Default)]
pub struct Digest(DefaultHasher);

/// The number of bytes that are hashed at once.
pub const PIECE: usize = 1024;

impl Digest {
    /// Adds the bytes at `at`, a multiple of [`PIECE`].
    pub fn add(&mut self, at: u64, bytes: &[u8]) {
        for (i, piece) in (0u64..).zip(bytes.chunks(PIECE)) {
            let end = piece.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if end > 0 {
                self.0.write_u64(at + i * PIECE as u64);
                self.0.write(&piece[..end]);
            }
        }
    }

    pub fn of(bytes: &[u8]) -> u64 {
        let mut digest = Digest::default();
        digest.add(0, bytes);
        digest.end()
    }

    pub fn end(&self) -> u64 {
        self.0.finish()
    }
}

impl ImageContents {
    /// The contents of all regular files.
    pub fn contents(&self) -> BTreeSet<Content> {
        self.entries.values().filter_map(|entry| entry.content).collect()
    }

    /// The number of regular files, each counted once.
    pub fn files(&self) -> usize {
        let files = self.entries.values().filter(|entry| entry.kind == FileType::Regular);
        files.map(|entry| entry.ino).collect::<BTreeSet<_>>().len()
    }

    /// Whether damage is reported for the path, or for a directory above it.
    pub fn is_hurt(&self, path: &str) -> bool {
        let above = path.char_indices().filter(|(_, c)| *c == '/').map(|(at, _)| &path[..at.max(1)]);
        above.chain([path]).any(|part| self.hurt.contains_key(part))
    }
}

/// Walks the whole image and reads all files.
pub fn shown(fs: &Filesystem) -> ImageContents {
    let mut all = ImageContents::default();
    let root = match fs.root() {
        Ok(root) => root,
        Err(e) => {
            all.hurt.insert("/".into(), e.to_string());
            return all;
        }
    };
    let mut walk = Walk::new(fs, b"/", root);
    while let Some(visit) = walk.next() {
        let path = String::from_utf8_lossy(walk.path()).into_owned();
        let found = match visit {
            Ok(Visit::Name(inode)) => note(fs, &mut all, &path, &inode),
            Ok(Visit::Left(dir)) => dir.known_damage().map_or(Ok(()), |e| Err(e.clone())),
            Err(e) => Err(e),
        };
        if let Err(e) = found {
            all.hurt.entry(path).or_insert_with(|| e.to_string());
        }
    }
    all
}

fn note(fs: &Filesystem, all: &mut ImageContents, path: &str, inode: &InodeRef) -> Result<(), Error> {
    let Some(kind) = inode.file_type() else { return Err(Error::Stale(inode.ino)) };
    let (content, missing) = match kind {
        FileType::Regular => {
            let (hash, missing) = digest(fs, inode);
            (Some((fs.getattr(inode).size, hash)), missing)
        }
        FileType::Symlink => (None, fs.read_link(inode).err()),
        _ => (None, None),
    };
    all.entries.insert(path.to_owned(), Entry { ino: inode.ino.0, kind, content });
    match missing.or_else(|| inode.known_damage().filter(|_| !inode.is_dir()).cloned()) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

/// The hash of the readable content, and the first error.
fn digest(fs: &Filesystem, file: &InodeRef) -> (u64, Option<Error>) {
    let (mut digest, mut first) = (Digest::default(), None);
    let size = fs.getattr(file).size;
    let mut buf = vec![0; 64 * PIECE];
    let mut pos = 0;
    while pos < size {
        pos = match fs.seek(file, pos, Seek::Data) {
            Ok(data) => data / PIECE as u64 * PIECE as u64,
            Err(Error::NoSuchOffset) => break,
            Err(e) => {
                first = first.or(Some(e));
                pos
            }
        };
        let want = buf.len().min((size - pos) as usize);
        if fs.read(file, pos, &mut buf[..want]).is_ok() {
            digest.add(pos, &buf[..want]);
        } else {
            for at in (0..want).step_by(PIECE) {
                let piece = &mut buf[at..(at + PIECE).min(want)];
                match fs.read(file, pos + at as u64, piece) {
                    Ok(_) => digest.add(pos + at as u64, piece),
                    Err(e) => first = first.or(Some(e)),
                }
            }
        }
        pos += want as u64;
        // A damaged map may report very many unreadable blocks one by one.
        if first.is_some() && pos > 1 << 30 {
            break;
        }
    }
    (digest.end(), first)
}
