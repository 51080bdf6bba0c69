//! Attributes inside the inode: from byte `128 + i_extra_isize` to the inode's end (Linux: `struct
//! ext4_xattr_ibody_header`).
//!
//! The functions take exactly those bytes, but for [`area_of`], which finds them. Inodes of 128 bytes, and inodes whose
//! `i_extra_isize` is 0, have no such area: pass an empty slice.
//!
//! # Locking
//! None.

use super::damage::{XattrContext, XattrDamage};
use super::entry::{EntryRef, Hashes, Place, TERMINATOR_LEN, lay_out, parse, scan};
use super::{EntryList, MAGIC, Name, NoSpace};
use crate::inode::GOOD_OLD_INODE_SIZE;
use crate::{InodeNr, Result};

/// The size of the magic number in bytes.
const HEADER_LEN: usize = 4;

fn place(ino: InodeNr) -> Place {
    Place {
        structure: crate::Structure::Inode,
        number: u64::from(ino.0),
        first: HEADER_LEN,
        value_base: HEADER_LEN,
        hashes: Hashes::IfSet,
    }
}

/// The area in the bytes of a whole inode, if it begins with the magic number there.
pub fn area_of(inode: &[u8]) -> Option<&[u8]> {
    let extra = usize::from(u16::from_le_bytes(inode.get(GOOD_OLD_INODE_SIZE..)?.first_chunk().copied()?));
    let area = inode.get(GOOD_OLD_INODE_SIZE + extra..);
    area.filter(|area| extra.is_multiple_of(4) && area.starts_with(&MAGIC.to_le_bytes()))
}

/// Whether attributes can be stored in an area of `len` bytes at all.
pub fn usable(len: usize) -> bool {
    len >= HEADER_LEN + TERMINATOR_LEN
}

/// The attributes in `area`; none if the magic number is missing, as in a new inode.
///
/// # Errors
/// `Corrupt` if an entry breaks a rule of the format or lies outside `area`.
pub fn parse_area(area: &[u8], ino: InodeNr) -> Result<Vec<EntryRef<'_>>> {
    if !usable(area.len()) || area[..HEADER_LEN] != MAGIC.to_le_bytes() {
        return Ok(Vec::new());
    }
    parse(area, &place(ino))
}

/// Reads an area in one pass for the checker: reports every attribute without fatal damage, and every fault. Reports
/// nothing if the magic number is missing.
pub fn scan_area<'a>(
    area: &'a [u8],
    context: &XattrContext,
    sink: &mut impl FnMut(std::result::Result<EntryRef<'a>, XattrDamage>),
) {
    if usable(area.len()) && area[..HEADER_LEN] == MAGIC.to_le_bytes() {
        scan(area, &place(InodeNr(0)), context, sink);
    }
}

/// Decodes an area to an editable list.
///
/// # Errors
/// The same as [`parse_area`].
pub fn decode(area: &[u8], ino: InodeNr) -> Result<EntryList> {
    Ok(EntryList::from_refs(&parse_area(area, ino)?))
}

/// Replaces the whole content of `area`. An empty list leaves it zeroed, without the magic number, as in the kernel.
///
/// # Errors
/// [`NoSpace`] if the list does not fit into `area`. Nothing is written then.
pub fn encode(list: &EntryList, area: &mut [u8]) -> std::result::Result<(), NoSpace> {
    if list.is_empty() {
        area.fill(0);
        return Ok(());
    }
    if !usable(area.len()) {
        return Err(NoSpace { needed: list.stored_len(), available: 0 });
    }
    // The kernel stores the hash of a value in a separate inode here, too, and compares it.
    lay_out(list, area, &place(InodeNr(0)), |entry| entry.outside.map_or(0, |outside| outside.hash))?;
    area[..HEADER_LEN].copy_from_slice(&MAGIC.to_le_bytes());
    Ok(())
}

/// The maximum length of a value that `name` can have in an area of `len` bytes, together with the other attributes of
/// `list`; `None` if not even an empty value fits (Linux: `get_max_inline_xattr_value_size`).
pub fn value_room(list: &EntryList, name: Name<'_>, len: usize) -> Option<usize> {
    let mut with = list.clone();
    if !usable(len) || !with.set(name, b"") {
        return None;
    }
    // Values are padded.
    (len - HEADER_LEN).checked_sub(with.stored_len()).map(|free| free & !3)
}
