//! The background threads of a mount, by name, so that they can be ended in the order in which they need each other.
//!
//! Main type: [`Threads`].
//!
//! # Locking
//! `threads` (6) around the list; not held while a thread is waited for.

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
