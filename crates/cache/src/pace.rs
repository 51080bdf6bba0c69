//! How fast dirty data comes and goes: the measured rate of a device, a bound on bulk data under way, and the pauses of
//! writers (Linux: mm/page-writeback.c, with a window as in `wbt`, block/blk-wbt.c).
//!
//! Main types: [`Meter`] (the rate, from completions), [`pause_ns`] (how long a writer pauses for what it has dirtied),
//! [`BulkWindow`] (bulk data waits here until the device has room for it).
//!
//! The meter and the pause are functions of time and completions alone: they take no lock, sleep nowhere and read no
//! clock.
//!
//! Bulk data is file data, also that of a large fsync. The journal, metadata and small fsyncs are not bulk, and find at
//! most [`WINDOW_NS`] of it before them at the device.
//!
//! # Locking
//! `bulk window` (212) is a leaf: completions take it, and nothing is submitted under it.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_block::{Bio, BlockDevice};

static CLASS: LockClass = LockClass::new("bulk window", 212);

/// So much of the device's time may be under way as bulk data. An fsync stands behind it three times (data, log, commit
/// record), each time for that long at most.
pub const WINDOW_NS: u64 = 50_000_000;
/// Beyond the time that the device takes for its bytes, a writer pauses no longer than this.
const EXTRA_NS_MAX: u64 = 90_000_000;
/// The rate is measured over at least this much time with bulk data under way.
const SAMPLE_NS: u64 = 50_000_000;
/// Before anything has completed: one request under way, and pauses as on a device of this rate.
const FIRST_WINDOW: u64 = 1 << 20;
const FIRST_RATE: u64 = 100 << 20;
/// A first sample of less is the latency of a request, not a rate.
const FIRST_SAMPLE: u64 = 256 << 10;
/// The window sends units of half of its size, so that the device has the other half meanwhile; within these bounds.
const UNIT_MIN: u64 = 256 << 10;
const UNIT_MAX: u64 = 4 << 20;
/// A file whose writer takes no more than a quarter of the rate, after a start of so many bytes, is written lightly.
const LIGHT_SHARE: u64 = 4;
const LIGHT_START: u64 = 256 << 10;

/// `bytes` at `rate` bytes per second, in nanoseconds.
fn time_ns(bytes: u64, rate: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1))).min(u128::from(u64::MAX)) as u64
}

/// The bytes that pass in `ns` at `rate` bytes per second.
fn bytes_in(ns: u64, rate: u64) -> u64 {
    (u128::from(rate) * u128::from(ns) / 1_000_000_000).min(u128::from(u64::MAX)) as u64
}

/// Measures at which rate bulk data completes while there is some under way.
#[derive(Debug, Default)]
pub struct Meter {
    under_way: u64,
    /// Bulk data has been under way since then without a break, or since the last sample; so much has completed.
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
        // A device that turns out to be much faster is given work at once; one that slows down keeps its name a while.
        self.rate = Some(match self.rate {
            Some(rate) if sample < rate => rate - (rate - sample) / 4,
            Some(rate) if sample < 2 * rate => rate + (sample - rate) / 2,
            _ => sample,
        });
        (self.since_ns, self.completed) = (now_ns, 0);
    }

    /// Bytes per second; `None`: nothing to speak of has completed.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// How much may be under way.
    pub fn window(&self) -> u64 {
        self.rate.map_or(FIRST_WINDOW, |rate| bytes_in(WINDOW_NS, rate))
    }

    /// Whether `bytes` more may be under way: at least one request always is.
    pub fn admits(&self, bytes: u64) -> bool {
        self.under_way == 0 || self.under_way + bytes <= self.window()
    }
}

/// Between these, in dirty bytes, writers pause: below `begin` no writer does, at `limit` the pauses are longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    pub begin: u64,
    pub limit: u64,
}

/// The longest that a writer of `bytes` is made to wait on a device that takes `rate` bytes per second.
pub fn longest_pause_ns(bytes: u64, rate: u64) -> u64 {
    time_ns(bytes, rate).saturating_add(EXTRA_NS_MAX)
}

