//! Runs many plans, and shrinks those that fail.
//!
//! Main types: [`Report`], [`FailureClass`]. Each processor has a thread that runs separate simulations.
//!
//! # Locking
//! `schedule work` (0): the next plan, and the failures found.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::sched::plan::Plan;
use crate::sched::plan::Trick;
use crate::sched::run::{PlanFailure, try_plan};

static CLASS: LockClass = LockClass::new("schedule work", 0);

/// The plans to run.
#[derive(Clone, Debug)]
pub struct Search {
    pub series: u64,
    pub plans: u64,
    /// Stop when this much time has passed.
    pub at_most: Duration,
    pub only: Option<String>,
    pub trick: Trick,
    /// Stop after this many different kinds of failures.
    pub kinds_max: usize,
}

/// One kind of failure.
#[derive(Clone, Debug)]
pub struct FailureClass {
    pub plan: Plan,
    pub bad: PlanFailure,
    /// How many plans had been tried before it first occurred, and how often it occurred.
    pub after: u64,
    pub times: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub plans: u64,
    pub steps: u64,
    pub switches: u64,
    pub cuts: u64,
    pub events: u64,
    pub homeward: u64,
    pub took: Duration,
    pub found: BTreeMap<String, FailureClass>,
}

impl Report {
    /// Panics with the shrunk failures.
    pub fn expect_clean(&self) {
        if self.found.is_empty() {
            return;
        }
        let mut text = self.summary();
        for found in self.found.values().take(3) {
            let (plan, bad) = shrink(&found.plan, &found.bad, 150);
            let _ = write!(text, "\n---- again: {}\n{bad}\n", repeat_line(&plan));
        }
        panic!("{text}");
    }

    pub fn summary(&self) -> String {
        let s = self.took.as_secs_f64().max(0.001);
        let mut out = format!(
            "{} schedules, {} cuts, {} steps, {} switches, {} device events, {} steps home in {s:.1} s: {:.0} schedules/s\n",
            self.plans,
            self.cuts,
            self.steps,
            self.switches,
            self.events,
            self.homeward,
            self.plans as f64 / s
        );
        for f in self.found.values() {
            let _ = writeln!(out, "  {} times, first after {}: [{}] {}", f.times, f.after, f.plan, f.bad.kind);
        }
        out
    }
}

/// The line that reproduces a failure.
pub fn repeat_line(plan: &Plan) -> String {
    format!("EXTANT_SCHEDULE='{plan}' cargo test -p extant-testkit --test schedules repeat -- --nocapture")
}

/// Runs the plans.
pub fn explore(search: &Search) -> Report {
    struct Work {
        next: u64,
        report: Report,
    }
    let start = Instant::now();
    let work = Arc::new(Mutex::new(&CLASS, Work { next: 0, report: Report::default() }));
    let processors = processors();
    let threads: Vec<_> = (0..processors.len().max(1))
        .map(|i| {
            let (work, search, processor) = (work.clone(), search.clone(), processors.get(i).copied());
            task::spawn("explore", move || {
                processor.inspect(|n| bind(*n));
                loop {
                    let n = {
                        let mut w = work.lock();
                        let over = w.next >= search.plans || w.report.found.len() >= search.kinds_max;
                        if over || start.elapsed() >= search.at_most {
                            return;
                        }
                        w.next += 1;
                        w.next - 1
                    };
                    let plan = Plan::nth(search.series, n, search.only.as_deref());
                    let ran = try_plan(&plan, search.trick, false);
                    let mut w = work.lock();
                    let r = &mut w.report;
                    r.plans += 1;
                    r.steps += ran.steps;
                    r.switches += ran.switches;
                    r.cuts += ran.cuts as u64;
                    r.events += ran.events as u64;
                    r.homeward += ran.homeward;
                    if r.plans.is_multiple_of(20_000) && r.plans < search.plans {
                        let (of, s) = (search.plans, start.elapsed().as_secs());
                        eprintln!("{} of {of} schedules in {s} s, {} kinds of failures", r.plans, r.found.len());
                    }
                    if let Err(bad) = ran.result {
                        let after = r.plans;
                        if !r.found.contains_key(&bad.kind) {
                            eprintln!("after {after} schedules: [{plan}] {}", bad.kind);
                        }
                        let found = FailureClass { plan, bad: bad.clone(), after, times: 0 };
                        r.found.entry(bad.kind).or_insert(found).times += 1;
                    }
                }
            })
            .expect("a thread")
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("plans fail, threads do not"));
    let mut report = std::mem::take(&mut work.lock().report);
    report.took = start.elapsed();
    report
}

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|n| set.is_set(*n)).collect()
}

/// Binds this thread, and the threads that it starts from here on, to one processor. Only one thread of a simulation
/// runs at a time, and switching on the same processor takes half as long.
fn bind(processor: usize) {
    let mut one = CpuSet::new();
    one.set(processor);
    let _ = sched_setaffinity(None, &one);
}

/// Removes clients and operations while the plan fails in the same way, in at most `tries` runs.
pub fn shrink(plan: &Plan, bad: &PlanFailure, tries: usize) -> (Plan, PlanFailure) {
    let all = plan.all();
    let keep = plan.keep.clone().unwrap_or_else(|| all.iter().map(|ops| (0..ops.len()).collect()).collect());
    let mut best = (Plan { keep: Some(keep), ..plan.clone() }, bad.clone());
    let mut left = tries;
    // The call that was acknowledged differs between schedules of one failure.
    let told = |b: &PlanFailure| b.kind.starts_with("acknowledged by");
    let same = |a: &PlanFailure| a.kind == bad.kind || (told(a) && told(bad));
    let mut attempt = |keep: Vec<Vec<usize>>, from: &Plan| -> Option<(Plan, PlanFailure)> {
        for salt in std::iter::once(from.salt).chain(1..12) {
            if left == 0 {
                return None;
            }
            left -= 1;
            let smaller = Plan { keep: Some(keep.clone()), salt, ..from.clone() };
            if let Err(b) = try_plan(&smaller, Trick::None, false).result
                && same(&b)
            {
                return Some((smaller, b));
            }
        }
        None
    };
    loop {
        let now = best.0.keep.clone().expect("set above");
        let mut better = None;
        // First whole clients, then operations, the last first.
        for client in 0..now.len() {
            if now[client].is_empty() {
                continue;
            }
            let mut fewer = now.clone();
            fewer[client].clear();
            better = attempt(fewer, &best.0);
            if better.is_some() {
                break;
            }
        }
        if better.is_none() {
            'ops: for client in 0..now.len() {
                for op in (0..now[client].len()).rev() {
                    let mut fewer = now.clone();
                    fewer[client].remove(op);
                    better = attempt(fewer, &best.0);
                    if better.is_some() {
                        break 'ops;
                    }
                }
            }
        }
        match better {
            Some(b) => best = b,
            None => return best,
        }
    }
}
