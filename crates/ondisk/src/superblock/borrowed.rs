//! The superblock's part in adding a journal to an image for the time of a mount: setting and clearing it, and the
//! note that one of the two is in progress.
//!
//! Main type: [`JournalPlace`]. While a journal is being added to an image without one, or removed again, blocks that
//! belong together reach the device one by one. Before the first of them, the superblock gets a note in the field
//! that otherwise backs up the journal inode (`s_jnl_blocks`, with `s_jnl_backup_type` 0, so that other programs
//! ignore it). The note contains the places of the journal's blocks, and a checksum over the whole superblock. So it
//! is valid only until another program writes the superblock: after a mount for writing by the kernel, or a repair,
//! it means nothing.
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

/// `s_jnl_backup_type`: `s_jnl_blocks` is a copy of the journal inode (e2fsprogs: `EXT3_JNL_BACKUP_BLOCKS`).
const BACKUP_BLOCKS: u8 = 1;
/// The start of the note's checksum, which encodes whether the image was clean before.
const NOTE_CLEAN: &[u8] = b"Extant: journal under way, clean before";
const NOTE_UNCLEAN: &[u8] = b"Extant: journal under way, unclean before";

/// The place of a journal, from its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalPlace {
    /// Its `i_block`: extent root or block numbers.
    pub i_block: [u8; 60],
    /// Bytes.
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
    /// The image has a journal in inode 8 now.
    pub fn set_internal_journal(&mut self, place: &JournalPlace) {
        self.raw.s_feature_compat = U32::new((self.compat() | Compat::HAS_JOURNAL).bits());
        self.raw.s_journal_inum = U32::new(InodeNr::JOURNAL.0);
        self.raw.s_jnl_backup_type = BACKUP_BLOCKS;
        self.raw.s_jnl_blocks = place.words((place.size >> 32) as u32);
    }

    /// The journal is on another device: the one with this UUID (e2fsprogs: `ext2fs_add_journal_device`). `number` is
    /// that of the device in Linux, a hint; 0: not known.
    pub fn set_external_journal(&mut self, uuid: [u8; 16], number: u32) {
        self.raw.s_feature_compat = U32::new((self.compat() | Compat::HAS_JOURNAL).bits());
        self.raw.s_journal_inum = U32::ZERO;
        self.raw.s_journal_uuid = uuid;
        self.raw.s_journal_dev = U32::new(number);
        self.raw.s_jnl_backup_type = 0;
        self.raw.s_jnl_blocks = [U32::ZERO; 17];
    }

    /// The image has no journal any more.
    pub fn clear_journal(&mut self) {
        self.raw.s_feature_compat = U32::new(self.compat().difference(Compat::HAS_JOURNAL).bits());
        self.raw.s_journal_inum = U32::ZERO;
        self.raw.s_jnl_backup_type = 0;
        self.raw.s_jnl_blocks = [U32::ZERO; 17];
    }

    /// Records that a journal at `place` (smaller than 4 GiB) is being added or removed, and marks the image as
    /// unclean; `clean` is its state apart from that. Must be the last change before the superblock is written: any
    /// later one invalidates the note.
    pub fn note_journal_under_way(&mut self, place: &JournalPlace, clean: bool) {
        self.clear_journal();
        self.set_state(self.state().difference(FsState::VALID));
        self.raw.s_jnl_blocks = place.words(0);
        self.raw.s_jnl_blocks[15] = U32::new(self.note_checksum(clean));
    }

    /// The note of [`SuperBlock::note_journal_under_way`], if nothing has changed since: the place, and whether the
    /// image was clean.
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

    /// Corrects `s_overhead_clusters`, the kernel's count of the file system's own blocks, when the journal is
    /// removed: subtracts `journal_blocks` if the count includes them. `fixed` is the count without a journal, at
    /// least.
    pub fn forget_journal_overhead(&mut self, fixed: BlockNr, journal_blocks: u32) {
        let counted = self.raw.s_overhead_clusters.get();
        if u64::from(counted) >= fixed.0 + u64::from(journal_blocks) {
            self.raw.s_overhead_clusters = U32::new(counted - journal_blocks);
        }
    }
}
