//! What is written together: dirty blocks are taken, placed and held back, and sent so that neighbours on the device
//! meet in one request.
//!
//! Main types: [`WritebackPlug`], and [`Turn`], what the background has still to write of one inode.
//!
//! What an fsync waits for and is small is sent at once. All else is bulk data, and passes the mount's
//! [`extant_cache::BulkWindow`]: only the background waits there, with no lock held.
//!
//! # Locking
//! See [`super`].

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::Mutex;
use extant_base::sync::Waiter;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_block::{Bio, BioFlags, Completion};
use extant_cache::{DirtyRun, Sent, WritebackToken};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::Request;
use super::batch::{Batch, FAILED_CLASS, Later, Piece, Then, WritebackReason};
use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::map::es::EsState;
use crate::ops::credits;
use crate::ops::mapping::Want;
use crate::ops::no_space;
use crate::reserve::Caller;
use crate::writeback::asks::WritebackGuard;
use crate::writeback::together::Together;

/// Bytes taken from the address space at once, at most: where a device is slow, less.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// A large file's turn among those that are written in the background.
const TURN_BYTES: u64 = 4 << 20;
/// What an fsync has to write in all, not to be bulk data that others wait for.
const SMALL_SYNC_BYTES: u64 = 256 << 10;
/// An inode that is not on its way, and what is in the way.
pub(crate) type Left<'f> = (&'f Arc<Inode>, Later);

/// What a plug holds at most before it is sent: requests that wait are data that no fsync sees, and memory.
const PLUG_INODES_MAX: usize = 1024;
const PLUG_BIOS_MAX: usize = 1024;

/// What is left to write of an inode, in turns.
struct Turn<'i> {
    inode: &'i Arc<Inode>,
    /// The block to go on with.
    from: u64,
    /// Bytes: what was dirty when the first turn began. What is dirtied since is left for another round.
    left: u64,
    after: After,
    /// The next block's earlier write is on its way.
    blocked: bool,
}

/// The logical block that would follow what was placed last, and the last block of that.
type After = Option<(u32, BlockNr)>;

/// What came of an attempt to take dirty blocks.
enum Got {
    Nothing,
    /// The first dirty block's earlier write is on its way.
    Blocked,
    /// Up to block `next`; `more`: there may be more.
    Blocks {
        next: u64,
        bytes: u64,
        more: bool,
    },
}

/// Inodes that are written together. Their requests are held back, so that neighbours on the device meet in one, also
/// those of different inodes. Dropping it sends what it holds.
pub(crate) struct WritebackPlug<'f> {
    fs: &'f Filesystem,
    why: WritebackReason,
    /// Some of what it holds is not for an fsync.
    background: bool,
    bios: Vec<Bio>,
    /// Batches whose requests it may hold; this is their sender.
    batches: Vec<Arc<Batch>>,
    bytes: u64,
    /// Who wrote waits for the last requests himself, and retires them, so that no other thread has to be woken.
    waits: bool,
    /// Who writes goes on instead of waiting: not for an inode, nor for space, nor for a handle.
    impatient: bool,
    /// It has sent something.
    has_sent: bool,
    /// Inodes whose dirty data has been taken, and whose times are still to be looked at.
    inodes: Vec<Arc<Inode>>,
    together: Together<'f>,
}

impl<'f> WritebackPlug<'f> {
    /// The caller waits for what he wrote in any case.
    pub(crate) fn waiting(mut self) -> Self {
        self.waits = true;
        self
    }

    /// The caller waits for nothing ([`WritebackPlug::try_write_pages`]), unless there is nobody to do it for him.
    pub(crate) fn impatient(mut self) -> Self {
        self.impatient = self.fs.options.threads;
        self
    }

