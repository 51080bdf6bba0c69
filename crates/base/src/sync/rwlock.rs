//! [`RwLock`].

use std::ops::{Deref, DerefMut};

use super::class::{HeldLock, Identity, LockClass};

/// A lock for many readers or one writer, with a class (Linux: `struct rw_semaphore`).
pub struct RwLock<T: ?Sized> {
    identity: Identity,
    raw: parking_lot::RwLock<T>,
}

pub struct RwLockReadGuard<'a, T: ?Sized> {
    raw: parking_lot::RwLockReadGuard<'a, T>,
    _held: HeldLock,
}

pub struct RwLockWriteGuard<'a, T: ?Sized> {
    raw: parking_lot::RwLockWriteGuard<'a, T>,
    _held: HeldLock,
}

impl<T> RwLock<T> {
    pub const fn new(class: &'static LockClass, value: T) -> RwLock<T> {
        RwLock { identity: Identity(class), raw: parking_lot::RwLock::new(value) }
    }
}

impl<T: ?Sized> RwLock<T> {
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.take_read(false)
    }

    /// Takes a second lock of the same class. The caller determines the order of the two.
    pub fn read_nested(&self) -> RwLockReadGuard<'_, T> {
        self.take_read(true)
    }

    #[inline(always)]
    fn take_read(&self, nested: bool) -> RwLockReadGuard<'_, T> {
        let (class, addr) = (self.identity.0, self.identity.address());
        let held = HeldLock::enter(class, addr, nested, true);
        let raw = class.acquire(addr, true, || self.raw.try_read(), || self.raw.read());
        RwLockReadGuard { raw, _held: held }
    }

    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let (class, addr) = (self.identity.0, self.identity.address());
        let raw = class.attempt(addr, true, || self.raw.try_read())?;
        Some(RwLockReadGuard { raw, _held: HeldLock::enter(class, addr, true, false) })
    }

    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.take_write(false)
    }

    /// Takes a second lock of the same class. The caller determines the order of the two.
    pub fn write_nested(&self) -> RwLockWriteGuard<'_, T> {
        self.take_write(true)
    }

    #[inline(always)]
    fn take_write(&self, nested: bool) -> RwLockWriteGuard<'_, T> {
        let (class, addr) = (self.identity.0, self.identity.address());
        let held = HeldLock::enter(class, addr, nested, true);
        let raw = class.acquire(addr, false, || self.raw.try_write(), || self.raw.write());
        RwLockWriteGuard { raw, _held: held }
    }

    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let (class, addr) = (self.identity.0, self.identity.address());
        let raw = class.attempt(addr, false, || self.raw.try_write())?;
        Some(RwLockWriteGuard { raw, _held: HeldLock::enter(class, addr, true, false) })
    }
}

impl<T: ?Sized> RwLockWriteGuard<'_, T> {
    /// Releases the lock to a waiting thread. This is for a caller that takes the lock again immediately and would
    /// otherwise always get it first.
    pub fn unlock_fair(self) {
        let RwLockWriteGuard { raw, _held } = self;
        parking_lot::RwLockWriteGuard::unlock_fair(raw);
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.raw
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.raw
    }
}
