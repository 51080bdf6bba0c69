//! The gate in front of every operation that changes something: open, or shut while the mount is frozen, turns
//! read-only, or ends.
//!
//! Main types: [`Gate`], [`Change`] (somebody is inside). Linux: `sb_start_write`, `freeze_super`.
//!
//! What it does not do: make the device clean ([`Filesystem::freeze`](crate::Filesystem::freeze) does, once nobody is
//! inside), nor say whether it is (`Filesystem::is_frozen`): it is shut from before that on.
//!
//! # Locking
//! `freeze` (5), taken only while the gate is shut. Who waits at the gate holds nothing. Shut and opened only under
//! `s_umount` (4).

use std::cell::Cell;

use extant_base::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex};

static CLASS: LockClass = LockClass::new("freeze", 5);

thread_local! {
    /// How often this thread is inside, of any mount: an operation that is part of another must not wait for its end.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

pub(crate) struct Gate {
    shut: AtomicBool,
    inside: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

/// An operation that changes something is under way.
#[must_use]
pub(crate) struct Change<'a>(&'a Gate);

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            shut: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            lock: Mutex::new(&CLASS, ()),
            changed: Condvar::new(),
        }
    }

    fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// Waits until the gate is open.
    pub(crate) fn enter(&self) -> Change<'_> {
        let depth = INSIDE.get();
        INSIDE.set(depth + 1);
        self.inside.fetch_add(1, Ordering::SeqCst);
        // Looked at after being counted, and shut before counting: one of the two sees the other.
        while depth == 0 && self.is_shut() {
            self.leave();
            let mut held = self.lock.lock();
            while self.is_shut() {
                self.changed.wait(&mut held);
            }
            drop(held);
            self.inside.fetch_add(1, Ordering::SeqCst);
        }
        Change(self)
    }

    /// As [`Gate::enter`], but does not wait: `None` while the gate is shut.
    pub(crate) fn try_enter(&self) -> Option<Change<'_>> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        if INSIDE.get() == 0 && self.is_shut() {
            self.leave();
            return None;
        }
        INSIDE.set(INSIDE.get() + 1);
        Some(Change(self))
    }

    fn leave(&self) {
        if self.inside.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_shut() {
            let _held = self.lock.lock();
            self.changed.notify_all();
        }
    }

    /// Shuts the gate and waits until nobody is inside.
    pub(crate) fn shut(&self) {
        let mut held = self.lock.lock();
        self.shut.store(true, Ordering::SeqCst);
        while self.inside.load(Ordering::SeqCst) > 0 {
            self.changed.wait(&mut held);
        }
    }

    pub(crate) fn open(&self) {
        let _held = self.lock.lock();
        self.shut.store(false, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        INSIDE.set(INSIDE.get() - 1);
        self.0.leave();
    }
}
