//! Whole quota files: the usage of each owner, and its limits if it has any.
//!
//! Main type: [`Owner`]. Main function: [`whole`]. Blocks are numbered in the order in which the insertions of
//! e2fsprogs allocate them.
//!
//! # Locking
//! None.

use super::{BLOCK_BYTES, ENTRIES_AT, LEVELS, Limits, QuotaKind, ROOT, Usage};

/// The default grace time of a soft limit, in seconds: a week.
pub const GRACE: u32 = 7 * 24 * 60 * 60;
const VERSION: u32 = 1;
/// The offset of the number of entries in the header of a block of entries.
const COUNT_AT: usize = 8;
const ENTRY_BYTES: usize = 72;
const ENTRIES: usize = (BLOCK_BYTES - ENTRIES_AT) / ENTRY_BYTES;
/// The offset of the limits and the usage in an entry.
const WORDS_AT: usize = 8;

/// An owner with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The owner's number and usage.
    pub usage: Usage,
    /// The owner's limits.
    pub limits: Limits,
}

/// The bytes of a file, with entries of 72 bytes, for owners in ascending order. `grace` contains the grace times for
/// blocks and for inodes, in seconds. The length depends only on the numbers of the owners.
pub fn whole(kind: QuotaKind, grace: [u32; 2], owners: impl Iterator<Item = Owner>) -> Vec<u8> {
    let mut blocks = Blocks(vec![0; 2 * BLOCK_BYTES]);
    // The block with room, if there is one. There is never more than one, because nothing is removed.
    let mut with_room = 0;
    for owner in owners {
        let (id, mut block) = (owner.usage.id, ROOT);
        for level in (1..LEVELS).rev() {
            block = blocks.child(block, id, level);
        }
        if with_room == 0 {
            with_room = blocks.add();
        }
        blocks.set(block, 4 * (id as usize & 0xff), with_room);
        if blocks.add_entry(with_room, &owner) == ENTRIES {
            with_room = 0;
        }
    }
    let count = (blocks.0.len() / BLOCK_BYTES) as u32;
    for (i, word) in [kind.magic(), VERSION, grace[0], grace[1], 0, count, 0, with_room].into_iter().enumerate() {
        blocks.set(0, 4 * i, word);
    }
    blocks.0
}

struct Blocks(Vec<u8>);

impl Blocks {
    fn add(&mut self) -> u32 {
        let number = self.0.len() / BLOCK_BYTES;
        self.0.resize(self.0.len() + BLOCK_BYTES, 0);
        number as u32
    }

    fn set(&mut self, block: u32, at: usize, word: u32) {
        let at = block as usize * BLOCK_BYTES + at;
        self.0[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// The block below this one; adds it if there is none.
    fn child(&mut self, block: u32, id: u32, level: u32) -> u32 {
        let at = 4 * (id >> (8 * level) & 0xff) as usize;
        let from = block as usize * BLOCK_BYTES + at;
        let mut word = [0; 4];
        word.copy_from_slice(&self.0[from..from + 4]);
        match u32::from_le_bytes(word) {
            0 => {
                let child = self.add();
                self.set(block, at, child);
                child
            }
            child => child,
        }
    }

    /// Adds an entry, and returns the number of entries that the block then has.
    fn add_entry(&mut self, block: u32, owner: &Owner) -> usize {
        let block = &mut self.0[block as usize * BLOCK_BYTES..][..BLOCK_BYTES];
        let count = u16::from_le_bytes([block[COUNT_AT], block[COUNT_AT + 1]]);
        block[COUNT_AT..COUNT_AT + 2].copy_from_slice(&(count + 1).to_le_bytes());
        owner.encode(&mut block[ENTRIES_AT + usize::from(count) * ENTRY_BYTES..][..ENTRY_BYTES]);
        usize::from(count) + 1
    }
}

impl Owner {
    /// Writes the entry of 72 bytes.
    pub(super) fn encode(&self, entry: &mut [u8]) {
        let (usage, limits) = (&self.usage, &self.limits);
        entry[..WORDS_AT].fill(0);
        entry[..4].copy_from_slice(&usage.id.to_le_bytes());
        let words = [
            limits.inodes_hard,
            limits.inodes_soft,
            usage.inodes,
            limits.blocks_hard,
            limits.blocks_soft,
            usage.bytes,
            limits.blocks_until,
            limits.inodes_until,
        ];
        for (to, word) in entry[WORDS_AT..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::QuotaFile;
    use super::*;

    #[test]
    fn every_owner_is_found_again_with_its_limits() {
        let limits = |i: u64| Limits { inodes_hard: i + 2, blocks_soft: 7 * i, blocks_until: i, ..Limits::default() };
        let owners: Vec<Owner> = (0..40)
            .map(|i| Owner {
                usage: Usage { id: i * 0x0101_0001, inodes: u64::from(i) + 1, bytes: u64::from(i) << 12 },
                limits: limits(i.into()),
            })
            .collect();
        let bytes = whole(QuotaKind::Group, [GRACE, 60], owners.iter().copied());
        QuotaFile::damage(&bytes, QuotaKind::Group, bytes.len() as u64, &mut |damage| panic!("{damage}"));
        let header = QuotaFile::parse(&bytes);
        assert_eq!(header.grace, [GRACE, 60]);
        let has_entries = |block: &&[u8]| {
            (1..=ENTRIES as u16).contains(&u16::from_le_bytes([block[COUNT_AT], block[COUNT_AT + 1]]))
                && block[..COUNT_AT] == [0; COUNT_AT]
        };
        let found: Vec<Owner> = bytes
            .chunks(BLOCK_BYTES)
            .skip(2)
            .filter(has_entries)
            .flat_map(|block| header.owners(block).collect::<Vec<_>>())
            .collect();
        assert!(owners.iter().all(|owner| found.contains(owner)), "{found:?}");
    }
}
