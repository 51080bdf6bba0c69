//! fallocate(2): preallocation, holes, zeros.
//!
//! Main function: [`Filesystem::fallocate`].
//!
//! What it does not do: choose or map blocks (`mapping.rs`).
//!
//! # Locking
//! `inode`, exclusively; `inode writeback` (25) while blocks change under folios.

use extant_ondisk::LogicalBlock;
use extant_ondisk::inode::FileType;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::flags::Change;
use crate::ops::mapping::LAST_BLOCK;
use crate::ops::pages::ContentView;
use extant_es::EsState;

/// The operation of fallocate(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocate blocks for the range. The size grows unless `keep_size` is set.
    Allocate {
        /// The size does not grow.
        keep_size: bool,
    },
    /// The range becomes a hole.
    PunchHole,
    /// The range reads as zeros and has blocks, including those that it had before.
    ZeroRange {
        /// The size does not grow.
        keep_size: bool,
    },
}

impl ContentView<'_> {
    /// Allocates unwritten blocks for the holes of the range. The size grows to its end, unless `keep_size` is set.
    fn preallocate(&self, pos: u64, end: u64, keep_size: bool) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let bits = fs.geo.block_bits;
        // Linux: `ext4_fallocate` compares with `i_disksize`.
        let grows = !keep_size && (end > inode.size() || self.is_left_behind());
        if grows {
            self.prepare_size(end)?;
        }
        let mut lblk = (pos >> bits) as u32;
        let last = ((end - 1) >> bits).min(u64::from(LAST_BLOCK.0)) as u32;
        while lblk <= last {
            let (n, state) = fs.status(inode, LogicalBlock(lblk), last - lblk + 1)?;
            let n = if state == EsState::Hole {
                let n = n.min(1 << 15);
                fs.transact(fs.allocate_credits(inode, n), |handle| {
                    let got = fs.preallocate_range(handle, inode, LogicalBlock(lblk), n)?;
                    fs.write_inode_data(handle, inode)?;
                    Ok(got)
                })?
            } else {
                n
            };
            lblk = lblk.saturating_add(n);
        }
        if grows {
            fs.transact(credits::DISK_SIZE, |handle| fs.move_size(handle, inode, end, Move::AtLeast))?;
        }
        Ok(())
    }

    /// Makes a hole of the range. Its whole blocks are freed, and the rest is filled with zeros.
    fn punch(&self, pos: u64, end: u64) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let size = inode.size();
        self.zero_edges(pos, end)?;
        let (first, stop) = self.whole_blocks(pos, end);
        if first >= stop {
            return Ok(());
        }
        // Pending appends must not leave the size on disk before blocks that remain mapped after the hole.
        let raise = size.min(end);
        self.prepare_size(raise)?;
        let _wb = inode.wb.lock();
        inode.writes.wait(); // as in `drop_pages`
        let removed = fs.remove_blocks(inode, LogicalBlock(first as u32), LogicalBlock((stop - 1) as u32));
        self.drop_unwritten_pages(first, stop, removed.is_ok());
        let mut handle = removed?;
        let r = if inode.meta.read().desc.size < raise {
            let credits = fs.with_quota_credits(credits::DISK_SIZE);
            let enough = handle.has_credits(credits);
            let room = if enough { Ok(()) } else { handle.restart(credits).map_err(Error::from) };
            room.and_then(|()| fs.move_size(&mut handle, inode, raise, Move::AtLeast))
        } else {
            Ok(())
        };
        fs.end(handle, r)
    }

    /// Zeros a range without writing zeros. Its whole blocks become unwritten, and holes get unwritten blocks. Only
    /// partial blocks at its ends are written (Linux: `ext4_zero_range`).
    fn zero_range(&self, pos: u64, end: u64, keep_size: bool) -> Result<()> {
        self.zero_edges(pos, end)?;
        let (first, stop) = self.whole_blocks(pos, end);
        if first < stop {
            let size = self.inode.size().min(end);
            self.prepare_size(size)?;
            let _wb = self.inode.wb.lock();
            self.inode.writes.wait(); // as in `drop_pages`
            let r = self.fs.unwrite(self.inode, LogicalBlock(first as u32), (stop - first) as u32, size);
            self.drop_unwritten_pages(first, stop, r.is_ok());
            r?;
        }
        self.preallocate(pos, end, keep_size)
    }

    /// Writes zeros to the partial blocks at the ends of the range, within the file.
    fn zero_edges(&self, pos: u64, end: u64) -> Result<()> {
        let bs = 1u64 << self.fs.geo.block_bits;
        let size = self.inode.size();
        let data_end = end.min(size);
        if pos < data_end {
            // The partial blocks: a part of a single block, or the tail of the first and the head of the last.
            let (first_end, last_start) = (pos.div_ceil(bs) * bs, data_end / bs * bs);
            if pos / bs == (data_end - 1) / bs
                && (!pos.is_multiple_of(bs) || (!data_end.is_multiple_of(bs) && data_end != size))
            {
                self.zero_cached(pos, data_end)?;
            } else {
                if !pos.is_multiple_of(bs) {
                    self.zero_cached(pos, first_end.min(data_end))?;
                }
                if !data_end.is_multiple_of(bs) && data_end < size {
                    self.zero_cached(last_start, data_end)?;
                }
            }
        }
        Ok(())
    }

    /// The whole blocks of the range: the first, and one past the last. The block with the end of the file counts as
    /// whole if the range reaches the end.
    fn whole_blocks(&self, pos: u64, end: u64) -> (u64, u64) {
        let bs = 1u64 << self.fs.geo.block_bits;
        let stop = if end >= self.inode.size() { end.div_ceil(bs) } else { end / bs };
        (pos.div_ceil(bs), stop.min(u64::from(LAST_BLOCK.0) + 1))
    }

    /// As `Writeback::drop_pages`, for blocks whose content an operation removes. If the operation failed half-way
    /// (not `all`), blocks that are still written keep their content in memory, because the device may have older
    /// content.
    fn drop_unwritten_pages(&self, from: u64, to: u64, all: bool) {
        let mut at = from;
        while at < to {
            let n = if all {
                to - at
            } else {
                // If the map cannot be read, the state of its blocks is unknown.
                let Ok((n, state)) = self.fs.status(self.inode, LogicalBlock(at as u32), (to - at) as u32) else {
                    return;
                };
                if matches!(state, EsState::Written(_) | EsState::Delayed) {
                    at += u64::from(n);
                    continue;
                }
                u64::from(n)
            };
            self.fs.writeback.flusher.dropped(self.inode.pages.discard(at, at + n));
            at += n;
        }
    }
}

