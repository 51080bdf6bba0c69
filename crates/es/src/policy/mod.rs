//! The policies that choose which entries of the extent-status cache to evict when memory is short.
//!
//! | name | idea in one sentence | Linux function or paper | judged by |
//! |---|---|---|---|
//! | `vanilla` | inodes least recently touched first; each scanned from its first block, delayed entries stepped over for free | `ext4_es_shrink`, 3.12 | experiments/004 to 007 |
//! | `evictable-list` | the same inodes, but each keeps a list of its evictable entries, newest first | Zheng Liu, "ext4: improve extents status tree shrinker", RFC 2013, never merged | same |
//! | `round-robin` | inodes in turn, a cursor in each, every visited entry charged, looked-up entries spared once | `es_do_reclaim_extents`, 3.19 and later | same |
//! | `delayed-only` | stores nothing that the map contains as well, so there is nothing to shrink | none | the baseline for every cache of clean entries |
//! | `leaf-ring` | a hand goes around leaves of packed entries with evictable ones, and spares those that were looked up | CLOCK (Corbato 1968), by leaves | same |
//!
//! The policy determines the data structure, because the data for a quick choice must be updated under the inode's
//! lock. So each policy owns the entries (`EsPolicy::Tree`) and the marks on the inode (`EsPolicy::PerInode`). With
//! FUSE, the kernel's page cache answers most reads, so the policies differ mainly for programs that embed Extant.
//!
//! # Locking
//! A policy's own list of inodes has rank 62 (before `i_es_lock`). Hooks are called without `i_es_lock`, and shrinking
//! only tries to take it.

mod delayed_only;
mod evictable_list;
mod leaf_ring;
mod lru;
mod round_robin;
mod vanilla;

#[cfg(test)]
mod contract;

use std::sync::Arc;

use super::core::{Core, Node, Shrunk};
use super::tree::Entries;

pub(super) use delayed_only::DelayedOnly;
pub(super) use evictable_list::EvictableList;
pub(super) use leaf_ring::LeafRing;
pub(super) use round_robin::RoundRobin;
pub(super) use vanilla::Vanilla;

extant_base::policies! {
    /// The policies, by name.
    pub enum EsPolicyKind: "es_policy", "what leaves the extent-status cache when memory is short", default LeafRing {
        Vanilla = "vanilla", "inodes least recently touched first, each from its first block (Linux 3.12)";
        EvictableList = "evictable-list", "the same inodes, each with a list of what can go (Zheng Liu's series of 2013)";
        RoundRobin = "round-robin", "inodes in turn, each from where the last visit ended (Linux 3.19 and later)";
        DelayedOnly = "delayed-only", "keeps nothing that the map says, too";
        LeafRing = "leaf-ring", "leaves of packed entries in a ring, what was looked up is spared once";
    }
}

/// A way to choose which entries to evict.
pub(super) trait EsPolicy: Default + Send + Sync + Sized + 'static {
    /// An inode's entries, under its lock.
    type Tree: Entries;
    /// The state for an inode, without a lock.
    type PerInode: Default + Send + Sync;
    /// Whether entries that are also in the map are stored.
    const KEEPS_CLEAN: bool = true;
    /// Whether a read of one entry inserts its whole leaf of the map, while there is room.
    const LOADS_LEAVES: bool = false;

    /// Called after a lookup or a change in the inode, which now has `evictable` evictable entries. Must be cheap.
    fn touched(core: &Core<Self>, node: &Arc<Node<Self>>, evictable: u64);

    /// Frees `nr` entries, or visits `nr`. Never frees a delayed one, and always ends.
    fn shrink(core: &Core<Self>, nr: u64) -> Shrunk;
}
