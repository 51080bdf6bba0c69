//! The contestants.
//!
//! Main types: [`Contestant`] (their names), [`cache`] (makes the [`Cache`] of one).

use extant_cache::reclaim::ReclaimPolicy;

use super::super::belady::Belady;
use super::arc::Arc;
use super::cache::Cache;
use super::engine::Engine;
use super::lru::Lru;
use super::s3_fifo::S3Fifo;
use super::sieve::Sieve;
use super::tiny_lfu::TinyLfu;

extant_base::policies! {
    /// The engine's policies, and yardsticks.
    pub enum Contestant: "reclaim_policy", "what leaves the cache when memory is short", default UsedOnce {
        Vanilla = "vanilla", "the engine's: active and inactive lists (Linux 3.9)";
        Proportional = "proportional", "the engine's: the same lists, scanned in proportion (mmotm, May 2013)";
        StallOnce = "stall-once", "the engine's: the same (Linux 3.11)";
        Workingset = "workingset", "the engine's: the same; what comes back soon joins the active list (Linux 3.15)";
        Generations = "generations", "the engine's: four generations, and tiers by the number of reads (Linux 6.1)";
        UsedOnce = "used-once", "the engine's: what was used once leaves first";
        Lru = "lru", "the least recently used item leaves (CACM 1968)";
        Sieve = "sieve", "one queue, and a hand that spares used items (NSDI 2024)";
        Arc = "arc", "items used once and items used often share the cache by what is missed (FAST 2003)";
        S3Fifo = "s3-fifo", "a small queue, a main one, and ghosts (SOSP 2023)";
        TinyLfu = "w-tinylfu", "of a new item and the one next to go, the one used less often leaves (TOS 2017)";
        Belady = "belady", "the item whose next use is farthest away leaves; it knows the future (1966)";
    }
}

/// The contestant's cache, with room for `room` of the items.
pub fn cache(contestant: Contestant, accesses: &[u32], room: usize) -> Box<dyn Cache> {
    let items = accesses.iter().max().map_or(0, |m| *m as usize + 1);
    let engine = |policy| Box::new(Engine::new(policy, items, room));
    match contestant {
        Contestant::Vanilla => engine(ReclaimPolicy::Vanilla),
        Contestant::Proportional => engine(ReclaimPolicy::Proportional),
        Contestant::StallOnce => engine(ReclaimPolicy::StallOnce),
        Contestant::Workingset => engine(ReclaimPolicy::Workingset),
        Contestant::Generations => engine(ReclaimPolicy::Generations),
        Contestant::UsedOnce => engine(ReclaimPolicy::UsedOnce),
        Contestant::Lru => Box::new(Lru::new(items, room)),
        Contestant::Sieve => Box::new(Sieve::new(items, room)),
        Contestant::Arc => Box::new(Arc::new(items, room)),
        Contestant::S3Fifo => Box::new(S3Fifo::new(items, room)),
        Contestant::TinyLfu => Box::new(TinyLfu::new(items, room)),
        Contestant::Belady => Box::new(Belady::new(accesses, room)),
    }
}
