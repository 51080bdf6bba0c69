//! Size changes, preallocation, holes; where data and holes are.
//!
//! Truncation is crash-safe by the orphan list: the first handle records the inode as an orphan and sets the smaller size,
//! the blocks go in as many handles as the journal needs, the last handle takes the inode off the list.
//!
//! # Locking
//! `inode` exclusively, then `inode writeback`.

use std::sync::Arc;

use extant_journal::Handle;
use extant_ondisk::LogicalBlock;
use extant_ondisk::inode::FileType;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::map::Progress;
use crate::map::es::EsState;
use crate::ops::flags::Change;

/// What fallocate(2) should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Blocks for the range; the size grows unless it is to be kept.
    Allocate { keep_size: bool },
    /// The range becomes a hole.
    PunchHole,
    /// The range reads as zeros and has blocks, those that it had before among them.
    ZeroRange { keep_size: bool },
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// The last logical block that a map can hold.
const LAST_BLOCK: LogicalBlock = LogicalBlock(0xFFFF_FFFE);

impl Filesystem {
    /// Sets the size; the caller holds the inode's lock exclusively. Times are the caller's.
    pub(crate) fn truncate_locked(&self, inode: &Arc<Inode>, new: u64) -> Result<()> {
        if new > self.max_size(inode) {
            return Err(Error::FileTooBig);
        }
        let bs = u64::from(self.geo.block_size);
        let old = inode.size();
        // Also when it shrinks: the size on disk may be smaller yet.
        self.settle_disk_size(inode, new)?;
        if new > old {
            if !old.is_multiple_of(bs) {
                self.zero_range_cached(inode, old, new.min(old.div_ceil(bs) * bs))?;
                self.settle_tail(inode, old)?;
            }
            return self.transact(3, |handle| self.write_both_sizes(handle, inode, new));
        }
        let _wb = inode.wb.lock();
        // What is on its way may still move the size on disk.
        inode.writes.wait();
        if !new.is_multiple_of(bs) && new < old {
            self.zero_range_cached(inode, new, old.min(new.div_ceil(bs) * bs))?;
        }
        let first = new.div_ceil(bs);
        self.transact(5, |handle| {
            self.orphan_add(handle, inode)?;
            // The size on disk also when it grows, because data before the new end waits to be written: what lies behind that
            // data may be a hole, and nothing else would ever move the size on disk over it (Linux: `ext4_setattr` likewise).
            self.write_both_sizes(handle, inode, new)
        })?;
        self.drop_pages(inode, first, u64::MAX);
        if first <= u64::from(LAST_BLOCK.0) {
            let handle = self.remove_blocks(inode, LogicalBlock(first as u32), LAST_BLOCK)?;
            self.end_truncate(handle, inode)
        } else {
            self.end_truncate(self.start(4)?, inode)
        }
    }

    /// What users see and what a crash leaves. 3 credits.
    fn write_both_sizes(&self, handle: &mut Handle, inode: &Arc<Inode>, new: u64) -> Result<()> {
        self.set_large_file(handle, new)?;
        inode.set_size(new);
        inode.meta.write().desc.size = new;
        self.write_inode_data(handle, inode)
    }

    fn end_truncate(&self, mut handle: Handle, inode: &Arc<Inode>) -> Result<()> {
        let r = (|handle: &mut Handle| {
            if !handle.has_credits(4) {
                handle.restart(4)?;
            }
            self.orphan_remove(handle, inode)?;
            self.write_inode_data(handle, inode)
        })(&mut handle);
        self.end(handle, r)
    }

