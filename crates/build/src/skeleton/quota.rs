//! Quota files of a new file system: the usage of each owner, without limits.
//!
//! Main type: [`Owned`]. Main function: [`file`]. Blocks are numbered in the order in which e2fsprogs' insertions need
//! them.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_ondisk::quota::{BLOCK_BYTES, LEVELS, QuotaKind, ROOT, Usage};

/// Seconds that a soft limit may be exceeded: a week.
const GRACE: u32 = 7 * 24 * 60 * 60;
const VERSION: u32 = 1;
/// A block of entries begins with a header, whose count of entries is here.
const COUNT_AT: usize = 8;
const ENTRIES_AT: usize = 16;
const ENTRY_BYTES: usize = 72;
const ENTRIES: usize = (BLOCK_BYTES - ENTRIES_AT) / ENTRY_BYTES;
/// Within an entry.
const INODES_AT: usize = 24;
const SPACE_AT: usize = 48;

/// The usage of each user, group and project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned([BTreeMap<u32, Usage>; 3]);

impl Owned {
    /// Adds an inode with so many bytes to its user, its group and its project.
    pub fn add(&mut self, owners: [u32; 3], bytes: u64) {
        for (usages, id) in self.0.iter_mut().zip(owners) {
            let usage = usages.entry(id).or_insert(Usage { id, bytes: 0, inodes: 0 });
            usage.bytes += bytes;
            usage.inodes += 1;
        }
    }

    /// Those of one kind, in ascending order.
    pub(super) fn of(&self, kind: QuotaKind) -> impl Iterator<Item = &Usage> {
        self.0[kind as usize].values()
    }
}

/// The bytes of a file for owners in ascending order. Their length depends only on the numbers of the owners.
pub(super) fn file<'a>(kind: QuotaKind, owners: impl Iterator<Item = &'a Usage>) -> Vec<u8> {
    let mut blocks = Blocks(vec![0; 2 * BLOCK_BYTES]);
    // The block with room, if there is one; never more, because nothing is removed.
    let mut with_room = 0;
    for owner in owners {
        let mut block = ROOT;
        for level in (1..LEVELS).rev() {
            block = blocks.child(block, owner.id, level);
        }
        if with_room == 0 {
            with_room = blocks.add();
        }
        blocks.set(block, 4 * (owner.id as usize & 0xff), with_room);
        if blocks.add_entry(with_room, owner) == ENTRIES {
            with_room = 0;
        }
    }
    let count = (blocks.0.len() / BLOCK_BYTES) as u32;
    for (i, word) in [kind.magic(), VERSION, GRACE, GRACE, 0, count, 0, with_room].into_iter().enumerate() {
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

    /// The block below, which is added if there is none.
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

    /// How many entries the block then has.
    fn add_entry(&mut self, block: u32, owner: &Usage) -> usize {
        let block = &mut self.0[block as usize * BLOCK_BYTES..][..BLOCK_BYTES];
        let count = u16::from_le_bytes([block[COUNT_AT], block[COUNT_AT + 1]]);
        block[COUNT_AT..COUNT_AT + 2].copy_from_slice(&(count + 1).to_le_bytes());
        let entry = &mut block[ENTRIES_AT + usize::from(count) * ENTRY_BYTES..][..ENTRY_BYTES];
        entry[..4].copy_from_slice(&owner.id.to_le_bytes());
        entry[INODES_AT..INODES_AT + 8].copy_from_slice(&owner.inodes.to_le_bytes());
        entry[SPACE_AT..SPACE_AT + 8].copy_from_slice(&owner.bytes.to_le_bytes());
        usize::from(count) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_ondisk::quota::QuotaFile;

    #[test]
    fn every_owner_is_found_again() {
        let owners: Vec<Usage> = (0..40)
            .map(|i| Usage { id: i * 0x0101_0001, inodes: u64::from(i) + 1, bytes: u64::from(i) << 12 })
            .collect();
        let bytes = file(QuotaKind::Group, owners.iter());
        QuotaFile::damage(&bytes, QuotaKind::Group, bytes.len() as u64, &mut |damage| panic!("{damage}"));
        let header = QuotaFile::parse(&bytes);
        let found: Vec<u32> = bytes
            .chunks(BLOCK_BYTES)
            .skip(2)
            .filter(|block| (1..=ENTRIES as u16).contains(&u16::from_le_bytes([block[COUNT_AT], block[COUNT_AT + 1]])))
            .flat_map(|block| header.entries(block).map(|usage| usage.inodes as u32).collect::<Vec<_>>())
            .filter(|inodes| (1..=40).contains(inodes))
            .collect();
        assert!((1..=40).all(|inodes| found.contains(&inodes)), "{found:?}");
    }
}
