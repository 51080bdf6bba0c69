//! Maps of files: the usable part of a damaged one, and whole ones that replace it.
//!
//! Main types: [`Mapped`] (the blocks of a map). Main functions: [`Image::map`], [`Image::set_map`],
//! [`Image::count_blocks`].
//!
//! If the header of a node is damaged, its entries are used if they make sense. Each block is descended once.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::ops::Range;

use extant_ondisk::extent::{self, Extent, Index, NodeRef, PackedTree, RawEntry, pack_tree};
use extant_ondisk::indirect::pack_pointers;
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::map::{Form, Run};
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock, indirect};

use super::Image;
use super::inode::Inode;
use crate::error::{Refusal, StepResult};

/// The number of levels of a tree that are read, which is more than any kernel accepts.
const LEVELS_READ: u16 = 16;

/// The usable part of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// The runs by logical block, not overlapping.
    pub runs: Vec<Run>,
    /// Blocks of the map itself.
    pub nodes: Vec<BlockNr>,
    /// A block of the map that the device cannot read.
    pub unread: Option<BlockNr>,
}

impl Mapped {
    /// One past the last logical block.
    pub fn end(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.lblk.0) + u64::from(run.len)).max().unwrap_or(0)
    }

    /// The run that contains a logical block.
    pub fn find(&self, lblk: u64) -> Option<&Run> {
        let at = self.runs.partition_point(|run| u64::from(run.lblk.0) <= lblk).checked_sub(1)?;
        let run = self.runs.get(at)?;
        (lblk < u64::from(run.lblk.0) + u64::from(run.len)).then_some(run)
    }

    /// The block on the device for a logical block.
    pub fn place(&self, lblk: u64) -> Option<BlockNr> {
        self.find(lblk).map(|run| BlockNr(run.pblk.0 + (lblk - u64::from(run.lblk.0))))
    }

    /// Every block in order: the logical block and the block on the device.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, BlockNr)> + '_ {
        self.runs.iter().flat_map(|run| {
            (0..u64::from(run.len)).map(|step| (u64::from(run.lblk.0) + step, BlockNr(run.pblk.0 + step)))
        })
    }
}

/// The usable part of a node of a tree: the number of levels below it, and its entries.
pub fn usable(bytes: &[u8], expected: Option<u16>) -> Option<(u16, Vec<RawEntry>)> {
    let room = extent::capacity(bytes.len());
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let entry = |i: usize| {
        let at = extent::HEADER_BYTES + i * extent::ENTRY_BYTES;
        <RawEntry>::try_from(bytes.get(at..at + extent::ENTRY_BYTES)?).ok()
    };
    if NodeRef::sound(bytes).is_some() || NodeRef::is_only_too_deep(bytes) {
        let (count, depth) = (usize::from(half(2)), half(6));
        return (depth <= LEVELS_READ).then(|| (depth, (0..count).filter_map(entry).collect()));
    }
    // The header is damaged, but ascending entries show that it is a node.
    let count = usize::from(half(2));
    let depth = match (expected, half(6)) {
        (Some(depth), _) => depth,
        (None, depth) if depth <= extent::DEPTH_MAX => depth,
        (None, _) => 0,
    };
    let counted: Vec<RawEntry> = (0..count.min(room)).filter_map(entry).collect();
    let ascend =
        |entries: &[RawEntry]| entries.windows(2).all(|pair| extent::raw_key(&pair[0]) < extent::raw_key(&pair[1]));
    if count <= room && !counted.is_empty() && ascend(&counted) {
        return Some((depth, counted));
    }
    // The count is damaged, too. The entries end where keys no longer ascend.
    let mut all: Vec<RawEntry> = Vec::new();
    for raw in (0..room).map_while(entry).take_while(|raw| raw[4..] != [0; 8]) {
        if all.last().is_some_and(|last| extent::raw_key(last) >= extent::raw_key(&raw)) {
            break;
        }
        all.push(raw);
    }
    (!all.is_empty()).then_some((depth, all))
}

/// A walk over a map.
struct Walk<'a> {
    image: &'a Image,
    /// Reads older nodes, if they are not to be read from their current places.
    past: Option<&'a dyn Fn(BlockNr) -> Option<Vec<u8>>>,
    is_dir: bool,
    seen: BTreeSet<u64>,
    mapped: Mapped,
}

