//! What a mount can be told.
//!
//! Main type: [`MountOptions`]. A field that is `None` leaves the choice to the superblock, which has its own words
//! for that (`words.rs`).
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
use crate::map::es::EsPolicyKind;
use crate::ops::sync::policy::SyncPolicyKind;

/// When reading moves a file's access time. Under FUSE only reads that reach the server count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atime {
    /// Not at all (Linux: `noatime`).
    Never,
    /// With each read (Linux: `strictatime`).
    Always,
    /// If it is not newer than the change or modification time, or a day old (Linux: `relatime`).
    Relative,
}

/// What happens when the image turns out to be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Go on (Linux: `errors=continue`).
    Continue,
    /// Allow no more changes (Linux: `errors=remount-ro`).
    RemountReadOnly,
}

/// Whether an image without a journal is lent one while it is mounted for writing (see `borrow`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BorrowJournal {
    /// If it was cleanly unmounted. Otherwise its bitmaps may call blocks free that are in use, and a journal would be
    /// written over them.
    #[default]
    IfClean,
    /// In any case.
    Always,
    /// Not at all: a crash leaves what e2fsck can mend. One that an earlier mount left is used nevertheless.
    Never,
}

/// Where a mount says what no call returns: damage that it met, why it turned read-only. One line each, without its
/// end, that begins with the image's name. By default nowhere.
#[derive(Clone, Default)]
pub struct Messages(Option<Arc<Say>>);

type Say = dyn Fn(&str) + Send + Sync;

impl Messages {
    /// `say` is called with each message, on any thread, and possibly with locks held: it must not use the mount.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Messages {
        Messages(Some(Arc::new(say)))
    }

    /// On standard error, behind the program's name. Where nobody can hear it (a full log, a terminal that is gone) it
    /// is not said.
    pub fn to_stderr(program: &'static str) -> Messages {
        Messages::new(move |message| {
            let _ = writeln!(std::io::stderr(), "{program}: {message}");
        })
    }

    /// The same, and each is counted.
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

/// The device of a journal that has one to itself. It is read, not written.
#[derive(Clone)]
pub struct JournalDevice(pub Arc<dyn BlockDevice>);

impl fmt::Debug for JournalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JournalDevice({})", self.0.name())
    }
}

/// A mechanism whose policy is chosen at mount.
pub struct PolicyOption {
    /// The option's name and its policies, as messages and help show them.
    pub table: Table,
    set: fn(&mut MountOptions, &str) -> Result<(), Unknown>,
}

/// Every mechanism whose policy is chosen at mount.
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

/// What [`MountOptions::commit_interval_s`] is where neither a caller nor the image says (Linux:
/// `JBD2_DEFAULT_MAX_COMMIT_AGE`).
pub const COMMIT_INTERVAL_S: u32 = 5;

/// What [`MountOptions::dirty_bytes`] is at least.
pub const DIRTY_BYTES_MIN: u64 = 16 << 10;

