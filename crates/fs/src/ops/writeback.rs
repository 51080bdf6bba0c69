//! Dirty folios to the device (Linux: `ext4_writepages`, fs/ext4/page-io.c).
//!
//! The data goes first, the map after it. For each run of dirty blocks: choose blocks where they are delayed (in memory
//! only: [`extant_mballoc::Allocator::choose`]), write, one request for each physically contiguous piece; once that is
//! on the device, one handle marks the blocks used, maps or converts them, and moves the size on disk. So whatever is
//! cut off or fails leaves nothing that points to blocks without their data, and a commit waits for no data.
//!
//! Main types: [`WritebackPlug`] (inodes written together: their requests are held back until neighbours have met),
//! [`Batch`] (what was taken at once; it owns its blocks through a [`WritebackToken`] until they can be read from the
//! device), [`Batches`] (those of one inode, retired in the order in which they were taken, so that the
//! size on disk never passes over data that is not there).
//!
//! Who retires: the thread that wrote, if all its requests have completed by then (an image file that the kernel
//! caches), or if it waits for them; else a thread of its own, which completions wake ([`Filesystem::retire_step`]),
//! because it takes a handle. Who waits for nothing ([`WritebackPlug::impatient`]) leaves to that thread what he has no
//! handle for. A batch that needs none (overwrites) is retired where it completes. Without threads
//! whoever wrote waits.
//!
//! # Locking
//! `inode writeback` (25) while blocks are chosen and requests are sent; not until they complete: who must know that
//! waits for the tokens ([`extant_cache::Writebacks::wait`]), with that lock held and no handle open. Nobody waits for
//! that lock, or for tokens, with requests in a plug: it may be those that the other waits for. `batches` (202) and
//! `completed batches` (203) are leaves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, Waiter};
use extant_block::{Bio, BioFlags, BioVec, Completion};
use extant_cache::{AddressSpaceOps, DirtyRun, Epoch, Listed, RunCompletion, Sent, WritebackToken};
use extant_journal::Handle;
use extant_mballoc::Chosen;
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::map::Progress;
use crate::map::es::EsState;
use crate::ops::credits;
use crate::ops::mapping::Want;
use crate::ops::no_space;
use crate::ops::sync::asks::WritebackGuard;
use crate::ops::together::Together;
use crate::reserve::Caller;

/// Bytes taken from the address space at once, at most: where a device is slow, less.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// A large file's turn among those that are written in the background.
const TURN_BYTES: u64 = 4 << 20;
/// What an fsync has to write in all, not to be bulk data that others wait for.
const SMALL_SYNC_BYTES: u64 = 256 << 10;
static BATCHES_CLASS: LockClass = LockClass::new("batches", 202);
static COMPLETED_CLASS: LockClass = LockClass::new("completed batches", 203);
static FAILED_CLASS: LockClass = LockClass::new("failed pieces", 204);

/// Why dirty folios are written (Linux: `enum wb_reason`): what a policy of the allocator may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritebackReason {
    /// An fsync waits for this inode.
    Fsync,
    /// Time, memory, a sync of everything.
    Background,
}

/// Why a thread that does not wait has not written everything.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Later {
    /// Somebody has the inode's writeback lock.
    Locked,
    /// An earlier write of a block is among what is on its way.
    OnItsWay(Epoch),
    /// There is space after the next commit, perhaps.
    NoSpace,
}

/// What makes the blocks of a piece readable once its data is on the device.
enum Then {
    /// They are mapped and written already.
    Nothing,
    /// They are mapped as unwritten.
    Convert,
    /// They are chosen, and nobody else's.
    Map(Chosen),
}

/// Blocks of a batch that share one state and lie side by side.
struct Piece {
    lblk: LogicalBlock,
    len: u32,
    then: Then,
}

