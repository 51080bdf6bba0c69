//! Finds superblocks anywhere on a damaged disk.
//!
//! Main function: [`scan`] looks at every sector. Main types: [`Scan`], [`FileSystem`] (the superblocks that belong
//! to one, and where it begins), [`Sighting`] (one of them, and whether the descriptors behind it are sound).
//!
//! A superblock does not say where it lies, only in which group. Therefore copies with the same UUID vote: their file
//! system begins at the place on which most of them agree. Some kernels write number 0 into all copies when they
//! resize; such a copy votes for each start that a backup could have. A copy that agrees with no other one, and has
//! no descriptors behind it, belongs to a journal or a file.
//!
//! What it does not do: read holes; decide whether a file system is intact (the checker does).
//!
//! # Locking
//! None.

use std::collections::BTreeMap;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{
    Ballot, SUPERBLOCK_SIZE, Start, SuperBlock, SuperContext, SuperDamage, has_magic, vote,
};
use extant_ondisk::{BlockNr, Damage, GroupNr};

const SECTOR: usize = 512;
/// Bytes of one read. Holes are skipped before each.
const STEP: usize = 1 << 18;
/// How many superblocks are stored; further ones are only counted. A hostile image may consist of them.
const SIGHTINGS_MAX: usize = 4096;
/// How many of the stored ones may be primaries: a long journal has thousands of copies of one.
const PRIMARIES_MAX: usize = SIGHTINGS_MAX / 2;
/// Bytes of descriptors that are examined behind one superblock.
const DESCRIPTORS_BYTES_MAX: u64 = 1 << 17;
/// How many places are examined for descriptors, in order to decide whether a file system begins there.
const TRIES_MAX: usize = 2 * SIGHTINGS_MAX;

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Sorted by their first bytes.
    pub filesystems: Vec<FileSystem>,
    /// Superblocks that belong to none of those, by place: copies in a journal or in a file.
    pub strays: Vec<Sighting>,
    /// How many superblocks were found beyond the stored ones.
    pub more: u64,
    /// Bytes that the device could not read.
    pub unreadable: u64,
}

/// A file system of which at least one superblock was found.
#[derive(Clone, Debug)]
pub struct FileSystem {
    /// Its first byte on the device.
    pub start: u64,
    /// Its superblocks, by group.
    pub sightings: Vec<Sighting>,
    /// The start of the file system whose range contains this one: this is an image file in it, or one of both is
    /// older.
    pub inside: Option<u64>,
}

/// A superblock that was found.
#[derive(Clone, Debug)]
pub struct Sighting {
    /// Its first byte on the device.
    pub byte: u64,
    /// The group to which it belongs.
    pub group: GroupNr,
    /// Decoded as far as possible.
    pub sb: SuperBlock,
    /// The damage that makes a mount refuse it.
    pub damage: Vec<SuperDamage>,
    /// The descriptors behind it.
    pub descriptors: Descriptors,
}

/// The group descriptors behind a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// How many were examined.
    pub looked_at: u32,
    /// How many of those are plausible.
    pub sound: u32,
}

impl Sighting {
    /// Its block number in its file system.
    pub fn block(&self) -> BlockNr {
        self.sb.super_location(self.group).0
    }
}

impl FileSystem {
    /// The superblock to use first: a sound one of a low group.
    pub fn best(&self) -> Option<&Sighting> {
        let lost = |d: Descriptors| d.looked_at - d.sound;
        self.sightings.iter().min_by_key(|s| (!s.damage.is_empty(), lost(s.descriptors), s.group))
    }

    /// Its size in bytes, according to the best superblock.
    pub fn size(&self) -> u64 {
        self.best().map_or(0, |s| s.sb.blocks_count.saturating_mul(s.sb.block_size.into()))
    }
}

/// Looks for superblocks at every sector of `dev`. Calls `tell` with the number of bytes done.
pub fn scan(dev: &dyn BlockDevice, tell: &mut dyn FnMut(u64)) -> Scan {
    let mut found = Scan::default();
    let mut seen = Sightings::default();
    sweep(dev, &mut found, &mut seen, tell);
    found.more = seen.more;
    let mut by_uuid: BTreeMap<[u8; 16], Vec<Sighting>> = BTreeMap::new();
    for sighting in seen.all {
        by_uuid.entry(sighting.sb.uuid()).or_default().push(sighting);
    }
    let mut tries = TRIES_MAX;
    for same in by_uuid.into_values() {
        place(dev, same, &mut tries, &mut found);
    }
    found.filesystems.sort_by_key(|fs| fs.start);
    nest(&mut found);
    found.strays.sort_by_key(|s| s.byte);
    found
}

/// The superblocks found so far, up to the limit.
#[derive(Default)]
struct Sightings {
    all: Vec<Sighting>,
    /// How many of them claim to be primaries.
    primaries: usize,
    /// How many were found beyond the limit.
    more: u64,
}

