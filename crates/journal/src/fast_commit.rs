//! Fast commits: what the running transaction has changed, as a list in an area behind the log, for a caller that
//! waits (Linux: `jbd2_fc_begin_commit`, fs/jbd2/journal.c; `ext4_fc_perform_commit`, fs/ext4/fast_commit.c).
//!
//! Main types: [`Changes`] (the description of a transaction since its last fast commit), [`Area`] (where the next one
//! goes).
//!
//! A fast commit has everything that the transaction has changed since the last one, as a full commit has: it waits for
//! the open handles, and takes the list before new ones start. So a recovery finds a state that existed. The
//! transaction continues, and its full commit logs all of its blocks. With that commit the fast commits ahead of it
//! expire, because they carry its number, and the area begins anew.
//!
//! Changes are described by the file system. A handle whose changes are not all described makes its transaction opaque:
//! then only a full commit makes it durable. That is the default ([`Handle::set_described`](crate::Handle)).
//!
//! Blocks that the transaction has freed remain unavailable until its full commit, so recovery may find them as they
//! were. A fast commit writes nothing home, and moves no tail.
//!
//! The write that makes a fast commit valid is the last one, and comes with a flush: data, and the other blocks of the
//! fast commit, are durable before. The first one of the area becomes valid with one sector, which holds its head.
//! Otherwise a power cut could leave a head without a valid tail, and then the kernel refuses the mount
//! (`ext4_fc_replay_scan`). Readers take a torn later one for the end.
//!
//! Other programs misread a log that wraps around in front of the area, and an area that is full. So neither happens
//! (`turn_at_end`, [`Area::of`]).
//!
//! What it does not do: know which changes can be described.
//!
//! # Locking
//! The committer holds `log` (34), and takes `journal state` (91), buffers and `transaction` (92) one after the other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use extant_base::trace_point;
use extant_block::{AlignedBuf, BioFlags};
use extant_cache::{Buffer, IoWait};
use extant_ondisk::InodeNr;
use extant_ondisk::jbd2::{
    FAST_COMMIT_BYTES_MAX, FastCommitBlocks, FastCommitRecord, FastCommitWriter, IncompatFeatures, JournalSuperBlock,
    Tid,
};

use crate::checkpoint::Keep;
use crate::error::{Error, Result};
use crate::log::{Log, OnDisk};
use crate::state::{Callback, Durability, Journal};

/// The most records that a transaction lists: they take memory, and a fast commit of more would gain little.
const RECORDS_MAX: usize = 1000;

/// When that many full commits have not changed the superblock, it goes home, so that fast commits can be written.
const COMMITS_WITHOUT_SUPERBLOCK: u32 = 4;

/// The part of the journal for fast commits.
#[derive(Debug)]
pub(crate) struct Area {
    /// Its log blocks.
    blocks: Range<u32>,
    /// Where the next fast commit ahead of `tid` goes.
    next: u32,
    tid: Tid,
}

impl Area {
    /// `None`: the journal has none.
    pub(crate) fn of(superblock: &JournalSuperBlock) -> Option<Area> {
        let Range { start, end } = superblock.fast_commit_area();
        // A recovery refuses more records, so the rest of a large area stays unused. So does the last block: behind a
        // valid one there, Linux and e2fsck read past the end of the journal, and fail (`fc_do_one_pass`).
        let most = FAST_COMMIT_BYTES_MAX as u32 / superblock.block_size;
        let (blocks, next) = (start..end.saturating_sub(1).min(start.saturating_add(most)), start);
        let has = superblock.incompat.contains(IncompatFeatures::FAST_COMMIT) && !blocks.is_empty();
        has.then_some(Area { blocks, next, tid: Tid(0) })
    }

    /// Whether the area has fast commits of this mount.
    fn is_used(&self) -> bool {
        self.next > self.blocks.start
    }

    /// Where the next fast commit ahead of `tid` goes; whether it is the first one ahead of it.
    fn place(&self, tid: Tid) -> (u32, bool) {
        if self.tid == tid && self.is_used() { (self.next, false) } else { (self.blocks.start, true) }
    }
}

