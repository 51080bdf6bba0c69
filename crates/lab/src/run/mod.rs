//! Runs: every contestant once in each round, in an order drawn from the seed.
//!
//! Main types: [`Config`], [`Summary`]; [`run`] does it. `trial` has a single trial, `store` the file of results.
//!
//! If the output directory already has some trials of the run, the run continues there; so do its parts
//! ([`Config::shard`]). A directory with trials of another configuration is refused.
//!
//! # Locking
//! None: one trial after the other.

pub mod age;
mod elsewhere;
mod merge;
mod store;
mod trial;

use std::path::PathBuf;

use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sha2::{Digest, Sha256};

use crate::environment::{self, Build};
use crate::error::{Error, Result};
use crate::measure::Recorded;
use crate::result::{Contestant, Identity, Outcome, Trial, WorkloadRun};
use crate::table::plain;
use crate::target::{self, ImagePlan, Rig};
use crate::workload::{self, Parameters, Workload};

use elsewhere::Elsewhere;
pub use merge::merge;
pub use store::load;
pub(crate) use store::{Store, same_identity, same_run};

/// The parameters of a run.
#[derive(Clone)]
pub struct Config {
    /// Name of the workload.
    pub workload: String,
    /// Targets as the user wrote them.
    pub targets: Vec<String>,
    /// `NAME=a,b`: policies whose values compete.
    pub policies: Vec<String>,
    /// How many times each contestant runs.
    pub rounds: u32,
    /// Seed of all random numbers.
    pub seed: u64,
    /// 1.0: the parameters of the workload's source.
    pub scale: f64,
    /// `NAME=VALUE`: parameters that differ from the scaled ones.
    pub settings: Vec<String>,
    /// The list that `replay` reads.
    pub operations: Option<PathBuf>,
    /// Arguments for mke2fs; `None` for [`target::DEFAULT_MKFS`].
    pub mkfs: Option<String>,
    /// If set, trials begin with copies of this image instead.
    pub image: Option<PathBuf>,
    /// Size of the images in bytes; `None` if the workload decides.
    pub image_bytes: Option<u64>,
    /// Directory of the results; created if it does not exist.
    pub output: PathBuf,
    /// Rounds before the first that are not recorded: they warm the machine up.
    pub warmup: u32,
    /// Part `i` of `n`: the rounds whose number modulo `n` is `i`. Trials that are paired stay in one part.
    pub shard: Option<(u32, u32)>,
    /// Whether existing images may be replaced.
    pub overwrite: bool,
    /// Whether file systems on block devices may be replaced.
    pub devices: bool,
    /// The optional parts of a trial to record.
    pub recorded: Recorded,
    /// Bytes of memory for each contestant, including the workload and the page cache; `None` for no limit.
    pub memory: Option<u64>,
    /// A trial that takes longer fails; `None` for no limit.
    pub timeout_s: Option<u64>,
    /// Whether to draw nothing on the terminal.
    pub quiet: bool,
    /// The `extant` binary, which serves `mount` targets.
    pub program: PathBuf,
    /// How it was built.
    pub build: Build,
    /// Identity of the run that this one repeats. It must be the same except for the program.
    pub repeats: Option<Identity>,
    /// The command line, to be recorded.
    pub command: Vec<String>,
    /// Checks options of `extant mount`.
    pub mount_options: fn(&str) -> std::result::Result<(), String>,
}

/// How a run ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Trials that ran in this call and are usable.
    pub usable: u32,
    /// Trials that failed in this call: contestant, round, and reason.
    pub failed: Vec<(String, u32, String)>,
    /// Trials that already existed.
    pub skipped: u32,
}

/// A run, every part of which has been checked.
struct Plan {
    workload: &'static dyn Workload,
    parameters: Parameters,
    rigs: Vec<Rig>,
    images: ImagePlan,
    run: WorkloadRun,
    identity: Identity,
}

/// Checks a configuration without writing anything; returns the run's identity.
pub fn check(config: &Config) -> Result<Identity> {
    Ok(plan(config)?.identity)
}

