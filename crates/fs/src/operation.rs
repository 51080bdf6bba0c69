//! An operation that changes something, and the caller for whom it works.
//!
//! Main type: [`Operation`], which [`Filesystem::begin_change`] returns. [`Caller::run`] names its caller.
//!
//! An operation owns three things. Its *passage*: a freeze or an unmount waits for it ([`crate::lifecycle`]). Its
//! *caller*: the user and group whose share of the space it takes ([`crate::reserve`]). The inodes that it has *taken
//! back*: it made them, could not complete them, and must not wait for the space that their evictions free.
//!
//! The table shows a thread that runs one operation for a user, and in it another one. `inside`: passages through the
//! gate of the mount. `shut gate`: whether an operation that begins now waits at a gate that is shut meanwhile.
//!
//! | moment | inside | shut gate | caller | taken back |
//! |---|---|---|---|---|
//! | no operation | 0 | waits | root | - |
//! | a user's thread | 0 | waits | user | - |
//! | an operation begins | 1 | passes | user | 0 |
//! | it takes an inode back | 1 | passes | user | 1 |
//! | another begins in it, for root | 2 | passes | root | 0 |
//! | the inner one ends | 1 | passes | user | 1 |
//! | the inner one panics | 1 | passes | user | 1 |
//! | it ends | 0 | waits | user | - |
//! | it panics | 0 | waits | root | - |
//! | it is refused | 0 | waits | root | - |
//!
//! # The thread's record
//! The depth of the operations and their caller are in a record of the thread, the only one. A nested operation finds
//! the depth there: the gate shuts once the outer one has ended, so waiting for it would never end. The caller is
//! needed many calls below the operation, where blocks are allocated for directories, attributes and maps. The views in
//! between also serve lookups, which belong to no operation (Linux: `current_cred`).
//!
//! What it does not do: decide whether a change may begin (`lifecycle.rs`), or find space (`ops/no_space.rs`).
//!
//! # Locking
//! None: the record is the thread's own, and an operation ends on the thread on which it began.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::lifecycle::Passage;
use crate::reserve::Caller;

#[derive(Clone, Copy)]
struct Record {
    /// How many operations the thread is inside, of any mount.
    depth: u32,
    caller: Caller,
}

thread_local! {
    static RECORD: Cell<Record> = const { Cell::new(Record { depth: 0, caller: Caller::ROOT }) };
}

/// Restores the thread's former record, also after a panic. Not `Send`, as the record is the thread's.
struct Restore(Record, PhantomData<*const ()>);

impl Drop for Restore {
    fn drop(&mut self) {
        RECORD.set(self.0);
    }
}

impl Caller {
    /// Runs `f` on behalf of this caller.
    pub fn run<T>(self, f: impl FnOnce() -> T) -> T {
        let _restore = Restore(RECORD.replace(Record { caller: self, ..RECORD.get() }), PhantomData);
        f()
    }

    pub(crate) fn current() -> Caller {
        RECORD.get().caller
    }
}

/// An operation that changes `fs` is under way, until this is dropped: before one that began earlier on its thread.
#[must_use]
pub(crate) struct Operation<'fs> {
    fs: &'fs Filesystem,
    /// How many inodes it has made and taken back. Their evictions are queued like any other.
    pub(crate) taken_back: Cell<u64>,
    _passage: Passage<'fs>,
    _restore: Restore,
}

impl std::ops::Deref for Operation<'_> {
    type Target = Filesystem;
    fn deref(&self) -> &Filesystem {
        self.fs
    }
}

impl Filesystem {
    /// Begins an operation that changes something: waits while the mount is frozen.
    ///
    /// # Errors
    /// [`crate::Error::ReadOnly`]: nothing may be changed.
    pub(crate) fn begin_change(&self) -> Result<Operation<'_>> {
        Ok(self.operation(self.lifecycle.enter(RECORD.get().depth > 0)?))
    }

    /// As [`Filesystem::begin_change`] without waiting: `None` if it would wait, or nothing may be changed.
    pub(crate) fn try_begin_change(&self) -> Option<Operation<'_>> {
        let entered = self.lifecycle.try_enter(RECORD.get().depth > 0)?;
        entered.ok().map(|passage| self.operation(passage))
    }

    fn operation<'fs>(&'fs self, passage: Passage<'fs>) -> Operation<'fs> {
        let outer = RECORD.get();
        let restore = Restore(RECORD.replace(Record { depth: outer.depth + 1, ..outer }), PhantomData);
        Operation { fs: self, taken_back: Cell::new(0), _passage: passage, _restore: restore }
    }
}

#[cfg(test)]
#[path = "operation_tests.rs"]
mod tests;
