//! Handles: an operation's part of the running transaction (Linux: fs/ext4/ext4_jbd2.c).
//!
//! Main functions: [`Volume::transact`] and [`Volume::transact_whole`] (a change under a handle), [`Volume::start`] and
//! [`Volume::end`] for changes that need several.
//!
//! What it does not do: compute credits ([`crate::ops::credits`]), or decide what a failure in the middle of an
//! operation means ([`crate::failure`]).
//!
//! # Locking
//! The caller holds no lock that a commit takes. A handle that starts may wait for a commit.

use extant_journal::Handle;

use crate::error::{Error, Result};
use crate::ops::credits;
use crate::volume::Volume;

/// Finishes the handle, if one is open.
pub(crate) fn finish_open(open: &mut Option<Handle>) {
    if let Some(handle) = open.take() {
        handle.finish();
    }
}

impl Volume {
    /// Joins the running transaction. `credits` is the number of metadata blocks that the operation may change.
    pub(crate) fn start(&self, credits: u32) -> Result<Handle> {
        self.before_handle()?;
        self.log_errors()?;
        Ok(self.journal.start(self.with_quota_credits(credits).min(self.journal.max_credits()))?)
    }

    /// A handle, if one is available without waiting.
    pub(crate) fn try_start(&self, credits: u32) -> Option<Handle> {
        self.before_handle().ok()?;
        if self.error_log.is_unlogged() {
            return None;
        }
        self.journal.try_start(self.with_quota_credits(credits).min(self.journal.max_credits()))
    }

    /// Called before each handle: records pending damage, refuses if the mount is read-only, and makes room in memory.
    pub(crate) fn before_handle(&self) -> Result<()> {
        self.note_damaged_groups();
        if self.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.placement.charge_buddies();
        self.budget.relieve();
        Ok(())
    }

    /// Runs an operation's changes under a handle. An operation that fails must have undone its changes, or have called
    /// [`Volume::whole`], so the handle is finished in both cases. Only a panic does neither, and aborts the journal.
    pub(crate) fn transact_whole<T>(&self, credits: u32, change: impl FnOnce(&mut Handle) -> Result<T>) -> Result<T> {
        let mut handle = self.start(credits)?;
        let r = change(&mut handle);
        if r.is_err() {
            // Its records may describe what it has taken back.
            handle.set_opaque();
        }
        handle.finish();
        self.note_damaged_groups();
        r
    }

    /// Runs one change under a handle; see [`Volume::end`].
    pub(crate) fn transact<T>(&self, credits: u32, change: impl FnOnce(&mut Handle) -> Result<T>) -> Result<T> {
        let mut handle = self.start(credits)?;
        let r = change(&mut handle);
        self.end(handle, r)
    }

    /// Ends a handle. An operation that fails for a reason of its own (no space, say) has undone its changes. One that
    /// met damage, an inode that cannot be stored, or a failing device may have stopped anywhere: if it has changed
    /// something, nothing more becomes durable.
    pub(crate) fn end<T>(&self, mut handle: Handle, r: Result<T>) -> Result<T> {
        use Error::{Aborted, Corrupt, Device, Journal, Unsupported};
        if r.is_err() {
            // Its records may describe what it has undone.
            handle.set_opaque();
        }
        match &r {
            Err(e @ (Corrupt { .. } | Device(_) | Journal(_) | Aborted { .. } | Unsupported(_))) => {
                self.gives_up(e);
                handle.fail(e);
            }
            _ => handle.finish(),
        }
        self.note_damaged_groups();
        r
    }

    /// Adds the error fields to a transaction, if the mount continues after an error (`errors=continue`). Otherwise a
    /// checkpoint of an older superblock would remove them from the device.
    pub(crate) fn log_errors(&self) -> Result<()> {
        if !self.error_log.take_unlogged() {
            return Ok(());
        }
        let mut handle = self.journal.start(credits::SUPER)?;
        let r = self.modify_superblock(&mut handle, |_| ());
        self.end(handle, r)
    }
}
