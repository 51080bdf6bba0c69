//! Contents that have to be read: targets of symlinks that are in a block, and the first blocks of special files that
//! may really be directories.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_ondisk::InodeNr;
use extant_ondisk::dirent::{REC_LEN_MIN, StoredEntry};
use extant_ondisk::extent::NodeRef;
use extant_ondisk::indirect;
use extant_ondisk::inode::{FileType, InodeFlags};

use super::inodes::Inode;
use super::walk::{Mode, Out, Walker};
use crate::context::{Check, InodeState};
use crate::error::Result;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::scan;

/// A block to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peek {
    block: u64,
    ino: u32,
    size: u64,
    what: PeekKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PeekKind {
    Target { encrypted: bool, frozen: bool },
    Directory { mode: u16 },
}

/// Queues the target of a symlink.
pub fn target(walker: &mut Walker<'_>, inode: &Inode<'_>, block: u64) {
    let encrypted = inode.flags.contains(InodeFlags::ENCRYPT);
    let frozen = inode.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    let what = PeekKind::Target { encrypted, frozen };
    walker.out.peeks.push(Peek { block, ino: inode.ino, size: inode.size, what });
}

/// Queues the first block of a special file if it may belong to a directory.
pub fn maybe_directory(walker: &mut Walker<'_>, inode: &Inode<'_>) {
    let geo = &walker.check.geo;
    let pointer = |slot: usize| u64::from(indirect::pointer(&inode.raw.i_block, slot).unwrap_or(0));
    if pointer(0) == 0 || inode.flags.contains(InodeFlags::INLINE_DATA) {
        return;
    }
    let exists = |block: u64| block >= geo.first_data_block && block < geo.blocks_count;
    let mut no_device = false;
    let block = if walker.check.geo.extents && inode.flags.contains(InodeFlags::EXTENTS) {
        no_device = true;
        let root = NodeRef::parse(&inode.raw.i_block, 0).ok().filter(|root| root.depth() == 0);
        let Some(extent) = root.and_then(|root| root.extent(0)).filter(|extent| extent.lblk.0 == 0) else { return };
        extent.pblk.0
    } else {
        for slot in 0..indirect::SLOTS {
            let block = pointer(slot);
            if block != 0 {
                no_device |= slot >= 4;
                if !exists(block) || walker.check.is_metadata(extant_ondisk::BlockNr(block)) {
                    return;
                }
            }
        }
        pointer(0)
    };
    let device = matches!(inode.kind, Some(FileType::CharDevice | FileType::BlockDevice));
    if !exists(block) || (device && inode.raw.i_links_count.get() == 1 && !no_device) {
        return;
    }
    let what = PeekKind::Directory { mode: inode.raw.i_mode.get() };
    walker.out.peeks.push(Peek { block, ino: inode.ino, size: inode.size, what });
}

/// Whether a target of this size matches these bytes.
pub fn target_fits(bytes: &[u8], size: u64, encrypted: bool) -> bool {
    let length = match encrypted {
        true => usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) + 2,
        false => bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()),
    };
    length < bytes.len() && length as u64 == size
}

/// Reads all queued blocks.
pub fn check(check: &Arc<Check>, all: &mut Out) -> Result<()> {
    let mut peeks = std::mem::take(&mut all.peeks);
    peeks.sort_unstable();
    let runs = scan::runs(&peeks, check.geo.block_bits, |peek| (peek.block, 1));
    if runs.is_empty() {
        return Ok(());
    }
    let peeks = Arc::new(peeks);
    scan::wave(check, runs, move |check, run, data, out: &mut Out| {
        let size = check.geo.block_size as usize;
        for peek in &peeks[run.items.0..run.items.1] {
            let at = (peek.block - run.first) as usize * size;
            look(&mut Walker { check, mode: Mode::Check, out }, peek, &data[at..at + size]);
        }
    })?;
    Ok(())
}

fn look(walker: &mut Walker<'_>, peek: &Peek, block: &[u8]) {
    match peek.what {
        PeekKind::Target { encrypted, frozen } => {
            if !target_fits(block, peek.size, encrypted) {
                walker.bad_inode(Problem::InvalidSymlink, peek.ino, peek.size, 0u64);
                walker.check.inodes.mark(InodeNr(peek.ino), InodeState::BAD);
            } else if frozen {
                walker.bad_inode(Problem::SetImmutable, peek.ino, 0u64, 0u64);
            }
        }
        PeekKind::Directory { mode } => {
            if begins_as_directory(block, peek.ino) {
                let place = Place::Inode(InodeNr(peek.ino));
                walker.bad(Finding::new(Problem::TreatAsDirectory, place, mode, 0u64));
            }
        }
    }
}

/// Whether a block begins with `.` of this inode and `..`.
fn begins_as_directory(block: &[u8], ino: u32) -> bool {
    let leads = |entry: &StoredEntry<'_>| entry.rec_len >= REC_LEN_MIN && entry.rec_len.is_multiple_of(4);
    let entry = |at, name: &[u8]| StoredEntry::at(block, at).filter(|entry| entry.name == name && leads(entry));
    let dot = entry(0, b".").filter(|dot| dot.ino == ino && dot.rec_len + REC_LEN_MIN < block.len());
    dot.is_some_and(|dot| entry(dot.rec_len, b"..").is_some())
}
