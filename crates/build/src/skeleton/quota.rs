//! The usage of owners with which a new file system begins.
//!
//! Main type: [`OwnerUsage`]. Main function: [`file`]. `extant_ondisk::quota::pack` makes the files.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_ondisk::quota::pack::{GRACE, Owner, whole};
use extant_ondisk::quota::{Limits, QuotaKind, Usage};

/// The usage of each user, group and project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerUsage([BTreeMap<u32, Usage>; 3]);

impl OwnerUsage {
    /// Adds an inode of this many bytes to its user, its group and its project.
    pub fn add(&mut self, owners: [u32; 3], bytes: u64) {
        for (usages, id) in self.0.iter_mut().zip(owners) {
            let usage = usages.entry(id).or_insert(Usage { id, bytes: 0, inodes: 0 });
            usage.bytes += bytes;
            usage.inodes += 1;
        }
    }

    /// The usage of one kind, in ascending order.
    pub(super) fn of(&self, kind: QuotaKind) -> impl Iterator<Item = &Usage> {
        self.0[kind as usize].values()
    }
}

/// The bytes of a file for owners in ascending order, without limits.
pub(super) fn file<'a>(kind: QuotaKind, owners: impl Iterator<Item = &'a Usage>) -> Vec<u8> {
    whole(kind, [GRACE; 2], owners.map(|usage| Owner { usage: *usage, limits: Limits::default() }))
}
