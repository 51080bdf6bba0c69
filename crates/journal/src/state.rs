//! The journal's state: opening and closing it, waiting for commits.

use std::sync::{Arc, Weak};
use std::thread::ThreadId;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::counter::{self, Counter};
use extant_base::hash::HashSet;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, MutexGuard, Waiter};
use extant_block::BlockDevice;
use extant_cache::{Buffer, BufferCache, IoWait};
use extant_ondisk::BlockNr;
use extant_ondisk::jbd2::Tid;

use crate::error::{Error, Result};
use crate::fast_commit::Changes;
use crate::handle::{Handle, Shards, Share};
use crate::log::{Log, LogLocation};

static STATE_CLASS: LockClass = LockClass::new("journal state", 91);
static LOG_CLASS: LockClass = LockClass::new("log", 34);
pub(crate) static TXN_CLASS: LockClass = LockClass::new("transaction", 92);

/// The maximum time for which a commit waits for more callers.
const GATHER_NS_MAX: u64 = 2_000_000;

/// Called once when a commit (or flush) has become durable, or failed. Must not block. It runs on the journal's thread,
/// or on one that commits by itself ([`Journal::commit_here`]).
pub type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// The calls from the journal to the file system.
pub trait Hooks: Send + Sync {
    /// These extents were freed by a transaction that is now durable, so they may be allocated again.
    fn released(&self, freed: Vec<(BlockNr, u32)>);
    /// The journal stopped permanently, and the mount must become read-only.
    fn aborted(&self, error: &Error);
    /// The running transaction closes: all handles have ended, and none can start. The file system makes the changes
    /// that depend on what was left to do when the last handle ended. `handle` has the credits that were put aside for
    /// them ([`Handle::put_aside`]). Called with the log held, and without `journal state`. After an error, nothing of
    /// the transaction becomes durable; [`Error::Aborted`] leaves no trace for the next mount.
    fn closing(&self, _handle: &mut Handle) -> Result<()> {
        Ok(())
    }
    /// The log is free again, so a call that [`Journal::alone`] refused can be repeated.
    fn log_free(&self) {}
}

/// The parameters of a journal.
#[derive(Clone)]
pub struct Options {
    pub clock: Clock,
    /// A transaction older than this is committed (`commit=SECONDS`).
    pub commit_interval_ns: u64,
    /// The limit of everything that the journal pins in memory, in bytes.
    pub pinned_bytes_max: u64,
    /// When this many blocks of the log are in use, blocks are written home, so a replay does not read much more.
    /// `None` for half of the log.
    pub checkpoint_blocks: Option<u32>,
    /// A caller that asks for [`Durability::Fast`] gets a fast commit where the changes allow it. The file system has
    /// the feature, and describes its changes ([`Handle::describe`]).
    pub fast_commits: bool,
    /// The block with the file system's superblock. While a replay would find a copy of it in the log, no fast commits
    /// are written.
    pub superblock: Option<BlockNr>,
    /// True when [`Journal::run`] has a thread of its own. Otherwise waiting for a commit performs it.
    pub threaded: bool,
}

/// The kind of commit that a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A full commit. It also releases the blocks that the transaction has freed.
    Full,
    /// A fast commit is enough: a recovery finds the changes.
    Fast,
}

/// A caller that waits until a transaction is durable.
pub(crate) struct CommitWaiter {
    pub tid: Tid,
    pub how: Durability,
    pub done: Callback,
}

/// Exact counts since the mount.
#[derive(Debug)]
pub struct JournalStats {
    pub commits: Counter,
    /// Commits that a lone caller made itself ([`Journal::commit_here`]).
    pub commits_alone: Counter,
    /// Fast commits, which are not among `commits`, and their blocks.
    pub fast_commits: Counter,
    pub fast_blocks: Counter,
    /// Requests for a fast commit that became full ones: some change had no description, or there was no room.
    pub fast_refused: Counter,
    /// Blocks logged, without descriptors.
    pub blocks: Counter,
    pub revokes: Counter,
    pub handles: Counter,
    /// The number of steps in which blocks were written home, the number of blocks, and how often a thread waited for a
    /// step.
    pub checkpoints: Counter,
    pub checkpoint_blocks: Counter,
    pub checkpoints_waited: Counter,
    /// Requests for durability, and flushes for those that needed no commit (the queue omits unnecessary ones).
    pub waits: Counter,
    pub flushes: Counter,
    /// The maximum number of bytes that were pinned at any commit.
    pub pinned_bytes_peak: AtomicU64,
}

