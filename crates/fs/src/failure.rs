//! What becomes of an operation that fails after its first change (Linux: `ext4_std_error`, `jbd2_journal_abort_handle`).
//!
//! An operation reads everything that it needs before it changes anything: what it meets then ends it, and nothing has
//! happened. What fails later is one of two things. A refusal (no space, say) is taken back by the operation itself, and the
//! transaction is whole. Everything else leaves half an operation in the running transaction, which must then never become
//! durable: [`Filesystem::whole`] aborts the journal, and the image stays as the last commit left it.
//!
//! # Locking
//! The caller holds the `inode` locks of its operation and an open handle, no lock below. Inside: `superblock` (75), released
//! before the device is written.

use extant_journal::Handle;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;

impl Filesystem {
    /// Passes on how the part of an operation behind its first change ended. After an error nothing of the running transaction
    /// is committed: the handle, which is still open, keeps it from that until the journal has been aborted.
    pub(crate) fn whole<T>(&self, handle: &Handle, r: Result<T>) -> Result<T> {
        if let Err(e) = &r {
            self.abandon_transaction(handle, e);
        }
        r
    }

    fn abandon_transaction(&self, _open: &Handle, e: &Error) {
        if self.journal.is_aborted() {
            return;
        }
        self.record_error(e);
        self.abort(&format!("half an operation: {e}"));
    }

    /// What an unlinked inode owns could not be freed: it stays an orphan, and a checker has to look.
    pub(crate) fn note_failed_eviction(&self, e: &Error) {
        if !matches!(e, Error::ReadOnly | Error::Aborted { .. }) {
            self.record_error(e);
        }
    }
}
