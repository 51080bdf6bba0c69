//! The journal: whether it can be used, and the device as it will be after its replay.
//!
//! Main function: [`replayed`]. What is wrong with the journal's superblock is told apart here, by the raw fields;
//! reading the log is `extant_recovery`'s business.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::InodeNr;
use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::jbd2::{CompatFeatures, IncompatFeatures, MAGIC, SUPER_BLOCK_BYTES};
use extant_ondisk::superblock::SuperBlock;
use extant_recovery::locate::{journal_blocks, journal_inode};
use extant_recovery::{JournalFile, JournalState, OverlayDevice, Replay, journal_state};

use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::{Note, Sink};

const SUPERBLOCK_V1: u32 = 3;
const SUPERBLOCK_V2: u32 = 4;
/// Types of other blocks of a log: descriptor, commit, revoke.
const OTHER_TYPES: [u32; 3] = [1, 2, 5];

/// The device as it will be when the journal has been replayed; the same device if there is nothing to replay, or if it
/// cannot be.
pub fn replayed(
    device: &Arc<dyn BlockDevice>,
    sb: &SuperBlock,
    sink: &mut Sink,
    notes: &mut Vec<Note>,
) -> Arc<dyn BlockDevice> {
    let mut bad = |problem, found: u64| sink.push(Finding::new(problem, Place::Journal, found, 0u64));
    let ino = sb.raw().s_journal_inum.get();
    let recover = sb.incompat().contains(Incompat::NEEDS_RECOVERY);
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        return device.clone();
    }
    if ino == 0 {
        if recover {
            notes.push(Note::NotReplayed { why: "the journal is on another device".into() });
        }
        return device.clone();
    }
    let file = match open(device, sb, InodeNr(ino)) {
        Ok(file) => file,
        Err(damage) => {
            for (problem, found) in damage {
                bad(problem, found);
            }
            if recover {
                notes.push(Note::NotReplayed { why: "the journal is damaged".into() });
            }
            return device.clone();
        }
    };
    match journal_state(file.super_block(), recover) {
        JournalState::Clean | JournalState::EmptyButFlagged => device.clone(),
        JournalState::LiveButUnflagged => {
            bad(Problem::JournalRecoveryClear, file.super_block().start.into());
            device.clone()
        }
        JournalState::Live => match Replay::load(&file, &**device, &mut |_| {}) {
            Ok(replay) => {
                if !replay.damage.is_empty() {
                    bad(Problem::JnlTxnCorrupt, replay.end.0.into());
                }
                if !replay.fast_commits.is_empty() {
                    notes.push(Note::FastCommits { count: replay.fast_commits.len() });
                }
                notes.push(Note::Replayed { transactions: replay.transactions });
                Arc::new(OverlayDevice::new(device.clone(), file, replay))
            }
            Err(e) => {
                bad(Problem::JnlTxnCorrupt, file.super_block().sequence.0.into());
                notes.push(Note::NotReplayed { why: e.to_string() });
                device.clone()
            }
        },
    }
}

/// Opens the journal in this inode, or says what is wrong with it.
fn open(device: &Arc<dyn BlockDevice>, sb: &SuperBlock, ino: InodeNr) -> Result<JournalFile, Vec<(Problem, u64)>> {
    let bad_inode = || vec![(Problem::JournalBadInode, u64::from(ino.0))];
    let geometry = sb.geometry();
    if ino.0 > geometry.inodes_count {
        return Err(bad_inode());
    }
    let inode = journal_inode(&**device, sb, ino).map_err(|_| bad_inode())?;
    let (map, _) = journal_blocks(&**device, sb, ino, &inode).map_err(|_| bad_inode())?;
    let Some((first, _)) = map.lookup(0) else { return Err(bad_inode()) };
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    let at = first.0 * u64::from(geometry.block_size);
    device.read_at(at, &mut bytes, BioFlags::META).map_err(|_| vec![(Problem::JournalBadSuper, 0)])?;
    let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    if word(0) != MAGIC {
        return Err(bad_inode());
    }
    let bad_super = (Problem::JournalBadSuper, 0);
    let kind = word(4);
    if ![SUPERBLOCK_V1, SUPERBLOCK_V2].contains(&kind) {
        let unknown = (Problem::JournalUnsuppVersion, u64::from(kind));
        return Err(if OTHER_TYPES.contains(&kind) { vec![bad_super] } else { vec![unknown, bad_super] });
    }
    if kind == SUPERBLOCK_V2 {
        let (compat, incompat, ro_compat) = (word(0x24), word(0x28), word(0x2c));
        let unknown = incompat & !IncompatFeatures::all().bits();
        if unknown != 0 {
            return Err(vec![(Problem::JournalUnsuppIncompat, unknown.into()), bad_super]);
        }
        if ro_compat != 0 {
            return Err(vec![(Problem::JournalUnsuppRocompat, ro_compat.into()), bad_super]);
        }
        let incompat = IncompatFeatures::from_bits_retain(incompat);
        let both = IncompatFeatures::CSUM_V2 | IncompatFeatures::CSUM_V3;
        if incompat.contains(both) || (incompat.intersects(both) && compat & CompatFeatures::CHECKSUM.bits() != 0) {
            return Err(vec![bad_super]);
        }
    }
    JournalFile::open(device.clone(), geometry.block_size, map).map_err(|_| vec![bad_super])
}
