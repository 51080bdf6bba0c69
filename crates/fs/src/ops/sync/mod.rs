//! Durability: fsync, fdatasync, syncfs, fsyncs of many files at once, and what an unmount waits for.
//!
//! All are one [`barrier`](Filesystem::barrier): start writing what is dirty in its scope; wait until everything that
//! was taken from the pages before, by whomever, can be read from the device (the tokens of
//! [`extant_cache::Writebacks`]: in hand, in flight, being mapped); then "tell me when transaction T is durable"; then
//! ask whether anything was lost, and whether the mount may still say so. For one inode T is the newest that changed it
//! (for fdatasync: in a way that its data needs), else the running one. Who asks asynchronously holds no thread
//! meanwhile, and any number of barriers share one commit and its flushes. Where nothing was written since the last
//! flush began and T is durable, there is nothing to wait for. What is written for one fsync beyond its own file is a
//! policy's choice ([`policy`]).
//!
//! # Locking
//! None held while waiting.

pub(crate) mod policy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sync::Waiter;
use extant_base::sync::atomic::Ordering;
use extant_base::task::shard_index;
use extant_cache::{ErrorSequence, Opener};
use extant_ondisk::InodeNr;
use extant_ondisk::jbd2::Tid;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::writeback::asks::Countdown;
use crate::writeback::batch::WritebackReason;

/// Called once with what a barrier came to, possibly on another thread and possibly before the call returns. Who calls
/// may be in the middle of something: it hands the answer on, and does not call the file system.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Called once for each of many, with its place; as [`Done`].
pub type DoneEach = Arc<dyn Fn(usize, Result<()>) + Send + Sync>;

/// On whose behalf an fsync or a sync is, so that nobody takes an error from somebody else.
#[derive(Clone, Debug)]
pub enum Asker {
    /// The calling thread.
    Thread,
    /// An open file ([`Filesystem::opener`]).
    Opener(Arc<Opener>),
    /// A process, where the server does not know of open files; 0: one of those that it cannot see, outside of its PID
    /// namespace, which are told until data was written after one of them was.
    Process(u32),
}

