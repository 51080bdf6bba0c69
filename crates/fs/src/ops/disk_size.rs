//! The two sizes of a file. Users see the size in memory. After a crash, the file has the size on disk. That size
//! follows the other, but never advances over bytes that are not on the device yet, or that a truncation removed
//! (Linux: `i_disksize`).
//!
//! [`Maps::move_size`] changes both. Only writes into folios change the size in memory without the other
//! ([`extant_cache::AddressSpace::write`]). On the device, the rest of a block past a size may contain anything. Before
//! an operation moves a size over it, `ContentView::prepare_size` (`tail.rs`) writes zeros there.
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
use extant_journal::Handle;

use crate::error::Result;
use crate::inode::Inode;
use crate::maps::Maps;
use crate::ops::credits;
use crate::volume::Volume;

/// How the sizes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Each becomes at least this large; the bytes before it are on the device, or holes.
    AtLeast,
    /// Both become equal to it.
    Exactly,
}

impl Volume {
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

impl Maps {
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
}

#[cfg(test)]
#[path = "disk_size_tests.rs"]
mod tests;
