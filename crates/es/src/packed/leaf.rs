//! [`Leaf`]: an array of up to [`FULL`] entries, with three bits each: "evictable", "looked up", and "looked up the
//! time before".
//!
//! An entry that is evicted from a big leaf leaves an empty place, because compacting six kilobytes for five entries
//! costs more than everything else. A new entry next to the place takes it. The leaf is compacted when there is no
//! other room, or when few entries are left. It is also compacted when the hand moves on and half of the entries are
//! gone, and when the first entry is removed. So the first place always contains an entry.
//!
//! What it does not do: know its neighbours, except those in the ring. It stores their numbers for [`super::tree`].
//!
//! # Locking
//! The lock of the owner, see [`super`]. Lookups set marks under the shared lock.

use extant_base::sync::atomic::{AtomicU64, Ordering};

use super::allocated;
use super::entry::Packed;

/// The maximum number of entries in a leaf.
pub const FULL: usize = 512;
const WORDS: usize = FULL / 64;
/// The initial capacity of a small leaf.
const FEW: usize = 8;
/// With up to this many entries, binary search is used directly: they fit into six cache lines of the processor.
const NEAR: usize = 32;
/// A leaf with fewer entries is joined with a neighbour if possible, and is compacted immediately.
pub const SMALL: usize = FULL / 4;

/// [`Leaf::warmth`] of a leaf whose entries were all looked up since the hand passed.
pub const ALL: u32 = 1 << 12;

type Bits = [u64; WORDS];

/// An entry, whether it is marked, and whether it was marked when the hand passed.
pub type Marked = (Packed, bool, bool);

/// The numbers of lookups in a leaf that the hand did not evict from, until the hand came back: of entries that were
/// marked when it passed, and of the others. `marked_expected` is the first number in the case that marks predict
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub marked: f64,
    pub unmarked: f64,
    pub marked_expected: f64,
}

/// The entries and their bits; see the module's documentation.
#[derive(Debug, Default)]
pub struct Leaf {
    /// The entries, sorted by first block, including the places of evicted entries.
    entries: Vec<Packed>,
    /// For each entry: it is neither delayed nor gone.
    evictable: Bits,
    /// For an evictable entry: it was looked up. For any other: its place is empty. A delayed entry is never marked.
    marks: [AtomicU64; WORDS],
    /// For an evictable entry: it was marked when the hand passed.
    past: Bits,
    evictable_count: u16,
    gone_count: u16,
    /// [`Leaf::warmth`] when the hand passed. A new leaf takes that of its neighbour.
    pub was_warm: u16,
    /// The number of times in a row that the hand has not evicted from the leaf.
    pub kept: u8,
    /// Whether the leaf is in the ring, between `before` and `behind`.
    pub listed: bool,
    pub before: u32,
    pub behind: u32,
}

fn bit(at: usize) -> (usize, u64) {
    (at / 64, 1 << (at % 64))
}

/// Inserts a bit at `at`. The bits from there on move up by one.
fn insert_bit(bits: &mut Bits, at: usize, set: bool) {
    let (word, mask) = bit(at);
    let below = bits[word] & (mask - 1);
    let mut carry = bits[word] >> 63;
    bits[word] = below | if set { mask } else { 0 } | (bits[word] & !(mask - 1)) << 1;
    for w in &mut bits[word + 1..] {
        (*w, carry) = (*w << 1 | carry, *w >> 63);
    }
}

/// Removes the bit at `at`. The bits after it move down by one.
fn remove_bit(bits: &mut Bits, at: usize) {
    let (word, mask) = bit(at);
    let mut carry = 0;
    for w in bits[word + 1..].iter_mut().rev() {
        (*w, carry) = (*w >> 1 | carry << 63, *w & 1);
    }
    bits[word] = bits[word] & (mask - 1) | (bits[word] >> 1) & !(mask - 1) | carry << 63;
}

impl Leaf {
    /// The number of entries, without the empty places.
    pub fn len(&self) -> usize {
        self.entries.len() - usize::from(self.gone_count)
    }

    pub fn evictable(&self) -> usize {
        usize::from(self.evictable_count)
    }

    /// The entry at `at`, which must not be an empty place.
    pub fn entry(&self, at: usize) -> Packed {
        self.entries[at]
    }

    pub fn first(&self) -> Option<Packed> {
        self.entries.first().copied()
    }

