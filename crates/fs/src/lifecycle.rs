//! The state of a mount, from its beginning to its end. This is the only owner of that state.
//!
//! Main types: [`Lifecycle`]; its [`State`], a [`Phase`] and an [`Access`] in one byte; [`Right`], an action that a
//! state allows or forbids; [`Transition`]; [`Passage`], the presence of an operation inside the gate. Linux:
//! `SB_RDONLY`, `s_writers.frozen`, `EXT4_FLAGS_SHUTDOWN`, `EXT4_MF_FS_ABORTED`, `sb_start_write`.
//!
//! A state has a right if both its phase and its access have it; a table without a column for the right does not
//! restrict it. `Enter`: a change passes the gate without waiting, though it may then be refused. `Evict`: unlinked
//! inodes are freed. `Report`: errors are written to the device. `Work`: the mount's threads continue. `Change`:
//! operations and handles begin. `Superblock`: this mount may write the superblock. `Acknowledge`: written data may be
//! reported as durable.
//!
//! | phase | Enter | Evict | Report | Work |
//! |---|---|---|---|---|
//! | Open | yes | yes | yes | yes |
//! | CleanUp | yes | yes | yes | yes |
//! | Shut | no | yes | yes | yes |
//! | Frozen | no | no | no | yes |
//! | Ending | no | yes | yes | no |
//! | Closing | no | no | no | no |
//! | Ended | yes | yes | no | no |
//!
//! | access | Change | Superblock | Report | Acknowledge |
//! |---|---|---|---|---|
//! | Writable | yes | yes | yes | yes |
//! | ReadOnly | no | no | no | yes |
//! | Remounted | no | no | no | yes |
//! | Failed | no | yes | yes | no |
//! | CutOff | no | no | no | no |
//!
//! A transition is refused unless its row has both the current phase and the current access. `same` stands for any
//! other state, which does not change; `not CutOff` for any other state except that one.
//!
//! | transition | phase | access |
//! |---|---|---|
//! | BeginCleanUp | Open → CleanUp | same |
//! | GiveUp | CleanUp → CleanUp | Writable → CutOff, Failed → CutOff |
//! | Fail | same | Writable → Failed |
//! | Shut | Open → Shut, Shut → Shut | same |
//! | Freeze | Shut → Frozen | same |
//! | Resume | Shut → Shut, Frozen → Shut, Closing → Ending | same |
//! | Reopen | Shut → Open, CleanUp → Open | not CutOff |
//! | RemountReadOnly | Frozen → Shut | Writable → Remounted |
//! | RemountWritable | Open → Open, Ending → Ending | Remounted → Writable |
//! | StayReadOnly | same | Remounted → ReadOnly, ReadOnly → ReadOnly |
//! | BeginEnd | Open → Ending, Shut → Ending, Frozen → Closing, Ending → Ending, Closing → Ending | same |
//! | Close | Ending → Closing | same |
//! | End | Closing → Ended | Writable → ReadOnly, not CutOff |
//! | CutOff | Open → Ended, CleanUp → Ended, Shut → Ended, Frozen → Ended | Writable → CutOff, same |
//!
//! What it does not do: act on a transition. `ops/volume.rs`, `unmount.rs` and `recover.rs` make the transitions and
//! call the journal, the evictions and the threads in the right order.
//!
//! # Locking
//! A query is one atomic load. Freeze, thaw, remount and the end of the mount each hold `s_umount` (4), and so hold it
//! at every transition of the phase. `freeze` (5) is taken only while changes wait at the gate; a waiting thread holds
//! no other lock. `mount state` (205), a leaf, guards the first error.

use extant_base::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, MutexGuard};

use crate::error::{Error, Result};

static UMOUNT_CLASS: LockClass = LockClass::new("s_umount", 4);
static GATE_CLASS: LockClass = LockClass::new("freeze", 5);
static FIRST_CLASS: LockClass = LockClass::new("mount state", 205);

/// The phases of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Open,
    /// The mount deletes inodes that a crash left half deleted.
    CleanUp,
    /// The gate is shut: a freeze, or a change of the label, waits for changes to end and writes everything to the
    /// device.
    Shut,
    /// The device is in the state of an unmounted file system.
    Frozen,
    /// An unmount writes everything.
    Ending,
    /// An unmount writes the superblock; nothing else is written.
    Closing,
    Ended,
}

/// The mount's access to its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Writable,
    ReadOnly,
    /// Temporarily read-only: the mount was writable, and can become writable again.
    Remounted,
    /// An error has made the mount read-only, through `errors=` or because it aborted the journal.
    Failed,
    /// Ended without the writes of an unmount.
    CutOff,
}

