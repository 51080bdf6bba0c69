//! The options of a mount.
//!
//! Main type: [`MountOptions`]. A field that is `None` leaves the choice to the superblock, which can contain mount
//! options itself (`words.rs`).
//!
//! # Locking
//! None.

mod words;

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::policy::{Table, Unknown};
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_block::BlockDevice;
pub use extant_block::queue::QUEUE_DEPTH_MAX;
use extant_block::queue::{Queue, TagConfig, TagPolicyKind};
use extant_cache::{Budget, ReclaimPolicy};
use extant_mballoc::{MetaPolicy, Policy as AllocPolicy};

pub use self::words::BadValue;
use crate::crypt::KeyRing;
use crate::ops::sync::policy::SyncPolicyKind;
use extant_es::EsPolicyKind;

/// When a read updates a file's access time. Under FUSE only reads that reach the server count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Never (Linux: `noatime`).
    Never,
    /// On each read (Linux: `strictatime`).
    Always,
    /// If the access time is not newer than the change or modification time, or a day old (Linux: `relatime`).
    Relative,
}

/// The reaction to damage in the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Continue (Linux: `errors=continue`).
    Continue,
    /// Refuse further changes (Linux: `errors=remount-ro`).
    RemountReadOnly,
}

/// Whether an image without a journal gets one while it is mounted for writing (see `borrow`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BorrowJournal {
    /// Only if it was cleanly unmounted. Otherwise its bitmaps may mark blocks as free that are in use, and a journal
    /// would overwrite them.
    #[default]
    IfClean,
    /// Always borrow a journal.
    Always,
    /// Never: after a crash, e2fsck can repair the image. A journal that an earlier mount left behind is still used.
    Never,
}

/// The sink for messages that are not part of a result: damage that the mount has found, or why it became read-only.
/// Each message is one line, without a line end, and begins with the image's name. By default there is no sink.
#[derive(Clone, Default)]
pub struct Messages(Option<Arc<Say>>);

type Say = dyn Fn(&str) + Send + Sync;

impl Messages {
    /// Calls `say` with each message, on any thread and possibly with locks held, so `say` must not use the mount.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Messages {
        Messages(Some(Arc::new(say)))
    }

    /// Writes messages to standard error, after the program's name. If the write fails (a full log, a closed terminal),
    /// the message is dropped.
    pub fn to_stderr(program: &'static str) -> Messages {
        Messages::new(move |message| {
            let _ = writeln!(std::io::stderr(), "{program}: {message}");
        })
    }

    /// The same sink, which also counts each message.
    pub(crate) fn counted(self, count: Arc<AtomicU64>) -> Messages {
        Messages::new(move |message| {
            count.fetch_add(1, Ordering::Relaxed);
            self.say(format_args!("{message}"));
        })
    }

    pub(crate) fn say(&self, message: fmt::Arguments<'_>) {
        if let Some(say) = &self.0 {
            say(&message.to_string());
        }
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Messages(..)" } else { "Messages(none)" })
    }
}

/// The device of an external journal. A mount for writing writes to it as well.
#[derive(Clone)]
pub struct JournalDevice(pub Arc<dyn BlockDevice>);

impl fmt::Debug for JournalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JournalDevice({})", self.0.name())
    }
}

/// A mechanism whose policy is chosen at mount time.
pub struct PolicyOption {
    /// The option's name and its policies, for messages and help.
    pub table: Table,
    set: fn(&mut MountOptions, &str) -> Result<(), Unknown>,
}

/// All mechanisms whose policy is chosen at mount time.
pub static POLICIES: [PolicyOption; 6] = [
    PolicyOption {
        table: AllocPolicy::TABLE,
        set: |options, name| {
            options.alloc_policy = AllocPolicy::from_name(name)?;
            Ok(())
        },
    },
    PolicyOption {
        table: MetaPolicy::TABLE,
        set: |options, name| {
            options.meta_policy = MetaPolicy::from_name(name)?;
            Ok(())
        },
    },
    PolicyOption {
        table: EsPolicyKind::TABLE,
        set: |options, name| {
            options.es_policy = EsPolicyKind::from_name(name)?;
            Ok(())
        },
    },
    PolicyOption {
        table: ReclaimPolicy::TABLE,
        set: |options, name| {
            options.reclaim_policy = ReclaimPolicy::from_name(name)?;
            Ok(())
        },
    },
    PolicyOption {
        table: TagPolicyKind::TABLE,
        set: |options, name| {
            options.tag_policy = TagPolicyKind::from_name(name)?;
            Ok(())
        },
    },
    PolicyOption {
        table: SyncPolicyKind::TABLE,
        set: |options, name| {
            options.sync_policy = SyncPolicyKind::from_name(name)?;
            Ok(())
        },
    },
];

