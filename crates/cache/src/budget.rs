//! One memory budget for everything that can be evicted.
//!
//! Main types: [`Budget`], [`Shrinker`] (Linux: `struct shrinker`, mm/shrinker.c). Caches charge the memory that they
//! use. Folios, metadata buffers and idle inodes are frames of the budget's [`Reclaim`], which a thread keeps between
//! two watermarks below the limit; a caller that finds the limit exceeded frees some of them. Extent status and
//! buddies, where a few bytes represent much, are freed by a shrinker, in proportion to the frames that are freed. A
//! shrinker that has almost nothing is used last.
//!
//! What it does not do: start writeback or a transaction. The flusher limits dirty memory, and the journal the metadata
//! that it pins.
//!
//! # Locking
//! `shrinkers` (95) is held only to copy the list.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::counter::Counter;
use extant_base::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use extant_base::sync::{LockClass, RwLock};

use crate::reclaim::{Next, Reclaim, ReclaimPolicy, Room, Why};

static CLASS: LockClass = LockClass::new("shrinkers", 95);

/// While frames can be freed, shrinkers with less than one in this many bytes in use are spared.
const SMALL: u64 = 16;
/// The thread begins when less than one in this many bytes of the limit is free, and ends at twice that.
const LOW: u64 = 64;
/// The maximum number of steps of a caller that does the thread's work, or helps it.
const STEPS: u32 = 64;
/// If the thread has the locks that a caller needs, the caller waits for it at most this many times.
const TURNS: u32 = 4;
/// The approximate number of bytes that a step in the caller's thread frees.
const STEP_BYTES: u64 = 128 << 10;

/// A cache that can free memory. Must not block, start a transaction or wait for I/O.
pub trait Shrinker: Send + Sync {
    /// The approximate number of bytes that could be freed now (Linux: `count_objects`).
    fn reclaimable(&self) -> u64;

    /// Tries to free about `bytes`. Returns how many bytes it freed.
    fn shrink(&self, bytes: u64) -> u64;
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &self.used()).finish_non_exhaustive()
    }
}

/// The budget of one mount, or of several, in bytes.
pub struct Budget {
    limit: AtomicU64,
    used: AtomicI64,
    /// The maximum of `used`.
    peak: AtomicI64,
    /// Reclaim runs when more than this is in use: usually slightly less than the limit, or more if memory above the
    /// limit was found to be pinned.
    threshold: AtomicU64,
    shrinkers: RwLock<Vec<Weak<dyn Shrinker>>>,
    /// The bytes of freed frames for which the shrinkers have not freed their share yet.
    owed: AtomicU64,
    reclaim: Reclaim,
    /// The number of times that reclaim was needed, and the bytes that it freed.
    pub reclaims: Counter,
    pub reclaimed_bytes: Counter,
}

impl Budget {
    /// Creates a budget with the default policy.
    pub fn new(limit: u64) -> Arc<Budget> {
        Budget::with_policy(limit, ReclaimPolicy::default())
    }

    pub fn with_policy(limit: u64, policy: ReclaimPolicy) -> Arc<Budget> {
        let budget = Budget {
            limit: AtomicU64::new(limit),
            used: AtomicI64::new(0),
            peak: AtomicI64::new(0),
            threshold: AtomicU64::new(limit),
            shrinkers: RwLock::new(&CLASS, Vec::new()),
            owed: AtomicU64::new(0),
            reclaim: Reclaim::new(policy),
            reclaims: Counter::new(),
            reclaimed_bytes: Counter::new(),
        };
        budget.set_limit(limit);
        Arc::new(budget)
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the limit. Memory above it is freed before this returns, if it can be freed.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
        // The number of steps is limited, because other threads may use as much memory as this frees.
        let most = STEPS + (self.used().saturating_sub(limit) / STEP_BYTES) as u32;
        for _ in 0..most {
            if !self.over_limit() || self.step(true) != Next::More {
                break;
            }
        }
        self.look_again_later();
        self.relieve();
    }

