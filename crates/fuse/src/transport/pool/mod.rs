//! Which of the workers wait in read(2).
//!
//! The kernel hands requests to waiting readers in turn, so that a single client would wake another thread, with cold
//! caches and perhaps on another processor, for each of its requests. Here one worker reads and serves as long as that
//! is enough, and the others are parked. A parked worker is called
//! - when a worker is about to sleep inside the server and nobody else reads
//!   ([`task::before_sleep`](extant_base::task));
//! - when a worker found [`PATIENCE`] requests in a row waiting for it, of more than one client, and a processor is
//!   left for one more.
//!
//! A worker that had to wait for its requests although another reader waited too is one too many after [`OVERLAPS`] of
//! them, and parks; so does one that slept in the server, if its replacement reads.
//! Sleep that nobody tells of, and requests that take long, are found by the standby, the parked worker that will be
//! called last: while requests come it looks every [`TICK`] whether any was read since, or anybody waits for one; if
//! not, it takes over. On an idle mount it sleeps as well. In both cases it first lets those go that follow a client
//! ([`super::follow`]).
//!
//! Main types: [`WorkerPool`], and [`Worker`], what one worker remembers from one request to the next.
//!
//! What it does not do: it never limits how many requests may sleep in the server; the number of workers does.
//!
//! # Locking
//! `fuse worker pool` (1001) guards the parked; taken to park and to call, not while one worker can serve alone. A leaf
//! that is taken with any lock of the server held, by the worker that is about to sleep.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;

use super::follow::{Bound, can_follow};

static CLASS: LockClass = LockClass::new("fuse worker pool", 1001);

/// Requests in a row that were there already before a worker calls another one to help.
const PATIENCE: u32 = 64;
/// Requests in a row for which a worker had to wait beside another reader before it parks.
const OVERLAPS: u32 = 8;
/// How often the standby looks.
const TICK: Duration = Duration::from_millis(10);
/// A read that took no longer than this found its request waiting: less than falling asleep and waking up takes.
const AT_ONCE: Duration = Duration::from_micros(3);
/// Copying a request out of the kernel takes time as well: this much for each [`COPIED`] bytes.
const COPY: Duration = Duration::from_micros(1);
const COPIED: u32 = 2048;

/// What [`WorkerPool::state`] counts in its low bits; the rest counts requests.
const READERS: u64 = 0xffff;
const REQUEST: u64 = READERS + 1;

struct Parked {
    /// Who is parked; the last is called first, for its caches are the warmest. The first is the standby.
    waiting: Vec<usize>,
    called: Vec<bool>,
    /// Somebody was wanted when nobody was parked: whoever would park next reads instead.
    wanted: bool,
}

/// What has happened since the mount.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CrewStats {
    /// Workers called because another was about to sleep.
    pub replaced: u64,
    /// Workers called because requests were waiting.
    pub reinforced: u64,
    /// Times that the standby took over.
    pub taken_over: u64,
}

/// The workers of one mount.
pub(crate) struct WorkerPool {
    /// How many workers wait in read(2) or are on the way there, and how many requests were read.
    state: AtomicU64,
    /// How many workers have started and are neither parked nor asleep in the server.
    running: AtomicUsize,
    /// Whether the standby sleeps without a tick.
    deputy_sleeps: AtomicBool,
    over: AtomicBool,
    processors: usize,
    /// Who follows a client.
    bound: Bound,
    /// So many readers are enough: one, if it can follow its client; else two, for they take turns, and then one is now
    /// and then on the client's processor.
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
    /// Requests in a row that were there at once.
    streak: u32,
    /// Requests in a row that had to be waited for.
    overlaps: u32,
    /// Whether to park if another reads.
    one_too_many: bool,
    since: Instant,
}

impl WorkerPool {
    /// Of up to `workers`: threads may not be had for all.
    pub fn new(workers: usize) -> WorkerPool {
        WorkerPool {
            state: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            deputy_sleeps: AtomicBool::new(false),
            over: AtomicBool::new(false),
            processors: task::processors(),
            bound: Bound::new(workers),
            // Tests count what one reader does, whoever runs them.
            keep: if cfg!(test) || can_follow() { 1 } else { 2 },
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

    /// Who follows a client.
    pub fn bound(&self) -> &Bound {
        &self.bound
    }

    /// Worker `me` starts.
    pub fn enter(&self, me: usize) -> Worker {
        self.running.fetch_add(1, Ordering::Relaxed);
        Worker { me, streak: 0, overlaps: 0, one_too_many: true, since: Instant::now() }
    }

    fn readers(&self) -> u64 {
        self.state.load(Ordering::SeqCst) & READERS
    }

    /// The worker may read now. Parks before, if another reader is enough, and calls `parking` before that.
    pub fn before_read(&self, worker: &mut Worker, parking: impl FnOnce()) {
        if worker.one_too_many && self.readers() >= self.keep {
            parking();
            self.park(worker.me);
            (worker.streak, worker.overlaps) = (0, 0);
        }
        worker.one_too_many = false;
        // The time first: who counts as a reader for a tick must know to have waited for one.
        worker.since = Instant::now();
        self.state.fetch_add(1, Ordering::SeqCst);
    }

    /// The worker has come back from reading, with a request of `len` bytes or with nothing (0). `alone`: the request
    /// is of the same client as the one before, who waits for each answer; then those that wait are few.
    pub fn after_read(&self, worker: &mut Worker, len: usize, now: Instant, alone: bool) {
        // Less one reader, more one request.
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

    /// A worker is about to sleep inside the server: another one reads from now on, if nobody does already.
    pub fn before_sleep(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        if self.readers() == 0 && self.call(true) {
            self.replaced.inc();
        }
    }

    /// The worker has served a request, during which it slept or not.
    pub fn after_request(&self, worker: &mut Worker, slept: bool) {
        if slept {
            self.running.fetch_add(1, Ordering::Relaxed);
            // Its replacement reads.
            worker.one_too_many = true;
        }
    }

    /// Nobody parks any more, and all that are parked come back.
    pub fn dismiss(&self) {
        self.over.store(true, Ordering::SeqCst);
        let _parked = self.parked.lock();
        for wakeup in &self.wakeups {
            wakeup.notify_one();
        }
    }

    /// Calls a parked worker; false if there is none. Then, if `urgent`, the next who wants to park will not.
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
        let mut seen = None;
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
            if seen != Some(now) {
                // Only a whole tick counts: whoever rang may have meant a standby before.
                seen = self.wakeups[me].wait_for(&mut parked, TICK).then_some(now);
                continue;
            }
            // Nothing was read for a tick. Who should have, may be waiting for the processor that it is bound to.
            self.bound.release();
            if now & READERS == 0 {
                parked.waiting.remove(0);
                if let Some(&next) = parked.waiting.first() {
                    self.wakeups[next].notify_one(); // to look in its place
                }
                self.taken_over.inc();
                break;
            } else {
                self.deputy_sleeps.store(true, Ordering::SeqCst);
                // Whoever has read a request since looks at the flag after having counted it.
                if self.state.load(Ordering::SeqCst) == now {
                    self.wakeups[me].wait(&mut parked);
                }
                // Once called, it may have become somebody else's.
                if parked.waiting.first() == Some(&me) {
                    self.deputy_sleeps.store(false, Ordering::SeqCst);
                }
                seen = None;
            }
        }
        self.running.fetch_add(1, Ordering::Relaxed);
    }
}
