//! The bytes of an inode, field for field, and its flag bits.
//!
//! Main types: [`RawInode`] (the first 128 bytes), [`RawInodeExtra`] (what follows, as far as `i_extra_isize` reaches),
//! [`InodeFlags`].
//!
//! # Locking
//! None.

use super::FileType;
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Linux: the first 128 bytes of `struct ext4_inode`, fs/ext4/ext4.h, with the Linux variant of the unions.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawInode {
    pub i_mode: U16,
    pub i_uid: U16,
    pub i_size_lo: U32,
    pub i_atime: U32,
    pub i_ctime: U32,
    pub i_mtime: U32,
    pub i_dtime: U32,
    pub i_gid: U16,
    pub i_links_count: U16,
    pub i_blocks_lo: U32,
    pub i_flags: U32,
    pub l_i_version: U32,
    pub i_block: [u8; 60],
    pub i_generation: U32,
    pub i_file_acl_lo: U32,
    pub i_size_high: U32,
    pub i_obso_faddr: U32,
    pub l_i_blocks_high: U16,
    pub l_i_file_acl_high: U16,
    pub l_i_uid_high: U16,
    pub l_i_gid_high: U16,
    pub l_i_checksum_lo: U16,
    pub l_i_reserved: U16,
}

/// Linux: `struct ext4_inode` from byte 128 on.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawInodeExtra {
    pub i_extra_isize: U16,
    pub i_checksum_hi: U16,
    pub i_ctime_extra: U32,
    pub i_mtime_extra: U32,
    pub i_atime_extra: U32,
    pub i_crtime: U32,
    pub i_crtime_extra: U32,
    pub i_version_hi: U32,
    pub i_projid: U32,
}

const _: () = {
    assert!(size_of::<RawInode>() == 128);
    assert!(offset_of!(RawInode, i_flags) == 0x20);
    assert!(offset_of!(RawInode, i_block) == 0x28);
    assert!(offset_of!(RawInode, i_generation) == 0x64);
    assert!(offset_of!(RawInode, l_i_file_acl_high) == 0x76);
    assert!(offset_of!(RawInode, l_i_checksum_lo) == 0x7c);
    assert!(size_of::<RawInodeExtra>() == 32);
    assert!(offset_of!(RawInodeExtra, i_checksum_hi) == 0x82 - 128);
    assert!(offset_of!(RawInodeExtra, i_crtime) == 0x90 - 128);
    assert!(offset_of!(RawInodeExtra, i_projid) == 0x9c - 128);
};

bitflags::bitflags! {
    /// `i_flags` (Linux: `EXT4_*_FL`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        const SECRM = 0x0000_0001;
        const UNRM = 0x0000_0002;
        const COMPR = 0x0000_0004;
        const SYNC = 0x0000_0008;
        const IMMUTABLE = 0x0000_0010;
        const APPEND = 0x0000_0020;
        const NODUMP = 0x0000_0040;
        const NOATIME = 0x0000_0080;
        const ENCRYPT = 0x0000_0800;
        /// A directory with an htree index.
        const INDEX = 0x0000_1000;
        const IMAGIC = 0x0000_2000;
        /// Data goes through the journal.
        const JOURNAL_DATA = 0x0000_4000;
        const NOTAIL = 0x0000_8000;
        const DIRSYNC = 0x0001_0000;
        const TOPDIR = 0x0002_0000;
        /// `i_blocks` counts file system blocks, not 512 bytes.
        const HUGE_FILE = 0x0004_0000;
        /// `i_block` holds an extent tree.
        const EXTENTS = 0x0008_0000;
        const VERITY = 0x0010_0000;
        /// The inode is the value of an xattr.
        const EA_INODE = 0x0020_0000;
        const DAX = 0x0200_0000;
        const INLINE_DATA = 0x1000_0000;
        const PROJINHERIT = 0x2000_0000;
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// What `lsattr` shows (Linux: `EXT4_FL_USER_VISIBLE`).
    pub const USER_VISIBLE: InodeFlags = InodeFlags::from_bits_retain(0x725b_dfff);
    /// What `chattr` may change (Linux: `EXT4_FL_USER_MODIFIABLE`).
    pub const USER_MODIFIABLE: InodeFlags = InodeFlags::from_bits_retain(0x624b_c0ff);
    /// What an inode of this kind can have (Linux: `ext4_mask_flags`).
    pub fn allowed_for(kind: Option<FileType>) -> InodeFlags {
        let only_directories =
            InodeFlags::DIRSYNC | InodeFlags::TOPDIR | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT;
        match kind {
            Some(FileType::Directory) => InodeFlags::all(),
            Some(FileType::Regular) => InodeFlags::all() - only_directories,
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        }
    }

    /// What a new inode takes from its directory (Linux: `EXT4_FL_INHERITED`).
    pub const INHERITED: InodeFlags = InodeFlags::SECRM
        .union(InodeFlags::UNRM)
        .union(InodeFlags::COMPR)
        .union(InodeFlags::SYNC)
        .union(InodeFlags::NODUMP)
        .union(InodeFlags::NOATIME)
        .union(InodeFlags::JOURNAL_DATA)
        .union(InodeFlags::NOTAIL)
        .union(InodeFlags::DIRSYNC)
        .union(InodeFlags::PROJINHERIT)
        .union(InodeFlags::CASEFOLD)
        .union(InodeFlags::DAX);
}
