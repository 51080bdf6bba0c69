//! Orphans: inodes that have to be deleted or truncated after a crash. They are in use until then.
//!
//! Main functions: [`listed`] (their numbers, before the walk), [`file`] (the blocks of the orphan file, after it).
//!
//! # Locking
//! None.

use std::collections::{HashMap, HashSet};

use extant_block::BioFlags;
use extant_ondisk::features::{Compat, RoCompat};
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::orphan::{self, OrphanContext, OrphanDamage};
use extant_ondisk::superblock::FsState;
use extant_ondisk::{BlockNr, Damage, InodeNr};
use extant_recovery::JournalMap;
use extant_recovery::locate::journal_blocks;

use crate::context::Check;
use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::Sink;

/// The number of bytes of an inode table that are read at once.
const CHUNK_BYTES: u32 = 64 << 10;
/// The number of pieces of inode tables that are kept in memory.
const CHUNKS_MAX: usize = 64;

/// Reads one inode.
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

/// The blocks of the orphan file, in order; `None` if it has holes, or cannot be used.
fn file_blocks(check: &Check, desc: &InodeDesc, ino: u32) -> Option<Vec<BlockNr>> {
    if desc.size > u64::from(orphan::BLOCKS_MAX) << check.geo.block_bits {
        return None;
    }
    file_map(check, desc, ino).map(|map| map.blocks().collect())
}

/// The map of a file that belongs to the file system itself; `None` if it has holes, or cannot be used.
pub fn file_map(check: &Check, desc: &InodeDesc, ino: u32) -> Option<JournalMap> {
    // Like a journal, such a file has no holes. Unlike a journal, it may have no link.
    let linked = InodeDesc { links: 1, ..desc.clone() };
    journal_blocks(&*check.device, &check.sb, InodeNr(ino), &linked).ok().map(|(map, _)| map)
}

fn file_inode(check: &Check) -> Option<(u32, InodeDesc)> {
    let ino = check.sb.raw().s_orphan_file_inum.get();
    if !check.sb.compat().contains(Compat::ORPHAN_FILE) || ino == 0 || ino > check.geo.inodes_count {
        return None;
    }
    inode(check, ino).map(|desc| (ino, desc))
}

/// Reads inodes one after the other, each with its neighbours in the table, because orphans of one directory are often
/// adjacent.
struct Tables<'a> {
    check: &'a Check,
    /// Pieces of inode tables, by their group and the number of blocks before them in the table. Tables that overlap,
    /// which is damage, are cut at different places.
    chunks: HashMap<(u32, u32), Vec<u8>>,
    /// The number of bytes that may still be read for neighbours: if a list jumps from group to group, this must not
    /// read more than all tables.
    budget: u64,
}

impl Tables<'_> {
    fn new(check: &Check) -> Tables<'_> {
        let blocks = u64::from(check.geo.group_count) * u64::from(check.geo.inode_table_blocks);
        Tables { check, chunks: HashMap::new(), budget: blocks << check.geo.block_bits }
    }

    fn inode(&mut self, ino: u32) -> Option<InodeDesc> {
        let (check, bits) = (self.check, self.check.geo.block_bits);
        let place = check.geo.inode_location(InodeNr(ino)).ok()?;
        let table =
            check.descs.get(place.group.0 as usize).map(|desc| desc.inode_table).filter(|table| table.0 != 0)?;
        let span = (CHUNK_BYTES >> bits).max(1);
        let skipped = place.table_block / span * span;
        let (key, first) = ((place.group.0, skipped), table.0 + u64::from(skipped));
        if !self.chunks.contains_key(&key) {
            let bytes = u64::from(span.min(check.geo.inode_table_blocks - skipped)) << bits;
            let mut chunk = vec![0; bytes as usize];
            if bytes > self.budget || check.device.read_at(first << bits, &mut chunk, BioFlags::META).is_err() {
                return inode(check, ino);
            }
            check.count_read(bytes);
            self.budget -= bytes;
            if self.chunks.len() >= CHUNKS_MAX {
                self.chunks.clear();
            }
            self.chunks.insert(key, chunk);
        }
        let at = ((place.table_block - skipped) as usize) << bits;
        let bytes = self.chunks.get(&key)?.get(at + place.offset..)?;
        InodeDesc::parse(bytes, InodeNr(ino), &check.geo).ok()
    }
}