impl Walk<'_> {
    /// Reads a node if the block may contain one; each block at most once.
    fn enter(&mut self, block: BlockNr) -> Option<Vec<u8>> {
        let usable = self.image.can_have(block, 1) && !self.image.facts.is_metadata(block);
        if !usable || !self.seen.insert(block.0) {
            return None;
        }
        if let Some(past) = self.past {
            let read = past(block);
            self.mapped.nodes.extend(read.as_ref().map(|_| block));
            return read;
        }
        let read = self.image.block(block);
        match &read {
            Ok(_) => self.mapped.nodes.push(block),
            Err(_) => self.mapped.unread = Some(block),
        }
        read.ok()
    }

    /// Reads a node of an extent tree. `range` are the logical blocks of the node according to its parent's keys.
    fn extents(&mut self, bytes: &[u8], expected: Option<u16>, range: Range<u64>) {
        let Some((depth, entries)) = usable(bytes, expected) else { return };
        if depth == 0 {
            let mut all: Vec<Extent> = entries.iter().map(Extent::decode).collect();
            settle_keys(&mut all, range);
            return all.into_iter().for_each(|extent| self.extent(extent));
        }
        let keys: Vec<u64> = entries.iter().map(|raw| extent::raw_key(raw).into()).collect();
        for (at, raw) in entries.iter().enumerate() {
            let child = Index::decode(raw).child;
            let Some(bytes) = self.enter(child) else { continue };
            let below = child_range(&keys, at, &range);
            if usable(&bytes, Some(depth - 1)).is_some_and(|(below, _)| below < depth) {
                self.extents(&bytes, Some(depth - 1), below);
            } else {
                self.mapped.nodes.pop();
            }
        }
    }

    fn extent(&mut self, mut extent: Extent) {
        if self.is_dir {
            extent.unwritten = false;
        }
        let fits = extent.len > 0 && extent.end() <= u64::from(extent::LOGICAL_END);
        if fits && self.image.can_have(extent.pblk, extent.len.into()) {
            let Extent { lblk, len, pblk, unwritten } = extent;
            self.mapped.runs.push(Run { lblk, len, pblk, unwritten });
        }
    }

    fn pointers(&mut self, bytes: &[u8], first: u64, level: usize) {
        let geometry = indirect::Geometry::new(self.image.geo.block_size);
        for (i, block) in indirect::pointers(bytes) {
            let lblk = first + u64::from(i) * geometry.span(level);
            self.pointer(BlockNr(block.into()), lblk, level);
        }
    }

    fn pointer(&mut self, block: BlockNr, lblk: u64, level: usize) {
        let end = indirect::Geometry::new(self.image.geo.block_size).logical_end();
        if lblk >= u64::from(end) || !self.image.can_have(block, 1) {
            return;
        }
        if level > 0 {
            if let Some(bytes) = self.enter(block) {
                self.pointers(&bytes, lblk, level - 1);
            }
            return;
        }
        let lblk = LogicalBlock(lblk as u32);
        match self.mapped.runs.last_mut() {
            Some(run) if run.lblk.0 + run.len == lblk.0 && run.pblk.0 + u64::from(run.len) == block.0 => run.len += 1,
            _ => self.mapped.runs.push(Run { lblk, len: 1, pblk: block, unwritten: false }),
        }
    }
}

/// The logical blocks below an entry of an index: from its key to the next one, if both are in the node's own range and
/// in order, and otherwise those of the node.
fn child_range(keys: &[u64], at: usize, node: &Range<u64>) -> Range<u64> {
    let (first, end) = (keys[at], keys.get(at + 1).copied().unwrap_or(node.end));
    if node.contains(&first) && first < end && end <= node.end { first..end } else { node.clone() }
}

/// Moves each extent of a leaf with an impossible key into the gap between its neighbours, if it fills that gap,
/// because then only the key is damaged. `range` are the logical blocks of the leaf.
fn settle_keys(extents: &mut [Extent], range: Range<u64>) {
    let mut last = range.start;
    for at in 0..extents.len() {
        let next = extents.get(at + 1).map_or(range.end, |next| next.lblk.0.into());
        let extent = &mut extents[at];
        if extent.unwritten && next == range.end {
            // Blocks may be reserved after the end of a file.
            continue;
        }
        let fits = u64::from(extent.lblk.0) >= last && extent.end() <= next;
        if !fits && next.checked_sub(last) == Some(extent.len.into()) {
            extent.lblk = LogicalBlock(last as u32);
        }
        last = last.max(extent.end());
    }
}

