//! One trial: a new image, the work, the unmount, the check.
//!
//! Main types: [`Job`], [`Halt`] (why a trial must stop).
//!
//! # Locking
//! None: a second thread watches the clock and the user, and ends the server of the trial.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use rustix::process::{Pid, Signal, kill_process};

use super::Config;
use super::elsewhere::Elsewhere;
use crate::environment::{device_under, load_average};
use crate::error::{Error, Result};
use crate::measure::process::{Cpu, Memory, Switches, Threads};
use crate::measure::system::System;
use crate::measure::{Figures, extents, latency};
use crate::result::{Environment, Identity, Outcome, Phase, SCHEMA, Trial, WorkloadRun};
use crate::target::{Evidence, ImagePlan, Kind, Made, Rig, Site};
use crate::vfs::Histograms;
use crate::workload::{Context, Parameters, Settled, Workload, ends_early};

/// Name of the phase that ends every trial: from the end of the work until the image is durable.
pub const UNMOUNT: &str = "unmount";

/// A trial to run.
pub struct Job<'a> {
    pub config: &'a Config,
    pub workload: &'static dyn Workload,
    pub parameters: &'a Parameters,
    pub images: &'a ImagePlan,
    pub rig: &'a Rig,
    pub run: &'a WorkloadRun,
    pub identity: &'a Identity,
    /// Where the trial runs, if not in this process.
    pub elsewhere: Option<&'a Elsewhere>,
    pub round: u32,
    pub place: u32,
    pub environment: &'a Environment,
}

/// The results of the work.
#[derive(Default)]
struct Work {
    phases: Vec<Phase>,
    histograms: Histograms,
    figures: Figures,
    evidence: Evidence,
    output: String,
    flaws: Vec<String>,
}

/// Why a trial must stop early.
pub struct Halt<'a> {
    user: &'a AtomicBool,
    /// The flag that the work polls.
    stop: AtomicBool,
    expired: AtomicBool,
    /// The process that serves the mount; 0 for none.
    server: Arc<AtomicU32>,
    over: AtomicBool,
}

impl<'a> Halt<'a> {
    fn new(user: &'a AtomicBool) -> Halt<'a> {
        Halt {
            user,
            stop: AtomicBool::new(false),
            expired: AtomicBool::new(false),
            server: Arc::default(),
            over: AtomicBool::new(false),
        }
    }

    /// Whether the user or the time limit requests the end.
    pub fn is_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The body of the watching thread.
    fn watch(&self, timeout_s: Option<u64>) {
        let clock = Clock::real();
        let end = timeout_s.map(|s| clock.now_ns().saturating_add(s.saturating_mul(1_000_000_000)));
        while !self.over.load(Ordering::Relaxed) {
            if self.user.load(Ordering::Relaxed) {
                self.stop.store(true, Ordering::Relaxed);
            }
            if end.is_some_and(|end| clock.now_ns() >= end) {
                self.expired.store(true, Ordering::Relaxed);
                self.stop.store(true, Ordering::Relaxed);
            }
            if self.is_set()
                && let Some(server) = Pid::from_raw(self.server.swap(0, Ordering::Relaxed) as i32)
            {
                // Threads that wait for a reply get an error now, and the image is discarded.
                let _ = kill_process(server, Signal::KILL);
            }
            clock.sleep(Duration::from_millis(20));
        }
    }
}

impl Job<'_> {
    /// Runs the trial. Errors of the target are in the trial; a returned error is that of the lab itself, or an
    /// interruption.
    pub fn run(&self, user: &AtomicBool, say: &dyn Fn(&str)) -> Result<Trial> {
        let halt = Halt::new(user);
        let trial = std::thread::scope(|scope| {
            scope.spawn(|| halt.watch(self.config.timeout_s));
            let trial = match self.elsewhere {
                Some(elsewhere) => {
                    say("in a process of its own");
                    Ok(self.adopted(elsewhere.trial(self.rig, self.config, self.images, &halt)))
                }
                None => self.run_here(&halt, say),
            };
            halt.over.store(true, Ordering::Relaxed);
            trial
        });
        if user.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let mut trial = trial?;
        if let (true, Some(s)) = (halt.expired.load(Ordering::Relaxed), self.config.timeout_s) {
            trial.outcome = Outcome::Failed(format!("it had not ended after {s} s (--timeout)"));
        }
        Ok(trial)
    }

