//! [`FlushStream`]: one fdatasync that concurrent callers share, and that is never trusted again after a failure.
//!
//! Linux reports a write-back error once per open file description and then forgets the pages (`errseq_t`): a second
//! fdatasync succeeds although the data is lost. So the first failure is stored, and every later flush fails with it.
//! Only one fdatasync runs at a time, so that no flush can succeed at the same time as the one that reports the loss. A
//! caller that arrives while one runs shares the next one.
//!
//! # Locking
//! `block file flush` is not held across the fdatasync; `block file poison` is a leaf.

use std::fs::File;
use std::io;
use std::sync::Arc;

use extant_base::sync::{Condvar, Mutex};

use super::portable;
use crate::ranks::{FILE_FLUSH, FILE_POISON};

/// The first error that means lost data, shared by all ways to flush one device.
#[derive(Default, Debug)]
pub(super) struct Poison(Option<Arc<io::Error>>);

pub(super) type SharedPoison = Arc<Mutex<Poison>>;

pub(super) fn new_poison() -> SharedPoison {
    Arc::new(Mutex::new(&FILE_POISON, Poison::default()))
}

/// Records a failure, unless there is one already.
pub(super) fn poison(shared: &SharedPoison, e: &Arc<io::Error>) {
    let mut p = shared.lock();
    if p.0.is_none() {
        p.0 = Some(e.clone());
    }
}

/// Fails with the recorded failure, if there is one.
pub(super) fn poisoned(shared: &SharedPoison) -> Result<(), Arc<io::Error>> {
    match &shared.lock().0 {
        None => Ok(()),
        Some(e) => Err(e.clone()),
    }
}

#[derive(Default)]
struct Turns {
    running: bool,
    /// The number of turns begun and of turns ended; equal unless one runs.
    begun: u64,
    ended: u64,
}

/// See the module.
pub(super) struct FlushStream {
    file: File,
    poison: SharedPoison,
    turns: Mutex<Turns>,
    ended: Condvar,
}

impl FlushStream {
    pub fn new(file: File, poison: SharedPoison) -> FlushStream {
        FlushStream { file, poison, turns: Mutex::new(&FILE_FLUSH, Turns::default()), ended: Condvar::new() }
    }

    /// Makes everything durable that was written before the call, through any descriptor.
    pub fn flush(&self) -> Result<(), Arc<io::Error>> {
        let mut turns = self.turns.lock();
        // A turn that is running now may have begun before our writes, so wait for one that begins later.
        let wanted = turns.begun + 1;
        while turns.ended < wanted {
            if turns.running {
                self.ended.wait(&mut turns);
                continue;
            }
            turns.running = true;
            turns.begun += 1;
            drop(turns);
            let result = poisoned(&self.poison).and_then(|()| portable::sync(&self.file).map_err(Arc::new));
            if let Err(e) = &result {
                poison(&self.poison, e);
            }
            turns = self.turns.lock();
            turns.running = false;
            turns.ended = turns.begun;
            self.ended.notify_all();
        }
        drop(turns);
        poisoned(&self.poison)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_stays() {
        let p = new_poison();
        assert!(poisoned(&p).is_ok());
        poison(&p, &Arc::new(io::Error::from_raw_os_error(libc::EIO)));
        poison(&p, &Arc::new(io::Error::from_raw_os_error(libc::ENOSPC)));
        let s = FlushStream::new(tempfile::tempfile().expect("a file"), p);
        for _ in 0..2 {
            assert_eq!(s.flush().expect_err("poisoned").raw_os_error(), Some(libc::EIO));
        }
    }
}