    /// The frames of this budget, and the policy that frees them.
    pub fn reclaim(&self) -> &Reclaim {
        &self.reclaim
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed).max(0) as u64
    }

    /// The maximum that was ever in use at the same time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).max(0) as u64
    }

    pub fn register(&self, s: Weak<dyn Shrinker>) {
        let mut all = self.shrinkers.write();
        all.retain(|s| s.strong_count() > 0);
        all.push(s);
    }

    /// Records that `bytes` more are in use. Does not reclaim, because the caller may hold locks; see
    /// [`Budget::relieve`].
    pub fn charge(&self, bytes: u64) {
        let used = self.used.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        // This is rarely written, and is next to the value that was just written, so an addition does not cost more.
        if used > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(used, Ordering::Relaxed);
        }
    }

    pub fn uncharge(&self, bytes: u64) {
        self.used.fetch_sub(bytes as i64, Ordering::Relaxed);
    }

    pub fn over_limit(&self) -> bool {
        self.used() > self.limit()
    }

    /// Whether so little is in use that nothing need be evicted soon.
    pub fn has_room(&self) -> bool {
        self.used() <= self.limit() / 4 * 3
    }

    /// Whether `bytes` more fit into the limit without an eviction.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        self.used() + bytes <= self.limit()
    }

    /// Asks every cache twice for everything that it can free, because recently used memory is spared once (Linux:
    /// `drop_caches`). Returns how many bytes were freed. The caller holds no cache lock.
    pub fn shrink_all(&self) -> u64 {
        let list = self.shrinkers();
        let frames = self.reclaim.drain() + self.reclaim.drain();
        list.iter().chain(&list).map(|s| s.shrink(s.reclaimable())).sum::<u64>() + frames
    }

    fn shrinkers(&self) -> Vec<Arc<dyn Shrinker>> {
        self.shrinkers.read().iter().filter_map(Weak::upgrade).collect()
    }

    fn room(&self) -> Room {
        let (limit, used) = (self.limit(), self.used());
        // Above the limit nothing is free, and the excess has to be freed, too.
        let (low, over) = (limit / LOW, used.saturating_sub(limit));
        Room { free: limit.saturating_sub(used), low: low + over, high: 2 * low + over, total: limit }
    }

    /// Keeps the memory in use within the budget. Must be called without a cache lock, wherever memory has been taken.
    ///
    /// If a thread reclaims in the background, the caller wakes it below its watermark, and frees some frames only
    /// above the limit; while the thread has their locks, the caller waits for it, for a few milliseconds at most. If
    /// there is no thread, the caller does its work.
    ///
    /// Memory in use may be pinned: dirty data, inodes in use. Reclaiming in every operation would find the same memory
    /// again. So after a reclaim that left more than the limit in use, the next one waits until another thirty-second
    /// of the limit is in use.
    pub fn relieve(&self) {
        if self.used() <= self.threshold.load(Ordering::Relaxed) {
            return;
        }
        self.reclaims.inc();
        if self.reclaim.has_thread() {
            self.reclaim.wake();
            if self.over_limit() {
                self.reclaim.direct.inc();
                self.take(true);
            }
        } else {
            self.take(false);
        }
    }

    /// Frees memory for `bytes` more. Returns whether they now fit into the limit. They do not if the memory that could
    /// be freed is dirty or in use; see [`Budget::wait_for_writes`].
    pub fn make_room(&self, bytes: u64) -> bool {
        for _ in 0..STEPS {
            if self.has_room_for(bytes) {
                return true;
            }
            self.reclaim.direct.inc();
            if self.step(true) != Next::More {
                break;
            }
        }
        self.has_room_for(bytes)
    }

    /// Whether any mount has dirty memory, some of which can be freed when it is written.
    pub fn is_dirty(&self) -> bool {
        self.reclaim.unwritten() > 0
    }

    /// Requests that each mount write about `bytes`, and waits until some memory has become clean, for at most
    /// `at_most`.
    pub fn wait_for_writes(&self, bytes: u64, at_most: Duration) {
        self.reclaim.want_written(bytes);
        self.reclaim.wait_for_frames(at_most);
    }

    /// Frees memory until there is room again, or nothing more can be freed.
    fn take(&self, direct: bool) {
        let mut turns = 0;
        for _ in 0..STEPS {
            let room = self.room();
            let done = if direct { !self.over_limit() } else { room.free >= room.high };
            if done {
                break;
            }
            match self.step(direct) {
                Next::More => {}
                Next::Wait { why: Why::InUse, at_most_ns } if direct && turns < TURNS && self.reclaim.has_thread() => {
                    turns += 1;
                    self.reclaim.wait_for_frames(Duration::from_nanos(at_most_ns));
                }
                _ => break,
            }
        }
        self.look_again_later();
    }

    /// Does one step: frees frames, and the share of the shrinkers.
    fn step(&self, direct: bool) -> Next {
        let room = self.room();
        let (next, freed) = self.reclaim.step(room, direct);
        self.reclaimed_bytes.add(freed);
        // A step that only skipped frames in use has not looked at all of them.
        let stuck = freed == 0 && !matches!(next, Next::More | Next::Enough);
        let owed = self.owed.fetch_add(freed, Ordering::Relaxed) + freed;
        let used = self.used().max(1);
        if !stuck && owed < self.limit() / 128 {
            return next;
        }
        // Another thread may have taken it in the meantime.
        let owed = self.owed.swap(0, Ordering::Relaxed);
        let missing = room.high.saturating_sub(room.free + freed);
        let mut got = 0;
        for shrinker in self.shrinkers() {
            let has = shrinker.reclaimable();
            if stuck && got < missing {
                got += shrinker.shrink(missing - got);
            } else if !stuck && has >= used / SMALL {
                got += shrinker.shrink((u128::from(owed) * u128::from(has) / u128::from(used)) as u64);
            }
        }
        self.reclaimed_bytes.add(got);
        if stuck && got > 0 { Next::More } else { next }
    }

    fn look_again_later(&self) {
        let limit = self.limit();
        let usual = limit - limit / LOW;
        let used = self.used();
        self.threshold.store(if used <= limit { usual } else { used + limit / 32 }, Ordering::SeqCst);
        // Another thread may have freed memory, and set the usual threshold, between the check and the store.
        if used > limit && !self.over_limit() {
            self.threshold.store(usual, Ordering::Relaxed);
        }
    }

    /// Registers a thread that reclaims in the background while it has the value, and calls
    /// [`BackgroundReclaim::step`].
    pub fn begin_thread(self: &Arc<Self>) -> BackgroundReclaim {
        self.reclaim.begin_thread();
        BackgroundReclaim(self.clone())
    }

    /// Wakes the thread, which then checks whether it must end.
    pub fn wake_thread(&self) {
        self.reclaim.wake_to_end();
    }

    fn background_step(&self, patience: Duration) {
        if !self.reclaim.sleep(patience) {
            return;
        }
        match self.step(false) {
            Next::More => {}
            Next::Enough => self.rest(),
            Next::Wait { at_most_ns, .. } => self.wait(at_most_ns),
            Next::Drive { .. } => self.wait(DRIVE_NS),
        }
    }

    fn wait(&self, at_most_ns: u64) {
        if self.over_limit() {
            self.look_again_later();
            self.reclaim.wait_for_frames(Duration::from_nanos(at_most_ns));
        } else {
            self.rest();
        }
    }

    /// Lets the thread rest until a caller uses memory above the usual threshold. With a threshold that was raised for
    /// pinned memory, callers could exceed the limit by as much.
    fn rest(&self) {
        self.look_again_later();
        self.reclaim.rest();
    }
}

