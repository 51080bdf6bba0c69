//! Lost writes: [`LossLedger`] records them, and reports each one to every party that checks (Linux: `errseq_t`,
//! lib/errseq.c).
//!
//! A *loss* is written data, or a changed time, that will never be on the device. A *party* receives errors on behalf
//! of a program: an open file, a process, a thread. Each party has a *cursor* in a ledger, and a check by the party
//! reports the newest loss if the cursor is before it. Every inode has a ledger, and the mount has one for all of its
//! files.
//!
//! Main types: [`LossLedger`], [`Loss`] (an entry), [`LossCursor`] (the cursor that a check moves), [`Position`] (the
//! end of a ledger at one time, to check later whether anything has been lost since).
//!
//! A loss counts from the time of its record. A cursor that was opened before reports it at its next check. A cursor
//! that is opened later reports it only if no party has seen it yet, so no loss is missed between two open files.
//!
//! An open file has its own cursor. A process or a thread is identified by its number, and the ledger keeps its cursor.
//! It begins at the start, so a process also reports losses from before its first check. Reporting a loss twice is
//! harmless, but never reporting it loses data silently. For the same reason, the processes that cannot be
//! distinguished share one cursor, which does not move when it reports: only a write that reaches the device after a
//! report moves it to the end.
//!
//! A *hint* is a check whose result may reach no program: it moves the cursor, but the loss stays unseen.
//!
//! # States
//! The states of one cursor relative to its ledger:
//! - *clean*: nothing was lost;
//! - *unseen*: no party has seen the newest loss, and the cursor is before it;
//! - *hinted*: no party has seen it, and this cursor has reported it as a hint;
//! - *others*: another party has seen it, and this cursor is before it;
//! - *seen*: a party has seen it, and this cursor is at the end.
//!
//! A cell contains the report, if there is one, and the next state; `=` means no change.
//!
//! | event                 | clean  | unseen         | hinted | others       | seen   |
//! |-----------------------|--------|----------------|--------|--------------|--------|
//! | record                | unseen | =              | unseen | unseen       | unseen |
//! | open (its new cursor) | clean  | unseen         | unseen | seen         | seen   |
//! | check                 | =      | report, seen   | seen   | report, seen | =      |
//! | check by another      | =      | others         | seen   | =            | =      |
//! | hint                  | =      | report, hinted | =      | report, seen | =      |
//! | write after           | =      | =              | =      | =            | =      |
//!
//! The shared cursor does not move when it reports; `*` marks such a state:
//!
//! | event            | clean  | unseen          | unseen*         | hinted | others          | others*   | seen   |
//! |------------------|--------|-----------------|-----------------|--------|-----------------|-----------|--------|
//! | record           | unseen | =               | unseen          | unseen | unseen          | unseen    | unseen |
//! | check            | =      | report, others* | report, others* | seen   | report, others* | report, = | =      |
//! | check by another | =      | others          | others*         | seen   | =               | =         | =      |
//! | hint             | =      | report, unseen* | report, =       | =      | report, others* | report, = | =      |
//! | write after      | =      | =               | hinted          | =      | =               | seen      | =      |
//!
//! What it does not do: remember any loss except the newest, which represents the earlier ones.
//!
//! # Locking
//! A leaf lock protects the newest loss (`lost write`, 200). While nothing was ever lost, a check costs one load.

use std::ops::Range;
use std::sync::Arc;

use extant_base::hash::HashSet;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_base::task::shard_index;
use extant_ondisk::InodeNr;

static CLASS: LockClass = LockClass::new("lost write", 200);

/// Set in the state of a ledger when a party has seen the newest loss.
const SEEN: u64 = 1;
/// The state of a ledger without a loss.
const NOTHING: u64 = SEEN;
/// The maximum number of named cursors at the end of one ledger. At this number, the ledger forgets them all, and their
/// parties report again.
const NAMED_MAX: usize = 1024;

/// A write that did not reach the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss<E> {
    /// The number of the loss in the ledger, from 1.
    pub number: u64,
    pub inode: InodeNr,
    /// The file's blocks whose data is lost; `None` if only times are lost.
    pub blocks: Option<Range<u64>>,
    pub cause: E,
}

/// The losses of one file or of one mount.
pub struct LossLedger<E> {
    /// Twice the number of the newest loss, plus [`SEEN`]. It is changed under the lock and can be read without it.
    state: AtomicU64,
    /// It is boxed because each inode has a ledger, and most of them never contain a loss.
    newest: Mutex<Option<Box<Newest<E>>>>,
}

struct Newest<E> {
    loss: Loss<E>,
    /// The number of the newest loss of data.
    data: u64,
    /// The parties whose cursors are at the end. The cursors of all other parties are at the start.
    at_end: HashSet<Party>,
    shared: Shared,
}

/// The position of the cursor that processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shared {
    Behind,
    /// One of the processes has reported the newest loss; the others may not have.
    Reported,
    /// A write reached the device after that.
    AtEnd,
}

/// A party that does not have its own cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Party {
    Thread(u64),
    Process(u32),
}

/// The cursor that a check moves.
#[derive(Clone, Debug)]
pub enum LossCursor {
    /// The cursor of an open file, or of an operation ([`LossLedger::open`]).
    Open(Arc<OpenCursor>),
    /// The cursor that each ledger has for this party.
    Of(Party),
    /// The cursor that each ledger has for all processes that cannot be distinguished.
    Shared,
}