/// How long a writer pauses that has dirtied `bytes`, with `dirty` bytes in all, on a device of `rate` bytes per
/// second.
///
/// Half-way between the levels it is the time that the device takes for these bytes, so that one writer settles there.
/// Below it is less and above it is more, without a step: more writers settle higher. A light writer pauses only in the
/// uppermost quarter, which many heavy ones together reach.
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

/// How much a file's writer has dirtied lately: the time at which a quarter of the rate has paid for it.
#[derive(Debug, Default)]
pub struct Lightness(AtomicU64);

impl Lightness {
    /// The writer has dirtied `bytes` more: whether it is a light one.
    pub fn is_light(&self, now_ns: u64, bytes: u64, rate: u64) -> bool {
        let share = rate / LIGHT_SHARE;
        let until = self.0.load(Ordering::Relaxed).max(now_ns) + time_ns(bytes, share);
        self.0.store(until.min(now_ns + 2 * time_ns(LIGHT_START, share)), Ordering::Relaxed);
        until - now_ns <= time_ns(LIGHT_START, share)
    }
}

/// Bios that are sent together, neighbours as one request.
struct Unit {
    bios: Vec<Bio>,
    bytes: u64,
}

#[derive(Default)]
struct State {
    meter: Meter,
    waiting: VecDeque<Unit>,
    /// Units that came, and those that have left for the device.
    came: u64,
    left: u64,
    /// A thread sends what may leave; it looks again before it stops.
    sending: bool,
    /// Threads in [`BulkWindow::wait_for`].
    waiters: u32,
}

/// What a unit is waited for by: [`BulkWindow::wait_for`].
#[derive(Clone, Copy, Debug)]
pub struct Sent(u64);

/// Bulk data on its way to one device: no more is under way than the device takes in [`WINDOW_NS`], and the rest waits
/// here, first come first served. No thread has to wait for that.
///
/// Where a device completes inline, whoever sends does the work and is bounded by himself: there it only measures.
pub struct BulkWindow {
    clock: Clock,
    dev: Arc<dyn BlockDevice>,
    bounded: bool,
    /// Of the meter, to be read without the lock; 0: unknown.
    rate: AtomicU64,
    state: Mutex<State>,
    moved: Condvar,
}

impl BulkWindow {
    /// In front of `dev`.
    pub fn new(clock: Clock, dev: Arc<dyn BlockDevice>) -> BulkWindow {
        let (bounded, state) = (dev.completes_later(), Mutex::new(&CLASS, State::default()));
        BulkWindow { clock, dev, bounded, rate: AtomicU64::new(0), state, moved: Condvar::new() }
    }

    /// Bytes per second that bulk data was measured to complete at; as on a usual device before it was.
    pub fn rate(&self) -> u64 {
        match self.rate.load(Ordering::Relaxed) {
            0 => FIRST_RATE,
            rate => rate,
        }
    }

    /// How many bytes are worth sending as one.
    pub fn unit_bytes(&self) -> u64 {
        match (self.bounded, self.rate.load(Ordering::Relaxed)) {
            (false, _) => UNIT_MAX,
            (true, 0) => FIRST_WINDOW,
            (true, rate) => (bytes_in(WINDOW_NS, rate) / 2).clamp(UNIT_MIN, UNIT_MAX) & !0xffff,
        }
    }

    /// How many bytes are worth taking in hand at once. Where a window is small, a unit; a fast device, or one that
    /// completes inline, is not asked for every unit.
    pub fn batch_bytes(&self) -> u64 {
        match (self.bounded, self.rate.load(Ordering::Relaxed)) {
            (false, _) => u64::MAX,
            (true, rate) => (bytes_in(WINDOW_NS, rate) / 4).max(self.unit_bytes()),
        }
    }

    /// Sends the bios, at once or when the window has room. Each is reported by [`BulkWindow::completed`].
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

    /// So many bytes of a bio that was sent have completed.
    pub fn completed(&self, bytes: u64) {
        let now = self.clock.now_ns();
        let mut state = self.state.lock();
        state.meter.completed(now, bytes);
        if let Some(rate) = state.meter.rate() {
            self.rate.store(rate.max(1), Ordering::Relaxed);
        }
        // A bio may complete before it is submitted: then the thread that submits it goes on.
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

    /// Waits until what was sent is under way, with nothing of it and nothing before it waiting here.
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
