//! A disk with a queue in front: reads first, writes in the order of their addresses.
//!
//! Main types: [`Disk`], [`Request`]. Linux 3.9: cfq-iosched, as far as one process that reads and several that write
//! see it: it serves only reads for [`READ_SLICE_NS`], then writes for [`WRITE_SLICE_NS`]. Among writes the head moves
//! up and starts again at the bottom (C-LOOK). A write that continues a waiting one is merged with it.
//!
//! What it does not do: have a cache of its own. The time for the platter to come round is always half a turn.
//!
//! # Locking
//! None.

use std::collections::VecDeque;

use super::memory::PAGE;
use super::settings::Settings;

/// Pages of a request at most: 512 KiB (Linux: `max_sectors_kb`).
pub const REQUEST_PAGES: u64 = 128;
/// Waiting requests of one direction (Linux: `nr_requests`); from 7/8 of it on the queue is congested, until 13/16.
const REQUESTS: usize = 128;

/// A process that has waited for room in a full queue may add so many requests (Linux: `BLK_BATCH_REQ`).
const BATCH: usize = 32;

const READ_SLICE_NS: u64 = 100_000_000;
const WRITE_SLICE_NS: u64 = 40_000_000;
/// The number of the youngest writes among which a continued one is searched.
const MERGE_LOOKS: usize = 16;

/// From one track to the next, half a turn at 7,200 a minute, and across [`STROKE_PAGES`].
const SEEK_LEAST_NS: f64 = 1e6;
const TURN_NS: f64 = 4.17e6;
const SEEK_MEAN_NS: f64 = 8.5e6;
const STROKE_PAGES: f64 = 25e6;
/// The cost of a request that does not continue the one before.
const COMMAND_NS: f64 = 0.1e6;

/// The owner of a request's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Of the program's memory.
    Anon(u32),
    /// Of the file that is written.
    File(u32),
}

#[derive(Debug)]
pub struct Request {
    pub write: bool,
    /// The first page on the disk.
    pub at: u64,
    pub pages: u64,
    pub carries: Vec<Page>,
    pub submitted_ns: u64,
}

/// The figures that iostat(1) samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub reads: u64,
    pub read_wait_ns: u64,
    pub writes: u64,
    pub write_wait_ns: u64,
    /// Requests that wait or are served, times nanoseconds.
    pub queue_ns: u64,
    pub pages_read: u64,
    pub pages_written: u64,
}

#[derive(Debug)]
pub struct Disk {
    reads: VecDeque<Request>,
    writes: Vec<Request>,
    current: Option<Request>,
    head: u64,
    /// Only reads are served until then.
    slice_end_ns: u64,
    depth: usize,
    /// Requests that may still be added though the queue is full.
    batch: usize,
    page_ns: f64,
    pub traffic: Traffic,
    counted_until_ns: u64,
}

impl Disk {
    pub fn new(settings: &Settings) -> Disk {
        Disk {
            reads: VecDeque::new(),
            writes: Vec::new(),
            current: None,
            head: 0,
            slice_end_ns: 0,
            depth: (REQUESTS / settings.scale as usize).max(4),
            batch: 0,
            page_ns: PAGE as f64 * 1e9 / settings.disk_bytes_per_s,
            traffic: Traffic::default(),
            counted_until_ns: 0,
        }
    }

    pub fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Linux: `bdi_write_congested`.
    pub fn congested(&self) -> bool {
        self.writes.len() * 8 > self.depth * 7
    }

    /// Linux: `clear_bdi_congested`, at the end of a write.
    pub fn uncongested(&self) -> bool {
        self.writes.len() * 16 < self.depth * 13
    }

    /// The flusher waits for room.
    pub fn full(&self) -> bool {
        self.writes.len() >= self.depth
    }

    /// Adds the time up to now to iostat's figures.
    pub fn observe(&mut self, now: u64) {
        let queued = self.writes.len() + self.reads.len() + usize::from(self.current.is_some());
        self.traffic.queue_ns += (now - self.counted_until_ns) * queued as u64;
        self.counted_until_ns = now;
    }

    pub fn submit(&mut self, request: Request) {
        self.observe(request.submitted_ns);
        if request.write {
            self.writes.push(request);
        } else {
            self.reads.push_back(request);
        }
    }

    /// A write of one page: it continues one of the youngest requests, or is a new one, for which there may be no room.
    /// Returns how long the writer sleeps until there is some (Linux: `get_request`).
    pub fn write_page(&mut self, at: u64, page: Page, now: u64) -> u64 {
        let fits = |w: &&mut Request| w.at + w.pages == at && w.pages < REQUEST_PAGES;
        if let Some(w) = self.writes.iter_mut().rev().take(MERGE_LOOKS).find(fits) {
            w.pages += 1;
            w.carries.push(page);
            return 0;
        }
        let full = self.full();
        let sleep = if full && self.batch == 0 {
            self.batch = BATCH;
            (self.writes.len() + 1 - self.depth) as u64 * (REQUEST_PAGES as f64 * self.page_ns) as u64
        } else {
            self.batch -= usize::from(full);
            0
        };
        self.submit(Request { write: true, at, pages: 1, carries: vec![page], submitted_ns: now });
        sleep
    }

    /// Begins the next request if the disk is idle; returns when it will be done.
    pub fn start(&mut self, now: u64) -> Option<u64> {
        if self.current.is_some() {
            return None;
        }
        self.observe(now);
        let reads_may = self.writes.is_empty() || now < self.slice_end_ns || now > self.slice_end_ns + WRITE_SLICE_NS;
        let request = if !self.reads.is_empty() && reads_may {
            if now > self.slice_end_ns {
                self.slice_end_ns = now + READ_SLICE_NS;
            }
            self.reads.pop_front()?
        } else {
            let ahead = |at: u64| if at >= self.head { at - self.head } else { at + (1 << 40) };
            let next = (0..self.writes.len()).min_by_key(|i| ahead(self.writes[*i].at))?;
            self.writes.swap_remove(next)
        };
        let distance = request.at.abs_diff(self.head);
        let seek = if distance == 0 {
            0.0
        } else {
            let share = (distance as f64 / STROKE_PAGES).min(1.0);
            COMMAND_NS + SEEK_LEAST_NS + (SEEK_MEAN_NS - SEEK_LEAST_NS) * 1.6 * share.sqrt() + TURN_NS
        };
        self.head = request.at + request.pages;
        let done = now + (seek + request.pages as f64 * self.page_ns) as u64;
        self.current = Some(request);
        Some(done)
    }

    /// The current request is done.
    pub fn complete(&mut self, now: u64) -> Option<Request> {
        self.observe(now);
        let request = self.current.take()?;
        let waited = now - request.submitted_ns;
        let t = &mut self.traffic;
        if request.write {
            (t.writes, t.write_wait_ns) = (t.writes + 1, t.write_wait_ns + waited);
            t.pages_written += request.pages;
        } else {
            (t.reads, t.read_wait_ns) = (t.reads + 1, t.read_wait_ns + waited);
            t.pages_read += request.pages;
        }
        Some(request)
    }
}
