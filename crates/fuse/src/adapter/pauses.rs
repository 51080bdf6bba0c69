//! Writers that wait for the device without occupying a worker.
//!
//! Main type: [`Pauses`]. Its thread starts with the first writer that waits and ends when none has come for a while.
//!
//! What it does not do: it chooses no pause; [`Serving::write_unpaced`] does.
//!
//! # Locking
//! `fuse pauses` (3), a leaf: replies are sent outside of it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_base::task;
use extant_fs::Filesystem;

static CLASS: LockClass = LockClass::new("fuse pauses", 3);
const IDLE: Duration = Duration::from_secs(2);
/// While a mount has far too much dirty data, the thread checks this often whether that has changed.
const FULL: Duration = Duration::from_millis(10);

type Reply = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct WaitingWriters {
    /// Keyed by the time at which each writer may continue, then by order of arrival.
    writers: BTreeMap<(u64, u64), Reply>,
    came: u64,
    running: bool,
}

struct Shared {
    /// Weak, because the thread may outlive the mount.
    fs: Weak<Filesystem>,
    clock: Clock,
    waiting: Mutex<WaitingWriters>,
    more: Condvar,
}

/// The waiting writers of one mount.
#[derive(Clone)]
pub(super) struct Pauses(Arc<Shared>);

impl Pauses {
    pub(super) fn new(fs: &Arc<Filesystem>) -> Pauses {
        let waiting = Mutex::new(&CLASS, WaitingWriters::default());
        Pauses(Arc::new(Shared { fs: Arc::downgrade(fs), clock: Clock::real(), waiting, more: Condvar::new() }))
    }

    /// Calls `reply` after `pause`, but not while the mount is full of dirty data. If no thread can be started, it
    /// calls `reply` at once.
    pub(super) fn submit(&self, pause: Duration, reply: impl FnOnce() + Send + 'static) {
        let until = self.0.clock.now_ns() + pause.as_nanos() as u64;
        let mut waiting = self.0.waiting.lock();
        waiting.came += 1;
        let key = (until, waiting.came);
        waiting.writers.insert(key, Box::new(reply));
        if waiting.running {
            self.0.more.notify_one();
            return;
        }
        let me = self.clone();
        waiting.running = task::spawn("fuse-pauses", move || me.run()).is_ok();
        let unserved = if waiting.running { BTreeMap::new() } else { std::mem::take(&mut waiting.writers) };
        drop(waiting);
        unserved.into_values().for_each(|reply| reply());
    }

    fn run(&self) {
        let mut waiting = self.0.waiting.lock();
        loop {
            let now = self.0.clock.now_ns();
            let Some((until, _)) = waiting.writers.keys().next().copied() else {
                if self.0.more.wait_for(&mut waiting, IDLE) && waiting.writers.is_empty() {
                    waiting.running = false;
                    return;
                }
                continue;
            };
            if until > now {
                self.0.more.wait_for(&mut waiting, Duration::from_nanos(until - now));
                continue;
            }
            // Released here, because a reply and the end of a mount both take this lock.
            drop(waiting);
            let full = self.0.fs.upgrade().is_some_and(|fs| fs.serving().is_full_of_dirty());
            waiting = self.0.waiting.lock();
            if full {
                self.0.more.wait_for(&mut waiting, FULL);
            } else if let Some((_, reply)) = waiting.writers.pop_first() {
                drop(waiting);
                // A panic affects only this reply: when it is dropped, its request is answered EIO.
                let _ = catch_unwind(AssertUnwindSafe(reply));
                waiting = self.0.waiting.lock();
            }
        }
    }
}