/// Where an inode lies in its table.
#[derive(Clone)]
pub(crate) struct Slot {
    pub table: Arc<Buffer>,
    pub offset: usize,
    /// The bytes that a fast commit has.
    pub len: usize,
}

/// The changes of a transaction since its last fast commit.
#[derive(Default)]
pub(crate) struct Changes {
    /// Some change since the last full commit has no description.
    opaque: bool,
    /// Without inodes, in the order of the changes.
    records: Vec<FastCommitRecord>,
    inodes: BTreeMap<InodeNr, Slot>,
}

impl Changes {
    pub(crate) fn add(&mut self, record: FastCommitRecord) {
        if self.opaque {
            return;
        }
        if let (
            Some(FastCommitRecord::AddRange { ino, extent: last }),
            FastCommitRecord::AddRange { ino: of, extent: next },
        ) = (self.records.last_mut(), &record)
        {
            // A file that grows bit by bit.
            let follows = *ino == *of
                && last.unwritten == next.unwritten
                && last.lblk.0 + last.len == next.lblk.0
                && last.pblk.0 + u64::from(last.len) == next.pblk.0;
            if follows {
                last.len += next.len;
                return;
            }
        }
        self.records.push(record);
        self.bound();
    }

    pub(crate) fn add_inode(&mut self, ino: InodeNr, slot: Slot) {
        if !self.opaque {
            self.inodes.insert(ino, slot);
            self.bound();
        }
    }

    pub(crate) fn set_opaque(&mut self) {
        *self = Changes { opaque: true, ..Changes::default() };
    }

    fn bound(&mut self) {
        if self.records.len() + self.inodes.len() > RECORDS_MAX {
            self.set_opaque();
        }
    }

    fn is_empty(&self) -> bool {
        !self.opaque && self.records.is_empty() && self.inodes.is_empty()
    }

    /// Whether replay may begin with the inode's final record: it has the final count of links, and the names that
    /// follow must not bring that to 0, because replay would free the inode.
    fn stays_linked(&self, ino: InodeNr) -> bool {
        let mut links = 1;
        self.records.iter().all(|record| {
            match record {
                FastCommitRecord::Link(name) if name.ino == ino => links += 1,
                FastCommitRecord::Unlink(name) if name.ino == ino => links -= 1,
                _ => {}
            }
            links > 0
        })
    }

    /// Lays the changes out. `None` if they do not fit into `blocks_max` blocks, or one of them is not complete.
    ///
    /// `is_first`: of the area. Then an inode comes first: e2fsck 1.47.0 replays the log behind the back of its copy of
    /// the table block that it read last, the one with the journal's inode, and drops that copy only when it reads
    /// another. Until then it would see a directory there as it was before the log.
    fn lay_out(&self, mut writer: FastCommitWriter, is_first: bool, blocks_max: usize) -> Option<FastCommitBlocks> {
        let push_inode = |writer: &mut FastCommitWriter, ino: InodeNr, slot: &Slot| {
            slot.table.read(|bytes| writer.push_inode(ino, &bytes[slot.offset..slot.offset + slot.len]))
        };
        if is_first && !matches!(self.records.first(), Some(FastCommitRecord::Create(_))) {
            let (ino, slot) = self.inodes.iter().find(|(ino, _)| self.stays_linked(**ino))?;
            if !push_inode(&mut writer, *ino, slot) {
                return None;
            }
        }
        for record in &self.records {
            // Replay gives a name to an inode that it has already. It sets its link count to 1 then, so all inodes
            // follow at the end.
            if let FastCommitRecord::Create(name) = record
                && !push_inode(&mut writer, name.ino, self.inodes.get(&name.ino)?)
            {
                return None;
            }
            if !writer.push(record) {
                return None;
            }
        }
        for (ino, slot) in &self.inodes {
            if !push_inode(&mut writer, *ino, slot) {
                return None;
            }
        }
        (writer.blocks() <= blocks_max).then(|| writer.finish())
    }
}

/// The running transaction, as a fast commit finds it.
enum Drawn {
    /// It needs a full commit.
    Opaque,
    /// All of it is in earlier fast commits, if there are changes at all.
    Nothing,
    Changes(FastCommitBlocks),
}

