//! The parts common to all policies: the lock around an inode's entries, the counters, the charge to the memory budget.
//!
//! Main types: [`Core`] (one per mount), [`Node`] (one per inode). Both are generic over the policy, so that a lookup
//! costs only one branch more than a direct call.
//!
//! # Locking
//! `i_es_lock` (rank 64) is taken and released within every call. A policy's hook runs afterwards, without the lock.

use std::ops::AddAssign;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::counter::Counter;
use extant_base::sync::{LockClass, RwLock};
use extant_base::trace_point;
use extant_cache::Budget;
use extant_ondisk::InodeNr;

use super::policy::EsPolicy;
use super::tree::Entries;
use super::{EsCounts, EsEntry, EsState};

static ES_CLASS: LockClass = LockClass::new("i_es_lock", 64);

/// The number of entries inserted per acquisition of the lock.
const LOADED_AT_ONCE: usize = 128;

/// Totals since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EsStats {
    /// The number of lookups that found the block's state.
    pub hits: u64,
    /// The number of lookups that found nothing, so that the map had to be read.
    pub misses: u64,
    /// The number of calls of the shrinker.
    pub shrinks: u64,
    /// The number of entries that shrinks visited, including delayed ones; leaves instead of entries if the policy
    /// counts leaves.
    pub scanned: u64,
    /// The number of entries that shrinks freed.
    pub freed: u64,
}

/// The result of a shrink, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shrunk {
    /// The number of entries freed.
    pub freed: u64,
    /// The number of entries or leaves visited.
    pub visited: u64,
    /// The memory freed, in bytes, as charged to the budget.
    pub bytes: u64,
}

impl AddAssign for Shrunk {
    fn add_assign(&mut self, more: Shrunk) {
        self.freed += more.freed;
        self.visited += more.visited;
        self.bytes += more.bytes;
    }
}

/// The cache of one mount with policy `P`.
pub(crate) struct Core<P: EsPolicy> {
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
    bytes_added: Counter,
    bytes_gone: Counter,
}

/// An inode's contribution to the totals.
#[derive(Clone, Copy, Default)]
struct Sizes {
    entries: u64,
    evictable: u64,
    bytes: u64,
}

/// The entries of one inode with policy `P`.
pub(crate) struct Node<P: EsPolicy> {
    core: Arc<Core<P>>,
    ino: InodeNr,
    pub tree: RwLock<P::Tree>,
    /// The policy's own state for the inode.
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
            bytes_added: Counter::new(),
            bytes_gone: Counter::new(),
        })
    }

    pub fn entries(&self) -> u64 {
        // This must be read first: an entry that is added and removed between the two reads must not make the
        // difference negative.
        let gone = self.entries_gone.get();
        self.entries_added.get().saturating_sub(gone)
    }

    pub fn evictable(&self) -> u64 {
        let gone = self.evictable_gone.get();
        self.evictable_added.get().saturating_sub(gone)
    }

    pub fn bytes(&self) -> u64 {
        let gone = self.bytes_gone.get();
        self.bytes_added.get().saturating_sub(gone)
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

    pub fn shrink(&self, nr_to_scan: u64) -> Shrunk {
        trace_point!(ext4_es_shrink_scan_enter, nr_to_scan = nr_to_scan, cache_cnt = self.evictable());
        let done = if nr_to_scan == 0 { Shrunk::default() } else { P::shrink(self, nr_to_scan) };
        self.shrinks.inc();
        self.scanned.add(done.visited);
        self.freed.add(done.freed);
        let (freed, scanned) = (done.freed, done.visited);
        trace_point!(ext4_es_shrink_scan_exit, nr_shrunk = freed, scanned = scanned, cache_cnt = self.evictable());
        done
    }

    fn account(&self, before: Sizes, after: Sizes) {
        let change = |added: &Counter, gone: &Counter, before: u64, after: u64| {
            if after > before {
                added.add(after - before);
            } else if before > after {
                gone.add(before - after);
            }
        };
        change(&self.evictable_added, &self.evictable_gone, before.evictable, after.evictable);
        change(&self.entries_added, &self.entries_gone, before.entries, after.entries);
        change(&self.bytes_added, &self.bytes_gone, before.bytes, after.bytes);
        if let Some(budget) = &self.budget {
            if after.bytes > before.bytes {
                budget.charge(after.bytes - before.bytes);
            } else if before.bytes > after.bytes {
                budget.uncharge(before.bytes - after.bytes);
            }
        }
    }
}

fn sizes(tree: &impl Entries) -> Sizes {
    Sizes { entries: tree.len(), evictable: tree.evictable(), bytes: tree.bytes() }
}

impl<P: EsPolicy> Node<P> {
    pub fn new(core: &Arc<Core<P>>, ino: InodeNr) -> Arc<Node<P>> {
        Arc::new(Node {
            core: Arc::clone(core),
            ino,
            tree: RwLock::new(&ES_CLASS, P::Tree::default()),
            per_inode: P::PerInode::default(),
        })
    }

    fn change<R>(self: &Arc<Self>, f: impl FnOnce(&mut P::Tree) -> R) -> R {
        let (result, before, after) = {
            let mut tree = self.tree.write();
            let before = sizes(&*tree);
            (f(&mut tree), before, sizes(&*tree))
        };
        self.core.account(before, after);
        P::touched(&self.core, self, after.evictable);
        result
    }

    /// For policies, during a shrink: changes the entries if the lock is free, and updates the counters. `f` returns
    /// how many entries it freed and how many it visited.
    pub fn try_change<R>(&self, f: impl FnOnce(&mut P::Tree) -> (u64, u64, R)) -> Option<(Shrunk, R)> {
        let ((freed, visited, result), before, after) = {
            let mut tree = self.tree.try_write()?;
            let before = sizes(&*tree);
            let done = (f(&mut tree), before, sizes(&*tree));
            tree.unlock_fair();
            done
        };
        self.core.account(before, after);
        Some((Shrunk { freed, visited, bytes: before.bytes.saturating_sub(after.bytes) }, result))
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
        self.change(|tree| match state.evictable() && !P::KEEPS_CLEAN {
            true => tree.remove(lblk, clip(lblk, len)),
            false => tree.insert(lblk, clip(lblk, len), state),
        })
    }

    pub fn cache(self: &Arc<Self>, lblk: u32, len: u32, state: EsState) -> bool {
        len > 0 && P::KEEPS_CLEAN && self.change(|tree| tree.insert_if_absent(lblk, clip(lblk, len), state))
    }

    pub fn loads(&self) -> bool {
        P::LOADS_LEAVES && self.core.budget.as_ref().is_none_or(|budget| budget.has_room())
    }

    pub fn load(self: &Arc<Self>, leaf: &[EsEntry]) {
        for some in leaf.chunks(LOADED_AT_ONCE) {
            self.change(|tree| {
                for e in some {
                    tree.insert_if_absent(e.lblk.0, clip(e.lblk.0, e.len), e.state);
                }
            });
        }
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

/// Shortens the length, because no entry extends beyond logical block 0xFFFF_FFFF.
fn clip(lblk: u32, len: u32) -> u32 {
    len.min((u32::MAX - lblk).saturating_add(1).max(1))
}

impl<P: EsPolicy> Drop for Node<P> {
    fn drop(&mut self) {
        let before = sizes(&*self.tree.read());
        self.core.account(before, Sizes::default());
    }
}
