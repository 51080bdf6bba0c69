//! One inode's entries: runs of blocks that never overlap, merged with their neighbours.
//!
//! Main types: [`StatusTree`], [`Index`] (what a policy keeps in step with the evictable entries). Ordered by
//! `BTreeMap`; Linux uses a red-black tree and remembers the last hit.
//!
//! # Locking
//! None; the owner locks.

use std::collections::BTreeMap;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::{EsEntry, EsState};

/// What a policy keeps beside the tree, told of every evictable entry that comes and goes.
pub(super) trait Index: Default + Send + Sync {
    /// An evictable entry now starts at `lblk`. The tag comes back in [`Index::removed`].
    fn added(&mut self, lblk: u32) -> u64;
    /// The entry that started at `lblk` is gone, or starts elsewhere.
    fn removed(&mut self, lblk: u32, tag: u64);
}

impl Index for () {
    fn added(&mut self, _lblk: u32) -> u64 {
        0
    }

    fn removed(&mut self, _lblk: u32, _tag: u64) {}
}

/// An entry; its first block is the key.
#[derive(Debug)]
pub(super) struct Slot {
    len: u32,
    state: EsState,
    tag: u64,
    /// Looked up since it was inserted or last spared (Linux: EXTENT_STATUS_REFERENCED).
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

/// May two adjacent runs become one?
fn follows(left: &EsEntry, right: &EsEntry) -> bool {
    let behind = |b: BlockNr| b.0.checked_add(u64::from(left.len));
    let same = match (left.state, right.state) {
        (EsState::Written(a), EsState::Written(b)) | (EsState::Unwritten(a), EsState::Unwritten(b)) => {
            behind(a) == Some(b.0)
        }
        (a, b) => a == b,
    };
    same && left.end() == u64::from(right.lblk.0) && left.len.checked_add(right.len).is_some()
}

impl<I: Index> StatusTree<I> {
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    pub fn evictable(&self) -> u64 {
        self.evictable
    }

