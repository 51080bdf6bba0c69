//! Locks with a name, a rank and statistics.
//!
//! Main types: [`Mutex`], [`RwLock`], [`Condvar`]; the locks are created with a `&'static` [`LockClass`]. All locks of
//! one class share a name (as in the kernel's lockdep), a rank and one row of the lock table ([`lock_table`]).
//!
//! Ranks: a thread may only take a lock whose rank is higher than that of every lock it holds; otherwise debug builds
//! panic with the names of both. Two locks of one class may be held together only through the `*_nested` calls, whose
//! callers document how they order the two. Rank 0 disables the check (for tests). `try_*` never waits, so it is
//! exempt.
//!
//! Statistics are off until [`set_lock_stats`]. Then each acquisition adds one to a counter of its thread, and the wait
//! for a contended lock is timed. When off, the cost is one relaxed load; `scripts/lab-cost.sh` measures the cost when
//! on.
//!
//! On a thread of a [`crate::sim`] run, taking and releasing a lock and waiting call the scheduler first. Statistics
//! and simulation share one byte (`mode`), so that one test suffices when both are off.
//!
//! What it does not do: poisoning. A panic while a lock is held is a bug that the owner of the data must not hide.
//! Extant catches panics only at thread boundaries, where the mount is aborted.

mod class;
mod counts;
pub(crate) mod mode;
mod mutex;
mod rwlock;
mod waiter;

pub use class::{LockClass, LockRow, lock_table, reset_lock_table, set_lock_stats};
pub use mutex::{Condvar, Mutex, MutexGuard};
pub use rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use waiter::Waiter;

/// Atomic types. Operations on them are no events of a [`crate::sim`] run.
pub mod atomic {
    pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

#[cfg(test)]
mod tests;
