//! An operation that changes something, and the caller on whose behalf it runs.
//!
//! Main types: [`Operation`]; [`Change`], the part of it that needs no inode. [`Caller::run`] sets its caller.
//!
//! An operation owns three things. Its *passage* makes a freeze or an unmount wait for it ([`crate::lifecycle`]). Its
//! *caller* is the user and group on whose account it takes space ([`crate::reserve`]). The inodes that it has *taken
//! back* are those that it created but could not complete. It must not wait for the space that their evictions free.
//!
//! The table shows a thread that runs an operation for a user, and a nested operation in it. `inside` is the number of
//! passages through the gate of the mount. `shut gate` says whether an operation that begins now waits if the gate has
//! been shut meanwhile.
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
//! A record of the thread holds the depth of its operations and their caller; there is no other copy. A nested
//! operation reads the depth there: the gate opens only after the outer operation has ended, so a nested one must not
//! wait. The caller is needed many calls below the operation, where blocks are allocated for directories, attributes
//! and maps. The views in between also serve lookups, which belong to no operation (Linux: `current_cred`).
//!
//! What it does not do: decide whether a change may begin (`lifecycle.rs`), or find space (`ops/no_space.rs`).
//!
//! # Locking
//! None: each thread has its own record, and an operation ends on the thread on which it began.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::lifecycle::Passage;
use crate::reserve::Caller;
use crate::volume::Volume;

#[derive(Clone, Copy)]
struct Record {
    /// The number of operations that the thread is inside, of all mounts.
    depth: u32,
    caller: Caller,
}

thread_local! {
    static RECORD: Cell<Record> = const { Cell::new(Record { depth: 0, caller: Caller::ROOT }) };
}

/// Restores the thread's former record, also after a panic. It is not `Send`, because the record belongs to the thread.
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

/// A passage through the gate of the mount, and the thread's record of it, until this is dropped. Passages of one
/// thread end in the reverse order of their beginnings.
#[must_use]
pub(crate) struct Change<'v> {
    _passage: Passage<'v>,
    _restore: Restore,
}

impl Volume {
    /// Begins a change. Waits while the mount is frozen.
    ///
    /// # Errors
    /// [`crate::Error::ReadOnly`] if nothing may be changed.
    pub(crate) fn begin_change(&self) -> Result<Change<'_>> {
        Ok(Change::new(self.lifecycle.enter(RECORD.get().depth > 0)?))
    }

    /// As [`Volume::begin_change`], but does not wait: `None` if it would have to wait, or if nothing may be changed.
    pub(crate) fn try_begin_change(&self) -> Option<Change<'_>> {
        self.lifecycle.try_enter(RECORD.get().depth > 0)?.ok().map(Change::new)
    }
}

impl<'v> Change<'v> {
    fn new(passage: Passage<'v>) -> Change<'v> {
        let outer = RECORD.get();
        let restore = Restore(RECORD.replace(Record { depth: outer.depth + 1, ..outer }), PhantomData);
        Change { _passage: passage, _restore: restore }
    }
}

/// An operation that changes files of `fs`, in progress until this is dropped.
#[must_use]
pub(crate) struct Operation<'fs> {
    pub(crate) fs: &'fs Filesystem,
    /// The number of inodes that the operation has created and taken back. Their evictions are queued like any other.
    pub(crate) taken_back: Cell<u64>,
    _change: Change<'fs>,
}

impl<'fs> Operation<'fs> {
    /// Begins an operation, as [`Volume::begin_change`] does.
    ///
    /// # Errors
    /// [`crate::Error::ReadOnly`] if nothing may be changed.
    pub(crate) fn begin(fs: &'fs Filesystem) -> Result<Operation<'fs>> {
        Ok(Operation { fs, taken_back: Cell::new(0), _change: fs.begin_change()? })
    }
}

#[cfg(test)]
#[path = "operation_tests.rs"]
mod tests;