impl Default for JournalStats {
    fn default() -> JournalStats {
        let [
            commits,
            commits_alone,
            blocks,
            revokes,
            handles,
            checkpoints,
            checkpoint_blocks,
            checkpoints_waited,
            waits,
            flushes,
            fast_commits,
            fast_blocks,
            fast_refused,
        ] = counter::group();
        JournalStats {
            commits,
            commits_alone,
            blocks,
            revokes,
            handles,
            checkpoints,
            checkpoint_blocks,
            checkpoints_waited,
            waits,
            flushes,
            fast_commits,
            fast_blocks,
            fast_refused,
            pinned_bytes_peak: AtomicU64::new(0),
        }
    }
}

/// A transaction that is open or being committed.
pub(crate) struct Transaction {
    pub tid: Tid,
    pub inner: Mutex<TxnInner>,
    /// There are revoked blocks. A handle that joins a block which was revoked got it after that, through the locks of
    /// the allocator and the cache. So it sees the flag, and relaxed operations suffice.
    pub revokes: AtomicBool,
}

/// The part of a transaction that all its handles share.
#[derive(Default)]
pub(crate) struct TxnInner {
    pub revoked: HashSet<BlockNr>,
    /// The changes that no fast commit has yet; empty on a mount that writes none.
    pub changes: Changes,
}

/// The part of a transaction that the handles of one shard fill.
#[derive(Default)]
pub(crate) struct Part {
    pub buffers: Vec<Arc<Buffer>>,
    /// Blocks that the log no longer has to protect from this transaction on (revoked or only freed).
    pub freed: Vec<(BlockNr, u32)>,
}

impl Transaction {
    pub(crate) fn new(tid: Tid) -> Arc<Transaction> {
        let inner = Mutex::new(&TXN_CLASS, TxnInner::default());
        Arc::new(Transaction { tid, inner, revokes: AtomicBool::new(false) })
    }
}

pub(crate) struct State {
    pub running: Arc<Transaction>,
    /// The number of open handles of the running transaction that no shard counts.
    pub updates: u32,
    /// The number of blocks that the running transaction contains, or that are reserved for its open handles and by
    /// shards.
    pub reserved: u32,
    /// The shards that are open ([`Shards`]).
    pub open_shards: Vec<usize>,
    /// The parts of the running transaction.
    pub shares: Vec<Arc<Share>>,
    /// A commit waits for the open handles to end, and new ones must wait. The shards are closed.
    pub locked: bool,
    /// No handle may start until [`Journal::thaw`]. The mount has its own state for this, but this one is protected by
    /// the lock under which handles wait, and a read-only mount keeps its journal frozen.
    pub frozen: bool,
    /// The time when the running transaction got its first handle.
    pub started_ns: Option<u64>,
    pub commit_wanted: bool,
    /// The thread that currently commits by itself ([`Journal::commit_here`]).
    pub alone: Option<ThreadId>,
    /// A thread has committed by itself and left the checkpoint to the journal's thread.
    pub room_wanted: bool,
    /// The newest durable transaction.
    pub committed: Tid,
    /// The newest transaction whose commit has sent its flush: `committed` or the next one. A caller that asks for it
    /// now may have written data that this flush did not cover (Linux: `jbd2_trans_will_send_data_barrier`).
    pub sealed: Tid,
    pub waiters: Vec<CommitWaiter>,
    pub flush_waiters: Vec<Callback>,
    /// The number of callers that a commit waits for: as many as the last one served, plus those that it left waiting.
    pub batch: usize,
    /// The journal's thread waits for `batch` callers, and only the last of them wakes it.
    pub gathering: bool,
    /// The duration of commits, as a moving average.
    pub commit_ns: u64,
    /// The time that callers take from an answer to their next request.
    pub back: Back,
    /// The first error, which stopped the journal permanently. The mount learns of it slightly later
    /// ([`Hooks::aborted`]), so a commit that looks here in between must not continue.
    pub aborted: Option<Error>,
    /// Neither the device nor the mount is informed of the abort ([`Journal::give_up`]).
    pub given_up: bool,
    /// The journal's thread must end. An unmount sets this late, because the mount's other threads need handles until
    /// they end.
    pub stop: bool,
}

