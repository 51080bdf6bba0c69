//! Operations on the file system as a whole: freeze and thaw, remounting, trim, the label.
//!
//! Main type: [`Freezer`], which also takes part in the unmount. Main functions: [`Filesystem::freeze`],
//! [`Filesystem::thaw`], [`Filesystem::remount`], [`Filesystem::trim`], [`Filesystem::set_label`].
//!
//! What it does not do: decide which transitions are possible ([`crate::lifecycle`]), or unmount.
//!
//! # Locking
//! `s_umount` (4) is held by freeze, thaw, remount, unmount and the write of a new label home, so that each finds the
//! state that the one before left. They hold it while they wait for changes inside the gate ([`crate::lifecycle`]) and
//! for the device. No change inside the gate takes it, and no thread of the mount.

use extant_ondisk::BlockNr;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::lifecycle::{Access, Phase, Transition};
use crate::mount::super_block::write_super;
use crate::ops::credits;
use crate::ops::sync::Barrier;
use crate::volume::Volume;

/// The maximum length of a label, in bytes. Linux: `EXT4_LABEL_MAX`.
pub const LABEL_MAX: usize = 16;

impl Volume {
    /// Whether the mount is frozen: nothing is written, and changes wait at the gate.
    pub fn is_frozen(&self) -> bool {
        self.lifecycle.now().phase == Phase::Frozen
    }

    /// Makes all changes of names and attributes before the call durable.
    ///
    /// # Errors
    /// [`Error::Lost`] if the mount has failed; [`Error::Journal`] or [`Error::Aborted`] if the commit fails.
    pub fn sync_names(&self) -> Result<()> {
        self.lifecycle.acknowledge()?;
        self.journal.commit_wait(Some(self.journal.running_tid()))?;
        self.lifecycle.acknowledge()
    }

    /// The volume's name, up to the first NUL. It need not be UTF-8.
    pub fn label(&self) -> Vec<u8> {
        let sb = self.sb.lock();
        let name = &sb.raw().s_volume_name;
        name.split(|b| *b == 0).next().unwrap_or_default().to_vec()
    }
}

/// Freezes, thaws and remounts a mount. The caller holds `s_umount`.
pub(crate) struct Freezer<'fs> {
    fs: &'fs Filesystem,
}

impl<'fs> Freezer<'fs> {
    pub(crate) fn new(fs: &'fs Filesystem) -> Freezer<'fs> {
        Freezer { fs }
    }

    /// Freezes the mount.
    fn freeze(&self) -> Result<()> {
        if !self.fs.lifecycle.go(Transition::Shut) {
            return Err(Error::ReadOnly);
        }
        let frozen = if self.fs.is_read_only() {
            self.fs.lifecycle.acknowledge().inspect(|()| _ = self.fs.lifecycle.go(Transition::Freeze))
        } else {
            // After an error the superblock on the device does not change: the one in memory may belong to a
            // transaction.
            let written = self.write_all_home().inspect_err(|_| self.resume());
            written.and_then(|()| self.mark_unused().inspect_err(|_| self.thaw_device()))
        };
        if frozen.is_err() {
            self.fs.lifecycle.go(Transition::Reopen);
        }
        frozen
    }

    /// Writes everything home and empties the log.
    fn write_all_home(&self) -> Result<()> {
        let cursor = self.fs.writeback.losses.open();
        self.fs.evictor().drain();
        Barrier::ALL.wait(self.fs)?;
        // This reports data that was lost meanwhile, and earlier losses that no party has seen.
        self.fs.writeback.losses.check(&cursor)?;
        self.fs.evictor().freeze();
        Ok(self.fs.journal.freeze()?)
    }

    /// Marks the device as unmounted. Everything must be home.
    fn mark_unused(&self) -> Result<()> {
        let mut sb = self.fs.note_totals();
        sb.set_needs_recovery(false);
        write_super(&*self.fs.dev, &sb, self.fs.sb_place)
    }

    /// Marks the device as in use again, unless the mount is read-only. The gate remains shut.
    pub(crate) fn thaw_device(&self) {
        if !self.fs.is_read_only() {
            let marked = self.fs.mark_in_use(&mut self.fs.sb.lock());
            if let Err(e) = marked {
                // Without the mark, the next mount would discard everything that is logged from here on.
                self.fs.abort(&format!("cannot be marked as in use: {e}"));
            }
        }
        self.resume();
    }

    /// Allows handles and evictions again, and writes errors that have occurred meanwhile to the device.
    fn resume(&self) {
        // While the mount is read-only, the journal stays frozen.
        if !self.fs.is_read_only() {
            self.fs.journal.thaw();
        }
        self.fs.lifecycle.go(Transition::Resume);
        self.fs.write_errors();
        self.fs.abort_if_failed();
        self.fs.evictions.resume();
    }

    /// Ends a remount to read-only.
    pub(crate) fn make_writable(&self) -> Result<()> {
        if self.fs.lifecycle.now().access != Access::Remounted || self.fs.journal.is_aborted() {
            return Err(Error::ReadOnly);
        }
        self.fs.mark_in_use(&mut self.fs.sb.lock())?;
        self.fs.lifecycle.go(Transition::RemountWritable);
        self.fs.journal.thaw();
        self.fs.evictor().queue_unused();
        Ok(())
    }

    /// Writes all changes home and empties the log. This is a momentary freeze that reports no lost data and does not
    /// mark the image as unmounted.
    fn empty_log(&self) -> Result<()> {
        self.fs.lifecycle.go(Transition::Shut);
        let emptied = Barrier::ALL.wait(self.fs).and_then(|()| {
            self.fs.evictor().freeze();
            Ok(self.fs.journal.freeze()?)
        });
        self.resume();
        self.fs.lifecycle.go(Transition::Reopen);
        emptied
    }
}

impl Filesystem {
    /// Writes everything, empties the journal and marks the image clean. Nothing is written until [`Filesystem::thaw`],
    /// so a copy of the device is a copy of an unmounted file system. (The only exception is files that were open and
    /// deleted; the next mount of the copy deletes them.) Changes wait, but reads continue. Returns false if the mount
    /// is already frozen. Linux: `ext4_freeze`.
    ///
    /// # Errors
    /// A failed write; the mount is then not frozen. Lost data is reported once, and does not make the next freeze
    /// fail. [`Error::ReadOnly`] after the unmount.
    pub fn freeze(&self) -> Result<bool> {
        let _exclusive = self.lifecycle.exclusive();
        if self.is_frozen() {
            return Ok(false);
        }
        Freezer::new(self).freeze().map(|()| true)
    }

