//! [`PackedTree`]: an inode's entries, up to three in place, and more in leaves.
//!
//! # Locking
//! The lock of the owner, see [`super`].

use super::allocated;
use super::entry::{self, Packed};
use super::leaf::{ALL, FULL, Leaf, Outcome, SMALL};
use crate::tree::Entries;
use crate::{EsEntry, EsState};

/// The number of entries inside the inode's own memory. A sweep never evicts them, since that would free no memory.
const FEW: usize = 3;
/// Two leaves are joined if they have at most this many entries in total.
const JOINED: usize = FULL * 3 / 4;
/// A full leaf moves entries to a neighbour if that has at least this much room.
const ROOM: usize = FULL / 16;
const NONE: u32 = u32::MAX;
/// A prime, so that each round picks other leaves.
const KEPT_ONE_IN: u64 = 61;
const KEPT_FOR: u8 = 3;

/// The entries of an inode; see the module's documentation.
#[derive(Debug)]
pub struct PackedTree(Form);

#[derive(Debug)]
enum Form {
    /// The number of entries, and the warmth of the leaf that they came from; see [`Leaf::was_warm`].
    Few(u8, u16, [Packed; FEW]),
    Many(Box<Many>),
}

impl Default for PackedTree {
    fn default() -> PackedTree {
        PackedTree(Form::Few(0, 0, [Packed::NOTHING; FEW]))
    }
}

/// The rule by which a sweep spares entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// Spare entries that were looked up since the hand's last visit. Also spare one leaf in [`KEPT_ONE_IN`] as a
    /// whole, [`KEPT_FOR`] times in a row, in order to observe its entries. `seen` is the number of leaves in earlier
    /// sweeps.
    Entries { seen: u64 },
    /// Spare leaves that are warmer than `warm`, and nothing in the others.
    Leaves { warm: u32 },
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Swept {
    /// The number of entries evicted.
    pub freed: u64,
    /// The number of leaves visited.
    pub visited: u64,
    /// The number of evictable entries that the hand passed: those of the leaves that it left, and the evicted ones of
    /// the last leaf.
    pub passed: u64,
    /// The outcomes of leaves that an earlier sweep did not evict from: their sum and their number.
    pub outcome: Outcome,
    pub outcomes: u64,
    /// The hand has visited every leaf since the last sweep that set `around`.
    pub around: bool,
}

/// The excess warmth that chance explains in a leaf of `entries`: few entries say little about their leaf.
fn chance(entries: usize) -> u32 {
    ALL / (entries as u32).isqrt().max(1)
}

/// The leaves, which are numbered; `order` lists them by first block. When a leaf is removed, the last leaf takes its
/// number.
#[derive(Debug, Default)]
struct Many {
    firsts: Vec<u32>,
    order: Vec<u32>,
    #[allow(clippy::vec_box)] // so that growing copies eight bytes a leaf
    leaves: Vec<Box<Leaf>>,
    /// The leaf that the hand visits next, in the ring of the leaves with evictable entries.
    hand: u32,
    ring: u32,
    /// The number of leaves that the hand has not visited in this round.
    ahead: u32,
    len: u64,
    evictable: u64,
    delayed_blocks: u64,
    /// The memory of the leaves in bytes.
    leaf_bytes: u64,
    /// [`Leaf::was_warm`] of the leaf that was removed last: a popular file that lost all its leaves is still popular.
    was_warm: u16,
}

/// The position of an entry: the index of its leaf in the order, and its place in the leaf.
type At = (usize, usize);

impl Many {
    fn new(few: &[Packed], was_warm: u16) -> Many {
        let mut many = Many { hand: NONE, was_warm, ..Many::default() };
        for e in few {
            many.put(*e);
        }
        many
    }

    fn bytes(&self) -> u64 {
        allocated(size_of::<Many>())
            + allocated(self.firsts.capacity() * 4)
            + allocated(self.order.capacity() * 4)
            + allocated(self.leaves.capacity() * size_of::<Box<Leaf>>())
            + self.leaf_bytes
    }

    fn leaf(&self, number: u32) -> &Leaf {
        &self.leaves[number as usize]
    }

    fn leaf_mut(&mut self, number: u32) -> &mut Leaf {
        &mut self.leaves[number as usize]
    }

