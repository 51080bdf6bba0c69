//! Lays out a whole directory: first the number of blocks, then each block separately.
//!
//! Main types: [`WholeFormat`] (the directory format of this file system), [`DirectoryLayout`] (the layout of one
//! directory).
//!
//! A directory that fits in one block, or has no index, is linear, with its names in the given order. Any other
//! directory begins with its index (the root, then the nodes level by level), followed by its leaves sorted by hash. A
//! listing, which follows the hashes, then reads forwards. Leaves are full. So a listing of a new image reads as few
//! blocks as possible, and the first name added to a leaf splits it, as with any full leaf.
//!
//! A layout takes four bytes for each name and eight for each leaf. What it does not do: store names. It requests them
//! by number, in any order, while the layout is created and while blocks are filled.
//!
//! # Locking
//! None: pure functions.

use super::{DirBlockFormat, DirDamage, DirRule, Dirent, rec_len_needed, seal_leaf};
use crate::csum::ChecksumSeed;
use crate::htree::{DX_BLOCK_MASK, DxFormat, DxShape, Hasher, PackedRoot};
use crate::inode::FileType;

/// The directory format of this file system.
#[derive(Clone, Copy, Debug)]
pub struct WholeFormat {
    /// The format of directory blocks.
    pub blocks: DirBlockFormat,
    /// The block size, in bytes.
    pub block_size: usize,
    /// The hash of names; `None` if directories have no index.
    pub hasher: Option<Hasher>,
    /// The maximum number of levels of index nodes below a root: 1, or 2 with LARGEDIR.
    pub levels_most: u8,
}

/// The inode that a name refers to, and its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The inode.
    pub ino: u32,
    /// The type of the inode.
    pub file_type: FileType,
}

/// The layout of one directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryLayout {
    /// The numbers of the names in the order of the layout; empty if that is their original order.
    order: Vec<u32>,
    names: u32,
    /// For each leaf, the index of its first name in that order.
    starts: Vec<u32>,
    /// For each leaf, the lowest hash, with the continuation bit; empty without an index.
    keys: Vec<u32>,
    /// The number of index nodes in each level below the root, from the top.
    nodes: Vec<u32>,
    block_size: usize,
}

impl WholeFormat {
    fn dx(&self) -> DxFormat {
        DxFormat { has_csum: self.blocks.has_csum }
    }

