//! `extant lab run`.
//!
//! # Locking
//! None.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use clap::Args;
use extant_base::clock::Clock;
use extant_lab::measure::Recorded;
use extant_lab::result::{Identity, TRIALS};
use extant_lab::run::{Config, Summary};
use extant_lab::target::{Rig, Target, is_block_device};
use signal_hook::consts::SIGINT;

use crate::failure::{Failure, Result, mention, say};
use crate::mount_options::MountConfig;
use crate::server::signals;
use crate::size;

/// Run a workload on contestants, round by round
///
/// Each trial is a line in DIR/trials.ndjson. If called again with the same arguments, it runs the missing trials.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  extant lab run small-files --target engine:/var/tmp/e.img --policy mb_policy=vanilla,size-classes -o result
  sudo extant lab run small-files --target kernel:/var/tmp/k.img,mb_optimize_scan=0 \\
      --target kernel:/var/tmp/k.img,mb_optimize_scan=1 --rounds 10 -o result
  extant lab run replay --operations list.ndjson --target dir:/tmp
  extant lab run --command 'tar -xf /tmp/linux.tar' --target mount:m.img --target fuse2fs:f.img

Exit status: 0, 1 (usage; nothing was written), 8 (a trial failed), 130 (interrupted).")]
pub struct RunArgs {
    /// Workload; see `extant lab list`
    #[arg(default_value = "command", hide_default_value = true)]
    pub workload: String,
    /// Run this with sh in the target's root directory as the workload: a fio job, a build
    #[arg(long, value_name = "CMD")]
    pub command: Option<String>,
    /// Contestant: engine:IMAGE, mount:IMAGE, kernel:IMAGE, fuse2fs:IMAGE (each with ,OPTIONS), dir:PATH
    #[arg(short, long = "target", value_name = "TARGET", required = true)]
    pub targets: Vec<String>,
    /// One contestant for each value, for each engine and mount target
    #[arg(short, long = "policy", value_name = "NAME=A,B")]
    pub policies: Vec<String>,
    #[command(flatten)]
    pub how: HowArgs,
    /// Directory for the results; `-` prints the trials [default: lab-WORKLOAD-TIME]
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Run only the rounds whose number modulo N is I
    #[arg(long, value_name = "I/N", value_parser = parse_shard)]
    pub shard: Option<(u32, u32)>,
    /// For `rerun`: the run that this one must be identical to.
    #[arg(skip)]
    pub repeats: Option<Identity>,
}

/// The common arguments of `run` and `matrix`.
#[derive(Args, Clone, Debug)]
pub struct HowArgs {
    /// Rounds: each runs every contestant once
    #[arg(short, long, default_value_t = 5)]
    pub rounds: u32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Size of the work; 1: as in its source
    #[arg(short, long)]
    pub scale: Option<f64>,
    /// A parameter of the workload; see `extant lab list --parameters`
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// List of operations for `replay`
    #[arg(long, value_name = "FILE")]
    pub operations: Option<PathBuf>,
    /// Arguments for mke2fs [default: -t ext4 -E lazy_itable_init=0,lazy_journal_init=0]
    #[arg(long, value_name = "ARGUMENTS")]
    pub mkfs: Option<String>,
    /// Begin each trial with a copy of this image (for example one made by `lab age`) instead of a new one
    #[arg(long, value_name = "FILE", conflicts_with_all = ["mkfs", "size"])]
    pub image: Option<PathBuf>,
    /// Size of the images [default: 8G, or twice what the work needs]
    #[arg(long, value_parser = size::parse)]
    pub size: Option<u64>,
    /// Replace existing image files
    #[arg(long)]
    pub overwrite: bool,
    /// Allow block devices as targets: each trial makes a new file system there, and existing data is lost
    #[arg(long)]
    pub yes: bool,
    /// Parts to record: latency, locks, events, all, or none; phases, counters and the host's figures are always
    /// recorded. Locks and events slow down only the targets that report them
    #[arg(long, value_name = "PARTS", default_value_t = Recorded::FAIR)]
    pub record: Recorded,
    /// Memory for each contestant, including the workload and the page cache (root): Extant's cache uses half of it
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// A trial that takes longer fails
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Check everything, print what would run, and write nothing
    #[arg(long)]
    pub plan: bool,
    /// Unrecorded rounds before the first [default: 1 below scale 1, else 0]
    #[arg(long, value_name = "ROUNDS")]
    pub warmup: Option<u32>,
    /// Show no progress bar
    #[arg(short, long)]
    pub quiet: bool,
}

