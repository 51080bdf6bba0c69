//! Damage of an inode.
//!
//! Main type: [`InodeDamage`], which [`InodeDesc::damage`] reports. This covers a single inode and the layout. The
//! checker compares an inode with other structures: names, bitmaps, the orphan list, and the blocks that it maps.
//!
//! # Locking
//! None.

use std::fmt;

use zerocopy::FromBytes;

use super::{
    FAST_SYMLINK_LIMIT, FileType, GOOD_OLD_INODE_SIZE, InodeDesc, InodeFlags, RawInode, checksums, read_extra,
};
use crate::damage::Damage;
use crate::extent;
use crate::superblock::Geometry;
use crate::{BlockNr, InodeNr};

/// A timestamp of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeField {
    /// `i_atime`.
    Access,
    /// `i_ctime`.
    Change,
    /// `i_mtime`.
    Modification,
    /// `i_crtime`.
    Creation,
}

impl fmt::Display for TimeField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TimeField::Access => "access",
            TimeField::Change => "change",
            TimeField::Modification => "modification",
            TimeField::Creation => "creation",
        })
    }
}

/// One fault of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InodeDamage {
    /// `i_extra_isize` is not a multiple of four, or exceeds the available room.
    #[error("{found} extra bytes in an inode of {inode_size}")]
    ExtraIsize {
        /// The stored value.
        found: u16,
        /// The size of the inode, in bytes.
        inode_size: u16,
    },
    /// The checksum does not match the bytes.
    #[error("checksum {found:#x}, computed {expected:#x}")]
    Checksum {
        /// The stored value.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// The mode of an inode in use has no valid file type.
    #[error("mode {found:#o} has no file type")]
    Mode {
        /// `i_mode`.
        found: u16,
    },
    /// The root is not a directory.
    #[error("root has mode {found:#o}")]
    RootMode {
        /// `i_mode`.
        found: u16,
    },
    /// The size does not fit in 63 bits.
    #[error("size {found:#x}")]
    Size {
        /// Both halves of the size.
        found: u64,
    },
    /// The target of a symbolic link is longer than a block.
    #[error("symlink of {found} bytes")]
    SymlinkSize {
        /// The size.
        found: u64,
        /// The block size, in bytes.
        most: u32,
    },
    /// The xattr block lies outside the file system.
    #[error("xattr {found} does not exist")]
    FileAcl {
        /// `i_file_acl`.
        found: BlockNr,
    },
    /// A directory has a nonzero `i_size_high` without `large_dir`.
    #[error("size {found:#x}00000000 of a directory in the high half, expected 0")]
    DirSizeHigh {
        /// `i_size_high`.
        found: u32,
    },
    /// The size of a directory is not a multiple of the block size.
    #[error("directory of {found} bytes, not a multiple of {block_size}")]
    DirSize {
        /// The size.
        found: u64,
        /// The block size, in bytes.
        block_size: u32,
    },
    /// A device, pipe or socket has a size.
    #[error("device, pipe or socket of {found} bytes, expected 0")]
    SpecialSize {
        /// The size.
        found: u64,
    },
    /// `l_i_blocks_high` is set without `huge_file`.
    #[error("high half of the block count {found:#x}, expected 0 without huge_file")]
    BlocksHigh {
        /// `l_i_blocks_high`.
        found: u16,
    },
    /// `l_i_file_acl_high` is set without `64bit`.
    #[error("high half of the xattr block {found:#x}, expected 0 without 64bit")]
    FileAclHigh {
        /// `l_i_file_acl_high`.
        found: u16,
    },
    /// The inode has a fragment address.
    #[error("fragment address {found}, expected 0")]
    FragmentAddress {
        /// `i_faddr`.
        found: u32,
    },
    /// The Hurd's fragment number is set.
    #[error("fragment number {found}, expected 0")]
    FragmentNumber {
        /// `h_i_frag`.
        found: u8,
    },
    /// The Hurd's fragment size is set.
    #[error("fragment size {found}, expected 0")]
    FragmentSize {
        /// `h_i_fsize`.
        found: u8,
    },
    /// A deleted inode has no time of deletion.
    #[error("deleted, but the time of deletion is 0")]
    DtimeMissing,
    /// An inode in use has a time of deletion.
    #[error("in use, but deleted at {found}")]
    DtimeSet {
        /// `i_dtime`.
        found: u32,
    },
    /// The time of deletion is an inode number: a link of the orphan list was left behind.
    #[error("time of deletion {found} is an inode number, at most {inodes_count}")]
    DtimeLow {
        /// `i_dtime`.
        found: u32,
        /// The number of inodes of the file system.
        inodes_count: u32,
    },
    /// A timestamp before 1970 has the epoch bits of the last epoch, as old kernels wrote them.
    #[error("{field} time beyond the year 2310, likely before 1970")]
    Timestamp {
        /// The timestamp.
        field: TimeField,
    },
    /// The `EXTENTS` flag is set without the feature.
    #[error("has the extents flag without the feature, and {} an extent header", if *.header { "has" } else { "lacks" })]
    ExtentsFeature {
        /// Whether `i_block` contains a valid extent header.
        header: bool,
    },
    /// `i_block` contains a valid extent header, but the flag is not set.
    #[error("holds an extent tree, but has no extents flag")]
    ExtentsFlagMissing,
    /// A symbolic link that is short enough for `i_block` has the `EXTENTS` flag.
    #[error("a symlink of {size} bytes has the extents flag")]
    ExtentsOnFastSymlink {
        /// The size of the target, in bytes.
        size: u64,
    },
    /// A device, pipe or socket has the `EXTENTS` or the `INLINE_DATA` flag.
    #[error("device, pipe or socket with flags {found:#x} for content")]
    MapOnSpecial {
        /// The flags that must not be set.
        found: u32,
    },
    /// The `INLINE_DATA` flag is set without the feature.
    #[error("has the inline data flag without the feature")]
    InlineDataFeature,
    /// Both `INLINE_DATA` and `EXTENTS` are set.
    #[error("has the inline data and extents flags, and {} an extent header", if *.header { "has" } else { "lacks" })]
    InlineDataAndExtents {
        /// Whether `i_block` contains a valid extent header.
        header: bool,
    },
    /// Blocks are mapped without extents on a file system with clusters.
    #[error("has no extents, which bigalloc requires")]
    BlockMapOnClusters,
    /// The `INDEX` flag is set without `dir_index`.
    #[error("has the index flag without the feature")]
    IndexFeature,
    /// The `INDEX` flag is set on an inode that is not a directory.
    #[error("no directory, but has the index flag")]
    IndexOnFile,
    /// The `IMAGIC` flag is set without `imagic_inodes`.
    #[error("has the imagic flag without the feature")]
    Imagic,
    /// A device, pipe or socket is immutable or append-only.
    #[error("device, pipe or socket with flags {found:#x} that keep it from being removed")]
    ImmutableSpecial {
        /// The flags that must not be set.
        found: u32,
    },
    /// The `CASEFOLD` flag is set without the feature.
    #[error("has the casefold flag without the feature")]
    CasefoldFeature,
    /// The `CASEFOLD` flag is set on an inode that is not a directory.
    #[error("no directory, but has the casefold flag")]
    CasefoldOnFile,
    /// The `EA_INODE` flag is set without the feature.
    #[error("has the flag of xattr values without the feature")]
    EaInodeFeature,
    /// The `EA_INODE` flag is set on an inode that is not a regular file.
    #[error("mode {mode:#o}, but has the flag of xattr values")]
    EaInodeMode {
        /// `i_mode`.
        mode: u16,
    },
}