    pub fn all_delayed_blocks(&self) -> u64 {
        self.delayed_blocks
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

    /// Takes the entry that starts at `lblk` out.
    pub fn take(&mut self, lblk: u32) -> Option<EsEntry> {
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

    /// The last entry that starts at or before `lblk`.
    fn at_or_before(&self, lblk: u32) -> Option<EsEntry> {
        self.map.range(..=lblk).next_back().map(|(l, s)| entry(*l, s))
    }

    /// The entry that `lblk` lies in; marks it as referenced.
    pub fn lookup(&self, lblk: u32) -> Option<EsEntry> {
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

    /// Entries from the one that `lblk` lies in (or the next) on.
    pub fn iter_from(&self, lblk: u32) -> impl Iterator<Item = EsEntry> {
        let start = self.at_or_before(lblk).filter(|e| e.end() > u64::from(lblk)).map_or(lblk, |e| e.lblk.0);
        self.map.range(start..).map(|(l, s)| entry(*l, s))
    }

    /// The same with the policy's own marks, as (first block, slot, evictable).
    pub fn slots_from(&self, lblk: u32) -> impl Iterator<Item = (u32, &Slot, bool)> {
        self.map.range(lblk..).map(|(l, s)| (*l, s, s.state.evictable()))
    }

    /// Removes `lblk..lblk + len`, splitting at both ends; returns the delayed blocks among it.
    pub fn remove(&mut self, lblk: u32, len: u32) -> u64 {
        let end = end_of(lblk, len);
        let before = self.delayed_blocks;
        if let Some(left) = self.at_or_before(lblk).filter(|e| e.lblk.0 < lblk && e.end() > u64::from(lblk)) {
            self.resize(left.lblk.0, lblk - left.lblk.0);
            if left.end() > end {
                self.put_tail(&left, end);
            }
        }
        while let Some(inside) = self.map.range(lblk..).next().map(|(l, s)| entry(*l, s)) {
            if u64::from(inside.lblk.0) >= end {
                break;
            }
            self.take(inside.lblk.0);
            if inside.end() > end {
                self.put_tail(&inside, end);
            }
        }
        before - self.delayed_blocks
    }

    /// Puts the part of `whole` from `end` on.
    fn put_tail(&mut self, whole: &EsEntry, end: u64) {
        let skip = end - u64::from(whole.lblk.0);
        self.put(EsEntry {
            lblk: LogicalBlock(end as u32),
            len: (whole.end() - end) as u32,
            state: whole.state.advanced(skip),
        });
    }

    /// Replaces whatever is in the range and merges with both neighbours; returns the delayed blocks that were
    /// replaced.
    pub fn insert(&mut self, lblk: u32, len: u32, state: EsState) -> u64 {
        let replaced = self.remove(lblk, len);
        let mut new = EsEntry { lblk: LogicalBlock(lblk), len, state };
        if let Some(right) = u32::try_from(new.end()).ok().and_then(|end| self.map.get(&end).map(|s| entry(end, s)))
            && follows(&new, &right)
        {
            self.take(right.lblk.0);
            new.len += right.len;
        }
        match self.at_or_before(lblk) {
            Some(left) if follows(&left, &new) => self.resize(left.lblk.0, left.len + new.len),
            _ => self.put(new),
        }
        replaced
    }

    /// Inserts unless any of the range is known.
    pub fn insert_if_absent(&mut self, lblk: u32, len: u32, state: EsState) -> bool {
        let known = self.iter_from(lblk).next().is_some_and(|e| u64::from(e.lblk.0) < end_of(lblk, len));
        if !known {
            self.insert(lblk, len, state);
        }
        !known
    }

    pub fn find_delayed(&self, from: u32, to: u32) -> Option<EsEntry> {
        if self.delayed_blocks == 0 {
            return None;
        }
        self.iter_from(from).take_while(|e| e.lblk.0 <= to).find(|e| e.state == EsState::Delayed)
    }
}

#[cfg(test)]
mod tests {
    use extant_base::rng::Rng;

    use super::*;

    /// Bookkeeping of the index, checked against the tree.
    #[derive(Debug, Default)]
    struct Set(BTreeMap<u32, u64>, u64);

    impl Index for Set {
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
        // Physical places that often follow on: the block is a function of the logical one.
        match rng.below(4) {
            0 => EsState::Written(BlockNr(1000 + u64::from(lblk))),
            1 => EsState::Unwritten(BlockNr(1000 + u64::from(lblk))),
            2 => EsState::Delayed,
            _ => EsState::Hole,
        }
    }

    #[test]
    fn agrees_with_a_block_by_block_model() {
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let mut tree = StatusTree::<Set>::default();
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
                        assert_eq!(tree.iter_from(lblk).next().map(|e| e.lblk.0.max(lblk)), next);
                    }
                    _ => {
                        assert_eq!(tree.insert(lblk, len, s), delayed(&model));
                        model.extend(range.clone().map(|b| (b, s.advanced(u64::from(b - lblk)))));
                    }
                }
                let mut flat = BTreeMap::new();
                let mut last: Option<EsEntry> = None;
                for e in tree.iter_from(0) {
                    assert!(last.is_none_or(|l| l.end() <= u64::from(e.lblk.0) && !follows(&l, &e)), "merged");
                    flat.extend((0..e.len).map(|i| (e.lblk.0 + i, e.state.advanced(u64::from(i)))));
                    last = Some(e);
                }
                assert_eq!(flat, model);
                let evictable: Vec<u32> = tree.slots_from(0).filter(|s| s.2).map(|s| s.0).collect();
                assert_eq!(tree.evictable(), evictable.len() as u64);
                assert!(tree.index.0.keys().eq(evictable.iter()));
                let delayed = model.values().filter(|s| **s == EsState::Delayed).count() as u64;
                assert_eq!(tree.all_delayed_blocks(), delayed);
            }
        }
    }

    #[test]
    fn the_whole_range_of_blocks() {
        let mut tree = StatusTree::<()>::default();
        tree.insert(0, u32::MAX, EsState::Hole);
        assert_eq!(tree.insert(u32::MAX, 1, EsState::Hole), 0);
        assert_eq!(tree.len(), 2, "one entry cannot be longer than 32 bits say");
        tree.insert(5, 1, EsState::Delayed);
        assert_eq!(tree.lookup(u32::MAX).map(|e| e.len), Some(1));
        assert_eq!(tree.lookup(4).map(|e| e.end()), Some(5));
        assert_eq!(tree.remove(1, u32::MAX), 1);
        assert_eq!(tree.len(), 1);
        assert_eq!(tree.lookup(0), Some(EsEntry { lblk: LogicalBlock(0), len: 1, state: EsState::Hole }));
    }
}
