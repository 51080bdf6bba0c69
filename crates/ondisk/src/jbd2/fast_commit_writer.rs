//! Laying out a fast commit (Linux: `ext4_fc_reserve_space` and `ext4_fc_write_tail`, fs/ext4/fast_commit.c).
//!
//! Main types: [`FastCommitWriter`] (collects the records of one fast commit), [`FastCommitBlocks`] (its blocks).
//! [`super::FastCommitScan`] reads them.
//!
//! What it does not do: decide which records describe a change, or where in the area the blocks go.
//!
//! # Locking
//! None.

use super::Tid;
use super::fast_commit::{
    FastCommitName, FastCommitRecord, HEADER_BYTES, TAG_ADD_RANGE, TAG_CREATE, TAG_DEL_RANGE, TAG_HEAD, TAG_INODE,
    TAG_LINK, TAG_PAD, TAG_TAIL, TAG_UNLINK,
};
use crate::InodeNr;
use crate::csum::crc32c;
use crate::extent::len_max;

/// Bytes of a tail's body up to the end of the checksum: transaction number and checksum.
const TAIL_BODY_BYTES: usize = 8;

/// Collects the records of one fast commit.
pub struct FastCommitWriter {
    block_size: usize,
    tid: Tid,
    bytes: Vec<u8>,
    crc: u32,
}

/// The blocks of one fast commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastCommitBlocks {
    /// Whole blocks.
    pub bytes: Vec<u8>,
    /// Readers need only this many of these bytes: the rest of the last block is behind the tail's checksum.
    pub used: usize,
}

impl FastCommitWriter {
    /// A fast commit ahead of transaction `tid`. `is_first`: it goes to the start of the area, and begins with a head.
    pub fn new(block_size: usize, tid: Tid, is_first: bool) -> FastCommitWriter {
        let mut writer = FastCommitWriter { block_size, tid, bytes: Vec::new(), crc: 0 };
        if is_first {
            // No features.
            let [features, tid] = [0, tid.0].map(u32::to_le_bytes);
            writer.push_record(TAG_HEAD, &[&features, &tid]);
        }
        writer
    }

    /// Adds a record. False, and nothing is added, if no block could hold it.
    #[must_use]
    pub fn push(&mut self, record: &FastCommitRecord) -> bool {
        match record {
            FastCommitRecord::AddRange { ino, extent } => {
                let (mut rest, max) = (*extent, len_max(extent.unwritten));
                // An extent on disk is not as long as a run in memory may be.
                while rest.len > max {
                    let mut first = rest;
                    first.len = max;
                    self.push_record(TAG_ADD_RANGE, &[&ino.0.to_le_bytes(), &first.encode()]);
                    rest.lblk.0 += max;
                    rest.pblk.0 += u64::from(max);
                    rest.len -= max;
                }
                self.push_record(TAG_ADD_RANGE, &[&ino.0.to_le_bytes(), &rest.encode()])
            }
            FastCommitRecord::DelRange { ino, lblk, len } => {
                let fields = [ino.0, lblk.0, *len].map(u32::to_le_bytes);
                self.push_record(TAG_DEL_RANGE, &[&fields[0], &fields[1], &fields[2]])
            }
            FastCommitRecord::Create(name) => self.push_name(TAG_CREATE, name),
            FastCommitRecord::Link(name) => self.push_name(TAG_LINK, name),
            FastCommitRecord::Unlink(name) => self.push_name(TAG_UNLINK, name),
            FastCommitRecord::Inode { ino, raw } => self.push_inode(*ino, raw),
        }
    }

    /// As [`FastCommitWriter::push`], for [`FastCommitRecord::Inode`] with these bytes.
    #[must_use]
    pub fn push_inode(&mut self, ino: InodeNr, raw: &[u8]) -> bool {
        self.push_record(TAG_INODE, &[&ino.0.to_le_bytes(), raw])
    }

    /// Blocks that the fast commit needs by now.
    pub fn blocks(&self) -> usize {
        let more = usize::from(self.left() < HEADER_BYTES + TAIL_BODY_BYTES + HEADER_BYTES);
        self.bytes.len().div_ceil(self.block_size).max(1) + more
    }

    /// Ends the fast commit.
    pub fn finish(mut self) -> FastCommitBlocks {
        self.make_room(HEADER_BYTES + TAIL_BODY_BYTES);
        // The tail fills its block, so that the next fast commit begins at the start of one.
        let len = self.left() - HEADER_BYTES;
        self.header(TAG_TAIL, len);
        self.bytes.extend_from_slice(&self.tid.0.to_le_bytes());
        let at = self.bytes.len() - HEADER_BYTES - 4;
        let crc = crc32c(self.crc, &self.bytes[at..]);
        self.bytes.extend_from_slice(&crc.to_le_bytes());
        let used = self.bytes.len();
        self.bytes.resize(used.next_multiple_of(self.block_size), 0);
        FastCommitBlocks { bytes: self.bytes, used }
    }

    fn push_name(&mut self, tag: u16, name: &FastCommitName) -> bool {
        let [parent, ino] = [name.parent, name.ino].map(|ino| ino.0.to_le_bytes());
        self.push_record(tag, &[&parent, &ino, &name.name])
    }

    fn push_record(&mut self, tag: u16, body: &[&[u8]]) -> bool {
        let len: usize = body.iter().map(|part| part.len()).sum();
        if HEADER_BYTES + len > self.block_size - HEADER_BYTES {
            return false;
        }
        self.make_room(HEADER_BYTES + len);
        let at = self.bytes.len();
        self.header(tag, len);
        body.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.crc = crc32c(self.crc, &self.bytes[at..]);
        true
    }

