//! Blocks for the file system's own files, in the order in which mke2fs allocates them.
//!
//! Main type: [`Mapped`]. Main functions: [`Mapped::in_ranges`] (a journal), [`Mapped::by_blocks`] (small files with
//! extents), [`Mapped::with_pointers`] (any file without extents).
//!
//! # Locking
//! None.

use extant_ondisk::extent::{Extent, WRITTEN_LEN_MAX, capacity, pack_tree};
use extant_ondisk::indirect::{DIRECT, POINTER_END};
use extant_ondisk::inode::InodeFlags;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::space::{Space, no_space};
use crate::{Error, Result};

/// The longest written extent.
const EXTENT_LEN_MAX: u64 = WRITTEN_LEN_MAX as u64;
const EXTENT_BYTES: usize = 12;
/// The number of extents in the inode itself.
const ROOT_EXTENTS: usize = 4;

/// A file's blocks.
#[derive(Clone, Debug)]
pub(super) struct Mapped {
    /// First block and length, in the order of the file.
    pub runs: Vec<(u64, u64)>,
    /// The blocks of the map itself.
    pub nodes: Vec<Node>,
    pub i_block: [u8; 60],
    pub flags: InodeFlags,
    /// The number of clusters in use, including those of nodes.
    pub clusters: u64,
}

/// A block of the map.
#[derive(Clone, Debug)]
pub(super) enum Node {
    /// An extent node.
    Extents { block: u64, bytes: Vec<u8> },
    /// Pointers to `count` blocks of the file from `first` on.
    Pointers { block: u64, first: u64, count: u64 },
    /// Pointers to other nodes.
    Above { block: u64, children: Vec<u32> },
}

impl Node {
    pub fn block(&self) -> u64 {
        match self {
            Node::Extents { block, .. } | Node::Pointers { block, .. } | Node::Above { block, .. } => *block,
        }
    }
}

/// The inode to which the map belongs.
pub(super) struct Owner<'a> {
    pub geo: &'a Geometry,
    pub ino: InodeNr,
}

impl Owner<'_> {
    /// The goal from which e2fsprogs search for the first block of an inode.
    pub fn goal(&self) -> u64 {
        let group = (self.ino.0 - 1) / self.geo.inodes_per_group;
        let group = if self.geo.groups_per_flex > 1 { group & !(self.geo.groups_per_flex - 1) } else { group };
        self.geo.first_block_of_group(extant_ondisk::GroupNr(group)).0
    }
}

impl Mapped {
    /// A map without blocks.
    pub fn empty(flags: InodeFlags) -> Mapped {
        Mapped { runs: Vec::new(), nodes: Vec::new(), i_block: [0; 60], flags, clusters: 0 }
    }

    /// Takes `len` blocks as long runs from `goal` on, mapped by extents (e2fsprogs: `ext2fs_fallocate`).
    pub fn in_ranges(space: &mut Space, owner: &Owner<'_>, len: u64, goal: u64) -> Result<Mapped> {
        let geo = owner.geo;
        let ratio = u64::from(geo.blocks_per_cluster());
        let mut mapped = Mapped::empty(InodeFlags::EXTENTS);
        let mut goal = space.first_free(goal.max(geo.first_data_block), geo.blocks_count).unwrap_or(goal);
        let mut left = len;
        let mut node_blocks = Vec::new();
        while left > 0 {
            let (start, got) = space.new_range(goal & !(ratio - 1), left.min(EXTENT_LEN_MAX & !(ratio - 1)))?;
            let clusters = got.div_ceil(ratio);
            space.take(start, clusters * ratio);
            mapped.clusters += clusters;
            mapped.runs.push((start, got));
            left -= got;
            goal = if start + got >= geo.blocks_count { geo.first_data_block } else { start + got };
            mapped.node_for_extents(space, owner, &mut node_blocks)?;
        }
        mapped.pack_extents(owner, node_blocks)?;
        Ok(mapped)
    }

    /// Takes `len` blocks one by one: the first from `goal` on, each other one with the last one as its goal. They are
    /// mapped by extents.
    pub fn by_blocks(space: &mut Space, owner: &Owner<'_>, len: u64, goal: u64) -> Result<Mapped> {
        let ratio = u64::from(owner.geo.blocks_per_cluster());
        let mut mapped = Mapped::empty(InodeFlags::EXTENTS);
        let mut node_blocks = Vec::new();
        let mut last = goal;
        for lblk in 0..len {
            let block = if lblk > 0 && last / ratio == (last + 1) / ratio {
                last + 1
            } else {
                mapped.clusters += 1;
                space.take_new_block(last)?
            };
            last = block;
            match mapped.runs.last_mut() {
                Some((start, n)) if *start + *n == block && *n < EXTENT_LEN_MAX => *n += 1,
                _ => {
                    mapped.runs.push((block, 1));
                    mapped.node_for_extents(space, owner, &mut node_blocks)?;
                }
            }
        }
        mapped.pack_extents(owner, node_blocks)?;
        Ok(mapped)
    }

    /// Moves the second block of a file in one run after the sixth, because mke2fs writes it after that one.
    pub fn put_second_behind_sixth(&mut self, owner: &Owner<'_>) -> Result<()> {
        if let &[(start, len @ 6..)] = self.runs.as_slice() {
            self.runs = vec![(start, 1), (start + 5, 1), (start + 1, 4)];
            self.runs.extend((len > 6).then_some((start + 6, len - 6)));
            self.pack_extents(owner, Vec::new())?;
        }
        Ok(())
    }

