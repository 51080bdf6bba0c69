//! Block group descriptors, with their checksums and those of the bitmaps that they point to.
//!
//! Main types: [`GroupDesc`] (decoded, with the raw bytes), [`RawGroupDesc`] (the bytes), [`GroupFlags`],
//! [`DescDamage`] and [`BitmapDamage`] (one fault each). Bitmaps themselves are handled by [`crate::bitmap`].
//!
//! # Locking
//! None. A mount changes a descriptor under its group's lock.

mod damage;
#[cfg(test)]
mod tests;

pub use damage::{BitmapDamage, DescCount, DescDamage, Piece};

use crate::csum::{crc16, crc32c};
use crate::damage::refuse;
use crate::superblock::{DescChecksum, Geometry};
use crate::{BlockNr, Error, GroupNr, Result, Structure};
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags::bitflags! {
    /// `bg_flags` (Linux: `EXT4_BG_*`). They have a meaning only if descriptors have checksums; otherwise [`GroupDesc`]
    /// contains none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct GroupFlags: u16 {
        /// The inode bitmap on disk is garbage: no inode is in use.
        const INODE_UNINIT = 0x0001;
        /// The block bitmap on disk is garbage: only the group's own metadata is in use.
        const BLOCK_UNINIT = 0x0002;
        /// The unused part of the inode table was zeroed.
        const INODE_ZEROED = 0x0004;
        const _ = !0;
    }
}

/// Linux: `struct ext4_group_desc`, fs/ext4/ext4.h. Descriptors of 32 bytes end before `bg_block_bitmap_hi`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawGroupDesc {
    /// Low half of the block with the block bitmap.
    pub bg_block_bitmap_lo: U32,
    /// Low half of the block with the inode bitmap.
    pub bg_inode_bitmap_lo: U32,
    /// Low half of the first block of the inode table.
    pub bg_inode_table_lo: U32,
    /// Low half of the count of free clusters (blocks, unless `bigalloc`).
    pub bg_free_blocks_count_lo: U16,
    /// Low half of the count of free inodes.
    pub bg_free_inodes_count_lo: U16,
    /// Low half of the count of directories.
    pub bg_used_dirs_count_lo: U16,
    /// `EXT4_BG_*`, see [`GroupFlags`].
    pub bg_flags: U16,
    /// Low half of the snapshots' exclude bitmap; not used by Linux.
    pub bg_exclude_bitmap_lo: U32,
    /// Low half of the block bitmap's CRC32C.
    pub bg_block_bitmap_csum_lo: U16,
    /// Low half of the inode bitmap's CRC32C.
    pub bg_inode_bitmap_csum_lo: U16,
    /// Low half of the number of never-used inodes at the end of the table.
    pub bg_itable_unused_lo: U16,
    /// CRC16 or the low 16 bits of a CRC32C of the descriptor, see [`crate::superblock::DescChecksum`].
    pub bg_checksum: U16,
    /// High half of the block with the block bitmap.
    pub bg_block_bitmap_hi: U32,
    /// High half of the block with the inode bitmap.
    pub bg_inode_bitmap_hi: U32,
    /// High half of the first block of the inode table.
    pub bg_inode_table_hi: U32,
    /// High half of the count of free clusters.
    pub bg_free_blocks_count_hi: U16,
    /// High half of the count of free inodes.
    pub bg_free_inodes_count_hi: U16,
    /// High half of the count of directories.
    pub bg_used_dirs_count_hi: U16,
    /// High half of the number of never-used inodes.
    pub bg_itable_unused_hi: U16,
    /// High half of the exclude bitmap; not used by Linux.
    pub bg_exclude_bitmap_hi: U32,
    /// High half of the block bitmap's CRC32C.
    pub bg_block_bitmap_csum_hi: U16,
    /// High half of the inode bitmap's CRC32C.
    pub bg_inode_bitmap_csum_hi: U16,
    /// Preserved.
    pub bg_reserved: U32,
}

const _: () = {
    assert!(size_of::<RawGroupDesc>() == 64);
    assert!(offset_of!(RawGroupDesc, bg_flags) == 0x12);
    assert!(offset_of!(RawGroupDesc, bg_checksum) == CHECKSUM_AT);
    assert!(offset_of!(RawGroupDesc, bg_block_bitmap_hi) == 0x20);
    assert!(offset_of!(RawGroupDesc, bg_inode_bitmap_csum_hi) == 0x3a);
};

const CHECKSUM_AT: usize = 0x1e;
const CHECKSUM_END: usize = 0x20;
/// The minimum size of descriptors with high halves, in bytes.
const DESC_SIZE_64BIT: usize = 64;

