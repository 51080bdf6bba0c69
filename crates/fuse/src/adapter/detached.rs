//! Replies that another thread sends later, counted so that the end of the mount can wait for them.
//!
//! Main types: [`Outstanding`], [`Ticket`].
//!
//! # Locking
//! One leaf lock (`fuse replies`, 210); completions come from the threads of the journal and of the device.

use std::sync::Arc;

use extant_base::sync::{Condvar, LockClass, Mutex};

static CLASS: LockClass = LockClass::new("fuse replies", 210);

/// How many replies are pending.
#[derive(Clone)]
pub(super) struct Outstanding(Arc<(Mutex<usize>, Condvar)>);

/// One pending reply; dropped after the reply has been sent.
pub(super) struct Ticket(Outstanding);

impl Outstanding {
    pub(super) fn new() -> Outstanding {
        Outstanding(Arc::new((Mutex::new(&CLASS, 0), Condvar::new())))
    }

    pub(super) fn begin(&self) -> Ticket {
        *self.0.0.lock() += 1;
        Ticket(self.clone())
    }

    /// Waits until no reply is pending.
    pub(super) fn wait(&self) {
        let mut n = self.0.0.lock();
        while *n > 0 {
            self.0.1.wait(&mut n);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (count, zero) = &*self.0.0;
        let mut n = count.lock();
        *n -= 1;
        if *n == 0 {
            zero.notify_all();
        }
    }
}
