//! Converts ACLs in the format of star, `user::rwx,user:joe:r--:1000,…`, to the value of getxattr(2).
//!
//! # Locking
//! None.

use extant_ondisk::acl::{Acl, AclEntry, Tag, to_xattr};

use super::header::FieldError;
use crate::error::shown;

/// The attribute with a file's ACL.
pub const ACCESS: &str = "system.posix_acl_access";
/// The attribute with the ACL that new entries of a directory inherit.
pub const DEFAULT: &str = "system.posix_acl_default";

/// Converts a text to the value of an ACL attribute; `None` if the ACL is equal to the mode, which is not stored.
pub fn encode(text: &[u8], default: bool) -> Result<Option<Vec<u8>>, FieldError> {
    let mut entries = Vec::new();
    for line in text.split(|byte| matches!(byte, b',' | b'\n')) {
        let line = line.split(|byte| *byte == b'#').next().unwrap_or(line).trim_ascii();
        if !line.is_empty() {
            entries.push(entry(line).map_err(|why| format!("its ACL has {}, {why}", shown(line)))?);
        }
    }
    let in_mode = |entry: &AclEntry| matches!(entry.tag, Tag::UserObj | Tag::GroupObj | Tag::Other);
    if entries.is_empty() || (!default && entries.iter().all(in_mode)) {
        return Ok(None);
    }
    entries.sort_unstable_by_key(|entry| (entry.tag, entry.perm));
    Ok(Some(to_xattr(&Acl { entries })))
}

fn entry(line: &[u8]) -> Result<AclEntry, &'static str> {
    let parts: Vec<&[u8]> = line.split(|byte| *byte == b':').map(<[u8]>::trim_ascii).collect();
    // Some writers use `other:r-x` and `mask:rwx`.
    let (kind, who, permissions, number) = match parts[..] {
        [kind, permissions] => (kind, &b""[..], permissions, None),
        [kind, who, permissions] => (kind, who, permissions, None),
        [kind, who, permissions, number] => (kind, who, permissions, Some(number)),
        _ => return Err("which is no entry of one"),
    };
    let id = || {
        let parse = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse::<u32>().ok());
        number.and_then(parse).or_else(|| parse(who)).ok_or("a name without its number; archive with --xattrs")
    };
    let tag = match (kind, who.is_empty()) {
        (b"user" | b"u", true) => Tag::UserObj,
        (b"user" | b"u", false) => Tag::User(id()?),
        (b"group" | b"g", true) => Tag::GroupObj,
        (b"group" | b"g", false) => Tag::Group(id()?),
        (b"mask" | b"m", true) => Tag::Mask,
        (b"other" | b"o", true) => Tag::Other,
        _ => return Err("which is no entry of one"),
    };
    let mut perm = 0;
    for character in permissions {
        perm |= match character {
            b'r' => 4,
            b'w' => 2,
            b'x' => 1,
            b'-' => 0,
            _ => return Err("whose permissions are none"),
        };
    }
    Ok(AclEntry { tag, perm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_the_kernels_bytes() {
        let text = b"user::rw-,user:joe:r--:1000,group::r-x\t#effective:r--\nuser:7:rwx,mask::rw-,other::---";
        let value = encode(text, false).expect("an ACL").expect("more than a mode");
        let expected = [
            &b"\x02\0\0\0"[..],
            b"\x01\0\x06\0\xff\xff\xff\xff",
            b"\x02\0\x07\0\x07\0\0\0",
            b"\x02\0\x04\0\xe8\x03\0\0",
            b"\x04\0\x05\0\xff\xff\xff\xff",
            b"\x10\0\x06\0\xff\xff\xff\xff",
            b"\x20\0\0\0\xff\xff\xff\xff",
        ];
        assert_eq!(value, expected.concat());
        assert_eq!(encode(b"user::rwx\ngroup::r-x\nother::r-x\n", false), Ok(None));
        assert!(encode(b"user::rwx\ngroup::r-x\nother::r-x\n", true).expect("an ACL").is_some());
    }

    #[test]
    fn an_invalid_entry_is_named() {
        for (text, said) in [
            ("user:joe:r--", "its ACL has user:joe:r--, a name without its number; archive with --xattrs"),
            ("what::r--", "its ACL has what::r--, which is no entry of one"),
            ("user", "its ACL has user, which is no entry of one"),
            ("user::q", "its ACL has user::q, whose permissions are none"),
        ] {
            assert_eq!(encode(text.as_bytes(), false), Err(said.to_owned()));
        }
    }
}
