//! Plugs. A plug takes dirty blocks, chooses their places, and collects their requests. When it sends them, blocks that
//! are adjacent on the device share one request.
//!
//! Main types: [`WritebackPlug`], and [`Turn`], the rest of an inode that the background must still write.
//!
//! A small amount of data that an fsync waits for is sent immediately. All other data is bulk data and passes the
//! mount's [`extant_cache::BulkWindow`]. Only the background waits there, with no lock held.
//!
//! # Locking
//! See [`super`].

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::Mutex;
use extant_base::sync::Waiter;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_block::{Bio, BioFlags, BioVec, Completion};
use extant_cache::{DirtyRun, Sent, WritebackToken};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::batch::{Batch, FAILED_CLASS, Piece, Retirer, Then, WritebackReason};
use super::patience::{Moment, Obstacle, Patience};
use crate::error::Error;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::ops::credits;
use crate::ops::mapping::Want;
use crate::ops::no_space;
use crate::reserve::Caller;
use crate::writeback::asks::WritebackGuard;
use crate::writeback::together::Together;
use extant_es::EsState;

/// The maximum number of bytes taken from the address space at once. On a slow device it is smaller.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// The size of a large file's turn in background writeback.
const TURN_BYTES: u64 = 4 << 20;
/// If an fsync writes more than this in total, its data counts as bulk data, because other requests would have to wait
/// for it.
const SMALL_SYNC_BYTES: u64 = 256 << 10;

/// The maximum contents of a plug before it is sent. Collected requests are invisible to fsyncs, and take memory.
const PLUG_INODES_MAX: usize = 1024;
const PLUG_BIOS_MAX: usize = 1024;

/// The rest of an inode that is written in turns.
struct Turn<'i> {
    inode: &'i Arc<Inode>,
    /// The block to continue with.
    from: u64,
    /// The remaining bytes of those that were dirty when the first turn began. Data dirtied later waits for another
    /// round.
    left: u64,
    after: After,
    /// An earlier write of the next block is in flight.
    blocked: bool,
}

/// The logical block after the last one with a place, and the device block of that last one.
type After = Option<(u32, BlockNr)>;

/// Dirty blocks of an inode that the plug has taken, up to `next`. `more` is true if there may be more.
#[derive(Default)]
struct Taken {
    next: u64,
    bytes: u64,
    more: bool,
}

/// A request to send: its piece, its place and its bytes.
struct Request {
    piece: usize,
    offset: u64,
    vecs: Vec<BioVec>,
}

/// An obstacle is not a failure: the data that remains stays dirty.
type Result<T> = std::result::Result<T, Obstacle>;

/// Inodes that are written together. The plug collects their requests, so that adjacent blocks, even of different
/// inodes, share a request. Dropping the plug sends them.
pub(crate) struct WritebackPlug<'f> {
    fs: &'f Filesystem,
    why: WritebackReason,
    patience: Patience,
    /// Some of its requests are not part of an fsync.
    background: bool,
    bios: Vec<Bio>,
    /// Batches whose requests the plug may contain; it is their sender.
    batches: Vec<Arc<Batch>>,
    bytes: u64,
    /// The plug has sent requests before.
    has_sent: bool,
    /// Inodes whose dirty data has been taken, but whose times must still be checked.
    inodes: Vec<Arc<Inode>>,
    together: Together<'f>,
}

