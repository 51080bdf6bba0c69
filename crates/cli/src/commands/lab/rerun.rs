//! `extant lab rerun`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Failure, Result};

/// Repeat a run with its configuration and seed
#[derive(Args, Debug)]
pub struct RerunArgs {
    /// Directory of results
    pub result: PathBuf,
}

pub fn run(_args: &RerunArgs) -> Result<()> {
    Err(Failure::usage("not built in yet"))
}
