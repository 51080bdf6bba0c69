//! Durability: fsync, fdatasync, syncfs, fsyncs of many files at once, and the wait of an unmount.
//!
//! Main type: [`Barrier`]. All of these are barriers, which take these steps:
//! 1. Start writing the dirty data in the scope.
//! 2. Wait until all data that threads took from the pages before can be read from the device (the tokens of
//!    [`extant_cache::Writebacks`]).
//! 3. Wait until transaction T is durable. For one inode, T is the newest transaction that changed it (for fdatasync:
//!    in a way that its data needs). Otherwise it is the running one.
//! 4. Check the ledger of lost writes ([`extant_cache::LossLedger`]) with the caller's cursor, and check that the mount
//!    may still report data as durable.
//!
//! An asynchronous caller occupies no thread meanwhile, and any number of barriers share one commit and its flushes. If
//! nothing was written since the last flush began, and T is durable, a barrier does not wait. A policy chooses other
//! files to be written with an fsync ([`policy`]).
//!
//! # Locking
//! None held while waiting.

pub(crate) mod policy;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use extant_base::sync::Waiter;
use extant_base::sync::atomic::Ordering;
use extant_cache::LossCursor;
use extant_journal::Durability;
use extant_ondisk::jbd2::Tid;

use crate::error::{Error, Result};
use crate::filesystem::Filesystem;
use crate::inode::{Inode, InodeRef};
use crate::ops::pages::ContentView;
use crate::volume::Volume;
use crate::writeback::asks::Countdown;
use crate::writeback::batch::WritebackReason;
use crate::writeback::patience::Patience;
use crate::writeback::{ask_step as ask, plug::WritebackPlug};

/// Called once with the result of a barrier, possibly on another thread, and possibly before the call returns. The
/// thread that calls it may hold locks, so it must only pass the result on and must not use the file system.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// Called once for each of several inodes, with its index; otherwise as [`Done`].
pub type DoneEach = Arc<dyn Fn(usize, Result<()>) + Send + Sync>;

/// A request to make everything in a scope durable that was written before it.
pub(crate) struct Barrier<'a> {
    /// `None` for everything in the mount.
    inodes: Option<&'a [Arc<Inode>]>,
    datasync: bool,
    /// The calling thread holds nothing and waits, so it does the work itself. Otherwise no thread waits.
    waits: bool,
}

impl<'a> Barrier<'a> {
    /// A barrier for the whole mount.
    pub(crate) const ALL: Barrier<'static> = Barrier { inodes: None, datasync: false, waits: false };

