//! `es-shrink`: the extent-status cache is short of memory, and some of its entries are delayed and must stay: how many
//! entries are scanned until as many as are wanted have gone, and how many lookups miss because of what went.
//!
//! `inodes` inodes have `entries` entries each, `delayed` % of them delayed: the first ones of each inode (`placement`
//! `front`, what makes a scan from the front long) or evenly between the others (`spread`). `times` times `reclaim`
//! entries must go: the shrinker is called, for `scan` entries each time, until they have. The policy decides what
//! `scan` counts. Before each time, `lookups` entries that are not delayed are looked up, more in low-numbered inodes;
//! what is missed comes back, as if it had been read from the map. `shrink` is the time until all have gone, `call`
//! that of one call of the shrinker. The clock is the model's own, a millisecond each time. With `cold` as many words
//! of memory are read afterwards as entries went at a time, for a measure.
//!
//! # Locking
//! None.

use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_es::{EsCache, EsInode, EsPolicyKind, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};
use hdrhistogram::Histogram;

use super::{Bench, Model, empty_histogram};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const COLD_WORDS: usize = 32 << 20;

/// Entries of all inodes together: some gigabytes.
const ENTRIES_MAX: u64 = 20_000_000;

/// How often all entries are scanned in vain before a time is given up.
const PASSES_MAX: u64 = 4;

/// See the page.
pub struct EsShrink;

impl Model for EsShrink {
    fn name(&self) -> &'static str {
        "es-shrink"
    }

    fn summary(&self) -> &'static str {
        "the extent-status cache gives entries back, of which a part is delayed (placement: front, spread)"
    }

    fn headline(&self) -> &'static str {
        "entries_scanned"
    }

    fn policies(&self) -> Table {
        EsPolicyKind::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new()
            .with_text("placement", "front")
            .with("inodes", 100)
            .with("entries", 1000)
            .with("delayed", 80)
            .with("reclaim", 128)
            .with("scan", 128)
            .with("lookups", 256)
            .with("times", 1000)
            .with("cold", 0)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        Layout::new(parameters).map(drop)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let kind = EsPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let layout = Layout::new(parameters)?;
        let clock = Clock::virtual_at(0);
        let cache = EsCache::new(kind, clock.clone(), None);
        let inodes: Vec<EsInode> = (0..layout.inodes).map(|i| cache.attach(InodeNr(12 + i))).collect();
        for inode in &inodes {
            for entry in 0..layout.entries {
                let state = if layout.is_delayed(entry) { EsState::Delayed } else { written(entry) };
                inode.insert(LogicalBlock(2 * entry), 1, state);
            }
            clock.advance(Duration::from_millis(1));
        }
        let evictable = (0..layout.entries).filter(|entry| !layout.is_delayed(*entry)).collect();
        let mut work = Work {
            cache,
            inodes,
            layout,
            clock,
            rng: bench.rng(),
            evictable,
            lookups: parameters.get("lookups"),
            reclaim: parameters.get("reclaim"),
            scan: parameters.get("scan"),
            misses: 0,
            calls: empty_histogram()?,
            calls_ns: 0,
            short: 0,
            scanned_max: 0,
        };
        bench.count("entry_bytes", work.cache.bytes() / work.cache.entries().max(1));
        bench.time("shrink", parameters.get("times"), &mut work, Work::live, Work::shrink)?;
        let calls = std::mem::replace(&mut work.calls, empty_histogram()?);
        bench.took("call", calls.len(), work.calls_ns, calls);
        // As many words of a quarter of a gigabyte, none of them in the processor's caches, as entries go at a time.
        let words = vec![1u64; if parameters.get("cold") > 0 { COLD_WORDS } else { 0 }];
        let mut cold = (words, bench.rng(), parameters.get("reclaim"));
        let times = if cold.0.is_empty() { 0 } else { parameters.get("times") };
        bench.time(
            "cold-reads",
            times,
            &mut cold,
            |_, _| Ok(()),
            |(words, rng, reads), ()| {
                let sum: u64 = (0..*reads).map(|_| words[rng.below(words.len() as u64) as usize]).sum();
                std::hint::black_box(sum);
                Ok(())
            },
        )?;
        let statistics = work.cache.stats();
        bench.count("entries_scanned", statistics.scanned);
        bench.count("entries_scanned_max", work.scanned_max);
        bench.count("entries_reclaimed", statistics.freed);
        bench.count("entries_not_to_be_had", work.short);
        bench.count("shrinker_calls", statistics.shrinks);
        bench.count("lookups_missed", work.misses);
        // A delayed entry is the only record of a promise.
        let delayed: u64 = work.inodes.iter().map(|i| i.counts().delayed_blocks).sum();
        let promised = u64::from(work.layout.inodes) * u64::from(work.layout.delayed);
        if delayed != promised {
            return Err(Error::Failed(format!("{delayed} delayed entries are left of {promised}")));
        }
        Ok(())
    }
}

