//! The record that undoes a repair: the old blocks, in the format of e2undo(8) (e2fsprogs: `E2UNDO02`).
//!
//! Main type: [`Record`]. Main functions: [`undo`] (writes the old blocks back), [`Record::write`].
//!
//! A record consists of a header, copies of superblocks, and blocks of keys, each followed by the bytes that they
//! describe. e2undo accepts a record only if the image's superblock is the copy in the header: first the one with the
//! mark of an unfinished repair, then the last one. The header is one sector, so an interruption leaves one or the
//! other. After the last bytes, where e2undo does not look, there are checksums of the new sectors. So [`undo`] also
//! knows whether anything except the repair has written the blocks, and accepts a record after an interruption that
//! left the superblock partly written.
//!
//! # Locking
//! None.

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::csum::crc32c;
use extant_ondisk::superblock::{RawSuperBlock, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use zerocopy::{FromBytes, IntoBytes};

use super::{super_of, with_old_sector, write_super};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"E2UNDO02";
const KEY_MAGIC: u32 = 0xcade_cade;
const HEADER_BYTES: usize = 512;
const KEY_BYTES: usize = 16;
/// The record is complete.
const FINISHED: u32 = 1;
/// The header contains the start of the file system.
const HAS_OFFSET: u32 = 1;
/// The blocks of the two superblocks: that of the repair in progress, and that of the finished one.
const SUPERS_AT: [u64; 2] = [1, 2];
/// The block of the first keys.
const KEYS_AT: u64 = 3;
/// The maximum number of blocks of one key.
const RUN_MAX: u64 = 64;
/// The minimum block size of a record, in bytes.
const BLOCK_MIN: u64 = 4096;
/// The offset in the header, in a part that e2undo ignores, of the place where the checksums of sectors begin.
const SECTORS_AT: usize = 80;
/// The larger unit of a file on the host.
const SECTOR: usize = 512;

/// A record.
pub struct Record {
    /// The block size of the file system in bytes.
    fs_block: u64,
    /// The block size of the record in bytes.
    block: u64,
    offset: u64,
    /// The blocks of the file system that are recorded.
    pub blocks: Vec<u64>,
}

/// Adjacent blocks of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    first: u64,
    bytes: u32,
    checksum: u32,
}

