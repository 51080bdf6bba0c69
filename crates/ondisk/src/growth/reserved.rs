//! The blocks of the resize inode: those reserved for descriptors, and their copies.
//!
//! Main type: [`ReservedBlocks`]. The double indirect block of the inode points to the reserved blocks after the
//! primary descriptors. Each of these points to its copies (Linux: `reserve_backup_gdb`, fs/ext4/resize.c).
//!
//! # Locking
//! None.

use zerocopy::FromBytes;

use crate::inode::{RawInode, update_checksum};
use crate::superblock::Geometry;
use crate::{BlockNr, GroupNr, InodeNr, indirect};

/// The content of the resize inode's blocks.
pub struct ReservedBlocks<'a> {
    geo: &'a Geometry,
    backups: Vec<GroupNr>,
    first: u64,
}

impl<'a> ReservedBlocks<'a> {
    /// The slot of the double indirect block, which is the only one that the inode uses.
    pub const DOUBLE: usize = 13;

    /// The blocks for a file system with this layout.
    pub fn new(geo: &'a Geometry) -> ReservedBlocks<'a> {
        let first = geo.super_location(GroupNr(0)).0.0 + 1 + u64::from(geo.desc_blocks);
        ReservedBlocks { geo, backups: geo.backup_groups().collect(), first }
    }

    /// The reserved blocks after the primary descriptors.
    pub fn blocks(&self) -> impl Iterator<Item = BlockNr> + use<> {
        (self.first..self.first + u64::from(self.geo.reserved_gdt_blocks)).map(BlockNr)
    }

    /// The double indirect block; `None` if a number does not fit.
    pub fn double(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geo.block_size as usize];
        for block in self.blocks() {
            put(&mut bytes, self.slot(block), block.0)?;
        }
        Some(bytes)
    }

    /// The pointer of the double indirect block that names a reserved block.
    pub fn slot(&self, block: BlockNr) -> usize {
        let index = u64::from(self.geo.desc_blocks) + block.0.saturating_sub(self.first);
        (index % u64::from(self.geo.block_size / 4)) as usize
    }

    /// The content of a reserved block: its copies. `None`: a number does not fit, or there are too many.
    pub fn copies(&self, block: BlockNr) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geo.block_size as usize];
        self.copies_of(block).enumerate().try_for_each(|(slot, copy)| put(&mut bytes, slot, copy))?;
        Some(bytes)
    }

    /// The copies of a reserved block, in the order in which it names them.
    pub fn copies_of(&self, block: BlockNr) -> impl Iterator<Item = u64> + '_ {
        let size = u64::from(self.geo.blocks_per_group);
        self.backups.iter().map(move |group| block.0 + u64::from(group.0) * size)
    }

    /// The double indirect block, by the bytes of the inode; 0 for none.
    pub fn double_of(inode: &[u8]) -> BlockNr {
        let raw = RawInode::ref_from_prefix(inode).ok();
        let block = raw.and_then(|(raw, _)| indirect::pointer(&raw.i_block, Self::DOUBLE));
        BlockNr(block.unwrap_or(0).into())
    }

    /// Writes the number of blocks and the checksum into the bytes of the inode.
    pub fn store_blocks(&self, inode: &mut [u8]) {
        if let Ok((raw, _)) = RawInode::mut_from_prefix(inode) {
            raw.i_blocks_lo.set(self.sectors());
        }
        update_checksum(inode, InodeNr::RESIZE, self.geo);
    }

    /// The number of 512-byte sectors that the inode has.
    pub fn sectors(&self) -> u32 {
        let blocks = 1 + u64::from(self.geo.reserved_gdt_blocks) * (1 + self.backups.len() as u64);
        ((blocks << self.geo.cluster_bits) * u64::from(self.geo.block_size / 512)) as u32
    }
}

fn put(bytes: &mut [u8], slot: usize, block: u64) -> Option<()> {
    let block = u32::try_from(block).ok()?;
    indirect::set_pointer(bytes, slot, block).then_some(())
}
