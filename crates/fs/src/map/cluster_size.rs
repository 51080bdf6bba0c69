//! The arithmetic of clusters: [`ClusterSize`].
//!
//! # Locking
//! None.

use std::ops::Range;

/// log2 of the number of blocks in a cluster, with conversions between blocks and clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterSize(u32);

impl ClusterSize {
    /// Clusters of 2^`bits` blocks.
    pub fn new(bits: u32) -> ClusterSize {
        ClusterSize(bits)
    }

    /// Whether a cluster is a single block.
    pub fn is_one(self) -> bool {
        self.0 == 0
    }

    /// The number of blocks in a cluster.
    pub fn blocks(self) -> u32 {
        1 << self.0
    }

    /// The cluster of a block; the block may be logical or physical.
    pub fn of(self, block: u64) -> u64 {
        block >> self.0
    }

    /// The first block of a cluster.
    pub fn first_block(self, cluster: u64) -> u64 {
        cluster << self.0
    }

    /// The block's index in its cluster.
    pub fn offset(self, block: u64) -> u32 {
        (block & (u64::from(self.blocks()) - 1)) as u32
    }

    /// The number of clusters that contain this number of blocks.
    pub fn for_blocks(self, blocks: u64) -> u64 {
        blocks.div_ceil(u64::from(self.blocks()))
    }

    /// The clusters that contain any block of the range.
    pub fn around(self, blocks: Range<u64>) -> Range<u64> {
        self.of(blocks.start)..self.for_blocks(blocks.end)
    }

    /// The clusters that lie wholly in the range.
    pub fn within(self, blocks: Range<u64>) -> Range<u64> {
        let start = self.for_blocks(blocks.start);
        start..self.of(blocks.end).max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_clusters_and_places_in_them() {
        let size = ClusterSize::new(4);
        assert_eq!((size.of(31), size.offset(31), size.first_block(1), size.for_blocks(17)), (1, 15, 16, 2));
        assert_eq!((size.around(15..17), size.around(16..32), size.around(3..4)), (0..2, 1..2, 0..1));
        assert_eq!((size.within(15..48), size.within(17..31), size.within(0..16)), (1..3, 2..2, 0..1));
        let one = ClusterSize::new(0);
        assert_eq!((one.of(31), one.offset(31), one.around(3..9), one.within(3..9)), (31, 0, 3..9, 3..9));
    }
}
