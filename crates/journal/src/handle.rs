//! One operation's part of the running transaction (Linux: `handle_t`, include/linux/jbd2.h), and how open handles are
//! counted.
//!
//! Main types: [`Handle`]; [`Shards`], the counts of open handles and reserved credits (Linux: `t_updates` and
//! `t_outstanding_credits` of `transaction_t`, which are atomics of the transaction); [`Share`], a shard's membership
//! in the running transaction.
//!
//! A thread counts its handles in its own shard, so threads on different processors write to different cache lines. A
//! shard is *open* while it has a share: then its threads start and end handles, and take credits that the shard has
//! reserved in advance, without the lock of the journal. A commit closes the shards, which moves their counts to the
//! [`State`]. From then on, handles that were counted there end under the lock of the journal, where the commit waits
//! for the last of them. Handles that start find the shard closed, and wait there, too.
//!
//! A handle keeps the share with which it began. So its end knows whether the shard still counts it: only if the shard
//! has that share. A shard that was closed and opened again has another one.
//!
//! What it does not do: decide whether a handle may start. A shard is opened only under the lock of the journal, where
//! all conditions are checked. Each change that makes one of them false closes the shards under the same lock.
//!
//! # Locking
//! `journal handles` (93), one per shard, taken with `journal state` (91) held or alone. It is never held while
//! another lock is taken. All counts are under these two locks, so there are no memory orderings to consider. A commit
//! sees all changes of the handles that it has waited for: the end of a handle releases a lock that the commit takes
//! later.

use std::cell::Cell;
use std::sync::Arc;

use extant_base::sync::atomic::Ordering;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_cache::{BufKind, Buffer};
use extant_ondisk::jbd2::{FastCommitRecord, Tid};
use extant_ondisk::{BlockNr, InodeNr};

use crate::error::{Error, Result};
use crate::fast_commit::Slot;
use crate::state::{Journal, Part, State, TXN_CLASS, Transaction};

thread_local! {
    /// Whether this thread has an open handle. A second one would deadlock with a commit that waits for the first.
    static OPEN: Cell<bool> = const { Cell::new(false) };
}

/// An open handle. [`Handle::finish`] ends the operation, and its changes become durable together with the
/// transaction's other changes. If the handle is dropped instead (after an error or a panic) and has changed something,
/// half of an operation is left. Then the journal is aborted, so that no part of the operation becomes durable.
#[must_use = "a handle must be finished"]
pub struct Handle {
    journal: Arc<Journal>,
    share: Arc<Share>,
    /// The number of blocks that this handle may still add to the transaction.
    credits: u32,
    /// Something has been changed since the handle was started or restarted.
    changed: bool,
    /// Records describe its changes ([`Handle::set_described`]).
    described: bool,
    finished: bool,
    /// The journal counts the handle as open.
    open: bool,
}

impl Handle {
    pub(crate) fn new(journal: Arc<Journal>, share: Arc<Share>, credits: u32) -> Handle {
        debug_assert!(!OPEN.replace(true), "this thread has a handle open already");
        Handle { journal, share, credits, changed: false, described: false, finished: false, open: true }
    }

    /// A handle for the changes that the file system makes when the transaction closes ([`crate::Hooks::closing`]). No
    /// commit waits for its end.
    pub(crate) fn closing(journal: Arc<Journal>, share: Arc<Share>, credits: u32) -> Handle {
        Handle { journal, share, credits, changed: false, described: false, finished: true, open: false }
    }

    /// Ends a complete operation.
    pub fn finish(mut self) {
        self.finished = true;
    }

    /// Ends a failed operation. If it has changed anything, the journal is aborted with this cause.
    pub fn fail(mut self, cause: &dyn std::fmt::Display) {
        self.finished = true;
        if self.changed {
            self.end(Some(Error::HalfDone { cause: cause.to_string() }));
        }
    }

    /// Ends the handle's part in the transaction, unless that was done already.
    fn end(&mut self, failed: Option<Error>) {
        if std::mem::replace(&mut self.open, false) {
            if self.changed && !self.described {
                self.set_opaque();
            }
            OPEN.set(false);
            self.journal.stop_handle(&self.share, std::mem::take(&mut self.credits), failed);
        }
    }

    pub fn tid(&self) -> Tid {
        self.share.txn.tid
    }

    /// Whether `n` more blocks may be changed. If not, tries to extend the handle.
    pub fn has_credits(&mut self, n: u32) -> bool {
        if self.credits >= n {
            return true;
        }
        let more = n - self.credits;
        if self.journal.extend(&self.share, more) {
            self.credits += more;
            return true;
        }
        false
    }

