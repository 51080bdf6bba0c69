//! Committing the running transaction (Linux: `jbd2_journal_commit_transaction`, fs/jbd2/commit.c).

use std::sync::Arc;

use extant_base::sync::MutexGuard;
use extant_base::trace_point;
use extant_block::{AlignedBuf, BioFlags};
use extant_cache::{BufKind, Buffer, IoWait};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::{
    CommitBlock, DescriptorBuilder, LogCsum, LogFormat, RevokeBuilder, Tid, escape, needs_escape, tag_checksum,
    v1_checksum,
};

use crate::error::{Error, Result};
use crate::handle::{Handle, Share};
use crate::log::{Live, Log, Logged, OnDisk};
use crate::state::{Callback, Durability, Journal, State, Transaction};

/// A buffer as it was when its transaction closed.
pub(crate) struct Frozen {
    pub block: BlockNr,
    pub data: Arc<AlignedBuf>,
    pub buffer: Arc<Buffer>,
}

/// The content of a closed transaction.
struct Closed {
    tid: Tid,
    frozen: Vec<Frozen>,
    revoked: Vec<BlockNr>,
    freed: Vec<(BlockNr, u32)>,
}

/// The running transaction at the start of a commit.
enum Running {
    /// The transaction has changes. The callbacks wait for a flush, and the flush of this commit serves them.
    Closed(Closed, Vec<Callback>),
    /// The transaction has no changes. The callbacks wait for it or for a flush.
    Empty(Vec<Callback>),
}

/// The blocks of a transaction in the log before its commit block, in order: revoke blocks, and descriptors with their
/// blocks. Also returns their checksum for a commit block of [`LogCsum::V1`]. `blocks` is at least their number.
fn log_images(format: &LogFormat, closed: &Closed, blocks: usize) -> (Vec<Arc<AlignedBuf>>, u32) {
    let mut images: Vec<Arc<AlignedBuf>> = Vec::with_capacity(blocks);
    let mut v1 = !0u32;
    let mut revokes = RevokeBuilder::new(format, closed.tid);
    for chunk in closed.revoked.chunks(RevokeBuilder::capacity_of(format)) {
        for b in chunk {
            revokes.push(*b);
        }
        let mut buf = AlignedBuf::zeroed(format.block_size);
        revokes.finish(&mut buf);
        images.push(Arc::new(buf));
    }
    let mut descriptor = DescriptorBuilder::new(format, closed.tid);
    for chunk in closed.frozen.chunks(DescriptorBuilder::capacity_of(format)) {
        let place = images.len();
        for f in chunk {
            let escaped = needs_escape(&f.data);
            let image = if escaped {
                let mut copy = (*f.data).clone();
                escape(&mut copy);
                Arc::new(copy)
            } else {
                f.data.clone()
            };
            let csum = if format.has_block_csums() { tag_checksum(format.seed, closed.tid, &image) } else { 0 };
            descriptor.push(f.block, escaped, csum);
            images.push(image);
        }
        let mut buf = AlignedBuf::zeroed(format.block_size);
        descriptor.finish(&mut buf);
        images.insert(place, Arc::new(buf));
        if format.csum == LogCsum::V1 {
            for image in &images[place..] {
                v1 = v1_checksum(v1, image);
            }
        }
    }
    (images, v1)
}

/// Aborts the journal if a commit panics, because its transaction leaves a gap that no later one can bridge. It is
/// dropped before the log is released, so that no later commit starts.
struct AbortOnPanic<'j>(&'j Journal);

/// Reports the abort to the waiters and the file system if a commit panics. It is dropped after [`AbortOnPanic`],
/// because callbacks must not run while the log is held.
struct TellOnPanic<'j>(&'j Journal);

fn panicked() -> Error {
    Error::Aborted { cause: "a commit panicked".to_owned() }
}

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut s = self.0.state.lock();
            if s.aborted.is_none() {
                self.0.set_aborted(&mut s, &panicked());
            }
        }
    }
}

impl Drop for TellOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.tell_aborted(&panicked());
        }
    }
}

/// While this value exists, a thread commits by itself.
struct Alone<'j>(&'j Journal);

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.0.state.lock().alone = None;
        self.0.drained.notify_all();
    }
}

