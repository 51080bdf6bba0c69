//! One entry in the bytes: validation for reading, layout for writing.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::damage::{XattrContext, XattrDamage};
use super::{EntryList, ExternalValue, Name, NoSpace, entry_hash, entry_hash_signed, pad4};
use crate::damage::{Damage, refuse};
use crate::{InodeNr, Result, Structure};
use std::ops::Range;

/// The fixed part of an entry; the name follows (Linux: `struct ext4_xattr_entry`).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawEntry {
    pub e_name_len: u8,
    pub e_name_index: u8,
    pub e_value_offs: U16,
    pub e_value_inum: U32,
    pub e_value_size: U32,
    pub e_hash: U32,
}

pub(super) const ENTRY_LEN: usize = 16;
const _: () = assert!(size_of::<RawEntry>() == ENTRY_LEN);
/// The size of the zero word after the last entry, in bytes.
pub(super) const TERMINATOR_LEN: usize = 4;

/// One attribute, as a view of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The stored name: an index for the prefix, and the rest.
    pub name: Name<'a>,
    /// The value; empty if it is [`EntryRef::outside`].
    pub value: &'a [u8],
    /// The inode that contains the value, and the value's size in bytes (`ea_inode`).
    pub outside: Option<(InodeNr, u32)>,
    /// The stored `e_hash`; 0 means "not computed".
    pub hash: u32,
}

impl EntryRef<'_> {
    /// The value, if it is in a separate inode.
    pub fn outside(&self) -> Option<ExternalValue> {
        self.outside.map(|(inode, len)| ExternalValue { inode, len, hash: self.hash })
    }
}

/// Where the entries are, and the base of their value offsets.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub structure: Structure,
    pub number: u64,
    /// The offset of the first entry.
    pub first: usize,
    /// The base of `e_value_offs`.
    pub value_base: usize,
    /// Which hashes the checker compares.
    pub hashes: Hashes,
}

/// Which stored hashes of entries are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hashes {
    /// All.
    Stored,
    /// Those that are not 0.
    IfSet,
    /// None: for a decoder.
    Ignored,
}

/// Reads and validates all entries of `bytes`. The size of `bytes` limits the number of entries, and values do not
/// overlap, so the size of the result is at most a small multiple of the size of `bytes`.
pub(super) fn parse<'a>(bytes: &'a [u8], place: &Place) -> Result<Vec<EntryRef<'a>>> {
    let mut entries = Vec::new();
    let place = Place { hashes: Hashes::Ignored, ..*place };
    refuse(place.structure, place.number, |sink| {
        scan(bytes, &place, &XattrContext::decoding(None), &mut |found| match found {
            Ok(entry) => entries.push(entry),
            Err(damage) => sink(damage),
        });
    })?;
    Ok(entries)
}

/// Changes the numbers of the inodes that contain values. `entries` begins at the first entry; `number` returns the new
/// number of an inode, if it changes. The hashes do not change, because none of them covers a number. Returns whether
/// anything changed. Entries after one that is cut off do not change.
pub fn renumber_values(entries: &mut [u8], mut number: impl FnMut(u32) -> Option<u32>) -> bool {
    let (mut at, mut is_changed) = (0, false);
    while let Some(rest) = entries.get_mut(at..).filter(|rest| !rest.starts_with(&[0; TERMINATOR_LEN])) {
        let Ok((raw, _)) = RawEntry::mut_from_prefix(rest) else { break };
        if let Some(now) = Some(raw.e_value_inum.get()).filter(|ino| *ino != 0).and_then(&mut number) {
            raw.e_value_inum.set(now);
            is_changed = true;
        }
        at += pad4(ENTRY_LEN + usize::from(raw.e_name_len));
    }
    is_changed
}

/// Reads the entries in one pass: reports each entry without fatal damage, and every fault, in the order of the bytes,
/// except that values that overlap come last. The pass ends at an entry that is cut off.
pub(super) fn scan<'a>(
    bytes: &'a [u8],
    place: &Place,
    context: &XattrContext,
    sink: &mut impl FnMut(std::result::Result<EntryRef<'a>, XattrDamage>),
) {
    let mut values: Vec<(usize, usize)> = Vec::new();
    let mut offset = place.first;
    loop {
        let (rest, at) = (bytes.get(offset..).unwrap_or_default(), offset as u32);
        match rest.get(..TERMINATOR_LEN) {
            None => return sink(Err(XattrDamage::Unterminated)),
            Some([0, 0, 0, 0]) => break,
            Some(_) => {}
        }
        let Ok((raw, _)) = RawEntry::ref_from_prefix(rest) else {
            return sink(Err(XattrDamage::EntryCut { at }));
        };
        let name_len = usize::from(raw.e_name_len);
        let Some(suffix) = rest.get(ENTRY_LEN..ENTRY_LEN + name_len) else {
            return sink(Err(XattrDamage::NameCut { at, len: raw.e_name_len }));
        };
        if let Some(value) = entry(bytes, raw, suffix, at, place, context, sink) {
            values.push((value.start, value.end));
        }
        offset += pad4(ENTRY_LEN + name_len);
    }
    let mut used_to = offset + TERMINATOR_LEN;
    values.sort_unstable();
    for (start, end) in values {
        if start < used_to {
            sink(Err(XattrDamage::Overlap { start: start as u32, end: used_to as u32 }));
        }
        used_to = used_to.max(end);
    }
}

