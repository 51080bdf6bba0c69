//! Reports of errors: the superblock's error fields, in memory and on the device, and messages (Linux:
//! `ext4_handle_error`, `ext4_error_ratelimit`, `s_sb_upd_work`, fs/ext4/super.c).
//!
//! Main types: none; [`crate::error_log::ErrorLog`] says which reports are due. The superblock in memory counts every
//! error. The first of each kind is durable at once, because the next mount and e2fsck must know. Further ones reach
//! the device later: a program that calls stat(2) on a damaged inode in a loop causes neither a flush nor a message
//! each time.
//!
//! # Locking
//! `error reports` (211), a leaf. [`Filesystem::record_error`] takes `superblock` (75), and releases it before the
//! device is written.

use extant_ondisk::superblock::ErrorEvent;
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::lifecycle::{Phase, Right, Transition};
use crate::mount::super_block::{read_super_at, write_super};
use crate::ops::credits;
use crate::options::OnError;

impl Filesystem {
    /// Called with every error that comes up to an operation: if the image is at fault, `errors=` decides.
    pub(crate) fn note_error(&self, e: &Error) {
        if e.is_corruption() {
            self.record_error(e);
        }
    }

    /// Passes a result on, noting an error that blames the image.
    pub(crate) fn watch<T>(&self, r: Result<T>) -> Result<T> {
        if let Err(e) = &r {
            self.note_error(e);
        }
        r
    }

    /// A read error cut a change short and left blocks without an owner. They are harmless, but e2fsck looks for them
    /// only in an image that is marked as one with errors (Linux: `ext4_std_error`).
    pub(crate) fn note_cut_short(&self, e: &Error) {
        if matches!(e, Error::Device(_)) {
            self.record_error(e);
        }
    }

    /// Groups that the allocator goes on without, and blocks that it did not free.
    pub(crate) fn note_damaged_groups(&self) {
        for e in self.groups.take_damage() {
            self.record_error(&e);
        }
    }

    pub(crate) fn record_error(&self, e: &Error) {
        self.record_error_of(e, None);
    }

    /// As [`Filesystem::record_error`]; `of` is the inode that was worked on, if the error itself names none.
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
        // A mount that is read-only anyway has nothing that could be lost, and writes nothing.
        let failed = self.on_error == OnError::RemountReadOnly && (self.fail(e) || self.lifecycle.has_failed());
        if failed && self.lifecycle.allows(Right::Report) {
            // As the kernel: what was not durable when the damage was found never is.
            self.journal.abort(&extant_journal::Error::Aborted { cause: e.to_string() });
        }
    }

    /// Whether this error ends a mount that cleans up. Nothing that is not durable ever is then, and the next mount
    /// finds the same orphans: the caller's handle, which met the error, is still open. The image does not learn of it,
    /// because the next mount would forget the orphans of an image with errors.
    pub(crate) fn gives_up(&self, e: &Error) -> bool {
        let gives_up = matches!(e, Error::Device(_)) && self.lifecycle.now().phase == Phase::CleanUp;
        if gives_up {
            self.lifecycle.go_because(Transition::GiveUp, e);
            self.journal.give_up(&extant_journal::Error::Aborted { cause: e.to_string() });
        }
        gives_up
    }

    /// A mount that failed while it was frozen or being closed aborts its journal once it is not any more.
    pub(crate) fn abort_if_failed(&self) {
        if let (true, Err(e)) = (self.lifecycle.has_failed(), self.lifecycle.acknowledge()) {
            self.journal.abort(&extant_journal::Error::Aborted { cause: e.to_string() });
        }
    }

    /// The superblock's error fields, in memory, and on the device if that is due. If the error is to be reported in a
    /// message, too: how many were not before it.
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

    /// Says how many messages were suppressed since the last one that was given.
    pub fn say_suppressed_messages(&self) {
        self.say_suppressed(self.error_log.take_suppressed());
    }

    pub(crate) fn say_suppressed(&self, messages: u64) {
        if messages > 0 {
            self.options.messages.say(format_args!(
                "{}: {messages} messages of errors suppressed; the superblock counts them all",
                self.image()
            ));
        }
    }

    /// The mount goes on after an error (`errors=continue`): a transaction has its fields, too, or a checkpoint of an
    /// older superblock would take them off the device.
    pub(crate) fn log_errors(&self) -> Result<()> {
        if !self.error_log.take_unlogged() {
            return Ok(());
        }
        let mut handle = self.journal.start(credits::SUPER)?;
        let r = self.modify_superblock(&mut handle, |_| ());
        self.end(handle, r)
    }

    /// Writes errors that are due to the superblock on the device, at once, or when the commit or checkpoint ends that
    /// writes now: whatever happens next, the next mount and e2fsck know. Only of that; what else has changed of it in
    /// memory belongs to transactions. Best effort: a device that fails here has been reported already, and may be why.
    ///
    /// Nothing without [`Right::Report`], or the superblock that is read here would overwrite that of a thaw or an
    /// unmount. The second look is under the log's lock: a freeze and an unmount make their transition first and take
    /// that lock then, so no report is under way when they write. A mount that becomes writable writes all of the
    /// superblock.
    pub(crate) fn write_errors(&self) {
        let unwritten = || self.error_log.due(self.options.clock.now_ns());
        let due = || unwritten() && self.lifecycle.allows(Right::Report);
        // A thread that releases the log comes here again, so this must not be left to the second look alone.
        if !due() {
            return;
        }
        self.journal.alone(|| {
            if due() {
                self.write_unwritten_errors();
            }
        });
    }

    /// The same for a thread that freezes or closes the mount, due or not, once it has written the superblock. It holds
    /// `s_umount` and nothing else, and waits for the log, because no thread writes these errors later.
    pub(crate) fn write_kept_errors(&self) {
        self.journal.alone_at_last(|| self.write_unwritten_errors());
    }

    /// The caller holds the log.
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