fn parse_shard(text: &str) -> std::result::Result<(u32, u32), String> {
    let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    match parts {
        Some((i, n)) if i < n => Ok((i, n)),
        _ => Err(format!("'{text}' is not I/N, with I from 0 to N-1")),
    }
}

pub fn run(args: &RunArgs) -> Result<()> {
    let stop = watch_signals()?;
    let command = std::env::args().collect();
    if !args.how.plan && args.output.as_deref() == Some(Path::new(PRINTED)) {
        return printed(|output| {
            let args = RunArgs { output: Some(output.to_owned()), ..args.clone() };
            let (_, usable) = run_into(&args, command, &stop)?;
            if usable { Ok(()) } else { Err(Failure::op("trials failed")) }
        });
    }
    run_and_say(args, command, &stop)
}

/// `--output -`: trials go to standard output, for a caller on another machine.
pub const PRINTED: &str = "-";

/// Calls `run` with a directory that is removed afterwards, and prints the trials in it.
pub fn printed(run: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let output = dir.path().join("result");
    let done = run(&output);
    if let Ok(trials) = std::fs::read(output.join(TRIALS)) {
        let mut out = std::io::stdout().lock();
        out.write_all(&trials)?;
        out.flush()?;
    }
    done
}

/// Runs, prints the headline, and fails if a trial failed.
pub fn run_and_say(args: &RunArgs, command: Vec<String>, stop: &AtomicBool) -> Result<()> {
    let (output, usable) = run_into(args, command, stop)?;
    if args.how.plan {
        return Ok(());
    }
    let contestants = extant_lab::target::contestants(&args.targets, &args.policies);
    let contestants = contestants.map_err(|e| failure(e, &output))?;
    let first = contestants.first().map(|rig| rig.contestant.label.as_str());
    super::table::print(&output, first.unwrap_or_default())?;
    let shown = output.display();
    let several = extant_lab::run::load(&output).is_ok_and(|trials| {
        let labels: BTreeSet<&str> = trials.iter().map(|t| t.contestant.label.as_str()).collect();
        labels.len() > 1
    });
    let compare = if several { format!("extant lab compare {shown}; ") } else { String::new() };
    say(&format!("all figures: {compare}extant lab report {shown}"));
    let modelled = |rig: &Rig| rig.target.options.split(',').any(|option| option.starts_with("device="));
    if contestants.iter().any(modelled) && !contestants.iter().all(modelled) {
        let phase =
            extant_lab::run::load(&output).ok().and_then(|trials| Some(trials.first()?.workload.headline.clone()));
        let figure = format!("{}.device_seconds", phase.unwrap_or_else(|| "PHASE".to_owned()));
        say(&format!("on modelled devices: extant lab compare {shown} --figure {figure}"));
    }
    if usable { Ok(()) } else { Err(Failure::op("trials failed; they are left out of comparisons")) }
}

/// The default directory for results.
pub fn default_output(name: &str) -> PathBuf {
    format!("lab-{name}-{}", Clock::real().wall().sec).into()
}

impl RunArgs {
    /// Parameters of the workload, including the command.
    fn settings(&self) -> Vec<String> {
        let command = self.command.iter().map(|command| format!("command={command}"));
        self.how.settings.iter().cloned().chain(command).collect()
    }

    /// A command line for these arguments.
    pub fn command_line(&self) -> Vec<String> {
        let mut line: Vec<String> = ["extant", "lab", "run", &self.workload].map(str::to_owned).to_vec();
        let mut put = |name: &str, value: String| line.push(format!("--{name}={value}"));
        self.targets.iter().for_each(|t| put("target", t.clone()));
        self.policies.iter().for_each(|p| put("policy", p.clone()));
        put("rounds", self.how.rounds.to_string());
        put("seed", self.how.seed.to_string());
        put("scale", self.how.scale.unwrap_or(1.0).to_string());
        self.settings().into_iter().for_each(|s| put("set", s));
        self.how.operations.iter().for_each(|o| put("operations", o.display().to_string()));
        self.how.mkfs.iter().for_each(|m| put("mkfs", m.clone()));
        self.how.image.iter().for_each(|i| put("image", i.display().to_string()));
        self.how.size.iter().for_each(|s| put("size", s.to_string()));
        put("record", self.how.record.to_string());
        self.how.memory.iter().for_each(|m| put("memory", m.to_string()));
        self.how.timeout.iter().for_each(|t| put("timeout", t.to_string()));
        self.how.warmup.iter().for_each(|w| put("warmup", w.to_string()));
        self.output.iter().for_each(|o| put("output", o.display().to_string()));
        for (on, name) in [(self.how.overwrite, "--overwrite"), (self.how.yes, "--yes"), (self.how.quiet, "--quiet")] {
            line.extend(on.then(|| name.to_owned()));
        }
        line
    }
}

