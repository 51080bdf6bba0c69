//! Bitmaps of blocks (clusters) and inodes: little-endian bit order, bit 0 is the lowest bit of byte 0.
//!
//! Main functions: [`test()`], [`set_range`], [`find_next_zero`], [`count_zeros`] and their relatives on plain byte
//! slices; [`init_block_bitmap`] and [`init_inode_bitmap`] for groups whose bitmap was never written. Bits outside the
//! slice read as set, and setting them does nothing, so no index from an image can reach past the end. Checksums are
//! handled by [`crate::group_desc::GroupDesc`].
//!
//! # Locking
//! None.

use crate::GroupNr;
use crate::group_desc::GroupDesc;
use crate::superblock::Geometry;
use std::ops::Range;

const WORD_BITS: u32 = u64::BITS;
const WORD_BYTES: usize = 8;

/// Whether a bit is set. Bits past the end count as set.
#[inline]
pub fn test(bitmap: &[u8], bit: u32) -> bool {
    bitmap.get(bit as usize / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0)
}

/// Sets a bit and returns whether it was set before.
#[inline]
pub fn set(bitmap: &mut [u8], bit: u32) -> bool {
    let Some(byte) = bitmap.get_mut(bit as usize / 8) else { return true };
    let was = *byte & (1 << (bit % 8)) != 0;
    *byte |= 1 << (bit % 8);
    was
}

/// Clears a bit and returns whether it was set before.
#[inline]
pub fn clear(bitmap: &mut [u8], bit: u32) -> bool {
    let Some(byte) = bitmap.get_mut(bit as usize / 8) else { return true };
    let was = *byte & (1 << (bit % 8)) != 0;
    *byte &= !(1 << (bit % 8));
    was
}

/// Sets all bits of a range.
pub fn set_range(bitmap: &mut [u8], range: Range<u32>) {
    apply(bitmap, range, |byte, mask| *byte |= mask, 0xff);
}

/// Clears all bits of a range.
pub fn clear_range(bitmap: &mut [u8], range: Range<u32>) {
    apply(bitmap, range, |byte, mask| *byte &= !mask, 0);
}

/// Edits the bytes at both ends through a mask, and fills the whole bytes between them.
fn apply(bitmap: &mut [u8], range: Range<u32>, edit: impl Fn(&mut u8, u8), fill: u8) {
    let end = clip(bitmap, range.end);
    if range.start >= end {
        return;
    }
    let (first, last) = (range.start as usize / 8, (end - 1) as usize / 8);
    let head = 0xffu8 << (range.start % 8);
    let tail = 0xffu8 >> (7 - (end - 1) % 8);
    if first == last {
        edit(&mut bitmap[first], head & tail);
        return;
    }
    edit(&mut bitmap[first], head);
    bitmap[first + 1..last].fill(fill);
    edit(&mut bitmap[last], tail);
}

/// The first clear bit in a range.
pub fn find_next_zero(bitmap: &[u8], range: Range<u32>) -> Option<u32> {
    find(bitmap, range, !0)
}

/// The first set bit in a range.
pub fn find_next_one(bitmap: &[u8], range: Range<u32>) -> Option<u32> {
    find(bitmap, range, 0)
}

/// The first bit that is set after flipping each word with `flip`.
fn find(bitmap: &[u8], range: Range<u32>, flip: u64) -> Option<u32> {
    let end = clip(bitmap, range.end);
    let mut bit = range.start;
    while bit < end {
        let start = bit - bit % WORD_BITS;
        let word = (word_at(bitmap, start) ^ flip) & (!0 << (bit - start));
        if word != 0 {
            let found = start + word.trailing_zeros();
            return (found < end).then_some(found);
        }
        bit = start + WORD_BITS;
    }
    None
}

/// The number of clear bits in a range. Bits past the end of the bitmap count as set.
pub fn count_zeros(bitmap: &[u8], range: Range<u32>) -> u32 {
    let end = clip(bitmap, range.end);
    if range.start >= end {
        return 0;
    }
    let mut ones = 0;
    let mut bit = range.start;
    while bit < end {
        let start = bit - bit % WORD_BITS;
        let mut word = word_at(bitmap, start) & (!0 << (bit - start));
        if end - start < WORD_BITS {
            word &= (1 << (end - start)) - 1;
        }
        ones += word.count_ones();
        bit = start + WORD_BITS;
    }
    end - range.start - ones
}

/// Whether all bits of a range are clear; true for an empty range.
pub fn is_clear(bitmap: &[u8], range: Range<u32>) -> bool {
    range.is_empty() || (range.end <= clip(bitmap, range.end) && find_next_one(bitmap, range).is_none())
}

/// Whether all bits of a range are set; true for an empty range.
pub fn is_set(bitmap: &[u8], range: Range<u32>) -> bool {
    find_next_zero(bitmap, range).is_none()
}

