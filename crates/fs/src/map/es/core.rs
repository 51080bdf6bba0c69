//! What all policies share: the lock around an inode's entries, counters, the charge to the memory budget.
//!
//! Main types: [`Core`] (one for a mount), [`Node`] (one for an inode), both generic over the policy so that a lookup
//! costs one branch more than a direct call.
//!
//! # Locking
//! `i_es_lock` (rank 64) is taken and released inside of every call. A policy's hook runs after that, without it.

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::counter::Counter;
use extant_base::sync::{LockClass, RwLock};
use extant_base::trace_point;
use extant_cache::Budget;
use extant_ondisk::InodeNr;

use super::policy::EsPolicy;
use super::tree::StatusTree;
use super::{EsCounts, EsEntry, EsState};

static ES_CLASS: LockClass = LockClass::new("i_es_lock", 64);

/// Totals since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EsStats {
    /// Lookups that found the block's state.
    pub hits: u64,
    /// Lookups that found nothing, so that the map had to be read.
    pub misses: u64,
    /// Calls of the shrinker.
    pub shrinks: u64,
    /// Entries that shrinks looked at, delayed ones included.
    pub scanned: u64,
    /// Entries that shrinks gave up.
    pub freed: u64,
}

/// The cache of one mount under policy `P`.
pub(in crate::map::es) struct Core<P: EsPolicy> {
    pub policy: P,
    pub clock: Clock,
    budget: Option<Arc<Budget>>,
    entries_added: Counter,
    entries_gone: Counter,
    evictable_added: Counter,
    evictable_gone: Counter,
    hits: Counter,
    misses: Counter,
    shrinks: Counter,
    scanned: Counter,
    freed: Counter,
}

/// The entries of one inode under policy `P`.
pub(in crate::map::es) struct Node<P: EsPolicy> {
    core: Arc<Core<P>>,
    ino: InodeNr,
    pub tree: RwLock<StatusTree<P::Index>>,
    /// What the policy remembers about the inode.
    pub per_inode: P::PerInode,
}

impl<P: EsPolicy> Core<P> {
    pub fn new(clock: Clock, budget: Option<Arc<Budget>>) -> Arc<Core<P>> {
        Arc::new(Core {
            policy: P::default(),
            clock,
            budget,
            entries_added: Counter::new(),
            entries_gone: Counter::new(),
            evictable_added: Counter::new(),
            evictable_gone: Counter::new(),
            hits: Counter::new(),
            misses: Counter::new(),
            shrinks: Counter::new(),
            scanned: Counter::new(),
            freed: Counter::new(),
        })
    }

    pub fn entries(&self) -> u64 {
        // Gone first: an entry that comes and goes between the two reads must not make the difference negative.
        let gone = self.entries_gone.get();
        self.entries_added.get().saturating_sub(gone)
    }

    pub fn evictable(&self) -> u64 {
        let gone = self.evictable_gone.get();
        self.evictable_added.get().saturating_sub(gone)
    }

    pub fn entry_bytes(&self) -> u64 {
        P::ENTRY_BYTES
    }

    pub fn stats(&self) -> EsStats {
        EsStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            shrinks: self.shrinks.get(),
            scanned: self.scanned.get(),
            freed: self.freed.get(),
        }
    }

    pub fn shrink(&self, nr_to_scan: u64) -> u64 {
        trace_point!(ext4_es_shrink_scan_enter, nr_to_scan = nr_to_scan, cache_cnt = self.evictable());
        let (freed, scanned) = if nr_to_scan == 0 { (0, 0) } else { P::shrink(self, nr_to_scan) };
        self.shrinks.inc();
        self.scanned.add(scanned);
        self.freed.add(freed);
        trace_point!(ext4_es_shrink_scan_exit, nr_shrunk = freed, scanned = scanned, cache_cnt = self.evictable());
        freed
    }

    fn account(&self, before: (u64, u64), after: (u64, u64)) {
        let change = |added: &Counter, gone: &Counter, before: u64, after: u64| {
            if after > before {
                added.add(after - before);
            } else if before > after {
                gone.add(before - after);
            }
        };
        change(&self.evictable_added, &self.evictable_gone, before.1, after.1);
        if before.0 != after.0 {
            change(&self.entries_added, &self.entries_gone, before.0, after.0);
            if let Some(budget) = &self.budget {
                if after.0 > before.0 {
                    budget.charge((after.0 - before.0) * P::ENTRY_BYTES);
                } else {
                    budget.uncharge((before.0 - after.0) * P::ENTRY_BYTES);
                }
            }
        }
    }
}

