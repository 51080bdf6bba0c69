//! Leaves of packed entries in a ring. A hand visits the leaves with evictable entries. It spares either the entries
//! that were looked up since its last visit, or the warm leaves, depending on which has predicted lookups better.
//!
//! Delayed entries cost nothing: a leaf with only delayed entries is not in the ring, and in a mixed leaf a bit marks
//! the evictable ones. It is an inode's turn until the hand has visited all of its leaves, so the hand visits large and
//! small files equally often. A leaf's warmth is the share of its entries that were looked up, plus a remainder of
//! earlier rounds. The threshold for warm leaves depends on how much must be evicted.
//!
//! If single entries are popular, an entry that was looked up is worth more than its neighbours. If files are popular,
//! all entries of a popular file are worth the same, even those without a lookup, and marks are random. [`Alike`]
//! learns which is the case from leaves that were not evicted from: do the next lookups hit marked entries, or any?
//! Warm leaves are not evicted from anyway; while the hand judges single entries, it spares a few leaves as a whole in
//! order to learn.
//!
//! While there is room, a read of the map inserts its whole leaf. Inserting a single entry costs as much as another
//! read of the map, so an entry with a single use is never worth it. Inserting many adjacent entries costs much less
//! per entry.
//!
//! A call that found only warm leaves and marks in [`SPARING_VISITS`] leaves then spares nothing: it frees the
//! requested number, or everything, from the next leaves that have evictable entries.
//!
//! # Locking
//! `s_es_lock`, rank 62, is held to pick an inode and to learn, but not during evictions; an inode's lock is held for
//! [`LEAVES_AT_ONCE`] leaves.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};

use super::EsPolicy;
use crate::core::{Core, Node, Shrunk};
use crate::packed::{ALL, Outcome, PackedTree, Spare, Swept};
use crate::tree::Entries;

static LIST_CLASS: LockClass = LockClass::new("s_es_lock", 62);

/// After this many leaves, a call spares nothing.
const SPARING_VISITS: u64 = 64;
/// The aim is to evict one entry in this many; the exact number hardly matters.
const GOES_ONE_IN: u64 = 4;
/// The number of leaves visited per acquisition of an inode's lock.
const LEAVES_AT_ONCE: u64 = 16;

pub(crate) struct LeafRing {
    ring: Mutex<Ring>,
}

struct Ring {
    /// The inodes; it is the turn of the first one.
    inodes: VecDeque<Weak<Node<LeafRing>>>,
    /// The warmth above which leaves are spared, if whole leaves are spared.
    warm: u32,
    alike: Alike,
    /// The number of leaves visited.
    seen: u64,
}

impl Ring {
    fn spare(&self) -> Spare {
        if self.alike.holds() { Spare::Leaves { warm: self.warm } } else { Spare::Entries { seen: self.seen } }
    }

    /// The hand should spare three quarters of the entries that it visits. If it evicts more, the threshold for warm
    /// leaves is lowered; otherwise it is raised.
    fn learn(&mut self, swept: &Swept) {
        self.seen += swept.visited;
        if swept.passed > 0 {
            let step = (self.warm / 64).max(1);
            let more = swept.freed * GOES_ONE_IN > swept.passed;
            self.warm = if more { self.warm.saturating_sub(step) } else { (self.warm + step).min(4 * ALL) };
        }
        self.alike.add(swept);
    }
}

/// Whether the entries of a leaf are equally likely to be looked up, learned from about the last hundred leaves that
/// were not evicted from.
#[derive(Default)]
struct Alike(Outcome);

impl Alike {
    /// The weight of older observations decreases with each leaf that adds one, and slowly with each visited leaf: if
    /// no leaf is warm, none adds an observation.
    const FADES: f64 = 1.0 - 1.0 / 64.0;
    const FADES_UNTOLD: f64 = 1.0 - 1.0 / 1024.0;
    /// Virtual lookups that outweigh a few real ones. Until more is known, the hand judges single entries.
    const PRIOR: f64 = 16.0;
    const PRIOR_EXPECTED: f64 = 24.0;
    /// Entries count as alike if the odds of one without a mark are above this share of the odds of one with it. In the
    /// traces of `es-traces`, the share is 0.86 to 1.11 for popular files, and 0.22 to 0.72 for popular entries (the
    /// middle nine tenths).
    const LEAST: f64 = 0.7;

    fn add(&mut self, swept: &Swept) {
        let power = |fades: f64, times: u64| fades.powi(times.min(1 << 16) as i32);
        let fades = power(Self::FADES, swept.outcomes) * power(Self::FADES_UNTOLD, swept.visited);
        let (known, new) = (self.0, swept.outcome);
        self.0 = Outcome {
            marked: known.marked * fades + new.marked,
            unmarked: known.unmarked * fades + new.unmarked,
            marked_expected: known.marked_expected * fades + new.marked_expected,
        };
    }

