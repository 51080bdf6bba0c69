//! The pace of dirty data: the measured rate of a device, a limit on bulk data in flight, and the pauses of writers
//! (Linux: mm/page-writeback.c, with a window as in `wbt`, block/blk-wbt.c).
//!
//! Main types: [`Meter`] (the rate, measured from completions), [`pause_ns`] (the pause of a writer for the data that
//! it has dirtied), [`BulkWindow`] (where bulk data waits until the device has room for it).
//!
//! The meter and the pause depend only on the time and on completions, which are arguments: they take no lock, never
//! sleep and read no clock.
//!
//! Bulk data is file data, including that of a large fsync. The journal, metadata and small fsyncs are not bulk. On the
//! device, they wait for at most [`WINDOW_NS`] of bulk data.
//!
//! # Locking
//! `bulk window` (212) is a leaf. Completions take it, and nothing is submitted under it.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_block::{Bio, BlockDevice};

static CLASS: LockClass = LockClass::new("bulk window", 212);

/// The maximum of bulk data in flight, as the time that the device takes for it. An fsync waits for bulk data three
/// times (data, log, commit record), each time for at most that long.
pub const WINDOW_NS: u64 = 50_000_000;
/// A writer pauses for the time that the device takes for its bytes, plus at most this time.
const EXTRA_NS_MAX: u64 = 90_000_000;
/// The rate is measured over at least this much time with bulk data in flight.
const SAMPLE_NS: u64 = 50_000_000;
/// Before anything has completed, one request is in flight, and pauses are those for a device with this rate.
const FIRST_WINDOW: u64 = 1 << 20;
const FIRST_RATE: u64 = 100 << 20;
/// A first sample of fewer bytes would measure the latency of a request, not a rate.
const FIRST_SAMPLE: u64 = 256 << 10;
/// The minimum and maximum of a unit. The window sends units of half of its size, so that the device works on the other
/// half in the meantime.
const UNIT_MIN: u64 = 256 << 10;
const UNIT_MAX: u64 = 4 << 20;
/// A writer counts as light if, after this many bytes at its start, it dirties at most a quarter of the rate.
const LIGHT_SHARE: u64 = 4;
const LIGHT_START: u64 = 256 << 10;

/// The time for `bytes` at `rate` bytes per second, in nanoseconds.
fn time_ns(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).min(u128::from(u64::MAX)) as u64
}

/// The number of bytes in `ns` at `rate` bytes per second.
fn bytes_in(ns: u64, rate: u64) -> u64 {
    (u128::from(rate) * u128::from(ns) / 1_000_000_000).min(u128::from(u64::MAX)) as u64
}

/// Measures the rate at which bulk data completes while some is in flight.
#[derive(Debug, Default)]
pub struct Meter {
    under_way: u64,
    /// The start of the sample. Bulk data has been in flight without a break since then, and `completed` counts since
    /// then.
    since_ns: u64,
    completed: u64,
    rate: Option<u64>,
}

impl Meter {
    pub fn submitted(&mut self, now_ns: u64, bytes: u64) {
        if self.under_way == 0 {
            (self.since_ns, self.completed) = (now_ns, 0);
        }
        self.under_way += bytes;
    }

    pub fn completed(&mut self, now_ns: u64, bytes: u64) {
        self.under_way = self.under_way.saturating_sub(bytes);
        self.completed += bytes;
        let took = now_ns.saturating_sub(self.since_ns);
        let enough = match self.rate {
            None => took > 0 && self.completed >= FIRST_SAMPLE,
            Some(_) => took >= SAMPLE_NS,
        };
        if !enough {
            return;
        }
        let sample = self.completed.saturating_mul(1_000_000_000) / took;
        // The rate rises immediately if the device is much faster, and falls slowly if a sample is lower.
        self.rate = Some(match self.rate {
            Some(rate) if sample < rate => rate - (rate - sample) / 4,
            Some(rate) if sample < 2 * rate => rate + (sample - rate) / 2,
            _ => sample,
        });
        (self.since_ns, self.completed) = (now_ns, 0);
    }

    /// The rate in bytes per second; `None` if too little has completed for a measurement.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// The maximum number of bytes in flight.
    pub fn window(&self) -> u64 {
        self.rate.map_or(FIRST_WINDOW, |rate| bytes_in(WINDOW_NS, rate))
    }

    /// Whether `bytes` more may be in flight. At least one request always may.
    pub fn admits(&self, bytes: u64) -> bool {
        self.under_way == 0 || self.under_way + bytes <= self.window()
    }
}

/// The amounts of dirty bytes between which writers pause: below `begin` no writer does, and at `limit` the pauses are
/// longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    pub begin: u64,
    pub limit: u64,
}

/// The maximum pause of a writer of `bytes` on a device that takes `rate` bytes per second.
pub fn longest_pause_ns(bytes: u64, rate: u64) -> u64 {
    time_ns(bytes, rate).saturating_add(EXTRA_NS_MAX)
}

/// The pause of a writer that has dirtied `bytes`, with `dirty` bytes in total, on a device of `rate` bytes per second.
///
/// Half-way between the levels, the pause is the time that the device takes for these bytes, so that the amount for a
/// single writer becomes stable there. Below that, the pause is shorter, and above that, longer, without a step: with
/// more writers, the stable amount is higher. A light writer pauses only in the uppermost quarter, which only many
/// heavy writers reach.
pub fn pause_ns(levels: Levels, dirty: u64, bytes: u64, rate: u64, light: bool) -> u64 {
    let Levels { begin, limit } = levels;
    let begin = if light { limit - limit.saturating_sub(begin) / 4 } else { begin };
    let takes = time_ns(bytes, rate);
    let most = longest_pause_ns(bytes, rate);
    match (dirty.saturating_sub(begin), limit.saturating_sub(dirty)) {
        (0, _) => 0,
        (_, 0) => most,
        (above, left) => (u128::from(takes) * u128::from(above) / u128::from(left)).min(u128::from(most)) as u64,
    }
}

