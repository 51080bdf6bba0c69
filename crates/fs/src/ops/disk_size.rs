//! The size of a file on disk, which follows the one in memory: it never passes over bytes that are not on the device
//! yet, or that were there before (Linux: `i_disksize`).
//!
//! Writeback moves it when data is on the device ([`Filesystem::write_disk_size`]); a truncation moves both sizes at
//! once ([`Filesystem::write_both_sizes`]). Where data was lost it stays behind, until an operation sets that size
//! again. An operation that uncovers bytes behind the size on disk, or maps blocks there, first has the rest of the
//! last block zeroed on the device: behind the size on disk ([`Filesystem::settle_disk_size`]), and behind the end of
//! the file where that moves ([`Filesystem::settle_end`]).
//!
//! # Locking
//! The inode's `inode` lock, exclusively, or the owner of a batch in writeback; the size is under `inode meta` (60).

use std::sync::Arc;

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

impl Filesystem {
    fn grow_disk_size(&self, inode: &Inode, to: u64) {
        let mut m = inode.meta.write();
        if m.desc.size < to {
            m.desc.size = to;
        }
    }

    /// Moves the size on disk up to `to`, if it is less, and writes the inode. [`credits::DISK_SIZE`].
    pub(crate) fn write_disk_size(&self, handle: &mut Handle, inode: &Arc<Inode>, to: u64) -> Result<()> {
        self.set_large_file(handle, to)?;
        self.grow_disk_size(inode, to);
        self.write_inode_data(handle, inode)
    }

    /// The size that users see and the one that a crash leaves. [`credits::DISK_SIZE`].
    pub(super) fn write_both_sizes(&self, handle: &mut Handle, inode: &Arc<Inode>, new: u64) -> Result<()> {
        self.set_large_file(handle, new)?;
        inode.set_size(new);
        inode.meta.write().desc.size = new;
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

    /// Called before an operation other than writeback moves the size on disk to `to`: it must not uncover bytes behind
    /// the old one that an earlier truncation cut off. Writeback cannot, as it writes the blocks of a file in order. It
    /// passes only a block whose data is lost, like a hole.
    pub(crate) fn settle_disk_size(&self, inode: &Arc<Inode>, to: u64) -> Result<()> {
        let size = inode.meta.read().desc.size;
        if size >= to || size.is_multiple_of(u64::from(self.geo.block_size)) {
            return Ok(());
        }
        let block = size >> self.geo.block_bits;
        // The block's data leaves memory after the size on disk has passed it, or when it is lost.
        if !inode.pages.block_dirty(block) && inode.meta.read().desc.size == size {
            let end = (block + 1) << self.geo.block_bits;
            self.zero_range_cached(inode, size, end.min(inode.size()))?;
        }
        self.settle_tail(inode, size, inode.losses.position())
    }

    /// Called before the file grows over its end: the bytes of the last block behind it become part of the file. They
    /// are zero in memory. On the device they may be anything, also if the block is clean, as a read may have cached
    /// it. Whole blocks there, which a truncation could not remove, go first.
    pub(crate) fn settle_end(&self, inode: &Arc<Inode>) -> Result<()> {
        if self.orphans.is_cut_short(inode.ino) {
            let _wb = inode.wb.lock();
            inode.writes.wait();
            self.finish_truncate(inode)?;
        }
        let size = inode.size();
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
        self.settle_tail(inode, size, before)
    }

    /// Writes the block at `pos`, an end of the file, if it is dirty, and waits for it. A larger size must not be
    /// durable before that: a crash would uncover bytes that an earlier truncation cut off. Reports data lost since
    /// `before`.
    fn settle_tail(&self, inode: &Arc<Inode>, pos: u64, before: Position<'_>) -> Result<()> {
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
            handle.has_credits(credits::SUPER + credits::INODE);
            self.modify_superblock(handle, |sb| {
                sb.set_large_file();
            })?;
        }
        Ok(())
    }
}
