//! The past of a file system's metadata, as far as its journal still has it.
//!
//! Main types: [`History`] (every copy in the log, even of transactions that were written home long ago),
//! [`PastCopy`], [`Newest`] (the newest copy of each block). A search for deleted files wants the older copies, a
//! repair the newest ones.
//!
//! A log is a ring: a transaction stays in it until later ones overwrite its place, also after everything has been
//! written home and the log counts as empty. A copy counts if its transaction was committed, its checksum matches
//! where the format has one, and no later transaction has used its place in the log. The newest copy need not be the
//! newest version of its block: after an unmount, old kernels begin again at the start of the log, and may overwrite
//! the newest copy before an older one.
//!
//! What it does not do: decide whether a copy is right, or write it home. [`Replay`](crate::Replay) reads the
//! transactions that have to be replayed.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, HashMap};

use extant_block::BlockDevice;
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    BlockHeader, BlockKind, CommitBlock, CommitCsum, FastCommit, FastCommitScan, Tid, descriptor_tags, revoke_records,
    unescape,
};

use crate::error::Result;
use crate::file::{JournalFile, Window};

/// Bytes read ahead.
const WINDOW_BYTES: usize = 1 << 20;
/// The most copies that are remembered: 4 GiB of metadata in blocks of 4 KiB.
const COPIES_MAX: usize = 1 << 20;
/// The most log blocks that are read: 4 GiB in blocks of 4 KiB. Of a longer log, the rest is left out.
const BLOCKS_MAX: u32 = 1 << 20;
/// The record at the start of the fast-commit area (Linux: `EXT4_FC_TAG_HEAD`), and the byte of its transaction.
const FAST_COMMIT_HEAD: u16 = 9;
const FAST_COMMIT_TID_AT: usize = 8;

/// A copy of a block in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PastCopy {
    /// The transaction.
    pub tid: Tid,
    /// Its place, counted from the start of the journal.
    pub log_block: u32,
    /// Its first four bytes were replaced.
    pub escaped: bool,
}

/// Every copy in a journal.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The copies of each block, oldest first.
    pub copies: BTreeMap<BlockNr, Vec<PastCopy>>,
    /// The newest transaction that revokes a block: it was freed then, so copies up to that transaction are no versions
    /// of what lies there now.
    pub revoked: BTreeMap<BlockNr, Tid>,
    /// The time of each transaction: seconds since 1970.
    pub times: BTreeMap<u32, u64>,
    /// Transactions whose copies are known, oldest first.
    pub transactions: Vec<Tid>,
    /// The fast commits in the area for them, and the transaction that they ran ahead of.
    pub fast_commits: Vec<FastCommit>,
    /// See `fast_commits`.
    pub fast_commit_tid: Option<Tid>,
    /// There are more copies than are remembered.
    pub is_cut: bool,
    /// The transaction to which the order of all others relates.
    base: Tid,
}

