//! The names of deleted files, according to earlier versions of directory blocks.
//!
//! Main type: [`Names`].
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_ondisk::dirent::{name_is_legal, verify_leaf};
use extant_ondisk::inode::{FileType, InodeFlags};
use extant_ondisk::jbd2::FastCommitRecord;
use extant_ondisk::{BlockNr, InodeNr};
use extant_recovery::{History, JournalFile};

use super::versions::Version;
use crate::error::Result;
use crate::view::Image;
use crate::view::dir::scan;
use crate::view::inode::Inode;

/// The maximum depth of directories that are followed.
const DEPTH_MAX: usize = 64;

/// A name that an inode had.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    order: i32,
    dir: u32,
    name: Vec<u8>,
}

/// All names in the log.
#[derive(Default)]
pub struct Names {
    by_inode: BTreeMap<u32, Vec<Name>>,
    /// The names of directories that still exist: parent and name.
    live: BTreeMap<u32, (u32, Vec<u8>)>,
}

impl Names {
    /// Reads the names in every copy of a directory block.
    pub fn read(image: &Image, journal: &JournalFile, past: &History, versions: &[Version]) -> Result<Names> {
        let mut names = Names::default();
        let mut owners: BTreeMap<BlockNr, Vec<Inode>> = BTreeMap::new();
        let mut own = |inode: &Inode| {
            for (_, block) in image.map(inode).blocks().filter(|(_, block)| past.copies.contains_key(block)) {
                owners.entry(block).or_default().push(inode.clone());
            }
        };
        for dir in image.facts.directories() {
            let Ok(inode) = image.inode(dir) else { continue };
            own(&inode);
            for entry in image.entries(&inode).into_iter().filter(|entry| entry.kind == 2 && !entry.is_dot()) {
                names.live.entry(entry.ino).or_insert((dir.0, entry.name));
            }
        }
        for version in versions.iter().filter(|version| version.inode.kind() == Some(FileType::Directory)) {
            own(&version.inode);
            if version.inode.has(InodeFlags::INLINE_DATA) {
                for entry in image.entries(&version.inode).into_iter().filter(|entry| !entry.is_dot()) {
                    names.note(entry.ino, version.order, version.inode.ino.0, entry.name);
                }
            }
        }
        for (block, dirs) in &owners {
            for copy in past.copies.get(block).into_iter().flatten() {
                let bytes = past.bytes(journal, copy)?;
                if let Some(dir) = dirs.iter().find(|dir| is_leaf_of(image, dir, &bytes)) {
                    let end = image.entries_end(dir, 1, &bytes);
                    scan(&bytes, 0, end, 0, image.geo.inodes_count, |entry| {
                        if !entry.is_dot() && !entry.is_found {
                            names.note(entry.ino, past.order(copy.tid), dir.ino.0, entry.name);
                        }
                    });
                }
            }
        }
        let records = past.fast_commits.iter().flat_map(|commit| &commit.records);
        for (_, record) in records {
            let name = match record {
                FastCommitRecord::Create(name) | FastCommitRecord::Link(name) | FastCommitRecord::Unlink(name) => name,
                _ => continue,
            };
            if let Some(tid) = past.fast_commit_tid {
                names.note(name.ino.0, past.order(tid), name.parent.0, name.name.clone());
            }
        }
        names.by_inode.values_mut().for_each(|all| all.sort_by_key(|name| name.order));
        Ok(names)
    }

    fn note(&mut self, ino: u32, order: i32, dir: u32, name: Vec<u8>) {
        /// The maximum number of names of an inode: usually there are few, but a hostile log could contain millions.
        const NAMES_MAX: usize = 64;
        let all = self.by_inode.entry(ino).or_default();
        if name_is_legal(&name) && all.len() < NAMES_MAX && !all.iter().any(|one| one.dir == dir && one.name == name) {
            all.push(Name { order, dir, name });
        }
    }

    /// The path of a deleted file at the time of a version.
    pub fn path(&self, ino: InodeNr, order: i32) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = ino.0;
        let mut is_gone = true;
        for _ in 0..DEPTH_MAX {
            if at == InodeNr::ROOT.0 {
                break;
            }
            let past = || {
                let all = self.by_inode.get(&at)?;
                let before = all.iter().rev().find(|name| name.order <= order);
                before.or(all.first()).map(|name| (name.dir, name.name.clone()))
            };
            let live = || self.live.get(&at).cloned();
            let found = if is_gone { past().or_else(live) } else { live().or_else(past) };
            let Some((dir, name)) = found else {
                parts.push(format!("#{at}").into_bytes());
                break;
            };
            parts.push(name);
            at = dir;
            // A directory that still exists has its current name.
            is_gone = !self.live.contains_key(&at);
        }
        parts.reverse();
        parts.join(&b'/')
    }
}

/// Whether the bytes are a block with names of this directory.
fn is_leaf_of(image: &Image, dir: &Inode, bytes: &[u8]) -> bool {
    if image.is_index_node(bytes) {
        return false;
    }
    match image.seed(dir.ino, dir.generation()) {
        // The first block of an index only contains `.` and `..`.
        Some(seed) => verify_leaf(bytes, seed).is_ok(),
        None => true,
    }
}
