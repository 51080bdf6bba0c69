//! Named threads, and the small integer that shards per-core data.
//!
//! Background work in Extant is named and few (flusher, journal commit, reclaim); each offers a `step()` that its thread
//! calls in production and that tests call directly.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(not(shuttle))]
pub use std::thread::{JoinHandle, ThreadId, current, yield_now};

#[cfg(shuttle)]
pub use shuttle::thread::{JoinHandle, ThreadId, current, yield_now};

/// Starts a thread called `name` (at most 15 bytes are shown by the kernel).
#[cfg(not(shuttle))]
pub fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(f)
}

#[cfg(shuttle)]
pub fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    let _ = name;
    Ok(shuttle::thread::spawn(f))
}

/// The number of processors that this process may use, at least 1.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A small number that differs between threads (dealt round robin at first use): callers take it modulo their shard
/// count. It stands in for the CPU number of the kernel's per-CPU data.
pub fn shard_index() -> usize {
    SHARD.with(|s| {
        if s.get() == usize::MAX {
            s.set(NEXT_SHARD.fetch_add(1, Ordering::Relaxed));
        }
        s.get()
    })
}