fn put_word(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

fn put_long(bytes: &mut [u8], at: usize, long: u64) {
    bytes[at..at + 8].copy_from_slice(&long.to_le_bytes());
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

impl Record {
    /// Creates a record of these blocks, ascending. It always includes the block with the superblock.
    pub fn new(fs_block: u64, mut blocks: Vec<u64>, offset: u64) -> Record {
        let super_block = SUPERBLOCK_OFFSET / fs_block;
        if let Err(at) = blocks.binary_search(&super_block) {
            blocks.insert(at, super_block);
        }
        Record { fs_block, block: fs_block.max(BLOCK_MIN), offset, blocks }
    }

    /// The runs of blocks, each for one key: first block, number of blocks.
    fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for block in &self.blocks {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == *block && *count < RUN_MAX => *count += 1,
                _ => runs.push((*block, 1)),
            }
        }
        runs
    }

    fn keys_per_block(&self) -> usize {
        self.block as usize / KEY_BYTES - 1
    }

    /// The offset after keys and old blocks.
    fn data_end(&self) -> u64 {
        let runs = self.runs();
        let keys = runs.len().div_ceil(self.keys_per_block()) as u64;
        let data: u64 = runs.iter().map(|(_, count)| (count * self.fs_block).div_ceil(self.block)).sum();
        (KEYS_AT + keys + data) * self.block
    }

    /// The size of the record in bytes.
    pub fn bytes(&self) -> u64 {
        let sectors = self.blocks.len() as u64 * (self.fs_block / SECTOR as u64);
        (self.data_end() + 4 * sectors).next_multiple_of(self.block)
    }

    /// Writes the record durably: the blocks of `old`, and checksums of those of `new`. `supers` are the superblock
    /// that the image has from its first write on, and the last one.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn write(
        &mut self,
        to: &dyn BlockDevice,
        old: &dyn BlockDevice,
        new: &dyn BlockDevice,
        supers: [&RawSuperBlock; 2],
    ) -> Result<()> {
        let runs = self.runs();
        let mut at = KEYS_AT;
        for part in runs.chunks(self.keys_per_block()) {
            let keys_at = at;
            let mut keys = vec![0; self.block as usize];
            put_word(&mut keys, 0, KEY_MAGIC);
            at += 1;
            for (i, (first, count)) in part.iter().enumerate() {
                let len = count * self.fs_block;
                let mut data = vec![0; len.next_multiple_of(self.block) as usize];
                old.read_at(first * self.fs_block, &mut data[..len as usize], BioFlags::META)?;
                let key = KEY_BYTES * (i + 1);
                put_long(&mut keys, key, *first);
                put_word(&mut keys, key + 8, crc32c(!0, &data[..len as usize]));
                put_word(&mut keys, key + 12, len as u32);
                to.write_at(at * self.block, &[&data], BioFlags::META)?;
                at += data.len() as u64 / self.block;
            }
            let checksum = crc32c(!0, &keys);
            put_word(&mut keys, 4, checksum);
            to.write_at(keys_at * self.block, &[&keys], BioFlags::META)?;
        }
        self.write_sectors(to, new)?;
        for (at, current) in SUPERS_AT.into_iter().zip(supers) {
            let mut copy = *current;
            // This prevents programs from mistaking the record for a file system.
            copy.s_magic.set(!copy.s_magic.get());
            let mut block = vec![0; self.block as usize];
            block[..SUPERBLOCK_SIZE].copy_from_slice(copy.as_bytes());
            to.write_at(at * self.block, &[&block], BioFlags::META)?;
        }
        to.flush()?;
        self.count_for(to, SUPERS_AT[0], supers[0])
    }

    /// Writes the checksums of the new sectors.
    fn write_sectors(&self, to: &dyn BlockDevice, new: &dyn BlockDevice) -> Result<()> {
        let mut sums = Vec::new();
        let mut bytes = vec![0; self.fs_block as usize];
        for block in &self.blocks {
            new.read_at(block * self.fs_block, &mut bytes, BioFlags::META)?;
            sums.extend(bytes.chunks(SECTOR).flat_map(|sector| crc32c(!0, sector).to_le_bytes()));
        }
        sums.resize(sums.len().next_multiple_of(self.block as usize), 0);
        Ok(to.write_at(self.data_end(), &[&sums], BioFlags::META)?)
    }

    /// Durably makes the record valid for the finished repair.
    ///
    /// # Errors
    /// Those of the device.
    pub fn finish(&self, to: &dyn BlockDevice, last: &RawSuperBlock) -> Result<()> {
        self.count_for(to, SUPERS_AT[1], last)
    }

    /// Makes the record valid while the image has this superblock, of which block `at` contains a copy.
    fn count_for(&self, to: &dyn BlockDevice, at: u64, current: &RawSuperBlock) -> Result<()> {
        let mut head = vec![0; self.block as usize];
        head[..8].copy_from_slice(MAGIC);
        put_long(&mut head, 8, self.runs().len() as u64);
        put_long(&mut head, 16, at);
        put_long(&mut head, 24, KEYS_AT);
        put_word(&mut head, 32, self.block as u32);
        put_word(&mut head, 36, self.fs_block as u32);
        put_word(&mut head, 40, crc32c(!0, current.as_bytes()));
        put_word(&mut head, 44, FINISHED);
        put_word(&mut head, 48, if self.offset > 0 { HAS_OFFSET } else { 0 });
        put_long(&mut head, 64, self.offset);
        put_long(&mut head, SECTORS_AT, self.data_end());
        let checksum = crc32c(!0, &head[..HEADER_BYTES - 4]);
        put_word(&mut head, HEADER_BYTES - 4, checksum);
        to.write_at(0, &[&head], BioFlags::META)?;
        Ok(to.flush()?)
    }
}

