//! One run of blocks for small files that are written in sequence. They are then adjacent on the device in spite of
//! other writers, and fill whole requests.
//!
//! Main type: [`Together`], part of a plug (`writeback/plug.rs`). Together with the blocks of the first file it chooses
//! those of the following files ([`extant_mballoc::Allocator::choose_with`]; the policy may refuse). When the plug is
//! sent, the rest of the run becomes free again, so that no thread waits for space that a plug holds.
//!
//! What it does not do: map blocks. The allocator keeps a run in memory like all chosen blocks, and a crash leaves no
//! trace of it.
//!
//! # Locking
//! None; reads inodes' `meta` and `map`.

use std::ops::Range;
use std::sync::Arc;

use crate::clusters::Chosen;
use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::writeback::batch::WritebackReason;

/// The maximum length of a file that shares a run, in blocks.
const FILE_BLOCKS_MAX: u64 = 16;
/// The maximum length of a run, in blocks (4 MiB with blocks of 4 KiB).
const RUN_BLOCKS_MAX: u32 = 1024;

/// The rest of a run, and the inodes that may use it.
struct Run {
    rest: Chosen,
    inodes: Range<u64>,
    why: WritebackReason,
}

/// The current run, and the inodes that follow.
#[derive(Default)]
pub(crate) struct Together<'f> {
    coming: &'f [Arc<Inode>],
    run: Option<Run>,
    /// No run was long enough for more than one file, so do not try again.
    gave_up: bool,
}

impl<'f> Together<'f> {
    /// Announces the inodes that follow the current one. Announcing an inode that is not written does no harm.
    pub(crate) fn expect(&mut self, coming: &'f [Arc<Inode>]) {
        self.coming = coming;
    }

    /// The number of blocks that the following inodes will need, in addition to the `own` blocks of this small new
    /// file. The total is at most `most`.
    pub(crate) fn wanted_beside(&self, fs: &Filesystem, inode: &Inode, own: u32, most: u64) -> u32 {
        if self.coming.is_empty() || self.gave_up || !fs.placement.alloc.puts_together() || !may_share(fs, inode) {
            return 0;
        }
        let beside = fs.placement.inodes_beside(inode.ino);
        let coming = self.coming.iter().take_while(|next| {
            beside.contains(&u64::from(next.ino.0)) && next.pages.dirty_bytes() > 0 && may_share(fs, next)
        });
        let most = most.min(u64::from(RUN_BLOCKS_MAX)).saturating_sub(u64::from(own));
        let mut blocks = 0;
        for next in coming {
            blocks += next.pages.dirty_bytes() >> fs.geo.block_bits;
            if blocks >= most {
                break;
            }
        }
        blocks.min(most) as u32
    }

    /// Takes blocks for this file from the run, if they are suitable.
    pub(crate) fn take(&mut self, fs: &Filesystem, inode: &Inode, len: u32, why: WritebackReason) -> Option<Chosen> {
        let Run { mut rest, inodes, why: for_why } = self.run.take()?;
        let fits = rest.len >= len && for_why == why && inodes.contains(&u64::from(inode.ino.0));
        if !fits || !may_share(fs, inode) {
            fs.placement.alloc.cancel(rest);
            return None;
        }
        self.run = rest.split_off(len).map(|rest| Run { rest, inodes, why });
        fs.placement.alloc.hand_over(&mut rest);
        Some(rest)
    }

    /// Keeps the chosen blocks after this file's for the following inodes. `wanted` is the number that was requested.
    pub(crate) fn keep(
        &mut self,
        fs: &Filesystem,
        inode: &Inode,
        rest: Option<Chosen>,
        wanted: u32,
        why: WritebackReason,
    ) {
        self.gave_up |= wanted > 0 && rest.is_none();
        self.run = rest.map(|rest| Run { rest, inodes: fs.placement.inodes_beside(inode.ino), why });
    }

    pub(crate) fn give_back(&mut self, fs: &Filesystem) {
        if let Some(run) = self.run.take() {
            fs.placement.alloc.cancel(run.rest);
        }
    }
}

/// Whether the file is small and has no data on disk. (A file with indirect blocks cannot be placed everywhere.)
fn may_share(fs: &Filesystem, inode: &Inode) -> bool {
    inode.size() <= FILE_BLOCKS_MAX << fs.geo.block_bits && inode.meta.read().desc.size == 0 && inode.map.read().extents
}
