//! Access control lists in the form of archives: text, with numbers of users and groups from the image, not names
//! from this host.
//!
//! # Locking
//! None.

use extant_ondisk::acl::{Tag, from_xattr};

/// `user::rw-,user:1000:r--,…` for a value of `system.posix_acl_*`; `None` if it is not an ACL, or has no entries.
pub fn text(value: &[u8]) -> Option<Vec<u8>> {
    let acl = from_xattr(value).ok()??;
    let entry = |entry: &extant_ondisk::acl::AclEntry| {
        let who = match entry.tag {
            Tag::UserObj => "user:".to_owned(),
            Tag::User(id) => format!("user:{id}"),
            Tag::GroupObj => "group:".to_owned(),
            Tag::Group(id) => format!("group:{id}"),
            Tag::Mask => "mask:".to_owned(),
            Tag::Other => "other:".to_owned(),
        };
        let may = |bit: u16, letter| if entry.perm & bit != 0 { letter } else { '-' };
        format!("{who}:{}{}{}", may(4, 'r'), may(2, 'w'), may(1, 'x'))
    };
    Some(acl.entries.iter().map(entry).collect::<Vec<_>>().join(",").into_bytes())
}