    /// Begins the next block unless `len` bytes fit into this one, with a pad's header behind them.
    fn make_room(&mut self, len: usize) {
        let left = self.left();
        if len + HEADER_BYTES <= left {
            return;
        }
        let at = self.bytes.len();
        self.header(TAG_PAD, left - HEADER_BYTES);
        self.bytes.resize(at + left, 0);
        self.crc = crc32c(self.crc, &self.bytes[at..]);
    }

    /// Bytes left in the block: at least a header's.
    fn left(&self) -> usize {
        self.block_size - self.bytes.len() % self.block_size
    }

    fn header(&mut self, tag: u16, len: usize) {
        self.bytes.extend_from_slice(&tag.to_le_bytes());
        self.bytes.extend_from_slice(&(len as u16).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::Extent;
    use crate::jbd2::FastCommitScan;
    use crate::{BlockNr, LogicalBlock};

    const TID: Tid = Tid(7);

    fn name(name: &[u8]) -> FastCommitName {
        FastCommitName { parent: InodeNr(2), ino: InodeNr(12), name: name.to_vec() }
    }

    fn range(len: u32, unwritten: bool) -> FastCommitRecord {
        let extent = Extent { lblk: LogicalBlock(3), len, pblk: BlockNr(1 << 33), unwritten };
        FastCommitRecord::AddRange { ino: InodeNr(12), extent }
    }

    fn every_kind() -> Vec<FastCommitRecord> {
        vec![
            FastCommitRecord::Inode { ino: InodeNr(12), raw: vec![5; 160] },
            FastCommitRecord::Create(name(b"x")),
            FastCommitRecord::Link(name(&[b'y'; 255])),
            FastCommitRecord::Unlink(name(b"x")),
            range(9, false),
            range(32_767, true),
            FastCommitRecord::DelRange { ino: InodeNr(12), lblk: LogicalBlock(5), len: u32::MAX },
        ]
    }

    fn written(block_size: usize, is_first: bool, records: &[FastCommitRecord]) -> FastCommitBlocks {
        let mut writer = FastCommitWriter::new(block_size, TID, is_first);
        for record in records {
            assert!(writer.push(record), "{record:?}");
        }
        let blocks = writer.blocks();
        let done = writer.finish();
        assert_eq!((done.bytes.len() % block_size, done.bytes.len() / block_size), (0, blocks));
        done
    }

    /// The records of the fast commits that the area holds, by the decoder.
    fn read(area: &[u8], block_size: usize) -> Vec<Vec<FastCommitRecord>> {
        let mut scan = FastCommitScan::new(TID);
        for (at, block) in area.chunks(block_size).enumerate() {
            if !scan.block(at as u32, block).expect("valid") {
                break;
            }
        }
        let commits = scan.finish().into_iter();
        commits.map(|c| c.records.into_iter().map(|(_, record)| record).collect()).collect()
    }

    #[test]
    fn the_decoder_reads_what_the_writer_lays_out() {
        for block_size in [1024, 2048, 4096, 65536] {
            for times in [1, 2, 5, 40] {
                let records: Vec<_> = (0..times).flat_map(|_| every_kind()).collect();
                let first = written(block_size, true, &records);
                let second = written(block_size, false, &every_kind());
                let area = [first.bytes, second.bytes].concat();
                assert_eq!(read(&area, block_size), [records, every_kind()], "{block_size} {times}");
            }
        }
    }

    /// Every length of a last record: what is left of its block holds the tail, or a pad, or not even a header.
    #[test]
    fn the_tail_fits_behind_records_of_any_length() {
        for len in 1..=255 {
            let records: Vec<_> = (0..5).map(|_| FastCommitRecord::Link(name(&vec![b'n'; len]))).collect();
            for count in 1..=5 {
                let done = written(1024, true, &records[..count]);
                assert_eq!(read(&done.bytes, 1024), [records[..count].to_vec()], "{len} {count}");
            }
        }
    }

    #[test]
    fn a_reader_needs_only_the_used_bytes() {
        let done = written(4096, true, &every_kind());
        assert!(done.used < 1024, "{}", done.used);
        let mut torn = done.bytes.clone();
        torn[done.used..].fill(0xEE);
        assert_eq!(read(&torn, 4096), [every_kind()]);
        torn[done.used - 1] ^= 1;
        assert!(read(&torn, 4096).is_empty());
    }

    #[test]
    fn a_run_longer_than_an_extent_becomes_several_records() {
        for (unwritten, max) in [(false, 32_768), (true, 32_767)] {
            let done = written(1024, true, &[range(2 * max + 1, unwritten)]);
            let commits = read(&done.bytes, 1024);
            let runs: Vec<_> = commits[0]
                .iter()
                .map(|record| match record {
                    FastCommitRecord::AddRange { extent, .. } => (extent.lblk.0, extent.len, extent.pblk.0 - (1 << 33)),
                    other => panic!("{other:?}"),
                })
                .collect();
            let at = |n: u32, len| (3 + n * max, len, u64::from(n * max));
            assert_eq!(runs, [at(0, max), at(1, max), at(2, 1)], "unwritten: {unwritten}");
        }
    }

    #[test]
    fn a_record_larger_than_a_block_is_refused() {
        let mut writer = FastCommitWriter::new(1024, TID, true);
        assert!(!writer.push_inode(InodeNr(12), &[1; 1013]));
        assert!(writer.push_inode(InodeNr(12), &[1; 1012]));
        assert_eq!(read(&writer.finish().bytes, 1024)[0].len(), 1);
    }
}
