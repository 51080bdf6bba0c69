//! Where data of a file should go.
//!
//! Main function: [`Volume::goal_behind`].
//!
//! What it does not do: choose blocks. The allocator's policies do, and start from this goal.
//!
//! # Locking
//! None of its own.

use extant_mballoc::RequestFlags;
use extant_ondisk::BlockNr;

use crate::inode::Inode;
use crate::reserve::Caller;
use crate::volume::Volume;
use crate::writeback::batch::WritebackReason;

impl Volume {
    /// The goal of data that follows the block `before`, and the flags of its request. `reserved`: space is reserved
    /// for it.
    pub(super) fn goal_behind(
        &self,
        inode: &Inode,
        before: Option<BlockNr>,
        reserved: bool,
        why: WritebackReason,
    ) -> (BlockNr, RequestFlags) {
        let mut flags = self.placement.flags_of(Caller::current());
        if before.is_some() {
            flags = flags | RequestFlags::TRY_GOAL;
        }
        if inode.users() == 0 {
            flags = flags | RequestFlags::CLOSED;
        }
        if reserved {
            // The space is reserved and must be available, so conversions and delayed writes may use the pool.
            flags = flags | RequestFlags::USE_RESERVED;
        }
        if why == WritebackReason::Fsync {
            flags = flags | RequestFlags::SYNCED;
        }
        let goal = match before {
            Some(before) => BlockNr(before.0 + 1),
            None => self.placement.inode_goal(inode.ino, inode.file_type()),
        };
        (goal, flags)
    }
}
