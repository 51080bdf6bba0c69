//! Dirty folios to the device (Linux: `ext4_writepages`).
//!
//! For each run of dirty blocks: choose blocks where they are delayed, then write, one request for each physically
//! contiguous piece. The size on disk moves in the same handle that maps the blocks, and the handle's transaction waits
//! for the data before it commits (ordered mode). Unwritten blocks are converted after their data is on the device. A block
//! whose earlier write is in flight is waited for.
//!
//! # Locking
//! `inode writeback` (25) for the whole call: truncation waits for it. No handle is open while data is written.

use std::sync::Arc;

use extant_block::{Bio, BioFlags, BioVec, Completion};
use extant_cache::{AddressSpaceOps, DirtyRun, IoToken, RunCompletion, WritebackReason};
use extant_ondisk::{BlockNr, LogicalBlock};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::map::es::EsState;
use crate::ops::data::Want;
use crate::options::DataMode;
use crate::reserve::Caller;

/// Blocks taken from the address space at once.
const BATCH_BLOCKS: u64 = 4096;

impl AddressSpaceOps for Inode {
    fn write_pages(&self, _reason: WritebackReason) {
        let (Some(fs), Some(me)) = (self.fs.upgrade(), self.me.upgrade()) else { return };
        fs.write_pages(&me);
    }
}

impl Filesystem {
    /// Starts writing everything dirty of the inode. Errors are kept for its next fsync.
    pub(crate) fn write_pages(&self, inode: &Arc<Inode>) {
        let _wb = inode.wb.lock();
        self.write_pages_locked(inode);
    }

    /// The caller holds the inode's writeback lock.
    pub(crate) fn write_pages_locked(&self, inode: &Arc<Inode>) {
        self.write_dirty(inode, 0, u64::MAX);
        if inode.meta.read().lazy_times
            && let Err(e) = self.start(1).and_then(|mut h| self.write_inode(&mut h, inode))
        {
            self.write_failed(inode, &e);
        }
    }

    /// Writes the blocks of `[from, to)` that are dirty now; what is dirtied behind the write is left for another call. Waits
    /// for a block whose earlier write is in flight. The caller holds the inode's writeback lock.
    pub(crate) fn write_dirty(&self, inode: &Arc<Inode>, mut from: u64, to: u64) {
        loop {
            let taken = inode.pages.take_dirty(from, to, BATCH_BLOCKS);
            match taken.runs.last() {
                Some(last) => from = last.start + u64::from(last.blocks),
                None if taken.blocked => {
                    let _ = inode.io.wait(); // whoever failed noted the lost write
                }
                None => break,
            }
            for run in taken.runs {
                self.write_run(inode, run);
            }
        }
    }

    /// Keeps the failure for fsync.
    fn write_failed(&self, inode: &Inode, e: &Error) {
        self.note_error(e);
        inode.note_lost_write();
    }

    /// Writes one run; the caller holds the inode's writeback lock.
    fn write_run(&self, inode: &Arc<Inode>, run: DirtyRun) {
        let bits = self.geo.block_bits;
        let (mut done, total) = (0u32, run.blocks);
        while done < total {
            let lblk = LogicalBlock(run.start as u32 + done);
            match self.write_extent(inode, &run, lblk, total - done, done) {
                Ok(n) => done += n,
                Err(e) => {
                    // What is left of the run cannot be written: its data is lost, and fsync says so once.
                    let rest = total - done;
                    self.write_failed(inode, &e);
                    inode.pages.finish(u64::from(lblk.0), rest, RunCompletion::Lost);
                    self.flusher.sub_bytes(u64::from(rest) << bits);
                    let promised = {
                        let _map = inode.map.write();
                        inode.es.remove(lblk, rest)
                    };
                    self.alloc.unreserve(promised);
                    return;
                }
            }
        }
    }

