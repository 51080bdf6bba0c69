//! Linux 3.15: a page that is needed again soon after its eviction is put on the active list immediately.
//!
//! Main types: [`WORKINGSET`] (the rules, for [`super::lists`]), [`Nonresident`] (the evicted pages). Linux:
//! mm/workingset.c of 3.15 (Johannes Weiner, "mm: thrash detection-based file cache sizing", 2014):
//! `workingset_eviction`, `workingset_refault`, `workingset_activation`, `count_shadow_nodes`.
//!
//! A clock counts the pages that are removed from the inactive list, by eviction or by activation (Linux:
//! `inactive_age`). When a page is evicted, the time is stored (Linux: in a shadow entry, here in a ghost). When the
//! page is needed again, the time since then is its refault distance: the number of additional slots that the inactive
//! list would have needed. If the active list has as many pages, the page is activated and competes with them.
//!
//! The distance is compared with the active pages of files and all pages of programs, as since 5.8 (34e58cac6d8f, "mm:
//! workingset: let cache workingset challenge anon"), because pages of programs can be evicted, too. In Extant, which
//! has none, this is the rule of 3.15. A frame counts as its number of pages, like a folio today.
//!
//! Differences from Linux, in addition to those of [`super::lists`]:
//! - An activation counts when reclaim meets the used page, because it is moved then.
//! - A page that is written, not read, is activated, too. Linux does so up to 4.6.
//! - No time is stored for pages of programs. Linux does so since 5.9.
//! - Pages are taken from the active list if it is the longer one. Since 4.7 it may be longer than that if memory is
//!   large, and since 4.12 pages are taken from it while others are needed again.
//! - When a file is removed, the entries of its pages are kept until other entries need their place.
//!
//! # Locking
//! The lock of [`super::super::Reclaim`] protects everything here.

use super::super::core::Field;
use super::super::frame::FrameId;
use super::super::ghost::Ghosts;
use super::lists::{Congestion, Marks, Rules, Stalls, Writes};

pub(super) static WORKINGSET: Rules = Rules {
    writes: Writes::DirtyTail,
    dirty_tail: Marks::All,
    writeback_tail: Marks::All,
    congestion: Congestion::Met,
    stalls: Stalls::AgainOrUnqueued,
    sees_unstable: true,
    proportional: true,
    slab_once: true,
    refaults: true,
};

/// The evicted pages, stored in [`Ghosts`].
#[derive(Default)]
pub(super) struct Nonresident {
    ghosts: Ghosts,
    /// The number of pages that were removed from the inactive list. It wraps around after 16 TiB, as Linux's does
    /// after its number of bits.
    age: u32,
}

impl Nonresident {
    /// Records that `pages` have moved to the active list.
    pub fn activated(&mut self, pages: u64) {
        self.age = self.age.wrapping_add(pages as u32);
    }

    /// Records that the frame is evicted.
    pub fn evicted(&mut self, field: &Field, id: FrameId, pages: u64) {
        // Linux 3.15 stores the clock after this eviction (`atomic_long_inc_return`).
        self.age = self.age.wrapping_add(pages as u32);
        self.ghosts.add(field.frames.owner(id), field.frames.key(id), self.age);
    }

    /// The number of pages that were removed from the inactive list since the new frame was evicted, if that is known.
    pub fn distance(&mut self, field: &Field, id: FrameId) -> Option<u64> {
        self.ghosts.reserve(u64::from(field.frames.live()));
        self.ghosts.take(field.frames.owner(id), field.frames.key(id), self.age).map(u64::from)
    }
}

#[cfg(test)]
mod tests;