/// What was taken from an inode's dirty folios at once.
pub(crate) struct Batch {
    inode: Arc<Inode>,
    /// The size of the file when it was taken: what belongs to it of its last block.
    size: u64,
    /// Requests that have not completed, and the sender.
    pending: AtomicU32,
    /// Its requests pass the mount's [`extant_cache::BulkWindow`]: known when they are sent.
    bulk: AtomicBool,
    /// No handle is needed: neither the map nor the size on disk changes.
    plain: bool,
    failed: Mutex<Vec<(usize, extant_block::Error)>>,
    /// Taken by who retires it.
    work: Mutex<Option<(Vec<Piece>, WritebackToken)>>,
    /// The sender waits until he is the last of `pending`.
    waited: AtomicBool,
    complete: Waiter<()>,
}

/// The batches of an inode that are on their way, oldest first.
pub(crate) struct Batches(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    batches: VecDeque<Arc<Batch>>,
    /// A thread retires the oldest; it looks again before it stops.
    busy: bool,
}

impl Batches {
    pub(crate) fn new() -> Batches {
        Batches(Mutex::new(&BATCHES_CLASS, Queue::default()))
    }

    /// The oldest batch, if it has completed and nobody retires one. `may`: what else must hold.
    fn begin(&self, may: impl FnOnce(&Batch) -> bool) -> Option<Arc<Batch>> {
        let mut q = self.0.lock();
        if q.busy {
            return None;
        }
        let oldest = q.batches.front().filter(|b| b.pending.load(Ordering::Acquire) == 0 && may(b))?.clone();
        q.busy = true;
        Some(oldest)
    }

    fn end(&self) {
        let mut q = self.0.lock();
        q.busy = false;
        q.batches.pop_front();
    }

    /// The oldest, if it has completed and nobody is at it.
    fn oldest_ready(&self) -> Option<Arc<Batch>> {
        let q = self.0.lock();
        q.batches.front().filter(|b| !q.busy && b.pending.load(Ordering::Acquire) == 0).cloned()
    }
}

/// Inodes with batches that have completed and wait for a thread that may take a handle. With a token come those whose
/// times are to be written before it closes.
pub(crate) struct Completed {
    queue: Mutex<CompletedQueue>,
    more: Condvar,
}

#[derive(Default)]
struct CompletedQueue {
    waiting: VecDeque<(Arc<Inode>, Option<WritebackToken>)>,
    stop: bool,
    /// Nobody comes for what is put here.
    ended: bool,
}

impl Completed {
    pub(crate) fn new() -> Completed {
        Completed { queue: Mutex::new(&COMPLETED_CLASS, CompletedQueue::default()), more: Condvar::new() }
    }

    /// Ends [`Filesystem::retire_step`] once nothing waits.
    pub(crate) fn stop(&self) {
        self.queue.lock().stop = true;
        self.more.notify_all();
    }
}

impl AddressSpaceOps for Inode {
    fn write_pages(inodes: &[Arc<Inode>]) {
        let Some(fs) = inodes.first().and_then(|inode| inode.fs.upgrade()) else { return };
        fs.write_inodes(inodes, WritebackReason::Background);
    }

    fn dirty_bytes(&self) -> u64 {
        self.pages.dirty_bytes()
    }

    fn has_times(&self) -> bool {
        self.meta.read().lazy_times
    }

    fn is_idle(&self) -> bool {
        self.writes.is_idle()
    }

    fn listed(&self) -> &Listed {
        &self.listed
    }
}

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

/// One request to send: where, what, and for which piece.
struct Request {
    piece: usize,
    offset: u64,
    vecs: Vec<BioVec>,
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

    /// Whether times are still to be written. Those of an inode without a name, which no crash leaves to anybody, are
    /// not: while the mount is frozen they would wait for the thaw.
    fn times_wait(&self, inode: &Inode) -> bool {
        if !inode.meta.read().lazy_times {
            return false;
        }
        let mut m = inode.meta.write();
        m.lazy_times &= m.desc.links > 0;
        m.lazy_times
    }

    /// Writes the times, with that handle or one of its own.
    fn write_times(&self, inode: &Arc<Inode>, handle: Option<Handle>) {
        let written = handle.map_or_else(|| self.start(credits::INODE), Ok).and_then(|mut handle| {
            let r = self.write_inode(&mut handle, inode);
            self.end(handle, r)
        });
        if let Err(e) = written {
            inode.meta.write().lazy_times = false;
            self.write_failed(inode, e);
        }
    }

