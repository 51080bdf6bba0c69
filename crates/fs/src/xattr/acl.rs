//! ACLs as attributes: conversion, and consistency between ACL and mode.

use extant_ondisk::InodeNr;
use extant_ondisk::acl::{self, Acl};
use extant_ondisk::inode::FileType;
use extant_ondisk::xattr::{Name, index};

use super::ops::{get_raw, remove_raw, set_all_raw, set_raw};
use super::{SetMode, XattrError, XattrSource, XattrStore};

type Result<T, S> = std::result::Result<T, XattrError<<S as XattrSource>::Error>>;

/// One of an inode's two ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The ACL that governs access to the inode.
    Access,
    /// The ACL that new inodes in a directory inherit.
    Default,
}

impl AclKind {
    /// The kind of ACL with this attribute name.
    pub(super) fn of(name: Name<'_>) -> Option<AclKind> {
        match name.index {
            index::POSIX_ACL_ACCESS => Some(AclKind::Access),
            index::POSIX_ACL_DEFAULT => Some(AclKind::Default),
            _ => None,
        }
    }

    fn name(self) -> Name<'static> {
        let index = match self {
            AclKind::Access => index::POSIX_ACL_ACCESS,
            AclKind::Default => index::POSIX_ACL_DEFAULT,
        };
        Name { index, suffix: b"" }
    }
}

/// Parses a value from setxattr. `None` means that the ACL is removed.
pub(super) fn acl_from_value<E>(ino: InodeNr, value: &[u8]) -> std::result::Result<Option<Acl>, XattrError<E>> {
    acl::from_xattr(value).map_err(|source| XattrError::InvalidAcl { ino, source })
}

/// The stored ACL of an inode, if it has one.
pub fn get_acl<S: XattrSource>(store: &S, kind: AclKind) -> Result<Option<Acl>, S> {
    let Some(bytes) = get_raw(store, kind.name())? else { return Ok(None) };
    let acl = acl::from_disk(&bytes)
        .map_err(|e| extant_ondisk::Error::corrupt(extant_ondisk::Structure::Inode, store.ino().0, e.to_string()))?;
    Ok(Some(acl))
}

/// Sets an ACL, or removes it if `None`. An access ACL also sets the corresponding mode. The caller clears S_ISGID if
/// the credentials require it.
pub fn set_acl<S: XattrStore>(store: &mut S, kind: AclKind, acl: Option<&Acl>) -> Result<(), S> {
    let (ino, mode) = (store.ino(), store.mode());
    if FileType::from_mode(mode) == Some(FileType::Symlink) {
        return Err(XattrError::NameNotSupported { ino });
    }
    let Some(acl) = acl else {
        return remove_raw(store, kind.name()).map(drop);
    };
    acl.validate().map_err(|source| XattrError::InvalidAcl { ino, source })?;
    if kind == AclKind::Default && FileType::from_mode(mode) != Some(FileType::Directory) {
        return Err(XattrError::NoDirectory { ino });
    }
    let (new_mode, stored) = stored_acl(kind, acl, mode);
    match stored {
        Some(bytes) => set_raw(store, kind.name(), &bytes, SetMode::Any)?,
        None => drop(remove_raw(store, kind.name())?),
    }
    if new_mode == mode { Ok(()) } else { store.set_mode(new_mode).map_err(XattrError::Store) }
}

/// The mode of an inode of mode `mode` after it gets the ACL, and the bytes of the ACL to store. `None` if the mode
/// alone expresses the ACL.
pub(super) fn stored_acl(kind: AclKind, acl: &Acl, mode: u16) -> (u16, Option<Vec<u8>>) {
    match kind {
        AclKind::Default => (mode, Some(acl::to_disk(acl))),
        AclKind::Access => {
            let (mode, stored) = acl.as_access_of(mode);
            (mode, stored.map(acl::to_disk))
        }
    }
}

/// The name and the bytes of the access ACL after [`chmod_acl`]; `None` if the inode has no such ACL.
pub fn chmod_value<S: XattrSource>(store: &S, mode: u16) -> Result<Option<(Name<'static>, Vec<u8>)>, S> {
    if FileType::from_mode(store.mode()) == Some(FileType::Symlink) {
        return Ok(None);
    }
    let Some(mut acl) = get_acl(store, AclKind::Access)? else { return Ok(None) };
    acl.chmod(mode);
    Ok(Some((AclKind::Access.name(), acl::to_disk(&acl))))
}

/// Updates the access ACL after a chmod to the permission bits of `mode`; the caller sets the mode itself (Linux:
/// `posix_acl_chmod`).
pub fn chmod_acl<S: XattrStore>(store: &mut S, mode: u16) -> Result<(), S> {
    match chmod_value(store, mode)? {
        Some((name, bytes)) => set_raw(store, name, &bytes, SetMode::Any),
        None => Ok(()),
    }
}

/// The names and the bytes of the ACLs that a new inode inherits.
pub fn inherited_values(inherited: &acl::Inherited) -> Vec<(Name<'static>, Vec<u8>)> {
    let both = [(AclKind::Default, &inherited.default), (AclKind::Access, &inherited.access)];
    let of = |(kind, acl): (AclKind, &Option<Acl>)| acl.as_ref().map(|acl| (kind.name(), acl::to_disk(acl)));
    both.into_iter().filter_map(of).collect()
}

/// Sets the ACLs of the new inode `child`, whose mode is already `inherited.mode`: either all of them or none.
pub fn set_inherited<S: XattrStore>(child: &mut S, inherited: &acl::Inherited) -> Result<(), S> {
    set_all_raw(child, &inherited_values(inherited))
}