impl Damage for InodeDamage {
    fn is_fatal(&self) -> bool {
        use InodeDamage::{Checksum, ExtraIsize, FileAcl, Mode, RootMode, Size, SymlinkSize};
        match self {
            ExtraIsize { .. } | Checksum { .. } | Mode { .. } | Size { .. } | SymlinkSize { .. } | FileAcl { .. } => {
                true
            }
            // A root of another type is refused where it is used as a directory.
            RootMode { found } => FileType::from_mode(*found).is_none(),
            _ => false,
        }
    }
}

impl InodeDesc {
    /// Reports all faults that the inode itself shows. `bytes` are those from which it was parsed. An inode of zeros,
    /// which was never used, has no fault. A free inode (without links) may contain anything, except in the fields that
    /// its deletion should have cleared.
    pub fn damage(&self, bytes: &[u8], ino: InodeNr, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        self.extra_size_damage(geometry, sink);
        if let Some((found, expected)) = checksums(bytes, ino, geometry)
            && found != expected
        {
            sink(InodeDamage::Checksum { found, expected });
        }
        self.other_damage(bytes, ino, geometry, sink);
    }

    /// As [`InodeDesc::damage`], for an inode whose checksum has been verified.
    pub fn damage_of_fields(
        &self,
        bytes: &[u8],
        ino: InodeNr,
        geometry: &Geometry,
        sink: &mut impl FnMut(InodeDamage),
    ) {
        self.extra_size_damage(geometry, sink);
        self.other_damage(bytes, ino, geometry, sink);
    }