    /// Starts writing everything dirty of the inode, and waits until it can be read back from the device. The caller
    /// holds no handle.
    pub(crate) fn write_and_wait(&self, inode: &Arc<Inode>) {
        if !inode.pages.is_empty() {
            self.writeback_plug(WritebackReason::Background).waiting().write_pages(inode);
        }
        inode.writes.wait();
    }

    /// Data was lost: whoever asks for durability is told.
    fn write_failed(&self, inode: &Inode, e: Error) {
        self.note_error(&e);
        inode.note_lost_write(e);
    }

    /// The requests for a piece at `block`, whose bytes are those of `run` from its block `skip` on.
    fn add_requests(
        &self,
        requests: &mut Vec<Request>,
        index: usize,
        piece: &Piece,
        block: BlockNr,
        run: &DirtyRun,
        skip: u32,
    ) {
        let bits = self.geo.block_bits;
        let max_transfer = (self.dev.limits().max_transfer as usize).max(1 << bits);
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

    /// The end of the piece, as far as it lies in a file of `size` bytes.
    fn end_of(&self, piece: &Piece, size: u64) -> u64 {
        ((u64::from(piece.lblk.0) + u64::from(piece.len)) << self.geo.block_bits).min(size)
    }

    /// Retires the inode's batches that have completed, oldest first, unless somebody does already.
    fn retire_ready(&self, inode: &Arc<Inode>) {
        self.retire_while(inode, |_| true, &mut None);
    }

    /// Those of them that take no waiting for a handle; the others are left to the thread that does.
    fn retire_without_waiting(&self, inode: &Arc<Inode>) {
        while let Some(oldest) = inode.batches.oldest_ready() {
            let mut handle = match self.credits_alone(&oldest) {
                Some(0) => None,
                credits => match credits.and_then(|credits| self.try_start(credits)) {
                    Some(handle) => Some(handle),
                    None => return self.retire_later(inode.clone(), None),
                },
            };
            let mut one = true;
            self.retire_while(inode, |b| std::mem::take(&mut one) && std::ptr::eq(b, &*oldest), &mut handle);
            self.finish_open(&mut handle);
        }
    }

    /// What a batch's handle must have, if one is enough; 0 if it needs none.
    fn credits_alone(&self, batch: &Batch) -> Option<u32> {
        let (mapped, converts) = match &*batch.work.lock() {
            Some((pieces, _)) if !batch.plain => match &pieces[..] {
                [Piece { then: Then::Map(chosen), .. }] => (chosen.len, false),
                [piece] => (0, matches!(piece.then, Then::Convert)),
                _ => return None,
            },
            _ => return Some(0),
        };
        Some(match (mapped, converts) {
            (0, false) => credits::DISK_SIZE,
            (0, true) => self.convert_credits(&batch.inode),
            (len, _) => self.allocate_credits(&batch.inode, len),
        })
    }

    fn retire_while(&self, inode: &Arc<Inode>, mut may: impl FnMut(&Batch) -> bool, handle: &mut Option<Handle>) {
        let mut any = false;
        while let Some(batch) = inode.batches.begin(&mut may) {
            let work = batch.work.lock().take();
            if let Some((pieces, token)) = work {
                let failed = std::mem::take(&mut *batch.failed.lock());
                self.retire(inode, pieces, failed, batch.size, handle);
                // Off the queue before the token closes: whoever waited for the one finds the other.
                inode.batches.end();
                drop(token);
            } else {
                inode.batches.end();
            }
            any = true;
        }
        if any {
            self.flusher.settled(u64::from(inode.ino.0), &**inode);
        }
    }

    /// The requests of these pieces have completed, except `failed`: makes the others readable from the device.
    /// `open`: a handle to begin with.
    fn retire(
        &self,
        inode: &Arc<Inode>,
        pieces: Vec<Piece>,
        failed: Vec<(usize, extant_block::Error)>,
        size: u64,
        open: &mut Option<Handle>,
    ) {
        for (index, mut piece) in pieces.into_iter().enumerate() {
            let settled = match failed.iter().find(|(at, _)| *at == index) {
                Some((_, e)) => {
                    if let Then::Map(chosen) = std::mem::replace(&mut piece.then, Then::Nothing) {
                        self.alloc.cancel(chosen);
                    }
                    Err(Error::Device(e.clone()))
                }
                None => self.settle_piece(open, inode, &mut piece, size).inspect_err(|e| {
                    if let Some(handle) = open.take() {
                        let _ = self.end::<()>(handle, Err(e.clone()));
                    }
                }),
            };
            match settled {
                Ok(()) => {
                    inode.pages.finish(u64::from(piece.lblk.0), piece.len, RunCompletion::Written);
                    inode.errors.written();
                    self.errors.written();
                    self.flusher.written(u64::from(piece.len) << self.geo.block_bits);
                }
                Err(e) => self.lose(inode, &piece, e),
            }
        }
        self.finish_open(open);
    }

    /// One piece whose data is on the device. `open`: a handle from the piece before, or for the next one.
    fn settle_piece(&self, open: &mut Option<Handle>, inode: &Arc<Inode>, piece: &mut Piece, size: u64) -> Result<()> {
        // Not beyond what a truncation has left meanwhile.
        let end = self.end_of(piece, size.min(inode.size()));
        match std::mem::replace(&mut piece.then, Then::Nothing) {
            Then::Nothing if inode.meta.read().desc.size >= end => Ok(()),
            Then::Nothing => {
                let handle = self.handle_for(open, credits::DISK_SIZE)?;
                self.write_disk_size(handle, inode, end)
            }
            Then::Convert => {
                let (mut from, to, mut tries) = (piece.lblk, piece.lblk.0 + piece.len, 0);
                loop {
                    let handle = self.handle_for(open, self.convert_credits(inode))?;
                    match self.convert_some(handle, inode, from, to - from.0, end) {
                        Ok(Progress::Done) => return Ok(()),
                        Ok(Progress::Stopped { at }) => {
                            from = at;
                            self.finish_open(open);
                        }
                        // What it split takes a node more. What it has converted it finds so.
                        Err(e) => self.bring_space(e, &mut tries, open)?,
                    }
                }
            }
            Then::Map(chosen) => {
                let mut chosen = Some(chosen);
                let r = self.settle_chosen(open, inode, piece.lblk, &mut chosen, end);
                self.cancel_chosen(&mut chosen);
                r
            }
        }
    }

    /// Maps chosen blocks whose data is on the device, and moves the size on disk up to `end`, in as many handles as it
    /// takes. What is left in `chosen` after an error is the caller's to give back.
    pub(crate) fn settle_chosen(
        &self,
        open: &mut Option<Handle>,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        chosen: &mut Option<Chosen>,
        end: u64,
    ) -> Result<()> {
        let (mut at, mut tries) = (lblk, 0);
        while let Some(len) = chosen.as_ref().map(|c| c.len) {
            let handle = self.handle_for(open, self.allocate_credits(inode, len))?;
            match self.map_chosen(handle, inode, at, chosen, false) {
                Ok(mapped) => {
                    at = LogicalBlock(at.0 + mapped);
                    self.write_disk_size(handle, inode, end.min(u64::from(at.0) << self.geo.block_bits))?;
                    if chosen.is_some() {
                        self.finish_open(open);
                    }
                }
                // A node of the map found no place: perhaps after a commit.
                Err(e) => self.bring_space(e, &mut tries, open)?,
            }
        }
        Ok(())
    }

    /// The open handle if it has the credits, else a fresh one.
    fn handle_for<'a>(&self, open: &'a mut Option<Handle>, credits: u32) -> Result<&'a mut Handle> {
        let enough = open.as_mut().is_some_and(|h| h.has_credits(credits));
        if !enough {
            self.finish_open(open);
            *open = Some(self.start(credits)?);
        }
        match open {
            Some(handle) => Ok(handle),
            None => Err(Error::ReadOnly), // not reached: just opened
        }
    }

    pub(super) fn finish_open(&self, open: &mut Option<Handle>) {
        if let Some(handle) = open.take() {
            handle.finish();
        }
    }

    /// Blocks that were taken and have not been sent are dirty again.
    fn put_back(&self, inode: &Arc<Inode>, start: u64, blocks: u32) {
        let again = inode.pages.finish(start, blocks, RunCompletion::Redirty);
        self.flusher.put_back(u64::from(inode.ino.0), u64::from(blocks) << self.geo.block_bits, again, inode);
    }

    /// The data of a piece is gone: it is dropped, what was promised for it is free again, and whoever asks for
    /// durability is told. Blocks that were written to again meanwhile keep their newer data and its promise.
    fn lose(&self, inode: &Arc<Inode>, piece: &Piece, e: Error) {
        self.write_failed(inode, e);
        inode.pages.lose(u64::from(piece.lblk.0), piece.len, |start, blocks| {
            let promised = {
                let _map = inode.map.write();
                inode.es.remove(LogicalBlock(start as u32), blocks)
            };
            self.alloc.unreserve(promised);
        });
        self.flusher.written(u64::from(piece.len) << self.geo.block_bits);
    }

    /// Leaves the inode to the thread that may wait. Where that has ended nobody waits for a handle any more: who is
    /// asked for one says at once that there is none, and what waits for the inode is told.
    fn retire_later(&self, inode: Arc<Inode>, times: Option<WritebackToken>) {
        {
            let mut q = self.completed.queue.lock();
            if !q.ended {
                q.waiting.push_back((inode, times));
                return self.completed.more.notify_one();
            }
        }
        self.retire_now(&inode, times);
    }

    /// One round of the thread that retires batches; false when it should end.
    pub(crate) fn retire_step(&self, wait: Duration) -> bool {
        let (inode, times) = {
            let mut q = self.completed.queue.lock();
            if q.waiting.is_empty() && !q.stop {
                self.completed.more.wait_for(&mut q, wait);
            }
            match q.waiting.pop_front() {
                Some(work) => work,
                None => {
                    q.ended = q.stop;
                    return !q.stop;
                }
            }
        };
        self.retire_now(&inode, times);
        true
    }

    fn retire_now(&self, inode: &Arc<Inode>, times: Option<WritebackToken>) {
        self.retire_ready(inode);
        if let Some(token) = times {
            if self.times_wait(inode) {
                self.write_times(inode, None);
            }
            drop(token);
            self.flusher.settled(u64::from(inode.ino.0), &**inode);
        }
    }
}

