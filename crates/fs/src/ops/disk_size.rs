//! The two sizes of a file. Users see the size in memory. After a crash, the file has the size on disk. That size
//! follows the other, but never advances over bytes that are not on the device yet, or that a truncation removed
//! (Linux: `i_disksize`).
//!
//! [`Filesystem::move_size`] changes both. Only writes into folios change the size in memory without the other
//! ([`extant_cache::AddressSpace::write`]). On the device, the rest of a block past a size may contain anything. Before
//! an operation moves a size over it, [`Filesystem::prepare_size`] writes zeros there.
//!
//! | step | prepared | in memory | on disk | behind the sizes afterwards |
//! |---|---|---|---|---|
//! | write past the end | end | up, with the data | stays | data that is not on the device |
//! | write-through past the end | end, then disk | up, with the one on disk | up, once the data is mapped | nothing |
//! | write back | | stays | up, once the data is mapped | nothing |
//! | write back fails | | stays | stays, and is left behind | the end of the file, until an operation sets a size |
//! | truncate up, fallocate | disk, end | up | up | nothing |
//! | truncate down, or to the same size | disk | down | as in memory | zeros in the last block, dirty; no blocks |
//! | the same, which cannot free blocks | disk | down | as in memory | these blocks, recorded as cut off |
//! | punch, zero | disk | stays | up, to the end of the range | nothing |
//! | fallocate that keeps the size | | stays | stays | unwritten blocks |
//! | crash | | as on disk | stays | anything in the last block; cut off blocks, if it is an orphan |
//! | replay of the orphan list | | stays | stays | anything in the last block; no blocks |
//!
//! *disk*: the block with the size on disk has been written, with zeros after the data. *end*: so has the block with
//! the end of the file, and blocks past the end that a truncation left are free.
//!
//! # Locking
//! The inode's `inode` lock, exclusively, or ownership of a batch in writeback. The size on disk is under `inode meta`
//! (60).

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_cache::Position;
use extant_journal::Handle;
use extant_ondisk::LogicalBlock;

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::ops::credits;
use crate::writeback::batch::WritebackReason;
use crate::writeback::patience::Patience;
use extant_es::EsState;

/// How the sizes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Each becomes at least this large; the bytes before it are on the device, or holes.
    AtLeast,
    /// Both become equal to it.
    Exactly,
}

impl Filesystem {
    /// Changes both sizes, and writes the inode. [`credits::DISK_SIZE`].
    pub(crate) fn move_size(&self, handle: &mut Handle, inode: &Arc<Inode>, to: u64, how: Move) -> Result<()> {
        self.set_large_file(handle, to)?;
        match how {
            Move::AtLeast => {
                // In writeback this changes nothing, because writeback stays within the size in memory.
                inode.size_cell().fetch_max(to, Ordering::AcqRel);
                let mut m = inode.meta.write();
                m.desc.size = m.desc.size.max(to);
            }
            Move::Exactly => {
                inode.set_size(to);
                inode.meta.write().desc.size = to;
            }
        }
        self.write_inode_data(handle, inode)
    }

    /// Whether the size on disk remains behind: data there was lost, and no pending write will move the size to the end
    /// of the file. Only the write of the last block moves it there.
    pub(super) fn is_left_behind(&self, inode: &Inode) -> bool {
        let size = inode.size();
        let is_behind = || inode.meta.read().desc.size < size;
        // Check the size again after the block, because the block leaves memory only after the size has moved.
        is_behind() && !inode.pages.block_dirty((size - 1) >> self.geo.block_bits) && is_behind()
    }

    /// Called before an operation other than writeback moves the sizes to `to`. Neither move may expose bytes that an
    /// earlier truncation removed. Writeback cannot expose any, because it writes the blocks of a file in order. It
    /// skips only a block whose data is lost, which is like a hole.
    pub(super) fn prepare_size(&self, inode: &Arc<Inode>, to: u64) -> Result<()> {
        let size = inode.meta.read().desc.size;
        if size < to && !size.is_multiple_of(u64::from(self.geo.block_size)) {
            let block = size >> self.geo.block_bits;
            // A block leaves memory only after the size on disk has passed it, or when its data is lost.
            if !inode.pages.block_dirty(block) && inode.meta.read().desc.size == size {
                let end = (block + 1) << self.geo.block_bits;
                self.zero_range_cached(inode, size, end.min(inode.size()))?;
            }
            self.write_tail(inode, size, inode.losses.position())?;
        }
        self.prepare_end(inode, to)
    }

    /// As [`Filesystem::prepare_size`], but only for the size in memory. If the file grows to `to`, the rest of its
    /// last block becomes part of it. In memory these bytes are zero. On the device they may be anything, even if the
    /// block is clean, because a read may have cached it. Blocks past the end that a truncation could not free are
    /// freed first.
    pub(super) fn prepare_end(&self, inode: &Arc<Inode>, to: u64) -> Result<()> {
        let size = inode.size();
        if to <= size {
            return Ok(());
        }
        if self.orphans.is_cut_short(inode.ino) {
            let _wb = inode.wb.lock();
            inode.writes.wait();
            self.finish_truncate(inode)?;
        }
        if size.is_multiple_of(u64::from(self.geo.block_size)) {
            return Ok(());
        }
        let before = inode.losses.position();
        let block = size >> self.geo.block_bits;
        if !inode.pages.block_dirty(block) && self.has_content(inode, block)? {
            // Writing the last byte again makes the whole block dirty without changing it.
            let mut last = [0];
            self.read_locked(inode, size - 1, &mut last)?;
            self.write_delayed(inode, size - 1, &last)?;
        }
        self.write_tail(inode, size, before)
    }

    /// Writes the block at `pos`, an end of the file, if it is dirty, and waits for it. A larger size must not be
    /// durable before that, because a crash would expose bytes that an earlier truncation removed. Reports data lost
    /// since `before`.
    fn write_tail(&self, inode: &Arc<Inode>, pos: u64, before: Position<'_>) -> Result<()> {
        let block = pos >> self.geo.block_bits;
        // Delayed and unwritten blocks read as zeros until their content is written.
        if inode.pages.block_dirty(block)
            && let (_, EsState::Written(_)) = self.status(inode, LogicalBlock(block as u32), 1)?
        {
            {
                let _wb = inode.wb.lock();
                self.writeback_plug(WritebackReason::Background, Patience::Sends).write_dirty(inode, block, block + 1);
            }
            inode.writes.wait();
        }
        Ok(inode.losses.lost_since(before)?)
    }

    /// Sets the feature for files of 2 GiB and more, in the transaction that creates the first such file.
    pub(crate) fn set_large_file(&self, handle: &mut Handle, size: u64) -> Result<()> {
        if size >= 1 << 31 && !self.sb.lock().ro_compat().contains(extant_ondisk::features::RoCompat::LARGE_FILE) {
            handle.has_credits(self.with_quota_credits(credits::SUPER + credits::INODE));
            self.modify_superblock(handle, |sb| {
                sb.set_large_file();
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "disk_size_tests.rs"]
mod tests;