/// Sorts runs, and removes from the later ones the blocks that are mapped twice.
fn settle(runs: &mut Vec<Run>) {
    runs.sort_by_key(|run| run.lblk);
    let mut end = 0u64;
    runs.retain_mut(|run| {
        let first = u64::from(run.lblk.0);
        let cut = end.saturating_sub(first).min(run.len.into()) as u32;
        *run = Run {
            lblk: LogicalBlock(run.lblk.0 + cut),
            len: run.len - cut,
            pblk: BlockNr(run.pblk.0 + u64::from(cut)),
            ..*run
        };
        end = end.max(first + u64::from(cut + run.len));
        run.len > 0
    });
}

/// Joins adjacent runs, and splits those that are longer than an extent may be.
fn extents_of(runs: &[Run]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for run in runs {
        let (unwritten, longest) = (run.unwritten, extent::len_max(run.unwritten));
        let mut done = 0;
        if let Some(last) = extents.last_mut()
            && last.end() == u64::from(run.lblk.0)
            && last.pblk.0 + u64::from(last.len) == run.pblk.0
            && last.unwritten == unwritten
        {
            done = run.len.min(longest.saturating_sub(last.len));
            last.len += done;
        }
        while done < run.len {
            let len = longest.min(run.len - done);
            let (lblk, pblk) = (LogicalBlock(run.lblk.0 + done), BlockNr(run.pblk.0 + u64::from(done)));
            extents.push(Extent { lblk, len, pblk, unwritten });
            done += len;
        }
    }
    extents
}

impl Image {
    /// The usable part of an inode's map.
    pub fn map(&self, inode: &Inode) -> Mapped {
        if !inode.has_map(self) {
            return Mapped::default();
        }
        self.map_as(inode, inode.form(self))
    }

    /// The usable part of `i_block` as a map of this form.
    pub fn map_as(&self, inode: &Inode, form: Form) -> Mapped {
        self.walk_map(inode, form, None)
    }

    /// The usable part of the map that an inode had earlier. `past` reads its nodes in their state of that time.
    pub fn map_by(&self, inode: &Inode, form: Form, past: &dyn Fn(BlockNr) -> Option<Vec<u8>>) -> Mapped {
        self.walk_map(inode, form, Some(past))
    }

    fn walk_map(&self, inode: &Inode, form: Form, past: Option<&dyn Fn(BlockNr) -> Option<Vec<u8>>>) -> Mapped {
        let (is_dir, seen) = (inode.is_dir(), BTreeSet::new());
        let mut walk = Walk { image: self, past, is_dir, seen, mapped: Mapped::default() };
        match form {
            // A file ends with its last extent, except for blocks that are reserved for it.
            Form::Extents => walk.extents(&inode.raw.i_block, None, 0..self.end_of_leaves(inode)),
            Form::Indirect => {
                let geometry = indirect::Geometry::new(self.geo.block_size);
                for slot in 0..indirect::SLOTS {
                    let block = indirect::pointer(&inode.raw.i_block, slot).filter(|block| *block != 0);
                    if let Some((block, (first, level))) = block.zip(geometry.slot_start(slot)) {
                        walk.pointer(BlockNr(block.into()), first, level);
                    }
                }
            }
        }
        let mut mapped = walk.mapped;
        settle(&mut mapped.runs);
        mapped
    }

    /// One past the last logical block that the tree of an inode should map: the end of the file. A file that is being
    /// truncated has blocks after it, and one with a Merkle tree that tree.
    fn end_of_leaves(&self, inode: &Inode) -> u64 {
        let end = inode.size().div_ceil(self.geo.block_size.into());
        let is_open = end == 0 || inode.has(InodeFlags::VERITY) || self.facts.is_orphan(inode.ino);
        if is_open { extent::LOGICAL_END.into() } else { end.min(extent::LOGICAL_END.into()) }
    }

    /// Whether the entries of a map after the end of its file are wrong. Otherwise the size is wrong.
    ///
    /// If an inode counts fewer blocks than its map has, no write has added the entry. An extent after a gap is an
    /// extent whose key has changed, because its block is still counted. Several after a gap are the rest of a sparse
    /// file, unless the gap is larger than the file system.
    pub fn is_astray(&self, inode: &Inode, mapped: &Mapped) -> bool {
        let end = inode.size().div_ceil(self.geo.block_size.into());
        let reaches = |run: &&Run| u64::from(run.lblk.0) + u64::from(run.len) > end && !run.unwritten;
        let mut behind = mapped.runs.iter().filter(reaches);
        let (Some(first), more) = (behind.next(), behind.next()) else { return false };
        let stored = self.desc(inode).map_or(u64::MAX, |desc| desc.blocks);
        if stored < self.sectors(inode, mapped) {
            return true;
        }
        let before = mapped.runs.iter().take_while(|run| run.lblk < first.lblk);
        let last = before.map(|run| u64::from(run.lblk.0) + u64::from(run.len)).max().unwrap_or(0);
        let gap = u64::from(first.lblk.0).saturating_sub(last.max(end));
        inode.form(self) == Form::Extents && gap > if more.is_none() { 0 } else { self.geo.blocks_count }
    }

