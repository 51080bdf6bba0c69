//! Block pointers of ext2 and ext3 as bytes: 12 direct pointers in `i_block`, then trees of one, two and three levels
//! of pointer blocks.
//!
//! Main types: [`Geometry`] (sizes implied by the block size), [`IndirectPath`] (the place of a logical block's
//! pointer), [`IndirectDamage`] (one fault of a block of pointers), [`Stream`] and [`pack_pointers`] (both lay out
//! whole files). A pointer is a little-endian u32; 0 is a hole. Linux: `ext4_block_to_path` and `Indirect`,
//! fs/ext4/indirect.c.
//!
//! What it does not do: I/O, or checksums (pointer blocks have none).
//!
//! # Locking
//! None.

mod pack;
mod stream;

pub use pack::pack_pointers;
pub use stream::{Part, Stream};

use crate::damage::{Damage, refuse};
use crate::{BlockNr, LogicalBlock, Result, Structure};

/// The number of pointers in `i_block` that map data directly.
pub const DIRECT: u32 = 12;
/// The number of slots in `i_block`: 12 direct pointers and the roots of the three trees.
pub const SLOTS: usize = 15;
/// The maximum number of levels of pointer blocks.
pub const LEVELS_MAX: usize = 3;
/// The size of a pointer, in bytes.
pub const POINTER_BYTES: usize = 4;
/// One past the highest block number that fits in a pointer.
pub const POINTER_END: u64 = 1 << 32;

/// Sizes of pointer trees implied by the block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The number of pointers in one pointer block.
    pub per_block: u32,
}

/// The place of a logical block's pointer: first a slot of `i_block`, then an entry in each pointer block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectPath {
    /// The number of levels of pointer blocks below the slot, 0..=3.
    pub levels: usize,
    /// `offsets[0]` is the slot in `i_block`; `offsets[1..=levels]` are entries in pointer blocks.
    pub offsets: [u32; LEVELS_MAX + 1],
}

/// The place of a pointer block in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PointerBlock {
    /// The first logical block below it.
    pub first: LogicalBlock,
    /// The number of levels of pointer blocks from this one down: 1 if it points to data, at most 3.
    pub level: u8,
}

impl Geometry {
    /// The geometry for a block size in bytes.
    pub const fn new(block_size: u32) -> Geometry {
        Geometry { per_block: block_size / POINTER_BYTES as u32 }
    }

    /// The number of logical blocks below one pointer that is `level` pointer blocks above the data: 1 (the pointer
    /// leads to data), p, p², p³.
    pub const fn span(&self, level: usize) -> u64 {
        (self.per_block as u64).pow(level as u32)
    }

    /// One past the last logical block that the format can map; at most 2³²-1, as for extents.
    pub fn logical_end(&self) -> u32 {
        let end = u64::from(DIRECT) + self.span(1) + self.span(2) + self.span(3);
        end.min(u64::from(u32::MAX)) as u32
    }

    /// The path of `lblk`; `None` beyond [`Geometry::logical_end`].
    pub fn path(&self, lblk: LogicalBlock) -> Option<IndirectPath> {
        if lblk.0 >= self.logical_end() {
            return None;
        }
        if lblk.0 < DIRECT {
            return Some(IndirectPath { levels: 0, offsets: [lblk.0, 0, 0, 0] });
        }
        let mut rest = u64::from(lblk.0 - DIRECT);
        for levels in 1..=LEVELS_MAX {
            if rest < self.span(levels) {
                let mut offsets = [DIRECT + levels as u32 - 1, 0, 0, 0];
                for (i, offset) in offsets.iter_mut().enumerate().skip(1).take(levels) {
                    let span = self.span(levels - i);
                    *offset = (rest / span) as u32;
                    rest %= span;
                }
                return Some(IndirectPath { levels, offsets });
            }
            rest -= self.span(levels);
        }
        None
    }