fn check_scale(scale: f64) -> Result<()> {
    let message = || Error::Usage(format!("scale {scale}: it must be above 0, and 1000 at most"));
    if scale.is_finite() && scale > 0.0 && scale <= 1000.0 { Ok(()) } else { Err(message()) }
}

fn plan(config: &Config) -> Result<Plan> {
    let workload = workload::find(&config.workload)?;
    check_scale(config.scale)?;
    if config.rounds == 0 {
        return Err(Error::Usage("a run needs at least one round".into()));
    }
    if let Some((part, parts)) = config.shard
        && part >= parts
    {
        return Err(Error::Usage(format!("part {part}/{parts}: parts are numbered from 0")));
    }
    let mut parameters = workload.parameters(config.scale);
    for setting in &config.settings {
        parameters.set(setting)?;
    }
    workload.check(&parameters)?;
    workload::check_inputs(workload, config.operations.as_deref())?;
    let mut rigs = target::contestants(&config.targets, &config.policies)?;
    if workload.needs_directory()
        && let Some(rig) = rigs.iter().find(|rig| rig.target.kind == target::Kind::Engine)
    {
        let why = format!(
            "{}: a command needs a directory; mount:, kernel:, fuse2fs: and dir: have one",
            rig.contestant.label
        );
        return Err(Error::Usage(why));
    }
    if let Some(bytes) = config.memory {
        rigs.iter_mut().for_each(|rig| rig.match_memory(bytes));
    }
    for rig in &mut rigs {
        rig.ask_program()?;
    }
    let needs = workload.needs(&parameters);
    let images = match &config.image {
        None => ImagePlan::new(config.mkfs.as_deref(), config.image_bytes, needs, config.seed),
        Some(image) => ImagePlan::copy_of(image)?,
    };
    let rules = target::check::Rules {
        plan: &images,
        needs,
        overwrite: config.overwrite,
        devices: config.devices,
        events: config.recorded.events,
        mount_options: &config.mount_options,
    };
    target::check::all(&rigs, &rules)?;
    let run = WorkloadRun {
        name: workload.name().to_owned(),
        scale: config.scale,
        seed: config.seed,
        parameters: parameters.values().clone(),
        headline: workload.headline().to_owned(),
    };
    let identity = identity(config, &run, &images, &rigs)?;
    Ok(Plan { workload, parameters, rigs, images, run, identity })
}

/// See [`Identity`]: it depends on the work, the program and the contestants. Contestants are included because they are
/// paired by round: one that is added later would share no round with the others.
pub(crate) fn identity_of<'a>(
    run: &WorkloadRun,
    build: Build,
    contestants: impl Iterator<Item = &'a Contestant>,
) -> Identity {
    let mut labels: Vec<&str> = contestants.map(|c| c.label.as_str()).collect();
    labels.sort_unstable();
    let mut identity = Identity::from([
        ("contestants".to_owned(), labels.join(" | ")),
        ("workload".to_owned(), run.name.clone()),
        ("scale".to_owned(), run.scale.to_string()),
        ("seed".to_owned(), run.seed.to_string()),
        ("program".to_owned(), format!("{} {} {}", build.version, build.commit, build.profile)),
    ]);
    identity.extend(run.parameters.iter().map(|(name, value)| (format!("parameter {name}"), value.to_string())));
    identity
}

fn identity(config: &Config, run: &WorkloadRun, images: &ImagePlan, rigs: &[Rig]) -> Result<Identity> {
    let mut identity = identity_of(run, config.build, rigs.iter().map(|r| &r.contestant));
    identity.extend([
        ("image".to_owned(), images.command()),
        ("image bytes".to_owned(), images.bytes.to_string()),
        ("recorded".to_owned(), config.recorded.to_string()),
        ("warm-up rounds".to_owned(), config.warmup.to_string()),
    ]);
    identity.extend(config.memory.map(|bytes| ("memory".to_owned(), bytes.to_string())));
    if let Some(list) = &config.operations {
        let content = std::fs::read(list).map_err(Error::file(list))?;
        let hash: String = Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
        identity.insert("operations (SHA-256)".to_owned(), hash);
    }
    Ok(identity)
}

