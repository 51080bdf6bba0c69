//! [`FlushTracker`]: whether every write so far is already durable.
//!
//! Each write is counted when it ends, before its completion runs. A flush makes the writes durable that had ended when
//! it began. As long as no write has ended since the last successful flush began, another flush would have no effect
//! (Linux leaves that to the drive).
//!
//! # Locking
//! None.

use extant_base::sync::atomic::{AtomicU64, Ordering};

pub(super) struct FlushTracker {
    /// The number of writes that have ended.
    ended: AtomicU64,
    /// The number of these writes that are durable.
    durable: AtomicU64,
}

/// For a request that flushes, the number of writes that had ended when it began; otherwise none.
pub(super) struct Mark(Option<u64>);

impl Default for FlushTracker {
    /// Starts as not flushed, because earlier users of the device may have written.
    fn default() -> FlushTracker {
        FlushTracker { ended: AtomicU64::new(1), durable: AtomicU64::new(0) }
    }
}

impl FlushTracker {
    /// Records the beginning of a request other than a read. `flushes` means that it makes the writes durable that have
    /// already ended.
    pub(super) fn begin(&self, flushes: bool) -> Mark {
        Mark(flushes.then(|| self.ended.load(Ordering::SeqCst)))
    }

    /// Records the end of the request. `durable` means that its own write, if any, is durable.
    pub(super) fn end(&self, mark: Mark, durable: bool, good: bool) {
        if !durable || !good {
            self.ended.fetch_add(1, Ordering::SeqCst);
        }
        if let (Mark(Some(ended)), true) = (mark, good) {
            self.durable.fetch_max(ended, Ordering::SeqCst);
        }
    }

    /// Whether a flush would have no effect.
    pub(super) fn is_so(&self) -> bool {
        let durable = self.durable.load(Ordering::SeqCst);
        durable == self.ended.load(Ordering::SeqCst)
    }
}