    /// Lays out a directory of `names` names; `name` returns each of them. The directory has at least `blocks_min`
    /// blocks. If that is not 0, it has no index: `lost+found` has spare blocks, and e2fsck writes to them without an
    /// index.
    ///
    /// # Errors
    /// [`DirRule::Unwritable`] for a name that may not be written, [`DirRule::IndexFull`] for more names than an index
    /// can hold.
    pub fn lay_out<'a>(
        &self,
        names: u32,
        name: impl Fn(u32) -> &'a [u8],
        blocks_min: u32,
    ) -> Result<DirectoryLayout, DirDamage> {
        let limit = self.blocks.limit(self.block_size);
        let dots = 2 * rec_len_needed(1);
        let mut bytes = dots;
        for number in 0..names {
            let name = name(number);
            if !super::name_is_legal(name) || rec_len_needed(name.len()) > limit {
                return Err(DirDamage::new(0, DirRule::Unwritable));
            }
            bytes = bytes.saturating_add(rec_len_needed(name.len()));
        }
        let mut whole = DirectoryLayout {
            order: Vec::new(),
            names,
            starts: vec![0],
            keys: Vec::new(),
            nodes: Vec::new(),
            block_size: self.block_size,
        };
        if bytes <= limit && blocks_min <= 1 {
            return Ok(whole);
        }
        let Some(hasher) = self.hasher.filter(|_| blocks_min == 0) else {
            whole.cut(limit, dots, &name);
            let missing = (blocks_min as usize).saturating_sub(whole.starts.len());
            whole.starts.extend(std::iter::repeat_n(names, missing));
            return Ok(whole);
        };
        let mut hashed: Vec<(u32, u32)> = (0..names).map(|number| (hasher.hash(name(number)).hash, number)).collect();
        hashed.sort_unstable();
        whole.order = hashed.iter().map(|(_, number)| *number).collect();
        whole.cut(limit, 0, &name);
        let key = |start: &u32| {
            let hash = hashed[*start as usize].0;
            let goes_on = *start > 0 && hashed[*start as usize - 1].0 == hash;
            hash | u32::from(goes_on)
        };
        whole.keys = whole.starts.iter().map(key).collect();
        let (root, node) =
            (self.dx().limit(DxShape::Root, self.block_size), self.dx().limit(DxShape::Node, self.block_size));
        let mut children = whole.starts.len();
        while children > root {
            children = children.div_ceil(node);
            whole.nodes.insert(0, children as u32);
        }
        if whole.nodes.len() > usize::from(self.levels_most) || whole.blocks() > DX_BLOCK_MASK {
            return Err(DirDamage::new(0, DirRule::IndexFull));
        }
        Ok(whole)
    }

    /// Fills block `number` of a directory. `dot` contains the inodes of the directory and its parent; `entry` returns
    /// a name and its target; `seed` is the seed of the directory's inode, with metadata_csum.
    ///
    /// # Errors
    /// [`DirDamage`] if the block is not part of this layout, or if the names have changed since the layout was
    /// created.
    pub fn fill<'a>(
        &self,
        whole: &DirectoryLayout,
        number: u32,
        block: &mut [u8],
        dot: [u32; 2],
        entry: impl Fn(u32) -> (&'a [u8], Target),
        seed: Option<ChecksumSeed>,
    ) -> Result<(), DirDamage> {
        let entry = |place: u32| {
            let (name, target) = entry(whole.order.get(place as usize).copied().unwrap_or(place));
            Dirent { offset: 0, rec_len: 0, ino: target.ino, file_type: Some(target.file_type), name }
        };
        if whole.keys.is_empty() {
            let dir = Some(FileType::Directory);
            let own = |ino, name| Dirent { offset: 0, rec_len: 0, ino, file_type: dir, name };
            let dots = [own(dot[0], &b"."[..]), own(dot[1], &b".."[..])];
            let dots = dots.into_iter().filter(|_| number == 0);
            self.blocks.pack(block, dots.chain(whole.leaf(number)?.map(entry)))?;
        } else if let Some(leaf) = number.checked_sub(whole.index_blocks()) {
            self.blocks.pack(block, whole.leaf(leaf)?.map(entry))?;
        } else {
            self.fill_index(whole, number, block, dot)?;
            return seed.map_or(Ok(()), |seed| self.dx().seal(block, seed));
        }
        if let Some(seed) = seed {
            seal_leaf(block, seed);
        }
        Ok(())
    }

    fn fill_index(
        &self,
        whole: &DirectoryLayout,
        number: u32,
        block: &mut [u8],
        dot: [u32; 2],
    ) -> Result<(), DirDamage> {
        let fan_out = self.dx().limit(DxShape::Node, self.block_size);
        // The level of this block, and the first block of that level; level 0 is the root.
        let (mut level, mut first) = (0, 0);
        while number >= first + whole.level_blocks(level) {
            first += whole.level_blocks(level);
            level += 1;
        }
        let below = whole.level_blocks(level + 1);
        let at = (number - first) as usize * fan_out;
        let end = if level == 0 { below as usize } else { (at + fan_out).min(below as usize) };
        // The number of leaves below each child.
        let leaves = fan_out.saturating_pow((whole.nodes.len() - level) as u32);
        let behind = first + whole.level_blocks(level);
        let child = |place: usize| {
            let key = whole.keys.get(place.saturating_mul(leaves)).copied().unwrap_or(0);
            (key, behind + place as u32)
        };
        let root = (level == 0).then(|| PackedRoot {
            dots: self.blocks,
            dot,
            hash_version: self.hasher.map_or(0, |hasher| hasher.version().to_disk()),
            levels: whole.nodes.len() as u8,
        });
        self.dx().pack(block, root, (at..end).map(child))
    }
}

impl DirectoryLayout {
    /// Divides the names into leaves, each as full as possible. In the first leaf, `taken` bytes are in use already.
    fn cut<'a>(&mut self, limit: usize, taken: usize, name: &impl Fn(u32) -> &'a [u8]) {
        let mut used = taken;
        for place in 0..self.names {
            let number = self.order.get(place as usize).copied().unwrap_or(place);
            let needed = rec_len_needed(name(number).len());
            if used + needed > limit {
                self.starts.push(place);
                used = 0;
            }
            used += needed;
        }
    }

    /// The number of blocks of the directory.
    pub fn blocks(&self) -> u32 {
        self.index_blocks() + self.starts.len() as u32
    }

    /// Whether the directory has an index, so that its inode needs the flag.
    pub fn is_indexed(&self) -> bool {
        !self.keys.is_empty()
    }

    /// The memory that the layout takes, in bytes.
    pub fn memory(&self) -> usize {
        4 * (self.order.len() + self.starts.len() + self.keys.len())
    }

    fn index_blocks(&self) -> u32 {
        if self.is_indexed() { 1 + self.nodes.iter().sum::<u32>() } else { 0 }
    }

    /// The number of blocks of a level: level 0 is the root, the last level are the leaves.
    fn level_blocks(&self, level: usize) -> u32 {
        match level.checked_sub(1) {
            None => 1,
            Some(below) => self.nodes.get(below).copied().unwrap_or(self.starts.len() as u32),
        }
    }

    /// The indexes of the names in a leaf.
    fn leaf(&self, leaf: u32) -> Result<std::ops::Range<u32>, DirDamage> {
        let start = self.starts.get(leaf as usize).ok_or(DirDamage::new(0, DirRule::NotThere))?;
        Ok(*start..self.starts.get(leaf as usize + 1).copied().unwrap_or(self.names))
    }
}

#[cfg(test)]
#[path = "whole_tests.rs"]
mod tests;
