//! The end of a mount (Linux: `ext4_put_super`, fs/ext4/super.c).
//!
//! Main type: [`Mounted`], which ends its mount when it is dropped. The steps are: write data, commit, checkpoint, mark
//! the log as empty. Only then is `needs_recovery` cleared, and a borrowed journal removed. A crash between any two of
//! these leaves an image with a log to replay.
//!
//! # Locking
//! `s_umount` (4) is held throughout. No freeze, thaw or remount can intervene, and a second unmount returns the result
//! of the first. The gate ([`crate::lifecycle`]) is shut from the first step to the last. Later changes wait there, and
//! are refused when the mount has ended.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::lifecycle::{Access, Phase, Right, Transition};
use crate::mount::borrow;
use crate::mount::mmp::THREAD;
use crate::mount::super_block::write_super;
use crate::ops::sync::Barrier;
use crate::ops::volume::Freezer;
use crate::volume::Volume;

/// A mount, and the obligation to end it: dropping it unmounts the file system. Parts of a program may share the file
/// system through its `Arc`. Once the mount has ended, they can no longer change anything ([`Error::ReadOnly`]).
///
/// If a panicking thread drops it, the image is left as after a power cut.
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

    /// Ends the mount like a power cut: nothing more is logged once this returns. Data and flushes that were under way
    /// may still reach the device.
    pub fn abandon(self) {
        self.fs.cut_off();
    }
}

impl Drop for Mounted {
    /// Unmounts. An error goes to [`crate::MountOptions::messages`]; a caller that needs it calls
    /// [`Filesystem::unmount`].
    fn drop(&mut self) {
        if std::thread::panicking() {
            return self.fs.cut_off();
        }
        // [`Filesystem::unmount`] has already returned its result.
        if self.fs.has_ended() {
            return;
        }
        if let Err(e) = self.fs.unmount() {
            self.fs.options.messages.say(format_args!("{}: unmount: {e}", self.fs.image()));
        }
    }
}

impl Drop for Filesystem {
    fn drop(&mut self) {
        self.cut_off();
        // Other mounts may share the budget.
        self.budget.uncharge(self.charged.load(Ordering::Relaxed));
    }
}

impl Volume {
    /// Whether the file system has been unmounted or cut off. If an unmount is under way, this waits for it.
    fn has_ended(&self) -> bool {
        let _exclusive = self.lifecycle.exclusive();
        self.lifecycle.now().phase == Phase::Ended
    }
}

/// The end of a mount. The caller holds the lifecycle's lock.
struct Ending<'fs> {
    fs: &'fs Filesystem,
}

