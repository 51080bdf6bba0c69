//! Blocks for the file system's own files, in the order in which mke2fs allocates them.
//!
//! Main type: [`Mapped`]. Main functions: [`Mapped::in_ranges`] (a journal), [`Mapped::by_blocks`] (small files with
//! extents), [`Mapped::with_pointers`] (any file without extents).
//!
//! # Locking
//! None.

use extant_ondisk::extent::{Extent, WRITTEN_LEN_MAX, capacity, pack_tree};
use extant_ondisk::indirect::{self, pack_pointers};
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
    /// Blocks of the map itself, and their bytes.
    pub nodes: Vec<(BlockNr, Vec<u8>)>,
    pub i_block: [u8; 60],
    pub flags: InodeFlags,
    /// The number of clusters in use, including those of nodes.
    pub clusters: u64,
}

/// The inode that the map belongs to.
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
        self.nodes = tree.blocks;
        Ok(())
    }

    /// Takes `len` blocks, mapped by pointers. Each is the first free block after the one before; `first` is the start
    /// of the search (e2fsprogs: `ext2fs_bmap2`).
    pub fn with_pointers(space: &mut Space, owner: &Owner<'_>, len: u64, first: u64) -> Result<Mapped> {
        let geometry = indirect::Geometry::new(owner.geo.block_size);
        let mut mapped = Mapped::empty(InodeFlags::empty());
        let (mut last, mut nodes) = (first, Vec::new());
        for lblk in 0..len {
            let path = u32::try_from(lblk).ok().and_then(|lblk| geometry.path(LogicalBlock(lblk)));
            let path = path.ok_or_else(no_space)?;
            // Blocks of pointers come right before the first block to which they lead.
            for _ in (0..path.levels).filter(|step| path.inside(*step, &geometry) == 0) {
                last = space.take_new_block(last)?;
                nodes.push(BlockNr(last));
                mapped.clusters += 1;
            }
            last = mapped.take_data(space, last)?;
        }
        let blocks = mapped.runs.iter().flat_map(|(start, len)| (*start..start + len).map(BlockNr));
        let mut free = nodes.into_iter();
        let tree = pack_pointers(owner.geo.block_size, (0..).map(LogicalBlock).zip(blocks), |_| free.next())
            .map_err(|_| no_space())?;
        (mapped.i_block, mapped.nodes) = (tree.root, tree.blocks);
        Ok(mapped)
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
}