fn sizes<P: EsPolicy>(tree: &StatusTree<P::Index>) -> (u64, u64) {
    (tree.len(), tree.evictable())
}

impl<P: EsPolicy> Node<P> {
    pub fn new(core: &Arc<Core<P>>, ino: InodeNr) -> Arc<Node<P>> {
        Arc::new(Node {
            core: Arc::clone(core),
            ino,
            tree: RwLock::new(&ES_CLASS, StatusTree::default()),
            per_inode: P::PerInode::default(),
        })
    }

    fn change<R>(self: &Arc<Self>, f: impl FnOnce(&mut StatusTree<P::Index>) -> R) -> R {
        let (result, before, after) = {
            let mut tree = self.tree.write();
            let before = sizes::<P>(&tree);
            (f(&mut tree), before, sizes::<P>(&tree))
        };
        self.core.account(before, after);
        P::touched(&self.core, self, after.1);
        result
    }

    /// For policies, while they shrink: changes the entries if nobody holds the lock, telling the counters.
    pub fn try_change<R>(&self, f: impl FnOnce(&mut StatusTree<P::Index>) -> R) -> Option<R> {
        let (result, before, after) = {
            let mut tree = self.tree.try_write()?;
            let before = sizes::<P>(&tree);
            (f(&mut tree), before, sizes::<P>(&tree))
        };
        self.core.account(before, after);
        Some(result)
    }

    pub fn lookup(self: &Arc<Self>, lblk: u32) -> Option<EsEntry> {
        let (found, evictable) = {
            let tree = self.tree.read();
            (tree.lookup(lblk), tree.evictable())
        };
        if found.is_some() {
            self.core.hits.inc()
        } else {
            self.core.misses.inc()
        }
        P::touched(&self.core, self, evictable);
        found
    }

    pub fn insert(self: &Arc<Self>, lblk: u32, len: u32, state: EsState) -> u64 {
        if len == 0 {
            return 0;
        }
        trace_point!(ext4_es_insert_extent, ino = self.ino.0, lblk = lblk, len = len; "state={state:?}");
        self.change(|tree| tree.insert(lblk, clip(lblk, len), state))
    }

    pub fn cache(self: &Arc<Self>, lblk: u32, len: u32, state: EsState) -> bool {
        len > 0 && self.change(|tree| tree.insert_if_absent(lblk, clip(lblk, len), state))
    }

    pub fn remove(self: &Arc<Self>, lblk: u32, len: u32) -> u64 {
        trace_point!(ext4_es_remove_extent, ino = self.ino.0, lblk = lblk, len = len);
        self.change(|tree| tree.remove(lblk, len))
    }

    pub fn find_delayed(&self, from: u32, to: u32) -> Option<EsEntry> {
        self.tree.read().find_delayed(from, to)
    }

    pub fn counts(&self) -> EsCounts {
        let tree = self.tree.read();
        EsCounts { entries: tree.len(), evictable: tree.evictable(), delayed_blocks: tree.all_delayed_blocks() }
    }
}

/// No entry reaches beyond logical block 0xFFFF_FFFF.
fn clip(lblk: u32, len: u32) -> u32 {
    len.min((u32::MAX - lblk).saturating_add(1).max(1))
}

impl<P: EsPolicy> Drop for Node<P> {
    fn drop(&mut self) {
        let before = sizes::<P>(&self.tree.read());
        self.core.account(before, (0, 0));
    }
}
