//! [`Waiter`]: one value that one thread waits for and another sets (Linux: `struct completion`).

use std::sync::Arc;

use super::{Condvar, LockClass, Mutex};

static CLASS: LockClass = LockClass::new("waiter", 201);

/// A place for one value. Clones share the place.
pub struct Waiter<T>(Arc<(Mutex<Option<T>>, Condvar)>);

impl<T> Clone for Waiter<T> {
    fn clone(&self) -> Waiter<T> {
        Waiter(self.0.clone())
    }
}

impl<T> Default for Waiter<T> {
    fn default() -> Waiter<T> {
        Waiter::new()
    }
}

impl<T> Waiter<T> {
    pub fn new() -> Waiter<T> {
        Waiter::of_class(&CLASS)
    }

    /// For callers of `set` that hold locks: the class determines which locks they may hold.
    pub fn of_class(class: &'static LockClass) -> Waiter<T> {
        Waiter(Arc::new((Mutex::new(class, None), Condvar::new())))
    }

    /// Stores the value and wakes the waiting thread.
    pub fn set(&self, value: T) {
        *self.0.0.lock() = Some(value);
        self.0.1.notify_all();
    }

    pub fn is_set(&self) -> bool {
        self.0.0.lock().is_some()
    }

    /// Waits for the value and takes it.
    pub fn wait(&self) -> T {
        let mut slot = self.0.0.lock();
        loop {
            match slot.take() {
                Some(value) => return value,
                None => self.0.1.wait(&mut slot),
            }
        }
    }
}
