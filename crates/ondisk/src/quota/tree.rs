//! The tree of a quota file in place: its content, and the bytes that add or remove an owner (Linux:
//! fs/quota/quota_tree.c).
//!
//! Main types: [`Tree`] (a whole file that was read and found valid), [`Place`] (the place of an owner's entry),
//! [`Patch`] (bytes to write). [`read_owner`] and [`write_owner`] convert the bytes of an entry.
//!
//! An insertion or a removal is a list of patches, computed before the first one is written. Either all of them become
//! part of one transaction or none does. They do not touch another owner's entry, so usage may change at the same time.
//!
//! What it does not do: read or write blocks, enforce limits, or change files with entries of 48 bytes.
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use super::pack::Owner;
use super::{BLOCK_BYTES, ENTRIES_AT, LEVELS, QuotaDamage, QuotaFile, QuotaKind, ROOT, RawEntry1, Usage};

/// The size of an entry, in bytes.
pub const ENTRY_BYTES: usize = size_of::<RawEntry1>();
/// The number of entries in a block.
const ENTRIES: usize = (BLOCK_BYTES - ENTRIES_AT) / ENTRY_BYTES;
/// The maximum number of new blocks that an insertion needs: three of the tree, and one with entries.
pub const INSERT_BLOCKS: u32 = LEVELS;
/// The maximum number of blocks that an insertion or a removal changes: the header, the tree's blocks, the one with
/// entries, and its two neighbours on a list.
pub const CHANGED_BLOCKS: u32 = 1 + LEVELS + 1 + 2;

/// The offset of [`Tree::grace`], two words, in the header.
pub const GRACE_AT: usize = 8;
const BLOCKS_AT: usize = 20;
const FREE_BLOCK_AT: usize = 24;
const FREE_ENTRY_AT: usize = 28;
/// In a block with entries: the next and the previous block on a list, and the number of entries.
const NEXT_AT: usize = 0;
const PREVIOUS_AT: usize = 4;
const COUNT_AT: usize = 8;
/// The offset of `dqb_itime` in an entry.
const INODES_UNTIL_AT: usize = 64;

type Block = [u8; BLOCK_BYTES];

/// The place of an owner's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block of the file.
    pub block: u32,
    /// The offset of the entry in the block, in bytes.
    pub offset: u16,
}

/// Bytes to write into a block of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// The block, which may be one past the last block.
    pub block: u32,
    /// The offset in the block, in bytes.
    pub offset: usize,
    /// The bytes, which end within the block.
    pub bytes: Vec<u8>,
}

/// Decodes the entry of an owner.
pub fn read_owner(entry: &[u8; ENTRY_BYTES]) -> Owner {
    let mut owner = super::wide_owner(entry).unwrap_or(NOBODY);
    // An entry of zeros is unused, so the kernel writes 1 here for owner 0.
    if is_empty(&owner) && owner.usage.id == 0 {
        owner.limits.inodes_until = 0;
    }
    owner
}

const NOBODY: Owner = Owner {
    usage: Usage { id: 0, bytes: 0, inodes: 0 },
    limits: super::Limits {
        inodes_hard: 0,
        inodes_soft: 0,
        blocks_hard: 0,
        blocks_soft: 0,
        blocks_until: 0,
        inodes_until: 0,
    },
};

/// Whether the owner has neither usage nor limits, so that its entry may be removed.
pub fn is_empty(owner: &Owner) -> bool {
    let (usage, limits) = (&owner.usage, &owner.limits);
    let limited = [limits.inodes_hard, limits.inodes_soft, limits.blocks_hard, limits.blocks_soft];
    usage.bytes == 0 && usage.inodes == 0 && limited == [0; 4]
}

