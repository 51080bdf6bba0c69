//! Tags: the numbers that bound how many requests are under way.
//!
//! Main types: [`TagSet`] (Linux: `struct blk_mq_tags` with its `sbitmap_queue`), which hands out a [`TagGuard`] or
//! lets the caller wait for one. Which free tag is taken is the business of a [`policy`].
//!
//! What it does not do: fairness. Whoever asks while a tag is free gets it, also before somebody who was just woken;
//! each release wakes one waiter, who goes back to sleep if it came too late, and that tag's release wakes the next.
//!
//! # Locking
//! Taking and releasing touch atomics only. `block tag waiters` is taken by those who have to wait, and by a release
//! that sees a waiter. No wake-up is lost: a waiter first announces itself, then looks once more; a release first frees
//! the tag, then looks for waiters (all sequentially consistent).

pub mod policy;

use std::sync::Arc;

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::sync::{Condvar, Mutex};
use extant_base::task;

pub use policy::TagPolicyKind;

use self::policy::{TagPolicy, Tags};
use crate::ranks::TAG_WAITERS;

/// A set of tags `0..depth`.
pub struct TagSet {
    tags: Tags,
    waiters: AtomicUsize,
    wait: Mutex<()>,
    freed: Condvar,
    waits: Counter,
}

impl TagSet {
    /// `depth` tags, at least one.
    pub fn new(depth: u32, kind: TagPolicyKind) -> TagSet {
        TagSet {
            tags: Tags::new(kind, depth.max(1)),
            waiters: AtomicUsize::new(0),
            wait: Mutex::new(&TAG_WAITERS, ()),
            freed: Condvar::new(),
            waits: Counter::new(),
        }
    }

    /// A tag, if one is free.
    pub fn try_get(set: &Arc<TagSet>) -> Option<TagGuard> {
        let hint = task::shard_index();
        let tag = set.tags.get(hint)?;
        Some(TagGuard { set: set.clone(), tag, hint })
    }

    /// A tag; waits until one is free.
    pub fn get(set: &Arc<TagSet>) -> TagGuard {
        if let Some(tag) = TagSet::try_get(set) {
            return tag;
        }
        set.waits.inc();
        let mut guard = set.wait.lock();
        set.waiters.fetch_add(1, Ordering::SeqCst);
        let tag = loop {
            match TagSet::try_get(set) {
                Some(tag) => break tag,
                None => set.freed.wait(&mut guard),
            }
        };
        set.waiters.fetch_sub(1, Ordering::SeqCst);
        tag
    }

    /// How often somebody had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    fn put(&self, tag: u32, hint: usize) {
        self.tags.put(tag, hint);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // The lock orders this after the waiter's last look: it either saw the tag or is asleep by now.
            let _guard = self.wait.lock();
            self.freed.notify_one();
        }
    }
}

/// A tag, given back when dropped.
pub struct TagGuard {
    set: Arc<TagSet>,
    tag: u32,
    /// Of the thread that took it, which is likely to ask again; a completion runs elsewhere.
    hint: usize,
}

impl TagGuard {
    /// The number, below the set's depth.
    pub fn tag(&self) -> u32 {
        self.tag
    }
}

impl Drop for TagGuard {
    fn drop(&mut self) {
        self.set.put(self.tag, self.hint);
    }
}
