//! `random-read`: blocks of a large file read at random, cold at first.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;

pub(super) struct RandomRead;

impl Workload for RandomRead {
    fn name(&self) -> &'static str {
        "random-read"
    }

    fn summary(&self) -> &'static str {
        "2 processes read 4 KiB at random places of a file of 256 MiB each, cold at first"
    }

    fn source(&self) -> &'static str {
        "fio rw=randread bs=4k numjobs=2 size=256M, as scripts/bench.py runs it"
    }

    fn headline(&self) -> &'static str {
        "read"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("processes", 2)
            .with("file_bytes", scaled(256 << 20, scale, 1 << 20))
            .with("block_bytes", 4096)
            .with("reads_per_process", scaled(65_536, scale, 16))
    }

    fn small_scale(&self) -> f64 {
        0.1
    }

    fn needs(&self, p: &Parameters) -> Needs {
        Needs { bytes: p.get("processes").saturating_mul(p.get("file_bytes")), files: p.get("processes") }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (processes, bytes) = (context.get("processes"), context.get("file_bytes"));
        let (block, reads) = (context.get("block_bytes").max(1), context.get("reads_per_process"));
        context.prepare(processes, |w, process| {
            let file = w.create(&format!("random{process}"))?;
            w.write(&file, 0, bytes)?;
            w.fsync(&file)?;
            w.close(file)
        })?;
        context.cold()?;
        context.phase("read", processes, |w, process| {
            let file = w.open(&format!("random{process}"))?;
            for _ in 0..reads {
                let at = w.rng.below((bytes / block).max(1)) * block;
                w.read(&file, at, block as usize)?;
                w.done(1);
            }
            w.close(file)
        })
    }
}