/// A descriptor with its halves joined. The fields may be changed; [`GroupDesc::encode_into`] splits them again.
#[derive(Clone, Debug)]
pub struct GroupDesc {
    /// The block with one bit for each cluster of the group.
    pub block_bitmap: BlockNr,
    /// The block with one bit for each inode of the group.
    pub inode_bitmap: BlockNr,
    /// First block of the inode table.
    pub inode_table: BlockNr,
    /// The number of free clusters, which are blocks unless `bigalloc` is set.
    pub free_clusters: u32,
    /// The number of inodes that are free in the bitmap.
    pub free_inodes: u32,
    /// The number of directories among the group's inodes, which is used to choose groups for new directories.
    pub used_dirs: u32,
    /// The flags; empty if descriptors have no checksums.
    pub flags: GroupFlags,
    /// The number of never-used inodes at the end of the table; 0 if descriptors have no checksums.
    pub itable_unused: u32,
    /// The stored checksum; 16 bits are significant in descriptors of 32 bytes.
    pub block_bitmap_csum: u32,
    /// The stored checksum; 16 bits are significant in descriptors of 32 bytes.
    pub inode_bitmap_csum: u32,
}

impl GroupDesc {
    /// Decodes a descriptor and checks its checksum, locations and counts. `bytes` begins with the descriptor and has
    /// at least `desc_size` bytes.
    ///
    /// # Errors
    /// `Corrupt` if `bytes` is too short, or the checksum, a location or a count is wrong.
    pub fn decode(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> Result<GroupDesc> {
        let desc = GroupDesc::parse(bytes, group, geometry)?;
        refuse(Structure::GroupDescriptor, group.0, |mut sink| desc.damage(bytes, group, geometry, &mut sink))?;
        Ok(desc)
    }

    /// Decodes a descriptor and checks only its length; [`GroupDesc::damage`] checks the rest.
    ///
    /// # Errors
    /// `Corrupt` if `bytes` is shorter than `desc_size`.
    pub fn parse(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> Result<GroupDesc> {
        let Some(bytes) = bytes.get(..geometry.desc_size) else {
            return Err(corrupt(group, format!("{} bytes, {} needed", bytes.len(), geometry.desc_size)));
        };
        let mut raw = RawGroupDesc::new_zeroed();
        let length = bytes.len().min(size_of::<RawGroupDesc>());
        raw.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
        // In short descriptors the high halves remain zero.
        let has_flags = geometry.desc_checksum != DescChecksum::None;
        let wide = |low: U32, high: U32| BlockNr(u64::from(low.get()) | u64::from(high.get()) << 32);
        let word = |low: U16, high: U16| u32::from(low.get()) | u32::from(high.get()) << 16;
        Ok(GroupDesc {
            block_bitmap: wide(raw.bg_block_bitmap_lo, raw.bg_block_bitmap_hi),
            inode_bitmap: wide(raw.bg_inode_bitmap_lo, raw.bg_inode_bitmap_hi),
            inode_table: wide(raw.bg_inode_table_lo, raw.bg_inode_table_hi),
            free_clusters: word(raw.bg_free_blocks_count_lo, raw.bg_free_blocks_count_hi),
            free_inodes: word(raw.bg_free_inodes_count_lo, raw.bg_free_inodes_count_hi),
            used_dirs: word(raw.bg_used_dirs_count_lo, raw.bg_used_dirs_count_hi),
            flags: if has_flags { GroupFlags::from_bits_retain(raw.bg_flags.get()) } else { GroupFlags::empty() },
            itable_unused: if has_flags { word(raw.bg_itable_unused_lo, raw.bg_itable_unused_hi) } else { 0 },
            block_bitmap_csum: word(raw.bg_block_bitmap_csum_lo, raw.bg_block_bitmap_csum_hi),
            inode_bitmap_csum: word(raw.bg_inode_bitmap_csum_lo, raw.bg_inode_bitmap_csum_hi),
        })
    }

    /// Checks that the bitmaps and the inode table lie in the file system (without `flex_bg`, in the group itself), and
    /// do not overlap each other or the copies of superblock and descriptors.
    ///
    /// # Errors
    /// `Corrupt` with the first location that is wrong.
    pub fn check_locations(&self, group: GroupNr, geometry: &Geometry) -> Result<()> {
        refuse(Structure::GroupDescriptor, group.0, |mut sink| self.location_damage(group, geometry, &mut sink))
    }

    /// Checks that no count exceeds the size of the group.
    ///
    /// # Errors
    /// `Corrupt` with the first such count.
    pub fn check_counts(&self, group: GroupNr, geometry: &Geometry) -> Result<()> {
        refuse(Structure::GroupDescriptor, group.0, |mut sink| self.count_damage(group, geometry, &mut sink))
    }

    /// Writes the descriptor, with its checksum, over `desc_size` bytes at the start of `out`. Unknown fields in `out`
    /// do not change: snapshots' fields, reserved ones, bytes after the 64th.
    ///
    /// # Panics
    /// If `out` is shorter than `desc_size`.
    pub fn encode_into(&self, out: &mut [u8], group: GroupNr, geometry: &Geometry) {
        let length = geometry.desc_size.min(size_of::<RawGroupDesc>());
        let mut raw = RawGroupDesc::new_zeroed();
        raw.as_mut_bytes()[..length].copy_from_slice(&out[..length]);
        (raw.bg_block_bitmap_lo, raw.bg_block_bitmap_hi) = split_wide(self.block_bitmap);
        (raw.bg_inode_bitmap_lo, raw.bg_inode_bitmap_hi) = split_wide(self.inode_bitmap);
        (raw.bg_inode_table_lo, raw.bg_inode_table_hi) = split_wide(self.inode_table);
        (raw.bg_free_blocks_count_lo, raw.bg_free_blocks_count_hi) = split(self.free_clusters);
        (raw.bg_free_inodes_count_lo, raw.bg_free_inodes_count_hi) = split(self.free_inodes);
        (raw.bg_used_dirs_count_lo, raw.bg_used_dirs_count_hi) = split(self.used_dirs);
        (raw.bg_block_bitmap_csum_lo, raw.bg_block_bitmap_csum_hi) = split(self.block_bitmap_csum);
        (raw.bg_inode_bitmap_csum_lo, raw.bg_inode_bitmap_csum_hi) = split(self.inode_bitmap_csum);
        if geometry.desc_checksum != DescChecksum::None {
            raw.bg_flags = U16::new(self.flags.bits());
            (raw.bg_itable_unused_lo, raw.bg_itable_unused_hi) = split(self.itable_unused);
        }
        let out = &mut out[..geometry.desc_size];
        out[..length].copy_from_slice(&raw.as_bytes()[..length]);
        if geometry.desc_checksum != DescChecksum::None {
            let checksum = compute_checksum(out, group, geometry);
            out[CHECKSUM_AT..CHECKSUM_END].copy_from_slice(&checksum.to_le_bytes());
        }
    }

    /// Records the checksum of the block bitmap. Does nothing without `metadata_csum`.
    pub fn set_block_bitmap_csum(&mut self, bitmap: &[u8], geometry: &Geometry) {
        if geometry.metadata_csum {
            self.block_bitmap_csum = bitmap_csum(bitmap, geometry.clusters_per_group, geometry);
        }
    }

    /// Records the checksum of the inode bitmap. Does nothing without `metadata_csum`.
    pub fn set_inode_bitmap_csum(&mut self, bitmap: &[u8], geometry: &Geometry) {
        if geometry.metadata_csum {
            self.inode_bitmap_csum = bitmap_csum(bitmap, geometry.inodes_per_group, geometry);
        }
    }

    /// Checks the block bitmap against its checksum; a group whose bitmap was never written has none.
    ///
    /// # Errors
    /// `Corrupt` if the checksum differs.
    pub fn verify_block_bitmap(&self, bitmap: &[u8], group: GroupNr, geometry: &Geometry) -> Result<()> {
        refuse(Structure::BlockBitmap, group.0, |mut sink| {
            self.block_bitmap_damage(bitmap, group, geometry, &mut sink);
        })
    }

    /// Checks the inode bitmap against its checksum; a group whose bitmap was never written has none.
    ///
    /// # Errors
    /// `Corrupt` if the checksum differs.
    pub fn verify_inode_bitmap(&self, bitmap: &[u8], group: GroupNr, geometry: &Geometry) -> Result<()> {
        refuse(Structure::InodeBitmap, group.0, |mut sink| self.inode_bitmap_damage(bitmap, geometry, &mut sink))
    }
}

/// `bg_checksum` and its expected value; `None` if descriptors have no checksums or there are too few `bytes`.
fn checksums(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> Option<(u16, u16)> {
    let bytes = bytes.get(..geometry.desc_size).filter(|_| geometry.desc_checksum != DescChecksum::None)?;
    let stored = u16::from_le_bytes([bytes[CHECKSUM_AT], bytes[CHECKSUM_AT + 1]]);
    Some((stored, compute_checksum(bytes, group, geometry)))
}

/// The correct `bg_checksum`; `bytes` is exactly one descriptor.
fn compute_checksum(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> u16 {
    let number = group.0.to_le_bytes();
    match geometry.desc_checksum {
        DescChecksum::None => 0,
        DescChecksum::Crc16 => {
            let start = crc16(crc16(!0, &geometry.uuid), &number);
            crc16(crc16(start, &bytes[..CHECKSUM_AT]), &bytes[CHECKSUM_END..])
        }
        DescChecksum::Crc32c => {
            let start = geometry.seed.with_u32(group.0).checksum(&bytes[..CHECKSUM_AT]);
            crc32c(crc32c(start, &[0; 2]), &bytes[CHECKSUM_END..]) as u16
        }
    }
}

/// The checksum of a bitmap of `bits` bits, truncated to the width of the descriptor's field.
fn bitmap_csum(bitmap: &[u8], bits: u32, geometry: &Geometry) -> u32 {
    let covered = bitmap.len().min(bits as usize / 8);
    let checksum = geometry.seed.checksum(&bitmap[..covered]);
    if geometry.desc_size >= DESC_SIZE_64BIT { checksum } else { checksum & 0xffff }
}

fn split_wide(block: BlockNr) -> (U32, U32) {
    (U32::new(block.0 as u32), U32::new((block.0 >> 32) as u32))
}

fn split(number: u32) -> (U16, U16) {
    (U16::new(number as u16), U16::new((number >> 16) as u16))
}

fn corrupt(group: GroupNr, detail: String) -> Error {
    Error::corrupt(Structure::GroupDescriptor, group.0, detail)
}
