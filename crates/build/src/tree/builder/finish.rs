//! The end of building: owners, the order of names, the numbers of inodes.
//!
//! # Locking
//! None.

use extant_ondisk::inode::InodeFlags;
use extant_ondisk::time::Timestamp;

use super::super::{Body, Id, Node, Tree};
use super::{Builder, ROOT};
use crate::error::shown;
use crate::{Error, Result};

impl Builder {
    /// The tree.
    ///
    /// # Errors
    /// As [`Builder::settle`]; a path in the owners' file does not exist.
    pub fn finish(mut self) -> Result<Tree> {
        self.settle()?;
        self.apply_owners()?;
        let order = self.order();
        Ok(self.laid_out(&order))
    }

    /// The names in use, directory by directory: the index of each directory's first name, which has one more element
    /// than there are nodes, and the numbers of links, with names ascending.
    fn order(&mut self) -> (Vec<u32>, Vec<u32>) {
        let mut starts = vec![0u32; self.nodes.len() + 1];
        for link in &self.index {
            starts[self.links[*link as usize].parent as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut sorted = vec![0; self.index.len()];
        let mut next = starts.clone();
        let mut live: Vec<u32> = std::mem::take(&mut self.index).into_iter().collect();
        // By number first, the order in which they were added: the sort by name below usually finds them almost sorted.
        live.sort_unstable();
        for link in live {
            let slot = &mut next[self.links[link as usize].parent as usize];
            sorted[*slot as usize] = link;
            *slot += 1;
        }
        for range in starts.windows(2) {
            sorted[range[0] as usize..range[1] as usize].sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
        }
        (starts, sorted)
    }

    /// Numbers the reachable nodes and moves each to its place.
    fn laid_out(mut self, (starts, sorted): &(Vec<u32>, Vec<u32>)) -> Tree {
        const NONE: u32 = u32::MAX;
        let mut numbers = vec![NONE; self.nodes.len()];
        numbers[ROOT as usize] = 0;
        // The old numbers of nodes, in the new order.
        let mut nodes = vec![ROOT];
        let mut entries = Vec::with_capacity(sorted.len());
        let mut names = Vec::new();
        let mut waiting = vec![ROOT];
        while let Some(dir) = waiting.pop() {
            let begin = entries.len() as u32;
            let below = waiting.len();
            for link in &sorted[starts[dir as usize] as usize..starts[dir as usize + 1] as usize] {
                let node = self.links[*link as usize].node;
                names.extend_from_slice(self.name(*link));
                if numbers[node as usize] == NONE {
                    numbers[node as usize] = nodes.len() as u32;
                    nodes.push(node);
                }
                entries.push((names.len() as u64, Id(numbers[node as usize])));
                let there = &mut self.nodes[node as usize];
                there.links += 1;
                if let Body::Directory { parent, .. } = &mut there.body {
                    *parent = Id(numbers[dir as usize]);
                    waiting.push(node);
                    self.nodes[dir as usize].links += 1;
                }
            }
            waiting[below..].reverse();
            // Its `.` is a name, in addition to its entry in the parent; the root has `..` instead of that entry.
            let there = &mut self.nodes[dir as usize];
            there.links += if dir == ROOT { 2 } else { 1 };
            if let Body::Directory { entries: range, .. } = &mut there.body {
                *range = begin..entries.len() as u32;
            }
        }
        drop((numbers, std::mem::take(&mut self.names), std::mem::take(&mut self.links)));
        let (mut xattrs, mut data) = (Vec::new(), Vec::new());
        let mut sets = vec![NONE; self.xattrs.len()];
        let mut moved = Vec::with_capacity(nodes.len());
        for old in nodes {
            let mut node = std::mem::replace(&mut self.nodes[old as usize], nothing());
            if let Some(set) = &mut node.xattrs {
                let number = &mut sets[*set as usize];
                if *number == NONE {
                    *number = xattrs.len() as u32;
                    xattrs.push(std::mem::take(&mut self.xattrs[*set as usize]));
                }
                *set = *number;
            }
            if let Body::File { sparse: Some(sparse), .. } = &mut node.body {
                data.push(std::mem::take(&mut self.data[*sparse as usize]));
                *sparse = data.len() as u32 - 1;
            }
            moved.push(node);
        }
        Tree { nodes: moved, entries, names, xattrs, data }
    }

    /// Applies the lines of the owners' file with paths, in their order.
    fn apply_owners(&mut self) -> Result<()> {
        let owners = std::mem::take(&mut self.options.owners);
        if owners.paths.is_empty() {
            return Ok(());
        }
        let mut below: Option<Vec<Vec<u32>>> = None;
        for line in &owners.paths {
            let node = self.lookup(&line.path).ok().flatten();
            let node = node.ok_or_else(|| Error::Options(format!("{}: no entry {}", line.place, shown(&line.path))))?;
            let mut waiting = vec![node];
            while let Some(node) = waiting.pop() {
                let there = &mut self.nodes[node as usize];
                there.uid = line.uid.unwrap_or(there.uid);
                there.gid = line.gid.unwrap_or(there.gid);
                if line.below && self.is_directory(node) {
                    let below = below.get_or_insert_with(|| {
                        let mut below = vec![Vec::new(); self.nodes.len()];
                        for link in &self.index {
                            let link = &self.links[*link as usize];
                            below[link.parent as usize].push(link.node);
                        }
                        below
                    });
                    waiting.extend_from_slice(&below[node as usize]);
                }
            }
        }
        Ok(())
    }
}

/// A node that has been moved away.
fn nothing() -> Node {
    let (flags, mtime) = (InodeFlags::empty(), Timestamp::default());
    Node { mode: 0, uid: 0, gid: 0, mtime, flags, links: 0, xattrs: None, body: Body::Special }
}
