//! Writes a proved change so that any interruption leaves the old state or the new one.
//!
//! Main types: [`WriteMethod`] (how it was written), [`Undo`] (where the record that undoes it is written). Main
//! functions: [`commit`], [`undo::undo`].
//!
//! Blocks that the old file system does not use ([`crate::FreshBlocks`]) are written home first. If the image's own
//! journal is sound and large enough, the rest is one transaction of it. Otherwise a record of the old blocks, in the
//! format of e2undo(8), is made durable first; then its name is stored in the superblock, and the blocks are written.
//!
//! What it does not do: create files. The caller provides the device for the record.
//!
//! # Locking
//! None.

pub mod undo;

use std::sync::Arc;

use extant_block::device::CowDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Note, Severity};
use extant_ondisk::superblock::{RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_ondisk::{BlockNr, GroupNr, InodeNr};
use extant_recovery::locate::{open_journal, read_super};
use extant_recovery::transaction::{self, Stamp};
use extant_recovery::{Accept, JournalFile, Replay};
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{ImageState, Result};
use crate::prove::Outcome;
use crate::view::seal_super;

/// How a repair was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteMethod {
    /// As one transaction of the image's journal.
    Journal {
        /// The number of blocks in the transaction.
        blocks: usize,
    },
    /// In place, after a record that undoes it.
    Undo {
        /// The number of blocks that were written.
        blocks: usize,
    },
    /// In place. An interruption leaves a mixture.
    Plain {
        /// The number of blocks that were written.
        blocks: usize,
    },
}

/// Where the record of old blocks is written.
pub enum Undo<'a> {
    /// Only if the journal cannot be used. The function creates a device of this many bytes, whose name and directory
    /// are durable, and returns it with its name.
    IfNeeded(&'a mut RecordMaker<'a>),
    /// Always.
    Always(&'a mut RecordMaker<'a>),
    /// Nowhere: without a journal, the blocks are written in place.
    Never,
}

/// Creates the device for a record.
pub type RecordMaker<'a> = dyn FnMut(u64) -> Result<(Arc<dyn BlockDevice>, Vec<u8>)> + 'a;

/// Writes the changes of `outcome` to `image`. `offset` is the byte in the image's file at which the file system
/// begins, for the record. `stamp` is the time of the transaction.
///
/// # Errors
/// A device fails: [`crate::Error::Write`] contains the resulting state.
pub fn commit(
    image: &Arc<dyn BlockDevice>,
    outcome: &Outcome,
    offset: u64,
    stamp: Stamp,
    undo: Undo<'_>,
) -> Result<WriteMethod> {
    write(image, outcome, offset, stamp, undo).map_err(ImageState::Old.after())
}

/// Writes the changes. Unless an error says otherwise, the old state is left.
fn write(
    image: &Arc<dyn BlockDevice>,
    outcome: &Outcome,
    offset: u64,
    stamp: Stamp,
    undo: Undo<'_>,
) -> Result<WriteMethod> {
    let new = &outcome.device;
    let mut sb = read_super(&**new)?;
    let all = changed(&**image, new, u64::from(sb.block_size))?;
    let (fresh, blocks): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|block| outcome.fresh.has(BlockNr(*block)));
    if !fresh.is_empty() {
        write_blocks(image, new, &sb, &fresh, None)?;
    }
    if let Undo::IfNeeded(_) | Undo::Never = undo
        && let Some(how) = through_journal(image, outcome, &mut sb, stamp)?
    {
        return Ok(how);
    }
    let make = match undo {
        Undo::IfNeeded(make) | Undo::Always(make) => make,
        Undo::Never => {
            write_blocks(image, new, &sb, &blocks, None).map_err(ImageState::Mixture.after())?;
            return Ok(WriteMethod::Plain { blocks: blocks.len() });
        }
    };
    let mut record = undo::Record::new(u64::from(sb.block_size), blocks, offset);
    let (device, name) = make(record.bytes())?;
    let old = super_of(&**image)?;
    let marked = with_note(&**new, &name, &old)?;
    let last = super_of(&**new)?;
    record.write(&*device, &**image, &**new, [&marked, &last])?;
    let written = mark(image, &marked, &old);
    let written = written.and_then(|()| write_blocks(image, new, &sb, &record.blocks, Some(&marked)));
    // After this, the record undoes the finished repair.
    let written = written.and_then(|()| record.finish(&*device, &last)).and_then(|()| write_super(&**image, &last));
    written.map_err(ImageState::Recorded.after())?;
    Ok(WriteMethod::Undo { blocks: record.blocks.len() })
}

