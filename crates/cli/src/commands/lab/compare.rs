//! `extant lab compare`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Compare two results, or the contestants of one
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// Directories of results (one or two), or one directory and two labels of contestants in it
    #[arg(required = true, num_args = 1..=3)]
    pub what: Vec<PathBuf>,
}

pub fn run(_args: &CompareArgs) -> Result<()> {
    Err(Failure::usage("not built in yet"))
}