impl Filesystem {
    /// The operations of fallocate(2). The caller drops privileges ([`Filesystem::drop_privileges`]).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::FileTooBig`] past the format's limit; [`Error::Invalid`] for an empty range;
    /// [`Error::IsDirectory`]; [`Error::NotSupported`] for a special file, or for anything but holes without extents;
    /// [`Error::NotPermitted`] because of the inode's flags; [`Error::ReadOnly`].
    pub fn fallocate(&self, inode: &InodeRef, mode: FallocateMode, pos: u64, len: u64) -> Result<()> {
        let op = Operation::begin(self)?;
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
        if mode != FallocateMode::PunchHole && end > self.content(inode).max_size() {
            return Err(Error::FileTooBig);
        }
        let carve = || {
            let _exclusive = inode.rw.write();
            let preallocates = matches!(mode, FallocateMode::Allocate { .. });
            inode.may_change(if preallocates { Change::Preallocate } else { Change::Carve })?;
            self.encryption(inode).file_key()?;
            let _table = self.hold_slots([inode])?;
            self.inline(inode).move_out()?;
            self.check_form(inode)?;
            let content = self.content(inode);
            match mode {
                FallocateMode::Allocate { keep_size } => content.preallocate(pos, end, keep_size)?,
                FallocateMode::PunchHole => content.punch(pos, end.min(content.max_size()))?,
                FallocateMode::ZeroRange { keep_size } => content.zero_range(pos, end, keep_size)?,
            }
            let now = self.now();
            self.transact(credits::INODE, |handle| self.stamp(handle, inode, now))
        };
        self.change_data(inode, || op.retry_no_space(carve))
    }
}
