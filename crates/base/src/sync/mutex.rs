//! [`Mutex`] and [`Condvar`].

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use super::backend;
use super::class::{Held, LockClass};

/// Mutual exclusion with a class. Linux: `struct mutex` or `spinlock_t`.
pub struct Mutex<T: ?Sized> {
    class: &'static LockClass,
    raw: backend::Mutex<T>,
}

/// Access to the data of a [`Mutex`] until dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    // An Option only so that Condvar can move the raw guard out and back.
    raw: Option<backend::MutexGuard<'a, T>>,
    _held: Held,
}

impl<T> Mutex<T> {
    pub const fn new(class: &'static LockClass, value: T) -> Mutex<T> {
        Mutex { class, raw: backend::Mutex::new(value) }
    }

    #[cfg(not(shuttle))]
    pub fn into_inner(self) -> T {
        self.raw.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.take(false)
    }

    /// Takes a second lock of the same class; the caller orders the two (by inode number, say).
    pub fn lock_nested(&self) -> MutexGuard<'_, T> {
        self.take(true)
    }

    fn take(&self, nested: bool) -> MutexGuard<'_, T> {
        let held = Held::enter(self.class, nested, true);
        let raw = self.class.acquire(|| backend::try_lock(&self.raw), || backend::lock(&self.raw));
        MutexGuard { raw: Some(raw), _held: held }
    }

    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let raw = backend::try_lock(&self.raw)?;
        Some(MutexGuard { raw: Some(raw), _held: Held::enter(self.class, true, false) })
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
        write!(f, "Mutex({})", self.class.name)
    }
}

/// Waiting for a condition under a [`Mutex`].
#[derive(Default)]
pub struct Condvar(backend::Condvar);

impl Condvar {
    pub fn new() -> Condvar {
        Condvar(backend::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        crate::task::before_sleep();
        let raw = guard.raw.take().expect("present outside Condvar::wait");
        guard.raw = Some(backend::wait(&self.0, raw));
    }

    /// True when the time ran out.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, d: Duration) -> bool {
        crate::task::before_sleep();
        let raw = guard.raw.take().expect("present outside Condvar::wait");
        let (raw, timed_out) = backend::wait_for(&self.0, raw, d);
        guard.raw = Some(raw);
        timed_out
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
