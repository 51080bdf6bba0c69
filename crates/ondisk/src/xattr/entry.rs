//! One entry in the bytes: validation while reading, layout while writing.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{EntryList, Name, NoSpace, pad4};
use crate::{Error, InodeNr, Result, Structure};

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
/// The zero word behind the last entry.
pub(super) const TERMINATOR_LEN: usize = 4;

/// One attribute as it lies in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// As stored: an index for the prefix, and the rest.
    pub name: Name<'a>,
    /// Empty where the value is [`EntryRef::outside`].
    pub value: &'a [u8],
    /// The inode that holds the value, and its bytes (`ea_inode`).
    pub outside: Option<(InodeNr, u32)>,
    /// `e_hash` as stored; 0 means "not computed".
    pub hash: u32,
}

/// Where entries lie: for messages, and for what a value offset counts from.
pub(super) struct Place {
    pub structure: Structure,
    pub number: u64,
    /// Start of the first entry.
    pub first: usize,
    /// What `e_value_offs` is relative to.
    pub value_base: usize,
}

impl Place {
    pub(super) fn corrupt(&self, detail: impl Into<String>) -> Error {
        Error::corrupt(self.structure, self.number, detail)
    }
}

/// Reads and validates all entries of `bytes`. The number of entries is bounded by the bytes, and values do not
/// overlap, so what is built from the result is no larger than a small multiple of `bytes`.
pub(super) fn parse<'a>(bytes: &'a [u8], place: &Place) -> Result<Vec<EntryRef<'a>>> {
    let mut entries = Vec::new();
    let mut values: Vec<(usize, usize)> = Vec::new();
    let mut at = place.first;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        match rest.get(..TERMINATOR_LEN) {
            None => return Err(place.corrupt("the attribute names are not terminated")),
            Some([0, 0, 0, 0]) => break,
            Some(_) => {}
        }
        let Ok((raw, _)) = RawEntry::ref_from_prefix(rest) else {
            return Err(place.corrupt(format!("attribute entry at {at} is cut off")));
        };
        let name_len = usize::from(raw.e_name_len);
        let Some(suffix) = rest.get(ENTRY_LEN..ENTRY_LEN + name_len) else {
            return Err(place.corrupt(format!("attribute name of {name_len} bytes at {at} is cut off")));
        };
        if name_len == 0 && raw.e_name_index == 0 {
            // Written again without a value it would end the list, and hide what follows.
            return Err(place.corrupt(format!("attribute at {at} has no name")));
        }
        if suffix.contains(&0) {
            return Err(place.corrupt(format!("attribute name at {at} contains NUL")));
        }
        let outside = match raw.e_value_inum.get() {
            0 => None,
            inum => Some((InodeNr(inum), raw.e_value_size.get())),
        };
        let size = raw.e_value_size.get() as usize;
        let mut value: &[u8] = &[];
        if size != 0 && outside.is_none() {
            let start = place.value_base + usize::from(raw.e_value_offs.get());
            let end = start.checked_add(size).filter(|&end| end <= bytes.len());
            let Some(end) = end else {
                return Err(place.corrupt(format!("attribute value of {size} bytes at {start} is past the end")));
            };
            value = &bytes[start..end];
            values.push((start, end));
        }
        entries.push(EntryRef {
            name: Name { index: raw.e_name_index, suffix },
            value,
            outside,
            hash: raw.e_hash.get(),
        });
        at += pad4(ENTRY_LEN + name_len);
    }
    let mut used_to = at + TERMINATOR_LEN;
    values.sort_unstable();
    for (start, end) in values {
        if start < used_to {
            return Err(place.corrupt(format!("attribute value at {start} overlaps what ends at {used_to}")));
        }
        used_to = end;
    }
    Ok(entries)
}

/// Writes `list` into `bytes` from `place.first` on; everything between names and values is zeroed. `hash` gives each
/// entry's `e_hash`. Nothing is written when the list does not fit.
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
            // An area is at most one block, 64 KiB, and a value takes at least 4 bytes of it: below 65536.
            e_value_offs: U16::new(offset as u16),
            e_value_inum: U32::new(0),
            e_value_size: U32::new(entry.value.len() as u32),
            e_hash: U32::new(hash(entry)),
        };
        bytes[at..at + ENTRY_LEN].copy_from_slice(raw.as_bytes());
        bytes[at + ENTRY_LEN..at + ENTRY_LEN + entry.suffix.len()].copy_from_slice(&entry.suffix);
        at += pad4(ENTRY_LEN + entry.suffix.len());
    }
    Ok(())
}
