//! Extended attributes: what of a set goes into the inode, and what into a block.
//!
//! Main function: [`split`].
//!
//! # Locking
//! None.

use extant_ondisk::acl;
use extant_ondisk::inode::GOOD_OLD_INODE_SIZE;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::xattr::{EntryList, HEADER_LEN, Name, index, inode_area};

use crate::tree::Xattr;

/// Where the attributes of an inode go. All that have the same set have the same.
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

/// Distributes a set: all into the inode if they fit, else all into a block if they fit there, else each into the
/// inode as long as there is room, and the others into a block.
///
/// # Errors
/// A sentence that names the attribute.
pub(super) fn split(geo: &Geometry, set: &[Xattr]) -> Result<Split, String> {
    let body_room = body_len(geo);
    let fits_body = |list: &EntryList| inode_area::usable(body_room) && list.stored_len() + 4 <= body_room;
    let fits_block = |list: &EntryList| HEADER_LEN + list.stored_len() <= geo.block_size as usize;
    let mut all = EntryList::new();
    for (full, value) in set {
        put(&mut all, full, value)?;
    }
    if all.is_empty() || fits_body(&all) {
        return Ok(Split { body: all, block: EntryList::new() });
    }
    if fits_block(&all) {
        return Ok(Split { body: EntryList::new(), block: all });
    }
    let mut split = Split::default();
    for (full, value) in set {
        let mut with = split.body.clone();
        put(&mut with, full, value)?;
        if fits_body(&with) {
            split.body = with;
            continue;
        }
        put(&mut split.block, full, value)?;
        if !fits_block(&split.block) {
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
