//! Vectors that only grow, while other threads read them without a lock.
//!
//! Main types: [`AppendVec`]; [`Latest`], the newest version of a value that rarely changes (Linux: an array replaced
//! under RCU, as `s_group_info` in `ext4_sb_info`). References stay valid, because nothing is moved or removed.
//!
//! What it does not do: remove items, or free old versions.
//!
//! # Locking
//! None. If two threads append at the same time, both items are appended, in either order.

use std::ops::Deref;
use std::sync::OnceLock;

use crate::sync::atomic::{AtomicUsize, Ordering};

/// The number of items in the first segment after the initial items. Each later segment has twice as many.
const SEGMENT: usize = 64;
/// More segments than any machine has memory for.
const SEGMENTS: usize = 40;

type Segment<T> = OnceLock<Box<[OnceLock<T>]>>;

/// An append-only vector.
pub struct AppendVec<T> {
    first: Box<[T]>,
    more: Box<[Segment<T>]>,
    len: AtomicUsize,
}

impl<T> FromIterator<T> for AppendVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> AppendVec<T> {
        let first: Box<[T]> = items.into_iter().collect();
        let more = (0..SEGMENTS).map(|_| OnceLock::new()).collect();
        AppendVec { len: AtomicUsize::new(first.len()), first, more }
    }
}

impl<T> AppendVec<T> {
    /// The number of items. A thread that sees an item counted also sees the changes from before its append.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at index `at`.
    pub fn get(&self, at: usize) -> Option<&T> {
        match self.first.get(at) {
            None => self.slot(at)?.get(),
            found => found,
        }
    }

    /// The segment of an item after the initial ones, and the place in it.
    fn place(&self, at: usize) -> Option<(&Segment<T>, usize, usize)> {
        let behind = at.checked_sub(self.first.len())?;
        let nr = (behind / SEGMENT + 1).ilog2() as usize;
        let start = SEGMENT * ((1 << nr) - 1);
        Some((self.more.get(nr)?, behind - start, SEGMENT << nr))
    }

    fn slot(&self, at: usize) -> Option<&OnceLock<T>> {
        let (segment, within, _) = self.place(at)?;
        segment.get()?.get(within)
    }

    /// Appends an item.
    ///
    /// # Panics
    /// If there are more than 2^45 items.
    pub fn push(&self, mut item: T) {
        loop {
            let at = self.len();
            let (segment, within, len) = self.place(at).expect("fewer items than a machine has memory for");
            let segment = segment.get_or_init(|| (0..len).map(|_| OnceLock::new()).collect());
            let taken = segment[within].set(item);
            // Another thread may have appended here. Then this thread counts that item, and tries again.
            self.len.fetch_max(at + 1, Ordering::AcqRel);
            match taken {
                Ok(()) => return,
                Err(back) => item = back,
            }
        }
    }

    /// All items so far.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        (0..self.len()).map(|at| self.get(at).expect("counted, so it is there"))
    }
}

/// A value of which newer versions can be published. It dereferences to the newest one; a caller that needs two parts
/// of the same version must borrow it once.
pub struct Latest<T>(AppendVec<T>);

impl<T> Latest<T> {
    /// Creates a value with its first version.
    pub fn new(value: T) -> Latest<T> {
        Latest(AppendVec::from_iter([value]))
    }

    /// Publishes a newer version. The older versions stay in memory.
    pub fn publish(&self, value: T) {
        self.0.push(value);
    }
}

impl<T> Deref for Latest<T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.get(self.0.len() - 1).expect("the first version is there from the beginning")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn items_keep_their_places() {
        for made_with in [0, 1, 64, 100] {
            let items: AppendVec<usize> = (0..made_with).collect();
            for item in made_with..made_with + 1000 {
                assert_eq!(items.get(item), None);
                items.push(item);
                assert_eq!(items.len(), item + 1);
            }
            assert!(items.iter().copied().eq(0..made_with + 1000));
        }
    }

    #[test]
    fn concurrent_appends_lose_nothing() {
        let items: Arc<AppendVec<u64>> = Arc::new(AppendVec::from_iter([]));
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let items = items.clone();
                crate::task::spawn("append", move || (0..5000).for_each(|i| items.push(t * 5000 + i))).expect("thread")
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        let mut all: Vec<u64> = items.iter().copied().collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..20_000));
    }

    #[test]
    fn the_newest_version_is_seen_and_older_references_stay() {
        let value = Latest::new(1);
        let old: &i32 = &value;
        value.publish(2);
        assert_eq!((*old, *value), (1, 2));
    }
}
