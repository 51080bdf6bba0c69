//! One memory budget for everything that can be dropped.
//!
//! Main types: [`Budget`], [`Shrinker`] (Linux: `struct shrinker`, mm/shrinker.c). Caches charge what they hold; whoever
//! pushes the sum over the limit asks the registered shrinkers to give back, once, without waiting for anything.
//!
//! What it does not do: it never starts writeback or a transaction; dirty memory is bounded by the flusher, metadata
//! pinned by the journal by the journal. This is the baseline; the policies of reclaim hang on this seam.
//!
//! # Locking
//! `shrinkers` (95) is held only to copy the list.

use std::sync::{Arc, Weak};

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use extant_base::sync::{LockClass, RwLock};

static CLASS: LockClass = LockClass::new("shrinkers", 95);

/// A cache that can give memory back. Must not block, start a transaction or wait for I/O.
pub trait Shrinker: Send + Sync {
    /// Tries to free about `bytes`; returns what it freed.
    fn shrink(&self, bytes: u64) -> u64;
}

/// The budget of one mount, in bytes.
pub struct Budget {
    limit: u64,
    used: AtomicI64,
    shrinkers: RwLock<Vec<Weak<dyn Shrinker>>>,
    reclaiming: AtomicBool,
    /// Times that reclaim ran, and bytes it got back.
    pub reclaims: Counter,
    pub reclaimed_bytes: Counter,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget {
            limit,
            used: AtomicI64::new(0),
            shrinkers: RwLock::new(&CLASS, Vec::new()),
            reclaiming: AtomicBool::new(false),
            reclaims: Counter::new(),
            reclaimed_bytes: Counter::new(),
        })
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed).max(0) as u64
    }

    pub fn register(&self, s: Weak<dyn Shrinker>) {
        self.shrinkers.write().push(s);
    }

    /// Notes that `bytes` more are in use. Does not reclaim: the caller may hold locks; see [`Budget::relieve`].
    pub fn charge(&self, bytes: u64) {
        self.used.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    pub fn uncharge(&self, bytes: u64) {
        self.used.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    pub fn over_limit(&self) -> bool {
        self.used() > self.limit
    }

    /// Called with no cache lock held: when over the limit, one thread at a time frees an eighth of the limit (or what
    /// there is), so that reclaim comes in batches rather than once per allocation.
    pub fn relieve(&self) {
        if !self.over_limit() || self.reclaiming.swap(true, Ordering::Acquire) {
            return;
        }
        let want = self.used().saturating_sub(self.limit) + self.limit / 8;
        let list: Vec<_> = self.shrinkers.read().iter().filter_map(Weak::upgrade).collect();
        let mut freed = 0;
        for s in list {
            if freed >= want {
                break;
            }
            freed += s.shrink(want - freed);
        }
        self.reclaims.inc();
        self.reclaimed_bytes.add(freed);
        self.reclaiming.store(false, Ordering::Release);
    }
}
