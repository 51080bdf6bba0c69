//! The two sizes of a file. Users see the one in memory. A crash leaves the one on disk, which follows it: it never
//! passes over bytes that are not on the device yet, or that a truncation cut off (Linux: `i_disksize`).
//!
//! [`Filesystem::move_size`] moves them. Only data in folios moves the one in memory alone
//! ([`extant_cache::AddressSpace::write`]). The rest of a block behind a size may be anything on the device. Before an
//! operation moves a size over it, [`Filesystem::prepare_size`] has zeros written there.
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
//! *disk*: the block with the size on disk is on the device, with zeros behind the data. *end*: so is the block with
//! the end of the file, and blocks that were cut off behind it are free.
//!
//! # Locking
//! The inode's `inode` lock, exclusively, or the owner of a batch in writeback; the size is under `inode meta` (60).

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

/// How far the sizes move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Each becomes at least as large: the bytes before it are on the device, or holes.
    AtLeast,
    /// Both become equal.
    Exactly,
}

impl Filesystem {
    /// Moves both sizes, and writes the inode. [`credits::DISK_SIZE`].
    pub(crate) fn move_size(&self, handle: &mut Handle, inode: &Arc<Inode>, to: u64, how: Move) -> Result<()> {
        self.set_large_file(handle, to)?;
        match how {
            Move::AtLeast => {
                // Nothing moves here in writeback, which stays within the size in memory.
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

    /// Whether the size on disk stays behind: data over it was lost, and no pending write will move it to the end of
    /// the file. Only the write of the last block does.
    pub(super) fn is_left_behind(&self, inode: &Inode) -> bool {
        let size = inode.size();
        let is_behind = || inode.meta.read().desc.size < size;
        // Checked again after the block, which leaves memory after the size has moved.
        is_behind() && !inode.pages.block_dirty((size - 1) >> self.geo.block_bits) && is_behind()
    }

    /// Called before an operation other than writeback moves the sizes to `to`: neither may uncover bytes that an
    /// earlier truncation cut off. Writeback cannot, as it writes the blocks of a file in order. It passes only a block
    /// whose data is lost, like a hole.
    pub(super) fn prepare_size(&self, inode: &Arc<Inode>, to: u64) -> Result<()> {
        let size = inode.meta.read().desc.size;
        if size < to && !size.is_multiple_of(u64::from(self.geo.block_size)) {
            let block = size >> self.geo.block_bits;
            // The block's data leaves memory after the size on disk has passed it, or when it is lost.
            if !inode.pages.block_dirty(block) && inode.meta.read().desc.size == size {
                let end = (block + 1) << self.geo.block_bits;
                self.zero_range_cached(inode, size, end.min(inode.size()))?;
            }
            self.write_tail(inode, size, inode.losses.position())?;
        }
        self.prepare_end(inode, to)
    }

    /// As [`Filesystem::prepare_size`], for the size in memory alone: the bytes of the last block behind the end become
    /// part of a file that grows to `to`. They are zero in memory. On the device they may be anything, also if the
    /// block is clean, as a read may have cached it. Whole blocks there, which a truncation could not remove, go first.
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
            // Writing the last byte again makes the whole block dirty and changes nothing.
            let mut last = [0];
            self.read_locked(inode, size - 1, &mut last)?;
            self.write_delayed(inode, size - 1, &last)?;
        }
        self.write_tail(inode, size, before)
    }

    /// Writes the block at `pos`, an end of the file, if it is dirty, and waits for it. A larger size must not be
    /// durable before that: a crash would uncover bytes that an earlier truncation cut off. Reports data lost since
    /// `before`.
    fn write_tail(&self, inode: &Arc<Inode>, pos: u64, before: Position<'_>) -> Result<()> {
        let block = pos >> self.geo.block_bits;
        // Delayed and unwritten blocks read as zeros until their content is there.
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

    /// The superblock says that files of 2 GiB and more exist, from the transaction on that makes the first.
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
