//! Measures a [`CostTable`] on two processors of this machine.
//!
//! Main items: [`calibrate`], [`Profiled`] (code that a model lets it measure).
//!
//! The time of each segment of code between two calls of the scheduler is measured three times: of one thread alone; of
//! two threads on two processors that take turns on what they share; and of two that share nothing. The last two
//! differ by the cache lines under the locks, and by nothing else: that difference is what a segment costs more under a
//! lock that came from the other processor.
//!
//! Each call of the scheduler disturbs the code behind it, so the segments of a work are multiplied by one factor, with
//! which one modelled processor takes the measured time for an operation. Nothing is fitted to more processors than
//! one: [`Profile::operation_ns_of_two`] is there for comparison.
//!
//! # Locking
//! None of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use extant_base::clock::Clock;
use extant_base::sim::{self, Code, Costs, Options, Segment, Strategy};
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task;

use super::hardware::{self, pin, processors};
use super::{CostTable, Hardware, Profile};
use crate::environment::{self, Build};
use crate::error::{Error, Result};
use crate::model::{Model, all, find, thread};

/// The work of one thread, by its number, for so many operations. Threads share its state.
pub type Shared = Arc<dyn Fn(u64, u64) -> Result<()> + Send + Sync>;

/// Code whose time is measured.
pub struct Profiled {
    /// Its name in the table.
    pub key: String,
    /// Makes the state that threads share.
    pub make: Arc<dyn Fn() -> Result<Shared> + Send + Sync>,
    /// The numbers of two threads that use the same part of the state, if they can.
    pub together: [u64; 2],
    /// Readings of the clock in an operation.
    pub clocks: f64,
    /// Operations of a thread while segments are measured: enough for a mean, few enough for some seconds.
    pub operations: u64,
}

/// Measurements of no code.
const NOTHING: u64 = 4_000;
/// So many times the operations are timed in real time.
const TIMED: u64 = 5;
const RUNS: u32 = 7;
/// A segment that fewer operations have than one of so many is left out.
const SELDOM: u64 = 200;

/// Measures all costs; of code, that of `models`, or of all of them if none is named. `say` is called with each step's
/// name; `stop` ends it.
pub fn calibrate(build: Build, models: &[String], stop: &AtomicBool, mut say: impl FnMut(&str)) -> Result<CostTable> {
    models.iter().try_for_each(|name| find(name).map(drop))?;
    let wanted = |model: &&dyn Model| models.is_empty() || models.iter().any(|name| name == model.name());
    // The caller's thread keeps its processors.
    let measured = |f: Box<dyn FnOnce() -> Result<CostTable> + Send>| {
        let done = task::spawn("calibrate", f).map_err(thread)?;
        done.join().map_err(|_| Error::Failed("a thread panicked".into()))?
    };
    say("locks, lines, wakes");
    let costs = {
        let done = task::spawn("calibrate", hardware::measure).map_err(thread)?;
        done.join().map_err(|_| Error::Failed("a thread panicked".into()))??
    };
    let mut table = CostTable { machine: machine(build), costs, code: BTreeMap::new() };
    for profiled in all().iter().copied().filter(wanted).flat_map(|model| model.profiled()) {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        say(&profiled.key);
        let mut one = table.clone();
        one.code.clear();
        let one = measured(Box::new(move || {
            let profile = profile(&profiled, &one.costs)?;
            one.code.insert(profiled.key, profile);
            Ok(one)
        }))?;
        table.code.extend(one.code);
    }
    Ok(table)
}

fn machine(build: Build) -> BTreeMap<String, String> {
    let here = environment::of_this_machine(&[], build);
    let of = |name: &str, value: String| (name.to_owned(), value);
    [
        of("cpu", here.cpu),
        of("cores", here.cores.to_string()),
        of("kernel", here.kernel),
        of("commit", here.commit),
        of("profile", here.profile),
    ]
    .into()
}

type Key = (String, String);

/// The mean time of each segment.
fn means(segments: &[Segment], operations: u64) -> BTreeMap<Key, f64> {
    let place = |p: sim::Place| format!("{} {}", p.call, p.name);
    // A lock that is tried is a cost of its own. Rare segments belong to the beginning, such as the reading of bitmaps.
    let is_seldom = |s: &&Segment| s.count * SELDOM < operations;
    let of_code = |s: &&Segment| !["took", "shares"].contains(&s.to.call) && s.from.call != "start";
    let counted = segments.iter().filter(of_code).filter(|s| !is_seldom(s));
    counted.map(|s| ((place(s.from), place(s.to)), s.mean_ns)).collect()
}

/// The threads that work while segments are measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Crowd {
    Alone,
    Apart,
    Together,
}

