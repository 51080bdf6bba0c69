//! `fsmark`: many small files, then fsync of all of them; writing and fsync timed apart.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;

pub(super) struct FsMark;

impl Workload for FsMark {
    fn name(&self) -> &'static str {
        "fsmark"
    }

    fn summary(&self) -> &'static str {
        "16 processes write 50,000 files of 4 KiB each, then open and fsync each of them"
    }

    fn source(&self) -> &'static str {
        "Dave Chinner, 2014: fs_mark, one iteration of 800,000 files of 4 KiB, then fsync of all (aio fsync, percpu_ida and block tags)"
    }

    fn headline(&self) -> &'static str {
        "fsync"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("processes", 16)
            .with("files_per_process", scaled(50_000, scale, 1))
            .with("files_per_directory", 1000)
            .with("bytes", 4096)
    }

    fn small_scale(&self) -> f64 {
        0.005
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = p.get("processes").saturating_mul(p.get("files_per_process"));
        let directories = files / p.get("files_per_directory").max(1) + p.get("processes") * 2;
        Needs { bytes: files.saturating_mul(p.get("bytes").next_multiple_of(4096)), files: files + directories }
    }

    fn leaves(&self, p: &Parameters) -> Option<u64> {
        // A file without a byte has no block.
        (p.get("bytes") > 0).then(|| p.get("processes").saturating_mul(p.get("files_per_process")))
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (processes, files) = (context.get("processes"), context.get("files_per_process"));
        let (per_directory, bytes) = (context.get("files_per_directory").max(1), context.get("bytes"));
        let name = |process: u64, i: u64| format!("p{process}/d{}/f{i}", i / per_directory);
        context.phase("write", processes, |w, process| {
            w.mkdir(&format!("p{process}"))?;
            for i in 0..files {
                if i % per_directory == 0 {
                    w.mkdir(&format!("p{process}/d{}", i / per_directory))?;
                }
                let file = w.create(&name(process, i))?;
                w.write(&file, 0, bytes)?;
                w.close(file)?;
                w.done(1);
            }
            Ok(())
        })?;
        context.phase("fsync", processes, |w, process| {
            for i in 0..files {
                let file = w.open(&name(process, i))?;
                w.fsync(&file)?;
                w.close(file)?;
                w.done(1);
            }
            Ok(())
        })
    }
}
