//! The bytes of an inode, field by field, and its flag bits.
//!
//! Main types: [`RawInode`] (the first 128 bytes), [`RawInodeExtra`] (the fields after them, of which an inode has
//! `i_extra_isize` bytes), [`InodeFlags`].
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
    /// Type (`S_IFMT`) and permissions.
    pub i_mode: U16,
    /// Low half of the owner.
    pub i_uid: U16,
    /// Low half of the size in bytes.
    pub i_size_lo: U32,
    /// Last access, seconds since 1970. In the inode of an xattr's value, the value's checksum.
    pub i_atime: U32,
    /// Last inode change, seconds since 1970. In the inode of an xattr's value, half of its reference count.
    pub i_ctime: U32,
    /// Last data change, seconds since 1970.
    pub i_mtime: U32,
    /// Time of deletion, seconds since 1970; the next orphan while the inode is on that list.
    pub i_dtime: U32,
    /// Low half of the owning group.
    pub i_gid: U16,
    /// Number of names of the inode.
    pub i_links_count: U16,
    /// Low half of the number of blocks, in units of 512 bytes or file system blocks ([`InodeFlags::HUGE_FILE`]).
    pub i_blocks_lo: U32,
    /// See [`InodeFlags`].
    pub i_flags: U32,
    /// Low half of the change counter (osd1).
    pub l_i_version: U32,
    /// Extent root, 15 block numbers, a fast symlink's target, inline data or a device number.
    pub i_block: [u8; 60],
    /// Distinguishes successive files with this inode number.
    pub i_generation: U32,
    /// Low half of the block with xattrs; 0 if there is none.
    pub i_file_acl_lo: U32,
    /// High half of the size; in ext2 and ext3 only for regular files.
    pub i_size_high: U32,
    /// Address of a fragment; never used.
    pub i_obso_faddr: U32,
    /// High 16 bits of the number of blocks (osd2), with `huge_file`.
    pub l_i_blocks_high: U16,
    /// High 16 bits of the xattr block (osd2), with `64bit`.
    pub l_i_file_acl_high: U16,
    /// High half of the owner (osd2).
    pub l_i_uid_high: U16,
    /// High half of the owning group (osd2).
    pub l_i_gid_high: U16,
    /// Low half of the inode's CRC32C (osd2), with `metadata_csum`.
    pub l_i_checksum_lo: U16,
    /// Preserved (osd2).
    pub l_i_reserved: U16,
}

/// Linux: `struct ext4_inode` from byte 128 on.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawInodeExtra {
    /// Number of bytes of these fields that the inode has, including this one; xattrs begin after them.
    pub i_extra_isize: U16,
    /// High half of the inode's CRC32C.
    pub i_checksum_hi: U16,
    /// For `i_ctime`: nanoseconds in the high 30 bits, bits 32 and 33 of the seconds in the low two.
    pub i_ctime_extra: U32,
    /// For `i_mtime`, as `i_ctime_extra`.
    pub i_mtime_extra: U32,
    /// For `i_atime`, as `i_ctime_extra`.
    pub i_atime_extra: U32,
    /// Creation, seconds since 1970.
    pub i_crtime: U32,
    /// For `i_crtime`, as `i_ctime_extra`.
    pub i_crtime_extra: U32,
    /// High half of the change counter.
    pub i_version_hi: U32,
    /// The project id.
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
        /// Secure deletion requested (`chattr +s`); no effect in Linux.
        const SECRM = 0x0000_0001;
        /// Undeletion requested (`chattr +u`); no effect in Linux.
        const UNRM = 0x0000_0002;
        /// Compression requested (`chattr +c`); no effect in Linux.
        const COMPR = 0x0000_0004;
        /// Changes are written synchronously (`chattr +S`).
        const SYNC = 0x0000_0008;
        /// Nothing may change (`chattr +i`).
        const IMMUTABLE = 0x0000_0010;
        /// Data may only be added at the end (`chattr +a`).
        const APPEND = 0x0000_0020;
        /// dump(8) skips the file (`chattr +d`).
        const NODUMP = 0x0000_0040;
        /// Reading does not update the access time (`chattr +A`).
        const NOATIME = 0x0000_0080;
        /// Names or data are encrypted (fscrypt).
        const ENCRYPT = 0x0000_0800;
        /// A directory with an htree index.
        const INDEX = 0x0000_1000;
        /// A directory of AFS; no effect in Linux.
        const IMAGIC = 0x0000_2000;
        /// Data goes through the journal.
        const JOURNAL_DATA = 0x0000_4000;
        /// Tails are not merged (`chattr +t`); no effect in ext4.
        const NOTAIL = 0x0000_8000;
        /// Changes of the directory are written synchronously (`chattr +D`).
        const DIRSYNC = 0x0001_0000;
        /// Subdirectories are unrelated and are spread over groups (`chattr +T`).
        const TOPDIR = 0x0002_0000;
        /// `i_blocks` counts file system blocks, not units of 512 bytes.
        const HUGE_FILE = 0x0004_0000;
        /// `i_block` contains an extent tree.
        const EXTENTS = 0x0008_0000;
        /// The file has a Merkle tree after its end (fs-verity).
        const VERITY = 0x0010_0000;
        /// The inode contains the value of an xattr.
        const EA_INODE = 0x0020_0000;
        /// Mapped without the page cache if the device is memory (`chattr +x`).
        const DAX = 0x0200_0000;
        /// Data begins in `i_block` and continues in an xattr.
        const INLINE_DATA = 0x1000_0000;
        /// New inodes in the directory inherit its project (`chattr +P`).
        const PROJINHERIT = 0x2000_0000;
        /// The directory is case-insensitive (`chattr +F`).
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

impl InodeFlags {
    /// The flags that `lsattr` shows (Linux: `EXT4_FL_USER_VISIBLE`).
    pub const USER_VISIBLE: InodeFlags = InodeFlags::from_bits_retain(0x725b_dfff);
    /// The flags that `chattr` may change (Linux: `EXT4_FL_USER_MODIFIABLE`).
    pub const USER_MODIFIABLE: InodeFlags = InodeFlags::from_bits_retain(0x624b_c0ff);
    /// The flags that an inode of this kind can have (Linux: `ext4_mask_flags`).
    pub fn allowed_for(kind: Option<FileType>) -> InodeFlags {
        let only_directories =
            InodeFlags::DIRSYNC | InodeFlags::TOPDIR | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT;
        match kind {
            Some(FileType::Directory) => InodeFlags::all(),
            Some(FileType::Regular) => InodeFlags::all() - only_directories,
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        }
    }

    /// The flags that a new inode inherits from its directory (Linux: `EXT4_FL_INHERITED`).
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
