//! Extended attributes, as used by the system calls.
//!
//! Main functions: [`Filesystem::get_xattr`], [`Filesystem::list_xattrs`], [`Filesystem::set_xattr`],
//! [`Filesystem::remove_xattr`].
//!
//! What it does not do: store them ([`crate::xattr`]).
//!
//! # Locking
//! `inode`: shared for reading, exclusive for changing.

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeRef;
use crate::operation::Operation;
use crate::ops::credits;
use crate::ops::flags::Change;
use crate::volume::Volume;
use crate::xattr::{self, SetMode, XattrError};
use crate::xattr_store::XattrEdit;

/// The prefix of the names of ACLs.
const ACLS: &[u8] = b"system.posix_acl_";
/// The prefix of user attributes' names.
const USERS: &[u8] = b"user.";

impl Volume {
    /// Whether ACLs have an effect here: [`crate::MountOptions::acls`], or the superblock's choice.
    pub fn has_acls(&self) -> bool {
        self.options.acls != Some(false)
    }

    /// Whether this mount supports attributes of this name.
    fn check_namespace(&self, name: &[u8]) -> Result<()> {
        if !self.has_acls() && name.starts_with(ACLS) {
            return Err(Error::NotSupported("ACLs, on a mount with noacl"));
        }
        if self.options.user_xattrs == Some(false) && name.starts_with(USERS) {
            return Err(Error::NotSupported("attributes of users, on a mount with nouser_xattr"));
        }
        Ok(())
    }
}

impl Filesystem {
    /// The value of the attribute `name`, which includes the prefix (`user.mime_type`).
    ///
    /// # Errors
    /// [`Error::NoAttribute`]; [`Error::NotSupported`] for a prefix that the format or this mount does not support;
    /// [`Error::Corrupt`] if the attributes are damaged.
    pub fn get_xattr(&self, inode: &InodeRef, name: &[u8]) -> Result<Vec<u8>> {
        self.check_namespace(name)?;
        let _shared = inode.rw.read();
        self.watch(xattr::get(&self.xattrs(inode), name).map_err(Error::from))
    }

    /// All names, in storage order.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the attributes are damaged; [`Error::Device`] if their block cannot be read.
    pub fn list_xattrs(&self, inode: &InodeRef) -> Result<Vec<Vec<u8>>> {
        let _shared = inode.rw.read();
        let mut names = self.watch(xattr::list(&self.xattrs(inode)).map_err(Error::from))?;
        names.retain(|name| self.check_namespace(name).is_ok());
        Ok(names)
    }

    /// Sets the attribute `name`, which includes the prefix.
    ///
    /// # Errors
    /// [`Error::Exists`] and [`Error::NoAttribute`], depending on `mode`; [`Error::NoSpace`] if inode and block are
    /// full; [`Error::NotSupported`] for a prefix that the format or this mount does not support.
    pub fn set_xattr(&self, inode: &InodeRef, name: &[u8], value: &[u8], mode: SetMode) -> Result<()> {
        self.change_xattr(inode, name, Some(value), |edit| xattr::set(edit, name, value, mode))
    }

    /// Removes the attribute `name`; [`Error::NoAttribute`] if there is none.
    ///
    /// # Errors
    /// As [`Filesystem::get_xattr`]; also [`Error::NotPermitted`] because of the inode's flags, and
    /// [`Error::ReadOnly`].
    pub fn remove_xattr(&self, inode: &InodeRef, name: &[u8]) -> Result<()> {
        self.change_xattr(inode, name, None, |edit| xattr::remove(edit, name))
    }

    /// Runs `change` on the attributes as one operation. `value`: the value that it sets, if any.
    fn change_xattr(
        &self,
        inode: &InodeRef,
        name: &[u8],
        value: Option<&[u8]>,
        change: impl Fn(&mut XattrEdit<'_>) -> std::result::Result<(), XattrError<Error>>,
    ) -> Result<()> {
        self.check_namespace(name)?;
        let op = Operation::begin(self)?;
        op.retry_no_space(|| {
            let _exclusive = inode.rw.write();
            inode.may_change(Change::Xattr)?;
            let _table = self.hold_slots([inode])?;
            let stored = match value {
                Some(value) if self.geo.ea_inode => xattr::stored_value(&self.xattrs(inode), name, value)?,
                _ => None,
            };
            let values = op.prepare_values(inode, stored.as_slice())?;
            self.transact_whole(credits::SET_XATTR + values.credits, |handle| {
                self.xattrs(inode).edit(handle, &values, &change)?;
                inode.meta.write().desc.ctime = self.now();
                let written = self.write_inode(handle, inode);
                self.whole(handle, written)
            })
        })?;
        self.honour_sync(&[inode])
    }
}

#[cfg(test)]
#[path = "xattrs_tests.rs"]
mod tests;
