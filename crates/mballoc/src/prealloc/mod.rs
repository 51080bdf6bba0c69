//! Preallocation: blocks that are set aside for a file ([`InodePreallocation`]) or for a processor's small files
//! ([`locality::LocalityGroup`]). Linux: `struct ext4_prealloc_space`, fs/ext4/mballoc.h.
//!
//! Main type: [`Preallocation`]. Its blocks are used in core and free on disk ("held" by their group) until they are
//! allocated. Every preallocation is listed twice. Its owner's list serves requests; its group's list is where a
//! request under pressure finds all of them. A thread that takes ranges out of `remaining` owns them from then on.
//!
//! What it does not do: it does not change bitmaps. The allocator moves ranges between here and the groups.
//!
//! # Locking
//! A preallocation has its own lock ([`crate::lock::PREALLOCATION`]), taken under its owner's list lock or under none;
//! never under a group's.

pub(crate) mod in_front;
pub mod inode;
pub mod locality;
pub mod normalize;

use std::sync::Arc;

use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU32, Ordering};
use extant_ondisk::GroupNr;

pub use inode::InodePreallocation;

use crate::lock;
use crate::ranges::RangeSet;

/// One preallocated extent of one group. Linux: `struct ext4_prealloc_space`.
#[derive(Debug)]
pub struct Preallocation {
    pub group: GroupNr,
    /// First block, as an index in the group.
    pub start: u32,
    pub len: u32,
    /// The logical block that `start` is intended for. In a locality group, the home of the files that it is intended
    /// for ([`crate::group_choice::policy::GroupChoice::home`]).
    pub logical: u32,
    /// The number of remaining blocks, readable without the lock (a hint).
    left: AtomicU32,
    /// The indexes in the group that can still be allocated. Once this is empty, it stays empty.
    remaining: Mutex<RangeSet>,
}

/// Blocks cut from a preallocation, as indexes in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub start: u32,
    pub len: u32,
    /// Whether no block remains.
    pub last: bool,
}

impl Preallocation {
    pub fn new(group: GroupNr, start: u32, len: u32, logical: u32, remaining: RangeSet) -> Arc<Preallocation> {
        let left = AtomicU32::new(remaining.total());
        let remaining = Mutex::new(&lock::PREALLOCATION, remaining);
        Arc::new(Preallocation { group, start, len, logical, left, remaining })
    }

    pub fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }

    /// The end of the logical range that this preallocation is intended for.
    pub fn logical_end(&self) -> u64 {
        u64::from(self.logical) + u64::from(self.len)
    }

    /// Cuts out at most `len` blocks, intended for `logical` and its successors.
    pub fn cut_at(&self, logical: u32, len: u32) -> Option<Cut> {
        let at = self.start.checked_add(logical.checked_sub(self.logical)?)?;
        let mut remaining = self.remaining.lock();
        let (s, l) = remaining.containing(at)?;
        let n = len.min(s + l - at);
        remaining.remove(at, n);
        Some(self.cut(&remaining, at, n))
    }

    /// Cuts out the first `len` adjacent blocks.
    pub fn cut_first(&self, len: u32) -> Option<Cut> {
        let mut remaining = self.remaining.lock();
        let start = remaining.take_first_fit(len)?;
        Some(self.cut(&remaining, start, len))
    }

    fn cut(&self, remaining: &RangeSet, start: u32, len: u32) -> Cut {
        self.left.store(remaining.total(), Ordering::Relaxed);
        Cut { start, len, last: remaining.is_empty() }
    }

    /// Takes all remaining blocks; the preallocation is unusable from now on.
    pub fn take_all(&self) -> RangeSet {
        let mut remaining = self.remaining.lock();
        self.left.store(0, Ordering::Relaxed);
        std::mem::take(&mut *remaining)
    }
}