    /// [`WritebackPlug::try_write_pages`] of all of these. Returns those that are on their way now, and those that are
    /// not, with what is in the way.
    pub(crate) fn try_write_all(&mut self, inodes: &'f [Arc<Inode>]) -> (Vec<&'f Arc<Inode>>, Vec<Left<'f>>) {
        let (mut begun, mut left) = (Vec::new(), Vec::new());
        for (at, inode) in inodes.iter().enumerate() {
            self.together.expect(&inodes[at + 1..]);
            match self.try_write_pages(inode) {
                Ok(()) => begun.push(inode),
                Err(later) => left.push((inode, later)),
            }
        }
        self.together.expect(&[]);
        (begun, left)
    }

    /// Why the next ones are written.
    pub(crate) fn because(&mut self, why: WritebackReason) {
        self.why = why;
    }

    /// Starts writing everything dirty of the inode. Errors are recorded with it, for its fsync.
    pub(crate) fn write_pages(&mut self, inode: &Arc<Inode>) {
        debug_assert!(!self.impatient);
        if self.try_write_pages(inode).is_err() {
            self.send();
            let _wb = inode.wb.lock();
            let _ = self.write_pages_locked(inode); // all: it waits
        }
    }

    /// The same, unless somebody else is at it; if the plug is impatient, what can be done without waiting.
    pub(crate) fn try_write_pages(&mut self, inode: &Arc<Inode>) -> std::result::Result<(), Later> {
        let written = {
            let _wb = inode.wb.try_lock().ok_or(Later::Locked)?;
            self.write_pages_locked(inode)
        };
        if self.inodes.len() >= PLUG_INODES_MAX {
            self.send();
        }
        written
    }

    fn write_pages_locked(&mut self, inode: &Arc<Inode>) -> std::result::Result<(), Later> {
        let written = self.take_and_write(inode, 0, u64::MAX);
        self.inodes.push(inode.clone());
        written
    }

    /// Starts writing the blocks of `[from, to)` that are dirty now; what is dirtied behind the write is left for
    /// another call. Waits for a block whose earlier write is on its way. The caller holds the inode's writeback lock.
    pub(crate) fn write_dirty(&mut self, inode: &Arc<Inode>, from: u64, to: u64) {
        debug_assert!(!self.impatient);
        let _ = self.take_and_write(inode, from, to); // all: it waits
    }

    fn take_and_write(&mut self, inode: &Arc<Inode>, mut from: u64, to: u64) -> std::result::Result<(), Later> {
        let mut after = None;
        loop {
            match self.take_batch(inode, from, to, u64::MAX, &mut after)? {
                Got::Nothing => break,
                Got::Blocked if self.impatient => return Err(Later::OnItsWay(inode.writes.epoch())),
                Got::Blocked => {
                    self.send();
                    inode.writes.wait();
                }
                Got::Blocks { next, more, .. } => {
                    if self.is_full() {
                        self.send();
                    }
                    if !more {
                        break; // that was all; what is dirty now is newer
                    }
                    from = next;
                }
            }
        }
        Ok(())
    }

    /// Takes dirty blocks of `[from, to)`, at most a batch and at most `most` bytes, and holds their requests back. The
    /// caller holds the inode's writeback lock.
    fn take_batch(
        &mut self,
        inode: &Arc<Inode>,
        from: u64,
        to: u64,
        most: u64,
        after: &mut After,
    ) -> std::result::Result<Got, Later> {
        if inode.pages.dirty_bytes() == 0 {
            return Ok(Got::Nothing);
        }
        let bits = self.fs.geo.block_bits;
        let max = (most.min(self.fs.batch_bytes()) >> bits).max(1);
        // Opened before anything is taken: at no moment is a block neither dirty nor owned.
        let token = inode.writes.open();
        let taken = inode.pages.take_dirty(from, to, max, inode.size_cell());
        let blocks: u64 = taken.runs.iter().map(|r| u64::from(r.blocks)).sum();
        self.fs.flusher.taken(blocks << bits);
        let next = match taken.runs.last() {
            Some(last) => last.start + u64::from(last.blocks),
            None if taken.blocked => return Ok(Got::Blocked),
            None => return Ok(Got::Nothing),
        };
        self.write_batch(inode, taken.runs, taken.size, token, after)?;
        Ok(Got::Blocks { next, bytes: blocks << bits, more: blocks >= max || taken.blocked })
    }

