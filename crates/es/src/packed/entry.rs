//! An entry packed into 12 bytes: [`Packed`].
//!
//! A mapped run consists of its first logical block (32 bits), its place (48 bits, as in ext4), its kind (2 bits) and
//! its length (14 bits). An unmapped run has no place, and those bits contain a length of 32 bits. So a mapped run of
//! more than [`LONGEST`] blocks takes several entries (the longest extent on disk takes two), and a hole or a delayed
//! run takes one.
//!
//! What it does not do: check lengths. Callers must call [`longest`] before they pack.
//!
//! # Locking
//! None.

use extant_ondisk::{BlockNr, LogicalBlock};

use crate::{EsEntry, EsState};

/// The longest mapped run of one entry, in blocks.
pub const LONGEST: u32 = 1 << 14;
const PLACES: u64 = 1 << 48;

const WRITTEN: u32 = 0;
const UNWRITTEN: u32 = 1;
const DELAYED: u32 = 2;
const HOLE: u32 = 3;

/// The first block; the low half of the place, or the length minus one; the high half of the place (16 bits), the kind
/// (2) and the length minus one (14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed([u32; 3]);

/// The maximum number of blocks of a run in `state` that one entry can contain; 0 if the place is beyond any file
/// system.
pub fn longest(state: EsState) -> u32 {
    match state {
        EsState::Written(place) | EsState::Unwritten(place) => {
            u64::from(LONGEST).min(PLACES.saturating_sub(place.0)) as u32
        }
        EsState::Delayed | EsState::Hole => u32::MAX,
    }
}

impl Packed {
    /// The content of unused slots.
    pub const NOTHING: Packed = Packed([0; 3]);

    /// Packs `e`, which must not exceed [`longest`].
    pub fn new(e: EsEntry) -> Packed {
        debug_assert!((1..=longest(e.state)).contains(&e.len));
        let mapped = |place: BlockNr, kind: u32| {
            Packed([e.lblk.0, place.0 as u32, ((place.0 >> 32) as u32) << 16 | kind << 14 | (e.len - 1)])
        };
        match e.state {
            EsState::Written(place) => mapped(place, WRITTEN),
            EsState::Unwritten(place) => mapped(place, UNWRITTEN),
            EsState::Delayed => Packed([e.lblk.0, e.len - 1, DELAYED << 14]),
            EsState::Hole => Packed([e.lblk.0, e.len - 1, HOLE << 14]),
        }
    }

    pub fn lblk(self) -> u32 {
        self.0[0]
    }

    pub fn is_delayed(self) -> bool {
        self.0[2] >> 14 & 3 == DELAYED
    }

    pub fn len(self) -> u32 {
        match self.0[2] >> 14 & 3 {
            DELAYED | HOLE => self.0[1] + 1,
            _ => (self.0[2] & (LONGEST - 1)) + 1,
        }
    }

    pub fn unpack(self) -> EsEntry {
        let place = BlockNr(u64::from(self.0[2] >> 16) << 32 | u64::from(self.0[1]));
        let state = match self.0[2] >> 14 & 3 {
            WRITTEN => EsState::Written(place),
            UNWRITTEN => EsState::Unwritten(place),
            DELAYED => EsState::Delayed,
            _ => EsState::Hole,
        };
        EsEntry { lblk: LogicalBlock(self.lblk()), len: self.len(), state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twelve_bytes_hold_every_kind_to_its_limits() {
        assert_eq!(size_of::<Packed>(), 12);
        for lblk in [0, 1, 0xFFFF_FFFE] {
            for len in [1, 2, LONGEST, LONGEST + 1, u32::MAX] {
                for place in [0, 1, 0xFFFF_FFFF, 1 << 32, PLACES - u64::from(LONGEST), PLACES - 1, PLACES, u64::MAX] {
                    let place = BlockNr(place);
                    for state in [EsState::Written(place), EsState::Unwritten(place), EsState::Delayed, EsState::Hole] {
                        let e = EsEntry { lblk: LogicalBlock(lblk), len: len.min(longest(state)), state };
                        if e.len > 0 {
                            assert_eq!(Packed::new(e).unpack(), e);
                            assert_eq!(Packed::new(e).is_delayed(), state == EsState::Delayed);
                        } else {
                            assert!(place.0 >= PLACES);
                        }
                    }
                }
            }
        }
    }
}
