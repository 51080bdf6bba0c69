//! The mounted file system, and the state that its parts share.
//!
//! Main type: [`Filesystem`] (Linux: `struct super_block` and `struct ext4_sb_info`). [`Filesystem::mount`] (`mount/`)
//! creates it; the operations are in `ops/`, one file each.
//!
//! # Locking
//! `growth` (3) lets one growth run at a time. `superblock` (75) guards the decoded superblock. `renames` (10)
//! serializes cross-directory renames.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::append::{AppendVec, Latest};
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_block::BlockDevice;
use extant_cache::reclaim::{FrameId, FrameOwner, Key, Tried};
use extant_cache::{Budget, BufKind, BufferCache, BulkWindow, Flusher, LossLedger, Shrinker};
use extant_journal::{Handle, Hooks, Journal};
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr};

use crate::clusters::BlockAllocator;
use crate::error::{Error, Result};
use crate::error_log::ErrorLog;
use crate::groups::Groups;
use crate::heart::Heart;
use crate::inode::{Inode, InodeRef};
use crate::inode_table::{InodeTable, OwnInodes};
use crate::lifecycle::{Lifecycle, Right, Transition};
use crate::ops::sync::policy::SyncPolicy;
use crate::options::{MountOptions, OnError};
use crate::orphan::Orphans;
use crate::quota::Quotas;
use crate::rescue::state::Rescue;
use crate::reserve::Reserve;
use crate::threads::Threads;
use crate::writeback::asks::Ask;
use crate::writeback::batch::Completed;
use crate::writeback::work::WorkQueue;
use crate::xattr::{SharedBlocks, SharedValues};
use extant_es::{EsCache, EsStats};

pub(crate) static SUPER_CLASS: LockClass = LockClass::new("superblock", 75);
pub(crate) static GROWTH_CLASS: LockClass = LockClass::new("growth", 3);
pub(crate) static RENAME_CLASS: LockClass = LockClass::new("renames", 10);
pub(crate) static EVICT_CLASS: LockClass = LockClass::new("evictions", 98);

/// Sizes and limits of a file system (statvfs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// The size of the blocks that the counts below refer to, in bytes.
    pub block_size: u32,
    /// All blocks except the file system's own structures.
    pub blocks: u64,
    /// Free blocks, the reserve included.
    pub blocks_free: u64,
    /// Free blocks that users without privilege may use.
    pub blocks_available: u64,
    /// Inodes of all groups.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
    /// The maximum length of a name, in bytes.
    pub name_max: u32,
    /// Both halves of the UUID combined by XOR, as in the kernel.
    pub fsid: u64,
}

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

