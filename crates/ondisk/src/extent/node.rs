//! One node: a checked view ([`NodeRef`]) and edits in place ([`NodeMut`]).
//!
//! `parse` creates both, and checks the header against the length of the slice. From then on, no content of the entries
//! can make a method panic. [`NodeRef::validate`] checks the entries once.
//!
//! # Locking
//! None.

use std::ops::Range;

use super::damage::{ExtentDamage, NodeContext, Promise};
use super::{
    DEPTH_MAX, ENTRY_BYTES, Extent, HEADER_BYTES, Header, Index, LOGICAL_END, MAGIC, ROOT_BYTES, RawEntry, TAIL_BYTES,
    raw_key,
};
use crate::csum::crc32c;
use crate::damage::refuse;
use crate::{BlockNr, Error, LogicalBlock, Result, Structure};

/// The number of entries that a node of `bytes` bytes (the root's 60, or a block) has room for.
pub const fn capacity(bytes: usize) -> usize {
    bytes.saturating_sub(HEADER_BYTES) / ENTRY_BYTES
}

fn get_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The header of a root (60 bytes) or a block, without checks; `None` if there are too few bytes.
fn read_header(bytes: &[u8]) -> Option<(u16, Header)> {
    let bytes = bytes.get(..ROOT_BYTES)?;
    let header = Header {
        entries: get_u16(bytes, 2),
        max: get_u16(bytes, 4),
        depth: get_u16(bytes, 6),
        generation: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
    };
    Some((get_u16(bytes, 0), header))
}

/// Reports all damage of the header of a root (60 bytes) or a block. If there is none, [`NodeRef::parse`] accepts the
/// node.
pub fn header_damage(bytes: &[u8], sink: &mut impl FnMut(ExtentDamage)) {
    let Some((magic, header)) = read_header(bytes) else {
        return sink(ExtentDamage::Length { found: bytes.len() as u32 });
    };
    if magic != MAGIC {
        sink(ExtentDamage::Magic { found: magic });
    }
    // In e2fsprogs, a writer may leave room for up to two entries unused, so this allows it as well.
    let room = capacity(bytes.len());
    if usize::from(header.max) > room || usize::from(header.max) + 2 < room {
        sink(ExtentDamage::Room { found: header.max, expected: room.min(usize::from(u16::MAX)) as u16 });
    }
    if header.entries > header.max {
        sink(ExtentDamage::Entries { found: header.entries, room: header.max });
    }
    if header.depth > DEPTH_MAX {
        sink(ExtentDamage::TooDeep { found: header.depth });
    }
}

fn parse_header(bytes: &[u8], number: u64) -> Result<Header> {
    refuse(Structure::ExtentNode, number, |mut sink| header_damage(bytes, &mut sink))?;
    let (_, header) =
        read_header(bytes).ok_or_else(|| Error::corrupt(Structure::ExtentNode, number, "too few bytes for a node"))?;
    Ok(header)
}

/// The offset of a block node's checksum, according to its header (`12 + 12 * eh_max`).
fn tail_at(header: &Header, bytes: &[u8]) -> Option<usize> {
    let at = HEADER_BYTES + usize::from(header.max) * ENTRY_BYTES;
    (bytes.len() > ROOT_BYTES && at + TAIL_BYTES <= bytes.len()).then_some(at)
}

/// A view of a node whose header is valid.
#[derive(Clone, Copy, Debug)]
pub struct NodeRef<'a> {
    bytes: &'a [u8],
    header: Header,
}