    /// Writes the blocks from `lblk` on that share one state; returns how many.
    fn write_extent(&self, inode: &Arc<Inode>, run: &DirtyRun, lblk: LogicalBlock, max: u32, skip: u32) -> Result<u32> {
        let bits = self.geo.block_bits;
        let (len, state) = self.status(inode, lblk, max)?;
        let end_of = |n: u32| ((u64::from(lblk.0) + u64::from(n)) << bits).min(inode.size());
        match state {
            EsState::Written(block) => {
                let token = if inode.meta.read().desc.size < end_of(len) {
                    let mut handle = self.start(2)?;
                    self.set_large_file(&mut handle, end_of(len))?;
                    self.grow_disk_size(inode, end_of(len));
                    self.write_inode_data(&mut handle, inode)?;
                    Some(handle.ordered_io())
                } else {
                    None
                };
                self.submit_extent(inode, run, skip, block, lblk, len, token);
                Ok(len)
            }
            EsState::Unwritten(block) => {
                self.submit_extent(inode, run, skip, block, lblk, len, None);
                // Only blocks whose data is there may become readable.
                inode.io.wait()?;
                self.finish_unwritten(inode, lblk, len, end_of(len))?;
                Ok(len)
            }
            EsState::Delayed | EsState::Hole => {
                let want = if state == EsState::Delayed { Want::Promised } else { Want::Written };
                let mut tries = 0;
                loop {
                    let mut handle = self.start(self.allocate_credits(inode, len))?;
                    // Whoever made it wait is not asked again whether he may have the space.
                    match Caller::ROOT.run(|| self.allocate_range(&mut handle, inode, lblk, len, want)) {
                        Ok((block, n)) => {
                            self.set_large_file(&mut handle, end_of(n))?;
                            self.grow_disk_size(inode, end_of(n));
                            self.write_inode_data(&mut handle, inode)?;
                            let token = (self.options.data == DataMode::Ordered).then(|| handle.ordered_io());
                            drop(handle);
                            self.submit_extent(inode, run, skip, block, lblk, n, token);
                            return Ok(n);
                        }
                        Err(e) if e.is_no_space() && tries < 3 => {
                            tries += 1;
                            drop(handle);
                            self.alloc.discard_all_under_pressure();
                            self.journal.commit_running()?;
                        }
                        Err(e) => return Err(e),
                    }
                }
            }
        }
    }

    /// Sends `len` blocks of the run, from its block `skip` on, to `block`. The token, if any, is finished with the write.
    #[allow(clippy::too_many_arguments)] // one caller above; a struct would only rename them
    fn submit_extent(
        &self,
        inode: &Arc<Inode>,
        run: &DirtyRun,
        skip: u32,
        block: BlockNr,
        lblk: LogicalBlock,
        len: u32,
        token: Option<IoToken>,
    ) {
        let bits = self.geo.block_bits;
        let max_transfer = (self.dev.limits().max_transfer as usize).max(1 << bits);
        let mut vecs = slice_vecs(&run.vecs, (skip as usize) << bits, (len as usize) << bits);
        let mut offset = block.0 << bits;
        let mut first = u64::from(lblk.0);
        let mut token = token;
        while !vecs.is_empty() {
            let (piece, rest) = split_vecs(vecs, max_transfer);
            vecs = rest;
            let bytes: usize = piece.iter().map(|v| v.len).sum();
            let blocks = (bytes >> bits) as u32;
            let (inode, flusher) = (inode.clone(), self.flusher.clone());
            let flight = inode.io.begin();
            let last = if vecs.is_empty() { token.take() } else { token.as_ref().map(IoToken::split) };
            let start = first;
            let done = move |c: Completion| {
                let how = if c.result.is_ok() { RunCompletion::Written } else { RunCompletion::Lost };
                if c.result.is_err() {
                    inode.note_lost_write();
                }
                inode.pages.finish(start, blocks, how);
                flusher.sub_bytes(bytes as u64);
                // The commit goes on even if data was lost: its inode tells.
                drop(last);
                flight.done(c.result);
            };
            self.dev.submit(Bio::write(offset, piece, BioFlags::empty(), Box::new(done)));
            offset += bytes as u64;
            first += u64::from(blocks);
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