/// Runs the rounds that `config` selects. `stop` (Ctrl-C) ends the run after cleaning up; finished trials are in the
/// results.
pub fn run(config: &Config, stop: &AtomicBool) -> Result<Summary> {
    let plan = plan(config)?;
    if let Some(mut of) = config.repeats.clone() {
        of.extend(plan.identity.get("program").map(|program| ("program".to_owned(), program.clone())));
        store::same_identity(&plan.identity, &of)
            .map_err(|what| Error::Usage(format!("this would be another run than the one it repeats ({what})")))?;
    }
    let mut store = Store::open(&config.output, &plan.identity, plan.rigs.iter().map(|r| &r.contestant))?;
    let environment = environment::of_this_machine(&config.command, config.build);
    let had = store.rounds();
    if had > 0 && had < config.rounds && !config.quiet {
        let output = config.output.display().to_string();
        eprintln!("{}: {had} rounds are there, going on to {}", plain(&output), config.rounds);
    }
    let mut summary = Summary::default();
    let mut due = Vec::new();
    for round in 0..config.rounds {
        if config.shard.is_some_and(|(part, parts)| round % parts != part) {
            continue;
        }
        for (place, which) in order(config.seed, round, plan.rigs.len()).into_iter().enumerate() {
            if store.has(&plan.rigs[which].contestant.label, round) {
                summary.skipped += 1;
                continue;
            }
            due.push((Some(round), place as u32, which));
        }
    }
    if !due.is_empty() {
        let warm = (0..config.warmup).flat_map(|_| (0..plan.rigs.len()).map(|which| (None, 0, which)));
        due.splice(0..0, warm);
    }
    let bar = progress(due.len() as u64, config.quiet);
    let elsewhere: Vec<Option<Elsewhere>> =
        plan.rigs.iter().map(|rig| Elsewhere::of(rig, &plan.rigs, config)).collect::<Result<_>>()?;
    for (round, place, which) in due {
        let rig = &plan.rigs[which];
        let label = &rig.contestant.label;
        let title = round.map_or_else(|| "warm-up".to_owned(), |round| format!("round {}", round + 1));
        let say = |what: &str| bar.set_message(plain(&format!("{title}, {label}: {what}")));
        let job = trial::Job {
            config,
            workload: plan.workload,
            parameters: &plan.parameters,
            images: &plan.images,
            rig,
            run: &plan.run,
            identity: &plan.identity,
            round: round.unwrap_or(0),
            place,
            environment: &environment,
            elsewhere: elsewhere[which].as_ref(),
        };
        let trial = match job.run(stop, &say) {
            Ok(trial) => trial,
            Err(e) => {
                bar.finish_and_clear();
                return Err(e);
            }
        };
        if stop.load(Ordering::Relaxed) {
            bar.finish_and_clear();
            return Err(Error::Interrupted);
        }
        if round.is_some() {
            store.append(&trial)?;
            note(&trial, &mut summary, &bar);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(summary)
}

fn note(trial: &Trial, summary: &mut Summary, bar: &ProgressBar) {
    match &trial.outcome {
        Outcome::Failed(why) => {
            let said = plain(&format!("round {} {}: FAILED: {why}", trial.round + 1, trial.contestant.label));
            bar.suspend(|| eprintln!("{said}"));
            summary.failed.push((trial.contestant.label.clone(), trial.round, why.clone()));
        }
        _ => summary.usable += 1,
    }
}

fn progress(trials: u64, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(trials);
    if quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} trials, {elapsed} ({eta} left)  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}

/// The order of the contestants in a round.
pub(crate) fn order(seed: u64, round: u32, contestants: usize) -> Vec<usize> {
    let mut rng = Rng::new(seed ^ (u64::from(round) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let mut order: Vec<usize> = (0..contestants).collect();
    for i in (1..contestants).rev() {
        order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_comes_from_the_seed_and_changes() {
        assert_eq!(order(7, 3, 5), order(7, 3, 5));
        let mut seen: Vec<Vec<usize>> = (0..40).map(|round| order(1, round, 3)).collect();
        assert!(seen.iter().all(|o| {
            let mut s = o.clone();
            s.sort_unstable();
            s == [0, 1, 2]
        }));
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 6, "all orders occur");
    }
}