/// The word that starts at bit `start`, a multiple of 64, padded with zeros past the end.
fn word_at(bitmap: &[u8], start: u32) -> u64 {
    let from = start as usize / 8;
    let bytes = &bitmap[from.min(bitmap.len())..bitmap.len().min(from + WORD_BYTES)];
    let mut word = [0; WORD_BYTES];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

/// `bit`, or the number of bits in the bitmap if that is less.
fn clip(bitmap: &[u8], bit: u32) -> u32 {
    u32::try_from(bitmap.len().saturating_mul(8)).unwrap_or(u32::MAX).min(bit)
}

/// Sets the bits after the `used` real ones, up to the end of the block.
pub fn set_padding(bitmap: &mut [u8], used: u32) {
    let end = clip(bitmap, u32::MAX);
    set_range(bitmap, used..end);
}

/// Whether all bits after the `used` real ones are set, as e2fsck expects.
pub fn padding_is_set(bitmap: &[u8], used: u32) -> bool {
    is_set(bitmap, used..clip(bitmap, u32::MAX))
}

/// Fills `out`, one block, with the block bitmap of a BLOCK_UNINIT group: its superblock and descriptor copies, the
/// bitmaps and tables of all `descs` that lie in it, and the padding. `descs` must contain the group's own descriptor
/// and, with `flex_bg`, the descriptors of every group whose metadata may lie here.
pub fn init_block_bitmap<'a>(
    out: &mut [u8],
    group: GroupNr,
    descs: impl IntoIterator<Item = &'a GroupDesc>,
    geometry: &Geometry,
) {
    out.fill(0);
    let first = geometry.first_block_of_group(group).0;
    let end = first + u64::from(geometry.blocks_in_group(group));
    let mut mark = |start: u64, count: u64| {
        let from = start.max(first);
        let to = start.saturating_add(count).min(end);
        if from < to {
            let bits = geometry.cluster_bits;
            set_range(out, ((from - first) >> bits) as u32..(((to - 1 - first) >> bits) + 1) as u32);
        }
    };
    for (start, count) in geometry.base_metadata(group).ranges() {
        mark(start.0, count.into());
    }
    for desc in descs {
        mark(desc.block_bitmap.0, 1);
        mark(desc.inode_bitmap.0, 1);
        mark(desc.inode_table.0, geometry.inode_table_blocks.into());
    }
    set_padding(out, geometry.clusters_in_group(group));
}

/// Fills `out`, one block, with the inode bitmap of an INODE_UNINIT group: no inode in use, and the padding.
pub fn init_inode_bitmap(out: &mut [u8], geometry: &Geometry) {
    out.fill(0);
    set_padding(out, geometry.inodes_per_group);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn single_bits_are_set_and_cleared() {
        let mut bitmap = [0u8; 4];
        assert!(!set(&mut bitmap, 9));
        assert!(set(&mut bitmap, 9));
        assert_eq!(bitmap, [0, 2, 0, 0]);
        assert!(test(&bitmap, 9) && !test(&bitmap, 8));
        assert!(clear(&mut bitmap, 9));
        assert!(!clear(&mut bitmap, 9));
        assert!(test(&bitmap, 32) && set(&mut bitmap, 32) && clear(&mut bitmap, u32::MAX));
        assert_eq!(bitmap, [0; 4]);
    }

    #[test]
    fn padding_is_set_and_checked() {
        let mut bitmap = [0u8; 4];
        set_padding(&mut bitmap, 13);
        assert_eq!(bitmap, [0, 0xe0, 0xff, 0xff]);
        assert!(padding_is_set(&bitmap, 13) && !padding_is_set(&bitmap, 12));
        assert!(padding_is_set(&bitmap, 32));
    }

    proptest! {
        #[test]
        fn ranges_agree_with_single_bits(
            start in prop::collection::vec(any::<u8>(), 0..40),
            from in 0u32..340,
            to in 0u32..340,
            put in any::<bool>(),
        ) {
            let mut bits: Vec<bool> = (0..start.len() as u32 * 8).map(|bit| test(&start, bit)).collect();
            let mut bitmap = start;
            let inside = |bit: usize| (from..to).contains(&(bit as u32));
            if put { set_range(&mut bitmap, from..to) } else { clear_range(&mut bitmap, from..to) }
            for (bit, value) in bits.iter_mut().enumerate() {
                if inside(bit) { *value = put; }
                prop_assert_eq!(test(&bitmap, bit as u32), *value);
            }
            let (low, high) = (from / 2, to);
            let window = |wanted: bool| (low..high).find(|&bit| bits.get(bit as usize) == Some(&wanted));
            prop_assert_eq!(find_next_zero(&bitmap, low..high), window(false));
            prop_assert_eq!(find_next_one(&bitmap, low..high), window(true));
            let zeros = (low..high).filter(|&bit| bits.get(bit as usize) == Some(&false)).count();
            prop_assert_eq!(count_zeros(&bitmap, low..high), zeros as u32);
            prop_assert_eq!(is_set(&bitmap, low..high), window(false).is_none());
            let beyond = low < high && high as usize > bits.len();
            prop_assert_eq!(is_clear(&bitmap, low..high), window(true).is_none() && !beyond);
        }
    }
}
