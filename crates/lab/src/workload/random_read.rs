//! `random-read`: blocks of a large file are read at random, with cold caches at first. With `writes_per_process`, some
//! are then rewritten unchanged. With `extent_blocks`, the file has extents of that length, separated by holes of the
//! same length.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;
use crate::vfs::Worker;

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

    fn counted(&self, phase: &str) -> &'static str {
        if phase == "write" { "writes" } else { "reads" }
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("processes", 2)
            .with("file_bytes", scaled(256 << 20, scale, 1 << 20))
            .with("block_bytes", 4096)
            .with("reads_per_process", scaled(65_536, scale, 16))
            .with("writes_per_process", 0)
            .with("extent_blocks", 0)
    }

    fn small_scale(&self) -> f64 {
        0.1
    }

    fn needs(&self, p: &Parameters) -> Needs {
        Needs {
            bytes: p.get("processes").saturating_mul(p.get("file_bytes")),
            files: p.get("processes"),
            ..Needs::default()
        }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (processes, bytes) = (context.get("processes"), context.get("file_bytes"));
        let (block, reads) = (context.get("block_bytes").max(1), context.get("reads_per_process"));
        let (writes, extent) = (context.get("writes_per_process"), context.get("extent_blocks") * block);
        context.prepare(processes, |w, process| {
            let file = w.create(&format!("random{process}"))?;
            if extent == 0 {
                w.write(&file, 0, bytes)?;
            } else {
                for at in (0..bytes).step_by(2 * extent as usize) {
                    w.write(&file, at, extent)?;
                }
            }
            w.fsync(&file)?;
            w.close(file)
        })?;
        context.cold()?;
        let somewhere = |w: &mut Worker| {
            let at = w.rng.below((bytes / block).max(1)) * block;
            // Moves into the extent before the hole.
            if extent > 0 && at / extent % 2 == 1 { at - extent } else { at }
        };
        context.phase("read", processes, |w, process| {
            let file = w.open(&format!("random{process}"))?;
            for _ in 0..reads {
                let at = somewhere(w);
                w.read(&file, at, block as usize)?;
                w.done(1);
            }
            w.close(file)
        })?;
        if writes > 0 {
            context.phase("write", processes, |w, process| {
                let file = w.open(&format!("random{process}"))?;
                for _ in 0..writes {
                    let at = somewhere(w);
                    w.write(&file, at, block)?;
                    w.done(1);
                }
                w.fsync(&file)?;
                w.close(file)
            })?;
        }
        Ok(())
    }
}
