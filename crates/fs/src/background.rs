//! The background work of a mount: which threads it has, and the step that each repeats.
//!
//! Main types: none; [`Filesystem::start_threads`].
//!
//! What it does not do: end threads (`mount/unmount.rs`), or keep their handles ([`crate::threads::Threads`]).
//!
//! # Locking
//! None of its own.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::lifecycle::Right;
use crate::writeback::ask_step;

/// How long a thread waits for work before it checks whether the file system still exists.
const STEP: Duration = Duration::from_millis(100);

impl Filesystem {
    /// Starts the threads of a writable mount, unless the options turn threads off.
    pub(crate) fn start_threads(self: &Arc<Self>) -> Result<()> {
        if !self.options.threads {
            return Ok(());
        }
        let start = |name: &'static str, body: Box<dyn FnOnce() + Send>| {
            let weak = Arc::downgrade(self);
            // If a thread panics, the mount can no longer give its guarantees, and no caller may wait for that thread.
            // The mount aborts.
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
        let retire = move || while weak.upgrade().is_some_and(|fs| fs.retirement().step(STEP)) {};
        start("extant-retire", Box::new(retire))?;
        let weak = Arc::downgrade(self);
        let ask = move || while weak.upgrade().is_some_and(|fs| ask_step::step(&fs, STEP)) {};
        start("extant-fsync", Box::new(ask))?;
        let weak = Arc::downgrade(self);
        let evict = move || while weak.upgrade().is_some_and(|fs| fs.evictor().step(STEP)) {};
        start("extant-evict", Box::new(evict))?;
        let weak = Arc::downgrade(self);
        let reclaimer = self.budget.begin_thread();
        let reclaim = move || {
            while weak.upgrade().is_some_and(|fs| fs.lifecycle.allows(Right::Work)) {
                reclaimer.step(STEP);
            }
        };
        start("extant-reclaim", Box::new(reclaim))?;
        let flusher = self.writeback.flusher.clone();
        start("extant-flush", Box::new(move || flusher.run()))
    }
}
