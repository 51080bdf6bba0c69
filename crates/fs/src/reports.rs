//! Reports of errors: the superblock's error fields, in memory and on the device, and messages (Linux:
//! `ext4_handle_error`, `ext4_error_ratelimit`, `s_sb_upd_work`, fs/ext4/super.c).
//!
//! Main types: none; [`crate::error_log::ErrorLog`] knows which reports are due. The superblock in memory counts every
//! error. The first error of each kind is made durable immediately, because the next mount and e2fsck must see it.
//! Further ones reach the device later. So a program that calls stat(2) on a damaged inode in a loop does not cause a
//! flush or a message each time.
//!
//! What it does not do: decide what an error in the middle of an operation means ([`crate::failure`]).
//!
//! # Locking
//! `error reports` (211), a leaf. [`Volume::record_error`] takes `superblock` (75), and releases it before it writes to
//! the device.

use extant_ondisk::superblock::ErrorEvent;
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Damage, Error, Result};
use crate::inode::Inode;
use crate::lifecycle::{Phase, Right, Transition};
use crate::mount::super_block::{read_super_at, write_super};
use crate::options::OnError;
use crate::volume::Volume;

impl Volume {
    /// Called with every error that reaches an operation. If the image is damaged, `errors=` decides what happens.
    pub(crate) fn note_error(&self, e: &Error) {
        if e.is_corruption() {
            self.record_error(e);
        }
    }

    /// Passes a result on. An error that shows damage of the image is recorded.
    pub(crate) fn watch<T>(&self, r: Result<T>) -> Result<T> {
        if let Err(e) = &r {
            self.note_error(e);
        }
        r
    }

    /// Records a read error that ended a change early and left blocks without an owner. They are harmless, but e2fsck
    /// looks for them only if the image is marked as having errors (Linux: `ext4_std_error`).
    pub(crate) fn note_cut_short(&self, e: &Error) {
        if matches!(e, Error::Device(_)) {
            self.record_error(e);
        }
    }

    /// Records groups that the allocator skips, and blocks that it did not free.
    pub(crate) fn note_damaged_groups(&self) {
        for e in self.placement.groups.take_damage() {
            self.record_error(&e);
        }
    }

    /// Counts and reports damage or a read error that makes something unavailable to a rescue.
    pub(crate) fn note_hurt(&self, e: &Error) {
        if e.is_corruption() || (self.rescues() && matches!(e, Error::Device(_))) {
            self.record_error(e);
        }
    }

    /// Records that an inode is used in spite of this damage.
    pub(crate) fn doubt(&self, inode: &Inode, e: Error) {
        if inode.doubt.get().is_none() {
            self.note_hurt(&e);
            let _ = inode.doubt.set(Box::new(e));
        }
    }

    /// Passes a result of an eviction on; `None` for damage in spite of which it continues. The damage is recorded when
    /// no lock is held.
    pub(crate) fn unless_damaged<T>(&self, inode: &Inode, r: Result<T>) -> Result<Option<T>> {
        match r {
            Err(Error::Unsupported(what)) => {
                self.placement.groups.keep_damage(Error::corrupt(Damage::Xattr, what.to_string()).of(inode.ino));
                Ok(None)
            }
            Err(e) if e.is_corruption() => {
                self.placement.groups.keep_damage(e.of(inode.ino));
                Ok(None)
            }
            r => r.map(Some),
        }
    }

    /// Records an error in the superblock and in a message, and does what `errors=` says.
    pub(crate) fn record_error(&self, e: &Error) {
        self.record_error_of(e, None);
    }

    /// As [`Volume::record_error`]. `of` is the inode of the operation, for an error that names no inode.
    pub(crate) fn record_error_of(&self, e: &Error, of: Option<InodeNr>) {
        if self.gives_up(e) {
            return;
        }
        let (ino, block) = e.place();
        let ino = ino.or(of);
        let block = block.or_else(|| Some(BlockNr(e.device_offset()? >> self.geo.block_bits)));
        self.stats.errors.inc();
        extant_base::trace_point!(ext4_error; "image={} error={}", self.image(), e);
        if let Some(suppressed) = self.tell_superblock(e, ino, block) {
            self.say_suppressed(suppressed);
            self.options.messages.say(format_args!("{}: {}", self.image(), e));
        }
        // A mount that is already read-only has nothing to lose, and writes nothing.
        let failed = self.on_error == OnError::RemountReadOnly && (self.fail(e) || self.lifecycle.has_failed());
        if failed && self.lifecycle.allows(Right::Report) {
            // As in the kernel, changes that were not durable when the damage was found never become durable.
            self.journal.abort(&extant_journal::Error::Aborted { cause: e.to_string() });
        }
    }