impl Journal {
    /// Commits the running transaction if it has changes, and calls back everything that waits for it. An error stops
    /// the journal: a transaction that did not reach the log leaves a gap that no later one can bridge.
    pub(crate) fn commit(&self, how: Durability) -> Result<()> {
        match self.commit_and_tell(self.log.lock(), how, false)? {
            true => self.make_room(),
            false => Ok(()),
        }
    }

    /// Releases the log. If a thread had an error but could not take the log, it left the task of recording the error
    /// for the next mount to the holder ([`Hooks::log_free`]).
    pub(crate) fn let_go(&self, log: MutexGuard<'_, Log>, error: Option<&Error>) {
        let mut log = log;
        loop {
            self.note_abort(&mut log, error);
            let noted = log.errno_noted();
            drop(log);
            // Another thread may have aborted the journal in between.
            if noted || !self.tells_abort() {
                break;
            }
            let Some(again) = self.log.try_lock() else { break };
            log = again;
        }
        self.hooks.log_free();
    }

    /// If no other caller needs a commit, the caller does the work of the journal's thread itself. So neither thread
    /// has to wake the other (in Linux, the thread always does it: `jbd2_journal_commit_transaction`). Returns `None`
    /// if another thread commits or waits; then the caller shares the next commit. `tid` is as in
    /// [`Journal::commit_async`].
    pub(crate) fn commit_alone(&self, tid: Option<Tid>, how: Durability) -> Option<Result<()>> {
        let company = |s: &State| {
            let others = s.batch > 1 || s.gathering || !s.waiters.is_empty() || !s.flush_waiters.is_empty();
            others || s.locked || s.frozen || s.check().is_err()
        };
        if company(&self.state.lock()) {
            return None;
        }
        // While the log is held, no commit is in progress.
        let log = self.log.try_lock()?;
        let commit = {
            let mut s = self.state.lock();
            if company(&s) {
                drop(s);
                self.let_go(log, None);
                return None;
            }
            s.alone = Some(std::thread::current().id());
            let commit = tid.is_some_and(|tid| tid.is_after(s.committed));
            if commit {
                s.back.ask(|| self.options.clock.now_ns());
            }
            commit
        };
        let _alone = Alone(self);
        self.stats.waits.inc();
        let result = if commit {
            self.commit_and_tell(log, how, true).map(|room| {
                self.stats.commits_alone.inc();
                if room {
                    self.state.lock().room_wanted = true;
                    self.work.notify_one();
                }
            })
        } else {
            self.flush_under(log).inspect_err(|e| self.tell_aborted(e))
        };
        Some(result.map_err(|e| e.as_aborted()))
    }

    /// Commits, releases the log, and then calls back the waiters; returns whether a checkpoint is needed. `own`: the
    /// caller waits, too.
    fn commit_and_tell(&self, log: MutexGuard<'_, Log>, how: Durability, own: bool) -> Result<bool> {
        let _tell = TellOnPanic(self);
        let mut log = log;
        let _abort = AbortOnPanic(self);
        let told = self.commit_fast_to(&mut log, how, own).and_then(|fast| match fast {
            Some(waiters) => Ok((waiters, false)),
            None => self.commit_to(&mut log, own),
        });
        self.let_go(log, told.as_ref().err());
        let (waiters, room) = told.inspect_err(|e| self.tell_aborted(e))?;
        // The log is free now, because callbacks write replies, allocate, or request the next commit.
        for done in waiters {
            done(Ok(()));
        }
        Ok(room)
    }

    /// Flushes for waiters without changes to commit. If it fails, no later flush may succeed, because data that it did
    /// not make durable may be lost.
    pub(crate) fn flush_under(&self, log: MutexGuard<'_, Log>) -> Result<()> {
        self.stats.flushes.inc();
        let flushed = self.dev.flush().map_err(Error::from);
        self.let_go(log, flushed.as_ref().err());
        flushed
    }

