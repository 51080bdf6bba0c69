//! Counters of acquisitions: one array a thread, one element a lock class.
//!
//! Main type: [`Slot`], a class's place in the arrays. Only its thread writes an array, so that adding is a load and a
//! store without a locked instruction or a shared cache line; whoever wants a sum reads all arrays. An array outlives
//! its thread and is handed to the next one, which counts on: sums never fall, and memory is bounded by the threads
//! that live at once.
//!
//! What it does not do: names, waits ([`class`](super::class)).
//!
//! # Locking
//! The list of arrays has a bare leaf lock without a class, taken once a thread and by readers.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Lock classes that can be counted; the classes of all of Extant are a quarter of it. Those beyond read 0.
const CLASSES_MAX: usize = 256;

/// A slot that was not dealt: beyond every array.
const NONE: u32 = u32::MAX;

type Counts = [AtomicU64];

struct Arrays {
    all: Vec<&'static Counts>,
    /// Those whose threads have ended.
    idle: Vec<&'static Counts>,
}

static ARRAYS: Mutex<Arrays> = Mutex::new(Arrays { all: Vec::new(), idle: Vec::new() });
static NEXT: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// This thread's array; empty until its first count. Without a destructor, so that reaching it is one instruction.
    static MINE: Cell<&'static Counts> = const { Cell::new(&[]) };
    static LEASE: Lease = const { Lease };
}

/// Gives the thread's array back when the thread ends.
struct Lease;

impl Drop for Lease {
    fn drop(&mut self) {
        let mine = MINE.replace(&[]);
        if !mine.is_empty() {
            ARRAYS.lock().idle.push(mine);
        }
    }
}

/// Gives the calling thread an array.
pub(super) fn begin_thread() {
    // A thread that is ending has no destructor left that would give the array back: what it locks now is not counted.
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

/// A class's place in the arrays, dealt at its first use.
pub(super) struct Slot(AtomicU32);

impl Slot {
    pub(super) const fn new() -> Slot {
        Slot(AtomicU32::new(NONE))
    }

    /// Adds one. False: the slot or the thread's array is still to be made ([`Slot::take`], [`begin_thread`]).
    #[inline]
    pub(super) fn count(&self) -> bool {
        // One comparison for both: no array is empty, no slot lies beyond.
        match MINE.get().get(self.0.load(Ordering::Relaxed) as usize) {
            Some(n) => {
                n.store(n.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
                true
            }
            None => false,
        }
    }

    /// Deals a slot; true for the one caller that got it.
    pub(super) fn take(&self) -> bool {
        if self.0.load(Ordering::Relaxed) != NONE {
            return false;
        }
        // Under the lock, so that of two threads one deals.
        let _arrays = ARRAYS.lock();
        if self.0.load(Ordering::Relaxed) != NONE {
            return false;
        }
        self.0.store(NEXT.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        true
    }

    /// What all threads counted, those that ended included.
    pub(super) fn sum(&self) -> u64 {
        let slot = self.0.load(Ordering::Relaxed) as usize;
        ARRAYS.lock().all.iter().filter_map(|a| a.get(slot)).map(|n| n.load(Ordering::Relaxed)).sum()
    }
}
