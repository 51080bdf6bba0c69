//! Open handles and reserved credits, counted in shards (Linux: `t_updates` and `t_outstanding_credits` of
//! `transaction_t`, which are atomics of the transaction).
//!
//! Main types: [`Shards`], [`Share`] (a shard's membership in the running transaction).
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
//! What it does not do: decide whether a handle may start. A shard is opened under the lock of the journal only, where
//! all conditions are checked. Whatever makes one of them false closes the shards under the same lock.
//!
//! # Locking
//! `journal handles` (93), one per shard, taken with `journal state` (91) held or alone. It is never held while
//! another lock is taken. All counts are under these two locks, so there are no memory orderings to consider. A commit
//! sees all changes of the handles that it has waited for: the end of a handle releases a lock that the commit takes
//! later.

use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_base::task;

use crate::state::{Part, State, TXN_CLASS, Transaction};

static CLASS: LockClass = LockClass::new("journal handles", 93);

/// Threads beyond this number share. A commit visits only the shards that are open.
const SHARDS: usize = 128;
/// The most credits that a shard reserves in advance.
const ADVANCE_MAX: u32 = 256;

/// The membership of a shard in the running transaction, and what its handles have changed. Each opening of a shard makes a new one, whose reference count
/// is then the only one that handles of the shard change.
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
        let lines = (0..SHARDS).map(|_| Line(Mutex::new(&CLASS, Shard::default()))).collect();
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