/// The time that all callers take from an answer to their next request, as a moving average. The journal cannot
/// distinguish callers, so it takes as many of the next requests as there were answers for theirs.
#[derive(Default)]
pub(crate) struct Back {
    /// The last answers: the time, their number, and the number of waiters. `asked` counts the requests since then.
    answered_ns: u64,
    answers: u64,
    of: u64,
    asked: u64,
    pub all_ns: u64,
}

impl Back {
    /// Records a request.
    pub fn ask(&mut self, now_ns: impl FnOnce() -> u64) {
        self.asked += 1;
        if self.asked == self.answers {
            self.sample(now_ns());
        }
    }

    /// Records that `answers` of `of` requests were answered.
    pub fn answer(&mut self, answers: usize, of: usize, now_ns: u64) {
        // Not all callers have returned, so they take at least this long.
        if self.asked < self.answers {
            self.sample(now_ns);
        }
        // A minority says little about all callers.
        let answers = if 2 * answers >= of { answers as u64 } else { 0 };
        (self.answered_ns, self.answers, self.of, self.asked) = (now_ns, answers, of as u64, 0);
    }

    fn sample(&mut self, now_ns: u64) {
        // The time is scaled up, because the other callers share the processors with these. The limit makes the effect
        // of an outlier short.
        let took = now_ns.saturating_sub(self.answered_ns).min(GATHER_NS_MAX) * self.of / self.answers;
        self.all_ns = if self.all_ns == 0 { took } else { (3 * self.all_ns + took) / 4 };
    }
}

impl State {
    /// Whether the running transaction has no changes. No handle is open.
    pub(crate) fn is_empty(&self) -> bool {
        let is_blank = |share: &Arc<Share>| {
            let part = share.part.lock();
            part.buffers.is_empty() && part.freed.is_empty()
        };
        self.shares.iter().all(is_blank) && self.running.inner.lock().revoked.is_empty()
    }

    /// The number of blocks of the running transaction.
    pub(crate) fn blocks(&self) -> usize {
        self.shares.iter().map(|share| share.part.lock().buffers.len()).sum()
    }

    /// Takes the waiters that `ready` chooses.
    pub(crate) fn take_waiters(&mut self, ready: impl Fn(&CommitWaiter) -> bool) -> Vec<Callback> {
        let (ready, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiters).into_iter().partition(ready);
        self.waiters = rest;
        ready.into_iter().map(|w| w.done).collect()
    }

    /// A commit that began at `start_ns` answers `answers` callers: for the size of the next batch.
    pub(crate) fn note_answer(&mut self, answers: usize, start_ns: u64, now_ns: u64) {
        self.batch = answers + self.waiters.len();
        let took = now_ns.saturating_sub(start_ns);
        self.back.answer(answers, self.batch, now_ns);
        self.commit_ns = if self.commit_ns == 0 { took } else { (3 * self.commit_ns + took) / 4 };
    }

    /// Fails if the journal takes no more handles and commits.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.aborted {
            Some(cause) => Err(cause.as_aborted()),
            None if self.stop => Err(Error::Aborted { cause: "the mount has ended".to_owned() }),
            None => Ok(()),
        }
    }
}

/// The journal of one mount.
pub struct Journal {
    pub(crate) me: Weak<Journal>,
    pub(crate) cache: Arc<BufferCache>,
    /// The file system's device. The log may be on another one.
    pub(crate) dev: Arc<dyn BlockDevice>,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) options: Options,
    pub(crate) state: Mutex<State>,
    pub(crate) shards: Shards,
    /// Waited on by handles that need space or the next transaction.
    pub(crate) room: Condvar,
    /// Waited on by a committer until the open handles end, and by the thread that ends the mount until a committer
    /// ends.
    pub(crate) drained: Condvar,
    /// Waited on by the journal's thread for work.
    pub(crate) work: Condvar,
    pub(crate) log: Mutex<Log>,
    /// The home writes in flight. The thread that holds the log submits them and gets their errors.
    pub(crate) home_io: Arc<IoWait>,
    /// The maximum number of blocks in one transaction.
    pub(crate) max_blocks: u32,
    /// The maximum for a transaction that consists of a single handle.
    max_alone: u32,
    /// Transactions list their changes for fast commits.
    pub(crate) fast_commits: bool,
    pub stats: JournalStats,
}

