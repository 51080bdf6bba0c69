//! Index blocks: the view that validates, and the edits.
//!
//! # Locking
//! None.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DX_BLOCK_MASK, DxShape};
use crate::csum::{ChecksumSeed, crc32c};
use crate::damage::first;
use crate::dirent::{DirBlockFormat, DirDamage, DirRule, StoredEntry, rec_len_from_disk, write_rec_len};

/// An entry of an index block (Linux: `struct dx_entry`, fs/ext4/namei.c). In entry 0, `hash` contains the limit (low
/// half) and the count (high half).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDxEntry {
    /// The lowest hash below it. If bit 0 is set, the leaf before it ends with the same hash.
    pub hash: U32,
    /// The logical block of the child, in the bits of [`super::DX_BLOCK_MASK`].
    pub block: U32,
}

/// The header of the root (Linux: `struct dx_root_info`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDxRootInfo {
    /// Reserved; always 0.
    pub reserved_zero: U32,
    /// `DX_HASH_*`, 0 to 2; the superblock determines the signedness.
    pub hash_version: u8,
    /// The size of this header in bytes: 8.
    pub info_length: u8,
    /// The number of levels of index nodes below the root.
    pub indirect_levels: u8,
    /// Always 0; bit 0 marks an unknown format.
    pub unused_flags: u8,
}

const ENTRY_LEN: usize = 8;
const INFO_AT: usize = 24;
/// `info_length`.
const INFO_LEN: u8 = 8;
/// The highest hash family of an index without a key.
const HASH_VERSION_MAX: u8 = 2;
/// The most levels of index nodes below a root, with LARGEDIR.
const LEVELS_MAX: u8 = 2;
const _: () = assert!(size_of::<RawDxEntry>() == ENTRY_LEN);
const _: () = assert!(INFO_AT + size_of::<RawDxRootInfo>() == DxShape::Root.base());

/// The parts that only a root has.
#[derive(Clone, Copy, Debug)]
pub struct PackedRoot {
    /// The format in which `.` and `..` are written.
    pub dots: DirBlockFormat,
    /// The inodes of the directory and of its parent.
    pub dot: [u32; 2],
    /// The hash family on disk.
    pub hash_version: u8,
    /// The number of levels of index nodes below.
    pub levels: u8,
}

/// The decoded header of a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxRootInfo {
    /// The hash family on disk; see [`super::HashVersion::from_disk`].
    pub hash_version: u8,
    /// The number of levels of index nodes below the root: 0, 1, or 2 with the LARGEDIR feature.
    pub indirect_levels: u8,
}

/// Which form of index block these bytes have, if any (Linux: `get_dx_countlimit`).
pub fn shape_of(block: &[u8]) -> Option<DxShape> {
    if rec_len_at(block, 0)? == block.len() {
        return Some(DxShape::Node);
    }
    let info = RawDxRootInfo::of(block)?;
    let is_root = hides_root(block) && info.reserved_zero.get() == 0 && info.info_length == INFO_LEN;
    is_root.then_some(DxShape::Root)
}

/// Whether the block starts with two entries of which the second extends to its end, like `.` and `..` of a root.
fn hides_root(block: &[u8]) -> bool {
    rec_len_at(block, 0) == Some(12) && rec_len_at(block, 12) == block.len().checked_sub(12)
}

fn rec_len_at(block: &[u8], at: usize) -> Option<usize> {
    let raw = block.get(at + 4..at + 6)?;
    Some(rec_len_from_disk(u16::from_le_bytes([raw[0], raw[1]]), block.len()))
}

impl RawDxRootInfo {
    /// That of a root, as stored; `None`: the block is too small.
    pub fn of(block: &[u8]) -> Option<&RawDxRootInfo> {
        Some(RawDxRootInfo::ref_from_prefix(block.get(INFO_AT..)?).ok()?.0)
    }
}

/// The entries of an index block as stored, for a reader that judges them by rules of its own.
#[derive(Clone, Copy, Debug)]
pub struct DxTable<'a> {
    /// The limit that the block declares; it should be the number of `entries`.
    pub limit: u16,
    /// The number of entries in use that the block declares.
    pub count: u16,
    /// All for which there is room. The first has limit and count in place of a key.
    pub entries: &'a [RawDxEntry],
    /// The bytes before them and behind them.
    head: &'a [u8],
    tail: &'a [u8],
}

