//! Changes of a file's size.
//!
//! Main functions: [`ContentView::truncate`]; [`ContentView::finish_truncate`], also after a crash.
//!
//! The orphan list makes truncation crash-safe. The first handle records the inode as an orphan and sets the smaller
//! size. Further handles, as many as the journal needs, free the blocks. The last handle removes the inode from the
//! list.
//!
//! What it does not do: free blocks (`mapping.rs`), or move the sizes safely (`disk_size.rs`, `tail.rs`).
//!
//! # Locking
//! `inode`, exclusively, then `inode writeback`.

use extant_journal::Handle;
use extant_ondisk::LogicalBlock;

use crate::error::{Error, Result};
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::mapping::LAST_BLOCK;
use crate::ops::pages::ContentView;
use crate::orphan::Over;
use extant_es::EsState;

impl ContentView<'_> {
    /// Sets the size. The caller holds the inode's lock exclusively and sets the times.
    pub(crate) fn truncate(&self, new: u64) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        // This needs the key, because the rest of the last block is zeroed in plaintext.
        fs.encryption(inode).file_key()?;
        if new > self.max_size() {
            return Err(Error::FileTooBig);
        }
        if fs.inline(inode).resize(new)? {
            return Ok(());
        }
        fs.check_form(inode)?;
        let bs = u64::from(fs.geo.block_size);
        let old = inode.size();
        // This is also needed when the file shrinks, because the size on disk may be even smaller.
        self.prepare_size(new)?;
        if new > old {
            return fs.transact(credits::DISK_SIZE, |handle| fs.move_size(handle, inode, new, Move::AtLeast));
        }
        let _wb = inode.wb.lock();
        // Pages under writeback may still move the size on disk.
        inode.writes.wait();
        if !new.is_multiple_of(bs) && new < old {
            self.zero_cached(new, old.min(new.div_ceil(bs) * bs))?;
        }
        fs.orphans.note_cut(inode.ino);
        fs.transact(credits::TRUNCATE_BEGIN, |handle| {
            fs.orphans.add(handle, inode)?;
            // This also applies if the size on disk increases here, because data before the new end is waiting for
            // writeback. A hole may follow that data, and nothing else would ever move the size on disk over the hole
            // (Linux: `ext4_setattr` does the same).
            fs.move_size(handle, inode, new, Move::Exactly)
        })?;
        fs.writeback.drop_pages(&inode.writes, &inode.pages, new.div_ceil(bs));
        self.finish_truncate()
    }

    /// Completes a truncation, also after a crash or an error: frees the blocks past the size.
    pub(crate) fn finish_truncate(&self) -> Result<()> {
        let (fs, inode) = (self.fs, self.inode);
        let first = inode.size().div_ceil(u64::from(fs.geo.block_size));
        fs.inline(inode).cut()?;
        let handle = if !fs.is_inline(inode) && first <= u64::from(LAST_BLOCK.0) {
            fs.orphans.note_cut(inode.ino);
            fs.remove_blocks(inode, LogicalBlock(first as u32), LAST_BLOCK)?
        } else {
            fs.start(credits::TRUNCATE_END)?
        };
        self.end_truncate(handle)
    }

    /// Zeros `[from, to)`, which lies within one block, if the block has content.
    pub(super) fn zero_cached(&self, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from >> self.fs.geo.block_bits;
        if !self.has_content(block)? {
            return Ok(());
        }
        let zeros = vec![0u8; (to - from) as usize];
        self.write_delayed(from, &zeros)?;
        if to >= self.inode.size() {
            // Cached bytes past the end of the file must remain zero as well.
            self.inode.pages.zero_tail(to);
        }
        Ok(())
    }

    /// Whether the block may contain anything except zeros. Clean pages of a hole or of unwritten blocks contain zeros.
    pub(super) fn has_content(&self, block: u64) -> Result<bool> {
        // Check the folios first: data that leaves them between the two checks has been mapped and written.
        let written = |state| matches!(state, (_, EsState::Written(_)));
        Ok(self.inode.pages.block_dirty(block) || written(self.fs.status(self.inode, LogicalBlock(block as u32), 1)?))
    }

    /// Removes the orphan record of a truncation, and writes the inode.
    fn end_truncate(&self, mut handle: Handle) -> Result<()> {
        let r = (|handle: &mut Handle| {
            let credits = self.fs.with_quota_credits(credits::TRUNCATE_END);
            if !handle.has_credits(credits) {
                handle.restart(credits)?;
            }
            self.fs.orphans.remove(handle, self.inode, Over::Truncation)?;
            self.fs.write_inode_data(handle, self.inode)
        })(&mut handle);
        self.fs.end(handle, r)
    }
}

#[cfg(test)]
#[path = "truncate_tests.rs"]
mod tests;
