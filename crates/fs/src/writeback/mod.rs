//! Writing dirty folios to the device (Linux: `ext4_writepages`, fs/ext4/page-io.c).
//!
//! The data is written before the map. For each run of dirty blocks, writeback chooses blocks for the delayed ones
//! (only in memory: [`extant_mballoc::Allocator::choose`]), and writes with one request for each physically contiguous
//! piece. When the data is on the device, a handle marks the blocks as used, maps or converts them, and advances the
//! size on disk. So after a crash or a failure nothing refers to blocks without their data, and a commit need not wait
//! for data. If clusters have several blocks, the delayed ones are mapped as unwritten before their data is written,
//! under a separate handle; see [`crate::ops`], `promises.rs`.
//!
//! Main types: [`plug::WritebackPlug`] (inodes that are written together, so that requests for adjacent blocks merge),
//! [`batch::Batch`] (data on its way from the folios to the device), [`together`] (adjacent blocks for small files),
//! [`asks`] (fsyncs that occupy no thread), [`work`] (the queues of the two threads that continue the work of others),
//! [`state::Writeback`] (the mount's part that owns these queues and the list of dirty inodes), [`Retirement`] (the end
//! of writes whose data is on the device).
//!
//! The thread that wrote a batch retires it, if it waits for its requests or if all of them have already completed (an
//! image file that the kernel caches). Otherwise a separate thread retires it, because that takes a handle; completions
//! wake that thread ([`Retirement::step`]). A writer that does not wait leaves work to that thread if it cannot get the
//! necessary handle immediately ([`patience`]). A batch that needs no handle (overwrites) is retired where it
//! completes. Without threads the writer waits.
//!
//! What it does not do: decide when data is written. The flusher does, and the operations that need it.
//!
//! # Locking
//! `inode writeback` (25) is held while blocks are chosen and requests are sent, but not until they complete. To wait
//! for completion, a thread waits for the tokens ([`extant_cache::Writebacks::wait`]), with that lock held and without
//! an open handle. No thread waits for that lock, or for tokens, while its plug contains requests, because the holder
//! may be waiting for those. `batches` (202) and `completed batches` (203) are leaves.

pub(crate) mod ask_step;
pub(crate) mod asks;
pub(crate) mod batch;
pub(crate) mod patience;
pub(crate) mod plug;
pub(crate) mod state;
mod together;
pub(crate) mod work;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use extant_cache::{AddressSpaceOps, Listed, RunCompletion};
use extant_journal::Handle;
use extant_ondisk::LogicalBlock;

use crate::clusters::Chosen;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::handles::finish_open;
use crate::inode::Inode;
use crate::map::Progress;
use crate::maps::Maps;
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::pages::ContentView;
use crate::volume::Volume;
use crate::writeback::asks::Ask;
use crate::writeback::batch::{Batch, Completed, Piece, Retirer, Then, WritebackReason};
use crate::writeback::patience::Patience;
use crate::writeback::plug::WritebackPlug;
use crate::writeback::state::Writeback;

impl AddressSpaceOps for Inode {
    fn write_pages(inodes: &[Arc<Inode>]) {
        if let Some(owner) = inodes.first().and_then(|inode| inode.owner.upgrade()) {
            owner.write(inodes);
        }
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

impl Inode {
    /// Whether the inode's times must still be written. The times of an inode without a name need not be: it does not
    /// survive a crash, and while the mount is frozen the times would have to wait for the thaw.
    fn times_wait(&self) -> bool {
        if !self.meta.read().lazy_times {
            return false;
        }
        let mut m = self.meta.write();
        m.lazy_times &= m.desc.links > 0;
        m.lazy_times
    }
}

/// The end of writes whose data is on the device: their blocks are mapped, their pages clean and their tokens closed.
#[derive(Clone, Copy)]
pub(crate) struct Retirement<'a> {
    maps: &'a Maps,
    writeback: &'a Writeback<Inode, Ask, Completed>,
}

impl Filesystem {
    /// The end of writes whose data is on the device.
    pub(crate) fn retirement(&self) -> Retirement<'_> {
        Retirement { maps: &self.maps, writeback: &self.writeback }
    }
}

impl Volume {
    /// The open handle if it has enough credits, otherwise a new one.
    fn handle_for<'a>(&self, open: &'a mut Option<Handle>, credits: u32) -> Result<&'a mut Handle> {
        let enough = open.as_mut().is_some_and(|h| h.has_credits(self.with_quota_credits(credits)));
        if !enough {
            finish_open(open);
            let handle = open.insert(self.start(credits)?);
            // Mapping, conversion and sizes list their changes.
            handle.set_described();
        }
        match open {
            Some(handle) => Ok(handle),
            None => Err(Error::ReadOnly), // unreachable: a handle has just been opened
        }
    }
}

