//! `extant lab rerun`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::{Args, Parser};

use super::LabCommand;
use super::run::{RunArgs, run_and_say, watch_signals};
use crate::args::{Cli, Command};
use crate::failure::{Failure, Result, say};

/// Repeat a run with its configuration and seed
#[derive(Args, Debug)]
#[command(after_help = "Example:
  extant lab rerun result -o again && extant lab compare result again")]
pub struct RerunArgs {
    /// Directory of results
    pub result: PathBuf,
    /// Directory for the new results [default: RESULT-again]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Replace existing image files
    #[arg(long)]
    pub overwrite: bool,
}

pub fn run(args: &RerunArgs) -> Result<()> {
    let trials = extant_lab::run::load(&args.result).map_err(|e| Failure::op(e.to_string()))?;
    let shown = args.result.display();
    let Some(first) = trials.first() else { return Err(Failure::usage(format!("{shown}: there are no trials"))) };
    let command = first.environment.command.clone();
    let mut run = recorded(command.clone())
        .ok_or_else(|| Failure::usage(format!("{shown}: not made by `extant lab run`: {}", command.join(" "))))?;
    run.how.seed = first.workload.seed;
    run.how.overwrite |= args.overwrite;
    // The default may have changed since.
    if let Some(recorded) = first.recorded.as_ref().and_then(|r| r.parse().ok()) {
        run.how.record = recorded;
    }
    // The whole run, even if this part was made with --shard.
    run.shard = None;
    let result = std::fs::canonicalize(&args.result)?;
    let name = result.file_name().unwrap_or_default().to_string_lossy();
    let output = args.output.clone().unwrap_or_else(|| result.with_file_name(format!("{name}-again")));
    run.output = Some(std::path::absolute(output)?);
    run.repeats = first.identity.clone();
    say(&run.command_line().join(" "));
    // Paths are relative to the directory of that run.
    let directory = &first.environment.directory;
    if !directory.is_empty() {
        std::env::set_current_dir(directory)
            .map_err(|e| Failure::op(format!("{directory}, where the run was started: {e}")))?;
    }
    let stop = watch_signals()?;
    run_and_say(&run, command, &stop)
}

/// The arguments of `lab run` in a command line.
fn recorded(command: Vec<String>) -> Option<RunArgs> {
    match Cli::try_parse_from(command).ok()?.command {
        Command::Lab(lab) => match lab.command {
            LabCommand::Run(run) => Some(*run),
            _ => None,
        },
        _ => None,
    }
}
