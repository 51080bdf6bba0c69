//! Leaves of packed entries in a ring: a hand goes around those that have something evictable, and spares what was
//! looked up since it was there last, and leaves that are warm altogether.
//!
//! Delayed entries cost nothing: a leaf of nothing else is not in the ring, and in a mixed one a bit says what can go.
//! An inode keeps its turn until the hand has been around its leaves, so that large and small files are seen equally
//! often. A leaf's warmth is the share of its entries that was looked up, with what is left of former times; how warm
//! is warm follows from how much has to go. So the entries of a popular file stay, also those that were not looked up
//! yet, and where all files are alike entries are judged each for itself.
//!
//! A call that met nothing but warmth and marks for [`SPARING_VISITS`] leaves takes what it finds: it frees what it was
//! asked for, or all there is, after at most twice as many.
//!
//! # Locking
//! `s_es_lock`, rank 62, held to pick an inode and not while entries go; an inode's lock for [`LEAVES_AT_ONCE`] leaves.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{LockClass, Mutex};

use super::EsPolicy;
use crate::map::es::core::{Core, Node, Shrunk};
use crate::map::es::packed::{ALL, PackedTree};
use crate::map::es::tree::Entries;

static LIST_CLASS: LockClass = LockClass::new("s_es_lock", 62);

/// After so many leaves nobody is spared.
const SPARING_VISITS: u64 = 128;
/// One in so many goes: which number hardly matters.
const KEPT: u64 = 4;
/// Leaves looked at under one hold of an inode's lock.
const LEAVES_AT_ONCE: u64 = 16;

pub(in crate::map::es) struct LeafRing {
    /// The first one has its turn.
    inodes: Mutex<VecDeque<Weak<Node<LeafRing>>>>,
    /// Leaves above this are spared.
    warm: AtomicU32,
}

impl LeafRing {
    /// The hand shall leave three quarters of what it sees: if it takes more, leaves count as warm earlier, else later.
    /// Two shrinks at once may lose one's step.
    fn adjust(&self, passed: u64, freed: u64) {
        let warm = self.warm.load(Ordering::Relaxed);
        let step = (warm / 16).max(1);
        let warm = if freed * KEPT > passed { warm.saturating_sub(step) } else { (warm + step).min(2 * ALL) };
        self.warm.store(warm, Ordering::Relaxed);
    }
}

impl Default for LeafRing {
    fn default() -> Self {
        LeafRing { inodes: Mutex::new(&LIST_CLASS, VecDeque::new()), warm: AtomicU32::new(ALL) }
    }
}

impl EsPolicy for LeafRing {
    type Tree = PackedTree;
    /// Is the inode on the list?
    type PerInode = AtomicBool;

    fn touched(core: &Core<Self>, node: &Arc<Node<Self>>, evictable: u64) {
        if evictable == 0 || node.per_inode.load(Ordering::Relaxed) {
            return;
        }
        let mut inodes = core.policy.inodes.lock();
        if !node.per_inode.swap(true, Ordering::Relaxed) {
            inodes.push_back(Arc::downgrade(node));
        }
    }

    fn shrink(core: &Core<Self>, nr: u64) -> Shrunk {
        let mut done = Shrunk::default();
        // Two turns for everybody: the first may only take marks off.
        let mut turns = 2 * core.policy.inodes.lock().len();
        while done.freed < nr && turns > 0 {
            let Some(weak) = core.policy.inodes.lock().pop_front() else { break };
            let Some(node) = weak.upgrade() else {
                turns -= 1;
                continue;
            };
            let warm = (done.visited < SPARING_VISITS).then(|| core.policy.warm.load(Ordering::Relaxed));
            let swept = node.try_change(|tree| {
                let swept = tree.sweep(nr - done.freed, LEAVES_AT_ONCE, warm);
                (swept.freed, swept.visited, swept)
            });
            let mut over = true;
            if let Some((shrunk, swept)) = swept {
                done += shrunk;
                over = swept.around;
                if warm.is_some() && swept.passed > 0 {
                    core.policy.adjust(swept.passed, swept.freed);
                }
            }
            turns -= usize::from(over);
            let mut inodes = core.policy.inodes.lock();
            // An inode without evictable entries leaves the list; its next access puts it back. It is marked before it
            // is looked at, so that an insertion in between is either seen here or lists it again itself.
            node.per_inode.store(false, Ordering::Relaxed);
            let stays = node.tree.try_read().is_none_or(|tree| tree.evictable() > 0);
            if stays && !node.per_inode.swap(true, Ordering::Relaxed) {
                if over {
                    inodes.push_back(weak);
                } else {
                    inodes.push_front(weak);
                }
            }
        }
        done
    }
}
