//! `extant lab matrix`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::Args;
use extant_lab::compare;
use extant_lab::regression::{self, Answer};
use extant_lab::target::{Kind, Target};
use extant_lab::workload::{self, Workload};

use super::run::{HowArgs, RunArgs, check, default_output, run_into, watch_signals};
use super::table;
use crate::failure::{Failure, Result, say};
use crate::text::shown;

/// Run every workload against the default, and print one line for each: whether it regressed
///
/// A workload did not regress when the 95 % confidence interval of its headline lies above -3 %, or when all counts
/// (requests, commits, allocations) are equal in every round. It regressed when the interval lies below. The default is
/// the same kind of target without options, unless --against names another. Each workload has a scale at which a trial
/// takes seconds; --scale multiplies it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab matrix engine:/var/tmp/e.img,mb_policy=vanilla
  sudo extant lab matrix kernel:/var/tmp/k.img,mb_optimize_scan=1 --rounds 10
  extant lab matrix engine:/var/tmp/a.img --against mount:/var/tmp/b.img

Exit status: 0 (nothing regressed), 1 (usage), 3 (a workload regressed), 4 (none did, but one is undecided: more rounds \
would say), 8 (a trial failed), 130 (interrupted).")]
pub struct MatrixArgs {
    /// Target with its options
    pub contestant: String,
    /// Target to compare with
    #[arg(long, value_name = "TARGET")]
    pub against: Option<String>,
    /// Only these workloads
    #[arg(short, long = "workload", value_name = "NAME")]
    pub workloads: Vec<String>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Directory for the results, with one directory per workload [default: lab-matrix-TIME]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

pub fn run(args: &MatrixArgs) -> Result<()> {
    let baseline = baseline(args)?;
    let target: Target = baseline.parse().map_err(|e: extant_lab::Error| Failure::usage(e.to_string()))?;
    let label = target.label();
    let output = args.output.clone().unwrap_or_else(|| default_output("matrix"));
    let stop = watch_signals()?;
    // `replay` needs a list, `command` needs a command, and a directory or a copied image cannot be filled.
    let fits = |w: &dyn Workload| match w.name() {
        "command" => false,
        "replay" => args.how.operations.is_some(),
        _ => w.needs(&w.parameters(1.0)).fill == 0 || (target.kind != Kind::Dir && args.how.image.is_none()),
    };
    let chosen: Vec<_> = match &args.workloads[..] {
        [] => workload::all().iter().copied().filter(|w| fits(*w)).collect(),
        names => {
            let found: extant_lab::Result<_> = names.iter().map(|name| workload::find(name)).collect();
            found.map_err(|e| Failure::usage(e.to_string()))?
        }
    };
    let mut findings = Vec::new();
    let mut failed = Vec::new();
    let one = |workload: &dyn Workload| {
        let mut how = args.how.clone();
        how.operations = how.operations.filter(|_| workload.name() == "replay");
        how.scale = Some(workload.small_scale() * args.how.scale.unwrap_or(1.0));
        RunArgs {
            workload: workload.name().to_owned(),
            command: None,
            targets: vec![baseline.clone(), args.contestant.clone()],
            policies: Vec::new(),
            how,
            output: Some(output.join(workload.name())),
            shard: None,
            repeats: None,
        }
    };
    // Checks all runs before the first: an invalid one fails before anything is written.
    for workload in &chosen {
        check(&one(*workload))?;
    }
    for workload in chosen {
        let one = one(workload);
        let (dir, usable) = run_into(&one, one.command_line(), &stop)?;
        if args.how.plan {
            continue;
        }
        if !usable {
            let dir = shown(dir.as_os_str().as_bytes());
            let name = workload.name();
            writeln!(std::io::stdout(), "{name:14} trials failed; the others: extant lab compare {dir}")?;
            failed.push(workload.name());
            continue;
        }
        for group in table::groups(&dir, &label)? {
            group.notes.iter().for_each(|note| say(&format!("{}: {note}", workload.name())));
            for finding in regression::judge(&[group]) {
                writeln!(std::io::stdout(), "{finding}")?;
                findings.push(finding);
            }
        }
    }
    if !failed.is_empty() {
        return Err(Failure::op(format!("trials failed: {}", failed.join(", "))));
    }
    let status = regression::status(&findings);
    if status == 0 {
        return Ok(());
    }
    let (answer, what) = match status {
        compare::REGRESSION => (Answer::Regressed, format!("worse than {baseline}")),
        _ => (Answer::Undecided, "undecided".to_owned()),
    };
    let those: Vec<&str> = findings.iter().filter(|f| f.answer == answer).map(|f| f.workload.as_str()).collect();
    Err(Failure::new(status, format!("{what}: {}", those.join(", "))))
}

/// The target that the contestant is compared with.
fn baseline(args: &MatrixArgs) -> Result<String> {
    if let Some(against) = &args.against {
        return Ok(against.clone());
    }
    let target: Target = args.contestant.parse().map_err(|e: extant_lab::Error| Failure::usage(e.to_string()))?;
    // Options for the location of the image, and for its device, are not policies.
    let is_place = |o: &&str| ["io=", "device=", "store="].iter().any(|place| o.starts_with(place));
    let place: Vec<&str> = target.options.split(',').filter(is_place).collect();
    let options = place.iter().map(|o| format!(",{o}")).collect::<String>();
    let default = format!("{}:{}{options}", target.kind.name(), target.path.display());
    if target.kind == Kind::Dir || default == args.contestant {
        return Err(Failure::usage(format!(
            "{}: this is the default itself; give another one with --against TARGET",
            args.contestant
        )));
    }
    Ok(default)
}
