//! Operations on the file system as a whole: freeze and thaw, read-only and back, trim, the label.
//!
//! # Locking
//! `s_umount` (4) around freeze, thaw, remount, unmount and the write of a new label home, so that each finds the mount
//! as the one before left it; it is held while they wait for changes inside the gate ([`crate::lifecycle`]) and for the
//! device. No change that is inside, and no thread of the mount, takes it.

use extant_ondisk::BlockNr;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::lifecycle::{Access, Phase, Transition};
use crate::mount::super_block::write_super;
use crate::ops::credits;
use crate::ops::sync::Barrier;

/// Longest label. Linux: `EXT4_LABEL_MAX`.
pub const LABEL_MAX: usize = 16;

impl Filesystem {
    /// Whether the mount is frozen: nothing is written, and changes wait at the gate.
    pub fn is_frozen(&self) -> bool {
        self.lifecycle.now().phase == Phase::Frozen
    }

    /// Writes everything, empties the journal and marks the image clean: until [`Filesystem::thaw`] nothing is written,
    /// so that a copy of the device is a copy of a file system that was unmounted (but for files that were open and
    /// deleted, which the next mount of the copy deletes). Changes wait; reading goes on. False if it was frozen
    /// already. Linux: `ext4_freeze`.
    ///
    /// # Errors
    /// A failed write; the mount is then not frozen. Lost data is reported once: the next freeze succeeds without it.
    /// [`Error::ReadOnly`] after the unmount.
    pub fn freeze(&self) -> Result<bool> {
        let _exclusive = self.lifecycle.exclusive();
        if self.is_frozen() {
            return Ok(false);
        }
        self.freeze_all().map(|()| true)
    }

    /// The caller holds `s_umount`.
    fn freeze_all(&self) -> Result<()> {
        if !self.lifecycle.go(Transition::Shut) {
            return Err(Error::ReadOnly);
        }
        let frozen = if self.is_read_only() {
            self.lifecycle.acknowledge().inspect(|()| _ = self.lifecycle.go(Transition::Freeze))
        } else {
            // After an error the device is marked as it was: the superblock in memory may belong to a transaction.
            let written = self.write_all_home().inspect_err(|_| self.resume());
            written.and_then(|()| self.mark_unused().inspect_err(|_| self.thaw_device()))
        };
        if frozen.is_err() {
            self.lifecycle.go(Transition::Reopen);
        }
        frozen
    }

    /// Everything is in its place on return, and the log empty.
    fn write_all_home(&self) -> Result<()> {
        let cursor = self.losses.open();
        self.drain_evictions();
        self.wait_for(|done| self.barrier(Barrier::ALL, done))?;
        // Data that was lost meanwhile, and losses from before that no party has seen.
        self.losses.check(&cursor)?;
        self.hold_evictions();
        Ok(self.journal.freeze()?)
    }

    /// The device is as after an unmount. Everything is in its place.
    fn mark_unused(&self) -> Result<()> {
        let mut sb = self.note_totals();
        sb.set_needs_recovery(false);
        write_super(&*self.dev, &sb, self.sb_place)
    }

    /// Ends [`Filesystem::freeze`]; false if it was not frozen.
    pub fn thaw(&self) -> bool {
        let _exclusive = self.lifecycle.exclusive();
        if !self.is_frozen() {
            return false;
        }
        self.thaw_device();
        self.lifecycle.go(Transition::Reopen)
    }

    /// The device is that of a running mount again, unless the mount is read-only; the gate stays shut. The caller
    /// holds `s_umount`.
    pub(crate) fn thaw_device(&self) {
        if !self.is_read_only() {
            let marked = self.mark_in_use(&mut self.sb.lock());
            if let Err(e) = marked {
                // Without the mark, the next mount would throw away what is logged from here on.
                self.abort(&format!("cannot be marked as in use: {e}"));
            }
        }
        self.resume();
    }

    /// Handles and evictions go on, and the device learns of errors that occurred meanwhile.
    fn resume(&self) {
        // While the mount is read-only, the journal stays frozen.
        if !self.is_read_only() {
            self.journal.thaw();
        }
        self.lifecycle.go(Transition::Resume);
        self.write_errors();
        self.abort_if_failed();
        self.evict_work.notify_one();
    }

    /// Makes the mount read-only, with the device as after an unmount, or writable again. A mount that began read-only
    /// stays so. One that is frozen may become read-only, which ends the freezing. Linux: `ext4_remount`.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] when it cannot become writable; [`Error::Busy`] when it is frozen and is to be writable; a
    /// failed write.
    pub fn remount(&self, read_only: bool) -> Result<()> {
        let _exclusive = self.lifecycle.exclusive();
        match self.lifecycle.now().phase {
            Phase::Ended => return Err(Error::ReadOnly),
            Phase::Frozen if !read_only => return Err(Error::Busy("the mount is frozen: thaw it first")),
            _ => {}
        }
        if read_only == self.is_read_only() {
            return self.lifecycle.acknowledge();
        }
        if !read_only {
            return self.make_writable();
        }
        if !self.is_frozen() {
            self.freeze_all()?;
        }
        self.write_kept_errors();
        // The journal stays frozen. A mount that has failed meanwhile is not turned.
        if !self.lifecycle.go(Transition::RemountReadOnly) {
            self.resume();
        }
        self.lifecycle.go(Transition::Reopen);
        self.lifecycle.acknowledge()
    }

