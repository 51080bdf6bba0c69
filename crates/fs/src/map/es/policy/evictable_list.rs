//! The patch that was posted against vanilla in December 2013 and never merged (Zheng Liu, "ext4: improve extents
//! status tree shrinker to avoid scanning delayed entries"): each inode keeps a list of its evictable entries, and
//! reclaim walks only that.
//!
//! The list is filled at its head and emptied from there, as an hlist is, so the newest entries go first. The inodes
//! are chosen as in vanilla.
//!
//! # Locking
//! See `lru`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::EsPolicy;
use super::lru::{InodeLru, Stamp};
use crate::map::es::core::{Core, Node, Shrunk};
use crate::map::es::tree::{Entries, Index, StatusTree};

/// Evictable entries by the order in which they came. (An ordered map in the place of list nodes inside of the entries,
/// which safe Rust does not have.)
#[derive(Debug, Default)]
pub(in crate::map::es) struct Arrivals {
    by_arrival: BTreeMap<u64, u32>,
    next: u64,
}

impl Index for Arrivals {
    /// Vanilla's and a second key and value.
    const ENTRY_BYTES: u64 = 88;

    fn added(&mut self, lblk: u32) -> u64 {
        self.next += 1;
        self.by_arrival.insert(self.next, lblk);
        self.next
    }

    fn removed(&mut self, _lblk: u32, tag: u64) {
        self.by_arrival.remove(&tag);
    }
}

#[derive(Default)]
pub(in crate::map::es) struct EvictableList {
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
                    && let Some((_, lblk)) = tree.index.by_arrival.last_key_value().map(|(k, v)| (*k, *v))
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
