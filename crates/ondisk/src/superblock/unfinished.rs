//! The superblock's note that a repair is being written, with the file that undoes it.
//!
//! Main functions: [`RawSuperBlock::note_repair`], [`RawSuperBlock::repair_under_way`].
//!
//! While a repair is written block by block, the superblock is marked as not clean, and its reserved bytes, which other
//! programs preserve, contain a note. The note has a checksum over the whole superblock: after another program has
//! written the superblock, the note is invalid.
//!
//! A disk writes the two sectors of a superblock separately. The note is in the second sector. It also contains a
//! checksum of the first sector before the repair. So the note can be written and removed while the first sector is
//! still the old one. An interrupted write never combines the new first sector, which may contain the new size of the
//! file system, with the old second one.
//!
//! # Locking
//! None.

use std::mem::offset_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{FsState, RawSuperBlock};
use crate::csum::crc32c;

/// The start of the data that the note's checksum covers.
const NOTE: &[u8] = b"Extant: repair under way";
/// The number of words before the name: the checksum and the length of the name.
const HEAD_WORDS: usize = 2;
/// The index of the word with the checksum for the old first sector; the word is 0 if there is none.
const OLD_SUM: usize = 93;
/// The size of a sector in bytes.
const SECTOR: usize = 512;
/// The maximum length of a name in bytes.
const NAME_MAX: usize = 360;

impl RawSuperBlock {
    /// Records that a repair is being written and that `file` undoes it, and marks the file system as damaged. If the
    /// name is too long, its end is stored. `old` is the superblock before the repair; with its first sector, the note
    /// is valid, too. This must be the last change, except for the superblock's own checksum.
    pub fn note_repair(&mut self, file: &[u8], old: &RawSuperBlock) {
        let file = &file[file.len().saturating_sub(NAME_MAX)..];
        let state = FsState::from_bits_retain(self.s_state.get());
        self.s_state.set(((state | FsState::ERROR) - FsState::VALID).bits());
        let mut words = [U32::ZERO; 94];
        words[1] = U32::new(file.len() as u32);
        words.as_mut_bytes()[4 * HEAD_WORDS..4 * HEAD_WORDS + file.len()].copy_from_slice(file);
        self.s_reserved = words;
        let sums = [self.repair_checksum(), self.with_first_sector(old).repair_checksum()];
        self.s_reserved[0] = U32::new(sums[0]);
        self.s_reserved[OLD_SUM] = U32::new(sums[1]);
    }

    /// Returns the superblock with the first sector of another one.
    pub fn with_first_sector(&self, other: &RawSuperBlock) -> RawSuperBlock {
        let mut raw = *self;
        raw.as_mut_bytes()[..SECTOR].copy_from_slice(&other.as_bytes()[..SECTOR]);
        raw
    }

    /// The file of [`RawSuperBlock::note_repair`], if no other program has written the superblock since.
    pub fn repair_under_way(&self) -> Option<&[u8]> {
        let length = self.s_reserved[1].get() as usize;
        let noted = self.s_reserved[0].get() != 0 && length <= NAME_MAX;
        let bytes = self.s_reserved.as_bytes();
        let sums = [self.s_reserved[0].get(), self.s_reserved[OLD_SUM].get()];
        (noted && sums.contains(&self.repair_checksum())).then(|| &bytes[4 * HEAD_WORDS..4 * HEAD_WORDS + length])
    }

    fn repair_checksum(&self) -> u32 {
        let mut raw = *self;
        raw.s_reserved[0] = U32::ZERO;
        raw.s_reserved[OLD_SUM] = U32::ZERO;
        crc32c(crc32c(!0, NOTE), &raw.as_bytes()[..offset_of!(RawSuperBlock, s_checksum)])
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    #[test]
    fn a_note_counts_until_the_superblock_changes() {
        let mut raw = RawSuperBlock::new_zeroed();
        assert_eq!(raw.repair_under_way(), None);
        raw.s_state.set(1);
        let old = raw;
        raw.s_blocks_count_lo.set(9);
        raw.note_repair(b"/var/tmp/disk.undo", &old);
        assert_eq!(raw.repair_under_way(), Some(&b"/var/tmp/disk.undo"[..]));
        assert_eq!(raw.s_state.get(), 2);
        raw.s_checksum.set(77);
        assert!(raw.repair_under_way().is_some(), "its own checksum does not count");
        let before = raw.with_first_sector(&old);
        assert_eq!((before.s_blocks_count_lo.get(), before.s_state.get()), (0, 1));
        assert!(before.repair_under_way().is_some(), "the old first sector");
        raw.s_mnt_count.set(1);
        assert_eq!(raw.repair_under_way(), None);
        raw.note_repair(&[b'x'; 500], &old);
        assert_eq!(raw.repair_under_way().map(<[u8]>::len), Some(NAME_MAX));
    }
}
