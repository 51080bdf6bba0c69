//! Everything that can be read of a damaged image: the measure of a repair's losses.
//!
//! Main types: [`Census`] (all paths), [`File`], [`Difference`] (two of them compared). Main function: [`take`].
//!
//! It reads paths, file contents, link targets and attributes. It trusts no metadata, and shares no code with the
//! checker, the repair or the engine. The log is replayed in memory first.
//!
//! # Locking
//! None.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::group_desc::GroupDesc;
use extant_ondisk::superblock::{Geometry, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock, SuperContext};
use extant_ondisk::{GroupNr, InodeNr};
use extant_recovery::locate::open_journal;
use extant_recovery::{OverlayDevice, Replay};

use super::edit::word;

/// A file, directory or other inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// The number of its inode.
    pub ino: u32,
    /// The type in its mode.
    pub kind: u16,
    /// The size of a file or symbolic link.
    pub size: u64,
    /// A hash of the content.
    pub content: u64,
    /// A hash of the attributes.
    pub attributes: u64,
}

impl File {
    /// The properties by which a reader distinguishes files.
    fn key(&self) -> (u16, u64, u64) {
        (self.kind, self.size, self.content)
    }
}

/// Paths and the files that they lead to.
pub type Census = BTreeMap<Vec<u8>, File>;

const DIRECTORY: u16 = 0o040_000;
const REGULAR: u16 = 0o100_000;
const SYMLINK: u16 = 0o120_000;
const EXTENTS: u32 = 0x8_0000;
const INLINE: u32 = 0x1000_0000;
/// More directories than the image of any test has.
const DIRECTORIES_MAX: usize = 100_000;

struct Reader {
    device: Arc<dyn BlockDevice>,
    geo: Geometry,
    tables: Vec<u64>,
}

/// Takes the census of an image; empty if there is no usable superblock.
pub fn take(image: &MemDevice) -> Census {
    let device: Arc<dyn BlockDevice> = Arc::new(image.snapshot());
    Reader::open(&replayed(device)).map(|reader| reader.walk()).unwrap_or_default()
}

