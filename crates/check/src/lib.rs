//! The checker: it finds the problems of an ext2, ext3 or ext4 file system, and changes nothing.
//!
//! Main types: [`check()`] (device and [`Options`] in, [`Report`] out), [`examine`] (also the [`Facts`]), [`Finding`]
//! (problem, place, found, expected), [`Problem`] (a row of the one table of problems).
//!
//! A check has these steps: `view` chooses a superblock, replays the journal in memory and reads the descriptors.
//! `scan` reads everything else in waves, each sorted by place and decoded by all threads: inode tables, the maps level
//! by level, attribute blocks, directories, bitmaps. `extant_ondisk` owns the rules of a single structure. `pass`
//! translates their violations into problems, with a `match` without a wildcard for each structure, and owns the rules
//! between structures. Directories are the exception: `extant_ondisk` reads entries and indexes as they are stored, and
//! `pass` judges them as e2fsck does, which accepts some that no mount does, and the reverse. `claims` records the
//! clusters in use. A block of a map is descended once, however many pointers lead to it, so the time is linear in the
//! image's bytes.
//!
//! What it does not do: write, ask questions, or print. It does not open images, and does not know their other users.
//!
//! # Locking
//! `check wave` (765) protects the requests of a wave, which its threads share. `check findings` (766) and `check
//! parents` (767) protect the results of a wave's threads. None is held during a call of a device.
#![forbid(unsafe_code)]
#![deny(clippy::missing_errors_doc)]
#![warn(missing_docs)]

mod claims;
mod context;
mod error;
mod facts;
mod finding;
mod pass;
mod pile;
mod problem;
mod report;
mod scan;
mod view;

use std::sync::Arc;

use extant_block::BlockDevice;

pub use context::{InodeState, Kind};
pub use error::{Error, Result};
pub use facts::{Checked, Directory, Facts};
pub use finding::{Finding, Place, UsageOf};
pub use problem::{Preen, Problem, Severity};
pub use report::{KEPT_MAX, Note, Report, Totals};

/// The parameters of a check.
#[derive(Clone, Debug)]
pub struct Options {
    /// The block of the superblock to use (`-b`); `None` for the primary, or the first usable backup.
    pub superblock: Option<u64>,
    /// The block size for `superblock` (`-B`); `None` for any size with which there is a superblock.
    pub block_size: Option<u32>,
    /// The number of threads that decode, including this one; 0 stands for 1.
    pub threads: usize,
    /// The current time in seconds since 1970, to find times in the future.
    pub now: i64,
    /// Called with the pass, the part of it that is done, and the total. The order of the calls is not fixed.
    pub progress: Option<Progress>,
    /// The journal's device, for a file system with an external journal.
    pub journal: Option<JournalDevice>,
}

/// The device of a journal that is not in the file system.
#[derive(Clone)]
pub struct JournalDevice(pub Arc<dyn BlockDevice>);

impl std::fmt::Debug for JournalDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JournalDevice({})", self.0.name())
    }
}

/// A function that is called during a check with the pass (1 to 5), the part of it that is done, and the total.
#[derive(Clone)]
pub struct Progress(pub Arc<dyn Fn(u32, u64, u64) + Send + Sync>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { superblock: None, block_size: None, threads: 1, now: i64::MAX, progress: None, journal: None }
    }
}

/// Whether superblock, journal and descriptors can be used without changes. If not, the mark of a clean file system has
/// no meaning.
///
/// # Errors
/// The same as [`check()`].
pub fn is_described(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<bool> {
    let mut sink = report::Sink::default();
    let view = view::View::open(device, options, &mut sink, &mut Vec::new())?;
    let (findings, _) = sink.finish();
    Ok(view.is_some() && findings.iter().all(|finding| finding.problem.severity() != Severity::Damage))
}

/// Checks the file system on `device`.
///
/// # Errors
/// Nothing can be checked: the device cannot be read, or has no usable superblock.
pub fn check(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<Report> {
    Ok(examine(device, options)?.report)
}

/// Checks the file system on `device`, and also returns the facts that it found.
///
/// # Errors
/// The same as [`check()`].
pub fn examine(device: &Arc<dyn BlockDevice>, options: &Options) -> Result<Checked> {
    let mut sink = report::Sink::default();
    let mut notes = Vec::new();
    let Some(view) = view::View::open(device, options, &mut sink, &mut notes)? else {
        let (findings, counts) = sink.finish();
        let report = Report { findings, counts, notes, ..Report::default() };
        return Ok(Checked { report, facts: None });
    };
    let (totals, sink, facts) = pass::run(view, options, sink)?;
    let (findings, counts) = sink.finish();
    let report = Report { findings, counts, notes, totals, complete: true };
    Ok(Checked { report, facts: Some(facts) })
}
