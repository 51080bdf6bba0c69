//! Counting I/O in flight: who submitted it is not who waits for it.
//!
//! Main types: [`IoWait`] (a counter that can be waited down to zero) and [`IoToken`] (one unit of it). A transaction
//! owns one for the ordered data that its commit must see on the device; an inode owns one for its writeback.
//!
//! # Locking
//! One leaf lock (`io wait`, 200).

use std::sync::Arc;

use extant_base::sync::{Condvar, LockClass, Mutex};
use extant_block::Error;

static CLASS: LockClass = LockClass::new("io wait", 200);

#[derive(Default)]
struct State {
    in_flight: u64,
    error: Option<Error>,
}

/// A count of requests in flight and the first error among them.
pub struct IoWait {
    state: Mutex<State>,
    zero: Condvar,
}

/// One request in flight; dropping it (or [`IoToken::done`]) takes it off the count.
pub struct IoToken {
    of: Arc<IoWait>,
    error: Option<Error>,
}

impl IoWait {
    pub fn new() -> Arc<IoWait> {
        Arc::new(IoWait { state: Mutex::new(&CLASS, State::default()), zero: Condvar::new() })
    }

    /// Counts one more request.
    pub fn begin(self: &Arc<Self>) -> IoToken {
        self.state.lock().in_flight += 1;
        IoToken { of: self.clone(), error: None }
    }

    /// Waits until nothing is in flight; takes and returns the first error since the last wait.
    pub fn wait(&self) -> Result<(), Error> {
        let mut s = self.state.lock();
        while s.in_flight > 0 {
            self.zero.wait(&mut s);
        }
        s.error.take().map_or(Ok(()), Err)
    }

    pub fn in_flight(&self) -> u64 {
        self.state.lock().in_flight
    }
}

impl IoToken {
    /// One more unit of the same count.
    pub fn split(&self) -> IoToken {
        self.of.begin()
    }

    pub fn done(mut self, result: Result<(), Error>) {
        self.error = result.err();
    }
}

impl Drop for IoToken {
    fn drop(&mut self) {
        let mut s = self.of.state.lock();
        s.in_flight -= 1;
        if s.error.is_none() {
            s.error = self.error.take();
        }
        if s.in_flight == 0 {
            self.of.zero.notify_all();
        }
    }
}
