//! Models on processors in virtual time: the code of the policies, unchanged, on as many processors as a machine might
//! have, with costs that were measured on this one.
//!
//! Main types: [`CostTable`] (the costs of locks, cache lines, switches and code, made by [`calibrate`]), `Modelled`
//! (a run). Each run is repeated with the costs of locks, lines, switches and wakes at half and at twice their value,
//! because they differ between machines: a figure is a range, and a difference that changes its sign within the
//! range is none.
//!
//! What it does not do: sockets, hyperthreads, caches that are too small, an operating system. Costs are of one socket
//! with a shared cache.
//!
//! # Locking
//! None of its own.

mod calibrate;
mod hardware;

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sim::{self, Code, CodeTable, ContentionCost, Costs};
use serde::{Deserialize, Serialize};

pub use calibrate::{Profiled, Shared, calibrate};

use super::Bench;
use crate::error::{Error, Result};
use crate::result::LockRow;
use crate::workload::Parameters;

/// Most processors of a modelled machine.
pub(super) const PROCESSORS_MAX: u64 = 128;

/// The name of the table that the program was built with.
const BUILTIN: &str = "builtin";

/// Measured costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CostTable {
    /// The machine on which they were measured, and the commit.
    pub machine: BTreeMap<String, String>,
    pub costs: Hardware,
    /// The code of each model, work and policy.
    pub code: BTreeMap<String, Profile>,
}

/// Nanoseconds of what processors do to each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hardware {
    /// Taking a lock whose line is here.
    pub lock_ns: f64,
    /// A line that another processor has changed comes here.
    pub bounce_ns: f64,
    /// A spinning thread has the lock after its release.
    pub contended_ns: f64,
    /// A woken thread runs, after the waking one has done its part.
    pub switch_ns: f64,
    /// Waking a thread.
    pub wake_ns: f64,
}

/// The time of code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// An operation by one thread in real time, without any measuring inside.
    pub operation_ns: f64,
    /// The same where two threads work on two processors.
    pub operation_ns_of_two: f64,
    /// The segments, measured one by one, were multiplied by this to have that sum.
    pub factor: f64,
    /// Nanoseconds between two calls of the scheduler (`CALL NAME > CALL NAME`): with data in the own cache, and under
    /// a lock that another processor held last.
    pub segments: BTreeMap<String, [f64; 2]>,
}

impl Profile {
    fn table(&self, factor: f64) -> Result<CodeTable> {
        let mut table = CodeTable::default();
        for (name, times) in &self.segments {
            let parts =
                name.split_once(" > ").and_then(|(from, to)| Some((from.split_once(' ')?, to.split_once(' ')?)));
            let (from, to) = parts.ok_or_else(|| Error::Usage(format!("costs: no such segment: {name}")))?;
            let [warm, cold] = times.map(|ns| (ns.clamp(0.0, 1e9) * factor * 1000.0).round() as u64);
            table.insert(from, to, warm, cold);
        }
        Ok(table)
    }
}

impl Hardware {
    fn at(&self, scale: f64) -> Costs {
        let ns = |ns: f64| (ns.clamp(0.0, 1e9) * scale).round() as u64;
        Costs {
            switch_ns: ns(self.switch_ns),
            wake_ns: ns(self.wake_ns),
            lock_ns: ns(self.lock_ns),
            bounce_ns: ns(self.bounce_ns),
            contended_ns: ns(self.contended_ns),
            waiter_ns: 0,
        }
    }
}

impl CostTable {
    /// The table called `name`: the one of the program, or a file that `extant lab calibrate` wrote.
    pub fn load(name: &str) -> Result<CostTable> {
        let text = if name == BUILTIN {
            include_str!("costs.json").to_owned()
        } else {
            std::fs::read_to_string(name).map_err(|e| Error::Usage(format!("costs={name}: {e}")))?
        };
        let table: CostTable = serde_json::from_str(&text)
            .map_err(|e| Error::Usage(format!("costs={name}: not a table of costs: {e}")))?;
        let hardware = [
            table.costs.lock_ns,
            table.costs.bounce_ns,
            table.costs.contended_ns,
            table.costs.switch_ns,
            table.costs.wake_ns,
        ];
        match hardware.iter().all(|ns| (0.0..1e6).contains(ns)) {
            true => Ok(table),
            false => Err(Error::Usage(format!("costs={name}: a cost is not between 0 and a millisecond"))),
        }
    }

    /// The code of a model's work under a policy.
    pub(super) fn profile(&self, key: &str) -> Result<&Profile> {
        let known = || Error::Usage(format!("the costs have no code of {key}: extant lab calibrate measures it"));
        self.code.get(key).ok_or_else(known)
    }
}

