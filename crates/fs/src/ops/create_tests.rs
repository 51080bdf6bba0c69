//! Tests of the attributes that a new inode inherits, without an image.

use extant_ondisk::acl::{AclEntry, Tag};

use super::*;

const CRED: Cred = Cred { uid: 1000, gid: 100, umask: 0o022 };

fn parent(mode: u16, flags: InodeFlags) -> Parent<'static> {
    Parent { mode, gid: 7, flags, projid: 42, default_acl: None, hands_down_group: false }
}

#[test]
fn inodes_in_a_plain_directory_inherit_nothing() {
    let made = inherit(&parent(0o040755, InodeFlags::empty()), 0o100666, CRED);
    let acl = acl::Inherited { mode: 0o100644, access: None, default: None };
    assert_eq!(made, Inherited { acl, gid: 100, flags: InodeFlags::empty(), projid: 0 });
}

#[test]
fn all_inherit_the_group_of_a_set_group_id_directory_and_directories_also_the_bit() {
    let parent = parent(0o042775, InodeFlags::empty());
    for (asked, mode) in [(0o040777, 0o042755), (0o100666, 0o100644), (0o120777, 0o120777), (0o102755, 0o102755)] {
        let made = inherit(&parent, asked, CRED);
        assert_eq!((made.acl.mode, made.gid), (mode, 7), "{asked:o}");
    }
}

/// As `EXT4_MOUNT_GRPID` in Linux's `__ext4_new_inode`, which does not change the mode.
#[test]
fn with_group_of_directory_all_inherit_the_group_and_none_the_bit() {
    for mode in [0o040775, 0o042775] {
        let parent = Parent { hands_down_group: true, ..parent(mode, InodeFlags::empty()) };
        for (asked, mode) in [(0o040777, 0o040755), (0o100666, 0o100644), (0o120777, 0o120777)] {
            let made = inherit(&parent, asked, CRED);
            assert_eq!((made.acl.mode, made.gid), (mode, 7), "{asked:o}");
        }
    }
}

#[test]
fn inodes_inherit_the_flags_that_their_kind_can_have() {
    let own = InodeFlags::INDEX | InodeFlags::IMMUTABLE | InodeFlags::EXTENTS;
    let handed = InodeFlags::SYNC | InodeFlags::NODUMP | InodeFlags::NOATIME | InodeFlags::DIRSYNC;
    let parent = parent(0o040755, own | handed);
    let flags = |mode| inherit(&parent, mode, CRED).flags;
    assert_eq!(flags(0o040755), handed);
    assert_eq!(flags(0o100644), handed - InodeFlags::DIRSYNC);
    for mode in [0o120777, 0o020600, 0o060600, 0o010600, 0o140600] {
        assert_eq!(flags(mode), InodeFlags::NODUMP | InodeFlags::NOATIME, "{mode:o}");
    }
}

#[test]
fn inodes_inherit_the_project_if_the_directory_says_so() {
    let with = parent(0o040755, InodeFlags::PROJINHERIT);
    assert_eq!(inherit(&with, 0o100644, CRED).projid, 42);
    assert_eq!(inherit(&with, 0o100644, CRED).flags, InodeFlags::empty(), "only directories inherit the flag");
    assert_eq!(inherit(&with, 0o040755, CRED).flags, InodeFlags::PROJINHERIT);
    assert_eq!(inherit(&parent(0o040755, InodeFlags::empty()), 0o040755, CRED).projid, 0);
}

#[test]
fn a_default_acl_replaces_the_umask() {
    let e = |tag, perm| AclEntry { tag, perm };
    let entries = vec![e(Tag::UserObj, 7), e(Tag::User(5), 4), e(Tag::GroupObj, 5), e(Tag::Mask, 7), e(Tag::Other, 0)];
    let list = Acl { entries };
    let parent = Parent { default_acl: Some(&list), ..parent(0o042755, InodeFlags::empty()) };
    let made = |mode| inherit(&parent, mode, CRED).acl;
    let file = made(0o100666);
    assert_eq!(file.mode, 0o100660, "the ACL narrows it, not the umask");
    assert!(file.access.is_some() && file.default.is_none());
    let dir = made(0o040777);
    assert_eq!((dir.mode, dir.default.as_ref()), (0o042770, Some(&list)));
    assert_eq!(made(0o120777), acl::Inherited { mode: 0o120777, access: None, default: None });
}
