//! Damage of a group descriptor, and of the bitmaps that it points to.
//!
//! Main types: [`DescDamage`], [`BitmapDamage`]. This covers a single descriptor. The checker detects blocks shared by
//! two groups, and counts that differ from the bitmaps.
//!
//! # Locking
//! None.

use std::fmt;

use zerocopy::{FromZeros, IntoBytes};

use super::{GroupDesc, GroupFlags, RawGroupDesc, bitmap_csum, checksums};
use crate::damage::Damage;
use crate::superblock::{DescChecksum, Geometry};
use crate::{BlockNr, GroupNr, bitmap};

/// A structure that a descriptor points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Piece {
    /// `bg_block_bitmap`.
    BlockBitmap,
    /// `bg_inode_bitmap`.
    InodeBitmap,
    /// `bg_inode_table`.
    InodeTable,
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Piece::BlockBitmap => "block bitmap",
            Piece::InodeBitmap => "inode bitmap",
            Piece::InodeTable => "inode table",
        })
    }
}

/// A count in a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DescCount {
    /// `bg_free_blocks_count`.
    FreeBlocks,
    /// `bg_free_inodes_count`.
    FreeInodes,
    /// `bg_used_dirs_count`.
    Directories,
    /// `bg_itable_unused`.
    UnusedInodes,
}

impl fmt::Display for DescCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DescCount::FreeBlocks => "free blocks",
            DescCount::FreeInodes => "free inodes",
            DescCount::Directories => "directories",
            DescCount::UnusedInodes => "unused inodes",
        })
    }
}

/// One fault of a group descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DescDamage {
    /// The checksum does not match the bytes.
    #[error("checksum {found:#x}, computed {expected:#x}")]
    Checksum {
        /// The stored value.
        found: u16,
        /// The checksum of the bytes.
        expected: u16,
    },
    /// A structure lies outside the file system, or outside its group where that is required.
    #[error("{piece} at block {start} outside {first}..{end}")]
    Outside {
        /// The structure.
        piece: Piece,
        /// Its first block.
        start: u64,
        /// The first block where it is allowed.
        first: u64,
        /// One past the last block where it is allowed.
        end: u64,
    },
    /// Two structures of the group overlap.
    #[error("{piece} and {other} share block {block}")]
    Shared {
        /// One structure.
        piece: Piece,
        /// The other structure.
        other: Piece,
        /// The first shared block.
        block: u64,
    },
    /// A structure overlaps a copy of the superblock or of the descriptors.
    #[error("{piece} at block {start} on the superblock or descriptors at {fixed}")]
    OnFixed {
        /// The structure.
        piece: Piece,
        /// Its first block.
        start: u64,
        /// The first block of the copy.
        fixed: u64,
    },
    /// A count exceeds the size of the group.
    #[error("{found} {what}, at most {most} possible")]
    Count {
        /// The count.
        what: DescCount,
        /// The stored value.
        found: u32,
        /// The maximum for the group.
        most: u32,
    },
    /// More inodes are marked as never used than are free.
    #[error("{unused} inodes never used, but only {free} free")]
    UnusedAboveFree {
        /// `bg_itable_unused`.
        unused: u32,
        /// `bg_free_inodes_count`.
        free: u32,
    },
    /// Flags for uninitialized parts, on a file system whose descriptors have no checksums.
    #[error("flags {flags:#x} and {unused} unused inodes without checksums, expected none")]
    Uninit {
        /// `bg_flags`.
        flags: u16,
        /// `bg_itable_unused`.
        unused: u32,
    },
    /// The block bitmap of the last group, which usually is incomplete, was never initialized.
    #[error("the last group's block bitmap is not initialized")]
    UninitLast,
}

impl Damage for DescDamage {
    fn is_fatal(&self) -> bool {
        use DescDamage::{Uninit, UninitLast, UnusedAboveFree};
        !matches!(self, UnusedAboveFree { .. } | Uninit { .. } | UninitLast)
    }
}

/// One fault of a bitmap of blocks or inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BitmapDamage {
    /// The checksum in the descriptor does not match the bytes.
    #[error("checksum {found:#x}, computed {expected:#x}")]
    Checksum {
        /// The checksum stored in the descriptor.
        found: u32,
        /// The checksum of the bytes.
        expected: u32,
    },
    /// A bit after the last valid one is clear.
    #[error("bit {bit}, behind the last of {bits}, is clear")]
    Padding {
        /// The first such bit.
        bit: u32,
        /// The number of valid bits.
        bits: u32,
    },
}

impl Damage for BitmapDamage {
    fn is_fatal(&self) -> bool {
        matches!(self, BitmapDamage::Checksum { .. })
    }
}

impl GroupDesc {
    /// Reports all damage of the descriptor. `bytes` are those from which it was parsed.
    pub fn damage(&self, bytes: &[u8], group: GroupNr, geometry: &Geometry, sink: &mut impl FnMut(DescDamage)) {
        if let Some((found, expected)) = checksums(bytes, group, geometry)
            && found != expected
        {
            sink(DescDamage::Checksum { found, expected });
        }
        self.location_damage(group, geometry, sink);
        self.count_damage(group, geometry, sink);
        self.flag_damage(bytes, group, geometry, sink);
    }

