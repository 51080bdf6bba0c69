//! Linux 3.12 and 3.13 (`ext4_es_shrink` and `__es_try_to_reclaim_extents`, fs/ext4/extents_status.c): the least
//! recently used inodes come first, and each is scanned from its first block.
//!
//! Its weakness is the reason for the other policies: delayed entries are skipped without a charge to the budget, and
//! every scan begins at block 0 again. So one call may visit all delayed entries of the mount under the list's lock.
//!
//! # Locking
//! The same as `lru`.

use std::sync::Arc;

use super::EsPolicy;
use super::lru::{InodeLru, Stamp};
use crate::core::{Core, Node, Shrunk};
use crate::tree::{Entries, StatusTree};

#[derive(Default)]
pub(crate) struct Vanilla {
    lru: InodeLru<Vanilla>,
}

impl EsPolicy for Vanilla {
    type Tree = StatusTree<()>;
    type PerInode = Stamp;

    fn touched(core: &Core<Self>, node: &Arc<Node<Self>>, evictable: u64) {
        core.policy.lru.touched(core, node, evictable);
    }

    fn shrink(core: &Core<Self>, nr: u64) -> Shrunk {
        core.policy.lru.shrink(core, nr, |node, left| {
            node.try_change(|tree| {
                let mut visited = 0;
                let mut victims = Vec::new();
                if tree.evictable() > 0 {
                    for (lblk, _, evictable) in tree.slots_from(0) {
                        visited += 1;
                        if evictable {
                            victims.push(lblk);
                            if victims.len() as u64 == left {
                                break;
                            }
                        }
                    }
                }
                for lblk in &victims {
                    tree.take(*lblk);
                }
                (victims.len() as u64, visited, ())
            })
            .map_or(Shrunk::default(), |(done, ())| done)
        })
    }
}
