//! POSIX access control lists: the two byte forms, validity, and the relation between an ACL and the mode.
//!
//! Main types: [`Acl`], [`AclEntry`], [`Tag`]. An ACL has two byte forms: that of the system calls (version 2, every
//! entry 8 bytes; Linux: `struct posix_acl_xattr_entry`) and that of ext4 (version 1, entries without an id take 4
//! bytes; Linux: `struct ext4_acl_entry`). An [`Acl`] from either reader is valid; see [`Acl::validate`].
//!
//! What it does not do: decide about access (the kernel's `default_permissions` does), or store anything.
//!
//! # Locking
//! None.

mod codec;
#[cfg(test)]
mod tests;

pub use codec::{from_disk, from_xattr, to_disk, to_xattr};

use crate::inode::FileType;

/// The subject of an entry (Linux: `ACL_USER_OBJ` …).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A named user.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A named group.
    Group(u32),
    /// The maximum permissions of named users, the owning group and named groups.
    Mask,
    /// All others.
    Other,
}

/// One entry of an ACL. `perm` has rwx in the three low bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The subject of the entry.
    pub tag: Tag,
    /// Read 4, write 2, execute 1; other bits are refused.
    pub perm: u16,
}

/// A list of entries, in the order of [`Acl::validate`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// The entries, from the owner to all others. Tags without an id appear at most once.
    pub entries: Vec<AclEntry>,
}

/// The reason why bytes or entries are not a valid ACL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AclError {
    /// The bytes begin with a version that this form does not have.
    #[error("ACL version {found}, expected {expected}")]
    Version {
        /// The version in the bytes.
        found: u32,
        /// The version of the form: 1 on disk, 2 in system calls.
        expected: u32,
    },
    /// The bytes end within the version or an entry.
    #[error("ACL of {len} bytes is cut off or too long")]
    Length {
        /// The total number of bytes.
        len: usize,
    },
    /// An entry's tag is none of `ACL_USER_OBJ` … `ACL_OTHER`.
    #[error("ACL entry {number} has the unknown tag {tag:#x}")]
    UnknownTag {
        /// The index of the entry, from 0.
        number: usize,
        /// The stored `e_tag`.
        tag: u16,
    },
    /// The entries are well formed but do not make a valid ACL; see [`Acl::validate`].
    #[error("ACL entry {number}: {detail}")]
    Rule {
        /// The index of the entry, from 0; one past the last if an entry is missing at the end.
        number: usize,
        /// The broken rule, for messages.
        detail: &'static str,
    },
}

/// The mode and ACLs of a new file, from its directory's default ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// The whole mode, with file type and special bits.
    pub mode: u16,
    /// The access ACL; `None` if the mode alone expresses it.
    pub access: Option<Acl>,
    /// The default ACL, which only directories inherit.
    pub default: Option<Acl>,
}