    /// Writes the blocks beyond the log's limit home.
    pub(crate) fn make_room(&self) -> Result<()> {
        let mut log = self.log.lock();
        let made = self.relieve(&mut log);
        self.let_go(log, made.as_ref().err());
        made.inspect_err(|e| self.tell_aborted(e))
    }

    /// Called before the log is released. If there was an error, or another thread has aborted the journal in the
    /// meantime, records that for the next mount.
    fn note_abort(&self, log: &mut Log, error: Option<&Error>) {
        {
            let mut s = self.state.lock();
            match error {
                Some(e) if s.aborted.is_none() => self.set_aborted(&mut s, e),
                _ => {}
            }
        }
        if self.tells_abort() {
            log.note_errno();
        }
    }

    /// Returns the callbacks of the waiters, and whether the log needs a checkpoint.
    fn commit_to(&self, log: &mut Log, own: bool) -> Result<(Vec<Callback>, bool)> {
        let start_ns = self.options.clock.now_ns();
        let (closed, flushes) = match self.close_running()? {
            Running::Closed(closed, flushes) => (closed, flushes),
            Running::Empty(waiters) => {
                // There are no changes, so the waiters of the running transaction only need a flush.
                if own || !waiters.is_empty() {
                    self.stats.flushes.inc();
                    if let Err(e) = self.dev.flush() {
                        self.requeue_waiters(waiters);
                        return Err(e.into());
                    }
                }
                return Ok((waiters, false));
            }
        };
        let closed_ns = self.options.clock.now_ns();
        let (tid, blocks) = (closed.tid, closed.frozen.len());
        self.note_pinned(blocks as u64 + log.logged_len() + self.state.lock().blocks() as u64);
        let result = match log.disk.is_some() {
            true => self.write_log(log, &closed),
            false => self.write_home(&closed),
        };
        if let Err(e) = result {
            self.requeue_waiters(flushes);
            return Err(e);
        }
        log.took_tid(tid);
        if log.disk.is_some() {
            for block in &closed.revoked {
                log.logged.remove(block);
            }
            for f in closed.frozen {
                log.logged.insert(f.block, Logged { tid, data: f.data, buffer: f.buffer, sent: false });
            }
        }
        self.stats.commits.inc();
        self.stats.blocks.add(blocks as u64);
        self.stats.revokes.add(closed.revoked.len() as u64);
        trace_point!(
            jbd2_run_stats,
            tid = tid.0,
            blocks = blocks,
            revokes = closed.revoked.len(),
            lock_ns = closed_ns.saturating_sub(start_ns),
            total_ns = self.options.clock.now_ns().saturating_sub(start_ns)
        );
        // The freed blocks come first, because a waiter may allocate immediately.
        if !closed.freed.is_empty() {
            self.hooks.released(closed.freed);
        }
        let waiters = {
            let mut s = self.state.lock();
            s.committed = tid;
            let ready = s.take_waiters(|w| w.tid.is_at_or_before(tid));
            s.note_answer(ready.len() + usize::from(own), start_ns, self.options.clock.now_ns());
            ready.into_iter().chain(flushes).collect()
        };
        Ok((waiters, self.is_crowded(log)))
    }

    /// Requeues waiters whose commit failed, so that they get the error with all others.
    pub(crate) fn requeue_waiters(&self, waiters: Vec<Callback>) {
        self.state.lock().flush_waiters.extend(waiters);
    }

