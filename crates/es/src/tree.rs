//! One inode's entries: runs of blocks that never overlap, merged with their neighbours.
//!
//! Main types: [`Entries`] (the operations on them, for any representation), [`StatusTree`] (a `BTreeMap`, where Linux
//! has a red-black tree), [`Index`] (a policy's own record of the evictable entries).
//!
//! # Locking
//! None. The owner has the lock.

use std::collections::BTreeMap;
use std::ops::Bound;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::{EsEntry, EsState};

/// One inode's entries. An implementer only stores runs; the rules between runs are implemented here.
pub(super) trait Entries: Default + Send + Sync {
    /// The number of entries.
    fn len(&self) -> u64;
    /// The number of entries that a shrink can free.
    fn evictable(&self) -> u64;
    fn all_delayed_blocks(&self) -> u64;
    /// The memory apart from the inode's own, in bytes, for the budget.
    fn bytes(&self) -> u64;
    /// The maximum length of an entry in this state; 0 if the state cannot be stored.
    fn longest(_state: EsState) -> u32 {
        u32::MAX
    }
    /// The entry that contains `lblk`, which is marked as looked up.
    fn lookup(&self, lblk: u32) -> Option<EsEntry>;
    /// The last entry that starts at or before `lblk`.
    fn at_or_before(&self, lblk: u32) -> Option<EsEntry>;
    /// The last entry that starts at or before `lblk`, and the next entry after it.
    fn around(&self, lblk: u32) -> (Option<EsEntry>, Option<EsEntry>);
    /// Calls `f` with each entry, from the one that contains `from` (or the next one) on, until `f` returns false.
    fn visit(&self, from: u32, f: impl FnMut(EsEntry) -> bool);
    /// Adds an entry to a free range.
    fn put(&mut self, new: EsEntry);
    /// Removes and returns the entry that starts at `lblk`.
    fn take(&mut self, lblk: u32) -> Option<EsEntry>;
    /// Changes the length of the entry that starts at `lblk`.
    fn resize(&mut self, lblk: u32, len: u32);

    /// The first entry that ends after `lblk`.
    fn next(&self, lblk: u32) -> Option<EsEntry> {
        let mut found = None;
        self.visit(lblk, |e| {
            found = Some(e);
            false
        });
        found
    }

    /// Removes `lblk..lblk + len`, with splits at both ends. Returns how many of these blocks were delayed.
    fn remove(&mut self, lblk: u32, len: u32) -> u64 {
        let end = end_of(lblk, len);
        let before = self.all_delayed_blocks();
        if let Some(left) = self.at_or_before(lblk).filter(|e| e.lblk.0 < lblk && e.end() > u64::from(lblk)) {
            self.resize(left.lblk.0, lblk - left.lblk.0);
            self.put_tail(&left, end);
        }
        while let Some(inside) = self.next(lblk).filter(|e| u64::from(e.lblk.0) < end) {
            self.take(inside.lblk.0);
            self.put_tail(&inside, end);
        }
        before - self.all_delayed_blocks()
    }

    /// Adds the part of `whole` from `end` on, if there is one.
    fn put_tail(&mut self, whole: &EsEntry, end: u64) {
        if whole.end() > end {
            let skip = end - u64::from(whole.lblk.0);
            let len = (whole.end() - end) as u32;
            self.put(EsEntry { lblk: LogicalBlock(end as u32), len, state: whole.state.advanced(skip) });
        }
    }

    /// Replaces the range and merges it with both neighbours. Returns how many delayed blocks this replaced.
    fn insert(&mut self, lblk: u32, len: u32, state: EsState) -> u64 {
        let around = self.around(lblk);
        if self.insert_between(around, EsEntry { lblk: LogicalBlock(lblk), len, state }) {
            return 0;
        }
        let replaced = self.remove(lblk, len);
        let mut done = 0;
        while done < len {
            let state = state.advanced(u64::from(done));
            let piece = (len - done).min(Self::longest(state));
            if piece == 0 {
                break;
            }
            self.put_merged(EsEntry { lblk: LogicalBlock(lblk + done), len: piece, state });
            done += piece;
        }
        replaced
    }

