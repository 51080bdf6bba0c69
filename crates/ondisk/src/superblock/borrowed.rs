//! The superblock's part in borrowing a journal: setting and clearing the journal, and noting that one of the two is in
//! progress.
//!
//! Main type: [`JournalPlace`]. While a journal is being added to an image without one, or removed again, blocks that
//! belong together reach the device one by one. Before the first of them, the superblock gets a note in the field that
//! otherwise backs up the journal inode (`s_jnl_blocks`, with `s_jnl_backup_type` 0, so that other programs ignore it).
//! The note contains the places of the journal's blocks, and a checksum over the whole superblock. So it is valid only
//! until another program writes the superblock. After a mount for writing by the kernel, or after a repair, it has no
//! meaning.
//!
//! # Locking
//! None.

use std::mem::offset_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::{FsState, RawSuperBlock, SuperBlock};
use crate::csum::crc32c;
use crate::features::Compat;
use crate::{BlockNr, InodeNr};

/// The value of `s_jnl_backup_type` if `s_jnl_blocks` is a copy of the journal inode (e2fsprogs:
/// `EXT3_JNL_BACKUP_BLOCKS`).
const BACKUP_BLOCKS: u8 = 1;
/// The start of the data that the note's checksum covers. It records whether the image was clean before.
const NOTE_CLEAN: &[u8] = b"Extant: journal under way, clean before";
const NOTE_UNCLEAN: &[u8] = b"Extant: journal under way, unclean before";

/// The place of a journal, taken from its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// `i_block` of the inode: the root of an extent tree, or block numbers.
    pub i_block: [u8; 60],
    /// The size, in bytes.
    pub size: u64,
}

impl JournalPlace {
    fn words(&self, high: u32) -> [U32; 17] {
        let mut words = [U32::ZERO; 17];
        for (word, bytes) in words.iter_mut().zip(self.i_block.as_chunks::<4>().0) {
            *word = U32::from_bytes(*bytes);
        }
        words[15] = U32::new(high);
        words[16] = U32::new(self.size as u32);
        words
    }
}

impl SuperBlock {
    /// Records that the journal is in inode 8.
    pub fn set_internal_journal(&mut self, place: &JournalPlace) {
        self.raw.s_feature_compat = U32::new((self.compat() | Compat::HAS_JOURNAL).bits());
        self.raw.s_journal_inum = U32::new(InodeNr::JOURNAL.0);
        self.raw.s_jnl_backup_type = BACKUP_BLOCKS;
        self.raw.s_jnl_blocks = place.words((place.size >> 32) as u32);
    }

    /// Records that the journal is on the device with this UUID (e2fsprogs: `ext2fs_add_journal_device`). `number` is
    /// the device's number in Linux, which is only a hint; 0 if it is not known.
    pub fn set_external_journal(&mut self, uuid: [u8; 16], number: u32) {
        self.raw.s_feature_compat = U32::new((self.compat() | Compat::HAS_JOURNAL).bits());
        self.raw.s_journal_inum = U32::ZERO;
        self.raw.s_journal_uuid = uuid;
        self.raw.s_journal_dev = U32::new(number);
        self.raw.s_jnl_backup_type = 0;
        self.raw.s_jnl_blocks = [U32::ZERO; 17];
    }

    /// Records that the image has no journal.
    pub fn clear_journal(&mut self) {
        self.raw.s_feature_compat = U32::new(self.compat().difference(Compat::HAS_JOURNAL).bits());
        self.raw.s_journal_inum = U32::ZERO;
        self.raw.s_jnl_backup_type = 0;
        self.raw.s_jnl_blocks = [U32::ZERO; 17];
    }

    /// Records that a journal at `place` (smaller than 4 GiB) is being added or removed, and marks the image as
    /// unclean. `clean` is its state apart from that. This must be the last change before the superblock is written,
    /// because any later change invalidates the note.
    pub fn note_journal_under_way(&mut self, place: &JournalPlace, clean: bool) {
        self.clear_journal();
        self.set_state(self.state().difference(FsState::VALID));
        self.raw.s_jnl_blocks = place.words(0);
        self.raw.s_jnl_blocks[15] = U32::new(self.note_checksum(clean));
    }

    /// The note of [`SuperBlock::note_journal_under_way`], if nothing has changed since: the place of the journal, and
    /// whether the image was clean.
    pub fn journal_under_way(&self) -> Option<(JournalPlace, bool)> {
        let raw = &self.raw;
        let empty = raw.s_jnl_blocks.iter().all(|w| *w == U32::ZERO);
        if empty || raw.s_jnl_backup_type != 0 || self.compat().contains(Compat::HAS_JOURNAL) {
            return None;
        }
        let stored = raw.s_jnl_blocks[15].get();
        let clean = [true, false].into_iter().find(|clean| self.note_checksum(*clean) == stored)?;
        let mut i_block = [0; 60];
        i_block.copy_from_slice(&raw.s_jnl_blocks.as_bytes()[..60]);
        Some((JournalPlace { i_block, size: raw.s_jnl_blocks[16].get().into() }, clean))
    }

    fn note_checksum(&self, clean: bool) -> u32 {
        let mut raw = self.raw;
        raw.s_jnl_blocks[15] = U32::ZERO;
        let start = crc32c(!0, if clean { NOTE_CLEAN } else { NOTE_UNCLEAN });
        crc32c(start, &raw.as_bytes()[..offset_of!(RawSuperBlock, s_checksum)])
    }

    /// Corrects `s_overhead_clusters`, the kernel's count of the file system's own blocks, when the journal is removed.
    /// Subtracts `journal_blocks` if the count includes them. `fixed` is the minimum count without a journal.
    pub fn forget_journal_overhead(&mut self, fixed: BlockNr, journal_blocks: u32) {
        let counted = self.raw.s_overhead_clusters.get();
        if u64::from(counted) >= fixed.0 + u64::from(journal_blocks) {
            self.raw.s_overhead_clusters = U32::new(counted - journal_blocks);
        }
    }
}
