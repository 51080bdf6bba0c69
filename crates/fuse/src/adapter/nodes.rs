//! The inodes that the kernel knows, and how often it was told of each.
//!
//! Main types: [`Nodes`]. A nodeid is the inode's number, except that the directory shown as the root (inode 2, unless
//! a subdirectory was asked for) is nodeid 1, as the protocol wants it; inode 1 (bad blocks) has no name and so no
//! nodeid.
//!
//! As long as an entry is here, it holds an [`InodeRef`]: an unlinked inode keeps its content, and its number is not
//! given to another, until the kernel has forgotten all that it was told.
//!
//! # Locking
//! One leaf lock per shard (`fuse nodes`, 150). References are dropped outside of it.

use extant_base::hash::{HashMap, shard_of};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::InodeRef;
use extant_ondisk::InodeNr;

use crate::abi::ROOT_ID;

static CLASS: LockClass = LockClass::new("fuse nodes", 150);
const SHARD_BITS: u32 = 6;

struct Node {
    inode: InodeRef,
    /// How often the kernel was told of it and has not forgotten.
    lookups: u64,
}

type Shard = HashMap<u64, Node>;

/// On its own cache line.
#[repr(align(64))]
struct Slot(Mutex<Shard>);

pub(super) struct Nodes {
    shards: Vec<Slot>,
    root: InodeNr,
}

impl Nodes {
    /// The kernel knows `root` from the beginning.
    pub(super) fn new(root: InodeRef) -> Nodes {
        let shards = (0..1 << SHARD_BITS).map(|_| Slot(Mutex::new(&CLASS, Shard::default()))).collect();
        let nodes = Nodes { shards, root: root.ino };
        nodes.add(ROOT_ID, root);
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

    /// The inode that a nodeid can only mean.
    pub(super) fn ino_of(&self, nodeid: u64) -> Option<InodeNr> {
        if nodeid == ROOT_ID { Some(self.root) } else { u32::try_from(nodeid).ok().map(InodeNr) }
    }

    fn shard(&self, nodeid: u64) -> &Mutex<Shard> {
        &self.shards[shard_of(nodeid, SHARD_BITS)].0
    }

    pub(super) fn get(&self, nodeid: u64) -> Option<InodeRef> {
        self.shard(nodeid).lock().get(&nodeid).map(|n| n.inode.clone())
    }

    /// The kernel is about to be told of `inode`, which `nodeid` names.
    pub(super) fn add(&self, nodeid: u64, inode: InodeRef) {
        let mut inode = Some(inode);
        let mut shard = self.shard(nodeid).lock();
        let node =
            shard.entry(nodeid).or_insert_with(|| Node { inode: inode.take().expect("not taken yet"), lookups: 0 });
        node.lookups += 1;
        drop(shard);
        drop(inode);
    }

    /// The kernel forgets `count` of what it was told. The root stays.
    pub(super) fn forget(&self, nodeid: u64, count: u64) {
        if nodeid == ROOT_ID {
            return;
        }
        let gone = {
            let mut shard = self.shard(nodeid).lock();
            let Some(node) = shard.get_mut(&nodeid) else { return };
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups > 0 {
                return;
            }
            shard.remove(&nodeid)
        };
        drop(gone);
    }

    /// Drops everything, at the end of the mount.
    pub(super) fn clear(&self) {
        for slot in &self.shards {
            let gone = std::mem::take(&mut *slot.0.lock());
            drop(gone);
        }
    }

    /// Inodes that the kernel knows, the root included, and how often it was told of them (the root not counted).
    pub(super) fn counts(&self) -> (usize, u64) {
        self.shards.iter().fold((0, 0), |(inodes, lookups), slot| {
            let shard = slot.0.lock();
            let told = |(id, n): (&u64, &Node)| if *id == ROOT_ID { 0 } else { n.lookups };
            (inodes + shard.len(), lookups + shard.iter().map(told).sum::<u64>())
        })
    }
}