    /// Ends [`Filesystem::freeze`]. Returns false if the mount is not frozen.
    pub fn thaw(&self) -> bool {
        let _exclusive = self.lifecycle.exclusive();
        if !self.is_frozen() {
            return false;
        }
        Freezer::new(self).thaw_device();
        self.lifecycle.go(Transition::Reopen)
    }

    /// Makes the mount read-only, with the device in the state of an unmounted file system, or makes it writable again.
    /// A mount that began read-only remains read-only. A frozen mount may become read-only, which ends the freeze.
    /// Linux: `ext4_remount`.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if the mount cannot become writable; [`Error::Busy`] if it is frozen and should become
    /// writable; a failed write.
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
            return Freezer::new(self).make_writable();
        }
        if !self.is_frozen() {
            Freezer::new(self).freeze()?;
        }
        self.write_kept_errors();
        // The journal remains frozen. If the mount has failed meanwhile, it does not become read-only in this way.
        if !self.lifecycle.go(Transition::RemountReadOnly) {
            Freezer::new(self).resume();
        }
        self.lifecycle.go(Transition::Reopen);
        self.lifecycle.acknowledge()
    }

    /// Tells the device which blocks are free, among the `len` bytes from `start` on, in runs of at least `min_len`
    /// bytes. Returns the number of bytes in these runs. Groups with damaged bitmaps are recorded and skipped. Linux:
    /// `FITRIM`, `ext4_trim_fs`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the start is past the end, if `len` is less than a block, or if `min_len` is longer than a
    /// group.
    pub fn trim(&self, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let bits = self.geo.block_bits;
        let group = u64::from(self.geo.blocks_per_group) << bits;
        if start >> bits >= self.geo.blocks_count || len >> bits == 0 || min_len > group {
            return Err(Error::Invalid("a range to trim"));
        }
        let _change = self.begin_change()?;
        // Blocks that were deleted a moment ago count as free.
        self.evictor().drain();
        self.journal.commit_running()?;
        let block = u64::from(self.geo.block_size);
        let first = start.div_ceil(block).max(self.geo.first_data_block);
        let end = (start.saturating_add(len) / block).min(self.geo.blocks_count);
        let min_len = u32::try_from(min_len.div_ceil(block)).unwrap_or(u32::MAX);
        let mut trimmed = 0;
        if first < end {
            let visited = self.placement.alloc.visit_free(BlockNr(first), end - first, min_len, |at, n| {
                let bytes = u64::from(n) * block;
                trimmed += bytes;
                self.dev.discard(at.0 * block, bytes)
            });
            // Record the damage here, because no other handle may follow that would.
            self.note_damaged_groups();
            visited?;
        }
        Ok(trimmed)
    }

    /// Sets the label of the file system, at most [`LABEL_MAX`] bytes. When this returns, the label is home in the
    /// superblock, where blkid(8) reads it, and not only in the log.
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
            // Everything has been written already, or nothing more will be.
            return self.lifecycle.acknowledge();
        }
        Freezer::new(self).empty_log()
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

    /// A frozen mount has found damage and becomes read-only while another thread holds the log. The mount's last write
    /// waits for that thread, because no later write would record the damage.
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
