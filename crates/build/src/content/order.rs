//! The order in which a listing visits the inodes of a tree.
//!
//! Main type: [`Order`]. If the file system has directory indexes, Linux lists every directory by the hashes of its
//! names, even one of a single block, which has no index (`is_dx_dir`, fs/ext4/dir.c). Otherwise it lists them in the
//! order of their blocks. find(1) and tar(1) process names in that order, and descend into a directory when they meet
//! it. If inodes and data have the same order, these programs read forwards.
//!
//! # Locking
//! None.

use extant_ondisk::htree::Hasher;

use crate::tree::{Body, Id, Tree};

/// The number that stands for no place.
const NONE: u32 = u32::MAX;

/// The inodes of a tree in the order of a listing. Only lost+found is an exception: it is first, after the root,
/// because mke2fs gives it a fixed number.
pub(super) struct Order {
    hasher: Option<Hasher>,
    ids: Vec<Id>,
    /// The index of each inode in `ids`.
    places: Vec<u32>,
}

impl Order {
    /// The order of a tree in a file system with this hash; `None` if it has no indexes.
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

    /// Appends an inode when its first name is met.
    fn meet(&mut self, id: Id) {
        if self.places[id.0 as usize] == NONE {
            self.places[id.0 as usize] = self.ids.len() as u32;
            self.ids.push(id);
        }
    }

    /// Whether a file system with this hash has the same order.
    pub fn is_of(&self, hasher: Option<Hasher>) -> bool {
        self.hasher == hasher
    }

    /// All inodes, in the order.
    pub fn ids(&self) -> &[Id] {
        &self.ids
    }

    /// The index of an inode in [`Order::ids`].
    pub fn place(&self, id: Id) -> u32 {
        self.places[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use extant_ondisk::htree::HashVersion;

    use super::*;
    use crate::tree::{Attributes, Builder, Options};

    /// The first names in the order, without lost+found.
    fn listed(hasher: Option<Hasher>) -> Vec<String> {
        let mut builder = Builder::new(Options::default());
        for path in ["b/below/x", "b/y", "a", "c"] {
            builder.file(path.as_bytes(), Attributes::default(), 0, None, 0).unwrap();
        }
        builder.hard_link(b"b/z", b"b/y").unwrap();
        let mut tree = builder.finish().unwrap();
        super::super::add_lost_found(&mut tree).unwrap();
        let lost_found = tree.entries(Id(0)).find(|(name, _)| *name == b"lost+found").unwrap().1;
        let order = Order::new(&tree, lost_found, hasher);
        assert_eq!(order.ids()[..2], [Id(0), lost_found]);
        for (place, id) in (0..).zip(order.ids()) {
            assert_eq!(order.place(*id), place);
        }
        assert_eq!(order.ids().len(), tree.len(), "an inode with two names counts once");
        order.ids()[2..].iter().map(|id| tree.path(*id)).collect()
    }

    #[test]
    fn a_directory_is_followed_by_the_entries_below_it() {
        assert_eq!(listed(None), ["/a", "/b", "/b/below", "/b/below/x", "/b/y", "/c"]);
    }

    #[test]
    fn names_are_listed_by_hash_where_there_are_indexes() {
        let hasher = Hasher::new(HashVersion::HalfMd4, [1, 2, 3, 4]);
        let mut top = ["/a", "/b", "/c"];
        top.sort_by_key(|path| hasher.hash(&path.as_bytes()[1..]));
        let mut found = listed(Some(hasher));
        found.retain(|path| path.matches('/').count() == 1);
        assert_eq!(found, top);
        assert_ne!(found, ["/a", "/b", "/c"], "another order than that of names");
    }
}
