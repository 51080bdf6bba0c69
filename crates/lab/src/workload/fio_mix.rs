//! `fio-mix`: many jobs writing runs of blocks at random places of large sparse files.
//!
//! As fio's `rw=randwrite:32 rw_sequencer=sequential`: 32 consecutive blocks, then a jump. A job's files take turns,
//! one run each. A job ends after its bytes or its time, whichever comes first. `fdatasync` corresponds to fio's
//! `fdatasync=N` (after N writes), and `laid_out` to its laying out of files, which are then overwritten.
//!
//! # Locking
//! None.

use extant_base::clock::Clock;

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;

pub(super) struct FioMix;

impl Workload for FioMix {
    fn name(&self) -> &'static str {
        "fio-mix"
    }

    fn summary(&self) -> &'static str {
        "25 jobs with 10 files each: runs of 32 sequential 4 KiB writes at random places"
    }

    fn source(&self) -> &'static str {
        "Zheng Liu, 2013: fio rw=randwrite:32 numjobs=25 nrfiles=10 filesize=10g size=20g runtime=300 (extents status tree shrinker)"
    }

    fn headline(&self) -> &'static str {
        "write"
    }

    fn counted(&self, _: &str) -> &'static str {
        "blocks"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("jobs", 25)
            .with("files_per_job", 10)
            .with("file_bytes", scaled(10 << 30, scale, 1 << 20))
            .with("job_bytes", scaled(20 << 30, scale, 1 << 20))
            .with("run_blocks", 32)
            .with("block_bytes", 4096)
            .with("runtime_s", 300)
            .with("fdatasync", 0)
            .with("laid_out", 0)
    }

    fn small_scale(&self) -> f64 {
        0.0005
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = p.get("jobs").saturating_mul(p.get("files_per_job"));
        let whole = files.saturating_mul(p.get("file_bytes"));
        let written = p.get("jobs").saturating_mul(p.get("job_bytes"));
        let bytes = if p.get("laid_out") == 0 { written.min(whole) } else { whole };
        Needs { bytes, files: files + p.get("jobs"), ..Needs::default() }
    }

    fn durable(&self, p: &Parameters) -> bool {
        p.get("fdatasync") != 1
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (jobs, files) = (context.get("jobs"), context.get("files_per_job").max(1));
        let (file_bytes, job_bytes) = (context.get("file_bytes"), context.get("job_bytes"));
        let (run_blocks, block) = (context.get("run_blocks").max(1), context.get("block_bytes").max(1));
        let (fdatasync, laid_out) = (context.get("fdatasync"), context.get("laid_out") != 0);
        let runtime_ns = context.get("runtime_s").saturating_mul(1_000_000_000);
        let name = |job: u64, file: u64| format!("job{job}/f{file}");
        context.prepare(jobs, |w, job| {
            w.mkdir(&format!("job{job}"))?;
            for i in 0..files {
                let file = w.create(&name(job, i))?;
                if laid_out {
                    w.write(&file, 0, file_bytes)?;
                    w.fsync(&file)?;
                } else {
                    w.truncate(&file, file_bytes)?;
                }
                w.close(file)?;
            }
            Ok(())
        })?;
        context.phase("write", jobs, |w, job| {
            let clock = Clock::real();
            let open = (0..files).map(|i| w.open(&name(job, i))).collect::<Result<Vec<_>>>()?;
            let places = (file_bytes / block).saturating_sub(run_blocks) + 1;
            let (mut left, mut turn, mut unsynced) = (job_bytes / block, 0, 0);
            while left > 0 && clock.now_ns() < runtime_ns {
                let from = w.rng.below(places);
                let file = &open[turn % open.len()];
                for i in 0..run_blocks.min(left) {
                    w.write(file, (from + i) * block, block)?;
                    unsynced += 1;
                    if unsynced == fdatasync {
                        w.fdatasync(file)?;
                        unsynced = 0;
                    }
                    w.done(1);
                }
                left -= run_blocks.min(left);
                turn += 1;
            }
            for file in open {
                w.close(file)?;
            }
            Ok(())
        })
    }
}