impl Ending<'_> {
    /// Writes everything and marks the image clean. The gate is shut, and no change is inside.
    fn write_and_close(&self) -> Result<()> {
        let mut result = Ok(());
        if self.fs.borrowed && self.fs.lifecycle.now().access == Access::Remounted {
            // The journal must not stay in the image, so make the mount writable again to remove it.
            result = Freezer::new(self.fs).make_writable();
        }
        let writable = !self.fs.is_read_only();
        if !writable {
            // The remount to read-only has already written everything. Threads that wait for a handle get an error.
            self.fs.journal.stop();
            self.fs.journal.thaw();
        }
        self.end_flusher();
        result = result.and(self.fs.lifecycle.acknowledge());
        if writable {
            result = result.and(self.write_everything());
        }
        self.end_threads();
        self.fs.lifecycle.go(Transition::Close);
        if writable {
            result = result.and_then(|()| self.close_clean());
        }
        if self.fs.lifecycle.allows(Right::Superblock) {
            let heart = self.fs.heart.get();
            result = result.and(heart.map_or(Ok(()), |heart| heart.stop(self.fs)));
        }
        // Write the last errors to the device, even if the mount has failed. Afterwards another mount may use it.
        if self.fs.lifecycle.allows(Right::Superblock) {
            self.fs.write_kept_errors();
        }
        if writable && result.is_err() {
            self.fs.abort_if_failed();
        }
        // The last message gives the number of messages suppressed since the one before.
        self.fs.say_suppressed_messages();
        result.and_then(|()| self.fs.lifecycle.acknowledge())
    }

    /// Writes all data and names, frees all queued inodes, and removes idle entries of quotas.
    fn write_everything(&self) -> Result<()> {
        self.fs.evictor().drain();
        let written = Barrier::ALL.wait(self.fs);
        for inode in self.fs.inodes.all() {
            self.fs.placement.alloc.discard_preallocations(&inode.prealloc);
        }
        self.fs.evictor().drain();
        written.and(self.fs.quotas.drop_idle())
    }

    /// Ends the flusher's thread. It comes before the others, because its writes need them.
    fn end_flusher(&self) {
        self.fs.writeback.flusher.stop();
        self.fs.threads.end("extant-flush");
    }

    /// Ends the other threads; the flusher's thread has already ended.
    fn end_threads(&self) {
        self.fs.budget.wake_thread();
        self.fs.threads.end("extant-reclaim");
        self.fs.evictions.stop();
        self.fs.threads.end("extant-evict");
        self.fs.writeback.asks.stop();
        self.fs.threads.end("extant-fsync");
        self.fs.writeback.completed.stop();
        self.fs.threads.end("extant-retire");
        self.fs.journal.stop();
        self.fs.threads.end("extant-journal");
        self.fs.journal.wait_until_left();
    }

    /// Cuts the mount off. `how` is the result of a later unmount.
    fn cut_off(&self, how: Result<()>) {
        // An unmount in progress holds the lock and waits for threads that may come here.
        if !self.fs.lifecycle.allows(Right::Work) {
            return;
        }
        let mut ended = self.fs.lifecycle.exclusive();
        // The transition comes first, because changes that wait at the gate or for a handle continue below. Nothing is
        // marked on the device: if the mount was frozen, the next one finds the device clean, and if it had failed,
        // errors that are found later are not recorded.
        if !self.fs.lifecycle.cut_off(&cut()) {
            return;
        }
        self.fs.journal.stop();
        self.fs.journal.thaw();
        self.end_flusher();
        self.end_threads();
        self.fs.threads.end(THREAD);
        // If the mount failed a moment ago, that failure is the result.
        *ended =
            how.and_then(|()| if self.fs.lifecycle.has_failed() { self.fs.lifecycle.acknowledge() } else { Ok(()) });
    }

    /// Closes the journal, gives a borrowed one back, and marks the image as clean.
    fn close_clean(&self) -> Result<()> {
        self.fs.journal.close()?;
        let orphans = self.fs.orphans.len();
        let mut sb = self.fs.note_totals();
        let kbytes = self.fs.dev.stats().write_bytes / 1024;
        let before = sb.kbytes_written();
        sb.set_kbytes_written(before + kbytes);
        // If orphans could not be freed, the next mount needs the journal to clean them up.
        if self.fs.borrowed && orphans == 0 {
            let kept = borrow::give_back(&self.fs.dev, &mut sb)?;
            let Some(why) = kept else { return Ok(()) };
            self.fs.options.messages.say(format_args!("{}: {why}; the borrowed journal stays", self.fs.image()));
        }
        sb.set_needs_recovery(false);
        write_super(&*self.fs.dev, &sb, self.fs.sb_place)
    }
}

impl Filesystem {
    /// Writes everything, marks the image clean, and ends the background threads. Every later change fails with
    /// [`Error::ReadOnly`].
    ///
    /// The threads end in the order of their dependencies: writes of data and evictions need handles, and handles need
    /// the journal's thread to make room.
    ///
    /// # Errors
    /// The first failure to make something durable. The image then remains marked as needing recovery, unless only file
    /// data was lost whose loss had not been reported. A second unmount returns the same error.
    pub fn unmount(&self) -> Result<()> {
        let mut how = self.lifecycle.exclusive();
        let frozen = self.is_frozen();
        if !self.lifecycle.go(Transition::BeginEnd) {
            return how.clone();
        }
        if frozen {
            Freezer::new(self).thaw_device();
        }
        let result = Ending { fs: self }.write_and_close();
        self.lifecycle.go(Transition::End);
        // Lost data takes precedence over other errors.
        *how = self.report_lost().and(result);
        how.clone()
    }

    /// Ends the mount like a power cut, but after a last commit. That commits names and attributes, but not data whose
    /// blocks are not allocated yet. Data that was reported durable stays durable. Every later change and fsync is
    /// refused, and the unmount writes nothing and succeeds. Nothing is marked as damaged: the next mount replays the
    /// log. For tests of recovery (Linux: `ext4_force_shutdown` with `EXT4_GOING_FLAGS_LOGFLUSH`).
    ///
    /// # Errors
    /// The log could not be written, the mount had failed before, or data had been lost whose loss had not been
    /// reported. The unmount returns the same error. The mount has been cut off nevertheless.
    pub fn shut_down(&self) -> Result<()> {
        // While the mount is frozen, everything is home, and the journal accepts nothing.
        let idle = self.is_read_only() || self.is_frozen();
        let logged = if idle { self.lifecycle.acknowledge() } else { self.sync_names() };
        let how = self.report_lost().and(logged);
        Ending { fs: self }.cut_off(how.clone());
        how
    }

    /// As [`Mounted::abandon`], but also callable through a shared reference: nothing more is written, and nothing more
    /// can be changed. An unmount returns an error.
    pub fn cut_off(&self) {
        Ending { fs: self }.cut_off(Err(cut()));
    }
}

/// The result of an unmount after the mount was cut off.
fn cut() -> Error {
    Error::Aborted { cause: extant_journal::Error::Aborted { cause: "the mount was cut off".to_owned() } }
}