impl Acl {
    /// The ACL equivalent to the permission bits of `mode` (Linux: `posix_acl_from_mode`).
    pub fn from_mode(mode: u16) -> Acl {
        let entry = |tag, shift: u16| AclEntry { tag, perm: (mode >> shift) & 7 };
        Acl { entries: vec![entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)] }
    }

    /// Checks order and completeness: owner, named users, owning group, named groups, mask (required if there is a
    /// named entry), other (Linux: `posix_acl_valid`).
    ///
    /// # Errors
    /// [`AclError::Rule`] with the index of the first entry that breaks a rule, or with the number of entries if the
    /// last entry is missing.
    pub fn validate(&self) -> Result<(), AclError> {
        let rule = |number, detail| Err(AclError::Rule { number, detail });
        // The rank of the previous entry, and whether a named entry requires a mask.
        let (mut last, mut named) = (0, false);
        for (number, entry) in self.entries.iter().enumerate() {
            if entry.perm > 7 {
                return rule(number, "permissions outside rwx");
            }
            let (rank, repeats, id) = match entry.tag {
                Tag::UserObj => (1, false, None),
                Tag::User(id) => (2, true, Some(id)),
                Tag::GroupObj => (3, false, None),
                Tag::Group(id) => (4, true, Some(id)),
                Tag::Mask => (5, false, None),
                Tag::Other => (6, false, None),
            };
            if rank < last || (rank == last && !repeats) {
                return rule(number, "out of order");
            }
            if (last == 0 && rank != 1) || (last < 3 && rank > 3) {
                return rule(number, "owner or owning group missing before it");
            }
            if id == Some(u32::MAX) {
                return rule(number, "no valid id");
            }
            if rank == 6 && named && last != 5 {
                return rule(number, "named entries without a mask");
            }
            named |= id.is_some();
            last = rank;
        }
        if last != 6 {
            return rule(self.entries.len(), "entry for others missing at the end");
        }
        Ok(())
    }

    fn perm_of(&self, tag: Tag) -> Option<u16> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn perm_mut(&mut self, tag: Tag) -> Option<&mut u16> {
        self.entries.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// The permission bits (0o777) of this ACL, and whether they express it completely, so that it need not be stored
    /// (Linux: `posix_acl_equiv_mode`). If there is a mask, the group bits are those of the mask.
    pub fn equiv_mode(&self) -> (u16, bool) {
        let perm = |tag| self.perm_of(tag).unwrap_or(0) & 7;
        let group = self.perm_of(Tag::Mask).unwrap_or_else(|| perm(Tag::GroupObj)) & 7;
        let all = self.entries.iter().all(|e| matches!(e.tag, Tag::UserObj | Tag::GroupObj | Tag::Other));
        (perm(Tag::UserObj) << 6 | group << 3 | perm(Tag::Other), all)
    }

    /// The effect of setting this access ACL on an inode with `mode`: the new mode, and the ACL if it must be stored
    /// (Linux: `posix_acl_update_mode`). The caller, which has the credentials, clears S_ISGID for non-members of the
    /// group.
    pub fn as_access_of(&self, mode: u16) -> (u16, Option<&Acl>) {
        let (bits, all) = self.equiv_mode();
        (mode & !0o777 | bits, (!all).then_some(self))
    }

    /// Applies a chmod to the ACL. The group bits change the mask if there is one, otherwise the owning group (Linux:
    /// `__posix_acl_chmod_masq`).
    pub fn chmod(&mut self, mode: u16) {
        let group = if self.perm_of(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj };
        for (tag, shift) in [(Tag::UserObj, 6), (group, 3), (Tag::Other, 0)] {
            if let Some(perm) = self.perm_mut(tag) {
                *perm = (mode >> shift) & 7;
            }
        }
    }

    /// Restricts the ACL to a creation mode, and the mode to the ACL. The other bits of the mode do not change (Linux:
    /// `posix_acl_create_masq`).
    fn create_masq(&mut self, mode: u16) -> u16 {
        let group = if self.perm_of(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj };
        let mut bits = 0;
        for (tag, shift) in [(Tag::UserObj, 6), (group, 3), (Tag::Other, 0)] {
            if let Some(perm) = self.perm_mut(tag) {
                *perm &= mode >> shift;
                bits |= *perm << shift;
            }
        }
        mode & !0o777 | bits
    }
}

/// The mode and ACLs of a new inode of mode `mode` (with its file type) in a directory whose default ACL is `default`.
/// Without a default ACL, or for a symlink, the mode is reduced by `umask` (symlinks ignore the umask). With a default
/// ACL, umask is ignored (Linux: `posix_acl_create`).
pub fn inherit(default: Option<&Acl>, mode: u16, umask: u16) -> Inherited {
    let kind = FileType::from_mode(mode);
    if kind == Some(FileType::Symlink) {
        return Inherited { mode, access: None, default: None };
    }
    let Some(default) = default else {
        return Inherited { mode: mode & !(umask & 0o777), access: None, default: None };
    };
    let mut access = default.clone();
    let mode_after = access.create_masq(mode);
    let (_, all) = access.equiv_mode();
    Inherited {
        mode: mode_after,
        access: (!all).then_some(access),
        default: (kind == Some(FileType::Directory)).then(|| default.clone()),
    }
}