/// The parameters of a model that can run on modelled processors: `processors=0` is the real machine.
pub(super) fn parameters(parameters: Parameters) -> Parameters {
    parameters.with("processors", 0).with_text("costs", BUILTIN)
}

/// Whether the model runs on modelled processors.
pub(super) fn is_modelled(parameters: &Parameters) -> bool {
    parameters.get("processors") > 0
}

/// Checks `threads=N`, at most `most` real threads. 0 is the default, and all that modelled processors accept, which
/// have a thread each.
pub(super) fn check_threads(parameters: &Parameters, most: u64) -> Result<()> {
    match parameters.get("threads") {
        n if n > most => Err(Error::Usage(format!("threads={n}: from 1 to {most}"))),
        n if n > 0 && is_modelled(parameters) => {
            Err(Error::Usage(format!("threads={n}: with processors=N, each of these has one")))
        }
        _ => Ok(()),
    }
}

/// The number of real threads: two unless `threads=N` says another.
pub(super) fn real_threads(parameters: &Parameters) -> u64 {
    match parameters.get("threads") {
        0 => 2,
        n => n,
    }
}

pub(super) fn check(parameters: &Parameters) -> Result<()> {
    match parameters.get("processors") {
        0 => Ok(()),
        n if n <= PROCESSORS_MAX => CostTable::load(parameters.text("costs")).map(drop),
        n => Err(Error::Usage(format!("processors={n}: from 0 (real ones) to {PROCESSORS_MAX}"))),
    }
}

/// The text that is inserted before the unit of a figure's name, and the part of their measured value that the costs
/// had.
pub(super) const SCALES: [(&str, f64); 3] = [("", 1.0), ("_at_half_costs", 0.5), ("_at_twice_costs", 2.0)];

/// A run in virtual time.
pub(super) struct Modelled<T> {
    /// One of [`SCALES`].
    pub ending: &'static str,
    pub value: T,
    pub virtual_ns: u64,
    uses: Vec<ContentionCost>,
}

/// Runs `body` on modelled processors, once at each of [`SCALES`].
pub(super) fn run<T: Send + 'static>(
    bench: &mut Bench<'_>,
    parameters: &Parameters,
    code: Option<&str>,
    body: impl Fn() -> Result<T> + Clone + Send + 'static,
) -> Result<Vec<Modelled<T>>> {
    let table = CostTable::load(parameters.text("costs"))?;
    let code = match code {
        Some(key) => Code::Table(Arc::new(table.profile(key)?.table(1.0)?)),
        None => Code::Free,
    };
    let mut runs = Vec::new();
    for (ending, scale) in SCALES {
        if bench.is_stopped() {
            return Err(Error::Interrupted);
        }
        let options = sim::Options {
            processors: parameters.get("processors") as usize,
            costs: Some(table.costs.at(scale)),
            code: code.clone(),
            steps_max: u64::MAX,
            ..sim::Options::new(bench.seed_of_round())
        };
        let outcome = sim::run(&options, body.clone());
        let value = outcome.result.map_err(|e| Error::Failed(e.to_string()))??;
        runs.push(Modelled { ending, value, virtual_ns: outcome.virtual_ns, uses: outcome.uses });
    }
    let Hardware { lock_ns, bounce_ns, contended_ns, switch_ns, wake_ns } = table.costs;
    for (name, ns) in [
        ("cost_lock_ns", lock_ns),
        ("cost_bounce_ns", bounce_ns),
        ("cost_contended_ns", contended_ns),
        ("cost_switch_ns", switch_ns),
        ("cost_wake_ns", wake_ns),
    ] {
        bench.measured(name, ns);
    }
    Ok(runs)
}

/// Rows of waiting that a trial names in its figures.
const NAMED: usize = 4;

impl<T> Modelled<T> {
    /// The time for which threads waited for locks and lines: as a share of all processors' time, and by lock.
    pub fn record(&self, bench: &mut Bench<'_>, processors: u64) {
        let all: u64 = self.uses.iter().map(|u| u.wait_ns).sum();
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        bench.measured("waiting_percent", percent(all, processors * self.virtual_ns));
        for row in self.uses.iter().take(NAMED).filter(|row| row.wait_ns > 0) {
            bench.measured(&format!("waiting_percent.{}", row.name.replace(' ', "_")), percent(row.wait_ns, all));
        }
        let row = |u: &ContentionCost| LockRow {
            name: u.name.to_owned(),
            acquired: u.taken,
            contended: u.contended,
            avg_wait_ns: u.wait_ns as f64 / u.contended.max(u.moved).max(1) as f64,
            total_wait_ns: u.wait_ns,
            max_wait_ns: u.wait_ns_max,
            min_wait_ns: 0,
        };
        bench.locks = self.uses.iter().map(row).collect();
    }
}
