//! The two byte forms of an ACL.

use super::{Acl, AclEntry, AclError, Tag};

const XATTR_VERSION: u32 = 2;
const DISK_VERSION: u32 = 1;
const HEADER_LEN: usize = 4;
const SHORT_LEN: usize = 4;
const FULL_LEN: usize = 8;

mod tag {
    pub const USER_OBJ: u16 = 0x01;
    pub const USER: u16 = 0x02;
    pub const GROUP_OBJ: u16 = 0x04;
    pub const GROUP: u16 = 0x08;
    pub const MASK: u16 = 0x10;
    pub const OTHER: u16 = 0x20;
}

impl Tag {
    /// The number of the tag, on disk and in system calls, and the id of a named entry.
    fn encode(self) -> (u16, Option<u32>) {
        match self {
            Tag::UserObj => (tag::USER_OBJ, None),
            Tag::User(id) => (tag::USER, Some(id)),
            Tag::GroupObj => (tag::GROUP_OBJ, None),
            Tag::Group(id) => (tag::GROUP, Some(id)),
            Tag::Mask => (tag::MASK, None),
            Tag::Other => (tag::OTHER, None),
        }
    }
}

fn version(bytes: &[u8], expected: u32) -> Result<&[u8], AclError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Err(AclError::Length { len: bytes.len() });
    };
    let found = u32::from_le_bytes(*head);
    if found == expected { Ok(rest) } else { Err(AclError::Version { found, expected }) }
}

/// Reads the tag and the permissions. If the tag is a named one, `id_of` reads the id.
fn entry(number: usize, head: [u8; 4], id_of: impl FnOnce() -> Result<u32, AclError>) -> Result<AclEntry, AclError> {
    let [t0, t1, p0, p1] = head;
    let tag = match u16::from_le_bytes([t0, t1]) {
        tag::USER_OBJ => Tag::UserObj,
        tag::USER => Tag::User(id_of()?),
        tag::GROUP_OBJ => Tag::GroupObj,
        tag::GROUP => Tag::Group(id_of()?),
        tag::MASK => Tag::Mask,
        tag::OTHER => Tag::Other,
        tag => return Err(AclError::UnknownTag { number, tag }),
    };
    Ok(AclEntry { tag, perm: u16::from_le_bytes([p0, p1]) })
}

/// Reads the value that setxattr passes for `system.posix_acl_*`. `None` for the form without entries, which removes
/// the ACL.
///
/// # Errors
/// [`AclError::Version`] or [`AclError::Length`] if the bytes do not have this form; otherwise as [`Acl::validate`].
pub fn from_xattr(bytes: &[u8]) -> Result<Option<Acl>, AclError> {
    let rest = version(bytes, XATTR_VERSION)?;
    let (entries, []) = rest.as_chunks::<FULL_LEN>() else {
        return Err(AclError::Length { len: bytes.len() });
    };
    if entries.is_empty() {
        return Ok(None);
    }
    let read = |(number, &[a, b, c, d, i0, i1, i2, i3]): (usize, &[u8; FULL_LEN])| {
        entry(number, [a, b, c, d], || Ok(u32::from_le_bytes([i0, i1, i2, i3])))
    };
    let acl = Acl { entries: entries.iter().enumerate().map(read).collect::<Result<_, _>>()? };
    acl.validate()?;
    Ok(Some(acl))
}

/// The value in the form that getxattr returns.
pub fn to_xattr(acl: &Acl) -> Vec<u8> {
    let mut out = XATTR_VERSION.to_le_bytes().to_vec();
    for e in &acl.entries {
        let (tag, id) = e.tag.encode();
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&e.perm.to_le_bytes());
        out.extend_from_slice(&id.unwrap_or(u32::MAX).to_le_bytes());
    }
    out
}

/// Reads the value of a `posix_acl_access` or `posix_acl_default` attribute from an inode or xattr block.
///
/// # Errors
/// As [`from_xattr`].
pub fn from_disk(bytes: &[u8]) -> Result<Acl, AclError> {
    let mut rest = version(bytes, DISK_VERSION)?;
    let cut = || AclError::Length { len: bytes.len() };
    let mut acl = Acl::default();
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<SHORT_LEN>().ok_or_else(cut)?;
        rest = after;
        let read = entry(acl.entries.len(), *head, || {
            let (id, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            rest = after;
            Ok(u32::from_le_bytes(*id))
        })?;
        acl.entries.push(read);
    }
    acl.validate()?;
    Ok(acl)
}

/// The value in the form that is stored.
pub fn to_disk(acl: &Acl) -> Vec<u8> {
    let mut out = DISK_VERSION.to_le_bytes().to_vec();
    for e in &acl.entries {
        let (tag, id) = e.tag.encode();
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&e.perm.to_le_bytes());
        if let Some(id) = id {
            out.extend_from_slice(&id.to_le_bytes());
        }
    }
    out
}
