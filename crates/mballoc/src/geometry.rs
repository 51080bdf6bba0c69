//! Where groups begin and end: [`Geometry`].
//!
//! Under `bigalloc` a block of this crate is a cluster, and all numbers here count clusters.
//!
//! # Locking
//! None.

use extant_ondisk::{BlockNr, GroupNr};

use crate::{Error, Result};

/// The geometry of the file system, from the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the file system, including `first_data_block` (Linux: `s_blocks_count`).
    pub blocks_count: u64,
    /// 1 with blocks of 1 KiB, else 0.
    pub first_data_block: u64,
    pub blocks_per_group: u32,
    pub groups: u32,
    /// log2 of the number of file-system blocks that one block here represents (`bigalloc`).
    pub cluster_bits: u32,
    /// Groups per flex group; 1 without `flex_bg`.
    pub flex_bg_size: u32,
    /// RAID stripe in blocks; 0 or 1 for none.
    pub stripe: u32,
    /// Bytes of a file-system block, which is also the size of a bitmap; a power of two.
    pub block_size: u32,
}

impl Geometry {
    /// Refuses geometries for which the arithmetic here does not work.
    pub fn check(&self) -> Result<()> {
        let bad = |detail: &str| Err(Error::Invalid { detail: detail.to_owned() });
        if !self.block_size.is_power_of_two() || !(1024..=65536).contains(&self.block_size) {
            return bad("block size is not a power of two from 1 KiB to 64 KiB");
        }
        if self.blocks_per_group == 0 || self.blocks_per_group > self.block_size * 8 {
            return bad("blocks per group are 0, or more than one bitmap block can hold");
        }
        if self.groups == 0 || self.blocks_count <= self.first_data_block {
            return bad("no groups");
        }
        let blocks = self.blocks_count - self.first_data_block;
        if blocks.div_ceil(u64::from(self.blocks_per_group)) != u64::from(self.groups) {
            return bad("number of groups does not fit the number of blocks");
        }
        if self.flex_bg_size == 0 {
            return bad("flex_bg size is 0");
        }
        Ok(())
    }

    /// `blocks`, without what is more than whole stripes; the search looks for aligned blocks only for whole ones.
    pub fn whole_stripes(&self, blocks: u64) -> u64 {
        match u64::from(self.stripe) {
            0 | 1 => blocks,
            stripe if blocks < stripe => blocks,
            stripe => blocks - blocks % stripe,
        }
    }

    /// The first block of a group.
    pub fn group_start(&self, group: GroupNr) -> BlockNr {
        BlockNr(self.first_data_block + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Blocks in a group: `blocks_per_group`, or fewer in the last one; 0 behind it.
    pub fn blocks_in_group(&self, group: GroupNr) -> u32 {
        let left = self.blocks_count.saturating_sub(self.group_start(group).0);
        left.min(u64::from(self.blocks_per_group)) as u32
    }

    /// The group of a block and the block's index in it; None outside the file system.
    pub fn locate(&self, block: BlockNr) -> Option<(GroupNr, u32)> {
        if block.0 < self.first_data_block || block.0 >= self.blocks_count {
            return None;
        }
        let n = block.0 - self.first_data_block;
        let bpg = u64::from(self.blocks_per_group);
        Some((GroupNr((n / bpg) as u32), (n % bpg) as u32))
    }

    /// The inverse of [`Geometry::locate`].
    pub fn block(&self, group: GroupNr, index: u32) -> BlockNr {
        BlockNr(self.group_start(group).0 + u64::from(index))
    }

    /// The first file-system block of a block here, for messages.
    pub(crate) fn named(&self, block: BlockNr) -> BlockNr {
        BlockNr(block.0 << self.cluster_bits)
    }

    /// The highest order of a buddy.
    pub(crate) fn highest_order(&self) -> u32 {
        self.block_bits() + 1
    }

    /// log2 of the bytes of a bitmap.
    pub(crate) fn block_bits(&self) -> u32 {
        self.block_size.trailing_zeros()
    }

    /// log2 of the bytes that one bit represents.
    pub(crate) fn unit_bits(&self) -> u32 {
        self.block_bits() + self.cluster_bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_tile_the_file_system() {
        let g = Geometry {
            blocks_count: 20_001,
            first_data_block: 1,
            blocks_per_group: 8192,
            groups: 3,
            cluster_bits: 0,
            flex_bg_size: 1,
            stripe: 0,
            block_size: 1024,
        };
        g.check().expect("sane");
        assert_eq!(g.locate(BlockNr(0)), None);
        assert_eq!(g.locate(BlockNr(1)), Some((GroupNr(0), 0)));
        assert_eq!(g.locate(BlockNr(8193)), Some((GroupNr(1), 0)));
        assert_eq!(g.locate(BlockNr(20_000)), Some((GroupNr(2), 3615)));
        assert_eq!(g.locate(BlockNr(20_001)), None);
        assert_eq!(g.blocks_in_group(GroupNr(2)), 3616);
        assert_eq!(g.blocks_in_group(GroupNr(3)), 0);
        assert_eq!(g.block(GroupNr(2), 3615), BlockNr(20_000));
        assert_eq!(Geometry { cluster_bits: 4, ..g.clone() }.named(BlockNr(3)), BlockNr(48));
        assert!(Geometry { groups: 4, ..g.clone() }.check().is_err());
        assert!(Geometry { blocks_per_group: 8193, ..g }.check().is_err());
    }
}