/// The device after a replay of its log, if the log can be replayed.
fn replayed(device: Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice> {
    let open = || {
        let sb = extant_recovery::locate::read_super(&*device).ok()?;
        let journal = open_journal(device.clone(), &sb).ok()??;
        let replay = Replay::load(&journal, &*device, &mut |_| {}).ok()?;
        let live = sb.needs_recovery() && journal.super_block().is_live();
        live.then(|| Arc::new(OverlayDevice::new(device.clone(), journal, replay)) as Arc<dyn BlockDevice>)
    };
    open().unwrap_or(device.clone())
}

impl Reader {
    fn open(device: &Arc<dyn BlockDevice>) -> Option<Reader> {
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        device.read_at(SUPERBLOCK_OFFSET, &mut bytes, BioFlags::META).ok()?;
        let context = SuperContext { device_bytes: Some(device.size_bytes()), now: None };
        let geo = SuperBlock::parse(&bytes, &context, &mut |_| {})?.geometry().clone();
        let mut reader = Reader { device: device.clone(), geo, tables: Vec::new() };
        for group in reader.geo.groups() {
            let (block, at) = reader.geo.group_desc_block(group)?;
            let bytes = reader.read((block.0 << reader.geo.block_bits) + at as u64, reader.geo.desc_size);
            let desc = GroupDesc::parse(&bytes, GroupNr(group.0), &reader.geo).ok()?;
            reader.tables.push(desc.inode_table.0);
        }
        Some(reader)
    }

    /// Reads bytes, with zeros for unreadable ones.
    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        if self.device.read_at(at, &mut bytes, BioFlags::META).is_err() {
            bytes.fill(0);
        }
        bytes
    }

    fn block(&self, block: u64) -> Vec<u8> {
        self.read(block << self.geo.block_bits, self.geo.block_size as usize)
    }

    fn exists(&self, block: u64, blocks: u64) -> bool {
        block != 0 && self.geo.contains_range(extant_ondisk::BlockNr(block), blocks)
    }

    fn inode(&self, ino: u32) -> Option<Vec<u8>> {
        let place = self.geo.inode_location(InodeNr(ino)).ok()?;
        let block = self.tables.get(place.group.0 as usize)?.checked_add(place.table_block.into())?;
        let at = (block << self.geo.block_bits) + place.offset as u64;
        self.exists(block, 1).then(|| self.read(at, self.geo.inode_size))
    }

    /// The written blocks of a file: logical block and block.
    fn map(&self, inode: &[u8]) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut seen = BTreeSet::new();
        let root = &inode[40..100];
        if word(inode, 32) & EXTENTS != 0 {
            self.extents(root, 6, &mut seen, &mut all);
        } else {
            let pointers = u64::from(self.geo.block_size / 4);
            let mut first = 12;
            for slot in 0..15u32 {
                let block = u64::from(word(root, slot as usize * 4));
                let level = slot.saturating_sub(11);
                let at = if slot < 12 { slot.into() } else { first };
                self.pointer(block, at, level, &mut seen, &mut all);
                if slot >= 12 {
                    first += pointers.pow(level);
                }
            }
        }
        all.sort_unstable();
        all.dedup_by_key(|(lblk, _)| *lblk);
        all
    }

    fn pointer(&self, block: u64, lblk: u64, level: u32, seen: &mut BTreeSet<u64>, all: &mut Vec<(u64, u64)>) {
        if !self.exists(block, 1) {
            return;
        }
        if level == 0 {
            return all.push((lblk, block));
        }
        if seen.insert(block) {
            let span = u64::from(self.geo.block_size / 4).pow(level - 1);
            for (i, pointer) in self.block(block).chunks_exact(4).enumerate() {
                let below = u64::from(word(pointer, 0));
                self.pointer(below, lblk + i as u64 * span, level - 1, seen, all);
            }
        }
    }

    fn extents(&self, node: &[u8], depth_max: u16, seen: &mut BTreeSet<u64>, all: &mut Vec<(u64, u64)>) {
        let half = |at: usize| u16::from_le_bytes([node[at], node[at + 1]]);
        let (magic, count, depth) = (half(0), usize::from(half(2)), half(6));
        if magic != 0xf30a || depth > depth_max || count > (node.len() - 12) / 12 {
            return;
        }
        for entry in node[12..].chunks_exact(12).take(count) {
            let part = |at: usize| u64::from(u16::from_le_bytes([entry[at], entry[at + 1]]));
            let lblk = u64::from(word(entry, 0));
            if depth > 0 {
                let child = u64::from(word(entry, 4)) | part(8) << 32;
                if self.exists(child, 1) && seen.insert(child) {
                    self.extents(&self.block(child), depth - 1, seen, all);
                }
                continue;
            }
            let (len, block) = (part(4), u64::from(word(entry, 8)) | part(6) << 32);
            // A greater length means an unwritten extent.
            if len > 0 && len <= 32_768 && self.exists(block, len) {
                all.extend((0..len).map(|step| (lblk + step, block + step)));
            }
        }
    }

    /// The inline data behind `i_block`: the value of the attribute system.data.
    fn inline_rest(inode: &[u8]) -> Vec<u8> {
        let entries = attributes_in(inode);
        entries.into_iter().find(|(name, _)| name == b"\x07data").map(|(_, value)| value).unwrap_or_default()
    }

    fn entries(&self, ino: u32, inode: &[u8]) -> Vec<(Vec<u8>, u32)> {
        let mut all = Vec::new();
        let mut scan = |bytes: &[u8]| {
            let mut at = 0;
            while at + 8 <= bytes.len() {
                let (target, name_len) = (word(bytes, at), usize::from(bytes[at + 6]));
                let raw = u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]);
                let len = extant_ondisk::dirent::rec_len_from_disk(raw, bytes.len().next_power_of_two());
                if len < 12 || !len.is_multiple_of(4) || at + len > bytes.len() || 8 + name_len > len {
                    break;
                }
                if target != 0 && name_len > 0 && target <= self.geo.inodes_count {
                    all.push((bytes[at + 8..at + 8 + name_len].to_vec(), target));
                }
                at += len;
            }
        };
        if word(inode, 32) & INLINE != 0 {
            scan(&inode[44..100]);
            scan(&Reader::inline_rest(inode));
        } else {
            for (_, block) in self.map(inode) {
                let bytes = self.block(block);
                let end = bytes.len() - if self.geo.metadata_csum && bytes[bytes.len() - 5] == 0xde { 12 } else { 0 };
                scan(&bytes[..end]);
            }
        }
        all.retain(|(name, target)| name != b"." && name != b".." && *target != ino);
        all
    }

    fn content(&self, kind: u16, inode: &[u8], size: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        let own = &inode[40..100];
        match kind {
            DIRECTORY => {}
            REGULAR | SYMLINK if word(inode, 32) & INLINE != 0 => {
                let mut all = [own, &Reader::inline_rest(inode)].concat();
                all.truncate(size.min(all.len() as u64) as usize);
                hasher.write(&all);
            }
            SYMLINK if word(inode, 28) == 0 || size < 60 => hasher.write(&own[..size.min(60) as usize]),
            REGULAR | SYMLINK => {
                let length = u64::from(self.geo.block_size);
                for (lblk, block) in self.map(inode) {
                    let mut bytes = self.block(block);
                    bytes.truncate(size.saturating_sub(lblk * length).min(length) as usize);
                    // Holes and zeros are equivalent.
                    if bytes.iter().any(|byte| *byte != 0) {
                        hasher.write_u64(lblk);
                        hasher.write(&bytes);
                    }
                }
            }
            _ => hasher.write(&own[..8]),
        }
        hasher.finish()
    }

    fn attributes(&self, inode: &[u8]) -> u64 {
        let mut all = attributes_in(inode);
        let block = u64::from(word(inode, 104));
        if self.exists(block, 1) {
            let bytes = self.block(block);
            if word(&bytes, 0) == 0xea02_0000 {
                all.extend(entries_of(&bytes, 32, 0));
            }
        }
        all.retain(|(name, _)| name != b"\x07data");
        all.sort();
        let mut hasher = DefaultHasher::new();
        for (name, value) in all {
            hasher.write(&name);
            hasher.write(&value);
        }
        hasher.finish()
    }

    fn file(&self, ino: u32) -> Option<(File, Vec<u8>)> {
        let inode = self.inode(ino)?;
        let mode = u16::from_le_bytes([inode[0], inode[1]]);
        let (kind, links) = (mode & 0o170_000, u16::from_le_bytes([inode[26], inode[27]]));
        if links == 0 || (ino != 2 && ino < self.geo.first_ino) {
            return None;
        }
        let size = u64::from(word(&inode, 4)) | u64::from(word(&inode, 108)) << 32;
        let (content, attributes) = (self.content(kind, &inode, size), self.attributes(&inode));
        let size = if [REGULAR, SYMLINK].contains(&kind) { size } else { 0 };
        Some((File { ino, kind, size, content, attributes }, inode))
    }

    fn walk(&self) -> Census {
        let mut census = Census::new();
        let mut known: BTreeMap<u32, Option<(File, Vec<u8>)>> = BTreeMap::new();
        let mut todo = vec![(Vec::new(), 2u32)];
        let mut seen = BTreeSet::from([2u32]);
        while let Some((path, dir)) = todo.pop() {
            let Some((_, inode)) = known.entry(dir).or_insert_with(|| self.file(dir)).clone() else { continue };
            for (name, ino) in self.entries(dir, &inode) {
                let Some((file, _)) = known.entry(ino).or_insert_with(|| self.file(ino)).clone() else { continue };
                let path = [&path[..], b"/", &name].concat();
                if file.kind == DIRECTORY && seen.len() < DIRECTORIES_MAX && seen.insert(ino) {
                    todo.push((path.clone(), ino));
                }
                census.entry(path).or_insert(file);
            }
        }
        census
    }
}

