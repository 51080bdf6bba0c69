//! The bytes of a directory entry and of the checksum tail.
//!
//! # Locking
//! None.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The fixed part of an entry on disk (Linux: `struct ext4_dir_entry_2`, fs/ext4/ext4.h).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDirent {
    /// The inode that the name refers to; 0 marks an unused entry.
    pub inode: U32,
    /// The distance to the next entry in bytes, a multiple of 4; see [`super::rec_len_from_disk`].
    pub rec_len: U16,
    /// The length of the following name, in bytes.
    pub name_len: u8,
    /// `EXT4_FT_*`; without the `filetype` feature, the high byte of the name's length.
    pub file_type: u8,
}

/// The fake entry that ends a leaf on file systems with metadata_csum (Linux: `struct ext4_dir_entry_tail`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawDirentTail {
    /// In place of an entry's inode: 0, so that old readers skip the tail.
    pub reserved_zero1: U32,
    /// The size of the tail in bytes: 12.
    pub rec_len: U16,
    /// In place of an entry's name length: 0.
    pub reserved_zero2: u8,
    /// In place of an entry's file type: 0xDE (Linux: `EXT4_FT_DIR_CSUM`).
    pub reserved_ft: u8,
    /// The CRC32C of the block up to the tail, with the directory's inode seed.
    pub checksum: U32,
}

const _: () = assert!(size_of::<RawDirent>() == super::HEADER_LEN);
const _: () = assert!(size_of::<RawDirentTail>() == super::TAIL_LEN);
const _: () = assert!(std::mem::offset_of!(RawDirentTail, checksum) == 8);
