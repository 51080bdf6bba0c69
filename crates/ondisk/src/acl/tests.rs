//! Tests of known bytes, of the rules, and of the mode arithmetic.

use proptest::prelude::*;

use super::*;

fn e(tag: Tag, perm: u16) -> AclEntry {
    AclEntry { tag, perm }
}

fn named() -> Acl {
    Acl {
        entries: vec![
            e(Tag::UserObj, 7),
            e(Tag::User(1000), 5),
            e(Tag::GroupObj, 4),
            e(Tag::Group(70000), 6),
            e(Tag::Mask, 5),
            e(Tag::Other, 1),
        ],
    }
}

#[test]
fn the_disk_form_has_short_entries() {
    let disk = to_disk(&named());
    assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
    assert_eq!(&disk[..16], &[1, 0, 0, 0, 1, 0, 7, 0, 2, 0, 5, 0, 0xe8, 3, 0, 0]);
    assert_eq!(from_disk(&disk).unwrap(), named());
    let vfs = to_xattr(&named());
    assert_eq!(vfs.len(), 4 + 6 * 8);
    assert_eq!(&vfs[..12], &[2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
    assert_eq!(from_xattr(&vfs).unwrap(), Some(named()));
    assert_eq!(from_xattr(&[2, 0, 0, 0]).unwrap(), None);
}

#[test]
fn broken_forms_are_refused() {
    assert!(matches!(from_xattr(&[1, 0, 0, 0]), Err(AclError::Version { found: 1, expected: 2 })));
    assert!(matches!(from_disk(&[1, 0]), Err(AclError::Length { .. })));
    assert!(matches!(from_disk(&[1, 0, 0, 0]), Err(AclError::Rule { .. })), "an empty ACL is never stored");
    let disk = to_disk(&named());
    for cut in 4..disk.len() {
        assert!(from_disk(&disk[..cut]).is_err());
    }
    let mut bad = disk.clone();
    bad[4] = 0x40;
    assert!(matches!(from_disk(&bad), Err(AclError::UnknownTag { .. })));
}

#[test]
fn validity_follows_the_kernel() {
    let ok = |entries: &[AclEntry]| Acl { entries: entries.to_vec() }.validate().is_ok();
    use Tag::*;
    assert!(ok(&named().entries));
    assert!(ok(&Acl::from_mode(0o640).entries));
    assert!(ok(&[e(UserObj, 7), e(GroupObj, 7), e(Mask, 1), e(Other, 0)]), "a mask without names is allowed");
    assert!(!ok(&[]));
    assert!(!ok(&[e(UserObj, 7), e(GroupObj, 7)]));
    assert!(!ok(&[e(UserObj, 7), e(Other, 7)]));
    assert!(!ok(&[e(GroupObj, 7), e(Other, 7)]));
    assert!(!ok(&[e(UserObj, 8), e(GroupObj, 7), e(Other, 0)]));
    assert!(!ok(&[e(UserObj, 7), e(User(1), 7), e(GroupObj, 7), e(Other, 0)]), "named without mask");
    assert!(!ok(&[e(UserObj, 7), e(GroupObj, 7), e(User(1), 7), e(Mask, 7), e(Other, 0)]), "order");
    assert!(!ok(&[e(UserObj, 7), e(User(u32::MAX), 7), e(GroupObj, 7), e(Mask, 7), e(Other, 0)]));
    assert!(!ok(&[e(UserObj, 7), e(GroupObj, 7), e(Other, 0), e(Other, 0)]));
}

#[test]
fn mode_and_acl_agree() {
    assert_eq!(named().equiv_mode(), (0o751, false));
    assert_eq!(Acl::from_mode(0o640).equiv_mode(), (0o640, true));
    let acl = named();
    assert_eq!(acl.as_access_of(0o104000), (0o104751, Some(&acl)));
    assert_eq!(Acl::from_mode(0o600).as_access_of(0o100777), (0o100600, None));
    let mut acl = named();
    acl.chmod(0o614);
    assert_eq!(acl.equiv_mode(), (0o614, false));
    assert_eq!(acl.entries[2], e(Tag::GroupObj, 4), "the owning group has the permissions that the mask hides");
    let mut plain = Acl::from_mode(0o777);
    plain.chmod(0o531);
    assert_eq!(plain, Acl::from_mode(0o531));
}

#[test]
fn inheritance_narrows_the_mode_and_the_acl() {
    let d = named();
    let file = inherit(Some(&d), 0o100666, 0o077);
    assert_eq!(file.mode, 0o100640, "owner rwx&rw, mask r-x&rw, other x&rw; umask ignored");
    let access = file.access.unwrap();
    assert_eq!(access.equiv_mode(), (0o640, false));
    assert_eq!(access.entries[2], e(Tag::GroupObj, 4));
    assert_eq!(file.default, None);
    let dir = inherit(Some(&d), 0o042777, 0o022);
    assert_eq!((dir.mode, dir.default), (0o042751, Some(d.clone())));
    assert_eq!(inherit(None, 0o100666, 0o027), Inherited { mode: 0o100640, access: None, default: None });
    assert_eq!(inherit(Some(&d), 0o120777, 0o022).mode, 0o120777);
    let simple = inherit(Some(&Acl::from_mode(0o750)), 0o100666, 0);
    assert_eq!((simple.mode, simple.access), (0o100640, None));
}

fn any_acl() -> impl Strategy<Value = Acl> {
    let perm = || 0u16..8;
    let ids = || prop::collection::vec((0u32..u32::MAX, 0u16..8), 0..5);
    (perm(), ids(), perm(), ids(), perm(), perm(), any::<bool>()).prop_map(|(u, us, g, gs, m, o, force)| {
        let mut entries = vec![e(Tag::UserObj, u)];
        entries.extend(us.iter().map(|&(id, p)| e(Tag::User(id), p)));
        entries.push(e(Tag::GroupObj, g));
        entries.extend(gs.iter().map(|&(id, p)| e(Tag::Group(id), p)));
        if force || !us.is_empty() || !gs.is_empty() {
            entries.push(e(Tag::Mask, m));
        }
        entries.push(e(Tag::Other, o));
        Acl { entries }
    })
}

proptest! {
    #[test]
    fn forms_round_trip(acl in any_acl()) {
        prop_assert_eq!(from_disk(&to_disk(&acl)).unwrap(), acl.clone());
        prop_assert_eq!(from_xattr(&to_xattr(&acl)).unwrap(), Some(acl));
    }

    #[test]
    fn chmod_then_equiv_mode_is_the_mode(mut acl in any_acl(), mode in 0u16..0o1000) {
        acl.chmod(mode);
        prop_assert_eq!(acl.equiv_mode().0, mode);
        prop_assert!(acl.validate().is_ok());
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), v in 1u8..3) {
        let bytes = [&[v, 0, 0, 0], &bytes[..]].concat();
        let _ = (from_disk(&bytes), from_xattr(&bytes));
    }
}
