//! `es-shrink`: the extent-status cache gives entries back, some of which are delayed and must stay: entries scanned and
//! reclaimed, and how many lookups miss because of what went.
//!
//! `inodes` inodes have `entries` entries each, `delayed` % of them delayed: the first ones of each inode (`placement`
//! `front`, what makes a scan from the front long) or evenly between the others (`spread`). Between two calls that are to
//! scan `scan` entries, `lookups` lookups are done, more in low-numbered inodes; what they miss comes back, as if it had been
//! read from the map. Time is the model's own, a millisecond a call.
//!
//! # Locking
//! None.

use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_fs::EsPolicyKind;
use extant_fs::map::es::{EsCache, EsInode, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

/// Entries of all inodes together: some gigabytes.
const ENTRIES_MAX: u64 = 20_000_000;

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
        "entries_scanned_per_reclaimed"
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
            .with("scan", 128)
            .with("lookups", 256)
            .with("calls", 1000)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        Layout::new(parameters).map(drop)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench) -> Result<()> {
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
        let mut work = Work {
            cache,
            inodes,
            layout,
            clock,
            rng: bench.rng(),
            lookups: parameters.get("lookups"),
            scan: parameters.get("scan"),
            misses: 0,
            scanned_max: 0,
        };
        bench.time("shrink", parameters.get("calls"), &mut work, Work::live, Work::shrink)?;
        let statistics = work.cache.stats();
        bench.ratio("entries_scanned_per_reclaimed", statistics.scanned, statistics.freed);
        bench.count("entries_scanned", statistics.scanned);
        bench.count("entries_scanned_max", work.scanned_max);
        bench.count("entries_reclaimed", statistics.freed);
        bench.count("lookups_missed", work.misses);
        bench.count("entry_bytes", work.cache.entry_bytes());
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
        let (inodes, entries, delayed) =
            (parameters.get("inodes"), parameters.get("entries"), parameters.get("delayed"));
        if inodes == 0 || entries == 0 || inodes.saturating_mul(entries) > ENTRIES_MAX || delayed > 100 {
            let why = format!("at least one inode and entry, {ENTRIES_MAX} together at most, and up to 100 % delayed");
            return Err(Error::Usage(why));
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
    lookups: u64,
    scan: u64,
    misses: u64,
    scanned_max: u64,
}

impl Work {
    /// What happens between two calls.
    fn live(&mut self, _: u64) -> Result<u64> {
        self.clock.advance(Duration::from_millis(1));
        let inodes = u64::from(self.layout.inodes);
        for _ in 0..self.lookups {
            // The lesser of two: half of the lookups are in the first three tenths of the inodes.
            let inode = self.rng.below(inodes).min(self.rng.below(inodes));
            let entry = self.rng.below(u64::from(self.layout.entries)) as u32;
            let inode = &self.inodes[inode as usize];
            if inode.lookup(LogicalBlock(2 * entry)).is_none() {
                self.misses += 1;
                inode.cache(LogicalBlock(2 * entry), 1, written(entry));
            }
        }
        Ok(self.cache.stats().scanned)
    }

    fn shrink(&mut self, scanned_before: u64) -> Result<()> {
        self.cache.shrink(self.scan);
        self.scanned_max = self.scanned_max.max(self.cache.stats().scanned - scanned_before);
        Ok(())
    }
}