    /// The common case of an insertion: the range is free, and the run before it can be continued or does not touch it.
    /// Otherwise does nothing and returns false.
    fn insert_between(&mut self, (left, right): (Option<EsEntry>, Option<EsEntry>), new: EsEntry) -> bool {
        let apart = new.len <= Self::longest(new.state)
            && left.is_none_or(|left| left.end() <= u64::from(new.lblk.0))
            && right.is_none_or(|right| new.end() <= u64::from(right.lblk.0) && !Self::merge(&new, &right));
        if apart {
            match left.filter(|left| Self::merge(left, &new)) {
                Some(left) => self.resize(left.lblk.0, left.len + new.len),
                None => self.put(new),
            }
        }
        apart
    }

    fn put_merged(&mut self, mut new: EsEntry) {
        if let Some(right) = u32::try_from(new.end()).ok().and_then(|end| self.at_or_before(end))
            && Self::merge(&new, &right)
        {
            self.take(right.lblk.0);
            new.len += right.len;
        }
        match self.at_or_before(new.lblk.0) {
            Some(left) if Self::merge(&left, &new) => self.resize(left.lblk.0, left.len + new.len),
            _ => self.put(new),
        }
    }

    /// Whether two entries can become one.
    fn merge(left: &EsEntry, right: &EsEntry) -> bool {
        follows(left, right) && left.len.checked_add(right.len).is_some_and(|len| len <= Self::longest(left.state))
    }

    /// Inserts the range unless any part of it is known.
    fn insert_if_absent(&mut self, lblk: u32, len: u32, state: EsState) -> bool {
        let (left, right) = self.around(lblk);
        let known = left.is_some_and(|left| left.end() > u64::from(lblk))
            || right.is_some_and(|right| u64::from(right.lblk.0) < end_of(lblk, len));
        if !known && !self.insert_between((left, right), EsEntry { lblk: LogicalBlock(lblk), len, state }) {
            self.insert(lblk, len, state);
        }
        !known
    }

    fn find_delayed(&self, from: u32, to: u32) -> Option<EsEntry> {
        let mut found = None;
        if self.all_delayed_blocks() > 0 {
            self.visit(from, |e| {
                if e.lblk.0 <= to && e.state == EsState::Delayed {
                    found = Some(e);
                }
                e.lblk.0 <= to && found.is_none()
            });
        }
        found
    }
}

/// A policy's data in addition to the tree, updated when an evictable entry is added or removed.
pub(super) trait Index: Default + Send + Sync {
    /// The estimated memory of an entry including the index, in bytes.
    const ENTRY_BYTES: u64;

    /// Called when an evictable entry starts at `lblk`. The returned tag is passed to [`Index::removed`].
    fn added(&mut self, lblk: u32) -> u64;
    /// Called when the entry that started at `lblk` is removed, or starts elsewhere.
    fn removed(&mut self, lblk: u32, tag: u64);
}

/// No index, only the tree.
impl Index for () {
    /// The key and the slot in a B-tree node that is two thirds full.
    const ENTRY_BYTES: u64 = 64;

    fn added(&mut self, _lblk: u32) -> u64 {
        0
    }

    fn removed(&mut self, _lblk: u32, _tag: u64) {}
}

/// An entry, whose first block is the key.
#[derive(Debug)]
pub(super) struct Slot {
    len: u32,
    state: EsState,
    tag: u64,
    /// Set by a lookup; cleared when a shrink spares the entry (Linux: EXTENT_STATUS_REFERENCED).
    pub referenced: AtomicBool,
}

/// The entries of one inode.
#[derive(Debug, Default)]
pub(super) struct StatusTree<I> {
    map: BTreeMap<u32, Slot>,
    pub index: I,
    evictable: u64,
    delayed_blocks: u64,
}

fn entry(lblk: u32, slot: &Slot) -> EsEntry {
    EsEntry { lblk: LogicalBlock(lblk), len: slot.len, state: slot.state }
}

fn end_of(lblk: u32, len: u32) -> u64 {
    u64::from(lblk) + u64::from(len)
}