/// Encodes the entry of an owner.
pub fn write_owner(owner: &Owner, entry: &mut [u8; ENTRY_BYTES]) {
    owner.encode(entry);
    if entry.iter().all(|byte| *byte == 0) {
        entry[INODES_UNTIL_AT] = 1;
    }
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn count(block: &[u8]) -> u16 {
    u16::from_le_bytes([block[COUNT_AT], block[COUNT_AT + 1]])
}

/// The offset of the next block's number in a block of the tree. `level` counts from 0 at the root.
fn link(id: u32, level: u32) -> usize {
    4 * (id >> (8 * (LEVELS - 1 - level)) & 0xff) as usize
}

/// The entries of a block, which must be those of `owners`.
fn entries_of(block: &Block, number: u32, owners: &[u32]) -> Result<Vec<(u32, Place)>, QuotaDamage> {
    let used = |at: &usize| block[*at..at + ENTRY_BYTES].iter().any(|byte| *byte != 0);
    let found = (0..ENTRIES).map(|i| ENTRIES_AT + i * ENTRY_BYTES).filter(used);
    let found: Vec<(u32, Place)> =
        found.map(|at| (word(block, at), Place { block: number, offset: at as u16 })).collect();
    if found.len() != usize::from(count(block)) || found.len() != owners.len() {
        return Err(QuotaDamage::Entries { block: number, found: count(block).into() });
    }
    match owners.iter().find(|id| found.iter().all(|(found, _)| found != *id)) {
        Some(id) => Err(QuotaDamage::Missing { id: *id, block: number }),
        None => Ok(found),
    }
}

/// The tree of a valid quota file.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The grace times of the soft limits of blocks and of inodes, in seconds.
    pub grace: [u32; 2],
    /// The number of blocks in the file, including those on lists.
    pub blocks: u32,
    /// The number of blocks on the list of unused ones.
    pub free: u32,
    /// The places of all owners' entries.
    pub places: BTreeMap<u32, Place>,
}

impl Tree {
    /// Reads a file of `size` bytes, block by block. Each block is read at most twice.
    ///
    /// # Errors
    /// Damage, such as a block with two places in the tree, an entry of another owner than the tree implies, or a list
    /// without an end; the errors of `read`.
    pub fn load<E: From<QuotaDamage>>(
        kind: QuotaKind,
        size: u64,
        mut read: impl FnMut(u32) -> Result<Block, E>,
    ) -> Result<Tree, E> {
        if size < BLOCK_BYTES as u64 {
            return Err(QuotaDamage::Length { found: size }.into());
        }
        let first = read(0)?;
        let mut damage = None;
        QuotaFile::damage(&first, kind, size, &mut |found| {
            damage.get_or_insert(found);
        });
        if let Some(damage) = damage {
            return Err(damage.into());
        }
        let file = QuotaFile::parse(&first);
        if !file.wide {
            return Err(QuotaDamage::Version { found: 0 }.into());
        }
        let mut seen = vec![false; file.blocks.max(ROOT + 1) as usize];
        let mut visit = |block: u32| {
            let seen = seen.get_mut(block as usize);
            let seen = seen.ok_or(QuotaDamage::Reference { found: block, blocks: file.blocks })?;
            if std::mem::replace(seen, true) { Err(QuotaDamage::Twice { found: block }) } else { Ok(()) }
        };
        visit(0)?;
        visit(ROOT)?;
        // The blocks of a level, each with the part of the owners' numbers that leads to it.
        let mut level = vec![(0u32, ROOT)];
        for depth in 0..LEVELS - 1 {
            let mut below = Vec::new();
            for (part, number) in level {
                let block = read(number)?;
                for (i, child) in (0..).zip(block.chunks_exact(4).map(|bytes| word(bytes, 0))) {
                    if child != 0 {
                        visit(child)?;
                        below.push((part | i << (8 * (LEVELS - 1 - depth)), child));
                    }
                }
            }
            level = below;
        }
        // Many owners may share a block of entries.
        let mut entries: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (part, number) in level {
            let block = read(number)?;
            for (i, child) in (0..).zip(block.chunks_exact(4).map(|bytes| word(bytes, 0))).filter(|(_, c)| *c != 0) {
                entries.entry(child).or_default().push(part | i);
            }
        }
        let mut places = BTreeMap::new();
        let mut with_room = Vec::new();
        for (number, owners) in &entries {
            visit(*number)?;
            let found = entries_of(&read(*number)?, *number, owners)?;
            let has_room = found.len() < ENTRIES;
            places.extend(found);
            if has_room {
                with_room.push(*number);
            }
        }
        let mut free = 0;
        let mut next = word(&first, FREE_BLOCK_AT);
        while next != 0 {
            visit(next)?;
            free += 1;
            next = word(&read(next)?, NEXT_AT);
        }
        // The list of blocks with room must contain each of them once, and no others.
        let (mut next, mut before, mut listed) = (word(&first, FREE_ENTRY_AT), 0, 0);
        while next != 0 {
            let block = read(next)?;
            if with_room.binary_search(&next).is_err()
                || word(&block, PREVIOUS_AT) != before
                || listed > with_room.len()
            {
                return Err(QuotaDamage::FreeList { found: next, blocks: file.blocks }.into());
            }
            (before, next, listed) = (next, word(&block, NEXT_AT), listed + 1);
        }
        Ok(Tree { grace: file.grace, blocks: file.blocks.max(ROOT + 1), free, places })
    }

