//! Hard links to names that are added later.
//!
//! # Locking
//! None.

use super::{Builder, PENDING, ROOT, error_at};
use crate::Result;
use crate::error::shown;

impl Builder {
    /// Finds the targets of hard links to later names.
    ///
    /// # Errors
    /// A target does not exist, or is a directory, or a link leads to itself through others.
    pub fn settle(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let mut reached = Reached::new(self);
        let mut found: Vec<Option<u32>> = vec![None; pending.len()];
        // The chain that is being followed.
        let mut chain: Vec<u32> = Vec::new();
        let mut in_chain = vec![false; pending.len()];
        for first in 0..pending.len() as u32 {
            let link = &self.links[pending[first as usize].link as usize];
            // The name, or a directory above it, has been replaced since.
            if link.node != PENDING | first || !reached.is_reached(self, link.parent) {
                continue;
            }
            let mut at = first;
            let node = loop {
                let link = &pending[at as usize];
                if let Some(node) = found[at as usize] {
                    break node;
                }
                let wrong = |why: String| error_at(link.position, &link.path, why);
                if std::mem::replace(&mut in_chain[at as usize], true) {
                    return Err(wrong("a hard link that leads back to itself".into()));
                }
                chain.push(at);
                let target = shown(&link.target);
                let node = self
                    .lookup(&link.target)
                    .map_err(|why| wrong(format!("a hard link to {target}: {why}")))?
                    .ok_or_else(|| wrong(format!("a hard link to {target}, which is not there")))?;
                if node & PENDING != 0 {
                    at = node & !PENDING;
                } else if self.is_directory(node) {
                    return Err(wrong(format!("a hard link to {target}, which is a directory")));
                } else {
                    break node;
                }
            };
            for link in chain.drain(..) {
                found[link as usize] = Some(node);
                in_chain[link as usize] = false;
            }
        }
        for (pending, (number, node)) in pending.iter().zip((0u32..).zip(found)) {
            let link = &mut self.links[pending.link as usize];
            if let Some(node) = node.filter(|_| link.node == PENDING | number) {
                link.node = node;
            }
        }
        Ok(())
    }
}

/// The directories that can be reached.
struct Reached {
    /// The state of each directory, by its node.
    directories: Vec<DirectoryState>,
    /// The directories of the current climb.
    climbed: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DirectoryState {
    Reached,
    NotReached,
    /// Reachable if its parent is.
    Entered,
}

impl Reached {
    fn new(builder: &Builder) -> Reached {
        let mut directories = vec![DirectoryState::NotReached; builder.nodes.len()];
        for link in &builder.index {
            let node = builder.links[*link as usize].node;
            if builder.is_directory(node) {
                directories[node as usize] = DirectoryState::Entered;
            }
        }
        directories[ROOT as usize] = DirectoryState::Reached;
        Reached { directories, climbed: Vec::new() }
    }

    fn is_reached(&mut self, builder: &Builder, directory: u32) -> bool {
        let mut at = directory;
        while self.directories[at as usize] == DirectoryState::Entered {
            self.climbed.push(at);
            at = builder.parent(at);
        }
        let known = self.directories[at as usize];
        for below in self.climbed.drain(..) {
            self.directories[below as usize] = known;
        }
        known == DirectoryState::Reached
    }
}
