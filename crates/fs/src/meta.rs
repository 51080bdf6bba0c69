//! The lock of the decoded on-disk inode, and the part of it that can be read without the lock.
//!
//! Main type: [`MetaLock`]. A read of a cached file needs the inode's flags, and whether its access time is recent
//! enough. If each read took the lock, the lock's cache line would go from processor to processor. (Linux reads
//! `i_flags` and the times without a lock, and `i_size` under a seqcount.) So a writer that releases the lock
//! publishes both.
//!
//! What it does not do: the size, which has a cell of its own ([`crate::inode::Inode::size`]), or the type, which never
//! changes.
//!
//! # Locking
//! `inode meta` (60). The published values change only while the lock is held exclusively.

use std::ops::{Deref, DerefMut};

use extant_base::sim;
use extant_base::sync::atomic::{AtomicI64, AtomicU32, Ordering};
use extant_base::sync::{LockClass, RwLock, RwLockReadGuard, RwLockWriteGuard};
use extant_ondisk::inode::{InodeDesc, InodeFlags};

static CLASS: LockClass = LockClass::new("inode meta", 60);

/// An access time is updated when it is this old, even if the file has not changed (Linux: `relatime_need_update`).
const ATIME_SEC_MAX: i64 = 24 * 3600;

/// The published part. Each value is meaningful by itself, so no reader needs both from the same moment. It has its own
/// cache line, because readers write to other parts of the inode, such as its locks.
#[repr(align(64))]
struct Published {
    flags: AtomicU32,
    /// Until this second, the access time counts as recent.
    recent_until_sec: AtomicI64,
}

/// The data under the lock.
pub(crate) trait HasDesc {
    fn desc(&self) -> &InodeDesc;
}

/// The lock; see the module.
pub(crate) struct MetaLock<T> {
    meta: RwLock<T>,
    published: Published,
}

/// The exclusive access. Its end publishes.
pub(crate) struct MetaWriteGuard<'a, T: HasDesc> {
    meta: RwLockWriteGuard<'a, T>,
    published: &'a Published,
}

fn recent_until_sec(desc: &InodeDesc) -> i64 {
    let newest = desc.atime > desc.mtime && desc.atime > desc.ctime;
    if newest { desc.atime.seconds.saturating_add(ATIME_SEC_MAX) } else { i64::MIN }
}

impl<T: HasDesc> MetaLock<T> {
    pub fn new(meta: T) -> MetaLock<T> {
        let published = Published {
            flags: AtomicU32::new(meta.desc().flags.bits()),
            recent_until_sec: AtomicI64::new(recent_until_sec(meta.desc())),
        };
        MetaLock { meta: RwLock::new(&CLASS, meta), published }
    }

    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.meta.read()
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.meta.try_read()
    }

    pub fn write(&self) -> MetaWriteGuard<'_, T> {
        MetaWriteGuard { meta: self.meta.write(), published: &self.published }
    }

    /// The inode's flags, without the lock.
    ///
    /// Acquire, with the release of [`Published::publish`]: a thread that sees a flag also sees what the thread that
    /// set it did before, such as reading the Merkle tree. A thread that sees an older value has read before the
    /// change, as it might have under the lock. Flags that decide where content is change under `inode`, which
    /// readers of content hold, so they do not see an older value of those.
    pub fn flags(&self) -> InodeFlags {
        sim::line_read("inode published", &self.published);
        InodeFlags::from_bits_retain(self.published.flags.load(Ordering::Acquire))
    }

    /// Whether the access time is newer than the other times, and less than a day old at `now_sec`; without the lock.
    ///
    /// Relaxed: nothing else is read because of it. An older value makes a reader update the time once more, or leaves
    /// the update to the next reader.
    pub fn has_recent_atime(&self, now_sec: i64) -> bool {
        sim::line_read("inode published", &self.published);
        now_sec < self.published.recent_until_sec.load(Ordering::Relaxed)
    }
}

impl Published {
    /// Called with the lock held exclusively, so the loads see the newest values. Most changes leave both as they are,
    /// and then the line stays with its readers.
    fn publish(&self, desc: &InodeDesc) {
        sim::line_read("inode published", self);
        let (flags, until_sec) = (desc.flags.bits(), recent_until_sec(desc));
        let is_new = self.flags.load(Ordering::Relaxed) != flags;
        if is_new || self.recent_until_sec.load(Ordering::Relaxed) != until_sec {
            sim::line_written("inode published", self);
            self.recent_until_sec.store(until_sec, Ordering::Relaxed);
            self.flags.store(flags, Ordering::Release);
        }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        sim::line_dropped(self);
    }
}

impl<T: HasDesc> Deref for MetaWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.meta
    }
}

impl<T: HasDesc> DerefMut for MetaWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.meta
    }
}

impl<T: HasDesc> Drop for MetaWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.published.publish(self.meta.desc());
    }
}

#[cfg(test)]
#[path = "meta_tests.rs"]
mod tests;