impl Journal {
    /// Opens a journal whose log is empty (replayed or clean). `location` is `None` for a mount without a log;
    /// `first_tid` is then arbitrary.
    pub fn open(
        cache: Arc<BufferCache>,
        location: Option<LogLocation>,
        hooks: Arc<dyn Hooks>,
        options: Options,
    ) -> Result<Arc<Journal>> {
        let dev = cache.device().clone();
        let bs = u64::from(cache.block_size());
        let log = Log::open(location, &dev, options.fast_commits)?;
        let fast_commits = log.disk.as_ref().is_some_and(|disk| disk.area.is_some());
        let by_memory = (options.pinned_bytes_max / 4 / bs).max(64);
        let by_log = log.capacity().map_or(u64::MAX, |n| u64::from(n / 4));
        let max_blocks = by_memory.min(by_log).min(1 << 20) as u32;
        // A commit empties the log if necessary. Then at least half of it is free, regardless of the layout of the log.
        let max_alone = log.capacity().map_or(max_blocks, |n| by_memory.min(u64::from(n / 2)) as u32);
        let first = log.next_tid();
        Ok(Arc::new_cyclic(|me| Journal {
            me: me.clone(),
            cache,
            dev,
            hooks,
            options,
            state: Mutex::new(
                &STATE_CLASS,
                State {
                    running: Transaction::new(first),
                    updates: 0,
                    reserved: 0,
                    open_shards: Vec::new(),
                    shares: Vec::new(),
                    locked: false,
                    frozen: false,
                    started_ns: None,
                    commit_wanted: false,
                    alone: None,
                    room_wanted: false,
                    committed: Tid(first.0.wrapping_sub(1)),
                    sealed: Tid(first.0.wrapping_sub(1)),
                    waiters: Vec::new(),
                    flush_waiters: Vec::new(),
                    batch: 1,
                    gathering: false,
                    commit_ns: 0,
                    back: Back::default(),
                    aborted: None,
                    given_up: false,
                    stop: false,
                },
            ),
            shards: Shards::new(max_blocks),
            room: Condvar::new(),
            drained: Condvar::new(),
            work: Condvar::new(),
            log: Mutex::new(&LOG_CLASS, log),
            home_io: IoWait::new(),
            max_blocks,
            max_alone,
            fast_commits,
            stats: JournalStats::default(),
        }))
    }

    /// The maximum number of blocks that one handle may request.
    pub fn max_credits(&self) -> u32 {
        // The limit is half, so that two operations can always share a transaction.
        self.max_blocks / 2
    }

    /// The maximum number of blocks that a handle with its own transaction may request ([`Journal::start_alone`]).
    pub fn max_alone(&self) -> u32 {
        self.max_alone
    }

    /// The same as [`Journal::start`], for changes that are more than a quarter of a small log. Waits for an empty
    /// transaction, which no other handle joins if there is no space. This is only for rare operations, because all
    /// other handles wait for the commits before and after it.
    pub fn start_alone(self: &Arc<Self>, credits: u32) -> Result<Handle> {
        self.start_within(credits, self.max_alone.max(self.max_blocks))
    }

    /// Joins the running transaction, and waits while it is full or closing. `credits` is the number of blocks that the
    /// operation may change. The thread must hold no other handle, and no lock that the holder of one may want.
    pub fn start(self: &Arc<Self>, credits: u32) -> Result<Handle> {
        self.start_within(credits, self.max_blocks)
    }

    fn start_within(self: &Arc<Self>, credits: u32, max: u32) -> Result<Handle> {
        if credits > max {
            return Err(Error::TooLarge { credits, max });
        }
        if let Some(share) = self.shards.enter(credits) {
            return Ok(self.join(share, credits));
        }
        let mut s = self.state.lock();
        loop {
            s.check()?;
            if s.locked || s.frozen {
                self.room.wait(&mut s);
            } else if let Err(handles) = self.reserve(&mut s, credits) {
                s.commit_wanted = true;
                if self.options.threaded {
                    self.work.notify_one();
                    self.room.wait(&mut s);
                } else if handles == 0 {
                    drop(s);
                    self.commit(Durability::Full)?;
                    s = self.state.lock();
                } else {
                    // Another handle of this thread is open. That is a bug of the caller, but a deadlock would be
                    // worse.
                    s.reserved += credits;
                    break;
                }
            } else {
                break;
            }
        }
        Ok(self.admit(s, credits))
    }

