//! Blocks of the orphan file: inode numbers of what must be deleted or truncated after a crash.
//!
//! Main functions: [`verify`] (magic and checksum of a block), [`slot`] and [`set_slot`] (its entries), [`init`] and
//! [`update_checksum`].
//! It does not know the list that hangs on `s_last_orphan`; that one lives in the inodes themselves.
//!
//! A block is `slots` little-endian inode numbers, 0 where free, then a magic and a checksum (Linux:
//! `struct ext4_orphan_block_tail`).
//!
//! # Locking
//! None.

use crate::csum::{ChecksumSeed, crc32c};
use crate::{BlockNr, Error, InodeNr, Result, Structure};

/// `ob_magic`.
pub const MAGIC: u32 = 0x0b10_ca04;
/// Linux refuses an orphan file of more blocks.
pub const BLOCKS_MAX: u32 = 512;
const TAIL_SIZE: usize = 8;

/// Entries in a block of this many bytes.
pub fn slots_per_block(block_size: usize) -> usize {
    block_size.saturating_sub(TAIL_SIZE) / 4
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// The inode in a slot, `None` when the slot is free or not in the block. The number is not checked.
pub fn slot(block: &[u8], index: usize) -> Option<InodeNr> {
    if index >= slots_per_block(block.len()) {
        return None;
    }
    word(block, index * 4).filter(|&ino| ino != 0).map(InodeNr)
}

/// All used slots: index and inode.
pub fn used_slots(block: &[u8]) -> impl Iterator<Item = (usize, InodeNr)> + '_ {
    (0..slots_per_block(block.len())).filter_map(|index| slot(block, index).map(|ino| (index, ino)))
}

/// The first free slot.
pub fn free_slot(block: &[u8]) -> Option<usize> {
    (0..slots_per_block(block.len())).find(|&index| slot(block, index).is_none())
}

/// Fills or frees a slot; the checksum is the caller's next step. False when the block has no such slot.
pub fn set_slot(block: &mut [u8], index: usize, ino: Option<InodeNr>) -> bool {
    if index >= slots_per_block(block.len()) {
        return false;
    }
    block[index * 4..index * 4 + 4].copy_from_slice(&ino.map_or(0, |ino| ino.0).to_le_bytes());
    true
}

/// Makes an empty block: free slots and the magic. `seed` as for [`verify`].
pub fn init(block: &mut [u8], number: BlockNr, seed: Option<ChecksumSeed>) {
    block.fill(0);
    if let Some(at) = block.len().checked_sub(TAIL_SIZE) {
        block[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
    }
    update_checksum(block, number, seed);
}

/// Checks the magic and, with `metadata_csum`, the checksum of a block. `seed` is the one of the orphan file's inode
/// ([`ChecksumSeed::for_inode`]), `None` without `metadata_csum`; `number` is the block's place on the device.
pub fn verify(block: &[u8], number: BlockNr, seed: Option<ChecksumSeed>) -> Result<()> {
    let corrupt = |detail: String| Error::corrupt(Structure::OrphanFileBlock, number.0, detail);
    let tail = block.len().checked_sub(TAIL_SIZE).and_then(|at| Some((word(block, at)?, word(block, at + 4)?)));
    let Some((magic, stored)) = tail else {
        return Err(corrupt(format!("{} bytes", block.len())));
    };
    if magic != MAGIC {
        return Err(corrupt(format!("magic {magic:#010x}, expected {MAGIC:#010x}")));
    }
    if let Some(seed) = seed {
        let computed = compute_checksum(block, number, seed);
        if stored != computed {
            return Err(corrupt(format!("checksum {stored:#010x}, computed {computed:#010x}")));
        }
    }
    Ok(())
}

/// Sets the checksum after slots changed. Does nothing without a seed.
pub fn update_checksum(block: &mut [u8], number: BlockNr, seed: Option<ChecksumSeed>) {
    let (Some(seed), Some(at)) = (seed, block.len().checked_sub(4)) else { return };
    let checksum = compute_checksum(block, number, seed);
    block[at..].copy_from_slice(&checksum.to_le_bytes());
}

/// The block's number, then the slots; neither magic nor padding.
fn compute_checksum(block: &[u8], number: BlockNr, seed: ChecksumSeed) -> u32 {
    crc32c(seed.with_u64(number.0).raw(), &block[..slots_per_block(block.len()) * 4])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_checksum() {
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
    fn short_blocks_are_refused() {
        for length in 0..8 {
            let mut block = vec![0u8; length];
            verify(&block, BlockNr(0), None).unwrap_err();
            init(&mut block, BlockNr(0), Some(ChecksumSeed::from_raw(0)));
        }
    }
}
