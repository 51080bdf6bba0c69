//! Lost writes, told to everybody who asks, once each: [`ErrorSequence`] (Linux: `errseq_t`, lib/errseq.c).
//!
//! Main types: [`ErrorSequence`] (one an inode, one a mount), [`Opener`] (what one open file has been told).
//!
//! Where openers cannot be told apart but processes can (a FUSE server that is spared OPEN),
//! [`ErrorSequence::check_for`] tells each of them once; one that opened the file later is told, too, which is no lie.
//!
//! Some of them cannot be told apart either: [`ErrorSequence::check_unknown`] tells all of these until something has
//! been written after one was told. Who is told twice asks for nothing that he has not lost; who is never told does.
//!
//! An error counts from the moment it is recorded. An opener from before is told at its next check; whoever opens after
//! it is told only if nobody was yet, so that an error is never lost between two openers.
//!
//! # Locking
//! A leaf lock around the last error (`lost write`, 200); looking costs one load while nothing was lost.

use extant_base::hash::HashSet;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};

static CLASS: LockClass = LockClass::new("lost write", 200);

/// Set in the counter while somebody has seen the newest error.
const SEEN: u64 = 1;

/// The errors of one file or one mount; `E` is the newest.
pub struct ErrorSequence<E> {
    /// Twice the number of errors that were seen between each other, and [`SEEN`].
    counter: AtomicU64,
    last: Mutex<Last<E>>,
}

struct Last<E> {
    error: Option<E>,
    /// Who has been told of it without being an opener.
    told: HashSet<u64>,
    unknown: Unknown,
}

/// What those know of the last error who cannot be told apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Unknown {
    #[default]
    Nothing,
    /// One has been told, and the others may not have been.
    Some,
    /// Since then something was written.
    Enough,
}

/// More than this are forgotten, and told again.
const TOLD_MAX: usize = 1024;

/// What one opener has been told.
#[derive(Debug, Default)]
pub struct Opener(AtomicU64);

impl<E: Clone> Default for ErrorSequence<E> {
    fn default() -> Self {
        ErrorSequence {
            counter: AtomicU64::new(SEEN),
            last: Mutex::new(&CLASS, Last { error: None, told: HashSet::default(), unknown: Unknown::Nothing }),
        }
    }
}

impl<E: Clone> ErrorSequence<E> {
    /// Records an error. (Linux: `errseq_set`.)
    pub fn record(&self, error: E) {
        let mut last = self.last.lock();
        last.error = Some(error);
        last.told.clear();
        last.unknown = Unknown::Nothing;
        let now = self.counter.load(Ordering::Relaxed);
        // One that nobody has seen yet needs no number of its own.
        if now & SEEN != 0 {
            self.counter.store((now & !SEEN) + 2, Ordering::Release);
        }
    }

    /// Somebody opens the file. (Linux: `errseq_sample`.)
    pub fn opener(&self) -> Opener {
        let now = self.counter.load(Ordering::Acquire);
        // Unseen: this one shall see it.
        Opener(AtomicU64::new(if now & SEEN == 0 { 0 } else { now }))
    }

    /// The error that `opener` has not been told, if there is one; now it has. (Linux: `errseq_check_and_advance`.)
    pub fn check(&self, opener: &Opener) -> Option<E> {
        if self.counter.load(Ordering::Acquire) == opener.0.load(Ordering::Acquire) {
            return None;
        }
        let last = self.last.lock();
        let now = self.counter.load(Ordering::Acquire) | SEEN;
        self.counter.store(now, Ordering::Release);
        if opener.0.swap(now, Ordering::AcqRel) == now {
            return None;
        }
        last.error.clone()
    }

    /// The newest error, told or not; nobody counts as told by this.
    pub fn newest(&self) -> Option<E> {
        self.last.lock().error.clone()
    }

    /// Whether an error was ever recorded: some openers or processes may not have been told of it.
    pub fn has_recorded(&self) -> bool {
        self.counter.load(Ordering::Acquire) != SEEN
    }

    /// Whether there is an error of which nobody has been told.
    pub fn is_unseen(&self) -> bool {
        self.counter.load(Ordering::Acquire) & SEEN == 0
    }

    /// The newest error, if nobody has been told of it; now somebody has.
    pub fn unseen(&self) -> Option<E> {
        let last = self.last.lock();
        if self.counter.fetch_or(SEEN, Ordering::AcqRel) & SEEN != 0 {
            return None;
        }
        last.error.clone()
    }

