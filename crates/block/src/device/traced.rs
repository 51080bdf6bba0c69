//! [`TracedDevice`]: records every request, for tests that count I/O and for debugging.
//!
//! What it does not do: measure their time.
//!
//! # Locking
//! One leaf lock (`block traced`) protects the records; it is released before the device below is called.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::sync::Mutex;

use super::wrapper::Wrapper;
use super::{BlockDevice, IoCounters, IoStats, total_len};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::error::Result;
use crate::ranks::TRACED;

/// The maximum number of records that are not taken; the oldest are dropped first.
const RECORDS_MAX: usize = 1 << 20;

/// One request as it was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The operation.
    pub op: BioOp,
    /// The start in bytes.
    pub offset: u64,
    /// The length in bytes; 0 for a flush.
    pub len: u64,
    /// The flags of the request.
    pub flags: BioFlags,
}

impl TraceRecord {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// A device that passes everything on and records it.
pub struct TracedDevice {
    inner: Arc<dyn BlockDevice>,
    records: Mutex<VecDeque<TraceRecord>>,
    counters: IoCounters,
}

impl TracedDevice {
    /// Records every request to `inner` after this call.
    pub fn new(inner: Arc<dyn BlockDevice>) -> TracedDevice {
        TracedDevice { inner, records: Mutex::new(&TRACED, VecDeque::new()), counters: IoCounters::default() }
    }

    /// Takes the records so far, oldest first.
    pub fn take(&self) -> Vec<TraceRecord> {
        std::mem::take(&mut *self.records.lock()).into()
    }

    /// A copy of the records so far, oldest first.
    pub fn records(&self) -> Vec<TraceRecord> {
        self.records.lock().iter().copied().collect()
    }

    /// The number of records of this operation.
    pub fn count(&self, op: BioOp) -> usize {
        self.records.lock().iter().filter(|r| r.op == op).count()
    }

    fn record(&self, op: BioOp, offset: u64, len: u64, flags: BioFlags) {
        match op {
            BioOp::Read => self.counters.read(len),
            BioOp::Write => self.counters.write(len, flags),
            BioOp::Flush => self.counters.flush(),
            BioOp::Discard => self.counters.discard(),
            BioOp::WriteZeroes => self.counters.write_zeroes(flags),
        }
        let mut records = self.records.lock();
        if records.len() == RECORDS_MAX {
            records.pop_front();
        }
        records.push_back(TraceRecord { op, offset, len, flags });
    }
}

impl Wrapper for TracedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner
    }

    fn completes_later(&self) -> bool {
        self.inner.completes_later()
    }

    fn submit(&self, bio: Bio) {
        self.record(bio.op, bio.offset, bio.len, bio.flags);
        self.inner.submit(bio);
    }

    fn submit_all(&self, bios: Vec<Bio>) {
        for bio in &bios {
            self.record(bio.op, bio.offset, bio.len, bio.flags);
        }
        self.inner.submit_all(bios);
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.record(BioOp::Read, offset, buf.len() as u64, flags);
        self.inner.read_at(offset, buf, flags)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.record(BioOp::Write, offset, total_len(pieces), flags);
        self.inner.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.record(BioOp::Flush, 0, 0, BioFlags::empty());
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.record(BioOp::Discard, offset, len, BioFlags::empty());
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.record(BioOp::WriteZeroes, offset, len, flags);
        self.inner.write_zeroes(offset, len, flags)
    }

    fn stats(&self) -> IoStats {
        self.counters.get()
    }
}
