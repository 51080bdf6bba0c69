//! Checkpoints: writing committed blocks home, so that the log can be used again (Linux: fs/jbd2/checkpoint.c).
//!
//! Checkpoints proceed in small steps next to the commits, which are only delayed by the writes. When half of the log
//! is in use, the blocks of its oldest transactions are submitted for writing home, and no thread waits. The next
//! commit waits for those still in flight, and its flush makes them durable. The commit after it writes the superblock
//! with the new tail together with its own blocks; after its flush, that is durable and the space is free. A block that
//! has been logged again in the meantime is not written home, because its newer copy is after the new tail. So blocks
//! that change all the time (bitmaps, descriptors) are rarely written home. (In Linux, a handle that finds the log full
//! frees it, waits for all of it, and flushes.)
//!
//! If that is too late (large transactions, a small log), the thread that needs the space frees it and waits.
//!
//! The frozen bytes are written home. So there is no need to wait for a block that the running transaction is changing,
//! and no uncommitted bytes are written home. Only one step is in flight at a time, so of two copies of a block, the
//! older one is never written last. Also, the step has ended before the blocks that the next transaction freed can be
//! reused.

use std::sync::Arc;

use extant_base::trace_point;
use extant_block::queue::Plug;
use extant_block::{AlignedBuf, Bio, BioFlags, BioVec, BlockDevice, Completion};
use extant_cache::IoWait;
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::Tid;

use crate::error::Result;
use crate::log::{Homeward, Log};
use crate::state::Journal;

/// The bounds of a checkpoint: the number of log blocks in use, and of blocks that are not home.
#[derive(Clone, Copy)]
pub(crate) struct Keep {
    used: u32,
    logged: u64,
}

impl Keep {
    /// An empty log.
    pub(crate) const NOTHING: Keep = Keep { used: 0, logged: 0 };

    fn holds(self, used: u32, logged: u64) -> bool {
        used <= self.used && logged <= self.logged
    }

    /// The bounds reduced by one part in `parts`.
    fn less(self, parts: u32) -> Keep {
        Keep { used: self.used - self.used / parts, logged: self.logged - self.logged / u64::from(parts) }
    }
}

impl Journal {
    /// The bound above which blocks are written home; `None` without a log.
    fn limit(&self, log: &Log) -> Option<Keep> {
        let half = log.capacity()? / 2;
        let used = self.options.checkpoint_blocks.unwrap_or(half).min(half);
        Some(Keep { used, logged: self.logged_max() * 3 / 4 })
    }

    /// The maximum number of blocks that are not home, except those of the last commit.
    fn logged_max(&self) -> u64 {
        self.options.pinned_bytes_max / 2 / u64::from(self.cache.block_size())
    }

    /// Whether [`Journal::relieve`] has work to do.
    pub(crate) fn is_crowded(&self, log: &Log) -> bool {
        let begin = log.homeward.is_none() && self.limit(log).is_some_and(|l| !l.holds(log.used(), log.logged_len()));
        begin || log.logged_len() > self.logged_max()
    }

    /// Writes the blocks beyond the limit home. Waits only if there is not enough memory for the next blocks.
    pub(crate) fn relieve(&self, log: &mut Log) -> Result<()> {
        let Some(limit) = self.limit(log) else { return Ok(()) };
        if log.logged_len() > self.logged_max() {
            self.free_up(log, limit.less(2))
        } else {
            if log.homeward.is_none() {
                self.send_home(log, limit.less(16))?;
            }
            Ok(())
        }
    }

    /// Makes room for `needed` log blocks.
    pub(crate) fn make_room_for(&self, log: &mut Log, needed: u32) -> Result<()> {
        for keep in [self.limit(log).map(|l| l.less(2)), Some(Keep::NOTHING)].into_iter().flatten() {
            if log.disk.as_ref().is_some_and(|d| d.free() < needed) {
                self.free_up(log, keep)?;
            }
        }
        Ok(())
    }

    /// From the call until the end of the next [`Journal::checkpoint`], this block is written home after all other
    /// logged blocks, and after a flush. So a program that reads it there before it replays the log finds the blocks
    /// that it refers to.
    pub fn write_home_last(&self, block: BlockNr) {
        self.log.lock().goes_last = Some(block);
    }

    /// Commits the running transaction and writes home everything that is logged. When this returns, all changes from
    /// before the call are durable in their home places. This is for changes that other programs read there. The caller
    /// must not have an open handle.
    pub fn checkpoint(&self) -> Result<()> {
        self.commit_wait(Some(self.running_tid()))?;
        let mut log = self.log.lock();
        let home = self.free_up(&mut log, Keep::NOTHING);
        log.goes_last = None;
        self.let_go(log, home.as_ref().err());
        home.inspect_err(|e| self.tell_aborted(e))
    }