    pub(super) fn location_damage(&self, group: GroupNr, geometry: &Geometry, sink: &mut impl FnMut(DescDamage)) {
        let (first, end) = if geometry.flex_bg {
            (geometry.first_data_block, geometry.blocks_count)
        } else {
            let first = geometry.first_block_of_group(group).0;
            (first, first + u64::from(geometry.blocks_in_group(group)))
        };
        let pieces = self.pieces(geometry);
        for (index, &(piece, start, count)) in pieces.iter().enumerate() {
            // A saturating sum, so that a hostile 64-bit location cannot wrap around.
            let piece_end = start.saturating_add(count);
            if start == 0 || start < first || piece_end > end {
                sink(DescDamage::Outside { piece, start, first, end });
                continue;
            }
            for &(other, other_start, other_count) in &pieces[..index] {
                if start < other_start.saturating_add(other_count) && other_start < piece_end {
                    sink(DescDamage::Shared { piece, other, block: start.max(other_start) });
                }
            }
            for edge in [start, piece_end - 1] {
                let Some((home, _)) = geometry.group_of_block(BlockNr(edge)) else { continue };
                let base = geometry.base_metadata(home);
                let fixed = [base.superblock.map(|block| (block, 1)), base.descriptors];
                let hit = fixed
                    .into_iter()
                    .flatten()
                    .find(|(block, blocks)| start < block.0 + u64::from(*blocks) && block.0 < piece_end);
                if let Some((block, _)) = hit {
                    sink(DescDamage::OnFixed { piece, start, fixed: block.0 });
                    break;
                }
            }
        }
    }

    /// The structures that the descriptor points to: the first block, and the number of blocks.
    fn pieces(&self, geometry: &Geometry) -> [(Piece, u64, u64); 3] {
        [
            (Piece::BlockBitmap, self.block_bitmap.0, 1),
            (Piece::InodeBitmap, self.inode_bitmap.0, 1),
            (Piece::InodeTable, self.inode_table.0, geometry.inode_table_blocks.into()),
        ]
    }

    pub(super) fn count_damage(&self, group: GroupNr, geometry: &Geometry, sink: &mut impl FnMut(DescDamage)) {
        let inodes = geometry.inodes_per_group;
        for (what, found, most) in [
            (DescCount::FreeBlocks, self.free_clusters, geometry.clusters_in_group(group)),
            (DescCount::FreeInodes, self.free_inodes, inodes),
            (DescCount::Directories, self.used_dirs, inodes),
            (DescCount::UnusedInodes, self.itable_unused, inodes),
        ] {
            if found > most {
                sink(DescDamage::Count { what, found, most });
            }
        }
        if self.itable_unused <= inodes && self.itable_unused > self.free_inodes {
            sink(DescDamage::UnusedAboveFree { unused: self.itable_unused, free: self.free_inodes });
        }
    }

    fn flag_damage(&self, bytes: &[u8], group: GroupNr, geometry: &Geometry, sink: &mut impl FnMut(DescDamage)) {
        let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        let mut raw = RawGroupDesc::new_zeroed();
        let length = bytes.len().min(geometry.desc_size).min(size_of::<RawGroupDesc>());
        raw.as_mut_bytes()[..length].copy_from_slice(&bytes[..length]);
        let flags = GroupFlags::from_bits_retain(raw.bg_flags.get());
        let unused = u32::from(raw.bg_itable_unused_lo.get()) | u32::from(raw.bg_itable_unused_hi.get()) << 16;
        if geometry.desc_checksum == DescChecksum::None && (flags.intersects(uninit) || unused != 0) {
            sink(DescDamage::Uninit { flags: flags.bits(), unused });
        }
        if group.0 + 1 == geometry.group_count && flags.contains(GroupFlags::BLOCK_UNINIT) {
            sink(DescDamage::UninitLast);
        }
    }

    /// Reports the faults of the group's block bitmap. An uninitialized one has none.
    pub fn block_bitmap_damage(
        &self,
        bitmap: &[u8],
        group: GroupNr,
        geometry: &Geometry,
        sink: &mut impl FnMut(BitmapDamage),
    ) {
        if self.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return;
        }
        let (covered, bits) = (geometry.clusters_per_group, geometry.clusters_in_group(group));
        bitmap_damage(bitmap, self.block_bitmap_csum, covered, bits, geometry, sink);
    }

    /// Reports the faults of the group's inode bitmap. An uninitialized one has none.
    pub fn inode_bitmap_damage(&self, bitmap: &[u8], geometry: &Geometry, sink: &mut impl FnMut(BitmapDamage)) {
        if self.flags.contains(GroupFlags::INODE_UNINIT) {
            return;
        }
        let bits = geometry.inodes_per_group;
        bitmap_damage(bitmap, self.inode_bitmap_csum, bits, bits, geometry, sink);
    }
}

fn bitmap_damage(
    bytes: &[u8],
    found: u32,
    covered: u32,
    bits: u32,
    geometry: &Geometry,
    sink: &mut impl FnMut(BitmapDamage),
) {
    if geometry.metadata_csum {
        let expected = bitmap_csum(bytes, covered, geometry);
        if found != expected {
            sink(BitmapDamage::Checksum { found, expected });
        }
    }
    if let Some(bit) = bitmap::find_next_zero(bytes, bits..u32::MAX) {
        sink(BitmapDamage::Padding { bit, bits });
    }
}