impl DxTable<'_> {
    /// The stored and the expected checksum, if the first `count` entries are in use; `None`: the block has no room
    /// for one. It covers these entries, the tail's reserved word, and zeros in the checksum's own place.
    pub fn checksum(&self, count: usize, seed: ChecksumSeed) -> Option<(u32, u32)> {
        let (reserved, stored) = self.tail.get(..ENTRY_LEN)?.split_at(ENTRY_LEN / 2);
        let body = crc32c(seed.checksum(self.head), self.entries.get(..count)?.as_bytes());
        let stored = u32::from_le_bytes(stored.try_into().ok()?);
        Some((stored, crc32c(crc32c(body, reserved), &[0; 4])))
    }
}

/// A validated view of an index block.
#[derive(Clone, Copy, Debug)]
pub struct DxNode<'a> {
    entries: &'a [RawDxEntry],
    limit: usize,
}

impl DxNode<'_> {
    /// The number of children; at least 1.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// The maximum number of children.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The key of child `index`, including its lowest bit; 0 for child 0 and beyond the end.
    pub fn key(&self, index: usize) -> u32 {
        if index == 0 { 0 } else { self.entries.get(index).map_or(0, |entry| entry.hash.get()) }
    }

    /// The directory block of child `index`; 0 beyond the end (block 0 is never a child).
    pub fn child(&self, index: usize) -> u32 {
        self.entries.get(index).map_or(0, |entry| entry.block.get() & DX_BLOCK_MASK)
    }

    /// The last child whose key is not above `hash`, by binary search. A key with the continuation bit is higher than
    /// its hash, so a search finds the first of several leaves with the same hash.
    pub fn search(&self, hash: u32) -> usize {
        self.entries[1..].partition_point(|entry| entry.hash.get() <= hash)
    }

    /// Makes the checks that a lookup omits: keys are in order, and children are inside the directory of `blocks`
    /// blocks.
    ///
    /// # Errors
    /// [`DirDamage`] of the first entry that breaks a rule.
    pub fn validate(&self, shape: DxShape, blocks: u32) -> Result<(), DirDamage> {
        first(|mut sink| self.damage(shape, blocks, &mut sink)).map_or(Ok(()), Err)
    }

    /// Reports every entry that breaks a rule, for a directory of `blocks` blocks.
    pub fn damage(&self, shape: DxShape, blocks: u32, sink: &mut impl FnMut(DirDamage)) {
        for index in 0..self.count() {
            let mut note = |what| sink(DirDamage::new(shape.base() + index * ENTRY_LEN, what));
            if index > 1 && self.key(index) < self.key(index - 1) {
                note(DirRule::KeyOrder { found: self.key(index), previous: self.key(index - 1) });
            }
            let found = self.child(index);
            if found == 0 || found >= blocks {
                note(DirRule::Child { found, blocks });
            }
        }
    }
}

/// The format of this file system's index blocks. The block size is the length of the slices passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxFormat {
    /// The metadata_csum feature: an eight-byte tail follows the entries.
    pub has_csum: bool,
}

impl DxFormat {
    /// The exact number of entries that a block must state as its limit (Linux: `dx_root_limit`, `dx_node_limit`).
    pub fn limit(self, shape: DxShape, block_size: usize) -> usize {
        self.entries_from(shape.base(), block_size)
    }

    fn entries_from(self, base: usize, block_size: usize) -> usize {
        let room = block_size.saturating_sub(base) / ENTRY_LEN;
        if self.has_csum { room.saturating_sub(1) } else { room }
    }

