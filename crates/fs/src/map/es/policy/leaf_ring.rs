//! Leaves of packed entries in a ring: a hand goes around those that have something evictable, and spares either what
//! was looked up since it was there last or leaves that are warm, whichever has told more of what is looked up next.
//!
//! Delayed entries cost nothing: a leaf of nothing else is not in the ring, and in a mixed one a bit says what can go.
//! An inode keeps its turn until the hand has been around its leaves, so that large and small files are seen equally
//! often. A leaf's warmth is the share of its entries that was looked up, with what is left of former times; how warm
//! is warm follows from how much has to go.
//!
//! Where entries are popular, an entry that was looked up is worth more than its neighbours; where files are, all of a
//! popular file are worth the same, also those that nobody has asked for yet, and a mark is chance. [`Alike`] learns
//! which it is from leaves that were kept whole: are those looked up again that were before, or any? Warm leaves are
//! kept whole anyway; while entries are judged one by one, a few leaves are to learn from.
//!
//! Where there is room, what is read from the map brings its neighbours: an entry that is inserted alone costs as much
//! as reading the map for it once more, so one that is used once is never paid for. Side by side they cost much less.
//!
//! A call that met nothing but warmth and marks for [`SPARING_VISITS`] leaves takes what it finds: it frees what it was
//! asked for, or all there is, from as few leaves more as have that.
//!
//! # Locking
//! `s_es_lock`, rank 62, held to pick an inode, and for what was learned, and not while entries go; an inode's lock for
//! [`LEAVES_AT_ONCE`] leaves.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};

use super::EsPolicy;
use crate::map::es::core::{Core, Node, Shrunk};
use crate::map::es::packed::{ALL, Outcome, PackedTree, Spare, Swept};
use crate::map::es::tree::Entries;

static LIST_CLASS: LockClass = LockClass::new("s_es_lock", 62);

/// After so many leaves nobody is spared.
const SPARING_VISITS: u64 = 64;
/// One in so many goes: which number hardly matters.
const GOES_ONE_IN: u64 = 4;
/// Leaves looked at under one hold of an inode's lock.
const LEAVES_AT_ONCE: u64 = 16;

pub(in crate::map::es) struct LeafRing {
    ring: Mutex<Ring>,
}

struct Ring {
    /// The first one has its turn.
    inodes: VecDeque<Weak<Node<LeafRing>>>,
    /// Leaves above this are spared, if leaves are.
    warm: u32,
    alike: Alike,
    /// Leaves seen.
    seen: u64,
}

impl Ring {
    fn spare(&self) -> Spare {
        if self.alike.holds() { Spare::Leaves { warm: self.warm } } else { Spare::Entries { seen: self.seen } }
    }

    /// The hand shall leave three quarters of what it sees: if it takes more, leaves count as warm earlier, else later.
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

/// Are the entries of a leaf as likely as each other? The last hundred leaves or so that were kept whole tell.
#[derive(Default)]
struct Alike(Outcome);

impl Alike {
    /// What was learned counts so much less with each leaf that has told something, and with each that was seen: where
    /// no leaf is warm none tells anything.
    const FADES: f64 = 1.0 - 1.0 / 64.0;
    const FADES_UNTOLD: f64 = 1.0 - 1.0 / 1024.0;
    /// Lookups that weigh against few others. Entries are judged one by one until something else is known.
    const PRIOR: f64 = 16.0;
    const PRIOR_EXPECTED: f64 = 24.0;
    /// The odds of an entry without a mark, beside those of one with it. In the traces of `es-traces` popular files
    /// have 0.86 to 1.11, popular entries 0.22 to 0.72 (the middle nine tenths).
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
    /// Is the inode on the list?
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
        // Two turns for each inode, of which the first may be what is left of a round and may only take marks off; then
        // two in which nothing is spared.
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
            // An inode without evictable entries leaves the list; its next access puts it back. It is marked before it
            // is looked at, so that an insertion in between is either seen here or lists it again itself.
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

    /// `marked` and `unmarked` lookups where as many, `share` of them marked, would be chance.
    fn told(marked: f64, unmarked: f64, share: f64) -> Swept {
        let outcome = Outcome { marked, unmarked, marked_expected: share * (marked + unmarked) };
        Swept { outcome, outcomes: 1, visited: 1, ..Swept::default() }
    }

    #[test]
    fn entries_are_alike_when_marks_tell_nothing_and_until_that_is_known_they_are_not() {
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
        assert!(until(&mut alike, &popular_entries, false).is_some_and(|n| n < 40), "what was is soon forgotten");
        assert!(until(&mut alike, &popular_files, true).is_some_and(|n| n < 200));
        // No leaf is warm, so none is kept whole, and none tells.
        assert!(until(&mut alike, &Swept { visited: 16, ..Swept::default() }, false).is_some());
    }
}
