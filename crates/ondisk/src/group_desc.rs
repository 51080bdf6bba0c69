//! Block group descriptors, their checksums and those of the bitmaps they point to.
//!
//! Main types: [`GroupDesc`] (decoded; keeps the raw bytes), [`RawGroupDesc`] (the bytes), [`GroupFlags`].
//! It does not look into bitmaps; [`crate::bitmap`] does.
//!
//! # Locking
//! None. A mount changes a descriptor under its group's lock.

use crate::csum::{crc16, crc32c};
use crate::superblock::{DescChecksum, Geometry};
use crate::{BlockNr, Error, GroupNr, Result, Structure};
use std::mem::{offset_of, size_of};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

bitflags::bitflags! {
    /// `bg_flags` (Linux: `EXT4_BG_*`). They mean something only where descriptors have checksums; elsewhere
    /// [`GroupDesc`] shows none.
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
    /// Low half of the count of inodes at the table's end that were never used.
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
    /// High half of the count of inodes that were never used.
    pub bg_itable_unused_hi: U16,
    /// High half of the exclude bitmap; not used by Linux.
    pub bg_exclude_bitmap_hi: U32,
    /// High half of the block bitmap's CRC32C.
    pub bg_block_bitmap_csum_hi: U16,
    /// High half of the inode bitmap's CRC32C.
    pub bg_inode_bitmap_csum_hi: U16,
    /// Kept as it is.
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
/// Descriptors at least this long have the high halves.
const DESC_SIZE_64BIT: usize = 64;

/// A descriptor with its halves joined. The fields may be changed; [`GroupDesc::encode_into`] puts them back.
#[derive(Clone, Debug)]
pub struct GroupDesc {
    /// The block with one bit per cluster of the group.
    pub block_bitmap: BlockNr,
    /// The block with one bit per inode of the group.
    pub inode_bitmap: BlockNr,
    /// First block of the inode table.
    pub inode_table: BlockNr,
    /// Free clusters: blocks, unless `bigalloc`.
    pub free_clusters: u32,
    /// Inodes that their bitmap has free.
    pub free_inodes: u32,
    /// Directories among the group's inodes; the choice of a group for a new one looks at it.
    pub used_dirs: u32,
    /// Empty where descriptors have no checksums.
    pub flags: GroupFlags,
    /// Inodes at the end of the table that were never used; 0 where descriptors have no checksums.
    pub itable_unused: u32,
    /// As stored: 16 significant bits in descriptors of 32 bytes.
    pub block_bitmap_csum: u32,
    /// As stored: 16 significant bits in descriptors of 32 bytes.
    pub inode_bitmap_csum: u32,
}

impl GroupDesc {
    /// Decodes a descriptor and checks its checksum, locations and counts. `bytes` starts with it and is at least
    /// `desc_size` long.
    pub fn decode(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> Result<GroupDesc> {
        let desc = GroupDesc::parse(bytes, group, geometry)?;
        verify_checksum(bytes, group, geometry)?;
        desc.check_locations(group, geometry)?;
        desc.check_counts(group, geometry)?;
        Ok(desc)
    }

    /// Decodes without checking anything but the length: for a checker, which calls the checks one by one.
    pub fn parse(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> Result<GroupDesc> {
        let Some(bytes) = bytes.get(..geometry.desc_size) else {
            return Err(corrupt(group, format!("{} bytes, {} needed", bytes.len(), geometry.desc_size)));
        };
        let mut raw = RawGroupDesc::new_zeroed();
        let length = bytes.len().min(size_of::<RawGroupDesc>());
        raw.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
        // In short descriptors the high halves stay zero.
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

    /// Fails unless bitmaps and inode table lie in the file system (in the group itself without `flex_bg`), apart from
    /// each other and from the superblock and descriptor copies.
    pub fn check_locations(&self, group: GroupNr, geometry: &Geometry) -> Result<()> {
        let (first, end) = if geometry.flex_bg {
            (geometry.first_data_block, geometry.blocks_count)
        } else {
            let first = geometry.first_block_of_group(group).0;
            (first, first + u64::from(geometry.blocks_in_group(group)))
        };
        let table_blocks = u64::from(geometry.inode_table_blocks);
        let pieces = [
            ("block bitmap", self.block_bitmap.0, 1),
            ("inode bitmap", self.inode_bitmap.0, 1),
            ("inode table", self.inode_table.0, table_blocks),
        ];
        for (index, &(what, start, count)) in pieces.iter().enumerate() {
            // The checked sum keeps a hostile 64-bit location from wrapping.
            if start < first || start.checked_add(count).is_none_or(|piece_end| piece_end > end) {
                return Err(corrupt(group, format!("{what} at block {start} outside {first}..{end}")));
            }
            for &(other, other_start, other_count) in &pieces[..index] {
                if start < other_start + other_count && other_start < start + count {
                    return Err(corrupt(group, format!("{what} and {other} share block {}", start.max(other_start))));
                }
            }
            for edge in [start, start + count - 1] {
                let Some((home, _)) = geometry.group_of_block(BlockNr(edge)) else { continue };
                let base = geometry.base_metadata(home);
                let fixed = [base.superblock.map(|block| (block, 1)), base.descriptors];
                if let Some((block, _)) = fixed
                    .into_iter()
                    .flatten()
                    .find(|(block, blocks)| start < block.0 + u64::from(*blocks) && block.0 < start + count)
                {
                    let detail = format!("{what} at block {start} on the superblock or descriptors at {}", block.0);
                    return Err(corrupt(group, detail));
                }
            }
        }
        Ok(())
    }

    /// Fails when a count exceeds what the group has.
    pub fn check_counts(&self, group: GroupNr, geometry: &Geometry) -> Result<()> {
        let inodes = geometry.inodes_per_group;
        for (what, count, limit) in [
            ("free blocks", self.free_clusters, geometry.clusters_in_group(group)),
            ("free inodes", self.free_inodes, inodes),
            ("directories", self.used_dirs, inodes),
            ("unused inodes", self.itable_unused, inodes),
        ] {
            if count > limit {
                return Err(corrupt(group, format!("{count} {what}, at most {limit} possible")));
            }
        }
        Ok(())
    }

    /// Writes the descriptor over `desc_size` bytes at the start of `out`, with its checksum. What it does not know
    /// stays as it is in `out`: snapshots' fields, reserved ones, bytes after the 64th.
    ///
    /// # Panics
    /// When `out` is shorter than `desc_size`.
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
    pub fn verify_block_bitmap(&self, bitmap: &[u8], group: GroupNr, geometry: &Geometry) -> Result<()> {
        if !geometry.metadata_csum || self.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return Ok(());
        }
        let computed = bitmap_csum(bitmap, geometry.clusters_per_group, geometry);
        compare(Structure::BlockBitmap, group, self.block_bitmap_csum, computed)
    }

    /// Checks the inode bitmap against its checksum; a group whose bitmap was never written has none.
    pub fn verify_inode_bitmap(&self, bitmap: &[u8], group: GroupNr, geometry: &Geometry) -> Result<()> {
        if !geometry.metadata_csum || self.flags.contains(GroupFlags::INODE_UNINIT) {
            return Ok(());
        }
        let computed = bitmap_csum(bitmap, geometry.inodes_per_group, geometry);
        compare(Structure::InodeBitmap, group, self.inode_bitmap_csum, computed)
    }
}

/// Checks `bg_checksum` over the whole descriptor.
pub fn verify_checksum(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> Result<()> {
    let Some(bytes) = bytes.get(..geometry.desc_size) else {
        return Err(corrupt(group, format!("{} bytes, {} needed", bytes.len(), geometry.desc_size)));
    };
    if geometry.desc_checksum == DescChecksum::None {
        return Ok(());
    }
    let stored = u16::from_le_bytes([bytes[CHECKSUM_AT], bytes[CHECKSUM_AT + 1]]);
    compare(Structure::GroupDescriptor, group, stored.into(), compute_checksum(bytes, group, geometry).into())
}

/// What `bg_checksum` should be; `bytes` is exactly one descriptor.
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

/// The checksum of a bitmap of `bits` bits, cut to what the descriptor can hold.
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

fn compare(structure: Structure, group: GroupNr, stored: u32, computed: u32) -> Result<()> {
    if stored != computed {
        return Err(Error::corrupt(structure, group.0, format!("checksum {stored:#x}, computed {computed:#x}")));
    }
    Ok(())
}