impl Retirement<'_> {
    /// Retires the inode's batches that have completed, oldest first, unless another thread is doing so. Beginning with
    /// the first batch for which this thread may not take a handle, it leaves them to the thread that may.
    pub(crate) fn retire(&self, inode: &Arc<Inode>, by: Retirer) {
        let mut any = false;
        while let Some(batch) = inode.batches.begin() {
            let Some(mut handle) = self.first_handle(&batch, by) else {
                inode.batches.end(false);
                self.leave_to_thread((inode.clone(), None));
                break;
            };
            let (pieces, token) = batch.work.lock().take().unzip();
            let failed = std::mem::take(&mut *batch.failed.lock());
            self.retire_pieces(inode, pieces.unwrap_or_default(), failed, batch.size, &mut handle);
            // Remove the batch from the queue before its token closes, so that a thread which waits for the token finds
            // it removed.
            inode.batches.end(true);
            drop(token);
            any = true;
        }
        if any {
            self.writeback.flusher.settled(u64::from(inode.ino.0), &**inode);
        }
    }

    /// One round of the thread that retires batches. Returns false if the thread must end.
    pub(crate) fn step(&self, wait: Duration) -> bool {
        let work = self.writeback.completed.take(1, wait);
        let goes_on = work.is_some();
        work.into_iter().flatten().for_each(|work| self.retire_left(work));
        goes_on
    }

    /// Makes blocks dirty again that were taken but not sent.
    fn put_back(&self, inode: &Arc<Inode>, start: u64, blocks: u32) {
        let again = inode.pages.finish(start, blocks, RunCompletion::Redirty);
        let bytes = u64::from(blocks) << self.maps.geo.block_bits;
        self.writeback.flusher.put_back(u64::from(inode.ino.0), bytes, again, inode);
    }

    /// Records that the data of a piece is lost: in the ledgers, by dropping it from the pages, and by releasing its
    /// reserved space. Blocks that have been written again meanwhile keep their newer data and its reservation.
    fn lose(&self, inode: &Arc<Inode>, piece: &Piece, e: Error) {
        let start = u64::from(piece.lblk.0);
        self.note_loss(inode, Some(start..start + u64::from(piece.len)), &e);
        inode.pages.lose(start, piece.len, &inode.losses, e, |start, blocks| {
            let _map = inode.map.write();
            self.maps.forget_status(inode, LogicalBlock(start as u32), blocks.into());
        });
        self.writeback.flusher.written(u64::from(piece.len) << self.maps.geo.block_bits);
    }

    /// Leaves the inode to the thread that may wait ([`Retirement::step`]). If that thread has ended, this thread
    /// retires the batches: the journal then refuses handles immediately, and the tokens of the inode close.
    fn leave_to_thread(&self, work: Completed) {
        self.writeback.completed.push(vec![work]).into_iter().for_each(|work| self.retire_left(work));
    }

    /// Writes the times, with the given handle or a new one.
    fn write_times(&self, inode: &Arc<Inode>, handle: Option<Handle>) {
        let written = handle.map_or_else(|| self.maps.start(credits::INODE), Ok).and_then(|mut handle| {
            let r = self.maps.write_inode(&mut handle, inode);
            if !inode.is_dir() {
                handle.set_described();
            }
            self.maps.end(handle, r)
        });
        if let Err(e) = written {
            inode.meta.write().lazy_times = false;
            self.note_loss(inode, None, &e);
            inode.losses.record(inode.ino, None, e);
        }
    }

    /// Retires what another thread has left to this one, which may wait.
    fn retire_left(&self, (inode, times): Completed) {
        self.retire(&inode, Retirer::Waits);
        if let Some(token) = times {
            if inode.times_wait() {
                self.write_times(&inode, None);
            }
            drop(token);
            self.writeback.flusher.settled(u64::from(inode.ino.0), &*inode);
        }
    }

    /// Makes pieces readable from the device whose requests have completed, except those in `failed`. `open` is a
    /// handle to begin with.
    fn retire_pieces(
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
                        self.maps.placement.alloc.cancel(chosen);
                    }
                    Err(Error::Device(e.clone()))
                }
                None => self.settle_piece(open, inode, &mut piece, size).inspect_err(|e| {
                    if let Some(handle) = open.take() {
                        let _ = self.maps.end::<()>(handle, Err(e.clone()));
                    }
                }),
            };
            match settled {
                Ok(()) => {
                    inode.pages.finish(u64::from(piece.lblk.0), piece.len, RunCompletion::Written);
                    inode.losses.written();
                    self.writeback.written(u64::from(piece.len) << self.maps.geo.block_bits);
                }
                Err(e) => self.lose(inode, &piece, e),
            }
        }
        finish_open(open);
    }

    /// Retires one piece whose data is on the device. `open` is a handle from the previous piece, and for the next one.
    fn settle_piece(&self, open: &mut Option<Handle>, inode: &Arc<Inode>, piece: &mut Piece, size: u64) -> Result<()> {
        // A truncation may have set a smaller size meanwhile.
        let end = piece.end_bytes(self.maps.geo.block_bits).min(size).min(inode.size());
        match std::mem::replace(&mut piece.then, Then::Nothing) {
            Then::Nothing if inode.meta.read().desc.size >= end => Ok(()),
            Then::Nothing => {
                let handle = self.maps.handle_for(open, credits::DISK_SIZE)?;
                self.maps.move_size(handle, inode, end, Move::AtLeast)
            }
            Then::Convert => {
                let (mut from, to, mut tries) = (piece.lblk, piece.lblk.0 + piece.len, 0);
                loop {
                    let handle = self.maps.handle_for(open, self.maps.convert_credits(inode))?;
                    match self.maps.convert_some(handle, inode, from, to - from.0, end) {
                        Ok(Progress::Done) => return Ok(()),
                        Ok(Progress::Stopped { at }) => {
                            from = at;
                            finish_open(open);
                        }
                        // A split needs another node. The next try skips the blocks that have been converted.
                        Err(e) => self.maps.bring_space(e, &mut tries, open)?,
                    }
                }
            }
            Then::Map(chosen) => {
                let mut chosen = Some(chosen);
                let r = self.maps.settle_chosen(open, inode, piece.lblk, &mut chosen, end);
                self.maps.cancel_chosen(&mut chosen);
                r
            }
        }
    }

    /// The handle to begin the batch with. `Some(None)` if handles are taken when they are needed; `None` if the
    /// retirer may not take those that the batch needs.
    fn first_handle(&self, batch: &Batch, by: Retirer) -> Option<Option<Handle>> {
        match by {
            Retirer::Waits => Some(None),
            Retirer::Completion => (batch.plain && batch.failed.lock().is_empty()).then_some(None),
            Retirer::Tries => match self.credits_alone(batch)? {
                0 => Some(None),
                credits => self.maps.try_start(credits).map(|mut handle| {
                    handle.set_described();
                    Some(handle)
                }),
            },
        }
    }

    /// The credits of a batch if one handle is enough for it; 0 if it needs no handle.
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
            (0, true) => self.maps.convert_credits(&batch.inode),
            (len, _) => self.maps.allocate_credits(&batch.inode, len),
        })
    }

    /// Records a lost write of the inode in the superblock and in the mount's ledger. The caller records it in the
    /// inode's own.
    fn note_loss(&self, inode: &Inode, blocks: Option<Range<u64>>, e: &Error) {
        self.maps.note_error(e);
        self.writeback.losses.record(inode.ino, blocks, e.clone());
    }
}

