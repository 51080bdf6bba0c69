//! `small-files`: create, write, fsync, close and unlink, by several processes in one directory each.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;

pub(super) struct SmallFiles;

impl Workload for SmallFiles {
    fn name(&self) -> &'static str {
        "small-files"
    }

    fn summary(&self) -> &'static str {
        "processes that create, write, fsync, close and unlink files of 22,528 bytes, each in its directory"
    }

    fn source(&self) -> &'static str {
        "Jan Kara, 2022: stress-unlink -s -c 100 -f 22528 16 0 (Ext4 mballoc behavior with mb_optimize_scan=1)"
    }

    fn headline(&self) -> &'static str {
        "files"
    }

    fn counted(&self, _: &str) -> &'static str {
        "files"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("processes", 16)
            .with("count", scaled(100, scale, 1))
            .with("bytes", 22_528)
            .with("fsync", 1)
            .with("batch", 1)
    }

    fn small_scale(&self) -> f64 {
        0.5
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = p.get("processes") * p.get("batch").max(1);
        // Freed blocks become free only with a commit, so several rounds of files occupy blocks at the same time.
        Needs {
            bytes: files.saturating_mul(p.get("bytes")).saturating_mul(64),
            files: files + p.get("processes"),
            ..Needs::default()
        }
    }

    fn leaves(&self, _: &Parameters) -> Option<u64> {
        Some(0)
    }

    fn durable(&self, p: &Parameters) -> bool {
        p.get("fsync") == 0
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (count, bytes) = (context.get("count"), context.get("bytes"));
        let (fsync, batch) = (context.get("fsync") != 0, context.get("batch").max(1));
        context.phase("files", context.get("processes"), |w, process| {
            let dir = format!("p{process}");
            w.mkdir(&dir)?;
            let mut done = 0;
            while done < count {
                let n = batch.min(count - done);
                for i in 0..n {
                    let file = w.create(&format!("{dir}/f{i}"))?;
                    w.write(&file, 0, bytes)?;
                    if fsync {
                        w.fsync(&file)?;
                    }
                    w.close(file)?;
                }
                for i in 0..n {
                    w.unlink(&format!("{dir}/f{i}"))?;
                }
                w.done(n);
                done += n;
            }
            Ok(())
        })
    }
}