/// An action that a [`State`] allows or forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Enter,
    Evict,
    Report,
    Work,
    Change,
    Superblock,
    Acknowledge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transition {
    BeginCleanUp,
    GiveUp,
    Fail,
    Shut,
    Freeze,
    Resume,
    Reopen,
    RemountReadOnly,
    RemountWritable,
    StayReadOnly,
    BeginEnd,
    Close,
    End,
    CutOff,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub phase: Phase,
    pub access: Access,
}

impl State {
    const PHASES: [Phase; 7] =
        [Phase::Open, Phase::CleanUp, Phase::Shut, Phase::Frozen, Phase::Ending, Phase::Closing, Phase::Ended];
    const ACCESSES: [Access; 5] =
        [Access::Writable, Access::ReadOnly, Access::Remounted, Access::Failed, Access::CutOff];

    const fn code(self) -> u8 {
        (self.phase as u8) << 4 | self.access as u8
    }

    const fn of(code: u8) -> State {
        State { phase: State::PHASES[(code >> 4) as usize], access: State::ACCESSES[(code & 15) as usize] }
    }

    pub(crate) const fn allows(self, right: Right) -> bool {
        match right {
            Right::Enter => matches!(self.phase, Phase::Open | Phase::CleanUp | Phase::Ended),
            Right::Evict => !matches!(self.phase, Phase::Frozen | Phase::Closing),
            Right::Report => {
                matches!(self.phase, Phase::Open | Phase::CleanUp | Phase::Shut | Phase::Ending)
                    && self.allows(Right::Superblock)
            }
            Right::Work => matches!(self.phase, Phase::Open | Phase::CleanUp | Phase::Shut | Phase::Frozen),
            Right::Change => matches!(self.access, Access::Writable),
            Right::Superblock => matches!(self.access, Access::Writable | Access::Failed),
            Right::Acknowledge => !matches!(self.access, Access::Failed | Access::CutOff),
        }
    }

    const fn after(self, transition: Transition) -> Option<State> {
        use {Access as A, Phase as P, Transition as T};
        let phase = match (transition, self.phase) {
            (T::Fail | T::StayReadOnly, same) => same,
            (T::BeginCleanUp, P::Open) | (T::GiveUp, P::CleanUp) => P::CleanUp,
            (T::Reopen, P::Shut | P::CleanUp) | (T::RemountWritable, P::Open) => P::Open,
            (T::Shut, P::Open | P::Shut) | (T::Resume, P::Shut | P::Frozen) | (T::RemountReadOnly, P::Frozen) => {
                P::Shut
            }
            (T::Freeze, P::Shut) => P::Frozen,
            (T::BeginEnd, P::Frozen) | (T::Close, P::Ending) => P::Closing,
            (T::BeginEnd, P::Open | P::Shut | P::Ending | P::Closing)
            | (T::Resume, P::Closing)
            | (T::RemountWritable, P::Ending) => P::Ending,
            (T::End, P::Closing) | (T::CutOff, P::Open | P::CleanUp | P::Shut | P::Frozen) => P::Ended,
            _ => return None,
        };
        let access = match (transition, self.access) {
            (T::Fail, A::Writable) => A::Failed,
            (T::GiveUp, A::Writable | A::Failed) | (T::CutOff, A::Writable) => A::CutOff,
            (T::RemountReadOnly, A::Writable) => A::Remounted,
            (T::RemountWritable, A::Remounted) => A::Writable,
            (T::StayReadOnly, A::Remounted | A::ReadOnly) | (T::End, A::Writable) => A::ReadOnly,
            (T::Fail | T::GiveUp | T::RemountReadOnly | T::RemountWritable | T::StayReadOnly, _) => return None,
            (T::Reopen | T::End, A::CutOff) => return None,
            (_, same) => same,
        };
        Some(State { phase, access })
    }
}

pub(crate) struct Lifecycle {
    /// A [`State`]; only [`Lifecycle::go`] changes it.
    code: AtomicU8,
    /// How many changes are inside the gate.
    inside: AtomicUsize,
    gate: Mutex<()>,
    changed: Condvar,
    /// The error because of which the mount failed or was cut off.
    first: Mutex<Option<Error>>,
    /// The result of the end of the mount, once it has ended.
    how: Mutex<Result<()>>,
}

/// The presence of a change inside the gate.
#[must_use]
pub(crate) struct Passage<'a>(&'a Lifecycle);