    /// Writes a turn of an inode, of which the caller may hold the writeback lock; waits between its batches until the
    /// device takes more. Returns what is left for the next turn.
    fn write_turn<'i>(&mut self, mut turn: Turn<'i>, mut held: Option<WritebackGuard<'i>>) -> Option<Turn<'i>> {
        let inode = turn.inode;
        let mut most = turn.left.min(TURN_BYTES);
        let done = loop {
            let held = held.take().or_else(|| inode.wb.try_lock()).unwrap_or_else(|| {
                self.send();
                inode.wb.lock()
            });
            let got = self.take_batch(inode, turn.from, u64::MAX, most, &mut turn.after);
            drop(held);
            if self.is_full() {
                self.send_and_wait_for_room();
            }
            match got {
                Ok(Got::Blocks { next, bytes, more }) => {
                    turn.from = next;
                    turn.left = turn.left.saturating_sub(bytes);
                    most = most.saturating_sub(bytes);
                    match (more && turn.left > 0, most) {
                        (false, _) => break true,
                        (true, 0) => break false,
                        (true, _) => {}
                    }
                }
                Ok(Got::Blocked) => {
                    turn.blocked = true;
                    break false;
                }
                Ok(Got::Nothing) | Err(_) => break true,
            }
        };
        if !done && !turn.blocked {
            return Some(turn);
        }
        self.inodes.push(inode.clone());
        if self.inodes.len() >= PLUG_INODES_MAX {
            self.send_and_wait_for_room();
        }
        Some(turn).filter(|turn| turn.blocked)
    }

    /// Holding more back would not make requests larger, or the device would wait for it.
    fn is_full(&self) -> bool {
        let full = self.batches.len() >= PLUG_INODES_MAX || self.bios.len() >= PLUG_BIOS_MAX;
        full || self.bytes >= self.fs.bulk.unit_bytes()
    }

    /// Chooses blocks, and holds the requests back.
    fn write_batch(
        &mut self,
        inode: &Arc<Inode>,
        runs: Vec<DirtyRun>,
        size: u64,
        token: WritebackToken,
        before: &mut After,
    ) -> std::result::Result<(), Later> {
        let (fs, mut pieces, mut requests) = (self.fs, Vec::new(), Vec::new());
        let mut later = Ok(());
        for run in runs {
            let mut done = 0;
            if later.is_err() {
                fs.put_back(inode, run.start, run.blocks);
                continue;
            }
            while done < run.blocks {
                let lblk = LogicalBlock(run.start as u32 + done);
                let after = before.filter(|(next, _)| *next == lblk.0).map(|(_, block)| block);
                match self.place_piece(inode, lblk, run.blocks - done, after) {
                    Ok((piece, block)) => {
                        fs.add_requests(&mut requests, pieces.len(), &piece, block, &run, done);
                        done += piece.len;
                        *before = Some((lblk.0 + piece.len, BlockNr(block.0 + u64::from(piece.len) - 1)));
                        pieces.push(piece);
                    }
                    Err(e) if self.impatient && no_space::may_come(&e) => {
                        fs.put_back(inode, u64::from(lblk.0), run.blocks - done);
                        later = Err(Later::NoSpace);
                        break;
                    }
                    Err(e) => {
                        // What is left of the run has no place.
                        fs.lose(inode, &Piece { lblk, len: run.blocks - done, then: Then::Nothing }, e);
                        break;
                    }
                }
            }
        }
        if pieces.is_empty() {
            return later;
        }
        let end = pieces.last().map_or(0, |p| fs.end_of(p, size));
        let plain = pieces.iter().all(|p| matches!(p.then, Then::Nothing)) && inode.meta.read().desc.size >= end;
        let batch = Arc::new(Batch {
            inode: inode.clone(),
            size,
            pending: AtomicU32::new(requests.len() as u32 + 1),
            bulk: AtomicBool::new(false),
            plain,
            failed: Mutex::new(&FAILED_CLASS, Vec::new()),
            work: Mutex::new(&FAILED_CLASS, Some((pieces, token))),
            waited: AtomicBool::new(false),
            complete: Waiter::new(),
        });
        inode.batches.0.lock().batches.push_back(batch.clone());
        self.background |= self.why == WritebackReason::Background;
        self.batches.push(batch.clone());
        for Request { piece, offset, vecs } in requests {
            let batch = batch.clone();
            let bytes: u64 = vecs.iter().map(|v| v.len as u64).sum();
            let done = move |c: Completion| {
                if batch.bulk.load(Ordering::Acquire)
                    && let Some(fs) = batch.inode.fs.upgrade()
                {
                    fs.bulk.completed(bytes);
                }
                if let Err(e) = c.result {
                    batch.failed.lock().push((piece, e));
                }
                batch.request_done();
            };
            self.bytes += bytes;
            self.bios.push(Bio::write(offset, vecs, BioFlags::empty(), Box::new(done)));
        }
        later
    }

