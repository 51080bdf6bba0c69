//! One trial: a fresh image, the work, the unmount, the check.
//!
//! Main type: [`Job`].
//!
//! # Locking
//! None.

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};

use super::Config;
use crate::environment::device_under;
use crate::error::{Error, Result};
use crate::measure::process::{Cpu, Memory, Switches, Threads};
use crate::measure::system::System;
use crate::measure::{Figures, extents, latency};
use crate::result::{Environment, Outcome, Phase, SCHEMA, Trial, WorkloadRun};
use crate::target::{Evidence, ImagePlan, Kind, Made, Rig, Site};
use crate::vfs::Histograms;
use crate::workload::{Context, Parameters, Workload};

/// Name of the phase that ends every trial: from the end of the work until the image is durable.
pub const UNMOUNT: &str = "unmount";

/// A trial to do.
pub struct Job<'a> {
    pub config: &'a Config,
    pub workload: &'static dyn Workload,
    pub parameters: &'a Parameters,
    pub images: &'a ImagePlan,
    pub rig: &'a Rig,
    pub run: &'a WorkloadRun,
    pub round: u32,
    pub place: u32,
    pub environment: &'a Environment,
}

/// What the work left.
#[derive(Default)]
struct Work {
    phases: Vec<Phase>,
    histograms: Histograms,
    figures: Figures,
    evidence: Evidence,
}

impl Job<'_> {
    /// Does it. What fails in the target is in the trial; an error is the lab's own, or an interruption.
    pub fn run(&self, stop: &AtomicBool, say: &dyn Fn(&str)) -> Result<Trial> {
        let started_s = Clock::real().wall().sec.max(0) as u64;
        let mut environment = self.environment.clone();
        let target = &self.rig.target;
        say("making the image");
        let image = match target.kind {
            Kind::Dir => None,
            _ => Some(self.images.make(&target.path)?),
        };
        environment.device = device_under(&target.path);
        if let Some(image) = &image {
            environment.mkfs = self.images.command();
            environment.image_bytes = self.images.bytes;
            environment.features = image.features();
        }
        let (work, result) = self.work(stop, say);
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        say("checking");
        let mut figures = work.figures;
        if let Some(image) = &image {
            extents::figures(image.path(), &mut figures);
        }
        Ok(Trial {
            schema: SCHEMA,
            workload: self.run.clone(),
            contestant: self.rig.contestant.clone(),
            round: self.round,
            place: self.place,
            started_s,
            environment,
            recorded: Some(self.config.recorded.to_string()),
            flaws: [self.flaws(&figures), work.evidence.flaws].concat(),
            outcome: outcome(result, image.as_ref()),
            phases: work.phases,
            latency: latency::records(&work.histograms)?,
            measures: figures.into_iter().filter(|(_, value)| value.is_finite()).collect(),
            locks: work.evidence.locks,
            groups: work.evidence.groups,
        })
    }

    /// Files that should be gone, or there.
    fn flaws(&self, figures: &Figures) -> Vec<String> {
        let (Some(left), Some(expected)) = (figures.get("files_left"), self.workload.leaves(self.parameters)) else {
            return Vec::new();
        };
        let differs = *left != expected as f64;
        differs.then(|| format!("files_left is {left}, the workload leaves {expected}")).into_iter().collect()
    }

    /// Mounts, works, unmounts. What was measured before a failure is returned with it.
    fn work(&self, stop: &AtomicBool, say: &dyn Fn(&str)) -> (Work, Result<()>) {
        let mut work = Work::default();
        let result = self.work_into(&mut work, stop, say);
        (work, result)
    }

    fn work_into(&self, work: &mut Work, stop: &AtomicBool, say: &dyn Fn(&str)) -> Result<()> {
        let config = self.config;
        let image = &self.rig.target.path;
        let mut site = Site::new(self.rig, image, &config.program, config.recorded)?;
        crate::target::drop_caches(image);
        let before = System::now();
        let (cpu_before, threads_before) = (Cpu::of_self(), Threads::of(None));
        say("mounting");
        site.up()?;
        let operations = config.operations.as_deref();
        let mut context =
            Context::new(&mut site, self.parameters, config.seed, config.recorded.latency, stop, operations, say);
        let result = self.workload.run(&mut context);
        work.phases = std::mem::take(&mut context.phases);
        work.histograms = std::mem::take(&mut context.histograms);
        let mut switches = context.switches;
        drop(context);
        // Before anything is let go of.
        System::now().memory_since(&before, &mut work.figures);
        if let Some(anon) = Memory::of(None).anon {
            work.figures.insert("memory_workload_bytes".into(), anon as f64);
        }
        switches += Threads::of(None).since(&threads_before);
        site.observe();
        say("unmounting");
        let clock = Clock::real();
        let start = clock.now_ns();
        site.down()?;
        if self.rig.target.kind != Kind::Dir {
            let file = std::fs::File::open(image).map_err(Error::file(image))?;
            file.sync_all().map_err(Error::file(image))?;
        }
        let seconds = (clock.now_ns() - start) as f64 / 1e9;
        result?;
        let cpu = Cpu::of_self();
        System::now().busy_since(&before, &mut work.figures);
        let mut evidence = site.finish()?;
        if self.workload.durable()
            && let Some(headline) = work.phases.iter_mut().find(|p| p.name == self.workload.headline())
        {
            headline.seconds += seconds;
        }
        work.phases.push(Phase { name: UNMOUNT.into(), seconds, operations: 1, bytes: 0 });
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
