//! The end of a mount (Linux: `ext4_put_super`, fs/ext4/super.c).
//!
//! Main type: [`Mounted`], which ends its mount when it is dropped. The order: data → commit → checkpoint → log marked
//! empty → only then `needs_recovery` cleared, and a borrowed journal given back. A crash between any two of these
//! leaves an image that replays.
//!
//! # Locking
//! None held while waiting. Whoever is still at work is told by [`crate::state`] that nothing changes any more.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;

use crate::borrow;
use crate::error::Result;
use crate::filesystem::Filesystem;
use crate::ops::sync::Scope;
use crate::super_block::write_super;

/// A mount, and the duty to end it: dropped, it unmounts. Parts of a program may share the file system by the `Arc`
/// that it is; once the mount has ended they can change nothing any more ([`crate::Error::ReadOnly`]).
///
/// Dropped by a thread that panics it leaves what a power cut leaves.
#[must_use = "dropped, it unmounts"]
pub struct Mounted {
    fs: Arc<Filesystem>,
}

impl std::ops::Deref for Mounted {
    type Target = Arc<Filesystem>;
    fn deref(&self) -> &Arc<Filesystem> {
        &self.fs
    }
}

impl Mounted {
    pub(crate) fn new(fs: Arc<Filesystem>) -> Mounted {
        Mounted { fs }
    }

    /// Ends the mount as a power cut would: nothing more is written.
    pub fn abandon(self) {
        self.fs.cut_off();
    }
}

impl Drop for Mounted {
    /// What [`Filesystem::unmount`] would have answered goes to [`crate::MountOptions::messages`]; whoever wants to
    /// know unmounts.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.fs.cut_off();
        }
        if let Err(e) = self.fs.unmount() {
            self.fs.options.messages.say(format_args!("{}: unmount: {e}", self.fs.image()));
        }
    }
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        self.cut_off();
    }
}

impl Filesystem {
    /// Writes everything, marks the image clean, and ends the background threads. The file system answers every later
    /// change with [`crate::Error::ReadOnly`].
    ///
    /// The threads end in the order in which they need each other: whoever writes data or frees inodes needs handles,
    /// which need the journal's thread to make room.
    ///
    /// # Errors
    /// The first thing that could not be made durable; the image is then left marked as needing recovery, unless only
    /// data of files was lost that nobody has been told of.
    pub fn unmount(&self) -> Result<()> {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.thaw();
        if self.state.is_remounted() {
            // A borrowed journal is to be given back; otherwise the device is as it should be.
            if self.borrowed {
                self.remount(false)?;
            } else {
                self.journal.thaw();
            }
        }
        let writable = !self.is_read_only();
        self.flusher.stop();
        self.threads.end("extant-flush");
        let mut result = self.state.acknowledge();
        if writable {
            result = result.and(self.write_everything());
        }
        self.end_threads();
        if writable {
            result = result.and_then(|()| self.close_clean());
        }
        self.state.close();
        // Data that was lost is told whatever else went wrong.
        self.report_lost().and(result)
    }

    fn write_everything(&self) -> Result<()> {
        self.drain_evictions();
        let written = self.wait_for(|done| self.barrier(Scope::All, done));
        for inode in self.inodes.all() {
            self.alloc.discard_preallocations(&inode.prealloc);
        }
        self.drain_evictions();
        written
    }

    fn end_threads(&self) {
        self.flusher.stop();
        self.threads.end("extant-flush");
        self.evict_work.notify_all();
        self.threads.end("extant-evict");
        self.completed.stop();
        self.threads.end("extant-retire");
        self.journal.stop();
        self.threads.end("extant-journal");
    }

    /// Nothing more is written, and nothing more can be changed.
    pub(crate) fn cut_off(&self) {
        if !self.stopping.swap(true, Ordering::AcqRel) {
            self.release_frozen();
            self.end_threads();
            self.state.close();
        }
    }

    fn close_clean(&self) -> Result<()> {
        self.journal.close()?;
        let orphans = self.orphans.len();
        let mut sb = self.note_totals();
        let kbytes = self.dev.stats().write_bytes / 1024;
        let before = sb.kbytes_written();
        sb.set_kbytes_written(before + kbytes);
        // Orphans that nobody could free need a journal at the next mount.
        if self.borrowed && orphans == 0 {
            let kept = borrow::give_back(&self.dev, &mut sb)?;
            let Some(why) = kept else { return Ok(()) };
            self.options.messages.say(format_args!("{}: {why}; the borrowed journal stays", self.image()));
        }
        sb.set_needs_recovery(false);
        write_super(&*self.dev, &sb, self.sb_place)
    }
}