/// The attributes in an inode: index and name, then value.
fn attributes_in(inode: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let extra = inode.get(128..130).map_or(0, |bytes| usize::from(u16::from_le_bytes([bytes[0], bytes[1]])));
    match inode.get(128 + extra..) {
        Some(area) if extra > 0 && area.len() > 8 && word(area, 0) == 0xea02_0000 => entries_of(area, 4, 4),
        _ => Vec::new(),
    }
}

/// The entries from byte `at` on; offsets of values count from `base`.
fn entries_of(bytes: &[u8], mut at: usize, base: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    while at + 16 <= bytes.len() && word(bytes, at) != 0 {
        let len = usize::from(bytes[at]);
        let Some(name) = bytes.get(at + 16..at + 16 + len) else { break };
        let (inode, size) = (word(bytes, at + 4), word(bytes, at + 8) as usize);
        let start = base + usize::from(u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]));
        let value = match inode {
            0 if size == 0 => Some(&[][..]),
            0 => bytes.get(start..start.saturating_add(size)),
            _ => bytes.get(at + 4..at + 8),
        };
        if let Some(value) = value {
            all.push(([&bytes[at + 1..at + 2], name].concat(), value.to_vec()));
        }
        at += (16 + len + 3) & !3;
    }
    all
}

/// How a repaired state compares with the sound and the damaged one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The number of paths of the sound image.
    pub paths: u64,
    /// Of these, the number that lead to the same file in the damaged image.
    pub before: u64,
    /// Of these, the number that lead to the same file after the repair.
    pub after: u64,
    /// Paths that were readable before and whose content no longer exists.
    pub gone: Vec<String>,
    /// Paths that were readable before and whose content has another name now.
    pub moved: Vec<String>,
    /// Paths whose attributes were readable before, and are not now.
    pub attributes: Vec<String>,
}

/// Compares three states of an image.
pub fn compare(sound: &Census, damaged: &Census, repaired: &Census) -> Difference {
    let same = |one: &Census| -> BTreeSet<&Vec<u8>> {
        let is_same = |(path, file): &(&Vec<u8>, &File)| one.get(*path).is_some_and(|other| other.key() == file.key());
        sound.iter().filter(is_same).map(|(path, _)| path).collect()
    };
    let (before, after) = (same(damaged), same(repaired));
    let content: BTreeSet<_> = repaired.values().filter(|file| file.size > 0).map(File::key).collect();
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let mut difference = Difference {
        paths: sound.len() as u64,
        before: before.len() as u64,
        after: after.len() as u64,
        ..Difference::default()
    };
    for path in before.difference(&after) {
        let file = &sound[*path];
        let found = file.size > 0 && content.contains(&file.key());
        if found { &mut difference.moved } else { &mut difference.gone }.push(shown(path));
    }
    for path in before.intersection(&after) {
        let of = |census: &Census| census[*path].attributes;
        if of(damaged) == of(sound) && of(repaired) != of(sound) {
            difference.attributes.push(shown(path));
        }
    }
    difference
}