    /// The number of sectors of an inode: those of its data, its map and its attribute block.
    pub fn sectors(&self, inode: &Inode, mapped: &Mapped) -> u64 {
        let clusters = data_clusters(&mapped.runs, &self.geo)
            + mapped.nodes.len() as u64
            + u64::from(inode.file_acl(self).is_some());
        (clusters << self.geo.cluster_bits) << (self.geo.block_bits - 9)
    }

    /// Replaces the map of an inode by `runs`, which are sorted by logical block. The blocks of the old map that no
    /// other inode has are used first for the new one. Also sets the count of blocks.
    pub fn set_map(&mut self, ino: InodeNr, runs: &[Run]) -> StepResult {
        self.touch(ino);
        let inode = self.inode(ino)?;
        let Mapped { nodes: old, unread, .. } = self.map(&inode);
        if let Some(block) = unread {
            // The new map would lose what that block maps.
            return Err(Refusal::Unreadable(block));
        }
        let mine = |block: &BlockNr| !self.facts.is_shared(self.facts.clusters(*block, 1));
        let spare: Vec<BlockNr> = old.into_iter().filter(mine).collect();
        let mut nodes = Nodes { image: self, spare: spare.into_iter(), taken: Vec::new() };
        let root = match inode.form(nodes.image) {
            Form::Extents => nodes.extents(&inode, &extents_of(runs)),
            Form::Indirect => nodes.pointers(runs),
        };
        let root = match root {
            Ok(root) => root,
            Err(refusal) => {
                let taken = std::mem::take(&mut nodes.taken);
                taken.into_iter().for_each(|block| self.put_back(block));
                return Err(refusal);
            }
        };
        self.change_inode(ino, |raw| raw.i_block = root)?;
        self.count_blocks(ino)
    }

    /// Sets the count of an inode's blocks to that of its map, including its attribute block. Values of attributes in
    /// other inodes are counted by the next check.
    pub fn count_blocks(&self, ino: InodeNr) -> StepResult {
        let inode = self.inode(ino)?;
        if inode.is_symlink() && !inode.has_map(self) {
            return Ok(());
        }
        self.put_blocks(ino, self.sectors(&inode, &self.map(&inode)))
    }

    /// Sets the stored count of an inode's blocks, in sectors.
    pub fn put_blocks(&self, ino: InodeNr, sectors: u64) -> StepResult {
        let mut desc = self.desc(&self.inode(ino)?)?;
        desc.blocks = sectors;
        self.change_inode_bytes(ino, |bytes| {
            // The count cannot be too large, because the device has the blocks.
            let _ = desc.encode_into(bytes, ino, &self.geo);
        })
    }
}

/// The number of clusters of a file's data. A cluster that two adjacent runs share counts once.
pub fn data_clusters(runs: &[Run], geo: &Geometry) -> u64 {
    let bits = geo.cluster_bits;
    let (mut clusters, mut last) = (0, None);
    for run in runs {
        let (first, end) = (run.pblk.0 >> bits, ((run.pblk.0 + u64::from(run.len) - 1) >> bits) + 1);
        let shared = bits > 0 && last == Some(first);
        clusters += end - first - u64::from(shared);
        last = Some(end - 1);
    }
    clusters
}

/// The blocks for the nodes of a new map.
struct Nodes<'a> {
    image: &'a mut Image,
    /// The blocks of the old map.
    spare: std::vec::IntoIter<BlockNr>,
    taken: Vec<BlockNr>,
}