    /// Waits for the open handles, freezes the changed buffers, and lets new handles join the next transaction.
    fn close_running(&self) -> Result<Running> {
        let (txn, mut shares, aside) = {
            let mut s = self.state.lock();
            s.locked = true;
            self.shards.close(&mut s);
            while s.updates > 0 && s.aborted.is_none() {
                self.drained.wait(&mut s);
            }
            if let Some(cause) = &s.aborted {
                return Err(cause.as_aborted());
            }
            s.commit_wanted = false;
            if s.is_empty() {
                s.locked = false;
                s.started_ns = None;
                s.reserved = 0;
                self.room.notify_all();
                // The waiters are taken under the lock under which the transaction was empty, because a later waiter
                // may have changed it.
                let tid = s.running.tid;
                let ready = s.take_waiters(|w| w.tid.is_at_or_before(tid));
                let flushes = std::mem::take(&mut s.flush_waiters);
                return Ok(Running::Empty(ready.into_iter().chain(flushes).collect()));
            }
            // Each block of the transaction has used one credit. The remaining reserved credits are those that handles
            // have put aside.
            (s.running.clone(), s.shares.clone(), s.reserved.saturating_sub(s.blocks() as u32))
        };
        shares.push(self.finish_closing(&txn, aside)?);
        // No handle is open and none can start, so the buffers do not change.
        let revoked = std::mem::take(&mut txn.inner.lock().revoked);
        let (mut buffers, mut freed) = (Vec::new(), Vec::new());
        for share in &shares {
            let mut part = share.part.lock();
            buffers.append(&mut part.buffers);
            freed.append(&mut part.freed);
        }
        let mut frozen = Vec::with_capacity(buffers.len());
        for buffer in buffers {
            let mut inner = buffer.lock();
            if inner.state().held != Some(txn.tid.0) {
                continue; // freed again within the transaction
            }
            buffer.claim(&mut inner, |state| (state.held, state.logged) = (None, Some(txn.tid.0)));
            let data = inner.data.clone();
            drop(inner);
            frozen.push(Frozen { block: buffer.block, data, buffer });
        }
        frozen.sort_unstable_by_key(|f| f.block);
        // A block may be listed twice if it was forgotten and created again. Its buffers differ, and the cached one
        // is last.
        frozen.dedup_by(|later, earlier| {
            let same = later.block == earlier.block;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        let flushes = {
            let mut s = self.state.lock();
            s.running = Transaction::new(txn.tid.next());
            s.shares.clear();
            s.reserved = 0;
            s.locked = false;
            s.started_ns = None;
            self.room.notify_all();
            std::mem::take(&mut s.flush_waiters)
        };
        let mut revoked: Vec<_> = revoked.into_iter().collect();
        revoked.sort_unstable();
        let closed = Closed { tid: txn.tid, frozen, revoked, freed };
        Ok(Running::Closed(closed, flushes))
    }

    /// Lets the file system make its last changes in a transaction for which handles have put `aside` credits. No
    /// handle is open. Returns the changes.
    fn finish_closing(&self, txn: &Arc<Transaction>, aside: u32) -> Result<Arc<Share>> {
        let share = Share::apart(txn.clone());
        let Some(journal) = self.me.upgrade() else { return Ok(share) };
        let result = self.hooks.closing(&mut Handle::closing(journal, share.clone(), aside));
        if let Err(Error::Aborted { .. }) = &result {
            self.state.lock().given_up = true;
        }
        result.map(|()| share)
    }

    /// Marks the transaction as sealed, because its flush is sent next.
    fn seal(&self, tid: Tid) {
        self.state.lock().sealed = tid;
    }

    /// Writes the transaction into the log and makes it durable.
    fn write_log(&self, log: &mut Log, closed: &Closed) -> Result<()> {
        let format = log.disk.as_ref().expect("checked by the caller").format.clone();
        let (frozen, revoked) = (closed.frozen.len(), closed.revoked.len());
        let descriptors = frozen.div_ceil(DescriptorBuilder::capacity_of(&format));
        let revoke_blocks = revoked.div_ceil(RevokeBuilder::capacity_of(&format));
        let needed = (frozen + descriptors + revoke_blocks + 1) as u32;
        self.make_room_for(log, needed)?;
        self.turn_at_end(log, needed)?;
        // If the blocks have been home since the last flush, the superblock may say so; the flush of this commit makes
        // that durable.
        let tail = log.homeward.as_ref().filter(|h| h.durable).map(|h| h.last);
        if let Some(last) = tail {
            log.move_tail(last);
        }
        let disk = log.disk.as_mut().expect("checked by the caller");
        if disk.free() < needed {
            return Err(Error::TooLarge { credits: needed, max: disk.free() });
        }

        let (mut images, v1) = log_images(&format, closed, needed as usize);
        // The place of the commit block is zeroed together with the other blocks, so that the commit block then changes
        // only its first sector, which a disk writes atomically. If a commit block were torn, with the content of an
        // earlier round in it, it would have a good header and a bad checksum. e2fsck and older kernels treat that as a
        // damaged journal.
        images.push(Arc::new(AlignedBuf::zeroed(format.block_size)));
        let start = disk.head;
        let (mut at, mut commit_at) = (start, start);
        let mut placed = Vec::with_capacity(images.len() + 1);
        for image in images {
            placed.push((disk.offset(at), image));
            commit_at = at;
            at = disk.range.next(at);
        }
        if tail.is_some() {
            placed.push((disk.superblock_offset(), Arc::new(disk.superblock_image())));
        }
        self.write_images(disk, placed, closed.tid)?;
        if disk.superblock.start == 0 {
            // This is the first transaction since the log was empty. The PREFLUSH of the commit block makes this
            // durable, too.
            disk.superblock.start = start;
            disk.superblock.sequence = closed.tid;
            disk.write_superblock(BioFlags::empty())?;
        }
        let now = self.options.clock.wall();
        disk.last_commit_sec = disk.last_commit_sec.max(now.sec.max(0) as u64);
        let commit = CommitBlock { tid: closed.tid, sec: disk.last_commit_sec, nsec: now.nsec };
        let mut buf = AlignedBuf::zeroed(format.block_size);
        commit.encode(&format, Some(v1), &mut buf);
        if !disk.external {
            self.seal(closed.tid);
        }
        let flags = BioFlags::META | BioFlags::SYNC | BioFlags::PREFLUSH | BioFlags::FUA;
        let sector = disk.sector();
        disk.device.write_at(disk.offset(commit_at), &[&buf[..sector]], flags)?;
        self.end_fast_commits(disk)?;
        disk.head = at;
        disk.used += needed;
        let has_superblock = |block| closed.frozen.binary_search_by_key(&block, |f| f.block).is_ok();
        if self.options.superblock.is_some_and(has_superblock) {
            log.superblock_in = Some(closed.tid);
        }
        log.live.push_back(Live {
            tid: closed.tid,
            start,
            len: needed,
            blocks: closed.frozen.iter().map(|f| f.block).collect(),
        });
        match tail {
            Some(last) => {
                log.homeward = None;
                self.retire(log, last);
            }
            None => log.homeward.iter_mut().for_each(|h| h.durable = true),
        }
        Ok(())
    }

    /// Writes all blocks of transaction `tid` except the commit block. When this returns, the home writes in flight
    /// have ended, too. If the log has its own device, they and all data are durable.
    fn write_images(&self, disk: &OnDisk, placed: Vec<(u64, Arc<AlignedBuf>)>, tid: Tid) -> Result<()> {
        let wait = IoWait::new();
        let mut plug = self.submit(&*disk.device, placed, BioFlags::META | BioFlags::SYNC, &wait);
        if disk.external {
            // The PREFLUSH of the commit block is for the log's device. Data of the transaction, and the blocks for
            // which the tail moves, must be durable before it (Linux: the flush of `j_fs_dev` in
            // `jbd2_journal_commit_transaction`). The log's blocks are written at the same time.
            plug.unplug();
            self.home_io.wait()?;
            self.seal(tid);
            self.dev.flush()?;
            return Ok(wait.wait()?);
        }
        plug.unplug_and_wait();
        wait.wait()?;
        // The home writes in flight share the flush.
        Ok(self.home_io.wait()?)
    }

    /// Writes a transaction without a log: first the data, then blocks to which others will refer, then the tables that
    /// refer to them.
    fn write_home(&self, closed: &Closed) -> Result<()> {
        self.seal(closed.tid);
        self.dev.flush()?;
        for kind in [BufKind::Leaf, BufKind::Table] {
            let wave: Vec<_> =
                closed.frozen.iter().filter(|f| f.buffer.kind() == kind).map(|f| (f.block, f.data.clone())).collect();
            if !wave.is_empty() {
                self.write_blocks(wave)?;
                self.dev.flush()?;
            }
        }
        for f in &closed.frozen {
            let mut inner = f.buffer.lock();
            if inner.state().logged == Some(closed.tid.0) {
                f.buffer.claim(&mut inner, |state| state.logged = None);
            }
        }
        Ok(())
    }
}