/// The number of the newest loss that an open file has reported.
#[derive(Debug, Default)]
pub struct OpenCursor(AtomicU64);

impl LossCursor {
    /// The cursor of the calling thread.
    pub fn thread() -> LossCursor {
        LossCursor::Of(Party::Thread(shard_index() as u64))
    }

    /// The cursor of the process with this id.
    pub fn process(id: u32) -> LossCursor {
        LossCursor::Of(Party::Process(id))
    }
}

/// The end of a ledger at one time.
#[derive(Clone, Copy, Debug)]
pub struct Position<'a> {
    state: &'a AtomicU64,
    number: u64,
}

impl Position<'_> {
    /// Whether this is still the end, so that nothing was lost since.
    pub fn is_end(self) -> bool {
        self.state.load(Ordering::Acquire) >> 1 == self.number
    }
}

impl<E: Clone> Default for LossLedger<E> {
    fn default() -> Self {
        LossLedger { state: AtomicU64::new(NOTHING), newest: Mutex::new(&CLASS, None) }
    }
}

impl<E: Clone> LossLedger<E> {
    /// Appends a loss; all cursors are then before it (Linux: `errseq_set`).
    pub fn record(&self, inode: InodeNr, blocks: Option<Range<u64>>, cause: E) {
        let mut newest = self.newest.lock();
        let number = (self.state.load(Ordering::Relaxed) >> 1) + 1;
        let data = if blocks.is_some() { number } else { newest.as_ref().map_or(0, |newest| newest.data) };
        let loss = Loss { number, inode, blocks, cause };
        *newest = Some(Box::new(Newest { loss, data, at_end: HashSet::default(), shared: Shared::Behind }));
        self.state.store(number << 1, Ordering::Release);
    }

    /// A cursor for a file that is being opened (Linux: `errseq_sample`).
    pub fn open(&self) -> LossCursor {
        let state = self.state.load(Ordering::Acquire);
        let number = if state & SEEN == 0 { 0 } else { state >> 1 };
        LossCursor::Open(Arc::new(OpenCursor(AtomicU64::new(number))))
    }

    /// Reports the newest loss if `cursor` is before it, and moves the cursor. The loss then counts as seen (Linux:
    /// `errseq_check_and_advance`).
    ///
    /// # Errors
    /// The newest loss.
    pub fn check(&self, cursor: &LossCursor) -> Result<(), Loss<E>> {
        self.report(cursor, SEEN)
    }

    /// The same as [`LossLedger::check`], for a caller that may not pass the result on to a program. The loss stays
    /// unseen.
    ///
    /// # Errors
    /// The newest loss.
    pub fn hint(&self, cursor: &LossCursor) -> Result<(), Loss<E>> {
        self.report(cursor, 0)
    }

    fn report(&self, cursor: &LossCursor, seen: u64) -> Result<(), Loss<E>> {
        if self.state.load(Ordering::Acquire) == NOTHING {
            return Ok(());
        }
        let mut newest = self.newest.lock();
        let Some(newest) = &mut *newest else { return Ok(()) };
        self.state.fetch_or(seen, Ordering::AcqRel);
        let number = newest.loss.number;
        let is_behind = match cursor {
            LossCursor::Open(open) => open.0.swap(number, Ordering::AcqRel) < number,
            LossCursor::Of(party) => {
                if newest.at_end.len() >= NAMED_MAX {
                    newest.at_end.clear();
                }
                newest.at_end.insert(*party)
            }
            LossCursor::Shared if newest.shared == Shared::AtEnd => false,
            LossCursor::Shared => {
                newest.shared = Shared::Reported;
                true
            }
        };
        if is_behind { Err(newest.loss.clone()) } else { Ok(()) }
    }

    /// Records that a write has reached the device. The shared cursor moves if it has reported the newest loss.
    pub fn written(&self) {
        if self.state.load(Ordering::Acquire) == NOTHING {
            return;
        }
        if let Some(newest) = &mut *self.newest.lock()
            && newest.shared == Shared::Reported
        {
            newest.shared = Shared::AtEnd;
        }
    }

    /// The current end of the ledger.
    pub fn position(&self) -> Position<'_> {
        Position { state: &self.state, number: self.state.load(Ordering::Acquire) >> 1 }
    }

    /// Reports the newest loss if data was lost since `before`. No cursor moves, and the loss does not count as seen.
    ///
    /// # Errors
    /// The newest loss.
    pub fn lost_since(&self, before: Position<'_>) -> Result<(), Loss<E>> {
        if before.is_end() {
            return Ok(());
        }
        match &*self.newest.lock() {
            Some(newest) if newest.data > before.number => Err(newest.loss.clone()),
            _ => Ok(()),
        }
    }

    /// Whether anything was ever lost, which some parties may not have reported.
    pub fn has_losses(&self) -> bool {
        self.state.load(Ordering::Acquire) != NOTHING
    }

    /// Whether there is a loss that no party has seen.
    pub fn is_unseen(&self) -> bool {
        self.state.load(Ordering::Acquire) & SEEN == 0
    }
}

#[cfg(test)]
mod tests;
