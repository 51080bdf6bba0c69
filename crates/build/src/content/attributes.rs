//! Extended attributes: the part of a set that goes into the inode, and the part that goes into a block.
//!
//! Main functions: [`split`], [`split_around`] (beside the content of the inode), [`block_of`].
//!
//! # Locking
//! None.

use extant_ondisk::acl;
use extant_ondisk::inode::GOOD_OLD_INODE_SIZE;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::xattr::{EntryList, HEADER_LEN, MAGIC, Name, index, inode_area};

use crate::tree::Xattr;

/// The attribute with the rest of a content that does not fit into `i_block` (`inline_data`).
const DATA: Name<'static> = Name { index: index::SYSTEM, suffix: b"data" };

/// The places of an inode's attributes, the same for all inodes with the same set and no content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    /// Behind the fields of the inode.
    pub body: EntryList,
    /// In a block, which inodes share.
    pub block: EntryList,
}

/// Bytes for attributes behind the fields of an inode.
fn body_len(geo: &Geometry) -> usize {
    match geo.want_extra_isize {
        0 => 0,
        extra => geo.inode_size - GOOD_OLD_INODE_SIZE - usize::from(extra),
    }
}

fn fits_body(geo: &Geometry, list: &EntryList) -> bool {
    let room = body_len(geo);
    inode_area::usable(room) && list.stored_len() + size_of_val(&MAGIC) <= room
}

fn fits_block(geo: &Geometry, list: &EntryList) -> bool {
    HEADER_LEN + list.stored_len() <= geo.block_size as usize
}

/// A whole set, behind the entries of the list.
fn put_all(mut list: EntryList, set: &[Xattr]) -> Result<EntryList, String> {
    for (full, value) in set {
        put(&mut list, full, value)?;
    }
    Ok(list)
}

/// Distributes a set beside the end of the inode's content, which must be in the inode: all into the inode if they
/// fit, else all into a block. `None`: there is no room for this.
///
/// # Errors
/// A sentence that names the attribute.
pub(super) fn split_around(geo: &Geometry, set: &[Xattr], data: &[u8]) -> Result<Option<Split>, String> {
    let mut own = EntryList::new();
    if !own.set(DATA, data) || !fits_body(geo, &own) {
        return Ok(None);
    }
    let body = put_all(own.clone(), set)?;
    if fits_body(geo, &body) {
        return Ok(Some(Split { body, block: EntryList::new() }));
    }
    let block = put_all(EntryList::new(), set)?;
    Ok(fits_block(geo, &block).then_some(Split { body: own, block }))
}

/// The attributes in the block of a set, which is the same for all inodes that have one.
///
/// # Errors
/// A sentence that names the attribute.
pub(super) fn block_of(geo: &Geometry, set: &[Xattr]) -> Result<EntryList, String> {
    let block = split(geo, set)?.block;
    // Beside other content, the set goes into a block only as a whole.
    if block.is_empty() { put_all(block, set) } else { Ok(block) }
}

/// Distributes a set: all into the inode if they fit, else all into a block if they fit there, else each into the
/// inode as long as there is room, and the others into a block.
///
/// # Errors
/// A sentence that names the attribute.
pub(super) fn split(geo: &Geometry, set: &[Xattr]) -> Result<Split, String> {
    let all = put_all(EntryList::new(), set)?;
    if all.is_empty() || fits_body(geo, &all) {
        return Ok(Split { body: all, block: EntryList::new() });
    }
    if fits_block(geo, &all) {
        return Ok(Split { body: EntryList::new(), block: all });
    }
    let mut split = Split::default();
    for (full, value) in set {
        let mut with = split.body.clone();
        put(&mut with, full, value)?;
        if fits_body(geo, &with) {
            split.body = with;
            continue;
        }
        put(&mut split.block, full, value)?;
        if !fits_block(geo, &split.block) {
            let name = String::from_utf8_lossy(full);
            let room = geo.block_size as usize - HEADER_LEN;
            return Err(format!(
                "attribute {name} with {} bytes does not fit: all attributes of an inode share a block with {room} bytes; use larger blocks (-b) or inodes (-I)",
                value.len()
            ));
        }
    }
    Ok(split)
}

/// Adds an attribute in the form that it has on disk.
fn put(list: &mut EntryList, full: &[u8], value: &[u8]) -> Result<(), String> {
    let shown = || String::from_utf8_lossy(full).into_owned();
    let Some(name) = Name::parse(full) else {
        return Err(format!("attribute {} has a name that ext4 cannot store", shown()));
    };
    let is_acl = matches!(name.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT);
    let disk = if is_acl {
        match acl::from_xattr(value).map_err(|e| format!("attribute {}: {e}", shown()))? {
            Some(acl) => acl::to_disk(&acl),
            None => return Ok(()),
        }
    } else {
        value.to_vec()
    };
    if list.set(name, &disk) { Ok(()) } else { Err(format!("attribute {}: the name is too long", shown())) }
}
