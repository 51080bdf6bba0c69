//! `extant lab`: workloads on contestants, and comparisons of the figures. One file per sub-command; [`extant_lab`]
//! does the work.
//!
//! # Locking
//! None.

mod age;
mod calibrate;
mod check_time;
mod compare;
mod export;
mod layout;
mod list;
mod matrix;
mod merge;
mod model;
mod replay_trace;
mod report;
mod rerun;
mod run;
mod sweep;
mod table;

use clap::{Args, Subcommand};

use extant_lab::environment::Build;

use crate::failure::Result;

/// How this program was built.
const BUILD: Build =
    Build { version: env!("CARGO_PKG_VERSION"), commit: env!("EXTANT_COMMIT"), profile: env!("EXTANT_PROFILE") };

/// Measure any policy or driver against its baseline
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
#[command(after_help = "Examples:
  extant lab list
  extant lab run small-files --target engine:/var/tmp/e.img --policy mb_policy=vanilla,size-classes -o result
  sudo extant lab run fsmark --target kernel:/var/tmp/k.img --target mount:/var/tmp/m.img --rounds 10 -o result
  extant lab sweep tags --set processors=16 --set threads=64,256,1000 -o sweep
  extant lab compare result
  extant lab report result

Workloads, measures and the form of results: docs/lab.md.")]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: LabCommand,
}

#[derive(Subcommand, Debug)]
pub enum LabCommand {
    List(list::ListArgs),
    Run(Box<run::RunArgs>),
    Rerun(rerun::RerunArgs),
    Merge(merge::MergeArgs),
    Sweep(Box<sweep::SweepArgs>),
    Matrix(matrix::MatrixArgs),
    Model(model::ModelArgs),
    Age(age::AgeArgs),
    Layout(layout::LayoutArgs),
    Compare(compare::CompareArgs),
    Export(export::ExportArgs),
    Report(report::ReportArgs),
    ReplayTrace(replay_trace::ReplayTraceArgs),
    CheckTime(check_time::CheckTimeArgs),
    Calibrate(calibrate::CalibrateArgs),
}

pub fn run(args: LabArgs) -> Result<()> {
    match args.command {
        LabCommand::List(args) => list::run(&args),
        LabCommand::Run(args) => run::run(&args),
        LabCommand::Rerun(args) => rerun::run(&args),
        LabCommand::Merge(args) => merge::run(&args),
        LabCommand::Sweep(args) => sweep::run(&args),
        LabCommand::Matrix(args) => matrix::run(&args),
        LabCommand::Model(args) => model::run(&args),
        LabCommand::Age(args) => age::run(&args),
        LabCommand::Layout(args) => layout::run(&args),
        LabCommand::Compare(args) => compare::run(&args),
        LabCommand::Export(args) => export::run(&args),
        LabCommand::Report(args) => report::run(&args),
        LabCommand::ReplayTrace(args) => replay_trace::run(&args),
        LabCommand::CheckTime(args) => check_time::run(&args),
        LabCommand::Calibrate(args) => calibrate::run(&args),
    }
}