impl<'a> NodeRef<'a> {
    /// Checks the header of a root (60 bytes) or a block. `number` is the block (0 for a root), for messages.
    ///
    /// # Errors
    /// `Corrupt` if the magic or the counts of the header are wrong, or `bytes` is too short for them.
    pub fn parse(bytes: &'a [u8], number: u64) -> Result<NodeRef<'a>> {
        Ok(NodeRef { bytes, header: parse_header(bytes, number)? })
    }

    /// The node's header (Linux: `struct ext4_extent_header`), checked by [`NodeRef::parse`].
    pub fn header(&self) -> Header {
        self.header
    }

    /// The number of entries in use.
    pub fn len(&self) -> usize {
        usize::from(self.header.entries)
    }

    /// Whether no entry is in use; this is allowed only for the root of an empty file.
    pub fn is_empty(&self) -> bool {
        self.header.entries == 0
    }

    /// The number of entries that there is room for.
    pub fn room(&self) -> usize {
        usize::from(self.header.max)
    }

    /// The number of levels below this node; 0 for a leaf.
    pub fn depth(&self) -> u16 {
        self.header.depth
    }

    /// The bytes of entry `i`.
    pub fn raw(&self, i: usize) -> Option<RawEntry> {
        if i >= self.len() {
            return None;
        }
        let at = HEADER_BYTES + i * ENTRY_BYTES;
        self.bytes.get(at..at + ENTRY_BYTES)?.try_into().ok()
    }

    /// All entries, in order.
    pub fn raw_entries(&self) -> impl Iterator<Item = RawEntry> + use<'a> {
        let node = *self;
        (0..node.len()).map_while(move |i| node.raw(i))
    }

    /// The first logical block of entry `i`.
    pub fn key(&self, i: usize) -> Option<u32> {
        self.raw(i).map(|raw| raw_key(&raw))
    }

    /// Entry `i` of a leaf.
    pub fn extent(&self, i: usize) -> Option<Extent> {
        self.raw(i).map(|raw| Extent::decode(&raw))
    }

    /// Entry `i` of an index node.
    pub fn index(&self, i: usize) -> Option<Index> {
        self.raw(i).map(|raw| Index::decode(&raw))
    }

    /// The last entry whose key is at most `lblk`, by binary search; `None` if `lblk` lies before the first entry.
    pub fn search(&self, lblk: u32) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            match self.key(middle) {
                Some(key) if key <= lblk => low = middle + 1,
                _ => high = middle,
            }
        }
        low.checked_sub(1)
    }

    /// The node, if its header is valid; otherwise [`header_damage`] reports its faults.
    pub fn sound(bytes: &'a [u8]) -> Option<NodeRef<'a>> {
        let mut sound = true;
        header_damage(bytes, &mut |_| sound = false);
        let (_, header) = read_header(bytes).filter(|_| sound)?;
        Some(NodeRef { bytes, header })
    }

    /// Whether the depth is the only fault of the header.
    pub fn is_only_too_deep(bytes: &[u8]) -> bool {
        let (mut deep, mut others) = (false, false);
        header_damage(bytes, &mut |damage| match damage {
            ExtentDamage::TooDeep { .. } => deep = true,
            _ => others = true,
        });
        deep && !others
    }

    /// Checks every entry: keys ascend, extents do not overlap, lengths and logical ends are legal, and `valid` accepts
    /// each physical range (start, blocks). `depth` is the depth that the parent states.
    ///
    /// # Errors
    /// `Corrupt` with the first rule that an entry or the depth breaks.
    pub fn validate(&self, depth: u16, number: u64, valid: impl Fn(BlockNr, u32) -> bool) -> Result<()> {
        let context = NodeContext { seed: None, is_dir: false, cluster_bits: 0, valid };
        refuse(Structure::ExtentNode, number, |mut sink| {
            if self.header.depth != depth {
                sink(ExtentDamage::Depth { found: self.header.depth, expected: depth });
            }
            self.entries(None, LOGICAL_END.into(), &context, &mut |step| step.err().into_iter().for_each(&mut sink));
        })
    }

    /// Checks a node against its parent: its depth, and that everything it maps lies in `first..end`. This looks only
    /// at the first and the last entry, so it is cheap enough for every descent.
    ///
    /// # Errors
    /// `Corrupt` if the depth or the range differs, or if an index node is empty.
    pub fn check_place(&self, depth: u16, first: u32, end: u64, number: u64) -> Result<()> {
        refuse(Structure::ExtentNode, number, |mut sink| {
            self.place_damage(&Promise { depth, first, end }, &mut sink);
            if depth > 0 && self.is_empty() {
                sink(ExtentDamage::Empty);
            }
        })
    }

    /// The checksum stored in a block node's tail.
    pub fn stored_checksum(&self) -> Option<u32> {
        let at = tail_at(&self.header, self.bytes)?;
        self.bytes.get(at..at + TAIL_BYTES)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// The checksum that a block node should have with this inode seed.
    pub fn checksum(&self, inode_seed: u32) -> Option<u32> {
        let at = tail_at(&self.header, self.bytes)?;
        Some(crc32c(inode_seed, &self.bytes[..at]))
    }
}

/// A node that may be edited. Every edit updates the header; only [`NodeMut::seal`] updates the checksum.
#[derive(Debug)]
pub struct NodeMut<'a> {
    bytes: &'a mut [u8],
    header: Header,
}