    /// The entries from index `at` on.
    pub fn entries_from(&self, at: usize) -> impl Iterator<Item = Packed> {
        let there = move |at: &usize| self.gone_count == 0 || !self.has_gone(*at);
        (at..self.entries.len()).filter(there).map(|at| self.entries[at])
    }

    /// The memory in bytes.
    pub fn bytes(&self) -> u64 {
        allocated(size_of::<Leaf>()) + allocated(self.entries.capacity() * size_of::<Packed>())
    }

    /// The number of places for entries that start at or before `lblk`. `end` is the start of the next leaf, if there
    /// is one.
    ///
    /// A binary search in six kilobytes misses the processor's cache six times. Entries are usually spread evenly, so
    /// the search starts at the place where `lblk` would then be, and continues from there in doubling steps. If
    /// entries are spread unevenly, it costs twice as much as a binary search.
    pub fn up_to(&self, lblk: u32, end: Option<u32>) -> usize {
        let Some(first) = self.entries.first().map(|e| e.lblk()).filter(|first| *first <= lblk) else { return 0 };
        let len = self.entries.len();
        if len <= NEAR {
            return self.entries.partition_point(|e| e.lblk() <= lblk);
        }
        let before = |at: usize| self.entries[at].lblk() <= lblk;
        let end = end.unwrap_or_else(|| self.entries[len - 1].lblk());
        let share = u64::from(lblk - first) * len as u64 / u64::from(end.saturating_sub(first).max(1));
        let guess = (share as usize).min(len - 1);
        let mut step = 1;
        let (low, high) = if before(guess) {
            let mut low = guess;
            while low + step < len && before(low + step) {
                low += step;
                step *= 2;
            }
            (low, (low + step).min(len))
        } else {
            let mut high = guess;
            while high > step && !before(high - step) {
                high -= step;
                step *= 2;
            }
            (high.saturating_sub(step), high)
        };
        low + self.entries[low..high].partition_point(|e| e.lblk() <= lblk)
    }

    /// The last entry that starts at or before `lblk`; see [`Leaf::up_to`].
    pub fn at_or_before(&self, lblk: u32, end: Option<u32>) -> Option<usize> {
        let at = self.up_to(lblk, end).checked_sub(1)?;
        if !self.has_gone(at) {
            return Some(at);
        }
        let there = |word: usize| self.evictable[word] | !self.marks[word].load(Ordering::Relaxed);
        let (mut word, mask) = bit(at);
        let mut left = there(word) & (mask - 1);
        while left == 0 {
            word = word.checked_sub(1)?;
            left = there(word);
        }
        Some(word * 64 + 63 - left.leading_zeros() as usize)
    }

    /// Records a lookup of the entry at `at`.
    pub fn mark(&self, at: usize) {
        let (word, mask) = bit(at);
        // The mark is written only if it is not set, so that readers on many cores do not contend for the cache line.
        if self.evictable[word] & mask != 0 && self.marks[word].load(Ordering::Relaxed) & mask == 0 {
            self.marks[word].fetch_or(mask, Ordering::Relaxed);
        }
    }

    fn is_evictable(&self, at: usize) -> bool {
        let (word, mask) = bit(at);
        self.evictable[word] & mask != 0
    }

    fn is_marked(&self, at: usize) -> bool {
        let (word, mask) = bit(at);
        self.marks[word].load(Ordering::Relaxed) & mask != 0
    }

    fn was_marked(&self, at: usize) -> bool {
        let (word, mask) = bit(at);
        self.past[word] & mask != 0
    }

    fn has_gone(&self, at: usize) -> bool {
        !self.is_evictable(at) && self.is_marked(at)
    }

    fn change_marks(&mut self, change: impl FnOnce(&mut Bits)) {
        let mut bits = self.marks.each_mut().map(|w| *w.get_mut());
        change(&mut bits);
        for (w, now) in self.marks.iter_mut().zip(bits) {
            *w.get_mut() = now;
        }
    }

    /// Inserts an entry. The leaf must not be full; `at` is the result of [`Leaf::up_to`].
    pub fn insert(&mut self, mut at: usize, e: Packed) {
        let gone = |at: &usize| *at < self.entries.len() && self.has_gone(*at);
        if let Some(place) = at.checked_sub(1).filter(gone).or(Some(at).filter(gone)) {
            let (word, mask) = bit(place);
            self.entries[place] = e;
            self.evictable[word] |= if e.is_delayed() { 0 } else { mask };
            *self.marks[word].get_mut() &= !mask;
            self.past[word] &= !mask;
            self.gone_count -= 1;
        } else {
            if self.gone_count > 0 && self.entries.len() == self.entries.capacity() {
                at -= (0..at).filter(|at| self.has_gone(*at)).count();
                self.close();
            }
            let (len, room) = (self.entries.len(), self.entries.capacity());
            if len == room {
                self.entries.reserve_exact((room / 2).max(FEW).min(FULL - len));
            }
            self.entries.insert(at, e);
            insert_bit(&mut self.evictable, at, !e.is_delayed());
            self.change_marks(|marks| insert_bit(marks, at, false));
            insert_bit(&mut self.past, at, false);
        }
        self.evictable_count += u16::from(!e.is_delayed());
    }

