//! What a directory hands down, without an image.

use extant_ondisk::acl::{AclEntry, Tag};

use super::*;

const CRED: Cred = Cred { uid: 1000, gid: 100, umask: 0o022 };

fn parent(mode: u16, flags: InodeFlags) -> Parent<'static> {
    Parent { mode, gid: 7, flags, projid: 42, default_acl: None, hands_down_group: false }
}

#[test]
fn a_plain_directory_hands_nothing_down() {
    let made = inherit(&parent(0o040755, InodeFlags::empty()), 0o100666, CRED);
    let acl = acl::Inherited { mode: 0o100644, access: None, default: None };
    assert_eq!(made, Inherited { acl, gid: 100, flags: InodeFlags::empty(), projid: 0 });
}

#[test]
fn set_group_id_gives_the_group_and_goes_to_directories_alone() {
    let parent = parent(0o042775, InodeFlags::empty());
    for (asked, mode) in [(0o040777, 0o042755), (0o100666, 0o100644), (0o120777, 0o120777), (0o102755, 0o102755)] {
        let made = inherit(&parent, asked, CRED);
        assert_eq!((made.acl.mode, made.gid), (mode, 7), "{asked:o}");
    }
}

/// Linux: `EXT4_MOUNT_GRPID` in `__ext4_new_inode`, which leaves the mode alone.
#[test]
fn group_of_directory_goes_to_all_and_the_bit_to_none() {
    for mode in [0o040775, 0o042775] {
        let parent = Parent { hands_down_group: true, ..parent(mode, InodeFlags::empty()) };
        for (asked, mode) in [(0o040777, 0o040755), (0o100666, 0o100644), (0o120777, 0o120777)] {
            let made = inherit(&parent, asked, CRED);
            assert_eq!((made.acl.mode, made.gid), (mode, 7), "{asked:o}");
        }
    }
}

#[test]
fn flags_go_as_far_as_the_kind_can_have_them() {
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
fn the_project_goes_where_the_directory_says_so() {
    let with = parent(0o040755, InodeFlags::PROJINHERIT);
    assert_eq!(inherit(&with, 0o100644, CRED).projid, 42);
    assert_eq!(inherit(&with, 0o100644, CRED).flags, InodeFlags::empty(), "only directories hand down further");
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
    assert_eq!(file.mode, 0o100660, "not narrowed by the umask, but by the list");
    assert!(file.access.is_some() && file.default.is_none());
    let dir = made(0o040777);
    assert_eq!((dir.mode, dir.default.as_ref()), (0o042770, Some(&list)));
    assert_eq!(made(0o120777), acl::Inherited { mode: 0o120777, access: None, default: None });
}