/// A record that was read.
struct Stored<'a> {
    from: &'a dyn BlockDevice,
    block: u64,
    fs_block: u64,
    /// Keys, and the offset in the record at which their bytes begin.
    keys: Vec<(Key, u64)>,
    /// The checksums of new sectors; empty if e2fsprogs created the record.
    sectors: Vec<u32>,
}

impl Stored<'_> {
    fn bad(from: &dyn BlockDevice, why: impl Into<String>) -> Error {
        Error::Undo { file: from.name().to_owned(), why: why.into() }
    }

    fn open(from: &dyn BlockDevice) -> Result<Stored<'_>> {
        let bad = |why: &str| Stored::bad(from, why);
        let mut head = vec![0; HEADER_BYTES];
        if from.size_bytes() < HEADER_BYTES as u64 {
            return Err(bad("it is too short"));
        }
        from.read_at(0, &mut head, BioFlags::META)?;
        if head[..8] != *MAGIC {
            return Err(bad("it does not begin as one"));
        }
        if word(&head, HEADER_BYTES - 4) != crc32c(!0, &head[..HEADER_BYTES - 4]) {
            return Err(bad("the header's checksum is wrong"));
        }
        let (count, keys_at) = (long(&head, 8), long(&head, 24));
        let (block, fs_block) = (u64::from(word(&head, 32)), u64::from(word(&head, 36)));
        let sizes = [block, fs_block].iter().all(|size| size.is_power_of_two() && (1024..=1 << 20).contains(size));
        if !sizes || word(&head, 52) != 0 || word(&head, 56) != 0 {
            return Err(bad("the header has unknown features or sizes"));
        }
        let mut stored = Stored { from, block, fs_block, keys: Vec::new(), sectors: Vec::new() };
        stored.read_keys(count, keys_at)?;
        stored.read_sectors(long(&head, SECTORS_AT))?;
        Ok(stored)
    }

    fn read_keys(&mut self, count: u64, mut at: u64) -> Result<()> {
        let bad = |why: &str| Stored::bad(self.from, why);
        let per_block = self.block / KEY_BYTES as u64 - 1;
        let mut left = count;
        while left > 0 {
            let mut keys = vec![0; self.block as usize];
            let start = at.checked_mul(self.block).filter(|start| start + self.block <= self.from.size_bytes());
            self.from.read_at(start.ok_or(bad("keys lie behind its end"))?, &mut keys, BioFlags::META)?;
            let checksum = word(&keys, 4);
            put_word(&mut keys, 4, 0);
            if word(&keys, 0) != KEY_MAGIC || checksum != crc32c(!0, &keys) {
                return Err(bad("a block of keys is damaged"));
            }
            at += 1;
            let here = left.min(per_block);
            for key in keys.chunks_exact(KEY_BYTES).skip(1).take(here as usize) {
                let key = Key { first: long(key, 0), checksum: word(key, 8), bytes: word(key, 12) };
                let whole = u64::from(key.bytes).is_multiple_of(self.fs_block) && key.bytes > 0;
                if !whole || at * self.block + u64::from(key.bytes) > self.from.size_bytes() {
                    return Err(bad("a key names bytes that are not there"));
                }
                self.keys.push((key, at * self.block));
                at += u64::from(key.bytes).div_ceil(self.block);
            }
            left -= here;
        }
        Ok(())
    }

    fn read_sectors(&mut self, at: u64) -> Result<()> {
        let count: u64 = self.keys.iter().map(|(key, _)| u64::from(key.bytes) / SECTOR as u64).sum();
        let end = at.checked_add(4 * count);
        if at == 0 || end.is_none_or(|end| end > self.from.size_bytes()) {
            return Ok(());
        }
        let mut bytes = vec![0; 4 * count as usize];
        self.from.read_at(at, &mut bytes, BioFlags::META)?;
        self.sectors = bytes.chunks_exact(4).map(|sum| word(sum, 0)).collect();
        Ok(())
    }

    /// The old bytes of a key.
    fn old(&self, (key, at): &(Key, u64)) -> Result<Vec<u8>> {
        let mut bytes = vec![0; key.bytes as usize];
        self.from.read_at(*at, &mut bytes, BioFlags::META)?;
        if crc32c(!0, &bytes) != key.checksum {
            return Err(Stored::bad(self.from, format!("the bytes of block {} are damaged", key.first)));
        }
        Ok(bytes)
    }
}

