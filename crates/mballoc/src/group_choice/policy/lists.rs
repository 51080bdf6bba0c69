//! [`Lists`]: one list of groups per order, from whose head groups are taken. Shared by `optimize-scan` and
//! `goal-first`. Linux: `s_mb_largest_free_orders`, `s_mb_avg_fragment_size`.
//!
//! # Locking
//! One lock per list ([`crate::lock::LISTS`]), under the group's lock or none; never two at once.

use std::collections::BTreeMap;

use extant_base::sim;
use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::{ORDERS, Pass};
use crate::lock;

/// A list: groups in order of insertion, keyed by the time of insertion.
type List = BTreeMap<u64, u32>;

/// Not in any list.
const NOWHERE: u8 = u8::MAX;

/// The lists of one kind; see the module.
pub struct Lists {
    lists: [Mutex<List>; ORDERS],
    /// For each group, the list that contains it and the time of its insertion. Protected by the group's lock.
    place: Box<[(AtomicU8, AtomicU64)]>,
    clock: AtomicU64,
}

impl Lists {
    pub fn new(groups: u32) -> Lists {
        Lists {
            lists: std::array::from_fn(|_| Mutex::new(&lock::LISTS, List::new())),
            place: (0..groups).map(|_| (AtomicU8::new(NOWHERE), AtomicU64::new(0))).collect(),
            clock: AtomicU64::new(0),
        }
    }

    pub fn bytes(&self) -> usize {
        // A node of the tree holds eleven entries of twelve bytes and is two thirds full.
        self.place.len() * (size_of::<(AtomicU8, AtomicU64)>() + 20)
    }

    /// Moves a group to the tail of the list of `order`, or to none. `stays`: a group that is already in that list
    /// keeps its place.
    pub fn put(&self, group: u32, order: Option<u32>, stays: bool) {
        let Some((list, when)) = self.place.get(group as usize) else { return };
        let (old, new) = (list.load(Ordering::Relaxed), order.map_or(NOWHERE, |o| o as u8));
        if old == new && (stays || new == NOWHERE) {
            return;
        }
        if let Some(old) = self.lists.get(old as usize) {
            old.lock().remove(&when.load(Ordering::Relaxed));
        }
        if let Some(new) = self.lists.get(new as usize) {
            sim::line_written("list clock", &self.clock);
            let now = self.clock.fetch_add(1, Ordering::Relaxed);
            when.store(now, Ordering::Relaxed);
            new.lock().insert(now, group);
        }
        list.store(new, Ordering::Relaxed);
    }

    /// The next group that satisfies `good`: from the head of the list of `order` on, then in the lists of higher
    /// orders. A group that the pass has already named is named again only if it has moved since. `pass.step`: the
    /// order plus one; `pass.at`: the place in its list behind the last group named.
    pub fn next(&self, order: u32, pass: &mut Pass, mut good: impl FnMut(&Pass, u32) -> bool) -> Option<u32> {
        if pass.step == 0 {
            (pass.step, pass.at) = (order + 1, 0);
        }
        while let Some(list) = self.lists.get(pass.step as usize - 1) {
            let found = {
                let list = list.lock();
                list.range(pass.at..).find(|&(_, &g)| g < pass.limit && good(pass, g)).map(|(&when, &g)| (when, g))
            };
            if let Some((when, group)) = found {
                pass.at = when + 1;
                return Some(group);
            }
            (pass.step, pass.at) = (pass.step + 1, 0);
        }
        None
    }
}
