//! Open files that the server hears of: each is told of lost data by itself.
//!
//! Main type: [`Openers`]. A handle is its number; 0 stands for none, where the kernel was spared OPEN (`no_open`).
//!
//! # Locking
//! `fuse openers` (151), a leaf.

use std::sync::Arc;

use extant_base::hash::HashMap;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::{Asker, Opener};

static CLASS: LockClass = LockClass::new("fuse openers", 151);

pub(super) struct Openers {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Opener>>>,
}

impl Openers {
    pub(super) fn new() -> Openers {
        Openers { next: AtomicU64::new(1), open: Mutex::new(&CLASS, HashMap::default()) }
    }

    pub(super) fn add(&self, opener: Arc<Opener>) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, opener);
        handle
    }

    pub(super) fn remove(&self, handle: u64) {
        if handle != 0 {
            self.open.lock().remove(&handle);
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }

    /// Who asks: the open file, or without one the process.
    pub(super) fn asker(&self, handle: u64, process: u32) -> Asker {
        match self.open.lock().get(&handle) {
            Some(opener) => Asker::Opener(opener.clone()),
            None => Asker::Process(process),
        }
    }
}