    /// Decodes an index block of the given form.
    ///
    /// # Errors
    /// [`DirDamage`] if the limit or the count is invalid. [`DxNode::validate`] checks order and ranges.
    pub fn node(self, shape: DxShape, block: &[u8]) -> Result<DxNode<'_>, DirDamage> {
        if let Some(damage) = first(|mut sink| self.head_damage(shape, block, &mut sink)) {
            return Err(damage);
        }
        self.view(shape, block).ok_or(DirDamage::new(shape.base(), DirRule::IndexTooSmall))
    }

    /// The entries that the count states, up to the limit; `None` if there are none.
    fn view(self, shape: DxShape, block: &[u8]) -> Option<DxNode<'_>> {
        let table = self.table(shape.base(), block)?;
        let entries = table.entries.get(..usize::from(table.count)).filter(|entries| !entries.is_empty())?;
        Some(DxNode { entries, limit: table.entries.len() })
    }

    /// The table of entries that begins at byte `base` of a block, as stored; `None` where there is no room for one.
    pub fn table(self, base: usize, block: &[u8]) -> Option<DxTable<'_>> {
        let limit = self.entries_from(base, block.len());
        let (body, tail) = block.split_at_checked(base + limit * ENTRY_LEN)?;
        let (head, entries) = body.split_at_checked(base)?;
        let entries = <[RawDxEntry]>::ref_from_bytes(entries).ok()?;
        let word = entries.first()?.hash.get();
        Some(DxTable { limit: word as u16, count: (word >> 16) as u16, entries, head, tail })
    }

    /// Reports faults of the limit and the count, and of the entry that hides a node from old readers.
    fn head_damage(self, shape: DxShape, block: &[u8], sink: &mut impl FnMut(DirDamage)) {
        let base = shape.base();
        let Some(table) = self.table(base, block) else {
            return sink(DirDamage::new(base, DirRule::IndexTooSmall));
        };
        let (found, count, expected) = (table.limit, table.count, table.entries.len() as u16);
        if found != expected {
            sink(DirDamage::new(base, DirRule::Limit { found, expected }));
        }
        if count == 0 || count > expected {
            sink(DirDamage::new(base, DirRule::Count { found: count, limit: expected }));
        }
        if shape == DxShape::Node && shape_of(block) != Some(DxShape::Node) {
            sink(DirDamage::new(0, DirRule::LeafForIndex));
        }
    }

    /// Reports the faults of a root's header, and returns the header.
    fn root_damage(block: &[u8], sink: &mut impl FnMut(DirDamage)) -> Option<DxRootInfo> {
        let Some(info) = RawDxRootInfo::of(block) else {
            sink(DirDamage::new(INFO_AT, DirRule::RootTooSmall));
            return None;
        };
        let mut note = |what| sink(DirDamage::new(INFO_AT, what));
        if !hides_root(block) {
            note(DirRule::RootDots);
        }
        if info.reserved_zero.get() != 0 {
            note(DirRule::RootReserved { found: info.reserved_zero.get() });
        }
        if info.info_length != INFO_LEN {
            note(DirRule::RootLength { found: info.info_length });
        }
        if info.unused_flags & 1 != 0 {
            note(DirRule::RootFlags { found: info.unused_flags });
        }
        if info.hash_version > HASH_VERSION_MAX {
            note(DirRule::HashVersion { found: info.hash_version });
        }
        if info.indirect_levels > LEVELS_MAX {
            note(DirRule::Levels { found: info.indirect_levels, most: LEVELS_MAX });
        }
        Some(DxRootInfo { hash_version: info.hash_version, indirect_levels: info.indirect_levels })
    }

    /// Decodes a root: its header and its entries.
    ///
    /// # Errors
    /// [`DirDamage`] if the block is not a root that Extant can use.
    pub fn root(self, block: &[u8]) -> Result<(DxRootInfo, DxNode<'_>), DirDamage> {
        let mut info = None;
        if let Some(damage) = first(|mut sink| info = DxFormat::root_damage(block, &mut sink)) {
            return Err(damage);
        }
        let header = info.ok_or(DirDamage::new(INFO_AT, DirRule::RootTooSmall))?;
        Ok((header, self.node(DxShape::Root, block)?))
    }

    /// Whether a block of an indexed directory is a node: an unused entry as long as the block, and the right limit.
    pub fn is_node(self, block: &[u8]) -> bool {
        let hides = StoredEntry::at(block, 0)
            .is_some_and(|entry| entry.ino == 0 && entry.rec_len == block.len() && entry.name_len == 0);
        hides && self.table(DxShape::Node.base(), block).is_some_and(|t| usize::from(t.limit) == t.entries.len())
    }

    /// Turns `block` into a root with one child and no key. `dots` is the format in which `.` and `..` are written.
    pub fn init_root(self, block: &mut [u8], dots: DirBlockFormat, dot: [u32; 2], hash_version: u8, child: u32) {
        let size = block.len();
        dots.init_dots(block, dot[0], dot[1]);
        // There is no room for the checksum tail of a leaf here, because the index extends to the end of the block.
        block[INFO_AT..].fill(0);
        write_rec_len(block, 12, size - 12);
        let info = RawDxRootInfo {
            reserved_zero: 0.into(),
            hash_version,
            info_length: 8,
            indirect_levels: 0,
            unused_flags: 0,
        };
        block[INFO_AT..DxShape::Root.base()].copy_from_slice(info.as_bytes());
        self.write_head(block, DxShape::Root, 1);
        write_entry(block, DxShape::Root, 0, None, child);
    }

    /// Turns `block` into a node with one child and no key.
    pub fn init_node(self, block: &mut [u8], child: u32) {
        block.fill(0);
        let size = block.len();
        write_rec_len(block, 0, size);
        self.write_head(block, DxShape::Node, 1);
        write_entry(block, DxShape::Node, 0, None, child);
    }

    /// Turns `block` into an index block with `children`. Each is the lowest key below it (the first one's is not
    /// stored) and its directory block. `root` has the parts that only a root needs.
    ///
    /// # Errors
    /// [`DirDamage`] if there are no children, or more than the block has room for.
    pub fn pack(
        self,
        block: &mut [u8],
        root: Option<PackedRoot>,
        children: impl ExactSizeIterator<Item = (u32, u32)>,
    ) -> Result<(), DirDamage> {
        let shape = if root.is_some() { DxShape::Root } else { DxShape::Node };
        let count = children.len();
        if count == 0 || count > self.limit(shape, block.len()) {
            return Err(DirDamage::new(shape.base(), DirRule::IndexFull));
        }
        match root {
            Some(PackedRoot { dots, dot, hash_version, levels }) => {
                self.init_root(block, dots, dot, hash_version, 0);
                block[INFO_AT + 6] = levels;
            }
            None => self.init_node(block, 0),
        }
        for (index, (key, child)) in children.enumerate() {
            write_entry(block, shape, index, (index > 0).then_some(key), child);
        }
        self.write_head(block, shape, count);
        Ok(())
    }

    /// Inserts a child after child `at` (Linux: `dx_insert_block`).
    ///
    /// # Errors
    /// [`DirDamage`] if the block is full, `at` is not in it, or it is not an index block; nothing has changed then.
    pub fn insert(self, block: &mut [u8], shape: DxShape, at: usize, key: u32, child: u32) -> Result<(), DirDamage> {
        let (count, limit) = {
            let node = self.node(shape, block)?;
            (node.count(), node.limit())
        };
        if count >= limit || at >= count {
            return Err(DirDamage { offset: shape.base() as u32, what: DirRule::IndexFull });
        }
        let start = shape.base() + (at + 1) * ENTRY_LEN;
        let end = shape.base() + count * ENTRY_LEN;
        block.copy_within(start..end, start + ENTRY_LEN);
        write_entry(block, shape, at + 1, Some(key), child);
        self.write_head(block, shape, count + 1);
        Ok(())
    }

    /// Writes the upper half of `source`'s children to `node`, and returns the key for it in the parent. `source` does
    /// not change until [`DxFormat::keep_lower_half`].
    ///
    /// # Errors
    /// [`DirDamage`] if `source` is not an index node with two children.
    pub fn upper_half(self, source: &[u8], node: &mut [u8]) -> Result<u32, DirDamage> {
        let view = self.node(DxShape::Node, source)?;
        let kept = view.count() / 2;
        if kept == 0 {
            return Err(DirDamage { offset: DxShape::Node.base() as u32, what: DirRule::TooSmallToSplit });
        }
        self.init_node(node, view.child(kept));
        for (to, from) in (kept + 1..view.count()).enumerate() {
            write_entry(node, DxShape::Node, to + 1, Some(view.key(from)), view.child(from));
        }
        self.write_head(node, DxShape::Node, view.count() - kept);
        Ok(view.key(kept))
    }

    /// Drops the children that [`DxFormat::upper_half`] copied.
    ///
    /// # Errors
    /// [`DirDamage`] if `block` is not an index node with two children.
    pub fn keep_lower_half(self, block: &mut [u8]) -> Result<(), DirDamage> {
        let count = self.node(DxShape::Node, block)?.count();
        if count < 2 {
            return Err(DirDamage { offset: DxShape::Node.base() as u32, what: DirRule::TooSmallToSplit });
        }
        let kept = count / 2;
        block[DxShape::Node.base() + kept * ENTRY_LEN..].fill(0);
        self.write_head(block, DxShape::Node, kept);
        Ok(())
    }

    /// Writes all of a root's children to `node`, so that the root can become one level higher.
    ///
    /// # Errors
    /// [`DirDamage`] if `root` is not a root.
    pub fn root_to_node(self, root: &[u8], node: &mut [u8]) -> Result<(), DirDamage> {
        let (_, view) = self.root(root)?;
        self.init_node(node, view.child(0));
        for index in 1..view.count() {
            write_entry(node, DxShape::Node, index, Some(view.key(index)), view.child(index));
        }
        self.write_head(node, DxShape::Node, view.count());
        Ok(())
    }

    /// Makes the root one level higher, with `child` (from [`DxFormat::root_to_node`]) as its only child.
    ///
    /// # Errors
    /// [`DirDamage`] if `root` is not a root, or already has the maximum number of levels.
    pub fn raise_root(self, root: &mut [u8], child: u32) -> Result<(), DirDamage> {
        let levels = self.root(root)?.0.indirect_levels;
        if levels >= LEVELS_MAX {
            return Err(DirDamage::new(INFO_AT, DirRule::Levels { found: levels, most: LEVELS_MAX - 1 }));
        }
        root[INFO_AT + 6] = levels + 1;
        root[DxShape::Root.base() + ENTRY_LEN..].fill(0);
        self.write_head(root, DxShape::Root, 1);
        write_entry(root, DxShape::Root, 0, None, child);
        Ok(())
    }

    fn write_head(self, block: &mut [u8], shape: DxShape, count: usize) {
        let limit = self.limit(shape, block.len());
        let word = (limit as u32 & 0xFFFF) | ((count as u32) << 16);
        block[shape.base()..shape.base() + 4].copy_from_slice(&word.to_le_bytes());
    }

    /// The checksum of an index block: where it is stored, the stored and the expected one.
    fn checksum(self, shape: DxShape, block: &[u8], seed: ChecksumSeed) -> Result<(usize, u32, u32), DirDamage> {
        let node = self.node(shape, block)?;
        let tail = shape.base() + node.limit() * ENTRY_LEN;
        let sums = self.table(shape.base(), block).and_then(|table| table.checksum(node.count(), seed));
        let (found, expected) = sums.ok_or(DirDamage::new(tail, DirRule::NoIndexTailRoom))?;
        Ok((tail + 4, found, expected))
    }

    /// Writes the checksum of an index block, if this file system has them.
    ///
    /// # Errors
    /// [`DirDamage`] if the block is not an index block.
    pub fn seal(self, block: &mut [u8], seed: ChecksumSeed) -> Result<(), DirDamage> {
        if self.has_csum {
            let shape = shape_of(block).ok_or(DirDamage::new(0, DirRule::NoIndex))?;
            let (at, _, checksum) = self.checksum(shape, block, seed)?;
            block[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        Ok(())
    }

    /// Checks the checksum of an index block, if this file system has them (Linux: `ext4_dx_csum_verify`).
    ///
    /// # Errors
    /// [`DirDamage`] if it does not match, or if the block is not an index block.
    pub fn verify(self, block: &[u8], seed: ChecksumSeed) -> Result<(), DirDamage> {
        if !self.has_csum {
            return Ok(());
        }
        let shape = shape_of(block).ok_or(DirDamage::new(0, DirRule::NoIndex))?;
        match self.checksum(shape, block, seed)? {
            (at, found, expected) if found != expected => {
                Err(DirDamage::new(at, DirRule::IndexChecksum { found, expected }))
            }
            _ => Ok(()),
        }
    }
}

/// Writes entry `index`. Without a key, writes only its block number, because the key of entry 0 contains limit and
/// count.
fn write_entry(block: &mut [u8], shape: DxShape, index: usize, key: Option<u32>, child: u32) {
    let at = shape.base() + index * ENTRY_LEN;
    if let Some(key) = key {
        block[at..at + 4].copy_from_slice(&key.to_le_bytes());
    }
    block[at + 4..at + 8].copy_from_slice(&(child & DX_BLOCK_MASK).to_le_bytes());
}
