//! Models: a single mechanism, in this process, without an image. Its policies are the contestants.
//!
//! Main types: [`Model`] (one file a mechanism, named in [`all`]), [`Bench`] (the tools of a running model),
//! [`Config`]; [`run`] does a run. State is built from a seed, so a trial's counts are exact: the same in every round,
//! or the trial is flawed. Only counts that depend on the order of threads (`tags`, `es-stall`, `alloc-threads`,
//! `engine`) are measured; these four also run on modelled processors ([`processors`]), where the seed decides that
//! order. Times stand beside those of the same loop around nothing (phase [`EMPTY`]).
//!
//! Trials have the form of those of workloads, so `compare` and `report` take both.
//!
//! What it does not do: I/O. Only `engine` has a whole file system, in memory. Workloads show the effect of a policy on
//! a whole one.
//!
//! # Locking
//! None of its own.

mod alloc_threads;
mod append;
mod belady;
mod disk;
mod engine;
mod es_memory;
mod es_shrink;
mod es_stall;
mod es_traces;
mod group_search;
pub mod processors;
mod reclaim;
mod reclaim_traces;
mod tags;
mod zipf;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::{Path, PathBuf};

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use hdrhistogram::Histogram;

use crate::environment::{self, Build};
use crate::error::{Error, Result};
use crate::measure::{Figures, Recorded, latency};
use crate::result::{Contestant, Environment, Identity, LockRow, Outcome, Phase, SCHEMA, Trial, WorkloadRun};
use crate::run::{Store, Summary, identity_of, load, order};
use crate::workload::Parameters;

/// The phase with as many repetitions of nothing as the model's work has.
pub const EMPTY: &str = "empty";

/// A single mechanism. Implementers hold no state: everything comes from the parameters and the seed.
pub trait Model: Send + Sync {
    /// Stable name.
    fn name(&self) -> &'static str;
    /// Its description, in one line.
    fn summary(&self) -> &'static str;
    /// The count that verdicts are about; less of it is better.
    fn headline(&self) -> &'static str;
    /// The contestants.
    fn policies(&self) -> Table;
    /// Default parameters.
    fn parameters(&self) -> Parameters;
    /// Refuses parameters that make no sense.
    fn check(&self, parameters: &Parameters) -> Result<()>;
    /// Whether all of its figures but times depend on the seed alone: not on the speed or number of processors.
    fn is_exact(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        true
    }
    /// Whether its times are virtual, too, and depend on the seed alone.
    fn has_virtual_time(&self, parameters: &Parameters) -> bool {
        let _ = parameters;
        false
    }
    /// Its code, for [`processors::calibrate`]: of models that can run on modelled processors.
    #[doc(hidden)]
    fn profiled(&self) -> Vec<processors::Profiled> {
        Vec::new()
    }
    /// Builds the state, works under the policy called `policy`, and counts.
    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()>;
}

/// Every model.
pub fn all() -> &'static [&'static dyn Model] {
    &[
        &group_search::GroupSearch,
        &append::Append,
        &alloc_threads::AllocThreads,
        &engine::Engine,
        &es_shrink::EsShrink,
        &es_memory::EsMemory,
        &es_stall::EsStall,
        &es_traces::EsTraces,
        &reclaim_traces::ReclaimTraces,
        &reclaim::Reclaim,
        &tags::Tags,
    ]
}

/// The model called `name`.
pub fn find(name: &str) -> Result<&'static dyn Model> {
    let found = all().iter().find(|m| m.name() == name).copied();
    found.ok_or_else(|| Error::unknown("model", name, all().iter().map(|m| m.name())))
}

/// The tools of a running model: random numbers, a clock, and the counts.
pub struct Bench<'a> {
    seed: u64,
    round: u32,
    stop: &'a AtomicBool,
    phases: Vec<Phase>,
    latency: BTreeMap<String, Histogram<u64>>,
    counts: Figures,
    measured: Figures,
    locks: Vec<LockRow>,
}