impl Sightings {
    fn push(&mut self, sighting: Sighting) {
        let is_primary = is_primary(&sighting.sb);
        if self.all.len() == SIGHTINGS_MAX || (is_primary && self.primaries == PRIMARIES_MAX) {
            self.more += 1;
            return;
        }
        self.primaries += usize::from(is_primary);
        self.all.push(sighting);
    }
}

/// Whether a superblock claims to be the primary.
fn is_primary(sb: &SuperBlock) -> bool {
    sb.raw().s_block_group_nr.get() == 0
}

/// Reads everything but holes.
fn sweep(dev: &dyn BlockDevice, found: &mut Scan, seen: &mut Sightings, tell: &mut dyn FnMut(u64)) {
    let size = dev.size_bytes();
    // One more sector, because a superblock has two.
    let mut buf = vec![0; STEP + SECTOR];
    // A step that cannot be read is read again in the smallest pieces that the device allows.
    let small = (dev.limits().logical_block as usize).clamp(SECTOR, STEP);
    let mut at = 0;
    while at < size {
        tell(at);
        match dev.next_data(at) {
            Ok(Some(next)) => at = next - next % SECTOR as u64,
            Ok(None) => break,
            // The device does not report holes.
            Err(_) => {}
        }
        if !look(dev, at, STEP, &mut buf, seen) {
            for piece in (0..STEP as u64).step_by(small).map(|piece| at + piece).take_while(|at| *at < size) {
                if !look(dev, piece, small, &mut buf, seen) {
                    found.unreadable += (size - piece).min(small as u64);
                }
            }
        }
        at += STEP as u64;
    }
    tell(size);
}

/// Looks at the `len` bytes from `at` on. False: they cannot be read.
fn look(dev: &dyn BlockDevice, at: u64, len: usize, buf: &mut [u8], seen: &mut Sightings) -> bool {
    let there = (dev.size_bytes() - at).min((len + SECTOR) as u64) as usize;
    let mut reads = |len: usize| dev.read_at(at, &mut buf[..len], BioFlags::META).is_ok();
    // The next sector may be unreadable.
    let there = if reads(there) {
        there
    } else if there > len && reads(len) {
        len
    } else {
        return false;
    };
    let bytes = &buf[..there];
    for place in (0..len).step_by(SECTOR) {
        let Some(bytes) = bytes.get(place..place + SUPERBLOCK_SIZE) else { break };
        if !has_magic(bytes) {
            continue;
        }
        let mut damage = Vec::new();
        let sb = SuperBlock::parse(bytes, &SuperContext::default(), &mut |d| damage.extend(d.is_fatal().then_some(d)));
        if let Some(sb) = sb {
            let (byte, group) = (at + place as u64, GroupNr(0));
            seen.push(Sighting { byte, group, sb, damage, descriptors: Descriptors::default() });
        }
    }
    true
}

/// Distributes superblocks of one UUID over file systems: the start with the most votes first.
fn place(dev: &dyn BlockDevice, all: Vec<Sighting>, tries: &mut usize, found: &mut Scan) {
    let ballots = vote(all.iter().map(|s| (s.byte, &s.sb)));
    let mut left: Vec<Option<Sighting>> = all.into_iter().map(Some).collect();
    for mut ballot in ballots {
        ballot.votes.retain(|(index, _)| left[*index].is_some());
        let named = ballot.named() > 0;
        let Ballot { start, votes } = ballot;
        let agreed = votes.len() > 1 && named;
        // A single vote does not count, unless descriptors are in their place.
        let mut has_descriptors = |(index, vote): &(usize, Start)| {
            *tries = tries.saturating_sub(1);
            let sighting = left[*index].as_ref().filter(|_| *tries > 0);
            sighting.is_some_and(|s| descriptors_behind(dev, &s.sb, vote.group, s.byte).sound > 0)
        };
        let stands = agreed || (votes.len() > 1 || named) && votes.iter().any(&mut has_descriptors);
        if !stands {
            continue;
        }
        let mut sightings = Vec::new();
        for (index, vote) in votes {
            if let Some(s) = left[index].take() {
                let descriptors = descriptors_behind(dev, &s.sb, vote.group, s.byte);
                sightings.push(Sighting { group: vote.group, descriptors, ..s });
            }
        }
        sightings.sort_by_key(|s| s.group);
        found.filesystems.push(FileSystem { start, sightings, inside: None });
    }
    found.strays.extend(left.into_iter().flatten());
}

/// Looks at the descriptors behind the superblock of `group` at `byte`.
fn descriptors_behind(dev: &dyn BlockDevice, sb: &SuperBlock, group: GroupNr, byte: u64) -> Descriptors {
    let mut found = Descriptors::default();
    let block_size = u64::from(sb.block_size);
    let table = byte - sb.super_location(group).1 as u64 + block_size;
    let mut block = vec![0; block_size as usize];
    for (place, index) in sb.desc_blocks_behind(group).take((DESCRIPTORS_BYTES_MAX / block_size) as usize).enumerate() {
        let first = index.saturating_mul(sb.descs_per_block());
        let here = sb.descs_per_block().min(sb.group_count.saturating_sub(first));
        found.looked_at += here;
        if dev.read_at(table + place as u64 * block_size, &mut block, BioFlags::META).is_err() {
            continue;
        }
        for (group, bytes) in (first..first + here).map(GroupNr).zip(block.chunks_exact(sb.desc_size)) {
            found.sound += u32::from(GroupDesc::decode(bytes, group, sb).is_ok());
        }
    }
    found
}

