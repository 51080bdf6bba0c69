//! A bounded map from hashes to what may have them (Linux: fs/mbcache.c).
//!
//! Main type: [`Hints`]. It has a fixed number of places, allocated with the first entry. A new entry replaces the
//! least recently entered one of its set, so one search finds at most [`WAYS`] candidates, whichever hashes a crafted
//! image contains. Forgetting an entry only means that it is not shared.
//!
//! What it does not do: know whether an entry is true. Its users compare the content.
//!
//! # Locking
//! None of its own.

use extant_base::hash::shard_of;

const SET_BITS: u32 = 11;
/// The number of sets of hashes.
pub(super) const SETS: usize = 1 << SET_BITS;
/// Entries of one set.
pub(super) const WAYS: usize = 8;

/// Hashes and their entries. A hash of 0 marks a free place: no entry has it.
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
    /// Whether the entry is there.
    pub(super) fn contains(&self, hash: u32, entry: T) -> bool {
        self.sets.get(set_of(hash)).is_some_and(|set| hash != 0 && set.contains(&(hash, entry)))
    }

    /// The entries of this hash, newest first.
    pub(super) fn candidates(&self, hash: u32) -> Vec<T> {
        let set = self.sets.get(set_of(hash)).into_iter().flatten();
        set.filter(|(h, _)| *h == hash && hash != 0).map(|(_, entry)| *entry).collect()
    }

    /// Enters it, or makes it the newest.
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

    /// Removes it.
    pub(super) fn forget(&mut self, hash: u32, entry: T) {
        let Some(set) = self.sets.get_mut(set_of(hash)) else { return };
        for place in set.iter_mut().filter(|e| **e == (hash, entry)) {
            *place = (0, T::default());
        }
    }
}