    /// Changes a leaf and updates the totals: memory, counts, and membership in the ring.
    fn change<R>(&mut self, number: u32, f: impl FnOnce(&mut Leaf) -> R) -> R {
        let leaf = self.leaf_mut(number);
        let before = (leaf.bytes(), leaf.evictable() as u64, leaf.len() as u64);
        let result = f(leaf);
        let after = (leaf.bytes(), leaf.evictable() as u64, leaf.len() as u64);
        self.leaf_bytes = self.leaf_bytes - before.0 + after.0;
        self.evictable = self.evictable - before.1 + after.1;
        self.len = self.len - before.2 + after.2;
        let listed = self.leaf(number).listed;
        if after.1 > 0 && !listed {
            self.list(number);
        } else if after.1 == 0 && listed {
            self.unlist(number);
        }
        result
    }

    /// Adds a leaf to the ring at the place that the hand reaches last.
    fn list(&mut self, number: u32) {
        let (before, behind) = match self.hand {
            NONE => {
                self.hand = number;
                (number, number)
            }
            hand => (self.leaf(hand).before, hand),
        };
        let leaf = self.leaf_mut(number);
        (leaf.listed, leaf.before, leaf.behind) = (true, before, behind);
        self.leaf_mut(before).behind = number;
        self.leaf_mut(behind).before = number;
        self.ring += 1;
    }

    fn unlist(&mut self, number: u32) {
        let leaf = self.leaf_mut(number);
        let (before, behind) = (leaf.before, leaf.behind);
        leaf.listed = false;
        self.leaf_mut(before).behind = behind;
        self.leaf_mut(behind).before = before;
        self.ring -= 1;
        if self.hand == number {
            self.hand = if self.ring == 0 { NONE } else { behind };
        }
    }

    /// Adds an empty leaf at `place`.
    fn add_leaf(&mut self, place: usize) {
        let neighbour = place.checked_sub(1).map_or(self.was_warm, |left| self.leaf(self.order[left]).was_warm);
        let mut leaf = Box::<Leaf>::default();
        leaf.was_warm = neighbour;
        self.leaf_bytes += leaf.bytes();
        self.order.insert(place, self.leaves.len() as u32);
        self.firsts.insert(place, 0);
        self.leaves.push(leaf);
    }

    /// The warmth of the first leaf, or of the one removed last.
    fn was_warm(&self) -> u16 {
        self.order.first().map_or(self.was_warm, |number| self.leaf(*number).was_warm)
    }

    /// Removes a leaf without entries, because every other leaf has some.
    fn remove_leaf(&mut self, place: usize) {
        let number = self.order.remove(place);
        self.firsts.remove(place);
        let leaf = self.leaves.swap_remove(number as usize);
        self.leaf_bytes -= leaf.bytes();
        self.was_warm = leaf.was_warm;
        if let Some(moved) = self.leaves.get(number as usize) {
            let old = self.leaves.len() as u32;
            let first = moved.first().map_or(0, |e| e.lblk());
            let (listed, before, behind) = (moved.listed, moved.before, moved.behind);
            let place = self.firsts.partition_point(|f| *f <= first) - 1;
            debug_assert_eq!(self.order[place], old);
            self.order[place] = number;
            if listed {
                // If a leaf is alone in the ring, it is its own neighbour.
                let new = |n: u32| if n == old { number } else { n };
                let (before, behind) = (new(before), new(behind));
                self.leaf_mut(before).behind = number;
                self.leaf_mut(behind).before = number;
                self.hand = new(self.hand);
            }
        }
        if self.order.capacity() >= 64 && self.order.len() < self.order.capacity() / 4 {
            let room = 2 * self.order.len();
            self.firsts.shrink_to(room);
            self.order.shrink_to(room);
            self.leaves.shrink_to(room);
        }
    }

    /// The leaf that covers `lblk`, and the start of the next leaf.
    fn place(&self, lblk: u32) -> Option<(usize, Option<u32>)> {
        let place = self.firsts.partition_point(|first| *first <= lblk).checked_sub(1)?;
        Some((place, self.firsts.get(place + 1).copied()))
    }

    /// The last entry that starts at or before `lblk`.
    fn at_or_before(&self, lblk: u32) -> Option<At> {
        let (place, end) = self.place(lblk)?;
        Some((place, self.leaf(self.order[place]).at_or_before(lblk, end)?))
    }

    /// The last entry that starts at or before `lblk`, and the next entry after it.
    fn around(&self, lblk: u32) -> (Option<Packed>, Option<Packed>) {
        let first_of = |place: usize| self.order.get(place).and_then(|number| self.leaf(*number).first());
        match self.at_or_before(lblk) {
            None => (None, first_of(0)),
            Some((place, within)) => {
                let leaf = self.leaf(self.order[place]);
                let right = leaf.entries_from(within + 1).next().or_else(|| first_of(place + 1));
                (Some(leaf.entry(within)), right)
            }
        }
    }

