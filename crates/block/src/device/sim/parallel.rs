//! [`Parallel`]: requests that overlap, on flash or over a network.
//!
//! As many requests as the depth of the queue are in flight at the same time, each for its latency. Their bytes pass
//! over one link, one request after the other. A caller that waits has one in flight. With a page cache with readahead,
//! a sequential read waits only at the beginning of each window.
//!
//! The model leaves out erasing, wear, garbage collection and congestion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::params::Values;
use super::timed::{Arrival, Request};

/// Constants, in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parallel {
    queue_depth: usize,
    read_latency_ns: u64,
    write_latency_ns: u64,
    /// Bytes per nanosecond.
    read_rate: f64,
    write_rate: f64,
    window: u64,
    pub(super) flush_ns: u64,
}

/// The requests in flight, and the last one.
#[derive(Clone, Debug, Default)]
pub(super) struct Lanes {
    /// The time since when a caller that does not wait has been sending.
    since: u64,
    /// The times at which the requests in flight end.
    ends: BinaryHeap<Reverse<u64>>,
    /// The time at which the link is free.
    link: u64,
    /// One past the last byte, and the first byte of the stream to which it belongs.
    end: u64,
    stream: u64,
}

impl Parallel {
    pub(super) fn from_values(values: &mut Values<'_>) -> Result<Parallel, String> {
        let us = |us: f64| (us * 1000.0) as u64;
        let parallel = Parallel {
            queue_depth: values.take_positive("queue_depth")? as usize,
            read_latency_ns: us(values.take("read_latency_us")?),
            write_latency_ns: us(values.take("write_latency_us")?),
            read_rate: values.take_positive("read_mb_per_s")? / 1000.0,
            write_rate: values.take_positive("write_mb_per_s")? / 1000.0,
            window: (values.take_positive("window_kib")? * 1024.0) as u64,
            flush_ns: us(values.take("flush_us")?),
        };
        match parallel.queue_depth == 0 || parallel.window == 0 {
            true => Err("queue_depth and window_kib are whole numbers above 0".into()),
            false => Ok(parallel),
        }
    }

    /// The number of nanoseconds by which the request advances `now`, when everything before it has ended.
    pub(super) fn serve(&self, lanes: &mut Lanes, now: u64, request: Request) -> u64 {
        let Request { offset, len, is_write, arrival } = request;
        let (mut latency, rate) = match is_write {
            true => (self.write_latency_ns, self.write_rate),
            false => (self.read_latency_ns, self.read_rate),
        };
        if offset != lanes.end {
            lanes.stream = offset;
        } else if arrival == Arrival::ReadAhead && !is_write {
            let begun = |bytes: u64| bytes.div_ceil(self.window);
            let goes_on = begun(offset + len - lanes.stream) == begun(offset - lanes.stream);
            latency = if goes_on { 0 } else { latency };
        }
        lanes.end = offset + len;
        let waits = arrival != Arrival::Submitted;
        if waits {
            lanes.wait(now);
        }
        let begin = match lanes.ends.len() < self.queue_depth {
            true => lanes.since,
            false => lanes.ends.pop().map_or(now, |Reverse(end)| end.max(lanes.since)),
        };
        lanes.link = lanes.link.max(begin + latency) + (len as f64 / rate) as u64;
        lanes.ends.push(Reverse(lanes.link));
        let ns = lanes.link.saturating_sub(now);
        if waits {
            lanes.wait(now + ns);
        }
        ns
    }
}

impl Lanes {
    /// Records that nothing is in flight at `now`.
    pub(super) fn wait(&mut self, now: u64) {
        self.ends.clear();
        (self.since, self.link) = (now, now);
    }
}
