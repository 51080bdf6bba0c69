//! Extended attributes and POSIX ACLs of an inode: their storage, the sharing of blocks between inodes, and the
//! consistency of ACL and mode.
//!
//! Main types: [`XattrSource`] (the interface to an inode for reading), [`XattrStore`] (the interface for changes,
//! within a handle), [`SharedBlocks`] (the blocks that other inodes may share), [`XattrError`], [`SetMode`]. Functions:
//! [`get`], [`list`], [`set`], [`remove`], [`release_all`], with names and values as in the system calls; [`get_acl`],
//! [`chmod_acl`], [`set_inherited`] for the rest of `fs`.
//!
//! An attribute is stored in the inode if it fits there, otherwise in the inode's single xattr block. Inodes with equal
//! lists share a block, up to 1024 of them (`h_refcount`; Linux: `ext4_xattr_block_set`). If an inode's list changes,
//! the inode shares a block with the new list if the index has one. Otherwise it changes its block in place if no other
//! inode refers to it, or else gets a new block. Dropping the last reference frees the block. The count and
//! `i_file_acl` change in one transaction, so they agree after a crash.
//!
//! With `ea_inode`, a value that fits beside its name neither in the inode nor in the block is stored in an inode of
//! its own. The entry with its name is stored in the inode or the block (Linux: `ext4_xattr_set_handle`). The caller
//! creates that inode before the change ([`goes_outside`]). Each entry in an inode and each entry in a block holds a
//! reference to its value; inodes that share a block share its references. Each inode whose attributes refer to a value
//! counts the value's blocks.
//!
//! What it does not do: check permissions (`trusted.` needs CAP_SYS_ADMIN, `user.` exists only on files and
//! directories, an ACL change may clear S_ISGID), because the caller knows the credentials. Create and free the inodes
//! of values: see [`crate::values`]. Set times: the caller sets ctime.
//!
//! # Locking
//! The caller holds the inode's lock (shared for reading, exclusive for changing) and, for changes, an open handle with
//! [`CREDITS`]. `shared attributes` (77, see [`shared`]) is held around each change of a count, because other inodes
//! may begin or cease to share the block at the same time.

mod acl;
#[cfg(test)]
mod acl_tests;
mod hints;
#[cfg(test)]
mod image_store;
mod ops;
#[cfg(test)]
mod oracle_tests;
mod shared;
mod shared_values;
#[cfg(test)]
mod tests;

pub use acl::{AclKind, chmod_acl, chmod_value, get_acl, inherited_values, set_inherited};
pub use ops::{
    check, get, get_in_inode, get_stored, goes_outside, list, outside, release_all, release_values, remove,
    room_in_inode, set, set_in_inode, set_stored, stored_value,
};
pub use shared::{Joinable, SharedBlocks};
pub use shared_values::SharedValues;

use std::sync::Arc;

use extant_ondisk::acl::AclError;
use extant_ondisk::xattr::{ExternalValue, Name, NoSpace};
use extant_ondisk::{BlockNr, InodeNr};

/// The maximum number of metadata blocks that one change dirties: the inode; the old and the new xattr block; bitmap
/// and group descriptor of the new block; bitmap and group descriptor of the old one (which also needs one revoke); the
/// superblock, for the `ext_attr` feature. An inode that begins to share a block dirties that block instead of a new
/// one, and no bitmap for it. References to values need additional credits ([`crate::values`]).
pub const CREDITS: u32 = 8;

/// The interface to an inode for reading attributes.
pub trait XattrSource {
    /// A failure of the underlying storage.
    type Error: std::fmt::Display;

    /// The inode's number, for messages and checksums.
    fn ino(&self) -> InodeNr;
    /// The inode's whole `i_mode`.
    fn mode(&self) -> u16;
    /// The inode's bytes from `128 + i_extra_isize` to its end; empty for inodes of 128 bytes and for an
    /// `i_extra_isize` of 0.
    fn inode_area(&self) -> Result<Vec<u8>, Self::Error>;
    /// `i_file_acl`; `None` if it is 0.
    fn block_nr(&self) -> Option<BlockNr>;
    /// The content of a block. The implementation checks that `nr` may contain data at all; this module checks the
    /// bytes.
    fn read_block(&self, nr: BlockNr) -> Result<Vec<u8>, Self::Error>;
    /// The block size, in bytes.
    fn block_size(&self) -> usize;
    /// The checksum seed of a file system with `metadata_csum`.
    fn checksum_seed(&self) -> Option<u32>;
    /// The blocks of this file system that other inodes may share.
    fn shared(&self) -> &Arc<SharedBlocks>;
    /// Handles damage that hides attributes. A rescue records the damage and returns success, so that reading continues
    /// with the intact attributes. Otherwise this returns the damage.
    fn pass(&self, e: XattrError<Self::Error>) -> Result<(), XattrError<Self::Error>> {
        Err(e)
    }
    /// Whether values may have inodes of their own (`ea_inode`).
    fn may_go_outside(&self) -> bool;
    /// The value of the attribute `name` that is stored in an inode of its own. The implementation compares it with the
    /// entry.
    fn value(&self, name: Name<'_>, there: ExternalValue) -> Result<Vec<u8>, Self::Error>;
}

/// A change of the references to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// An entry now refers to the value.
    Add,
    /// An entry that referred to the value is gone. Dropping the last reference frees the value's inode.
    Drop,
}

