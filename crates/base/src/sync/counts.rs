//! Counters of acquisitions: one array per thread, one element per lock class.
//!
//! Main type: [`Slot`], the index of a class in the arrays. Only one thread writes to an array, so adding is a load and
//! a store without a locked instruction or a shared cache line. To read a sum, all arrays are read. An array outlives
//! its thread and is passed to the next one, which continues counting. So sums never decrease, and the number of arrays
//! is limited by the number of threads that exist at the same time.
//!
//! What it does not do: names, waits ([`class`](super::class)).
//!
//! # Locking
//! The list of arrays has a leaf lock without a class, which each thread takes once, and readers take.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// The maximum number of counted lock classes; Extant has a quarter as many. The counts of further classes read as 0.
const CLASSES_MAX: usize = 256;

/// A slot that is not assigned: an index after the end of every array.
const NONE: u32 = u32::MAX;

type Counts = [AtomicU64];

struct Arrays {
    all: Vec<&'static Counts>,
    /// The arrays whose threads have ended.
    idle: Vec<&'static Counts>,
}

static ARRAYS: Mutex<Arrays> = Mutex::new(Arrays { all: Vec::new(), idle: Vec::new() });
static NEXT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's array; empty until its first count. It has no destructor, so that accessing it takes one
    /// instruction.
    static MINE: Cell<&'static Counts> = const { Cell::new(&[]) };
    static LEASE: Lease = const { Lease };
}

/// Returns the thread's array to the idle list when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let mine = MINE.replace(&[]);
        if !mine.is_empty() {
            ARRAYS.lock().idle.push(mine);
        }
    }
}

/// Assigns an array to the calling thread.
pub(super) fn begin_thread() {
    // A thread that is ending can no longer run a destructor that returns the array, so its further locks are not
    // counted.
    if LEASE.try_with(|_| ()).is_err() || !MINE.get().is_empty() {
        return;
    }
    let mut arrays = ARRAYS.lock();
    let mine = arrays.idle.pop().unwrap_or_else(|| {
        let new: &'static Counts = Box::leak((0..CLASSES_MAX).map(|_| AtomicU64::new(0)).collect());
        arrays.all.push(new);
        new
    });
    MINE.set(mine);
}

/// The index of a class in the arrays, assigned at its first use.
pub(super) struct Slot(AtomicU32);

impl Slot {
    pub(super) const fn new() -> Slot {
        Slot(AtomicU32::new(NONE))
    }

    /// Adds one. Returns false if the slot or the thread's array does not exist yet ([`Slot::take`], [`begin_thread`]).
    #[inline]
    pub(super) fn count(&self) -> bool {
        // One comparison checks both, because the index of an unassigned slot is outside every array, including an
        // empty one.
        match MINE.get().get(self.0.load(Ordering::Relaxed) as usize) {
            Some(n) => {
                n.store(n.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    /// Assigns a slot. Returns true only for the call that assigned it.
    pub(super) fn take(&self) -> bool {
        if self.0.load(Ordering::Relaxed) != NONE {
            return false;
        }
        // The lock ensures that only one of two threads assigns a slot.
        let _arrays = ARRAYS.lock();
        if self.0.load(Ordering::Relaxed) != NONE {
            return false;
        }
        self.0.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        true
    }

    /// The counts of all threads, including those that have ended.
    pub(super) fn sum(&self) -> u64 {
        let slot = self.0.load(Ordering::Relaxed) as usize;
        ARRAYS.lock().all.iter().filter_map(|a| a.get(slot)).map(|n| n.load(Ordering::Relaxed)).sum()
    }
}
