//! `extant lab report`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Write one HTML file with tables, curves and the configuration
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Directory of results
    pub result: PathBuf,
    /// File to write
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

pub fn run(_args: &ReportArgs) -> Result<()> {
    Err(Failure::usage("not built in yet"))
}
