//! The inodes that the kernel knows, and how many references it has to each.
//!
//! Main types: [`Nodes`], [`RequestInode`] (an inode while a request works on it). A nodeid is the inode's number, with
//! one exception: the directory shown as the root (inode 2, unless the mount shows a subdirectory) is nodeid 1, as the
//! protocol requires. Inode 1 (bad blocks) has no name and so no nodeid.
//!
//! A known inode costs number, generation and count, 48 bytes at most. The inode itself may leave memory: the next
//! request reads it again, and the generation distinguishes it from others that have had its number. An entry holds an
//! [`InodeRef`] while dropping it would lose something:
//! - The inode has no name. It keeps its content, and its number is not given to another inode, until the kernel has
//!   forgotten it. The operation that takes the last name asks for the reference ([`Nodes::keep_nameless`]).
//! - It has dirty data, or has lost writes, which every open file and process must report.
//! - It has preallocated blocks, which the next of many small writes will use.
//!
//! A request stores the reference when it ends. When there are many references, each operation that adds one examines
//! the next few, in the order of inode numbers. It drops references that are no longer needed, except those used since
//! the last round. The preallocated blocks of these inodes become free then.
//!
//! # Locking
//! One leaf lock per shard (`fuse nodes`, 150). References are dropped and inodes are examined outside of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as HeldEntry;
use std::ops::{Bound, Deref};

use extant_base::hash::{HashMap, shard_of};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::InodeRef;
use extant_ondisk::InodeNr;

use crate::abi::ROOT_ID;

static CLASS: LockClass = LockClass::new("fuse nodes", 150);
const SHARD_BITS: u32 = 6;
const ROOT: u32 = ROOT_ID as u32;
/// How many held inodes one operation examines when there are many.
const LOOKS: u32 = 2;
/// A table with more than this many times the room that it needs is shrunk.
const SPARSE: usize = 4;
/// Smaller tables do not shrink.
const TABLE_LEAST: usize = 64;

/// Packed: after a walk through a tree there may be a million of these.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
struct KnownNode {
    generation: u32,
    /// References that the kernel has.
    lookups: u64,
}

struct HeldNode {
    inode: InodeRef,
    /// Whether a request has used it since the last round.
    used: bool,
}

#[derive(Default)]
struct Shard {
    known: HashMap<u32, KnownNode>,
    /// The held inodes among `known`.
    held: BTreeMap<u32, HeldNode>,
    /// The inode that the last round reached.
    hand: u32,
}

impl Shard {
    fn is_known(&self, id: u32, generation: u32) -> bool {
        self.known.get(&id).is_some_and(|known| known.generation == generation)
    }

    fn hold(&mut self, id: u32, inode: &InodeRef) {
        match self.held.entry(id) {
            HeldEntry::Occupied(mut held) => held.get_mut().used = true,
            HeldEntry::Vacant(place) => drop(place.insert(HeldNode { inode: inode.clone(), used: true })),
        }
    }

    /// The next held inode, if no request has used it since the last round.
    fn turn(&mut self) -> Option<(u32, InodeRef)> {
        let behind = (Bound::Excluded(self.hand), Bound::Unbounded);
        let next = self.held.range(behind).next().or_else(|| self.held.first_key_value());
        let (id, was_used) = next.map(|(id, held)| (*id, held.used))?;
        self.hand = id;
        let held = self.held.get_mut(&id)?;
        held.used = false;
        (!was_used && id != ROOT).then(|| (id, held.inode.clone()))
    }

    /// Drops an inode that [`Shard::turn`] returned, unless a request has used it meanwhile.
    fn let_go(&mut self, id: u32) -> Option<HeldNode> {
        if self.held.get(&id).is_some_and(|held| held.used) { None } else { self.held.remove(&id) }
    }
}

/// On its own cache line.
#[repr(align(64))]
struct Slot(Mutex<Shard>);

/// The state of a nodeid.
pub(super) enum Node {
    Held(InodeRef),
    /// Not in memory; to be read by its number.
    Known {
        generation: u32,
    },
}

pub(super) struct Nodes {
    shards: Vec<Slot>,
    root: InodeNr,
}

impl Nodes {
    /// The kernel knows `root` from the beginning, and never forgets it.
    pub(super) fn new(root: &InodeRef) -> Nodes {
        let shards = (0..1 << SHARD_BITS).map(|_| Slot(Mutex::new(&CLASS, Shard::default()))).collect();
        let nodes = Nodes { shards, root: root.ino };
        let mut shard = nodes.shard(ROOT).lock();
        shard.known.insert(ROOT, KnownNode { generation: root.generation, lookups: 1 });
        shard.hold(ROOT, root);
        drop(shard);
        nodes
    }

    /// The nodeid of an inode; `None` for inode 1.
    pub(super) fn nodeid_of(&self, ino: InodeNr) -> Option<u64> {
        match ino {
            ino if ino == self.root => Some(ROOT_ID),
            InodeNr(1) => None,
            InodeNr(n) => Some(u64::from(n)),
        }
    }

    /// The only inode that a nodeid can refer to.
    pub(super) fn ino_of(&self, nodeid: u64) -> Option<InodeNr> {
        if nodeid == ROOT_ID { Some(self.root) } else { u32::try_from(nodeid).ok().map(InodeNr) }
    }

