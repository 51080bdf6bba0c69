//! Writes logs into an image, with the encoders of `ondisk`: a journal without any checks.

use std::sync::Arc;

use extant_block::{BioFlags, BlockDevice};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    CommitBlock, DescriptorBuilder, JournalSuperBlock, LogCsum, LogFormat, RevokeBuilder, Tid, escape, needs_escape,
    tag_checksum, v1_checksum,
};

use crate::{JournalFile, JournalMap};

use super::disk::MemDisk;

pub const UUID: [u8; 16] = *b"a test's journal";

/// The contents of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Work {
    pub copies: Vec<(u64, Vec<u8>)>,
    pub revokes: Vec<u64>,
    /// Revoke blocks follow the copies instead of preceding them.
    pub revokes_last: bool,
}

pub struct LogWriter {
    pub disk: Arc<MemDisk>,
    pub sb: JournalSuperBlock,
    pub format: LogFormat,
    pub map: JournalMap,
    pub at: u32,
    pub tid: Tid,
    pub sec: u64,
    /// Every log block written by the last transaction, in order.
    pub written: Vec<u32>,
}

impl LogWriter {
    /// An image of `home` blocks, followed by a journal of `len` blocks in reverse pieces of 100, with an empty log.
    pub fn new(block_size: u32, home: u64, len: u32, csum: LogCsum, wide: bool) -> LogWriter {
        let mut runs: Vec<(BlockNr, u32)> = Vec::new();
        let mut at = home + u64::from(len);
        let mut left = len;
        while left > 0 {
            let n = left.min(100);
            at -= u64::from(n);
            runs.push((BlockNr(at), n));
            left -= n;
        }
        let map = JournalMap::from_runs(runs).unwrap();
        let bytes = vec![0x11; (home + u64::from(len)) as usize * block_size as usize];
        let sb = JournalSuperBlock::create(block_size, len, UUID, csum, wide);
        Self::over(MemDisk::new(bytes), sb, map)
    }

    pub fn over(disk: Arc<MemDisk>, sb: JournalSuperBlock, map: JournalMap) -> LogWriter {
        let (format, at) = (sb.format(), sb.first);
        let tid = sb.sequence;
        let mut writer = LogWriter { disk, sb, format, map, at, tid, sec: 1000, written: Vec::new() };
        writer.write_super();
        writer
    }

    /// Makes the log live, from the current position on.
    pub fn start_here(&mut self) {
        (self.sb.start, self.sb.sequence) = (self.at, self.tid);
        self.write_super();
    }

    pub fn write_super(&mut self) {
        let at = self.map.lookup(0).unwrap().0;
        let bytes = self.sb.encode();
        self.disk.write_at(at.0 * u64::from(self.sb.block_size), &[&bytes], BioFlags::empty()).unwrap();
    }

    pub fn put(&mut self, log_block: u32, bytes: &[u8]) {
        let at = self.map.lookup(log_block).unwrap().0;
        self.disk.write_at(at.0 * u64::from(self.sb.block_size), &[bytes], BioFlags::empty()).unwrap();
    }

    pub fn get(&self, log_block: u32) -> Vec<u8> {
        let at = self.map.lookup(log_block).unwrap().0;
        let mut bytes = vec![0; self.sb.block_size as usize];
        self.disk.read_at(at.0 * u64::from(self.sb.block_size), &mut bytes, BioFlags::empty()).unwrap();
        bytes
    }

    /// Changes one byte of a log block.
    pub fn spoil(&mut self, log_block: u32, byte: usize) {
        let mut bytes = self.get(log_block);
        bytes[byte] ^= 0x40;
        self.put(log_block, &bytes);
    }

    fn append(&mut self, bytes: &[u8]) {
        let at = self.at;
        self.put(at, bytes);
        self.written.push(at);
        self.at = self.sb.log().next(at);
    }

    /// Writes a whole transaction.
    pub fn transaction(&mut self, work: &Work) {
        let sum = self.body(work);
        self.commit(sum);
    }

    /// Writes everything but the commit block; returns the v1 checksum.
    pub fn body(&mut self, work: &Work) -> u32 {
        let format = self.format.clone();
        self.written.clear();
        let mut buf = vec![0; format.block_size];
        if !work.revokes_last {
            self.revokes(work);
        }
        let mut sum = !0;
        for group in work.copies.chunks(DescriptorBuilder::capacity_of(&format)) {
            let mut builder = DescriptorBuilder::new(&format, self.tid);
            let mut logged = Vec::new();
            for (block, data) in group {
                let mut data = data.clone();
                let escaped = needs_escape(&data);
                if escaped {
                    escape(&mut data);
                }
                builder.push(BlockNr(*block), escaped, tag_checksum(format.seed, self.tid, &data));
                logged.push(data);
            }
            builder.finish(&mut buf);
            sum = v1_checksum(sum, &buf);
            self.append(&buf);
            for data in logged {
                sum = v1_checksum(sum, &data);
                self.append(&data);
            }
        }
        if work.revokes_last {
            self.revokes(work);
        }
        sum
    }

    fn revokes(&mut self, work: &Work) {
        let format = self.format.clone();
        let mut buf = vec![0; format.block_size];
        for group in work.revokes.chunks(RevokeBuilder::capacity_of(&format)) {
            let mut builder = RevokeBuilder::new(&format, self.tid);
            for block in group {
                builder.push(BlockNr(*block));
            }
            builder.finish(&mut buf);
            self.append(&buf);
        }
    }

    pub fn commit(&mut self, v1: u32) {
        let format = self.format.clone();
        let mut buf = vec![0; format.block_size];
        CommitBlock { tid: self.tid, sec: self.sec, nsec: 7 }.encode(&format, Some(v1), &mut buf);
        self.append(&buf);
        self.tid = self.tid.next();
        self.sec += 1;
    }

    pub fn open(&self) -> JournalFile {
        JournalFile::open(self.disk.clone(), self.sb.block_size, self.map.clone()).unwrap()
    }

    /// A copy of the image, on a disk of its own.
    pub fn fork(&self) -> Arc<MemDisk> {
        MemDisk::new(self.disk.bytes())
    }
}