/// A written block that merges with no other.
fn written(entry: u32) -> EsState {
    EsState::Written(BlockNr(10_000 + 3 * u64::from(entry)))
}

struct Layout {
    inodes: u32,
    entries: u32,
    /// Of each inode's entries.
    delayed: u32,
    spread: bool,
}

impl Layout {
    fn new(parameters: &Parameters) -> Result<Layout> {
        let get = |name: &str| parameters.get(name);
        let (inodes, entries, delayed) = (get("inodes"), get("entries"), get("delayed"));
        if inodes == 0 || entries == 0 || inodes.saturating_mul(entries) > ENTRIES_MAX || delayed > 99 {
            let why = format!("at least one inode and entry, {ENTRIES_MAX} together at most, and up to 99 % delayed");
            return Err(Error::Usage(why));
        }
        if get("scan") == 0 {
            return Err(Error::Usage("scan=0: nothing would ever go".into()));
        }
        let spread = match parameters.text("placement") {
            "front" => false,
            "spread" => true,
            other => return Err(Error::Usage(format!("placement={other}: front or spread"))),
        };
        let delayed = (entries * delayed / 100) as u32;
        Ok(Layout { inodes: inodes as u32, entries: entries as u32, delayed, spread })
    }

    fn is_delayed(&self, entry: u32) -> bool {
        let share = |n: u32| u64::from(n) * u64::from(self.delayed) / u64::from(self.entries);
        if self.spread { share(entry + 1) > share(entry) } else { entry < self.delayed }
    }
}

struct Work {
    cache: EsCache,
    inodes: Vec<EsInode>,
    layout: Layout,
    clock: Clock,
    rng: Rng,
    /// Entries of an inode that are not delayed.
    evictable: Vec<u32>,
    lookups: u64,
    reclaim: u64,
    scan: u64,
    misses: u64,
    /// Nanoseconds of each call of the shrinker.
    calls: Histogram<u64>,
    calls_ns: u64,
    short: u64,
    scanned_max: u64,
}

impl Work {
    /// The lookups between two times.
    fn live(&mut self, _: u64) -> Result<()> {
        self.clock.advance(Duration::from_millis(1));
        let inodes = u64::from(self.layout.inodes);
        for _ in 0..self.lookups {
            // The lesser of two: half of the lookups are in the first three tenths of the inodes.
            let inode = &self.inodes[self.rng.below(inodes).min(self.rng.below(inodes)) as usize];
            let entry = self.evictable[self.rng.below(self.evictable.len() as u64) as usize];
            if inode.lookup(LogicalBlock(2 * entry)).is_none() {
                self.misses += 1;
                inode.cache(LogicalBlock(2 * entry), 1, written(entry));
            }
        }
        Ok(())
    }

    fn shrink(&mut self, (): ()) -> Result<()> {
        let clock = Clock::real();
        let before = self.cache.stats().scanned;
        // After several passes over all entries, more will not go.
        let enough = before + PASSES_MAX * self.cache.entries();
        let mut freed = 0;
        while freed < self.reclaim && self.cache.evictable() > 0 && self.cache.stats().scanned < enough {
            let start = clock.now_ns();
            freed += self.cache.shrink(self.scan);
            let took = clock.now_ns() - start;
            self.calls.saturating_record(took);
            self.calls_ns += took;
        }
        self.short += self.reclaim.saturating_sub(freed);
        self.scanned_max = self.scanned_max.max(self.cache.stats().scanned - before);
        Ok(())
    }
}
