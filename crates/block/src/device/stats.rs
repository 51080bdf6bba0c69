//! [`IoStats`] and the counters that it is made from.

use extant_base::counter::{self, Counter};

use crate::bio::BioFlags;

/// Exact counts since the device was opened, of every request that passed the checks and was sent to the medium,
/// whether it succeeded there or not. A wrapper counts the requests that it passes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStats {
    /// The number of requests to read.
    pub reads: u64,
    /// The number of bytes that were read.
    pub read_bytes: u64,
    /// The number of requests to write; one without data is a flush and does not count.
    pub writes: u64,
    /// The number of bytes that were written.
    pub write_bytes: u64,
    /// The number of flushes: requests to flush, PREFLUSH and FUA.
    pub flushes: u64,
    /// The number of requests to discard.
    pub discards: u64,
    /// The number of requests to write zeros, which are not included in `writes` and `write_bytes`.
    pub write_zeroes: u64,
}

/// The counters of an implementer of [`super::BlockDevice`].
#[derive(Debug)]
pub struct IoCounters {
    reads: Counter,
    read_bytes: Counter,
    writes: Counter,
    write_bytes: Counter,
    flushes: Counter,
    discards: Counter,
    write_zeroes: Counter,
}

impl Default for IoCounters {
    fn default() -> IoCounters {
        let [reads, read_bytes, writes, write_bytes, flushes, discards, write_zeroes] = counter::group();
        IoCounters { reads, read_bytes, writes, write_bytes, flushes, discards, write_zeroes }
    }
}

impl IoCounters {
    /// Counts a read of `len` bytes.
    pub fn read(&self, len: u64) {
        self.reads.inc();
        self.read_bytes.add(len);
    }

    /// Counts a write with its flags. A write without data only flushes, and counts as a flush.
    pub fn write(&self, len: u64, flags: BioFlags) {
        if len > 0 {
            self.writes.inc();
            self.write_bytes.add(len);
        }
        self.flags(flags);
    }

    /// Counts a request to flush.
    pub fn flush(&self) {
        self.flushes.inc();
    }

    /// Counts a discard.
    pub fn discard(&self) {
        self.discards.inc();
    }

    /// Counts a request to write zeroes; its flags may flush, too.
    pub fn write_zeroes(&self, flags: BioFlags) {
        self.write_zeroes.inc();
        self.flags(flags);
    }

    fn flags(&self, flags: BioFlags) {
        let n = u64::from(flags.contains(BioFlags::PREFLUSH)) + u64::from(flags.contains(BioFlags::FUA));
        if n > 0 {
            self.flushes.add(n);
        }
    }

    /// The counts so far. They may be from slightly different times while other threads count.
    pub fn get(&self) -> IoStats {
        IoStats {
            reads: self.reads.get(),
            read_bytes: self.read_bytes.get(),
            writes: self.writes.get(),
            write_bytes: self.write_bytes.get(),
            flushes: self.flushes.get(),
            discards: self.discards.get(),
            write_zeroes: self.write_zeroes.get(),
        }
    }
}
