//! Quotas: the usage of each user, group and project, and its limits (Linux: fs/quota/dquot.c,
//! `ext4_enable_quotas`).
//!
//! Main types: [`Quotas`] (the quota files of a mount), [`Charge`] (the usage of one inode that its owners are charged
//! for), and for callers [`QuotaLimits`]. `load.rs` reads the files. `count.rs` counts and checks limits. `owners.rs`
//! adds and removes entries, reports usage and sets limits.
//!
//! The usage on disk is the sum over the inodes in the inode tables. So only one function changes it.
//! `Maps::write_inode` charges the difference between the inode's former and new state in its table, under the same
//! handle. Code that allocates or frees space, or changes owners, is independent of quotas, and after a crash usage and
//! inodes come from one transaction. Blocks that are reserved for delayed data (`Quotas::settle_promises`), and inodes
//! that are being created, count against limits as well, but only in memory.
//!
//! Limits apply to the kinds that a mount option enables ([`crate::MountOptions::quota_limits`]), and not to root. They
//! are checked before space is taken. For delayed data, the check also reserves the space, so that concurrent writers
//! cannot exceed the limits. For blocks of directories, maps and attributes it does not, so those may exceed them by a
//! few blocks.
//!
//! An owner's entry is added before the operation that needs it, in a separate transaction. Entries of owners without
//! usage and limits are removed at the unmount.
//!
//! What it does not do: read quota files with names, or warn users.
//!
//! # Locking
//! `quota growth` (27) while an entry is added or removed; `quota promises` (73); `quota file` (74), under which single
//! blocks are read.

mod count;
mod load;
mod owners;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use extant_base::hash::HashMap;
use extant_base::sync::atomic::Ordering;
use extant_base::sync::{LockClass, Mutex, RwLock};
use extant_ondisk::inode::InodeDesc;
use extant_ondisk::quota::pack::Owner;
use extant_ondisk::quota::tree::Tree;
use extant_ondisk::quota::{BLOCK_BYTES, QuotaDamage, QuotaKind};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use crate::error::{Damage, Error, Result};
use crate::volume::Volume;

static GROWTH_CLASS: LockClass = LockClass::new("quota growth", 27);
static PROMISES_CLASS: LockClass = LockClass::new("quota promises", 73);
static FILE_CLASS: LockClass = LockClass::new("quota file", 74);

/// The maximum number of inodes with different owners that one handle writes: both directories of a rename, the moved
/// inode and the replaced one.
const INODES_PER_HANDLE: u32 = 4;

/// The usage that an inode in its table adds to that of its owners; all zeros for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// The user, the group and the project.
    owners: [u32; 3],
    bytes: u64,
    inodes: u64,
}

impl Charge {
    /// The charge of an inode, from its fields. Its attributes refer to `values` inodes with values. Each of them
    /// counts as an inode of its owners, and its blocks are included in the inode's. The inode of a value itself is not
    /// charged (Linux: `ext4_get_inode_usage`).
    pub fn of(desc: &InodeDesc, values: u32) -> Charge {
        if desc.is_value() {
            return Charge::default();
        }
        let inodes = 1 + u64::from(values);
        Charge { owners: [desc.uid, desc.gid, desc.projid], bytes: desc.blocks.saturating_mul(512), inodes }
    }
}

/// Usage that is reserved in memory and not charged yet.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    bytes: u64,
    inodes: u64,
    /// The second in which it exceeded the soft limit of blocks, until a charge has stored that; 0: it does not.
    since: u64,
}

impl Promise {
    fn of_bytes(bytes: u64) -> Promise {
        Promise { bytes, ..Promise::default() }
    }

    fn is_empty(&self) -> bool {
        (self.bytes, self.inodes, self.since) == (0, 0, 0)
    }

    /// Whether it exceeds the soft limit of blocks, together with what is stored.
    fn exceeds(&self, owner: &Owner) -> bool {
        let soft = bytes(owner.limits.blocks_soft);
        soft > 0 && owner.usage.bytes.saturating_add(self.bytes) > soft
    }

    /// The end of the soft limit of blocks: the stored one, or the one that delayed data has begun.
    fn blocks_until(&self, owner: &Owner, grace: u32) -> u64 {
        match owner.limits.blocks_until {
            0 if self.since > 0 && self.exceeds(owner) => self.since + u64::from(grace),
            stored => stored,
        }
    }
}

