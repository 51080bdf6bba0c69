//! Checks that every directory is below the root, and that its `..` refers to its parent.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::inode::InodeFlags;

use super::directories::Directories;
use crate::context::{Check, InodeState, Kind};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkState {
    Unknown,
    Walked,
    Done,
}

/// Follows every directory up to the root.
pub fn check(check: &Check, directories: &Directories, sink: &mut Sink) {
    let root = check.inodes.get(InodeNr::ROOT);
    if !root.has(InodeState::USED) {
        sink.push(Finding::at(Problem::NoRootInode, Place::Inode(InodeNr::ROOT)));
    }
    let mut ways = vec![WalkState::Unknown; directories.dirs.len()];
    if let Some(at) = directories.find(InodeNr::ROOT.0) {
        ways[at] = WalkState::Done;
    }
    let mut path = Vec::new();
    for start in 0..directories.dirs.len() {
        let mut at = start;
        path.clear();
        while ways[at] == WalkState::Unknown {
            ways[at] = WalkState::Walked;
            path.push(at);
            let dir = directories.dirs[at];
            let orphan = check.orphans.contains(&dir.ino);
            if directories.parent(at) == 0 {
                if !orphan {
                    let place = Place::Inode(InodeNr(dir.ino));
                    sink.push(Finding::new(Problem::UnconnectedDir, place, directories.dotdot(at), 0u64));
                }
                break;
            }
            let Some(parent) = directories.find(directories.parent(at)) else { break };
            at = parent;
            if ways[at] == WalkState::Walked {
                // A cycle is reported once, at its smallest directory.
                let from = path.iter().position(|step| *step == at).unwrap_or(0);
                let least = path[from..].iter().copied().min().unwrap_or(at);
                let place = Place::Inode(InodeNr(directories.dirs[least].ino));
                sink.push(Finding::new(Problem::LoopedDir, place, directories.parent(least), 0u64));
            }
        }
        for step in &path {
            ways[*step] = WalkState::Done;
        }
    }
    for (at, dir) in directories.dirs.iter().enumerate() {
        let (parent, dotdot) = (directories.parent(at), directories.dotdot(at));
        if parent != 0 && dotdot != parent {
            let place = Place::Inode(InodeNr(dir.ino));
            sink.push(Finding::new(Problem::BadDotDot, place, dotdot, parent));
        }
    }
    match directories.lost_found {
        None if directories.find(InodeNr::ROOT.0).is_some_and(|at| !directories.dirs[at].partial) => {
            sink.push(Finding::at(Problem::NoLfDir, Place::Inode(InodeNr::ROOT)));
        }
        Some(ino) if check.inodes.get(InodeNr(ino)).kind() != Kind::Directory => {
            sink.push(Finding::at(Problem::LpfNotdir, Place::Inode(InodeNr(ino))));
        }
        Some(ino) => {
            let flags = directories.find(ino).map_or(0, |at| directories.dirs[at].flags);
            let flags = InodeFlags::from_bits_retain(flags);
            let place = Place::Inode(InodeNr(ino));
            if flags.contains(InodeFlags::INLINE_DATA) {
                sink.push(Finding::at(Problem::LpfInlineData, place));
            }
            if flags.contains(InodeFlags::ENCRYPT) {
                sink.push(Finding::at(Problem::LpfEncrypted, place));
            }
        }
        None => {}
    }
}
