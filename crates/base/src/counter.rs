//! Counters to which many threads add without sharing a cache line.
//!
//! Linux: `struct percpu_counter` without its batch. Reads sum all shards, so they are for reports and not for
//! decisions on a hot path.

use crate::sim;
use crate::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicU64);

/// A sum over per-thread shards. Adding writes one shard; [`Counter::get`] reads all of them.
#[derive(Default)]
pub struct Counter {
    shards: [Shard; SHARDS],
}

impl Counter {
    pub const fn new() -> Counter {
        Counter { shards: [const { Shard(AtomicU64::new(0)) }; SHARDS] }
    }

    pub fn add(&self, n: u64) {
        let shard = &self.shards[crate::task::shard_index() % SHARDS];
        sim::line_written("counter", shard);
        shard.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    /// The sum at some time during the call.
    pub fn get(&self) -> u64 {
        let add = |sum: u64, shard: &Shard| {
            sim::line_read("counter", shard);
            sum.wrapping_add(shard.0.load(Ordering::Relaxed))
        };
        self.shards.iter().fold(0, add)
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}
