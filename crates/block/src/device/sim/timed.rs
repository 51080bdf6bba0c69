//! [`TimedDevice`]: the time that a disk, flash or a network would need for the requests that pass.
//!
//! Each request advances the device's own clock by its service time; nothing sleeps. The result depends on the sequence
//! of requests, so it is exact if the sequence is fixed, as for one thread. Requests of several threads are served as
//! they arrive, so their sum differs from run to run.
//!
//! The way in which requests arrive makes a difference ([`Arrival`]). A waiting call (`read_at`) has one request in
//! flight. A submitted bio is in flight together with those submitted before it. Bios submitted together are served in
//! the best order for a disk.
//!
//! Requests complete inline, regardless of the device below, so that requests sent by completions have a fixed order,
//! too.
//!
//! What it does not do: count the time between requests, or know holes, which a disk does not have.
//!
//! # Locking
//! One leaf lock (`block timed`) protects the model; it is released before the device below is called.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use extant_base::sync::Mutex;

use super::super::wrapper::Wrapper;
use super::super::{BlockDevice, submit_inline, total_len};
use super::disk::{Arm, Cost};
use super::parallel::Lanes;
use super::params::{DeviceModel, Kind};
use crate::bio::{Bio, BioFlags, BioOp};
use crate::error::Result;
use crate::ranks::TIMED;

/// The way in which a request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The caller sends nothing until the request has ended.
    Waits,
    /// The same, through a page cache with readahead: the call of a program, not the request of a device.
    ReadAhead,
    /// The caller continues and sends more.
    Submitted,
}

/// A read or a write.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) is_write: bool,
    pub(super) arrival: Arrival,
}

/// The requests that a device served, and the time that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of requests to read.
    pub reads: u64,
    /// The number of requests to write, or to write zeros.
    pub writes: u64,
    /// The number of flushes that had something to flush.
    pub flushes: u64,
    /// The number of bytes read.
    pub read_bytes: u64,
    /// The number of bytes written.
    pub write_bytes: u64,
    /// The number of requests for which the arm moved, or which waited for the platter to turn.
    pub seeks: u64,
    /// The time of all reads in nanoseconds.
    pub read_ns: u64,
    /// The time of all writes in nanoseconds.
    pub write_ns: u64,
    /// The time of all flushes in nanoseconds.
    pub flush_ns: u64,
    /// The time of the reads that a waiting host lost between its readahead windows, in nanoseconds.
    pub turnaround_ns: u64,
}

impl Usage {
    /// The number of reads and writes.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// The total time in seconds.
    pub fn seconds(&self) -> f64 {
        (self.read_ns + self.write_ns + self.flush_ns) as f64 / 1e9
    }
}

/// The service time of a sequence of requests.
#[derive(Clone, Debug)]
pub struct Timer {
    model: DeviceModel,
    size: u64,
    now: u64,
    arm: Arm,
    lanes: Lanes,
    /// Whether a write has been served since the last flush.
    dirty: bool,
    usage: Usage,
}

impl Timer {
    /// A timer for a device of this model whose first `size` bytes are used. Distances count as fractions of its
    /// capacity, or of `size` if that is larger.
    pub fn new(model: DeviceModel, size: u64) -> Timer {
        let size = size.max(model.capacity());
        let (arm, lanes) = (Arm::default(), Lanes::default());
        Timer { model, size, now: 0, arm, lanes, dirty: false, usage: Usage::default() }
    }

    /// The requests served so far, and their time.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Serves a read of `len` bytes.
    pub fn read(&mut self, offset: u64, len: u64, arrival: Arrival) {
        self.serve(BioOp::Read, offset, len, arrival);
    }

    /// Serves a write of `len` bytes.
    pub fn write(&mut self, offset: u64, len: u64, arrival: Arrival) {
        self.serve(BioOp::Write, offset, len, arrival);
    }

    /// Waits for all requests in flight and, after writes, until they are on the medium.
    pub fn flush(&mut self) {
        self.lanes.wait(self.now);
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let ns = match &self.model.kind {
            Kind::Disk(disk) => disk.flush_ns,
            Kind::Parallel(parallel) => parallel.flush_ns,
        };
        self.now += ns;
        self.usage.flush_ns += ns;
        self.usage.flushes += 1;
    }

