//! The past of a file system's metadata, as far as its journal still has it.
//!
//! Main types: [`History`] (every copy in the log, of finished transactions that were replayed long ago, too),
//! [`PastCopy`]. A replay wants the newest copy of a block; a search for deleted files wants the older ones.
//!
//! The log is a ring that is written in one direction. So where a descriptor block is whole, the copies behind it are
//! those that it announces, up to the commit block of its transaction. With checksums each copy proves that itself.
//! Copies of a transaction without a commit block never counted, and do not count here.
//!
//! What it does not do: interpret copies, write.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    BlockHeader, BlockKind, CommitBlock, CommitCsum, FastCommit, FastCommitScan, Tid, descriptor_tags, unescape,
};

use crate::error::Result;
use crate::file::{JournalFile, Window};

/// Bytes read ahead.
const WINDOW_BYTES: usize = 1 << 20;
/// The most copies that are remembered: 4 GiB of metadata in blocks of 4 KiB.
const COPIES_MAX: usize = 1 << 20;
/// The most bytes of fast commits.
const FAST_COMMIT_BYTES_MAX: usize = 8 << 20;
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
        let mut remembered = 0;
        let mut commits = Vec::new();
        for at in log.first..log.last {
            let block = window.block(at)?;
            let Some(header) = BlockHeader::decode(block) else { continue };
            match header.kind {
                BlockKind::Descriptor if format.tail_valid(block) => {
                    let tags: Vec<_> = descriptor_tags(&format, block).collect();
                    let mut place = at;
                    for tag in tags {
                        place = log.next(place);
                        if remembered >= COPIES_MAX {
                            history.is_cut = true;
                            break;
                        }
                        let data = window.block(place)?;
                        // An overwritten copy is no copy any more, and neither are those behind it.
                        if BlockHeader::decode(data).is_some() {
                            break;
                        }
                        if tag.matches(&format, header.tid, data) {
                            let copy = PastCopy { tid: header.tid, log_block: place, escaped: tag.is_escaped() };
                            open.entry(header.tid.0).or_default().push((tag.block, copy));
                            remembered += 1;
                        }
                    }
                }
                BlockKind::Commit => {
                    let commit = CommitBlock::decode(&format, block);
                    commits.extend(commit.filter(|(_, csum)| *csum != CommitCsum::Invalid).map(|(commit, _)| commit));
                }
                _ => {}
            }
        }
        for commit in commits {
            if let Some(copies) = open.remove(&commit.tid.0) {
                history.times.insert(commit.tid.0, commit.sec);
                history.transactions.push(commit.tid);
                for (block, copy) in copies {
                    history.copies.entry(block).or_default().push(copy);
                }
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
        for (n, at) in area.enumerate() {
            if n * block.len() >= FAST_COMMIT_BYTES_MAX {
                break;
            }
            journal.read(at, &mut block)?;
            if !matches!(scan.block(at, &block), Ok(true)) {
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

    /// The place of a transaction in the order of all: numbers go round, so they do not compare by themselves.
    pub fn order(&self, tid: Tid) -> i32 {
        tid.since(self.base)
    }

    /// The time of a transaction, in seconds since 1970.
    pub fn time_of(&self, tid: Tid) -> Option<u64> {
        self.times.get(&tid.0).copied()
    }
}
