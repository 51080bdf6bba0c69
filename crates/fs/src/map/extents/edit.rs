//! Replaces entries of one leaf and updates the tree above: keys, splits, a higher or a lower root.
//!
//! Main types: [`Pieces`] (the new entries, merged where the rules allow), [`Edit`]. One primitive, [`Edit::replace`],
//! serves every level: it replaces the entries `range` of a node by `new`. It writes the node in place if the result
//! fits, splits the node (or moves the root's entries down) if it does not, and frees the node if it becomes empty. In
//! each case it updates the entry in the parent by the same primitive.
//!
//! Atomicity: the blocks for splits are allocated before the first change, so [`MapError::NoSpace`] leaves the tree
//! unchanged. After that an edit reads only the nodes of its path, which the store holds in memory.
//!
//! # Locking
//! The caller's map lock.

use std::ops::Range;

use extant_ondisk::extent::{DEPTH_MAX, Extent, Index, LOGICAL_END, NodeMut, NodeRef, RawEntry, len_max, raw_key};
use extant_ondisk::{BlockNr, LogicalBlock};

use super::path::{Path, root_node, verify_node, with_node};
use crate::map::{MapError, MapRoot, MapStore, NewNode};

/// The entry before the range, the left rest of the old entry, the new part in two pieces, and the right rest.
const PIECES_MAX: usize = 5;

/// Adjacent extents that are about to replace others, merged with each other and with their neighbours.
#[derive(Debug)]
pub(super) struct Pieces {
    buf: [RawEntry; PIECES_MAX],
    len: usize,
    last: Option<Extent>,
    /// The original entry before the range, as long as it may still merge.
    before: Option<Extent>,
    took_before: bool,
    took_next: bool,
}

impl Pieces {
    /// `before` is the leaf's entry before the range.
    pub fn new(before: Option<Extent>) -> Pieces {
        Pieces { buf: [[0; 12]; PIECES_MAX], len: 0, last: None, before, took_before: false, took_next: false }
    }

    /// Appends an extent within the length limit.
    pub fn push(&mut self, extent: Extent) {
        if let Some(merged) = self.last.and_then(|last| last.merged(&extent)) {
            self.set_last(merged);
        } else if let Some(merged) = self.before.take().and_then(|before| before.merged(&extent)) {
            self.took_before = true;
            self.append(merged);
        } else {
            self.append(extent);
        }
    }

    /// Appends an extent that may be too long for its new state; if so, it is split in two.
    pub fn push_long(&mut self, extent: Extent) {
        let cut = u64::from(extent.lblk.0) + u64::from(len_max(extent.unwritten));
        for part in [extent.clip(0, cut), extent.clip(cut, u64::MAX)].into_iter().flatten() {
            self.push(part);
        }
    }

    /// Merges the last extent with the leaf's entry after the range, if the rules allow.
    pub fn finish(&mut self, next: Option<Extent>) {
        let Some(next) = next else { return };
        if let Some(merged) = self.last.and_then(|last| last.merged(&next)) {
            self.took_next = true;
            self.set_last(merged);
        }
    }

    fn append(&mut self, extent: Extent) {
        debug_assert!(self.len < PIECES_MAX);
        self.buf[self.len] = extent.encode();
        self.len += 1;
        self.last = Some(extent);
    }

    fn set_last(&mut self, extent: Extent) {
        self.buf[self.len - 1] = extent.encode();
        self.last = Some(extent);
    }

    fn entries(&self) -> &[RawEntry] {
        &self.buf[..self.len]
    }
}

/// One change of a tree.
pub(super) struct Edit<'a, S: MapStore> {
    root: &'a mut MapRoot,
    store: &'a S,
    txn: &'a mut S::Txn,
    path: Path,
    /// Allocated blocks that no split has used so far.
    spare: Vec<BlockNr>,
    /// A node has shrunk, so the root may be able to absorb its only child.
    shrunk: bool,
}