    /// Joins the running transaction if that is possible immediately.
    pub fn try_start(self: &Arc<Self>, credits: u32) -> Option<Handle> {
        if let Some(share) = self.shards.enter(credits) {
            return Some(self.join(share, credits));
        }
        let mut s = self.state.lock();
        if s.locked || s.frozen || s.check().is_err() {
            return None;
        }
        if s.reserved + credits > self.max_blocks {
            self.collect(&mut s);
        }
        if s.reserved + credits > self.max_blocks {
            return None;
        }
        s.reserved += credits;
        Some(self.admit(s, credits))
    }

    /// Reserves blocks of the running transaction; a transaction without any has room for any number. Otherwise returns
    /// the number of open handles.
    fn reserve(&self, s: &mut State, credits: u32) -> std::result::Result<(), u32> {
        if s.reserved + credits > self.max_blocks {
            let handles = self.collect(s);
            if s.reserved + credits > self.max_blocks && s.reserved > 0 {
                return Err(handles);
            }
        }
        s.reserved += credits;
        Ok(())
    }

    /// Takes back what shards have reserved in advance, and returns the number of open handles. When most of the
    /// transaction is in use, it commits early: otherwise each of the next handles would come here.
    fn collect(&self, s: &mut State) -> u32 {
        let handles = self.shards.collect(s);
        if self.options.threaded && s.reserved > self.max_blocks / 2 && !s.commit_wanted {
            s.commit_wanted = true;
            self.work.notify_one();
        }
        handles
    }

    /// Starts a handle whose credits are reserved.
    fn admit(self: &Arc<Self>, mut s: MutexGuard<'_, State>, credits: u32) -> Handle {
        if s.started_ns.is_none() {
            s.started_ns = Some(self.options.clock.now_ns());
        }
        let share = self.shards.admit(&mut s, self.max_blocks);
        drop(s);
        self.join(share, credits)
    }

    fn join(self: &Arc<Self>, share: Arc<Share>, credits: u32) -> Handle {
        self.stats.handles.inc();
        Handle::new(self.clone(), share, credits)
    }

    /// Ends a handle's part. `unused` is the number of reserved blocks that it did not use. `failed` means that the
    /// handle changed half of an operation, so nothing of the transaction may become durable. Therefore the abort
    /// happens under the same lock as the decrement for which a commit waits.
    pub(crate) fn stop_handle(&self, share: &Arc<Share>, unused: u32, failed: Option<Error>) {
        if failed.is_none() && self.shards.leave(share, unused) {
            return;
        }
        let mut s = self.state.lock();
        let first = failed.filter(|_| s.aborted.is_none());
        if let Some(error) = &first {
            self.set_aborted(&mut s, error);
        }
        // The shard is closed: either before, or now by the abort. So the handle is counted here.
        s.updates -= 1;
        s.reserved = s.reserved.saturating_sub(unused);
        if s.updates == 0 && s.locked {
            self.drained.notify_all();
        }
        drop(s);
        if let Some(error) = first {
            self.tell_aborted(&error);
        }
    }

    /// Gets more space in the running transaction for an open handle, if there is any (Linux: `jbd2_journal_extend`).
    pub(crate) fn extend(&self, share: &Arc<Share>, credits: u32) -> bool {
        if self.shards.extend(share, credits) {
            return true;
        }
        let mut s = self.state.lock();
        if s.locked {
            return false;
        }
        if s.reserved + credits > self.max_blocks {
            self.collect(&mut s);
        }
        if s.reserved + credits > self.max_blocks {
            return false;
        }
        s.reserved += credits;
        true
    }

    /// The transaction to which current changes belong.
    pub fn running_tid(&self) -> Tid {
        self.state.lock().running.tid
    }

    /// The newest durable transaction.
    pub fn committed_tid(&self) -> Tid {
        self.state.lock().committed
    }

