//! The file system on its device: layout, superblock, metadata buffers, space, journal, and reports of errors.
//!
//! Main type: [`Volume`]. Its methods are in files by theme: handles of the running transaction (`handles.rs`),
//! failures in the middle of an operation (`failure.rs`), reports of errors (`reports.rs`), the superblock
//! (`mount/super_block.rs`), inode tables (`inode_slots.rs`), and the passage of an operation through the gate
//! (`operation.rs`).
//!
//! What it does not do: keep inodes in memory, map files or count usage. [`crate::Maps`] and [`crate::Filesystem`]
//! above it do that; no method here can call one of theirs. An inode is at most an argument.
//!
//! # Locking
//! `growth` (3) lets one growth run at a time. `superblock` (75) guards the decoded superblock.

use std::sync::{Arc, OnceLock};

use extant_base::append::Latest;
use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_block::BlockDevice;
use extant_cache::{Budget, BufferCache};
use extant_es::EsCache;
use extant_journal::Journal;
use extant_ondisk::features::RoCompat;
use extant_ondisk::superblock::{Geometry, SuperBlock};
use extant_ondisk::time::Timestamp;
use extant_ondisk::{BlockNr, InodeNr};

use crate::error_log::ErrorLog;
use crate::hash_settings::HashSettings;
use crate::heart::Heart;
use crate::lifecycle::{Lifecycle, Right};
use crate::options::{MountOptions, OnError};
use crate::own_inodes::OwnInodes;
use crate::placement::{Placement, StatFs};
use crate::threads::Threads;

pub(crate) static SUPER_CLASS: LockClass = LockClass::new("superblock", 75);
pub(crate) static GROWTH_CLASS: LockClass = LockClass::new("growth", 3);

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

/// The file system on its device, without the inodes in memory: the lowest layer of a mount.
pub struct Volume {
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
    pub(crate) own_inodes: OwnInodes,
    pub(crate) es: Arc<EsCache>,
    pub(crate) lifecycle: Lifecycle,
    /// Errors that the superblock on the device, the log or the messages do not contain yet.
    pub(crate) error_log: ErrorLog,
    pub(crate) on_error: OnError,
    pub(crate) threads: Threads,
    /// The state of the random number generator.
    pub(crate) random: AtomicU64,
    /// New files and directories are mapped by extents.
    pub(crate) new_extents: bool,
    /// Inodes may contain their file's content.
    pub(crate) inline_data: bool,
    /// This is a rescue: damage hides only the damaged parts.
    pub(crate) is_rescue: bool,
    /// The memory charged to the budget for the whole time of the mount.
    pub(crate) charged: AtomicU64,
    /// Held by a growth, so that only one runs at a time.
    pub(crate) growth: Mutex<()>,
    pub(crate) hash: HashSettings,
    /// The journal credits that every operation needs for its owners' entries.
    pub(crate) quota_credits: AtomicU32,
    /// The signs of life for other hosts; only if the mount can write and the image has `mmp`.
    pub(crate) heart: OnceLock<Heart>,
    /// Counts of operations.
    pub stats: FsStats,
}

impl Volume {
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
        self.is_rescue
    }

    /// A copy of the superblock in memory.
    pub fn superblock(&self) -> SuperBlock {
        self.sb.lock().clone()
    }

    /// The memory that all caches of the mount share.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Whether directories may ignore the case of names (`casefold`). Different names may then refer to one entry.
    pub fn may_ignore_case(&self) -> bool {
        self.geo.casefold
    }

    /// Whether the image has its journal only while it is mounted.
    pub fn has_borrowed_journal(&self) -> bool {
        self.borrowed
    }

    /// The current time, rounded to the precision of new inodes. Small inodes have no nanoseconds, and a time must not
    /// change when the inode leaves memory (Linux: `s_time_gran`).
    pub(crate) fn now(&self) -> Timestamp {
        let t = self.options.clock.wall();
        let fine = self.geo.want_extra_isize > 0;
        Timestamp { seconds: t.sec, nanos: if fine { t.nsec } else { 0 } }
    }

    /// The next random number.
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

    /// The journal credits of an operation, together with those for its owners' entries.
    pub(crate) fn with_quota_credits(&self, credits: u32) -> u32 {
        credits + self.quota_credits.load(Ordering::Acquire)
    }

    /// Whether quotas count this inode once they are loaded.
    pub(crate) fn counts_owners(&self, ino: InodeNr) -> bool {
        self.sb.lock().ro_compat().contains(RoCompat::QUOTA) && !self.own_inodes.contains(ino)
    }
}