    fn shard(&self, id: u32) -> &Mutex<Shard> {
        &self.shards[shard_of(u64::from(id), SHARD_BITS)].0
    }

    pub(super) fn get(&self, nodeid: u64) -> Option<Node> {
        let id = u32::try_from(nodeid).ok()?;
        let mut shard = self.shard(id).lock();
        if let Some(held) = shard.held.get_mut(&id) {
            held.used = true;
            return Some(Node::Held(held.inode.clone()));
        }
        shard.known.get(&id).map(|known| Node::Known { generation: known.generation })
    }

    /// Counts a reference to `inode`, before the reply that names it as `nodeid`. `most`: how many inodes may be held
    /// in total.
    pub(super) fn add(&self, nodeid: u64, inode: &InodeRef, most: usize) {
        let Ok(id) = u32::try_from(nodeid) else { return };
        self.tell(id, inode.generation);
        // Only after the inode is known: an operation that removes its last name then finds it here, and holds it.
        self.keep(nodeid, inode, most);
    }

    fn tell(&self, id: u32, generation: u32) {
        let mut shard = self.shard(id).lock();
        let known = shard.known.entry(id).or_insert(KnownNode { generation, lookups: 0 });
        known.lookups += 1;
        // The number belongs to another inode by now. The kernel's references to the former one have the same nodeid,
        // and FORGET drops them together.
        let former = if known.generation == generation { None } else { shard.held.remove(&id) };
        if let Some(known) = shard.known.get_mut(&id) {
            known.generation = generation;
        }
        drop(shard);
        drop(former);
    }

    /// Ends a request that worked on `inode`: holds the inode if its state needs that.
    fn keep(&self, nodeid: u64, inode: &InodeRef, most: usize) {
        let Ok(id) = u32::try_from(nodeid) else { return };
        let keeps = inode.needs_user() || inode.has_preallocations();
        let mut shard = self.shard(id).lock();
        if keeps && shard.is_known(id, inode.generation) {
            shard.hold(id, inode);
        }
        let many = shard.held.len() > most >> SHARD_BITS;
        drop(shard);
        for _ in 0..if many { LOOKS } else { 0 } {
            self.look(id);
        }
    }

    /// Drops the reference to the next inode of this one's shard, if nothing needs it.
    fn look(&self, id: u32) {
        let shard = self.shard(id);
        // A separate statement, so that the lock is released at its end.
        let next = shard.lock().turn();
        if let Some((id, inode)) = next
            && !inode.needs_user()
        {
            let gone = shard.lock().let_go(id);
            drop(gone);
        }
    }

    /// Holds an inode that loses its last name, if the kernel knows it. The caller holds the inode and its locks.
    pub(super) fn keep_nameless(&self, inode: &InodeRef) {
        let Some(Ok(id)) = self.nodeid_of(inode.ino).map(u32::try_from) else { return };
        let mut shard = self.shard(id).lock();
        if shard.is_known(id, inode.generation) {
            shard.hold(id, inode);
        }
    }

    /// Drops `count` of the kernel's references, or all if there are fewer. The root stays.
    pub(super) fn forget(&self, nodeid: u64, count: u64) {
        let Ok(id) = u32::try_from(nodeid) else { return };
        if id == ROOT {
            return;
        }
        let gone = {
            let mut shard = self.shard(id).lock();
            let Some(known) = shard.known.get_mut(&id) else { return };
            known.lookups = known.lookups.saturating_sub(count);
            if known.lookups > 0 {
                return;
            }
            shard.known.remove(&id);
            let (len, room) = (shard.known.len(), shard.known.capacity());
            if room > TABLE_LEAST && len * SPARSE < room {
                shard.known.shrink_to(len * 2);
            }
            shard.held.remove(&id)
        };
        drop(gone);
    }

    /// Drops all references, at the end of the mount.
    pub(super) fn clear(&self) {
        for slot in &self.shards {
            let gone = std::mem::take(&mut *slot.0.lock());
            drop(gone);
        }
    }

    /// How many inodes the kernel knows, including the root, and how many references it has (excluding those to the
    /// root).
    pub(super) fn counts(&self) -> (usize, u64) {
        self.shards.iter().fold((0, 0), |(inodes, lookups), slot| {
            let shard = slot.0.lock();
            let told = |(id, known): (&u32, &KnownNode)| if *id == ROOT { 0 } else { known.lookups };
            (inodes + shard.known.len(), lookups + shard.known.iter().map(told).sum::<u64>())
        })
    }

    /// How many known inodes are held, including the root.
    pub(super) fn held(&self) -> usize {
        self.shards.iter().map(|slot| slot.0.lock().held.len()).sum()
    }
}

/// An inode that a request works on. When this is dropped, the inode is held for the kernel if its state needs that.
pub(super) struct RequestInode<'a> {
    pub(super) inode: InodeRef,
    pub(super) nodes: &'a Nodes,
    pub(super) nodeid: u64,
    /// As for [`Nodes::add`].
    pub(super) most: usize,
}

impl Deref for RequestInode<'_> {
    type Target = InodeRef;

    fn deref(&self) -> &InodeRef {
        &self.inode
    }
}

impl Drop for RequestInode<'_> {
    fn drop(&mut self) {
        self.nodes.keep(self.nodeid, &self.inode, self.most);
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
