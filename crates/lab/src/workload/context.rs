//! The tools of a running workload.
//!
//! Main types: [`Context`], [`Place`] (the workload's view of its target).
//!
//! # Locking
//! None: workers share only the target.

use std::path::{Path, PathBuf};

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::Parameters;
use crate::error::{Error, Result};
use crate::measure::Figures;
use crate::measure::process::Switches;
use crate::measure::program::Said;
use crate::result::Phase;
use crate::vfs::{Histograms, Vfs, Worker};

/// The size of the data that workers write, bytes.
const DATA_BYTES: usize = 4 << 20;

/// The cost of making everything durable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settled {
    /// Wall time.
    pub seconds: f64,
    /// The figures of a modelled device for that time.
    pub measures: Figures,
}

impl Phase {
    /// Adds work that the phase had postponed.
    pub fn settle(&mut self, settled: &Settled) {
        self.seconds += settled.seconds;
        for (name, n) in &settled.measures {
            *self.measures.entry(name.clone()).or_default() += n;
        }
    }
}

/// The increase of each counter since `before`, if it existed then.
pub(crate) fn since(now: Figures, before: &Figures) -> Figures {
    now.into_iter().filter_map(|(name, now)| Some((name.clone(), now - before.get(&name)?))).collect()
}

/// The target of a workload.
pub trait Place {
    /// The root directory.
    fn vfs(&self) -> Result<&dyn Vfs>;
    /// The space in the image that the workload runs on.
    fn space(&self) -> Result<Space>;
    /// Makes the next reads come from the device: makes all writes durable, returns the cost of that, and empties every
    /// cache.
    fn cold(&mut self) -> Result<Settled>;
    /// Called for each phase that has ended.
    fn ended(&mut self, phase: &Phase) {
        let _ = phase;
    }
    /// Counters since the beginning, readable at any time, named as in [`crate::measure::ALL`].
    fn counters(&self) -> Figures {
        Figures::new()
    }
}

/// The space in an image, as from statfs(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Total blocks, without those of the file system itself.
    pub blocks: u64,
    /// Free blocks, including those reserved for root.
    pub free_blocks: u64,
}

/// The tools of a running workload, and its results.
pub struct Context<'a> {
    place: &'a mut dyn Place,
    parameters: &'a Parameters,
    seed: u64,
    timed: bool,
    clock: quanta::Clock,
    stop: &'a AtomicBool,
    operations: Option<&'a Path>,
    say: &'a dyn Fn(&str),
    data: Vec<u8>,
    drawn: u64,
    /// The phase whose clock runs until its work is durable.
    headline: Option<&'static str>,
    /// The completed phases.
    pub phases: Vec<Phase>,
    /// Latencies of all phases.
    pub histograms: Histograms,
    /// Context switches of workers that have ended.
    pub switches: Switches,
    /// The output of a program that did the work, shortened.
    pub output: String,
    /// The figures in it.
    pub said: Said,
}

impl<'a> Context<'a> {
    /// `timed`: whether latencies are recorded; `operations`: the list that `replay` reads; `say` is called for each
    /// phase.
    pub fn new(
        place: &'a mut dyn Place,
        parameters: &'a Parameters,
        seed: u64,
        timed: bool,
        stop: &'a AtomicBool,
        operations: Option<&'a Path>,
        say: &'a dyn Fn(&str),
    ) -> Context<'a> {
        let mut rng = Rng::new(seed ^ 0x6461_7461);
        let mut data = Vec::with_capacity(DATA_BYTES);
        while data.len() < DATA_BYTES {
            data.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        Context {
            place,
            parameters,
            seed,
            timed,
            // Calibrated here, once per process (up to 200 ms), so that no phase includes it.
            clock: quanta::Clock::new(),
            stop,
            operations,
            say,
            data,
            drawn: 0,
            headline: None,
            phases: Vec::new(),
            histograms: Histograms::default(),
            switches: Switches::default(),
            output: String::new(),
            said: Said::default(),
        }
    }

    /// The clock of the phase `name` runs until its work is durable.
    pub fn until_durable(&mut self, name: &'static str) {
        self.headline = Some(name);
    }

