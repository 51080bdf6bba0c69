//! The order in which a listing meets the inodes of a tree.
//!
//! Main type: [`Order`]. If the file system has directory indexes, Linux lists every directory by the hashes of its
//! names, also one of a single block, which has no index (`is_dx_dir`, fs/ext4/dir.c). Otherwise it lists them as they
//! lie. find(1) and tar(1) take names in that order, and go down into a directory where they meet it. Where inodes and
//! data have the same order, they read forwards.
//!
//! # Locking
//! None.

use extant_ondisk::htree::Hasher;

use crate::tree::{Body, Id, Tree};

/// Stands for no place.
const NONE: u32 = u32::MAX;

/// The inodes of a tree in the order of a listing, but for lost+found, which comes behind the root: mke2fs gives it a
/// number of its own.
pub(super) struct Order {
    hasher: Option<Hasher>,
    ids: Vec<Id>,
    /// Where in `ids` each inode is.
    places: Vec<u32>,
}

impl Order {
    /// Of a tree in a file system that hashes names so; `None`: it has no indexes.
    pub fn new(tree: &Tree, lost_found: Id, hasher: Option<Hasher>) -> Order {
        let mut order = Order { hasher, ids: Vec::with_capacity(tree.len()), places: vec![NONE; tree.len()] };
        order.meet(Id(0));
        order.meet(lost_found);
        let mut waiting = vec![Id(0)];
        let mut listed = Vec::new();
        while let Some(id) = waiting.pop() {
            order.meet(id);
            if let Body::Directory { .. } = tree.node(id).body {
                let hash = |name| hasher.map(|hasher| hasher.hash(name));
                listed.extend((0u32..).zip(tree.entries(id)).map(|(number, (name, id))| (hash(name), number, id)));
                listed.sort_unstable_by_key(|(hash, number, _)| (*hash, *number));
                waiting.extend(listed.drain(..).rev().map(|(_, _, id)| id));
            }
        }
        order
    }

    /// Counts an inode when its first name is met.
    fn meet(&mut self, id: Id) {
        if self.places[id.0 as usize] == NONE {
            self.places[id.0 as usize] = self.ids.len() as u32;
            self.ids.push(id);
        }
    }

    /// Whether a file system that hashes names so has the same order.
    pub fn is_of(&self, hasher: Option<Hasher>) -> bool {
        self.hasher == hasher
    }

    /// All inodes.
    pub fn ids(&self) -> &[Id] {
        &self.ids
    }

    /// Where in [`Order::ids`] an inode is.
    pub fn place(&self, id: Id) -> u32 {
        self.places[id.0 as usize]
    }
}