    /// Calls `done` once transaction `tid` is durable; with `None`, or when it already is, once everything written to
    /// the device before this call is. No thread waits meanwhile.
    pub fn commit_async(&self, tid: Option<Tid>, how: Durability, done: Callback) {
        self.stats.waits.inc();
        let mut s = self.state.lock();
        if let Err(error) = s.check() {
            drop(s);
            return done(Err(error));
        }
        match tid {
            Some(tid) if tid.is_after(s.sealed) => {
                s.back.ask(|| self.options.clock.now_ns());
                s.waiters.push(CommitWaiter { tid, how, done });
            }
            _ => s.flush_waiters.push(done),
        }
        if !s.gathering || s.waiters.len() >= s.batch {
            self.work.notify_one();
        }
        drop(s);
    }

    /// As [`Journal::commit_wait`], but a lone caller commits itself. The caller holds no handle and no lock at all: it
    /// may have to call back waiters that came meanwhile.
    pub fn commit_here(&self, tid: Option<Tid>, how: Durability) -> Result<()> {
        match self.options.threaded.then(|| self.commit_alone(tid, how)).flatten() {
            Some(result) => result,
            None => self.wait_until(tid, how),
        }
    }

    /// As [`Journal::commit_async`] for a full commit, and waits.
    pub fn commit_wait(&self, tid: Option<Tid>) -> Result<()> {
        self.wait_until(tid, Durability::Full)
    }

    fn wait_until(&self, tid: Option<Tid>, how: Durability) -> Result<()> {
        let waiter = Waiter::new();
        let tell = waiter.clone();
        self.commit_async(tid, how, Box::new(move |r| tell.set(r)));
        while !self.options.threaded && !waiter.is_set() {
            self.step();
        }
        waiter.wait()
    }

    /// Commits the running transaction and waits.
    pub fn commit_running(&self) -> Result<()> {
        let tid = self.running_tid();
        self.commit_wait(Some(tid))
    }

    /// Does one round of the journal's work: commits if a caller waits or the transaction is old, otherwise flushes if
    /// a caller waits for that. Returns whether it did anything.
    pub fn step(&self) -> bool {
        if std::mem::take(&mut self.state.lock().room_wanted) && self.options.threaded {
            // The error has already been reported to the waiters and the file system.
            let _ = self.make_room();
        }
        let commit = {
            let s = self.state.lock();
            if s.aborted.is_some() {
                None
            } else {
                let old = s
                    .started_ns
                    .is_some_and(|t| self.options.clock.now_ns().saturating_sub(t) >= self.options.commit_interval_ns);
                let full = s.commit_wanted || s.waiters.iter().any(|w| w.how == Durability::Full) || old;
                Some(if full { Some(Durability::Full) } else { s.waiters.first().map(|w| w.how) })
            }
        };
        match commit {
            None => self.fail_waiters(),
            Some(Some(how)) => {
                // The error has already been reported to the waiters and the file system.
                let _ = self.commit(how);
                true
            }
            Some(None) => self.flush_for_waiters(),
        }
    }

    fn flush_for_waiters(&self) -> bool {
        let (waiting, result) = {
            // A caller that arrived after the flush of a commit waits for that commit, too.
            let log = self.log.lock();
            let waiting = {
                let mut s = self.state.lock();
                if s.aborted.is_some() { Vec::new() } else { std::mem::take(&mut s.flush_waiters) }
            };
            if waiting.is_empty() {
                self.let_go(log, None);
                return self.fail_waiters();
            }
            (waiting, self.flush_under(log))
        };
        if let Err(e) = &result {
            self.tell_aborted(e);
        }
        for done in waiting {
            done(result.clone());
        }
        true
    }

    fn fail_waiters(&self) -> bool {
        let (waiters, flushes, error) = {
            let mut s = self.state.lock();
            let Some(error) = s.aborted.as_ref().map(Error::as_aborted) else { return false };
            (std::mem::take(&mut s.waiters), std::mem::take(&mut s.flush_waiters), error)
        };
        let any = !waiters.is_empty() || !flushes.is_empty();
        for done in waiters.into_iter().map(|w| w.done).chain(flushes) {
            done(Err(error.clone()));
        }
        any
    }