    fn holds(&self) -> bool {
        let Outcome { marked, unmarked, marked_expected } = self.0;
        let unmarked_expected = marked + unmarked - marked_expected;
        let odds_marked = (marked + Self::PRIOR) / (marked_expected + Self::PRIOR);
        let odds_unmarked = (unmarked + Self::PRIOR) / (unmarked_expected + Self::PRIOR_EXPECTED);
        odds_unmarked > Self::LEAST * odds_marked
    }
}

impl Default for LeafRing {
    fn default() -> Self {
        let ring = Ring { inodes: VecDeque::new(), warm: ALL, alike: Alike::default(), seen: 0 };
        LeafRing { ring: Mutex::new(&LIST_CLASS, ring) }
    }
}

impl EsPolicy for LeafRing {
    type Tree = PackedTree;
    /// Whether the inode is on the list.
    type PerInode = AtomicBool;
    const LOADS_LEAVES: bool = true;

    fn touched(core: &Core<Self>, node: &Arc<Node<Self>>, evictable: u64) {
        if evictable == 0 || node.per_inode.load(Ordering::Relaxed) {
            return;
        }
        let mut ring = core.policy.ring.lock();
        if !node.per_inode.swap(true, Ordering::Relaxed) {
            ring.inodes.push_back(Arc::downgrade(node));
        }
    }

    fn shrink(core: &Core<Self>, nr: u64) -> Shrunk {
        let mut done = Shrunk::default();
        // Each inode gets two turns, because the first may be the rest of a round and may only clear marks, and then
        // two more in which nothing is spared.
        let inodes = core.policy.ring.lock().inodes.len();
        let mut turns = 4 * inodes;
        while done.freed < nr && turns > 0 {
            let (weak, spare) = {
                let mut ring = core.policy.ring.lock();
                let Some(weak) = ring.inodes.pop_front() else { break };
                (weak, (done.visited < SPARING_VISITS && turns > 2 * inodes).then(|| ring.spare()))
            };
            let Some(node) = weak.upgrade() else {
                turns -= 1;
                continue;
            };
            let swept = node.try_change(|tree| {
                let swept = tree.sweep(nr - done.freed, LEAVES_AT_ONCE, spare);
                (swept.freed, swept.visited, swept)
            });
            let over = swept.as_ref().is_none_or(|(_, swept)| swept.around);
            turns -= usize::from(over);
            let mut ring = core.policy.ring.lock();
            if let Some((shrunk, swept)) = swept {
                done += shrunk;
                if spare.is_some() {
                    ring.learn(&swept);
                }
            }
            // An inode without evictable entries is removed from the list; its next access puts it back. It is marked
            // before the check, so a concurrent insertion is either seen here or puts the inode back itself.
            node.per_inode.store(false, Ordering::Relaxed);
            let stays = node.tree.try_read().is_none_or(|tree| tree.evictable() > 0);
            if stays && !node.per_inode.swap(true, Ordering::Relaxed) {
                if over {
                    ring.inodes.push_back(weak);
                } else {
                    ring.inodes.push_front(weak);
                }
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sweep with `marked` and `unmarked` lookups, of which `share` would be marked by chance.
    fn told(marked: f64, unmarked: f64, share: f64) -> Swept {
        let outcome = Outcome { marked, unmarked, marked_expected: share * (marked + unmarked) };
        Swept { outcome, outcomes: 1, visited: 1, ..Swept::default() }
    }

    #[test]
    fn entries_count_as_alike_only_once_marks_prove_useless() {
        let mut alike = Alike::default();
        assert!(!alike.holds(), "nothing is known");
        let (popular_files, popular_entries) = (told(5.0, 45.0, 0.1), told(20.0, 30.0, 0.1));
        let until = |alike: &mut Alike, swept: &Swept, holds: bool| {
            (1..1_000).find(|_| {
                alike.add(swept);
                alike.holds() == holds
            })
        };
        assert!(until(&mut alike, &popular_files, true).is_some_and(|n| n < 10));
        assert_eq!(until(&mut alike, &popular_files, false), None);
        assert!(until(&mut alike, &popular_entries, false).is_some_and(|n| n < 40), "old observations fade");
        assert!(until(&mut alike, &popular_files, true).is_some_and(|n| n < 200));
        // No leaf is warm, so none is spared as a whole, and none adds an observation.
        assert!(until(&mut alike, &Swept { visited: 16, ..Swept::default() }, false).is_some());
    }
}
