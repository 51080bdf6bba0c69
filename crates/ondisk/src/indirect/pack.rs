//! Lays out the blocks of pointers of a whole file for a list of its blocks.
//!
//! For files whose blocks are known, one by one, before the map is written. The caller writes the blocks that it gets
//! back. [`super::Stream`] is for files that lie in one piece, and makes each block when it is needed.
//!
//! # Locking
//! None.

use std::ops::Range;

use super::{Geometry, set_pointer};
use crate::extent::{PackedTree, ROOT_BYTES};
use crate::{BlockNr, Error, LogicalBlock, Result};

/// Maps `blocks`, in ascending order. `next_block` hands out the blocks for pointers from the top down, each right
/// before the first block to which it leads; it gets that one as its goal.
///
/// # Errors
/// `Unsupported` when a number is too large for pointers, or `next_block` runs dry.
pub fn pack_pointers(
    block_size: u32,
    blocks: impl Iterator<Item = (LogicalBlock, BlockNr)>,
    mut next_block: impl FnMut(BlockNr) -> Option<BlockNr>,
) -> Result<PackedTree> {
    let geometry = Geometry::new(block_size);
    let mut tree = PackedTree { root: [0; ROOT_BYTES], blocks: Vec::new() };
    // The blocks of pointers on the way to the last block: what they map, and their numbers in the tree.
    let mut path: Vec<(Range<u64>, usize)> = Vec::new();
    for (lblk, block) in blocks {
        let way = geometry.path(lblk).ok_or_else(|| Error::unsupported("a block behind the last that pointers map"))?;
        while path.pop_if(|(range, _)| !range.contains(&lblk.0.into())).is_some() {}
        for step in path.len()..way.levels {
            let node = next_block(block).ok_or_else(|| Error::unsupported("no blocks left for pointers"))?;
            put(&mut tree, &path, way.offsets[step], node)?;
            let first = u64::from(lblk.0) - way.inside(step, &geometry);
            path.push((first..first + way.span(step, &geometry), tree.blocks.len()));
            tree.blocks.push((node, vec![0; block_size as usize]));
        }
        put(&mut tree, &path, way.offsets[way.levels], block)?;
    }
    Ok(tree)
}

/// Sets a pointer of the lowest block of the path, or of the root.
fn put(tree: &mut PackedTree, path: &[(Range<u64>, usize)], slot: u32, block: BlockNr) -> Result<()> {
    let bytes = path.last().map_or(&mut tree.root[..], |(_, at)| &mut tree.blocks[*at].1[..]);
    let number = u32::try_from(block.0).ok();
    let is_set = number.is_some_and(|number| set_pointer(bytes, slot as usize, number));
    is_set.then_some(()).ok_or_else(|| Error::unsupported("a block whose number has more than 32 bits"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::indirect::pointer;

    /// The block to which the pointers lead.
    fn look_up(tree: &PackedTree, lblk: u32) -> Option<u32> {
        let way = Geometry::new(1024).path(LogicalBlock(lblk))?;
        let mut at = pointer(&tree.root, way.offsets[0] as usize)?;
        for step in 1..=way.levels {
            let bytes = &tree.blocks.iter().find(|(block, _)| block.0 == u64::from(at))?.1;
            at = pointer(bytes, way.offsets[step] as usize)?;
        }
        Some(at).filter(|block| *block != 0)
    }

    #[test]
    fn pointers_lead_to_each_block_of_the_list_and_to_no_other() {
        let lists: [&[u32]; 3] =
            [&[], &[0, 5, 11, 12, 267, 268, 523, 524, 65_803, 65_804, 16_000_000], &[70_000, 70_001, 140_000]];
        for list in lists {
            let mut next = 1000;
            let blocks = list.iter().map(|lblk| (LogicalBlock(*lblk), BlockNr(u64::from(*lblk) + 100_000)));
            let tree = pack_pointers(1024, blocks, |goal| {
                assert!(goal.0 >= 100_000);
                next += 1;
                Some(BlockNr(next))
            });
            let tree = tree.expect("packed");
            assert_eq!(tree.blocks.len() as u64, next - 1000);
            for lblk in list.iter().flat_map(|lblk| [lblk.saturating_sub(1), *lblk, lblk + 1]) {
                assert_eq!(look_up(&tree, lblk), list.contains(&lblk).then_some(lblk + 100_000), "{lblk}");
            }
        }
    }

    #[test]
    fn blocks_of_pointers_come_before_their_targets() {
        let mut order = Vec::new();
        let blocks = (0..12 + 256 + 300).map(|lblk| (LogicalBlock(lblk), BlockNr(u64::from(lblk) + 1)));
        let tree = pack_pointers(1024, blocks, |goal| {
            order.push(goal.0 - 1);
            Some(BlockNr(100_000 + order.len() as u64))
        });
        assert_eq!((tree.expect("packed").blocks.len(), order), (4, vec![12, 268, 268, 524]));
    }

    #[test]
    fn a_tree_without_blocks_or_with_large_numbers_is_refused() {
        let one = |lblk, block| [(LogicalBlock(lblk), BlockNr(block))].into_iter();
        assert!(pack_pointers(1024, one(12, 5), |_| None).is_err());
        assert!(pack_pointers(1024, one(0, 1 << 32), |_| None).is_err());
        assert!(pack_pointers(1024, one(12, 5), |_| Some(BlockNr(1 << 32))).is_err());
        assert!(pack_pointers(1024, one(u32::MAX, 5), |_| Some(BlockNr(7))).is_err());
        assert!(pack_pointers(1024, one(11, 5), |_| None).is_ok());
    }
}