impl Lifecycle {
    pub(crate) fn new(read_only: bool) -> Lifecycle {
        let access = if read_only { Access::ReadOnly } else { Access::Writable };
        Lifecycle {
            code: AtomicU8::new(State { phase: Phase::Open, access }.code()),
            inside: AtomicUsize::new(0),
            gate: Mutex::new(&GATE_CLASS, ()),
            changed: Condvar::new(),
            first: Mutex::new(&FIRST_CLASS, None),
            how: Mutex::new(&UMOUNT_CLASS, Ok(())),
        }
    }

    pub(crate) fn now(&self) -> State {
        State::of(self.code.load(Ordering::SeqCst))
    }

    pub(crate) fn allows(&self, right: Right) -> bool {
        self.now().allows(right)
    }

    /// Makes the transition; returns false if the table refuses it. If it shuts the gate, waits until no change is
    /// inside.
    pub(crate) fn go(&self, transition: Transition) -> bool {
        let next = |code| State::of(code).after(transition).map(State::code);
        let Ok(from) = self.code.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) else { return false };
        match (State::of(from).allows(Right::Enter), self.allows(Right::Enter)) {
            (true, false) => {
                let mut gate = self.gate.lock();
                while self.inside.load(Ordering::SeqCst) > 0 {
                    self.changed.wait(&mut gate);
                }
            }
            (false, true) => {
                let _gate = self.gate.lock();
                self.changed.notify_all();
            }
            _ => {}
        }
        true
    }

    /// The lock by which freeze, thaw, remount and the end of the mount exclude each other. It guards the result of the
    /// end.
    pub(crate) fn exclusive(&self) -> MutexGuard<'_, Result<()>> {
        self.how.lock()
    }

    /// Waits until the gate is open. A `nested` change does not wait, because the gate may be waiting for the operation
    /// that contains it.
    ///
    /// # Errors
    /// [`Error::ReadOnly`] if nothing may be changed.
    pub(crate) fn enter(&self, nested: bool) -> Result<Passage<'_>> {
        loop {
            if let Some(entered) = self.try_enter(nested) {
                return entered;
            }
            let mut gate = self.gate.lock();
            while !self.allows(Right::Enter) {
                self.changed.wait(&mut gate);
            }
        }
    }

    /// As [`Lifecycle::enter`], but does not wait: `None` if the gate is shut.
    pub(crate) fn try_enter(&self, nested: bool) -> Option<Result<Passage<'_>>> {
        // A change counts itself and then looks at the state. A thread that shuts the gate changes the state and then
        // looks at the count. So at least one of the two sees the other.
        self.inside.fetch_add(1, Ordering::SeqCst);
        let (passage, state) = (Passage(self), self.now());
        let passes = nested || state.allows(Right::Enter);
        passes.then(|| Some(passage).filter(|_| state.allows(Right::Change)).ok_or(Error::ReadOnly))
    }

    /// Checks that the data which the mount has written may be reported as durable.
    ///
    /// # Errors
    /// [`Error::Lost`] with the first error of a mount that failed or was cut off.
    pub(crate) fn acknowledge(&self) -> Result<()> {
        self.writes().map(drop)
    }

    /// Whether there may be unwritten changes that must become durable first. This looks at the state only once. With
    /// two looks, a mount that fails in between would appear read-only instead of failed, and its lost writes would be
    /// reported as durable.
    ///
    /// # Errors
    /// As [`Lifecycle::acknowledge`].
    pub(crate) fn writes(&self) -> Result<bool> {
        let state = self.now();
        match state.allows(Right::Acknowledge) {
            true => Ok(state.allows(Right::Change)),
            false => Err(Error::lost(None, self.first_error().unwrap_or(Error::ReadOnly))),
        }
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.now().access == Access::Failed
    }

    pub(crate) fn first_error(&self) -> Option<Error> {
        self.first.lock().clone()
    }

    /// Makes [`Transition::Fail`] or [`Transition::GiveUp`] because of `e`; returns false if it is refused.
    pub(crate) fn go_because(&self, transition: Transition, e: &Error) -> bool {
        let mut first = self.first.lock();
        let gone = self.go(transition);
        if gone {
            *first = Some(e.clone());
        }
        gone
    }

    /// Makes [`Transition::CutOff`]; returns false if the end of the mount has begun.
    pub(crate) fn cut_off(&self, e: &Error) -> bool {
        // The error is set before any thread can ask for it. A mount that has failed keeps its first error.
        self.first.lock().get_or_insert_with(|| e.clone());
        self.go(Transition::CutOff)
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        if self.0.inside.fetch_sub(1, Ordering::SeqCst) == 1 && !self.0.allows(Right::Enter) {
            let _gate = self.0.gate.lock();
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