    fn other_damage(&self, bytes: &[u8], ino: InodeNr, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        self.field_damage(ino, geometry, sink);
        self.time_of_deletion_damage(ino, geometry, sink);
        if self.links == 0 {
            return;
        }
        self.flag_damage(ino, geometry, sink);
        if let Ok((raw, rest)) = RawInode::ref_from_prefix(bytes) {
            self.raw_damage(raw, geometry, sink);
            self.time_damage(raw, rest, sink);
        }
    }

    pub(super) fn extra_size_damage(&self, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        if !self.extra_size_fits(geometry) {
            sink(InodeDamage::ExtraIsize { found: self.extra_isize, inode_size: geometry.inode_size as u16 });
        }
    }

    /// Reports the faults that the decoded fields show.
    pub(super) fn field_damage(&self, ino: InodeNr, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        let kind = self.file_type();
        // Reserved inodes (bad blocks, boot loader) have no mode; a free inode keeps its old mode.
        if kind.is_none() && self.links > 0 && ino.0 >= geometry.first_ino {
            sink(InodeDamage::Mode { found: self.mode });
        }
        if ino == InodeNr::ROOT && kind != Some(FileType::Directory) {
            sink(InodeDamage::RootMode { found: self.mode });
        }
        if self.size > i64::MAX as u64 {
            sink(InodeDamage::Size { found: self.size });
        }
        if self.links == 0 {
            return;
        }
        if kind == Some(FileType::Symlink) && self.size > u64::from(geometry.block_size) {
            sink(InodeDamage::SymlinkSize { found: self.size, most: geometry.block_size });
        }
        if self.file_acl.0 != 0 && !geometry.contains(self.file_acl) {
            sink(InodeDamage::FileAcl { found: self.file_acl });
        }
        if self.is_dir()
            && !self.flags.contains(InodeFlags::INLINE_DATA)
            && !self.size.is_multiple_of(geometry.block_size.into())
        {
            sink(InodeDamage::DirSize { found: self.size, block_size: geometry.block_size });
        }
        if is_special(kind) && self.size != 0 {
            sink(InodeDamage::SpecialSize { found: self.size });
        }
    }

    fn time_of_deletion_damage(&self, ino: InodeNr, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        if self.dtime != 0 && self.dtime < geometry.inodes_count {
            sink(InodeDamage::DtimeLow { found: self.dtime, inodes_count: geometry.inodes_count });
        }
        if self.dtime != 0 && self.links > 0 {
            sink(InodeDamage::DtimeSet { found: self.dtime });
        }
        // Reserved inodes are never deleted, and may have a mode without a name.
        if self.dtime == 0 && self.links == 0 && self.mode != 0 && ino.0 >= geometry.first_ino {
            sink(InodeDamage::DtimeMissing);
        }
    }

