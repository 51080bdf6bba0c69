//! Lock classes: their names, ranks and statistics, the rank check of debug builds, and the lock table.
//!
//! Main types: [`LockClass`], [`LockRow`]. Acquisitions are counted in the thread's own [`counts`](super::counts), and
//! waits in the class.
//!
//! # Locking
//! The registry has a leaf lock without a class, because it cannot count itself. It is held for a few instructions.

#[cfg(debug_assertions)]
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::counts::Slot;
use super::mode::{self, MODE, MODELLED, SIMULATED, STATS};
use crate::sim;

/// The shared part of all locks of one kind.
pub struct LockClass {
    pub name: &'static str,
    /// The position in the lock order. A lock with a higher rank is taken later. Rank 0 is never checked.
    pub rank: u32,
    /// Its locks live about as long as one operation, so a modelled machine has no history of their cache lines.
    slot: Slot,
    contended: AtomicU64,
    wait_ns_total: AtomicU64,
    wait_ns_max: AtomicU64,
    wait_ns_min: AtomicU64,
}

/// One row of the lock table, as `perf lock` prints it. Waits are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockRow {
    pub name: &'static str,
    pub acquired: u64,
    pub contended: u64,
    pub wait_ns_total: u64,
    pub wait_ns_max: u64,
    pub wait_ns_min: u64,
}

/// The number of attempts to take a lock before a watched thread announces that it will sleep.
const SPINS: u32 = 100;

static REGISTRY: parking_lot::Mutex<Vec<&'static LockClass>> = parking_lot::Mutex::new(Vec::new());

/// Switches the statistics of all locks on or off.
pub fn set_lock_stats(on: bool) {
    mode::set(STATS, on);
}

/// The classes that were taken since statistics were switched on, the longest waits first.
pub fn lock_table() -> Vec<LockRow> {
    let mut rows: Vec<LockRow> = REGISTRY.lock().iter().map(|c| c.row()).collect();
    rows.sort_by(|a, b| b.wait_ns_total.cmp(&a.wait_ns_total).then(a.name.cmp(b.name)));
    rows
}

/// Resets the wait times of every row. The counters continue; the lab reports their differences.
pub fn reset_lock_table() {
    for c in REGISTRY.lock().iter() {
        c.wait_ns_total.store(0, Ordering::Relaxed);
        c.wait_ns_max.store(0, Ordering::Relaxed);
        c.wait_ns_min.store(u64::MAX, Ordering::Relaxed);
    }
}

impl LockClass {
    pub const fn new(name: &'static str, rank: u32) -> LockClass {
        LockClass {
            name,
            rank,
            slot: Slot::new(),
            contended: AtomicU64::new(0),
            wait_ns_total: AtomicU64::new(0),
            wait_ns_max: AtomicU64::new(0),
            wait_ns_min: AtomicU64::new(u64::MAX),
        }
    }

    fn row(&self) -> LockRow {
        let min = self.wait_ns_min.load(Ordering::Relaxed);
        LockRow {
            name: self.name,
            acquired: self.slot.sum(),
            contended: self.contended.load(Ordering::Relaxed),
            wait_ns_total: self.wait_ns_total.load(Ordering::Relaxed),
            wait_ns_max: self.wait_ns_max.load(Ordering::Relaxed),
            wait_ns_min: if min == u64::MAX { 0 } else { min },
        }
    }

    /// Takes the lock at `addr` with `quick`, which must not wait, or otherwise with `slow`, which waits. Counts and
    /// times the acquisition if statistics are on. `shared` means that other threads may hold the lock, too.
    // Inlined, because a call would increase the cost of a counted acquisition.
    #[inline(always)]
    pub(super) fn acquire<G>(
        &'static self,
        addr: usize,
        shared: bool,
        quick: impl Fn() -> Option<G>,
        slow: impl FnOnce() -> G,
    ) -> G {
        let mode = MODE.load(Ordering::Relaxed);
        if mode != 0 {
            if mode & STATS != 0 && !self.slot.count() {
                self.count_first();
            }
            if mode & SIMULATED != 0
                && let Some(g) = self.acquire_simulated(addr, shared, &quick)
            {
                return g;
            }
        }
        match quick() {
            Some(g) => g,
            None => self.wait(mode & STATS != 0, quick, slow),
        }
    }

