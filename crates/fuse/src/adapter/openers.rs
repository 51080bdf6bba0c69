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
use nix::unistd::{Pid, getpgid};

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

    /// Who asks: the open file, or without one the process. A thread of the kernel's asks for many of them (Linux:
    /// `aio_fsync_work`), as one that cannot be seen.
    pub(super) fn asker(&self, handle: u64, process: u32) -> Asker {
        match self.open.lock().get(&handle) {
            Some(opener) => Asker::Opener(opener.clone()),
            None if is_of_kernel(process) => Asker::Process(0),
            None => Asker::Process(process),
        }
    }
}

/// Threads of the kernel's are in no process group.
fn is_of_kernel(thread: u32) -> bool {
    getpgid(Some(Pid::from_raw(thread as i32))).is_ok_and(|group| group.as_raw() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who was told is not told again: but another one for whom the same thread asks would not be told at all.
    #[test]
    fn a_thread_of_the_kernels_is_nobody() {
        let openers = Openers::new();
        let asks = |process| match openers.asker(0, process) {
            Asker::Process(id) => id,
            other => panic!("{other:?}"),
        };
        let me = std::process::id();
        assert_eq!((asks(me), asks(0)), (me, 0));
        if std::fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
            assert_eq!(asks(2), 0);
        }
        let handle = openers.add(Arc::default());
        assert!(matches!(openers.asker(handle, me), Asker::Opener(_)));
    }
}
