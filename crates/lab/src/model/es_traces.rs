//! `es-traces`: which entries of the extent-status cache stay. Lookups by a trace, room for a part of the entries: how
//! many miss, and how many would if the future were known.
//!
//! `files` files have `entries` entries each. `lookups` go by `trace`: `zipf-entry` and `zipf-file` (popularity of an
//! entry, or of a file whose entries are as likely as each other, falls with a power of `skew` hundredths), `loop` (all
//! in order, again and again), `scan` (all in order, each four times in a row), `mixed` (a fifth of `zipf-entry`'s time
//! goes to scans over a thousand entries), `shift` (`zipf-entry`, other entries being popular in each quarter). An
//! entry that misses comes in; beyond `room` % of the entries the shrinker is called, 128 at a time. `belady` counts
//! the misses of a cache that drops the entry needed latest (Belady 1966).
//!
//! # Locking
//! None.

use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_es::{EsCache, EsInode, EsPolicyKind, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};

use super::belady::Belady;
use super::zipf::{Zipf, shuffled};
use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const ENTRIES_MAX: u64 = 4_000_000;
const LOOKUPS_MAX: u64 = 100_000_000;
const BATCH: u64 = 128;
const SCAN: u64 = 1000;
const TRACES: &str = "zipf-entry, zipf-file, loop, scan, mixed or shift";

/// See the page.
pub struct EsTraces;

impl Model for EsTraces {
    fn name(&self) -> &'static str {
        "es-traces"
    }

    fn summary(&self) -> &'static str {
        "which entries of the extent-status cache stay (trace: zipf-entry, zipf-file, loop, scan, mixed, shift)"
    }

    fn headline(&self) -> &'static str {
        "lookups_missed"
    }

    fn policies(&self) -> Table {
        EsPolicyKind::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new()
            .with_text("trace", "zipf-entry")
            .with("files", 10)
            .with("entries", 1000)
            .with("room", 10)
            .with("lookups", 50_000)
            .with("skew", 100)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let get = |name: &str| parameters.get(name);
        let all = get("files").saturating_mul(get("entries"));
        if all == 0 || all > ENTRIES_MAX || get("lookups") > LOOKUPS_MAX || get("skew") > 1000 {
            let why = format!("up to {ENTRIES_MAX} entries, {LOOKUPS_MAX} lookups, a skew of 1000 hundredths");
            return Err(Error::Usage(why));
        }
        let room = all * get("room") / 100;
        if get("room") > 100 || room <= 2 * BATCH {
            return Err(Error::Usage(format!("room={}: {room} entries; more than {}", get("room"), 2 * BATCH)));
        }
        trace(parameters, 0, &mut Rng::new(0)).map(drop)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let kind = EsPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let get = |name: &str| parameters.get(name);
        let (files, entries) = (get("files"), get("entries"));
        let room = files * entries * get("room") / 100;
        let accesses = trace(parameters, get("lookups"), &mut bench.rng())?;
        let clock = Clock::virtual_at(0);
        let cache = EsCache::new(kind, clock.clone(), None);
        let inodes: Vec<EsInode> = (0..files as u32).map(|i| cache.attach(InodeNr(12 + i))).collect();
        let per_file = entries as u32;
        let mut work = Work { cache, inodes, per_file, accesses, room, clock, misses: 0 };
        bench.time("lookup", work.accesses.len() as u64, &mut work, |_, i| Ok(i), Work::lookup)?;
        bench.count("lookups_missed", work.misses);
        bench.count("belady_missed", Belady::misses(&work.accesses, room as usize));
        bench.count("lookups_done", work.accesses.len() as u64);
        Ok(())
    }
}

struct Work {
    cache: EsCache,
    inodes: Vec<EsInode>,
    per_file: u32,
    accesses: Vec<u32>,
    room: u64,
    clock: Clock,
    misses: u64,
}

impl Work {
    fn lookup(&mut self, i: u64) -> Result<()> {
        let access = self.accesses[i as usize];
        let (inode, entry) = (&self.inodes[(access / self.per_file) as usize], access % self.per_file);
        if inode.lookup(LogicalBlock(2 * entry)).is_some() {
            return Ok(());
        }
        self.misses += 1;
        inode.cache(LogicalBlock(2 * entry), 1, EsState::Written(BlockNr(10_000 + 3 * u64::from(entry))));
        self.clock.advance(Duration::from_micros(100));
        // Some policies only take marks off in a call.
        for _ in 0..64 {
            if self.cache.entries() <= self.room {
                break;
            }
            self.cache.shrink(BATCH);
        }
        Ok(())
    }
}

/// The entries that are looked up, by their numbers through all files.
fn trace(parameters: &Parameters, lookups: u64, rng: &mut Rng) -> Result<Vec<u32>> {
    let get = |name: &str| parameters.get(name);
    let (files, entries, skew) = (get("files"), get("entries"), get("skew") as f64 / 100.0);
    let all = files * entries;
    let popular = shuffled(all, rng);
    let mut one = |zipf: &Zipf| popular[zipf.draw(rng) as usize];
    Ok(match parameters.text("trace") {
        "zipf-entry" => {
            let zipf = Zipf::new(all, skew);
            (0..lookups).map(|_| one(&zipf)).collect()
        }
        "zipf-file" => {
            let zipf = Zipf::new(files, skew);
            (0..lookups).map(|_| (zipf.draw(rng) * entries + rng.below(entries)) as u32).collect()
        }
        "loop" => (0..lookups).map(|i| (i % all) as u32).collect(),
        "scan" => (0..lookups).map(|i| (i / 4 % all) as u32).collect(),
        "mixed" => {
            let zipf = Zipf::new(all, skew);
            let scan = SCAN.min(all);
            let mut accesses = Vec::new();
            let mut from = 0;
            while (accesses.len() as u64) < lookups {
                accesses.extend((0..4 * scan).map(|_| one(&zipf)));
                accesses.extend((0..scan).map(|i| ((from + i) % all) as u32));
                from += scan;
            }
            accesses.truncate(lookups as usize);
            accesses
        }
        "shift" => {
            let zipf = Zipf::new(all, skew);
            let mut accesses = Vec::new();
            for i in 0..lookups {
                let moved = i * 4 / lookups * (all / 4);
                accesses.push(((u64::from(one(&zipf)) + moved) % all) as u32);
            }
            accesses
        }
        other => return Err(Error::Usage(format!("trace={other}: {TRACES}"))),
    })
}
