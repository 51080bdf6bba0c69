//! Link counts, inodes without a name, and features that the contents need.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::features::RoCompat;
use extant_ondisk::inode::LINK_MAX;

use super::directories::Directories;
use crate::context::{Check, InodeState, Kind};
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// Whether names are counted for the inode.
fn is_counted(check: &Check, ino: InodeNr, state: InodeState) -> bool {
    let skipped = ino.0 == check.project_quota()
        || ino.0 == check.sb.raw().s_orphan_file_inum.get()
        || (ino.0 < check.geo.first_ino && ino != InodeNr::ROOT);
    state.has(InodeState::USED) && !state.has(InodeState::UNCOUNTED) && !skipped
}

/// The link count of an inode according to its names. 1 means more links than a directory can count.
fn from_names(state: InodeState) -> u32 {
    let is_dir = state.kind() == Kind::Directory;
    if is_dir && state.names() > u32::from(LINK_MAX) { 1 } else { state.names() }
}

/// The link count of an inode according to its names; `None` if names are not counted for it, or it has none.
pub fn expected(check: &Check, ino: InodeNr, state: InodeState) -> Option<u16> {
    let counts = is_counted(check, ino, state) && state.names() > 0;
    counts.then(|| u16::try_from(from_names(state)).unwrap_or(u16::MAX))
}

/// Compares the names of each inode with its link count.
pub fn check(check: &Check, sink: &mut Sink) {
    let mut needs_nlink = 0u64;
    for group in 0..check.geo.group_count {
        for (ino, state) in check.inodes.of_group(group) {
            let value = state.has(InodeState::VALUE) && state.names() == 0;
            if !is_counted(check, ino, state) || value {
                continue;
            }
            let place = Place::Inode(ino);
            let (names, links) = (state.names(), u32::from(state.links()));
            let is_dir = state.kind() == Kind::Directory;
            if state.has(InodeState::ORPHAN) && links == 0 {
                continue;
            }
            if names == 0 {
                // The root has its own `.` and `..`.
                if state.has(InodeState::EMPTY) {
                    sink.push(Finding::at(Problem::ZeroLenInode, place));
                }
                sink.push(Finding::at(Problem::UnattachedInode, place));
                continue;
            }
            let expected = from_names(state);
            if expected < names && !check.sb.ro_compat().contains(RoCompat::DIR_NLINK) {
                needs_nlink = needs_nlink.max(names.into());
            }
            if expected == links {
                continue;
            }
            if is_dir && expected > 1 && links == 1 && state.has(InodeState::INDEXED) {
                sink.push(Finding::new(Problem::DirOverflowRefCount, place, links, expected));
            } else {
                sink.push(Finding::new(Problem::BadRefCount, place, links, expected));
            }
        }
        check.progress(4, group.into(), check.geo.group_count.into());
    }
    if needs_nlink > 0 {
        sink.push(Finding::new(Problem::DirNlinkFeature, Place::Volume, needs_nlink, 0u64));
    }
}

/// Reports features that are missing for the contents.
pub fn features(check: &Check, large_files: u64, directories: &Directories, sink: &mut Sink) {
    if large_files > 0 {
        if !check.sb.ro_compat().contains(RoCompat::LARGE_FILE) {
            sink.push(Finding::new(Problem::FeatureLargeFiles, Place::Volume, large_files, 0u64));
        }
        if check.sb.raw().s_rev_level.get() == 0 {
            sink.push(Finding::new(Problem::FsRevLevel, Place::Volume, 0u64, 1u64));
        }
    }
    if directories.large > 0 {
        sink.push(Finding::new(Problem::FeatureLargeDirs, Place::Volume, directories.large, 0u64));
    }
}
