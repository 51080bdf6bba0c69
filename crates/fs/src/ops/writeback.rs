//! Dirty folios to the device (Linux: `ext4_writepages`, fs/ext4/page-io.c).
//!
//! The data goes first, the map after it. For each run of dirty blocks: choose blocks where they are delayed (in memory
//! only: [`extant_mballoc::Allocator::choose`]), write, one request for each physically contiguous piece; once that is
//! on the device, one handle marks the blocks used, maps or converts them, and moves the size on disk. So after a crash
//! or an error nothing points to blocks without their data, and a commit waits for no data.
//!
//! Main types: [`plug::WritebackPlug`] (inodes written together: their requests are held back until neighbours have
//! met), [`Batch`] (blocks taken at once; it owns them through a [`WritebackToken`] until they can be read from
//! the device), [`Batches`] (those of one inode, retired in the order in which they were taken, so that the size on
//! disk never passes over data that is not there).
//!
//! The thread that wrote retires a batch if all its requests have completed by then (an image file that the kernel
//! caches), or if it waits for them. Otherwise completions wake a thread for it ([`Filesystem::retire_step`]), because
//! it takes a handle. A writer that waits for nothing ([`plug::WritebackPlug::impatient`]) leaves batches to that
//! thread if it gets no handle. A batch that needs none (overwrites) is retired where it completes. Without threads the
//! writer waits.
//!
//! # Locking
//! `inode writeback` (25) while blocks are chosen and requests are sent; not until they complete. A thread that needs
//! their completion waits for the tokens ([`extant_cache::Writebacks::wait`]), with that lock held and no handle open.
//! No thread waits for that lock, or for tokens, with requests in a plug: the other thread may wait for those.
//! `batches` (202) and `completed batches` (203) are leaves.

mod plug;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, Waiter};
use extant_block::BioVec;
use extant_cache::{AddressSpaceOps, DirtyRun, Epoch, Listed, RunCompletion, WritebackToken};
use extant_journal::Handle;
use extant_mballoc::Chosen;
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::map::Progress;
use crate::ops::credits;

static BATCHES_CLASS: LockClass = LockClass::new("batches", 202);
static COMPLETED_CLASS: LockClass = LockClass::new("completed batches", 203);
static FAILED_CLASS: LockClass = LockClass::new("failed pieces", 204);

/// Why dirty folios are written (Linux: `enum wb_reason`), for the policies of the allocator.
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
    /// Another thread holds the inode's writeback lock.
    Locked,
    /// An earlier write of a block is pending.
    OnItsWay(Epoch),
    /// There is space after the next commit, perhaps.
    NoSpace,
}

/// The step that makes the blocks of a piece readable once its data is on the device.
enum Then {
    /// They are mapped and written already.
    Nothing,
    /// They are mapped as unwritten.
    Convert,
    /// They are chosen, and no other file has them.
    Map(Chosen),
}

/// Blocks of a batch that share one state and lie side by side.
struct Piece {
    lblk: LogicalBlock,
    len: u32,
    then: Then,
}

/// Blocks that were taken from an inode's dirty folios at once.
pub(crate) struct Batch {
    inode: Arc<Inode>,
    /// The size of the file when it was taken: bytes of the last block behind it are not the file's.
    size: u64,
    /// Requests that have not completed, and the sender.
    pending: AtomicU32,
    /// Its requests pass the mount's [`extant_cache::BulkWindow`]: known when they are sent.
    bulk: AtomicBool,
    /// No handle is needed: neither the map nor the size on disk changes.
    plain: bool,
    failed: Mutex<Vec<(usize, extant_block::Error)>>,
    /// Taken by the thread that retires it.
    work: Mutex<Option<(Vec<Piece>, WritebackToken)>>,
    /// The sender waits until it is the last of `pending`.
    waited: AtomicBool,
    complete: Waiter<()>,
}

/// The pending batches of an inode, oldest first.
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

    /// The oldest batch, if it has completed, no thread retires one, and `may` holds for it.
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

    /// The oldest batch, if it has completed and no thread retires it.
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
    /// No thread takes from the queue any more.
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

/// One request to send: its place, its bytes and its piece.
struct Request {
    piece: usize,
    offset: u64,
    vecs: Vec<BioVec>,
}

impl Filesystem {
    /// Whether times are still to be written. The times of an inode without a name are not: no crash leaves it behind,
    /// and while the mount is frozen they would wait for the thaw.
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
            self.note_loss(inode, None, &e);
            inode.losses.record(inode.ino, None, e);
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

    /// A write of the inode was lost: for the superblock and the mount's ledger. The inode's own is the caller's.
    fn note_loss(&self, inode: &Inode, blocks: Option<Range<u64>>, e: &Error) {
        self.note_error(e);
        self.losses.record(inode.ino, blocks, e.clone());
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

    /// Retires the inode's batches that have completed, oldest first, unless another thread does.
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

    /// The credits of a batch's handle, if one handle is enough; 0 if it needs none.
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
                // Off the queue before the token closes: a thread that waited for the token finds the queue without it.
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
                    inode.losses.written();
                    self.losses.written();
                    self.flusher.written(u64::from(piece.len) << self.geo.block_bits);
                }
                Err(e) => self.lose(inode, &piece, e),
            }
        }
        self.finish_open(open);
    }

    /// One piece whose data is on the device. `open`: a handle from the piece before, or for the next one.
    fn settle_piece(&self, open: &mut Option<Handle>, inode: &Arc<Inode>, piece: &mut Piece, size: u64) -> Result<()> {
        // Not beyond the size that a truncation has set meanwhile.
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
                        // A split takes one node more. The next try finds converted blocks as they are.
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
    /// takes. After an error the caller frees the blocks that are left in `chosen`.
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

    /// The data of a piece is lost: the ledgers record it, the pages drop it, and its promised space is free again.
    /// Blocks that were written to again meanwhile keep their newer data and its promise.
    fn lose(&self, inode: &Arc<Inode>, piece: &Piece, e: Error) {
        let start = u64::from(piece.lblk.0);
        self.note_loss(inode, Some(start..start + u64::from(piece.len)), &e);
        inode.pages.lose(start, piece.len, &inode.losses, e, |start, blocks| {
            let promised = {
                let _map = inode.map.write();
                inode.es.remove(LogicalBlock(start as u32), blocks)
            };
            self.alloc.unreserve(promised);
        });
        self.flusher.written(u64::from(piece.len) << self.geo.block_bits);
    }

    /// Leaves the inode to the thread that may wait. Once that has ended no thread waits for a handle: the journal
    /// refuses one at once, and the tokens of the inode close.
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