/// What a mount may be told. The default is for one program that mounts an image for writing, with threads.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Nothing is written to the device; a journal that has to be replayed is replayed into memory.
    pub read_only: bool,
    /// Mount without replaying the journal; implies `read_only`.
    pub no_recovery: bool,
    /// Read what there is of a damaged image: believe what is plausible, go on without the log, without groups and past
    /// the end of a device that is too short. What is hurt fails when it is used. Implies `read_only`.
    pub rescue: bool,
    /// The byte where the superblock to use begins, one of the copies; descriptors are taken from beside it first. For
    /// reading (Linux: `sb=`).
    pub superblock: Option<u64>,
    /// The memory budget, in bytes.
    pub cache_bytes: u64,
    /// A budget that mounts share, in place of one of `cache_bytes` and `reclaim_policy`. A mount waits for its own
    /// device alone; memory that another one's device is slow to clean is not there for it meanwhile.
    pub budget: Option<Arc<Budget>>,
    /// So much data may be dirty or on its way before writers wait for the device (Linux: `vm.dirty_bytes`); half of
    /// it is what background writeback lets be. `None`: half of the cache.
    pub dirty_bytes: Option<u64>,
    /// Seconds after which changes are committed at the latest (Linux: `commit=`). `None`: as the superblock says, or
    /// [`COMMIT_INTERVAL_S`].
    pub commit_interval_s: Option<u32>,
    /// With so many blocks of the log in use, blocks are sent home: what a replay reads is not much more. `None`: half
    /// of the log.
    pub checkpoint_blocks: Option<u32>,
    /// Whether an image without a journal gets one for the time of the mount.
    pub borrow_journal: BorrowJournal,
    /// Where the journal is, if the superblock says that it is on another device.
    pub journal_device: Option<JournalDevice>,
    /// When reading moves the access time.
    pub atime: Atime,
    /// Reading a directory moves its access time by that rule, too; else never (Linux: `nodiratime`).
    pub dir_atime: bool,
    /// Who may use the reserved blocks besides root, instead of whom the superblock names.
    pub resuid: Option<u32>,
    /// As `resuid`, for a group.
    pub resgid: Option<u32>,
    /// `None`: as the superblock says.
    pub errors: Option<OnError>,
    /// A new file gets the group of its directory, not that of its creator (Linux: `grpid`). `None`: as the superblock
    /// says, or not.
    pub group_of_directory: Option<bool>,
    /// `statfs` counts the file system's own blocks, too (Linux: `minixdf`). `None`: as the superblock says, or not.
    pub count_overhead: Option<bool>,
    /// ACLs can be seen, set and inherited (Linux: `acl`). `None`: as the superblock says, or so.
    pub acls: Option<bool>,
    /// Attributes of users can be seen and set (Linux: `user_xattr`). `None`: as the superblock says, or so.
    pub user_xattrs: Option<bool>,
    /// Keep clean file data in the page cache. Off under FUSE, where the kernel keeps it.
    pub keep_clean: bool,
    /// Writes of at least this many bytes, and overwrites, go to the device at once instead of waiting in folios. For
    /// devices that cache writes themselves (image files without O_DIRECT); `None` otherwise.
    pub write_through_bytes: Option<u64>,
    /// How free blocks are chosen.
    pub alloc_policy: AllocPolicy,
    /// Where metadata blocks lie.
    pub meta_policy: MetaPolicy,
    /// How many sets of chunks there are for small files, of which each thread uses one; 0: one for each processor
    /// (Linux: `s_locality_groups`).
    pub locality_groups: usize,
    /// Which extent-status entries go first when memory is short.
    pub es_policy: EsPolicyKind,
    /// The policy that chooses what leaves the cache when memory is short.
    pub reclaim_policy: ReclaimPolicy,
    /// Who gets the next request tag.
    pub tag_policy: TagPolicyKind,
    /// Requests under way at once: so many tags there are, from 1 to [`QUEUE_DEPTH_MAX`].
    pub queue_depth: u32,
    /// Whose data an fsync carries along.
    pub sync_policy: SyncPolicyKind,
    /// Blocks that are freed are discarded, once the transaction that freed them is durable. `None`: as the superblock
    /// says, or not.
    pub discard: Option<bool>,
    /// Where the times of inodes, and of what is done at intervals, come from.
    pub clock: Clock,
    /// Background threads. Without them (tests, tools) waiting does the work itself.
    pub threads: bool,
    /// Counts as a mount in the superblock (`s_mnt_count`, `s_mtime`): e2fsck's intervals go by that. A tool that
    /// changes an image and leaves does not count.
    pub counted: bool,
    /// Shown as `s_last_mounted`.
    pub mounted_on: Option<String>,
    /// Seed for inode generations and directory placement; drawn from the clock when `None`.
    pub seed: Option<u64>,
    /// Where warnings and errors are told.
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
            keep_clean: true,
            write_through_bytes: None,
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
    /// The queue that every request of the mount goes through.
    pub(crate) fn queue_for(&self, dev: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
        let depth = self.queue_depth.clamp(1, QUEUE_DEPTH_MAX);
        Arc::new(Queue::new(dev, TagConfig { depth, policy: self.tag_policy, ..TagConfig::default() }))
    }

    /// Chooses the policy called `name` for the mechanism that `option` stands for. `None`: no mechanism is called so.
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