    /// Ends this handle's part, and joins the transaction that is then running with `credits` (Linux:
    /// `jbd2_journal_restart`). The changes so far must be consistent by themselves.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        let journal = self.journal.clone();
        self.end(None);
        (self.changed, self.described) = (false, false);
        let mut fresh = journal.start(credits)?;
        self.share = fresh.share.clone();
        self.credits = std::mem::take(&mut fresh.credits);
        self.open = std::mem::replace(&mut fresh.open, false);
        Ok(())
    }

    /// Whether fast commits need a description of changes: without them, none has to be made.
    pub fn is_listing(&self) -> bool {
        self.journal.fast_commits
    }

    /// Adds a record to the description of the transaction's changes. The caller excludes, until it has made the
    /// change, handles that would change the same.
    pub fn describe(&mut self, record: FastCommitRecord) {
        if self.journal.fast_commits {
            self.share.txn.inner.lock().changes.add(record);
        }
    }

    /// The inode `ino` has changed: a fast commit takes its fields from these `len` bytes of its table at `offset`.
    pub fn describe_inode(&mut self, ino: InodeNr, table: &Arc<Buffer>, offset: usize, len: usize) {
        if self.journal.fast_commits {
            self.share.txn.inner.lock().changes.add_inode(ino, Slot { table: table.clone(), offset, len });
        }
    }

    /// The records of this handle describe, or replay derives from them, all that it changes. Otherwise, which is the
    /// default, the transaction needs a full commit.
    pub fn set_described(&mut self) {
        self.described = true;
    }

    /// The transaction needs a full commit, because some change cannot be described.
    pub fn set_opaque(&mut self) {
        if self.journal.fast_commits {
            self.share.txn.inner.lock().changes.set_opaque();
        }
    }

    /// Puts one credit aside, for a block that may have to be changed when the transaction closes
    /// ([`crate::Hooks::closing`]). The handle counts as one that has changed something.
    pub fn put_aside(&mut self) {
        self.changed = true;
        self.spend(|| "put aside".to_owned());
    }

    /// Takes back a credit that this or another handle of the transaction has put aside.
    pub fn take_back(&mut self) {
        self.credits += 1;
    }

    fn spend(&mut self, why: impl Fn() -> String) {
        if self.credits > 0 {
            self.credits -= 1;
        } else {
            // These are more blocks than were reserved. The transaction has room for them (its limit has slack), and
            // tests fail here.
            debug_assert!(false, "handle ran out of credits: {}", why());
            self.journal.state.lock().reserved += 1;
        }
    }

    fn join(&mut self, buffer: &Arc<Buffer>, kind: BufKind) {
        self.share.part.lock().buffers.push(buffer.clone());
        if self.share.txn.revokes.load(Ordering::Relaxed) {
            self.share.txn.inner.lock().revoked.remove(&buffer.block);
        }
        buffer.set_kind(kind);
        self.spend(|| format!("at {}", buffer.block));
    }

    /// Changes a metadata block. The change belongs to this transaction.
    pub fn modify<R>(&mut self, buffer: &Arc<Buffer>, kind: BufKind, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let tid = self.share.txn.tid.0;
        self.changed = true;
        let mut inner = buffer.lock();
        if inner.state().held != Some(tid) {
            buffer.claim(&mut inner, |state| state.held = Some(tid));
            self.join(buffer, kind);
        }
        f(&mut Arc::make_mut(&mut inner.data)[..])
    }

    /// Creates the buffer of a newly allocated block: zeroed, and part of this transaction.
    pub fn create(&mut self, block: BlockNr, kind: BufKind) -> Result<Arc<Buffer>> {
        let buffer = self.journal.cache.get_zeroed(block)?;
        self.modify(&buffer, kind, |_| ());
        Ok(buffer)
    }

    /// Must be called when a metadata block is freed. Drops its cached copy. If the log may have a copy, a revoke
    /// record prevents replay from writing it over the block's next content (Linux: `jbd2_journal_revoke` and
    /// `jbd2_journal_forget`).
    pub fn forget(&mut self, block: BlockNr) {
        self.changed = true;
        self.set_opaque();
        let Some(buffer) = self.journal.cache.peek(block) else { return };
        let logged = {
            let mut inner = buffer.lock();
            buffer.claim(&mut inner, |state| state.held = None);
            inner.state().logged.is_some()
        };
        self.journal.cache.forget(block);
        if logged {
            self.share.txn.revokes.store(true, Ordering::Relaxed);
            self.share.txn.inner.lock().revoked.insert(block);
        }
    }

    /// Records a freed extent, which may be allocated again when this transaction is durable.
    pub fn freed(&mut self, start: BlockNr, len: u32) {
        self.changed = true;
        self.set_opaque();
        let mut t = self.share.part.lock();
        match t.freed.last_mut() {
            Some((s, l)) if s.0 + u64::from(*l) == start.0 => *l += len,
            Some((s, l)) if start.0 + u64::from(len) == s.0 => {
                *s = start;
                *l += len;
            }
            _ => t.freed.push((start, len)),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let half = self.changed && !self.finished;
        let why = if std::thread::panicking() { "a panic" } else { "an error" };
        self.end(half.then(|| Error::HalfDone { cause: why.to_owned() }));
    }
}

