//! [`RateDevice`]: a device with a fixed rate, first come, first served.
//!
//! Each request takes its length divided by the rate, after all requests that arrived before it. A flush itself takes
//! no time, but waits for its turn. Bios complete later, on a thread of the device; a waiting call sleeps on its own
//! thread until its turn is over. With [`extant_base::sim`], the time is virtual and a run is exactly reproducible.
//!
//! What it does not do: seeks, caches, reordering, failures (the devices below do the latter).
//!
//! # Locking
//! One leaf lock (`block rate`) protects the queue; it is released before the device below is called.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{Condvar, Mutex};
use extant_base::task::{self, JoinHandle};

use super::wrapper::Wrapper;
use super::{BlockDevice, total_len};
use crate::bio::{Bio, BioFlags};
use crate::error::{Error, Result};
use crate::ranks::RATE;

#[derive(Default)]
struct Line {
    /// The time at which all requests so far will have been served.
    free_ns: u64,
    /// The bios, each with the time at which it will have been served.
    bios: VecDeque<(u64, Bio)>,
    /// The number of bytes of requests that have arrived and have not been served.
    bytes: u64,
    bytes_max: u64,
    stop: bool,
}

struct Inner {
    below: Arc<dyn BlockDevice>,
    clock: Clock,
    /// The rate in bytes per second; 0 for no limit.
    rate: AtomicU64,
    line: Mutex<Line>,
    more: Condvar,
}

/// See the module.
pub struct RateDevice {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl RateDevice {
    /// Creates a device in front of `below`, without a limit until [`RateDevice::set_rate`].
    ///
    /// # Errors
    /// [`Error::Open`] if the system cannot start the thread.
    pub fn new(below: Arc<dyn BlockDevice>) -> Result<RateDevice> {
        let line = Mutex::new(&RATE, Line::default());
        let inner =
            Arc::new(Inner { below, clock: Clock::real(), rate: AtomicU64::new(0), line, more: Condvar::new() });
        let serving = inner.clone();
        let thread = task::spawn("rate-complete", move || serving.serve()).map_err(|e| Error::open("rate", e))?;
        Ok(RateDevice { inner, thread: Mutex::new(&RATE, Some(thread)) })
    }

    /// Serves later requests at this rate; 0 for immediately.
    pub fn set_rate(&self, bytes_per_s: u64) {
        self.inner.rate.store(bytes_per_s, Ordering::SeqCst);
    }

    /// The maximum number of bytes that waited to be served at the same time since the last call.
    pub fn take_waiting_max(&self) -> u64 {
        let mut line = self.inner.line.lock();
        let bytes = line.bytes;
        std::mem::replace(&mut line.bytes_max, bytes)
    }

    /// Serves the pending requests and ends the thread. Nothing may be submitted any more.
    pub fn stop(&self) {
        self.inner.line.lock().stop = true;
        self.inner.more.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for RateDevice {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Inner {
    /// Takes a place in the queue and returns the time at which it will have been served. The thread completes a bio.
    fn stand_in_line(&self, len: u64, bio: Option<Bio>) -> u64 {
        let rate = self.rate.load(Ordering::SeqCst);
        let takes = (u128::from(len) * 1_000_000_000).checked_div(u128::from(rate)).unwrap_or(0) as u64;
        let now = self.clock.now_ns();
        let mut line = self.line.lock();
        let end = line.free_ns.max(now) + takes;
        line.free_ns = end;
        line.bytes += len;
        line.bytes_max = line.bytes_max.max(line.bytes);
        if let Some(bio) = bio {
            line.bios.push_back((end, bio));
            drop(line);
            self.more.notify_one();
        }
        end
    }

    fn sleep_until(&self, end: u64) {
        let now = self.clock.now_ns();
        if end > now {
            self.clock.sleep(Duration::from_nanos(end - now));
        }
    }

    /// For a waiting call: sleeps until its turn is over.
    fn wait_in_line(&self, len: u64) {
        let end = self.stand_in_line(len, None);
        self.sleep_until(end);
        self.line.lock().bytes -= len;
    }

    /// The body of the device's thread.
    fn serve(&self) {
        loop {
            let (end, bio) = {
                let mut line = self.line.lock();
                loop {
                    match line.bios.pop_front() {
                        Some(first) => break first,
                        None if line.stop => return,
                        None => self.more.wait(&mut line),
                    }
                }
            };
            self.sleep_until(end);
            self.line.lock().bytes -= bio.len;
            self.below.submit(bio);
        }
    }
}

impl Wrapper for RateDevice {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.inner.below
    }

    fn completes_later(&self) -> bool {
        true
    }

    fn submit(&self, bio: Bio) {
        self.inner.stand_in_line(bio.len, Some(bio));
    }

    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> Result<()> {
        self.inner.wait_in_line(buf.len() as u64);
        self.inner.below.read_at(offset, buf, flags)
    }

    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> Result<()> {
        self.inner.wait_in_line(total_len(pieces));
        self.inner.below.write_at(offset, pieces, flags)
    }

    fn flush(&self) -> Result<()> {
        self.inner.wait_in_line(0);
        self.inner.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.wait_in_line(0);
        self.inner.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> Result<()> {
        self.inner.wait_in_line(0);
        self.inner.below.write_zeroes(offset, len, flags)
    }
}