    /// The first logical block below slot `slot` of `i_block`, and the number of levels of pointer blocks there.
    pub fn slot_start(&self, slot: usize) -> Option<(u64, usize)> {
        match slot {
            0..=11 => Some((slot as u64, 0)),
            12 => Some((u64::from(DIRECT), 1)),
            13 => Some((u64::from(DIRECT) + self.span(1), 2)),
            14 => Some((u64::from(DIRECT) + self.span(1) + self.span(2), 3)),
            _ => None,
        }
    }
}

impl IndirectPath {
    /// The distance of `lblk` from the first logical block below the pointer `offsets[step]`.
    pub fn inside(&self, step: usize, geometry: &Geometry) -> u64 {
        (step + 1..=self.levels).map(|i| u64::from(self.offsets[i]) * geometry.span(self.levels - i)).sum()
    }

    /// The pointer block that `offsets[step]` points to on the path to `lblk`; `None` for the last step, which points
    /// to data.
    pub fn names(&self, step: usize, lblk: LogicalBlock, geometry: &Geometry) -> Option<PointerBlock> {
        let level = self.levels.checked_sub(step).filter(|level| *level > 0)?;
        let first = LogicalBlock((u64::from(lblk.0) - self.inside(step, geometry)) as u32);
        Some(PointerBlock { first, level: level as u8 })
    }

    /// The number of logical blocks below the pointer `offsets[step]`.
    pub fn span(&self, step: usize, geometry: &Geometry) -> u64 {
        geometry.span(self.levels - step.min(self.levels))
    }
}

/// Pointer `i` of a pointer block or of `i_block`; `None` beyond its end.
pub fn pointer(bytes: &[u8], i: usize) -> Option<u32> {
    let at = i.checked_mul(POINTER_BYTES)?;
    bytes.get(at..at.checked_add(POINTER_BYTES)?)?.try_into().ok().map(u32::from_le_bytes)
}

/// Stores pointer `i`; returns false beyond the end.
#[must_use]
pub fn set_pointer(bytes: &mut [u8], i: usize, block: u32) -> bool {
    let Some(at) = i.checked_mul(POINTER_BYTES) else { return false };
    match bytes.get_mut(at..at.saturating_add(POINTER_BYTES)) {
        Some(room) if room.len() == POINTER_BYTES => {
            room.copy_from_slice(&block.to_le_bytes());
            true
        }
        _ => false,
    }
}

/// Whether no pointer is set.
pub fn is_empty(bytes: &[u8]) -> bool {
    bytes.iter().all(|b| *b == 0)
}

/// One fault of a block of pointers, or of `i_block` as such a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndirectDamage {
    /// A pointer refers to a block that no file can own.
    #[error("pointer {index} names block {block}, which no file can own")]
    Pointer {
        /// The index of the pointer in the block.
        index: u32,
        /// The block that the pointer refers to.
        block: u32,
    },
    /// A pointer is set for a block past the last one that the format can map.
    #[error("pointer {index} names block {block} for logical block {lblk}, more than a file can have")]
    BehindEnd {
        /// The index of the pointer in the block.
        index: u32,
        /// The block that the pointer refers to.
        block: u32,
        /// The first logical block below the pointer.
        lblk: u64,
    },
}

impl Damage for IndirectDamage {
    fn is_fatal(&self) -> bool {
        matches!(self, IndirectDamage::Pointer { .. })
    }
}

/// All pointers that are set, each with its index and the block that it refers to.
pub fn pointers(bytes: &[u8]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let word = |raw: &[u8; POINTER_BYTES]| u32::from_le_bytes(*raw);
    let numbered = bytes.as_chunks::<POINTER_BYTES>().0.iter().enumerate();
    numbered.map(move |(i, raw)| (i as u32, word(raw))).filter(|(_, block)| *block != 0)
}

/// Reports every pointer of a block that is set but not accepted by `valid`.
pub fn damage(bytes: &[u8], valid: impl Fn(BlockNr) -> bool, sink: &mut impl FnMut(IndirectDamage)) {
    for (index, block) in pointers(bytes) {
        if !valid(BlockNr(block.into())) {
            sink(IndirectDamage::Pointer { index, block });
        }
    }
}

