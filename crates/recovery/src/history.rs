//! Older versions of blocks that a log still holds.
//!
//! Main type: [`History`] (the newest copy of each block in the log). A log is a ring: a transaction stays in it until
//! later ones overwrite its place, also after everything has been written home and the log counts as empty.
//!
//! A copy counts if its transaction was committed, its checksum matches where the format has one, no later transaction
//! has used its place in the log, and no later transaction revokes its block. It need not be the newest version of the
//! block: after an unmount, old kernels begin again at the start of the log, and may overwrite the newest copy before
//! an older one.
//!
//! What it does not do: decide whether a copy is right, or write it home. [`Replay`](crate::Replay) reads the
//! transactions that have to be replayed.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, HashMap, HashSet};

use extant_block::BlockDevice;
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    BlockHeader, BlockKind, CommitBlock, CommitCsum, LogFormat, Tag, Tid, descriptor_tags, revoke_records, unescape,
};

use crate::error::Result;
use crate::file::{JournalFile, Window};

/// Bytes read at once.
const WINDOW_BYTES: usize = 1 << 20;
/// The most log blocks that are read: 4 GiB in blocks of 4 KiB. Of a longer log, the rest is left out.
const BLOCKS_MAX: u32 = 1 << 20;
/// The most copies that are remembered.
const COPIES_MAX: usize = 1 << 20;

/// A copy of a block in the log.
#[derive(Clone, Copy, Debug)]
struct Copy {
    /// Its place, counted from the start of the journal.
    log_block: u32,
    tid: Tid,
    tag: Tag,
}

/// The newest copies of blocks in a log.
#[derive(Clone)]
pub struct History {
    journal: JournalFile,
    format: LogFormat,
    copies: BTreeMap<BlockNr, Copy>,
}

impl History {
    /// Reads the whole log of `journal`, which belongs to the file system on `home`. Writes nothing.
    ///
    /// # Errors
    /// Those of the device.
    pub fn load(journal: JournalFile, home: &dyn BlockDevice) -> Result<History> {
        let format = journal.super_block().format();
        let mut scan = Scan::new(&format);
        scan.run(&journal)?;
        let copies = scan.finish(&journal, home.size_bytes() / u64::from(journal.block_size()))?;
        Ok(History { journal, format, copies })
    }

    /// The blocks that have a copy, ascending. [`History::read`] tells whether it is whole.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNr> + '_ {
        self.copies.keys().copied()
    }

    /// The newest copy of a block, as it was at home. `None`: there is none, or its checksum is wrong.
    ///
    /// # Errors
    /// Those of the device.
    pub fn read(&self, block: BlockNr) -> Result<Option<Vec<u8>>> {
        let Some(copy) = self.copies.get(&block) else { return Ok(None) };
        let mut bytes = vec![0; self.format.block_size];
        self.journal.read(copy.log_block, &mut bytes)?;
        // Without checksums, only the magic number shows that a later transaction has overwritten a copy in part.
        let is_whole = copy.tag.matches(&self.format, copy.tid, &bytes) && BlockHeader::decode(&bytes).is_none();
        if copy.tag.is_escaped() {
            unescape(&mut bytes);
        }
        Ok(is_whole.then_some(bytes))
    }
}

/// A pass over all blocks of a log.
struct Scan<'a> {
    format: &'a LogFormat,
    copies: Vec<(BlockNr, Copy)>,
    /// The newest transaction that has used a block of the log.
    users: HashMap<u32, Tid>,
    committed: HashSet<u32>,
    revoke_blocks: Vec<(u32, Tid)>,
}

impl<'a> Scan<'a> {
    fn new(format: &'a LogFormat) -> Scan<'a> {
        Scan { format, copies: Vec::new(), users: HashMap::new(), committed: HashSet::new(), revoke_blocks: Vec::new() }
    }

    fn run(&mut self, journal: &JournalFile) -> Result<()> {
        let log = journal.log();
        let mut window = Window::new(journal, WINDOW_BYTES);
        for at in log.first..log.last.min(log.first.saturating_add(BLOCKS_MAX)) {
            let block = window.block(at)?;
            let Some(BlockHeader { kind, tid }) = BlockHeader::decode(block) else { continue };
            match kind {
                BlockKind::Descriptor if self.format.tail_valid(block) => {
                    self.uses(at, tid);
                    let mut place = at;
                    for tag in descriptor_tags(self.format, block).take(log.len() as usize) {
                        place = log.next(place);
                        self.uses(place, tid);
                        if self.copies.len() < COPIES_MAX {
                            self.copies.push((tag.block, Copy { log_block: place, tid, tag }));
                        }
                    }
                }
                BlockKind::Revoke if self.format.tail_valid(block) => {
                    self.uses(at, tid);
                    self.revoke_blocks.push((at, tid));
                }
                BlockKind::Commit => {
                    let sealed = CommitBlock::decode(self.format, block);
                    if sealed.is_some_and(|(_, csum)| csum != CommitCsum::Invalid) {
                        self.uses(at, tid);
                        self.committed.insert(tid.0);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn uses(&mut self, at: u32, tid: Tid) {
        let user = self.users.entry(at).or_insert(tid);
        if user.is_before(tid) {
            *user = tid;
        }
    }

    /// The newest copy of each block that counts. `home_blocks`: the blocks of the home device.
    fn finish(self, journal: &JournalFile, home_blocks: u64) -> Result<BTreeMap<BlockNr, Copy>> {
        let mut newest: BTreeMap<BlockNr, Copy> = BTreeMap::new();
        let mut window = Window::new(journal, WINDOW_BYTES);
        for (block, copy) in &self.copies {
            let is_home = block.0 < home_blocks && (journal.is_external() || !journal.map().contains(*block));
            let is_last = self.users.get(&copy.log_block) == Some(&copy.tid);
            let is_newer = newest.get(block).is_none_or(|other| other.tid.is_before(copy.tid));
            if !is_home || !is_last || !is_newer || !self.committed.contains(&copy.tid.0) {
                continue;
            }
            newest.insert(*block, *copy);
        }
        for (at, tid) in self.revoke_blocks.iter().filter(|(_, tid)| self.committed.contains(&tid.0)) {
            let Ok(records) = revoke_records(self.format, window.block(*at)?) else { continue };
            for block in records {
                // The block was freed, so what came before is no version of what lies there now.
                if newest.get(&block).is_some_and(|copy| copy.tid.is_at_or_before(*tid)) {
                    newest.remove(&block);
                }
            }
        }
        Ok(newest)
    }
}
