//! The superblock's note that a repair is being written, and which file undoes it.
//!
//! Main functions: [`RawSuperBlock::note_repair`], [`RawSuperBlock::repair_under_way`].
//!
//! While a repair is written block by block, the superblock is not clean, and has a note in its reserved bytes, which
//! other programs preserve. The note has a checksum over the whole superblock: once another program has written the
//! superblock, the note means nothing.
//!
//! A disk writes the two sectors of a superblock one by one. The note lies in the second, with a second checksum for
//! the first sector of the superblock before the repair. So the note can come and go while the first sector is the old
//! one, and no cut leaves the new first sector, which may say where the file system ends, with the old second one.
//!
//! # Locking
//! None.

use std::mem::offset_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{FsState, RawSuperBlock};
use crate::csum::crc32c;

/// The beginning of the note's checksum.
const NOTE: &[u8] = b"Extant: repair under way";
/// Words before the name: the checksum and the name's length.
const HEAD_WORDS: usize = 2;
/// The word with the checksum for the old first sector; 0: there is none.
const OLD_SUM: usize = 93;
/// Bytes of a sector.
const SECTOR: usize = 512;
/// Bytes of a name.
const NAME_MAX: usize = 360;

impl RawSuperBlock {
    /// Records that a repair is being written which `file` undoes, and marks the file system as damaged. Of a name that
    /// is too long, the end is stored. `old`: the superblock before the repair, whose first sector has the note, too.
    /// Must be the last change but that of the superblock's own checksum.
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

    /// The superblock with the first sector of another one.
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