    /// Runs `step` until [`Journal::stop`]. This is the body of the journal's thread.
    pub fn run(&self) {
        loop {
            {
                let mut s = self.state.lock();
                let idle = |s: &State| {
                    let asked = s.commit_wanted || s.room_wanted;
                    !asked && s.waiters.is_empty() && s.flush_waiters.is_empty() && !s.stop
                };
                if idle(&s) {
                    let interval = Duration::from_nanos(self.options.commit_interval_ns);
                    let wait = match s.started_ns {
                        Some(t) => {
                            let age = Duration::from_nanos(self.options.clock.now_ns().saturating_sub(t));
                            interval.saturating_sub(age).max(Duration::from_millis(1))
                        }
                        None => interval,
                    };
                    self.work.wait_for(&mut s, wait);
                }
                if s.stop && s.waiters.is_empty() && s.flush_waiters.is_empty() {
                    return;
                }
                self.gather(&mut s);
            }
            self.step();
        }
    }

    /// Waits for a short time, so that several threads that fsync repeatedly share one commit instead of two (Linux:
    /// the sleep in `jbd2_journal_stop`). Then the device is idle while they compute, and they are idle while it
    /// writes. If they take longer than a commit, as through a mount whose server shares the processors with them, two
    /// alternating groups achieve more, and form by themselves (experiments/015-fsync-processes). The wait is at most
    /// as long as a commit, and a single caller does not wait.
    fn gather(&self, s: &mut MutexGuard<'_, State>) {
        if s.waiters.is_empty() || s.waiters.len() >= s.batch || s.stop || s.back.all_ns > s.commit_ns {
            return;
        }
        let limit_ns = s.commit_ns.min(GATHER_NS_MAX);
        let start_ns = self.options.clock.now_ns();
        s.gathering = true;
        while s.waiters.len() < s.batch && !s.stop {
            let spent = self.options.clock.now_ns().saturating_sub(start_ns);
            if spent >= limit_ns || self.work.wait_for(s, Duration::from_nanos(limit_ns - spent)) {
                break;
            }
        }
        s.gathering = false;
    }

