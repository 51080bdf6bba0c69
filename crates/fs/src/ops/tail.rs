//! The end of a file, before an operation moves a size over it.
//!
//! Main functions: [`ContentView::prepare_size`] and [`ContentView::prepare_end`]; see the table in `disk_size.rs`.
//!
//! What it does not do: move the sizes ([`super::disk_size`]).
//!
//! # Locking
//! The inode's `inode` lock, exclusively.

use extant_cache::Position;
use extant_es::EsState;
use extant_ondisk::LogicalBlock;

use crate::error::Result;
use crate::ops::pages::ContentView;
use crate::writeback::batch::WritebackReason;
use crate::writeback::patience::Patience;
use crate::writeback::plug::WritebackPlug;

impl ContentView<'_> {
    /// Whether the size on disk remains behind: data there was lost, and no pending write will move the size to the end
    /// of the file. Only the write of the last block moves it there.
    pub(super) fn is_left_behind(&self) -> bool {
        let inode = self.inode;
        let size = inode.size();
        let is_behind = || inode.meta.read().desc.size < size;
        // Check the size again after the block, because the block leaves memory only after the size has moved.
        is_behind() && !inode.pages.block_dirty((size - 1) >> self.fs.geo.block_bits) && is_behind()
    }

    /// Called before an operation other than writeback moves the sizes to `to`. Neither move may expose bytes that an
    /// earlier truncation removed. Writeback cannot expose any, because it writes the blocks of a file in order. It
    /// skips only a block whose data is lost, which is like a hole.
    pub(super) fn prepare_size(&self, to: u64) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let size = inode.meta.read().desc.size;
        if size < to && !size.is_multiple_of(u64::from(fs.geo.block_size)) {
            let block = size >> fs.geo.block_bits;
            // A block leaves memory only after the size on disk has passed it, or when its data is lost.
            if !inode.pages.block_dirty(block) && inode.meta.read().desc.size == size {
                let end = (block + 1) << fs.geo.block_bits;
                self.zero_cached(size, end.min(inode.size()))?;
            }
            self.write_tail(size, inode.losses.position())?;
        }
        self.prepare_end(to)
    }

    /// As [`ContentView::prepare_size`], but only for the size in memory. If the file grows to `to`, the rest of its
    /// last block becomes part of it. In memory these bytes are zero. On the device they may be anything, even if the
    /// block is clean, because a read may have cached it. Blocks past the end that a truncation could not free are
    /// freed first.
    pub(super) fn prepare_end(&self, to: u64) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let size = inode.size();
        if to <= size {
            return Ok(());
        }
        if fs.orphans.is_cut_short(inode.ino) {
            let _wb = inode.wb.lock();
            inode.writes.wait();
            self.finish_truncate()?;
        }
        if size.is_multiple_of(u64::from(fs.geo.block_size)) {
            return Ok(());
        }
        let before = inode.losses.position();
        let block = size >> fs.geo.block_bits;
        if !inode.pages.block_dirty(block) && self.has_content(block)? {
            // Writing the last byte again makes the whole block dirty without changing it.
            let mut last = [0];
            self.read_locked(size - 1, &mut last)?;
            self.write_delayed(size - 1, &last)?;
        }
        self.write_tail(size, before)
    }

    /// Writes the block at `pos`, an end of the file, if it is dirty, and waits for it. A larger size must not be
    /// durable before that, because a crash would expose bytes that an earlier truncation removed. Reports data lost
    /// since `before`.
    fn write_tail(&self, pos: u64, before: Position<'_>) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let block = pos >> fs.geo.block_bits;
        // Delayed and unwritten blocks read as zeros until their content is written.
        if inode.pages.block_dirty(block)
            && let (_, EsState::Written(_)) = fs.status(inode, LogicalBlock(block as u32), 1)?
        {
            {
                let _wb = inode.wb.lock();
                WritebackPlug::new(fs, WritebackReason::Background, Patience::Sends).write_dirty(
                    inode,
                    block,
                    block + 1,
                );
            }
            inode.writes.wait();
        }
        Ok(inode.losses.lost_since(before)?)
    }
}
