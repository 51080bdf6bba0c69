//! What Linux had until 3.15 (`lib/percpu_ida.c`, as blk-mq used it): a list of free tags for each processor.
//!
//! - Who asks takes from its processor's list; if that is empty, a batch from the common list; if that is empty too,
//!   all of another processor's list, in turn. The last two go under one lock.
//! - Who gives back puts it on its processor's list. A list that is full sends a batch to the common one.
//! - One wait queue, not exclusive: a list that was empty, and a batch that is sent, wake everybody.
//!
//! A list holds the depth divided by the processors, at most 64. Our processors are threads, dealt over as many shards.
//!
//! # Locking
//! `block tag pool` for the common list; `block tag core` within it, one a list. The mask of lists that may hold
//! something is atomic: a bit is set behind the tag that it stands for, and cleared before the list is emptied.

use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::task;

use super::super::ledger::Ledger;
use super::wait_queue::{Enter, WaitQueues};
use super::{Handed, TagPolicy};
use crate::ranks::{TAG_CORE, TAG_POOL};

/// The width of the mask.
const CORES_MAX: usize = 64;
/// Linux: `BLK_MQ_TAG_CACHE_MAX`.
const CACHE_MAX: usize = 64;

#[repr(align(128))]
struct Core(Mutex<Vec<u32>>);

struct Pool {
    free: Vec<u32>,
    /// Whose list was taken last.
    robbed: usize,
}

pub(in crate::queue::tags) struct PercpuIda {
    pool: Mutex<Pool>,
    cores: Vec<Core>,
    cores_have_tags: AtomicU64,
    /// Tags that a core's list holds at most, and that move between it and the common one at once.
    cache: usize,
    batch: usize,
    queue: WaitQueues,
    ledger: Ledger,
}

impl PercpuIda {
    pub fn new(depth: u32) -> PercpuIda {
        let cores = task::processors().clamp(1, CORES_MAX);
        let cache = (depth as usize / cores).clamp(1, CACHE_MAX);
        PercpuIda {
            pool: Mutex::new(&TAG_POOL, Pool { free: (0..depth).rev().collect(), robbed: 0 }),
            cores: (0..cores).map(|_| Core(Mutex::new(&TAG_CORE, Vec::new()))).collect(),
            cores_have_tags: AtomicU64::new(0),
            cache,
            batch: (cache / 2).max(1),
            queue: WaitQueues::new(1),
            ledger: Ledger::new(),
        }
    }

    fn take(&self, hint: usize) -> Option<u32> {
        let core = hint % self.cores.len();
        let own = self.cores[core].0.lock().pop();
        own.or_else(|| self.refill(core))
    }

    /// Fills the core's list from the common one, or from another's; one of them for the caller.
    fn refill(&self, core: usize) -> Option<u32> {
        let mut pool = self.pool.lock();
        let from = pool.free.len() - self.batch.min(pool.free.len());
        let mut moved = pool.free.split_off(from);
        if moved.is_empty() {
            moved = self.steal(&mut pool, core);
        }
        let tag = moved.pop();
        if !moved.is_empty() {
            self.cores[core].0.lock().append(&mut moved);
            self.cores_have_tags.fetch_or(1 << core, Ordering::SeqCst);
        }
        tag
    }

    fn steal(&self, pool: &mut Pool, core: usize) -> Vec<u32> {
        for i in 1..=self.cores.len() {
            let other = (pool.robbed + i) % self.cores.len();
            if self.cores_have_tags.fetch_and(!(1 << other), Ordering::SeqCst) & 1 << other == 0 {
                continue;
            }
            let found = std::mem::take(&mut *self.cores[other].0.lock());
            if !found.is_empty() {
                // Its own list too: a tag may have come back since it was found empty.
                if other != core {
                    pool.robbed = other;
                }
                return found;
            }
        }
        Vec::new()
    }
}

impl TagPolicy for PercpuIda {
    fn try_get(&self, hint: usize) -> Option<u32> {
        let tag = self.take(hint)?;
        self.ledger.at_once();
        Some(tag)
    }

    fn get(&self, hint: usize, user: u32) -> u32 {
        self.queue.wait(user, Enter::Head, &self.ledger, || self.take(hint), |_| {})
    }

    fn put(&self, tag: u32, hint: usize) -> Option<Handed> {
        let core = hint % self.cores.len();
        let held = {
            let mut list = self.cores[core].0.lock();
            list.push(tag);
            list.len()
        };
        if held == 1 {
            self.cores_have_tags.fetch_or(1 << core, Ordering::SeqCst);
            self.queue.wake(0, usize::MAX, &self.ledger);
        }
        if held >= self.cache {
            let mut pool = self.pool.lock();
            let mut list = self.cores[core].0.lock();
            if list.len() >= self.cache {
                let from = list.len() - self.batch;
                pool.free.extend(list.drain(from..));
                drop((list, pool));
                self.queue.wake(0, usize::MAX, &self.ledger);
            }
        }
        None
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
