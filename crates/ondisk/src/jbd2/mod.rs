//! jbd2 as bytes: the journal's superblock and the blocks of its log. Everything here is big-endian on disk.
//!
//! Main types: [`JournalSuperBlock`] (block 0 of the journal), [`LogFormat`] (the sizes and checksums in the log, which
//! follow from the feature words), [`DescriptorBuilder`] and [`descriptor_tags`] (the list of home blocks that precedes
//! their copies), [`CommitBlock`], [`RevokeBuilder`] and [`revoke_records`], [`Tid`] (a transaction's number),
//! [`FastCommitScan`] (the area after the log, which unlike the rest is little-endian).
//!
//! A transaction in the log consists of revoke blocks and groups of a descriptor with its copies, in any order,
//! followed by one commit block. All of them have the same [`Tid`]. The log is a ring of the blocks from `first` to
//! `last` of the journal.
//!
//! What it does not do: decide which transactions are valid (the `recovery` crate), or move blocks.
//!
//! # Locking
//! None.

mod commit;
mod damage;
mod descriptor;
mod fast_commit;
mod fast_commit_writer;
mod revoke;
mod super_block;

#[cfg(test)]
mod tests;

use std::fmt;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use commit::{CommitBlock, CommitCsum, crc32_be, v1_checksum};
pub use damage::{JournalContext, JournalSuperDamage};
pub use descriptor::{
    DescriptorBuilder, Tag, TagFlags, Tags, descriptor_tags, escape, needs_escape, tag_checksum, unescape,
};
pub use fast_commit::{
    FAST_COMMIT_BYTES_MAX, FastCommit, FastCommitName, FastCommitPlace, FastCommitRecord, FastCommitScan,
};
pub use fast_commit_writer::{FastCommitBlocks, FastCommitWriter};
pub use revoke::{RevokeBuilder, RevokeRecords, revoke_records};
pub use super_block::{
    CompatFeatures, IncompatFeatures, JournalSuperBlock, LogRange, RawJournalSuperBlock, RoCompatFeatures,
};

/// The first four bytes of every jbd2 block that is not a copy (Linux: `JBD2_MAGIC_NUMBER`).
pub const MAGIC: u32 = 0xC03B_3998;
/// The minimum number of blocks that a kernel accepts between `first` and the end of the log (Linux:
/// `JBD2_MIN_JOURNAL_BLOCKS`).
pub const MIN_LOG_BLOCKS: u32 = 1024;

/// The default journal size, in blocks, for a file system of `blocks_count` blocks (e2fsprogs:
/// `ext2fs_default_journal_size`). `None` if it is too small for a journal.
pub fn default_blocks(blocks_count: u64) -> Option<u32> {
    Some(match blocks_count {
        0..0x800 => return None,
        0x800..0x8000 => 1024,
        0x8000..0x4_0000 => 4096,
        0x4_0000..0x8_0000 => 8192,
        0x8_0000..0x40_0000 => 16384,
        0x40_0000..0x80_0000 => 32768,
        0x80_0000..0x100_0000 => 65536,
        0x100_0000..0x200_0000 => 131_072,
        _ => 262_144,
    })
}
/// The number of blocks in the fast-commit area if the superblock has 0 (Linux: `JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;
/// The size of the journal superblock in bytes.
pub const SUPER_BLOCK_BYTES: usize = 1024;
/// The size of the superblock's part that changes while a journal is in use, in bytes. It is one sector, so it never
/// tears.
pub const SUPER_BLOCK_LIVE_BYTES: usize = 512;
/// The size of the header at the start of every descriptor, revoke and commit block, in bytes.
pub const HEADER_BYTES: usize = 12;

/// A transaction's number (Linux: `tid_t`). It wraps around; 0 is a number like any other. The order is by signed
/// difference, so it is not total: it is meaningful only for numbers less than 2^31 apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tid(pub u32);

impl Tid {
    /// The transaction after this one.
    pub const fn next(self) -> Tid {
        Tid(self.0.wrapping_add(1))
    }

    /// The number of the `n`th transaction after this one.
    pub const fn plus(self, n: u32) -> Tid {
        Tid(self.0.wrapping_add(n))
    }

    /// How many transactions later than `earlier` this is; negative if it is older.
    pub const fn since(self, earlier: Tid) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Whether this is older than `other` (Linux: `tid_gt(other, self)`).
    pub const fn is_before(self, other: Tid) -> bool {
        self.since(other) < 0
    }

    /// Whether this is newer than `other` (Linux: `tid_gt(self, other)`).
    pub const fn is_after(self, other: Tid) -> bool {
        self.since(other) > 0
    }

    /// Whether this is older than `other` or equal (Linux: `tid_geq(other, self)`).
    pub const fn is_at_or_before(self, other: Tid) -> bool {
        self.since(other) <= 0
    }

    /// Whether this is newer than `other` or equal (Linux: `tid_geq(self, other)`).
    pub const fn is_at_or_after(self, other: Tid) -> bool {
        self.since(other) >= 0
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {}", self.0)
    }
}

/// The kind of a jbd2 block (Linux: `JBD2_*_BLOCK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// Tags of the copies that follow: 1 on disk.
    Descriptor,
    /// The end of a transaction: 2 on disk.
    Commit,
    /// A superblock without features: 3 on disk.
    SuperBlockV1,
    /// The current superblock: 4 on disk.
    SuperBlockV2,
    /// Blocks that must not be replayed from older transactions: 5 on disk.
    Revoke,
    /// A number that no version of jbd2 uses.
    Other(u32),
}