    /// Serves requests that arrive together. A disk serves as many as its queue holds in one sweep, from the head
    /// towards the end, then the next sweep (Linux: the elevator).
    pub fn batch(&mut self, requests: impl IntoIterator<Item = (BioOp, u64, u64)>) {
        let Kind::Disk(disk) = &self.model.kind else {
            requests.into_iter().for_each(|(op, at, len)| self.serve(op, at, len, Arrival::Submitted));
            return;
        };
        let depth = disk.queue_depth;
        let requests: Vec<_> = requests.into_iter().collect();
        let mut waiting: VecDeque<usize> = (0..requests.len()).collect();
        let mut queue: BTreeSet<(u64, usize)> = BTreeSet::new();
        loop {
            let room = (depth - queue.len()).min(waiting.len());
            queue.extend(waiting.drain(..room).map(|i| (requests[i].1, i)));
            let ahead = queue.range((self.arm.head, 0)..).next().or_else(|| queue.first()).copied();
            let Some((at, i)) = ahead else { return };
            queue.remove(&(at, i));
            let (op, at, len) = requests[i];
            self.serve(op, at, len, Arrival::Submitted);
        }
    }

    /// Serves one request of any operation.
    fn serve(&mut self, op: BioOp, offset: u64, len: u64, arrival: Arrival) {
        let is_write = match op {
            BioOp::Read => false,
            BioOp::Write | BioOp::WriteZeroes => true,
            BioOp::Flush => return self.flush(),
            // A discard only informs the device, and the arm does not move.
            BioOp::Discard => return,
        };
        if len == 0 {
            return;
        }
        let request = Request { offset, len, is_write, arrival };
        let cost = match &self.model.kind {
            Kind::Disk(disk) => disk.serve(&mut self.arm, self.now, self.size, request),
            Kind::Parallel(parallel) => {
                let ns = parallel.serve(&mut self.lanes, self.now, request);
                Cost { ns, turnaround_ns: 0, seek: false }
            }
        };
        self.now += cost.ns;
        self.usage.seeks += u64::from(cost.seek);
        self.usage.turnaround_ns += cost.turnaround_ns;
        if is_write {
            self.dirty = true;
            self.usage.writes += 1;
            self.usage.write_bytes += len;
            self.usage.write_ns += cost.ns;
        } else {
            self.usage.reads += 1;
            self.usage.read_bytes += len;
            self.usage.read_ns += cost.ns;
        }
    }

    /// Serves one request with its flags.
    fn serve_flagged(&mut self, op: BioOp, offset: u64, len: u64, flags: BioFlags, arrival: Arrival) {
        if flags.contains(BioFlags::PREFLUSH) {
            self.flush();
        }
        self.serve(op, offset, len, arrival);
        if flags.contains(BioFlags::FUA) {
            self.flush();
        }
    }
}

/// See the module.
pub struct TimedDevice {
    below: Arc<dyn BlockDevice>,
    timer: Mutex<Timer>,
}

impl TimedDevice {
    /// A device over `below` that adds up the time that such a device would need.
    pub fn new(below: Arc<dyn BlockDevice>, model: DeviceModel) -> TimedDevice {
        let timer = Mutex::new(&TIMED, Timer::new(model, below.size_bytes()));
        TimedDevice { below, timer }
    }

    /// The requests served so far, and their time.
    pub fn usage(&self) -> Usage {
        self.timer.lock().usage()
    }

    fn wait(&self, op: BioOp, offset: u64, len: u64, flags: BioFlags) {
        self.timer.lock().serve_flagged(op, offset, len, flags, Arrival::Waits);
    }
}

impl Wrapper for TimedDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.below
    }

    fn submit(&self, bio: Bio) {
        self.timer.lock().serve_flagged(bio.op, bio.offset, bio.len, bio.flags, Arrival::Submitted);
        submit_inline(&*self.below, bio);
    }

    fn submit_all(&self, bios: Vec<Bio>) {
        if bios.iter().any(|bio| bio.flags.intersects(BioFlags::PREFLUSH | BioFlags::FUA) || bio.op == BioOp::Flush) {
            return bios.into_iter().for_each(|bio| Wrapper::submit(self, bio));
        }
        self.timer.lock().batch(bios.iter().map(|bio| (bio.op, bio.offset, bio.len)));
        bios.into_iter().for_each(|bio| submit_inline(&*self.below, bio));
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.wait(BioOp::Read, offset, buf.len() as u64, flags);
        self.below.read_at(offset, buf, flags)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.wait(BioOp::Write, offset, total_len(pieces), flags);
        self.below.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.timer.lock().flush();
        self.below.flush()
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.wait(BioOp::WriteZeroes, offset, len, flags);
        self.below.write_zeroes(offset, len, flags)
    }
}