impl<'a> Bench<'a> {
    fn new(seed: u64, round: u32, stop: &'a AtomicBool) -> Bench<'a> {
        Bench {
            seed,
            round,
            stop,
            phases: Vec::new(),
            latency: BTreeMap::new(),
            counts: Figures::new(),
            measured: Figures::new(),
            locks: Vec::new(),
        }
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Another number for each round, from the run's seed: for figures that are [`measured`](Bench::measured).
    fn seed_of_round(&self) -> u64 {
        self.seed ^ u64::from(self.round) << 32
    }

    /// Random numbers that depend only on the seed.
    pub fn rng(&self) -> Rng {
        Rng::new(self.seed)
    }

    /// Whether the user has asked for an end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// An exact count.
    pub fn count(&mut self, name: &str, n: u64) {
        self.counts.insert(name.to_owned(), n as f64);
    }

    /// Runs `work` `operations` times and records the time of each, in the phase `phase`; `prepare`, which makes its
    /// input, is not timed. With the first phase also as many repetitions of nothing, to show the cost of reading the
    /// clock.
    pub fn time<S, I>(
        &mut self,
        phase: &str,
        operations: u64,
        state: &mut S,
        prepare: impl Fn(&mut S, u64) -> Result<I>,
        work: impl Fn(&mut S, I) -> Result<()>,
    ) -> Result<()> {
        self.time_while(phase, state, |state, i| (i < operations).then(|| prepare(state, i)).transpose(), work)
    }

    /// The same, until `prepare` has nothing more to do.
    fn time_while<S, I>(
        &mut self,
        phase: &str,
        state: &mut S,
        prepare: impl Fn(&mut S, u64) -> Result<Option<I>>,
        work: impl Fn(&mut S, I) -> Result<()>,
    ) -> Result<()> {
        let clock = Clock::real();
        let first = self.phases.is_empty();
        let mut all = empty_histogram()?;
        let (mut operations, mut ns) = (0, 0);
        while let Some(input) = prepare(state, operations)? {
            if self.is_stopped() {
                return Err(Error::Interrupted);
            }
            let start = clock.now_ns();
            let done = work(state, black_box(input));
            let took = clock.now_ns() - start;
            operations += 1;
            ns += took;
            all.saturating_record(took);
            done?;
        }
        self.took(phase, operations, ns, all);
        if first { self.empty(operations) } else { Ok(()) }
    }

    /// Repeats nothing as many times.
    fn empty(&mut self, operations: u64) -> Result<()> {
        let clock = Clock::real();
        let mut all = empty_histogram()?;
        let mut ns = 0;
        for i in 0..operations {
            let start = clock.now_ns();
            black_box(i);
            let took = clock.now_ns() - start;
            ns += took;
            all.saturating_record(took);
        }
        self.took(EMPTY, operations, ns, all);
        Ok(())
    }

    /// A figure that differs between trials, because it depends on the speed of threads.
    fn measured(&mut self, name: &str, value: f64) {
        self.measured.insert(name.to_owned(), value);
    }

    /// Whether the run was interrupted.
    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn took(&mut self, phase: &str, operations: u64, ns: u64, all: Histogram<u64>) {
        self.latency.insert(phase.to_owned(), all);
        self.phases.push(Phase { name: phase.to_owned(), seconds: ns as f64 / 1e9, operations, ..Phase::default() });
    }
}

/// A thread that does not start.
fn thread(e: std::io::Error) -> Error {
    Error::Failed(format!("a thread: {e}"))
}

/// To a minute, with three digits.
fn empty_histogram() -> Result<Histogram<u64>> {
    Histogram::new_with_max(60_000_000_000, 3).map_err(|e| Error::Failed(e.to_string()))
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the model.
    pub model: String,
    /// Names of the policies that compete; empty: all, the default first.
    pub policies: Vec<String>,
    /// `NAME=VALUE`: parameters that differ from the model's own.
    pub settings: Vec<String>,
    /// How many times each policy runs.
    pub rounds: u32,
    /// Of everything random.
    pub seed: u64,
    /// Directory of the results; made if it is not there.
    pub output: PathBuf,
    /// How the program was built.
    pub build: Build,
    /// The command line, for the record.
    pub command: Vec<String>,
}

/// A run of which every part has been checked.
struct Plan {
    model: &'static dyn Model,
    parameters: Parameters,
    contestants: Vec<(&'static str, Contestant)>,
}

fn plan(config: &Config) -> Result<Plan> {
    let model = find(&config.model)?;
    if config.rounds == 0 {
        return Err(Error::Usage("a run needs at least one round".into()));
    }
    let mut parameters = model.parameters();
    for setting in &config.settings {
        parameters.set(setting)?;
    }
    model.check(&parameters)?;
    let table = model.policies();
    let mut names: Vec<&'static str> = Vec::new();
    for name in &config.policies {
        let row = table.find(name);
        let row = row.map_err(|_| Error::unknown(table.option, name, table.rows.iter().map(|r| r.name)))?;
        if names.contains(&row.name) {
            return Err(Error::Usage(format!("{name} is given twice")));
        }
        names.push(row.name);
    }
    if names.is_empty() {
        names = table.default_first().map(|row| row.name).collect();
    }
    let contestant = |name: &'static str| {
        let contestant = Contestant {
            label: format!("{}={name}", table.option),
            kind: "model".into(),
            options: String::new(),
            policies: BTreeMap::from([(table.option.to_owned(), name.to_owned())]),
            program: None,
        };
        (name, contestant)
    };
    Ok(Plan { model, parameters, contestants: names.into_iter().map(contestant).collect() })
}

/// Facts about a run before it begins.
pub struct Checked {
    /// Everything that shapes its trials.
    pub identity: Identity,
    /// Trials that it has when it is complete.
    pub trials: usize,
    /// See [`Model::is_exact`].
    pub exact: bool,
    /// See [`Model::has_virtual_time`].
    pub virtual_time: bool,
}

/// Checks a configuration without running or writing anything.
pub fn check(config: &Config) -> Result<Checked> {
    let plan = plan(config)?;
    let identity = identity_of(&workload_run(&plan, config), config.build, plan.contestants.iter().map(|(_, c)| c));
    let trials = plan.contestants.len() * config.rounds as usize;
    let exact = plan.model.is_exact(&plan.parameters);
    let virtual_time = exact && plan.model.has_virtual_time(&plan.parameters);
    Ok(Checked { identity, trials, exact, virtual_time })
}

fn workload_run(plan: &Plan, config: &Config) -> WorkloadRun {
    WorkloadRun {
        name: format!("model/{}", plan.model.name()),
        scale: 1.0,
        seed: config.seed,
        parameters: plan.parameters.values().clone(),
        headline: plan.model.headline().to_owned(),
    }
}

/// Runs the models that `config` names. `stop` (Ctrl-C) ends it; finished trials are in the results.
pub fn run(config: &Config, stop: &AtomicBool) -> Result<Summary> {
    let plan = plan(config)?;
    let run = workload_run(&plan, config);
    let environment = environment::of_this_machine(&config.command, config.build);
    let mut summary = Summary::default();
    let identity = identity_of(&run, config.build, plan.contestants.iter().map(|(_, c)| c));
    let mut store = Store::open(&config.output, &identity, plan.contestants.iter().map(|(_, c)| c))?;
    let mut first: BTreeMap<String, Figures> = BTreeMap::new();
    for trial in load(&config.output)?.into_iter().filter(Trial::usable) {
        first.entry(trial.contestant.label).or_insert(trial.measures);
    }
    for round in 0..config.rounds {
        for (place, which) in order(config.seed, round, plan.contestants.len()).into_iter().enumerate() {
            let (policy, contestant) = &plan.contestants[which];
            if store.has(&contestant.label, round) {
                summary.skipped += 1;
                continue;
            }
            let started = Clock::real().wall();
            let mut bench = Bench::new(config.seed, round, stop);
            let done = plan.model.run(policy, &plan.parameters, &mut bench);
            let outcome = match done {
                Ok(()) => Outcome::Unchecked,
                Err(Error::Interrupted) => return Err(Error::Interrupted),
                Err(e) => Outcome::Failed(e.to_string()),
            };
            let mut flaws = Vec::new();
            if matches!(outcome, Outcome::Unchecked) {
                let before = first.entry(contestant.label.clone()).or_insert_with(|| bench.counts.clone());
                if bench.counts.iter().any(|(name, n)| before.get(name) != Some(n)) {
                    flaws.push("its counts are not those of its first trial, though the seed is".to_owned());
                }
            }
            match &outcome {
                Outcome::Failed(why) => summary.failed.push((contestant.label.clone(), round, why.clone())),
                _ => summary.usable += 1,
            }
            let latency = bench.latency.iter().map(|(phase, all)| Ok((phase.clone(), latency::record(all)?)));
            let latency = latency.collect::<Result<_>>()?;
            store.append(&Trial {
                schema: SCHEMA,
                workload: run.clone(),
                contestant: contestant.clone(),
                point: BTreeMap::new(),
                round,
                place: place as u32,
                started_s: started.sec.max(0) as u64,
                started_ns: started.nsec,
                environment: Environment { load: environment::load_average(), ..environment.clone() },
                recorded: Some(Recorded::NONE.to_string()),
                identity: Some(identity.clone()),
                outcome,
                flaws,
                output: String::new(),
                phases: bench.phases,
                latency,
                measures: bench.counts.into_iter().chain(bench.measured).collect(),
                locks: bench.locks,
                groups: BTreeMap::new(),
                chunks: Vec::new(),
            })?;
        }
    }
    Ok(summary)
}

/// The operations of the trials in `output`, over all rounds, as ministat(1) gives them: microseconds.
pub fn ministat(output: &Path) -> Result<String> {
    let mut all: Vec<(String, String, Histogram<u64>)> = Vec::new();
    for trial in load(output)?.iter().filter(|t| t.usable()) {
        for (operation, record) in &trial.latency {
            let samples = latency::histogram(record)?;
            match all.iter_mut().find(|(o, l, _)| o == operation && *l == trial.contestant.label) {
                Some((.., sum)) => sum.add(samples).map_err(|e| Error::Failed(e.to_string()))?,
                None => all.push((operation.clone(), trial.contestant.label.clone(), samples)),
            }
        }
    }
    all.sort_by(|a, b| (a.0 == EMPTY, &a.0).cmp(&(b.0 == EMPTY, &b.0)));
    let us = |ns: f64| format!("{:.3}", ns / 1e3);
    let width = all.iter().map(|(.., label, _)| label.len()).max().unwrap_or(0);
    let line = |operation: &str, label: &str, cells: [&str; 8]| {
        let cells: String = cells.iter().map(|c| format!(" {c:>9}")).collect();
        format!("{operation:16} {label:width$}{cells}\n")
    };
    let mut table = line("us", "", ["N", "Min", "Max", "Median", "Avg", "Stddev", "p99", "p99.9"]);
    for (operation, label, h) in &all {
        let at = |q: f64| us(h.value_at_quantile(q) as f64);
        let cells = [
            h.len().to_string(),
            us(h.min() as f64),
            us(h.max() as f64),
            at(0.5),
            us(h.mean()),
            us(h.stdev()),
            at(0.99),
            at(0.999),
        ];
        table += &line(operation, label, cells.each_ref().map(String::as_str));
    }
    Ok(table)
}

#[cfg(test)]
mod tests;
