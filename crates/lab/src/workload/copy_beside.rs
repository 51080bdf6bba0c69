//! `copy-beside`: a large file is copied. Between its pieces, a small file is read and names are looked up, repeatedly.
//!
//! Phases: `before` (only the hot work), `copy` (the hot work beside the copy), `after` (only the hot work again, a
//! second later). Each phase has the bytes that the device read meanwhile. Misses of the hot work are all bytes in
//! `after`, and in `copy` those beyond the copy's own bytes.
//!
//! # Locking
//! None.

use std::time::Duration;

use extant_base::clock::Clock;

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;
use crate::vfs::{Node, Worker};

/// The number of bytes that the copy reads and writes at once.
const PIECE: u64 = 1 << 20;
/// The number of bytes that the hot work reads at once, and how many reads there are per name lookup.
const BLOCK: u64 = 4096;
const STAT_ONE_IN: u64 = 4;
/// The pause between the copy and `after`.
const REST: Duration = Duration::from_secs(1);

pub(super) struct CopyBeside;

impl Workload for CopyBeside {
    fn name(&self) -> &'static str {
        "copy-beside"
    }

    fn summary(&self) -> &'static str {
        "1 GiB is copied while 4 KiB at random places of a file of 32 MiB are read and 2,000 names looked at"
    }

    fn source(&self) -> &'static str {
        "what users saw of kswapd in 2013: a copy that slows all programs down (Reduce system disruption due to kswapd)"
    }

    fn headline(&self) -> &'static str {
        "copy"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("copy_bytes", scaled(1 << 30, scale, PIECE))
            .with("hot_bytes", scaled(32 << 20, scale.sqrt(), PIECE))
            .with("names", scaled(2_000, scale.sqrt(), 10))
            .with("operations", scaled(100_000, scale, 1_000))
            .with("operations_beside_each_mib", 100)
    }

    fn small_scale(&self) -> f64 {
        0.05
    }

    fn needs(&self, p: &Parameters) -> Needs {
        Needs {
            bytes: p.get("copy_bytes").saturating_mul(2).saturating_add(p.get("hot_bytes")),
            files: p.get("names").saturating_add(3),
            ..Needs::default()
        }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (copied, hot) = (context.get("copy_bytes"), context.get("hot_bytes").max(BLOCK));
        let (names, operations) = (context.get("names").max(1), context.get("operations"));
        let beside = context.get("operations_beside_each_mib");
        context.prepare(1, |w, _| {
            for (name, bytes) in [("hot", hot), ("from", copied)] {
                let file = w.create(name)?;
                w.write(&file, 0, bytes)?;
                w.fsync(&file)?;
                w.close(file)?;
            }
            w.mkdir("names")?;
            for n in 0..names {
                let file = w.create(&name_of(n))?;
                w.close(file)?;
            }
            Ok(())
        })?;
        context.cold()?;
        let once = |w: &mut Worker, file: &Node| {
            if w.rng.one_in(STAT_ONE_IN) {
                let name = name_of(w.rng.below(names));
                w.stat(&name)?;
            } else {
                let at = w.rng.below(hot / BLOCK) * BLOCK;
                w.read(file, at, BLOCK as usize)?;
            }
            Ok(())
        };
        let alone = |w: &mut Worker, _| {
            let file = w.open("hot")?;
            for _ in 0..operations {
                once(w, &file)?;
                w.done(1);
            }
            w.close(file)
        };
        // All hot data is used three times before anything is counted.
        context.prepare(1, |w, _| {
            let file = w.open("hot")?;
            for _ in 0..3 {
                for at in (0..hot).step_by(PIECE as usize) {
                    w.read(&file, at, PIECE.min(hot - at) as usize)?;
                }
                for n in 0..names {
                    w.stat(&name_of(n))?;
                }
            }
            w.close(file)
        })?;
        context.phase("before", 1, alone)?;
        context.phase("copy", 1, |w, _| {
            let (hot, from, to) = (w.open("hot")?, w.open("from")?, w.create("to")?);
            for at in (0..copied).step_by(PIECE as usize) {
                let n = PIECE.min(copied - at);
                w.read(&from, at, n as usize)?;
                w.write(&to, at, n)?;
                w.done(1);
                for _ in 0..beside {
                    once(w, &hot)?;
                }
            }
            w.fsync(&to)?;
            [hot, from, to].into_iter().try_for_each(|file| w.close(file))
        })?;
        Clock::real().sleep(REST);
        context.phase("after", 1, alone)
    }
}

fn name_of(n: u64) -> String {
    format!("names/name{n:05}")
}
