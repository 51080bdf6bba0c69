//! Lost writes, told to everybody who asks, once each: [`ErrorSequence`] (Linux: `errseq_t`, lib/errseq.c).
//!
//! Main types: [`ErrorSequence`] (one an inode, one a mount), [`Opener`] (what one open file has been told).
//!
//! An error counts from the moment it is recorded. Whoever opened before is told by his next look; whoever opens after it is
//! told only if nobody was yet, so that an error is never lost between two openers.
//!
//! # Locking
//! A leaf lock around the last error (`lost write`, 200); looking costs one load while nothing was lost.

use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};

static CLASS: LockClass = LockClass::new("lost write", 200);

/// Set in the counter while somebody has seen the newest error.
const SEEN: u64 = 1;

/// The errors of one file or one mount; `E` is the newest.
pub struct ErrorSequence<E> {
    /// Twice the number of errors that were seen between each other, and [`SEEN`].
    counter: AtomicU64,
    last: Mutex<Option<E>>,
}

/// What one opener has been told.
#[derive(Debug, Default)]
pub struct Opener(AtomicU64);

impl<E: Clone> Default for ErrorSequence<E> {
    fn default() -> Self {
        ErrorSequence { counter: AtomicU64::new(SEEN), last: Mutex::new(&CLASS, None) }
    }
}

impl<E: Clone> ErrorSequence<E> {
    /// Records an error. (Linux: `errseq_set`.)
    pub fn record(&self, error: E) {
        let mut last = self.last.lock();
        *last = Some(error);
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

    /// The error that `opener` has not been told, if there is one; now he has. (Linux: `errseq_check_and_advance`.)
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
        last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opener_is_told_once() {
        let s = ErrorSequence::default();
        let (a, b) = (s.opener(), s.opener());
        assert_eq!(s.check(&a), None);
        s.record("first");
        assert_eq!((s.check(&a), s.check(&a)), (Some("first"), None));
        assert_eq!((s.check(&b), s.check(&b)), (Some("first"), None));
        assert_eq!(s.check(&s.opener()), None, "opened after it was seen");
        s.record("second");
        let late = s.opener();
        assert_eq!((s.check(&late), s.check(&late)), (Some("second"), None), "opened before anybody saw it");
        assert_eq!(s.check(&s.opener()), None);
        s.record("third");
        assert_eq!((s.check(&a), s.check(&b), s.check(&late)), (Some("third"), Some("third"), Some("third")));
    }
}
