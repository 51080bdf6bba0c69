//! Applies a log: writes blocks home, empties the log, and decides which recovery a journal needs.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{JournalSuperBlock, Tid};
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};

use crate::error::{Error, Result};
use crate::file::JournalFile;
use crate::locate::read_super;
use crate::scan::{Phase, Progress, Replay};

/// Bytes written home at once.
const WRITE_BYTES: usize = 1 << 20;

/// How to treat a damaged log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Refuse it: right for a mount.
    WholeOnly,
    /// Use the complete transactions and drop the rest: only for a checker, which examines everything afterwards.
    Damaged,
}

impl Replay {
    /// Refuses a log that must not be replayed by a mount.
    ///
    /// Errors: `Damaged`; `Format` for a fast commit.
    pub fn check(&self) -> Result<()> {
        if let Some(first) = self.damage.first() {
            return Err(Error::Damaged { first: *first, count: self.damage.len() });
        }
        match &self.fast_commit_damage {
            Some(e) => Err(e.clone().into()),
            None => Ok(()),
        }
    }

    /// Writes every copy home, in block order, makes that durable, and only then marks the log empty. May fail or be
    /// interrupted anywhere: load and apply again. Errors in the superblock at home are preserved, because they are
    /// recorded outside the log, whose copy may be older.
    ///
    /// `s_errno` stays in the journal's superblock: the caller records it in the file system, then clears it.
    ///
    /// Errors: `Damaged` and `FastCommits` unless accepted; `Device`.
    pub fn apply(
        &self,
        journal: &mut JournalFile,
        home: &dyn BlockDevice,
        accept: Accept,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        if accept == Accept::WholeOnly {
            self.check()?;
            if !self.fast_commits.is_empty() {
                return Err(Error::FastCommits { tid: self.end });
            }
        }
        if !self.live {
            return Ok(());
        }
        self.write_home(journal, home, progress)?;
        home.flush()?;
        let mut sb = journal.super_block().clone();
        empty(&mut sb, self.end, !self.damage.is_empty());
        journal.write_super(sb)
    }

    /// Writes every copy home, makes that durable, and moves the log's tail to its end. The log is then live without
    /// a transaction, the whole ring is free, and fast commits still count. May be interrupted anywhere: load again.
    ///
    /// Errors: `Damaged`, `Device`; `Format` for a fast commit.
    pub fn move_tail(&self, journal: &mut JournalFile, home: &dyn BlockDevice) -> Result<()> {
        self.check()?;
        self.write_home(journal, home, &mut |_| {})?;
        home.flush()?;
        let mut sb = journal.super_block().clone();
        (sb.sequence, sb.start) = (self.end, self.head);
        journal.write_super(sb)
    }

    fn write_home(
        &self,
        journal: &JournalFile,
        home: &dyn BlockDevice,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let size = journal.block_size() as usize;
        let most = (WRITE_BYTES / size).max(1);
        let super_block = BlockNr(SUPERBLOCK_OFFSET / size as u64);
        let told = match self.blocks.contains_key(&super_block) {
            true => super_of(home)?,
            false => None,
        };
        let mut buf = vec![0; most.min(self.blocks.len().max(1)) * size];
        let mut copies = self.blocks.iter().peekable();
        let mut done = 0u64;
        let total = self.blocks.len() as u64;
        while let Some((first, _)) = copies.peek().copied() {
            let mut count = 0;
            // As many adjacent blocks as possible in one write.
            while let Some((_, copy)) = copies.next_if(|(block, _)| count < most && block.0 - first.0 == count as u64) {
                let data = &mut buf[count * size..(count + 1) * size];
                journal.read(copy.log_block, data)?;
                copy.restore(data);
                if let Some(told) = told.as_ref().filter(|_| first.0 + count as u64 == super_block.0) {
                    keep_errors(told, &mut data[SUPERBLOCK_OFFSET as usize % size..][..SUPERBLOCK_SIZE]);
                }
                count += 1;
            }
            progress(Progress { phase: Phase::Write, done, total });
            home.write_at(first.0 * size as u64, &[&buf[..count * size]], BioFlags::META)?;
            done += count as u64;
        }
        progress(Progress { phase: Phase::Write, done, total });
        Ok(())
    }
}

/// The superblock at home; `None` if it is unusable.
fn super_of(home: &dyn BlockDevice) -> Result<Option<SuperBlock>> {
    match read_super(home) {
        Ok(sb) => Ok(Some(sb)),
        Err(e @ Error::Device(_)) => Err(e),
        Err(_) => Ok(None),
    }
}

/// Copies the errors recorded in the superblock `told` into `copy`, a copy of a superblock. (Linux does so in
/// `ext4_load_journal` after the replay; a crash may come before that.)
fn keep_errors(told: &SuperBlock, copy: &mut [u8]) {
    if let Ok(mut sb) = SuperBlock::decode(copy, SUPERBLOCK_OFFSET) {
        sb.copy_errors_from(told);
        sb.encode_into(copy);
    }
}

/// Marks the log empty, with the next number above every number that may be in the log.
fn empty(sb: &mut JournalSuperBlock, end: Tid, damaged: bool) {
    // One number is skipped, as Linux does: an unfinished transaction `end` may be in the log. After damage there may
    // be complete ones behind it, each at least a block long.
    sb.sequence = if damaged { end.plus(sb.max_len) } else { end.next() };
    sb.start = 0;
    sb.head = 0;
}

/// Empties the log without replaying it, and returns the number of discarded transactions (Linux:
/// `jbd2_journal_wipe`, which ext4 calls if the log is live but needs_recovery is clear). The numbering continues
/// above the log's end, so that its old contents can never be taken for new.
pub fn wipe(journal: &mut JournalFile, home: &dyn BlockDevice) -> Result<u32> {
    if !journal.super_block().is_live() {
        return Ok(0);
    }
    let replay = Replay::load(journal, home, &mut |_| {});
    let mut sb = journal.super_block().clone();
    let (end, damaged, dropped) = match replay {
        Ok(replay) => (replay.end, !replay.damage.is_empty(), replay.transactions),
        // Unreadable: only the maximum number of transactions is known.
        Err(Error::Device(_)) => (sb.sequence, true, 0),
        Err(e) => return Err(e),
    };
    empty(&mut sb, end, damaged);
    journal.write_super(sb)?;
    Ok(dropped)
}

/// The recovery that the journal's superblock and the file system's needs_recovery flag together require.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalState {
    /// Nothing to do.
    Clean,
    /// The log has transactions: replay them.
    Live,
    /// The flag is set but the log is empty: the crash came after the last checkpoint; clear the flag.
    EmptyButFlagged,
    /// The log has transactions, but the flag is clear, so another program has changed the file system since. Linux
    /// discards them ([`wipe`]); e2fsck asks the user.
    LiveButUnflagged,
}

/// See [`JournalState`]. `errno` in `sb` is a separate matter.
pub fn journal_state(sb: &JournalSuperBlock, needs_recovery: bool) -> JournalState {
    match (sb.is_live(), needs_recovery) {
        (false, false) => JournalState::Clean,
        (true, true) => JournalState::Live,
        (false, true) => JournalState::EmptyButFlagged,
        (true, false) => JournalState::LiveButUnflagged,
    }
}
