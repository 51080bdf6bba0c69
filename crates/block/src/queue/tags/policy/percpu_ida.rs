//! The policy of Linux until 3.15 (`lib/percpu_ida.c`, as blk-mq used it): a list of free tags for each processor.
//!
//! - A request takes a tag from its processor's list. If that is empty, it moves a batch from the common list. If that
//!   is empty, too, it takes all tags of another processor's list, in turn. The last two steps run under one lock.
//! - A released tag is put on its processor's list. A full list moves a batch to the common one.
//! - There is one wait queue, not exclusive. The first tag in an empty list, and a batch that is moved, wake all
//!   waiters.
//!
//! A list contains at most the depth divided by the number of processors, and at most 64 tags. Processors are shards of
//! threads here.
//!
//! # Locking
//! `block tag pool` for the common list, and `block tag core` within it, one per list. The mask of lists that may
//! contain tags is atomic: a bit is set after its tag is in the list, and cleared before the list is emptied.

use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::task;

use super::super::ledger::Ledger;
use super::wait_queue::{QueueEnd, WaitQueues};
use super::{TagHandOff, TagPolicy};
use crate::ranks::{TAG_CORE, TAG_POOL};

/// The width of the mask.
const CORES_MAX: usize = 64;
/// Linux: `BLK_MQ_TAG_CACHE_MAX`.
const CACHE_MAX: usize = 64;

#[repr(align(128))]
struct Core(Mutex<Vec<u32>>);

struct Pool {
    free: Vec<u32>,
    /// The list from which tags were stolen last.
    robbed: usize,
}

pub(in crate::queue::tags) struct PercpuIda {
    pool: Mutex<Pool>,
    cores: Vec<Core>,
    cores_have_tags: AtomicU64,
    /// The maximum number of tags in a core's list, which is also the number moved at once between it and the common
    /// one.
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

    /// Fills the core's list from the common one, or from another core's, and returns one of the tags.
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
                // This includes its own list, because a tag may have been released since the list was found empty.
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
        self.queue.wait(user, QueueEnd::Head, &self.ledger, || self.take(hint), |_| {})
    }

    fn put(&self, tag: u32, hint: usize) -> Option<TagHandOff> {
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
