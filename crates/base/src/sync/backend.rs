//! The locks underneath: parking_lot, or shuttle's when the crate is built with `--cfg shuttle`.
//! One small common surface, so that the wrappers above are written once.

#[cfg(not(shuttle))]
mod imp {
    pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    use std::time::Duration;

    pub fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
        m.lock()
    }
    pub fn try_lock<T: ?Sized>(m: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        m.try_lock()
    }
    pub fn read<T: ?Sized>(l: &RwLock<T>) -> RwLockReadGuard<'_, T> {
        l.read()
    }
    pub fn try_read<T: ?Sized>(l: &RwLock<T>) -> Option<RwLockReadGuard<'_, T>> {
        l.try_read()
    }
    pub fn write<T: ?Sized>(l: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
        l.write()
    }
    pub fn try_write<T: ?Sized>(l: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
        l.try_write()
    }
    pub fn wait<'a, T: ?Sized>(cv: &Condvar, mut g: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        cv.wait(&mut g);
        g
    }
    pub fn wait_for<'a, T: ?Sized>(cv: &Condvar, mut g: MutexGuard<'a, T>, d: Duration) -> (MutexGuard<'a, T>, bool) {
        let timed_out = cv.wait_for(&mut g, d).timed_out();
        (g, timed_out)
    }
}

#[cfg(shuttle)]
mod imp {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    use std::time::Duration;

    pub fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
        m.lock().expect("not poisoned")
    }
    pub fn try_lock<T: ?Sized>(m: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        m.try_lock().ok()
    }
    pub fn read<T: ?Sized>(l: &RwLock<T>) -> RwLockReadGuard<'_, T> {
        l.read().expect("not poisoned")
    }
    pub fn try_read<T: ?Sized>(l: &RwLock<T>) -> Option<RwLockReadGuard<'_, T>> {
        l.try_read().ok()
    }
    pub fn write<T: ?Sized>(l: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
        l.write().expect("not poisoned")
    }
    pub fn try_write<T: ?Sized>(l: &RwLock<T>) -> Option<RwLockWriteGuard<'_, T>> {
        l.try_write().ok()
    }
    pub fn wait<'a, T>(cv: &Condvar, g: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        cv.wait(g).expect("not poisoned")
    }
    pub fn wait_for<'a, T>(cv: &Condvar, g: MutexGuard<'a, T>, d: Duration) -> (MutexGuard<'a, T>, bool) {
        let (g, r) = cv.wait_timeout(g, d).expect("not poisoned");
        (g, r.timed_out())
    }
}

pub use imp::*;
