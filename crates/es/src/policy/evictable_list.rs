//! The patch posted against vanilla in December 2013 and never merged (Zheng Liu, "ext4: improve extents status tree
//! shrinker to avoid scanning delayed entries"): each inode has a list of its evictable entries, and reclaim walks
//! only that.
//!
//! Entries are added and removed at the head of the list, as in an hlist, so the newest entries are evicted first.
//! Inodes are chosen as in vanilla.
//!
//! # Locking
//! The same as `lru`.

use std::sync::Arc;

use super::EsPolicy;
use super::lru::{InodeLru, Stamp};
use crate::core::{Core, Node, Shrunk};
use crate::tree::{Entries, Index, StatusTree};

/// No slot.
const NONE: u32 = u32::MAX;

/// A list of evictable entries, newest first. Its nodes are slots of one vector, and the tag of an entry is the number
/// of its slot, so adding and removing take constant time. (Linux has the node inside the entry. The vector shrinks
/// only when the list is empty.)
#[derive(Debug)]
pub(crate) struct Arrivals {
    slots: Vec<Slot>,
    newest: u32,
    /// Slots that hold no entry, linked by `older`.
    unused: u32,
}

#[derive(Debug)]
struct Slot {
    lblk: u32,
    newer: u32,
    older: u32,
}

impl Default for Arrivals {
    fn default() -> Self {
        Arrivals { slots: Vec::new(), newest: NONE, unused: NONE }
    }
}

impl Arrivals {
    fn newest(&self) -> Option<u32> {
        self.slots.get(self.newest as usize).map(|slot| slot.lblk)
    }
}

impl Index for Arrivals {
    /// The number of bytes of vanilla's entry, and of a slot in a vector that is three quarters full.
    const ENTRY_BYTES: u64 = 80;

    fn added(&mut self, lblk: u32) -> u64 {
        let slot = Slot { lblk, newer: NONE, older: self.newest };
        let number = match self.slots.get_mut(self.unused as usize) {
            Some(unused) => {
                let number = self.unused;
                self.unused = unused.older;
                *unused = slot;
                number
            }
            None => {
                self.slots.push(slot);
                self.slots.len() as u32 - 1
            }
        };
        if let Some(second) = self.slots.get_mut(self.newest as usize) {
            second.newer = number;
        }
        self.newest = number;
        u64::from(number)
    }

    fn removed(&mut self, lblk: u32, tag: u64) {
        let slot = &mut self.slots[tag as usize];
        debug_assert_eq!(slot.lblk, lblk);
        let (newer, older) = (slot.newer, slot.older);
        slot.older = self.unused;
        self.unused = tag as u32;
        match self.slots.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        if let Some(older) = self.slots.get_mut(older as usize) {
            older.newer = newer;
        }
        if self.newest == NONE {
            *self = Arrivals::default();
        }
    }
}

#[derive(Default)]
pub(crate) struct EvictableList {
    lru: InodeLru<EvictableList>,
}

impl EsPolicy for EvictableList {
    type Tree = StatusTree<Arrivals>;
    type PerInode = Stamp;

    fn touched(core: &Core<Self>, node: &Arc<Node<Self>>, evictable: u64) {
        core.policy.lru.touched(core, node, evictable);
    }

    fn shrink(core: &Core<Self>, nr: u64) -> Shrunk {
        core.policy.lru.shrink(core, nr, |node, left| {
            node.try_change(|tree| {
                let mut freed = 0;
                while freed < left
                    && let Some(lblk) = tree.index.newest()
                    && tree.take(lblk).is_some()
                {
                    freed += 1;
                }
                (freed, freed, ())
            })
            .map_or(Shrunk::default(), |(done, ())| done)
        })
    }
}

#[cfg(test)]
mod tests {
    use extant_base::rng::Rng;

    use super::*;

    /// Compares with a linear search: the newest entry is the same, regardless of which entries were removed in
    /// between.
    #[test]
    fn the_newest_remaining_entry_comes_first() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut list = Arrivals::default();
            let mut model: Vec<(u32, u64)> = Vec::new();
            for lblk in 0..2_000 {
                if rng.below(20) < 9 + seed % 3 || model.is_empty() {
                    model.push((lblk, list.added(lblk)));
                } else {
                    let (lblk, tag) = model.remove(rng.below(model.len() as u64) as usize);
                    list.removed(lblk, tag);
                }
                assert_eq!(list.newest(), model.last().map(|(lblk, _)| *lblk));
                assert!(list.slots.len() >= model.len() && (!model.is_empty() || list.slots.is_empty()));
            }
            while let Some(lblk) = list.newest() {
                let (last, tag) = model.pop().expect("as many");
                assert_eq!(lblk, last);
                list.removed(lblk, tag);
            }
            assert!(model.is_empty());
        }
    }
}
