//! Tests of ACLs through the attribute calls: conversion, mode, inheritance.

use std::cell::RefCell;
use std::rc::Rc;

use extant_ondisk::acl::{self, Acl, AclEntry, Tag};

use super::tests::{Disk, MemInode};
use super::*;

fn named(user: u32) -> Acl {
    let e = |tag, perm| AclEntry { tag, perm };
    Acl {
        entries: vec![
            e(Tag::UserObj, 7),
            e(Tag::User(user), 6),
            e(Tag::GroupObj, 5),
            e(Tag::Mask, 7),
            e(Tag::Other, 0),
        ],
    }
}

fn inode(mode: u16) -> MemInode {
    MemInode::new(12, mode, 96, &Rc::new(RefCell::new(Disk::default())))
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn an_access_acl_sets_the_mode_and_follows_chmod() {
    let mut f = inode(0o100600);
    let vfs = acl::to_xattr(&named(1000));
    set(&mut f, ACCESS, &vfs, SetMode::Any).unwrap();
    assert_eq!((f.mode, get(&f, ACCESS).unwrap()), (0o100770, vfs));
    chmod_acl(&mut f, 0o100741).unwrap();
    let after = get_acl(&f, AclKind::Access).unwrap().unwrap();
    assert_eq!(after.equiv_mode(), (0o741, false));
    // An ACL that the mode alone expresses is not stored. Removing a missing ACL succeeds.
    set(&mut f, ACCESS, &acl::to_xattr(&Acl::from_mode(0o640)), SetMode::Any).unwrap();
    assert_eq!((f.mode, list(&f).unwrap().len()), (0o100640, 0));
    remove(&mut f, ACCESS).unwrap();
    chmod_acl(&mut f, 0o100600).unwrap();
    assert_eq!(list(&f).unwrap().len(), 0);
}

#[test]
fn misplaced_and_malformed_acls_are_refused() {
    let vfs = acl::to_xattr(&named(1000));
    assert!(matches!(set(&mut inode(0o100600), DEFAULT, &vfs, SetMode::Any), Err(XattrError::NoDirectory { .. })));
    assert!(matches!(set(&mut inode(0o120777), ACCESS, &vfs, SetMode::Any), Err(XattrError::NameNotSupported { .. })));
    assert!(matches!(set(&mut inode(0o100600), ACCESS, &vfs[..9], SetMode::Any), Err(XattrError::InvalidAcl { .. })));
}

#[test]
fn new_inodes_inherit() {
    let mut dir = inode(0o040755);
    set(&mut dir, DEFAULT, &acl::to_xattr(&named(7)), SetMode::Any).unwrap();
    assert_eq!(dir.mode, 0o040755, "a default ACL does not change the mode");
    let default = get_acl(&dir, AclKind::Default).unwrap();
    let inherit = |mode: u16| {
        let inherited = acl::inherit(default.as_ref(), mode, 0o777);
        let mut child = inode(inherited.mode);
        set_inherited(&mut child, &inherited).unwrap();
        child
    };
    let file = inherit(0o100644);
    assert_eq!((file.mode, list(&file).unwrap()), (0o100640, vec![ACCESS.to_vec()]));
    let sub = inherit(0o042777);
    assert_eq!((sub.mode, list(&sub).unwrap().len()), (0o042770, 2));
    assert_eq!(get(&sub, DEFAULT).unwrap(), get(&dir, DEFAULT).unwrap());
    let mut plain = inode(0o100640);
    set_inherited(&mut plain, &acl::inherit(None, 0o100666, 0o027)).unwrap();
    assert_eq!(list(&plain).unwrap().len(), 0);
    set(&mut dir, DEFAULT, &[2, 0, 0, 0], SetMode::Any).unwrap();
    assert_eq!(get_acl(&dir, AclKind::Default).unwrap(), None, "an empty ACL removes it");
}