/// Whether the right run continues the left one.
fn follows(left: &EsEntry, right: &EsEntry) -> bool {
    let behind = |b: BlockNr| b.0.checked_add(u64::from(left.len));
    let same = match (left.state, right.state) {
        (EsState::Written(a), EsState::Written(b)) | (EsState::Unwritten(a), EsState::Unwritten(b)) => {
            behind(a) == Some(b.0)
        }
        (a, b) => a == b,
    };
    same && left.end() == u64::from(right.lblk.0)
}

impl<I: Index> StatusTree<I> {
    /// The entries that start at or after `lblk`, with the policy's own marks, as (first block, slot, evictable).
    pub fn slots_from(&self, lblk: u32) -> impl Iterator<Item = (u32, &Slot, bool)> {
        self.map.range(lblk..).map(|(l, s)| (*l, s, s.state.evictable()))
    }
}

impl<I: Index> Entries for StatusTree<I> {
    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn evictable(&self) -> u64 {
        self.evictable
    }

    fn all_delayed_blocks(&self) -> u64 {
        self.delayed_blocks
    }

    fn bytes(&self) -> u64 {
        self.len() * I::ENTRY_BYTES
    }

    fn lookup(&self, lblk: u32) -> Option<EsEntry> {
        let (start, slot) = self.map.range(..=lblk).next_back()?;
        let found = entry(*start, slot);
        if found.end() <= u64::from(lblk) {
            return None;
        }
        if !slot.referenced.load(Ordering::Relaxed) {
            slot.referenced.store(true, Ordering::Relaxed);
        }
        Some(found)
    }

    fn at_or_before(&self, lblk: u32) -> Option<EsEntry> {
        self.map.range(..=lblk).next_back().map(|(l, s)| entry(*l, s))
    }

    fn around(&self, lblk: u32) -> (Option<EsEntry>, Option<EsEntry>) {
        let right = self.map.range((Bound::Excluded(lblk), Bound::Unbounded)).next();
        (self.at_or_before(lblk), right.map(|(l, s)| entry(*l, s)))
    }

    fn visit(&self, from: u32, mut f: impl FnMut(EsEntry) -> bool) {
        let start = self.at_or_before(from).filter(|e| e.end() > u64::from(from)).map_or(from, |e| e.lblk.0);
        let mut rest = self.map.range(start..).map(|(l, s)| entry(*l, s));
        while rest.next().is_some_and(&mut f) {}
    }

    fn put(&mut self, new: EsEntry) {
        let tag = if new.state.evictable() {
            self.evictable += 1;
            self.index.added(new.lblk.0)
        } else {
            self.delayed_blocks += u64::from(new.len);
            0
        };
        let referenced = AtomicBool::new(false);
        let old = self.map.insert(new.lblk.0, Slot { len: new.len, state: new.state, tag, referenced });
        debug_assert!(old.is_none());
    }

    fn take(&mut self, lblk: u32) -> Option<EsEntry> {
        let slot = self.map.remove(&lblk)?;
        if slot.state.evictable() {
            self.evictable -= 1;
            self.index.removed(lblk, slot.tag);
        } else {
            self.delayed_blocks -= u64::from(slot.len);
        }
        Some(entry(lblk, &slot))
    }