impl Maps {
    /// Adds chosen blocks whose data is on the device to the file, and moves the size on disk up to `end`. Returns the
    /// number of added blocks, even if others failed.
    pub(crate) fn map_written(
        &self,
        inode: &Arc<Inode>,
        lblk: LogicalBlock,
        chosen: Chosen,
        end: u64,
    ) -> (u32, Result<()>) {
        let mut open = None;
        let len = chosen.len;
        let mut chosen = Some(chosen);
        let r = self.settle_chosen(&mut open, inode, lblk, &mut chosen, end);
        let left = chosen.as_ref().map_or(0, |c| c.len);
        self.cancel_chosen(&mut chosen);
        let r = match open {
            Some(handle) => self.end(handle, r),
            None => r,
        };
        (len - left, r)
    }

    /// Maps chosen blocks whose data is on the device, and moves the size on disk up to `end`, in as many handles as
    /// needed. After an error the caller frees the blocks that remain in `chosen`.
    fn settle_chosen(
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
                    let end = end.min(u64::from(at.0) << self.geo.block_bits);
                    self.move_size(handle, inode, end, Move::AtLeast)?;
                    if chosen.is_some() {
                        finish_open(open);
                    }
                }
                // There is no space for a node of the map, but a commit may free some.
                Err(e) => self.bring_space(e, &mut tries, open)?,
            }
        }
        Ok(())
    }
}

impl ContentView<'_> {
    /// Starts writing all dirty data of the inode, and waits until it can be read back from the device. The caller
    /// holds no handle.
    pub(crate) fn write_and_wait(&self) {
        if !self.inode.pages.is_empty() {
            WritebackPlug::new(self.fs, WritebackReason::Background, Patience::Finishes).write_pages(self.inode);
        }
        self.inode.writes.wait();
    }
}
