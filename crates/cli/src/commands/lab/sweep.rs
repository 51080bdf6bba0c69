//! `extant lab sweep`.
//!
//! # Locking
//! None.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use extant_lab::compare;
use extant_lab::model;
use extant_lab::sweep::axes::{Axis, Combination, combine};
use extant_lab::sweep::{self, Engine, Hq, Local, Point, Sweep, page};
use extant_lab::target::Target;
use extant_lab::workload::{self, Workload};

use super::BUILD;
use super::run::{HowArgs, RunArgs, default_output, failure, watch_signals};
use crate::failure::{Failure, Result, mention, say};

/// Where points run
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Where {
    /// On this machine
    Local,
    /// On the workers of HyperQueue (requires the program hq, and a running server and workers)
    Hq,
}

/// Run a workload or a model at many points, and merge the results
///
/// Every --set takes a list, and a point has one value of each; the policies compete at every point. NAME is a
/// parameter of the workload or model, or else {NAME} in --command, which is replaced, or else an option of engine and
/// mount targets. If called again with the same arguments, a sweep runs the missing points.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  extant lab sweep tags --set processors=16 --set threads=64,256,1000 --set depth=64,128 --policy sbitmap,hand-off -o sweep
  extant lab sweep small-files -t engine:/var/tmp/e.img --set processes=1,4,16 --set cache=64M,256M \\
      --policy mb_policy=sure-fit,ordered-groups --scale 0.1 -o sweep
  extant lab sweep --command 'fio --output-format=json --numjobs={jobs} job.fio' --set jobs=1,4 -t mount:m.img -o sweep
  extant lab compare sweep

Exit status: 0, 1 (usage; nothing was written), 8 (a point or a trial failed), 130 (interrupted).")]
pub struct SweepArgs {
    /// Workload or model; see `extant lab list`
    #[arg(default_value = "command", hide_default_value = true)]
    pub name: String,
    /// Run this with sh in the target's root directory as the workload
    #[arg(long, value_name = "CMD")]
    pub command: Option<String>,
    /// Contestant of a workload, as for `run`
    #[arg(short, long = "target", value_name = "TARGET")]
    pub targets: Vec<String>,
    /// Policies that compete at each point; NAME= may be left out for a model
    #[arg(short, long = "policy", value_name = "NAME=A,B")]
    pub policies: Vec<String>,
    /// Pair the lists of --set instead of combining them: first values, second values, ...
    #[arg(long)]
    pub zip: bool,
    /// How many points of models to run at the same time; those that measure real time run alone
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
    /// Where points run
    #[arg(long, value_enum, default_value_t = Where::Local)]
    pub engine: Where,
    /// A figure to draw besides the headline; may be given several times
    #[arg(short, long = "figure", value_name = "NAME")]
    pub figures: Vec<String>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Directory for the results [default: lab-NAME-TIME]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

pub fn run(args: &SweepArgs) -> Result<()> {
    let stop = watch_signals()?;
    if args.jobs == 0 {
        return Err(Failure::usage("--jobs: at least one point runs at a time"));
    }
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.name));
    let (points, extra) = match model::find(&args.name) {
        Ok(model) => (of_model(args, model, &output)?, Vec::new()),
        Err(_) => (of_workload(args, &output)?, extra(&args.how)),
    };
    let sweep = sweep::sweep(&args.name, points);
    if args.how.plan {
        plan(&sweep);
        return Ok(());
    }
    let program = std::env::current_exe()?;
    let engine: Box<dyn Engine> = match args.engine {
        Where::Local => Box::new(Local { program, jobs: args.jobs, extra }),
        Where::Hq => Box::new(Hq { program, extra }),
    };
    let summary = sweep::run(&sweep, &*engine, &output, args.how.quiet, &stop).map_err(|e| failure(e, &output))?;
    let shown = output.display();
    let there = if summary.there > 0 { format!(", {} were there already", summary.there) } else { String::new() };
    say(&format!("{} points in {shown}{there}", summary.ran));
    if let Some((point, why)) = summary.incomplete.first() {
        let n = summary.incomplete.len();
        let repeat = "the same command does the missing ones";
        return Err(Failure::op(format!("{n} points are incomplete, {point} among them: {why}; {repeat}")));
    }
    let report = draw(&output, &args.figures)?;
    say(&format!("all figures: extant lab compare {shown}; page: {}", report.display()));
    match summary.failed.first() {
        None => Ok(()),
        Some((trial, why)) => {
            Err(Failure::op(format!("{} trials failed, {trial} among them: {why}", summary.failed.len())))
        }
    }
}

