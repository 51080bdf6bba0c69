//! Quota files: the usage of each owner, in a radix tree over the owner's number (Linux: fs/quota/quota_v2.c,
//! fs/quota/quota_tree.c).
//!
//! Main types: [`QuotaFile`] (a header), [`QuotaKind`] (the kind of owner), [`Usage`] and [`Limits`] (of one owner),
//! [`QuotaDamage`] (one fault). [`pack`] creates whole files, [`tree`] changes them in place.
//!
//! A file is a sequence of blocks of 1 KiB, for any block size of the file system. Block 0 contains the header, and
//! block 1 the root of the tree. There are four levels of blocks, each with 256 block numbers, one for each value of a
//! byte of the owner's number. The highest byte comes first; 0 means no block. The blocks with the entries are below
//! the last level.
//!
//! What it does not do: read blocks, or enforce limits.
//!
//! # Locking
//! None.

pub mod pack;
pub mod tree;

use std::mem::size_of;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::damage::Damage;

/// The block size, in bytes.
pub const BLOCK_BYTES: usize = 1024;
/// The root block of the tree.
pub const ROOT: u32 = 1;
/// The number of levels of block numbers.
pub const LEVELS: u32 = 4;
/// The maximum size of quota files: 2 GiB (e2fsprogs: `v2_init_io`).
const SIZE_MAX: u64 = 1 << 31;
/// The offset of the first entry in a block; a header precedes it (Linux: `struct qt_disk_dqdbheader`).
const ENTRIES_AT: usize = 16;

/// The kind of owner whose usage a file contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// The owner is `i_uid`.
    User,
    /// The owner is `i_gid`.
    Group,
    /// The owner is `i_projid`.
    Project,
}

impl QuotaKind {
    /// All kinds of quota.
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    /// The magic number of a file of this kind (Linux: `V2_INITQMAGICS`).
    pub const fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xd9c0_1f11,
            QuotaKind::Group => 0xd9c0_1927,
            QuotaKind::Project => 0xd9c0_3f14,
        }
    }
}

/// Linux: `struct v2_disk_dqheader`, followed by `struct v2_disk_dqinfo`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawQuotaHeader {
    /// See [`QuotaKind::magic`].
    pub dqh_magic: U32,
    /// 0 for entries of 48 bytes, 1 for entries of 72 bytes.
    pub dqh_version: U32,
    /// Grace time of the soft limit of blocks, in seconds.
    pub dqi_bgrace: U32,
    /// Grace time of the soft limit of inodes, in seconds.
    pub dqi_igrace: U32,
    /// Unused.
    pub dqi_flags: U32,
    /// The number of blocks in the file.
    pub dqi_blocks: U32,
    /// The first unused block; 0 if there is none.
    pub dqi_free_blk: U32,
    /// The first block with room for an entry; 0 if there is none.
    pub dqi_free_entry: U32,
}

/// Linux: `struct v2r0_disk_dqblk`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry0 {
    dqb_id: U32,
    dqb_ihardlimit: U32,
    dqb_isoftlimit: U32,
    dqb_curinodes: U32,
    dqb_bhardlimit: U32,
    dqb_bsoftlimit: U32,
    dqb_curspace: U64,
    dqb_btime: U64,
    dqb_itime: U64,
}

/// Linux: `struct v2r1_disk_dqblk`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawEntry1 {
    dqb_id: U32,
    dqb_pad: U32,
    dqb_ihardlimit: U64,
    dqb_isoftlimit: U64,
    dqb_curinodes: U64,
    dqb_bhardlimit: U64,
    dqb_bsoftlimit: U64,
    dqb_curspace: U64,
    dqb_btime: U64,
    dqb_itime: U64,
}

const _: () = {
    assert!(size_of::<RawQuotaHeader>() == 32);
    assert!(size_of::<RawEntry0>() == 48);
    assert!(size_of::<RawEntry1>() == 72);
};

/// The usage of one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The number of the user, group or project.
    pub id: u32,
    /// The size of the blocks in use, in bytes.
    pub bytes: u64,
    /// The number of inodes in use.
    pub inodes: u64,
}

/// The limits of one owner; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The hard limit of inodes.
    pub inodes_hard: u64,
    /// The soft limit of inodes, which may be exceeded for the grace time.
    pub inodes_soft: u64,
    /// The hard limit of space, in blocks of 1 KiB.
    pub blocks_hard: u64,
    /// The soft limit of space, in blocks of 1 KiB, which may be exceeded for the grace time.
    pub blocks_soft: u64,
    /// The end of the grace time for space, in seconds since 1970.
    pub blocks_until: u64,
    /// The end of the grace time for inodes, in seconds since 1970.
    pub inodes_until: u64,
}