    /// Writes home, in block order, the blocks of the oldest transactions that no later one logged again, until at most
    /// `keep` remains. Waits for nothing, except for a block that is written last. No step may be in flight.
    ///
    /// Neighbours of these blocks are included if they are old as well, so that they share a request and need not be
    /// written later. Tables and directories grow block by block, so each of their blocks became old at a different
    /// time.
    fn send_home(&self, log: &mut Log, keep: Keep) -> Result<()> {
        // A newer copy of a block that the last one refers to may be in any transaction.
        let keep = if log.goes_last.is_some() { Keep::NOTHING } else { keep };
        let (mut used, mut logged) = (log.used(), log.logged_len());
        let (mut going, mut last) = (Vec::<BlockNr>::new(), None);
        for live in &log.live {
            if keep.holds(used, logged) {
                break;
            }
            let before = going.len();
            going.extend(live.blocks.iter().filter(|b| log.logged.get(b).is_some_and(|l| l.tid == live.tid)));
            logged -= (going.len() - before) as u64;
            used -= live.len;
            last = Some(live.tid);
        }
        let Some(last) = last else { return Ok(()) };
        let old = log.old().unwrap_or(last);
        let bs = u64::from(self.cache.block_size());
        let mut blocks = Vec::with_capacity(going.len());
        for block in going {
            let mut send = |nr: u64, upto: Tid| {
                let logged = log.logged.get_mut(&BlockNr(nr)).filter(|l| !l.sent && l.tid.is_at_or_before(upto))?;
                logged.sent = true;
                blocks.push((nr * bs, logged.data.clone()));
                Some(())
            };
            if send(block.0, last).is_some() {
                let _end = (block.0 + 1..).try_for_each(|nr| send(nr, old));
                let _end = (0..block.0).rev().try_for_each(|nr| send(nr, old));
            }
        }
        blocks.sort_unstable_by_key(|(at, _)| *at);
        self.stats.checkpoints.inc();
        self.stats.checkpoint_blocks.add(blocks.len() as u64);
        trace_point!(jbd2_checkpoint, blocks = blocks.len(), last = last.0);
        let place = log.goes_last.and_then(|block| blocks.iter().position(|(at, _)| *at == block.0 * bs));
        let behind = place.map(|at| blocks.remove(at));
        self.submit(&*self.dev, blocks, BioFlags::META, &self.home_io).unplug();
        if let Some(behind) = behind {
            self.home_io.wait()?;
            self.dev.flush()?;
            self.submit(&*self.dev, vec![behind], BioFlags::META, &self.home_io).unplug();
        }
        log.homeward = Some(Homeward { last, durable: false });
        Ok(())
    }

    /// Completes the step in flight, writes home until at most `keep` remains, and waits for all of it. Then the space
    /// in the log may be used again.
    pub(crate) fn free_up(&self, log: &mut Log, keep: Keep) -> Result<()> {
        self.bring_home(log, keep, true)
    }

    /// Completes the step in flight and writes everything home, durably. The log's superblock does not change, so no
    /// space in the log may be used again until the caller has marked it empty.
    pub(crate) fn empty(&self, log: &mut Log) -> Result<()> {
        self.bring_home(log, Keep::NOTHING, false)
    }

    fn bring_home(&self, log: &mut Log, keep: Keep, reuse: bool) -> Result<()> {
        loop {
            if let Some(homeward) = log.homeward.take() {
                self.stats.checkpoints_waited.inc();
                self.home_io.wait()?;
                if !homeward.durable {
                    self.dev.flush()?;
                }
                // The home blocks are durable. Before the space in the log is used again, the superblock must say so.
                log.move_tail(homeward.last);
                if let (Some(disk), true) = (&log.disk, reuse) {
                    disk.write_superblock(BioFlags::FUA)?;
                }
                self.retire(log, homeward.last);
            }
            if keep.holds(log.used(), log.logged_len()) {
                return Ok(());
            }
            self.send_home(log, keep)?;
        }
    }

    /// Removes the transactions up to `last`, which are before the durable tail.
    pub(crate) fn retire(&self, log: &mut Log, last: Tid) {
        while log.live.front().is_some_and(|live| live.tid.is_at_or_before(last)) {
            let Some(live) = log.live.pop_front() else { return };
            if let Some(disk) = &mut log.disk {
                disk.used -= live.len;
            }
            for block in live.blocks {
                if log.logged.get(&block).is_none_or(|l| l.tid != live.tid) {
                    continue; // revoked, or logged again
                }
                let Some(logged) = log.logged.remove(&block) else { continue };
                let mut inner = logged.buffer.lock();
                // If a newer transaction has logged the block, it stays logged.
                if inner.state().logged == Some(live.tid.0) {
                    logged.buffer.claim(&mut inner, |state| state.logged = None);
                }
            }
        }
    }

    /// Writes blocks home and waits.
    pub(crate) fn write_blocks(&self, blocks: Vec<(BlockNr, Arc<AlignedBuf>)>) -> Result<()> {
        let bs = u64::from(self.cache.block_size());
        let blocks = blocks.into_iter().map(|(block, data)| (block.0 * bs, data)).collect();
        let wait = IoWait::new();
        self.submit(&*self.dev, blocks, BioFlags::META, &wait).unplug_and_wait();
        Ok(wait.wait()?)
    }

    /// Submits whole buffers, each to its byte offset on `device`, with a plug, so that adjacent blocks share a
    /// request. The last ones are still in the returned plug.
    pub(crate) fn submit<'d>(
        &self,
        device: &'d dyn BlockDevice,
        bufs: Vec<(u64, Arc<AlignedBuf>)>,
        flags: BioFlags,
        wait: &Arc<IoWait>,
    ) -> Plug<'d> {
        let mut plug = Plug::new(device);
        for (offset, buf) in bufs {
            let token = wait.begin();
            let done = Box::new(move |c: Completion| token.done(c.result));
            let len = buf.len();
            plug.submit(Bio::write(offset, vec![BioVec { buf, offset: 0, len }], flags, done));
        }
        plug
    }
}
