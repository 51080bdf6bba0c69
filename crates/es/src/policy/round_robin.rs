//! Linux 3.19 and later (`__es_shrink`, `es_reclaim_extents`, `es_do_reclaim_extents`, fs/ext4/extents_status.c). The
//! inodes have turns, each has a cursor, every visited entry is charged to the budget, and entries that were looked up
//! get a second chance.
//!
//! Because visits are charged, a call does a limited amount of work even among delayed entries. Because the next call
//! continues at the cursor, it does not visit the same entries again. The disadvantage is that a call may free nothing.
//!
//! # Locking
//! `s_es_lock`, rank 62, is held to pick the next inode, but not during evictions.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use extant_base::sync::{LockClass, Mutex};

use super::EsPolicy;
use crate::core::{Core, Node, Shrunk};
use crate::tree::{Entries, StatusTree};

static LIST_CLASS: LockClass = LockClass::new("s_es_lock", 62);

pub(crate) struct RoundRobin {
    inodes: Mutex<VecDeque<Weak<Node<RoundRobin>>>>,
}

impl Default for RoundRobin {
    fn default() -> Self {
        RoundRobin { inodes: Mutex::new(&LIST_CLASS, VecDeque::new()) }
    }
}

/// The policy's state for each inode.
#[derive(Default)]
pub(crate) struct Turn {
    listed: AtomicBool,
    /// The position where the last scan stopped (Linux: `i_es_shrink_lblk`).
    cursor: AtomicU32,
}

/// Visits at most `budget` entries from the cursor on, and wraps around at most once. Frees the evictable ones that
/// were not looked up since the last visit. Returns `None` if the inode is busy.
fn reclaim(node: &Node<RoundRobin>, budget: u64) -> Option<Shrunk> {
    node.try_change(|tree| {
        if tree.evictable() == 0 {
            return (0, 0, ());
        }
        let start = node.per_inode.cursor.load(Ordering::Relaxed);
        let (mut visited, mut next) = (0, 0);
        let mut victims = Vec::new();
        let first_half = tree.slots_from(start);
        let second_half = tree.slots_from(0).take_while(|slot| slot.0 < start);
        for (lblk, slot, evictable) in first_half.chain(second_half) {
            if visited == budget {
                next = lblk;
                break;
            }
            visited += 1;
            if evictable && !slot.referenced.swap(false, Ordering::Relaxed) {
                victims.push(lblk);
            }
        }
        node.per_inode.cursor.store(next, Ordering::Relaxed);
        for lblk in &victims {
            tree.take(*lblk);
        }
        (victims.len() as u64, visited, ())
    })
    .map(|(done, ())| done)
}

impl EsPolicy for RoundRobin {
    type Tree = StatusTree<()>;
    type PerInode = Turn;

    fn touched(core: &Core<Self>, node: &Arc<Node<Self>>, evictable: u64) {
        if evictable == 0 || node.per_inode.listed.load(Ordering::Relaxed) {
            return;
        }
        let mut inodes = core.policy.inodes.lock();
        if !node.per_inode.listed.swap(true, Ordering::Relaxed) {
            inodes.push_back(Arc::downgrade(node));
        }
    }

    fn shrink(core: &Core<Self>, nr: u64) -> Shrunk {
        let mut done = Shrunk::default();
        for _walk in 0..2 {
            let mut busy = false;
            let mut turns = core.policy.inodes.lock().len();
            while done.visited < nr && turns > 0 {
                turns -= 1;
                let Some(weak) = core.policy.inodes.lock().pop_front() else { break };
                let Some(node) = weak.upgrade() else { continue };
                match reclaim(&node, nr - done.visited) {
                    Some(shrunk) => done += shrunk,
                    None => busy = true,
                }
                let mut inodes = core.policy.inodes.lock();
                // An inode without evictable entries is removed from the list; its next access puts it back. It is
                // marked before the check, so a concurrent insertion is either seen here or puts the inode back itself.
                node.per_inode.listed.store(false, Ordering::Relaxed);
                let stays = node.tree.try_read().is_none_or(|tree| tree.evictable() > 0);
                if stays && !node.per_inode.listed.swap(true, Ordering::Relaxed) {
                    inodes.push_back(weak);
                }
            }
            // As in Linux, there is another walk only if nothing was freed and inodes were busy.
            if done.freed > 0 || !busy {
                break;
            }
        }
        done
    }
}
#[cfg(test)]
mod tests {
    use extant_base::clock::Clock;
    use extant_base::sync::Waiter;
    use extant_base::task;
    use extant_ondisk::{BlockNr, InodeNr};

    use super::*;
    use crate::EsState;

    fn written(node: &Arc<Node<RoundRobin>>, entries: u32) {
        for n in 0..entries {
            node.insert(2 * n, 1, EsState::Written(BlockNr(1_000 + 3 * u64::from(n))));
            node.lookup(2 * n);
        }
    }

    /// As in Linux (`__es_shrink`). The first walk only removes the marks of lookups.
    #[test]
    fn a_call_that_frees_nothing_and_meets_a_busy_inode_walks_again() {
        let core = Core::<RoundRobin>::new(Clock::virtual_at(0), None);
        let (idle, busy) = (Node::new(&core, InodeNr(12)), Node::new(&core, InodeNr(13)));
        written(&idle, 5);
        written(&busy, 7);
        let (held, release) = (Waiter::new(), Waiter::new());
        let holder = {
            let (held, release) = (held.clone(), release.clone());
            task::spawn("holder", move || {
                let _reads = busy.tree.read();
                held.set(());
                release.wait();
            })
            .expect("thread")
        };
        held.wait();
        let done = core.shrink(100);
        release.set(());
        holder.join().expect("joined");
        assert_eq!((done.freed, done.visited), (5, 10));
    }
}
