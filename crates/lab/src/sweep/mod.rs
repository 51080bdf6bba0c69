//! Sweeps: a run or a model at many points, and one merged result.
//!
//! Main types: [`Sweep`] (its points, each a command line of `extant lab run` or `model`), [`Engine`] (where they run);
//! [`run`] does a sweep. A sweep consists of its points. Each has a separate result in `points/ID`, made by a separate
//! process. The merged result has their trials in the order of the points, with the swept values in each trial.
//!
//! Points of models whose figures depend on the seed alone are *exact*: they run concurrently, and their merged trials
//! have neither times of this machine (only virtual times) nor its description. So the merged result has the same bytes
//! wherever, in whichever order and in however many attempts they ran. All others run alone, and their trials are
//! merged unchanged.
//!
//! It measures nothing and judges nothing.
//!
//! # Locking
//! A file lock on the directory, which the processes of the points share. So while a killed sweep has left one of them
//! running, the sweep cannot be resumed.

pub mod axes;
mod hq;
mod local;
pub mod page;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use extant_base::sync::atomic::{AtomicBool, Ordering};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::{Checked, EMPTY};
use crate::result::{Environment, Identity, SCHEMA, TRIALS, Trial};
use crate::run::{load, same_run};
use axes::Combination;

pub use hq::Hq;
pub use local::Local;

/// Name of the file that describes a sweep.
pub const SWEEP: &str = "sweep.json";
/// The name of the directory of the points.
const POINTS: &str = "points";
/// The maximum length of a point's identifier, without its number.
const ID_MAX: usize = 80;

/// A point: one run or model with one value of each axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The name of its directory.
    pub id: String,
    /// The swept values.
    pub values: Combination,
    /// The command line, without the program, the output, and arguments that do not affect a trial.
    pub arguments: Vec<String>,
    /// Whether its figures depend on the seed alone.
    pub exact: bool,
    /// Whether its times are virtual and also depend on the seed alone.
    pub virtual_time: bool,
    /// The number of trials when it is complete.
    pub trials: usize,
    /// Everything that affects its trials.
    pub identity: Identity,
}

impl Point {
    /// The point with number `index`.
    pub fn new(index: usize, values: Combination, arguments: Vec<String>, checked: Checked) -> Point {
        let Checked { identity, trials, exact, virtual_time } = checked;
        let text: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "=,._-".contains(c) { c } else { '_' };
        let id = format!("{index:05}-{}", text.join(",").chars().take(ID_MAX).map(plain).collect::<String>());
        Point { id, values, arguments, exact, virtual_time, trials, identity }
    }

    /// The directory of its result.
    fn folder(&self, output: &Path) -> PathBuf {
        output.join(POINTS).join(&self.id)
    }

    /// Whether its result has all trials, and no others.
    fn is_complete(&self, output: &Path) -> Result<bool> {
        let folder = self.folder(output);
        if !folder.join(TRIALS).exists() {
            return Ok(false);
        }
        let trials = load(&folder)?;
        for trial in &trials {
            same_run(&self.identity, trial).map_err(|what| {
                Error::Usage(format!("{}: its results are of another run ({what})", folder.display()))
            })?;
        }
        Ok(trials.len() >= self.trials)
    }
}

/// A sweep, every point of which has been checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// Version of the results.
    pub schema: u32,
    /// Workload or model.
    pub name: String,
    /// The points, in the order of their numbers.
    pub points: Vec<Point>,
}

/// Where points run.
pub trait Engine {
    /// Runs the missing points; each leaves its result in `points/ID` of `output`. `done` is called for each point that
    /// has ended, with its failure. Returns early if `stop` is set, or if it cannot continue.
    fn run(
        &self,
        due: &[&Point],
        output: &Path,
        lock: &File,
        stop: &AtomicBool,
        done: &mut dyn FnMut(&Point, Option<String>),
    ) -> Result<()>;
}

/// How a sweep ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Points that ran in this call.
    pub ran: usize,
    /// Points that already had a result.
    pub there: usize,
    /// Points that did not complete, with the reason.
    pub incomplete: Vec<(String, String)>,
    /// Failed trials of all points: point, contestant and reason.
    pub failed: Vec<(String, String)>,
}

/// Runs the points that have no result yet, then merges. Finished trials are kept, whatever happens.
pub fn run(sweep: &Sweep, engine: &dyn Engine, output: &Path, quiet: bool, stop: &AtomicBool) -> Result<Summary> {
    if output.join(TRIALS).exists() && !output.join(SWEEP).exists() {
        let shown = output.display();
        return Err(Error::Usage(format!("{shown}: its results are of a run, not of a sweep: choose another")));
    }
    let points = output.join(POINTS);
    std::fs::create_dir_all(&points).map_err(Error::file(&points))?;
    let lock = lock(output)?;
    same_sweep(sweep, output)?;
    let mut due = Vec::new();
    for point in &sweep.points {
        if !point.is_complete(output)? {
            due.push(point);
        }
    }
    let mut summary = Summary { there: sweep.points.len() - due.len(), ..Summary::default() };
    let bar = progress(due.len() as u64, quiet);
    let ended = engine.run(&due, output, &lock, stop, &mut |point, failure| {
        bar.inc(1);
        bar.set_message(point.id.clone());
        match failure {
            None => summary.ran += 1,
            Some(why) => summary.incomplete.push((point.id.clone(), why)),
        }
    });
    bar.finish_and_clear();
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    ended?;
    if summary.incomplete.is_empty() {
        summary.failed = merge(sweep, output)?;
    }
    Ok(summary)
}