/// Determines the file systems that begin inside of another one. A single superblock inside of its own file system is
/// a copy in two cases: there are more superblocks, or it claims to be the primary and that file system has one or
/// has descriptors. A journal may have descriptors behind it, too.
fn nest(found: &mut Scan) {
    // By their starts, so that the last one around another is the nearest.
    let mut before: Vec<FileSystem> = Vec::new();
    for mut fs in std::mem::take(&mut found.filesystems) {
        let around = || before.iter().filter(|other| other.start < fs.start && fs.start - other.start < other.size());
        let has_primary = |fs: &FileSystem| fs.sightings.iter().any(|s| s.group.0 == 0);
        let has_descriptors = |fs: &FileSystem| fs.best().is_some_and(|best| best.descriptors.sound > 0);
        let is_whole = |other: &FileSystem| {
            other.sightings.len() > 1 || has_primary(&fs) && (has_primary(other) || has_descriptors(other))
        };
        let is_own = |other: &FileSystem| other.uuid() == fs.uuid() && is_whole(other);
        if fs.sightings.len() == 1 && around().any(is_own) {
            found.strays.append(&mut fs.sightings);
            continue;
        }
        // Pieces of one image file do not contain each other.
        let inside = around().rfind(|other| other.uuid() != fs.uuid() || is_own(other)).map(|other| other.start);
        fs.inside = inside;
        before.push(fs);
    }
    found.filesystems = before;
}

impl FileSystem {
    fn uuid(&self) -> Option<[u8; 16]> {
        self.best().map(|s| s.sb.uuid())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use extant_block::device::{Fault, FaultyDevice, FileDevice, OpenOptions};

    use super::*;

    fn file(size: u64, at: u64, bytes: &[u8]) -> (tempfile::NamedTempFile, FileDevice) {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(size).expect("size");
        file.as_file().write_all_at(bytes, at).expect("written");
        let dev = FileDevice::open(file.path(), OpenOptions::read_only()).expect("opened");
        (file, dev)
    }

    /// The minimum of the original format: one group of 64 blocks.
    fn superblock() -> [u8; SUPERBLOCK_SIZE] {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        for (at, value) in [(0x00, 16), (0x04, 64), (0x14, 1), (0x20, 8192), (0x28, 16_u32)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        bytes[56..58].copy_from_slice(&extant_ondisk::superblock::MAGIC.to_le_bytes());
        bytes
    }

    #[test]
    fn holes_are_not_read() {
        let (_file, dev) = file(1 << 30, 512 << 20, &[1; 4096]);
        let mut last = 0;
        let found = scan(&dev, &mut |bytes| {
            assert!(bytes >= last);
            last = bytes;
        });
        assert!(found.filesystems.is_empty() && found.strays.is_empty());
        assert_eq!(last, 1 << 30);
        let read = dev.stats().read_bytes;
        assert!(read <= (STEP + SECTOR) as u64, "{read} bytes");
    }

    /// A sector that cannot be read hides only its own content.
    #[test]
    fn superblocks_beside_unreadable_sectors_are_found() {
        for place in [0, 4096 - 512, STEP as u64 - 1024, STEP as u64 - 512, STEP as u64] {
            let (_file, dev) = file(4 << 20, place, &superblock());
            assert_eq!(scan(&dev, &mut |_| {}).strays.len(), 1, "{place}");
            let dev = FaultyDevice::new(std::sync::Arc::new(dev));
            let bad = STEP as u64 + 8192;
            dev.inject(Fault::eio().range(bad..bad + 512));
            let found = scan(&dev, &mut |_| {});
            assert_eq!((found.strays.len(), found.unreadable), (1, 512), "{place}");
            assert_eq!(found.strays[0].byte, place);
        }
    }

    #[test]
    fn superblocks_beyond_the_limit_are_counted() {
        let many = PRIMARIES_MAX as u64 + 3;
        let (_file, dev) = file(many << 10, 0, &superblock().repeat(many as usize));
        let found = scan(&dev, &mut |_| {});
        let kept: usize = found.filesystems.iter().map(|fs| fs.sightings.len()).sum();
        assert_eq!((kept + found.strays.len(), found.more), (PRIMARIES_MAX, 3));
    }

    #[test]
    fn copies_in_a_long_journal_leave_room_for_backups() {
        let mut copies = superblock().repeat(PRIMARIES_MAX + 1);
        let mut backup = superblock();
        // s_block_group_nr.
        backup[90] = 1;
        copies.extend(backup);
        let (_file, dev) = file(copies.len() as u64, 0, &copies);
        let found = scan(&dev, &mut |_| {});
        let kept = found.filesystems.iter().flat_map(|fs| &fs.sightings).chain(&found.strays);
        assert_eq!(kept.filter(|s| !is_primary(&s.sb)).count(), 1);
    }
}