/// One quota file.
struct File {
    kind: QuotaKind,
    ino: InodeNr,
    growth: Mutex<()>,
    content: RwLock<Content>,
}

/// The content of a quota file, as far as it is in memory.
struct Content {
    tree: Tree,
    /// The blocks of the quota file, in units of the file system's block size.
    blocks: Vec<BlockNr>,
    /// Owners whose usage has become zero.
    idle: BTreeSet<u32>,
}

/// The quota files of a mount for writing.
pub(crate) struct Quotas {
    volume: Arc<Volume>,
    /// From the moment when they are loaded: only if the image has quotas, and only if the mount can write or someone
    /// asks for usage.
    files: OnceLock<Vec<File>>,
    promises: Mutex<HashMap<(QuotaKind, u32), Promise>>,
}

/// The inodes of the quota files, as quotas need them. The file system implements it.
pub(crate) trait QuotaInodes {
    /// The size of a quota file, and its blocks in order.
    fn content_of(&self, ino: InodeNr) -> Result<(u64, Vec<BlockNr>)>;

    /// Appends a block of zeros as block `lblk` of the file, near the block `before`.
    fn append_zeros(&self, ino: InodeNr, lblk: LogicalBlock, before: Option<BlockNr>) -> Result<BlockNr>;
}

/// The limits of an owner; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// The soft limit of space, in blocks of 1 KiB, which may be exceeded for the grace time.
    pub blocks_soft: u64,
    /// The hard limit of space, in blocks of 1 KiB.
    pub blocks_hard: u64,
    /// The soft limit of inodes, which may be exceeded for the grace time.
    pub inodes_soft: u64,
    /// The hard limit of inodes.
    pub inodes_hard: u64,
}

/// Why a quota file cannot be loaded or changed.
enum Fault {
    Damage(QuotaDamage),
    Other(Error),
}

impl From<QuotaDamage> for Fault {
    fn from(damage: QuotaDamage) -> Fault {
        Fault::Damage(damage)
    }
}

impl Fault {
    fn in_file(self, ino: InodeNr) -> Error {
        match self {
            Fault::Damage(damage) => Error::corrupt(Damage::Quota, damage.to_string()).of(ino),
            Fault::Other(e) => e,
        }
    }
}

/// The block of the file system that contains a block of the quota file, and the offset in it.
fn locate(blocks: &[BlockNr], number: u32, block_bits: u32) -> Result<(BlockNr, usize)> {
    let byte = u64::from(number) * BLOCK_BYTES as u64;
    let at = blocks.get((byte >> block_bits) as usize);
    let at = at.ok_or_else(|| Error::corrupt(Damage::Quota, format!("no block {number}")))?;
    Ok((*at, (byte & ((1 << block_bits) - 1)) as usize))
}

/// The end of the grace time after a change of the usage to `used` (Linux: `check_bdq`, `dquot_decr_space`).
fn until(soft: u64, used: u64, until: u64, now: u64, grace: u32) -> u64 {
    match (soft > 0 && used > soft, until) {
        (false, _) => 0,
        (true, 0) => now + u64::from(grace),
        (true, until) => until,
    }
}

/// How much the limits `hard` and `soft` leave beyond `used`.
fn left(hard: u64, soft: u64, until: u64, used: u64, now: u64) -> u64 {
    let below = |limit: u64| limit.saturating_sub(used);
    let of_hard = if hard > 0 { below(hard) } else { u64::MAX };
    let of_soft = if soft > 0 && until > 0 && now >= until { below(soft) } else { u64::MAX };
    of_hard.min(of_soft)
}

fn bytes(kibibytes: u64) -> u64 {
    kibibytes.saturating_mul(1024)
}

/// Sets the ends of the grace times after a change of the usage. `since`: when delayed data exceeded the limit of
/// blocks; 0: it did not.
fn judge_times(owner: &mut Owner, grace: [u32; 2], now: u64, since: u64) {
    let Owner { usage, limits } = owner;
    let start = if since > 0 { since } else { now };
    limits.blocks_until = until(bytes(limits.blocks_soft), usage.bytes, limits.blocks_until, start, grace[0]);
    limits.inodes_until = until(limits.inodes_soft, usage.inodes, limits.inodes_until, now, grace[1]);
}

