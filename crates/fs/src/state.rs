//! Whether a mount may change its image, and whether it may still say that something is durable.
//!
//! Main type: [`MountState`]: running; read-only because it was asked for, at the mount or since; failed, after the
//! first error that `errors=` or the journal does not forgive; closed, or cut off before it was. Every operation that
//! changes something passes [`MountState::check_writable`], everything that says "durable" passes
//! [`MountState::acknowledge`], which answers a failed mount's first error. Linux: `sb_rdonly`, `EXT4_MF_FS_ABORTED`,
//! `ext4_emergency_state`.
//!
//! What it does not do: stop anything. Who fails a mount aborts the journal, too.
//!
//! # Locking
//! A leaf lock (`mount state`, 205) around the first error; looking is one load.

use extant_base::sync::atomic::{AtomicU8, Ordering};
use extant_base::sync::{LockClass, Mutex};

use crate::error::{Error, Result};

static CLASS: LockClass = LockClass::new("mount state", 205);

const RUNNING: u8 = 0;
const READ_ONLY: u8 = 1;
const FAILED: u8 = 2;
const CLOSED: u8 = 3;
/// Read-only for a while: it was writable, and can be again.
const REMOUNTED: u8 = 4;
/// Closed without what a close writes.
const CUT_OFF: u8 = 5;

pub(crate) struct MountState {
    code: AtomicU8,
    /// Why it failed.
    first: Mutex<Option<Error>>,
}

impl MountState {
    pub(crate) fn new(read_only: bool) -> MountState {
        let code = if read_only { READ_ONLY } else { RUNNING };
        MountState { code: AtomicU8::new(code), first: Mutex::new(&CLASS, None) }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.code.load(Ordering::Acquire) != RUNNING
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.code.load(Ordering::Acquire) == FAILED
    }

    /// Something may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.is_read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Something that this mount has written may be called durable.
    ///
    /// # Errors
    /// [`Error::Lost`] with the first error of a mount that failed or was cut off.
    pub(crate) fn acknowledge(&self) -> Result<()> {
        if !matches!(self.code.load(Ordering::Acquire), FAILED | CUT_OFF) {
            return Ok(());
        }
        Err(Error::lost(None, self.first.lock().clone().unwrap_or(Error::ReadOnly)))
    }

    /// To who makes something durable: whether there may be anything to write for it. One look: between two a mount
    /// that fails would be read-only and not failed, and what it never wrote called durable.
    ///
    /// # Errors
    /// As [`MountState::acknowledge`].
    pub(crate) fn writes(&self) -> Result<bool> {
        match self.code.load(Ordering::Acquire) {
            RUNNING => Ok(true),
            FAILED | CUT_OFF => self.acknowledge().map(|()| false),
            _ => Ok(false),
        }
    }

    /// The superblock is this mount's to write.
    pub(crate) fn may_write_superblock(&self) -> bool {
        matches!(self.code.load(Ordering::Acquire), RUNNING | FAILED)
    }

    /// Notes the first error; true if this is it.
    pub(crate) fn fail(&self, e: &Error) -> bool {
        let mut first = self.first.lock();
        if self.code.compare_exchange(RUNNING, FAILED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        *first = Some(e.clone());
        true
    }

    /// Turns a running mount read-only, or one that was turned so back. False if it is neither.
    pub(crate) fn remount(&self, read_only: bool) -> bool {
        let (from, to) = if read_only { (RUNNING, REMOUNTED) } else { (REMOUNTED, RUNNING) };
        self.code.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn is_remounted(&self) -> bool {
        self.code.load(Ordering::Acquire) == REMOUNTED
    }

    /// Read-only it is, and stays. False for a mount that writes or has failed.
    pub(crate) fn stay_read_only(&self) -> bool {
        let turned = self.code.compare_exchange(REMOUNTED, READ_ONLY, Ordering::AcqRel, Ordering::Acquire);
        matches!(turned, Ok(_) | Err(READ_ONLY))
    }

    /// After the unmount.
    pub(crate) fn close(&self) {
        let _first = self.first.lock();
        if !self.has_failed() {
            self.code.store(CLOSED, Ordering::Release);
        }
    }

    /// In place of an unmount: nothing may be changed any more, and what is not durable never is.
    pub(crate) fn cut_off(&self, e: &Error) {
        let mut first = self.first.lock();
        match self.code.load(Ordering::Acquire) {
            RUNNING => {
                *first = Some(e.clone());
                self.code.store(CUT_OFF, Ordering::Release);
            }
            FAILED => {}
            _ => self.code.store(CLOSED, Ordering::Release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_makes_something_durable_looks_once() {
        let asks = |state: &MountState| (state.writes().ok(), state.acknowledge().is_ok());
        let (running, failed, cut, closed) =
            (MountState::new(false), MountState::new(false), MountState::new(false), MountState::new(false));
        failed.fail(&Error::NoSpace);
        cut.cut_off(&Error::NoSpace);
        closed.close();
        assert_eq!(asks(&running), (Some(true), true));
        assert_eq!((asks(&failed), asks(&cut)), ((None, false), (None, false)));
        assert_eq!((asks(&closed), asks(&MountState::new(true))), ((Some(false), true), (Some(false), true)));
        assert!(running.remount(true));
        assert_eq!(asks(&running), (Some(false), true));
    }
}
