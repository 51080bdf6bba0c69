//! File-system operations from a seed: the same seed gives the same operations on any file system.
//!
//! Main types: [`Workload`] (a seed and a [`Mix`]; applies any range of its operations to a directory), [`Op`] (one
//! operation), [`Report`] (the result of every operation). [`materialize`] builds a plain source tree, [`change`]
//! changes one.
//!
//! The generator has its own model of the tree and never reads the disk, so two runs differ only in the results of the
//! file systems; a [`Report`] shows the first different result. Some operations must fail.
//!
//! What it does not do: it does not control times. Times that depend on when an operation ran are replaced by
//! [`Workload::settle`].
//!
//! # Locking
//! None; operations run one after the other.

mod change;
mod execute;
mod generate;
mod materialize;
mod op;
mod settle;

pub use change::change;
pub use materialize::{Materialized, materialize};
pub use op::{NodeType, Op, RenameMode};

use std::ops::Range;
use std::path::Path;

use crate::Result;

/// The classes of operations to use; all by default.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    pub xattrs: bool,
    /// Attributes of up to 64 KiB, some of them equal: for file systems with attribute values in separate inodes.
    pub large_values: bool,
    pub acls: bool,
    pub fallocate: bool,
    pub special_files: bool,
    pub odd_times: bool,
    pub hard_links: bool,
    /// RENAME_EXCHANGE and RENAME_NOREPLACE.
    pub rename_flags: bool,
    /// Directories with thousands of entries.
    pub big_directories: bool,
    /// Writes far into a file, up to this offset in bytes; 0 for none.
    pub far_offset_max: u64,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            xattrs: true,
            large_values: false,
            acls: true,
            fallocate: true,
            special_files: true,
            odd_times: true,
            hard_links: true,
            rename_flags: true,
            big_directories: true,
            far_offset_max: 5 << 30,
        }
    }
}

/// An infinite sequence of operations.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub mix: Mix,
}

/// The result of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Position in the sequence.
    pub number: usize,
    /// The operation, printed.
    pub op: String,
    /// The error number; None for success.
    pub errno: Option<i32>,
}

/// The results of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// How many operations failed.
    pub fn failed(&self) -> usize {
        self.outcomes.iter().filter(|o| o.errno.is_some()).count()
    }

    /// The first operation with a different result, as text.
    pub fn first_difference(&self, other: &Report) -> Option<String> {
        let say = |errno: Option<i32>| match errno {
            Some(n) => std::io::Error::from_raw_os_error(n).to_string(),
            None => "success".into(),
        };
        if self.outcomes.len() != other.outcomes.len() {
            return Some(format!("{} operations against {}", self.outcomes.len(), other.outcomes.len()));
        }
        let (a, b) = self.outcomes.iter().zip(&other.outcomes).find(|(a, b)| a != b)?;
        Some(format!("operation {} {}: {} / {}", a.number, a.op, say(a.errno), say(b.errno)))
    }
}

impl Workload {
    /// All classes of operations.
    pub fn new(seed: u64) -> Workload {
        Workload { seed, mix: Mix::default() }
    }

    /// The operations of `range`, without running them.
    pub fn operations(&self, range: Range<usize>) -> Vec<Op> {
        let mut generator = generate::Generator::new(self.seed, self.mix);
        (0..range.end).map(|number| generator.next(number)).skip(range.start).collect()
    }

    /// Runs the operations of `range` in `dir`, where all earlier ones have already run.
    pub fn apply(&self, dir: &Path, range: Range<usize>) -> Report {
        let numbers = range.clone();
        let run = |(number, op): (usize, Op)| {
            let errno = execute::execute(dir, &op).err().map(|e| e.raw_os_error().unwrap_or(-1));
            Outcome { number, op: format!("{op:?}"), errno }
        };
        Report { outcomes: numbers.zip(self.operations(range)).map(run).collect() }
    }

    /// Sets the times of everything under `dir`, and of `dir`, to values that depend only on path and seed. This is the
    /// last step before a fingerprint.
    pub fn settle(&self, dir: &Path) -> Result<()> {
        settle::settle(dir, self.seed, self.mix.odd_times)
    }
}

/// Applies the first `count` operations of `seed` to `dir`, and sets fixed times.
pub fn apply(dir: &Path, seed: u64, count: usize) -> Result<Report> {
    let workload = Workload::new(seed);
    let report = workload.apply(dir, 0..count);
    workload.settle(dir)?;
    Ok(report)
}