fn lock(output: &Path) -> Result<File> {
    let path = output.join(".lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(Error::file(&path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Usage(format!(
            "{}: another sweep is at work here, or a point that it left running: wait for its end",
            output.display()
        ))),
        Err(e) => Err(Error::file(&path)(e.into())),
    }
}

/// Records the sweep. Refuses a directory with another sweep, and names the first difference.
fn same_sweep(sweep: &Sweep, output: &Path) -> Result<()> {
    let path = output.join(SWEEP);
    let shown = path.display();
    let refuse = |what: String| {
        Err(Error::Usage(format!("{}: its results are of another sweep ({what}): choose another", output.display())))
    };
    match std::fs::read(&path) {
        Ok(text) => {
            let there: Sweep = serde_json::from_slice(&text)
                .map_err(|e| Error::Failed(format!("{shown}: {e}: it was damaged, or written by another version")))?;
            if there.schema != sweep.schema {
                return refuse(format!("schema {} there, {} here", there.schema, sweep.schema));
            }
            if there.name != sweep.name {
                return refuse(format!("{} there, {} here", there.name, sweep.name));
            }
            for (a, b) in there.points.iter().zip(&sweep.points) {
                if let Err(what) = crate::run::same_identity(&b.identity, &a.identity) {
                    return refuse(format!("point {}: {what}", b.id));
                }
                if a != b {
                    return refuse(format!("point {} there, {} here", a.id, b.id));
                }
            }
            match (there.points.len(), sweep.points.len()) {
                (a, b) if a != b => refuse(format!("{a} points there, {b} here")),
                _ => Ok(()),
            }
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let text = serde_json::to_vec_pretty(sweep).map_err(|e| Error::Failed(e.to_string()))?;
            replace(&path, &text)
        }
        Err(e) => Err(Error::file(&path)(e)),
    }
}

/// Replaces a file atomically, or leaves the old one.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    // The umask applies, as for any file.
    let mut file = tempfile::Builder::new()
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(Error::file(folder))?;
    file.write_all(bytes).and_then(|()| file.as_file().sync_all()).map_err(Error::file(path))?;
    file.persist(path).map_err(|e| Error::file(path)(e.error)).map(drop)
}

/// Merges the points into one result, with the swept values in each trial. Returns the trials that failed.
fn merge(sweep: &Sweep, output: &Path) -> Result<Vec<(String, String)>> {
    let (mut text, mut failed) = (Vec::new(), Vec::new());
    for point in &sweep.points {
        let folder = point.folder(output);
        let mut trials = load(&folder)?;
        trials.sort_by_key(|t| (t.round, t.place));
        for mut trial in trials {
            same_run(&point.identity, &trial)
                .map_err(|what| Error::Usage(format!("{}: not of this sweep ({what})", folder.display())))?;
            if let crate::result::Outcome::Failed(why) = &trial.outcome {
                failed.push((format!("{} {}", point.id, trial.contestant.label), why.clone()));
            }
            trial.point = point.values.iter().cloned().collect();
            if point.exact {
                without_machine(&mut trial, point);
            }
            serde_json::to_writer(&mut text, &trial).map_err(|e| Error::Failed(e.to_string()))?;
            text.push(b'\n');
        }
    }
    replace(&output.join(TRIALS), &text)?;
    Ok(failed)
}

/// Keeps only data that follows from the program and the seed.
fn without_machine(trial: &mut Trial, point: &Point) {
    (trial.started_s, trial.started_ns) = (0, 0);
    // The empty loop shows the cost of reading this machine's clock.
    trial.phases.retain(|phase| point.virtual_time && phase.name != EMPTY);
    trial.latency.retain(|phase, _| point.virtual_time && phase != EMPTY);
    let there = std::mem::take(&mut trial.environment);
    trial.environment = Environment {
        version: there.version,
        commit: there.commit,
        profile: there.profile,
        command: std::iter::once("extant".to_owned()).chain(point.arguments.iter().cloned()).collect(),
        ..Environment::default()
    };
}

fn progress(points: u64, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(points);
    if quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} points, {elapsed} ({eta} left)  {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}

/// A sweep of these points.
pub fn sweep(name: &str, points: Vec<Point>) -> Sweep {
    Sweep { schema: SCHEMA, name: name.to_owned(), points }
}