    /// Takes a block for a node when there are too many extents for the inode.
    fn node_for_extents(&mut self, space: &mut Space, owner: &Owner<'_>, nodes: &mut Vec<u64>) -> Result<()> {
        let leaf = capacity(owner.geo.block_size as usize);
        let count = self.runs.len();
        if count == ROOT_EXTENTS + 1 || (count > leaf && count % leaf == 1) {
            let ratio = u64::from(owner.geo.blocks_per_cluster());
            let first = if count == ROOT_EXTENTS + 1 { 0 } else { count - 1 - leaf };
            nodes.push(space.take_new_block(self.runs[first].0.saturating_sub(ratio))?);
            self.clusters += 1;
        }
        Ok(())
    }

    fn pack_extents(&mut self, owner: &Owner<'_>, nodes: Vec<u64>) -> Result<()> {
        let mut lblk = 0;
        let extent = |&(start, len): &(u64, u64)| {
            let extent = Extent { lblk: LogicalBlock(lblk), pblk: BlockNr(start), len: len as u32, unwritten: false };
            lblk += len as u32;
            extent
        };
        let extents: Vec<Extent> = self.runs.iter().map(extent).collect();
        let seed = owner.geo.metadata_csum.then(|| owner.geo.seed.for_inode(owner.ino, 0).raw());
        let mut free = nodes.into_iter().map(BlockNr);
        let tree = pack_tree(&extents, owner.geo.block_size, seed, || free.next())
            .map_err(|e| Error::Options(format!("free space is in too many pieces: {e}")))?;
        self.i_block = tree.root;
        if !tree.blocks.is_empty() {
            // Extents that have been moved into a node are left in the inode, where they are not read.
            for (slot, extent) in self.i_block.as_chunks_mut::<EXTENT_BYTES>().0.iter_mut().skip(2).zip(&extents[1..]) {
                *slot = extent.encode();
            }
        }
        self.nodes = tree.blocks.into_iter().map(|(block, bytes)| Node::Extents { block: block.0, bytes }).collect();
        Ok(())
    }

    /// Takes `len` blocks, mapped by pointers. Each is the first free block after the one before; `first` is the start
    /// of the search (e2fsprogs: `ext2fs_bmap2`).
    pub fn with_pointers(space: &mut Space, owner: &Owner<'_>, len: u64, first: u64) -> Result<Mapped> {
        let per_block = u64::from(owner.geo.block_size / 4);
        let mut mapped = Mapped::empty(InodeFlags::empty());
        let mut last = first;
        let direct = len.min(DIRECT.into());
        for i in 0..direct {
            last = mapped.take_data(space, last)?;
            mapped.set_slot(i as usize, last)?;
        }
        let mut at = direct;
        // The levels in order: a single, a double, a triple indirect block.
        for level in 1..=3u32 {
            if at == len {
                break;
            }
            let end = len.min(at + per_block.pow(level));
            let top = mapped.take_tree(space, &mut last, at..end, level, per_block)?;
            mapped.set_slot(DIRECT as usize + level as usize - 1, mapped.nodes[top as usize].block())?;
            at = end;
        }
        if at < len {
            return Err(no_space());
        }
        Ok(mapped)
    }

    fn set_slot(&mut self, slot: usize, block: u64) -> Result<()> {
        if block >= POINTER_END {
            return Err(no_space());
        }
        put_pointer(&mut self.i_block, slot, block);
        Ok(())
    }

    fn take_data(&mut self, space: &mut Space, goal: u64) -> Result<u64> {
        let block = space.take_new_block(goal)?;
        self.clusters += 1;
        match self.runs.last_mut() {
            Some((start, n)) if *start + *n == block => *n += 1,
            _ => self.runs.push((block, 1)),
        }
        Ok(block)
    }

    /// Takes a node, then the blocks below it.
    fn take_tree(
        &mut self,
        space: &mut Space,
        last: &mut u64,
        range: std::ops::Range<u64>,
        level: u32,
        per_block: u64,
    ) -> Result<u32> {
        let block = space.take_new_block(*last)?;
        *last = block;
        self.clusters += 1;
        let index = self.nodes.len();
        if level == 1 {
            self.nodes.push(Node::Pointers { block, first: range.start, count: range.end - range.start });
            for _ in range {
                *last = self.take_data(space, *last)?;
            }
            return Ok(index as u32);
        }
        self.nodes.push(Node::Above { block, children: Vec::new() });
        let step = per_block.pow(level - 1);
        let mut below = Vec::new();
        let mut at = range.start;
        while at < range.end {
            below.push(self.take_tree(space, last, at..range.end.min(at + step), level - 1, per_block)?);
            at += step;
        }
        if let Node::Above { children, .. } = &mut self.nodes[index] {
            *children = below;
        }
        Ok(index as u32)
    }

    /// The bytes of a node.
    pub fn fill_node(&self, node: &Node, out: &mut [u8]) {
        match node {
            Node::Extents { bytes, .. } => out[..bytes.len()].copy_from_slice(bytes),
            Node::Pointers { first, count, .. } => {
                let blocks = self.runs.iter().flat_map(|(start, len)| *start..start + len);
                for (i, block) in blocks.skip(*first as usize).take(*count as usize).enumerate() {
                    put_pointer(out, i, block);
                }
            }
            Node::Above { children, .. } => {
                for (i, child) in children.iter().enumerate() {
                    put_pointer(out, i, self.nodes[*child as usize].block());
                }
            }
        }
    }
}

/// Sets a pointer of an inode or of a block that has room for it.
pub(super) fn put_pointer(bytes: &mut [u8], slot: usize, block: u64) {
    bytes[slot * 4..slot * 4 + 4].copy_from_slice(&(block as u32).to_le_bytes());
}