/// The configuration of the lab. `command` is recorded in the results.
fn config(args: &RunArgs, output: &Path, command: Vec<String>) -> Result<Config> {
    Ok(Config {
        workload: args.workload.clone(),
        targets: args.targets.clone(),
        policies: args.policies.clone(),
        rounds: args.how.rounds,
        seed: args.how.seed,
        scale: args.how.scale.unwrap_or(1.0),
        settings: args.settings(),
        operations: args.how.operations.clone(),
        mkfs: args.how.mkfs.clone(),
        image: args.how.image.clone(),
        image_bytes: args.how.size,
        output: output.to_owned(),
        // A trial of a whole source takes minutes, so no warm-up round is thrown away.
        warmup: args.how.warmup.unwrap_or(u32::from(args.how.scale.unwrap_or(1.0) < 1.0)),
        shard: args.shard,
        overwrite: args.how.overwrite,
        devices: args.how.yes,
        recorded: args.how.record,
        memory: args.how.memory,
        timeout_s: args.how.timeout,
        quiet: args.how.quiet,
        program: std::env::current_exe()?,
        repeats: args.repeats.clone(),
        build: super::BUILD,
        command,
        mount_options: |options| MountConfig::parse(&[options.to_owned()], false).map(drop),
    })
}

/// Refuses an invalid run; returns the identity of the run.
pub fn check(args: &RunArgs) -> Result<Identity> {
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.workload));
    extant_lab::run::check(&config(args, &output, Vec::new())?).map_err(|e| failure(e, &output))
}

/// Runs (or only checks, with --plan) and prints a summary. Returns the directory of the results, and whether all
/// trials are usable. `command` is recorded in the results.
pub fn run_into(args: &RunArgs, command: Vec<String>, stop: &AtomicBool) -> Result<(PathBuf, bool)> {
    let output = args.output.clone().unwrap_or_else(|| default_output(&args.workload));
    if args.how.plan {
        let identity = check(args)?;
        mention(&format!("{}: {} rounds", args.workload, args.how.rounds));
        identity.iter().for_each(|(name, value)| mention(&format!("    {name}: {value}")));
        return Ok((output, true));
    }
    let config = config(args, &output, command)?;
    for path in
        config.targets.iter().filter_map(|t| Some(t.parse::<Target>().ok()?.path)).filter(|p| is_block_device(p))
    {
        say(&format!("warning: {}: each trial makes a new file system on this block device", path.display()));
    }
    let summary = extant_lab::run::run(&config, stop).map_err(|e| failure(e, &output))?;
    report(&summary, &output);
    Ok((output, summary.failed.is_empty()))
}

fn report(summary: &Summary, output: &Path) {
    let there = if summary.skipped > 0 { format!(", {} were there already", summary.skipped) } else { String::new() };
    let trials = summary.usable as usize + summary.failed.len();
    say(&format!("{trials} trials in {}{there}", output.display()));
}

/// The failure for an error of the lab, with its exit status.
pub fn failure(e: extant_lab::Error, output: &Path) -> Failure {
    match e {
        extant_lab::Error::Interrupted => {
            let ended = interrupted();
            let message = format!("{}; finished trials are in {}", ended.message, output.display());
            Failure { message, ..ended }
        }
        e if e.is_usage() => Failure::usage(e.to_string()),
        e => Failure::op(e.to_string()),
    }
}

/// The failure after the user's signal.
pub fn interrupted() -> Failure {
    let signal = SIGNAL.load(Ordering::Relaxed) as i32;
    signals::ended_by(if signal == 0 { SIGINT } else { signal })
}

/// The signal that ended the command, for the exit status.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Installs handlers; the flag becomes true after a signal that requests the end.
pub fn watch_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals::ending() {
        signal_hook::flag::register_usize(signal, SIGNAL.clone(), signal as usize)?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}