    /// A trial of this run, without figures.
    fn empty(&self) -> Trial {
        let started = Clock::real().wall();
        let mut environment = self.environment.clone();
        environment.load = load_average();
        environment.memory_limit_bytes = self.rig.target.memory.or(self.config.memory);
        environment.device = device_under(&self.rig.target.path);
        if self.rig.target.kind != Kind::Dir {
            environment.mkfs = self.images.command();
            environment.image_bytes = self.images.bytes;
        }
        Trial {
            schema: SCHEMA,
            workload: self.run.clone(),
            contestant: self.rig.contestant.clone(),
            point: BTreeMap::new(),
            round: self.round,
            place: self.place,
            started_s: started.sec.max(0) as u64,
            started_ns: started.nsec,
            environment,
            recorded: Some(self.config.recorded.to_string()),
            identity: Some(self.identity.clone()),
            flaws: Vec::new(),
            outcome: Outcome::Unchecked,
            output: String::new(),
            phases: Vec::new(),
            latency: BTreeMap::new(),
            measures: BTreeMap::new(),
            locks: Vec::new(),
            groups: BTreeMap::new(),
            chunks: Vec::new(),
        }
    }

    /// The record of another process, as a trial of this run.
    fn adopted(&self, other: Result<Trial>) -> Trial {
        let mut trial = self.empty();
        match other {
            Err(e) => trial.outcome = Outcome::Failed(e.to_string()),
            Ok(other) if other.workload.parameters != self.run.parameters => {
                trial.outcome = Outcome::Failed(format!(
                    "its program has other parameters for this workload: {:?}",
                    other.workload.parameters
                ));
            }
            Ok(other) if ends_early(&other) => {
                trial.outcome = Outcome::Failed(
                    "its program stops the clock of this workload before the work is durable: not the same figure"
                        .into(),
                );
            }
            Ok(other) => {
                trial.environment.features = other.environment.features;
                trial.environment.mount_options = other.environment.mount_options;
                trial.flaws = other.flaws;
                trial.outcome = other.outcome;
                trial.output = other.output;
                trial.phases = other.phases;
                trial.latency = other.latency;
                trial.measures = other.measures;
                trial.locks = other.locks;
                trial.groups = other.groups;
                trial.chunks = other.chunks;
            }
        }
        trial
    }

    fn run_here(&self, halt: &Halt, say: &dyn Fn(&str)) -> Result<Trial> {
        let mut trial = self.empty();
        say("making the image");
        let image = match self.rig.target.kind {
            Kind::Dir => None,
            _ => Some(self.images.make(&self.rig.target.path)?),
        };
        trial.environment.features = image.as_ref().map(Made::features).unwrap_or_default();
        let (work, result) = self.work(halt, say);
        if halt.is_set() {
            return Ok(trial);
        }
        say("checking");
        let mut figures = work.figures;
        if let Some(image) = &image {
            extents::figures(image.path(), &mut figures);
        }
        trial.flaws = [self.flaws(&figures), work.evidence.flaws, work.flaws].concat();
        trial.output = work.output;
        trial.outcome = outcome(result, image.as_ref());
        trial.phases = work.phases;
        trial.latency = latency::records(&work.histograms)?;
        trial.measures = figures.into_iter().filter(|(_, value)| value.is_finite()).collect();
        trial.environment.mount_options = work.evidence.mount_options;
        trial.locks = work.evidence.locks;
        trial.groups = work.evidence.groups;
        trial.chunks = work.evidence.chunks;
        Ok(trial)
    }

