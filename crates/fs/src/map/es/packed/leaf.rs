//! [`Leaf`]: up to [`FULL`] entries side by side, with a bit each for "can go" and "was looked up".
//!
//! What it does not do: know its neighbours, except those in the ring, whose numbers it keeps for [`super::tree`].
//!
//! # Locking
//! The owner's, see [`super`]. Marks of lookups are set under the shared side.

use extant_base::sync::atomic::{AtomicU64, Ordering};

use super::allocated;
use super::entry::Packed;

/// Entries of a leaf.
pub const FULL: usize = 512;
const WORDS: usize = FULL / 64;
/// Room that a small leaf begins with.
const FEW: usize = 8;

/// The warmth of a leaf of which everything was looked up once.
pub const ALL: u32 = 1 << 12;

type Bits = [u64; WORDS];

/// See the page.
#[derive(Debug, Default)]
pub struct Leaf {
    entries: Vec<Packed>,
    /// Not delayed.
    evictable: Bits,
    referenced: [AtomicU64; WORDS],
    evictable_count: u16,
    /// [`Leaf::warmth`] when the hand went on. A new leaf has its neighbour's.
    pub was_warm: u16,
    /// Is it in the ring? Then between these.
    pub listed: bool,
    pub before: u32,
    pub behind: u32,
}

fn bit(at: usize) -> (usize, u64) {
    (at / 64, 1 << (at % 64))
}

/// Makes room for a bit at `at`: those from there on move up by one.
fn insert_bit(bits: &mut Bits, at: usize, set: bool) {
    let (word, mask) = bit(at);
    let below = bits[word] & (mask - 1);
    let mut carry = bits[word] >> 63;
    bits[word] = below | if set { mask } else { 0 } | (bits[word] & !(mask - 1)) << 1;
    for w in &mut bits[word + 1..] {
        (*w, carry) = (*w << 1 | carry, *w >> 63);
    }
}

/// Takes the bit at `at` out: those behind move down by one.
fn remove_bit(bits: &mut Bits, at: usize) {
    let (word, mask) = bit(at);
    let mut carry = 0;
    for w in bits[word + 1..].iter_mut().rev() {
        (*w, carry) = (*w >> 1 | carry << 63, *w & 1);
    }
    bits[word] = bits[word] & (mask - 1) | (bits[word] >> 1) & !(mask - 1) | carry << 63;
}

impl Leaf {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn evictable(&self) -> usize {
        usize::from(self.evictable_count)
    }

    pub fn entries(&self) -> &[Packed] {
        &self.entries
    }

    /// Memory, in bytes.
    pub fn bytes(&self) -> u64 {
        allocated(size_of::<Leaf>()) + allocated(self.entries.capacity() * size_of::<Packed>())
    }