    fn resize(&mut self, lblk: u32, len: u32) {
        if let Some(slot) = self.map.get_mut(&lblk) {
            if slot.state == EsState::Delayed {
                self.delayed_blocks = self.delayed_blocks - u64::from(slot.len) + u64::from(len);
            }
            slot.len = len;
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_base::rng::Rng;

    use super::*;
    use crate::packed::{ALL, PackedTree, Spare};

    /// Records the entries, to compare them with the tree.
    #[derive(Debug, Default)]
    struct Set(BTreeMap<u32, u64>, u64);

    impl Index for Set {
        const ENTRY_BYTES: u64 = 1;

        fn added(&mut self, lblk: u32) -> u64 {
            self.1 += 1;
            assert!(self.0.insert(lblk, self.1).is_none());
            self.1
        }

        fn removed(&mut self, lblk: u32, tag: u64) {
            assert_eq!(self.0.remove(&lblk), Some(tag));
        }
    }

    fn state(rng: &mut Rng, lblk: u32) -> EsState {
        // Physical places often continue those of the neighbour, because the block is a function of the logical block.
        match rng.below(4) {
            0 => EsState::Written(BlockNr(1000 + u64::from(lblk))),
            1 => EsState::Unwritten(BlockNr(1000 + u64::from(lblk))),
            2 => EsState::Delayed,
            _ => EsState::Hole,
        }
    }

    /// Checks the internal state of a tree.
    trait Checked: Entries {
        fn check(&self, _entries: &[EsEntry]) {}
    }

    impl Checked for StatusTree<Set> {
        fn check(&self, entries: &[EsEntry]) {
            let evictable: Vec<u32> = entries.iter().filter(|e| e.state.evictable()).map(|e| e.lblk.0).collect();
            assert_eq!(self.evictable(), evictable.len() as u64);
            assert!(self.index.0.keys().eq(evictable.iter()));
            assert!(self.slots_from(0).filter(|s| s.2).map(|s| s.0).eq(evictable));
        }
    }

    impl Checked for PackedTree {}

    #[test]
    fn every_tree_agrees_with_a_block_by_block_model() {
        agrees_with_the_model::<StatusTree<Set>>();
        agrees_with_the_model::<PackedTree>();
    }

    fn agrees_with_the_model<T: Checked>() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut tree = T::default();
            let mut model: BTreeMap<u32, EsState> = BTreeMap::new();
            for _ in 0..600 {
                let lblk = rng.below(300) as u32;
                let len = 1 + rng.below(30) as u32;
                let s = state(&mut rng, lblk);
                let range = lblk..lblk + len;
                let delayed = |m: &BTreeMap<u32, EsState>| {
                    m.range(range.clone()).filter(|(_, s)| **s == EsState::Delayed).count() as u64
                };
                match rng.below(5) {
                    0 => {
                        assert_eq!(tree.remove(lblk, len), delayed(&model));
                        model.retain(|k, _| !range.contains(k));
                    }
                    1 => {
                        let absent = model.range(range.clone()).next().is_none();
                        assert_eq!(tree.insert_if_absent(lblk, len, s), absent);
                        if absent {
                            model.extend(range.clone().map(|b| (b, s.advanced(u64::from(b - lblk)))));
                        }
                    }
                    2 => {
                        let to = lblk + len - 1;
                        let first = model.range(range.clone()).find(|(_, s)| **s == EsState::Delayed).map(|(k, _)| *k);
                        let found = tree.find_delayed(lblk, to);
                        assert_eq!(found.map(|e| e.lblk.0.max(lblk)), first);
                        let next = model.range(lblk..).next().map(|(k, _)| *k);
                        assert_eq!(tree.next(lblk).map(|e| e.lblk.0.max(lblk)), next);
                        let here = tree.lookup(lblk).and_then(|e| e.from(LogicalBlock(lblk), 1)).map(|e| e.state);
                        assert_eq!(here, model.get(&lblk).copied());
                    }
                    _ => {
                        assert_eq!(tree.insert(lblk, len, s), delayed(&model));
                        model.extend(range.clone().map(|b| (b, s.advanced(u64::from(b - lblk)))));
                    }
                }
                let mut flat = BTreeMap::new();
                let all = entries(&tree);
                for pair in all.windows(2) {
                    assert!(pair[0].end() <= u64::from(pair[1].lblk.0) && !T::merge(&pair[0], &pair[1]), "merged");
                }
                for e in &all {
                    flat.extend((0..e.len).map(|i| (e.lblk.0 + i, e.state.advanced(u64::from(i)))));
                }
                assert_eq!(flat, model);
                tree.check(&all);
                assert_eq!(tree.len(), all.len() as u64);
                let delayed = model.values().filter(|s| **s == EsState::Delayed).count() as u64;
                assert_eq!(tree.all_delayed_blocks(), delayed);
            }
        }
    }

    fn entries(tree: &impl Entries) -> Vec<EsEntry> {
        let mut all = Vec::new();
        tree.visit(0, |e| {
            all.push(e);
            true
        });
        all
    }