    /// Makes the mount read-only. From here on it reports nothing as durable that is not. Only the first error is kept;
    /// returns whether this is the first.
    pub(crate) fn fail(&self, e: &Error) -> bool {
        let first = self.lifecycle.go_because(Transition::Fail, e);
        if first {
            self.options.messages.say(format_args!("{}: {e}; the mount is read-only from here on", self.image()));
        }
        first
    }

    /// Ends a mount whose cleanup fails with an error of the device; returns whether this is such an error. Nothing
    /// further becomes durable then, because the handle that met the error is still open, and the next mount finds the
    /// same orphans. The error is not recorded in the image: the next mount would drop the orphans of an image with
    /// errors.
    pub(crate) fn gives_up(&self, e: &Error) -> bool {
        let gives_up = matches!(e, Error::Device(_)) && self.lifecycle.now().phase == Phase::CleanUp;
        if gives_up {
            self.lifecycle.go_because(Transition::GiveUp, e);
            self.journal.give_up(&extant_journal::Error::Aborted { cause: e.to_string() });
        }
        gives_up
    }

    /// Aborts the journal of a mount that failed while it was frozen or being closed; called when that state has ended.
    pub(crate) fn abort_if_failed(&self) {
        if let (true, Err(e)) = (self.lifecycle.has_failed(), self.lifecycle.acknowledge()) {
            self.journal.abort(&extant_journal::Error::Aborted { cause: e.to_string() });
        }
    }

    /// Records an error in the superblock's error fields in memory, and on the device if that is due. If a message
    /// about the error may be sent, returns how many were suppressed before it.
    pub(crate) fn tell_superblock(&self, e: &Error, ino: Option<InodeNr>, block: Option<BlockNr>) -> Option<u64> {
        let event = ErrorEvent {
            time: self.now().seconds,
            ino: ino.map_or(0, |i| i.0),
            block: block.map_or(0, |b| b.0),
            function: e.check(),
            line: 0,
            code: e.cause_code(),
        };
        self.sb.lock().record_error(&event);
        let line = self.error_log.note(event.function, self.options.clock.now_ns());
        if self.lifecycle.allows(Right::Superblock) {
            self.error_log.note_unwritten();
            self.write_errors();
        }
        line
    }

    /// Sends a message with the number of messages suppressed since the last one that was sent.
    pub fn say_suppressed_messages(&self) {
        self.say_suppressed(self.error_log.take_suppressed());
    }

    fn say_suppressed(&self, messages: u64) {
        if messages > 0 {
            self.options.messages.say(format_args!(
                "{}: {messages} messages of errors suppressed; the superblock counts them all",
                self.image()
            ));
        }
    }

    /// Writes errors that are due to the superblock on the device. If a commit or checkpoint is writing, it does so
    /// when that ends. The next mount and e2fsck then see them in any case. Only the error fields are written; other
    /// changes of the superblock in memory belong to transactions. A failure is ignored: the device's errors have
    /// already been reported, and may be the cause.
    ///
    /// Without [`Right::Report`] this does nothing. Otherwise the superblock that is read here could overwrite the one
    /// that a thaw or an unmount writes. The second check is made under the log's lock. A freeze and an unmount first
    /// make their transition and then take that lock, so no report is in progress when they write. A mount that becomes
    /// writable writes the whole superblock.
    pub(crate) fn write_errors(&self) {
        let unwritten = || self.error_log.due(self.options.clock.now_ns());
        let due = || unwritten() && self.lifecycle.allows(Right::Report);
        // A thread that releases the log calls this again, so the check must also be made here.
        if !due() {
            return;
        }
        self.journal.alone(|| {
            if due() {
                self.write_unwritten_errors();
            }
        });
    }

    /// As [`Volume::write_errors`], for a thread that freezes or closes the mount, after it has written the superblock,
    /// and even if the errors are not due. It holds only `s_umount`, and waits for the log, because no other thread
    /// would write these errors later.
    pub(crate) fn write_kept_errors(&self) {
        self.journal.alone_at_last(|| self.write_unwritten_errors());
    }

    /// Writes the error fields. The caller holds the log.
    fn write_unwritten_errors(&self) {
        if self.error_log.take_unwritten(self.options.clock.now_ns()) {
            let at = self.sb_place.0.0 * u64::from(self.geo.block_size) + self.sb_place.1 as u64;
            if let Ok(mut on_disk) = read_super_at(&*self.dev, at) {
                on_disk.copy_errors_from(&self.sb.lock());
                let _ = write_super(&*self.dev, &on_disk, self.sb_place);
            }
        }
    }
}