impl<'f> WritebackPlug<'f> {
    /// Begins to write inodes together. In a mount without threads the plug always waits.
    pub(crate) fn new(fs: &'f Filesystem, why: WritebackReason, patience: Patience) -> WritebackPlug<'f> {
        WritebackPlug {
            fs,
            why,
            patience: if fs.options.threads { patience } else { Patience::Inline },
            background: false,
            bios: Vec::new(),
            batches: Vec::new(),
            bytes: 0,
            has_sent: false,
            inodes: Vec::new(),
            together: Together::default(),
        }
    }

    /// Sets the reason for writing the following inodes.
    pub(crate) fn because(&mut self, why: WritebackReason) {
        self.why = why;
    }

    /// Whether the caller leaves work that it cannot do immediately to another thread.
    pub(crate) fn leaves(&self) -> bool {
        !self.patience.waits(Moment::Obstacle)
    }

    /// Starts writing all dirty data of the inode. Errors are recorded with it, for its fsync.
    pub(crate) fn write_pages(&mut self, inode: &Arc<Inode>) {
        debug_assert!(!self.leaves());
        if self.try_write_pages(inode).is_err() {
            self.send();
            let _wb = inode.wb.lock();
            let _ = self.write_pages_locked(inode); // it writes everything, because it waits
        }
    }

    /// As [`WritebackPlug::write_pages`], but fails if another thread is writing the inode. With [`Patience::Leaves`],
    /// it does only the work that needs no waiting.
    pub(crate) fn try_write_pages(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let written = {
            let _wb = inode.wb.try_lock().ok_or(Obstacle::Locked)?;
            self.write_pages_locked(inode)
        };
        if self.inodes.len() >= PLUG_INODES_MAX {
            self.send();
        }
        written
    }

    /// Calls [`WritebackPlug::try_write_pages`] for each of these inodes.
    pub(crate) fn try_write_all(&mut self, inodes: &'f [Arc<Inode>]) -> Vec<(&'f Arc<Inode>, Result<()>)> {
        let mut tried = Vec::with_capacity(inodes.len());
        for (at, inode) in inodes.iter().enumerate() {
            self.together.expect(&inodes[at + 1..]);
            tried.push((inode, self.try_write_pages(inode)));
        }
        self.together.expect(&[]);
        tried
    }

    /// Starts writing the blocks of `[from, to)` that are dirty now. Blocks that become dirty after the write has
    /// passed them are left for another call. Waits for blocks whose earlier write is in flight. The caller holds the
    /// inode's writeback lock.
    pub(crate) fn write_dirty(&mut self, inode: &Arc<Inode>, from: u64, to: u64) {
        debug_assert!(!self.leaves());
        let _ = self.take_and_write(inode, from, to); // it writes everything, because it waits
    }

    /// Sends the plug, retires the batches that have already completed, and writes pending times.
    fn send(&mut self) {
        let _ = self.send_at(Moment::Full);
    }

    /// As [`WritebackPlug::try_write_pages`], with the writeback lock held.
    fn write_pages_locked(&mut self, inode: &Arc<Inode>) -> Result<()> {
        let written = self.take_and_write(inode, 0, u64::MAX);
        self.inodes.push(inode.clone());
        written
    }

    /// As [`WritebackPlug::write_dirty`], but a plug that does not wait stops at an obstacle.
    fn take_and_write(&mut self, inode: &Arc<Inode>, mut from: u64, to: u64) -> Result<()> {
        let mut after = None;
        loop {
            match self.take_batch(inode, from, to, u64::MAX, &mut after) {
                Err(Obstacle::InFlight(epoch)) if !self.leaves() => {
                    self.send();
                    inode.writes.wait_for(epoch);
                }
                Err(obstacle) => return Err(obstacle),
                Ok(taken) => {
                    if self.is_full() {
                        self.send();
                    }
                    if !taken.more {
                        return Ok(()); // blocks that are dirty now became dirty later
                    }
                    from = taken.next;
                }
            }
        }
    }

    /// Takes dirty blocks of `[from, to)`, at most one batch and at most `most` bytes, and adds their requests to the
    /// plug. The caller holds the inode's writeback lock.
    fn take_batch(&mut self, inode: &Arc<Inode>, from: u64, to: u64, most: u64, after: &mut After) -> Result<Taken> {
        if inode.pages.dirty_bytes() == 0 {
            return Ok(Taken::default());
        }
        let bits = self.fs.geo.block_bits;
        let max = (most.min(self.batch_bytes()) >> bits).max(1);
        // Open the token before taking any block, so that a block is always either dirty or owned by a token.
        let token = inode.writes.open();
        let taken = inode.pages.take_dirty(from, to, max, inode.size_cell());
        let blocks: u64 = taken.runs.iter().map(|r| u64::from(r.blocks)).sum();
        self.fs.writeback.flusher.taken(blocks << bits);
        let next = match taken.runs.last() {
            Some(last) => last.start + u64::from(last.blocks),
            None if taken.blocked => {
                drop(token);
                return Err(Obstacle::InFlight(inode.writes.epoch()));
            }
            None => return Ok(Taken::default()),
        };
        self.write_batch(inode, taken.runs, taken.size, token, after)?;
        Ok(Taken { next, bytes: blocks << bits, more: blocks >= max || taken.blocked })
    }

    /// Writes one turn of an inode; the caller may hold its writeback lock. Waits between its batches until the
    /// device accepts more. Returns the rest for the next turn.
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
                Ok(Taken { next, bytes, more }) => {
                    turn.from = next;
                    turn.left = turn.left.saturating_sub(bytes);
                    most = most.saturating_sub(bytes);
                    match (more && turn.left > 0, most) {
                        (false, _) => break true,
                        (true, 0) => break false,
                        (true, _) => {}
                    }
                }
                Err(Obstacle::InFlight(_)) => {
                    turn.blocked = true;
                    break false;
                }
                Err(_) => break true,
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

    /// Chooses blocks, and adds the requests to the plug.
    fn write_batch(
        &mut self,
        inode: &Arc<Inode>,
        runs: Vec<DirtyRun>,
        size: u64,
        token: WritebackToken,
        before: &mut After,
    ) -> Result<()> {
        let (fs, mut pieces, mut requests) = (self.fs, Vec::new(), Vec::new());
        let mut written = Ok(());
        for run in runs {
            let mut done = 0;
            if written.is_err() {
                fs.retirement().put_back(inode, run.start, run.blocks);
                continue;
            }
            let (lblk, blocks) = (LogicalBlock(run.start as u32), run.blocks);
            let run = match fs.encryption(inode).sealed_run(run) {
                Ok(run) => run,
                Err(e) => {
                    fs.retirement().lose(inode, &Piece { lblk, len: blocks, then: Then::Nothing }, e);
                    continue;
                }
            };
            while done < run.blocks {
                let lblk = LogicalBlock(run.start as u32 + done);
                let after = before.filter(|(next, _)| *next == lblk.0).map(|(_, block)| block);
                match self.place_piece(inode, lblk, run.blocks - done, after) {
                    Ok((piece, block)) => {
                        self.add_requests(&mut requests, pieces.len(), &piece, block, &run, done);
                        done += piece.len;
                        *before = Some((lblk.0 + piece.len, BlockNr(block.0 + u64::from(piece.len) - 1)));
                        pieces.push(piece);
                    }
                    Err(e) if self.leaves() && no_space::may_come(&e) => {
                        fs.retirement().put_back(inode, u64::from(lblk.0), run.blocks - done);
                        written = Err(Obstacle::NoSpace);
                        break;
                    }
                    Err(e) => {
                        // No place was found for the rest of the run.
                        fs.retirement().lose(inode, &Piece { lblk, len: run.blocks - done, then: Then::Nothing }, e);
                        break;
                    }
                }
            }
        }
        if pieces.is_empty() {
            return written;
        }
        let end = pieces.last().map_or(0, |p| p.end_bytes(fs.geo.block_bits).min(size));
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
                    && let Some(owner) = batch.inode.owner.upgrade()
                {
                    owner.bulk_completed(bytes);
                }
                if let Err(e) = c.result {
                    batch.failed.lock().push((piece, e));
                }
                batch.request_done();
            };
            self.bytes += bytes;
            self.bios.push(Bio::write(offset, vecs, BioFlags::empty(), Box::new(done)));
        }
        written
    }

    /// Adds the requests for a piece at `block`, with the bytes of `run` from its block `skip` on.
    fn add_requests(
        &self,
        requests: &mut Vec<Request>,
        index: usize,
        piece: &Piece,
        block: BlockNr,
        run: &DirtyRun,
        skip: u32,
    ) {
        let bits = self.fs.geo.block_bits;
        let max_transfer = (self.fs.dev.limits().max_transfer as usize).max(1 << bits);
        let mut vecs = slice_vecs(&run.vecs, (skip as usize) << bits, (piece.len as usize) << bits);
        let mut offset = block.0 << bits;
        while !vecs.is_empty() {
            let (some, rest) = split_vecs(vecs, max_transfer);
            vecs = rest;
            let bytes: usize = some.iter().map(|v| v.len).sum();
            requests.push(Request { piece: index, offset, vecs: some });
            offset += bytes as u64;
        }
    }

    /// Chooses the place of the blocks from `lblk` on: a piece of at most `max` blocks in one state, and its first
    /// block.
    fn place_piece(
        &mut self,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        max: u32,
        after: Option<BlockNr>,
    ) -> crate::error::Result<(Piece, BlockNr)> {
        let fs = self.fs;
        let (mut len, mut state) = fs.status(inode, lblk, max)?;
        if matches!(state, EsState::Delayed | EsState::Hole) && !fs.placement.alloc.cluster_size().is_one() {
            self.place_in_clusters(inode, lblk, len)?;
            (len, state) = fs.status(inode, lblk, max)?;
        }
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
                let most = fs.writeback.bulk.unit_bytes().saturating_sub(self.bytes) >> fs.geo.block_bits;
                Want::Promised { more: self.together.wanted_beside(fs, inode, len, most) }
            }
            EsState::Hole => Want::Written,
        };
        let mut tries = 0;
        loop {
            // The writer's right to use the space was checked when it was reserved.
            match Caller::ROOT.run(|| fs.choose_blocks(inode, lblk, len, want, after, self.why)) {
                Ok((chosen, rest)) => {
                    let block = chosen.start;
                    if let Want::Promised { more } = want {
                        self.together.keep(fs, inode, rest, more, self.why);
                    }
                    return Ok((Piece { lblk, len: chosen.len, then: Then::Map(chosen) }, block));
                }
                Err(e) if self.leaves() => return Err(e),
                Err(e) => {
                    // The requests in the plug may occupy the missing space, so send them first.
                    self.send();
                    fs.bring_space(e, &mut tries, &mut None)?;
                }
            }
        }
    }

    /// Maps the first of the `len` blocks from `lblk` on as unwritten; they are not in the map yet. This takes a
    /// handle. A writer that does not wait for one leaves the inode, as if there were no space.
    fn place_in_clusters(&mut self, inode: &Arc<Inode>, lblk: LogicalBlock, len: u32) -> crate::error::Result<()> {
        let (fs, mut tries) = (self.fs, 0);
        let credits = fs.allocate_credits(inode, len);
        loop {
            let mut handle = match self.leaves() {
                true => fs.try_start(credits).ok_or(Error::NoSpaceUntilCommit)?,
                false => fs.start(credits)?,
            };
            // The writer's right to use the space was checked when it was reserved.
            let filled = Caller::ROOT.run(|| fs.fill_hole(&mut handle, inode, lblk, len, self.why));
            let filled = filled.and_then(|_| fs.write_inode_data(&mut handle, inode));
            match fs.end(handle, filled) {
                Err(e) if no_space::may_come(&e) && !self.leaves() => {
                    // The requests in the plug may occupy the missing space, so send them first.
                    self.send();
                    fs.bring_space(e, &mut tries, &mut None)?;
                }
                done => return done,
            }
        }
    }

    /// The number of bytes to take from an inode at once: few enough to complete soon, but enough that a fast device
    /// needs few rounds.
    fn batch_bytes(&self) -> u64 {
        match self.patience {
            Patience::Inline => BATCH_BYTES_MAX,
            _ => self.fs.writeback.bulk.batch_bytes().min(BATCH_BYTES_MAX),
        }
    }

    /// Whether to send the plug now, because more requests would not make it more efficient, or because the device
    /// would be idle.
    fn is_full(&self) -> bool {
        let full = self.batches.len() >= PLUG_INODES_MAX || self.bios.len() >= PLUG_BIOS_MAX;
        full || self.bytes >= self.fs.writeback.bulk.unit_bytes()
    }

    /// As [`WritebackPlug::send`], but waits until all of it is in flight, so that the background does not outrun the
    /// device. The caller holds no lock.
    fn send_and_wait_for_room(&mut self) {
        if let Some(sent) = self.send_at(Moment::Full) {
            self.fs.writeback.bulk.wait_for(sent);
        }
    }

    /// Sends the requests. They bypass the window if there are only a few that an fsync waits for, or if this thread
    /// waits for each of them.
    fn send_bios(&mut self, wait: bool) -> Option<Sent> {
        let bios = std::mem::take(&mut self.bios);
        let small = std::mem::take(&mut self.bytes) <= SMALL_SYNC_BYTES && !std::mem::take(&mut self.background);
        if bios.is_empty() {
            return None;
        }
        self.has_sent = true;
        let fs = self.fs;
        match (wait, self.patience != Patience::Inline && !small) {
            (true, false) => fs.dev.submit_all_and_wait(bios),
            (false, false) => fs.dev.submit_all(bios),
            (_, true) => {
                self.batches.iter().for_each(|batch| batch.bulk.store(true, Ordering::Release));
                return Some(fs.writeback.bulk.send(bios));
            }
        }
        None
    }

    /// Sends the plug at this moment, which decides whether this thread waits for the requests.
    fn send_at(&mut self, moment: Moment) -> Option<Sent> {
        let (fs, wait) = (self.fs, self.patience.waits(moment));
        let leaves = self.leaves();
        self.together.give_back(fs);
        let sent = self.send_bios(wait);
        for batch in std::mem::take(&mut self.batches) {
            if wait {
                batch.wait_for_requests();
            }
            if batch.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
                fs.retirement().retire(&batch.inode, if leaves { Retirer::Tries } else { Retirer::Waits });
            }
        }
        for inode in std::mem::take(&mut self.inodes) {
            if inode.times_wait() {
                // The eviction of the inode either waits for this token, or has removed the last name before the second
                // check. Without the token, the inode's number could belong to another inode when the times are
                // written.
                let token = inode.writes.open();
                if inode.times_wait() {
                    let handle = if leaves { fs.try_start(credits::INODE) } else { None };
                    if leaves && handle.is_none() {
                        fs.retirement().leave_to_thread((inode, Some(token)));
                        continue;
                    }
                    fs.retirement().write_times(&inode, handle);
                }
            }
            fs.writeback.flusher.settled(u64::from(inode.ino.0), &*inode);
        }
        sent
    }
}

