//! The optimum for any policy: Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
//! Journal, 1966.
//!
//! Main type: [`Belady`]. It is given the whole trace, and drops the item whose next use is farthest away.

use std::collections::BTreeSet;

/// A cache that knows the future.
pub struct Belady {
    /// For each access, the time of its item's next use.
    next: Vec<usize>,
    at: usize,
    room: usize,
    /// The time of the next use of each item in the cache. The items themselves are not needed: no two are used at
    /// once.
    kept: BTreeSet<usize>,
}

impl Belady {
    pub fn new(accesses: &[u32], room: usize) -> Belady {
        let never = accesses.len();
        let mut next = vec![0; accesses.len()];
        let mut last = vec![None; accesses.iter().max().map_or(0, |m| *m as usize + 1)];
        for (i, access) in accesses.iter().enumerate().rev() {
            // Items without another use differ too, by their last use.
            next[i] = last[*access as usize].replace(i).unwrap_or(never + i);
        }
        Belady { next, at: 0, room, kept: BTreeSet::new() }
    }

    /// The trace's next access; whether it is a hit.
    pub fn advance(&mut self) -> bool {
        let hit = self.kept.remove(&self.at);
        self.kept.insert(self.next[self.at]);
        self.at += 1;
        if self.kept.len() > self.room {
            self.kept.pop_last();
        }
        hit
    }

    /// How many of the accesses miss.
    pub fn misses(accesses: &[u32], room: usize) -> u64 {
        let mut cache = Belady::new(accesses, room);
        accesses.iter().filter(|_| !cache.advance()).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_retains_the_item_with_the_nearest_next_use() {
        assert_eq!(Belady::misses(&[0, 1, 2, 0, 1, 2], 2), 4);
        assert_eq!(Belady::misses(&[0, 0, 0, 1, 1], 1), 2);
        assert_eq!(Belady::misses(&[0, 1, 2, 3], 4), 4);
        assert_eq!(Belady::misses(&[], 1), 0);
    }
}