impl Journal {
    /// Writes a fast commit if that is enough for the callers that wait, and possible. Returns their callbacks. `None`:
    /// a full commit is needed. `own`: the calling thread waits, too.
    pub(crate) fn commit_fast_to(&self, log: &mut Log, how: Durability, own: bool) -> Result<Option<Vec<Callback>>> {
        if how == Durability::Full || log.disk.as_ref().is_none_or(|disk| disk.area.is_none()) {
            return Ok(None);
        }
        if log.has_superblock() {
            // e2fsck 1.47.0 writes parts of its own copy over the one from the log, with a wrong checksum.
            let quiet =
                log.superblock_in.is_some_and(|tid| log.next_tid().is_after(tid.plus(COMMITS_WITHOUT_SUPERBLOCK)));
            if quiet {
                self.free_up(log, Keep::NOTHING)?;
            } else {
                self.stats.fast_refused.inc();
                return Ok(None);
            }
        }
        let Some(disk) = log.disk.as_mut() else { return Ok(None) };
        let start_ns = self.options.clock.now_ns();
        let (tid, drawn, waiters) = self.draw(disk)?;
        let written = match drawn {
            Drawn::Opaque => {
                self.stats.fast_refused.inc();
                return Ok(None);
            }
            Drawn::Nothing => {
                self.stats.flushes.inc();
                self.dev.flush().map_err(Error::from)
            }
            Drawn::Changes(blocks) => self.write_fast(disk, &blocks, tid),
        };
        if let Err(e) = written {
            self.requeue_waiters(waiters);
            return Err(e);
        }
        let now_ns = self.options.clock.now_ns();
        self.state.lock().note_answer(waiters.len() + usize::from(own), start_ns, now_ns);
        Ok(Some(waiters))
    }

    /// Waits for the open handles, and takes the changes of the running transaction, with the callbacks of those that
    /// wait for them.
    fn draw(&self, disk: &OnDisk) -> Result<(Tid, Drawn, Vec<Callback>)> {
        let mut s = self.state.lock();
        let txn = s.running.clone();
        let opaque = (txn.tid, Drawn::Opaque, Vec::new());
        // A replay finds fast commits only if the superblock says that the log is live.
        if disk.superblock.start == 0 || txn.inner.lock().changes.opaque {
            return Ok(opaque);
        }
        s.locked = true;
        self.shards.close(&mut s);
        while s.updates > 0 && s.aborted.is_none() {
            self.drained.wait(&mut s);
        }
        if let Some(cause) = &s.aborted {
            return Err(cause.as_aborted());
        }
        let buffers = s.blocks();
        drop(s);
        // No handle is open and none can start, so neither the list nor the inodes in their tables change.
        let changes = std::mem::take(&mut txn.inner.lock().changes);
        let drawn = if changes.is_empty() {
            Drawn::Nothing
        } else {
            self.lay_out(disk, txn.tid, &changes, buffers).map_or(Drawn::Opaque, Drawn::Changes)
        };
        let is_opaque = matches!(drawn, Drawn::Opaque);
        if is_opaque {
            txn.inner.lock().changes.set_opaque();
        }
        let mut s = self.state.lock();
        if let Some(cause) = &s.aborted {
            return Err(cause.as_aborted());
        }
        s.locked = false;
        self.room.notify_all();
        if is_opaque {
            return Ok(opaque);
        }
        let mut waiters = s.take_waiters(|w| w.how == Durability::Fast && w.tid.is_at_or_before(txn.tid));
        // These came before the flush.
        waiters.append(&mut s.flush_waiters);
        Ok((txn.tid, drawn, waiters))
    }

    /// `None` if the changes cannot be laid out, or a full commit costs no more. `buffers`: the blocks that one would
    /// log.
    fn lay_out(&self, disk: &OnDisk, tid: Tid, changes: &Changes, buffers: usize) -> Option<FastCommitBlocks> {
        let area = disk.area.as_ref().filter(|_| !changes.opaque)?;
        let (at, is_first) = area.place(tid);
        // With the descriptor and the commit block.
        let full = buffers + 2;
        let room = (area.blocks.end - at) as usize;
        changes.lay_out(FastCommitWriter::new(disk.format.block_size, tid, is_first), is_first, room.min(full))
    }

