//! The numbers of a tree's inodes.
//!
//! Main type: [`Numbers`]. The root is 2, and lost+found is the first inode that is not reserved, as with mke2fs. The
//! others follow in the order of a listing ([`Order`]), after the inodes of the skeleton.
//!
//! # Locking
//! None.

use extant_ondisk::InodeNr;
use extant_ondisk::htree::Hasher;
use extant_ondisk::inode::{FileType, InodeFlags};

use super::order::Order;
use crate::skeleton::Skeleton;
use crate::tree::{Body, Id, Node, Tree};
use crate::{Error, Result};

/// The directory where e2fsck puts inodes that have lost their names.
pub(super) const LOST_FOUND: &[u8] = b"lost+found";
/// Only root may access lost+found.
const LOST_FOUND_MODE: u16 = 0o040700;

/// The numbers of a tree's inodes.
pub(super) struct Numbers {
    order: Order,
    /// The number of lost+found.
    lost_found: InodeNr,
    /// The number of the inode after lost+found in the order.
    first: u32,
}

impl Numbers {
    /// The numbers of a tree with a lost+found, in a file system with this hash. `known` is an order of the same tree,
    /// which is reused if the hash is the same.
    ///
    /// # Errors
    /// The tree has no lost+found.
    pub fn new(skeleton: &Skeleton, tree: &Tree, hasher: Option<Hasher>, known: Option<Order>) -> Result<Numbers> {
        let found = lost_found(tree)?.ok_or_else(|| entry("lost+found", "is missing"))?;
        u32::try_from(tree.len()).map_err(|_| Error::Options("more inodes than can be numbered".into()))?;
        let known = known.filter(|order| order.is_of(hasher));
        let order = known.unwrap_or_else(|| Order::new(tree, found, hasher));
        Ok(Numbers { order, lost_found: skeleton.lost_found_ino(), first: skeleton.first_free_ino().0 })
    }

    /// The number of an inode.
    pub fn ino(&self, id: Id) -> InodeNr {
        match self.order.place(id) {
            0 => InodeNr::ROOT,
            1 => self.lost_found,
            place => InodeNr(self.first + place - 2),
        }
    }

    /// The inode with a number.
    pub fn id(&self, ino: InodeNr) -> Option<Id> {
        let place = match ino {
            InodeNr::ROOT => 0,
            ino if ino == self.lost_found => 1,
            InodeNr(n) => n.checked_sub(self.first)? + 2,
        };
        self.ids().get(place as usize).copied()
    }

    /// All inodes in the order of their numbers.
    pub fn ids(&self) -> &[Id] {
        self.order.ids()
    }

    /// The highest number.
    pub fn last(&self) -> u32 {
        // The root and lost+found have separate numbers.
        self.first + self.ids().len() as u32 - 3
    }

    /// Whether this is lost+found, which keeps empty blocks in reserve.
    pub fn is_lost_found(&self, id: Id) -> bool {
        self.order.place(id) == 1
    }

    /// The order, for another plan of the same tree.
    pub fn into_order(self) -> Order {
        self.order
    }
}

fn entry(entry: &str, why: &str) -> Error {
    Error::Entry { entry: entry.into(), why: why.into() }
}

/// The lost+found of a tree.
///
/// # Errors
/// It is not a directory.
fn lost_found(tree: &Tree) -> Result<Option<Id>> {
    let Some((_, id)) = tree.entries(Id(0)).find(|(name, _)| *name == LOST_FOUND) else { return Ok(None) };
    match tree.node(id).body {
        Body::Directory { .. } => Ok(Some(id)),
        _ => Err(entry("lost+found", "is not a directory, which e2fsck needs; give it another name")),
    }
}

/// Adds a lost+found to a tree that has none, as the last inode, with the time of the root.
///
/// # Errors
/// An entry with that name is not a directory.
pub(super) fn add_lost_found(tree: &mut Tree) -> Result<()> {
    if tree.is_empty() || lost_found(tree)?.is_some() {
        return Ok(());
    }
    let id = Id(tree.nodes.len() as u32);
    let Body::Directory { entries, .. } = &tree.nodes[0].body else {
        return Err(entry("/", "is not a directory"));
    };
    let (start, end) = (entries.start, entries.end);
    let before = tree.entries(Id(0)).take_while(|(name, _)| *name < LOST_FOUND).count() as u32;
    let at = (start + before) as usize;
    let name_at = at.checked_sub(1).map_or(0, |last| tree.entries[last].0);
    tree.names.splice(name_at as usize..name_at as usize, LOST_FOUND.iter().copied());
    for entry in &mut tree.entries[at..] {
        entry.0 += LOST_FOUND.len() as u64;
    }
    tree.entries.insert(at, (name_at + LOST_FOUND.len() as u64, id));
    for (index, node) in tree.nodes.iter_mut().enumerate() {
        if let Body::Directory { entries, .. } = &mut node.body {
            if index == 0 {
                *entries = start..end + 1;
            } else if entries.start >= end {
                *entries = entries.start + 1..entries.end + 1;
            }
        }
    }
    tree.nodes[0].links += 1;
    let entries = tree.entries.len() as u32;
    let mode = LOST_FOUND_MODE | FileType::Directory.mode_bits();
    let body = Body::Directory { entries: entries..entries, parent: Id(0) };
    let mtime = tree.nodes[0].mtime;
    let flags = InodeFlags::empty();
    tree.nodes.push(Node { mode, uid: 0, gid: 0, mtime, flags, links: 2, xattrs: None, body });
    Ok(())
}
