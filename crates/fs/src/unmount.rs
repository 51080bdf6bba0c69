//! The end of a mount (Linux: `ext4_put_super`, fs/ext4/super.c).
//!
//! Main type: [`Mounted`], which ends its mount when it is dropped. The order: data → commit → checkpoint → log marked
//! empty → only then `needs_recovery` cleared, and a borrowed journal given back. A crash between any two of these
//! leaves an image that replays.
//!
//! # Locking
//! `s_umount` (4) throughout, so that nobody freezes, thaws or remounts meanwhile, and who unmounts again is told how
//! it went. The gate ([`crate::freeze`]) is shut from the first step to the last: whoever comes later waits, and is
//! then told by [`crate::state`] that nothing changes any more.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;

use crate::borrow;
use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::ops::sync::Scope;
use crate::super_block::write_super;

/// A mount, and the duty to end it: dropped, it unmounts. Parts of a program may share the file system by the `Arc`
/// that it is; once the mount has ended they can change nothing any more ([`Error::ReadOnly`]).
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

    /// Ends the mount as a power cut would: nothing more is logged once this returns. Data and flushes that were under
    /// way may still reach the device.
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
        // Whoever unmounted has been told.
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
        // The budget may be others', too.
        let buddies = self.buddy_bytes.load(Ordering::Relaxed) as u64;
        self.budget.uncharge(self.charged.load(Ordering::Relaxed) + buddies);
    }
}

impl Filesystem {
    /// Writes everything, marks the image clean, and ends the background threads. The file system answers every later
    /// change with [`Error::ReadOnly`].
    ///
    /// The threads end in the order in which they need each other: whoever writes data or frees inodes needs handles,
    /// which need the journal's thread to make room.
    ///
    /// # Errors
    /// The first thing that could not be made durable; the image is then left marked as needing recovery, unless only
    /// data of files was lost that nobody has been told of. Who unmounts again is told the same.
    pub fn unmount(&self) -> Result<()> {
        let mut ended = self.umount.lock();
        if let Some(how) = &*ended {
            return how.clone();
        }
        self.stopping.store(true, Ordering::Release);
        if self.is_frozen() {
            self.thaw_device();
        } else {
            self.gate.shut();
        }
        let result = self.write_and_close();
        self.state.close();
        self.gate.open();
        // Data that was lost is told whatever else went wrong.
        let result = self.report_lost().and(result);
        *ended = Some(result.clone());
        result
    }

    /// Nobody is inside the gate, which is shut.
    fn write_and_close(&self) -> Result<()> {
        let mut result = Ok(());
        if self.borrowed && self.state.is_remounted() {
            // The journal is to be given back.
            result = self.make_writable();
        }
        let writable = !self.is_read_only();
        if !writable {
            // After a remount to read-only the device is as it should be: who waits for a handle gets none.
            self.journal.stop();
            self.journal.thaw();
        }
        self.flusher.stop();
        self.threads.end("extant-flush");
        result = result.and(self.state.acknowledge());
        if writable {
            result = result.and(self.write_everything());
        }
        self.end_threads();
        if writable {
            self.closing.store(true, Ordering::SeqCst);
            result = result.and_then(|()| self.close_clean());
            if result.is_err() {
                self.closing.store(false, Ordering::SeqCst);
                self.tell_kept_errors();
            }
        }
        // What was met meanwhile has still to be told, and nothing after it, also if the mount has failed: the device
        // may be somebody else's then.
        self.closing.store(true, Ordering::SeqCst);
        if self.state.may_write_superblock() {
            self.write_kept_errors();
        }
        self.say_last_suppressed();
        result.and_then(|()| self.state.acknowledge())
    }

    /// Whether it has been unmounted, or cut off; waits for who is at it.
    fn has_ended(&self) -> bool {
        self.umount.lock().is_some()
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
        self.budget.wake_thread();
        self.threads.end("extant-reclaim");
        self.flusher.stop();
        self.threads.end("extant-flush");
        self.evict_work.notify_all();
        self.threads.end("extant-evict");
        self.asks.stop();
        self.threads.end("extant-fsync");
        self.completed.stop();
        self.threads.end("extant-retire");
        self.journal.stop();
        self.threads.end("extant-journal");
        self.journal.wait_until_left();
    }

    /// Ends the mount as a power cut would, after what the log takes now: names and attributes, not data that waits for
    /// its blocks. What was promised keeps; every later change and fsync is
    /// refused, and the unmount writes nothing and succeeds. Nothing is marked as damaged: the next mount replays the
    /// log. For tests of recovery (Linux: `ext4_force_shutdown` with `EXT4_GOING_FLAGS_LOGFLUSH`).
    ///
    /// # Errors
    /// The log could not be written, the mount had failed before, or data had been lost that nobody was told of: the
    /// unmount says so, too. The mount has been cut off nevertheless.
    pub fn shut_down(&self) -> Result<()> {
        // Frozen, everything is where it belongs, and the journal takes nothing.
        let idle = self.is_read_only() || self.is_frozen();
        let logged = if idle { self.state.acknowledge() } else { self.sync_names() };
        let how = self.report_lost().and(logged);
        self.cut_off_and_end(how.clone());
        how
    }

    /// As [`Mounted::abandon`], for all who share the file system: nothing more is written, and nothing more can be
    /// changed. Who unmounts is told so.
    pub fn cut_off(&self) {
        self.cut_off_and_end(Err(cut()));
    }

    /// `how` is what an unmount will be told.
    fn cut_off_and_end(&self, how: Result<()>) {
        if self.stopping.load(Ordering::Acquire) {
            return;
        }
        let mut ended = self.umount.lock();
        if ended.is_some() {
            return;
        }
        self.stopping.store(true, Ordering::Release);
        // Before anybody who waits goes on, at the gate or for a handle. Nothing is marked on the device: where it was
        // frozen, the next mount finds it clean; nor what is found out later, of a mount that has failed.
        self.closing.store(true, Ordering::SeqCst);
        self.state.cut_off(&cut());
        self.journal.stop();
        self.journal.thaw();
        self.frozen.store(false, Ordering::Release);
        self.gate.open();
        self.end_threads();
        // It may have failed a moment ago: then it was not this that ended it.
        *ended = Some(how.and_then(|()| if self.state.has_failed() { self.state.acknowledge() } else { Ok(()) }));
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

fn cut() -> Error {
    Error::Aborted { cause: extant_journal::Error::Aborted { cause: "the mount was cut off".to_owned() } }
}
