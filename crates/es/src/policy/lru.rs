//! The list of inodes for vanilla and evictable-list: every inode with evictable entries, sorted by last access only
//! when a walk finds nothing to evict.
//!
//! Linux 3.12: `s_es_lru`, `s_es_lru_lock`, `s_es_last_sorted`, `i_touch_when`, `ext4_es_lru_add`. Its weaknesses are
//! kept: a walk holds the one lock all the time, and an access to an inode that is not on the list takes it, too.
//! Precached inodes and the caller's locked inode are left out, because Extant does not have them. Where the kernel
//! waited for `i_es_lock`, this code only tries to take it.
//!
//! # Locking
//! `s_es_lru_lock`, rank 62.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};

use crate::core::{Core, Node, Shrunk};
use crate::policy::EsPolicy;
use crate::tree::Entries;

static LRU_CLASS: LockClass = LockClass::new("s_es_lru_lock", 62);

/// A jiffy at 250 Hz, the resolution of the kernel's stamps.
const STAMP_NS: u64 = 4_000_000;

struct List<P: EsPolicy> {
    inodes: VecDeque<Weak<Node<P>>>,
    last_sorted: u64,
}

/// The list and its lock.
pub(super) struct InodeLru<P: EsPolicy>(Mutex<List<P>>);

/// The policy's state for each inode.
#[derive(Default)]
pub(crate) struct Stamp {
    touched_when: AtomicU64,
    listed: AtomicBool,
}

impl<P: EsPolicy> Default for InodeLru<P> {
    fn default() -> Self {
        InodeLru(Mutex::new(&LRU_CLASS, List { inodes: VecDeque::new(), last_sorted: 0 }))
    }
}

fn now<P: EsPolicy>(core: &Core<P>) -> u64 {
    1 + core.clock.now_ns() / STAMP_NS
}

impl<P: EsPolicy<PerInode = Stamp>> InodeLru<P> {
    pub fn touched(&self, core: &Core<P>, node: &Arc<Node<P>>, evictable: u64) {
        let stamp = &node.per_inode;
        let now = now(core);
        // The store is skipped if nothing changes, so that readers of one inode on many cores do not contend for its
        // cache line.
        if stamp.touched_when.load(Ordering::Relaxed) != now {
            stamp.touched_when.store(now, Ordering::Relaxed);
        }
        if evictable == 0 || stamp.listed.load(Ordering::Relaxed) {
            return;
        }
        let mut list = self.0.lock();
        if !stamp.listed.swap(true, Ordering::Relaxed) {
            list.inodes.push_back(Arc::downgrade(node));
        }
    }

    /// Walks the list; `reclaim(node, left)` frees at most `left` entries of one inode.
    pub fn shrink(&self, core: &Core<P>, nr: u64, mut reclaim: impl FnMut(&Node<P>, u64) -> Shrunk) -> Shrunk {
        let mut list = self.0.lock();
        let mut done = Shrunk::default();
        for attempt in 0..2 {
            let mut kept = VecDeque::new();
            let mut skipped = VecDeque::new();
            while let Some(weak) = list.inodes.pop_front() {
                let Some(node) = weak.upgrade() else { continue };
                if done.freed >= nr || core.evictable() == 0 {
                    kept.push_back(weak);
                    break;
                }
                if node.per_inode.touched_when.load(Ordering::Relaxed) > list.last_sorted {
                    skipped.push_back(weak);
                    continue;
                }
                done += reclaim(&node, nr - done.freed);
                // An inode without evictable entries is removed from the list; its next access puts it back. It is
                // marked before the check, so a concurrent insertion is either seen here or puts the inode back itself.
                // A busy inode counts as not empty.
                node.per_inode.listed.store(false, Ordering::Relaxed);
                if node.tree.try_read().is_some_and(|tree| tree.evictable() == 0) {
                    continue;
                }
                node.per_inode.listed.store(true, Ordering::Relaxed);
                kept.push_back(weak);
            }
            kept.append(&mut list.inodes);
            let something_skipped = !skipped.is_empty();
            kept.append(&mut skipped);
            list.inodes = kept;
            if done.freed > 0 || !something_skipped || attempt == 1 {
                break;
            }
            let when = |weak: &Weak<Node<P>>| {
                weak.upgrade().map_or(0, |node| node.per_inode.touched_when.load(Ordering::Relaxed))
            };
            list.inodes.make_contiguous().sort_by_cached_key(when);
            list.last_sorted = now(core);
        }
        done
    }
}
