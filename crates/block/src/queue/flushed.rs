//! Whether everything that was written is durable already: [`Flushed`].
//!
//! Writes are counted when they end, before anybody is told. A flush makes durable what had ended when it began. So
//! while as many writes have ended as had when the last good flush began, another would have nothing to do (Linux
//! leaves that to the drive).
//!
//! # Locking
//! None.

use extant_base::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Flushed {
    /// Writes that have ended.
    ended: AtomicU64,
    /// As many of them are durable.
    durable: AtomicU64,
}

/// Writes that had ended when a request began that flushes; for another, none.
pub(super) struct Mark(Option<u64>);

impl Default for Flushed {
    /// Somebody may have written before, and not flushed.
    fn default() -> Flushed {
        Flushed { ended: AtomicU64::new(1), durable: AtomicU64::new(0) }
    }
}

impl Flushed {
    /// Something begins that is not a read. `flushes`: it makes durable what has ended by now.
    pub(super) fn begin(&self, flushes: bool) -> Mark {
        Mark(flushes.then(|| self.ended.load(Ordering::SeqCst)))
    }

    /// It has ended. `durable`: what it wrote itself, if anything, is.
    pub(super) fn end(&self, mark: Mark, durable: bool, good: bool) {
        if !durable || !good {
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
        if let (Mark(Some(ended)), true) = (mark, good) {
            self.durable.fetch_max(ended, Ordering::SeqCst);
        }
    }

    /// A flush would have nothing to do.
    pub(super) fn is_so(&self) -> bool {
        let durable = self.durable.load(Ordering::SeqCst);
        durable == self.ended.load(Ordering::SeqCst)
    }
}