/// One fault of a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuotaDamage {
    /// The file has no room for its header.
    #[error("{found} bytes, shorter than its header")]
    Length {
        /// The number of bytes.
        found: u64,
    },
    /// The file exceeds the maximum size of a quota file.
    #[error("{found} bytes, more than {SIZE_MAX}")]
    Size {
        /// The number of bytes.
        found: u64,
    },
    /// `dqh_magic` is wrong.
    #[error("magic {found:#010x}, expected {expected:#010x}")]
    Magic {
        /// The stored value.
        found: u32,
        /// The magic number of the kind.
        expected: u32,
    },
    /// `dqh_version` is unknown.
    #[error("version {found}, not 0 or 1")]
    Version {
        /// The stored value.
        found: u32,
    },
    /// `dqi_blocks` exceeds the number of blocks in the file.
    #[error("counts {found} blocks, but has {most}")]
    Blocks {
        /// The stored value.
        found: u32,
        /// The number of blocks in the file.
        most: u32,
    },
    /// `dqi_free_blk` or `dqi_free_entry` is past the last block.
    #[error("a list of free blocks begins in block {found} of {blocks}")]
    FreeList {
        /// The stored value.
        found: u32,
        /// The number of blocks in the file.
        blocks: u32,
    },
    /// A block of the tree refers to a block past the last one.
    #[error("the tree leads to block {found} of {blocks}")]
    Reference {
        /// The stored value.
        found: u32,
        /// The number of blocks in the file.
        blocks: u32,
    },
    /// Two references lead to a block.
    #[error("two references lead to block {found}")]
    Twice {
        /// The block.
        found: u32,
    },
    /// The number of entries in a block differs from its header or from the tree.
    #[error("block {block} counts {found} entries, and has others")]
    Entries {
        /// The block.
        block: u32,
        /// The stored value.
        found: u32,
    },
    /// The tree refers to a block that has no entry for that owner.
    #[error("block {block} has no entry for owner {id}")]
    Missing {
        /// The owner.
        id: u32,
        /// The block.
        block: u32,
    },
}

impl Damage for QuotaDamage {
    fn is_fatal(&self) -> bool {
        // A file with another magic number still has a tree.
        use QuotaDamage::{Entries, Magic, Missing, Reference, Twice};
        !matches!(self, Reference { .. } | Magic { .. } | Twice { .. } | Entries { .. } | Missing { .. })
    }
}

/// The header of a quota file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaFile {
    /// The number of blocks in the file, including header and root.
    pub blocks: u32,
    /// The grace times of the soft limits of blocks and of inodes, in seconds.
    pub grace: [u32; 2],
    /// Entries have 72 bytes instead of 48.
    wide: bool,
}

impl QuotaFile {
    /// Reports the faults of the header in the file's first block. `size` is the size of the file in bytes.
    pub fn damage(first: &[u8], kind: QuotaKind, size: u64, sink: &mut dyn FnMut(QuotaDamage)) {
        let Ok((raw, _)) = RawQuotaHeader::ref_from_prefix(first) else {
            return sink(QuotaDamage::Length { found: first.len() as u64 });
        };
        if size < size_of::<RawQuotaHeader>() as u64 {
            return sink(QuotaDamage::Length { found: size });
        }
        if size > SIZE_MAX {
            sink(QuotaDamage::Size { found: size });
        }
        let (magic, version, blocks) = (raw.dqh_magic.get(), raw.dqh_version.get(), raw.dqi_blocks.get());
        if magic != kind.magic() {
            sink(QuotaDamage::Magic { found: magic, expected: kind.magic() });
        }
        if version > 1 {
            sink(QuotaDamage::Version { found: version });
        }
        let most = size.min(SIZE_MAX).div_ceil(BLOCK_BYTES as u64) as u32;
        if blocks > most {
            sink(QuotaDamage::Blocks { found: blocks, most });
        }
        for found in [raw.dqi_free_blk.get(), raw.dqi_free_entry.get()].into_iter().filter(|free| *free >= blocks) {
            sink(QuotaDamage::FreeList { found, blocks });
        }
    }

    /// Decodes the header without checking it; [`QuotaFile::damage`] does that.
    pub fn parse(first: &[u8]) -> QuotaFile {
        let raw = RawQuotaHeader::read_from_prefix(first).map(|(raw, _)| raw);
        raw.map_or(QuotaFile { blocks: 0, grace: [0; 2], wide: true }, |raw| QuotaFile {
            blocks: raw.dqi_blocks.get(),
            grace: [raw.dqi_bgrace.get(), raw.dqi_igrace.get()],
            wide: raw.dqh_version.get() != 0,
        })
    }

    /// The blocks that a block of the tree refers to. References to blocks that do not exist go to `sink`.
    pub fn children<'a>(
        &self,
        block: &'a [u8],
        sink: &'a mut dyn FnMut(QuotaDamage),
    ) -> impl Iterator<Item = u32> + use<'a> {
        let blocks = self.blocks;
        block.chunks_exact(4).filter_map(move |word| {
            let child = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            if child >= blocks && child != 0 {
                sink(QuotaDamage::Reference { found: child, blocks });
                return None;
            }
            (child != 0).then_some(child)
        })
    }

    /// The entries of a block below the tree. An entry of zeros is unused.
    pub fn entries<'a>(&self, block: &'a [u8]) -> impl Iterator<Item = Usage> + use<'a> {
        self.owners(block).map(|owner| owner.usage)
    }

    /// The entries of a block below the tree, with their limits.
    pub fn owners<'a>(&self, block: &'a [u8]) -> impl Iterator<Item = pack::Owner> + use<'a> {
        let wide = self.wide;
        let length = if wide { size_of::<RawEntry1>() } else { size_of::<RawEntry0>() };
        let entries = block.get(ENTRIES_AT..).unwrap_or(&[]).chunks_exact(length);
        let used = entries.filter(|entry| entry.iter().any(|byte| *byte != 0));
        used.filter_map(move |entry| if wide { wide_owner(entry) } else { narrow_owner(entry) })
    }
}

