//! Chooses the workers that wait in read(2).
//!
//! The kernel hands requests to waiting readers in turn. So each request of a single client would wake another thread,
//! with cold caches and perhaps on another processor. Here one worker reads and serves as long as that is enough, and
//! the others are parked. A parked worker is called
//! - when a worker is about to sleep inside the server and no other one reads
//!   ([`task::before_sleep`](extant_base::task));
//! - when a worker has found [`PATIENCE`] requests in a row already waiting, from more than one client, and there is a
//!   free processor.
//!
//! A worker that had to wait for [`OVERLAPS`] requests while another reader also waited is superfluous, and parks. So
//! does a worker that slept in the server, if its replacement reads. The standby is the parked worker that will be
//! called last. It detects sleep that is not announced, and requests that take long. While requests arrive, it checks
//! every [`TICK`] whether any was read since, or a worker waits for one. If not, it takes over. On an idle mount it
//! sleeps as well. In both cases it first releases the workers that follow a client ([`super::follow`]). At each check
//! it also watches those that are aside ([`super::aside`]).
//!
//! Main types: [`WorkerPool`], and [`Worker`], one worker's memory from one request to the next.
//!
//! What it does not do: it never limits how many requests may sleep in the server; the number of workers does.
//!
//! # Locking
//! `fuse worker pool` (1001) guards the parked workers. It is taken to park and to call, not while one worker can
//! serve by itself. It is a leaf: a worker that is about to sleep takes it with any lock of the server held.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;

use super::aside::TICK;
use super::follow::Bound;

static CLASS: LockClass = LockClass::new("fuse worker pool", 1001);

/// After this many requests in a row that were already waiting, a worker calls another one to help.
const PATIENCE: u32 = 64;
/// After this many requests in a row for which a worker had to wait beside another reader, it parks.
const OVERLAPS: u32 = 8;
/// A read that took no longer than this found its request waiting. Falling asleep and waking up would take longer.
const AT_ONCE: Duration = Duration::from_micros(3);
/// Copying a request from the kernel takes time as well: this much for each [`COPIED`] bytes.
const COPY: Duration = Duration::from_micros(1);
const COPIED: u32 = 2048;

/// [`WorkerPool::state`] counts readers in its low bits, and requests in the others.
const READERS: u64 = 0xffff;
const REQUEST: u64 = READERS + 1;

struct Parked {
    /// The parked workers; the last is called first, because its caches are the warmest. The first is the standby.
    waiting: Vec<usize>,
    called: Vec<bool>,
    /// A call found no parked worker: the next worker that would park reads instead.
    wanted: bool,
}

/// Event counts since the mount.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrewStats {
    /// Workers called because another was about to sleep.
    pub replaced: u64,
    /// Workers called because requests were waiting.
    pub reinforced: u64,
    /// How often the standby took over.
    pub taken_over: u64,
}

/// The workers of one mount.
pub(crate) struct WorkerPool {
    /// How many workers wait in read(2) or are about to, and how many requests were read.
    state: AtomicU64,
    /// How many workers have started and are neither parked nor asleep in the server.
    running: AtomicUsize,
    /// Whether the standby sleeps without a tick.
    deputy_sleeps: AtomicBool,
    over: AtomicBool,
    processors: usize,
    /// The workers that follow a client.
    bound: Arc<Bound>,
    /// How many readers are enough: one, if it can follow its client. Otherwise two take turns, so that now and then
    /// one of them is on the client's processor.
    keep: u64,
    /// See [`AT_ONCE`].
    at_once: Duration,
    parked: Mutex<Parked>,
    wakeups: Vec<Condvar>,
    replaced: Counter,
    reinforced: Counter,
    taken_over: Counter,
}

/// One worker's memory.
pub(crate) struct Worker {
    me: usize,
    /// Requests in a row that the worker read without waiting.
    streak: u32,
    /// Requests in a row that the worker had to wait for, beside another reader.
    overlaps: u32,
    /// Whether to park if another worker reads.
    one_too_many: bool,
    since: Instant,
}

impl WorkerPool {
    /// For up to `workers` workers; some threads may fail to start.
    pub fn new(workers: usize) -> WorkerPool {
        let bound = Arc::new(Bound::new(workers));
        WorkerPool {
            state: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            deputy_sleeps: AtomicBool::new(false),
            over: AtomicBool::new(false),
            processors: task::processors(),
            // Tests count the work of a single reader, with or without the privilege.
            keep: if cfg!(test) || bound.can_follow() { 1 } else { 2 },
            bound,
            at_once: AT_ONCE,
            parked: Mutex::new(
                &CLASS,
                Parked { waiting: Vec::with_capacity(workers), called: vec![false; workers], wanted: false },
            ),
            wakeups: (0..workers).map(|_| Condvar::new()).collect(),
            replaced: Counter::new(),
            reinforced: Counter::new(),
            taken_over: Counter::new(),
        }
    }

    #[cfg(test)]
    pub fn stats(&self) -> CrewStats {
        CrewStats {
            replaced: self.replaced.get(),
            reinforced: self.reinforced.get(),
            taken_over: self.taken_over.get(),
        }
    }

    /// The workers that follow a client.
    pub(super) fn bound(&self) -> &Arc<Bound> {
        &self.bound
    }