impl Asker {
    /// The error that this asker has not been told.
    fn check(&self, errors: &ErrorSequence<Error>, thread: u64) -> Result<()> {
        let lost = match self {
            Asker::Thread => errors.check_for(1 << 32 | thread),
            Asker::Opener(opener) => errors.check(opener),
            Asker::Process(0) => errors.check_unknown(),
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

impl Inode {
    /// The transaction that an fsync waits for. The names in a directory are its data, and move with its times only.
    fn synced_by(&self, datasync: bool) -> Tid {
        let tid = if datasync && !self.is_dir() { &self.datasync_tid } else { &self.sync_tid };
        Tid(tid.load(Ordering::Acquire))
    }
}

/// Whether there may be something to write before a commit makes it durable.
fn needs_writing(inode: &Inode, datasync: bool) -> bool {
    !inode.pages.is_empty() || (!datasync && inode.meta.read().lazy_times)
}

/// A file of which nothing has reached the disk.
fn is_new(inode: &Inode) -> bool {
    inode.pages.dirty_bytes() > 0 && inode.meta.read().desc.size == 0
}

impl Filesystem {
    /// Makes everything durable that was written in the scope before the call, then calls `done`: with an error if the
    /// journal or the mount stopped first. Lost data is the caller's to ask for.
    pub(crate) fn barrier(&self, scope: Scope<'_>, done: Done) {
        match self.state.writes() {
            Ok(true) => {}
            nothing => return done(nothing.map(drop)),
        }
        let fs = self.arc();
        match scope {
            Scope::Inode { inode, datasync } => {
                let asked = inode.clone();
                let written = Countdown::new(move || fs.commit(asked.synced_by(datasync), Some(asked.ino), done));
                if needs_writing(inode, datasync) {
                    let carried = self.carried(inode);
                    self.write_or_ask(std::slice::from_ref(inode), &carried, WritebackReason::Fsync, &written);
                }
                written.add_inode(inode);
                written.one_less();
            }
            Scope::All => {
                let listed = self.flusher.listed();
                let written = Countdown::new(move || fs.commit(fs.journal.running_tid(), None, done));
                self.write_or_ask(&listed, &[], WritebackReason::Background, &written);
                written.one_less();
            }
        }
    }

    /// Starts writing everything dirty of the inodes, and of others whatever can be written at once, waiting for
    /// nothing. `written` waits for it, and for whatever else of theirs is on its way.
    fn write_or_ask(
        &self,
        inodes: &[Arc<Inode>],
        others: &[Arc<Inode>],
        why: WritebackReason,
        written: &Arc<Countdown>,
    ) {
        let (mut begun, mut busy) = (Vec::new(), Vec::new());
        {
            let mut plug = self.writeback_plug(why).impatient();
            for (inode, later) in plug.try_write_all(inodes).1 {
                match self.options.threads {
                    true => busy.push((inode, later)),
                    false => plug.write_pages(inode),
                }
            }
            begun.extend(plug.try_write_all(others).0);
        }
        inodes.iter().chain(begun).for_each(|inode| written.add_inode(inode));
        for (inode, later) in busy {
            self.ask(inode, why, later, written);
        }
    }

    /// The barrier of one inode by a thread that waits, holds nothing, and does what is left to do for it itself.
    fn barrier_here(&self, inode: &Arc<Inode>, datasync: bool) -> Result<()> {
        if !self.state.writes()? {
            return Ok(());
        }
        let mut written = vec![inode.clone()];
        let carried = if needs_writing(inode, datasync) { self.carried(inode) } else { Vec::new() };
        let mut plug = self.writeback_plug(WritebackReason::Fsync).waiting();
        if needs_writing(inode, datasync) {
            plug.write_pages(inode);
            written.extend(plug.try_write_all(&carried).0.into_iter().cloned());
        }
        // Before the plug, which may wait, is dropped: what others begin meanwhile is not waited for.
        let epochs: Vec<_> = written.iter().map(|inode| inode.writes.epoch()).collect();
        drop(plug);
        written.iter().zip(epochs).for_each(|(inode, epoch)| inode.writes.wait_for(epoch));
        let committed = self.journal.commit_here(Some(inode.synced_by(datasync)));
        committed.map_err(|e| Error::lost(Some(inode.ino), e.into()))?;
        self.state.acknowledge()
    }

    /// Waits until the file's data is in its blocks. Nobody is told of what was lost by this.
    pub(crate) fn settle(&self, inode: &Arc<Inode>) -> Result<()> {
        if needs_writing(inode, true) { self.barrier_here(inode, true) } else { Ok(()) }
    }

    /// New files that are written with an fsync of this one: those that are closed. Who has one open still writes it,
    /// and asks for it himself when he is done.
    fn carried(&self, inode: &Arc<Inode>) -> Vec<Arc<Inode>> {
        let mut left = if is_new(inode) { self.sync_policy.carry(inode.ino) } else { 0 };
        if left == 0 {
            return Vec::new();
        }
        let beside = self.inodes_beside(inode.ino);
        let mut others = self.flusher.dirty_after(u64::from(inode.ino.0), beside, policy::FILES_MAX);
        others.retain(|other| {
            // Once: it may be growing.
            let size = other.size();
            let fits = other.is_closed() && is_new(other) && size <= policy::FILE_BYTES_MAX.min(left);
            left -= if fits { size } else { 0 };
            fits
        });
        others
    }

    fn commit(&self, tid: Tid, ino: Option<InodeNr>, done: Done) {
        let fs = self.arc();
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

    /// fsync(2) or fdatasync(2) of many files: they are written together, in the order of their numbers, and share a
    /// commit. Calls `done` once for each, with its place in `inodes` and what an fsync of it by itself would have come
    /// to: an error concerns the file that it is about, or all of them. Possibly on other threads, and before this
    /// returns. `who` asks for all of them: an [`Asker::Opener`] has opened one, and is refused where there are more.
    pub fn fsync_many(&self, inodes: &[InodeRef], who: Asker, datasync: bool, done: DoneEach) {
        let writes = match self.state.writes() {
            Ok(writes) => writes,
            Err(e) => return (0..inodes.len()).for_each(|at| done(at, Err(e.clone()))),
        };
        let mut asked: BTreeMap<InodeNr, (Arc<Inode>, Vec<usize>)> = BTreeMap::new();
        for (at, inode) in inodes.iter().enumerate() {
            if !std::ptr::eq(inode.fs.as_ptr(), self) {
                done(at, Err(Error::Invalid("an inode of another mount")));
                continue;
            }
            let entry = asked.entry(inode.ino).or_insert_with(|| (Arc::clone(inode), Vec::new()));
            entry.1.push(at);
        }
        let (unique, places): (Vec<_>, Vec<_>) = asked.into_values().unzip();
        let Some(first) = unique.first() else { return };
        if unique.len() > 1 && matches!(who, Asker::Opener(_)) {
            let refused = Error::Invalid("an open file asks for others");
            return places.iter().flatten().for_each(|&at| done(at, Err(refused.clone())));
        }
        let thread = shard_index() as u64;
        let tell = {
            let unique = unique.clone();
            move |r: Result<()>| {
                for (inode, places) in unique.iter().zip(&places) {
                    let r = who.check(&inode.errors, thread).and_then(|()| r.clone());
                    places.iter().for_each(|&at| done(at, r.clone()));
                }
            }
        };
        if !writes {
            return tell(Ok(()));
        }
        let (fs, all) = (self.arc(), unique.clone());
        let oldest = first.synced_by(datasync);
        let written = Countdown::new(move || {
            let later = |a: Tid, b: Tid| if b.is_after(a) { b } else { a };
            let tid = all.iter().map(|inode| inode.synced_by(datasync)).fold(oldest, later);
            fs.commit(tid, None, Box::new(tell));
        });
        let dirty: Vec<_> = unique.iter().filter(|inode| needs_writing(inode, datasync)).cloned().collect();
        self.write_or_ask(&dirty, &[], WritebackReason::Fsync, &written);
        unique.iter().for_each(|inode| written.add_inode(inode));
        written.one_less();
    }

    /// fsync(2) or fdatasync(2), waiting.
    ///
    /// # Errors
    /// [`Error::Lost`] if data or changes of the inode, now or since the last report, did not become durable.
    pub fn fsync(&self, inode: &InodeRef, datasync: bool) -> Result<()> {
        let asked: Arc<Inode> = Arc::clone(inode);
        let done = self.barrier_here(&asked, datasync);
        Asker::Thread.check(&asked.errors, shard_index() as u64).and(done)
    }

    /// Everything written so far is durable on return (syncfs(2)).
    ///
    /// # Errors
    /// [`Error::Lost`] with the first write that did not become durable.
    pub fn sync(&self) -> Result<()> {
        self.wait_for(|done| self.sync_async(done))
    }

    /// As [`Filesystem::sync`], without waiting.
    pub fn sync_async(&self, done: Done) {
        self.sync_async_for(Asker::Thread, done);
    }

    /// Starts a sync on behalf of somebody, who is told once of data of any file that was lost (Linux: the error
    /// sequence of the super block, which syncfs(2) reads). Of a process nobody knows whether it is told: the kernel
    /// asks for sync(2) and umount(8), too, and passes nothing on (Linux: `sync_filesystem`). So who freezes or ends
    /// the mount is told all the same.
    pub fn sync_async_for(&self, who: Asker, done: Done) {
        let fs = self.arc();
        let thread = shard_index() as u64;
        let told = move |r: Result<()>| {
            let lost = match who {
                Asker::Process(0) => fs.errors.hint_to(None),
                Asker::Process(id) => fs.errors.hint_to(Some(u64::from(id))),
                who => who.check(&fs.errors, thread).err(),
            };
            done(lost.map_or(r, Err));
        };
        self.barrier(Scope::All, Box::new(told));
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
        self.write_errors();
    }
}