    /// There are many leaves, which share entries, split, join, and lose the entries without a lookup.
    #[test]
    fn packed_leaves_hold_what_a_btree_holds() {
        for seed in 0..6 {
            let mut rng = Rng::new(seed);
            let (mut packed, mut plain) = (PackedTree::default(), StatusTree::<()>::default());
            // The tree grows, changes completely, and shrinks to nothing.
            for round in 0..40_000u32 {
                let lblk = if seed % 2 == 0 { rng.below(1 << 17) as u32 } else { (round * 3) % (1 << 17) };
                let len = 1 + rng.below(3) as u32;
                let grows = rng.below(40_000) > u64::from(round);
                if round % 512 == 511 {
                    let spare = match rng.below(3) {
                        0 => None,
                        1 => Some(Spare::Leaves { warm: rng.below(u64::from(2 * ALL)) as u32 }),
                        _ => Some(Spare::Entries { seen: rng.below(100) }),
                    };
                    let swept = packed.sweep(rng.below(600), 1 + rng.below(8), spare);
                    let kept = entries(&packed);
                    let mut gone = 0;
                    for e in entries(&plain) {
                        if kept.binary_search_by_key(&e.lblk.0, |k| k.lblk.0).is_err() {
                            assert!(e.state.evictable(), "{e:?}");
                            plain.take(e.lblk.0);
                            gone += 1;
                        }
                    }
                    assert_eq!(swept.freed, gone);
                } else if grows {
                    let s = match rng.below(3) {
                        0 => EsState::Delayed,
                        1 => EsState::Hole,
                        _ => EsState::Written(BlockNr(5000 + 7 * u64::from(lblk))),
                    };
                    assert_eq!(packed.insert(lblk, len, s), plain.insert(lblk, len, s));
                } else {
                    assert_eq!(packed.remove(lblk, 40), plain.remove(lblk, 40));
                }
                assert_eq!(packed.lookup(lblk ^ 1), plain.lookup(lblk ^ 1));
                if round % 256 == 0 {
                    assert_eq!(entries(&packed), entries(&plain));
                    packed.check();
                }
            }
            packed.remove(0, u32::MAX);
            assert_eq!((packed.len(), packed.bytes(), packed.evictable()), (0, 0, 0));
        }
    }