/// The blocks whose content differs, ascending.
fn changed(old: &dyn BlockDevice, new: &Arc<CowDevice>, size: u64) -> Result<Vec<u64>> {
    let mut blocks: Vec<u64> = Vec::new();
    let whole = CowDevice::PIECE_BYTES;
    let end = old.size_bytes() / size;
    for piece in new.pieces() {
        blocks.extend(piece * whole / size..((piece + 1) * whole).div_ceil(size).min(end));
    }
    blocks.dedup();
    let (mut one, mut other) = (vec![0; size as usize], vec![0; size as usize]);
    let mut unlike = Vec::new();
    for block in blocks {
        // A block that cannot be read is not written.
        let readable = old.read_at(block * size, &mut one, BioFlags::META).is_ok();
        if readable {
            new.read_at(block * size, &mut other, BioFlags::META)?;
            unlike.extend((one != other).then_some(block));
        }
    }
    Ok(unlike)
}

fn super_of(device: &dyn BlockDevice) -> Result<RawSuperBlock> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes, BioFlags::META)?;
    Ok(RawSuperBlock::read_from_bytes(&bytes).unwrap_or_else(|_| zerocopy::FromZeros::new_zeroed()))
}

/// The name of the record that undoes a repair which was interrupted while it was written; `None` if there is none, or
/// another program has written the superblock since.
pub fn unfinished(image: &dyn BlockDevice) -> Option<Vec<u8>> {
    super_of(image).ok()?.repair_under_way().map(<[u8]>::to_vec)
}

/// The new superblock with the note of an unfinished repair.
fn with_note(new: &dyn BlockDevice, name: &[u8], old: &RawSuperBlock) -> Result<RawSuperBlock> {
    let mut raw = super_of(new)?;
    raw.note_repair(name, old);
    seal_super(&mut raw);
    Ok(raw)
}

/// Writes the superblock with the note over the primary: first its second sector, which has the note, then the first.
/// Without checksums, a new first sector together with the old second one would describe a file system that does not
/// exist yet.
fn mark(image: &Arc<dyn BlockDevice>, marked: &RawSuperBlock, old: &RawSuperBlock) -> Result<()> {
    write_super(&**image, &with_old_sector(marked, old))?;
    write_super(&**image, marked)
}

/// The first sector of the old superblock with the note.
fn with_old_sector(marked: &RawSuperBlock, old: &RawSuperBlock) -> RawSuperBlock {
    let mut raw = marked.with_first_sector(old);
    seal_super(&mut raw);
    raw
}

