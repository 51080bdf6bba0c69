//! `untar`: a source tree that one process unpacks, until the image is durable.
//!
//! # Locking
//! None.

use super::tree::{MEAN_BYTES, Tree};
use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::Result;

/// The number of bytes that tar writes at once (20 records of 512).
const RECORD_BYTES: u64 = 10_240;

pub(super) struct Untar;

impl Workload for Untar {
    fn name(&self) -> &'static str {
        "untar"
    }

    fn summary(&self) -> &'static str {
        "one process unpacks a tree of 70,000 files like a kernel's; the clock stops when the image is durable"
    }

    fn source(&self) -> &'static str {
        "Stefan Wahren and Ojaswin Mujoo, 2022: untar of the kernel on a Raspberry Pi's SD card (mb_optimize_scan regression)"
    }

    fn headline(&self) -> &'static str {
        "untar"
    }

    fn counted(&self, _: &str) -> &'static str {
        "files"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        Parameters::new().with("files", scaled(70_000, scale, 1))
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let files = p.get("files");
        Needs { bytes: files.saturating_mul(MEAN_BYTES * 3 / 2), files: files + files / 15 + 2, ..Needs::default() }
    }

    fn durable(&self, _parameters: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let tree = Tree::new(&mut context.rng(), context.get("files"));
        context.phase("untar", 1, |w, _| {
            for directory in &tree.directories {
                w.mkdir(directory)?;
            }
            for (name, size) in &tree.files {
                let file = w.create(name)?;
                let mut at = 0;
                while at < *size {
                    let n = (size - at).min(RECORD_BYTES);
                    w.write(&file, at, n)?;
                    at += n;
                }
                w.close(file)?;
                w.done(1);
            }
            Ok(())
        })
    }
}