    fn flag_damage(&self, ino: InodeNr, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        let kind = self.file_type();
        let has = |flag| self.flags.contains(flag);
        let (extents, inline) = (has(InodeFlags::EXTENTS), has(InodeFlags::INLINE_DATA));
        let header = extent::NodeRef::sound(&self.i_block).is_some();
        if is_special(kind) {
            let content = self.flags & (InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
            if !content.is_empty() {
                sink(InodeDamage::MapOnSpecial { found: content.bits() });
            }
            let fixed = self.flags & (InodeFlags::IMMUTABLE | InodeFlags::APPEND);
            if !fixed.is_empty() {
                sink(InodeDamage::ImmutableSpecial { found: fixed.bits() });
            }
        } else if extents && inline {
            sink(InodeDamage::InlineDataAndExtents { header });
        } else if extents && !geometry.extents {
            sink(InodeDamage::ExtentsFeature { header });
        } else if extents && self.is_symlink() && (1..FAST_SYMLINK_LIMIT).contains(&self.size) {
            sink(InodeDamage::ExtentsOnFastSymlink { size: self.size });
        } else if !extents && !inline && matches!(kind, Some(FileType::Regular | FileType::Directory)) {
            if geometry.extents && header {
                sink(InodeDamage::ExtentsFlagMissing);
            } else if geometry.cluster_bits > 0
                && (ino == InodeNr::ROOT || ino.0 >= geometry.first_ino)
                && self.i_block != [0; 60]
            {
                sink(InodeDamage::BlockMapOnClusters);
            }
        }
        if inline && !geometry.inline_data {
            sink(InodeDamage::InlineDataFeature);
        }
        if has(InodeFlags::INDEX) {
            if !self.is_dir() {
                sink(InodeDamage::IndexOnFile);
            } else if !geometry.dir_index {
                sink(InodeDamage::IndexFeature);
            }
        }
        if has(InodeFlags::IMAGIC) && !geometry.imagic_inodes {
            sink(InodeDamage::Imagic);
        }
        if has(InodeFlags::CASEFOLD) {
            if !self.is_dir() {
                sink(InodeDamage::CasefoldOnFile);
            }
            if !geometry.casefold {
                sink(InodeDamage::CasefoldFeature);
            }
        }
        if has(InodeFlags::EA_INODE) {
            if !geometry.ea_inode {
                sink(InodeDamage::EaInodeFeature);
            }
            if !self.is_regular() {
                sink(InodeDamage::EaInodeMode { mode: self.mode });
            }
        }
    }

    /// Reports faults of fields that decoding ignores because they have no meaning here.
    fn raw_damage(&self, raw: &RawInode, geometry: &Geometry, sink: &mut impl FnMut(InodeDamage)) {
        // A directory with this many blocks may need the high half; the fault is then the missing feature.
        let is_small = u64::from(raw.i_blocks_lo.get()) < 1 << (29 - geometry.block_bits);
        if self.is_dir() && !geometry.large_dir && raw.i_size_high.get() != 0 && is_small {
            sink(InodeDamage::DirSizeHigh { found: raw.i_size_high.get() });
        }
        if !geometry.huge_file && raw.l_i_blocks_high.get() != 0 && !geometry.hurd {
            sink(InodeDamage::BlocksHigh { found: raw.l_i_blocks_high.get() });
        }
        if !geometry.bit64 && raw.l_i_file_acl_high.get() != 0 && !geometry.hurd {
            sink(InodeDamage::FileAclHigh { found: raw.l_i_file_acl_high.get() });
        }
        if raw.i_obso_faddr.get() != 0 {
            sink(InodeDamage::FragmentAddress { found: raw.i_obso_faddr.get() });
        }
        if geometry.hurd {
            // `h_i_frag` and `h_i_fsize` share the two bytes that Linux uses for the block count.
            let [number, size] = raw.l_i_blocks_high.get().to_le_bytes();
            if number != 0 {
                sink(InodeDamage::FragmentNumber { found: number });
            }
            if size != 0 {
                sink(InodeDamage::FragmentSize { found: size });
            }
        }
    }

    fn time_damage(&self, raw: &RawInode, rest: &[u8], sink: &mut impl FnMut(InodeDamage)) {
        if self.extra_isize == 0 || usize::from(self.extra_isize) > rest.len() {
            return;
        }
        let (extra, _) = read_extra(rest);
        let length = usize::from(self.extra_isize);
        for (field, seconds, epoch, end) in [
            (TimeField::Access, raw.i_atime, extra.i_atime_extra, super::ATIME_EXTRA + 4),
            (TimeField::Change, raw.i_ctime, extra.i_ctime_extra, super::CTIME_EXTRA + 4),
            (TimeField::Modification, raw.i_mtime, extra.i_mtime_extra, super::MTIME_EXTRA + 4),
            (TimeField::Creation, extra.i_crtime, extra.i_crtime_extra, super::CRTIME_EXTRA + 4),
        ] {
            if end <= length && seconds.get() >> 31 != 0 && epoch.get() & 3 == 3 {
                sink(InodeDamage::Timestamp { field });
            }
        }
    }

    /// Whether `extra_isize` is possible for the inode.
    pub(super) fn extra_size_fits(&self, geometry: &Geometry) -> bool {
        self.extra_isize.is_multiple_of(4) && usize::from(self.extra_isize) <= geometry.inode_size - GOOD_OLD_INODE_SIZE
    }
}

fn is_special(kind: Option<FileType>) -> bool {
    matches!(kind, Some(FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket))
}