impl BlockKind {
    /// The number on disk.
    pub const fn raw(self) -> u32 {
        match self {
            BlockKind::Descriptor => 1,
            BlockKind::Commit => 2,
            BlockKind::SuperBlockV1 => 3,
            BlockKind::SuperBlockV2 => 4,
            BlockKind::Revoke => 5,
            BlockKind::Other(n) => n,
        }
    }

    const fn from_raw(n: u32) -> BlockKind {
        match n {
            1 => BlockKind::Descriptor,
            2 => BlockKind::Commit,
            3 => BlockKind::SuperBlockV1,
            4 => BlockKind::SuperBlockV2,
            5 => BlockKind::Revoke,
            n => BlockKind::Other(n),
        }
    }
}

/// Linux: `struct journal_header_s`, include/linux/jbd2.h.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawBlockHeader {
    /// 0xC03B3998.
    pub h_magic: U32,
    /// `JBD2_*_BLOCK`, see [`BlockKind`].
    pub h_blocktype: U32,
    /// The transaction that the block belongs to; no meaning in a superblock.
    pub h_sequence: U32,
}

const _: () = assert!(size_of::<RawBlockHeader>() == HEADER_BYTES);

/// The start of a jbd2 block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The kind of the block.
    pub kind: BlockKind,
    /// The transaction that the block belongs to.
    pub tid: Tid,
}

impl BlockHeader {
    /// The header of `block`; `None` without the magic number (the block is a copy, or does not belong to the journal).
    pub fn decode(block: &[u8]) -> Option<BlockHeader> {
        let (raw, _) = RawBlockHeader::ref_from_prefix(block).ok()?;
        (raw.h_magic.get() == MAGIC)
            .then(|| BlockHeader { kind: BlockKind::from_raw(raw.h_blocktype.get()), tid: Tid(raw.h_sequence.get()) })
    }

    fn raw(self) -> RawBlockHeader {
        RawBlockHeader { h_magic: MAGIC.into(), h_blocktype: self.kind.raw().into(), h_sequence: self.tid.0.into() }
    }

    /// Clears `block` and writes the header at its start.
    fn start(self, block: &mut [u8]) {
        block.fill(0);
        block[..HEADER_BYTES].copy_from_slice(self.raw().as_bytes());
    }
}

/// The checksums in the log. The versions exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogCsum {
    /// No checksums.
    None,
    /// One crc32 over descriptors and copies, in the commit block (compat CHECKSUM).
    V1,
    /// A crc32c for each block, cut to 16 bits in the tags (incompat CSUM_V2).
    V2,
    /// A crc32c for each block (incompat CSUM_V3).
    V3,
}

/// The layout of the log that follows from the journal's features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat {
    /// The block size, in bytes.
    pub block_size: usize,
    /// The checksums of the log.
    pub csum: LogCsum,
    /// Block numbers have 64 bits (incompat 64BIT).
    pub wide: bool,
    /// The journal's own uuid, which follows the first tag of each descriptor.
    pub uuid: [u8; 16],
    /// The start value of every V2/V3 checksum in the log: crc32c(~0, `uuid`).
    pub seed: u32,
}

impl LogFormat {
    /// `block_size` is in bytes, and at least 1024.
    pub fn new(block_size: usize, csum: LogCsum, wide: bool, uuid: [u8; 16]) -> LogFormat {
        assert!(block_size >= SUPER_BLOCK_BYTES, "a journal block of {block_size} bytes");
        LogFormat { block_size, csum, wide, uuid, seed: csum_seed(&uuid) }
    }

    /// The size of one tag in bytes, without a uuid (Linux: `journal_tag_bytes`).
    pub const fn tag_bytes(&self) -> usize {
        match (self.csum, self.wide) {
            (LogCsum::V3, _) => 16,
            (LogCsum::V2, true) => 14,
            (LogCsum::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Whether each log block has its own checksum (Linux: `jbd2_journal_has_csum_v2or3`).
    pub const fn has_block_csums(&self) -> bool {
        matches!(self.csum, LogCsum::V2 | LogCsum::V3)
    }

    /// The size of the checksum at the end of a descriptor or revoke block, in bytes.
    pub const fn tail_bytes(&self) -> usize {
        if self.has_block_csums() { 4 } else { 0 }
    }

    /// The size of one revoke record, in bytes.
    pub const fn record_bytes(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// The largest block number that fits in a tag or a revoke record.
    pub const fn max_block(&self) -> u64 {
        if self.wide { u64::MAX } else { u32::MAX as u64 }
    }

    /// Whether the checksum in the last four bytes of a descriptor or revoke block matches. Always true if the format
    /// has none.
    pub fn tail_valid(&self, block: &[u8]) -> bool {
        if !self.has_block_csums() {
            return true;
        }
        let Some((body, tail)) = block.split_last_chunk::<4>() else { return false };
        crc32c(crc32c(self.seed, body), &[0; 4]) == u32::from_be_bytes(*tail)
    }

    fn set_tail(&self, block: &mut [u8]) {
        if !self.has_block_csums() {
            return;
        }
        if let Some((body, tail)) = block.split_last_chunk_mut::<4>() {
            *tail = crc32c(crc32c(self.seed, body), &[0; 4]).to_be_bytes();
        }
    }
}

/// The start value of the log's checksums, from the journal's own uuid (Linux: `j_csum_seed`).
pub fn csum_seed(journal_uuid: &[u8; 16]) -> u32 {
    crc32c(!0, journal_uuid)
}

/// crc32c without the final inversion, so that it can be continued (Linux: `crc32c()`).
fn crc32c(seed: u32, data: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, data)
}