/// The value of [`MountOptions::commit_interval_s`] if neither the caller nor the image sets one (Linux:
/// `JBD2_DEFAULT_MAX_COMMIT_AGE`).
pub const COMMIT_INTERVAL_S: u32 = 5;

/// The minimum memory for caches, in bytes.
pub(crate) const CACHE_BYTES_MIN: u64 = 8 << 20;

/// The minimum of [`MountOptions::dirty_bytes`].
pub const DIRTY_BYTES_MIN: u64 = 16 << 10;

/// The options of a mount. The defaults suit a single program that mounts an image for writing, with threads.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Write nothing to the device. A journal that needs replay is replayed into memory.
    pub read_only: bool,
    /// Mount without replaying the journal; implies `read_only`.
    pub no_recovery: bool,
    /// Read as much as possible of a damaged image: accept plausible values, ignore the log, and continue without
    /// some groups and past the end of a device that is too short. Damaged parts fail when they are used. Inodes that
    /// no name leads to are in `lost+found`. Implies `read_only`.
    pub rescue: bool,
    /// The byte offset of the copy of the superblock to use. The descriptors next to it are tried first. Only for
    /// reading (Linux: `sb=`).
    pub superblock: Option<u64>,
    /// The memory budget, in bytes.
    pub cache_bytes: u64,
    /// A budget that several mounts share, instead of one from `cache_bytes` and `reclaim_policy`. A mount waits only
    /// for its own device. If another mount's device cleans memory slowly, that memory is unavailable to this mount.
    pub budget: Option<Arc<Budget>>,
    /// The limit of dirty data and data under writeback; above it, writers wait for the device (Linux:
    /// `vm.dirty_bytes`). Background writeback begins at half of it. `None`: half of the cache.
    pub dirty_bytes: Option<u64>,
    /// The time in seconds after which changes are committed at the latest (Linux: `commit=`). `None` for the
    /// superblock's value, or [`COMMIT_INTERVAL_S`].
    pub commit_interval_s: Option<u32>,
    /// If more blocks of the log than this are in use, a checkpoint writes blocks home, so that a replay reads little
    /// more. `None` for half of the log.
    pub checkpoint_blocks: Option<u32>,
    /// An fsync writes a fast commit where it can, on images with that feature. Off by default:
    /// e2fsck 1.47.0 replays some wrongly (docs/crash-consistency.md).
    pub fast_commits: bool,
    /// Whether an image without a journal gets one while it is mounted.
    pub borrow_journal: BorrowJournal,
    /// The device of the journal, if the superblock declares it external.
    pub journal_device: Option<JournalDevice>,
    /// When a read updates the access time.
    pub atime: Atime,
    /// Whether reading a directory updates its access time by that rule as well; otherwise it never does (Linux:
    /// `nodiratime`).
    pub dir_atime: bool,
    /// The user with access to the reserved blocks, besides root. `None` for the superblock's choice.
    pub resuid: Option<u32>,
    /// As `resuid`, for a group.
    pub resgid: Option<u32>,
    /// The reaction to damage. `None` for the superblock's choice.
    pub errors: Option<OnError>,
    /// Whether a new file gets the group of its directory instead of its creator's group (Linux: `grpid`). `None` for
    /// the superblock's choice, or no.
    pub group_of_directory: Option<bool>,
    /// Whether `statfs` includes the file system's own blocks (Linux: `minixdf`). `None` for the superblock's choice,
    /// or no.
    pub count_overhead: Option<bool>,
    /// Whether ACLs can be read, set and inherited (Linux: `acl`). `None` for the superblock's choice, or yes.
    pub acls: Option<bool>,
    /// Whether user attributes can be read and set (Linux: `user_xattr`). `None` for the superblock's choice, or yes.
    pub user_xattrs: Option<bool>,
    /// Whether the quota limits of users, groups and projects are enforced (Linux: `usrquota`, `grpquota`, `prjquota`).
    /// If the image has the feature `quota`, their usage is counted in any case.
    pub quota_limits: [bool; 3],
    /// Limits that the superblock names do not hold (Linux: `noquota`).
    pub only_these_limits: bool,
    /// Cache clean file data in the page cache. Off under FUSE, where the kernel caches it.
    pub keep_clean: bool,
    /// Writes of at least this many bytes, and overwrites, go directly to the device instead of into folios. This suits
    /// devices that cache writes themselves (image files without O_DIRECT). `None` for no such writes.
    pub write_through_bytes: Option<u64>,
    /// The keys of encrypted files.
    pub keys: KeyRing,
    /// The policy that chooses free blocks.
    pub alloc_policy: AllocPolicy,
    /// The policy that chooses places for metadata blocks.
    pub meta_policy: MetaPolicy,
    /// The number of sets of chunks for small files; each thread uses one of them. 0 for one for each processor (Linux:
    /// `s_locality_groups`).
    pub locality_groups: usize,
    /// The policy that chooses the extent-status entries to evict when memory is short.
    pub es_policy: EsPolicyKind,
    /// The policy that chooses the cache's victims when memory is short.
    pub reclaim_policy: ReclaimPolicy,
    /// The policy that assigns request tags.
    pub tag_policy: TagPolicyKind,
    /// The maximum number of requests in flight, and so of tags, from 1 to [`QUEUE_DEPTH_MAX`].
    pub queue_depth: u32,
    /// The policy that chooses other inodes to be written with an fsync.
    pub sync_policy: SyncPolicyKind,
    /// Whether freed blocks are discarded once the transaction that freed them is durable. `None` for the superblock's
    /// choice, or no.
    pub discard: Option<bool>,
    /// The source of inode times, and of the time for periodic work.
    pub clock: Clock,
    /// Run background threads. Without them (tests, tools), the thread that waits does the work.
    pub threads: bool,
    /// Whether the superblock counts this mount (`s_mnt_count`, `s_mtime`), which advances e2fsck's intervals. A tool
    /// that only changes an image is not counted.
    pub counted: bool,
    /// The value for `s_last_mounted`.
    pub mounted_on: Option<String>,
    /// The seed for inode generations and directory placement. `None` to take it from the clock.
    pub seed: Option<u64>,
    /// The sink for warnings and errors.
    pub messages: Messages,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            no_recovery: false,
            rescue: false,
            superblock: None,
            cache_bytes: 256 << 20,
            budget: None,
            dirty_bytes: None,
            commit_interval_s: None,
            checkpoint_blocks: None,
            fast_commits: false,
            borrow_journal: BorrowJournal::default(),
            journal_device: None,
            atime: Atime::Relative,
            dir_atime: true,
            resuid: None,
            resgid: None,
            errors: None,
            group_of_directory: None,
            count_overhead: None,
            acls: None,
            user_xattrs: None,
            quota_limits: [false; 3],
            only_these_limits: false,
            keep_clean: true,
            write_through_bytes: None,
            keys: KeyRing::default(),
            alloc_policy: AllocPolicy::default(),
            meta_policy: MetaPolicy::default(),
            locality_groups: 0,
            es_policy: EsPolicyKind::default(),
            reclaim_policy: ReclaimPolicy::default(),
            tag_policy: TagPolicyKind::default(),
            queue_depth: TagConfig::default().depth,
            sync_policy: SyncPolicyKind::default(),
            discard: None,
            clock: Clock::real(),
            threads: true,
            counted: true,
            mounted_on: None,
            seed: None,
            messages: Messages::default(),
        }
    }
}