/// The background thread's access to a budget; see [`Budget::begin_thread`]. Dropping it, even by a panic, tells
/// callers that the thread has ended.
pub struct BackgroundReclaim(Arc<Budget>);

impl BackgroundReclaim {
    /// Reclaims, if there is something to do before `patience` has passed.
    pub fn step(&self, patience: Duration) {
        self.0.background_step(patience);
    }
}

impl Drop for BackgroundReclaim {
    fn drop(&mut self) {
        self.0.reclaim.end_thread();
    }
}

/// The time for which the thread waits for the writes that it requested before it checks again.
const DRIVE_NS: u64 = 20_000_000;

#[cfg(test)]
mod tests {
    use extant_base::sync::atomic::AtomicBool;

    use super::*;
    use crate::reclaim::{Class, FrameCell, FrameId, FrameOwner, Key, OwnerId, State, Tried};

    const PAGE: u64 = 4096;

    /// A cache whose pages are either all in use or all unused.
    struct Pages {
        budget: Arc<Budget>,
        owner: std::sync::OnceLock<OwnerId>,
        frames: Vec<FrameCell>,
        in_use: AtomicBool,
        /// The number of requests until which another thread has the locks.
        busy_until: AtomicU64,
        asked: AtomicU64,
        unwritten: AtomicU64,
        wanted: AtomicU64,
    }

