//! The background threads of a mount, by name, so that they can be ended in the order in which they need each other.
//!
//! Main type: [`Threads`].
//!
//! # Locking
//! `threads` (6) around the list; not held while a thread is waited for.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use extant_base::sync::{LockClass, Mutex};
use extant_base::task::{self, JoinHandle};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::lifecycle::Right;

static CLASS: LockClass = LockClass::new("threads", 6);

/// How long a thread waits for work before it looks whether the file system is still there.
const STEP: Duration = Duration::from_millis(100);

pub(crate) struct Threads(Mutex<Vec<(&'static str, JoinHandle<()>)>>);

impl Threads {
    pub(crate) fn new() -> Threads {
        Threads(Mutex::new(&CLASS, Vec::new()))
    }

    pub(crate) fn start(&self, name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = task::spawn(name, body).map_err(|e| Error::Thread { source: Arc::new(e) })?;
        self.0.lock().push((name, thread));
        Ok(())
    }

    /// Waits for the thread, which has been signalled to stop; does nothing if there is none.
    pub(crate) fn end(&self, name: &str) {
        let thread = {
            let mut all = self.0.lock();
            all.iter().position(|(n, _)| *n == name).map(|at| all.swap_remove(at).1)
        };
        // The last reference to a file system may be dropped by one of its threads.
        if let Some(thread) = thread
            && thread.thread().id() != task::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Filesystem {
    /// Starts the threads that a mount for writing has, unless it is to have none.
    pub(crate) fn start_threads(self: &Arc<Self>) -> Result<()> {
        if !self.options.threads {
            return Ok(());
        }
        let start = |name: &'static str, body: Box<dyn FnOnce() + Send>| {
            let weak = Arc::downgrade(self);
            // A thread that panics half-way cannot keep the mount's promises: no caller may wait for them.
            let watched = move || {
                if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                    if let Some(fs) = weak.upgrade() {
                        fs.abort("a thread of the mount panicked");
                    }
                    resume_unwind(panic);
                }
            };
            self.threads.start(name, watched)
        };
        let journal = self.journal.clone();
        start("extant-journal", Box::new(move || journal.run()))?;
        let weak = Arc::downgrade(self);
        let retire = move || while weak.upgrade().is_some_and(|fs| fs.retire_step(STEP)) {};
        start("extant-retire", Box::new(retire))?;
        let weak = Arc::downgrade(self);
        let ask = move || while weak.upgrade().is_some_and(|fs| fs.ask_step(STEP)) {};
        start("extant-fsync", Box::new(ask))?;
        let weak = Arc::downgrade(self);
        let evict = move || while weak.upgrade().is_some_and(|fs| fs.eviction_step(STEP)) {};
        start("extant-evict", Box::new(evict))?;
        let weak = Arc::downgrade(self);
        let reclaimer = self.budget.begin_thread();
        let reclaim = move || {
            while weak.upgrade().is_some_and(|fs| fs.lifecycle.allows(Right::Work)) {
                reclaimer.step(STEP);
            }
        };
        start("extant-reclaim", Box::new(reclaim))?;
        let flusher = self.flusher.clone();
        start("extant-flush", Box::new(move || flusher.run()))
    }
}