impl<'a, S: MapStore> Edit<'a, S> {
    pub fn new(root: &'a mut MapRoot, store: &'a S, txn: &'a mut S::Txn, path: Path) -> Edit<'a, S> {
        Edit { root, store, txn, path, spare: Vec::new(), shrunk: false }
    }

    /// Replaces the leaf's entries `range`, and the neighbours that were merged, by `pieces`.
    pub fn replace_extents(self, range: Range<usize>, pieces: &Pieces, data: Option<BlockNr>) -> Result<(), S::Error> {
        let start = range.start - usize::from(pieces.took_before);
        let end = range.end + usize::from(pieces.took_next);
        self.replace_leaf(start..end, pieces.entries(), data)
    }

    /// Replaces the leaf's entries `range` by `new`. `data` is a block that `new` maps: a hint for the placement of
    /// new nodes.
    pub fn replace_leaf(
        mut self,
        range: Range<usize>,
        new: &[RawEntry],
        data: Option<BlockNr>,
    ) -> Result<(), S::Error> {
        let leaf = self.path.depth;
        self.reserve(leaf, range.len(), new.len(), data)?;
        self.replace(leaf, range, new)?;
        debug_assert!(self.spare.is_empty());
        if self.shrunk { self.collapse() } else { Ok(()) }
    }

    /// Removes the entry that the path takes at level `l`, with the subtree below it.
    pub fn drop_below(mut self, l: usize) -> Result<(), S::Error> {
        let pos = self.path.level(l).pos;
        self.replace(l, pos..pos + 1, &[])?;
        if self.shrunk { self.collapse() } else { Ok(()) }
    }

    /// The number of nodes to allocate if `added` entries replace `removed` entries of level `l`.
    fn nodes_needed(path: &Path, l: usize, removed: usize, added: usize) -> usize {
        let (mut removed, mut added) = (removed, added);
        let mut needed = 0;
        for level in (0..=l).rev().map(|l| path.level(l)) {
            if level.count - removed + added <= level.room {
                break;
            }
            needed += 1;
            (removed, added) = (1, 2);
        }
        needed
    }

    /// Allocates all nodes that the change needs, or none.
    fn reserve(&mut self, l: usize, removed: usize, added: usize, data: Option<BlockNr>) -> Result<(), S::Error> {
        let needed = Self::nodes_needed(&self.path, l, removed, added);
        if needed > l && self.path.depth == usize::from(DEPTH_MAX) {
            return Err(self.root.corrupt(None, "the tree is full at its greatest depth"));
        }
        let node = NewNode { pointers: None, parent: self.path.leaf().block, data };
        while self.spare.len() < needed {
            match self.store.allocate_meta(self.txn, node) {
                Ok(block) => self.spare.push(block),
                Err(e) => {
                    for block in self.spare.drain(..) {
                        self.store.free_meta(self.txn, block)?;
                    }
                    return Err(e);
                }
            }
        }
        self.root.blocks_delta += needed as i64 * self.node_blocks();
        Ok(())
    }

    /// The number of blocks that a node takes.
    fn node_blocks(&self) -> i64 {
        self.store.cluster_size().blocks().into()
    }

    fn broken(&self, l: usize) -> S::Error {
        self.root.corrupt(self.path.level(l).block, "the node changed under its own path")
    }

    /// Runs `f` on the node at level `l`; `f` returns false if the node differs from the state that the path found.
    fn modify(&mut self, l: usize, f: impl FnOnce(&mut NodeMut<'_>) -> bool) -> Result<(), S::Error> {
        let Some(block) = self.path.level(l).block else {
            self.root.dirty = true;
            let fine = NodeMut::parse(&mut self.root.i_block, 0).is_ok_and(|mut node| f(&mut node));
            return if fine { Ok(()) } else { Err(self.broken(l)) };
        };
        let (store, seed, depth) = (self.store, self.root.csum_seed, (self.path.depth - l) as u16);
        let fine = store.modify(
            self.txn,
            block,
            |bytes| verify_node(store, bytes, block, depth, seed),
            |bytes| {
                let Ok(mut node) = NodeMut::parse(bytes, block.0) else { return false };
                let fine = node.view().depth() == depth && f(&mut node);
                node.seal(seed);
                fine
            },
        )?;
        if fine { Ok(()) } else { Err(self.broken(l)) }
    }

    /// The parent's entry for the node at level `l`, with a new key.
    fn index_to(&self, l: usize, key: u32) -> Result<RawEntry, S::Error> {
        match self.path.level(l).block {
            Some(child) => Ok(Index { lblk: LogicalBlock(key), child }.encode()),
            None => Err(self.broken(l)),
        }
    }

    /// Replaces the entries `range` of the node at level `l` by `new`.
    fn replace(&mut self, l: usize, range: Range<usize>, new: &[RawEntry]) -> Result<(), S::Error> {
        let level = *self.path.level(l);
        if range.start > range.end || range.end > level.count {
            return Err(self.broken(l));
        }
        let count = level.count - range.len() + new.len();
        self.shrunk |= count < level.count;
        if count > level.room {
            return self.split(l, range, new);
        }
        if count == 0
            && let Some(block) = level.block
        {
            let pos = self.path.level(l - 1).pos;
            self.replace(l - 1, pos..pos + 1, &[])?;
            self.store.free_meta(self.txn, block)?;
            self.root.blocks_delta -= self.node_blocks();
            return Ok(());
        }
        let at_front = range.start == 0;
        let mut first = None;
        self.modify(l, |node| {
            let fine = node.splice(range, new);
            first = node.view().key(0);
            fine
        })?;
        match first {
            Some(first) if at_front && l > 0 && first != level.first => {
                let pos = self.path.level(l - 1).pos;
                let index = self.index_to(l, first)?;
                self.replace(l - 1, pos..pos + 1, &[index])
            }
            _ => Ok(()),
        }
    }

    /// [`Edit::replace`] for a result that does not fit: part of the entries moves to a new node on the right. In the
    /// root, all of them move to a new node below.
    fn split(&mut self, l: usize, range: Range<usize>, new: &[RawEntry]) -> Result<(), S::Error> {
        let level = *self.path.level(l);
        let mut all = self.path.raw_entries(self.root, self.store, l)?;
        let depth = (self.path.depth - l) as u16;
        // In an index node, two entries replace the entry of the split node, so the range is never empty there.
        let inner = l < self.path.depth;
        let appends = range.end == level.count && (inner || range.is_empty());
        let prepends = range.start == 0 && (inner || range.is_empty());
        if range.end > all.len() {
            return Err(self.broken(l));
        }
        all.splice(range, new.iter().copied());
        let Some(block) = self.spare.pop() else { return Err(self.broken(l)) };
        if l == 0 {
            self.init_node(block, depth, &all)?;
            self.root.dirty = true;
            let index = Index { lblk: LogicalBlock(raw_key(&all[0])), child: block };
            return if NodeMut::init(&mut self.root.i_block, depth + 1).insert(0, &index.encode()) {
                Ok(())
            } else {
                Err(self.broken(0))
            };
        }
        // This way nodes end up full when a file is written from front to back, or from back to front.
        let cut = if appends {
            level.room
        } else if prepends {
            all.len() - level.room
        } else {
            all.len() / 2
        };
        let (left, right) = all.split_at(cut.clamp(1, all.len() - 1));
        self.init_node(block, depth, right)?;
        let pos = self.path.level(l - 1).pos;
        let indexes = [
            self.index_to(l, raw_key(&left[0]))?,
            Index { lblk: LogicalBlock(raw_key(&right[0])), child: block }.encode(),
        ];
        self.replace(l - 1, pos..pos + 1, &indexes)?;
        self.modify(l, |node| node.set_all(left))
    }

    fn init_node(&mut self, block: BlockNr, depth: u16, entries: &[RawEntry]) -> Result<(), S::Error> {
        let seed = self.root.csum_seed;
        let fits = self.store.init(self.txn, block, |bytes| {
            let mut node = NodeMut::init(bytes, depth);
            let fits = node.set_all(entries);
            node.seal(seed);
            fits
        })?;
        if fits { Ok(()) } else { Err(self.root.corrupt(Some(block), "a node has more entries than a block holds")) }
    }

    /// Lowers the root while it has no child, or one child whose entries fit the root (e2fsck calls such a tree
    /// "could be shorter"). If no credits are left, or the child is unreadable, the tree remains higher than
    /// necessary, which is harmless.
    fn collapse(mut self) -> Result<(), S::Error> {
        loop {
            let node = root_node_or_empty(self.root, self.store)?;
            let Some(node) = node else {
                NodeMut::init(&mut self.root.i_block, 0);
                self.root.dirty = true;
                return Ok(());
            };
            if node.depth() == 0 || node.len() != 1 || !self.store.has_credits(self.txn, COLLAPSE_CREDITS) {
                return Ok(());
            }
            let (depth, room) = (node.depth() - 1, node.room());
            let Some(index) = node.index(0) else { return Ok(()) };
            // This child need not be on the path. The change is complete, so an unreadable child is no error here:
            // the next read of it reports it.
            let entries =
                with_node(self.root, self.store, index.child, depth, index.lblk.0, u64::from(LOGICAL_END), |child| {
                    (child.len() <= room).then(|| child.raw_entries().collect::<Vec<RawEntry>>())
                });
            let Ok(Some(entries)) = entries else { return Ok(()) };
            if !NodeMut::init(&mut self.root.i_block, depth).set_all(&entries) {
                return Err(self.broken(0));
            }
            self.root.dirty = true;
            self.store.free_meta(self.txn, index.child)?;
            self.root.blocks_delta -= self.node_blocks();
            self.shrunk = false;
        }
    }
}

/// The bitmap and descriptor of the freed child, and one credit for the revoke record.
const COLLAPSE_CREDITS: u32 = 3;

/// The root, or `None` if its last index was removed and it is empty above depth 0.
fn root_node_or_empty<'a, S: MapStore>(root: &'a MapRoot, store: &S) -> Result<Option<NodeRef<'a>>, S::Error> {
    let bare = NodeRef::parse(&root.i_block, 0).map_err(|e| root.corrupt::<MapError>(None, e.to_string()))?;
    if bare.is_empty() && bare.depth() > 0 { Ok(None) } else { root_node(root, store).map(Some) }
}

/// The number of nodes to allocate if `added` entries replace `removed` entries in the leaf of `path`.
pub(super) fn nodes_needed<S: MapStore>(path: &Path, removed: usize, added: usize) -> u32 {
    Edit::<S>::nodes_needed(path, path.depth, removed, added) as u32
}
