//! `extant lab compare`.
//!
//! # Locking
//! None.

use std::path::PathBuf;

use clap::Args;
use extant_lab::compare::{self, Error, Options, Output};

use crate::failure::{Failure, Result};

/// Compare contestants: ministat and mmtests tables, and a verdict
///
/// The first contestant is the baseline. Figures of one run are paired by round; an improvement is a positive
/// percentage. For different runs, only the difference is printed, without a verdict. The exception is at least five
/// runs of each that took turns (before, after, after, before, ...): each run is then one value.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab compare result                           (all contestants of one run)
  extant lab compare result#engine result#kernel      (two of them; a part of the label will do)
  extant lab compare before after                     (two runs, label by label: the difference)
  extant lab compare after* --against before*         (runs that took turns: a verdict)
  extant lab compare result --figure latency.fsync.p99_ns --effect 2

Exit status: 0, 1 (usage, or results that must not be compared), 3 (a headline figure got worse), 8 (a result \
cannot be read).")]
pub struct CompareArgs {
    /// Directories or files of results; DIR#LABEL for one contestant
    #[arg(required = true)]
    pub what: Vec<PathBuf>,
    /// Runs of the baseline; the other runs, together, are compared with these
    #[arg(long, value_name = "RESULT", num_args = 1..)]
    pub against: Vec<PathBuf>,
    /// Contestant to compare with; by default the first
    #[arg(short, long, value_name = "LABEL")]
    pub baseline: Option<String>,
    /// A figure to print in full besides the headline; may be given several times
    #[arg(short, long = "figure", value_name = "NAME")]
    pub figures: Vec<String>,
    /// Difference in percent for which a number of rounds is proposed
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub effect: f64,
    /// Compare results of different work, with a warning
    #[arg(long)]
    pub force: bool,
    /// Print one JSON object with everything in the tables
    #[arg(long)]
    pub json: bool,
    /// Print CSV, one line for each figure of each contestant
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
}

pub fn run(args: &CompareArgs) -> Result<()> {
    if !(args.effect.is_finite() && args.effect > 0.0) {
        return Err(Failure::usage("--effect: more than 0 percent"));
    }
    let options = Options {
        what: args.what.clone(),
        against: args.against.clone(),
        baseline: args.baseline.clone(),
        figures: args.figures.clone(),
        effect: args.effect / 100.0,
        force: args.force,
        output: match (args.json, args.csv) {
            (true, _) => Output::Json,
            (_, true) => Output::Csv,
            _ => Output::Tables,
        },
    };
    let judgement = compare::command(&options, &mut std::io::stdout().lock()).map_err(failure)?;
    if judgement.regressions.is_empty() {
        return Ok(());
    }
    Err(Failure::new(compare::REGRESSION, format!("worse than the baseline: {}", judgement.regressions.join(", "))))
}

/// The exit status for an error of the lab's comparison.
pub fn failure(e: Error) -> Failure {
    match e {
        Error::Write { source } => source.into(),
        e if e.is_usage() => Failure::usage(e.to_string()),
        e => Failure::op(e.to_string()),
    }
}