/// The recent dirtying by a file's writer, stored as the time at which a quarter of the rate will have covered it.
#[derive(Debug, Default)]
pub struct Lightness(AtomicU64);

impl Lightness {
    /// Counts `bytes` more that the writer has dirtied. Returns whether it is a light writer.
    pub fn is_light(&self, now_ns: u64, bytes: u64, rate: u64) -> bool {
        let share = rate / LIGHT_SHARE;
        let until = self.0.load(Ordering::Relaxed).max(now_ns) + time_ns(bytes, share);
        self.0.store(until.min(now_ns + 2 * time_ns(LIGHT_START, share)), Ordering::Relaxed);
        until - now_ns <= time_ns(LIGHT_START, share)
    }
}

/// Bios that are sent in one call; adjacent ones form one request.
struct Unit {
    bios: Vec<Bio>,
    bytes: u64,
}

#[derive(Default)]
struct State {
    meter: Meter,
    waiting: VecDeque<Unit>,
    /// The number of units that arrived, and of units that were sent to the device.
    came: u64,
    left: u64,
    /// A thread is sending the units that may be sent. It checks for more before it stops.
    sending: bool,
    /// The number of threads in [`BulkWindow::wait_for`].
    waiters: u32,
}

/// Identifies a unit for [`BulkWindow::wait_for`].
#[derive(Clone, Copy, Debug)]
pub struct Sent(u64);

/// Bulk data for one device. At most as much is in flight as the device writes in [`WINDOW_NS`], and the rest is queued
/// here, first come, first served. No thread has to wait for that.
///
/// On a device that completes inline, the sending thread does the work itself, which limits it. The window only
/// measures there.
pub struct BulkWindow {
    clock: Clock,
    dev: Arc<dyn BlockDevice>,
    bounded: bool,
    /// The meter's rate, readable without the lock; 0 if unknown.
    rate: AtomicU64,
    state: Mutex<State>,
    moved: Condvar,
}

impl BulkWindow {
    /// Creates a window in front of `dev`.
    pub fn new(clock: Clock, dev: Arc<dyn BlockDevice>) -> BulkWindow {
        let (bounded, state) = (dev.completes_later(), Mutex::new(&CLASS, State::default()));
        BulkWindow { clock, dev, bounded, rate: AtomicU64::new(0), state, moved: Condvar::new() }
    }

    /// The measured rate of bulk data in bytes per second; before a measurement, the rate of a typical device.
    pub fn rate(&self) -> u64 {
        match self.rate.load(Ordering::Relaxed) {
            0 => FIRST_RATE,
            rate => rate,
        }
    }

    /// The number of bytes to send as one unit.
    pub fn unit_bytes(&self) -> u64 {
        match (self.bounded, self.rate.load(Ordering::Relaxed)) {
            (false, _) => UNIT_MAX,
            (true, 0) => FIRST_WINDOW,
            (true, rate) => (bytes_in(WINDOW_NS, rate) / 2).clamp(UNIT_MIN, UNIT_MAX) & !0xffff,
        }
    }

    /// The number of bytes that writeback should take at once. A small window takes a unit. For a fast device, or one
    /// that completes inline, a larger batch saves a round per unit.
    pub fn batch_bytes(&self) -> u64 {
        match (self.bounded, self.rate.load(Ordering::Relaxed)) {
            (false, _) => u64::MAX,
            (true, rate) => (bytes_in(WINDOW_NS, rate) / 4).max(self.unit_bytes()),
        }
    }

    /// Sends the bios, immediately or when the window has room. The caller reports each with [`BulkWindow::completed`].
    pub fn send(&self, bios: Vec<Bio>) -> Sent {
        let bytes = bios.iter().map(|bio| bio.len).sum();
        let now = self.clock.now_ns();
        let mut state = self.state.lock();
        state.came += 1;
        let sent = Sent(state.came);
        if self.bounded && !(state.waiting.is_empty() && state.meter.admits(bytes)) {
            state.waiting.push_back(Unit { bios, bytes });
            return sent;
        }
        state.left += 1;
        state.meter.submitted(now, bytes);
        drop(state);
        self.dev.submit_all(bios);
        sent
    }

    /// Counts `bytes` of a sent bio as completed, and sends units for which the window now has room.
    pub fn completed(&self, bytes: u64) {
        let now = self.clock.now_ns();
        let mut state = self.state.lock();
        state.meter.completed(now, bytes);
        if let Some(rate) = state.meter.rate() {
            self.rate.store(rate.max(1), Ordering::Relaxed);
        }
        // A bio may complete before its submission returns. Then the submitting thread continues the loop.
        if std::mem::replace(&mut state.sending, true) {
            return;
        }
        while state.waiting.front().is_some_and(|unit| state.meter.admits(unit.bytes))
            && let Some(unit) = state.waiting.pop_front()
        {
            state.left += 1;
            state.meter.submitted(now, unit.bytes);
            if state.waiters > 0 {
                self.moved.notify_all();
            }
            drop(state);
            self.dev.submit_all(unit.bios);
            state = self.state.lock();
        }
        state.sending = false;
    }

    /// Waits until the unit `sent` and all units before it are in flight.
    pub fn wait_for(&self, sent: Sent) {
        let mut state = self.state.lock();
        state.waiters += 1;
        while state.left < sent.0 {
            self.moved.wait(&mut state);
        }
        state.waiters -= 1;
    }
}

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