fn segments(profiled: &Profiled, crowd: Crowd, on: [usize; 2]) -> Result<BTreeMap<Key, f64>> {
    let options = Options {
        code: Code::Measured,
        processors: 2,
        // Threads take turns at each call, so that what one changes is in its cache when the other comes.
        strategy: Strategy::RoundRobin { quantum: 1 },
        steps_max: u64::MAX,
        ..Options::new(1)
    };
    let (make, together, operations) = (profiled.make.clone(), profiled.together, profiled.operations);
    let body = move || -> Result<()> {
        let shared = make()?;
        let threads = if crowd == Crowd::Alone { 1 } else { 2 };
        let mut started = Vec::new();
        for i in 0..threads {
            let mine = if crowd == Crowd::Apart { make()? } else { shared.clone() };
            let work = move || {
                pin(on[i])?;
                mine(together[i], operations)
            };
            started.push(task::spawn("profiled", work).map_err(thread)?);
        }
        started.into_iter().try_for_each(|t| t.join().map_err(|_| Error::Failed("a thread panicked".into()))?)
    };
    let outcome = sim::run(&options, body);
    outcome.result.map_err(|e| Error::Failed(e.to_string()))??;
    Ok(means(&outcome.code, operations))
}

/// The time of no code: what measuring takes.
fn nothing_ns() -> Result<f64> {
    let options = Options { code: Code::Measured, ..Options::new(1) };
    let outcome = sim::run(&options, || {
        let points = || (0..NOTHING).for_each(|_| sim::point("nothing"));
        task::spawn("nothing", points).map(|t| t.join().is_ok())
    });
    let is_point = |s: &&Segment| s.from.call == "point" && s.to.call == "point";
    let found = outcome.code.iter().find(is_point).map(|s| s.mean_ns);
    found.ok_or_else(|| Error::Failed("no time was measured".into()))
}

fn profile(profiled: &Profiled, costs: &Hardware) -> Result<Profile> {
    let nothing = nothing_ns()?;
    let on = processors()?;
    let alone = segments(profiled, Crowd::Alone, on)?;
    let (apart, together) = (segments(profiled, Crowd::Apart, on)?, segments(profiled, Crowd::Together, on)?);
    let names: Vec<&Key> = alone.keys().chain(together.keys()).collect();
    let mut found = BTreeMap::new();
    for name in names {
        let other = together.get(name);
        // A segment that only two threads have is one of waiting.
        let warm = (alone.get(name).or(other).copied().unwrap_or(0.0) - nothing).max(0.0);
        let more = other.zip(apart.get(name)).map_or(0.0, |(together, apart)| (together - apart).max(0.0));
        found.insert(format!("{} > {}", name.0, name.1), [warm, warm + more]);
    }
    let mut profile = Profile {
        operation_ns: real(profiled, &on[..1])?,
        operation_ns_of_two: real(profiled, &on)?,
        factor: 1.0,
        segments: found,
    };
    // Locks and lines take their own time on one processor, too.
    let locks = modelled_alone(profiled, costs, &profile, 0.0)?;
    let whole = modelled_alone(profiled, costs, &profile, 1.0)?;
    let factor = (profile.operation_ns - locks).max(0.0) / (whole - locks).max(1.0);
    profile.factor = (factor * 1e3).round() / 1e3;
    let rounded = |ns: f64| (ns * factor * 10.0).round() / 10.0;
    profile.segments.values_mut().for_each(|times| *times = times.map(rounded));
    profile.segments.retain(|_, times| times[1] > 0.0);
    Ok(profile)
}

/// Nanoseconds of an operation in real time, with a thread on each of these processors, without readings of the clock.
fn real(profiled: &Profiled, on: &[usize]) -> Result<f64> {
    let clock = hardware::least(RUNS, 10_000, || {
        (0..10_000).for_each(|_| {
            std::hint::black_box(Instant::now());
        })
    });
    let mut best = f64::INFINITY;
    let timed = profiled.operations * TIMED;
    for _ in 0..RUNS {
        let shared = (profiled.make)()?;
        let mut started = Vec::new();
        for (number, &processor) in (0..).zip(on) {
            let shared = shared.clone();
            let work = move || -> Result<f64> {
                pin(processor)?;
                // Its first operations read bitmaps.
                shared(number, timed / 20)?;
                let start = Instant::now();
                shared(number, timed)?;
                Ok(start.elapsed().as_nanos() as f64 / timed as f64)
            };
            started.push(task::spawn("timed", work).map_err(thread)?);
        }
        let mut longest: f64 = 0.0;
        for t in started {
            longest = longest.max(t.join().map_err(|_| Error::Failed("a thread panicked".into()))??);
        }
        best = best.min(longest);
    }
    Ok(((best - clock * profiled.clocks).max(0.0) * 10.0).round() / 10.0)
}

/// Nanoseconds of an operation on one modelled processor, with the segments multiplied by `factor`.
fn modelled_alone(profiled: &Profiled, costs: &Hardware, profile: &Profile, factor: f64) -> Result<f64> {
    let costs = Costs { switch_ns: 0, wake_ns: 0, ..costs.at(1.0) };
    let options = Options {
        processors: 1,
        costs: Some(costs),
        code: Code::Table(Arc::new(profile.table(factor)?)),
        steps_max: u64::MAX,
        ..Options::new(1)
    };
    let (make, operations) = (profiled.make.clone(), profiled.operations);
    let body = move || -> Result<u64> {
        let (shared, clock) = (make()?, Clock::real());
        shared(0, operations / 20)?;
        let before = clock.now_ns();
        shared(0, operations)?;
        Ok(clock.now_ns() - before)
    };
    let ns = sim::run(&options, body).result.map_err(|e| Error::Failed(e.to_string()))??;
    Ok(ns as f64 / profiled.operations as f64)
}
