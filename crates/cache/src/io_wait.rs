//! Counts I/O in flight: one thread submits it, another waits for it.
//!
//! Main types: [`IoWait`] (a counter on which a thread can wait until it is zero) and [`IoToken`] (one unit of it). The
//! journal has one for each batch of blocks that it writes to the log or home.
//!
//! # Locking
//! One leaf lock (`io wait`, 200).

use std::sync::Arc;

use extant_base::sync::{Condvar, LockClass, Mutex, MutexGuard};
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

/// One request in flight until [`IoToken::done`]. A token that is dropped counts as an error, because its request was
/// lost.
pub struct IoToken {
    of: Arc<IoWait>,
    result: Option<Result<(), Error>>,
}

impl IoWait {
    pub fn new() -> Arc<IoWait> {
        Arc::new(IoWait { state: Mutex::new(&CLASS, State::default()), zero: Condvar::new() })
    }

    /// Counts one more request.
    pub fn begin(self: &Arc<Self>) -> IoToken {
        self.state.lock().in_flight += 1;
        IoToken { of: self.clone(), result: None }
    }

    /// Waits until nothing is in flight. Takes and returns the first error since the last wait.
    pub fn wait(&self) -> Result<(), Error> {
        self.idle().error.take().map_or(Ok(()), Err)
    }

    /// The same as [`IoWait::wait`], for a caller that does not handle the error because another one reports it.
    pub fn settle(&self) {
        drop(self.idle());
    }

    fn idle(&self) -> MutexGuard<'_, State> {
        let mut s = self.state.lock();
        while s.in_flight > 0 {
            self.zero.wait(&mut s);
        }
        s
    }
}

impl IoToken {
    pub fn done(mut self, result: Result<(), Error>) {
        self.result = Some(result);
    }
}

impl Drop for IoToken {
    fn drop(&mut self) {
        let mut s = self.of.state.lock();
        s.in_flight -= 1;
        let result = self.result.take().unwrap_or(Err(Error::Lost));
        if s.error.is_none() {
            s.error = result.err();
        }
        if s.in_flight == 0 {
            self.of.zero.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_token_is_an_error() {
        let wait = IoWait::new();
        wait.begin().done(Ok(()));
        drop(wait.begin());
        assert!(matches!(wait.wait(), Err(Error::Lost)));
        assert!(wait.wait().is_ok(), "once");
    }
}
