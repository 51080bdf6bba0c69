//! Blocks of the orphan file: numbers of inodes that must be deleted or truncated after a crash.
//!
//! Main functions: [`verify`] (magic and checksum of a block), [`slot`] and [`set_slot`] (its entries), [`init`] and
//! [`update_checksum`]. Main type: [`OrphanDamage`] (one fault). What it does not do: handle the list that starts at
//! `s_last_orphan`, which is stored in the inodes themselves.
//!
//! A block consists of `slots` little-endian inode numbers, 0 for free ones, followed by a magic number and a checksum
//! (Linux: `struct ext4_orphan_block_tail`).
//!
//! # Locking
//! None.

use crate::csum::{ChecksumSeed, crc32c};
use crate::damage::{Damage, refuse};
use crate::{BlockNr, InodeNr, Result, Structure};

/// The value of `ob_magic`.
pub const MAGIC: u32 = 0x0b10_ca04;
/// The maximum number of blocks that Linux accepts in an orphan file.
pub const BLOCKS_MAX: u32 = 512;
const TAIL_SIZE: usize = 8;

/// The number of entries in a block of this many bytes.
pub fn slots_per_block(block_size: usize) -> usize {
    block_size.saturating_sub(TAIL_SIZE) / 4
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The inode in a slot; `None` if the slot is free or not in the block. The number is not checked.
pub fn slot(block: &[u8], index: usize) -> Option<InodeNr> {
    if index >= slots_per_block(block.len()) {
        return None;
    }
    word(block, index * 4).filter(|&ino| ino != 0).map(InodeNr)
}

/// All used slots, as index and inode.
pub fn used_slots(block: &[u8]) -> impl Iterator<Item = (usize, InodeNr)> + '_ {
    (0..slots_per_block(block.len())).filter_map(|index| slot(block, index).map(|ino| (index, ino)))
}

/// The first free slot.
pub fn free_slot(block: &[u8]) -> Option<usize> {
    (0..slots_per_block(block.len())).find(|&index| slot(block, index).is_none())
}

/// Fills or frees a slot; the caller then updates the checksum. Returns false if the block has no such slot.
pub fn set_slot(block: &mut [u8], index: usize, ino: Option<InodeNr>) -> bool {
    if index >= slots_per_block(block.len()) {
        return false;
    }
    block[index * 4..index * 4 + 4].copy_from_slice(&ino.map_or(0, |ino| ino.0).to_le_bytes());
    true
}

/// Initializes an empty block, with free slots and the magic number. `seed` is as for [`verify`].
pub fn init(block: &mut [u8], number: BlockNr, seed: Option<ChecksumSeed>) {
    block.fill(0);
    if let Some(at) = block.len().checked_sub(TAIL_SIZE) {
        block[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
    }
    update_checksum(block, number, seed);
}

/// Checks the magic number and, with `metadata_csum`, the checksum of a block. `seed` is the seed of the orphan file's
/// inode ([`ChecksumSeed::for_inode`]), `None` without `metadata_csum`. `number` is the block's number on the device.
///
/// # Errors
/// `Corrupt` if the block is too short, or the magic or the checksum is wrong.
pub fn verify(block: &[u8], number: BlockNr, seed: Option<ChecksumSeed>) -> Result<()> {
    // Accept all inode numbers: whether inodes are orphans is decided when they are read.
    let context = OrphanContext { number, seed, inodes: (0, u32::MAX) };
    refuse(Structure::OrphanFileBlock, number.0, |mut sink| damage(block, &context, &mut sink))
}

/// One fault of a block of the orphan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrphanDamage {
    /// The block has no room for its tail.
    #[error("{found} bytes")]
    Length {
        /// The number of bytes.
        found: u32,
    },
    /// `ob_magic` is wrong.
    #[error("magic {found:#010x}, expected {MAGIC:#010x}")]
    Magic {
        /// The stored value.
        found: u32,
    },
    /// The checksum does not match the bytes.
    #[error("checksum {found:#010x}, computed {expected:#010x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// An entry refers to an inode that cannot be an orphan.
    #[error("entry {index} names {inode}, which cannot be an orphan")]
    Inode {
        /// The index of the slot.
        index: u32,
        /// The stored value.
        inode: InodeNr,
    },
}

impl Damage for OrphanDamage {
    fn is_fatal(&self) -> bool {
        !matches!(self, OrphanDamage::Inode { .. })
    }
}

/// Facts that a block of the orphan file does not contain.
#[derive(Clone, Copy, Debug)]
pub struct OrphanContext {
    /// The block's number on the device.
    pub number: BlockNr,
    /// The seed of the orphan file's inode ([`ChecksumSeed::for_inode`]); `None` without `metadata_csum`.
    pub seed: Option<ChecksumSeed>,
    /// The first inode that is not reserved, and the last inode.
    pub inodes: (u32, u32),
}