/// Arguments that do not affect a trial.
fn extra(how: &HowArgs) -> Vec<String> {
    let overwrite = how.overwrite.then(|| "--overwrite".to_owned());
    overwrite.into_iter().chain(how.yes.then(|| "--yes".to_owned())).chain(["--quiet".to_owned()]).collect()
}

fn plan(sweep: &Sweep) {
    let trials: usize = sweep.points.iter().map(|p| p.trials).sum();
    mention(&format!("{}: {} points, {trials} trials", sweep.name, sweep.points.len()));
    for point in &sweep.points {
        let how = if point.exact { "side by side" } else { "alone" };
        mention(&format!("    {} ({how}): extant {}", point.id, point.arguments.join(" ")));
    }
}

/// Writes the page. Refuses figures that no trial has, and names the existing ones.
fn draw(output: &Path, figures: &[String]) -> Result<PathBuf> {
    let groups = compare::open(&[vec![output.to_owned()]], None, false).map_err(super::compare::failure)?;
    let known: Vec<String> = groups.first().map(compare::Group::figures).unwrap_or_default();
    if let Some(wanted) = figures.iter().find(|f| !known.contains(f)) {
        return Err(Failure::usage(format!("no figure \"{wanted}\"; there are: {}", known.join(", "))));
    }
    let path = output.join(extant_lab::report::REPORT);
    let name = std::path::absolute(output)?.file_name().unwrap_or_default().to_string_lossy().into_owned();
    std::fs::File::create(&path)?.write_all(page::html(&name, &groups, figures).as_bytes())?;
    Ok(path)
}

/// The points of a model.
fn of_model(args: &SweepArgs, model: &dyn model::Model, output: &Path) -> Result<Vec<Point>> {
    let how = &args.how;
    let foreign = [
        (!args.targets.is_empty(), "--target"),
        (args.command.is_some(), "--command"),
        (how.scale.is_some(), "--scale"),
        (how.operations.is_some(), "--operations"),
        (how.mkfs.is_some() || how.image.is_some() || how.size.is_some(), "--mkfs, --image, --size"),
        (how.memory.is_some() || how.timeout.is_some() || how.warmup.is_some(), "--memory, --timeout, --warmup"),
        (how.overwrite || how.yes, "--overwrite, --yes"),
    ];
    if let Some((_, option)) = foreign.iter().find(|(given, _)| *given) {
        return Err(Failure::usage(format!("{} is a model and has no image: {option} is for workloads", args.name)));
    }
    let mechanism = model.policies().option;
    let mut policies = Vec::new();
    for text in &args.policies {
        let names = match text.split_once('=') {
            Some((name, names)) if name == mechanism => names,
            Some((name, _)) => {
                return Err(Failure::usage(format!("{} has policies of {mechanism}, not of {name}", args.name)));
            }
            None => text,
        };
        policies.extend(names.split(',').map(str::to_owned));
    }
    let axes = axes(args, &model.parameters())?;
    let combinations = combine(&axes, args.zip).map_err(|e| failure(e, output))?;
    let mut points = Vec::new();
    for (index, values) in combinations.into_iter().enumerate() {
        let config = model::Config {
            model: args.name.clone(),
            policies: policies.clone(),
            settings: values.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            rounds: how.rounds,
            seed: how.seed,
            output: output.to_owned(),
            build: BUILD,
            command: Vec::new(),
        };
        let checked = model::check(&config).map_err(|e| at(&values, failure(e, output)))?;
        let mut arguments: Vec<String> = ["lab", "model", &args.name].map(str::to_owned).to_vec();
        if !policies.is_empty() {
            arguments.push(format!("--policy={}", policies.join(",")));
        }
        arguments.extend(config.settings.iter().map(|s| format!("--set={s}")));
        arguments.extend([format!("--rounds={}", how.rounds), format!("--seed={}", how.seed)]);
        points.push(Point::new(index, swept(values, &axes), arguments, checked));
    }
    Ok(points)
}

/// The values that differ between points.
fn swept(values: Combination, axes: &[Axis]) -> Combination {
    let several = |name: &String| axes.iter().any(|a| a.name == *name && a.values.len() > 1);
    values.into_iter().filter(|(name, _)| several(name)).collect()
}