    impl FrameOwner for Pages {
        fn try_free(&self, key: Key, id: FrameId) -> Tried {
            let asked = self.asked.fetch_add(1, Ordering::Relaxed);
            if asked < self.busy_until.load(Ordering::Relaxed) {
                return Tried::Busy;
            }
            if self.in_use.load(Ordering::Relaxed) {
                return Tried::InUse;
            }
            assert_eq!(self.frames[key.object as usize].take(), Some(id));
            self.budget.reclaim().with(|core| core.remove(id));
            self.budget.uncharge(PAGE);
            Tried::Freed
        }

        fn want_written(&self, bytes: u64) {
            self.wanted.fetch_add(bytes, Ordering::Relaxed);
        }

        fn unwritten(&self) -> u64 {
            self.unwritten.load(Ordering::Relaxed)
        }
    }

    impl Pages {
        fn new(budget: &Arc<Budget>) -> Arc<Pages> {
            let frames = (0..20_000).map(|_| FrameCell::default()).collect();
            let pages = Arc::new(Pages {
                budget: budget.clone(),
                owner: std::sync::OnceLock::new(),
                frames,
                in_use: AtomicBool::new(false),
                busy_until: AtomicU64::new(0),
                asked: AtomicU64::new(0),
                unwritten: AtomicU64::new(0),
                wanted: AtomicU64::new(0),
            });
            let weak: Weak<Pages> = Arc::downgrade(&pages);
            pages.owner.set(budget.reclaim().register(Class::Data, weak)).expect("once");
            pages
        }

        fn add(&self, n: u64, state: State) {
            let owner = *self.owner.get().expect("registered");
            let key = Key { object: n, page: 0 };
            let set = |id| self.frames[n as usize].set(id);
            self.budget.reclaim().with(|core| set(core.insert(owner, key, PAGE as u32, state)));
            self.budget.charge(PAGE);
            self.budget.relieve();
        }
    }

    /// A shrinker whose reclaimable memory the test sets.
    struct Cache {
        budget: Arc<Budget>,
        free: AtomicU64,
        asked: AtomicU64,
    }

    impl Shrinker for Cache {
        fn reclaimable(&self) -> u64 {
            self.free.load(Ordering::Relaxed)
        }

        fn shrink(&self, bytes: u64) -> u64 {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let n = self.free.load(Ordering::Relaxed).min(bytes);
            self.free.fetch_sub(n, Ordering::Relaxed);
            self.budget.uncharge(n);
            n
        }
    }