    /// Ends [`Journal::run`] after it has served the waiters of a commit. Later callers, and those that wait for a
    /// handle, are refused, because no thread would serve them.
    pub fn stop(&self) {
        {
            let mut s = self.state.lock();
            s.stop = true;
            self.shards.close(&mut s);
        }
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Waits until every thread that began to write to the log before [`Journal::stop`] has ended its write, and no
    /// block is being written home. Only then may another process replay the log. The journal's own thread does not
    /// count, because the caller has joined it.
    pub fn wait_until_left(&self) {
        let mut s = self.state.lock();
        // The thread that drops the last reference to a file system may be the one that writes.
        while s.alone.is_some_and(|who| who != std::thread::current().id()) {
            self.drained.wait(&mut s);
        }
        drop(s);
        self.home_io.settle();
    }

    /// Stops the journal after an error: nothing more is logged, every waiter gets the error, the content of the log is
    /// kept, and the next mount finds the error (`s_errno`).
    pub fn abort(&self, error: &Error) {
        {
            let mut s = self.state.lock();
            if s.aborted.is_some() {
                return;
            }
            self.set_aborted(&mut s, error);
        }
        self.tell_aborted(error);
    }

    /// The same as [`Journal::abort`], but leaves no trace for the next mount: the log is not marked, and the file
    /// system is not informed.
    pub fn give_up(&self, error: &Error) {
        {
            let mut s = self.state.lock();
            if s.aborted.is_some() {
                return;
            }
            s.given_up = true;
            self.set_aborted(&mut s, error);
        }
        self.fail_waiters();
    }

    pub(crate) fn set_aborted(&self, s: &mut State, error: &Error) {
        s.aborted = Some(error.clone());
        self.shards.close(s);
        s.locked = false;
        // The journal's thread has no work left for which it would stay awake.
        s.commit_wanted = false;
        s.room_wanted = false;
        s.started_ns = None;
        self.room.notify_all();
        self.drained.notify_all();
    }

    /// Reports an abort after [`Journal::set_aborted`].
    pub(crate) fn tell_aborted(&self, error: &Error) {
        // If another thread holds the log, that thread records the abort when it releases it.
        if let Some(log) = self.log.try_lock() {
            self.let_go(log, None);
        }
        if self.tells_abort() {
            self.hooks.aborted(error);
        }
        self.fail_waiters();
    }

    /// Whether the journal was aborted in a way of which the file system and the next mount must be informed.
    pub(crate) fn tells_abort(&self) -> bool {
        let s = self.state.lock();
        s.aborted.is_some() && !s.given_up
    }

    /// Runs `f` while no block is written home. If another thread has the log, returns false, and [`Hooks::log_free`]
    /// is called later. This is for writes of blocks that a checkpoint may write, too, because the older write must not
    /// win. Does not wait for a commit, because the caller may have an open handle.
    pub fn alone(&self, f: impl FnOnce()) -> bool {
        let Some(log) = self.log.try_lock() else { return false };
        self.run_alone(log, f);
        true
    }

    /// The same as [`Journal::alone`] for a caller that has neither an open handle nor a lock that ranks after the log.
    /// Waits for the log.
    pub fn alone_at_last(&self, f: impl FnOnce()) {
        self.run_alone(self.log.lock(), f);
    }

    fn run_alone(&self, log: MutexGuard<'_, Log>, f: impl FnOnce()) {
        self.home_io.settle();
        f();
        self.let_go(log, None);
    }

    pub fn is_aborted(&self) -> bool {
        self.state.lock().aborted.is_some()
    }

    /// Commits and writes home everything, then marks the log as empty. The caller must stop the thread before, and may
    /// clear `needs_recovery` only after this has succeeded.
    pub fn close(&self) -> Result<()> {
        if let Some(cause) = &self.state.lock().aborted {
            return Err(cause.as_aborted());
        }
        let r = self.commit(Durability::Full).and_then(|()| {
            let mut log = self.log.lock();
            let emptied = self.empty(&mut log).and_then(|()| Ok(self.dev.flush()?)).and_then(|()| log.mark_empty());
            self.let_go(log, None);
            emptied
        });
        if let Err(e) = &r {
            self.abort(e);
        }
        r
    }

    /// Lets no more handles start, waits for the open ones, and does the same as [`Journal::close`]. Until
    /// [`Journal::thaw`], the log is empty and nothing is written. The caller must stop the threads that would
    /// otherwise wait without end.
    pub fn freeze(&self) -> Result<()> {
        {
            let mut s = self.state.lock();
            s.frozen = true;
            self.shards.close(&mut s);
        }
        self.close()
    }

    /// Ends [`Journal::freeze`].
    pub fn thaw(&self) {
        self.state.lock().frozen = false;
        self.room.notify_all();
    }

    pub(crate) fn note_pinned(&self, blocks: u64) {
        let bytes = blocks * u64::from(self.cache.block_size());
        self.stats.pinned_bytes_peak.fetch_max(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(back: &mut Back, now_ns: u64, times: usize) {
        (0..times).for_each(|_| back.ask(|| now_ns));
    }

    #[test]
    fn how_long_callers_need_is_told_by_those_who_were_answered() {
        let mut back = Back::default();
        back.answer(4, 4, 1_000);
        asked(&mut back, 1_300, 3);
        assert_eq!(back.all_ns, 0, "not all are back");
        asked(&mut back, 1_500, 1);
        assert_eq!(back.all_ns, 500);
        // Half of them were answered, so all would need twice as long. The average moves by a quarter.
        back.answer(2, 4, 2_000);
        asked(&mut back, 2_900, 2);
        assert_eq!(back.all_ns, (3 * 500 + 1_800) / 4);
        // One answer of four is not a sample.
        let before = back.all_ns;
        back.answer(1, 4, 10_000);
        asked(&mut back, 60_000, 4);
        assert_eq!(back.all_ns, before);
    }

    #[test]
    fn a_caller_that_is_late_counts_with_the_time_so_far_up_to_the_longest_wait() {
        let mut back = Back::default();
        back.answer(2, 2, 1_000);
        asked(&mut back, 1_100, 1);
        back.answer(1, 1, 1_700);
        assert_eq!(back.all_ns, 700);
        asked(&mut back, u64::MAX, 1);
        assert_eq!(back.all_ns, (3 * 700 + GATHER_NS_MAX) / 4);
    }
}
