//! Directories: all entries that can be read, regardless of the damage around them.
//!
//! Main type: [`Entry`]. Main functions: [`Image::entries`], [`scan`] (the entries of a block).
//!
//! # Locking
//! None.

use std::collections::HashSet;

use extant_ondisk::dirent::{DirBlockFormat, HEADER_LEN, NAME_MAX, REC_LEN_MIN, StoredEntry, TAIL_LEN, rec_len_needed};
use extant_ondisk::htree::{DxFormat, RawDxRootInfo};
use extant_ondisk::inode::{InodeFlags, inline};
use extant_ondisk::xattr::inode_area::{area_of, encode, scan_area};
use extant_ondisk::xattr::{EntryList, XattrContext};
use extant_ondisk::{BlockNr, InodeNr};

use super::Image;
use super::inode::Inode;
use crate::error::{Refusal, StepResult};

/// The offset of `i_block` in an inode, in bytes.
pub const I_BLOCK_AT: usize = 40;

/// An entry in a block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: u32,
    /// The stored number of its file type.
    pub kind: u8,
    pub lblk: u32,
    pub offset: u32,
    /// Whether it was found after an entry with an impossible length; it may be the name of a deleted file.
    pub is_found: bool,
}

impl Entry {
    pub fn is_dot(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

/// All entries of a block, from `first` to `limit`, whose names are within it. After an entry with an impossible
/// length, the length of its name determines where the next one may begin; the entry there must make sense.
pub fn scan(bytes: &[u8], first: usize, limit: usize, lblk: u32, inodes: u32, mut each: impl FnMut(Entry)) {
    let mut at = first;
    let (mut is_lost, mut is_found) = (false, false);
    // The end of the bytes that the previous entry needs.
    let mut behind_last = first;
    while let Some(entry) = StoredEntry::at(bytes, at).filter(|_| at + HEADER_LEN <= limit) {
        let StoredEntry { ino, rec_len, name_len, file_type: kind, .. } = entry;
        let needed = rec_len_needed(name_len).max(REC_LEN_MIN);
        let fits = at + HEADER_LEN + name_len <= limit;
        let linked = rec_len >= needed && rec_len.is_multiple_of(4) && at + rec_len <= limit;
        let named = fits && name_len > 0 && ino != 0 && ino <= inodes;
        // Only the length of its name is damaged, so the next entry is where the record length says.
        let is_followed = !linked && !is_lost && rec_len >= REC_LEN_MIN && is_entry(bytes, at + rec_len, limit, inodes);
        if named && (linked || !is_lost) && !is_followed {
            let name = bytes[at + HEADER_LEN..at + HEADER_LEN + name_len].to_vec();
            each(Entry { name, ino, kind, lblk, offset: at as u32, is_found });
        }
        if !linked && !is_lost && !is_found {
            // The previous entry may have led here and skipped others.
            slack(&bytes[..limit], behind_last, at, lblk, inodes, &mut each);
        }
        if linked {
            is_lost = false;
            behind_last = at + needed;
            // Only `..` can follow `.`, regardless of its length.
            at += if lblk == 0 && at == 0 && is_dotdot(bytes, REC_LEN_MIN) { REC_LEN_MIN } else { rec_len };
        } else if is_followed {
            let name = &bytes[at + HEADER_LEN..at + rec_len];
            let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
            is_found = true;
            if end > 0 && end <= NAME_MAX && ino != 0 && ino <= inodes {
                each(Entry { name: name[..end].to_vec(), ino, kind, lblk, offset: at as u32, is_found });
            }
            at += rec_len;
        } else if named && !is_lost {
            (is_lost, is_found) = (true, true);
            at += needed;
        } else if is_lost {
            // Continue the search for an entry.
            at += 4;
        } else {
            (is_lost, is_found) = (true, true);
            at += REC_LEN_MIN;
        }
    }
}

/// The entries between the end of an entry that is too long and the place to which it leads.
fn slack(bytes: &[u8], from: usize, to: usize, lblk: u32, inodes: u32, each: &mut impl FnMut(Entry)) {
    let mut at = from.next_multiple_of(4);
    while at + REC_LEN_MIN <= to {
        let head = &bytes[at..at + HEADER_LEN];
        let ino = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        // The stored form of a length of 64 KiB, the whole block, is not the length of an entry in between.
        let rec_len = usize::from(u16::from_le_bytes([head[4], head[5]]));
        if !is_entry(bytes, at, bytes.len(), inodes) || ino == 0 || rec_len < REC_LEN_MIN {
            return;
        }
        let name = bytes[at + HEADER_LEN..at + HEADER_LEN + usize::from(head[6])].to_vec();
        each(Entry { name, ino, kind: head[7], lblk, offset: at as u32, is_found: true });
        at += rec_len;
    }
}

/// Whether the entry at this byte is `..`.
fn is_dotdot(bytes: &[u8], at: usize) -> bool {
    StoredEntry::at(bytes, at).is_some_and(|entry| entry.name == b"..")
}

/// Whether an entry may begin at this byte, or the block ends here.
fn is_entry(bytes: &[u8], at: usize, limit: usize, inodes: u32) -> bool {
    if at == limit || !at.is_multiple_of(4) || at + HEADER_LEN > limit {
        return at == limit;
    }
    let entry = StoredEntry::checked(bytes, at, limit);
    entry.is_ok_and(|entry| entry.ino <= inodes && (entry.ino == 0 || entry.name_len > 0))
}

/// Whether a block ends with the tail of a leaf.
pub fn has_tail(bytes: &[u8]) -> bool {
    let at = bytes.len() - TAIL_LEN;
    bytes[at..at + 8] == [0, 0, 0, 0, TAIL_LEN as u8, 0, 0, 0xde]
}

impl Image {
    /// The format of a directory's blocks.
    pub fn dir_format(&self, inode: &Inode) -> DirBlockFormat {
        DirBlockFormat {
            has_filetype: self.geo.filetype,
            has_csum: self.geo.metadata_csum,
            inodes_count: self.geo.inodes_count,
            encrypted: inode.has(InodeFlags::ENCRYPT),
        }
    }

    /// Whether a block of an indexed directory is a node of the index.
    pub fn is_index_node(&self, bytes: &[u8]) -> bool {
        DxFormat { has_csum: self.geo.metadata_csum }.is_node(bytes)
    }

    /// The end of the entries in a block. In the first block of an index, the index begins after `..`.
    pub fn entries_end(&self, inode: &Inode, lblk: u64, bytes: &[u8]) -> usize {
        if lblk == 0 && inode.has(InodeFlags::INDEX) && self.geo.dir_index && is_index_root(bytes) {
            return 2 * REC_LEN_MIN;
        }
        if has_tail(bytes) && self.geo.metadata_csum { bytes.len() - TAIL_LEN } else { bytes.len() }
    }

    /// Whether the entry at this offset of a directory's first block is `.` or `..` in its place.
    pub fn is_dots(&self, dir: InodeNr, offset: u32) -> bool {
        let Ok(inode) = self.inode(dir) else { return false };
        if inode.has(InodeFlags::INLINE_DATA) {
            return offset == 0;
        }
        let first = self.map(&inode).place(0).and_then(|block| self.block(block).ok());
        let second = first.and_then(|bytes| StoredEntry::at(&bytes, 0).map(|dot| dot.rec_len));
        offset == 0 || second == Some(offset as usize)
    }

    /// All readable entries of a directory, including `.` and `..`, in their order. A block that the map repeats counts
    /// once: the entries are the same, and a small image could repeat it millions of times.
    pub fn entries(&self, inode: &Inode) -> Vec<Entry> {
        let mut all = Vec::new();
        if inode.has(InodeFlags::INLINE_DATA) {
            self.inline_entries(inode, &mut all);
            return all;
        }
        let mut seen = HashSet::new();
        for (lblk, block) in self.map(inode).blocks() {
            if seen.insert(block) {
                self.block_entries(inode, lblk, block, &mut all);
            }
        }
        all
    }

    fn block_entries(&self, inode: &Inode, lblk: u64, block: BlockNr, all: &mut Vec<Entry>) {
        let Ok(bytes) = self.block(block) else { return };
        let is_node = inode.has(InodeFlags::INDEX) && lblk > 0 && self.is_index_node(&bytes);
        if !is_node {
            let end = self.entries_end(inode, lblk, &bytes);
            scan(&bytes, 0, end, lblk as u32, self.geo.inodes_count, |entry| all.push(entry));
        }
    }

    fn inline_entries(&self, inode: &Inode, all: &mut Vec<Entry>) {
        let block = &inode.raw.i_block;
        let parent = u32::from_le_bytes([block[0], block[1], block[2], block[3]]);
        let own = |name: &[u8], ino| Entry { name: name.to_vec(), ino, kind: 2, lblk: 0, offset: 0, is_found: false };
        all.extend([own(b".", inode.ino.0), own(b"..", parent)]);
        let mut push = |entry| all.push(entry);
        scan(block, 4, inline::ROOM, 0, self.geo.inodes_count, &mut push);
        if let Some(rest) = self.inline_rest(inode) {
            scan(&rest, 0, rest.len(), 1, self.geo.inodes_count, &mut push);
        }
    }

    /// The inline data after `i_block`; `None` if there is no such attribute.
    pub fn inline_rest(&self, inode: &Inode) -> Option<Vec<u8>> {
        let mut found = None;
        let context = XattrContext { seed: None, ea_inode: true, inodes: (1, self.geo.inodes_count) };
        scan_area(area_of(&inode.bytes)?, &context, &mut |step| {
            let value = step.ok().filter(|entry| entry.name == inline::DATA).map(|entry| entry.value.to_vec());
            found = found.take().or(value);
        });
        found
    }

    /// Sets the inline data after `i_block`. The other readable attributes in the inode are kept.
    pub fn set_inline_rest(&self, ino: InodeNr, rest: &[u8]) -> StepResult {
        let lost = Refusal::Lost("the inode has no room for its inline data");
        let mut bytes = self.inode(ino)?.bytes;
        let extra = usize::from(u16::from_le_bytes([*bytes.get(128).unwrap_or(&0), *bytes.get(129).unwrap_or(&0)]));
        let area =
            bytes.get_mut(128 + extra..).filter(|_| extra >= 4 && extra.is_multiple_of(4)).ok_or(lost.clone())?;
        let context = XattrContext { seed: None, ea_inode: false, inodes: (1, self.geo.inodes_count) };
        let (mut list, mut outside) = (EntryList::new(), false);
        scan_area(area, &context, &mut |step| {
            if let Ok(entry) = step {
                outside |= entry.outside.is_some() || !list.set(entry.name, entry.value);
            }
        });
        let set = !outside && list.set(inline::DATA, rest);
        if !set || encode(&list, area).is_err() {
            return Err(lost);
        }
        self.change_inode_bytes(ino, |now| now[128..].copy_from_slice(&bytes[128..]))
    }

    /// The names of some inodes: directory and name. This is one pass over all directories.
    pub fn names_of(&self, wanted: impl Fn(u32) -> bool) -> Vec<(InodeNr, Entry)> {
        let mut found = Vec::new();
        for dir in self.facts.directories().collect::<Vec<_>>() {
            let Ok(inode) = self.inode(dir) else { continue };
            let entries = self.entries(&inode).into_iter().filter(|entry| !entry.is_dot() && wanted(entry.ino));
            found.extend(entries.map(|entry| (dir, entry)));
        }
        found
    }
}

/// Whether a block begins like the root of an index: `.`, then `..` that extends to the end, then the root's own
/// header.
pub fn is_index_root(bytes: &[u8]) -> bool {
    let length = |at: usize| StoredEntry::at(bytes, at).map(|entry| entry.rec_len);
    length(0) == Some(REC_LEN_MIN)
        && length(REC_LEN_MIN) == bytes.len().checked_sub(REC_LEN_MIN)
        && RawDxRootInfo::of(bytes).is_some_and(|info| info.reserved_zero.get() == 0 && info.info_length >= 8)
}