impl History {
    /// Reads the whole journal. Writes nothing.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(journal: &JournalFile) -> Result<History> {
        let mut history = History { base: journal.super_block().sequence, ..History::default() };
        let (log, format) = (journal.log(), journal.super_block().format());
        let mut window = Window::new(journal, WINDOW_BYTES);
        // By transaction, until its commit block is seen.
        let mut open: BTreeMap<u32, Vec<(BlockNr, PastCopy)>> = BTreeMap::new();
        let mut users = Users::default();
        let (mut remembered, mut commits, mut revokes) = (0, Vec::new(), Vec::new());
        for at in log.first..log.last.min(log.first.saturating_add(BLOCKS_MAX)) {
            let block = window.block(at)?;
            let Some(BlockHeader { kind, tid }) = BlockHeader::decode(block) else { continue };
            match kind {
                BlockKind::Descriptor if format.tail_valid(block) => {
                    users.add(at, tid);
                    let tags: Vec<_> = descriptor_tags(&format, block).take(log.len() as usize).collect();
                    let mut place = at;
                    for tag in tags {
                        place = log.next(place);
                        users.add(place, tid);
                        if remembered >= COPIES_MAX {
                            history.is_cut = true;
                            break;
                        }
                        let data = window.block(place)?;
                        // Without checksums, the magic number shows that a later transaction has overwritten a copy.
                        if BlockHeader::decode(data).is_none() && tag.matches(&format, tid, data) {
                            let copy = PastCopy { tid, log_block: place, escaped: tag.is_escaped() };
                            open.entry(tid.0).or_default().push((tag.block, copy));
                            remembered += 1;
                        }
                    }
                }
                BlockKind::Revoke if format.tail_valid(block) => {
                    users.add(at, tid);
                    if let Ok(records) = revoke_records(&format, block) {
                        revokes
                            .extend(records.take(COPIES_MAX.saturating_sub(revokes.len())).map(|block| (block, tid)));
                    }
                }
                BlockKind::Commit => {
                    let commit = CommitBlock::decode(&format, block).filter(|(_, csum)| *csum != CommitCsum::Invalid);
                    if let Some((commit, _)) = commit {
                        users.add(at, tid);
                        commits.push(commit);
                    }
                }
                _ => {}
            }
        }
        for commit in commits {
            let Some(copies) = open.remove(&commit.tid.0) else { continue };
            history.times.insert(commit.tid.0, commit.sec);
            history.transactions.push(commit.tid);
            for (block, copy) in copies.into_iter().filter(|(_, copy)| users.last_of(copy.log_block) == Some(copy.tid))
            {
                history.copies.entry(block).or_default().push(copy);
            }
        }
        for (block, tid) in revokes.into_iter().filter(|(_, tid)| history.times.contains_key(&tid.0)) {
            let newest = history.revoked.entry(block).or_insert(tid);
            if newest.is_before(tid) {
                *newest = tid;
            }
        }
        let base = history.base;
        history.transactions.sort_by_key(|tid| tid.since(base));
        history.copies.values_mut().for_each(|copies| copies.sort_by_key(|copy| copy.tid.since(base)));
        history.read_fast_commits(journal)?;
        Ok(history)
    }

    fn read_fast_commits(&mut self, journal: &JournalFile) -> Result<()> {
        let area = journal.super_block().fast_commit_area();
        let mut block = vec![0; journal.block_size() as usize];
        let Some(first) = area.clone().next() else { return Ok(()) };
        journal.read(first, &mut block)?;
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        if half(0) != FAST_COMMIT_HEAD {
            return Ok(());
        }
        let at = FAST_COMMIT_TID_AT;
        let tid = Tid(u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]));
        let mut scan = FastCommitScan::new(tid);
        for at in area {
            journal.read(at, &mut block)?;
            if !matches!(scan.block(at, &block), Ok(true)) || scan.is_too_long() {
                break;
            }
        }
        self.fast_commits = scan.finish();
        self.fast_commit_tid = Some(tid).filter(|_| !self.fast_commits.is_empty());
        Ok(())
    }

    /// The bytes of a copy, as they were to lie at home.
    ///
    /// # Errors
    /// If the device fails.
    pub fn bytes(&self, journal: &JournalFile, copy: &PastCopy) -> Result<Vec<u8>> {
        let mut bytes = vec![0; journal.block_size() as usize];
        journal.read(copy.log_block, &mut bytes)?;
        if copy.escaped {
            unescape(&mut bytes);
        }
        Ok(bytes)
    }

    /// The place of a transaction in the order of all: numbers wrap around, so they do not compare by themselves.
    pub fn order(&self, tid: Tid) -> i32 {
        tid.since(self.base)
    }

    /// The time of a transaction, in seconds since 1970.
    pub fn time_of(&self, tid: Tid) -> Option<u64> {
        self.times.get(&tid.0).copied()
    }
}

/// The newest transaction that has used each block of a log.
#[derive(Default)]
struct Users(HashMap<u32, Tid>);

impl Users {
    fn add(&mut self, log_block: u32, tid: Tid) {
        let user = self.0.entry(log_block).or_insert(tid);
        if user.is_before(tid) {
            *user = tid;
        }
    }

    fn last_of(&self, log_block: u32) -> Option<Tid> {
        self.0.get(&log_block).copied()
    }
}

/// The newest copies of blocks in a log.
#[derive(Clone)]
pub struct Newest {
    journal: JournalFile,
    history: History,
    /// The blocks of the home device.
    home_blocks: u64,
}

impl Newest {
    /// Reads the whole log of `journal`, which belongs to the file system on `home`. Writes nothing.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load(journal: JournalFile, home: &dyn BlockDevice) -> Result<Newest> {
        let history = History::read(&journal)?;
        let home_blocks = home.size_bytes() / u64::from(journal.block_size());
        Ok(Newest { journal, history, home_blocks })
    }

    /// The blocks that have a copy, ascending.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNr> + '_ {
        self.history.copies.keys().copied().filter(|block| self.copy(*block).is_some())
    }

    /// The newest copy of a block, as it was at home. `None`: there is none.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read(&self, block: BlockNr) -> Result<Option<Vec<u8>>> {
        self.copy(block).map(|copy| self.history.bytes(&self.journal, copy)).transpose()
    }

    fn copy(&self, block: BlockNr) -> Option<&PastCopy> {
        let is_home = block.0 < self.home_blocks && (self.journal.is_external() || !self.journal.map().contains(block));
        let copy = self.history.copies.get(&block)?.last()?;
        let is_revoked = self.history.revoked.get(&block).is_some_and(|tid| copy.tid.is_at_or_before(*tid));
        (is_home && !is_revoked).then_some(copy)
    }
}
