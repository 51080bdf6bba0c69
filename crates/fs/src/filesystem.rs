//! The mounted file system: its parts, in one struct.
//!
//! Main type: [`Filesystem`] (Linux: `struct super_block` and `struct ext4_sb_info`). [`Filesystem::mount`] (`mount/`)
//! creates it; the operations are in `ops/`, one file each. A part such as [`Placement`] or [`Writeback`] owns its
//! fields and methods, and does not know this type.
//!
//! # Locking
//! `growth` (3) lets one growth run at a time. `superblock` (75) guards the decoded superblock. `renames` (10)
//! serializes cross-directory renames.

use std::sync::{Arc, OnceLock, Weak};

use extant_base::append::Latest;
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::BlockDevice;
use extant_cache::reclaim::{FrameId, FrameOwner, Key, Tried};
use extant_cache::{Budget, BufferCache};
use extant_journal::Journal;
use extant_ondisk::BlockNr;
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::time::Timestamp;

use crate::error_log::ErrorLog;
use crate::evictions::Evictions;
use crate::heart::Heart;
use crate::inode::{Inode, InodeRef};
use crate::inode_table::{InodeTable, OwnInodes};
use crate::lifecycle::{Lifecycle, Right};
use crate::options::{MountOptions, OnError};
use crate::orphan::Orphans;
use crate::placement::{Placement, StatFs};
use crate::quota::Quotas;
use crate::rescue::state::Rescue;
use crate::threads::Threads;
use crate::writeback::asks::Ask;
use crate::writeback::batch::Completed;
use crate::writeback::state::Writeback;
use crate::xattr::{SharedBlocks, SharedValues};
use extant_es::{EsCache, EsStats};

pub(crate) static SUPER_CLASS: LockClass = LockClass::new("superblock", 75);
pub(crate) static GROWTH_CLASS: LockClass = LockClass::new("growth", 3);
pub(crate) static RENAME_CLASS: LockClass = LockClass::new("renames", 10);

/// Exact counts of operations since the mount.
#[derive(Debug, Default)]
pub struct FsStats {
    /// Writes that went to the device immediately ([`MountOptions::write_through_bytes`]).
    pub writes_through: Counter,
    /// Writes that went into folios, to be allocated and written to the device later.
    pub writes_delayed: Counter,
    /// Inodes freed after they lost their last name and their last user.
    pub evictions: Counter,
    /// Group descriptors that were examined to choose a group for a directory.
    pub placement_looks: Counter,
    /// Errors that a writable mount records in the superblock: damage, and failures of the device.
    pub errors: Counter,
}

/// A mounted file system.
pub struct Filesystem {
    pub(crate) me: Weak<Filesystem>,
    pub(crate) dev: Arc<dyn BlockDevice>,
    pub(crate) options: MountOptions,
    /// The layout, which may grow. Values that must agree with each other come from one borrow of it.
    pub(crate) geo: Arc<Latest<Geometry>>,
    pub(crate) sb: Mutex<SuperBlock>,
    /// The block that holds the primary superblock, and the byte offset in it.
    pub(crate) sb_place: (BlockNr, usize),
    pub(crate) budget: Arc<Budget>,
    pub(crate) cache: Arc<BufferCache>,
    pub(crate) placement: Arc<Placement>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) has_log: bool,
    /// The image has the journal only for this mount; the unmount removes it.
    pub(crate) borrowed: bool,
    /// Whether the superblock was marked clean at the mount. Without a journal, an unmount marks it clean only then.
    pub(crate) was_clean: bool,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) own_inodes: OwnInodes,
    pub(crate) es: Arc<EsCache>,
    pub(crate) writeback: Writeback<Inode, Ask, Completed>,
    pub(crate) orphans: Orphans,
    pub(crate) renames: Mutex<()>,
    pub(crate) lifecycle: Lifecycle,
    /// Errors that the superblock on the device, the log or the messages do not contain yet.
    pub(crate) error_log: ErrorLog,
    pub(crate) on_error: OnError,
    pub(crate) evictions: Evictions<Arc<Inode>>,
    pub(crate) threads: Threads,
    /// The state of the random number generator.
    pub(crate) random: AtomicU64,
    /// New files and directories are mapped by extents.
    pub(crate) new_extents: bool,
    /// Inodes may contain their file's content.
    pub(crate) inline_data: bool,
    /// The memory charged to the budget for the whole time of the mount.
    pub(crate) charged: AtomicU64,
    /// Held by a growth, so that only one runs at a time.
    pub(crate) growth: Mutex<()>,
    /// Attribute blocks that other inodes may share.
    pub(crate) shared_xattr: Arc<SharedBlocks>,
    /// Attribute values in inodes of their own that other attributes may share.
    pub(crate) shared_values: SharedValues,
    pub(crate) hash: crate::hash_settings::HashSettings,
    /// The usage of owners; only if the mount can write and the image has quotas.
    pub(crate) quotas: OnceLock<Quotas>,
    /// The MMP sequence that shows other hosts the mount; only if the mount can write and the image has `mmp`.
    pub(crate) heart: OnceLock<Heart>,
    /// The additional state of a rescue.
    pub(crate) rescue: Option<Rescue<InodeRef>>,
    /// Counts of operations.
    pub stats: FsStats,
}

