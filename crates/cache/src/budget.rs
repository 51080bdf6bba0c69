//! One memory budget for everything that can be dropped.
//!
//! Main types: [`Budget`], [`Shrinker`] (Linux: `struct shrinker`, mm/shrinker.c). Caches charge what they hold;
//! whoever pushes the sum over the limit asks the registered shrinkers to give back, each in proportion to what it
//! could (who has next to nothing last), once, without waiting for anything.
//!
//! What it does not do: it never starts writeback or a transaction; dirty memory is bounded by the flusher, metadata
//! pinned by the journal by the journal. This is the baseline; the policies of reclaim hang on this seam.
//!
//! # Locking
//! `shrinkers` (95) is held only to copy the list.

use std::sync::{Arc, Weak};

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use extant_base::sync::{LockClass, RwLock};

static CLASS: LockClass = LockClass::new("shrinkers", 95);

/// Next to nothing: less than one in so many bytes that could go.
const SMALL: u128 = 16;

/// A cache that can give memory back. Must not block, start a transaction or wait for I/O.
pub trait Shrinker: Send + Sync {
    /// About how many bytes could be freed now (Linux: `count_objects`).
    fn reclaimable(&self) -> u64;

    /// Tries to free about `bytes`; returns what it freed.
    fn shrink(&self, bytes: u64) -> u64;
}

/// The budget of one mount, in bytes.
pub struct Budget {
    limit: u64,
    used: AtomicI64,
    /// The most that it ever was.
    peak: AtomicI64,
    /// Of it, cached data.
    data: AtomicI64,
    /// Reclaim runs when more than this is in use: the limit, or above it what was found to be pinned.
    threshold: AtomicU64,
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
            peak: AtomicI64::new(0),
            data: AtomicI64::new(0),
            threshold: AtomicU64::new(limit),
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