    fn shrinker(budget: &Arc<Budget>, bytes: u64) -> Arc<Cache> {
        let cache = Cache { budget: budget.clone(), free: AtomicU64::new(bytes), asked: AtomicU64::new(0) };
        let cache = Arc::new(cache);
        budget.charge(bytes);
        let weak: Weak<Cache> = Arc::downgrade(&cache);
        budget.register(weak);
        cache
    }

    #[test]
    fn the_budget_is_kept_and_most_of_it_used() {
        for policy in ReclaimPolicy::ALL {
            let budget = Budget::with_policy(4 << 20, policy);
            let pages = Pages::new(&budget);
            for n in 0..10_000 {
                pages.add(n, State::CLEAN);
                assert!(budget.used() <= budget.limit(), "{}", policy.name());
            }
            assert!(budget.used() > budget.limit() / 10 * 9, "{}: {}", policy.name(), budget.used());
            assert_eq!(budget.reclaim().with(|core| core.frames()) * PAGE, budget.used());
        }
    }

    #[test]
    fn a_shrinker_gives_in_proportion_and_with_next_to_nothing_last() {
        let budget = Budget::new(8 << 20);
        let pages = Pages::new(&budget);
        let (small, large) = (shrinker(&budget, 400 << 10), shrinker(&budget, 2 << 20));
        for n in 0..2000 {
            pages.add(n, State::CLEAN);
        }
        assert_eq!(small.asked.load(Ordering::Relaxed), 0);
        let left = large.free.load(Ordering::Relaxed);
        assert!((1 << 20..2 << 20).contains(&left), "{left}");
        // While all frames are in use, even the small shrinker is used immediately.
        pages.in_use.store(true, Ordering::Relaxed);
        large.free.store(0, Ordering::Relaxed);
        budget.charge(1 << 20);
        budget.relieve();
        assert_eq!(small.free.load(Ordering::Relaxed), 0);
    }