    /// The position for an entry that starts at `lblk`.
    fn at(&self, lblk: u32) -> At {
        self.place(lblk).map_or((0, 0), |(place, end)| (place, self.leaf(self.order[place]).up_to(lblk, end)))
    }

    fn get(&self, at: At) -> Packed {
        self.leaf(self.order[at.0]).entry(at.1)
    }

    fn put(&mut self, e: Packed) {
        let (mut place, mut within) = self.at(e.lblk());
        if self.order.is_empty() {
            self.add_leaf(0);
        } else if self.leaf(self.order[place]).len() == FULL {
            if within == FULL && place + 1 == self.order.len() {
                // Appended entries go to a new leaf, and this one stays full.
                self.add_leaf(place + 1);
                (place, within) = (place + 1, 0);
            } else {
                self.make_room(place);
                (place, within) = self.at(e.lblk());
            }
        }
        self.change(self.order[place], |leaf| leaf.insert(within, e));
        if within == 0 {
            self.firsts[place] = e.lblk();
        }
        if e.is_delayed() {
            self.delayed_blocks += u64::from(e.len());
        }
    }

    /// Makes room in the full leaf at `place`: a neighbour takes entries, or two leaves become three.
    fn make_room(&mut self, place: usize) {
        let len = |place: usize| self.order.get(place).map_or(FULL, |number| self.leaf(*number).len());
        let left = place.checked_sub(1).filter(|left| len(*left) + ROOM <= FULL);
        if let Some(left) = left {
            self.redistribute(left, 2, 2);
        } else if len(place + 1) + ROOM <= FULL {
            self.redistribute(place, 2, 2);
        } else if place > 0 {
            self.redistribute(place - 1, 2, 3);
        } else {
            let pair = self.order.len().min(2);
            self.redistribute(place, pair, pair + 1);
        }
    }

    /// Distributes the entries of `old` leaves from `place` on evenly over `new` leaves. Their numbers differ by at
    /// most one.
    fn redistribute(&mut self, place: usize, old: usize, new: usize) {
        let mut all = Vec::with_capacity(old * FULL);
        for p in place..place + old {
            let leaf = self.leaf_mut(self.order[p]);
            let len = leaf.len() as u64;
            leaf.drain_into(&mut all);
            self.len -= len;
        }
        for _ in old..new {
            self.add_leaf(place + old);
        }
        let mut rest = &all[..];
        for i in 0..new {
            let (now, later) = rest.split_at(rest.len() / (new - i));
            self.change(self.order[place + i], |leaf| leaf.fill(now));
            self.firsts[place + i] = now.first().map_or(0, |(e, ..)| e.lblk());
            rest = later;
        }
        if new < old {
            self.change(self.order[place + new], |leaf| leaf.fill(&[]));
            self.remove_leaf(place + new);
        }
    }

    fn take(&mut self, lblk: u32) -> Option<Packed> {
        let (place, within) = self.at_or_before(lblk).filter(|at| self.get(*at).lblk() == lblk)?;
        let e = self.change(self.order[place], |leaf| leaf.remove(within));
        if e.is_delayed() {
            self.delayed_blocks -= u64::from(e.len());
        }
        self.settle(place);
        Some(e)
    }

    /// Updates the tree after entries were removed from the leaf at `place`.
    fn settle(&mut self, place: usize) {
        let leaf = self.leaf(self.order[place]);
        let len = leaf.len();
        match leaf.first() {
            None => return self.remove_leaf(place),
            Some(first) => self.firsts[place] = first.lblk(),
        }
        if len > SMALL {
            return;
        }
        let joins = |other: usize| self.order.get(other).is_some_and(|n| self.leaf(*n).len() + len <= JOINED);
        if joins(place + 1) {
            self.redistribute(place, 2, 1);
        } else if place > 0 && joins(place - 1) {
            self.redistribute(place - 1, 2, 1);
        }
    }

    fn resize(&mut self, lblk: u32, len: u32) {
        let Some(at) = self.at_or_before(lblk).filter(|at| self.get(*at).lblk() == lblk) else { return };
        let e = self.get(at);
        if e.is_delayed() {
            self.delayed_blocks = self.delayed_blocks - u64::from(e.len()) + u64::from(len);
        }
        let new = Packed::new(EsEntry { len, ..e.unpack() });
        self.leaf_mut(self.order[at.0]).replace(at.1, new);
    }

