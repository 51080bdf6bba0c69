//! Size changes.
//!
//! The orphan list makes truncation crash-safe. The first handle records the inode as an orphan and sets the smaller
//! size. Further handles, as many as the journal needs, free the blocks. The last handle removes the inode from the
//! list.
//!
//! # Locking
//! `inode`, exclusively, then `inode writeback`.

use std::sync::Arc;

use extant_journal::Handle;
use extant_ondisk::LogicalBlock;

use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::maps::Maps;
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::mapping::LAST_BLOCK;
use crate::ops::pages::ContentView;
use crate::orphan::Over;
use extant_es::EsState;

impl Maps {
    /// Whether the block may contain anything except zeros. Clean pages of a hole or of unwritten blocks contain zeros.
    pub(super) fn has_content(&self, inode: &Arc<Inode>, block: u64) -> Result<bool> {
        // Check the folios first: data that leaves them between the two checks has been mapped and written.
        let written = |state| matches!(state, (_, EsState::Written(_)));
        Ok(inode.pages.block_dirty(block) || written(self.status(inode, LogicalBlock(block as u32), 1)?))
    }
}

impl ContentView<'_> {
    /// Sets the size. The caller holds the inode's lock exclusively and sets the times.
    pub(crate) fn truncate(&self, new: u64) -> Result<()> {
        // This needs the key, because the rest of the last block is zeroed in plaintext.
        self.fs.encryption(self.inode).file_key()?;
        if new > self.fs.max_size(self.inode) {
            return Err(Error::FileTooBig);
        }
        if self.fs.inline(self.inode).resize(new)? {
            return Ok(());
        }
        self.fs.check_form(self.inode)?;
        let bs = u64::from(self.fs.geo.block_size);
        let old = self.inode.size();
        // This is also needed when the file shrinks, because the size on disk may be even smaller.
        self.prepare_size(new)?;
        if new > old {
            return self
                .fs
                .transact(credits::DISK_SIZE, |handle| self.fs.move_size(handle, self.inode, new, Move::AtLeast));
        }
        let _wb = self.inode.wb.lock();
        // Pages under writeback may still move the size on disk.
        self.inode.writes.wait();
        if !new.is_multiple_of(bs) && new < old {
            self.zero_cached(new, old.min(new.div_ceil(bs) * bs))?;
        }
        self.fs.orphans.note_cut(self.inode.ino);
        self.fs.transact(credits::TRUNCATE_BEGIN, |handle| {
            self.fs.orphans.add(handle, self.inode)?;
            // This also applies if the size on disk increases here, because data before the new end is waiting for
            // writeback. A hole may follow that data, and nothing else would ever move the size on disk over the hole
            // (Linux: `ext4_setattr` does the same).
            self.fs.move_size(handle, self.inode, new, Move::Exactly)
        })?;
        self.fs.writeback.drop_pages(&self.inode.writes, &self.inode.pages, new.div_ceil(bs));
        self.finish_truncate()
    }

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

    /// Completes a truncation, also after a crash or an error: frees the blocks past the size.
    pub(crate) fn finish_truncate(&self) -> Result<()> {
        let first = self.inode.size().div_ceil(u64::from(self.fs.geo.block_size));
        self.fs.inline(self.inode).cut()?;
        let handle = if !self.fs.is_inline(self.inode) && first <= u64::from(LAST_BLOCK.0) {
            self.fs.orphans.note_cut(self.inode.ino);
            self.fs.remove_blocks(self.inode, LogicalBlock(first as u32), LAST_BLOCK)?
        } else {
            self.fs.start(credits::TRUNCATE_END)?
        };
        self.end_truncate(handle)
    }

    /// Zeros `[from, to)`, which lies within one block, if the block has content.
    pub(super) fn zero_cached(&self, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from >> self.fs.geo.block_bits;
        if !self.fs.has_content(self.inode, block)? {
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
}

#[cfg(test)]
#[path = "truncate_tests.rs"]
mod tests;