/// The axes of the command line. A name may occur once.
fn axes(args: &SweepArgs, parameters: &workload::Parameters) -> Result<Vec<Axis>> {
    let listed = |setting: &String| {
        let name = setting.split('=').next().unwrap_or_default();
        parameters.values().get(name).is_some_and(serde_json::Value::is_array)
    };
    let axes = args.how.settings.iter().map(|s| Axis::parse(s, listed(s)));
    axes.map(|axis| axis.map_err(|e| Failure::usage(e.to_string()))).collect()
}

/// Puts the point in front of the message.
fn at(values: &Combination, failure: Failure) -> Failure {
    let text: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Failure { message: format!("point {}: {}", text.join(" "), failure.message), ..failure }
}

/// The points of a workload.
fn of_workload(args: &SweepArgs, output: &Path) -> Result<Vec<Point>> {
    let known = || {
        let models = model::all().iter().map(|m| m.name());
        workload::all().iter().map(|w| w.name()).chain(models).collect::<Vec<_>>().join(", ")
    };
    let workload = workload::find(&args.name).map_err(|_| {
        Failure::usage(format!("no workload or model is called '{}'; known are: {}", args.name, known()))
    })?;
    if args.targets.is_empty() {
        return Err(Failure::usage(format!("{} is a workload and needs a --target", args.name)));
    }
    let parameters = workload.parameters(args.how.scale.unwrap_or(1.0));
    let axes = axes(args, &parameters)?;
    for axis in &axes {
        if !parameters.values().contains_key(&axis.name) && !in_command(args, &axis.name) {
            contradicts(args, workload, axis)?;
        }
    }
    let combinations = combine(&axes, args.zip).map_err(|e| failure(e, output))?;
    let mut points = Vec::new();
    for (index, values) in combinations.into_iter().enumerate() {
        let mut run = RunArgs {
            workload: args.name.clone(),
            command: args.command.clone(),
            targets: args.targets.clone(),
            policies: args.policies.clone(),
            how: HowArgs { settings: Vec::new(), quiet: false, ..args.how.clone() },
            output: None,
            shard: None,
            repeats: None,
        };
        for (name, value) in &values {
            if parameters.values().contains_key(name) {
                run.how.settings.push(format!("{name}={value}"));
            } else if in_command(args, name) {
                run.command = run.command.map(|c| c.replace(&format!("{{{name}}}"), value));
            } else {
                for target in run.targets.iter_mut().filter(|t| takes_options(t)) {
                    *target += &format!(",{name}={value}");
                }
            }
        }
        let identity = super::run::check(&run).map_err(|e| at(&values, e))?;
        let contestants =
            extant_lab::target::contestants(&run.targets, &run.policies).map_err(|e| failure(e, output))?;
        run.how.overwrite = false;
        run.how.yes = false;
        let arguments = run.command_line().into_iter().skip(1).collect();
        let trials = contestants.len() * args.how.rounds as usize;
        let checked = model::Checked { identity, trials, exact: false, virtual_time: false };
        points.push(Point::new(index, swept(values, &axes), arguments, checked));
    }
    Ok(points)
}

fn in_command(args: &SweepArgs, name: &str) -> bool {
    args.command.as_ref().is_some_and(|command| command.contains(&format!("{{{name}}}")))
}

fn takes_options(target: &str) -> bool {
    target.starts_with("engine:") || target.starts_with("mount:")
}

/// Refuses a swept option that no target accepts, or that a target already has.
fn contradicts(args: &SweepArgs, workload: &dyn Workload, axis: &Axis) -> Result<()> {
    let name = &axis.name;
    if !args.targets.iter().any(|t| takes_options(t)) {
        let parameters = workload.parameters(1.0);
        let known: Vec<&str> = parameters.values().keys().map(String::as_str).collect();
        return Err(Failure::usage(format!(
            "{name} is no parameter of {} ({}), and no target is engine: or mount:, whose option it could be",
            args.name,
            known.join(", ")
        )));
    }
    for target in &args.targets {
        let parsed: std::result::Result<Target, _> = target.parse();
        let has = |t: Target| t.options.split(',').any(|o| o.split('=').next() == Some(name.as_str()));
        if parsed.is_ok_and(has) {
            return Err(Failure::usage(format!("{name} is swept, and the target '{target}' sets it: remove one")));
        }
    }
    if let Some(policy) = args.policies.iter().find(|p| p.split('=').next() == Some(name.as_str())) {
        return Err(Failure::usage(format!("{name} is swept, and compared by --policy {policy}: remove one")));
    }
    Ok(())
}