/// The interface for changing attributes. Every method acts within the caller's handle.
pub trait XattrStore: XattrSource {
    /// Replaces the area that [`XattrSource::inode_area`] returned, with the same length.
    fn write_inode_area(&mut self, area: &[u8]) -> Result<(), Self::Error>;
    /// Sets the permission bits.
    fn set_mode(&mut self, mode: u16) -> Result<(), Self::Error>;
    /// Sets `i_file_acl`. Adds one block (cluster) to `i_blocks` if it was `None`, or subtracts one if it becomes
    /// `None`.
    fn set_block_nr(&mut self, nr: Option<BlockNr>) -> Result<(), Self::Error>;
    /// Allocates a block near the inode, below 2^48, and sets the `ext_attr` feature if it is missing. Sharing a block
    /// does not need to set it, because the block's allocation has.
    fn allocate_block(&mut self) -> Result<BlockNr, Self::Error>;
    /// Writes a newly allocated block without reading its old content.
    fn init_block(&mut self, nr: BlockNr, bytes: &[u8]) -> Result<(), Self::Error>;
    /// Calls `change` on the block's content. The caller holds the index of shared blocks, so that no other inode
    /// changes the block, and has ensured that an inode refers to the block. The block joins the transaction only if
    /// `change` returns true, because a block that is freed next must not be journalled first. If this fails, `change`
    /// was not called.
    fn update_block(
        &mut self,
        nr: BlockNr,
        held: &Joinable,
        change: &mut dyn FnMut(&mut [u8]) -> bool,
    ) -> Result<(), Self::Error>;
    /// Frees and revokes a block without references.
    fn free_block(&mut self, nr: BlockNr) -> Result<(), Self::Error>;
    /// The inode with exactly this value, and the value's hash, if the caller has prepared one.
    fn prepared(&self, value: &[u8]) -> Option<(InodeNr, u32)>;
    /// Adds or drops a reference to a value in an inode of its own.
    fn refer(&mut self, value: InodeNr, how: Reference) -> Result<(), Self::Error>;
    /// Charges the blocks of values to the inode, whose attributes referred to the values `before` and now refer to
    /// those in `after`.
    fn charge(&mut self, before: &[ExternalValue], after: &[ExternalValue]) -> Result<(), Self::Error>;
}

/// The flags of setxattr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Create or replace the attribute.
    Any,
    /// Fail if the attribute exists (XATTR_CREATE).
    Create,
    /// Fail if the attribute does not exist (XATTR_REPLACE).
    Replace,
}

/// The reason why an attribute could not be read or changed. `fuse` returns the error number named here.
#[derive(Debug, thiserror::Error)]
pub enum XattrError<E> {
    /// ENODATA.
    #[error("{ino}: no such attribute")]
    NotFound {
        /// The inode without the attribute.
        ino: InodeNr,
    },
    /// EEXIST.
    #[error("{ino}: the attribute exists")]
    Exists {
        /// The inode with the attribute.
        ino: InodeNr,
    },
    /// EOPNOTSUPP: the prefix is unknown or not accessible to callers, or the name is that of an ACL on a symlink.
    #[error("{ino}: no attributes of this name")]
    NameNotSupported {
        /// The target inode.
        ino: InodeNr,
    },
    /// ERANGE.
    #[error("{ino}: attribute name of {len} bytes is too long")]
    NameTooLong {
        /// The target inode.
        ino: InodeNr,
        /// The name's length, in bytes.
        len: usize,
    },
    /// E2BIG.
    #[error("{ino}: attribute value of {len} bytes is too long")]
    ValueTooLong {
        /// The target inode.
        ino: InodeNr,
        /// The value's length, in bytes.
        len: usize,
    },
    /// ENOSPC: neither the inode nor one block has room.
    #[error("{ino}: {source}")]
    NoSpace {
        /// The target inode.
        ino: InodeNr,
        /// The number of bytes needed and the number available.
        source: NoSpace,
    },
    /// EINVAL: the ACL breaks a rule of its format.
    #[error("{ino}: {source}")]
    InvalidAcl {
        /// The target inode.
        ino: InodeNr,
        /// The broken rule.
        source: AclError,
    },
    /// EACCES: a default ACL on an inode that is not a directory.
    #[error("{ino}: only directories have a default ACL")]
    NoDirectory {
        /// The target inode.
        ino: InodeNr,
    },
    /// EUCLEAN or EOPNOTSUPP.
    #[error("{0}")]
    OnDisk(#[from] extant_ondisk::Error),
    /// An error of the underlying storage.
    #[error("{0}")]
    Store(E),
}
