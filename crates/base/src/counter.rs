//! Counters that many threads add to without sharing a cache line: [`Counter`], and [`group`] for several of one owner.
//!
//! Linux: `struct percpu_counter` without its batch (reads here sum all shards, so they are for reports and for paths
//! that have already failed, not for hot decisions).
//!
//! A shard is a cache line. A counter by itself has a few shards with a line each, and wastes the rest of the lines. A
//! group fills the lines with its counters, so it can afford a shard for each of many more threads, and a thread that
//! adds to several counters of a group touches one line.
//!
//! # Locking
//! None.

use std::sync::Arc;

use crate::sim;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Shards of a counter by itself.
const SHARDS: usize = 16;
/// Shards of a group. More threads than this share lines.
const GROUP_SHARDS: usize = 128;
/// Counters of a line: processors fetch lines in pairs, so a pair is what two threads must not share.
const LINE: usize = 16;

#[repr(align(128))]
#[derive(Default)]
struct Line([AtomicU64; LINE]);

/// A sum over per-thread shards. Adding touches one shard; [`Counter::get`] reads all.
pub struct Counter {
    shards: Arc<[Line]>,
    /// Its place in each line.
    slot: usize,
}

fn lines(shards: usize) -> Arc<[Line]> {
    (0..shards).map(|_| Line::default()).collect()
}

/// `N` counters that the same threads add to, such as the statistics of one owner.
pub fn group<const N: usize>() -> [Counter; N] {
    let mut shards = lines(GROUP_SHARDS);
    std::array::from_fn(|i| {
        if i > 0 && i % LINE == 0 {
            shards = lines(GROUP_SHARDS);
        }
        Counter { shards: shards.clone(), slot: i % LINE }
    })
}

impl Default for Counter {
    fn default() -> Counter {
        Counter::new()
    }
}

impl Counter {
    /// A counter by itself.
    pub fn new() -> Counter {
        Counter { shards: lines(SHARDS), slot: 0 }
    }

    pub fn add(&self, n: u64) {
        let shard = &self.shards[crate::task::shard_index() % self.shards.len()];
        sim::line_written("counter", shard);
        shard.0[self.slot].fetch_add(n, Ordering::Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    /// The sum at some time during the call.
    pub fn get(&self) -> u64 {
        let add = |sum: u64, shard: &Line| {
            sim::line_read("counter", shard);
            sum.wrapping_add(shard.0[self.slot].load(Ordering::Relaxed))
        };
        self.shards.iter().fold(0, add)
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_group_share_lines_and_count_apart() {
        let counters: [Counter; LINE + 2] = group();
        for (i, counter) in counters.iter().enumerate() {
            counter.add(i as u64 + 1);
        }
        let counts: Vec<u64> = counters.iter().map(Counter::get).collect();
        assert_eq!(counts, (1..=LINE as u64 + 2).collect::<Vec<_>>());
        let alike = |a: usize, b: usize| Arc::ptr_eq(&counters[a].shards, &counters[b].shards);
        assert!(alike(0, LINE - 1) && alike(LINE, LINE + 1) && !alike(0, LINE));
        assert_eq!(Counter::new().get(), 0);
    }
}