    /// How many entries start at or before `lblk`. `end` is where the next leaf starts, if there is one.
    ///
    /// Halving six kilobytes misses the processor's cache six times. Entries are mostly spread evenly, so this looks
    /// where `lblk` would be then, and from there in steps that double; where they are not, it costs twice as much as
    /// halving.
    pub fn up_to(&self, lblk: u32, end: Option<u32>) -> usize {
        let Some(first) = self.entries.first().map(|e| e.lblk()).filter(|first| *first <= lblk) else { return 0 };
        let len = self.entries.len();
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

    /// Notes a lookup of the entry at `at`.
    pub fn mark(&self, at: usize) {
        let (word, mask) = bit(at);
        // Readers of one inode on many cores must not fight for the line.
        if self.referenced[word].load(Ordering::Relaxed) & mask == 0 {
            self.referenced[word].fetch_or(mask, Ordering::Relaxed);
        }
    }

    fn is_marked(&self, at: usize) -> bool {
        let (word, mask) = bit(at);
        self.referenced[word].load(Ordering::Relaxed) & mask != 0
    }

    fn change_marks(&mut self, change: impl FnOnce(&mut Bits)) {
        let mut bits = self.referenced.each_mut().map(|w| *w.get_mut());
        change(&mut bits);
        for (w, now) in self.referenced.iter_mut().zip(bits) {
            *w.get_mut() = now;
        }
    }

    /// It is not full.
    pub fn insert(&mut self, at: usize, e: Packed) {
        let (len, room) = (self.entries.len(), self.entries.capacity());
        if len == room {
            self.entries.reserve_exact((room / 2).max(FEW).min(FULL - len));
        }
        self.entries.insert(at, e);
        insert_bit(&mut self.evictable, at, !e.is_delayed());
        self.change_marks(|marks| insert_bit(marks, at, false));
        self.evictable_count += u16::from(!e.is_delayed());
    }

    pub fn remove(&mut self, at: usize) -> Packed {
        let e = self.entries.remove(at);
        remove_bit(&mut self.evictable, at);
        self.change_marks(|marks| remove_bit(marks, at));
        self.evictable_count -= u16::from(!e.is_delayed());
        e
    }

    /// The entry at `at` changes its length, no more.
    pub fn replace(&mut self, at: usize, e: Packed) {
        self.entries[at] = e;
    }

    /// Everything, with its marks. Until [`Leaf::fill`] says what is in it, it counts what could go as before.
    pub fn drain_into(&mut self, all: &mut Vec<(Packed, bool)>) {
        for at in 0..self.entries.len() {
            all.push((self.entries[at], self.is_marked(at)));
        }
        self.entries.clear();
    }

    /// Holds `all`, at most [`FULL`], from now on.
    pub fn fill(&mut self, all: &[(Packed, bool)]) {
        self.entries.clear();
        let room = if all.len() > FULL / 2 { FULL } else { all.len() };
        self.entries.shrink_to(room);
        self.entries.reserve_exact(room);
        self.evictable = Bits::default();
        let mut marks = Bits::default();
        for (at, (e, marked)) in all.iter().enumerate() {
            let (word, mask) = bit(at);
            self.entries.push(*e);
            self.evictable[word] |= if e.is_delayed() { 0 } else { mask };
            marks[word] |= if *marked { mask } else { 0 };
        }
        self.evictable_count = self.evictable.iter().map(|w| w.count_ones() as u16).sum();
        self.change_marks(|now| *now = marks);
    }

    /// The share of those that could go that was looked up since [`Leaf::pass`], of [`ALL`], and a half, a quarter, an
    /// eighth of it for the times before.
    pub fn warmth(&self) -> u32 {
        let used = |(e, marks): (&u64, &AtomicU64)| (e & marks.load(Ordering::Relaxed)).count_ones();
        let used: u32 = self.evictable.iter().zip(&self.referenced).map(used).sum();
        used * ALL / u32::from(self.evictable_count).max(1) + u32::from(self.was_warm) / 2
    }

    /// The hand goes on: marks begin anew.
    pub fn pass(&mut self) {
        self.was_warm = self.warmth() as u16;
        self.change_marks(|marks| *marks = Bits::default());
    }

    /// Gives up to `wanted` entries up, in their order: with `spare` only those that were not looked up since
    /// [`Leaf::pass`]. Returns how many went.
    pub fn evict(&mut self, wanted: usize, spare: bool) -> usize {
        let mut victims = self.evictable;
        if spare {
            for (v, marked) in victims.iter_mut().zip(&mut self.referenced) {
                *v &= !*marked.get_mut();
            }
        }
        let mut left = wanted;
        for v in &mut victims {
            let here = v.count_ones() as usize;
            for _ in left..here {
                *v &= !(1 << (63 - v.leading_zeros()));
            }
            left -= here.min(left);
        }
        let gone = wanted - left;
        if gone > 0 {
            self.drop_entries(&victims);
        }
        gone
    }

    fn drop_entries(&mut self, victims: &Bits) {
        let (mut kept, mut from) = (0, 0);
        for (word, mut left) in victims.iter().copied().enumerate() {
            while left != 0 {
                let at = word * 64 + left.trailing_zeros() as usize;
                self.entries.copy_within(from..at, kept);
                kept += at - from;
                from = at + 1;
                left &= left - 1;
            }
        }
        self.entries.copy_within(from.., kept);
        kept += self.entries.len() - from;
        self.evictable_count -= (self.entries.len() - kept) as u16;
        self.entries.truncate(kept);
        let mut marks = self.referenced.each_mut().map(|w| *w.get_mut());
        for (word, mut left) in victims.iter().copied().enumerate().rev() {
            while left != 0 {
                let last = 63 - left.leading_zeros() as usize;
                remove_bit(&mut self.evictable, word * 64 + last);
                remove_bit(&mut marks, word * 64 + last);
                left &= !(1 << last);
            }
        }
        self.change_marks(|now| *now = marks);
        if kept <= self.entries.capacity() / 2 {
            self.entries.shrink_to(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_base::rng::Rng;
    use extant_ondisk::{BlockNr, LogicalBlock};

    use super::*;
    use crate::map::es::{EsEntry, EsState};

    fn packed(lblk: u32, delayed: bool) -> Packed {
        let state = if delayed { EsState::Delayed } else { EsState::Written(BlockNr(7)) };
        Packed::new(EsEntry { lblk: LogicalBlock(lblk), len: 1, state })
    }

    /// Entries with their marks, as a vector.
    fn content(leaf: &Leaf) -> Vec<(Packed, bool)> {
        let all: Vec<_> = (0..leaf.len()).map(|at| (leaf.entries()[at], leaf.is_marked(at))).collect();
        for (at, (e, _)) in all.iter().enumerate() {
            assert_eq!(leaf.evictable[at / 64] & bit(at).1 != 0, !e.is_delayed());
        }
        assert_eq!(leaf.evictable(), all.iter().filter(|(e, _)| !e.is_delayed()).count());
        all
    }

    #[test]
    fn bits_move_with_their_entries() {
        let mut rng = Rng::new(5);
        let mut leaf = Leaf::default();
        let mut model: Vec<(Packed, bool)> = Vec::new();
        let mut warmth = 0;
        for round in 0..20_000 {
            match rng.below(16) {
                0..=8 if model.len() < FULL => {
                    let at = rng.below(model.len() as u64 + 1) as usize;
                    let e = packed(rng.below(1 << 30) as u32, rng.below(3) == 0);
                    leaf.insert(at, e);
                    model.insert(at, (e, false));
                }
                0..=12 if !model.is_empty() => {
                    let at = rng.below(model.len() as u64) as usize;
                    if rng.below(2) == 0 {
                        assert_eq!(leaf.remove(at), model.remove(at).0);
                    } else {
                        leaf.mark(at);
                        model[at].1 = true;
                    }
                }
                13 if round % 64 == 0 => {
                    let mut all = Vec::new();
                    leaf.drain_into(&mut all);
                    leaf.fill(&all);
                }
                14 if round % 32 == 0 => {
                    let (wanted, spare) = (rng.below(40) as usize, rng.below(4) > 0);
                    let used = model.iter().filter(|(e, marked)| !e.is_delayed() && *marked).count() as u32;
                    let evictable = model.iter().filter(|(e, _)| !e.is_delayed()).count().max(1) as u32;
                    assert_eq!(leaf.warmth(), used * ALL / evictable + warmth / 2);
                    let mut gone = 0;
                    model.retain(|(e, marked)| {
                        let goes = gone < wanted && !(e.is_delayed() || spare && *marked);
                        gone += usize::from(goes);
                        !goes
                    });
                    assert_eq!(leaf.evict(wanted, spare), gone);
                    if gone < wanted {
                        warmth = leaf.warmth();
                        leaf.pass();
                        model.iter_mut().for_each(|(_, marked)| *marked = false);
                    }
                }
                _ => {}
            }
            if round % 16 == 0 {
                assert_eq!(content(&leaf), model);
                assert!(leaf.entries.capacity() <= FULL);
            }
        }
    }
}
