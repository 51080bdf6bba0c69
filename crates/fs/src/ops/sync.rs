//! Durability: fsync, fdatasync, syncfs.
//!
//! An fsync is: start writing the inode's data, then "tell me when transaction T is durable", where T is the newest that
//! changed the inode (or, for fdatasync, changed it in a way its data needs). Nobody holds a thread meanwhile, and any number
//! of them share one commit and its flushes.
//!
//! # Locking
//! None held while waiting.

use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_ondisk::jbd2::Tid;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};

impl Filesystem {
    /// Starts an fsync; `done` is called once everything written to the inode before is durable, possibly on another thread
    /// and possibly before this returns. A write that was lost since the last fsync is reported once.
    pub fn fsync_async(&self, inode: &InodeRef, datasync: bool, done: Box<dyn FnOnce(Result<()>) + Send>) {
        if self.is_read_only() {
            let lost = inode.write_failed.swap(false, Ordering::AcqRel);
            let lost = lost.then(|| lost_write(inode.described())).map(Error::Device);
            let lost = lost.or_else(|| self.journal.is_aborted().then_some(Error::ReadOnly));
            return done(lost.map_or(Ok(()), |cause| Err(Error::lost(Some(inode.ino), cause))));
        }
        if !inode.pages.is_empty() || (!datasync && inode.meta.read().lazy_times) {
            self.write_pages(inode);
        }
        let tid = if datasync { &inode.datasync_tid } else { &inode.sync_tid }.load(Ordering::Acquire);
        let flight = inode.io.clone();
        let inode: Arc<Inode> = Arc::clone(inode);
        if flight.in_flight() > 0 {
            // Overwrites in place are in no transaction's care.
            self.journal.also_wait_for(flight);
        }
        self.journal.commit_async(
            Some(Tid(tid)),
            Box::new(move |r| {
                let r = r.map_err(|e| Error::lost(Some(inode.ino), e.into()));
                let lost = inode.write_failed.swap(false, Ordering::AcqRel);
                done(match r {
                    Ok(()) if lost => Err(Error::lost(Some(inode.ino), Error::Device(lost_write(inode.described())))),
                    other => other,
                });
            }),
        );
    }

    /// fsync(2) or fdatasync(2), waiting.
    pub fn fsync(&self, inode: &InodeRef, datasync: bool) -> Result<()> {
        let waiter = extant_base::sync::Waiter::new();
        let tell = waiter.clone();
        self.fsync_async(inode, datasync, Box::new(move |r| tell.set(r)));
        while !self.options.threads && !waiter.is_set() {
            self.journal.step();
        }
        waiter.wait()
    }

    /// Everything written so far is durable on return (syncfs(2)).
    pub fn sync(&self) -> Result<()> {
        if self.is_read_only() {
            return Ok(());
        }
        self.flusher.write_all();
        self.journal.commit_running()?;
        self.report_lost()
    }

    /// An error once after data of any file was lost (Linux: the error sequence of the super block, which syncfs(2) reads).
    pub(crate) fn report_lost(&self) -> Result<()> {
        if self.lost_writes.swap(false, Ordering::AcqRel) {
            return Err(Error::Device(lost_write(self.image().to_owned())));
        }
        Ok(())
    }

    /// As [`Filesystem::sync`], without waiting.
    pub fn sync_async(&self, done: Box<dyn FnOnce(Result<()>) + Send>) {
        if self.is_read_only() {
            return done(Ok(()));
        }
        self.flusher.write_all();
        let tid = self.journal.running_tid();
        let fs = self.arc();
        self.journal
            .commit_async(Some(tid), Box::new(move |r| done(r.map_err(Error::from).and_then(|()| fs.report_lost()))));
    }

    /// Without background threads: one round of the work that they would do (tests, tools, simulated time).
    pub fn step(&self) {
        self.flusher.step();
        self.drain_evictions();
        self.journal.step();
    }
}

fn lost_write(device: String) -> extant_block::Error {
    extant_block::Error::Io {
        device,
        op: extant_block::BioOp::Write,
        offset: 0,
        len: 0,
        source: Arc::new(std::io::Error::other("data could not be written back")),
    }
}
