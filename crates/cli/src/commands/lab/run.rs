//! `extant lab run`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Run a workload on contestants, round by round
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Workload
    pub workload: String,
    /// Directory for the results
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

pub fn run(_args: &RunArgs) -> Result<()> {
    Err(Failure::usage("not built in yet"))
}