    /// The maximum number of blocks past the last one that the next insertion needs.
    pub fn missing_blocks(&self) -> u32 {
        INSERT_BLOCKS.saturating_sub(self.free)
    }

    /// Adds an owner without usage and limits. `None` if it already has an entry.
    ///
    /// # Errors
    /// The errors of `read`, or damage that has occurred since the file was loaded.
    pub fn insert<E: From<QuotaDamage>>(
        &mut self,
        id: u32,
        read: impl FnMut(u32) -> Result<Block, E>,
    ) -> Result<Option<Vec<Patch>>, E> {
        if self.places.contains_key(&id) {
            return Ok(None);
        }
        let mut edit = Edit::new(read);
        let mut number = ROOT;
        for level in 0..LEVELS - 1 {
            let at = link(id, level);
            number = match word(edit.block(number)?, at) {
                0 => {
                    let child = edit.take_block()?;
                    edit.set(number, at, child)?;
                    child
                }
                child => child,
            };
        }
        let (with_entries, offset) = edit.take_entry(id)?;
        edit.set(number, link(id, LEVELS - 1), with_entries)?;
        let header = edit.block(0)?;
        self.blocks = word(header, BLOCKS_AT);
        self.free = (self.free + edit.put_back).saturating_sub(edit.reused);
        self.places.insert(id, Place { block: with_entries, offset });
        Ok(Some(edit.patches))
    }

    /// Removes an owner's entry, regardless of its content. `None` if it has none.
    ///
    /// # Errors
    /// As [`Tree::insert`].
    pub fn remove<E: From<QuotaDamage>>(
        &mut self,
        id: u32,
        read: impl FnMut(u32) -> Result<Block, E>,
    ) -> Result<Option<Vec<Patch>>, E> {
        let Some(place) = self.places.get(&id).copied() else { return Ok(None) };
        let mut edit = Edit::new(read);
        edit.release_entry(place)?;
        let mut path = vec![ROOT];
        for level in 0..LEVELS - 1 {
            let number = *path.last().unwrap_or(&ROOT);
            path.push(word(edit.block(number)?, link(id, level)));
        }
        for (level, number) in (0..LEVELS).zip(path).rev() {
            edit.set(number, link(id, level), 0)?;
            if number == ROOT || edit.block(number)?.iter().any(|byte| *byte != 0) {
                break;
            }
            edit.release_block(number)?;
        }
        self.free = (self.free + edit.put_back).saturating_sub(edit.reused);
        self.places.remove(&id);
        Ok(Some(edit.patches))
    }
}

/// A change in progress, with the blocks in their future state.
struct Edit<R> {
    read: R,
    blocks: BTreeMap<u32, Box<Block>>,
    patches: Vec<Patch>,
    reused: u32,
    put_back: u32,
}

