//! `extant completions`: what a shell needs to complete `extant`.
//!
//! # Locking
//! None.

use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs};
use crate::failure::Result;

pub fn run(args: &CompletionsArgs) -> Result<()> {
    // Generated into memory: the generator panics when its output cannot be written.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "extant", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}
