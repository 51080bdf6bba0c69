//! [`Mutex`] and [`Condvar`].

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::class::{HeldLock, Identity, LockClass};
use super::mode::{self, SIMULATED};
use crate::sim;

/// A mutual exclusion lock with a class (Linux: `struct mutex` or `spinlock_t`).
pub struct Mutex<T: ?Sized> {
    identity: Identity,
    raw: parking_lot::Mutex<T>,
}

/// Access to the data of a [`Mutex`] until dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    // An Option only so that a simulation can move the raw guard out and back. Dropped before `held`, which
    // announces the release.
    raw: Option<parking_lot::MutexGuard<'a, T>>,
    held: HeldLock,
}

impl<T> Mutex<T> {
    pub const fn new(class: &'static LockClass, value: T) -> Mutex<T> {
        Mutex { identity: Identity(class), raw: parking_lot::Mutex::new(value) }
    }

    pub fn into_inner(self) -> T {
        self.raw.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.take(false)
    }

    /// Takes a second lock of the same class. The caller determines the order of the two, for example by inode number.
    #[inline]
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.take(true)
    }

    #[inline(always)]
    fn take(&self, nested: bool) -> MutexGuard<'_, T> {
        let (class, addr) = (self.identity.0, self.identity.address());
        let held = HeldLock::enter(class, addr, nested, true);
        let raw = class.acquire(addr, false, || self.raw.try_lock(), || self.raw.lock());
        MutexGuard { raw: Some(raw), held }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let (class, addr) = (self.identity.0, self.identity.address());
        let raw = class.attempt(addr, false, || self.raw.try_lock())?;
        Some(MutexGuard { raw: Some(raw), held: HeldLock::enter(class, addr, true, false) })
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.raw.as_ref().expect("present outside Condvar::wait")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.raw.as_mut().expect("present outside Condvar::wait")
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mutex({})", self.identity.0.name)
    }
}

/// A condition variable for waiting under a [`Mutex`].
#[derive(Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar(parking_lot::Condvar::new())
    }

    /// Its identity in a simulation.
    fn address(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if mode::is(SIMULATED) && sim::active() {
            self.wait_simulated(guard, None);
            return;
        }
        crate::task::before_sleep();
        self.0.wait(guard.raw.as_mut().expect("present outside Condvar::wait"));
    }

    /// Waits for at most `d`. Returns true if the wait timed out.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, d: Duration) -> bool {
        if mode::is(SIMULATED) && sim::active() {
            return self.wait_simulated(guard, Some(d));
        }
        crate::task::before_sleep();
        self.0.wait_for(guard.raw.as_mut().expect("present outside Condvar::wait"), d).timed_out()
    }

    #[cold]
    fn wait_simulated<'a, T>(&self, guard: &mut MutexGuard<'a, T>, timeout: Option<Duration>) -> bool {
        let raw = guard.raw.take().expect("present outside Condvar::wait");
        let lock: &'a parking_lot::Mutex<T> = parking_lot::MutexGuard::mutex(&raw);
        let addr = guard.held.address();
        let class = sim::holding(addr).expect("a lock taken in this run");
        // No other thread runs between this point and the wait, so no notification is missed.
        drop(raw);
        let timed_out = sim::wait(self.address(), addr, timeout);
        guard.raw = class.acquire_simulated(addr, false, &|| lock.try_lock());
        timed_out
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
        if mode::is(SIMULATED) {
            sim::notify(self.address(), false);
        }
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
        if mode::is(SIMULATED) {
            sim::notify(self.address(), true);
        }
    }
}
