//! `ext3-2007`: the files of the check that was measured in 2007, written one after the other.
//!
//! # Locking
//! None.

use super::{Context, Needs, Parameters, Workload, scaled};
use crate::error::{Error, Result};

/// The number of files of each size, and the size (the source's GB) in MiB.
const FILES: [(u64, u64); 4] = [(200, 512), (100, 1024), (40, 2560), (10, 10_240)];
/// Below this fraction of the source's work, files become smaller instead of fewer: one of the largest remains.
const FEWEST: f64 = 0.1;

pub(super) struct Ext32007;

impl Workload for Ext32007 {
    fn name(&self) -> &'static str {
        "ext3-2007"
    }

    fn summary(&self) -> &'static str {
        "200 files of 0.5 GiB, 100 of 1, 40 of 2.5 and 10 of 10, written one after the other: the input of a check"
    }

    fn source(&self) -> &'static str {
        "Abhishek Rai, 2007: fsck of 400 GB (Clustering indirect blocks in Ext3)"
    }

    fn headline(&self) -> &'static str {
        "write"
    }

    fn parameters(&self, scale: f64) -> Parameters {
        let fewer = scale.max(FEWEST);
        let counts = FILES.map(|(count, _)| scaled(count, fewer, 1));
        let sizes = FILES.map(|(_, mib)| scaled(mib << 20, scale / fewer, 4096));
        Parameters::new().with_list("counts", &counts).with_list("file_bytes", &sizes).with("step_bytes", 1 << 20)
    }

    fn small_scale(&self) -> f64 {
        0.0005
    }

    fn check(&self, p: &Parameters) -> Result<()> {
        let (counts, sizes) = (p.list("counts").len(), p.list("file_bytes").len());
        let message = || Error::Usage(format!("{counts} counts and {sizes} file_bytes: there must be one of each"));
        if counts == sizes { Ok(()) } else { Err(message()) }
    }

    fn needs(&self, p: &Parameters) -> Needs {
        let of_each = p.list("counts").into_iter().zip(p.list("file_bytes"));
        let (files, bytes) = of_each.fold((0u64, 0u64), |(files, bytes), (count, size)| {
            (files.saturating_add(count), bytes.saturating_add(count.saturating_mul(size)))
        });
        Needs { bytes, files, ..Needs::default() }
    }

    fn leaves(&self, p: &Parameters) -> Option<u64> {
        Some(p.list("counts").iter().sum())
    }

    fn durable(&self, _: &Parameters) -> bool {
        true
    }

    fn run(&self, context: &mut Context<'_>) -> Result<()> {
        let (counts, sizes) = (context.parameters().list("counts"), context.parameters().list("file_bytes"));
        let step = context.get("step_bytes").max(1);
        context.phase("write", 1, |w, _| {
            for (kind, (count, bytes)) in counts.iter().zip(&sizes).enumerate() {
                for i in 0..*count {
                    let file = w.create(&format!("f{kind}-{i}"))?;
                    let mut at = 0;
                    while at < *bytes {
                        let n = step.min(bytes - at);
                        w.write(&file, at, n)?;
                        at += n;
                    }
                    w.close(file)?;
                    w.done(1);
                }
            }
            Ok(())
        })
    }
}
