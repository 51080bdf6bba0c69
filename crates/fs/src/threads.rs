//! The background threads of a mount, by name, so that they can be ended in the order of their dependencies.
//!
//! Main type: [`Threads`].
//!
//! # Locking
//! `threads` (6) guards the list; it is not held while waiting for a thread.

use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_base::task::{self, JoinHandle};

use crate::error::{Error, Result};

static CLASS: LockClass = LockClass::new("threads", 6);

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

    /// Waits for the thread, which has been told to stop. Does nothing if there is no such thread.
    pub(crate) fn end(&self, name: &str) {
        let thread = {
            let mut all = self.0.lock();
            all.iter().position(|(n, _)| *n == name).map(|at| all.swap_remove(at).1)
        };
        // A thread of the file system may drop its last reference, and must not wait for itself.
        if let Some(thread) = thread
            && thread.thread().id() != task::current().id()
        {
            let _ = thread.join();
        }
    }
}