impl Nodes<'_> {
    fn next(&mut self, goal: BlockNr) -> StepResult<BlockNr> {
        if let Some(block) = self.spare.next() {
            return Ok(block);
        }
        let block = self.image.take_block(goal)?;
        self.taken.push(block);
        Ok(block)
    }

    fn extents(&mut self, inode: &Inode, list: &[Extent]) -> StepResult<[u8; extent::ROOT_BYTES]> {
        let seed = self.image.seed(inode.ino, inode.generation()).map(|seed| seed.raw());
        let goal = list.first().map_or(BlockNr(0), |extent| extent.pblk);
        let size = self.image.geo.block_size;
        let mut refused = None;
        let tree = pack_tree(list, size, seed, || self.next(goal).map_err(|refusal| refused = Some(refusal)).ok());
        let tree = tree.map_err(|_| refused.unwrap_or(Refusal::Lost("its blocks do not fit into a tree")))?;
        self.put(tree)
    }

    fn pointers(&mut self, runs: &[Run]) -> StepResult<[u8; extent::ROOT_BYTES]> {
        let of = |run: &Run, step: u32| (LogicalBlock(run.lblk.0 + step), BlockNr(run.pblk.0 + u64::from(step)));
        let blocks = runs.iter().flat_map(|run| (0..run.len).map(move |step| of(run, step)));
        let size = self.image.geo.block_size;
        let mut refused = None;
        let tree = pack_pointers(size, blocks, |goal| self.next(goal).map_err(|refusal| refused = Some(refusal)).ok());
        let tree = tree.map_err(|_| refused.unwrap_or(Refusal::Lost("its blocks do not fit into pointers")))?;
        self.put(tree)
    }

    fn put(&self, tree: PackedTree) -> StepResult<[u8; extent::ROOT_BYTES]> {
        for (block, bytes) in &tree.blocks {
            self.image.put_block(*block, bytes)?;
        }
        Ok(tree.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(of: &[(u32, u32)], range: Range<u64>) -> Vec<u32> {
        let extent = |(lblk, len): &(u32, u32)| Extent {
            lblk: LogicalBlock(*lblk),
            len: *len,
            pblk: BlockNr(100),
            unwritten: false,
        };
        let mut extents: Vec<Extent> = of.iter().map(extent).collect();
        settle_keys(&mut extents, range);
        extents.iter().map(|extent| extent.lblk.0).collect()
    }

    #[test]
    fn runs_become_extents_of_a_valid_length() {
        let run = |lblk, len, pblk, unwritten| Run { lblk: LogicalBlock(lblk), len, pblk: BlockNr(pblk), unwritten };
        let lengths = |runs: &[Run]| -> Vec<(u32, u32, u64)> {
            extents_of(runs).iter().map(|one| (one.lblk.0, one.len, one.pblk.0)).collect()
        };
        assert_eq!(
            lengths(&[run(0, 70_000, 9, false)]),
            [(0, 32_768, 9), (32_768, 32_768, 32_777), (65_536, 4464, 65_545)]
        );
        assert_eq!(lengths(&[run(0, 32_768, 9, true)]), [(0, 32_767, 9), (32_767, 1, 32_776)]);
        assert_eq!(lengths(&[run(0, 3, 9, false), run(3, 32_767, 12, false)]), [(0, 32_768, 9), (32_768, 2, 32_777)]);
        assert_eq!(lengths(&[run(0, 3, 9, false), run(3, 4, 12, true)]), [(0, 3, 9), (3, 4, 12)]);
        assert_eq!(lengths(&[run(0, 3, 9, false), run(4, 4, 12, false)]), [(0, 3, 9), (4, 4, 12)]);
    }

    #[test]
    fn a_key_that_cannot_be_follows_from_its_neighbours() {
        // The keys are too large, too small, the first by the parent's key, and the last by the end of the file.
        assert_eq!(keys(&[(0, 4), (900, 2), (6, 3)], 0..9), [0, 4, 6]);
        assert_eq!(keys(&[(0, 4), (1, 2), (6, 3)], 0..9), [0, 4, 6]);
        assert_eq!(keys(&[(77, 4), (14, 2)], 10..16), [10, 14]);
        assert_eq!(keys(&[(0, 4), (131_072, 2)], 0..6), [0, 4]);
    }

    #[test]
    fn a_key_beside_a_hole_stays() {
        // Its place cannot be determined, or nothing is wrong with it.
        assert_eq!(keys(&[(0, 4), (900, 2), (9, 3)], 0..12), [0, 900, 9]);
        assert_eq!(keys(&[(0, 4), (7, 2), (9, 3)], 0..50), [0, 7, 9]);
    }

    #[test]
    fn a_child_has_the_range_of_its_key_unless_that_cannot_be() {
        let keys = [10, 20, 5];
        assert_eq!(child_range(&keys, 0, &(10..40)), 10..20);
        assert_eq!(child_range(&keys, 1, &(10..40)), 10..40);
        assert_eq!(child_range(&keys, 2, &(10..40)), 10..40);
    }
}
