//! Where blocks and inodes go, and how many are free.
//!
//! Main type: [`Placement`] owns the group descriptors ([`Groups`]), the allocator of blocks ([`BlockAllocator`]), the
//! reserve ([`Reserve`]) and the counts of free inodes. `ialloc.rs` has its choice of inode numbers.
//!
//! What it does not do: know inodes, maps or operations. Callers say for which inode and for whom they need space, and
//! record the errors that it returns.
//!
//! # Locking
//! None of its own; the groups and the allocator take theirs (70 to 74) within the calls.

use std::sync::Arc;

use extant_base::append::{AppendVec, Latest};
use extant_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use extant_cache::{Budget, Shrinker};
use extant_ondisk::superblock::Geometry;

use crate::clusters::BlockAllocator;
use crate::groups::Groups;
use crate::reserve::Reserve;

/// Blocks, inode numbers, and their free counts.
pub(crate) struct Placement {
    pub(crate) groups: Arc<Groups>,
    pub(crate) alloc: BlockAllocator,
    pub(crate) reserve: Reserve,
    /// The layout, which may grow.
    pub(crate) geo: Arc<Latest<Geometry>>,
    /// For each group, the place where the search for a free inode begins; see [`crate::ialloc`].
    pub(crate) inode_hints: AppendVec<AtomicU32>,
    pub(crate) free_inodes: AtomicI64,
    /// The blocks that statfs does not count: those of the file system's own structures.
    pub(crate) overhead: AtomicU64,
    budget: Arc<Budget>,
    /// The memory of the allocator that is charged to the budget.
    buddy_bytes: AtomicUsize,
}

impl Placement {
    pub(crate) fn new(
        groups: Arc<Groups>,
        alloc: BlockAllocator,
        reserve: Reserve,
        overhead: u64,
        budget: Arc<Budget>,
    ) -> Placement {
        let (_, free_inodes) = groups.totals();
        let geo = groups.geo.clone();
        Placement {
            groups,
            alloc,
            reserve,
            inode_hints: (0..geo.group_count()).map(|_| AtomicU32::new(0)).collect(),
            geo,
            free_inodes: AtomicI64::new(free_inodes as i64),
            overhead: AtomicU64::new(overhead),
            budget,
            buddy_bytes: AtomicUsize::new(0),
        }
    }

    /// The memory for block groups, in bytes, which does not depend on the contents of the caches.
    pub(crate) fn fixed_bytes(&self) -> u64 {
        (self.groups.memory() + self.alloc.memory_fixed() + self.inode_hints.len() * 4) as u64
    }

    /// Adjusts the budget to the memory that the allocator's buddy bitmaps take now.
    pub(crate) fn charge_buddies(&self) {
        let now = self.alloc.memory_used();
        if self.buddy_bytes.load(Ordering::Relaxed) != now {
            let before = self.buddy_bytes.swap(now, Ordering::Relaxed);
            self.budget.charge(now as u64);
            self.budget.uncharge(before as u64);
        }
    }
}

/// Frees buddy bitmaps, which can be built again from the block bitmaps.
impl Shrinker for Placement {
    fn reclaimable(&self) -> u64 {
        self.alloc.memory_used() as u64
    }

    fn shrink(&self, bytes: u64) -> u64 {
        let buddies = self.alloc.drop_unused_buddies(bytes as usize) as u64;
        self.charge_buddies();
        buddies
    }
}

impl Drop for Placement {
    /// Other mounts may share the budget.
    fn drop(&mut self) {
        self.budget.uncharge(self.buddy_bytes.load(Ordering::Relaxed) as u64);
    }
}
