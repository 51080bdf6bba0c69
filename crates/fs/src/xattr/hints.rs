//! A bounded map from hashes to candidates (Linux: fs/mbcache.c).
//!
//! Main type: [`Hints`]. It has a fixed number of slots, allocated with the first entry. A new entry replaces the
//! oldest one of its set. So one search finds at most [`WAYS`] candidates, regardless of the hashes in a crafted image.
//! If an entry is forgotten, it is merely not shared.
//!
//! What it does not do: guarantee that an entry is right. Its users compare the content.
//!
//! # Locking
//! None of its own.

use extant_base::hash::shard_of;

const SET_BITS: u32 = 11;
/// The number of sets of hashes.
pub(super) const SETS: usize = 1 << SET_BITS;
/// The number of entries in one set.
pub(super) const WAYS: usize = 8;

/// Hashes with their entries. A hash of 0 marks a free slot; no entry has it.
pub(super) struct Hints<T> {
    pub(super) sets: Vec<[(u32, T); WAYS]>,
}

impl<T> Default for Hints<T> {
    fn default() -> Hints<T> {
        Hints { sets: Vec::new() }
    }
}

fn set_of(hash: u32) -> usize {
    shard_of(u64::from(hash), SET_BITS)
}

impl<T: Copy + PartialEq + Default> Hints<T> {
    /// Whether the map contains this entry.
    pub(super) fn contains(&self, hash: u32, entry: T) -> bool {
        self.sets.get(set_of(hash)).is_some_and(|set| hash != 0 && set.contains(&(hash, entry)))
    }

    /// The entries of this hash, newest first.
    pub(super) fn candidates(&self, hash: u32) -> Vec<T> {
        let set = self.sets.get(set_of(hash)).into_iter().flatten();
        set.filter(|(h, _)| *h == hash && hash != 0).map(|(_, entry)| *entry).collect()
    }

    /// Adds the entry, or makes it the newest.
    pub(super) fn note(&mut self, hash: u32, entry: T) {
        if hash == 0 {
            return;
        }
        let free = (0, T::default());
        if self.sets.is_empty() {
            self.sets = vec![[free; WAYS]; SETS];
        }
        let new = (hash, entry);
        let set = &mut self.sets[set_of(hash)];
        let at = set.iter().position(|e| *e == new).or_else(|| set.iter().position(|e| e.0 == 0));
        let at = at.unwrap_or(WAYS - 1);
        set[at] = new;
        set[..=at].rotate_right(1);
    }

    /// Removes the entry.
    pub(super) fn forget(&mut self, hash: u32, entry: T) {
        let Some(set) = self.sets.get_mut(set_of(hash)) else { return };
        for place in set.iter_mut().filter(|e| **e == (hash, entry)) {
            *place = (0, T::default());
        }
    }
}