    /// Removes the entry at `at`, which must not be an empty place.
    pub fn remove(&mut self, at: usize) -> Packed {
        let e = self.entries.remove(at);
        remove_bit(&mut self.evictable, at);
        self.change_marks(|marks| remove_bit(marks, at));
        remove_bit(&mut self.past, at);
        self.evictable_count -= u16::from(!e.is_delayed());
        if self.gone_count > 0 && (self.len() <= SMALL || at == 0 && self.has_gone(0)) {
            self.close();
        }
        e
    }

    /// Replaces the entry at `at` by one that differs only in its length.
    pub fn replace(&mut self, at: usize, e: Packed) {
        self.entries[at] = e;
    }

    /// Moves all entries out, with their marks. Until [`Leaf::fill`], the leaf still has the old count of evictable
    /// entries.
    pub fn drain_into(&mut self, all: &mut Vec<Marked>) {
        let there = (0..self.entries.len()).filter(|at| !self.has_gone(*at));
        all.extend(there.map(|at| (self.entries[at], self.is_marked(at), self.was_marked(at))));
        self.entries.clear();
        self.gone_count = 0;
    }

    /// Replaces the content with `all`, which has at most [`FULL`] entries.
    pub fn fill(&mut self, all: &[Marked]) {
        self.entries.clear();
        let room = if all.len() > FULL / 2 { FULL } else { all.len() };
        self.entries.shrink_to(room);
        self.entries.reserve_exact(room);
        self.evictable = Bits::default();
        self.past = Bits::default();
        let mut marks = Bits::default();
        for (at, (e, marked, was_marked)) in all.iter().enumerate() {
            let (word, mask) = bit(at);
            self.entries.push(*e);
            self.evictable[word] |= if e.is_delayed() { 0 } else { mask };
            marks[word] |= if *marked { mask } else { 0 };
            self.past[word] |= if *was_marked { mask } else { 0 };
        }
        self.evictable_count = self.evictable.iter().map(|w| w.count_ones() as u16).sum();
        self.change_marks(|now| *now = marks);
    }

    /// The share of evictable entries that were looked up since [`Leaf::pass`], in units of 1/[`ALL`], plus three
    /// quarters of the previous warmth.
    pub fn warmth(&self) -> u32 {
        self.used(|_| !0) * ALL / u32::from(self.evictable_count).max(1) + u32::from(self.was_warm) * 3 / 4
    }

    /// The number of evictable entries with a bit in `among` that were looked up since [`Leaf::pass`].
    fn used(&self, among: impl Fn(usize) -> u64) -> u32 {
        let used = |word: usize| self.evictable[word] & self.marks[word].load(Ordering::Relaxed) & among(word);
        (0..WORDS).map(|word| used(word).count_ones()).sum()
    }

    /// The lookups since [`Leaf::pass`], see [`Outcome`]. Entries added since then count as unmarked.
    pub fn outcome(&self) -> Outcome {
        let were_marked: u32 = self.past.iter().map(|w| w.count_ones()).sum();
        let (marked, unmarked) = (self.used(|word| self.past[word]), self.used(|word| !self.past[word]));
        let share = f64::from(were_marked) / f64::from(self.evictable_count.max(1));
        let marked_expected = f64::from(marked + unmarked) * share;
        Outcome { marked: marked.into(), unmarked: unmarked.into(), marked_expected }
    }

    /// Records that the hand moves on: it found the leaf at `warmth`, and evicted nothing from it if `whole`. All marks
    /// are cleared.
    pub fn pass(&mut self, warmth: u32, whole: bool) {
        self.was_warm = warmth as u16;
        self.kept = if whole { self.kept.saturating_add(1) } else { 0 };
        for ((marks, evictable), past) in self.marks.iter_mut().zip(&self.evictable).zip(&mut self.past) {
            let marks = marks.get_mut();
            *past = *marks & evictable;
            *marks &= !evictable;
        }
    }

