//! `extant lab list`.
//!
//! # Locking
//! None.

use clap::Args;

use crate::failure::{Failure, Result};

/// Workloads, targets, policies and measures
#[derive(Args, Debug)]
pub struct ListArgs {}

pub fn run(_args: &ListArgs) -> Result<()> {
    Err(Failure::usage("not built in yet"))
}