impl Drop for WritebackPlug<'_> {
    fn drop(&mut self) {
        // After a panic further down, the requests may never complete, so do not wait for them.
        if !std::thread::panicking() {
            let _ = self.send_at(Moment::End);
        } else if !self.patience.waits(Moment::Full) {
            let _ = self.send_at(Moment::Full);
        }
    }
}

/// Writes the data of the inodes that is dirty now, in this order, and large inodes in turns. Returns when all of it is
/// in flight, which takes as long as the device needs for all but the last part. Errors are recorded with the inodes,
/// for their fsyncs.
pub(crate) fn write_inodes(fs: &Filesystem, inodes: &[Arc<Inode>], why: WritebackReason) {
    let mut plug = WritebackPlug::new(fs, why, Patience::Sends);
    let mut turns: VecDeque<Turn<'_>> = VecDeque::new();
    for (at, inode) in inodes.iter().enumerate() {
        plug.together.expect(&inodes[at + 1..]);
        let turn = Turn { inode, from: 0, left: inode.pages.dirty_bytes().max(1), after: None, blocked: false };
        // If another thread is writing the inode, it gets a later turn, so that two threads share the work instead of
        // following each other.
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
    // The rest is written in a later round. Without this wait, that round would immediately find the same block again.
    if let Some(inode) = blocked.filter(|_| !plug.has_sent) {
        inode.writes.wait();
    }
}

/// `len` bytes of the vectors, from byte `skip` on.
fn slice_vecs(vecs: &[BioVec], mut skip: usize, mut len: usize) -> Vec<BioVec> {
    let mut out = Vec::with_capacity(vecs.len());
    for v in vecs {
        if len == 0 {
            break;
        }
        if skip >= v.len {
            skip -= v.len;
            continue;
        }
        let n = (v.len - skip).min(len);
        out.push(BioVec { buf: v.buf.clone(), offset: v.offset + skip, len: n });
        skip = 0;
        len -= n;
    }
    out
}

/// Splits the vectors after the first `max` bytes.
fn split_vecs(vecs: Vec<BioVec>, max: usize) -> (Vec<BioVec>, Vec<BioVec>) {
    let total: usize = vecs.iter().map(|v| v.len).sum();
    if total <= max {
        return (vecs, Vec::new());
    }
    (slice_vecs(&vecs, 0, max), slice_vecs(&vecs, max, total - max))
}
