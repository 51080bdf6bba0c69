//! The list of inodes, which the policies of Linux keep separate from the pages.
//!
//! Main types: [`Slab`] (the number of inodes that a reclaimer still has to examine), [`shrink`]. Linux: mm/vmscan.c,
//! `shrink_slab`, and fs/inode.c, `prune_icache_sb`. A scan of pages is followed by a scan of the same share of inodes.
//!
//! # Locking
//! The lock of [`super::super::Reclaim`] protects everything here.

use super::super::core::{self, Core, Field, Host};
use super::super::frame::State;

/// The number of the list of inodes.
pub(super) const SLAB: u8 = 5;

#[derive(Default)]
pub(super) struct Slab {
    /// The number of inodes to examine in proportion to the examined pages.
    owed: f64,
}

impl Slab {
    /// Records that a reclaimer has examined `n` of `all` pages. Linux examines twice that share of inodes
    /// (`DEFAULT_SEEKS`).
    pub fn scanned(&mut self, field: &Field, n: u64, all: u64) {
        self.owed += 2.0 * n as f64 * field.frames.len(SLAB) as f64 / (all + 1) as f64;
    }

    /// The number of inodes to examine now, at least `least`.
    pub fn due(&mut self, field: &Field, least: u64) -> u64 {
        let len = field.frames.len(SLAB);
        let n = (self.owed as u64).min(len);
        self.owed = (self.owed - n as f64).min(len as f64);
        n.max(least)
    }
}

/// Examines `n` inodes, and frees those that were not used since the last look.
pub(super) fn shrink(core: &mut Core, n: u64, host: &mut dyn Host) {
    for _ in 0..n {
        let (field, _) = core.parts();
        let Some(id) = field.frames.tail(SLAB) else { break };
        field.scan();
        field.counts.slabs_scanned += 1;
        if field.frames.touches().take(id) > 0 || field.frames.state(id).told() != State::CLEAN {
            field.frames.push(SLAB, id);
        } else {
            core::free(core, id, host);
        }
    }
}
