//! Reads the log: which transactions count, and where the newest copy of each block lies.
//!
//! Linux makes three passes (`PASS_SCAN`, `PASS_REVOKE`, `PASS_REPLAY` of fs/jbd2/recovery.c). Here the first pass
//! also records and checks the copies, and records the positions of the revoke blocks. Then the revoke blocks are
//! read again and applied to the table of copies. That suffices because only the newest copy of a block matters: if
//! it is revoked, every older one is, and if it is not, it wins. So no table of revokes is needed, whose size the
//! writer of the log would determine.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_block::BlockDevice;
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    BlockHeader, BlockKind, CommitBlock, CommitCsum, FAST_COMMIT_BYTES_MAX, FastCommit, FastCommitScan,
    IncompatFeatures, LogCsum, LogFormat, LogRange, Tid, descriptor_tags, revoke_records, unescape, v1_checksum,
};

use crate::error::{Damage, Error, Result};
use crate::file::{JournalFile, Window};

/// Bytes read ahead if every block of the log is examined, and if copies are skipped.
const WINDOW_BYTES: usize = 1 << 20;
const SKIPPING_WINDOW_BYTES: usize = 64 << 10;

/// The most copies that are remembered at once: 4 GiB of metadata in blocks of 4 KiB, and 50 MiB of memory. By
/// default mke2fs makes journals of a quarter of these blocks, and most blocks are logged more than once.
const COPIES_MAX: usize = 1 << 20;
/// The most revoke blocks. Their places are remembered, because they are read a second time when all are known.
const REVOKE_BLOCKS_MAX: usize = 1 << 20;
/// The most findings that are recorded. One is enough to refuse a log.
const DAMAGE_MAX: usize = 1000;

/// The newest copy of a block in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCopy {
    /// Its place, counted from the start of the journal.
    pub log_block: u32,
    pub tid: Tid,
    /// Its first four bytes were replaced and must be restored to the magic number.
    pub escaped: bool,
    /// Whether its checksum matches; always true if the format has none.
    valid: bool,
}

impl LogCopy {
    /// Turns the bytes from the log into the contents for its home.
    pub(crate) fn restore(&self, data: &mut [u8]) {
        if self.escaped {
            unescape(data);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reading the log, in log blocks.
    Scan,
    /// Reading revoke blocks.
    Revoke,
    /// Writing copies home, in blocks.
    Write,
}

/// The progress of recovery; `total` is an upper bound during the scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub phase: Phase,
    pub done: u64,
    pub total: u64,
}

/// The contents of a log (Linux: `struct recovery_info`, and the work that it describes).
#[derive(Clone, Debug)]
pub struct Replay {
    /// False if the superblock says that the log is empty; then all other fields are empty.
    pub live: bool,
    /// The oldest transaction in the log.
    pub start: Tid,
    /// One past the newest transaction that counts.
    pub end: Tid,
    /// The log block after the newest commit block.
    pub head: u32,
    /// The newest copy of each block, except revoked and broken ones.
    pub blocks: BTreeMap<BlockNr, LogCopy>,
    /// Transactions that count.
    pub transactions: u32,
    /// Copies in them, older ones of the same block included.
    pub copies: u64,
    /// Revoke records in them.
    pub revokes: u64,
    /// Blocks that are not replayed because they are revoked.
    pub revoked: u64,
    /// Time of the newest commit: seconds since 1970, nanoseconds.
    pub commit_time: Option<(u64, u32)>,
    /// The error that had aborted the journal, as a negative Linux error number, or 0.
    pub errno: i32,
    /// The log's faults: the first thousand findings.
    pub damage: Vec<Damage>,
    /// The fast commits that continue the log, ahead of transaction [`end`](Self::end).
    pub fast_commits: Vec<FastCommit>,
    /// The fault of the fast commit that would be next. It is complete, so an fsync may have relied on it.
    pub fast_commit_damage: Option<extant_ondisk::Error>,
}

impl Replay {
    /// Reads the log of `journal`, which belongs to the file system on `home`. Writes nothing.
    ///
    /// Errors: only those that prevent reading, and a log with more blocks to replay than the memory bound. The
    /// faults of a broken log are in [`damage`](Self::damage).
    pub fn load(journal: &JournalFile, home: &dyn BlockDevice, progress: &mut dyn FnMut(Progress)) -> Result<Replay> {
        Replay::load_bounded(journal, home, COPIES_MAX, progress)
    }