/// Checks one entry with a complete name. Returns it with the range of its value, if that is valid and is here.
fn entry<'a>(
    bytes: &'a [u8],
    raw: &RawEntry,
    suffix: &'a [u8],
    at: u32,
    place: &Place,
    context: &XattrContext,
    sink: &mut impl FnMut(std::result::Result<EntryRef<'a>, XattrDamage>),
) -> Option<Range<usize>> {
    let mut usable = true;
    let mut note = |damage: XattrDamage| {
        usable &= !damage.is_fatal();
        sink(Err(damage));
    };
    if raw.e_name_index == 0 {
        // If it were written again without a value and a name, it would end the list and hide the following entries.
        note(if suffix.is_empty() { XattrDamage::NoName { at } } else { XattrDamage::NoIndex { at } });
    }
    if suffix.contains(&0) {
        note(XattrDamage::NameByte { at });
    }
    let size = raw.e_value_size.get();
    let inode = InodeNr(raw.e_value_inum.get());
    let (mut value, mut outside, mut range): (&[u8], _, _) = (&[], None, None);
    if inode.0 != 0 {
        outside = Some((inode, size));
        let (first, last) = context.inodes;
        if !context.ea_inode {
            note(XattrDamage::ValueInodeFeature { at, inode });
        } else if !(first..=last).contains(&inode.0) {
            note(XattrDamage::ValueInode { at, inode });
        }
    } else if size != 0 {
        let start = place.value_base + usize::from(raw.e_value_offs.get());
        let place = start..start.saturating_add(size as usize);
        match bytes.get(place.clone()) {
            Some(found) => (value, range) = (found, Some(place)),
            None => note(XattrDamage::ValuePastEnd { at, start: start as u32, size }),
        }
    }
    let found = raw.e_hash.get();
    let compared = match place.hashes {
        Hashes::Stored => true,
        Hashes::IfSet => found != 0,
        Hashes::Ignored => false,
    };
    if compared && outside.is_none() && (size == 0 || range.is_some()) {
        // The hash covers the padding of the last word, too, which need not be zero.
        let words = range.as_ref().and_then(|at| bytes.get(at.start..at.start + pad4(value.len()))).unwrap_or(value);
        let expected = entry_hash(suffix, words);
        if found != expected && found != entry_hash_signed(suffix, words) {
            note(XattrDamage::Hash { at, found, expected });
        }
    }
    if usable {
        sink(Ok(EntryRef { name: Name { index: raw.e_name_index, suffix }, value, outside, hash: found }));
    }
    range
}

/// Writes `list` into `bytes` from `place.first` on, and zeroes everything between names and values. `hash` returns the
/// `e_hash` of an entry. If the list does not fit, nothing is written.
pub(super) fn lay_out(
    list: &EntryList,
    bytes: &mut [u8],
    place: &Place,
    mut hash: impl FnMut(&super::Entry) -> u32,
) -> std::result::Result<(), NoSpace> {
    let available = bytes.len().saturating_sub(place.first);
    let needed = list.stored_len();
    if needed > available {
        return Err(NoSpace { needed, available });
    }
    bytes[place.first..].fill(0);
    let mut at = place.first;
    let mut value_at = bytes.len();
    for entry in list.iter() {
        let mut offset = 0;
        if !entry.value.is_empty() {
            value_at -= pad4(entry.value.len());
            bytes[value_at..value_at + entry.value.len()].copy_from_slice(&entry.value);
            offset = value_at - place.value_base;
        }
        let raw = RawEntry {
            e_name_len: entry.suffix.len() as u8,
            e_name_index: entry.index,
            // An area is at most one block of 64 KiB, and a value takes at least 4 bytes of it, so the offset is below
            // 65536.
            e_value_offs: U16::new(offset as u16),
            e_value_inum: U32::new(entry.outside.map_or(0, |outside| outside.inode.0)),
            e_value_size: U32::new(entry.outside.map_or(entry.value.len() as u32, |outside| outside.len)),
            e_hash: U32::new(hash(entry)),
        };
        bytes[at..at + ENTRY_LEN].copy_from_slice(raw.as_bytes());
        bytes[at + ENTRY_LEN..at + ENTRY_LEN + entry.suffix.len()].copy_from_slice(&entry.suffix);
        at += pad4(ENTRY_LEN + entry.suffix.len());
    }
    Ok(())
}