/// The inodes in the orphan list and the orphan file.
pub fn listed(check: &Check, sink: &mut Sink) -> HashSet<u32> {
    let mut orphans = HashSet::new();
    let mut bad = |found: u32, at| {
        sink.push(Finding::new(Problem::OrphanIllegalInode, Place::Inode(InodeNr(at)), found, 0u64));
    };
    let possible = |ino: u32| ino >= check.geo.first_ino && ino <= check.geo.inodes_count;
    let mut tables = Tables::new(check);
    // An impossible head of the list is damage of the superblock itself.
    let (mut last, mut next) = (0, check.sb.raw().s_last_orphan.get());
    while next != 0 {
        if last != 0 && (!possible(next) || orphans.contains(&next)) {
            // If it is already known, the list is a cycle.
            bad(next, last);
            break;
        }
        let Some(desc) = Some(next).filter(|ino| possible(*ino)).and_then(|ino| tables.inode(ino)) else { break };
        orphans.insert(next);
        (last, next) = (next, desc.dtime);
    }
    if !check.sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
        return orphans;
    }
    let Some((ino, desc)) = file_inode(check) else { return orphans };
    let mut is_sound = true;
    for_each_block(check, &desc, ino, &file_blocks(check, &desc, ino).unwrap_or_default(), |_, bytes, damage| {
        is_sound &= bytes.is_some() && !damage.iter().any(Damage::is_fatal);
        for (_, named) in bytes.filter(|_| is_sound).into_iter().flat_map(orphan::used_slots) {
            if possible(named.0) {
                orphans.insert(named.0);
            } else {
                bad(named.0, ino);
            }
        }
    });
    orphans
}

/// Reads the blocks of the orphan file, adjacent ones together. Calls the function with each block's place in the file,
/// its bytes (`None` if unreadable) and its damage.
fn for_each_block(
    check: &Check,
    desc: &InodeDesc,
    ino: u32,
    blocks: &[BlockNr],
    mut each: impl FnMut(usize, Option<&[u8]>, &[OrphanDamage]),
) {
    let (bits, size) = (check.geo.block_bits, check.geo.block_size as usize);
    let seed = check.geo.metadata_csum.then(|| check.geo.seed.for_inode(InodeNr(ino), desc.generation));
    let mut lblk = 0;
    for run in blocks.chunk_by(|one, next| one.0 + 1 == next.0) {
        // The whole file has at most 512 blocks.
        let mut data = vec![0; run.len() * size];
        check.count_read(data.len() as u64);
        let whole = check.device.read_at(run[0].0 << bits, &mut data, BioFlags::META).is_ok();
        for (number, bytes) in run.iter().zip(data.chunks_mut(size)) {
            let is_read = whole || check.device.read_at(number.0 << bits, bytes, BioFlags::META).is_ok();
            let context =
                OrphanContext { number: *number, seed, inodes: (check.geo.first_ino, check.geo.inodes_count) };
            let mut damage = Vec::new();
            if is_read {
                orphan::damage(bytes, &context, &mut |one| damage.push(one));
            }
            each(lblk, is_read.then_some(&*bytes), &damage);
            lblk += 1;
        }
    }
}

/// Converts damage of a block of the orphan file to a finding; `None` if the check of its inodes reports the damage.
fn finding(damage: OrphanDamage, place: Place) -> Option<Finding> {
    let (problem, found, expected) = match damage {
        OrphanDamage::Length { found } | OrphanDamage::Magic { found } => {
            (Problem::OrphanFileBadMagic, found, orphan::MAGIC)
        }
        OrphanDamage::Checksum { found, expected } => (Problem::OrphanFileBadChecksum, found, expected),
        OrphanDamage::Inode { .. } => return None,
    };
    Some(Finding::new(problem, place, found, expected))
}

/// Checks the blocks of the orphan file.
pub fn file(check: &Check, sink: &mut Sink) {
    let Some((ino, desc)) = file_inode(check) else { return };
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
    // While orphans are pending, the file contains them; otherwise it must be empty.
    let is_present = check.sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT);
    let pending =
        is_present && (check.replayed || !check.sb.state().contains(FsState::VALID) || !check.orphans.is_empty());
    let mut named = 0;
    for_each_block(check, &desc, ino, &blocks, |lblk, bytes, damage| {
        let block = blocks[lblk];
        let place = Place::Mapped { ino: InodeNr(ino), lblk: lblk as u64, block };
        let Some(bytes) = bytes else {
            return sink.push(Finding::new(Problem::Unreadable, place, size, block.0 << check.geo.block_bits));
        };
        if let Some(fatal) = damage.iter().find(|one| one.is_fatal()) {
            return sink.extend(finding(*fatal, place));
        }
        let count = orphan::used_slots(bytes).count() as u64;
        named += count;
        if count > 0 && !pending {
            sink.push(Finding::new(Problem::OrphanBlockDirty, place, count, 0u64));
        }
    });
    if is_present && named == 0 && !pending {
        sink.push(Finding::at(Problem::OrphanPresentCleanFile, Place::Volume));
    }
}
