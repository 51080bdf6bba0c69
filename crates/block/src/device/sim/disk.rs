//! [`Disk`]: platters that turn, one arm, zones of different rates.
//!
//! A request that begins where the last one ended costs its transfer; one that begins slightly further costs the bytes
//! in between, too. Anything else is a *seek*: the arm moves, settles, and waits for the sector, whose position depends
//! on the position of the platter when the arm arrives. A host that waits for each read loses some time at the first
//! windows of a stream, until its readahead is ahead of it ([`Disk::turnaround_ns`]).
//!
//! The model leaves out the skew between tracks (streams run at the sustained rate), a write cache that reorders,
//! remapped sectors, and time between requests.

use super::params::Values;
use super::timed::{Arrival, Request};

/// Constants of a disk, in nanoseconds and bytes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Disk {
    revolution_ns: f64,
    zones: u64,
    /// Bytes per nanosecond.
    outer: f64,
    inner: f64,
    /// The time of a seek to another cylinder is this, plus `seek_stroke_ns` times the square root of the distance as a
    /// fraction of the disk.
    seek_track_ns: f64,
    seek_stroke_ns: f64,
    near: u64,
    near_ns: f64,
    settle_ns: f64,
    skip: u64,
    pub(super) queue_depth: usize,
    window: u64,
    ramp: u64,
    turnaround_ns: f64,
    pub(super) flush_ns: u64,
}

/// The position of the arm. The position of the platter depends on the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Arm {
    /// One past the last byte that passed the head.
    pub(super) head: u64,
    /// The first byte of the stream at the head.
    stream: u64,
}

/// The service time of one request, and whether the arm moved for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    pub(super) ns: u64,
    /// The part of the service time that the host lost between windows.
    pub(super) turnaround_ns: u64,
    pub(super) seek: bool,
}

impl Disk {
    pub(super) fn from_values(values: &mut Values<'_>) -> Result<Disk, String> {
        const MS: f64 = 1e6;
        let (kib, per_ns) = (|n: f64| (n * 1024.0) as u64, |mb: f64| mb / 1000.0);
        let disk = Disk {
            revolution_ns: 60e9 / values.take_positive("rpm")?,
            zones: values.take_positive("zones")? as u64,
            outer: per_ns(values.take_positive("outer_mb_per_s")?),
            inner: per_ns(values.take_positive("inner_mb_per_s")?),
            seek_track_ns: values.take("seek_track_ms")? * MS,
            seek_stroke_ns: values.take("seek_stroke_ms")? * MS,
            near: kib(values.take("near_kib")?),
            near_ns: values.take("near_ms")? * MS,
            settle_ns: values.take("settle_ms")? * MS,
            skip: kib(values.take("skip_kib")?),
            queue_depth: values.take_positive("queue_depth")? as usize,
            window: kib(values.take_positive("window_kib")?),
            ramp: values.take("ramp_windows")? as u64,
            turnaround_ns: values.take("turnaround_ms")? * MS,
            flush_ns: (values.take("flush_ms")? * MS) as u64,
        };
        if disk.zones == 0 || disk.queue_depth == 0 || disk.window == 0 {
            return Err("zones, queue_depth and window_kib are whole numbers above 0".into());
        }
        Ok(disk)
    }

    /// The rate at `offset` of a disk of `size` bytes, and the distance of `offset` from the start of its zone.
    fn zone(&self, offset: u64, size: u64) -> (f64, u64) {
        let width = (size / self.zones).max(1);
        let zone = (offset / width).min(self.zones - 1);
        let inwards = zone as f64 / (self.zones - 1).max(1) as f64;
        (self.outer + (self.inner - self.outer) * inwards, offset - zone * width)
    }

    /// Moves the arm over the request, which begins at `now` on a disk of `size` bytes.
    pub(super) fn serve(&self, arm: &mut Arm, now: u64, size: u64, request: Request) -> Cost {
        let Request { offset, len, is_write, arrival } = request;
        let (rate, in_zone) = self.zone(offset, size);
        let follows = offset >= arm.head && offset - arm.head <= self.skip;
        let ns = if follows {
            (offset - arm.head + len) as f64 / rate
        } else {
            let distance = offset.abs_diff(arm.head);
            let seek = if distance <= self.near {
                self.near_ns
            } else {
                self.seek_track_ns + self.seek_stroke_ns * (distance as f64 / size.max(1) as f64).sqrt()
            };
            let arrives = now as f64 + seek + self.settle_ns;
            let track = rate * self.revolution_ns;
            let wanted = (in_zone as f64 / track).fract();
            let is = (arrives / self.revolution_ns).fract();
            let turn = if wanted >= is { wanted - is } else { 1.0 + wanted - is };
            arm.stream = offset;
            seek + self.settle_ns + turn * self.revolution_ns + len as f64 / rate
        };
        let waits = arrival != Arrival::Submitted && !is_write;
        let lost = if waits { self.windows_begun(arm, offset, len) as f64 * self.turnaround_ns } else { 0.0 };
        arm.head = offset + len;
        Cost { ns: (ns + lost) as u64, turnaround_ns: lost as u64, seek: !follows }
    }

    /// The number of the first windows of the stream, except its very first, that begin in this request.
    fn windows_begun(&self, arm: &Arm, offset: u64, len: u64) -> u64 {
        let before = |end: u64| (end.saturating_sub(arm.stream).div_ceil(self.window)).clamp(1, self.ramp + 1);
        before(offset + len) - before(offset)
    }
}
