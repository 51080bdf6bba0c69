//! Lays out a whole extent tree for a sorted list of extents. In each level, every node except the last is full.
//!
//! For image builders and repair. This takes one pass and reads nothing; the caller writes the returned blocks.
//!
//! # Locking
//! None.

use super::{DEPTH_MAX, Extent, Index, NodeMut, ROOT_BYTES, RawEntry, capacity, raw_key};
use crate::{BlockNr, Error, LogicalBlock, Result, Structure};

/// A tree ready to be written: of extents, or of pointers ([`crate::indirect::pack_pointers`]).
#[derive(Clone, Debug)]
pub struct PackedTree {
    /// The inode's `i_block`.
    pub root: [u8; ROOT_BYTES],
    /// The nodes below the root, sealed.
    pub blocks: Vec<(BlockNr, Vec<u8>)>,
}

/// Packs `extents`, which must be sorted and legal; they are not merged here. `next_block` returns the blocks for the
/// nodes, in the order in which they are filled: leaves first.
///
/// # Errors
/// `Corrupt` if the list breaks the rules of [`super::NodeRef::validate`], `Unsupported` if `next_block` returns no
/// block or the tree would be too deep.
pub fn pack_tree(
    extents: &[Extent],
    block_size: u32,
    inode_seed: Option<u32>,
    mut next_block: impl FnMut() -> Option<BlockNr>,
) -> Result<PackedTree> {
    let mut free_from = 0u64;
    for extent in extents {
        if u64::from(extent.lblk.0) < free_from
            || extent.len == 0
            || extent.len > super::len_max(extent.unwritten)
            || extent.end() > u64::from(super::LOGICAL_END)
            || extent.pblk.0 >= 1 << 48
        {
            return Err(Error::corrupt(Structure::ExtentList, extent.lblk.0, "not sorted or out of range"));
        }
        free_from = extent.end();
    }
    let mut blocks = Vec::new();
    let mut level: Vec<RawEntry> = extents.iter().map(Extent::encode).collect();
    let mut depth = 0;
    let per_block = capacity(block_size as usize);
    while level.len() > capacity(ROOT_BYTES) {
        if depth == DEPTH_MAX || per_block < 2 {
            return Err(Error::unsupported("an extent tree deeper than five levels"));
        }
        let mut above = Vec::with_capacity(level.len() / per_block + 1);
        for chunk in level.chunks(per_block) {
            let Some(block) = next_block() else {
                return Err(Error::unsupported("no blocks left for extent nodes"));
            };
            let mut bytes = vec![0; block_size as usize];
            let mut node = NodeMut::init(&mut bytes, depth);
            if !node.set_all(chunk) {
                return Err(Error::unsupported("block size too small for an extent node"));
            }
            node.seal(inode_seed);
            above.push(Index { lblk: LogicalBlock(raw_key(&chunk[0])), child: block }.encode());
            blocks.push((block, bytes));
        }
        level = above;
        depth += 1;
    }
    let mut root = [0; ROOT_BYTES];
    if !NodeMut::init(&mut root, depth).set_all(&level) {
        return Err(Error::unsupported("extent root overflow"));
    }
    Ok(PackedTree { root, blocks })
}
