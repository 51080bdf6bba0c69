//! Commit blocks, which make a transaction valid.
//!
//! # Locking
//! None.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockHeader, BlockKind, LogCsum, LogFormat, RawBlockHeader, Tid, crc32c};

/// The value of `h_chksum_type` for a v1 checksum (Linux: `JBD2_CRC32_CHKSUM`).
const CRC32_CHKSUM: u8 = 1;
const CRC32_CHKSUM_SIZE: u8 = 4;

/// Linux: `struct commit_header`, include/linux/jbd2.h.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RawCommitHeader {
    pub h_header: RawBlockHeader,
    pub h_chksum_type: u8,
    pub h_chksum_size: u8,
    pub h_padding: [u8; 2],
    pub h_chksum: [U32; 8],
    pub h_commit_sec: U64,
    pub h_commit_nsec: U32,
}

const _: () = assert!(size_of::<RawCommitHeader>() == 60);
const _: () = assert!(std::mem::offset_of!(RawCommitHeader, h_commit_sec) == 0x30);

/// The result of checking a commit block's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitCsum {
    /// The format has no checksum, or (v1) the writer omitted it.
    Absent,
    /// The block's own checksum (V2/V3) matches.
    Valid,
    /// The checksum does not match, or (v1) its type and size are invalid.
    Invalid,
    /// V1: the crc32 that descriptors and copies of the transaction must have (see [`v1_checksum`]).
    Transaction(u32),
}

/// A commit block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitBlock {
    /// The transaction that it ends.
    pub tid: Tid,
    /// Seconds since 1970. This must never be lower than in an older transaction, because recovery treats a block with
    /// an older time as a leftover.
    pub sec: u64,
    /// The nanoseconds of the time.
    pub nsec: u32,
}

impl CommitBlock {
    /// Writes the block to `buf` (one block, overwritten completely). `v1` is the transaction's [`v1_checksum`], used
    /// only with V1.
    pub fn encode(&self, format: &LogFormat, v1: Option<u32>, buf: &mut [u8]) {
        assert_eq!(buf.len(), format.block_size);
        let mut raw = RawCommitHeader {
            h_header: BlockHeader { kind: BlockKind::Commit, tid: self.tid }.raw(),
            h_chksum_type: 0,
            h_chksum_size: 0,
            h_padding: [0; 2],
            h_chksum: [U32::ZERO; 8],
            h_commit_sec: self.sec.into(),
            h_commit_nsec: self.nsec.into(),
        };
        if let (LogCsum::V1, Some(sum)) = (format.csum, v1) {
            raw.h_chksum_type = CRC32_CHKSUM;
            raw.h_chksum_size = CRC32_CHKSUM_SIZE;
            raw.h_chksum[0].set(sum);
        }
        buf.fill(0);
        if format.has_block_csums() {
            // Type and size remain 0: the kernel writes them so, and readers ignore them.
            raw.h_chksum[0].set(checksum(format, &raw, &buf[size_of::<RawCommitHeader>()..]));
        }
        buf[..size_of::<RawCommitHeader>()].copy_from_slice(raw.as_bytes());
    }

    /// Decodes a block whose header has the kind `Commit`; `None` if it is shorter than a commit header.
    ///
    /// A V2/V3 checksum is also valid if it matches the header followed by zeros. Only the first sector of a commit
    /// block has content, and a power cut may have lost the rest (Linux: `jbd2_commit_block_csum_verify_partial`).
    pub fn decode(format: &LogFormat, block: &[u8]) -> Option<(CommitBlock, CommitCsum)> {
        let (raw, rest) = RawCommitHeader::ref_from_prefix(block).ok()?;
        let found = raw.h_chksum[0].get();
        let csum = match format.csum {
            LogCsum::None => CommitCsum::Absent,
            LogCsum::V1 => match (raw.h_chksum_type, raw.h_chksum_size, found) {
                (0, 0, 0) => CommitCsum::Absent,
                (CRC32_CHKSUM, CRC32_CHKSUM_SIZE, sum) => CommitCsum::Transaction(sum),
                _ => CommitCsum::Invalid,
            },
            LogCsum::V2 | LogCsum::V3 => {
                if checksum(format, raw, rest) == found || checksum(format, raw, &vec![0; rest.len()]) == found {
                    CommitCsum::Valid
                } else {
                    CommitCsum::Invalid
                }
            }
        };
        let commit = CommitBlock {
            tid: Tid(raw.h_header.h_sequence.get()),
            sec: raw.h_commit_sec.get(),
            nsec: raw.h_commit_nsec.get(),
        };
        Some((commit, csum))
    }
}

fn checksum(format: &LogFormat, raw: &RawCommitHeader, rest: &[u8]) -> u32 {
    let mut copy = *raw;
    copy.h_chksum[0].set(0);
    crc32c(crc32c(format.seed, copy.as_bytes()), rest)
}

/// The v1 checksum of a transaction: start with `!0`, then add each descriptor block followed by its copies in the log.
/// Revoke blocks are not included.
pub fn v1_checksum(sum: u32, block: &[u8]) -> u32 {
    crc32_be(sum, block)
}

/// crc32, most significant bit first, without inversion (Linux: `crc32_be`).
pub fn crc32_be(mut crc: u32, data: &[u8]) -> u32 {
    for byte in data {
        crc = crc << 8 ^ CRC32_BE[(crc >> 24) as usize ^ usize::from(*byte)];
    }
    crc
}

static CRC32_BE: [u32; 256] = {
    let mut table = [0u32; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = (i as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000_0000 != 0 { crc << 1 ^ 0x04C1_1DB7 } else { crc << 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};