    fn visit(&self, from: u32, mut f: impl FnMut(EsEntry) -> bool) {
        let (place, within) = self.at_or_before(from).unwrap_or((0, 0));
        let mut skip = within;
        for number in self.order.get(place..).unwrap_or_default() {
            for e in self.leaf(*number).entries_from(skip) {
                let e = e.unpack();
                if e.end() > u64::from(from) && !f(e) {
                    return;
                }
            }
            skip = 0;
        }
    }

    fn sweep(&mut self, wanted: u64, visits: u64, spare: Option<Spare>) -> Swept {
        let mut done = Swept::default();
        if self.ahead == 0 {
            self.ahead = self.ring;
        }
        while done.freed < wanted && done.visited < visits && self.ahead > 0 && self.hand != NONE {
            let number = self.hand;
            let leaf = self.leaf(number);
            let behind = leaf.behind;
            let (all, left) = (leaf.evictable() as u64, (wanted - done.freed) as usize);
            let warmth = leaf.warmth();
            let outcome = (leaf.kept > 0).then(|| leaf.outcome());
            let whole = match spare {
                Some(Spare::Leaves { warm }) => warmth > warm + chance(leaf.evictable()),
                Some(Spare::Entries { seen }) if leaf.kept == 0 => {
                    (seen + done.visited) % KEPT_ONE_IN == KEPT_ONE_IN - 1
                }
                Some(Spare::Entries { .. }) => leaf.kept < KEPT_FOR,
                None => false,
            };
            let (freed, began) = if whole {
                (0, None)
            } else {
                let marks_spare = matches!(spare, Some(Spare::Entries { .. }));
                self.change(number, |leaf| leaf.evict(left, marks_spare))
            };
            done.freed += freed as u64;
            done.visited += 1;
            if freed < left {
                if let Some(outcome) = outcome {
                    done.outcome.marked += outcome.marked;
                    done.outcome.unmarked += outcome.unmarked;
                    done.outcome.marked_expected += outcome.marked_expected;
                    done.outcomes += 1;
                }
                self.leaf_mut(number).pass(warmth, whole);
                done.passed += all;
                self.ahead -= 1;
                if self.hand == number {
                    self.hand = behind;
                }
            } else {
                done.passed += freed as u64;
            }
            if let Some(first) = began {
                self.settle(self.firsts.partition_point(|f| *f <= first) - 1);
            }
        }
        self.ahead = self.ahead.min(self.ring);
        done.around = self.ahead == 0;
        done
    }
}

impl PackedTree {
    /// Moves the hand until `wanted` entries are evicted, or it has visited `visits` leaves, or the round ends. Without
    /// `spare`, it spares nothing.
    pub fn sweep(&mut self, wanted: u64, visits: u64, spare: Option<Spare>) -> Swept {
        let Form::Many(many) = &mut self.0 else { return Swept { around: true, ..Swept::default() } };
        let done = many.sweep(wanted, visits, spare);
        self.maybe_few();
        done
    }

    fn few(&self) -> &[Packed] {
        match &self.0 {
            Form::Few(n, _, few) => &few[..usize::from(*n)],
            Form::Many(_) => &[],
        }
    }

    /// Leaves are dissolved only when the number of entries is one less than fits in place. So a caller that
    /// alternately adds and removes one entry does not allocate each time.
    fn maybe_few(&mut self) {
        if let Form::Many(many) = &self.0
            && many.len < FEW as u64
        {
            let mut few = [Packed::NOTHING; FEW];
            let mut n = 0;
            many.visit(0, |e| {
                few[n] = Packed::new(e);
                n += 1;
                true
            });
            self.0 = Form::Few(n as u8, many.was_warm(), few);
        }
    }
}

impl Entries for PackedTree {
    fn len(&self) -> u64 {
        match &self.0 {
            Form::Few(n, ..) => u64::from(*n),
            Form::Many(many) => many.len,
        }
    }

    fn evictable(&self) -> u64 {
        match &self.0 {
            Form::Few(..) => 0,
            Form::Many(many) => many.evictable,
        }
    }

    fn all_delayed_blocks(&self) -> u64 {
        match &self.0 {
            Form::Few(..) => self.few().iter().filter(|e| e.is_delayed()).map(|e| u64::from(e.len())).sum(),
            Form::Many(many) => many.delayed_blocks,
        }
    }

    fn bytes(&self) -> u64 {
        match &self.0 {
            Form::Few(..) => 0,
            Form::Many(many) => many.bytes(),
        }
    }

    fn longest(state: EsState) -> u32 {
        entry::longest(state)
    }