    /// Where the blocks from `lblk` on go: a piece of at most `max` that share one state, and its first block.
    fn place_piece(
        &mut self,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        max: u32,
        after: Option<BlockNr>,
    ) -> Result<(Piece, BlockNr)> {
        let fs = self.fs;
        let (len, state) = fs.status(inode, lblk, max)?;
        let want = match state {
            EsState::Written(block) => {
                fs.check_data_range(inode, block, len)?;
                return Ok((Piece { lblk, len, then: Then::Nothing }, block));
            }
            EsState::Unwritten(block) => {
                fs.check_data_range(inode, block, len)?;
                return Ok((Piece { lblk, len, then: Then::Convert }, block));
            }
            EsState::Delayed => {
                if let Some(chosen) = self.together.take(fs, inode, len, self.why) {
                    let block = chosen.start;
                    return Ok((Piece { lblk, len, then: Then::Map(chosen) }, block));
                }
                let most = fs.bulk.unit_bytes().saturating_sub(self.bytes) >> fs.geo.block_bits;
                Want::Promised { more: self.together.wanted_beside(fs, inode, len, most) }
            }
            EsState::Hole => Want::Written,
        };
        let mut tries = 0;
        loop {
            // Whether the writer may have the space was asked when it was promised.
            match Caller::ROOT.run(|| fs.choose_blocks(inode, lblk, len, want, after, self.why)) {
                Ok((chosen, rest)) => {
                    let block = chosen.start;
                    if let Want::Promised { more } = want {
                        self.together.keep(fs, inode, rest, more, self.why);
                    }
                    return Ok((Piece { lblk, len: chosen.len, then: Then::Map(chosen) }, block));
                }
                Err(e) if self.impatient => return Err(e),
                Err(e) => {
                    // What is held back may be what keeps the space.
                    self.send();
                    fs.bring_space(e, &mut tries, &mut None)?;
                }
            }
        }
    }

    /// Sends what is held back, retires what has completed by then, and writes the times that are still to be written.
    pub(crate) fn send(&mut self) {
        let _ = self.send_and(!self.fs.options.threads);
    }

    /// As [`WritebackPlug::send`], and waits until all of it is under way: who writes in the background takes no more
    /// than the device does. With no lock held.
    fn send_and_wait_for_room(&mut self) {
        if let Some(sent) = self.send_and(!self.fs.options.threads) {
            self.fs.bulk.wait_for(sent);
        }
    }

    /// Sends the requests: past the window if somebody waits for a few, or if this thread waits for each of them.
    fn send_bios(&mut self, wait: bool) -> Option<Sent> {
        let bios = std::mem::take(&mut self.bios);
        let small = std::mem::take(&mut self.bytes) <= SMALL_SYNC_BYTES && !std::mem::take(&mut self.background);
        if bios.is_empty() {
            return None;
        }
        self.has_sent = true;
        let fs = self.fs;
        match (wait, fs.options.threads && !small) {
            (true, false) => fs.dev.submit_all_and_wait(bios),
            (false, false) => fs.dev.submit_all(bios),
            (_, true) => {
                self.batches.iter().for_each(|batch| batch.bulk.store(true, Ordering::Release));
                return Some(fs.bulk.send(bios));
            }
        }
        None
    }

