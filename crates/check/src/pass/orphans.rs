//! Orphans: inodes that a crash left to be deleted or truncated. They are in use until that is done.
//!
//! Main functions: [`listed`] (which they are, before the walk), [`file`] (the blocks of the orphan file, after it).
//!
//! # Locking
//! None.

use std::collections::HashSet;

use extant_block::BioFlags;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::orphan;
use extant_ondisk::superblock::FsState;
use extant_ondisk::{BlockNr, InodeNr};
use extant_recovery::JournalMap;
use extant_recovery::locate::journal_blocks;

use crate::context::Check;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// Reads an inode alone.
pub fn inode(check: &Check, ino: u32) -> Option<InodeDesc> {
    let place = check.geo.inode_location(InodeNr(ino)).ok()?;
    let table = check.descs.get(place.group.0 as usize)?.inode_table;
    let at = ((table.0 + u64::from(place.table_block)) << check.geo.block_bits) + place.offset as u64;
    let mut bytes = vec![0; check.geo.inode_size];
    if table.0 == 0 || check.device.read_at(at, &mut bytes, BioFlags::META).is_err() {
        return None;
    }
    InodeDesc::parse(&bytes, InodeNr(ino), &check.geo).ok()
}

/// The blocks of the orphan file, in order. `None`: it has holes, or cannot be used.
fn file_blocks(check: &Check, desc: &InodeDesc, ino: u32) -> Option<Vec<BlockNr>> {
    if desc.size > u64::from(orphan::BLOCKS_MAX) << check.geo.block_bits {
        return None;
    }
    file_map(check, desc, ino).map(|map| map.blocks().collect())
}

/// The map of a file that is the file system's own. `None`: it has holes, or cannot be used.
pub fn file_map(check: &Check, desc: &InodeDesc, ino: u32) -> Option<JournalMap> {
    // Like a journal, such a file has no holes. Unlike one, it may have no link.
    let linked = InodeDesc { links: 1, ..desc.clone() };
    journal_blocks(&*check.device, &check.sb, InodeNr(ino), &linked).ok().map(|(map, _)| map)
}

fn file_inode(check: &Check) -> Option<(u32, InodeDesc)> {
    let ino = check.sb.raw().s_orphan_file_inum.get();
    if !check.features.orphan_file || ino == 0 || ino > check.geo.inodes_count {
        return None;
    }
    inode(check, ino).map(|desc| (ino, desc))
}

/// The inodes that the list of orphans and the orphan file name.
pub fn listed(check: &Check, sink: &mut Sink) -> HashSet<u32> {
    let mut orphans = HashSet::new();
    let mut bad = |problem, found: u32, at: u32| {
        let place = if at == 0 { Place::Volume } else { Place::Inode(InodeNr(at)) };
        sink.push(Finding::new(problem, place, found, 0u64));
    };
    let possible = |ino: u32| ino >= check.geo.first_ino && ino <= check.geo.inodes_count;
    let mut next = check.sb.raw().s_last_orphan.get();
    if next != 0 && !possible(next) {
        bad(Problem::OrphanIllegalHeadInode, next, 0);
        next = 0;
    }
    let mut last = 0;
    while next != 0 {
        if !orphans.insert(next) {
            // The list comes round.
            bad(Problem::OrphanIllegalInode, next, last);
            break;
        }
        let Some(desc) = inode(check, next) else { break };
        let after = desc.dtime;
        if after != 0 && !possible(after) {
            bad(Problem::OrphanIllegalInode, after, next);
            break;
        }
        (last, next) = (next, after);
    }
    if !check.features.orphan_present {
        return orphans;
    }
    let Some((ino, desc)) = file_inode(check) else { return orphans };
    let seed = check.geo.metadata_csum.then(|| check.geo.seed.for_inode(InodeNr(ino), desc.generation));
    for block in file_blocks(check, &desc, ino).unwrap_or_default() {
        let mut bytes = vec![0; check.geo.block_size as usize];
        let read = check.device.read_at(block.0 << check.geo.block_bits, &mut bytes, BioFlags::META);
        if read.is_err() || orphan::verify(&bytes, block, seed).is_err() {
            break;
        }
        for (_, named) in orphan::used_slots(&bytes) {
            if possible(named.0) {
                orphans.insert(named.0);
            } else {
                bad(Problem::OrphanIllegalInode, named.0, ino);
            }
        }
    }
    orphans
}

/// Looks at the blocks of the orphan file.
pub fn file(check: &Check, sink: &mut Sink) {
    let Some((ino, desc)) = file_inode(check) else {
        if check.features.orphan_file {
            let ino = check.sb.raw().s_orphan_file_inum.get();
            sink.push(Finding::new(Problem::OrphanFileBadMode, Place::Inode(InodeNr(ino)), 0u64, 0u64));
        }
        return;
    };
    let place = Place::Inode(InodeNr(ino));
    let size = u64::from(check.geo.block_size);
    if !desc.size.is_multiple_of(size) {
        sink.push(Finding::new(Problem::OrphanFileWrongSize, place, desc.size, 0u64));
        return;
    }
    let Some(blocks) = file_blocks(check, &desc, ino) else {
        sink.push(Finding::at(Problem::OrphanFileHole, place));
        return;
    };
    // With orphans to come, entries are what it is for; else it must be empty.
    let pending = check.features.orphan_present
        && (check.replayed || !check.sb.state().contains(FsState::VALID) || !check.orphans.is_empty());
    let seed = check.geo.metadata_csum.then(|| check.geo.seed.for_inode(InodeNr(ino), desc.generation));
    let mut named = 0;
    for (lblk, block) in blocks.into_iter().enumerate() {
        let place = Place::Mapped { ino: InodeNr(ino), lblk: lblk as u64, block };
        let mut bytes = vec![0; size as usize];
        if check.device.read_at(block.0 << check.geo.block_bits, &mut bytes, BioFlags::META).is_err() {
            sink.push(Finding::new(Problem::Unreadable, place, size, block.0 << check.geo.block_bits));
            continue;
        }
        let word = |back: usize| {
            let at = bytes.len() - back;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if word(8) != orphan::MAGIC {
            sink.push(Finding::new(Problem::OrphanFileBadMagic, place, word(8), orphan::MAGIC));
            continue;
        }
        if orphan::verify(&bytes, block, seed).is_err() {
            let stored = word(4);
            let mut sealed = bytes.clone();
            orphan::update_checksum(&mut sealed, block, seed);
            let at = sealed.len() - 4;
            let expected = u32::from_le_bytes([sealed[at], sealed[at + 1], sealed[at + 2], sealed[at + 3]]);
            sink.push(Finding::new(Problem::OrphanFileBadChecksum, place, stored, expected));
            continue;
        }
        let count = orphan::used_slots(&bytes).count() as u64;
        named += count;
        if count > 0 && !pending {
            sink.push(Finding::new(Problem::OrphanBlockDirty, place, count, 0u64));
        }
    }
    if check.features.orphan_present && named == 0 && !pending {
        sink.push(Finding::at(Problem::OrphanPresentCleanFile, Place::Volume));
    }
}