    /// The phase whose work is not durable yet, if its clock is still running.
    pub fn headline(&self) -> Option<&'static str> {
        self.headline
    }

    /// A numeric parameter.
    pub fn get(&self, name: &str) -> u64 {
        self.parameters.get(name)
    }

    /// All parameters.
    pub fn parameters(&self) -> &'a Parameters {
        self.parameters
    }

    /// The list of operations to replay.
    pub fn operations(&self) -> Option<&'a Path> {
        self.operations
    }

    /// The target's root directory, as other programs name it.
    pub fn directory(&self) -> Result<PathBuf> {
        let directory = self.place.vfs()?.directory().map(Path::to_owned);
        directory.ok_or_else(|| Error::Usage("the engine in this process has no directory".into()))
    }

    /// Random numbers for data that all processes share, such as a tree of names.
    pub fn rng(&mut self) -> Rng {
        self.drawn += 1;
        Rng::new(mix(self.seed, self.drawn, u64::MAX))
    }

    /// See [`Place::space`].
    pub fn space(&self) -> Result<Space> {
        self.place.space()
    }

    /// See [`Place::cold`].
    pub fn cold(&mut self) -> Result<()> {
        (self.say)("emptying caches");
        let settled = self.place.cold()?;
        self.durable_after(&settled);
        Ok(())
    }

    /// Adds the cost of making all work so far durable, since the end of the last phase.
    fn durable_after(&mut self, settled: &Settled) {
        if let Some(at) = self.headline.and_then(|name| self.phases.iter().position(|p| p.name == name)) {
            self.phases[at].settle(settled);
            self.headline = None;
        }
    }

    /// Runs `body` in `processes` threads that start at the same time, without timing: for preparations.
    pub fn prepare(&mut self, processes: u64, body: impl Fn(&mut Worker<'_>, u64) -> Result<()> + Sync) -> Result<()> {
        (self.say)("preparing");
        self.spawn(processes, false, body).map(drop)
    }

    /// Runs `body` in `processes` threads that start at the same time; timed as the phase `name`.
    pub fn phase(
        &mut self,
        name: &str,
        processes: u64,
        body: impl Fn(&mut Worker<'_>, u64) -> Result<()> + Sync,
    ) -> Result<()> {
        (self.say)(name);
        let before = self.place.counters();
        let done = self.spawn(processes, self.timed, body)?;
        let measures = since(self.place.counters(), &before);
        let phase = Phase {
            name: name.to_owned(),
            seconds: done.ns as f64 / 1e9,
            operations: done.operations,
            bytes: done.bytes,
            measures,
        };
        self.place.ended(&phase);
        self.phases.push(phase);
        self.histograms.merge(done.histograms);
        Ok(())
    }

    fn spawn(
        &mut self,
        processes: u64,
        timed: bool,
        body: impl Fn(&mut Worker<'_>, u64) -> Result<()> + Sync,
    ) -> Result<Done> {
        self.drawn += 1;
        let vfs = self.place.vfs()?;
        let (seed, drawn, stop, data, latency_clock) = (self.seed, self.drawn, self.stop, &self.data[..], &self.clock);
        let clock = Clock::real();
        // 0: wait; 1: start; 2: exit.
        let gate = AtomicU32::new(0);
        let mut done = Done::default();
        let mut failed: Option<Error> = None;
        std::thread::scope(|scope| {
            let (body, clock, gate) = (&body, &clock, &gate);
            let mut threads = Vec::new();
            for process in 0..processes {
                let run = move || {
                    let mut worker = Worker::new(vfs, latency_clock, timed, mix(seed, drawn, process), data, stop);
                    while gate.load(Ordering::Acquire) == 0 {
                        std::thread::park();
                    }
                    if gate.load(Ordering::Acquire) == 2 {
                        return (u64::MAX, 0, Err(Error::Interrupted), worker.finish(), Switches::default());
                    }
                    let began = clock.now_ns();
                    let result = body(&mut worker, process);
                    let ended = clock.now_ns();
                    (began, ended, result, worker.finish(), Switches::of_this_thread())
                };
                let named = std::thread::Builder::new().name(format!("lab-{process}"));
                match named.spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(e) => {
                        failed = Some(Error::Failed(format!("process {process}: {e}")));
                        break;
                    }
                }
            }
            gate.store(if failed.is_some() { 2 } else { 1 }, Ordering::Release);
            threads.iter().for_each(|t| t.thread().unpark());
            let (mut first, mut last) = (u64::MAX, 0);
            for thread in threads {
                match thread.join() {
                    Ok((began, ended, result, (operations, bytes, histograms), switches)) => {
                        first = first.min(began);
                        last = last.max(ended);
                        done.operations += operations;
                        done.bytes += bytes;
                        done.histograms.merge(histograms);
                        self.switches += switches;
                        // The first failure is the cause; the error of a process that it stopped is only a consequence.
                        if let (Err(e), None | Some(Error::Interrupted)) = (result, &failed) {
                            failed = Some(e);
                        }
                    }
                    Err(_) => failed = Some(Error::Failed("a process of the workload panicked".into())),
                }
            }
            done.ns = last.saturating_sub(first);
        });
        failed.map_or(Ok(done), Err)
    }
}

#[derive(Default)]
struct Done {
    ns: u64,
    operations: u64,
    bytes: u64,
    histograms: Histograms,
}

/// A seed for one process of one phase.
fn mix(seed: u64, phase: u64, process: u64) -> u64 {
    let a = Rng::new(seed).next_u64();
    let b = Rng::new(a ^ phase).next_u64();
    Rng::new(b ^ process).next_u64()
}