impl MountOptions {
    /// The request queue in front of `dev`, for all requests of the mount.
    pub(crate) fn queue_for(&self, dev: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let depth = self.queue_depth.clamp(1, QUEUE_DEPTH_MAX);
        Arc::new(Queue::new(dev, TagConfig { depth, policy: self.tag_policy, ..TagConfig::default() }))
    }

    /// Chooses the policy `name` for the mechanism of `option`. Returns `None` if no mechanism has this name.
    pub fn set_policy(&mut self, option: &str, name: &str) -> Option<Result<(), Unknown>> {
        POLICIES.iter().find(|p| p.table.option == option).map(|p| (p.set)(self, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_of_every_table_can_be_chosen() {
        let mut options = MountOptions::default();
        for PolicyOption { table, .. } in &POLICIES {
            for row in table.rows {
                assert_eq!(options.set_policy(table.option, row.name), Some(Ok(())), "{} {}", table.option, row.name);
                let chosen = [
                    options.alloc_policy.name(),
                    options.meta_policy.name(),
                    options.es_policy.name(),
                    options.reclaim_policy.name(),
                    options.tag_policy.name(),
                    options.sync_policy.name(),
                ];
                assert!(chosen.contains(&row.name), "{chosen:?}");
            }
            assert!(matches!(options.set_policy(table.option, "best"), Some(Err(_))));
        }
        assert_eq!(options.set_policy("color", "red"), None);
    }
}