impl<'a> NodeMut<'a> {
    /// Checks the header, as [`NodeRef::parse`] does.
    ///
    /// # Errors
    /// As [`NodeRef::parse`].
    pub fn parse(bytes: &'a mut [u8], number: u64) -> Result<NodeMut<'a>> {
        let header = parse_header(bytes, number)?;
        Ok(NodeMut { bytes, header })
    }

    /// Writes the header of an empty node to `bytes` (the root's 60, or a block), and zeroes the rest.
    pub fn init(bytes: &'a mut [u8], depth: u16) -> NodeMut<'a> {
        debug_assert!(bytes.len() >= ROOT_BYTES && depth <= DEPTH_MAX);
        bytes.fill(0);
        let max = capacity(bytes.len()).min(usize::from(u16::MAX)) as u16;
        let node = NodeMut { bytes, header: Header { entries: 0, max, depth, generation: 0 } };
        node.bytes[0..2].copy_from_slice(&MAGIC.to_le_bytes());
        node.bytes[4..6].copy_from_slice(&max.to_le_bytes());
        node.bytes[6..8].copy_from_slice(&depth.to_le_bytes());
        node
    }

    /// The node as a view.
    pub fn view(&self) -> NodeRef<'_> {
        NodeRef { bytes: self.bytes, header: self.header }
    }

    fn set_entries(&mut self, entries: usize) {
        self.header.entries = entries as u16;
        self.bytes[2..4].copy_from_slice(&self.header.entries.to_le_bytes());
    }

    /// Replaces the entries `range` by `new`. Returns false, without a change, if the range does not exist or there is
    /// too little room.
    #[must_use]
    pub fn splice(&mut self, range: Range<usize>, new: &[RawEntry]) -> bool {
        let old = usize::from(self.header.entries);
        if range.start > range.end || range.end > old || old - range.len() + new.len() > usize::from(self.header.max) {
            return false;
        }
        let at = |i: usize| HEADER_BYTES + i * ENTRY_BYTES;
        let (total, after) = (old - range.len() + new.len(), range.start + new.len());
        self.bytes.copy_within(at(range.end)..at(old), at(after));
        for (i, raw) in new.iter().enumerate() {
            self.bytes[at(range.start + i)..at(range.start + i + 1)].copy_from_slice(raw);
        }
        if total < old {
            self.bytes[at(total)..at(old)].fill(0);
        }
        self.set_entries(total);
        true
    }

    /// Inserts one entry before entry `i`.
    #[must_use]
    pub fn insert(&mut self, i: usize, raw: &RawEntry) -> bool {
        self.splice(i..i, std::slice::from_ref(raw))
    }

    /// Removes entry `i`.
    #[must_use]
    pub fn remove(&mut self, i: usize) -> bool {
        self.splice(i..i.saturating_add(1), &[])
    }

    /// Changes only the key of entry `i`.
    #[must_use]
    pub fn set_key(&mut self, i: usize, lblk: LogicalBlock) -> bool {
        let Some(mut raw) = self.view().raw(i) else { return false };
        raw[0..4].copy_from_slice(&lblk.0.to_le_bytes());
        self.splice(i..i + 1, &[raw])
    }

    /// Replaces all entries.
    #[must_use]
    pub fn set_all(&mut self, new: &[RawEntry]) -> bool {
        self.splice(0..usize::from(self.header.entries), new)
    }

    /// Recomputes the checksum of a block node. Without a seed (no metadata_csum), or in a root, there is none.
    pub fn seal(&mut self, inode_seed: Option<u32>) {
        let Some(seed) = inode_seed else { return };
        if let (Some(at), Some(sum)) = (tail_at(&self.header, self.bytes), self.view().checksum(seed)) {
            self.bytes[at..at + TAIL_BYTES].copy_from_slice(&sum.to_le_bytes());
        }
    }
}