/// See [`Filesystem::when_nameless`].
pub(crate) type Nameless = Box<dyn Fn(&InodeRef) + Send + Sync>;

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
    pub(crate) groups: Arc<Groups>,
    pub(crate) alloc: BlockAllocator,
    pub(crate) reserve: Reserve,
    pub(crate) journal: Arc<Journal>,
    pub(crate) has_log: bool,
    /// The image has the journal only for this mount; the unmount removes it.
    pub(crate) borrowed: bool,
    /// Whether the superblock was marked clean at the mount. Without a journal, an unmount marks it clean only then.
    pub(crate) was_clean: bool,
    pub(crate) inodes: Arc<InodeTable>,
    pub(crate) own_inodes: OwnInodes,
    pub(crate) es: Arc<EsCache>,
    pub(crate) flusher: Arc<Flusher<Inode>>,
    /// Limits the file data that is under way to the device.
    pub(crate) bulk: BulkWindow,
    pub(crate) sync_policy: Box<dyn SyncPolicy>,
    pub(crate) orphans: Orphans,
    pub(crate) renames: Mutex<()>,
    /// For each group, the place where the search for a free inode begins; see [`crate::ialloc`].
    pub(crate) inode_hints: AppendVec<AtomicU32>,
    pub(crate) free_inodes: AtomicI64,
    pub(crate) lifecycle: Lifecycle,
    /// Errors that the superblock on the device, the log or the messages do not contain yet.
    pub(crate) error_log: ErrorLog,
    pub(crate) on_error: OnError,
    pub(crate) evictions: Mutex<VecDeque<Arc<Inode>>>,
    pub(crate) evict_work: Condvar,
    /// Signalled when an inode is queued, and when the last one has left the queue and is finished.
    pub(crate) evict_idle: Condvar,
    pub(crate) evicting: AtomicU32,
    /// The number of evictions that have ended.
    pub(crate) evicted: AtomicU64,
    /// Called with each inode that loses its last name ([`Filesystem::when_nameless`]).
    pub(crate) nameless: OnceLock<Nameless>,
    /// The time when an inode last lost its last name; 0 if none has.
    pub(crate) unlinked_ns: AtomicU64,
    /// The lost writes of all files.
    pub(crate) losses: LossLedger<Error>,
    /// Batches whose data is on the device and that still need a handle.
    pub(crate) completed: WorkQueue<Completed>,
    pub(crate) asks: WorkQueue<Ask>,
    pub(crate) threads: Threads,
    /// The state of the random number generator.
    pub(crate) random: AtomicU64,
    /// New files and directories are mapped by extents.
    pub(crate) new_extents: bool,
    /// Inodes may contain their file's content.
    pub(crate) inline_data: bool,
    /// The memory of the allocator that is charged to the budget.
    pub(crate) buddy_bytes: AtomicUsize,
    /// The memory charged to the budget for the whole time of the mount.
    pub(crate) charged: AtomicU64,
    pub(crate) overhead: AtomicU64,
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
    /// The root directory.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the inode is damaged; [`Error::Device`] if its block cannot be read.
    pub fn root(&self) -> Result<InodeRef> {
        self.iget(InodeNr::ROOT)
    }

    /// From now on `tell` is called with each inode that loses its last name, while the operation still holds the inode
    /// and its locks. A server may take a reference for clients that continue to use the inode. Only the first call of
    /// this function has an effect.
    pub fn when_nameless(&self, tell: impl Fn(&InodeRef) + Send + Sync + 'static) {
        let _ = self.nameless.set(Box::new(tell));
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
        (self.groups.memory() + self.alloc.memory_fixed() + self.inode_hints.len() * 4) as u64
    }

    /// Counts of the extent-status cache.
    pub fn es_stats(&self) -> EsStats {
        self.es.stats()
    }

    /// Counts of the block allocator.
    pub fn alloc_stats(&self) -> extant_mballoc::Statistics {
        self.alloc.statistics()
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
        (self.flusher.dirty_bytes(), self.alloc.reserved_blocks())
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

    /// Joins the running transaction. `credits` is the number of metadata blocks that the operation may change.
    pub(crate) fn start(&self, credits: u32) -> Result<Handle> {
        self.before_handle()?;
        self.log_errors()?;
        Ok(self.journal.start(self.with_quota_credits(credits).min(self.journal.max_credits()))?)
    }

    /// A handle, if one is available without waiting.
    pub(crate) fn try_start(&self, credits: u32) -> Option<Handle> {
        self.before_handle().ok()?;
        if self.error_log.is_unlogged() {
            return None;
        }
        self.journal.try_start(self.with_quota_credits(credits).min(self.journal.max_credits()))
    }

    pub(crate) fn before_handle(&self) -> Result<()> {
        self.note_damaged_groups();
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.charge_buddies();
        self.budget.relieve();
        Ok(())
    }

    /// Runs an operation's changes under a handle. An operation that fails must have undone its changes, or have called
    /// [`Filesystem::whole`], so the handle is finished in both cases. Only a panic does neither, and aborts the
    /// journal.
    pub(crate) fn transact_whole<T>(&self, credits: u32, change: impl FnOnce(&mut Handle) -> Result<T>) -> Result<T> {
        let mut handle = self.start(credits)?;
        let r = change(&mut handle);
        if r.is_err() {
            // Its records may describe what it has taken back.
            handle.set_opaque();
        }
        handle.finish();
        self.note_damaged_groups();
        r
    }

    /// Runs one change under a handle; see [`Filesystem::end`].
    pub(crate) fn transact<T>(&self, credits: u32, change: impl FnOnce(&mut Handle) -> Result<T>) -> Result<T> {
        let mut handle = self.start(credits)?;
        let r = change(&mut handle);
        self.end(handle, r)
    }

    /// Ends a handle. An operation that fails for a reason of its own (no space, say) has undone its changes. One that
    /// met damage, an inode that cannot be stored, or a failing device may have stopped anywhere: if it has changed
    /// something, nothing more becomes durable.
    pub(crate) fn end<T>(&self, mut handle: Handle, r: Result<T>) -> Result<T> {
        use Error::{Aborted, Corrupt, Device, Journal, Unsupported};
        if r.is_err() {
            // Its records may describe what it has undone.
            handle.set_opaque();
        }
        match &r {
            Err(e @ (Corrupt { .. } | Device(_) | Journal(_) | Aborted { .. } | Unsupported(_))) => {
                self.gives_up(e);
                handle.fail(e);
            }
            _ => handle.finish(),
        }
        self.note_damaged_groups();
        r
    }

    /// Adjusts the budget to the memory that the allocator's buddy bitmaps take now.
    fn charge_buddies(&self) {
        let now = self.alloc.memory_used();
        if self.buddy_bytes.load(Ordering::Relaxed) != now {
            let before = self.buddy_bytes.swap(now, Ordering::Relaxed);
            self.budget.charge(now as u64);
            self.budget.uncharge(before as u64);
        }
    }

    /// Changes the superblock under `handle`. 1 credit.
    pub(crate) fn modify_superblock(&self, handle: &mut Handle, f: impl FnOnce(&mut SuperBlock)) -> Result<()> {
        let buffer = self.cache.get(self.sb_place.0)?;
        handle.set_opaque();
        let mut sb = self.sb.lock();
        f(&mut sb);
        let at = self.sb_place.1;
        handle.modify(&buffer, BufKind::Table, |b| sb.encode_into(&mut b[at..at + 1024]));
        Ok(())
    }

    /// Makes the mount read-only. From here on it reports nothing as durable that is not. Only the first error is kept;
    /// returns whether this is the first.
    pub(crate) fn fail(&self, e: &Error) -> bool {
        let first = self.lifecycle.go_because(Transition::Fail, e);
        if first {
            self.options.messages.say(format_args!("{}: {e}; the mount is read-only from here on", self.image()));
        }
        first
    }

    /// Stops trusting the state in memory, for example after a panic in an operation. Nothing more reaches the log, the
    /// mount is read-only from here on, and the image stays marked as needing recovery. A read-only mount stays
    /// read-only and writes nothing. A frozen mount writes when it is thawed.
    pub fn abort(&self, cause: &str) {
        if self.lifecycle.go(Transition::StayReadOnly) {
            return;
        }
        let e = extant_journal::Error::Aborted { cause: cause.to_owned() };
        // This comes before the check, so that a thaw that ends before the check finds the error.
        self.note_aborted(e.clone());
        if self.lifecycle.allows(Right::Report) {
            self.journal.abort(&e);
        }
    }

    fn note_aborted(&self, error: extant_journal::Error) {
        let e = Error::from(error);
        if self.fail(&e) {
            let block = e.device_offset().map(|at| BlockNr(at >> self.geo.block_bits));
            let _ = self.tell_superblock(&e, None, block); // `fail` has reported it
        }
    }

    /// Free and used space and inodes at this moment (Linux: `ext4_statfs`).
    pub fn statfs(&self) -> StatFs {
        let sb = self.sb.lock();
        let free = self.alloc.free_blocks().saturating_sub(self.alloc.reserved_blocks());
        // As in the kernel: the blocks that an unprivileged write can get.
        let available = free.saturating_sub(self.reserve.kept_back());
        let overhead =
            if self.options.count_overhead == Some(true) { 0 } else { self.overhead.load(Ordering::Relaxed) };
        let uuid = sb.uuid();
        let half = |at: usize| uuid[at..at + 8].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        StatFs {
            block_size: self.geo.block_size,
            blocks: self.geo.blocks_count.saturating_sub(overhead),
            blocks_free: free,
            blocks_available: available,
            inodes: u64::from(self.geo.inodes_count),
            inodes_free: self.free_inodes.load(Ordering::Relaxed).max(0) as u64,
            name_max: 255,
            fsid: half(0) ^ half(8),
        }
    }
}