    /// Flaws: too many or too few files.
    fn flaws(&self, figures: &Figures) -> Vec<String> {
        if self.images.is_copy() {
            // The expected number is unknown.
            return Vec::new();
        }
        let (Some(left), Some(expected)) = (figures.get("files_left"), self.workload.leaves(self.parameters)) else {
            return Vec::new();
        };
        let differs = *left != expected as f64;
        differs.then(|| format!("files_left is {left}, the workload leaves {expected}")).into_iter().collect()
    }

    /// Mounts, runs the workload, and unmounts. If it fails, returns the figures measured so far with the error.
    fn work(&self, halt: &Halt, say: &dyn Fn(&str)) -> (Work, Result<()>) {
        let mut work = Work::default();
        let result = self.work_into(&mut work, halt, say);
        (work, result)
    }

    fn work_into(&self, work: &mut Work, halt: &Halt, say: &dyn Fn(&str)) -> Result<()> {
        let config = self.config;
        let image = &self.rig.target.path;
        let mut site = Site::new(self.rig, image, &config.program, config.seed, config.recorded, halt.server.clone())?;
        crate::target::drop_caches(image);
        let before = System::now();
        let (cpu_before, threads_before) = (Cpu::of_self(), Threads::of(None));
        say("mounting");
        let clock = Clock::real();
        let start = clock.now_ns();
        site.up()?;
        if self.rig.target.kind != Kind::Dir {
            work.figures.insert("mount_s".into(), (clock.now_ns() - start) as f64 / 1e9);
        }
        let operations = config.operations.as_deref();
        let mut context =
            Context::new(&mut site, self.parameters, config.seed, config.recorded.latency, &halt.stop, operations, say);
        if self.workload.durable(self.parameters) {
            context.until_durable(self.workload.headline());
        }
        let result = self.workload.run(&mut context);
        let unsettled = context.headline();
        work.phases = std::mem::take(&mut context.phases);
        work.histograms = std::mem::take(&mut context.histograms);
        let mut switches = context.switches;
        let said = std::mem::take(&mut context.said);
        work.output = std::mem::take(&mut context.output);
        drop(context);
        work.flaws = said.flaws;
        work.figures.extend(said.figures);
        result?;
        // Read before anything is closed.
        System::now().memory_since(&before, &mut work.figures);
        if let Some(anon) = Memory::of(None).anon {
            work.figures.insert("memory_workload_bytes".into(), anon as f64);
        }
        switches += Threads::of(None).since(&threads_before);
        site.observe();
        say("unmounting");
        let settled = site.settle()?;
        let cpu = Cpu::of_self();
        System::now().busy_since(&before, &mut work.figures);
        let mut evidence = site.finish()?;
        if let Some(headline) = work.phases.iter_mut().find(|p| Some(p.name.as_str()) == unsettled) {
            headline.settle(&settled);
        }
        let Settled { seconds, measures } = settled;
        work.phases.push(Phase { name: UNMOUNT.into(), seconds, operations: 1, measures, ..Phase::default() });
        work.figures.append(&mut evidence.figures);
        if let (Some(before), Some(now)) = (cpu_before, cpu) {
            let mut cpu = now - before;
            cpu += evidence.server_cpu;
            work.figures.insert("cpu_s".into(), cpu.user_s + cpu.system_s);
            work.figures.insert("cpu_user_s".into(), cpu.user_s);
            work.figures.insert("cpu_system_s".into(), cpu.system_s);
        }
        switches += evidence.server_switches.unwrap_or_else(Switches::default);
        work.figures.insert("switches_voluntary".into(), switches.voluntary as f64);
        work.figures.insert("switches_involuntary".into(), switches.involuntary as f64);
        work.evidence = evidence;
        Ok(())
    }
}

fn outcome(work: Result<()>, image: Option<&Made>) -> Outcome {
    if let Err(e) = work {
        return Outcome::Failed(e.to_string());
    }
    match image.map(Made::check) {
        None => Outcome::Unchecked,
        Some(Ok(None)) => Outcome::Checked,
        Some(Ok(Some(said))) => Outcome::Failed(said),
        Some(Err(e)) => Outcome::Failed(e.to_string()),
    }
}