    /// Ends a truncation that a crash interrupted: blocks after the size go.
    pub(crate) fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        let first = inode.size().div_ceil(u64::from(self.geo.block_size));
        let handle = self.remove_blocks(inode, LogicalBlock(first.min(u64::from(LAST_BLOCK.0)) as u32), LAST_BLOCK)?;
        self.end_truncate(handle, inode)
    }

    /// Forgets cached blocks in `[from, to)`; the caller holds the inode's writeback lock.
    pub(crate) fn drop_pages(&self, inode: &Inode, from: u64, to: u64) {
        // What is on its way must not land in blocks that are about to be freed.
        inode.writes.wait();
        let gone = inode.pages.discard(from, to);
        self.flusher.sub_bytes(gone);
    }

    /// As [`Filesystem::drop_pages`] for blocks that were to lose their content, after that happened or (not `all`) failed on
    /// the way: what is still written keeps the content that it has in memory, for the device may have an older one.
    fn drop_unwritten_pages(&self, inode: &Arc<Inode>, from: u64, to: u64, all: bool) {
        let mut at = from;
        while at < to {
            let n = if all {
                to - at
            } else {
                // Of a map that cannot be read nothing is known.
                let Ok((n, state)) = self.status(inode, LogicalBlock(at as u32), (to - at) as u32) else { return };
                if matches!(state, EsState::Written(_) | EsState::Delayed) {
                    at += u64::from(n);
                    continue;
                }
                u64::from(n)
            };
            self.flusher.sub_bytes(inode.pages.discard(at, at + n));
            at += n;
        }
    }

    /// Unmaps and frees `from..=to`, in as many handles as it takes, and returns the last one, still open. Writeback of the
    /// range is excluded and nothing of it in flight; its cached blocks are the caller's to drop.
    pub(crate) fn remove_blocks(&self, inode: &Arc<Inode>, from: LogicalBlock, to: LogicalBlock) -> Result<Handle> {
        self.alloc.discard_preallocations(&inode.prealloc);
        let view = self.map_view(inode);
        let credits = inode.map.read().credits_for_remove(2) + 8;
        let mut handle = self.start(credits)?;
        let mut last = to;
        loop {
            let progress = {
                let mut map = inode.map.write();
                let promised = inode.es.remove(from, to.0 - from.0 + 1);
                self.alloc.unreserve(promised);
                let r = map.remove(&view, &mut handle, from, last);
                inode.absorb_map(&mut map, self.geo.block_size);
                // What failed in the middle must still be written with the inode.
                r
            };
            self.write_inode_data(&mut handle, inode)?;
            match progress {
                Ok(Progress::Done) => return Ok(handle),
                Ok(Progress::Stopped { at }) => {
                    last = at;
                    handle.restart(credits)?;
                }
                // The map is consistent, and what it lost is told to e2fsck.
                Err(e) => {
                    handle.finish();
                    self.note_cut_short(&e);
                    return Err(e);
                }
            }
        }
    }

    /// Zeros `[from, to)`, which lies within one block, where the block has content.
    fn zero_range_cached(&self, inode: &Arc<Inode>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from >> self.geo.block_bits;
        // The folios first: what leaves them between the two questions is mapped and written by then.
        if !inode.pages.block_uptodate(block)
            && !matches!(self.status(inode, LogicalBlock(block as u32), 1)?, (_, EsState::Written(_)))
        {
            return Ok(());
        }
        let zeros = vec![0u8; (to - from) as usize];
        self.write_delayed(inode, from, &zeros)?;
        if to >= inode.size() {
            // Bytes after the end of the file that were cached stay zero too.
            inode.pages.zero_tail(to);
        }
        Ok(())
    }

    /// Called before the size on disk moves to `to` for another reason than that the data before it is written: nothing
    /// behind the old one may be uncovered that an earlier truncation cut off. Writeback needs no such care, for it writes
    /// the blocks of a file in order.
    pub(crate) fn settle_disk_size(&self, inode: &Arc<Inode>, to: u64) -> Result<()> {
        let size = inode.meta.read().desc.size;
        if size >= to || size.is_multiple_of(u64::from(self.geo.block_size)) {
            return Ok(());
        }
        self.settle_tail(inode, size)
    }

    /// Sends what is in memory of the block at `pos`, an end of the file, to the device, and waits for it: a size that grows must
    /// not be durable before, or a crash would uncover what an earlier truncation cut off.
    pub(crate) fn settle_tail(&self, inode: &Arc<Inode>, pos: u64) -> Result<()> {
        let block = pos >> self.geo.block_bits;
        if !inode.pages.block_dirty(block) {
            return Ok(());
        }
        // Delayed and unwritten blocks read as zeros until their content is there.
        if let (_, EsState::Written(_)) = self.status(inode, LogicalBlock(block as u32), 1)? {
            {
                let _wb = inode.wb.lock();
                self.write_dirty(inode, block, block + 1);
            }
            inode.writes.wait();
        }
        Ok(())
    }

    /// The superblock says that files of 2 GiB and more exist, from the transaction on that makes the first.
    pub(crate) fn set_large_file(&self, handle: &mut Handle, size: u64) -> Result<()> {
        if size >= 1 << 31 && !self.sb.lock().ro_compat().contains(extant_ondisk::features::RoCompat::LARGE_FILE) {
            handle.has_credits(2);
            self.modify_superblock(handle, |sb| {
                sb.set_large_file();
            })?;
        }
        Ok(())
    }

    /// fallocate(2). Privileges are the caller's to drop ([`Filesystem::drop_privileges`]).
    pub fn fallocate(&self, inode: &InodeRef, mode: FallocateMode, pos: u64, len: u64) -> Result<()> {
        let _change = self.begin_change()?;
        if inode.file_type() != Some(FileType::Regular) {
            return Err(if inode.is_dir() { Error::IsDirectory } else { Error::NotSupported("fallocate") });
        }
        if len == 0 {
            return Err(Error::Invalid("an empty range"));
        }
        let end = pos.checked_add(len).ok_or(Error::FileTooBig)?;
        let extents = inode.map.read().extents;
        if !extents && mode != FallocateMode::PunchHole {
            return Err(Error::NotSupported("preallocation without extents"));
        }
        if mode != FallocateMode::PunchHole && end > self.max_size(inode) {
            return Err(Error::FileTooBig);
        }
        self.retry_no_space(|| {
            let _exclusive = inode.rw.write();
            let preallocates = matches!(mode, FallocateMode::Allocate { .. });
            self.may_change(inode, if preallocates { Change::Preallocate } else { Change::Carve })?;
            match mode {
                FallocateMode::Allocate { keep_size } => self.preallocate(inode, pos, end, keep_size)?,
                FallocateMode::PunchHole => self.punch(inode, pos, end.min(self.max_size(inode)))?,
                FallocateMode::ZeroRange { keep_size } => self.zero_range(inode, pos, end, keep_size)?,
            }
            let now = self.now();
            self.transact(1, |handle| {
                {
                    let mut m = inode.meta.write();
                    m.desc.mtime = now;
                    m.desc.ctime = now;
                }
                self.write_inode(handle, inode)
            })
        })?;
        self.honour_sync(&[inode])
    }

    fn preallocate(&self, inode: &Arc<Inode>, pos: u64, end: u64, keep_size: bool) -> Result<()> {
        let bits = self.geo.block_bits;
        let bs = 1u64 << bits;
        let old = inode.size();
        if !keep_size && end > old {
            self.settle_disk_size(inode, end)?;
            if !old.is_multiple_of(bs) {
                self.zero_range_cached(inode, old, end.min(old.div_ceil(bs) * bs))?;
                self.settle_tail(inode, old)?;
            }
        }
        let mut lblk = (pos >> bits) as u32;
        let last = ((end - 1) >> bits).min(u64::from(LAST_BLOCK.0)) as u32;
        while lblk <= last {
            let (n, state) = self.status(inode, LogicalBlock(lblk), last - lblk + 1)?;
            let n = if state == EsState::Hole {
                let n = n.min(1 << 15);
                let credits = self.allocate_credits(inode, n);
                self.transact(credits, |handle| {
                    let got = self.preallocate_range(handle, inode, LogicalBlock(lblk), n)?;
                    self.write_inode_data(handle, inode)?;
                    Ok(got)
                })?
            } else {
                n
            };
            lblk = lblk.saturating_add(n);
        }
        if !keep_size && end > old {
            self.transact(3, |handle| self.write_both_sizes(handle, inode, end))?;
        }
        Ok(())
    }

    /// Zeros a range without writing zeros: its whole blocks become unwritten, or get unwritten blocks where they are holes;
    /// only its ragged edges are written (Linux: `ext4_zero_range`).
    fn zero_range(&self, inode: &Arc<Inode>, pos: u64, end: u64, keep_size: bool) -> Result<()> {
        self.zero_edges(inode, pos, end)?;
        let (first, stop) = self.whole_blocks(inode, pos, end);
        if first < stop {
            let size = inode.size().min(end);
            self.settle_disk_size(inode, size)?;
            let _wb = inode.wb.lock();
            inode.writes.wait(); // as drop_pages
            let r = self.unwrite(inode, LogicalBlock(first as u32), (stop - first) as u32, size);
            self.drop_unwritten_pages(inode, first, stop, r.is_ok());
            r?;
        }
        self.preallocate(inode, pos, end, keep_size)
    }

    /// Makes written blocks unwritten, and delayed ones (whose data goes) holes; the size on disk reaches `size` then.
    fn unwrite(&self, inode: &Arc<Inode>, first: LogicalBlock, len: u32, size: u64) -> Result<()> {
        let view = self.map_view(inode);
        let mut from = first;
        let to = first.0 + len;
        loop {
            let mut handle = self.start(self.allocate_credits(inode, 1) + 8)?;
            let progress = {
                let mut map = inode.map.write();
                let promised = inode.es.remove(from, to - from.0);
                self.alloc.unreserve(promised);
                let r = map.mark_unwritten(&view, &mut handle, from, to - from.0);
                inode.absorb_map(&mut map, self.geo.block_size);
                // What failed in the middle must still be written with the inode.
                r
            };
            if matches!(progress, Ok(Progress::Done)) {
                self.grow_disk_size(inode, size);
            }
            self.write_inode_data(&mut handle, inode)?;
            // Also after an error, which leaves a consistent map.
            handle.finish();
            match progress? {
                Progress::Done => return Ok(()),
                Progress::Stopped { at } => from = at,
            }
        }
    }

    /// Zeros those parts of the range that are no whole blocks, as far as they are in the file.
    fn zero_edges(&self, inode: &Arc<Inode>, pos: u64, end: u64) -> Result<()> {
        let bs = 1u64 << self.geo.block_bits;
        let size = inode.size();
        let data_end = end.min(size);
        if pos < data_end {
            // Edges: within one block, or the tail of the first and the head of the last.
            let (first_end, last_start) = (pos.div_ceil(bs) * bs, data_end / bs * bs);
            if pos / bs == (data_end - 1) / bs
                && (!pos.is_multiple_of(bs) || (!data_end.is_multiple_of(bs) && data_end != size))
            {
                self.zero_range_cached(inode, pos, data_end)?;
            } else {
                if !pos.is_multiple_of(bs) {
                    self.zero_range_cached(inode, pos, first_end.min(data_end))?;
                }
                if !data_end.is_multiple_of(bs) && data_end < size {
                    self.zero_range_cached(inode, last_start, data_end)?;
                }
            }
        }
        Ok(())
    }

    /// The whole blocks of the range, as first and one past the last. The block with the end of the file counts as whole when
    /// the range reaches the end.
    fn whole_blocks(&self, inode: &Inode, pos: u64, end: u64) -> (u64, u64) {
        let bs = 1u64 << self.geo.block_bits;
        let stop = if end >= inode.size() { end.div_ceil(bs) } else { end / bs };
        (pos.div_ceil(bs), stop.min(u64::from(LAST_BLOCK.0) + 1))
    }

    fn punch(&self, inode: &Arc<Inode>, pos: u64, end: u64) -> Result<()> {
        let size = inode.size();
        self.zero_edges(inode, pos, end)?;
        let (first, stop) = self.whole_blocks(inode, pos, end);
        if first >= stop {
            return Ok(());
        }
        // Appends still pending must not leave the size on disk short of blocks that stay mapped behind the hole.
        let raise = size.min(end);
        self.settle_disk_size(inode, raise)?;
        let _wb = inode.wb.lock();
        inode.writes.wait(); // as drop_pages
        let removed = self.remove_blocks(inode, LogicalBlock(first as u32), LogicalBlock((stop - 1) as u32));
        self.drop_unwritten_pages(inode, first, stop, removed.is_ok());
        let mut handle = removed?;
        let r = if inode.meta.read().desc.size < raise {
            let room = if handle.has_credits(3) { Ok(()) } else { handle.restart(3).map_err(Error::from) };
            room.and_then(|()| self.write_disk_size(&mut handle, inode, raise))
        } else {
            Ok(())
        };
        self.end(handle, r)
    }

    /// lseek(2) with SEEK_DATA or SEEK_HOLE: the next offset at or after `pos` of that kind.
    pub fn seek(&self, inode: &InodeRef, pos: u64, what: Seek) -> Result<u64> {
        let _shared = inode.rw.read();
        let size = inode.size();
        if pos >= size {
            return Err(Error::NoSuchOffset);
        }
        if inode.file_type() != Some(FileType::Regular) {
            return if what == Seek::Data { Ok(pos) } else { Ok(size) };
        }
        if self.is_inline(inode) {
            return if what == Seek::Data { Ok(pos) } else { Ok(size) };
        }
        let bits = self.geo.block_bits;
        let last = ((size - 1) >> bits) as u32;
        let mut lblk = (pos >> bits) as u32;
        while lblk <= last {
            let (mut n, state) = self.status(inode, LogicalBlock(lblk), last - lblk + 1)?;
            let is_data = match state {
                EsState::Written(_) | EsState::Delayed => true,
                EsState::Hole => false,
                EsState::Unwritten(_) => {
                    // Data on its way counts; the run ends where that changes.
                    let dirty = inode.pages.block_dirty(u64::from(lblk));
                    if !inode.pages.is_empty() {
                        n = (1..n).find(|i| inode.pages.block_dirty(u64::from(lblk + i)) != dirty).unwrap_or(n);
                    }
                    if !dirty {
                        // What has left the folios meanwhile is written by now.
                        let (still, EsState::Unwritten(_)) = self.status(inode, LogicalBlock(lblk), n)? else {
                            continue;
                        };
                        n = still;
                    }
                    dirty
                }
            };
            if is_data == (what == Seek::Data) {
                return Ok(pos.max(u64::from(lblk) << bits));
            }
            lblk = lblk.saturating_add(n);
        }
        if what == Seek::Hole { Ok(size) } else { Err(Error::NoSuchOffset) }
    }
}

#[cfg(test)]
#[path = "truncate_tests.rs"]
mod tests;