    /// If a step skips frames because they were used, this does not mean that no frames can be freed.
    #[test]
    fn shrinkers_are_spared_while_frames_in_use_go_round() {
        let budget = Budget::new(8 << 20);
        let pages = Pages::new(&budget);
        let small = shrinker(&budget, 400 << 10);
        for n in 0..1800 {
            pages.add(n, State::CLEAN);
        }
        assert_eq!(budget.reclaims.get(), 0, "there is room still");
        for n in 0..1800 {
            let id = pages.frames[n].get().expect("a frame");
            (0..3).for_each(|_| budget.reclaim().touches().touch(id));
        }
        for n in 1800..2400 {
            pages.add(n, State::CLEAN);
        }
        assert!(budget.reclaims.get() > 0);
        assert_eq!(small.asked.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn memory_in_use_is_not_looked_at_again_and_again() {
        for policy in ReclaimPolicy::ALL {
            let budget = Budget::with_policy(1 << 20, policy);
            let pages = Pages::new(&budget);
            for n in 0..200 {
                pages.add(n, State::CLEAN);
            }
            pages.in_use.store(true, Ordering::Relaxed);
            for _ in 0..2048 {
                budget.charge(1024);
                budget.relieve();
            }
            // Two MiB above the limit, in steps of a thirty-second of the limit.
            let asked = pages.asked.load(Ordering::Relaxed);
            assert!(asked <= 64 * 256, "{}: {asked}", policy.name());
            pages.in_use.store(false, Ordering::Relaxed);
            budget.charge(budget.limit() / 16);
            budget.relieve();
            let left = budget.reclaim().with(|core| core.frames());
            assert!(left <= 100, "{}: what is let go goes, {left} are left", policy.name());
        }
    }

    /// The test makes the steps of the thread.
    #[test]
    fn a_thread_keeps_a_part_of_the_budget_free_and_callers_help_only_above_it() {
        for policy in ReclaimPolicy::ALL {
            let budget = Budget::with_policy(4 << 20, policy);
            let pages = Pages::new(&budget);
            let reclaimer = budget.begin_thread();
            let low = budget.limit() / LOW;
            for n in 0..10_000 {
                pages.add(n, State::CLEAN);
                if budget.limit() - budget.used().min(budget.limit()) < low / 2 {
                    for _ in 0..1000 {
                        reclaimer.step(Duration::ZERO);
                    }
                    assert!(budget.used() <= budget.limit() - 2 * low, "{}", policy.name());
                }
            }
            assert_eq!(budget.reclaim().direct.get(), 0, "{}", policy.name());
            for n in 10_000..12_000 {
                pages.add(n, State::CLEAN);
            }
            assert!(budget.reclaim().direct.get() > 0, "{}", policy.name());
            assert!(budget.peak() <= budget.limit() + 64 * PAGE, "{}: {}", policy.name(), budget.peak());
        }
    }

    /// While the thread has the locks of everything that a caller could free, the caller waits until the thread
    /// releases them.
    #[test]
    fn a_caller_above_the_limit_waits_for_the_thread_that_has_the_locks() {
        let budget = Budget::new(4 << 20);
        let pages = Pages::new(&budget);
        let _thread = budget.begin_thread();
        for n in 0..budget.limit() / PAGE {
            pages.add(n, State::CLEAN);
        }
        budget.charge(64 * PAGE);
        // A step asks for 32 frames.
        pages.busy_until.store(pages.asked.load(Ordering::Relaxed) + 32, Ordering::Relaxed);
        budget.relieve();
        assert!(!budget.over_limit(), "{} bytes of {}", budget.used(), budget.limit());
    }

    /// Memory in use raises the threshold of the next check. The threshold falls again when the thread has freed that
    /// memory.
    #[test]
    fn the_limit_holds_again_after_the_thread_has_freed_what_was_in_use() {
        for policy in ReclaimPolicy::ALL {
            let budget = Budget::with_policy(4 << 20, policy);
            let pages = Pages::new(&budget);
            let thread = budget.begin_thread();
            pages.in_use.store(true, Ordering::Relaxed);
            let full = budget.limit() / PAGE;
            for n in 0..full {
                pages.add(n, State::CLEAN);
            }
            budget.charge(1 << 20);
            budget.relieve();
            assert!(budget.over_limit(), "{}", policy.name());
            pages.in_use.store(false, Ordering::Relaxed);
            budget.uncharge(1 << 20);
            (0..1000).for_each(|_| thread.step(Duration::ZERO));
            for n in full..full + full / 8 {
                pages.add(n, State::CLEAN);
            }
            assert!(!budget.over_limit(), "{}: {} bytes of {}", policy.name(), budget.used(), budget.limit());
        }
    }

    #[test]
    fn memory_is_dirty_while_any_owner_has_something_to_write_and_all_are_asked_for_it() {
        let budget = Budget::new(4 << 20);
        let (first, second) = (Pages::new(&budget), Pages::new(&budget));
        assert!(!budget.is_dirty());
        second.unwritten.store(PAGE, Ordering::Relaxed);
        assert!(budget.is_dirty());
        budget.wait_for_writes(PAGE, Duration::ZERO);
        assert_eq!([&first, &second].map(|pages| pages.wanted.load(Ordering::Relaxed)), [PAGE, PAGE]);
    }

    #[test]
    fn a_smaller_limit_holds_at_once() {
        let budget = Budget::new(4 << 20);
        let pages = Pages::new(&budget);
        for n in 0..1000 {
            pages.add(n, State::CLEAN);
        }
        budget.set_limit(1 << 20);
        let used = budget.used();
        assert!((1 << 19..=1 << 20).contains(&used), "{used}");
        assert_eq!((budget.shrink_all(), budget.used()), (used, 0));
    }
}