    /// The same as [`LockClass::acquire`] on a simulated thread; `None` on others.
    #[cold]
    pub(super) fn acquire_simulated<G>(
        &'static self,
        addr: usize,
        shared: bool,
        quick: &impl Fn() -> Option<G>,
    ) -> Option<G> {
        if !sim::active() {
            return None;
        }
        let mut may_take = sim::before_lock(addr, self, shared);
        loop {
            if may_take && let Some(g) = quick() {
                sim::acquired(addr, self, shared);
                return Some(g);
            }
            sim::block_on_lock(addr, self, shared);
            may_take = true;
        }
    }

    /// Takes the lock at `addr` if that is possible without waiting.
    pub(super) fn attempt<G>(&'static self, addr: usize, shared: bool, quick: impl Fn() -> Option<G>) -> Option<G> {
        if !mode::is(SIMULATED) {
            return quick();
        }
        if !sim::before_lock(addr, self, shared) {
            sim::missed(addr, self);
            return None;
        }
        let g = quick()?;
        sim::acquired(addr, self, shared);
        Some(g)
    }

    /// Counts the first acquisition of this class, or of this thread.
    #[cold]
    fn count_first(&'static self) {
        if self.slot.take() {
            REGISTRY.lock().push(self);
        }
        super::counts::begin_thread();
        self.slot.count();
    }

    #[cold]
    fn wait<G>(&'static self, counted: bool, quick: impl Fn() -> Option<G>, slow: impl FnOnce() -> G) -> G {
        let slow = || {
            if crate::task::sleep_is_watched() {
                // Most locks are held for a shorter time than the announcement takes.
                for _ in 0..SPINS {
                    std::hint::spin_loop();
                    if let Some(g) = quick() {
                        return g;
                    }
                }
                crate::task::before_sleep();
            }
            slow()
        };
        if !counted {
            return slow();
        }
        self.contended.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let g = slow();
        let ns = start.elapsed().as_nanos() as u64;
        self.wait_ns_total.fetch_add(ns, Ordering::Relaxed);
        self.wait_ns_max.fetch_max(ns, Ordering::Relaxed);
        self.wait_ns_min.fetch_min(ns, Ordering::Relaxed);
        g
    }
}

/// The class of a lock and, by its address, the lock itself in a [`crate::sim`] run. When it is dropped, the run
/// forgets which processor has the lock's cache line: another lock may be at the same address soon, and the reuse of
/// memory must not decide how long something takes.
pub(super) struct Identity(pub &'static LockClass);

impl Identity {
    #[inline(always)]
    pub(super) fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

impl Drop for Identity {
    #[inline(always)]
    fn drop(&mut self) {
        if mode::is(MODELLED) {
            sim::forget(self.address());
        }
    }
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<&'static LockClass>> = const { RefCell::new(Vec::new()) };
}

/// While this value exists, debug builds know that this thread holds a lock of `class`. It is dropped after the lock
/// itself, and then also informs a simulation that the lock is free.
pub(super) struct HeldLock {
    #[cfg(debug_assertions)]
    class: &'static LockClass,
    addr: usize,
}

impl HeldLock {
    pub(super) fn address(&self) -> usize {
        self.addr
    }

    /// Checks the order, then records the lock at `addr`. `nested` permits that another lock of the same class is
    /// already held.
    #[inline(always)]
    pub(super) fn enter(class: &'static LockClass, addr: usize, nested: bool, waits: bool) -> HeldLock {
        #[cfg(debug_assertions)]
        {
            let _ = HELD.try_with(|h| {
                let mut h = h.borrow_mut();
                if waits && class.rank != 0 && !std::thread::panicking() {
                    for other in h.iter() {
                        let same = std::ptr::eq(*other, class);
                        if other.rank != 0
                            && (other.rank > class.rank || (other.rank == class.rank && !(nested && same)))
                        {
                            panic!(
                                "lock order: '{}' (rank {}) wanted while '{}' (rank {}) is held",
                                class.name, class.rank, other.name, other.rank
                            );
                        }
                    }
                }
                h.push(class);
            });
            HeldLock { class, addr }
        }
        #[cfg(not(debug_assertions))]
        {
            let _ = (class, nested, waits);
            HeldLock { addr }
        }
    }
}

impl Drop for HeldLock {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        let _ = HELD.try_with(|h| {
            let mut h = h.borrow_mut();
            if let Some(i) = h.iter().rposition(|c| std::ptr::eq(*c, self.class)) {
                h.remove(i);
            }
        });
        if mode::is(SIMULATED) {
            sim::released(self.addr);
        }
    }
}
