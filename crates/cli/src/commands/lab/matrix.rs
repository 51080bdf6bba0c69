//! `extant lab matrix`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Run every workload against the default; fails when a regression is shown
#[derive(Args, Debug)]
pub struct MatrixArgs {
    /// Target and options
    pub contestant: String,
    /// Directory for the results
    #[arg(short, long)]
    pub output: Option<PathBuf>,
}

pub fn run(_args: &MatrixArgs) -> Result<()> {
    Err(Failure::usage("not built in yet"))
}
