//! [`Space`]: the number of free blocks. Linux: `s_freeclusters_counter` and `s_dirtyclusters_counter`.
//!
//! One pool counts the blocks that are free on disk and not promised. While many blocks are free, a thread takes blocks
//! from its own shard, which it refills in batches: the more are free, the larger the batch, so threads that allocate
//! large extents rarely meet at the pool. When few are free, every decision is made under one lock on the exact sum. So
//! no block is promised twice, and no request is refused while a block is free.
//!
//! # Locking
//! [`crate::lock::SPACE`], only while few blocks are free.

use extant_base::counter::{self, Counter};
use extant_base::sim;
use extant_base::sync::Mutex;
use extant_base::sync::atomic::{AtomicI64, Ordering};
use extant_base::task::shard_index;

use crate::lock;

const SHARDS: usize = 128;
/// The fewest blocks that a shard takes from the pool at once.
const BATCH_MIN: i64 = 64;
/// The most: what a thread needs for several of the largest requests.
const BATCH_MAX: i64 = 4096;
/// The pool counts as large if it exceeds its floor by this much.
const LOW: i64 = 4096;

/// Blocks that a shard takes at once while the pool has `spare` more than it must keep: all shards together leave most
/// of them.
fn batch(spare: i64) -> i64 {
    (spare / (8 * SHARDS as i64)).clamp(BATCH_MIN, BATCH_MAX)
}

#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicI64);

/// Which blocks a request may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    Normal,
    Root,
    All,
}

fn cap(blocks: u64) -> i64 {
    i64::try_from(blocks).unwrap_or(i64::MAX / 4).min(i64::MAX / 4)
}

pub struct Space {
    pool: AtomicI64,
    shards: [Shard; SHARDS],
    exact: Mutex<()>,
    root_reserve: AtomicI64,
    pool_reserve: AtomicI64,
    initial: u64,
    disk_gained: Counter,
    disk_lost: Counter,
    promised: Counter,
    promises_ended: Counter,
}

impl Space {
    pub fn new(free: u64, root_reserve: u64, pool_reserve: u64) -> Space {
        let [disk_gained, disk_lost, promised, promises_ended] = counter::group();
        Space {
            pool: AtomicI64::new(cap(free)),
            shards: std::array::from_fn(|_| Shard::default()),
            exact: Mutex::new(&lock::SPACE, ()),
            root_reserve: AtomicI64::new(cap(root_reserve)),
            pool_reserve: AtomicI64::new(cap(pool_reserve)),
            initial: free,
            disk_gained,
            disk_lost,
            promised,
            promises_ended,
        }
    }

    /// Changes the reserves, because the file system has grown.
    pub fn set_reserves(&self, root: u64, pool: u64) {
        self.root_reserve.store(cap(root), Ordering::Relaxed);
        self.pool_reserve.store(cap(pool), Ordering::Relaxed);
    }

    fn reserves(&self) -> i64 {
        self.root_reserve.load(Ordering::Relaxed) + self.pool_reserve.load(Ordering::Relaxed)
    }

    fn floor(&self, who: Privilege) -> i64 {
        match who {
            Privilege::Normal => self.reserves(),
            Privilege::Root => self.pool_reserve.load(Ordering::Relaxed),
            Privilege::All => 0,
        }
    }

    /// If the pool exceeds this number, no request needs the exact sum.
    fn comfortable(&self) -> i64 {
        self.reserves() + LOW
    }

