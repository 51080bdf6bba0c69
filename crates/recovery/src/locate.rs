//! Finds the journal inside an image from the superblock, one descriptor and one inode alone.
//!
//! It runs before replay, so it may read half-written structures. Only the fields that never change while a file
//! system is mounted are trusted (the inode table's place, the journal inode's mapping), and checksums if there are
//! any. If the descriptor has impossible places, a backup of it is used. Every block is checked to lie inside the file
//! system; holes, unwritten extents and repeated blocks are refused.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::extent::DEPTH_MAX;
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::map::Run;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, Damage, InodeNr};

use crate::error::{Error, Result};
use crate::file::JournalFile;
use crate::map::JournalMap;
use crate::read::{Reader, Step, super_at};

/// A journal of more blocks is refused; the largest of mke2fs has 10 240 000.
const MAX_JOURNAL_BLOCKS: u64 = 1 << 24;
/// The most pieces of a journal, and the most blocks that map it. The default journals of mke2fs have at most 1 GiB,
/// which is this many blocks of 4 KiB.
const PIECES_MAX: usize = 1 << 18;

/// Reads the primary superblock of the file system on `device`.
pub fn read_super(device: &dyn BlockDevice) -> Result<SuperBlock> {
    Ok(super_at(device, SUPERBLOCK_OFFSET)?)
}

/// Writes the primary superblock, durably, with everything that was written to `device` before.
pub fn write_super(device: &dyn BlockDevice, sb: &SuperBlock) -> Result<()> {
    let (block, at) = sb.primary_location();
    let byte = block.0 * u64::from(sb.block_size) + at as u64;
    // A sector may be larger than the superblock.
    let unit = u64::from(device.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = byte - byte % unit;
    let mut sectors = vec![0; unit as usize];
    device.read_at(start, &mut sectors, BioFlags::META)?;
    sb.encode_into(&mut sectors[(byte - start) as usize..][..SUPERBLOCK_SIZE]);
    let flags = BioFlags::META | BioFlags::SYNC | BioFlags::PREFLUSH | BioFlags::FUA;
    Ok(device.write_at(start, &[&sectors], flags)?)
}

/// Opens the journal of the file system on `device`; `None` if it has none.
///
/// Errors: `NoJournal` if the journal is on another device: open that with [`JournalFile::open_external`].
pub fn open_journal(device: Arc<dyn BlockDevice>, sb: &SuperBlock) -> Result<Option<JournalFile>> {
    if sb.external_journal().is_some() {
        return Err(Error::NoJournal { detail: format!("that of {} is on another device", device.name()) });
    }
    let Some(ino) = sb.journal_inode() else { return Ok(None) };
    let map = journal_map(device.as_ref(), sb, ino)?;
    JournalFile::open(device, sb.block_size, map).map(Some)
}

/// The blocks of the journal in inode `ino`.
///
/// Errors: `Map` for a mapping that is impossible for a journal; `Format` for a broken inode or node.
pub fn journal_map(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<JournalMap> {
    let inode = journal_inode(device, sb, ino)?;
    Ok(journal_blocks(device, sb, ino, &inode)?.0)
}

/// The journal's inode, as it is on the device.
pub fn journal_inode(device: &dyn BlockDevice, sb: &SuperBlock, ino: InodeNr) -> Result<InodeDesc> {
    Ok(Reader::new(device, sb).inode(ino)?)
}

/// The blocks of the journal that `inode` maps, and the blocks of the mapping itself.
///
/// Errors: as for [`journal_map`].
pub fn journal_blocks(
    device: &dyn BlockDevice,
    sb: &SuperBlock,
    ino: InodeNr,
    inode: &InodeDesc,
) -> Result<(JournalMap, Vec<BlockNr>)> {
    let refuse = |detail: String| Err(Error::map(0u64, format!("journal {ino}: {detail}")));
    if !inode.is_regular() || inode.links == 0 {
        return refuse(format!("mode {:#o}, {} links", inode.mode, inode.links));
    }
    let wanted = inode.size / u64::from(sb.block_size);
    if wanted == 0 || wanted > MAX_JOURNAL_BLOCKS.min(sb.blocks_count) {
        return refuse(format!("{wanted} blocks long"));
    }
    let mut found = Pieces { sb, wanted, found: 0, runs: Vec::new(), nodes: Vec::new(), idle: 0 };
    let seed = sb.metadata_csum.then(|| sb.checksum_seed().for_inode(ino, inode.generation).raw());
    Reader::new(device, sb).walk(inode, seed, &mut |step| found.take(step?))?;
    if found.found < wanted {
        return Err(Error::map(found.found, "a hole in the journal"));
    }
    Ok((JournalMap::from_runs(found.runs)?, found.nodes))
}

/// The part of the journal that has been found. The search ends soon: a way down that places no block is a hole.
struct Pieces<'a> {
    sb: &'a SuperBlock,
    /// Blocks of the journal, and how many have been placed. Blocks beyond the size are ignored.
    wanted: u64,
    found: u64,
    runs: Vec<(BlockNr, u32)>,
    /// Extent nodes below the root, blocks of pointers.
    nodes: Vec<BlockNr>,
    /// How many of them have come since the last run.
    idle: u16,
}

impl Pieces<'_> {
    /// Takes a step of the map. False: the journal is complete.
    fn take(&mut self, step: Step) -> Result<bool> {
        if self.found >= self.wanted {
            return Ok(false);
        }
        match step {
            Step::Damage(node, damage) if damage.is_fatal() => return Err(Error::map(node.0, damage.to_string())),
            Step::Damage(..) => {}
            Step::Run(run) => self.run(&run)?,
            Step::Node(_) if self.nodes.len() >= PIECES_MAX => {
                return Err(Error::TooMuch { most: PIECES_MAX, what: "blocks that map the journal" });
            }
            Step::Node(_) if self.idle >= DEPTH_MAX => return Err(Error::map(self.found, "a hole in the journal")),
            Step::Node(child) => {
                self.idle += 1;
                self.nodes.push(child.block);
            }
        }
        Ok(true)
    }

    fn run(&mut self, run: &Run) -> Result<()> {
        if u64::from(run.lblk.0) != self.found {
            return Err(Error::map(self.found, "a hole in the journal"));
        }
        if run.unwritten {
            return Err(Error::map(self.found, "an unwritten extent in the journal"));
        }
        let (block, len) = (run.pblk, u64::from(run.len).min(self.wanted - self.found));
        if !self.sb.contains_range(block, len) {
            return Err(Error::map(self.found, format!("{len} blocks from {block} are outside the file system")));
        }
        let pieces = self.runs.len();
        match self.runs.last_mut() {
            Some((first, n)) if first.0 + u64::from(*n) == block.0 => *n += len as u32,
            _ if pieces >= PIECES_MAX => {
                return Err(Error::TooMuch { most: PIECES_MAX, what: "pieces of the journal" });
            }
            _ => self.runs.push((block, len as u32)),
        }
        (self.found, self.idle) = (self.found + len, 0);
        Ok(())
    }
}
