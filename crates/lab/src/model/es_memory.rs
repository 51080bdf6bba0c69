//! `es-memory`: what entries of the extent-status cache cost: memory, and the time of each operation.
//!
//! `inodes` inodes get `entries` entries each, none of which merges with another: in ascending order, at random, or in
//! `runs` of 32 after a random jump (`order`; the last is fio's `randwrite:32`). `delayed` percent of the runs of 32
//! blocks are delayed, as they are until writeback comes to them. Then each is looked up, as many delayed ones are
//! searched for, and all that can go is given up, `scan` at a time. Memory is what the budget was told.
//!
//! # Locking
//! None.

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_es::{EsCache, EsInode, EsPolicyKind, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const ENTRIES_MAX: u64 = 20_000_000;
const RUN: u64 = 32;

/// See the page.
pub struct EsMemory;

impl Model for EsMemory {
    fn name(&self) -> &'static str {
        "es-memory"
    }

    fn summary(&self) -> &'static str {
        "what entries of the extent-status cache cost: memory, and the time of each operation (order: random, ascending, runs)"
    }

    fn headline(&self) -> &'static str {
        "memory_bytes"
    }

    fn policies(&self) -> Table {
        EsPolicyKind::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new()
            .with_text("order", "random")
            .with("inodes", 1)
            .with("entries", 20_000)
            .with("delayed", 0)
            .with("scan", 128)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let (inodes, entries) = (parameters.get("inodes"), parameters.get("entries"));
        if inodes == 0 || entries == 0 || inodes.saturating_mul(entries) > ENTRIES_MAX || parameters.get("scan") == 0 {
            let why = format!("at least one inode and entry, {ENTRIES_MAX} together at most, and something to scan");
            return Err(Error::Usage(why));
        }
        if parameters.get("delayed") > 99 {
            return Err(Error::Usage("delayed: at most 99 percent".into()));
        }
        places(parameters.text("order"), 1, &mut Rng::new(0)).map(drop)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let kind = EsPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let inodes = parameters.get("inodes");
        let mut rng = bench.rng();
        let entries = places(parameters.text("order"), parameters.get("entries"), &mut rng)?;
        let all = entries.len() as u64 * inodes;
        let cache = EsCache::new(kind, Clock::virtual_at(0), None);
        let inodes = (0..inodes as u32).map(|i| cache.attach(InodeNr(12 + i))).collect();
        let mut work = Work { cache, inodes, entries, delayed: parameters.get("delayed"), rng };
        bench.time(
            "insert",
            all,
            &mut work,
            |w, i| Ok(w.at(i)),
            |w, (inode, entry)| {
                w.inodes[inode].insert(LogicalBlock(2 * entry), 1, w.state(entry));
                Ok(())
            },
        )?;
        bench.count("memory_bytes", work.cache.bytes());
        bench.count("entry_bytes", work.cache.bytes() / work.cache.entries().max(1));
        bench.count("entries_kept", work.cache.entries());
        let somewhere = |w: &mut Work, _| {
            let i = w.rng.below(all);
            Ok(w.at(i))
        };
        bench.time("lookup", all, &mut work, somewhere, |w, (inode, entry)| {
            std::hint::black_box(w.inodes[inode].lookup(LogicalBlock(2 * entry)));
            Ok(())
        })?;
        bench.time("find-delayed", all, &mut work, somewhere, |w, (inode, entry)| {
            let last = LogicalBlock(2 * entry + RUN as u32);
            std::hint::black_box(w.inodes[inode].find_delayed(LogicalBlock(2 * entry), last));
            Ok(())
        })?;
        let scan = parameters.get("scan");
        // Twice over all, since marks of lookups come off first; what a policy keeps then, it does not give.
        let calls_max = 2 * work.cache.entries().div_ceil(scan);
        bench.time_while(
            "shrink",
            &mut work,
            |w, call| Ok((w.cache.evictable() > 0 && call < calls_max).then_some(())),
            |w, ()| {
                w.cache.shrink(scan);
                Ok(())
            },
        )?;
        bench.count("memory_left_bytes", work.cache.bytes());
        bench.count("entries_left", work.cache.entries());
        Ok(())
    }
}

/// The entries of an inode, in the order in which they come; entry `n` is block `2 * n`.
fn places(order: &str, entries: u64, rng: &mut Rng) -> Result<Vec<u32>> {
    let mut all: Vec<u32> = (0..entries as u32).collect();
    let mut shuffle = |all: &mut [u32]| {
        for i in (1..all.len()).rev() {
            all.swap(i, rng.below(i as u64 + 1) as usize);
        }
    };
    match order {
        "ascending" => {}
        "random" => shuffle(&mut all),
        "runs" => {
            let mut runs: Vec<u32> = (0..entries.div_ceil(RUN) as u32).collect();
            shuffle(&mut runs);
            let of = |run: &u32| (u64::from(*run) * RUN..(u64::from(*run) + 1) * RUN).take_while(|e| *e < entries);
            all = runs.iter().flat_map(of).map(|e| e as u32).collect();
        }
        other => return Err(Error::Usage(format!("order={other}: random, ascending or runs"))),
    }
    Ok(all)
}

/// A written block that merges with no other.
fn written(entry: u32) -> EsState {
    EsState::Written(BlockNr(10_000 + 3 * u64::from(entry)))
}

struct Work {
    cache: EsCache,
    inodes: Vec<EsInode>,
    entries: Vec<u32>,
    /// Percent.
    delayed: u64,
    rng: Rng,
}

impl Work {
    /// Delayed are whole runs, spread evenly over the file.
    fn state(&self, entry: u32) -> EsState {
        let share = |run: u64| run * self.delayed / 100;
        let run = u64::from(entry) / RUN;
        if share(run + 1) > share(run) { EsState::Delayed } else { written(entry) }
    }

    /// The inode and the entry that come `i`th.
    fn at(&self, i: u64) -> (usize, u32) {
        let inodes = self.inodes.len() as u64;
        ((i % inodes) as usize, self.entries[(i / inodes) as usize])
    }
}