static SHARD_CLASS: LockClass = LockClass::new("journal handles", 93);

/// Threads beyond this number share. A commit visits only the shards that are open.
const SHARDS: usize = 128;
/// The most credits that a shard reserves in advance.
const ADVANCE_MAX: u32 = 256;

/// The membership of a shard in the running transaction, and what its handles have changed. Each opening of a shard
/// makes a new one. So handles of different shards change different counters of references.
pub(crate) struct Share {
    pub txn: Arc<Transaction>,
    pub part: Mutex<Part>,
    shard: usize,
}

impl Share {
    fn new(txn: Arc<Transaction>, shard: usize) -> Arc<Share> {
        Arc::new(Share { txn, part: Mutex::new(&TXN_CLASS, Part::default()), shard })
    }

    /// For a handle that no shard counts.
    pub(crate) fn apart(txn: Arc<Transaction>) -> Arc<Share> {
        Share::new(txn, usize::MAX)
    }
}

#[derive(Default)]
struct Shard {
    /// Present while the shard is open.
    share: Option<Arc<Share>>,
    /// The open handles that are counted here.
    handles: u32,
    /// Credits that are reserved in the transaction and that no handle has.
    credits: u32,
}

/// Processors fetch lines in pairs, so a pair is what two threads must not share.
#[repr(align(128))]
struct Line(Mutex<Shard>);

pub(crate) struct Shards {
    lines: Box<[Line]>,
    /// The credits that a shard reserves in advance. All shards of busy threads together keep at most a quarter of a
    /// transaction from other handles, until [`Shards::collect`].
    advance: u32,
}

impl Shards {
    pub(crate) fn new(max_blocks: u32) -> Shards {
        let lines = (0..SHARDS).map(|_| Line(Mutex::new(&SHARD_CLASS, Shard::default()))).collect();
        let processors = task::processors().max(1) as u32;
        Shards { lines, advance: (max_blocks / 4 / processors).min(ADVANCE_MAX) }
    }

    /// Counts a handle of the calling thread if its shard is open and has the credits.
    pub(crate) fn enter(&self, credits: u32) -> Option<Arc<Share>> {
        let mut shard = self.lines[task::shard_index() % SHARDS].0.lock();
        let share = shard.share.clone()?;
        shard.credits = shard.credits.checked_sub(credits)?;
        shard.handles += 1;
        Some(share)
    }

    /// Counts a handle of the calling thread, whose credits are reserved, and opens its shard. The caller has checked
    /// that a handle may start.
    pub(crate) fn admit(&self, s: &mut State, max_blocks: u32) -> Arc<Share> {
        let index = task::shard_index() % SHARDS;
        let mut shard = self.lines[index].0.lock();
        let share = shard.share.get_or_insert_with(|| {
            s.open_shards.push(index);
            let share = Share::new(s.running.clone(), index);
            s.shares.push(share.clone());
            share
        });
        let share = share.clone();
        shard.handles += 1;
        // When little is left, other handles may need it.
        if shard.credits < self.advance && s.reserved + 2 * self.advance <= max_blocks {
            s.reserved += self.advance;
            shard.credits += self.advance;
        }
        share
    }

    /// Ends a handle that the shard counts, and leaves its unused credits to the next one. Returns false if the shard
    /// has been closed since the handle started: then [`State::updates`] counts it.
    pub(crate) fn leave(&self, share: &Arc<Share>, unused: u32) -> bool {
        let mut shard = self.lines[share.shard].0.lock();
        if !is_of(&shard, share) {
            return false;
        }
        shard.handles -= 1;
        shard.credits += unused;
        true
    }

    /// Takes more credits for an open handle, if the shard has them.
    pub(crate) fn extend(&self, share: &Arc<Share>, credits: u32) -> bool {
        let mut shard = self.lines[share.shard].0.lock();
        let left = shard.credits.checked_sub(credits).filter(|_| is_of(&shard, share));
        left.map(|left| shard.credits = left).is_some()
    }

    /// Closes all shards. Until they are opened again, [`State`] has all counts.
    pub(crate) fn close(&self, s: &mut State) {
        for index in std::mem::take(&mut s.open_shards) {
            let shard = std::mem::take(&mut *self.lines[index].0.lock());
            s.updates += shard.handles;
            s.reserved = s.reserved.saturating_sub(shard.credits);
        }
    }

    /// Takes back the credits that shards have reserved in advance. Returns the number of handles that are open.
    pub(crate) fn collect(&self, s: &mut State) -> u32 {
        let mut handles = s.updates;
        for &index in &s.open_shards {
            let mut shard = self.lines[index].0.lock();
            handles += shard.handles;
            s.reserved = s.reserved.saturating_sub(std::mem::take(&mut shard.credits));
        }
        handles
    }
}

fn is_of(shard: &Shard, share: &Arc<Share>) -> bool {
    shard.share.as_ref().is_some_and(|own| Arc::ptr_eq(own, share))
}
