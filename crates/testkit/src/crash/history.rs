//! The record of a workload: its operations and, after each, the acknowledged names, attributes and content.
//!
//! Main types: [`History`], [`Names`] (the namespace after an operation), [`Node`] (one inode and every change of its
//! content), [`Cut`] (a power cut). Operations are numbered from 1; state 0 is the image as made.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Index into [`History::nodes`].
pub type NodeId = u32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    File,
    Directory,
    Symlink,
    /// A character device 0:0, which a rename has left under the old name.
    Whiteout,
}

/// A change of a file's content. Offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentChange {
    /// The pattern of (file, operation) was written.
    Write { from: u64, to: u64 },
    /// The range reads as zeros from now on. Its part `whole_from..whole_to` (whole blocks) is unmapped in the
    /// journal's order, the edges are zeroed like written data.
    Zero { from: u64, to: u64, whole_from: u64, whole_to: u64 },
    /// The size was set. The rest of the last block, to `zeroed_to`, is zeroed like written data, perhaps before the
    /// size is on the device.
    Size { to: u64, zeroed_to: u64 },
}

#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub op: usize,
    pub what: ContentChange,
}

/// One inode that the workload created.
#[derive(Clone, Debug)]
pub struct Node {
    pub ino: u32,
    pub generation: u32,
    pub kind: NodeKind,
    pub target: Option<Vec<u8>>,
    pub changes: Vec<Change>,
    /// (number of events at the acknowledgement, operation whose result has been durable since).
    pub durable: Vec<(usize, usize)>,
    /// Operations in which this file replaced another.
    pub replaced: Vec<usize>,
    /// The operation that created it, and the newest that changed its names or attributes.
    pub born: usize,
    pub touched: usize,
    pub size: u64,
}

/// The namespace: every path, and the user attributes of every inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub paths: BTreeMap<String, NodeId>,
    pub attrs: BTreeMap<NodeId, BTreeMap<Vec<u8>, Vec<u8>>>,
}

#[derive(Clone, Debug)]
pub struct Op {
    pub text: String,
    /// The number of events in the device's log before and after.
    pub start: usize,
    pub end: usize,
    /// The namespace afterwards.
    pub names: Arc<Names>,
}

/// A growth of the file system.
#[derive(Clone, Debug)]
pub struct Growth {
    /// The number of events in the device's log before, and at the acknowledgement.
    pub start: usize,
    pub end: usize,
    /// Blocks before, and after each step.
    pub sizes: Vec<u64>,
}

/// The namespace of operation `op` has been durable since `events` were in the log.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    pub events: usize,
    pub op: usize,
}

/// A power cut: the first `events` events happened; with `in_flight`, the next one was in progress.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub events: usize,
    pub in_flight: bool,
}

#[derive(Clone, Debug)]
pub struct History {
    /// The number of node 0 in [`crate::crash::pattern`]; the others follow.
    pub first: u32,
    pub ops: Vec<Op>,
    pub nodes: Vec<Node>,
    pub floors: Vec<Floor>,
    pub growths: Vec<Growth>,
}

impl Default for History {
    fn default() -> History {
        let first = Op { text: "the image as made".into(), start: 0, end: 0, names: Arc::default() };
        History { first: 0, ops: vec![first], nodes: Vec::new(), floors: Vec::new(), growths: Vec::new() }
    }
}

impl History {
    /// The newest operation of which a part can be on the device. An operation that was acknowledged without any
    /// request (such as an fsync that found nothing to write) counts.
    pub fn last_possible(&self, cut: Cut) -> usize {
        let n = cut.events + usize::from(cut.in_flight);
        self.ops.iter().skip(1).take_while(|o| o.start < n).count().max(self.names_floor(cut))
    }

    /// The newest operation whose namespace was acknowledged as durable before the cut.
    pub fn names_floor(&self, cut: Cut) -> usize {
        self.floors.iter().filter(|f| f.events <= cut.events).map(|f| f.op).max().unwrap_or(0)
    }

    /// The sizes that the file system can have after the cut, in blocks; none if it has never grown.
    pub fn sizes(&self, cut: Cut) -> Vec<u64> {
        let mut possible: Vec<u64> = self.growths.first().and_then(|g| g.sizes.first()).copied().into_iter().collect();
        for growth in self.growths.iter().take_while(|growth| growth.start <= cut.events) {
            match growth.sizes.last() {
                Some(last) if growth.end <= cut.events => possible = vec![*last],
                _ => possible.extend(&growth.sizes),
            }
        }
        possible
    }

    /// The newest operation on the node whose content was acknowledged as durable before the cut.
    pub fn content_floor(&self, node: NodeId, cut: Cut) -> Option<usize> {
        self.nodes[node as usize].durable.iter().filter(|(events, _)| *events <= cut.events).map(|(_, op)| *op).max()
    }

    /// The node with this identity.
    pub fn find(&self, ino: u32, generation: u32) -> Option<NodeId> {
        self.nodes.iter().rposition(|n| (n.ino, n.generation) == (ino, generation)).map(|i| i as NodeId)
    }

    /// The operations before and at `op`, for messages.
    pub fn around(&self, op: usize, before: usize) -> String {
        let from = op.saturating_sub(before);
        (from..(op + 3).min(self.ops.len()))
            .map(|i| format!("    op {i} [{}..{}] {}\n", self.ops[i].start, self.ops[i].end, self.ops[i].text))
            .collect()
    }
}

/// Splits a path into the path of its directory and the last name.
pub fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}