    /// The most that was ever in use at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).max(0) as u64
    }

    pub fn register(&self, s: Weak<dyn Shrinker>) {
        self.shrinkers.write().push(s);
    }

    /// Notes that `bytes` more are in use. Does not reclaim: the caller may hold locks; see [`Budget::relieve`].
    pub fn charge(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        // Rarely written, beside what was just written: an addition does not cost more.
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    pub fn uncharge(&self, bytes: u64) {
        self.used.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    /// As [`Budget::charge`], for cached data.
    pub(crate) fn charge_data(&self, bytes: u64) {
        self.data.fetch_add(bytes as i64, Ordering::Relaxed);
        self.charge(bytes);
    }

    pub(crate) fn uncharge_data(&self, bytes: u64) {
        self.data.fetch_sub(bytes as i64, Ordering::Relaxed);
        self.uncharge(bytes);
    }

    /// Bytes of cached data, clean and dirty.
    pub fn data(&self) -> u64 {
        self.data.load(Ordering::Relaxed).max(0) as u64
    }

    pub fn over_limit(&self) -> bool {
        self.used() > self.limit
    }

    /// Whether less is in use than reclaim leaves: nothing has to go soon.
    pub fn has_room(&self) -> bool {
        self.used() <= self.limit / 4 * 3
    }

    /// Asks every cache for all that it can give, twice, because what was used lately is spared once (Linux:
    /// `drop_caches`). Returns what came of it, in bytes. No cache lock is held.
    pub fn shrink_all(&self) -> u64 {
        let list: Vec<_> = self.shrinkers.read().iter().filter_map(Weak::upgrade).collect();
        list.iter().chain(&list).map(|s| s.shrink(s.reclaimable())).sum()
    }

    /// Called with no cache lock held: when over the limit, one thread at a time frees an eighth of the limit (or what
    /// there is), so that reclaim comes in batches rather than once per allocation.
    ///
    /// All give in proportion to what they have, but who has next to nothing gives last. What is small is small because
    /// a few bytes of it stand for much (a mapping for a block of data, a buddy for a group), and where data streams
    /// through the cache an eighth of everything goes every few thousand blocks: such a cache would be emptied in no
    /// time, and nothing be gained.
    ///
    /// What is in use may be pinned: inodes that the kernel knows, dirty memory. Looking through all of it again for
    /// every operation would find the same; so after a look that did not come below the limit, the next one waits until
    /// a thirty-second of the limit more is in use.
    pub fn relieve(&self) {
        let used = self.used();
        let threshold = self.threshold.load(Ordering::Relaxed);
        if used <= self.limit && threshold != self.limit {
            self.threshold.store(self.limit, Ordering::Relaxed);
        }
        if used <= threshold || self.reclaiming.swap(true, Ordering::Acquire) {
            return;
        }
        let want = used.saturating_sub(self.limit) + self.limit / 8;
        let list: Vec<_> = self.shrinkers.read().iter().filter_map(Weak::upgrade).collect();
        let list: Vec<_> = list.iter().map(|s| (s, s.reclaimable())).filter(|(_, has)| *has > 0).collect();
        let sum = |list: &[(_, u64)]| list.iter().map(|(_, has)| u128::from(*has)).sum::<u128>();
        let all = sum(&list);
        let (asked, spared): (Vec<_>, Vec<_>) = list.into_iter().partition(|(_, has)| u128::from(*has) * SMALL >= all);
        let all = sum(&asked);
        let mut freed = 0;
        for (s, has) in &asked {
            freed += s.shrink((u128::from(want) * u128::from(*has) / all) as u64);
        }
        // What one has pinned, or spares because it was used, the others give.
        for (s, _) in asked.iter().chain(&spared) {
            if freed >= want {
                break;
            }
            freed += s.shrink(want - freed);
        }
        let pinned = self.used();
        let threshold = if pinned <= self.limit { self.limit } else { pinned + self.limit / 32 };
        self.threshold.store(threshold, Ordering::Relaxed);
        self.reclaims.inc();
        self.reclaimed_bytes.add(freed);
        self.reclaiming.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says how often it was asked; frees what it is told to have.
    struct Cache {
        budget: Arc<Budget>,
        free: AtomicU64,
        /// What it takes for free, but is not.
        pinned: AtomicU64,
        asked: AtomicU64,
    }

    impl Shrinker for Cache {
        fn reclaimable(&self) -> u64 {
            self.free.load(Ordering::Relaxed).max(self.pinned.load(Ordering::Relaxed))
        }

        fn shrink(&self, bytes: u64) -> u64 {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let n = self.free.load(Ordering::Relaxed).min(bytes);
            self.free.fetch_sub(n, Ordering::Relaxed);
            self.budget.uncharge(n);
            n
        }
    }

    fn cache(limit: u64) -> (Arc<Budget>, Arc<Cache>) {
        let budget = Budget::new(limit);
        let cache = add(&budget);
        (budget, cache)
    }

    fn add(budget: &Arc<Budget>) -> Arc<Cache> {
        let zero = || AtomicU64::new(0);
        let cache = Arc::new(Cache { budget: budget.clone(), free: zero(), pinned: zero(), asked: zero() });
        let weak: Weak<Cache> = Arc::downgrade(&cache);
        budget.register(weak);
        cache
    }

    #[test]
    fn each_gives_in_proportion_to_what_it_has() {
        let budget = Budget::new(8 << 20);
        let (a, b, c) = (add(&budget), add(&budget), add(&budget));
        a.free.store(1 << 20, Ordering::Relaxed);
        b.free.store(3 << 20, Ordering::Relaxed);
        c.pinned.store(4 << 20, Ordering::Relaxed);
        budget.charge((8 << 20) + 4096);
        budget.relieve();
        let want = (1 << 20) + 4096;
        assert_eq!(budget.used(), (8 << 20) + 4096 - want);
        let (a, b) = (a.free.load(Ordering::Relaxed), b.free.load(Ordering::Relaxed));
        assert_eq!(b, (3 << 20) - want * 3 / 8, "three of eight parts");
        assert_eq!(a, (1 << 20) - (want - want * 3 / 8), "what is pinned, the first who has more gives");
    }

    /// Data streams through; beside it lies something small.
    #[test]
    fn who_has_next_to_nothing_gives_last() {
        let budget = Budget::new(8 << 20);
        let (data, small) = (add(&budget), add(&budget));
        data.free.store(8 << 20, Ordering::Relaxed);
        small.free.store(400 << 10, Ordering::Relaxed);
        budget.charge((8 << 20) + (400 << 10));
        for _ in 0..100 {
            budget.relieve();
            let gone = budget.limit() - budget.used();
            data.free.fetch_add(gone + 4096, Ordering::Relaxed);
            budget.charge(gone + 4096);
        }
        assert_eq!((small.free.load(Ordering::Relaxed), small.asked.load(Ordering::Relaxed)), (400 << 10, 0));
        // It counts for itself when it is a sixteenth, and when the others have nothing.
        small.free.store(1 << 20, Ordering::Relaxed);
        budget.relieve();
        assert!(small.free.load(Ordering::Relaxed) < 1 << 20);
        data.free.store(0, Ordering::Relaxed);
        small.free.store(400 << 10, Ordering::Relaxed);
        budget.charge(2 << 20);
        budget.relieve();
        assert_eq!(small.free.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn pinned_memory_is_not_looked_through_again_and_again() {
        let (budget, cache) = cache(1 << 20);
        cache.pinned.store(1, Ordering::Relaxed);
        for _ in 0..2048 {
            budget.charge(1024);
            budget.relieve();
        }
        // One MiB over the limit, in steps of a thirty-second of it, twice each.
        let asked = cache.asked.load(Ordering::Relaxed);
        assert!((32..=66).contains(&asked), "{asked}");
    }

    #[test]
    fn what_can_be_freed_is_freed_in_batches() {
        let (budget, cache) = cache(1 << 20);
        for _ in 0..8192 {
            budget.charge(1024);
            cache.free.fetch_add(1024, Ordering::Relaxed);
            budget.relieve();
            assert!(budget.used() <= budget.limit() + 1024);
        }
        let asked = cache.asked.load(Ordering::Relaxed);
        assert!((48..=64).contains(&asked), "{asked}");
        assert_eq!(budget.peak(), budget.limit() + 1024);
    }

    #[test]
    fn reclaim_goes_on_when_the_pins_are_gone() {
        let (budget, cache) = cache(1 << 20);
        budget.charge(2 << 20);
        budget.relieve();
        cache.free.store(2 << 20, Ordering::Relaxed);
        budget.charge(1 << 16);
        budget.relieve();
        assert!(budget.used() <= budget.limit(), "{}", budget.used());
        budget.charge(budget.limit() - budget.used() + 1);
        let before = cache.asked.load(Ordering::Relaxed);
        budget.relieve();
        assert_eq!(cache.asked.load(Ordering::Relaxed), before + 1, "the limit counts again");
    }
}
