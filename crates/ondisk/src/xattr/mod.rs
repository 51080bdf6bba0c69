//! The encoding of extended attributes: the area after an inode's fixed fields, and the xattr block.
//!
//! Main types: [`EntryRef`] (one attribute in the bytes), [`EntryList`] (the decoded, editable list), [`inode_area`]
//! and [`XattrBlock`] (the two places where a list is stored), [`Name`] (the table of prefixes), [`XattrDamage`] (one
//! fault).
//!
//! Both places contain the same entries (Linux: `struct ext4_xattr_entry`, fs/ext4/xattr.h): names grow from the front,
//! values grow from the end, and four zero bytes end the names. They differ in the header, in the base of value
//! offsets, in the order of entries, and in whether hashes are stored:
//!
//! | | inode area | xattr block |
//! |---|---|---|
//! | header | magic (4 bytes) | magic, refcount, blocks, hash, checksum, reserved (32 bytes) |
//! | value offsets from | the first entry | the start of the block |
//! | order | any | (index, name length, name) |
//! | `e_hash` | 0 allowed, and always written | computed; `h_hash` combines them |
//!
//! Reading is strict about bounds and overlaps, because the bytes may be hostile. It is lenient about order, duplicates
//! and unknown name indexes: unknown entries are preserved and rewritten unchanged, as in the kernel. Editing always
//! rebuilds the whole area: decode, edit the list, encode.
//!
//! With `ea_inode`, an entry may refer to an inode that contains the value ([`ExternalValue`]). Such an inode has
//! flags, a reference count and the value's hash in fields that have other meanings elsewhere
//! ([`crate::inode::InodeDesc`]).
//!
//! What it does not do: read or write those inodes, choose between the places, share blocks, or check permissions. The
//! `fs` crate does all that.
//!
//! # Locking
//! None.

mod block;
mod damage;
mod entry;
mod hash;
pub mod inode_area;
mod list;
mod mend;
mod name;
#[cfg(test)]
mod tests;

pub use block::{
    HEADER_LEN, REFCOUNT_MAX, References, XattrBlock, add_reference, block_checksum, drop_reference, scan_block,
    seal_block,
};
pub use damage::{XattrContext, XattrDamage};
pub use entry::{EntryRef, renumber_values};
pub use hash::{block_hash, entry_hash, entry_hash_signed, is_outside_hash, outside_hash, value_hash};
pub use list::{Entry, EntryList, ExternalValue};
pub use mend::{Fate, mend_area, mend_block};
pub use name::{Name, index};

/// The magic number of both headers (Linux: `EXT4_XATTR_MAGIC`).
pub const MAGIC: u32 = 0xEA02_0000;
/// The maximum length of a name after its prefix, in bytes: `e_name_len` is one byte.
pub const NAME_LEN_MAX: usize = 255;
/// The maximum size of a value that the VFS passes, in bytes (Linux: `XATTR_SIZE_MAX`).
pub const VALUE_SIZE_MAX: usize = 65536;

/// A larger value is stored in a separate inode immediately, if that is possible: no block of this size has room for it
/// together with a short name (Linux: `EXT4_XATTR_MIN_LARGE_EA_SIZE`).
pub const fn large_value(block_size: usize) -> usize {
    block_size - 20 - HEADER_LEN - 4
}

/// The number of bytes at the start of an xattr block that are kept free of values for more names, if values may be in
/// separate inodes (Linux: `EXT4_XATTR_BLOCK_RESERVE`).
pub const fn reserved_for_names(block_size: usize) -> usize {
    if block_size / 8 < 1024 { block_size / 8 } else { 1024 }
}

/// The attributes do not fit into their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} bytes of attributes do not fit into {available}")]
pub struct NoSpace {
    /// The number of bytes that names, values and the terminator take.
    pub needed: usize,
    /// The number of bytes after the header.
    pub available: usize,
}

/// Rounds up to a multiple of the four bytes to which names and values are padded (Linux: `EXT4_XATTR_SIZE`).
pub(crate) const fn pad4(n: usize) -> usize {
    (n + 3) & !3
}
