//! One process of a workload: calls the target, times each operation, counts bytes.
//!
//! Main types: [`Worker`], [`Histograms`]. While timing is on, each operation costs two clock readings and one
//! histogram update; while it is off, it is a plain call. The clock is the processor's time stamp counter if that is
//! usable (according to `quanta`). Two readings of the machine's clock took two thirds of the time of recording.
//!
//! # Locking
//! None: each worker has its own histograms, merged when it has ended.

use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use hdrhistogram::Histogram;
use quanta::Clock;

use super::{Node, OPS, Op, Stat, Vfs, VfsResult};
use crate::error::{Error, Result};

/// Significant decimal digits of latencies: the error is below 1 %, and histograms are small enough for hundreds of
/// workers.
const DIGITS: u8 = 2;
/// The longest latency with its own bucket, in nanoseconds (an hour).
const LONGEST_NS: u64 = 3_600_000_000_000;

/// The buckets of an HdrHistogram with [`DIGITS`] digits from 1 to [`LONGEST_NS`]: 256 of one nanosecond each, then 128
/// per doubling. Our own code records into them, because that takes a quarter of the instructions. Readers get an
/// HdrHistogram, made bucket by bucket.
#[derive(Debug)]
struct Buckets(Box<[u64; BUCKETS]>);

/// Buckets per doubling.
const HALF: usize = 128;
/// 2^42 nanoseconds are more than an hour.
const BUCKETS: usize = (42 - 8 + 2) * HALF;

impl Buckets {
    fn new() -> Buckets {
        Buckets(Box::new([0; BUCKETS]))
    }

    #[inline]
    fn record(&mut self, ns: u64) {
        let ns = ns.min(LONGEST_NS);
        let shift = 56 - (ns | 0xff).leading_zeros();
        self.0[shift as usize * HALF + (ns >> shift) as usize] += 1;
    }

    fn histogram(&self) -> Option<Histogram<u64>> {
        let mut histogram = Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).ok()?;
        for (at, n) in self.0.iter().enumerate().filter(|(_, n)| **n > 0) {
            let shift = (at / HALF).saturating_sub(1);
            histogram.saturating_record_n(((at - shift * HALF) as u64) << shift, *n);
        }
        Some(histogram)
    }
}

/// A histogram of latencies in nanoseconds for each kind of operation, created at the first sample.
#[derive(Debug, Default)]
pub struct Histograms([Option<Buckets>; OPS]);

impl Histograms {
    /// Adds a sample, in nanoseconds.
    pub fn record(&mut self, op: Op, ns: u64) {
        self.0[op as usize].get_or_insert_with(Buckets::new).record(ns);
    }

    /// Adds the samples of another worker.
    pub fn merge(&mut self, other: Histograms) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            match (mine.as_mut(), theirs) {
                (Some(mine), Some(theirs)) => mine.0.iter_mut().zip(theirs.0.iter()).for_each(|(m, t)| *m += t),
                (None, theirs) => *mine = theirs,
                (Some(_), None) => {}
            }
        }
    }

    /// The histograms that have samples.
    pub fn iter(&self) -> impl Iterator<Item = (Op, Histogram<u64>)> {
        Op::ALL.iter().filter_map(|op| Some((*op, self.0[*op as usize].as_ref()?.histogram()?)))
    }
}

