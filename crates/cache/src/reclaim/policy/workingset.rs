//! Linux 3.15: a page that comes back soon after it left joins the active list at once.
//!
//! Main types: [`WORKINGSET`] (the rules, for [`super::lists`]), [`Nonresident`] (the pages that left). Linux:
//! mm/workingset.c of 3.15 (Johannes Weiner, "mm: thrash detection-based file cache sizing", 2014):
//! `workingset_eviction`, `workingset_refault`, `workingset_activation`, `count_shadow_nodes`.
//!
//! A clock counts the pages that leave the inactive list, by eviction or by activation (Linux: `inactive_age`). A page
//! that is evicted leaves the time behind (Linux: a shadow entry, here a ghost). When it comes back, the time that has
//! passed is its refault distance: the number of slots that the inactive list would have needed in addition. If the
//! active list has as many pages, they make room: the page is activated, and challenges them.
//!
//! The distance is compared with the active pages of files and all pages of programs, as since 5.8 (34e58cac6d8f, "mm:
//! workingset: let cache workingset challenge anon"), because pages of programs can give way, too. In the engine, which
//! has none, that is the rule of 3.15. A frame counts as its pages, as a folio does today.
//!
//! Where this is not Linux, beyond [`super::lists`]:
//! - An activation counts when reclaim meets the used page, because that is when it is moved.
//! - A page that is written, not read, is activated too. Linux does so up to 4.6.
//! - Pages of programs leave no time behind. Linux: since 5.9.
//! - The active list gives pages when it is the longer one. Since 4.7 it may be longer than that where memory is large,
//!   and since 4.12 it gives pages while others come back.
//! - When a file is removed, the entries of its pages stay until other ones need their place.
//!
//! # Locking
//! Under the lock of [`super::super::Reclaim`].

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

/// The pages that left the cache, as [`Ghosts`] remembers them.
#[derive(Default)]
pub(super) struct Nonresident {
    ghosts: Ghosts,
    /// Pages that have left the inactive list. It wraps around after 16 TiB, as Linux's does after its bits.
    age: u32,
}

impl Nonresident {
    /// `pages` have moved to the active list.
    pub fn activated(&mut self, pages: u64) {
        self.age = self.age.wrapping_add(pages as u32);
    }

    /// The frame leaves memory.
    pub fn evicted(&mut self, field: &Field, id: FrameId, pages: u64) {
        // Linux 3.15 stores the clock after this eviction (`atomic_long_inc_return`).
        self.age = self.age.wrapping_add(pages as u32);
        self.ghosts.add(field.frames.owner(id), field.frames.key(id), self.age);
    }

    /// How many pages have left the inactive list since the new frame did, if that is known.
    pub fn distance(&mut self, field: &Field, id: FrameId) -> Option<u64> {
        self.ghosts.reserve(u64::from(field.frames.live()));
        self.ghosts.take(field.frames.owner(id), field.frames.key(id), self.age).map(u64::from)
    }
}

#[cfg(test)]
mod tests;
