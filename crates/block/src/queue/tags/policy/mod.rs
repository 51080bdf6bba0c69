//! The policies that decide which request gets the next tag, and how requests wait for one.
//!
//! A policy determines the data structure: it owns the tags, the waiting requests, and the locks or atomics that
//! protect them. It is an enum that is chosen when the queue is created.
//!
//! | name | idea in one sentence | after | judged by |
//! |---|---|---|---|
//! | `percpu-ida` | a list of tags for each processor, batches, stealing under one lock; a release wakes all waiters | Linux 3.15, `lib/percpu_ida.c` | experiments/012 |
//! | `wake-all` | words of bits, eight wait queues, all waiters of one wake | Linux 3.16-rc, `block/blk-mq-tag.c` | experiments/012 |
//! | `wake-exclusive` | the same, a batch on one wakes | Jens Axboe's patch of 2014-06-17 | experiments/012 |
//! | `sbitmap` | words of bits with releases collected per word, eight wait queues, a batch wakes around all of them | Linux 6.12, `lib/sbitmap.c` | experiments/012 |
//! | `hand-off` | a bio waits, not its thread; the thread that releases a tag starts the oldest bio with it | none | experiments/012 |
//!
//! No `vanilla`: Linux used three different policies during the discussion of 2014, and has used a fourth one since.
//!
//! # Locking
//! Each policy has its own.

mod bitmap;
#[cfg(test)]
mod contract;
mod hand_off;
#[cfg(test)]
mod interleavings;
mod percpu_ida;
mod sbitmap;
mod wait_queue;
mod wake_all;
mod wake_exclusive;

use self::hand_off::HandOff;
use self::percpu_ida::PercpuIda;
use self::sbitmap::SbitmapQueue;
use self::wake_all::WakeAll;
use self::wake_exclusive::WakeExclusive;
use super::Start;
use super::ledger::Ledger;

/// A tag, and the bio to start with it.
pub(super) type TagHandOff = (u32, Start);

/// The operations of every policy.
///
/// Duties of the caller: `hint` is [`extant_base::task::shard_index`] of the thread that takes the tag, even when the
/// tag is released. Only tags that were returned are `put`, once each. The holder of a tag releases it without waiting
/// for another.
///
/// Duties of the implementer: any number of threads may call at the same time. No tag is returned twice. Tags are below
/// the depth. While no request waits, `try_get` finds a tag as long as one is free. Every wait ends when all tags have
/// been released.
pub(super) trait TagPolicy: Send + Sync {
    /// Returns a tag immediately, or `None`.
    fn try_get(&self, hint: usize) -> Option<u32>;

    /// Returns a tag for a request of the queue `user`; the thread sleeps until it has one.
    fn get(&self, hint: usize, user: u32) -> u32;

    /// Whether a bio can wait while its thread continues.
    fn bios_wait(&self) -> bool {
        false
    }

    /// Returns `start`, which represents a bio of `bytes`, with its tag, or queues it until a `put` returns it. If bios
    /// cannot wait or too many do, the thread sleeps, if it may.
    fn start(&self, hint: usize, user: u32, _bytes: u64, _may_sleep: bool, start: Start) -> Option<TagHandOff> {
        Some((self.get(hint, user), start))
    }

    /// Releases a tag, or passes it on: then the caller starts the returned bio with it.
    fn put(&self, tag: u32, hint: usize) -> Option<TagHandOff>;

    /// The requests that wait.
    fn ledger(&self) -> &Ledger;
}

extant_base::policies! {
    /// The policies by name.
    pub enum TagPolicyKind: "tag_policy", "which request gets the next tag, and how requests wait", default HandOff {
        PercpuIda = "percpu-ida", "a list of tags for each processor, stealing, all waiters wake (Linux 3.15)";
        WakeAll = "wake-all", "a bitmap and eight wait queues, all waiters of one wake (Linux 3.16-rc)";
        WakeExclusive = "wake-exclusive", "the same, but a batch on one wakes (Jens Axboe's patch of 2014)";
        Sbitmap = "sbitmap", "a bitmap whose releases are collected, a batch wakes around eight wait queues (Linux 6.12)";
        HandOff = "hand-off", "a bio waits, not its thread; the thread that releases a tag starts it";
    }
}

/// The number of tags that are released before a thread is woken (Linux: `bt_update_count`, `sbq_calc_wake_batch`): an
/// eighth of all tags, so that there is a batch for each wait queue.
fn wake_batch(depth: u32) -> u32 {
    (depth / 8).clamp(1, 8)
}

/// One of the policies.
pub(super) enum Tags {
    PercpuIda(PercpuIda),
    WakeAll(WakeAll),
    WakeExclusive(WakeExclusive),
    Sbitmap(SbitmapQueue),
    HandOff(HandOff),
}

impl Tags {
    pub fn new(kind: TagPolicyKind, depth: u32, wait_queues: u32) -> Tags {
        match kind {
            TagPolicyKind::PercpuIda => Tags::PercpuIda(PercpuIda::new(depth)),
            TagPolicyKind::WakeAll => Tags::WakeAll(WakeAll::new(depth, wait_queues)),
            TagPolicyKind::WakeExclusive => Tags::WakeExclusive(WakeExclusive::new(depth, wait_queues)),
            TagPolicyKind::Sbitmap => Tags::Sbitmap(SbitmapQueue::new(depth, wait_queues)),
            TagPolicyKind::HandOff => Tags::HandOff(HandOff::new(depth)),
        }
    }
}

impl std::ops::Deref for Tags {
    type Target = dyn TagPolicy;

    fn deref(&self) -> &(dyn TagPolicy + 'static) {
        match self {
            Tags::PercpuIda(t) => t,
            Tags::WakeAll(t) => t,
            Tags::WakeExclusive(t) => t,
            Tags::Sbitmap(t) => t,
            Tags::HandOff(t) => t,
        }
    }
}
