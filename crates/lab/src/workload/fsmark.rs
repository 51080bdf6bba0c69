//! `fsmark`: many small files, then fsync of all of them, one by one or many at once. Writing and fsync are timed
//! separately.
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
        "16 processes write 50,000 files of 4 KiB each, then open and fsync each of them, at_once at a time"
    }

    fn source(&self) -> &'static str {
        "Dave Chinner, 2014: fs_mark, one iteration of 800,000 files of 4 KiB, then fsync of all (aio fsync, percpu_ida and block tags)"
    }

    fn headline(&self) -> &'static str {
        "fsync"
    }

    fn counted(&self, phase: &str) -> &'static str {
        if phase.starts_with("fsync") { "fsyncs" } else { "files" }
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("processes", 16)
            .with("files_per_process", scaled(50_000, scale, 1))
            .with("files_per_directory", 1000)
            .with("bytes", 4096)
            // The number of concurrent fsyncs of a process; if each needs a waiting thread, the number of threads.
            .with("at_once", 1)
            .with("waiters", 4)
            // One syncfs(2) instead of all fsyncs.
            .with("syncfs", 0)
            // Another fsync of all files, when nothing is dirty.
            .with("again", 0)
            // The same again, with new files beside the old ones.
            .with("iterations", 1)
    }

    fn small_scale(&self) -> f64 {
        0.005
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = files(p);
        let processes = p.get("processes").saturating_mul(p.get("iterations"));
        let directories = files / p.get("files_per_directory").max(1) + processes * 2;
        Needs {
            bytes: files.saturating_mul(p.get("bytes").next_multiple_of(4096)),
            files: files + directories,
            ..Needs::default()
        }
    }

    fn leaves(&self, p: &Parameters) -> Option<u64> {
        // An empty file has no block.
        (p.get("bytes") > 0).then(|| files(p))
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (processes, files) = (context.get("processes"), context.get("files_per_process"));
        let (per_directory, bytes) = (context.get("files_per_directory").max(1), context.get("bytes"));
        let (at_once, waiters) = (context.get("at_once").max(1), context.get("waiters").max(1));
        for iteration in 1..=context.get("iterations") {
            let (before, after) = match iteration {
                1 => (String::new(), String::new()),
                more => (format!("i{more}-"), format!("-{more}")),
            };
            let name = |process: u64, i: u64| format!("{before}p{process}/d{}/f{i}", i / per_directory);
            context.phase(&format!("write{after}"), processes, |w, process| {
                w.mkdir(&format!("{before}p{process}"))?;
                for i in 0..files {
                    if i % per_directory == 0 {
                        w.mkdir(&format!("{before}p{process}/d{}", i / per_directory))?;
                    }
                    let file = w.create(&name(process, i))?;
                    w.write(&file, 0, bytes)?;
                    w.close(file)?;
                    w.done(1);
                }
                Ok(())
            })?;
            let again = (context.get("again") != 0).then_some("again");
            for phase in ["fsync"].into_iter().chain(again) {
                if context.get("syncfs") != 0 {
                    context.phase(&format!("{phase}{after}"), 1, |w, _| {
                        w.sync_all()?;
                        w.done(processes * files);
                        Ok(())
                    })?;
                    continue;
                }
                context.phase(&format!("{phase}{after}"), processes, |w, process| {
                    let mut i = 0;
                    while i < files {
                        let some = i..files.min(i + at_once);
                        let open: Vec<_> = some.clone().map(|i| w.open(&name(process, i))).collect::<Result<_>>()?;
                        match open.as_slice() {
                            [one] => w.fsync(one)?,
                            many => w.fsync_many(many, waiters as usize)?,
                        }
                        open.into_iter().try_for_each(|file| w.close(file))?;
                        w.done(some.end - some.start);
                        i = some.end;
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }
}

/// The number of files at the end.
fn files(p: &Parameters) -> u64 {
    p.get("processes").saturating_mul(p.get("files_per_process")).saturating_mul(p.get("iterations"))
}
