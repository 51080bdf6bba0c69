//! [`GroupSet`]: a set of group numbers, as a bitmap of two levels; [`Family`]: one such set per order, with each
//! group in at most one.
//!
//! # Locking
//! None: readers and writers share no lock. At any time, only one thread inserts or removes a given group.

use extant_base::sim;
use extant_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A set of group numbers.
pub struct GroupSet {
    words: Box<[AtomicU64]>,
    /// Marks the words that may be non-zero.
    summary: Box<[AtomicU64]>,
}

impl GroupSet {
    pub fn new(groups: u32) -> GroupSet {
        let make = |n: u32| (0..n).map(|_| AtomicU64::new(0)).collect();
        let words = groups.div_ceil(64);
        GroupSet { words: make(words), summary: make(words.div_ceil(64)) }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        (self.words.len() + self.summary.len()) * 8
    }

    pub fn insert(&self, g: u32) {
        let word = g / 64;
        if let (Some(w), Some(s)) = (self.words.get(word as usize), self.summary.get(word as usize / 64)) {
            sim::line_written("group set", w);
            w.fetch_or(1 << (g % 64), Ordering::SeqCst);
            s.fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
    }

    pub fn remove(&self, g: u32) {
        let word = g / 64;
        if let (Some(w), Some(s)) = (self.words.get(word as usize), self.summary.get(word as usize / 64)) {
            let bit = 1 << (g % 64);
            sim::line_written("group set", w);
            if w.fetch_and(!bit, Ordering::SeqCst) & !bit == 0 {
                s.fetch_and(!(1 << (word % 64)), Ordering::SeqCst);
                // Another thread may have inserted a group between the two operations; then the summary bit must be set
                // again.
                if w.load(Ordering::SeqCst) != 0 {
                    s.fetch_or(1 << (word % 64), Ordering::SeqCst);
                }
            }
        }
    }

    /// The smallest member in `from..to`.
    pub fn next(&self, from: u32, to: u32) -> Option<u32> {
        if from >= to {
            return None;
        }
        let first = from / 64;
        let word = self.words.get(first as usize)?;
        sim::line_read("group set", word);
        let member = word.load(Ordering::Relaxed) & (u64::MAX << (from % 64));
        if member != 0 {
            return Some(first * 64 + member.trailing_zeros()).filter(|&g| g < to);
        }
        let mut at = first + 1;
        let end = to.div_ceil(64);
        while at < end {
            let summary = self.summary.get(at as usize / 64)?.load(Ordering::Relaxed) & (u64::MAX << (at % 64));
            if summary == 0 {
                at = (at / 64 + 1) * 64;
                continue;
            }
            at = at / 64 * 64 + summary.trailing_zeros();
            let member = self.words.get(at as usize)?.load(Ordering::Relaxed);
            if member != 0 {
                return Some(at * 64 + member.trailing_zeros()).filter(|&g| g < to);
            }
            at += 1;
        }
        None
    }
}

/// Sets of groups, one per order.
pub struct Family {
    sets: Vec<GroupSet>,
    /// For each group, its order plus one; 0 for none. Protected by the group's lock.
    listed: Box<[AtomicU8]>,
}

impl Family {
    /// A family for orders below `orders`.
    pub fn new(groups: u32, orders: usize) -> Family {
        Family {
            sets: (0..orders).map(|_| GroupSet::new(groups)).collect(),
            listed: (0..groups).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// The sets, by order.
    pub fn sets(&self) -> &[GroupSet] {
        &self.sets
    }

    /// Moves the group to this order.
    pub fn put(&self, group: u32, order: Option<u32>) {
        let Some(listed) = self.listed.get(group as usize) else { return };
        let (old, new) = (listed.load(Ordering::Relaxed), order.map_or(0, |o| o as u8 + 1));
        if old != new {
            // Inserts before removing, so that no concurrent search misses the group.
            if let Some(set) = (new as usize).checked_sub(1).and_then(|o| self.sets.get(o)) {
                set.insert(group);
            }
            if let Some(set) = (old as usize).checked_sub(1).and_then(|o| self.sets.get(o)) {
                set.remove(group);
            }
            listed.store(new, Ordering::Relaxed);
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.sets.iter().map(GroupSet::bytes).sum::<usize>() + self.listed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::rng::Rng;

    #[test]
    fn set_agrees_with_a_plain_array() {
        let (n, mut rng) = (10_000u32, Rng::new(5));
        let set = GroupSet::new(n);
        let mut model = vec![false; n as usize];
        for _ in 0..30_000 {
            let g = if rng.one_in(2) { rng.below(u64::from(n)) } else { rng.below(70) } as u32;
            if rng.one_in(3) {
                set.insert(g);
                model[g as usize] = true;
            } else {
                set.remove(g);
                model[g as usize] = false;
            }
            let from = rng.below(u64::from(n)) as u32;
            let to = from + rng.below(u64::from(n - from)) as u32;
            assert_eq!(set.next(from, to), (from..to).find(|&g| model[g as usize]));
        }
    }
}
