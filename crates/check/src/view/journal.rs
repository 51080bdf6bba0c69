//! The journal: whether it can be used, and the device after a replay.
//!
//! Main function: [`replayed`]. `extant_recovery` reads the log.
//!
//! # Locking
//! None.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::InodeNr;
use extant_ondisk::features::{Compat, Incompat};
use extant_ondisk::jbd2::{JournalContext, JournalSuperBlock, JournalSuperDamage, SUPER_BLOCK_BYTES};
use extant_ondisk::superblock::SuperBlock;
use extant_recovery::locate::{journal_blocks, journal_inode};
use extant_recovery::{Error, JournalFile, JournalState, OverlayDevice, Replay, journal_state};

use crate::finding::{Finding, Place};
use crate::problem::Problem;
use crate::report::{Note, Sink};
use crate::{JournalDevice, Options};

/// The device after a replay of the journal; `None` if there is nothing to replay, or the journal cannot be used.
pub fn replayed(
    device: &Arc<dyn BlockDevice>,
    sb: &SuperBlock,
    options: &Options,
    sink: &mut Sink,
    notes: &mut Vec<Note>,
) -> Option<Arc<dyn BlockDevice>> {
    let ino = sb.raw().s_journal_inum.get();
    let recover = sb.incompat().contains(Incompat::NEEDS_RECOVERY);
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        return None;
    }
    // A number that no inode has is damage of the superblock itself.
    let exists = ino <= sb.geometry().inodes_count;
    let opened = match &options.journal {
        None if ino == 0 => Err("the journal is on another device".to_owned()),
        Some(JournalDevice(journal)) if ino == 0 => open_external(journal, sb, sink),
        _ => exists
            .then(|| open(device, sb, InodeNr(ino), sink))
            .flatten()
            .ok_or_else(|| "the journal is damaged".to_owned()),
    };
    let file = match opened {
        Ok(file) => file,
        Err(why) => {
            if recover {
                notes.push(Note::NotReplayed { why });
            }
            return None;
        }
    };
    let mut bad = |problem, found: u64| sink.push(Finding::new(problem, Place::Journal, found, 0u64));
    match journal_state(file.super_block(), recover) {
        JournalState::Clean | JournalState::EmptyButFlagged => None,
        JournalState::LiveButUnflagged => {
            bad(Problem::JournalRecoveryClear, file.super_block().start.into());
            None
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
                Some(Arc::new(OverlayDevice::new(device.clone(), file, replay)))
            }
            Err(e) => {
                bad(Problem::JnlTxnCorrupt, file.super_block().sequence.0.into());
                notes.push(Note::NotReplayed { why: e.to_string() });
                None
            }
        },
    }
}

/// Opens the journal on this device, or reports the damage of its superblock. If a journal does not belong to this file
/// system, this is no damage of either.
fn open_external(
    journal: &Arc<dyn BlockDevice>,
    sb: &SuperBlock,
    sink: &mut Sink,
) -> std::result::Result<JournalFile, String> {
    let opened = JournalFile::open_external(journal.clone(), sb.block_size, sb.raw().s_journal_uuid, sb.uuid());
    opened.map_err(|e| {
        if matches!(e, Error::Format(_) | Error::Map { .. }) {
            sink.push(Finding::new(Problem::JournalBadSuper, Place::Journal, 0u64, 0u64));
        }
        e.to_string()
    })
}

/// Opens the journal in this inode, or reports its damage.
fn open(device: &Arc<dyn BlockDevice>, sb: &SuperBlock, ino: InodeNr, sink: &mut Sink) -> Option<JournalFile> {
    let mut bad = |problem, found: u32| sink.push(Finding::new(problem, Place::Journal, found, 0u64));
    let block_size = sb.geometry().block_size;
    let map = journal_inode(&**device, sb, ino).and_then(|inode| journal_blocks(&**device, sb, ino, &inode));
    let start = map.ok().and_then(|(map, _)| map.lookup(0).map(|(first, _)| (first, map)));
    let Some((first, map)) = start else {
        bad(Problem::JournalBadInode, ino.0);
        return None;
    };
    let mut bytes = vec![0; SUPER_BLOCK_BYTES];
    if device.read_at(first.0 * u64::from(block_size), &mut bytes, BioFlags::META).is_err() {
        bad(Problem::JournalBadSuper, 0);
        return None;
    }
    let context = JournalContext { block_size, blocks: Some(map.len()) };
    let mut is_sound = true;
    JournalSuperBlock::parse(&bytes, &context, &mut |one| {
        is_sound = false;
        sink.push(finding(one, ino));
    });
    if !is_sound {
        return None;
    }
    // Damage of the superblock is reported; all other damage is in the map.
    let file = JournalFile::open(device.clone(), block_size, map);
    file.map_err(|_| sink.push(Finding::new(Problem::JournalBadInode, Place::Journal, ino.0, 0u64))).ok()
}

/// Converts damage of the superblock of the journal in this inode to a finding.
fn finding(damage: JournalSuperDamage, ino: InodeNr) -> Finding {
    use JournalSuperDamage as D;
    let at = |problem, found: u32, expected: u32| Finding::new(problem, Place::Journal, found, expected);
    let bad = |found, expected| at(Problem::JournalBadSuper, found, expected);
    match damage {
        D::Magic { .. } => at(Problem::JournalBadInode, ino.0, 0),
        // A descriptor, a commit or a revoke block; later versions have other numbers.
        D::Kind { found: found @ (1 | 2 | 5) } => bad(found, 4),
        D::Kind { found } => at(Problem::JournalUnsuppVersion, found, 4),
        D::Incompat { unknown } => at(Problem::JournalUnsuppIncompat, unknown, 0),
        D::RoCompat { unknown } => at(Problem::JournalUnsuppRocompat, unknown, 0),
        D::Length { found } => bad(found, 1024),
        D::ChecksumsV2V3 | D::ChecksumsV1 => bad(0, 0),
        D::ChecksumType { found } => bad(found.into(), 4),
        D::Checksum { found, expected } | D::BlockSize { found, expected } => bad(found, expected),
        D::Log { first, max_len } => bad(first, max_len),
        D::Start { found, last, .. } => bad(found, last),
        D::TooLong { found, most } => bad(found, most),
        D::Users { found } => bad(found, 1),
    }
}