/// Writes a superblock over the primary, durably, with everything that was written before.
fn write_super(image: &dyn BlockDevice, raw: &RawSuperBlock) -> Result<()> {
    let unit = u64::from(image.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let start = SUPERBLOCK_OFFSET - SUPERBLOCK_OFFSET % unit;
    let mut bytes = vec![0; unit as usize];
    image.read_at(start, &mut bytes, BioFlags::META)?;
    bytes[(SUPERBLOCK_OFFSET - start) as usize..][..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
    image.flush()?;
    image.write_at(start, &[&bytes], BioFlags::META)?;
    Ok(image.flush()?)
}

/// Writes blocks in place. `marked` is the superblock of the image, which is kept until they are durable.
fn write_blocks(
    image: &Arc<dyn BlockDevice>,
    new: &Arc<CowDevice>,
    sb: &SuperBlock,
    blocks: &[u64],
    marked: Option<&RawSuperBlock>,
) -> Result<()> {
    let size = u64::from(sb.block_size);
    let (super_block, at) = sb.primary_location();
    let mut bytes = vec![0; size as usize];
    for block in blocks {
        new.read_at(block * size, &mut bytes, BioFlags::META)?;
        if let Some(marked) = marked.filter(|_| *block == super_block.0) {
            bytes[at..at + SUPERBLOCK_SIZE].copy_from_slice(marked.as_bytes());
        }
        image.write_at(block * size, &[&bytes], BioFlags::META)?;
    }
    Ok(image.flush()?)
}

/// Writes everything as one transaction of the image's journal; `None` if that cannot be done, and nothing was written.
fn through_journal(
    image: &Arc<dyn BlockDevice>,
    outcome: &Outcome,
    sb: &mut SuperBlock,
    stamp: Stamp,
) -> Result<Option<WriteMethod>> {
    if !may_trust_journal(outcome) || image.read_only() {
        return Ok(None);
    }
    let Some((old, mut journal)) = journal_of(image) else { return Ok(None) };
    let Some((_, copy)) = journal_of(&(outcome.device.clone() as Arc<dyn BlockDevice>)) else { return Ok(None) };
    let same = copy.map().runs().eq(journal.map().runs()) && old.block_size == sb.block_size;
    let Some(guard) = old.backup_groups().next().filter(|_| same) else { return Ok(None) };
    // A log that cannot be read cannot be used for a transaction.
    let Ok(replay) = Replay::load(&journal, &**image, &mut |_| {}) else { return Ok(None) };
    if replay.check().is_err() || !replay.fast_commits.is_empty() {
        return Ok(None);
    }
    let size = u64::from(sb.block_size);
    let logged = |journal: &JournalFile| -> Result<Vec<BlockNr>> {
        let all = changed(&**image, &outcome.device, size)?.into_iter().map(BlockNr);
        let all = all.filter(|block| !outcome.fresh.has(*block));
        Ok(all.filter(|block| !journal.map().contains(*block)).collect())
    };
    // Before the replay, there are more of them.
    let most = logged(&journal)?.len();
    if transaction::room_for(&journal, &journal.super_block().format(), most).is_err() {
        return Ok(None);
    }
    if !is_log_readable(image, &journal, most, size) {
        return Ok(None);
    }
    let mut by_log = || -> Result<usize> {
        if replay.live {
            replay.apply(&mut journal, &**image, Accept::WholeOnly, &mut |_| {})?;
        }
        let blocks = logged(&journal)?;
        guard_super(image, &old, guard)?;
        transaction::mark(&**image)?;
        let jsb = journal.super_block().clone();
        transaction::write(&mut journal, jsb, &*outcome.device, sb, &blocks, stamp)?;
        // After this, the new state is valid. It is written home, and then the log is empty.
        let replay = Replay::load(&journal, &**image, &mut |_| {})?;
        replay.apply(&mut journal, &**image, Accept::WholeOnly, &mut |_| {})?;
        let mut last = super_of(&*outcome.device)?;
        last.s_feature_incompat.set(last.s_feature_incompat.get() & !4);
        seal_super(&mut last);
        write_super(&**image, &last)?;
        Ok(blocks.len())
    };
    let blocks = by_log().map_err(ImageState::Log.after())?;
    Ok(Some(WriteMethod::Journal { blocks }))
}

/// Whether the part of the log for a transaction of `blocks` blocks can be read, because a block that cannot be read is
/// not written.
fn is_log_readable(image: &Arc<dyn BlockDevice>, journal: &JournalFile, blocks: usize, size: u64) -> bool {
    /// The number of bytes that a replay reads ahead.
    const AHEAD_BYTES: u64 = 64 << 10;
    // A descriptor describes more than one block, and a commit block ends the transaction.
    let logged = (2 * blocks as u64 + 2 + AHEAD_BYTES / size).min(journal.map().len().into());
    let mut bytes = vec![0; size as usize];
    (0..=logged as u32)
        .filter_map(|at| journal.map().lookup(at))
        .all(|(block, _)| image.read_at(block.0 * size, &mut bytes, BioFlags::META).is_ok())
}

/// Whether nothing that a replay needs was damaged.
fn may_trust_journal(outcome: &Outcome) -> bool {
    let doubts = |note: &Note| matches!(note, Note::BackupSuperblock { .. } | Note::NotReplayed { .. });
    let needed = outcome.report.findings.iter().filter(|finding| finding.problem.severity() == Severity::Damage);
    let mut needed = needed.filter(|finding| {
        finding.problem.code() < 0x01_0000 || finding.place.ino().is_some_and(|ino| ino == InodeNr::JOURNAL)
    });
    !outcome.report.notes.iter().any(doubts) && needed.next().is_none() && outcome.fast_commits == 0
}

fn journal_of(device: &Arc<dyn BlockDevice>) -> Option<(SuperBlock, JournalFile)> {
    let sb = read_super(&**device).ok()?;
    let journal = open_journal(device.clone(), &sb).ok()??;
    Some((sb, journal))
}

/// Writes the current superblock over a backup. A disk writes the primary's two sectors separately. If the primary is
/// torn while it is being marked, the whole superblock is in the backup, with the log to replay.
fn guard_super(image: &Arc<dyn BlockDevice>, sb: &SuperBlock, group: GroupNr) -> Result<()> {
    let mut copy = sb.backup_for(group);
    copy.set_needs_recovery(true);
    let place = sb.super_location(group).0.0 * u64::from(sb.block_size);
    let unit = u64::from(image.limits().logical_block).max(SUPERBLOCK_SIZE as u64);
    let mut bytes = vec![0; unit as usize];
    image.read_at(place, &mut bytes, BioFlags::META)?;
    copy.encode_into(&mut bytes[..SUPERBLOCK_SIZE]);
    image.write_at(place, &[&bytes], BioFlags::META)?;
    Ok(image.flush()?)
}
