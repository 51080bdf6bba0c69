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
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::ops::credits;
use crate::ops::disk_size::Move;
use crate::ops::mapping::LAST_BLOCK;
use crate::orphan::Over;
use extant_es::EsState;

impl Filesystem {
    /// Sets the size. The caller holds the inode's lock exclusively and sets the times.
    pub(crate) fn truncate_locked(&self, inode: &Arc<Inode>, new: u64) -> Result<()> {
        // This needs the key, because the rest of the last block is zeroed in plaintext.
        self.encryption(inode).file_key()?;
        if new > self.max_size(inode) {
            return Err(Error::FileTooBig);
        }
        if self.inline(inode).resize(new)? {
            return Ok(());
        }
        self.check_form(inode)?;
        let bs = u64::from(self.geo.block_size);
        let old = inode.size();
        // This is also needed when the file shrinks, because the size on disk may be even smaller.
        self.prepare_size(inode, new)?;
        if new > old {
            return self.transact(credits::DISK_SIZE, |handle| self.move_size(handle, inode, new, Move::AtLeast));
        }
        let _wb = inode.wb.lock();
        // Pages under writeback may still move the size on disk.
        inode.writes.wait();
        if !new.is_multiple_of(bs) && new < old {
            self.zero_range_cached(inode, new, old.min(new.div_ceil(bs) * bs))?;
        }
        self.orphans.note_cut(inode.ino);
        self.transact(credits::TRUNCATE_BEGIN, |handle| {
            self.orphans.add(handle, inode)?;
            // This also applies if the size on disk increases here, because data before the new end is waiting for
            // writeback. A hole may follow that data, and nothing else would ever move the size on disk over the hole
            // (Linux: `ext4_setattr` does the same).
            self.move_size(handle, inode, new, Move::Exactly)
        })?;
        self.writeback.drop_pages(&inode.writes, &inode.pages, new.div_ceil(bs));
        self.finish_truncate(inode)
    }

    fn end_truncate(&self, mut handle: Handle, inode: &Arc<Inode>) -> Result<()> {
        let r = (|handle: &mut Handle| {
            let credits = self.with_quota_credits(credits::TRUNCATE_END);
            if !handle.has_credits(credits) {
                handle.restart(credits)?;
            }
            self.orphans.remove(handle, inode, Over::Truncation)?;
            self.write_inode_data(handle, inode)
        })(&mut handle);
        self.end(handle, r)
    }

    /// Completes a truncation, also after a crash or an error: frees the blocks past the size.
    pub(crate) fn finish_truncate(&self, inode: &Arc<Inode>) -> Result<()> {
        let first = inode.size().div_ceil(u64::from(self.geo.block_size));
        self.inline(inode).cut()?;
        let handle = if !self.is_inline(inode) && first <= u64::from(LAST_BLOCK.0) {
            self.orphans.note_cut(inode.ino);
            self.remove_blocks(inode, LogicalBlock(first as u32), LAST_BLOCK)?
        } else {
            self.start(credits::TRUNCATE_END)?
        };
        self.end_truncate(handle, inode)
    }

    /// Whether the block may contain anything except zeros. Clean pages of a hole or of unwritten blocks contain zeros.
    pub(super) fn has_content(&self, inode: &Arc<Inode>, block: u64) -> Result<bool> {
        // Check the folios first: data that leaves them between the two checks has been mapped and written.
        let written = |state| matches!(state, (_, EsState::Written(_)));
        Ok(inode.pages.block_dirty(block) || written(self.status(inode, LogicalBlock(block as u32), 1)?))
    }

    /// Zeros `[from, to)`, which lies within one block, if the block has content.
    pub(super) fn zero_range_cached(&self, inode: &Arc<Inode>, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from >> self.geo.block_bits;
        if !self.has_content(inode, block)? {
            return Ok(());
        }
        let zeros = vec![0u8; (to - from) as usize];
        self.write_delayed(inode, from, &zeros)?;
        if to >= inode.size() {
            // Cached bytes past the end of the file must remain zero as well.
            inode.pages.zero_tail(to);
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "truncate_tests.rs"]
mod tests;
