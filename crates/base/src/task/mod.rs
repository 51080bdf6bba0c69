//! Named threads, and the small integer that selects a shard of per-core data.
//!
//! Background work in Extant is done by few named threads (flusher, journal commit, reclaim). Each offers a `step()`
//! that its thread calls in production and that tests call directly.
//!
//! A thread can be watched: it installs a callback that runs before it sleeps ([`watched`]), and switches it on when
//! needed ([`watch_sleep`]). Locks, condition variables and devices call [`before_sleep`]. So a server can let another
//! thread take over only if a thread is about to sleep, instead of passing each request to another thread (the kernel's
//! workqueues use `wq_worker_sleeping` for this).

#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub use std::thread::{ThreadId, current};

use crate::sim;

/// A thread that the caller can wait for.
#[derive(Debug)]
pub struct JoinHandle<T> {
    // The inner result is for a simulated thread, whose panic ends its run but not the thread.
    real: std::thread::JoinHandle<std::thread::Result<T>>,
    simulated: Option<sim::JoinTarget>,
}

impl<T> JoinHandle<T> {
    /// Waits for the thread's end. Returns `Err` if it panicked.
    pub fn join(self) -> std::thread::Result<T> {
        if let Some(joined) = self.simulated {
            sim::join(joined);
        }
        self.real.join().and_then(|r| r)
    }

    /// Whether [`JoinHandle::join`] would not wait.
    pub fn is_finished(&self) -> bool {
        match self.simulated {
            Some(joined) if sim::active() => sim::is_done(joined),
            _ => self.real.is_finished(),
        }
    }

    pub fn thread(&self) -> &std::thread::Thread {
        self.real.thread()
    }
}

thread_local! {
    static UNDO_SETTINGS: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Installs a callback that undoes this thread's own settings (its processors, its scheduling policy) before it starts
/// another thread, which would inherit them; `None` removes it.
pub fn has_own_settings(undo: Option<Rc<dyn Fn()>>) {
    UNDO_SETTINGS.with(|u| *u.borrow_mut() = undo);
}

/// Must be called before the kernel may start a thread on behalf of this one. [`spawn`] and [`together`] do so.
pub fn before_child() {
    let undo = UNDO_SETTINGS.with(|u| u.borrow().clone());
    if let Some(undo) = undo {
        undo();
    }
}

/// Starts a thread called `name` (the kernel shows at most 15 bytes). If a simulated thread starts it, it belongs to
/// the same run.
pub fn spawn<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> std::io::Result<JoinHandle<T>> {
    before_child();
    let builder = std::thread::Builder::new().name(name.to_owned());
    let Some(task) = sim::active().then(|| sim::child(name)).flatten() else {
        let first = AT_START.get().copied();
        let f = move || {
            if let Some(first) = first {
                first();
            }
            Ok(f())
        };
        return Ok(JoinHandle { real: builder.spawn(f)?, simulated: None });
    };
    let joined = task.handle();
    match builder.spawn(move || task.run(f)) {
        Ok(real) => {
            sim::point("spawn");
            Ok(JoinHandle { real, simulated: Some(joined) })
        }
        Err(e) => {
            sim::Task::give_up(&joined);
            Err(e)
        }
    }
}

/// Runs `f` in `threads` threads called `name`, including the caller's thread, and waits for all of them. Unlike with
/// [`spawn`], `f` may borrow. If the system provides fewer threads, those run it.
///
/// # Panics
/// If `f` panics in one of them, after all have ended.
pub fn together(name: &str, threads: usize, f: impl Fn() + Sync) {
    before_child();
    let caught = |f: &(dyn Fn() + Sync)| std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    let f: &(dyn Fn() + Sync) = &f;
    let mut results = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for _ in 1..threads {
            let builder = std::thread::Builder::new().name(name.to_owned());
            let Some(task) = sim::active().then(|| sim::child(name)).flatten() else {
                let first = AT_START.get().copied();
                let started = builder.spawn_scoped(scope, move || {
                    if let Some(first) = first {
                        first();
                    }
                    caught(f)
                });
                let Ok(handle) = started else { break };
                handles.push((handle, None));
                continue;
            };
            let joined = task.handle();
            let Ok(handle) = builder.spawn_scoped(scope, move || task.run(f)) else {
                sim::Task::give_up(&joined);
                break;
            };
            sim::point("spawn");
            handles.push((handle, Some(joined)));
        }
        let mut results = vec![caught(f)];
        for (handle, joined) in handles {
            if let Some(joined) = joined {
                sim::join(joined);
            }
            results.push(handle.join().and_then(|result| result));
        }
        results
    });
    if let Some(at) = results.iter().position(Result::is_err)
        && let Err(panic) = results.swap_remove(at)
    {
        std::panic::resume_unwind(panic);
    }
}

static AT_START: OnceLock<fn()> = OnceLock::new();

/// Sets a function that each thread started from now on (except simulated ones) calls first. It serves a process that
/// drops privileges, which must be done in each thread. Only the first call of this function has an effect.
pub fn at_start(f: fn()) {
    let _ = AT_START.set(f);
}

/// Lets other threads run.
pub fn yield_now() {
    if !(sim::active() && sim::yield_now()) {
        std::thread::yield_now();
    }
}

/// The number of processors that this process may use, at least 1, as it was at the first call: to find the limits of
/// its control groups, the standard library reads several files.
pub fn processors() -> usize {
    static REAL: OnceLock<usize> = OnceLock::new();
    let simulated = if sim::active() { sim::processors() } else { None };
    simulated.unwrap_or_else(|| *REAL.get_or_init(|| std::thread::available_parallelism().map_or(1, |n| n.get())))
}

/// The id of this process, for use in a seed; 1 in a simulation.
pub fn process_id() -> u32 {
    if sim::active() { 1 } else { std::process::id() }
}

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// A small number that differs between threads (assigned round robin at first use, or by the run in a simulation).
/// Callers take it modulo their number of shards. It replaces the CPU number of the kernel's per-CPU data.
pub fn shard_index() -> usize {
    SHARD.with(|s| {
        if s.get() == usize::MAX {
            let simulated = if sim::active() { sim::shard() } else { None };
            s.set(simulated.unwrap_or_else(|| NEXT_SHARD.fetch_add(1, Ordering::Relaxed)));
        }
        s.get()
    })
}

thread_local! {
    static BEFORE_SLEEP: RefCell<Option<Rc<dyn Fn()>>> = const { RefCell::new(None) };
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// Installs the callback that this thread calls before it sleeps while [`watch_sleep`] is on; `None` removes it. The
/// callback itself must not sleep.
pub fn watched(call: Option<Rc<dyn Fn()>>) {
    BEFORE_SLEEP.with(|c| *c.borrow_mut() = call);
}

/// Switches the watch on or off for this thread. Returns true if it was on. The watch is switched off before the
/// callback runs.
pub fn watch_sleep(on: bool) -> bool {
    WATCHED.replace(on)
}

/// Whether [`before_sleep`] would call the callback. Only then is it worth finding out whether an operation will sleep.
pub fn sleep_is_watched() -> bool {
    WATCHED.get()
}

/// Must be called when this thread sleeps or may sleep next. Costs one load if the thread is not watched.
pub fn before_sleep() {
    if WATCHED.get() {
        tell_before_sleep();
    }
}

#[cold]
fn tell_before_sleep() {
    // The watch is switched off first, because the callback may take a lock itself.
    WATCHED.set(false);
    let call = BEFORE_SLEEP.with(|c| c.borrow().clone());
    if let Some(call) = call {
        call();
    }
}
