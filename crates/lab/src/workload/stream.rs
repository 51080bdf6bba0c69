//! `stream`: large files that are written sequentially, made durable, and read with cold caches.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;

pub(super) struct Stream;

impl Workload for Stream {
    fn name(&self) -> &'static str {
        "stream"
    }

    fn summary(&self) -> &'static str {
        "2 processes write a file of 2 GiB each in steps of 1 MiB, fsync it, and read it cold"
    }

    fn source(&self) -> &'static str {
        "the streaming writers of Mel Gorman's largedd and parallelio, 2013 (Reduce system disruption due to kswapd)"
    }

    fn headline(&self) -> &'static str {
        "write"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new()
            .with("processes", 2)
            .with("file_bytes", scaled(2 << 30, scale, 1 << 20))
            .with("step_bytes", 1 << 20)
    }

    fn small_scale(&self) -> f64 {
        0.05
    }

    fn needs(&self, p: &Parameters) -> Needs {
        Needs {
            bytes: p.get("processes").saturating_mul(p.get("file_bytes")),
            files: p.get("processes"),
            ..Needs::default()
        }
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (processes, bytes, step) =
            (context.get("processes"), context.get("file_bytes"), context.get("step_bytes").max(1));
        context.phase("write", processes, |w, process| {
            let file = w.create(&format!("stream{process}"))?;
            let mut at = 0;
            while at < bytes {
                let n = step.min(bytes - at);
                w.write(&file, at, n)?;
                w.done(1);
                at += n;
            }
            w.fsync(&file)?;
            w.close(file)
        })?;
        context.cold()?;
        context.phase("read", processes, |w, process| {
            let file = w.open(&format!("stream{process}"))?;
            let mut at = 0;
            while at < bytes {
                at += match w.read(&file, at, step.min(bytes - at) as usize)? {
                    0 => break,
                    n => n as u64,
                };
                w.done(1);
            }
            w.close(file)
        })
    }
}
