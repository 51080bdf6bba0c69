//! `extant lab export`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use extant_lab::{export, load};

use super::compare::failure;
use crate::failure::Result;

/// Print every figure of every trial as CSV
///
/// A line has one figure of one trial: workload, contestant, round, figure, unit, better direction, value; for a sweep,
/// also the swept values.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab export result > trials.csv
  duckdb -c \"copy (from 'trials.csv') to 'trials.parquet'\"

Exit status: 0, 1 (usage), 8 (a result cannot be read).")]
pub struct ExportArgs {
    /// Directories or files of results; DIR#LABEL for one contestant
    #[arg(required = true)]
    pub what: Vec<PathBuf>,
}

pub fn run(args: &ExportArgs) -> Result<()> {
    let mut trials = Vec::new();
    for what in &args.what {
        trials.extend(load::load(what, false).map_err(failure)?.trials);
    }
    std::io::stdout().write_all(export::trials_csv(&trials).as_bytes())?;
    Ok(())
}