    /// Claims `wanted` blocks, or with `partial` as many as are free; returns their number (0: none).
    pub fn claim(&self, wanted: u64, partial: bool, who: Privilege) -> u64 {
        let Ok(n) = i64::try_from(wanted) else { return 0 };
        if self.claim_spare(wanted) {
            return wanted;
        }
        let _exact = self.exact.lock();
        self.gather();
        let floor = self.floor(who);
        let mut got = 0;
        let _ = self.pool.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            let spare = left - floor;
            got = if spare >= n {
                n
            } else if partial {
                spare.max(0)
            } else {
                0
            };
            (got > 0).then(|| left - got)
        });
        got as u64
    }

    /// Claims blocks only while so many are free that no promise is in danger.
    pub fn claim_spare(&self, wanted: u64) -> bool {
        let Ok(n) = i64::try_from(wanted) else { return false };
        let comfortable = self.comfortable();
        sim::line_read("free blocks", &self.pool);
        if self.pool.load(Ordering::Relaxed) < comfortable {
            return false;
        }
        let own = &self.shards[shard_index() % SHARDS].0;
        sim::line_written("free blocks of a shard", own);
        let take = |left: i64| (left >= n).then(|| left - n);
        if own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return true;
        }
        sim::line_written("free blocks", &self.pool);
        let mut more = 0;
        let refill = |left: i64| {
            let rest = left.checked_sub(n)?;
            more = batch(rest - comfortable);
            rest.checked_sub(more).filter(|&rest| rest >= comfortable)
        };
        let refilled = self.pool.fetch_update(Ordering::Relaxed, Ordering::Relaxed, refill).is_ok();
        if refilled {
            own.fetch_add(more, Ordering::Relaxed);
        }
        refilled
    }

    /// Moves the blocks of all shards into the pool.
    fn gather(&self) {
        for s in &self.shards {
            // Most shards are empty when few blocks are free, and a look is cheaper than an exchange.
            if s.0.load(Ordering::Relaxed) != 0 {
                self.pool.fetch_add(s.0.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    /// Returns claimed blocks to the pool.
    pub fn unclaim(&self, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let n = blocks as i64;
        sim::line_read("free blocks", &self.pool);
        let spare = self.pool.load(Ordering::Relaxed) - self.comfortable();
        let kept = batch(spare);
        if spare < 0 || n > kept {
            sim::line_written("free blocks", &self.pool);
            self.pool.fetch_add(n, Ordering::Relaxed);
            return;
        }
        let own = &self.shards[shard_index() % SHARDS].0;
        sim::line_written("free blocks of a shard", own);
        if own.fetch_add(n, Ordering::Relaxed) + n > 2 * kept {
            sim::line_written("free blocks", &self.pool);
            let all = own.swap(0, Ordering::Relaxed);
            self.pool.fetch_add(all, Ordering::Relaxed);
        }
    }

    /// Reports that blocks became free on disk.
    pub fn disk_gained(&self, blocks: u64) {
        self.disk_gained.add(blocks);
        self.unclaim(blocks);
    }

    /// Reports that claimed or promised blocks were marked used on disk.
    pub fn disk_used(&self, blocks: u64) {
        self.disk_lost.add(blocks);
    }

    /// Reports that free blocks are unusable (a bad group, system zones).
    pub fn disk_forgotten(&self, blocks: u64) {
        self.disk_lost.add(blocks);
        self.pool.fetch_sub(blocks as i64, Ordering::Relaxed);
    }

    pub fn promise(&self, blocks: u64, who: Privilege) -> bool {
        let ok = blocks == 0 || self.claim(blocks, false, who) == blocks;
        if ok {
            self.promised.add(blocks);
        }
        ok
    }

    /// Promises as many of `blocks` as are free; returns their number.
    pub fn promise_up_to(&self, blocks: u64, who: Privilege) -> u64 {
        let got = if blocks == 0 { 0 } else { self.claim(blocks, true, who) };
        self.promised.add(got);
        got
    }

    /// Promises blocks that were freed before, even if other requests have claimed them meanwhile: the pool then has a
    /// debt until more blocks become free.
    pub fn promise_freed(&self, blocks: u64) {
        self.pool.fetch_sub(cap(blocks), Ordering::Relaxed);
        self.promised.add(blocks);
    }

    /// Ends a promise that was fulfilled: its blocks are marked used.
    pub fn promise_kept(&self, blocks: u64) {
        self.promises_ended.add(blocks);
    }

    /// Ends a promise that is no longer needed.
    pub fn promise_returned(&self, blocks: u64) {
        self.promises_ended.add(blocks);
        self.unclaim(blocks);
    }

    pub fn free_on_disk(&self) -> u64 {
        (self.initial + self.disk_gained.get()).saturating_sub(self.disk_lost.get())
    }

    pub fn promised(&self) -> u64 {
        // The end counter is read first, so that it never exceeds the beginning.
        let ended = self.promises_ended.get();
        self.promised.get().saturating_sub(ended)
    }

    pub fn available(&self, who: Privilege) -> u64 {
        let shards: i64 = self.shards.iter().map(|s| s.0.load(Ordering::Relaxed)).sum();
        (self.pool.load(Ordering::Relaxed) + shards - self.floor(who)).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn claims_are_exact_to_the_last_block() {
        let s = Space::new(100_000, 1000, 50);
        let mut got = 0;
        loop {
            match s.claim(7, true, Privilege::Normal) {
                0 => break,
                n => got += n,
            }
        }
        assert_eq!(got, 100_000 - 1050);
        assert_eq!(s.claim(1, false, Privilege::Normal), 0);
        assert_eq!(s.claim(2000, true, Privilege::Root), 1000);
        assert_eq!(s.claim(1, false, Privilege::Root), 0);
        assert_eq!(s.claim(50, false, Privilege::All), 50);
        assert_eq!(s.available(Privilege::All), 0);
        s.unclaim(3);
        assert_eq!(s.claim(1, true, Privilege::Normal), 0, "the reserves come first");
        assert_eq!(s.claim(3, false, Privilege::All), 3);
    }

    #[test]
    fn a_promise_of_freed_blocks_may_leave_a_debt() {
        let s = Space::new(10, 0, 0);
        assert!(s.promise(10, Privilege::All));
        s.promise_freed(1);
        assert_eq!((s.promised(), s.available(Privilege::All), s.claim(1, true, Privilege::All)), (11, 0, 0));
        s.disk_gained(2);
        assert_eq!(s.claim(2, true, Privilege::All), 1, "the debt comes first");
        s.promise_returned(11);
        assert_eq!(s.available(Privilege::All), 11);
    }

    #[test]
    fn promises_can_be_partial() {
        let s = Space::new(100, 10, 5);
        assert_eq!(s.promise_up_to(60, Privilege::Normal), 60);
        assert_eq!(s.promise_up_to(60, Privilege::Normal), 25);
        assert_eq!(s.promise_up_to(1, Privilege::Normal), 0);
        assert_eq!(s.promise_up_to(60, Privilege::Root), 10);
        assert_eq!((s.promised(), s.available(Privilege::All)), (95, 5));
    }

    #[test]
    fn concurrent_claims_never_oversell_and_use_every_block() {
        let s = Arc::new(Space::new(50_000, 0, 0));
        let threads: Vec<_> = (0..4u64)
            .map(|t| {
                let s = s.clone();
                extant_base::task::spawn("claim", move || {
                    let mut have = 0u64;
                    for i in 0.. {
                        let n = s.claim(1 + (i + t) % 9, true, Privilege::Normal);
                        if n == 0 {
                            break;
                        }
                        have += n;
                        if i % 5 == 0 {
                            s.unclaim(1);
                            have -= 1;
                        }
                    }
                    have
                })
                .expect("thread")
            })
            .collect();
        let total: u64 = threads.into_iter().map(|t| t.join().expect("joined")).sum();
        // After a thread has finished, another may have returned blocks.
        assert_eq!(total + s.available(Privilege::All), 50_000);
        assert!(s.available(Privilege::All) < 4);
    }
}
