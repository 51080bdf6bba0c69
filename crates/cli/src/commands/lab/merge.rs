//! `extant lab merge`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;

use super::run::failure;
use crate::failure::{Result, say};

/// Put the parts of one run together
///
/// The parts were made with the same arguments on several machines or with --shard. Parts of other runs are refused.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  extant lab run fsmark -t kernel:/var/tmp/k.img --shard 0/2 -o a     # and 1/2 -o b, on another machine
  extant lab merge a b -o whole && extant lab compare whole")]
pub struct MergeArgs {
    /// Directories of results
    #[arg(required = true)]
    pub parts: Vec<PathBuf>,
    /// A new directory for the merged results
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
}

pub fn run(args: &MergeArgs) -> Result<()> {
    let trials = extant_lab::run::merge(&args.parts, &args.output).map_err(|e| failure(e, &args.output))?;
    say(&format!("{trials} trials in {}", args.output.display()));
    Ok(())
}