/// Checks a pointer block: `valid` must accept every pointer that is set. `number` is the block, for messages.
///
/// # Errors
/// `Corrupt` with the first pointer that `valid` refuses.
pub fn validate(bytes: &[u8], number: u64, valid: impl Fn(BlockNr) -> bool) -> Result<()> {
    refuse(Structure::IndirectBlock, number, |mut sink| damage(bytes, valid, &mut sink))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_at_level_borders_are_exact() {
        let g = Geometry::new(1024);
        let p = |lblk| g.path(LogicalBlock(lblk)).map(|p| (p.levels, p.offsets));
        assert_eq!(p(0), Some((0, [0, 0, 0, 0])));
        assert_eq!(p(11), Some((0, [11, 0, 0, 0])));
        assert_eq!(p(12), Some((1, [12, 0, 0, 0])));
        assert_eq!(p(12 + 255), Some((1, [12, 255, 0, 0])));
        assert_eq!(p(12 + 256), Some((2, [13, 0, 0, 0])));
        assert_eq!(p(12 + 256 + 65535), Some((2, [13, 255, 255, 0])));
        assert_eq!(p(12 + 256 + 65536), Some((3, [14, 0, 0, 0])));
        assert_eq!(g.logical_end(), 12 + 256 + 65536 + 16_777_216);
        assert_eq!(p(g.logical_end() - 1), Some((3, [14, 255, 255, 255])));
        assert_eq!(p(g.logical_end()), None);
        assert_eq!(Geometry::new(65536).logical_end(), u32::MAX);
        assert_eq!(Geometry::new(65536).path(LogicalBlock(u32::MAX)), None);
        assert!(Geometry::new(65536).path(LogicalBlock(u32::MAX - 1)).is_some());
    }

    #[test]
    fn pointers_read_back() {
        let mut bytes = [0; 1024];
        assert!(is_empty(&bytes));
        assert!(set_pointer(&mut bytes, 255, 0x0403_0201));
        assert!(!set_pointer(&mut bytes, 256, 1));
        assert_eq!(&bytes[1020..], [1, 2, 3, 4]);
        assert_eq!(pointer(&bytes, 255), Some(0x0403_0201));
        assert_eq!(pointer(&bytes, 256), None);
        assert!(!is_empty(&bytes));
        assert!(validate(&bytes, 5, |b| b.0 > 0x0403_0201).is_err());
        assert!(validate(&bytes, 5, |b| b.0 == 0x0403_0201).is_ok());
    }

    #[test]
    fn every_pointer_outside_is_reported() {
        let mut bytes = [0; 1024];
        assert!(
            set_pointer(&mut bytes, 3, 999) && set_pointer(&mut bytes, 7, 1000) && set_pointer(&mut bytes, 9, 1001)
        );
        let found = crate::damage::all(|mut sink| damage(&bytes, |b| b.0 < 1000, &mut sink));
        let expected = [(7, 1000), (9, 1001)].map(|(index, block)| IndirectDamage::Pointer { index, block });
        assert_eq!(found, expected);
        let error = validate(&bytes, 5, |b| b.0 < 1000).unwrap_err().to_string();
        assert_eq!(error, "indirect block 5: pointer 7 names block 1000, which no file can own");
    }

    proptest! {
        #[test]
        fn path_and_back(lblk in any::<u32>(), shift in 0u32..7) {
            let g = Geometry::new(1024 << shift);
            if let Some(path) = g.path(LogicalBlock(lblk)) {
                let (start, levels) = g.slot_start(path.offsets[0] as usize).unwrap();
                prop_assert_eq!(levels, path.levels);
                prop_assert_eq!(start + path.inside(0, &g), u64::from(lblk));
                for step in 0..=levels {
                    prop_assert!(path.inside(step, &g) < path.span(step, &g));
                }
                prop_assert_eq!(path.span(levels, &g), 1);
            } else {
                prop_assert!(lblk >= g.logical_end());
            }
        }
    }
}