    /// Evicts up to `wanted` entries, in order; with `spare`, only those without a lookup since [`Leaf::pass`]. Returns
    /// how many it evicted, and the leaf's former first block if entries have moved.
    pub fn evict(&mut self, wanted: usize, spare: bool) -> (usize, Option<u32>) {
        let mut left = wanted;
        for ((evictable, marks), past) in self.evictable.iter_mut().zip(&mut self.marks).zip(&mut self.past) {
            let marks = marks.get_mut();
            let mut victims = if spare { *evictable & !*marks } else { *evictable };
            let here = victims.count_ones() as usize;
            for _ in left..here {
                victims &= !(1 << (63 - victims.leading_zeros()));
            }
            *evictable &= !victims;
            *marks |= victims;
            *past &= !victims;
            left -= here.min(left);
        }
        let went = wanted - left;
        self.evictable_count -= went as u16;
        self.gone_count += went as u16;
        let len = self.len();
        // A leaf that lost all of `wanted` is visited again, so its memory is reduced only once, after the last visit.
        let shrinks = went < wanted && self.gone_count > 0 && len <= self.entries.capacity() / 2;
        let closes = shrinks || went > 0 && (self.has_gone(0) || len <= SMALL);
        let began = closes.then(|| self.entries[0].lblk());
        if closes {
            self.close();
        }
        if shrinks {
            self.entries.shrink_to(len);
        }
        (went, began)
    }

    /// Compacts the remaining entries, one run after the other.
    fn close(&mut self) {
        let mut marks = Bits::default();
        let (mut evictable, mut past) = (Bits::default(), Bits::default());
        let (mut kept, len) = (0, self.entries.len());
        for word in 0..len.div_ceil(64) {
            let from = [self.evictable[word], *self.marks[word].get_mut(), self.past[word]];
            let mut left = (from[0] | !from[1]) & (!0 >> (64 - (len - word * 64).min(64)));
            while left != 0 {
                let (start, run) = (left.trailing_zeros(), (left >> left.trailing_zeros()).trailing_ones());
                let at = word * 64 + start as usize;
                self.entries.copy_within(at..at + run as usize, kept);
                for (from, to) in from.iter().zip([&mut evictable, &mut marks, &mut past]) {
                    let bits = from >> start & (!0 >> (64 - run));
                    to[kept / 64] |= bits << (kept % 64);
                    if kept % 64 + run as usize > 64 {
                        to[kept / 64 + 1] |= bits >> (64 - kept % 64);
                    }
                }
                kept += run as usize;
                left &= !((!0 >> (64 - run)) << start);
            }
        }
        self.entries.truncate(kept);
        (self.evictable, self.past, self.gone_count) = (evictable, past, 0);
        self.change_marks(|now| *now = marks);
    }
}