impl Batch {
    /// By its sender: until all requests have completed.
    fn wait_for_requests(&self) {
        self.waited.store(true, Ordering::SeqCst);
        if self.pending.load(Ordering::SeqCst) > 1 {
            self.complete.wait();
        }
    }

    /// One request has completed, on any thread, which must not wait.
    fn request_done(&self) {
        match self.pending.fetch_sub(1, Ordering::SeqCst) {
            1 => {}
            2 if self.waited.load(Ordering::SeqCst) => return self.complete.set(()),
            _ => return,
        }
        let Some(fs) = self.inode.fs.upgrade() else { return };
        fs.retire_while(&self.inode, |b| b.plain && b.failed.lock().is_empty(), &mut None);
        if self.inode.batches.oldest_ready().is_some() {
            fs.retire_later(self.inode.clone(), None);
        }
    }
}

/// `len` bytes of the pieces, from byte `skip` on.
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

/// The first `max` bytes, and the rest.
fn split_vecs(vecs: Vec<BioVec>, max: usize) -> (Vec<BioVec>, Vec<BioVec>) {
    let total: usize = vecs.iter().map(|v| v.len).sum();
    if total <= max {
        return (vecs, Vec::new());
    }
    (slice_vecs(&vecs, 0, max), slice_vecs(&vecs, max, total - max))
}
