//! `reclaim`: the machine of the thread "Reduce system disruption due to kswapd followup V3" (Mel Gorman, May 2013):
//! memcached in memory, and `dd` beside it, which writes a file of 0, 1/10, 1/3 and 17/30 of all memory.
//!
//! Main type: [`Reclaim`]. The policies are those of the engine ([`extant_cache::reclaim`]), over frames without
//! content. Each size is a test of its own, on a fresh machine, named as in the thread (`0M`, `715M`, `2385M`, `4055M`)
//! at any scale. Counts have the names of the thread's rows.
//!
//! The machine has memory and swap space (`memory.rs`, `swap.rs`), a disk (`disk.rs`) and, with `backing=nfs`, a server
//! (`server.rs`), and the actors (`machine.rs`). It lacks transparent huge pages, compaction, a DMA zone, mapped files,
//! and a shortage of processors: each actor has its own.
//!
//! # Locking
//! None.

mod client;
mod disk;
mod flusher;
mod machine;
mod memory;
mod rows;
mod server;
mod settings;
mod swap;
mod writer;

use extant_base::policy::Table;
use extant_cache::reclaim::ReclaimPolicy;

use self::machine::Machine;
use self::rows::Rows;
use self::settings::Settings;
use super::{Bench, Model};
use crate::error::{Error, Result};
use crate::workload::Parameters;

/// See the page.
pub struct Reclaim;

impl Model for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    fn summary(&self) -> &'static str {
        "memcached in memory beside a large write: the machine of 2013 (backing: ext4, ext3, nfs)"
    }

    fn headline(&self) -> &'static str {
        "memcachetest_ops_lost"
    }

    fn policies(&self) -> Table {
        ReclaimPolicy::TABLE
    }

    fn parameters(&self) -> Parameters {
        Settings::parameters()
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        Settings::new(parameters).map(drop)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let policy = ReclaimPolicy::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let settings = Settings::new(parameters)?;
        let (rng, stop) = (bench.rng(), bench.stop);
        let mut tests: Vec<Rows> = Vec::new();
        bench.time(
            "test",
            settings.files.len() as u64,
            &mut tests,
            |_, i| Ok(settings.files[i as usize].1),
            |tests, pages| {
                let machine = Machine::new(settings.clone(), policy, pages, rng.clone());
                let stopped = || stop.load(extant_base::sync::atomic::Ordering::Relaxed);
                tests.push(machine.run(stopped).ok_or(Error::Interrupted)?);
                Ok(())
            },
        )?;
        let alone = tests.first().map_or(0, |test| test.ops);
        bench.count("memcachetest_ops_lost", tests.iter().map(|test| alone.saturating_sub(test.ops)).sum());
        for ((name, _), test) in settings.files.iter().zip(&tests) {
            for (row, n) in test.of_a_test() {
                bench.count(&format!("{row}_{name}"), n);
            }
        }
        for (row, n) in rows::of_all(&tests) {
            bench.count(row, n);
        }
        Ok(())
    }
}