    /// A barrier for one inode.
    pub(crate) fn of(inode: &'a Arc<Inode>, datasync: bool) -> Barrier<'a> {
        Barrier::of_all(std::slice::from_ref(inode), datasync)
    }

    /// A barrier for several inodes.
    pub(crate) fn of_all(inodes: &'a [Arc<Inode>], datasync: bool) -> Barrier<'a> {
        Barrier { inodes: Some(inodes), datasync, waits: false }
    }

    /// A barrier for which the calling thread waits, and does the work. It holds nothing.
    fn here(inode: &'a Arc<Inode>, datasync: bool) -> Barrier<'a> {
        Barrier { waits: true, ..Barrier::of(inode, datasync) }
    }
}

impl Inode {
    /// The transaction that an fsync waits for. The names in a directory are its data, and every change of them also
    /// changes its times.
    fn synced_by(&self, datasync: bool) -> Tid {
        let tid = if datasync && !self.is_dir() { &self.datasync_tid } else { &self.sync_tid };
        Tid(tid.load(Ordering::Acquire))
    }
}

/// Whether there may be something to write before a commit can make it durable.
fn needs_writing(inode: &Inode, datasync: bool) -> bool {
    !inode.pages.is_empty() || (!datasync && inode.meta.read().lazy_times)
}

/// Whether nothing of the file has reached the disk yet.
fn is_new(inode: &Inode) -> bool {
    inode.pages.dirty_bytes() > 0 && inode.meta.read().desc.size == 0
}

impl Volume {
    /// Calls `ask` and waits until it has called what it was given. Without threads, this thread commits meanwhile.
    pub(crate) fn wait_for(&self, ask: impl FnOnce(Done)) -> Result<()> {
        let waiter = Waiter::new();
        let tell = waiter.clone();
        ask(Box::new(move |r| tell.set(r)));
        while !self.options.threads && !waiter.is_set() {
            self.journal.step();
        }
        waiter.wait()
    }
}

impl Barrier<'_> {
    /// Makes everything durable that was written in the scope before the call, then calls `done`. It gets an error if
    /// the journal or the mount has stopped. The caller checks the ledger of lost writes.
    pub(crate) fn begin(&self, fs: &Filesystem, done: Done) {
        match fs.lifecycle.writes() {
            Ok(true) => {}
            nothing => return done(nothing.map(drop)),
        }
        let &Barrier { inodes, datasync, waits } = self;
        let (me, synced) = (fs.arc(), inodes.unwrap_or_default().to_vec());
        let ino = if let [inode] = &synced[..] { Some(inode.ino) } else { None };
        let durable = move |committed: extant_journal::Result<()>| {
            let committed = committed.map_err(|e| Error::lost(ino, e.into()));
            done(committed.and_then(|()| me.lifecycle.acknowledge()));
        };
        // As Linux: syncfs commits fully (`ext4_sync_fs`).
        let how = if inodes.is_some() { Durability::Fast } else { Durability::Full };
        let me = fs.arc();
        let newest = move || {
            let later = |a: Tid, b: Tid| if b.is_after(a) { b } else { a };
            let tids = synced.iter().map(|inode| inode.synced_by(datasync));
            Some(tids.reduce(later).unwrap_or_else(|| me.journal.running_tid()))
        };
        if waits {
            let written = Waiter::new();
            let tell = written.clone();
            self.write_scope(fs, &Countdown::new(move || tell.set(())));
            written.wait();
            return durable(fs.journal.commit_here(newest(), how));
        }
        let me = fs.arc();
        let written = Countdown::new(move || me.journal.commit_async(newest(), how, Box::new(durable)));
        self.write_scope(fs, &written);
    }

    /// Starts writing all dirty data in the scope, and data of other files that the policy adds and that can be written
    /// immediately. `written` waits for these writes, and for pending ones of the same inodes. A barrier that does not
    /// wait leaves the rest to the thread that serves asks.
    fn write_scope(&self, fs: &Filesystem, written: &Arc<Countdown>) {
        let &Barrier { inodes, datasync, waits } = self;
        let needs_writing = |inode: &&Arc<Inode>| needs_writing(inode, datasync);
        let (dirty, why): (Vec<_>, _) = match inodes {
            Some(inodes) => (inodes.iter().filter(needs_writing).cloned().collect(), WritebackReason::Fsync),
            None => (fs.writeback.flusher.listed(), WritebackReason::Background),
        };
        let others = match (inodes, &dirty[..]) {
            (Some([_]), [inode]) => carried(fs, inode),
            _ => Vec::new(),
        };
        let mut busy = Vec::new();
        let mut plug = WritebackPlug::new(fs, why, if waits { Patience::Finishes } else { Patience::Leaves });
        for (inode, tried) in plug.try_write_all(&dirty) {
            match tried {
                Err(obstacle) if plug.leaves() => busy.push((inode, obstacle)),
                Err(_) => plug.write_pages(inode),
                Ok(()) => {}
            }
        }
        let begun = plug.try_write_all(&others).into_iter().filter(|(_, tried)| tried.is_ok()).map(|(inode, _)| inode);
        let all: Vec<_> = inodes.unwrap_or(&dirty).iter().chain(begun).collect();
        // A plug with [`Patience::Leaves`] opens tokens when it is dropped, for inodes with changed times, so it is
        // dropped first. A plug with [`Patience::Finishes`] waits when it is dropped; the writes that others begin
        // meanwhile must not be counted.
        let plug = Some(plug).filter(|_| waits);
        all.into_iter().for_each(|inode| written.add_inode(inode));
        drop(plug);
        for (inode, obstacle) in busy {
            ask::defer(fs, inode, why, obstacle, written);
        }
        written.one_less();
    }

    /// Waits for the result.
    pub(crate) fn wait(&self, fs: &Filesystem) -> Result<()> {
        fs.wait_for(|done| self.begin(fs, done))
    }
}

/// New files that are written together with an fsync of this one. Only closed files qualify: a program that has a file
/// open may still write to it, and call fsync at the end.
fn carried(fs: &Filesystem, inode: &Arc<Inode>) -> Vec<Arc<Inode>> {
    let mut left = if is_new(inode) { fs.writeback.sync_policy.carry(inode.ino) } else { 0 };
    if left == 0 {
        return Vec::new();
    }
    let beside = fs.placement.inodes_beside(inode.ino);
    let mut others = fs.writeback.flusher.dirty_after(u64::from(inode.ino.0), beside, policy::FILES_MAX);
    others.retain(|other| {
        // Read the size only once, because it may be growing.
        let size = other.size();
        let fits = other.is_closed() && is_new(other) && size <= policy::FILE_BYTES_MAX.min(left);
        left -= if fits { size } else { 0 };
        fits
    });
    others
}

impl ContentView<'_> {
    /// Waits until the file's data is in its blocks. No cursor moves, so a later check still reports lost data.
    pub(crate) fn settle(&self) -> Result<()> {
        if needs_writing(self.inode, true) { Barrier::here(self.inode, true).wait(self.fs) } else { Ok(()) }
    }
}

impl Filesystem {
    /// Performs fsync(2) or fdatasync(2), and waits for it.
    ///
    /// # Errors
    /// [`Error::Lost`] if data or changes of the inode, now or since the last report, did not become durable.
    pub fn fsync(&self, inode: &InodeRef, datasync: bool) -> Result<()> {
        let asked: Arc<Inode> = Arc::clone(inode);
        let done = Barrier::here(&asked, datasync).wait(self);
        asked.losses.check(&LossCursor::thread()).map_err(Error::from).and(done)
    }

    /// Makes everything durable that was written before the call (syncfs(2)).
    ///
    /// # Errors
    /// [`Error::Lost`] with the first write that did not become durable.
    pub fn sync(&self) -> Result<()> {
        self.wait_for(|done| self.sync_async(done))
    }

    /// As [`Filesystem::sync`], without waiting. The result reports lost writes of any file, with the calling thread's
    /// cursor (Linux: the error sequence of the super block, which syncfs(2) reads).
    pub fn sync_async(&self, done: Done) {
        let (fs, cursor) = (self.arc(), LossCursor::thread());
        let report = move |r| done(fs.writeback.losses.check(&cursor).map_err(Error::from).and(r));
        Barrier::ALL.begin(self, Box::new(report));
    }

    /// Reports the newest loss if no party has seen it.
    pub(crate) fn report_lost(&self) -> Result<()> {
        Ok(self.writeback.losses.check(&self.writeback.losses.open())?)
    }

    /// Without background threads: performs one round of their work (tests, tools, simulated time).
    pub fn step(&self) {
        self.writeback.flusher.step();
        self.evictor().drain();
        self.journal.step();
        self.write_errors();
    }
}