/// Reports all damage of a block.
pub fn damage(block: &[u8], context: &OrphanContext, sink: &mut impl FnMut(OrphanDamage)) {
    let tail = block.len().checked_sub(TAIL_SIZE).and_then(|at| Some((word(block, at)?, word(block, at + 4)?)));
    let Some((magic, found)) = tail else {
        return sink(OrphanDamage::Length { found: block.len() as u32 });
    };
    if magic != MAGIC {
        sink(OrphanDamage::Magic { found: magic });
    }
    if let Some(seed) = context.seed {
        let expected = compute_checksum(block, context.number, seed);
        if found != expected {
            sink(OrphanDamage::Checksum { found, expected });
        }
    }
    let (first, last) = context.inodes;
    for (index, inode) in used_slots(block).filter(|(_, inode)| !(first..=last).contains(&inode.0)) {
        sink(OrphanDamage::Inode { index: index as u32, inode });
    }
}

/// Updates the checksum after a change of slots. Does nothing without a seed.
pub fn update_checksum(block: &mut [u8], number: BlockNr, seed: Option<ChecksumSeed>) {
    let (Some(seed), Some(at)) = (seed, block.len().checked_sub(4)) else { return };
    let checksum = compute_checksum(block, number, seed);
    block[at..].copy_from_slice(&checksum.to_le_bytes());
}

/// The checksum over the block's number and the slots, without magic number and padding.
fn compute_checksum(block: &[u8], number: BlockNr, seed: ChecksumSeed) -> u32 {
    crc32c(seed.with_u64(number.0).raw(), &block[..slots_per_block(block.len()) * 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_stored_under_the_checksum() {
        let seed = Some(ChecksumSeed::from_raw(77).for_inode(InodeNr(12), 5));
        let mut block = vec![0xffu8; 1024];
        init(&mut block, BlockNr(90), seed);
        verify(&block, BlockNr(90), seed).unwrap();
        verify(&block, BlockNr(91), seed).unwrap_err();
        verify(&block, BlockNr(91), None).unwrap();
        assert_eq!(slots_per_block(1024), 254);
        assert!(set_slot(&mut block, 253, Some(InodeNr(40))) && !set_slot(&mut block, 254, None));
        assert!(set_slot(&mut block, 0, Some(InodeNr(41))));
        verify(&block, BlockNr(90), seed).unwrap_err();
        update_checksum(&mut block, BlockNr(90), seed);
        verify(&block, BlockNr(90), seed).unwrap();
        assert_eq!(used_slots(&block).collect::<Vec<_>>(), [(0, InodeNr(41)), (253, InodeNr(40))]);
        assert_eq!(free_slot(&block), Some(1));
        assert_eq!(slot(&block, 254), None);
    }

    #[test]
    fn each_damage_is_found_alone() {
        let seed = Some(ChecksumSeed::from_raw(77));
        let context = OrphanContext { number: BlockNr(90), seed, inodes: (11, 100) };
        let found = |block: &[u8]| crate::damage::all(|mut sink| damage(block, &context, &mut sink));
        let mut good = vec![0; 1024];
        init(&mut good, BlockNr(90), seed);
        set_slot(&mut good, 3, Some(InodeNr(100)));
        update_checksum(&mut good, BlockNr(90), seed);
        assert_eq!(found(&good), []);
        let mut bad = good.clone();
        bad[1016] ^= 1;
        assert_eq!(found(&bad), [OrphanDamage::Magic { found: MAGIC ^ 1 }]);
        let mut bad = good.clone();
        bad[1023] ^= 1;
        assert!(matches!(found(&bad)[..], [OrphanDamage::Checksum { .. }]));
        for (index, ino) in [(5, 10), (6, 101)] {
            let mut bad = good.clone();
            set_slot(&mut bad, index as usize, Some(InodeNr(ino)));
            update_checksum(&mut bad, BlockNr(90), seed);
            assert_eq!(found(&bad), [OrphanDamage::Inode { index, inode: InodeNr(ino) }]);
            verify(&bad, BlockNr(90), seed).unwrap();
        }
        assert_eq!(found(&[0; 7]), [OrphanDamage::Length { found: 7 }]);
    }

    #[test]
    fn short_blocks_are_refused() {
        for length in 0..8 {
            let mut block = vec![0u8; length];
            verify(&block, BlockNr(0), None).unwrap_err();
            init(&mut block, BlockNr(0), Some(ChecksumSeed::from_raw(0)));
        }
    }
}