    /// [`Replay::load`], with another bound on the copies.
    pub(crate) fn load_bounded(
        journal: &JournalFile,
        home: &dyn BlockDevice,
        copies_max: usize,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Replay> {
        let sb = journal.super_block();
        let mut replay = Replay {
            live: sb.is_live(),
            start: sb.sequence,
            end: sb.sequence,
            head: sb.start,
            blocks: BTreeMap::new(),
            transactions: 0,
            copies: 0,
            revokes: 0,
            revoked: 0,
            commit_time: None,
            errno: sb.errno,
            damage: Vec::new(),
            fast_commits: Vec::new(),
            fast_commit_damage: None,
        };
        if !replay.live {
            return Ok(replay);
        }
        let mut scan = Scan::new(journal, copies_max, replay);
        scan.run(progress)?;
        let revoke_blocks = std::mem::take(&mut scan.revoke_blocks);
        replay = scan.replay;
        replay.apply_revokes(journal, &revoke_blocks, progress)?;
        replay.drop_unusable(journal, home);
        replay.read_fast_commits(journal)?;
        Ok(replay)
    }

    /// Whether replay would change nothing but the journal's superblock.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The next transaction number, which [`apply`](Self::apply) puts into `s_sequence`: above every number that can
    /// be in the log. For an empty log it is the successor of the superblock's number.
    pub fn next_tid(&self) -> Tid {
        self.end.next()
    }

    /// Removes the copies that the revoke blocks of the counted transactions hide.
    fn apply_revokes(
        &mut self,
        journal: &JournalFile,
        revoke_blocks: &[(u32, Tid)],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<()> {
        let format = journal.super_block().format();
        let mut window = Window::new(journal, SKIPPING_WINDOW_BYTES);
        for (done, (log_block, tid)) in revoke_blocks.iter().enumerate() {
            progress(Progress { phase: Phase::Revoke, done: done as u64, total: revoke_blocks.len() as u64 });
            let Ok(records) = revoke_records(&format, window.block(*log_block)?) else {
                note(&mut self.damage, Damage::Revoke { tid: *tid, log_block: *log_block });
                continue;
            };
            for block in records {
                self.revokes += 1;
                // Including the same transaction, whatever the order in the log: if a block was journalled again
                // after its revoke, the revoke was cancelled before the commit.
                if self.blocks.get(&block).is_some_and(|copy| copy.tid.is_at_or_before(*tid)) {
                    self.blocks.remove(&block);
                    self.revoked += 1;
                }
            }
        }
        Ok(())
    }

    /// Reads the fast commits that continue the log.
    fn read_fast_commits(&mut self, journal: &JournalFile) -> Result<()> {
        let mut scan = FastCommitScan::new(self.end);
        let mut block = vec![0; journal.block_size() as usize];
        for at in journal.super_block().fast_commit_area() {
            journal.read(at, &mut block)?;
            match scan.block(at, &block) {
                Ok(true) if scan.is_too_long() => {
                    let what = "bytes of fast commits";
                    return Err(Error::TooMuch { most: FAST_COMMIT_BYTES_MAX, what });
                }
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => {
                    self.fast_commit_damage = Some(e);
                    break;
                }
            }
        }
        self.fast_commits = scan.finish();
        Ok(())
    }

    /// Removes copies that must not be written home, and records them as damage.
    fn drop_unusable(&mut self, journal: &JournalFile, home: &dyn BlockDevice) {
        let home_blocks = home.size_bytes() / u64::from(journal.block_size());
        let damage = &mut self.damage;
        self.blocks.retain(|block, copy| {
            let (tid, block, log_block) = (copy.tid, *block, copy.log_block);
            if !copy.valid {
                note(damage, Damage::Copy { tid, block, log_block });
            } else if block.0 >= home_blocks {
                note(damage, Damage::HomeOutOfRange { tid, block, log_block });
            } else if !journal.is_external() && journal.map().contains(block) {
                // It would change the log during replay; no file system journals its journal.
                note(damage, Damage::HomeInJournal { tid, block, log_block });
            } else {
                return true;
            }
            false
        });
    }
}

fn note(damage: &mut Vec<Damage>, found: Damage) {
    if damage.len() < DAMAGE_MAX {
        damage.push(found);
    }
}

/// The effect of one block of the log on the scan.
enum Step {
    Continue,
    Stop,
}

struct Scan<'a> {
    journal: &'a JournalFile,
    format: LogFormat,
    log: LogRange,
    copies_max: usize,
    async_commit: bool,
    replay: Replay,
    /// Positions of revoke blocks in counted transactions.
    revoke_blocks: Vec<(u32, Tid)>,
    /// The position of the next block, the number of examined blocks, and the transaction expected there.
    at: u32,
    seen: u32,
    tid: Tid,
    /// The current transaction, not yet committed.
    pending: Vec<(BlockNr, LogCopy)>,
    pending_revokes: Vec<u32>,
    pending_broken: bool,
    v1_sum: u32,
    /// A descriptor or revoke block with a bad checksum: leftover or damage, as the commit block will show.
    suspect: Option<u32>,
    /// With asynchronous commits: a transaction with a bad checksum that may simply not have reached the disk. The
    /// log ends before it; a commit block after it proves that it had been complete.
    failed: Option<Damage>,
    last_commit_sec: u64,
}

impl<'a> Scan<'a> {
    fn new(journal: &'a JournalFile, copies_max: usize, replay: Replay) -> Scan<'a> {
        let sb = journal.super_block();
        Scan {
            journal,
            format: sb.format(),
            log: sb.log(),
            copies_max,
            async_commit: sb.incompat.contains(IncompatFeatures::ASYNC_COMMIT),
            revoke_blocks: Vec::new(),
            at: sb.start,
            seen: 0,
            tid: sb.sequence,
            pending: Vec::new(),
            pending_revokes: Vec::new(),
            pending_broken: false,
            v1_sum: !0,
            suspect: None,
            failed: None,
            last_commit_sec: 0,
            replay,
        }
    }

    fn run(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let reads_copies = self.format.csum != LogCsum::None;
        let mut window = Window::new(self.journal, if reads_copies { WINDOW_BYTES } else { SKIPPING_WINDOW_BYTES });
        // A live log is at most one round long; without this bound a crafted log would never end.
        while self.seen < self.log.len() {
            progress(Progress { phase: Phase::Scan, done: u64::from(self.seen), total: u64::from(self.log.len()) });
            let at = self.take();
            let block = window.block(at)?;
            let Some(header) = BlockHeader::decode(block).filter(|h| h.tid == self.tid) else { break };
            let step = match header.kind {
                BlockKind::Descriptor => {
                    let block = block.to_vec();
                    self.descriptor(at, &block, &mut window)?
                }
                BlockKind::Revoke => self.revoke(at, block)?,
                BlockKind::Commit => self.commit(at, block),
                BlockKind::SuperBlockV1 | BlockKind::SuperBlockV2 | BlockKind::Other(_) => Step::Stop,
            };
            if let Step::Stop = step {
                break;
            }
        }
        Ok(())
    }

    /// Skips the next log block and returns its position.
    fn take(&mut self) -> u32 {
        let at = self.at;
        self.at = self.log.next(at);
        self.seen += 1;
        at
    }

    fn descriptor(&mut self, at: u32, block: &[u8], window: &mut Window<'_>) -> Result<Step> {
        if !self.format.tail_valid(block) {
            // Not damage yet: this may be a leftover of an earlier use of the journal.
            self.suspect.get_or_insert(at);
        }
        let skip = self.suspect.is_some() || self.failed.is_some();
        if self.format.csum == LogCsum::V1 && !skip {
            self.v1_sum = v1_checksum(self.v1_sum, block);
        }
        let format = self.format.clone();
        for tag in descriptor_tags(&format, block) {
            if self.seen >= self.log.len() {
                return Ok(Step::Stop);
            }
            let log_block = self.take();
            if skip {
                continue;
            }
            let mut valid = true;
            if format.csum != LogCsum::None {
                let data = window.block(log_block)?;
                valid = tag.matches(&format, self.tid, data);
                if format.csum == LogCsum::V1 {
                    self.v1_sum = v1_checksum(self.v1_sum, data);
                }
            }
            self.pending_broken |= !valid;
            if self.pending.len() + self.replay.blocks.len() >= self.copies_max {
                return Err(Error::TooMuch { most: self.copies_max, what: "blocks to replay" });
            }
            self.pending.push((tag.block, LogCopy { log_block, tid: self.tid, escaped: tag.is_escaped(), valid }));
        }
        Ok(Step::Continue)
    }

    fn revoke(&mut self, at: u32, block: &[u8]) -> Result<Step> {
        if !self.format.tail_valid(block) {
            self.suspect.get_or_insert(at);
        }
        if self.revoke_blocks.len() + self.pending_revokes.len() >= REVOKE_BLOCKS_MAX {
            return Err(Error::TooMuch { most: REVOKE_BLOCKS_MAX, what: "revoke blocks" });
        }
        self.pending_revokes.push(at);
        Ok(Step::Continue)
    }

    fn commit(&mut self, at: u32, block: &[u8]) -> Step {
        let Some((commit, csum)) = CommitBlock::decode(&self.format, block) else { return Step::Stop };
        // The commit times of one journal never go backwards. A broken transaction that is older than the commit
        // before it is a leftover of an earlier round; a broken newer one was written as the next commit.
        let leftover = commit.sec < self.last_commit_sec;
        if let Some(log_block) = self.suspect {
            if !leftover {
                self.replay.damage.push(Damage::Block { tid: self.tid, log_block });
            }
            return Step::Stop;
        }
        if let Some(damage) = self.failed {
            self.replay.damage.push(damage);
            return Step::Stop;
        }
        let good = match csum {
            CommitCsum::Absent | CommitCsum::Valid => true,
            CommitCsum::Invalid => false,
            CommitCsum::Transaction(sum) => sum == self.v1_sum,
        };
        // An asynchronous commit block may reach the disk before the copies that it seals.
        if !good || (self.async_commit && self.pending_broken) {
            if leftover {
                return Step::Stop;
            }
            let damage = Damage::Commit { tid: self.tid, log_block: at };
            if !self.async_commit {
                self.replay.damage.push(damage);
                return Step::Stop;
            }
            self.failed = Some(damage);
            self.tid = self.tid.next();
            return Step::Continue;
        }
        self.last_commit_sec = commit.sec;
        self.accept(commit);
        Step::Continue
    }

    /// Counts the pending transaction.
    fn accept(&mut self, commit: CommitBlock) {
        let replay = &mut self.replay;
        replay.copies += self.pending.len() as u64;
        replay.blocks.extend(self.pending.drain(..));
        let tid = self.tid;
        self.revoke_blocks.extend(self.pending_revokes.drain(..).map(|at| (at, tid)));
        replay.transactions += 1;
        replay.commit_time = Some((commit.sec, commit.nsec));
        replay.end = tid.next();
        replay.head = self.at;
        self.tid = tid.next();
        self.v1_sum = !0;
        self.pending_broken = false;
    }
}
