//! The log on its device: the places of its blocks, its live transactions, its superblock.
//!
//! The device is that of the file system, or one that contains only the journal.
//!
//! # Locking
//! The journal's `log` lock protects everything here.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use extant_block::{AlignedBuf, BioFlags, BlockDevice};
use extant_cache::Buffer;
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{IncompatFeatures, JournalSuperBlock, LogFormat, LogRange, Tid};
use extant_recovery::JournalMap;

use crate::error::Result;
use crate::fast_commit::Area;

/// The place of a log: its superblock as read after replay, and the physical block of each of its blocks.
#[derive(Clone)]
pub struct LogLocation {
    pub superblock: JournalSuperBlock,
    pub map: Arc<JournalMap>,
    /// The device of an external journal; `None` if the log is on the file system's device.
    pub external: Option<ExternalLog>,
}

/// A log on its own device (Linux: `j_dev` is not `j_fs_dev`).
#[derive(Clone)]
pub struct ExternalLog {
    pub device: Arc<dyn BlockDevice>,
    /// The journal block that contains the superblock.
    pub super_at: u32,
}

/// The newest committed copy of a block that is not home yet.
pub(crate) struct Logged {
    pub tid: Tid,
    pub data: Arc<AlignedBuf>,
    pub buffer: Arc<Buffer>,
    /// The copy is home, or is being written home.
    pub sent: bool,
}

/// A committed transaction that a replay would include.
pub(crate) struct Live {
    pub tid: Tid,
    /// The first log block, and the number of log blocks.
    pub start: u32,
    pub len: u32,
    pub blocks: Vec<BlockNr>,
}

/// Blocks that are being written home, and how far the tail moves when they are home.
pub(crate) struct Homeward {
    /// The newest transaction of which then all blocks are home.
    pub last: Tid,
    /// A flush began after they had been written, and succeeded.
    pub durable: bool,
}

pub(crate) struct OnDisk {
    /// The device of the log.
    pub device: Arc<dyn BlockDevice>,
    /// The device is not that of the file system. Then a flush of one of them does not affect writes to the other.
    pub external: bool,
    super_at: u32,
    pub superblock: JournalSuperBlock,
    pub map: Arc<JournalMap>,
    pub format: LogFormat,
    pub range: LogRange,
    /// The log block where the next transaction begins.
    pub head: u32,
    /// The number of log blocks in use, from the oldest live transaction to the head.
    pub used: u32,
    /// The seconds of the newest commit; they never decrease.
    pub last_commit_sec: u64,
    /// Where fast commits are written, on a mount that writes them.
    pub area: Option<Area>,
}

/// The log of a journal. A mount without a log has no `disk`.
pub(crate) struct Log {
    pub disk: Option<OnDisk>,
    pub logged: BTreeMap<BlockNr, Logged>,
    /// The live transactions from the tail to the head.
    pub live: VecDeque<Live>,
    pub homeward: Option<Homeward>,
    /// The block that is written home after all others.
    pub goes_last: Option<BlockNr>,
    /// The newest transaction that has a copy of the file system's superblock.
    pub superblock_in: Option<Tid>,
    next_tid: Tid,
    /// The superblock on disk records an abort for the next mount.
    errno_noted: bool,
}

impl Log {
    /// `home`: the file system's device. `fast_commits`: they are to be written.
    pub(crate) fn open(location: Option<LogLocation>, home: &Arc<dyn BlockDevice>, fast_commits: bool) -> Result<Log> {
        let Some(LogLocation { mut superblock, map, external }) = location else {
            return Ok(Log::new(None, Tid(1)));
        };
        let is_external = external.is_some();
        let ExternalLog { device, super_at } =
            external.unwrap_or_else(|| ExternalLog { device: home.clone(), super_at: 0 });
        // The number is one above that of a clean close, as in the kernel, so that a stale commit block can never
        // match.
        let next_tid = superblock.sequence.next();
        if superblock.v2 {
            // This changes the layout of the log, so it is done only now, while the log is empty.
            superblock.incompat.set(IncompatFeatures::FAST_COMMIT, fast_commits);
            superblock.incompat.insert(IncompatFeatures::REVOKE);
        }
        let area = Area::of(&superblock);
        if area.is_none() {
            superblock.incompat.remove(IncompatFeatures::FAST_COMMIT);
        }
        let (format, range) = (superblock.format(), superblock.log());
        let head = if range.contains(superblock.head) { superblock.head } else { range.first };
        superblock.sequence = next_tid;
        let disk = OnDisk {
            device,
            external: is_external,
            super_at,
            superblock,
            map,
            format,
            range,
            head,
            used: 0,
            last_commit_sec: 0,
            area,
        };
        Ok(Log::new(Some(disk), next_tid))
    }

