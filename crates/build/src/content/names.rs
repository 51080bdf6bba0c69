//! Queries of a tree that only its planner needs.
//!
//! # Locking
//! None.

use crate::error::shown;
use crate::tree::{Body, Id, Tree};

impl Tree {
    /// How many sets of attributes there are.
    pub(super) fn xattr_sets(&self) -> usize {
        self.xattrs.len()
    }

    /// The first path of an inode, for messages. It is found by a search.
    pub(super) fn path(&self, id: Id) -> String {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut id = id;
        while id != Id(0) {
            let Some(place) = self.entries.iter().position(|(_, other)| *other == id) else { break };
            names.push(self.entry(place as u32).0);
            let has = |directory: &Id| match &self.node(*directory).body {
                Body::Directory { entries, .. } => entries.contains(&(place as u32)),
                _ => false,
            };
            let Some(parent) = (0..self.len() as u32).map(Id).find(has) else { break };
            id = parent;
        }
        names.push(b"");
        names.reverse();
        if names.len() == 1 { "/".into() } else { shown(&names.join(&b'/')) }
    }
}
