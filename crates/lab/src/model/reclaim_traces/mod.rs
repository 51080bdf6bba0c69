//! `reclaim-traces`: the misses of a cache that has room for a part of its items, under the engine's reclaim policies
//! and under policies of the literature.
//!
//! There are `items` items and room for `room` % of them. `accesses` go by `trace`: `zipf` (popularity falls with a
//! power of `skew` hundredths), `scans` (a fifth of the accesses read a sixteenth of all items in a row), `loop`
//! (items that take `loop` % of the room, in the same order again and again), `copy` (a twentieth of the items at
//! random; every other access reads a new item), `shift` (`zipf`, but other items are popular in each quarter),
//! `files` (whole files of 256 items by popularity), `pairs` (three accesses of four by `zipf`, the fourth from a
//! stream whose items are used twice within `within` accesses). The first quarter of the accesses fills the cache and
//! is not counted. `trace` may also be a file with the pages that a real program read (`recorded.rs`): it has items and
//! accesses of its own, and all of them are counted.
//!
//! Main types: [`ReclaimTraces`], [`Contestant`], [`Cache`]. All frames are clean and of one size: this model does
//! not show what dirty data does to a policy.
//!
//! # Locking
//! None.

mod arc;
mod cache;
mod contestant;
mod engine;
mod lru;
mod queues;
mod recorded;
mod s3_fifo;
mod sieve;
mod tiny_lfu;
mod trace;

use extant_base::policy::Table;
use extant_base::rng::Rng;

use self::cache::Cache;
use self::contestant::{Contestant, cache};
use self::trace::{Accesses, trace};
use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const ITEMS_MAX: u64 = 4_000_000;
const ACCESSES_MAX: u64 = 100_000_000;
const ROOM_MIN: u64 = 16;

/// See the page.
pub struct ReclaimTraces;

impl Model for ReclaimTraces {
    fn name(&self) -> &'static str {
        "reclaim-traces"
    }

    fn summary(&self) -> &'static str {
        "misses of the page cache (trace: zipf, scans, loop, copy, shift, files, pairs, or a recorded FILE)"
    }

    fn headline(&self) -> &'static str {
        "misses"
    }

    fn policies(&self) -> Table {
        Contestant::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new()
            .with_text("trace", "zipf")
            .with("items", 4096)
            .with("room", 10)
            .with("accesses", 20_000)
            .with("skew", 100)
            .with("loop", 120)
            .with("within", 200)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let get = |name: &str| parameters.get(name);
        if get("items") > ITEMS_MAX || get("accesses") > ACCESSES_MAX || get("skew") > 1000 || get("loop") > 10_000 {
            let why = format!(
                "up to {ITEMS_MAX} items, {ACCESSES_MAX} accesses, a skew of 1000 hundredths, a loop of 10000 %"
            );
            return Err(Error::Usage(why));
        }
        let Accesses { room, .. } = trace(parameters, 0, &mut Rng::new(0))?;
        if get("room") > 100 || room < ROOM_MIN {
            let why = format!("room={}: {room} items; at least {ROOM_MIN}", get("room"));
            return Err(Error::Usage(why));
        }
        Ok(())
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let contestant = Contestant::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let Accesses { items: accesses, room, warm } = trace(parameters, parameters.get("accesses"), &mut bench.rng())?;
        let cache = cache(contestant, &accesses, room as usize);
        let mut work = Work { cache, warm, accesses, misses: 0 };
        bench.time("access", work.accesses.len() as u64, &mut work, |_, i| Ok(i), Work::access)?;
        bench.count("misses", work.misses);
        bench.count("accesses", work.accesses.len() as u64 - work.warm);
        if let Some(core) = work.cache.core() {
            if core.frames() > room {
                let why = format!("{policy}: {} frames in a cache for {room}", core.frames());
                return Err(Error::Failed(why));
            }
            bench.count("frames_looked_at", core.counts().scanned);
            bench.count("frames_freed", core.counts().freed);
        }
        Ok(())
    }
}

struct Work {
    cache: Box<dyn Cache>,
    accesses: Vec<u32>,
    /// Accesses that are not counted.
    warm: u64,
    misses: u64,
}

impl Work {
    fn access(&mut self, i: u64) -> Result<()> {
        let hit = self.cache.access(self.accesses[i as usize]);
        self.misses += u64::from(!hit && i >= self.warm);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
