//! A set of clustered numbers, such as inode numbers, in bounded memory.
//!
//! Main types: [`NumberSet`]; [`FileSet`], the same for files of several devices. Inodes of one kind are close to each
//! other in the inode tables. So with a bit for each of 512 neighbours, the set takes a hundredth of a hash table's
//! memory. The directories of a file system of 2 TiB with the defaults of mke2fs take at most 32 MiB.
//!
//! # Locking
//! None.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

const BITS: u64 = 512;
/// A chunk takes 72 bytes and its share of the tree. This many chunks hold the inodes of a file system of 2 TiB with
/// one inode for each 16 KiB.
const CHUNKS_MAX: usize = 1 << 18;

/// The numbers in the set.
#[derive(Clone, Debug, Default)]
pub struct NumberSet {
    chunks: BTreeMap<u64, [u64; (BITS / 64) as usize]>,
}

impl NumberSet {
    /// An empty set.
    pub fn new() -> NumberSet {
        NumberSet::default()
    }

    /// Inserts `number`, and returns whether it is new. `None` if the set is full.
    pub fn insert(&mut self, number: u64) -> Option<bool> {
        let at = number / BITS;
        if self.chunks.len() >= CHUNKS_MAX && !self.chunks.contains_key(&at) {
            return None;
        }
        let words = self.chunks.entry(at).or_default();
        let (word, bit) = ((number % BITS / 64) as usize, 1 << (number % 64));
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        Some(is_new)
    }

    /// Whether `number` is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let words = self.chunks.get(&(number / BITS));
        words.is_some_and(|words| words[(number % BITS / 64) as usize] & 1 << (number % 64) != 0)
    }

    /// Removes `number`, and returns whether it was in the set.
    pub fn remove(&mut self, number: u64) -> bool {
        let there = self.contains(number);
        if there && let Entry::Occupied(mut chunk) = self.chunks.entry(number / BITS) {
            let words = chunk.get_mut();
            words[(number % BITS / 64) as usize] &= !(1 << (number % 64));
            if words.iter().all(|word| *word == 0) {
                chunk.remove();
            }
        }
        there
    }

    /// The smallest number in the set that is at least `from`.
    pub fn next_from(&self, from: u64) -> Option<u64> {
        self.chunks.range(from / BITS..).find_map(|(at, words)| {
            let skip = if *at == from / BITS { from % BITS } else { 0 };
            let first = (skip / 64) as usize;
            words.iter().enumerate().skip(first).find_map(|(i, word)| {
                let word = if i == first { word & (u64::MAX << (skip % 64)) } else { *word };
                (word != 0).then(|| at * BITS + i as u64 * 64 + u64::from(word.trailing_zeros()))
            })
        })
    }

    /// Removes all numbers.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }
}

/// Files by device and number.
#[derive(Clone, Debug, Default)]
pub struct FileSet(HashMap<u64, NumberSet>);

impl FileSet {
    /// As [`NumberSet::insert`].
    pub fn insert(&mut self, (device, number): (u64, u64)) -> Option<bool> {
        self.0.entry(device).or_default().insert(number)
    }

    /// As [`NumberSet::contains`].
    pub fn contains(&self, (device, number): (u64, u64)) -> bool {
        self.0.get(&device).is_some_and(|numbers| numbers.contains(number))
    }

    /// As [`NumberSet::remove`].
    pub fn remove(&mut self, (device, number): (u64, u64)) -> bool {
        self.0.get_mut(&device).is_some_and(|numbers| numbers.remove(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserting_a_number_twice_reports_it_as_new_once() {
        let mut set = NumberSet::new();
        for number in [0, 1, 63, 64, 511, 512, 4095, u64::from(u32::MAX), u64::MAX] {
            assert!(!set.contains(number) && !set.remove(number));
            assert_eq!((set.insert(number), set.insert(number)), (Some(true), Some(false)), "{number}");
            assert!(set.contains(number));
        }
        assert!(set.remove(64) && !set.contains(64) && set.contains(63));
        set.clear();
        assert_eq!(set.insert(512), Some(true));
    }

    #[test]
    fn numbers_come_back_in_order() {
        let numbers = [0, 1, 63, 64, 511, 512, 4095, 4096, 1 << 40, u64::MAX];
        let mut set = NumberSet::new();
        assert_eq!(set.next_from(0), None);
        numbers.iter().rev().for_each(|number| assert_eq!(set.insert(*number), Some(true)));
        let (mut found, mut from) = (Vec::new(), Some(0));
        while let Some(number) = from.and_then(|from| set.next_from(from)) {
            found.push(number);
            from = number.checked_add(1);
        }
        assert_eq!(found, numbers);
        assert_eq!((set.next_from(2), set.next_from(65), set.next_from(4097)), (Some(63), Some(511), Some(1 << 40)));
        // Removing all numbers of a chunk makes room for another chunk.
        numbers.iter().for_each(|number| assert!(set.remove(*number)));
        assert!(set.chunks.is_empty());
    }

    #[test]
    fn a_full_set_accepts_only_neighbours() {
        let mut set = NumberSet::new();
        for chunk in 0..CHUNKS_MAX as u64 {
            assert_eq!(set.insert(chunk * BITS), Some(true));
        }
        assert_eq!((set.insert(CHUNKS_MAX as u64 * BITS), set.insert(7)), (None, Some(true)));
    }
}