    /// Counts worker `me` as started.
    pub fn enter(&self, me: usize) -> Worker {
        self.running.fetch_add(1, Ordering::Relaxed);
        Worker { me, streak: 0, overlaps: 0, one_too_many: true, since: Instant::now() }
    }

    fn readers(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & READERS
    }

    /// Called before the worker reads. If another reader is enough, it parks first, and calls `parking` before that.
    pub fn before_read(&self, worker: &mut Worker, parking: impl FnOnce()) {
        if worker.one_too_many && self.readers() >= self.keep {
            parking();
            self.park(worker.me);
            (worker.streak, worker.overlaps) = (0, 0);
        }
        worker.one_too_many = false;
        // The time is taken first: a worker that counts as a reader for a tick must be able to see that it waited that
        // long.
        worker.since = Instant::now();
        self.state.fetch_add(1, Ordering::SeqCst);
    }

    /// Called after the worker has read a request of `len` bytes, or nothing (0). `alone`: the request comes from the
    /// same client as the previous one, which waits for each answer. Then few other requests are waiting.
    pub fn after_read(&self, worker: &mut Worker, len: usize, now: Instant, alone: bool) {
        // One reader less, one request more.
        let others = self.state.fetch_add(REQUEST - 1, Ordering::SeqCst) & READERS > self.keep;
        let took = now.duration_since(worker.since);
        if took >= TICK / 2 && self.deputy_sleeps.swap(false, Ordering::SeqCst) {
            let parked = self.parked.lock();
            if let Some(&standby) = parked.waiting.first() {
                self.wakeups[standby].notify_one();
            }
        }
        if len == 0 {
            return;
        }
        if took <= self.at_once + COPY * (len as u32 / COPIED) {
            worker.overlaps = 0;
            worker.streak = if alone { 0 } else { worker.streak + 1 };
            if worker.streak == PATIENCE {
                worker.streak = 0;
                if self.running.load(Ordering::Relaxed) < self.processors && self.call(false) {
                    self.reinforced.inc();
                }
            }
            return;
        }
        worker.streak = 0;
        worker.overlaps = if others { worker.overlaps + 1 } else { 0 };
        worker.one_too_many = worker.overlaps >= OVERLAPS;
    }

    /// Called when a worker is about to sleep inside the server. Another worker reads from then on, if none does
    /// already.
    pub fn before_sleep(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        if self.readers() == 0 && self.call(true) {
            self.replaced.inc();
        }
    }

    /// Called after the worker has served a request. `slept`: it slept meanwhile.
    pub fn after_request(&self, worker: &mut Worker, slept: bool) {
        if slept {
            self.running.fetch_add(1, Ordering::Relaxed);
            // Its replacement reads now.
            worker.one_too_many = true;
        }
    }

    /// Ends parking: all parked workers return, and no other one parks.
    pub fn dismiss(&self) {
        self.over.store(true, Ordering::SeqCst);
        let _parked = self.parked.lock();
        for wakeup in &self.wakeups {
            wakeup.notify_one();
        }
    }

    /// Calls a parked worker; false if there is none. If `urgent` and none is parked, the next worker that wants to
    /// park reads instead.
    fn call(&self, urgent: bool) -> bool {
        let mut parked = self.parked.lock();
        match parked.waiting.pop() {
            Some(worker) => {
                parked.called[worker] = true;
                self.wakeups[worker].notify_one();
                true
            }
            None => {
                parked.wanted |= urgent;
                false
            }
        }
    }

    fn park(&self, me: usize) {
        let mut parked = self.parked.lock();
        if std::mem::take(&mut parked.wanted) {
            return;
        }
        parked.waiting.push(me);
        self.running.fetch_sub(1, Ordering::Relaxed);
        let (mut seen, mut aside) = (None, Vec::new());
        while !std::mem::take(&mut parked.called[me]) {
            if self.over.load(Ordering::SeqCst) {
                parked.waiting.retain(|&w| w != me);
                break;
            }
            if parked.waiting.first() != Some(&me) {
                self.wakeups[me].wait(&mut parked);
                continue;
            }
            let now = self.state.load(Ordering::SeqCst);
            self.bound.asides().look(&mut aside, Instant::now());
            if seen != Some(now) {
                // Only a whole tick counts: the wake-up may have been meant for an earlier standby.
                seen = self.wakeups[me].wait_for(&mut parked, TICK).then_some(now);
                continue;
            }
            // Nothing was read during a tick. The worker that should have read may be waiting for the processor that it
            // is bound to.
            self.bound.release(Instant::now());
            if now & READERS == 0 {
                parked.waiting.remove(0);
                if let Some(&next) = parked.waiting.first() {
                    self.wakeups[next].notify_one(); // to watch in its place
                }
                self.taken_over.inc();
                break;
            } else {
                self.deputy_sleeps.store(true, Ordering::SeqCst);
                // A worker that has read a request since checks the flag after counting the request.
                if self.state.load(Ordering::SeqCst) == now {
                    self.wakeups[me].wait(&mut parked);
                }
                // After the wake-up another worker may be the standby.
                if parked.waiting.first() == Some(&me) {
                    self.deputy_sleeps.store(false, Ordering::SeqCst);
                }
                seen = None;
            }
        }
        self.running.fetch_add(1, Ordering::Relaxed);
    }
}
