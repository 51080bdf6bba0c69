//! One run of blocks for small files that are written one after the other, so that they lie side by side whoever else
//! writes meanwhile, and fill whole requests.
//!
//! Main type: [`Together`], part of a plug (`writeback/plug.rs`). With the first of them the blocks of
//! those that follow are chosen ([`extant_mballoc::Allocator::choose_with`]; the policy may say no). What is left when
//! the plug is sent is free again: nobody waits for space that a plug holds.
//!
//! What it does not do: it maps nothing. A run is held by the allocator as all chosen blocks are, and a crash leaves
//! nothing of it.
//!
//! # Locking
//! None; looks at inodes' `meta` and `map` as readers.

use std::ops::Range;
use std::sync::Arc;

use extant_mballoc::Chosen;

use crate::filesystem::Filesystem;
use crate::inode::Inode;
use crate::writeback::batch::WritebackReason;

/// A longer file has a run of its own.
const FILE_BLOCKS_MAX: u64 = 16;
/// What a plug holds at most (4 MiB) with blocks of 4 KiB.
const RUN_BLOCKS_MAX: u32 = 1024;

/// The rest of a run, and for whom it is.
struct Run {
    rest: Chosen,
    inodes: Range<u64>,
    why: WritebackReason,
}

/// The run that is handed out, and who comes next.
#[derive(Default)]
pub(crate) struct Together<'f> {
    coming: &'f [Arc<Inode>],
    run: Option<Run>,
    /// There was no run for more than one: nobody looks again.
    gave_up: bool,
}

impl<'f> Together<'f> {
    /// These are written after the one that is now; those that are not are no harm.
    pub(crate) fn expect(&mut self, coming: &'f [Arc<Inode>]) {
        self.coming = coming;
    }

    /// How many blocks those who come will want beside the `own` ones of this small new file; with these at most
    /// `most`.
    pub(crate) fn wanted_beside(&self, fs: &Filesystem, inode: &Inode, own: u32, most: u64) -> u32 {
        if self.coming.is_empty() || self.gave_up || !fs.alloc.puts_together() || !may_share(fs, inode) {
            return 0;
        }
        let beside = fs.inodes_beside(inode.ino);
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

    /// Blocks for this file out of the run, if it is for such.
    pub(crate) fn take(&mut self, fs: &Filesystem, inode: &Inode, len: u32, why: WritebackReason) -> Option<Chosen> {
        let Run { mut rest, inodes, why: for_why } = self.run.take()?;
        let fits = rest.len >= len && for_why == why && inodes.contains(&u64::from(inode.ino.0));
        if !fits || !may_share(fs, inode) {
            fs.alloc.cancel(rest);
            return None;
        }
        self.run = rest.split_off(len).map(|rest| Run { rest, inodes, why });
        fs.alloc.hand_over(&mut rest);
        Some(rest)
    }

    /// What lies behind the blocks of this file is for those who come; `wanted` would have been.
    pub(crate) fn keep(
        &mut self,
        fs: &Filesystem,
        inode: &Inode,
        rest: Option<Chosen>,
        wanted: u32,
        why: WritebackReason,
    ) {
        self.gave_up |= wanted > 0 && rest.is_none();
        self.run = rest.map(|rest| Run { rest, inodes: fs.inodes_beside(inode.ino), why });
    }

    pub(crate) fn give_back(&mut self, fs: &Filesystem) {
        if let Some(run) = self.run.take() {
            fs.alloc.cancel(run.rest);
        }
    }
}

/// A small file of which nothing is on the disk. (One that is mapped by indirect blocks can not go everywhere.)
fn may_share(fs: &Filesystem, inode: &Inode) -> bool {
    inode.size() <= FILE_BLOCKS_MAX << fs.geo.block_bits && inode.meta.read().desc.size == 0 && inode.map.read().extents
}