    fn send_and(&mut self, wait: bool) -> Option<Sent> {
        let fs = self.fs;
        self.together.give_back(fs);
        let sent = self.send_bios(wait);
        for batch in std::mem::take(&mut self.batches) {
            if wait {
                batch.wait_for_requests();
            }
            if batch.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                match self.impatient {
                    true => fs.retire_without_waiting(&batch.inode),
                    false => fs.retire_ready(&batch.inode),
                }
            }
        }
        for inode in std::mem::take(&mut self.inodes) {
            if fs.times_wait(&inode) {
                // Who frees the inode waits for this, or has taken its last name before the second look: else its
                // number could be somebody else's by the time it is written.
                let token = inode.writes.open();
                if fs.times_wait(&inode) {
                    let handle = if self.impatient { fs.try_start(credits::INODE) } else { None };
                    match handle {
                        None if self.impatient => {
                            fs.retire_later(inode, Some(token));
                            continue;
                        }
                        handle => fs.write_times(&inode, handle),
                    }
                }
            }
            fs.flusher.settled(u64::from(inode.ino.0), &*inode);
        }
        sent
    }
}

impl Drop for WritebackPlug<'_> {
    fn drop(&mut self) {
        // After a panic below, what was to complete may never do so.
        if !std::thread::panicking() {
            let _ = self.send_and(self.waits || !self.fs.options.threads);
        } else if self.fs.options.threads {
            let _ = self.send_and(false);
        }
    }
}

impl Filesystem {
    /// How much is taken of an inode at once: little enough that its completion comes soon, so much that a fast device
    /// is not asked often.
    fn batch_bytes(&self) -> u64 {
        if !self.options.threads {
            return BATCH_BYTES_MAX;
        }
        self.bulk.batch_bytes().min(BATCH_BYTES_MAX)
    }

    /// Starts to write inodes together.
    pub(crate) fn writeback_plug(&self, why: WritebackReason) -> WritebackPlug<'_> {
        WritebackPlug {
            fs: self,
            why,
            background: false,
            bios: Vec::new(),
            batches: Vec::new(),
            bytes: 0,
            waits: false,
            impatient: false,
            has_sent: false,
            inodes: Vec::new(),
            together: Together::default(),
        }
    }

    /// Writes what is dirty now of the inodes, in this order and a large one in turns. Returns when it is on its way,
    /// which takes as long as the device does for all but the last. Errors are recorded with the inodes, for their
    /// fsyncs.
    pub(crate) fn write_inodes(&self, inodes: &[Arc<Inode>], why: WritebackReason) {
        let mut plug = self.writeback_plug(why);
        let mut turns: VecDeque<Turn<'_>> = VecDeque::new();
        for (at, inode) in inodes.iter().enumerate() {
            plug.together.expect(&inodes[at + 1..]);
            let turn = Turn { inode, from: 0, left: inode.pages.dirty_bytes().max(1), after: None, blocked: false };
            // Two who write the same at once share the work instead of walking behind each other.
            turns.extend(match inode.wb.try_lock() {
                Some(held) => plug.write_turn(turn, Some(held)),
                None => Some(turn),
            });
        }
        plug.together.expect(&[]);
        let mut blocked = None;
        while let Some(turn) = turns.pop_front() {
            match plug.write_turn(turn, None) {
                Some(turn) if turn.blocked => blocked = blocked.or(Some(turn.inode)),
                turn => turns.extend(turn),
            }
        }
        plug.send();
        // The rest of it comes in a later round, which would find the same at once.
        if let Some(inode) = blocked.filter(|_| !plug.has_sent) {
            inode.writes.wait();
        }
    }
}