/// Writes the first sector of the old superblock while the second one still has the note. Otherwise the new first
/// sector with the old second one would describe a file system that no longer exists.
fn restore_first_sector(stored: &Stored<'_>, image: &dyn BlockDevice) -> Result<()> {
    let marked = super_of(image)?;
    if marked.repair_under_way().is_none() {
        return Ok(());
    }
    for one in &stored.keys {
        let start = one.0.first * stored.fs_block;
        if !(start..start + u64::from(one.0.bytes)).contains(&SUPERBLOCK_OFFSET) {
            continue;
        }
        let (bytes, at) = (stored.old(one)?, (SUPERBLOCK_OFFSET - start) as usize);
        let old = bytes.get(at..at + SUPERBLOCK_SIZE);
        if let Some(Ok(old)) = old.map(RawSuperBlock::read_from_bytes) {
            write_super(image, &with_old_sector(&marked, &old))?;
        }
    }
    Ok(())
}

/// Writes the old blocks back to `image`, the one with the superblock last, and returns how many. After an
/// interruption, the record can still be used. `force` allows this even if the image has changed since.
///
/// # Errors
/// [`Error::Undo`] if the record cannot be used, and [`Error::Changed`]; nothing was written then. Those of the
/// devices.
pub fn undo(record: &dyn BlockDevice, image: &dyn BlockDevice, force: bool) -> Result<u64> {
    let stored = Stored::open(record)?;
    let mut sums = stored.sectors.iter();
    let mut blocks = 0;
    for one in &stored.keys {
        let old = stored.old(one)?;
        let at = one.0.first.checked_mul(stored.fs_block).filter(|at| at + old.len() as u64 <= image.size_bytes());
        let Some(at) = at else { return Err(Stored::bad(record, "it belongs to a larger image")) };
        let mut now = vec![0; old.len()];
        image.read_at(at, &mut now, BioFlags::META)?;
        for (sector, (was, is)) in old.chunks(SECTOR).zip(now.chunks(SECTOR)).enumerate() {
            let expected = sums.next();
            // The superblock has a mark and its own times.
            let byte = at + (sector * SECTOR) as u64;
            let is_super = (SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64).contains(&byte);
            let known = was == is || expected.is_some_and(|sum| *sum == crc32c(!0, is)) || is_super;
            if !known && !force && !stored.sectors.is_empty() {
                return Err(Error::Changed { image: image.name().to_owned(), block: byte / stored.fs_block });
            }
        }
        blocks += u64::from(one.0.bytes) / stored.fs_block;
    }
    let super_block = SUPERBLOCK_OFFSET / stored.fs_block;
    let has_super =
        |(key, _): &(Key, u64)| (key.first..key.first + u64::from(key.bytes) / stored.fs_block).contains(&super_block);
    for last in [false, true] {
        if last {
            restore_first_sector(&stored, image)?;
        }
        for one in stored.keys.iter().filter(|one| has_super(one) == last) {
            image.write_at(one.0.first * stored.fs_block, &[&stored.old(one)?], BioFlags::META)?;
        }
        image.flush()?;
    }
    Ok(blocks)
}