    /// A sweep leaves empty places in big leaves. They stay empty when an entry takes one, grows over one, or is added
    /// next to one. Compares with a model of single blocks, with sweeps of a few entries in between.
    #[test]
    fn places_of_evicted_entries_are_empty() {
        const BLOCKS: u32 = 6_000;
        let (mut swept, mut places) = (0, 0);
        for seed in 0..8u64 {
            let mut rng = Rng::new(seed);
            let (mut tree, mut model) = (PackedTree::default(), BTreeMap::<u32, EsState>::new());
            // The leaves are full at first. A varying share of their entries is evictable, sometimes several in a row.
            for lblk in (0..BLOCKS).step_by(2) {
                let s = if rng.below(10) < seed {
                    EsState::Delayed
                } else {
                    EsState::Written(BlockNr(7 * u64::from(lblk)))
                };
                tree.insert(lblk, 1, s);
                model.insert(lblk, s);
            }
            for round in 0..4_000 {
                let (lblk, len) = (rng.below(u64::from(BLOCKS)) as u32, 1 + rng.below(6) as u32);
                let range = lblk..lblk + len;
                let delayed = |m: &BTreeMap<u32, EsState>| {
                    m.range(range.clone()).filter(|(_, s)| **s == EsState::Delayed).count() as u64
                };
                match rng.below(10) {
                    0 => {
                        assert_eq!(tree.remove(lblk, len), delayed(&model));
                        model.retain(|k, _| !range.contains(k));
                    }
                    1..=2 => {
                        let s = state(&mut rng, lblk);
                        assert_eq!(tree.insert(lblk, len, s), delayed(&model));
                        model.extend(range.clone().map(|b| (b, s.advanced(u64::from(b - lblk)))));
                    }
                    3 => {
                        let s = state(&mut rng, lblk);
                        let absent = model.range(range.clone()).next().is_none();
                        assert_eq!(tree.insert_if_absent(lblk, len, s), absent);
                        if absent {
                            model.extend(range.clone().map(|b| (b, s.advanced(u64::from(b - lblk)))));
                        }
                    }
                    4 => {
                        let before = entries(&tree);
                        let spare = (rng.below(4) > 0).then(|| Spare::Entries { seen: rng.below(100) });
                        let done = tree.sweep(1 + rng.below(12), 1 + rng.below(8), spare);
                        let mut kept = entries(&tree).into_iter().peekable();
                        let mut gone = 0;
                        for e in before {
                            if kept.next_if_eq(&e).is_none() {
                                assert!(e.state.evictable(), "{e:?}");
                                model.retain(|k, _| !(u64::from(e.lblk.0)..e.end()).contains(&u64::from(*k)));
                                gone += 1;
                            }
                        }
                        assert_eq!(
                            (done.freed, kept.next()),
                            (gone, None),
                            "no new entries, and every freed entry was counted"
                        );
                        swept += gone;
                    }
                    _ => {
                        let here = tree.lookup(lblk).and_then(|e| e.from(LogicalBlock(lblk), 1)).map(|e| e.state);
                        assert_eq!(here, model.get(&lblk).copied());
                        let next = model.range(lblk..).next().map(|(k, _)| *k);
                        assert_eq!(tree.next(lblk).map(|e| e.lblk.0.max(lblk)), next);
                        let to = lblk + len - 1;
                        let first = model.range(range.clone()).find(|(_, s)| **s == EsState::Delayed).map(|(k, _)| *k);
                        assert_eq!(tree.find_delayed(lblk, to).map(|e| e.lblk.0.max(lblk)), first);
                    }
                }
                places += tree.check();
                if round % 64 == 0 {
                    let mut flat = BTreeMap::new();
                    for e in entries(&tree) {
                        flat.extend((0..e.len).map(|i| (e.lblk.0 + i, e.state.advanced(u64::from(i)))));
                    }
                    assert_eq!(flat, model);
                }
            }
        }
        assert!(swept > 0 && places > 0, "{swept} entries freed, {places} empty places: this tests nothing");
    }

    #[test]
    fn a_run_longer_than_an_entry_becomes_several_entries() {
        let mut tree = PackedTree::default();
        tree.insert(10, 40_000, EsState::Written(BlockNr(1 << 40)));
        assert_eq!(tree.len(), 3);
        let end = tree.lookup(40_009).expect("known");
        assert_eq!((end.end(), end.state), (40_010, EsState::Written(BlockNr((1 << 40) + u64::from(end.lblk.0 - 10)))));
        tree.insert(40_010, 5, EsState::Written(BlockNr((1 << 40) + 40_000)));
        assert_eq!(tree.len(), 3, "the last one grew");
        tree.insert(50_000, 4, EsState::Written(BlockNr((1 << 48) - 2)));
        assert_eq!(tree.lookup(50_002), None, "this block number is beyond any file system");
        tree.insert(60_000, u32::MAX - 60_000, EsState::Delayed);
        assert_eq!(tree.remove(70_000, 1), 1);
    }

    #[test]
    fn the_whole_range_of_blocks() {
        fn on<T: Entries>() {
            let mut tree = T::default();
            tree.insert(0, u32::MAX, EsState::Hole);
            assert_eq!(tree.insert(u32::MAX, 1, EsState::Hole), 0);
            assert_eq!(tree.len(), 2, "the length of one entry has 32 bits");
            tree.insert(5, 1, EsState::Delayed);
            assert_eq!(tree.lookup(u32::MAX).map(|e| e.len), Some(1));
            assert_eq!(tree.lookup(4).map(|e| e.end()), Some(5));
            assert_eq!(tree.remove(1, u32::MAX), 1);
            assert_eq!(tree.len(), 1);
            assert_eq!(tree.lookup(0), Some(EsEntry { lblk: LogicalBlock(0), len: 1, state: EsState::Hole }));
        }
        on::<StatusTree<()>>();
        on::<PackedTree>();
    }
}