/// One process of a workload.
pub struct Worker<'a> {
    vfs: &'a dyn Vfs,
    clock: &'a Clock,
    timed: bool,
    slow: f64,
    stop: &'a AtomicBool,
    histograms: Histograms,
    operations: u64,
    bytes: u64,
    /// Random numbers of this process in this phase, the same for every target.
    pub rng: Rng,
    /// Bytes to write, the same for every target. At least 1 MiB.
    pub data: &'a [u8],
    /// Memory to read into.
    pub buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    /// `timed`: whether latencies are recorded, read from `clock`. `stop`: ends the worker at its next operation.
    pub fn new(
        vfs: &'a dyn Vfs,
        clock: &'a Clock,
        timed: bool,
        seed: u64,
        data: &'a [u8],
        stop: &'a AtomicBool,
    ) -> Worker<'a> {
        Worker {
            vfs,
            clock,
            timed,
            slow: vfs.slow(),
            stop,
            histograms: Histograms::default(),
            operations: 0,
            bytes: 0,
            rng: Rng::new(seed),
            data,
            buffer: Vec::new(),
        }
    }

    /// Whether the run must end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Adds `n` to the phase's count.
    pub fn done(&mut self, n: u64) {
        self.operations += n;
    }

    /// The counts: operations, bytes, latencies.
    pub fn finish(self) -> (u64, u64, Histograms) {
        (self.operations, self.bytes, self.histograms)
    }

    fn call<T>(&mut self, op: Op, path: &str, f: impl FnOnce(&dyn Vfs) -> VfsResult<T>) -> Result<T> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let result = if self.timed || self.slow > 0.0 {
            let start = self.clock.raw();
            let result = f(self.vfs);
            let mut took = self.clock.delta_as_nanos(start, self.clock.raw());
            let until = took + (took as f64 * self.slow) as u64;
            while took < until {
                took = self.clock.delta_as_nanos(start, self.clock.raw());
            }
            if self.timed {
                self.histograms.record(op, took);
            }
            result
        } else {
            f(self.vfs)
        };
        result.map_err(|source| Error::Operation { op: op.name(), path: path.to_owned(), source })
    }

    /// See [`Vfs::mkdir`].
    pub fn mkdir(&mut self, path: &str) -> Result<()> {
        self.call(Op::Mkdir, path, |v| v.mkdir(path))
    }

    /// See [`Vfs::create`].
    pub fn create(&mut self, path: &str) -> Result<Node> {
        self.call(Op::Create, path, |v| v.create(path))
    }

    /// See [`Vfs::open`].
    pub fn open(&mut self, path: &str) -> Result<Node> {
        self.call(Op::Open, path, |v| v.open(path))
    }

    /// Writes `len` bytes of [`Worker::data`], taken from a position that depends on the offset; in pieces if `len` is
    /// longer than the data.
    pub fn write(&mut self, node: &Node, offset: u64, len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            let data = self.data;
            let from = (offset + done) as usize % (data.len() / 2).max(1);
            let piece = (len - done).min((data.len() - from) as u64) as usize;
            let bytes = &data[from..from + piece];
            self.call(Op::Write, "", |v| v.write_at(node, offset + done, bytes))?;
            done += piece as u64;
        }
        self.bytes += len;
        Ok(())
    }

    /// Reads `len` bytes, or to the end of the file; returns the number of bytes read.
    pub fn read(&mut self, node: &Node, offset: u64, len: usize) -> Result<usize> {
        let mut buffer = std::mem::take(&mut self.buffer);
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        let result = self.call(Op::Read, "", |v| v.read_at(node, offset, &mut buffer[..len]));
        self.buffer = buffer;
        self.bytes += *result.as_ref().unwrap_or(&0) as u64;
        result
    }

    /// See [`Vfs::fsync`].
    pub fn fsync(&mut self, node: &Node) -> Result<()> {
        self.call(Op::Fsync, "", |v| v.fsync(node))
    }

    /// See [`Vfs::fdatasync`].
    pub fn fdatasync(&mut self, node: &Node) -> Result<()> {
        self.call(Op::Fdatasync, "", |v| v.fdatasync(node))
    }

    /// See [`Vfs::fsync_many`].
    pub fn fsync_many(&mut self, nodes: &[Node], waiters: usize) -> Result<()> {
        self.call(Op::FsyncMany, "", |v| v.fsync_many(nodes, waiters))
    }

    /// See [`Vfs::close`].
    pub fn close(&mut self, node: Node) -> Result<()> {
        self.call(Op::Close, "", |v| v.close(node))
    }

    /// See [`Vfs::unlink`].
    pub fn unlink(&mut self, path: &str) -> Result<()> {
        self.call(Op::Unlink, path, |v| v.unlink(path))
    }

    /// See [`Vfs::rmdir`].
    pub fn rmdir(&mut self, path: &str) -> Result<()> {
        self.call(Op::Rmdir, path, |v| v.rmdir(path))
    }

    /// See [`Vfs::rename`].
    pub fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.call(Op::Rename, from, |v| v.rename(from, to))
    }

    /// See [`Vfs::stat`].
    pub fn stat(&mut self, path: &str) -> Result<Stat> {
        self.call(Op::Stat, path, |v| v.stat(path))
    }

    /// See [`Vfs::readdir`].
    pub fn readdir(&mut self, path: &str) -> Result<u64> {
        self.call(Op::Readdir, path, |v| v.readdir(path))
    }

    /// See [`Vfs::symlink`].
    pub fn symlink(&mut self, target: &str, path: &str) -> Result<()> {
        self.call(Op::Symlink, path, |v| v.symlink(target, path))
    }

    /// See [`Vfs::truncate`].
    pub fn truncate(&mut self, node: &Node, size: u64) -> Result<()> {
        self.call(Op::Truncate, "", |v| v.truncate(node, size))
    }

    /// See [`Vfs::sync_all`].
    pub fn sync_all(&mut self) -> Result<()> {
        self.call(Op::Sync, "", |v| v.sync_all())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_are_those_of_hdrhistogram() {
        let mut buckets = Buckets::new();
        let mut direct = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, DIGITS).expect("bounds");
        let mut rng = Rng::new(1);
        for shift in 0..64 {
            for _ in 0..20 {
                let ns = (rng.next_u64() >> shift).min(LONGEST_NS);
                buckets.record(ns);
                direct.saturating_record(ns);
            }
        }
        [0, 1, 255, 256, 257, 511, 512, LONGEST_NS - 1, LONGEST_NS].iter().for_each(|ns| {
            buckets.record(*ns);
            direct.saturating_record(*ns);
        });
        let read = buckets.histogram().expect("bounds");
        assert_eq!(read.len(), 64 * 20 + 9);
        let buckets = |h: &Histogram<u64>| -> Vec<(u64, u64)> {
            h.iter_recorded().map(|b| (h.highest_equivalent(b.value_iterated_to()), b.count_at_value())).collect()
        };
        assert!(buckets(&read) == buckets(&direct), "another bucket");
        assert_eq!((read.max(), read.mean(), read.len()), (direct.max(), direct.mean(), direct.len()));
    }
}