#[cfg(test)]
impl Leaf {
    /// Checks the invariants of entries, bits and counts. Returns the number of empty places.
    pub fn check(&self) -> u64 {
        assert!(self.entries.windows(2).all(|pair| pair[0].lblk() < pair[1].lblk()), "sorted, empty places included");
        let count = |is: &dyn Fn(usize) -> bool| (0..self.entries.len()).filter(|at| is(*at)).count();
        assert_eq!(usize::from(self.gone_count), count(&|at| self.has_gone(at)));
        assert_eq!(self.evictable(), count(&|at| self.is_evictable(at)));
        let there = (0..self.entries.len()).filter(|at| !self.has_gone(*at));
        assert!(there.clone().all(|at| self.is_evictable(at) != self.entries[at].is_delayed()));
        assert!(self.entries_from(0).eq(there.map(|at| self.entries[at])));
        assert!(self.entries.is_empty() || !self.has_gone(0));
        assert!(self.gone_count == 0 || self.len() > SMALL);
        assert!((self.entries.len()..FULL).all(|at| !self.is_evictable(at) && !self.is_marked(at)));
        assert!(self.past.iter().zip(&self.evictable).all(|(past, evictable)| past & !evictable == 0));
        assert!(self.entries.capacity() <= FULL);
        u64::from(self.gone_count)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use extant_base::rng::Rng;
    use extant_ondisk::{BlockNr, LogicalBlock};

    use super::*;
    use crate::{EsEntry, EsState};

    fn packed(lblk: u32, delayed: bool) -> Packed {
        let state = if delayed { EsState::Delayed } else { EsState::Written(BlockNr(7)) };
        Packed::new(EsEntry { lblk: LogicalBlock(lblk), len: 1, state })
    }

    /// Compares a leaf with a map of entries and their marks. Evictions take few entries, many, or all. There are few
    /// blocks, so that new entries take the empty places, or many.
    #[test]
    #[expect(clippy::too_many_lines, reason = "one arm a random operation of the model")]
    fn bits_stay_with_their_entries() {
        let mut places_left = 0;
        for seed in 0..8u64 {
            let mut rng = Rng::new(seed);
            let mut leaf = Leaf::default();
            let mut model: BTreeMap<u32, Marked> = BTreeMap::new();
            let (blocks, delayed) = (if seed % 2 == 0 { 700 } else { 1 << 30 }, [2, 3, 30, 100][seed as usize / 2]);
            let mut warmth = 0;
            for round in 0..20_000 {
                let lblk = rng.below(blocks) as u32;
                let before = model.range(..=lblk).next_back().map(|(_, (e, ..))| *e);
                let at = leaf.at_or_before(lblk, None);
                assert_eq!(at.map(|at| leaf.entry(at)), before);
                match rng.below(16) {
                    0..=8 if model.len() < FULL && before.is_none_or(|e| e.lblk() < lblk) => {
                        let e = packed(lblk, rng.below(delayed) > 0);
                        leaf.insert(leaf.up_to(lblk, None), e);
                        model.insert(lblk, (e, false, false));
                    }
                    0..=12 => {
                        if let (Some(at), Some(e)) = (at, before) {
                            if rng.below(2) == 0 {
                                assert_eq!(leaf.remove(at), e);
                                model.remove(&e.lblk());
                            } else {
                                leaf.mark(at);
                                model.entry(e.lblk()).and_modify(|(e, marked, _)| *marked = !e.is_delayed());
                            }
                        }
                    }
                    13 if round % 64 == 0 => {
                        let mut all = Vec::new();
                        leaf.drain_into(&mut all);
                        assert!(all.iter().eq(model.values()));
                        leaf.fill(&all);
                    }
                    14 if round % 8 == 0 => {
                        let most = if rng.below(16) == 0 { FULL as u64 } else { 40 };
                        let (wanted, spare) = (rng.below(most) as usize, rng.below(4) > 0);
                        let evictable = model.values().filter(|(e, ..)| !e.is_delayed()).count() as u32;
                        let used_if = |past: bool| model.values().filter(|m| m.1 && m.2 == past).count() as u32;
                        let were_marked = model.values().filter(|m| m.2).count();
                        let (used, outcome) = (used_if(true) + used_if(false), leaf.outcome());
                        assert_eq!(leaf.warmth(), used * ALL / evictable.max(1) + warmth * 3 / 4);
                        assert_eq!(outcome.marked, f64::from(used_if(true)));
                        assert_eq!(outcome.unmarked, f64::from(used_if(false)));
                        let expected = f64::from(used) * were_marked as f64 / f64::from(evictable.max(1));
                        assert!((outcome.marked_expected - expected).abs() < 1e-6);
                        assert_eq!(outcome.marked + outcome.unmarked, f64::from(used));
                        let first = model.keys().next().copied();
                        let mut went = 0;
                        model.retain(|_, (e, marked, _)| {
                            let goes = went < wanted && !(e.is_delayed() || spare && *marked);
                            went += usize::from(goes);
                            !goes
                        });
                        let (now, began) = leaf.evict(wanted, spare);
                        assert_eq!(now, went);
                        assert!(began.is_none_or(|began| Some(began) == first));
                        assert!(
                            began.is_some() || model.keys().next().copied() == first,
                            "the first block changed without a report of the old one"
                        );
                        if went < wanted {
                            warmth = leaf.warmth();
                            let kept = leaf.kept;
                            leaf.pass(warmth, wanted % 3 == 0);
                            assert_eq!(leaf.kept, if wanted % 3 == 0 { kept + 1 } else { 0 });
                            model.values_mut().for_each(|(_, marked, past)| *past = std::mem::take(marked));
                        }
                    }
                    _ => {}
                }
                places_left += leaf.check();
                if round % 16 == 0 {
                    let there = (0..leaf.entries.len()).filter(|at| !leaf.has_gone(*at));
                    let now = there.map(|at| (leaf.entries[at], leaf.is_marked(at), leaf.was_marked(at)));
                    assert!(now.eq(model.values().copied()));
                    assert_eq!(leaf.len(), model.len());
                }
            }
        }
        assert!(places_left > 0, "no empty place: this tests nothing");
    }
}