    /// A full commit has just made the fast commits ahead of it obsolete: removes their head. Other programs know that
    /// by the head's number. But e2fsck 1.47.0 takes it for an error, and drops the whole log. No flush is needed: a
    /// cut before the next one leaves a log that Extant and the kernel replay.
    pub(crate) fn end_fast_commits(&self, disk: &mut OnDisk) -> Result<()> {
        let Some(area) = disk.area.as_ref().filter(|area| area.is_used()) else { return Ok(()) };
        let at = disk.offset(area.blocks.start);
        let zeros = AlignedBuf::zeroed(disk.sector());
        disk.device.write_at(at, &[&zeros], BioFlags::META | BioFlags::SYNC)?;
        if let Some(area) = &mut disk.area {
            area.next = area.blocks.start;
        }
        Ok(())
    }

    /// If the next `needed` blocks of a log in front of an area would reach its end, writes all of the log home and
    /// continues at its start. So no log that a replay finds wraps around there: e2fsck up to 1.47.4 looks for its rest
    /// in the area (`wrap`, e2fsck/recovery.c), and drops the transactions that it does not find. The last block stays
    /// unused, so that the end of a log is never the end of the range.
    pub(crate) fn turn_at_end(&self, log: &mut Log, needed: u32) -> Result<()> {
        let reaches_end = |disk: &OnDisk| disk.area.is_some() && disk.head.saturating_add(needed) >= disk.range.last;
        if !log.disk.as_ref().is_some_and(reaches_end) {
            return Ok(());
        }
        self.free_up(log, Keep::NOTHING)?;
        let next = log.next_tid();
        let Some(disk) = log.disk.as_mut() else { return Ok(()) };
        disk.head = disk.range.first;
        if disk.superblock.start != 0 {
            // The PREFLUSH of the commit block makes this durable. Until then, a replay finds a live log without a
            // transaction at either place, and the fast commits.
            (disk.superblock.start, disk.superblock.sequence) = (disk.head, next);
            disk.write_superblock(BioFlags::empty())?;
        }
        Ok(())
    }

    fn write_fast(&self, disk: &mut OnDisk, blocks: &FastCommitBlocks, tid: Tid) -> Result<()> {
        let size = disk.format.block_size;
        let Some(area) = &disk.area else { return Ok(()) };
        let (start, is_first) = area.place(tid);
        let images: Vec<Arc<AlignedBuf>> =
            blocks.bytes.chunks(size).map(|b| Arc::new(AlignedBuf::from_slice(b))).collect();
        let count = images.len() as u32;
        if disk.external {
            // The PREFLUSH below is for the log's device.
            self.dev.flush()?;
        }
        // The part that is written last.
        let sector = disk.sector();
        let (last, part) = if is_first { (0, 0..sector) } else { (count - 1, 0..size) };
        let wait = IoWait::new();
        let others = (0..count).filter(|i| *i != last);
        let placed = others.map(|i| (disk.offset(start + i), images[i as usize].clone())).collect();
        self.submit(&*disk.device, placed, BioFlags::META | BioFlags::SYNC, &wait).unplug_and_wait();
        wait.wait()?;
        let (at, image) = (disk.offset(start + last), &images[last as usize]);
        if part.end < size && blocks.used > part.end {
            let rest = &image[part.end..];
            disk.device.write_at(at + part.end as u64, &[rest], BioFlags::META | BioFlags::SYNC)?;
        }
        let flags = BioFlags::META | BioFlags::SYNC | BioFlags::PREFLUSH | BioFlags::FUA;
        disk.device.write_at(at, &[&image[part]], flags)?;
        if let Some(area) = &mut disk.area {
            (area.next, area.tid) = (start + count, tid);
        }
        self.stats.fast_commits.inc();
        self.stats.fast_blocks.add(u64::from(count));
        trace_point!(ext4_fc_commit_stop, tid = tid.0, blocks = count);
        Ok(())
    }
}
