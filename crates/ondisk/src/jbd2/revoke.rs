//! Revoke blocks: home blocks whose older copies must not be replayed.
//!
//! # Locking
//! None.

use super::{BlockHeader, BlockKind, HEADER_BYTES, LogFormat, Tid};
use crate::error::{Error, Result, Structure};
use crate::units::BlockNr;

/// The size of the block header and the count (Linux: `struct jbd2_journal_revoke_header_s`).
const REVOKE_HEADER_BYTES: usize = HEADER_BYTES + 4;

/// Builds a revoke block. Push up to [`capacity`](Self::capacity) records, then call `finish`.
#[derive(Debug)]
pub struct RevokeBuilder<'a> {
    format: &'a LogFormat,
    tid: Tid,
    blocks: Vec<BlockNr>,
}

impl<'a> RevokeBuilder<'a> {
    /// A revoke block without records.
    pub fn new(format: &'a LogFormat, tid: Tid) -> RevokeBuilder<'a> {
        RevokeBuilder { format, tid, blocks: Vec::new() }
    }

    /// The number of records that fit in one revoke block.
    pub const fn capacity_of(format: &LogFormat) -> usize {
        (format.block_size - REVOKE_HEADER_BYTES - format.tail_bytes()) / format.record_bytes()
    }

    /// The number of records that fit.
    pub fn capacity(&self) -> usize {
        Self::capacity_of(self.format)
    }

    /// The number of records added since the last block was written.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Adds a record. Returns true if the revoke block is now full.
    pub fn push(&mut self, block: BlockNr) -> bool {
        debug_assert!(self.blocks.len() < self.capacity(), "revoke block of {} is full", self.tid);
        debug_assert!(block.0 <= self.format.max_block(), "{block} does not fit a revoke record");
        self.blocks.push(block);
        self.blocks.len() >= self.capacity()
    }

    /// Writes the revoke block to `buf` (one block, overwritten completely), and empties the builder for the next one.
    pub fn finish(&mut self, buf: &mut [u8]) {
        assert_eq!(buf.len(), self.format.block_size);
        BlockHeader { kind: BlockKind::Revoke, tid: self.tid }.start(buf);
        let size = self.format.record_bytes();
        // The count is in bytes and includes the header.
        let used = REVOKE_HEADER_BYTES + self.blocks.len() * size;
        buf[HEADER_BYTES..REVOKE_HEADER_BYTES].copy_from_slice(&(used as u32).to_be_bytes());
        for (block, out) in self.blocks.drain(..).zip(buf[REVOKE_HEADER_BYTES..used].chunks_exact_mut(size)) {
            out.copy_from_slice(&block.0.to_be_bytes()[8 - size..]);
        }
        self.format.set_tail(buf);
    }
}

/// The records of a revoke block.
#[derive(Clone, Debug)]
pub struct RevokeRecords<'a> {
    records: std::slice::ChunksExact<'a, u8>,
}

/// Reads the records of a block whose header has the kind `Revoke`. The caller checks the checksum in its tail
/// ([`LogFormat::tail_valid`]).
///
/// # Errors
/// `Corrupt` if the byte count does not match the block.
pub fn revoke_records<'a>(format: &LogFormat, block: &'a [u8]) -> Result<RevokeRecords<'a>> {
    let corrupt = |detail: String| Error::corrupt(Structure::RevokeBlock, tid_of(block), detail);
    let Some(count) = block.get(HEADER_BYTES..REVOKE_HEADER_BYTES) else {
        return Err(corrupt(format!("{} bytes long", block.len())));
    };
    let used = u32::from_be_bytes([count[0], count[1], count[2], count[3]]) as usize;
    // A count below the header's own size means "no records", as in the kernel's loop.
    let room = block.len().saturating_sub(format.tail_bytes());
    if used > room {
        return Err(corrupt(format!("uses {used} bytes of {room}")));
    }
    let records = block.get(REVOKE_HEADER_BYTES..used).unwrap_or(&[]);
    Ok(RevokeRecords { records: records.chunks_exact(format.record_bytes()) })
}

fn tid_of(block: &[u8]) -> u64 {
    BlockHeader::decode(block).map_or(0, |h| u64::from(h.tid.0))
}

impl Iterator for RevokeRecords<'_> {
    type Item = BlockNr;

    fn next(&mut self) -> Option<BlockNr> {
        let record = self.records.next()?;
        Some(BlockNr(record.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.records.size_hint()
    }
}

impl ExactSizeIterator for RevokeRecords<'_> {}