impl Quotas {
    pub fn new(volume: Arc<Volume>) -> Quotas {
        Quotas { volume, files: OnceLock::new(), promises: Mutex::new(&PROMISES_CLASS, HashMap::default()) }
    }

    /// Begins to count. Every handle needs credits for the entries of its inodes' owners from here on.
    fn install(&self, files: Vec<File>) {
        let credits = INODES_PER_HANDLE * files.len() as u32;
        if self.files.set(files).is_ok() {
            self.volume.quota_credits.store(credits, Ordering::Release);
        }
    }

    /// The loaded files, of one kind of owners each.
    fn files(&self) -> &[File] {
        self.files.get().map_or(&[], Vec::as_slice)
    }

    /// Whether inodes are charged to their owners.
    fn is_counting(&self) -> bool {
        self.files.get().is_some()
    }

    /// When the delayed data of an owner exceeded its soft limit of blocks; 0: it did not.
    fn since(&self, kind: QuotaKind, id: u32) -> u64 {
        self.promises.lock().get(&(kind, id)).map_or(0, |promise| promise.since)
    }

    /// Forgets that time: it is stored, or the limit is not exceeded any more.
    fn forget_since(&self, kind: QuotaKind, id: u32) {
        let mut promises = self.promises.lock();
        if let Some(promise) = promises.get_mut(&(kind, id)) {
            promise.since = 0;
            if promise.is_empty() {
                promises.remove(&(kind, id));
            }
        }
    }

    /// As [`Quotas::forget_since`], for owners without delayed data.
    fn forget_idle(&self, owners: [u32; 3]) {
        for file in self.files() {
            let id = owners[file.kind as usize];
            if self.promises.lock().get(&(file.kind, id)).is_some_and(|promise| promise.bytes == 0) {
                self.forget_since(file.kind, id);
            }
        }
    }

    /// Replaces the reservation `before` of one set of owners by `after` of another.
    fn move_promise(&self, before: ([u32; 3], Promise), after: ([u32; 3], Promise)) {
        let mut promises = self.promises.lock();
        for file in self.files() {
            let kind = file.kind;
            let from = promises.entry((kind, before.0[kind as usize])).or_default();
            from.bytes = from.bytes.saturating_sub(before.1.bytes);
            from.inodes = from.inodes.saturating_sub(before.1.inodes);
            let to = promises.entry((kind, after.0[kind as usize])).or_default();
            to.bytes += after.1.bytes;
            to.inodes += after.1.inodes;
            for owner in [before.0, after.0].map(|owners| (kind, owners[kind as usize])) {
                if promises.get(&owner).is_some_and(Promise::is_empty) {
                    promises.remove(&owner);
                }
            }
        }
    }
}

/// The reservation for an inode that is being created. It counts against the limits of its owners until this is
/// dropped.
pub(crate) struct NewInode<'fs> {
    quotas: &'fs Quotas,
    owners: [u32; 3],
}

impl Drop for NewInode<'_> {
    fn drop(&mut self) {
        let one = Promise { inodes: 1, ..Promise::default() };
        self.quotas.move_promise((self.owners, one), (self.owners, Promise::default()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soft_limit_has_a_time_only_while_it_is_exceeded() {
        for (soft, used, before, after) in
            [(0, 9, 5, 0), (10, 10, 5, 0), (10, 11, 0, 107), (10, 11, 5, 5), (10, 9, 5, 0)]
        {
            assert_eq!(until(soft, used, before, 100, 7), after, "{soft} {used} {before}");
        }
    }

    #[test]
    fn the_least_of_the_limits_that_hold_leaves_the_rest() {
        let none = u64::MAX;
        for (hard, soft, until, used, expected) in [
            (0, 0, 0, 9, none),
            (10, 0, 0, 9, 1),
            (10, 0, 0, 12, 0),
            (20, 10, 0, 12, 8),
            (20, 10, 101, 12, 8),
            (20, 10, 100, 12, 0),
            (20, 10, 99, 7, 3),
            (0, 10, 99, 12, 0),
        ] {
            assert_eq!(left(hard, soft, until, used, 100), expected, "{hard} {soft} {until} {used}");
        }
    }
}