/// Frees buddy bitmaps, which can be built again from the block bitmaps.
impl Shrinker for Filesystem {
    fn reclaimable(&self) -> u64 {
        self.alloc.memory_used() as u64
    }

    fn shrink(&self, bytes: u64) -> u64 {
        let buddies = self.alloc.drop_unused_buddies(bytes as usize) as u64;
        self.charge_buddies();
        buddies
    }
}

impl FrameOwner for Filesystem {
    fn try_free(&self, key: Key, id: FrameId) -> Tried {
        self.inodes.try_free_data(key, id)
    }

    fn want_written(&self, bytes: u64) {
        self.flusher.demand(bytes);
    }

    fn unwritten(&self) -> u64 {
        self.flusher.dirty_bytes()
    }
}

/// The journal's calls to the file system, held weakly: the journal belongs to the file system.
pub(crate) struct JournalHooks {
    pub fs: std::sync::OnceLock<Weak<Filesystem>>,
}

impl Hooks for JournalHooks {
    fn released(&self, freed: Vec<(BlockNr, u32)>) {
        if let Some(fs) = self.fs.get().and_then(Weak::upgrade) {
            if fs.options.discard == Some(true) {
                let block = u64::from(fs.geo.block_size);
                for (start, len) in &freed {
                    // Failure is harmless: the device keeps the blocks.
                    let _ = fs.dev.discard(start.0 * block, u64::from(*len) * block);
                }
            }
            fs.alloc.release(&freed);
        }
    }

    fn closing(&self, handle: &mut Handle) -> extant_journal::Result<()> {
        let Some(fs) = self.fs.get() else { return Ok(()) };
        let Some(fs) = fs.upgrade() else {
            // The records of orphans are gone with the mount.
            return Err(extant_journal::Error::Aborted { cause: "the mount has ended".to_owned() });
        };
        fs.place_orphans(handle).map_err(|e| match e {
            Error::Device(e) => extant_journal::Error::Device(e),
            e => extant_journal::Error::HalfDone { cause: e.to_string() },
        })
    }

    fn log_free(&self) {
        if let Some(fs) = self.fs.get().and_then(Weak::upgrade) {
            fs.write_errors();
        }
    }

    fn aborted(&self, error: &extant_journal::Error) {
        if let Some(fs) = self.fs.get().and_then(Weak::upgrade) {
            fs.note_aborted(error.clone());
        }
    }
}
