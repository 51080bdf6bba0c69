//! Counts of a mount, for tests, the lab and a server's statistics.
//!
//! Main type: [`Statistics`].
//!
//! What it does not do: count. Each part does that for itself.
//!
//! # Locking
//! None of its own.

use extant_es::EsStats;

use crate::filesystem::Filesystem;
use crate::volume::FsStats;

/// The counts of a mount, each at the moment when it is read.
#[derive(Clone, Copy)]
pub struct Statistics<'fs> {
    fs: &'fs Filesystem,
}

impl Filesystem {
    /// Counts of operations, caches, the journal and the allocator since the mount.
    pub fn statistics(&self) -> Statistics<'_> {
        Statistics { fs: self }
    }
}

impl<'fs> Statistics<'fs> {
    /// Counts of operations.
    pub fn operations(&self) -> &'fs FsStats {
        &self.fs.stats
    }

    /// Counts of the journal.
    pub fn journal(&self) -> &'fs extant_journal::JournalStats {
        &self.fs.journal.stats
    }

    /// Counts of the extent-status cache.
    pub fn extent_status(&self) -> EsStats {
        self.fs.es.stats()
    }

    /// Counts of the block allocator.
    pub fn allocator(&self) -> extant_mballoc::Statistics {
        self.fs.placement.alloc.statistics()
    }

    /// The memory for block groups, in bytes, which does not depend on the contents of the caches.
    pub fn fixed_bytes(&self) -> u64 {
        self.fs.placement.fixed_bytes()
    }

    /// How often an inode began to share another's attribute block.
    pub fn attribute_blocks_joined(&self) -> u64 {
        self.fs.shared_xattr.joined.get()
    }

    /// How often an attribute began to share the inode of a value.
    pub fn values_shared(&self) -> u64 {
        self.fs.shared_values.shared.get()
    }

    /// Pending writes: bytes of data that are not on the device, and blocks that are reserved for data without a place.
    pub fn delayed(&self) -> (u64, u64) {
        (self.fs.writeback.flusher.dirty_bytes(), self.fs.placement.alloc.reserved_blocks())
    }

    /// The number of inodes in memory, and the number of orphans among them.
    pub fn inodes(&self) -> (usize, usize) {
        (self.fs.inodes.len(), self.fs.orphans.len())
    }
}