    /// As [`ErrorSequence::check`], for an asker with a number of its own.
    pub fn check_for(&self, who: u64) -> Option<E> {
        self.tell(Some(who), true)
    }

    /// As [`ErrorSequence::check_for`], for an asker who may be anybody.
    pub fn check_unknown(&self) -> Option<E> {
        self.tell(None, true)
    }

    /// As [`ErrorSequence::check_for`], or with `None` as [`ErrorSequence::check_unknown`], for somebody who may pass
    /// it on to nobody: it remains one that nobody has seen.
    pub fn hint_to(&self, who: Option<u64>) -> Option<E> {
        self.tell(who, false)
    }

    fn tell(&self, who: Option<u64>, seen: bool) -> Option<E> {
        // As it was made: there has never been an error.
        if self.counter.load(Ordering::Acquire) == SEEN {
            return None;
        }
        let mut last = self.last.lock();
        if seen {
            self.counter.fetch_or(SEEN, Ordering::AcqRel);
        }
        let news = match who {
            Some(who) => {
                if last.told.len() >= TOLD_MAX {
                    last.told.clear();
                }
                last.told.insert(who)
            }
            None if last.unknown == Unknown::Enough => false,
            None => {
                last.unknown = Unknown::Some;
                true
            }
        };
        if news { last.error.clone() } else { None }
    }

    /// Something of it was written: for [`ErrorSequence::check_unknown`].
    pub fn written(&self) {
        // As it was made.
        if self.counter.load(Ordering::Acquire) == SEEN {
            return;
        }
        let mut last = self.last.lock();
        if last.unknown == Unknown::Some {
            last.unknown = Unknown::Enough;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opener_is_told_once() {
        let s = ErrorSequence::default();
        let (a, b) = (s.opener(), s.opener());
        assert_eq!((s.check(&a), s.newest(), s.has_recorded()), (None, None, false));
        s.record("first");
        assert_eq!(s.newest(), Some("first"), "which tells nobody");
        assert!(s.is_unseen());
        assert_eq!((s.check(&a), s.check(&a)), (Some("first"), None));
        assert!(!s.is_unseen() && s.has_recorded());
        assert_eq!((s.check(&b), s.check(&b)), (Some("first"), None));
        assert_eq!(s.check(&s.opener()), None, "opened after it was seen");
        s.record("second");
        let late = s.opener();
        assert_eq!((s.check(&late), s.check(&late)), (Some("second"), None), "opened before anybody saw it");
        assert_eq!(s.check(&s.opener()), None);
        s.record("third");
        assert_eq!((s.check(&a), s.check(&b), s.check(&late)), (Some("third"), Some("third"), Some("third")));
    }

    #[test]
    fn everybody_with_a_number_is_told_once() {
        let s = ErrorSequence::default();
        assert_eq!(s.check_for(1), None);
        s.record("first");
        assert_eq!((s.check_for(1), s.check_for(1), s.check_for(2)), (Some("first"), None, Some("first")));
        s.record("second");
        assert_eq!((s.check_for(1), s.check_for(1)), (Some("second"), None));
    }

    #[test]
    fn who_may_tell_nobody_takes_nothing_from_others() {
        let s = ErrorSequence::default();
        assert_eq!((s.hint_to(Some(1)), s.hint_to(None)), (None, None));
        s.record("first");
        assert_eq!((s.hint_to(Some(1)), s.hint_to(Some(1)), s.hint_to(None)), (Some("first"), None, Some("first")));
        assert!(s.is_unseen());
        assert_eq!((s.check(&s.opener()), s.is_unseen()), (Some("first"), false));
    }

    #[test]
    fn who_cannot_be_told_apart_is_told_until_something_is_written() {
        let s = ErrorSequence::default();
        s.written();
        assert_eq!(s.check_unknown(), None);
        s.record("first");
        // Nobody knows of it yet.
        s.written();
        assert_eq!(
            (s.check_unknown(), s.check_unknown(), s.check_for(1)),
            (Some("first"), Some("first"), Some("first"))
        );
        s.written();
        assert_eq!((s.check_unknown(), s.check_for(2)), (None, Some("first")));
        s.record("second");
        assert_eq!((s.check_unknown(), s.check_unknown(), s.unseen()), (Some("second"), Some("second"), None));
    }
}
