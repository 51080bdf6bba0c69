//! Extended attributes: divides a set into the part that is stored in the inode, and the part that is stored in a
//! block.
//!
//! Main functions: [`split`], [`split_around`] (together with the content of the inode), [`block_of`].
//!
//! # Locking
//! None.

use extant_ondisk::acl;
use extant_ondisk::inode::GOOD_OLD_INODE_SIZE;
use extant_ondisk::superblock::Geometry;
use extant_ondisk::xattr::{EntryList, HEADER_LEN, MAGIC, Name, index, inode_area};

use crate::error::shown;
use crate::tree::{Xattr, stored_name};

/// The attribute for the part of a content that does not fit into `i_block` (`inline_data`).
const DATA: Name<'static> = Name { index: index::SYSTEM, suffix: b"data" };

/// The places of an inode's attributes, which are the same for all inodes with the same set and no content.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    /// The attributes after the fields of the inode.
    pub body: EntryList,
    /// The attributes in a block, which inodes share.
    pub block: EntryList,
}

/// The number of bytes for attributes after the fields of an inode.
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

/// Adds a whole set after the entries of the list; `None` if no place of an inode has room for it. A set may have a
/// million attributes, and each is compared with those before it.
fn put_all(geo: &Geometry, mut list: EntryList, set: &[Xattr]) -> Result<Option<EntryList>, String> {
    for (full, value) in set {
        put(&mut list, full, value)?;
        if !fits_block(geo, &list) && !fits_body(geo, &list) {
            return Ok(None);
        }
    }
    Ok(Some(list))
}

/// Divides a set if the end of the inode's content must be in the inode, too: all into the inode if they fit, otherwise
/// all into a block. `None` if there is no room for this.
///
/// # Errors
/// A sentence that contains the name of the attribute.
pub(super) fn split_around(geo: &Geometry, set: &[Xattr], data: &[u8]) -> Result<Option<Split>, String> {
    let mut own = EntryList::new();
    if !own.set(DATA, data) || !fits_body(geo, &own) {
        return Ok(None);
    }
    if let Some(body) = put_all(geo, own.clone(), set)?.filter(|body| fits_body(geo, body)) {
        return Ok(Some(Split { body, block: EntryList::new() }));
    }
    let block = put_all(geo, EntryList::new(), set)?.filter(|block| fits_block(geo, block));
    Ok(block.map(|block| Split { body: own, block }))
}

/// The attributes in the block of a set, which is the same for all inodes that have one.
///
/// # Errors
/// A sentence that contains the name of the attribute.
pub(super) fn block_of(geo: &Geometry, set: &[Xattr]) -> Result<EntryList, String> {
    let block = split(geo, set)?.block;
    // If there is other content, the set is stored in a block only as a whole.
    if block.is_empty() { Ok(put_all(geo, block, set)?.unwrap_or_default()) } else { Ok(block) }
}

/// Divides a set: all into the inode if they fit, otherwise all into a block if they fit there, otherwise each into the
/// inode as long as there is room, and the others into a block.
///
/// # Errors
/// A sentence that contains the name of the attribute.
pub(super) fn split(geo: &Geometry, set: &[Xattr]) -> Result<Split, String> {
    match put_all(geo, EntryList::new(), set)? {
        Some(body) if body.is_empty() || fits_body(geo, &body) => {
            return Ok(Split { body, block: EntryList::new() });
        }
        Some(block) if fits_block(geo, &block) => return Ok(Split { body: EntryList::new(), block }),
        _ => {}
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
            let name = shown(full);
            let room = geo.block_size as usize - HEADER_LEN;
            return Err(format!(
                "attribute {name} with {} bytes does not fit: all attributes of an inode share a block with {room} bytes; use larger blocks (-b) or inodes (-I)",
                value.len()
            ));
        }
    }
    Ok(split)
}

/// Adds an attribute in its form on disk.
fn put(list: &mut EntryList, full: &[u8], value: &[u8]) -> Result<(), String> {
    let Some(name) = stored_name(full) else {
        return Err(format!("attribute {} has a name that ext4 cannot store", shown(full)));
    };
    let is_acl = matches!(name.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT);
    let disk = if is_acl {
        match acl::from_xattr(value).map_err(|e| format!("attribute {}: {e}", shown(full)))? {
            Some(acl) => acl::to_disk(&acl),
            None => return Ok(()),
        }
    } else {
        value.to_vec()
    };
    if list.set(name, &disk) { Ok(()) } else { Err(format!("attribute {}: the name is too long", shown(full))) }
}

#[cfg(test)]
mod tests {
    use crate::options::{Fact, Request, SizeAsked};
    use crate::skeleton::{OwnerUsage, Skeleton};

    use super::*;

    fn geometry(block_size: u64) -> Geometry {
        let size = SizeAsked::Bytes(4096 * block_size);
        let request = Request { block_size: Some(block_size), size, ..Request::default() };
        let fact = Fact { device_bytes: 0, sector_size: 0, zeroed: true, now: 0, random: [0; 32], user: (0, 0) };
        let options = request.resolve(&fact).expect("options");
        Skeleton::plan(&options, &OwnerUsage::default()).expect("a plan").geometry().clone()
    }

    fn set(count: usize) -> Vec<Xattr> {
        (0..count).map(|n| (format!("user.{n:06}").into_bytes().into(), Box::from(*b"v"))).collect()
    }

    #[test]
    fn a_set_is_stored_as_long_as_it_fits() {
        for (block_size, fits) in [(1024, 35), (4096, 145), (65536, 2339)] {
            let geo = geometry(block_size);
            assert!(split(&geo, &set(fits)).is_ok(), "{fits} in {block_size}");
            let said = split(&geo, &set(fits + 10)).expect_err("refused");
            assert!(said.starts_with("attribute user.00") && said.contains("does not fit"), "{said}");
        }
    }

    #[test]
    fn a_set_that_fits_nowhere_is_refused_without_a_look_at_all_of_it() {
        let geo = geometry(1024);
        let mut large = set(600_000);
        // Names after the point at which there is no more room are not even parsed.
        large[1000].0 = Box::from(*b"no such class");
        let said = split(&geo, &large).expect_err("refused");
        assert!(said.contains("does not fit"), "{said}");
        assert_eq!(split_around(&geo, &large, b""), Ok(None));
    }

    #[test]
    fn a_name_of_megabytes_does_not_come_back_in_the_message() {
        let (long, value) = ("n".repeat(16 << 20), Box::from(*b"v"));
        for name in [format!("user.{long}"), long] {
            let said = split(&geometry(4096), &[(name.into_bytes().into(), Box::clone(&value))]).expect_err("refused");
            assert!(said.len() < 600, "{} bytes", said.len());
        }
    }
}
