//! Walking the directories of an image without trusting it.
//!
//! [`list_dir`] reads one directory into memory, sorted, without `.` and `..`. [`Seen`] makes sure that a damaged image, in
//! which a directory contains itself or has many names, does not keep anybody for ever.
//!
//! # Locking
//! None held between calls.

use std::collections::HashSet;

use extant_fs::{Damage, Error, Filesystem, InodeRef};
use extant_ondisk::InodeNr;
use extant_ondisk::inode::FileType;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: InodeNr,
    /// `None` where the directory does not say.
    pub kind: Option<FileType>,
}

/// The entries of `dir`, sorted by their bytes, without `.` and `..`.
pub fn list_dir(fs: &Filesystem, dir: &InodeRef) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::new();
    let mut cookie = 0;
    loop {
        let before = entries.len();
        let mut left = 4096;
        let next = fs.read_dir(dir, cookie, |item| {
            if left == 0 {
                return false;
            }
            left -= 1;
            if item.name != b"." && item.name != b".." {
                entries.push(Entry { name: item.name.to_vec(), ino: item.ino, kind: item.kind });
            }
            true
        })?;
        // The end: nothing was held back. A cookie that does not move would be a loop.
        if left > 0 || next == cookie {
            break;
        }
        // More names than inodes and links can explain.
        if entries.len() > before && entries.len() > ENTRIES_MAX {
            return Err(Error::corrupt(Damage::Directory, format!("more than {ENTRIES_MAX} entries")).of(dir.ino));
        }
        cookie = next;
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(entries)
}

/// More than any tree of three index levels is used for; bounds memory.
const ENTRIES_MAX: usize = 50_000_000;

/// The directories that were visited.
#[derive(Debug, Default)]
pub struct Seen(HashSet<InodeNr>);

impl Seen {
    /// Fails when `dir` has been here before: directories have one name.
    pub fn enter(&mut self, dir: &InodeRef) -> Result<(), Error> {
        if self.0.insert(dir.ino) {
            Ok(())
        } else {
            Err(Error::corrupt(Damage::Tree, "a directory that is reached a second time").of(dir.ino))
        }
    }
}