    fn lookup(&self, lblk: u32) -> Option<EsEntry> {
        let found = match &self.0 {
            Form::Few(..) => self.few().iter().rev().find(|e| e.lblk() <= lblk)?.unpack(),
            Form::Many(many) => {
                let at = many.at_or_before(lblk)?;
                let leaf = many.leaf(many.order[at.0]);
                let found = leaf.entry(at.1).unpack();
                if found.end() > u64::from(lblk) {
                    leaf.mark(at.1);
                }
                found
            }
        };
        (found.end() > u64::from(lblk)).then_some(found)
    }

    fn at_or_before(&self, lblk: u32) -> Option<EsEntry> {
        match &self.0 {
            Form::Few(..) => self.few().iter().rev().find(|e| e.lblk() <= lblk).map(|e| e.unpack()),
            Form::Many(many) => many.at_or_before(lblk).map(|at| many.get(at).unpack()),
        }
    }

    fn around(&self, lblk: u32) -> (Option<EsEntry>, Option<EsEntry>) {
        let (left, right) = match &self.0 {
            Form::Few(..) => {
                let few = self.few();
                let behind = few.partition_point(|e| e.lblk() <= lblk);
                (behind.checked_sub(1).map(|at| few[at]), few.get(behind).copied())
            }
            Form::Many(many) => many.around(lblk),
        };
        (left.map(Packed::unpack), right.map(Packed::unpack))
    }

    fn visit(&self, from: u32, mut f: impl FnMut(EsEntry) -> bool) {
        match &self.0 {
            Form::Few(..) => {
                let mut rest = self.few().iter().map(|e| e.unpack()).filter(|e| e.end() > u64::from(from));
                while rest.next().is_some_and(&mut f) {}
            }
            Form::Many(many) => many.visit(from, f),
        }
    }

    fn put(&mut self, new: EsEntry) {
        let new = Packed::new(new);
        match &mut self.0 {
            Form::Few(n, _, few) if usize::from(*n) < FEW => {
                let len = usize::from(*n);
                let at = few[..len].partition_point(|e| e.lblk() < new.lblk());
                few.copy_within(at..len, at + 1);
                few[at] = new;
                *n += 1;
            }
            Form::Few(_, was_warm, few) => {
                let mut many = Many::new(few, *was_warm);
                many.put(new);
                self.0 = Form::Many(Box::new(many));
            }
            Form::Many(many) => many.put(new),
        }
    }

    fn take(&mut self, lblk: u32) -> Option<EsEntry> {
        match &mut self.0 {
            Form::Few(n, _, few) => {
                let len = usize::from(*n);
                let at = few[..len].iter().position(|e| e.lblk() == lblk)?;
                let gone = few[at];
                few.copy_within(at + 1..len, at);
                *n -= 1;
                Some(gone.unpack())
            }
            Form::Many(many) => {
                let gone = many.take(lblk);
                self.maybe_few();
                gone.map(Packed::unpack)
            }
        }
    }

    fn resize(&mut self, lblk: u32, len: u32) {
        match &mut self.0 {
            Form::Few(n, _, few) => {
                if let Some(e) = few[..usize::from(*n)].iter_mut().find(|e| e.lblk() == lblk) {
                    *e = Packed::new(EsEntry { len, ..e.unpack() });
                }
            }
            Form::Many(many) => many.resize(lblk, len),
        }
    }
}

#[cfg(test)]
impl PackedTree {
    /// Checks the invariants of leaves, root and ring. Returns the number of empty places.
    pub fn check(&self) -> u64 {
        let Form::Many(many) = &self.0 else { return 0 };
        assert_eq!(many.firsts.len(), many.order.len());
        let (mut bytes, mut len, mut evictable, mut listed, mut gone) = (0, 0, 0, 0, 0);
        for (first, number) in many.firsts.iter().zip(&many.order) {
            let leaf = many.leaf(*number);
            assert_eq!(leaf.first().map(|e| e.lblk()), Some(*first));
            assert_eq!(leaf.listed, leaf.evictable() > 0);
            assert_eq!(leaf.evictable(), leaf.entries_from(0).filter(|e| !e.is_delayed()).count());
            gone += leaf.check();
            bytes += leaf.bytes();
            len += leaf.len() as u64;
            evictable += leaf.evictable() as u64;
            listed += u32::from(leaf.listed);
        }
        assert_eq!((many.leaf_bytes, many.len, many.evictable, many.ring), (bytes, len, evictable, listed));
        let (mut at, mut seen) = (many.hand, 0);
        while seen < many.ring {
            let leaf = many.leaf(at);
            assert!(leaf.listed && many.leaf(leaf.behind).before == at);
            (at, seen) = (leaf.behind, seen + 1);
        }
        assert_eq!(at, many.hand);
        assert_eq!(many.leaves.len(), many.order.len());
        gone
    }
}