    fn new(disk: Option<OnDisk>, next_tid: Tid) -> Log {
        let (logged, live) = (BTreeMap::new(), VecDeque::new());
        Log { disk, logged, live, homeward: None, goes_last: None, superblock_in: None, next_tid, errno_noted: false }
    }

    pub(crate) fn next_tid(&self) -> Tid {
        self.next_tid
    }

    /// The number of blocks in the ring; `None` without a log.
    pub(crate) fn capacity(&self) -> Option<u32> {
        self.disk.as_ref().map(|d| d.range.len())
    }

    pub(crate) fn logged_len(&self) -> u64 {
        self.logged.len() as u64
    }

    /// Whether a replay would find a copy of the file system's superblock.
    pub(crate) fn has_superblock(&self) -> bool {
        let newest = self.superblock_in;
        newest.is_some_and(|newest| self.live.front().is_some_and(|oldest| oldest.tid.is_at_or_before(newest)))
    }

    /// Log blocks in use.
    pub(crate) fn used(&self) -> u32 {
        self.disk.as_ref().map_or(0, |d| d.used)
    }

    /// The newest transaction in the older three quarters of the log blocks in use.
    pub(crate) fn old(&self) -> Option<Tid> {
        let mut room = self.used() / 4 * 3;
        let mut old = None;
        for live in &self.live {
            let Some(left) = room.checked_sub(live.len) else { break };
            (room, old) = (left, Some(live.tid));
        }
        old
    }

    /// Changes the superblock in memory so that transactions up to `last` need no replay.
    pub(crate) fn move_tail(&mut self, last: Tid) {
        let Some(d) = &mut self.disk else { return };
        let first = self.live.iter().find(|live| live.tid.is_after(last));
        (d.superblock.start, d.superblock.sequence) = first.map_or((d.head, self.next_tid), |l| (l.start, l.tid));
    }

    /// Records the error of an abort for the next mount, if possible.
    pub(crate) fn note_errno(&mut self) {
        if std::mem::replace(&mut self.errno_noted, true) {
            return;
        }
        if let Some(d) = &mut self.disk {
            d.superblock.errno = -5; // EIO
            let _ = d.write_superblock(BioFlags::FUA);
        }
    }

    pub(crate) fn errno_noted(&self) -> bool {
        self.errno_noted
    }

    /// Marks the log as empty at a clean close, with a number above all used ones. The home blocks are durable.
    pub(crate) fn mark_empty(&mut self) -> Result<()> {
        if let Some(d) = &mut self.disk {
            d.superblock.start = 0;
            d.superblock.sequence = self.next_tid;
            d.superblock.head = d.head;
            // As the kernel (`jbd2_mark_journal_empty`): programs that know no fast commits can use an empty journal.
            d.superblock.incompat.remove(IncompatFeatures::FAST_COMMIT);
            let written = d.write_superblock(BioFlags::PREFLUSH | BioFlags::FUA);
            d.superblock.incompat.set(IncompatFeatures::FAST_COMMIT, d.area.is_some());
            written?;
        }
        Ok(())
    }

    pub(crate) fn took_tid(&mut self, tid: Tid) {
        self.next_tid = tid.next();
    }
}

impl OnDisk {
    pub(crate) fn free(&self) -> u32 {
        // The head must never reach the tail, because an exactly full log looks like an empty one.
        self.range.len() - self.used - 1
    }

    /// Bytes that a disk writes whole or not at all.
    pub(crate) fn sector(&self) -> usize {
        (self.device.limits().logical_block as usize).clamp(512, self.format.block_size)
    }

    /// The byte offset on the log's device of log block `block`.
    pub(crate) fn offset(&self, block: u32) -> u64 {
        let at = self.map.lookup(block).map(|(at, _)| at);
        at.expect("the map covers the whole journal: checked at open").0 * self.format.block_size as u64
    }

    /// The sector of the journal superblock with its fields (or the whole block on devices with sectors larger than 1
    /// KiB).
    pub(crate) fn superblock_image(&self) -> AlignedBuf {
        let bytes = self.superblock.encode();
        let unit = (self.device.limits().logical_block as usize).max(512);
        let mut image = AlignedBuf::zeroed(if unit <= bytes.len() { unit } else { self.format.block_size });
        let n = image.len().min(bytes.len());
        image[..n].copy_from_slice(&bytes[..n]);
        image
    }

    /// The byte offset of the superblock on the log's device.
    pub(crate) fn superblock_offset(&self) -> u64 {
        self.offset(self.super_at)
    }

    /// Writes the superblock and waits.
    pub(crate) fn write_superblock(&self, flags: BioFlags) -> Result<()> {
        let image = self.superblock_image();
        Ok(self.device.write_at(self.superblock_offset(), &[&image], flags | BioFlags::META | BioFlags::SYNC)?)
    }
}