impl Filesystem {
    /// From now on `tell` is called with each inode that loses its last name, while the operation still holds the inode
    /// and its locks. A server may take a reference for clients that continue to use the inode. Only the first call of
    /// this function has an effect.
    pub fn when_nameless(&self, tell: impl Fn(&InodeRef) + Send + Sync + 'static) {
        self.evictions.when_nameless(Box::new(tell));
    }

    /// The block size, in bytes.
    pub fn block_size(&self) -> u32 {
        self.geo.block_size
    }

    /// The current layout; a growth changes it.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// The device that contains the file system.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.dev
    }

    /// The name of the image, for messages.
    pub fn image(&self) -> &str {
        self.dev.name()
    }

    /// Whether the mount is read-only, from the start or after an error.
    pub fn is_read_only(&self) -> bool {
        !self.lifecycle.allows(Right::Change)
    }

    /// Whether this is a rescue: a mount that reads as much of a damaged image as possible ([`MountOptions::rescue`]).
    pub fn rescues(&self) -> bool {
        self.rescue.is_some()
    }

    /// Under rescue: the number of inodes that no name leads to, where a directory counts once with everything below
    /// it. `None` before the first listing of the root or lookup in `lost+found`.
    pub fn nameless(&self) -> Option<u64> {
        Some(self.rescue.as_ref()?.surveyed()?.count)
    }

    /// A copy of the superblock in memory.
    pub fn superblock(&self) -> SuperBlock {
        self.sb.lock().clone()
    }

    /// The memory that all caches of the mount share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Counts of the journal.
    pub fn journal_stats(&self) -> &extant_journal::JournalStats {
        &self.journal.stats
    }

    /// Whether directories may ignore the case of names (`casefold`). Different names may then refer to one entry.
    pub fn may_ignore_case(&self) -> bool {
        self.geo.casefold
    }

    /// Whether the image has its journal only while it is mounted.
    pub fn has_borrowed_journal(&self) -> bool {
        self.borrowed
    }

    /// The memory for block groups, in bytes, which does not depend on the contents of the caches.
    pub fn fixed_bytes(&self) -> u64 {
        self.placement.fixed_bytes()
    }

    /// Counts of the extent-status cache.
    pub fn es_stats(&self) -> EsStats {
        self.es.stats()
    }

    /// Counts of the block allocator.
    pub fn alloc_stats(&self) -> extant_mballoc::Statistics {
        self.placement.alloc.statistics()
    }

    /// How often an inode began to share another's attribute block.
    pub fn attribute_blocks_joined(&self) -> u64 {
        self.shared_xattr.joined.get()
    }

    /// How often an attribute began to share the inode of a value.
    pub fn values_shared(&self) -> u64 {
        self.shared_values.shared.get()
    }

    /// Pending writes: bytes of data that are not on the device, and blocks that are reserved for data without a place.
    pub fn delayed(&self) -> (u64, u64) {
        (self.writeback.flusher.dirty_bytes(), self.placement.alloc.reserved_blocks())
    }

    /// The number of inodes in memory, and the number of orphans among them.
    pub fn inode_counts(&self) -> (usize, usize) {
        (self.inodes.len(), self.orphans.len())
    }

    /// The current time, rounded to the precision of new inodes. Small inodes have no nanoseconds, and a time must not
    /// change when the inode leaves memory (Linux: `s_time_gran`).
    pub(crate) fn now(&self) -> Timestamp {
        let t = self.options.clock.wall();
        let fine = self.geo.want_extra_isize > 0;
        Timestamp { seconds: t.sec, nanos: if fine { t.nsec } else { 0 } }
    }

    pub(crate) fn arc(&self) -> Arc<Filesystem> {
        self.me.upgrade().expect("called through an Arc")
    }

    pub(crate) fn random_u32(&self) -> u32 {
        // A mixed Weyl sequence (Steele, Lea, Flood: SplitMix, 2014). It needs no lock, and its numbers depend only on
        // the seed.
        let mut z = self.random.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ z >> 31) as u32
    }

    /// Free and used space and inodes at this moment (Linux: `ext4_statfs`).
    pub fn statfs(&self) -> StatFs {
        let sb = self.sb.lock();
        let uuid = sb.uuid();
        let half = |at: usize| uuid[at..at + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        self.placement.statfs(self.options.count_overhead == Some(true), half(0) ^ half(8))
    }
}

impl FrameOwner for Filesystem {
    fn try_free(&self, key: Key, id: FrameId) -> Tried {
        self.inodes.try_free_data(key, id)
    }

    fn want_written(&self, bytes: u64) {
        self.writeback.flusher.demand(bytes);
    }

    fn unwritten(&self) -> u64 {
        self.writeback.flusher.dirty_bytes()
    }
}
