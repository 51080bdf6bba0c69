//! Waiting for bios: [`BioWait`] and [`submit_and_wait`].
//!
//! # Locking
//! One leaf lock (`block bio wait`) per waiter.

use std::sync::Arc;

use extant_base::sync::{Condvar, Mutex};

use crate::bio::{Bio, Completion, EndIo};
use crate::device::BlockDevice;
use crate::error::{Error, Result};
use crate::ranks::BIO_WAIT;

struct State {
    /// The completions in the order of the calls to `end_io`; `None` until completed.
    slots: Vec<Option<Completion>>,
    pending: usize,
}

struct Shared {
    state: Mutex<State>,
    done: Condvar,
}

/// Collects completions until all have arrived (Linux: the completion that `submit_bio_wait` waits for).
pub struct BioWait {
    shared: Arc<Shared>,
}

impl Default for BioWait {
    fn default() -> BioWait {
        BioWait::new()
    }
}

impl BioWait {
    /// Creates a wait without any bio.
    pub fn new() -> BioWait {
        let state = Mutex::new(&BIO_WAIT, State { slots: Vec::new(), pending: 0 });
        BioWait { shared: Arc::new(Shared { state, done: Condvar::new() }) }
    }

    /// The `end_io` of one more bio to wait for. It must be given to a bio that is submitted, or be dropped.
    pub fn end_io(&self) -> Box<dyn EndIo> {
        let mut state = self.shared.state.lock();
        let index = state.slots.len();
        state.slots.push(None);
        state.pending += 1;
        Box::new(SlotCompletion { shared: self.shared.clone(), index })
    }

    /// Waits until every bio has completed. Returns their completions, in the order of the calls to `end_io`. Bios that
    /// were dropped without completing are left out.
    pub fn wait(&self) -> Vec<Completion> {
        let mut state = self.shared.state.lock();
        while state.pending > 0 {
            self.shared.done.wait(&mut state);
        }
        std::mem::take(&mut state.slots).into_iter().flatten().collect()
    }
}

struct SlotCompletion {
    shared: Arc<Shared>,
    index: usize,
}

impl EndIo for SlotCompletion {
    fn end_io(self: Box<Self>, done: Completion) {
        let mut state = self.shared.state.lock();
        if let Some(slot) = state.slots.get_mut(self.index) {
            *slot = Some(done);
        }
        // Dropping `self` decrements `pending`.
    }
}

impl Drop for SlotCompletion {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.pending -= 1;
        if state.pending == 0 {
            self.shared.done.notify_all();
        }
    }
}

/// Submits the bios together and waits for all of them. The `end_io` of each is called first.
///
/// # Errors
/// The first error in the order of `bios`; [`Error::Lost`] if the device dropped one of them.
pub fn submit_and_wait(dev: &dyn BlockDevice, mut bios: Vec<Bio>) -> Result<()> {
    struct Chained {
        first: Box<dyn EndIo>,
        then: Box<dyn EndIo>,
    }
    impl EndIo for Chained {
        fn end_io(self: Box<Self>, done: Completion) {
            let (op, offset, result) = (done.op, done.offset, done.result.clone());
            self.first.end_io(done);
            self.then.end_io(Completion { op, offset, data: crate::bio::BioData::None, result });
        }
    }
    let wait = BioWait::new();
    let submitted = bios.len();
    for bio in &mut bios {
        let first = std::mem::replace(&mut bio.end_io, Box::new(|_: Completion| {}));
        bio.end_io = Box::new(Chained { first, then: wait.end_io() });
    }
    dev.submit_all(bios);
    let ended = wait.wait();
    if ended.len() < submitted {
        return Err(Error::Lost);
    }
    ended.into_iter().try_for_each(|done| done.result)
}
