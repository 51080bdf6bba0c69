//! `extant lab calibrate`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use extant_lab::model::processors::calibrate;

use super::BUILD;
use super::run::{failure, watch_signals};
use crate::failure::{Failure, Result};

/// Measure what locks, cache lines, wakes and code cost on two processors of this machine
///
/// Models with processors=N take their costs from such a table: that of the program, or FILE with --set costs=FILE.
/// Takes a few minutes. The machine should do nothing else meanwhile.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab calibrate -o costs.json
  extant lab calibrate --model engine -o engine.json
  extant lab model alloc-threads --set work=fallocate --set processors=64 --set costs=costs.json

Exit status: 0, 1 (usage), 8 (fewer than two processors, or the file cannot be written), 130 (interrupted).")]
pub struct CalibrateArgs {
    /// The table of costs
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Measure the code of this model only; may be given several times
    #[arg(short, long, value_name = "NAME")]
    pub model: Vec<String>,
}

pub fn run(args: &CalibrateArgs) -> Result<()> {
    let stop = watch_signals()?;
    let say = |step: &str| {
        // The progress of some minutes, for a person who waits.
        let _ = writeln!(std::io::stderr(), "measuring {step}");
    };
    let table = calibrate(BUILD, &args.model, &stop, say).map_err(|e| failure(e, &args.output))?;
    let text = serde_json::to_string_pretty(&table).map_err(|e| Failure::op(e.to_string()))?;
    let path = args.output.display();
    std::fs::write(&args.output, text + "\n").map_err(|e| Failure::op(format!("{path}: cannot be written: {e}")))?;
    let costs = &table.costs;
    writeln!(
        std::io::stdout(),
        "a lock {:.1} ns, a line {:.1} ns, a contended lock {:.1} ns, a wake {:.0} ns and its switch {:.0} ns",
        costs.lock_ns,
        costs.bounce_ns,
        costs.contended_ns,
        costs.wake_ns,
        costs.switch_ns
    )?;
    Ok(())
}
