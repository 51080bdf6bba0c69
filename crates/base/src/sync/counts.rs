//! Counters of acquisitions: one array per thread, one element per lock class.
//!
//! Main type: [`Slot`], a class's place in the arrays. Only its thread writes an array, so adding is a load and a
//! store without a locked instruction or a shared cache line. A reader of a sum reads all arrays. An array outlives
//! its thread and is passed to the next one, which continues counting. So sums never decrease, and the number of
//! arrays is bounded by the threads that live at once.
//!
//! What it does not do: names, waits ([`class`](super::class)).
//!
//! # Locking
//! The list of arrays has a bare leaf lock without a class, taken once per thread and by readers.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// The number of countable lock classes; Extant has a quarter as many. Classes beyond it read 0.
const CLASSES_MAX: usize = 256;

/// A slot that was not assigned: beyond every array.
const NONE: u32 = u32::MAX;

type Counts = [AtomicU64];

struct Arrays {
    all: Vec<&'static Counts>,
    /// Arrays whose threads have ended.
    idle: Vec<&'static Counts>,
}

static ARRAYS: Mutex<Arrays> = Mutex::new(Arrays { all: Vec::new(), idle: Vec::new() });
static NEXT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's array; empty until its first count. It has no destructor, so that access is one instruction.
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
    // A thread that is ending has no destructor left that would return the array, so its further locks are not
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

/// A class's place in the arrays, assigned at its first use.
pub(super) struct Slot(AtomicU32);

impl Slot {
    pub(super) const fn new() -> Slot {
        Slot(AtomicU32::new(NONE))
    }

    /// Adds one. False: the slot or the thread's array does not exist yet ([`Slot::take`], [`begin_thread`]).
    #[inline]
    pub(super) fn count(&self) -> bool {
        // One comparison checks both, because no array is empty and an unassigned slot lies beyond every array.
        match MINE.get().get(self.0.load(Ordering::Relaxed) as usize) {
            Some(n) => {
                n.store(n.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    /// Assigns a slot; true for the one caller that did it.
    pub(super) fn take(&self) -> bool {
        if self.0.load(Ordering::Relaxed) != NONE {
            return false;
        }
        // Under the lock, so that only one of two threads assigns a slot.
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
