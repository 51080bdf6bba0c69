//! Durability: fsync, fdatasync, syncfs, and what an unmount waits for.
//!
//! All are one [`barrier`](Filesystem::barrier): start writing what is dirty in its scope; wait until everything that
//! was taken from the pages before, by whomever, can be read from the device (the tokens of
//! [`extant_cache::Writebacks`]: in hand, in flight, being mapped); then "tell me when transaction T is durable"; then
//! ask whether anything was lost, and whether the mount may still say so. For one inode T is the newest that changed it
//! (for fdatasync: in a way that its data needs), else the running one. Nobody holds a thread meanwhile, and any number
//! of barriers share one commit and its flushes.
//!
//! # Locking
//! None held while waiting.

use std::sync::Arc;

use extant_base::sync::Waiter;
use extant_base::sync::atomic::{AtomicUsize, Ordering};
use extant_base::task::shard_index;
use extant_cache::{ErrorSequence, Opener};
use extant_ondisk::jbd2::Tid;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::ops::writeback::WritebackReason;

/// Called once with what a barrier came to, possibly on another thread and possibly before the call returns.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// On whose behalf an fsync or a sync is, so that nobody takes an error from somebody else.
#[derive(Clone, Debug)]
pub enum Asker {
    /// The calling thread.
    Thread,
    /// An open file ([`Filesystem::opener`]).
    Opener(Arc<Opener>),
    /// A process, where the server does not know of open files.
    Process(u32),
}

impl Asker {
    /// The error that this asker has not been told.
    fn check(&self, errors: &ErrorSequence<Error>, thread: u64) -> Result<()> {
        let lost = match self {
            Asker::Thread => errors.check_for(1 << 32 | thread),
            Asker::Opener(opener) => errors.check(opener),
            Asker::Process(id) => errors.check_for(u64::from(*id)),
        };
        lost.map_or(Ok(()), Err)
    }
}

/// What is to be durable.
pub(crate) enum Scope<'a> {
    Inode { inode: &'a Arc<Inode>, datasync: bool },
    All,
}

impl Filesystem {
    /// Makes everything durable that was written in the scope before the call, then calls `done`: with an error if the
    /// journal or the mount stopped first. Lost data is the caller's to ask for.
    pub(crate) fn barrier(&self, scope: Scope<'_>, done: Done) {
        if let Err(e) = self.state.acknowledge() {
            return done(Err(e));
        }
        if self.is_read_only() {
            return done(Ok(()));
        }
        let fs = self.arc();
        match scope {
            Scope::Inode { inode, datasync } => {
                if !inode.pages.is_empty() || (!datasync && inode.meta.read().lazy_times) {
                    self.write_pages(inode, WritebackReason::Fsync);
                }
                let inode = inode.clone();
                let writes = inode.writes.clone();
                let commit = move || {
                    let tid = if datasync { &inode.datasync_tid } else { &inode.sync_tid };
                    let tid = Tid(tid.load(Ordering::Acquire));
                    fs.commit(tid, Some(&inode), done);
                };
                if writes.is_idle() { commit() } else { writes.when_closed(writes.epoch(), commit) }
            }
            Scope::All => {
                let listed = self.flusher.listed();
                // Two who sync at once share the work instead of walking behind each other.
                let busy: Vec<_> = listed.iter().filter(|inode| !inode.try_write_pages()).collect();
                for inode in busy {
                    inode.write_pages();
                }
                // One for this thread, so that nothing is told before all are asked.
                let open = Arc::new(AtomicUsize::new(listed.len() + 1));
                let last = Arc::new(Waiter::new());
                last.set(done);
                let closed = move || {
                    if open.fetch_sub(1, Ordering::AcqRel) == 1 {
                        let done = last.wait();
                        fs.commit(fs.journal.running_tid(), None, done);
                    }
                };
                for inode in listed {
                    let writes = inode.writebacks();
                    writes.when_closed(writes.epoch(), closed.clone());
                }
                closed();
            }
        }
    }

    fn commit(&self, tid: Tid, inode: Option<&Arc<Inode>>, done: Done) {
        let (fs, ino) = (self.arc(), inode.map(|i| i.ino));
        self.journal.commit_async(
            Some(tid),
            Box::new(move |r| {
                let r = r.map_err(|e| Error::lost(ino, e.into()));
                done(r.and_then(|()| fs.state.acknowledge()));
            }),
        );
    }

    /// Starts an fsync on behalf of somebody, who is told once of data that was lost; see `Filesystem::barrier`.
    pub fn fsync_async_for(&self, inode: &InodeRef, who: Asker, datasync: bool, done: Done) {
        let asked: Arc<Inode> = Arc::clone(inode);
        let thread = shard_index() as u64;
        let told = move |r: Result<()>| done(who.check(&asked.errors, thread).and(r));
        self.barrier(Scope::Inode { inode, datasync }, Box::new(told));
    }

    /// Somebody opened the file: what its fsync is told is not taken from others (Linux: `f_wb_err`).
    pub fn opener(&self, inode: &InodeRef) -> Arc<Opener> {
        Arc::new(inode.errors.opener())
    }

    /// As [`Filesystem::fsync_async_for`] the calling thread.
    pub fn fsync_async(&self, inode: &InodeRef, datasync: bool, done: Done) {
        self.fsync_async_for(inode, Asker::Thread, datasync, done);
    }

    /// fsync(2) or fdatasync(2), waiting.
    pub fn fsync(&self, inode: &InodeRef, datasync: bool) -> Result<()> {
        self.wait_for(|done| self.fsync_async(inode, datasync, done))
    }

    /// Everything written so far is durable on return (syncfs(2)).
    pub fn sync(&self) -> Result<()> {
        self.wait_for(|done| self.sync_async(done))
    }

    /// As [`Filesystem::sync`], without waiting.
    pub fn sync_async(&self, done: Done) {
        self.sync_async_for(Asker::Thread, done);
    }

    /// Starts a sync on behalf of somebody, who is told once of data of any file that was lost (Linux: the error
    /// sequence of the super block, which syncfs(2) reads).
    pub fn sync_async_for(&self, who: Asker, done: Done) {
        let fs = self.arc();
        let thread = shard_index() as u64;
        self.barrier(Scope::All, Box::new(move |r| done(who.check(&fs.errors, thread).and(r))));
    }

    pub(crate) fn wait_for(&self, ask: impl FnOnce(Done)) -> Result<()> {
        let waiter = Waiter::new();
        let tell = waiter.clone();
        ask(Box::new(move |r| tell.set(r)));
        while !self.options.threads && !waiter.is_set() {
            self.journal.step();
        }
        waiter.wait()
    }

    /// Lost data that nobody has been told of.
    pub(crate) fn report_lost(&self) -> Result<()> {
        self.errors.unseen().map_or(Ok(()), Err)
    }

    /// Without background threads: one round of the work that they would do (tests, tools, simulated time).
    pub fn step(&self) {
        self.flusher.step();
        self.drain_evictions();
        self.journal.step();
    }
}