impl<E: From<QuotaDamage>, R: FnMut(u32) -> Result<Block, E>> Edit<R> {
    fn new(read: R) -> Edit<R> {
        Edit { read, blocks: BTreeMap::new(), patches: Vec::new(), reused: 0, put_back: 0 }
    }

    fn block(&mut self, number: u32) -> Result<&Block, E> {
        if !self.blocks.contains_key(&number) {
            let block = (self.read)(number)?;
            self.blocks.insert(number, Box::new(block));
        }
        Ok(&self.blocks[&number])
    }

    fn write(&mut self, block: u32, offset: usize, bytes: Vec<u8>) -> Result<(), E> {
        self.block(block)?;
        if let Some(to) = self.blocks.get_mut(&block) {
            to[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        self.patches.push(Patch { block, offset, bytes });
        Ok(())
    }

    fn set(&mut self, block: u32, at: usize, value: u32) -> Result<(), E> {
        self.write(block, at, value.to_le_bytes().to_vec())
    }

    fn set_count(&mut self, block: u32, value: u16) -> Result<(), E> {
        self.write(block, COUNT_AT, value.to_le_bytes().to_vec())
    }

    /// Takes a block of zeros, from the list or past the last block.
    fn take_block(&mut self) -> Result<u32, E> {
        let header = self.block(0)?;
        let (blocks, listed) = (word(header, BLOCKS_AT), word(header, FREE_BLOCK_AT));
        let number = if listed == 0 {
            self.blocks.insert(blocks, Box::new([0; BLOCK_BYTES]));
            self.set(0, BLOCKS_AT, blocks + 1)?;
            blocks
        } else {
            let next = word(self.block(listed)?, NEXT_AT);
            self.set(0, FREE_BLOCK_AT, next)?;
            self.reused += 1;
            listed
        };
        self.write(number, 0, vec![0; BLOCK_BYTES])?;
        Ok(number)
    }

    /// Adds a block to the list of unused ones.
    fn release_block(&mut self, number: u32) -> Result<(), E> {
        let next = word(self.block(0)?, FREE_BLOCK_AT);
        self.set(number, NEXT_AT, next)?;
        self.set(number, PREVIOUS_AT, 0)?;
        self.set_count(number, 0)?;
        self.put_back += 1;
        self.set(0, FREE_BLOCK_AT, number)
    }

    /// Takes an entry for this owner, in a block that has room.
    fn take_entry(&mut self, id: u32) -> Result<(u32, u16), E> {
        let number = match word(self.block(0)?, FREE_ENTRY_AT) {
            0 => {
                let number = self.take_block()?;
                self.set(0, FREE_ENTRY_AT, number)?;
                number
            }
            number => number,
        };
        let block = self.block(number)?;
        let unused = |at: &usize| block[*at..at + ENTRY_BYTES].iter().all(|byte| *byte == 0);
        let found = (0..ENTRIES).map(|i| ENTRIES_AT + i * ENTRY_BYTES).find(unused);
        let Some(at) = found else {
            return Err(QuotaDamage::Entries { block: number, found: count(block).into() }.into());
        };
        let entries = count(block) + 1;
        if usize::from(entries) >= ENTRIES {
            self.unlist(number)?;
        }
        self.set_count(number, entries)?;
        self.set(number, at, id)?;
        if id == 0 {
            self.write(number, at + INODES_UNTIL_AT, vec![1])?;
        }
        Ok((number, at as u16))
    }

    /// Zeroes an entry. A block without entries becomes unused.
    fn release_entry(&mut self, place: Place) -> Result<(), E> {
        let (number, at) = (place.block, usize::from(place.offset));
        let entries = count(self.block(number)?);
        self.write(number, at, vec![0; ENTRY_BYTES])?;
        if entries <= 1 {
            self.unlist(number)?;
            return self.release_block(number);
        }
        self.set_count(number, entries - 1)?;
        if usize::from(entries) < ENTRIES {
            return Ok(());
        }
        // The block was full, and now has room.
        let head = word(self.block(0)?, FREE_ENTRY_AT);
        self.set(number, NEXT_AT, head)?;
        self.set(number, PREVIOUS_AT, 0)?;
        if head != 0 {
            self.set(head, PREVIOUS_AT, number)?;
        }
        self.set(0, FREE_ENTRY_AT, number)
    }

    /// Removes a block from the list of those with room.
    fn unlist(&mut self, number: u32) -> Result<(), E> {
        let block = self.block(number)?;
        let (next, previous) = (word(block, NEXT_AT), word(block, PREVIOUS_AT));
        if next != 0 {
            self.set(next, PREVIOUS_AT, previous)?;
        }
        match previous {
            0 => self.set(0, FREE_ENTRY_AT, next)?,
            _ => self.set(previous, NEXT_AT, next)?,
        }
        self.set(number, NEXT_AT, 0)?;
        self.set(number, PREVIOUS_AT, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack;
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Damaged(QuotaDamage);

    impl From<QuotaDamage> for Damaged {
        fn from(damage: QuotaDamage) -> Damaged {
            Damaged(damage)
        }
    }

    fn block(file: &[u8], number: u32) -> Result<Block, Damaged> {
        let at = number as usize * BLOCK_BYTES;
        Ok(file[at..at + BLOCK_BYTES].try_into().expect("a block"))
    }

    fn load(file: &[u8]) -> Result<Tree, Damaged> {
        Tree::load(QuotaKind::User, file.len() as u64, |number| block(file, number))
    }

    fn apply(file: &mut Vec<u8>, patches: Vec<Patch>) {
        for patch in patches {
            let at = patch.block as usize * BLOCK_BYTES + patch.offset;
            assert!(patch.offset + patch.bytes.len() <= BLOCK_BYTES);
            let end = (patch.block as usize + 1) * BLOCK_BYTES;
            file.resize(file.len().max(end), 0);
            file[at..at + patch.bytes.len()].copy_from_slice(&patch.bytes);
        }
    }

    fn same(tree: &Tree, file: &[u8]) {
        let again = load(file).expect("sound");
        assert_eq!(again.places, tree.places);
        assert_eq!((again.blocks, again.free), (tree.blocks, tree.free));
    }

    /// The numbers of owners, in an order that fills and empties blocks of all levels.
    fn numbers(seed: u64) -> impl Iterator<Item = u32> {
        let mut state = seed;
        std::iter::from_fn(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let r = (state >> 33) as u32;
            Some(match r % 3 {
                0 => r % 64,
                1 => r << 8,
                _ => r.wrapping_mul(0x0101_0101),
            })
        })
    }

    #[test]
    fn owners_come_and_go_and_the_file_stays_sound() {
        let mut file = pack::whole(QuotaKind::User, [1, 2], std::iter::empty());
        let mut tree = load(&file).expect("sound");
        assert_eq!(tree.grace, [1, 2]);
        let mut there: Vec<u32> = Vec::new();
        let mut largest = 0;
        for (i, id) in numbers(7).take(2000).enumerate() {
            let (before, missing) = (tree.blocks, tree.missing_blocks());
            match tree.insert(id, |number| block(&file, number)).expect("inserted") {
                Some(patches) => {
                    assert!(!there.contains(&id));
                    let mut changed: Vec<u32> = patches.iter().map(|patch| patch.block).collect();
                    changed.sort_unstable();
                    changed.dedup();
                    assert!(changed.len() as u32 <= CHANGED_BLOCKS, "{changed:?}");
                    assert!(tree.blocks - before <= missing, "{} blocks more", tree.blocks - before);
                    apply(&mut file, patches);
                    there.push(id);
                }
                None => assert!(there.contains(&id)),
            }
            if i % 3 > 0 {
                let id = there.swap_remove(i * 31 % there.len());
                let patches = tree.remove(id, |number| block(&file, number)).expect("removed").expect("was there");
                apply(&mut file, patches);
            }
            if i % 97 == 0 {
                same(&tree, &file);
            }
            largest = largest.max(tree.blocks);
        }
        same(&tree, &file);
        for id in there {
            let patches = tree.remove(id, |number| block(&file, number)).expect("removed").expect("was there");
            apply(&mut file, patches);
        }
        same(&tree, &file);
        assert!(tree.places.is_empty() && tree.remove(1, |number| block(&file, number)).expect("none").is_none());
        // Only header and root are in use, and all other blocks are on the list.
        assert_eq!(tree.free, largest - 2);
    }

    #[test]
    fn patches_leave_the_entries_of_other_owners_alone() {
        let mut file = pack::whole(QuotaKind::User, [1, 2], std::iter::empty());
        let mut tree = load(&file).expect("sound");
        for id in [5, 6] {
            let patches = tree.insert(id, |number| block(&file, number)).expect("inserted").expect("new");
            apply(&mut file, patches);
        }
        let patches = tree.insert(7, |number| block(&file, number)).expect("inserted").expect("new");
        for id in [5, 6] {
            let place = tree.places[&id];
            let entry = usize::from(place.offset)..usize::from(place.offset) + ENTRY_BYTES;
            let touches = |patch: &Patch| {
                patch.block == place.block && patch.offset < entry.end && patch.offset + patch.bytes.len() > entry.start
            };
            assert!(!patches.iter().any(touches), "{patches:?}");
        }
    }

    #[test]
    fn an_entry_of_owner_0_is_never_zeros() {
        let mut entry = [0; ENTRY_BYTES];
        write_owner(&NOBODY, &mut entry);
        assert_eq!(entry.iter().filter(|byte| **byte != 0).count(), 1);
        assert_eq!(read_owner(&entry), NOBODY);
        let mut owner = NOBODY;
        (owner.usage.bytes, owner.limits.inodes_until) = (4096, 1);
        write_owner(&owner, &mut entry);
        assert_eq!(read_owner(&entry), owner);
    }

    #[test]
    fn damaged_trees_are_refused() {
        let owners = (0..40).map(|i| Owner { usage: Usage { id: i * 3, inodes: 1, bytes: 0 }, ..NOBODY });
        let sound = pack::whole(QuotaKind::User, [1, 2], owners);
        assert_eq!(load(&sound).expect("sound").places.len(), 40);
        let place = load(&sound).expect("sound").places[&3];
        let at = |number: u32, offset: usize| number as usize * BLOCK_BYTES + offset;
        type Case<'a> = (&'a dyn Fn(&mut Vec<u8>), QuotaDamage);
        let blocks = (sound.len() / BLOCK_BYTES) as u32;
        let cases: [Case<'_>; 6] = [
            (&|f| f[at(ROOT, 4)] = ROOT as u8, QuotaDamage::Twice { found: ROOT }),
            (&|f| f[at(ROOT, 4)] = 2, QuotaDamage::Twice { found: 2 }),
            (&|f| f[at(ROOT, 8)] = 0xff, QuotaDamage::Reference { found: 0xff, blocks }),
            (&|f| f[at(place.block, place.offset.into())] = 99, QuotaDamage::Missing { id: 3, block: place.block }),
            (&|f| f[at(place.block, COUNT_AT)] = 1, QuotaDamage::Entries { block: place.block, found: 1 }),
            (&|f| f[at(0, FREE_ENTRY_AT)] = 2, QuotaDamage::FreeList { found: 2, blocks }),
        ];
        for (i, (change, damage)) in cases.iter().enumerate() {
            let mut file = sound.clone();
            change(&mut file);
            assert_eq!(load(&file).expect_err("damaged"), Damaged(*damage), "case {i}");
        }
        // A list of unused blocks that contains a block of the tree.
        let mut file = sound.clone();
        file[at(0, FREE_BLOCK_AT)] = place.block as u8;
        assert_eq!(load(&file).expect_err("damaged"), Damaged(QuotaDamage::Twice { found: place.block }));
        assert_eq!(load(&sound[..500]).expect_err("short"), Damaged(QuotaDamage::Length { found: 500 }));
    }
}