fn wide_owner(entry: &[u8]) -> Option<pack::Owner> {
    let raw = RawEntry1::read_from_bytes(entry).ok()?;
    let usage = Usage { id: raw.dqb_id.get(), bytes: raw.dqb_curspace.get(), inodes: raw.dqb_curinodes.get() };
    let limits = Limits {
        inodes_hard: raw.dqb_ihardlimit.get(),
        inodes_soft: raw.dqb_isoftlimit.get(),
        blocks_hard: raw.dqb_bhardlimit.get(),
        blocks_soft: raw.dqb_bsoftlimit.get(),
        blocks_until: raw.dqb_btime.get(),
        inodes_until: raw.dqb_itime.get(),
    };
    Some(pack::Owner { usage, limits })
}

fn narrow_owner(entry: &[u8]) -> Option<pack::Owner> {
    let raw = RawEntry0::read_from_bytes(entry).ok()?;
    let usage = Usage { id: raw.dqb_id.get(), bytes: raw.dqb_curspace.get(), inodes: raw.dqb_curinodes.get().into() };
    let limits = Limits {
        inodes_hard: raw.dqb_ihardlimit.get().into(),
        inodes_soft: raw.dqb_isoftlimit.get().into(),
        blocks_hard: raw.dqb_bhardlimit.get().into(),
        blocks_soft: raw.dqb_bsoftlimit.get().into(),
        blocks_until: raw.dqb_btime.get(),
        inodes_until: raw.dqb_itime.get(),
    };
    Some(pack::Owner { usage, limits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damage::all;

    fn header(version: u32, blocks: u32) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        let words = [QuotaKind::User.magic(), version, 0, 0, 0, blocks, 0, 0];
        for (to, word) in block.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        block
    }

    fn set(block: &mut [u8], at: usize, value: u32) {
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    #[test]
    fn each_damaged_field_of_a_header_is_reported() {
        use QuotaDamage as D;
        type Case = (fn(&mut Vec<u8>), QuotaDamage);
        let cases: [Case; 6] = [
            (|b| b.truncate(31), D::Length { found: 31 }),
            (|b| set(b, 0, 7), D::Magic { found: 7, expected: 0xd9c0_1f11 }),
            (|b| set(b, 4, 2), D::Version { found: 2 }),
            (|b| set(b, 20, 9), D::Blocks { found: 9, most: 8 }),
            (|b| set(b, 24, 8), D::FreeList { found: 8, blocks: 8 }),
            (|b| set(b, 28, 99), D::FreeList { found: 99, blocks: 8 }),
        ];
        for (change, damage) in cases {
            let mut block = header(1, 8);
            assert_eq!(all(|mut sink| QuotaFile::damage(&block, QuotaKind::User, 8192, &mut sink)), []);
            change(&mut block);
            assert_eq!(all(|mut sink| QuotaFile::damage(&block, QuotaKind::User, 8192, &mut sink)), [damage]);
        }
        let block = header(1, 8);
        let found = all(|mut sink| QuotaFile::damage(&block, QuotaKind::User, 1 << 32, &mut sink));
        assert_eq!(found, [D::Size { found: 1 << 32 }]);
    }

    #[test]
    fn a_tree_block_leads_to_blocks_of_the_file_alone() {
        let file = QuotaFile::parse(&header(1, 8));
        let mut block = vec![0; BLOCK_BYTES];
        set(&mut block, 12, 7);
        set(&mut block, 16, 8);
        let mut found = Vec::new();
        let mut sink = |damage| found.push(damage);
        assert_eq!(file.children(&block, &mut sink).collect::<Vec<_>>(), [7]);
        assert_eq!(found, [QuotaDamage::Reference { found: 8, blocks: 8 }]);
    }

    #[test]
    fn entries_of_both_versions_are_read_and_zeros_are_none() {
        for (version, bytes_at, inodes_at, length) in [(0, 24, 12, 48), (1, 48, 24, 72)] {
            let mut block = vec![0; BLOCK_BYTES];
            let second = ENTRIES_AT + length;
            set(&mut block, second, 1234);
            set(&mut block, second + bytes_at, 4096);
            set(&mut block, second + inodes_at, 3);
            let entries: Vec<_> = QuotaFile::parse(&header(version, 8)).entries(&block).collect();
            assert_eq!(entries, [Usage { id: 1234, bytes: 4096, inodes: 3 }]);
        }
        assert_eq!(QuotaFile::parse(&[]).entries(&[]).count(), 0);
    }
}
