//! `extant lab model`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use extant_lab::model::{self, Config};
use extant_lab::result::Trial;

use super::BUILD;
use super::run::{PRINTED, default_output, failure, printed, watch_signals};
use crate::failure::{Failure, Result, say};

/// Let the policies of one mechanism compete, in isolation, without an image
///
/// Counts are exact: the same seed makes the same state and the same work. Times are printed beside those of an empty
/// loop. Each trial is a line in DIR/trials.ndjson, as for `run`. If called again with the same arguments, it runs the
/// missing trials.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab model group-search --set groups=4096 --set fill=90 -o result
  extant lab model es-shrink --policy vanilla,round-robin --set delayed=99
  extant lab compare result

Models and their parameters: extant lab list --parameters.
Exit status: 0, 1 (usage; nothing was written), 8 (a trial failed), 130 (interrupted).")]
pub struct ModelArgs {
    /// Model; see `extant lab list`
    pub model: String,
    /// Policies that compete [default: all]
    #[arg(short, long = "policy", value_name = "A,B", value_delimiter = ',')]
    pub policies: Vec<String>,
    /// A parameter of the model
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Rounds: each runs every policy once
    #[arg(short, long, default_value_t = 5)]
    pub rounds: u32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Directory for the results; `-` prints the trials [default: lab-MODEL-TIME]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

pub fn run(args: &ModelArgs) -> Result<()> {
    if args.output.as_deref() == Some(Path::new(PRINTED)) {
        return printed(|output| run_into(args, output, false));
    }
    run_into(args, &args.output.clone().unwrap_or_else(|| default_output(&args.model)), true)
}

fn run_into(args: &ModelArgs, output: &Path, tables: bool) -> Result<()> {
    let stop = watch_signals()?;
    let config = Config {
        model: args.model.clone(),
        policies: args.policies.clone(),
        settings: args.settings.clone(),
        rounds: args.rounds,
        seed: args.seed,
        output: output.to_owned(),
        build: BUILD,
        command: std::env::args().collect(),
    };
    let summary = model::run(&config, &stop).map_err(|e| failure(e, &config.output))?;
    if tables {
        say_all(&config)?;
    }
    match summary.failed.first() {
        None => Ok(()),
        Some((label, round, why)) => Err(Failure::op(format!("{label}, round {}: {why}", round + 1))),
    }
}

fn say_all(config: &Config) -> Result<()> {
    print(&config.output)?;
    write!(std::io::stdout(), "\n{}", model::ministat(&config.output).map_err(|e| failure(e, &config.output))?)?;
    say(&format!("all figures: extant lab compare {0}; extant lab report {0}", config.output.display()));
    Ok(())
}

/// Prints counts first, then times; the medians if figures differ between rounds.
fn print(dir: &Path) -> Result<()> {
    let trials = extant_lab::run::load(dir).map_err(|e| Failure::op(e.to_string()))?;
    let mut labels: Vec<&str> = trials.iter().map(|t| t.contestant.label.as_str()).collect();
    labels.sort_unstable();
    labels.dedup();
    let of = |label: &str| trials.iter().filter(|t| t.contestant.label == label && t.usable()).collect::<Vec<_>>();
    let columns: Vec<Vec<&Trial>> = labels.iter().map(|label| of(label)).collect();
    let Some(first) = columns.iter().flatten().next() else { return Ok(()) };
    let mut out = std::io::stdout().lock();
    let parameters: Vec<String> = first.workload.parameters.iter().map(|(n, v)| format!("{n}={v}")).collect();
    writeln!(out, "{}, seed {}: {}", first.workload.name, first.workload.seed, parameters.join(" "))?;
    let widths: Vec<usize> = labels.iter().map(|label| label.len().max(12)).collect();
    let mut row = |name: &str, cells: Vec<String>| {
        let cells: String = cells.iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        writeln!(out, "{name:28}{cells}")
    };
    row("", labels.iter().map(|label| (*label).to_owned()).collect())?;
    let number = |value: Option<f64>, digits: usize| value.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
    for name in first.measures.keys() {
        let digits = if name.ends_with("_per_request") { 2 } else { 0 };
        let middle = |trials: &Vec<&Trial>| median(trials.iter().filter_map(|t| t.measures.get(name).copied()));
        row(name, columns.iter().map(|trials| number(middle(trials), digits)).collect())?;
    }
    for phase in &first.phases {
        let median = |trials: &Vec<&Trial>| median(trials.iter().filter_map(|t| t.phase(&phase.name)).map(ns_each));
        let times = columns.iter().map(|trials| number(median(trials), 1));
        row(&format!("{} [ns an operation]", phase.name), times.collect())?;
    }
    Ok(())
}

fn ns_each(phase: &extant_lab::result::Phase) -> f64 {
    phase.seconds * 1e9 / phase.operations.max(1) as f64
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}