    /// Ends a remount to read-only. The caller holds `s_umount`.
    pub(crate) fn make_writable(&self) -> Result<()> {
        if self.lifecycle.now().access != Access::Remounted || self.journal.is_aborted() {
            return Err(Error::ReadOnly);
        }
        self.mark_in_use(&mut self.sb.lock())?;
        self.lifecycle.go(Transition::RemountWritable);
        self.journal.thaw();
        self.queue_unused();
        Ok(())
    }

    /// Every change of names and attributes so far is durable on return.
    ///
    /// # Errors
    /// [`Error::Lost`] if the mount has failed; [`Error::Journal`] or [`Error::Aborted`] if the commit fails.
    pub fn sync_names(&self) -> Result<()> {
        self.lifecycle.acknowledge()?;
        self.journal.commit_wait(Some(self.journal.running_tid()))?;
        self.lifecycle.acknowledge()
    }

    /// Tells the device which blocks hold nothing, among the `len` bytes from `start` on, in runs of at least `min_len`
    /// bytes. Returns how many bytes that were. Groups whose bitmaps are damaged are noted and passed over. Linux:
    /// `FITRIM`, `ext4_trim_fs`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a start behind the end, less than a block, or runs longer than a group.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let bits = self.geo.block_bits;
        let group = u64::from(self.geo.blocks_per_group) << bits;
        if start >> bits >= self.geo.blocks_count || len >> bits == 0 || min_len > group {
            return Err(Error::Invalid("a range to trim"));
        }
        let _change = self.begin_change()?;
        // Blocks that were deleted a moment ago are free, too.
        self.drain_evictions();
        self.journal.commit_running()?;
        let block = u64::from(self.geo.block_size);
        let first = start.div_ceil(block).max(self.geo.first_data_block);
        let end = (start.saturating_add(len) / block).min(self.geo.blocks_count);
        let min_len = u32::try_from(min_len.div_ceil(block)).unwrap_or(u32::MAX);
        let mut trimmed = 0;
        if first < end {
            let visited = self.alloc.visit_free(BlockNr(first), end - first, min_len, |at, n| {
                let bytes = u64::from(n) * block;
                trimmed += bytes;
                self.dev.discard(at.0 * block, bytes)
            });
            // There need not be another handle that would note them.
            self.note_damaged_groups();
            visited?;
        }
        Ok(trimmed)
    }

    /// The volume's name, without what follows a NUL: bytes, which need not be UTF-8.
    pub fn label(&self) -> Vec<u8> {
        let sb = self.sb.lock();
        let name = &sb.raw().s_volume_name;
        name.split(|b| *b == 0).next().unwrap_or_default().to_vec()
    }

    /// Names the file system, with at most [`LABEL_MAX`] bytes. The name is in the superblock's own place on return,
    /// where blkid(8) looks, not in the log alone.
    ///
    /// # Errors
    /// [`Error::ReadOnly`]; [`Error::Lost`] if the label did not become durable.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        {
            let _change = self.begin_change()?;
            self.transact(credits::SUPER, |handle| self.modify_superblock(handle, |sb| sb.set_volume_name(label)))?;
        }
        let _exclusive = self.lifecycle.exclusive();
        if self.is_frozen() || self.is_read_only() {
            // Everything was written then, or nothing will be.
            return self.lifecycle.acknowledge();
        }
        self.empty_log()
    }

    /// Everything that changed is in its place on return, and the log empty: a freeze for a moment, which reports no
    /// lost data and does not mark the image. The caller holds `s_umount`.
    fn empty_log(&self) -> Result<()> {
        self.lifecycle.go(Transition::Shut);
        let emptied = self.wait_for(|done| self.barrier(Barrier::ALL, done)).and_then(|()| {
            self.hold_evictions();
            Ok(self.journal.freeze()?)
        });
        self.resume();
        self.lifecycle.go(Transition::Reopen);
        emptied
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use extant_base::clock::Clock;
    use extant_base::sync::Waiter;
    use extant_base::task;
    use extant_ondisk::superblock::FsState;

    use super::*;
    use crate::error::Damage;
    use crate::mount::super_block::read_super_at;
    use crate::{MountOptions, OnError};

    /// A thread has the log when a frozen mount that has met damage becomes read-only. The mount's last write waits for
    /// that thread, because no later write would report the damage.
    #[test]
    fn a_remount_of_a_frozen_mount_reports_damage_while_another_thread_has_the_log() {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4"], "16M"));
        let options = MountOptions { errors: Some(OnError::Continue), ..MountOptions::default() };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        assert!(fs.freeze().expect("frozen"));
        fs.note_error(&Error::corrupt(Damage::Directory, "met while it is frozen"));
        let (has_it, lets_go) = (Waiter::new(), Waiter::new());
        let holder = {
            let (fs, has_it, lets_go) = (Arc::clone(&fs), has_it.clone(), lets_go.clone());
            let holds = move || {
                fs.journal.alone(|| {
                    has_it.set(());
                    lets_go.wait();
                })
            };
            task::spawn("holder", holds).expect("thread")
        };
        has_it.wait();
        let remount = {
            let fs = Arc::clone(&fs);
            task::spawn("remount", move || fs.remount(true)).expect("thread")
        };
        Clock::real().sleep(Duration::from_millis(100));
        lets_go.set(());
        assert!(holder.join().expect("joined"));
        remount.join().expect("joined").expect("read-only");
        assert!(read_super_at(&*dev, 1024).expect("superblock").state().contains(FsState::ERROR));
        fs.unmount().expect("unmount");
    }
}
