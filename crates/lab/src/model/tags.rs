//! `tags`: threads do synchronous requests, one after the other, on a device that takes the same time for each and has
//! `depth` tags: the cost of waiting for a tag, and the thread that pays it.
//!
//! With `processors=0` threads, locks and time are real: how often a thread sleeps, wakes and finds nothing depends on
//! when that happens. The device is one thread; it completes each request `latency_us` after its start, those that are
//! due together one after the other, as an interrupt does.
//!
//! With `processors=N` the same code runs under [`extant_base::sim`] on a modelled machine, in virtual time: each
//! request takes `submit_ns` and `complete_ns` of a processor, each switch `switch_ns`, each wake `wake_ns`. An
//! interrupt for each processor completes the requests of every N-th thread, as blk-mq completes where it submitted.
//! A seed and a round give the same figures each time. With `machine=calibrated` the costs of switches, wakes, locks
//! and cache lines are those of a table ([`super::processors`]), and locks are held for a time.
//!
//! What it does not do: I/O, batches; on the modelled machine time slices, and the time of the policies' own code.
//!
//! # Locking
//! `tags model` guards the requests that a device has under way; no other lock is taken under it.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, Waiter};
use extant_base::task;
use extant_block::queue::{TagConfig, TagGuard, TagPolicyKind, TagSet, TagStats};
use hdrhistogram::Histogram;

use super::{Bench, Model, empty_histogram, processors, thread};
use crate::error::{Error, Result};
use crate::measure::process::Switches;
use crate::workload::Parameters;

static CLASS: LockClass = LockClass::new("tags model", 0);

/// See the page.
pub struct Tags;

impl Model for Tags {
    fn name(&self) -> &'static str {
        "tags"
    }

    fn summary(&self) -> &'static str {
        "threads do synchronous requests on a device with few tags"
    }

    fn headline(&self) -> &'static str {
        "switches_per_request"
    }

    fn policies(&self) -> Table {
        TagPolicyKind::TABLE
    }

    fn parameters(&self) -> Parameters {
        processors::parameters(Parameters::new())
            .with_text("machine", "assumed")
            .with("depth", 8)
            .with("threads", 64)
            .with("wait_queues", 8)
            .with("latency_us", 100)
            .with("requests", 10_000)
            .with("submit_ns", 2_000)
            .with("complete_ns", 1_000)
            .with("switch_ns", 2_000)
            .with("wake_ns", 1_000)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let within = |name: &str, least: u64, most: u64| match parameters.get(name) {
            n if (least..=most).contains(&n) => Ok(()),
            n => Err(Error::Usage(format!("{name}={n}: from {least} to {most}"))),
        };
        within("depth", 1, 4096)?;
        within("threads", 1, 4096)?;
        within("wait_queues", 1, 64)?;
        within("latency_us", 1, 1_000_000)?;
        processors::check(parameters)?;
        match parameters.text("machine") {
            "assumed" | "calibrated" => {}
            other => return Err(Error::Usage(format!("machine={other}: assumed or calibrated"))),
        }
        ["submit_ns", "complete_ns", "switch_ns", "wake_ns"].iter().try_for_each(|cost| within(cost, 0, 1_000_000))
    }

    fn is_exact(&self, parameters: &Parameters) -> bool {
        parameters.get("processors") > 0
    }

    fn has_virtual_time(&self, parameters: &Parameters) -> bool {
        parameters.get("processors") > 0
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let policy = TagPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let work = Work {
            config: TagConfig {
                depth: parameters.get("depth") as u32,
                policy,
                wait_queues: parameters.get("wait_queues") as u32,
            },
            threads: parameters.get("threads"),
            each: parameters.get("requests").div_ceil(parameters.get("threads")),
            latency: Duration::from_micros(parameters.get("latency_us")),
            devices: parameters.get("processors").max(1) as usize,
            submit_ns: parameters.get("submit_ns"),
            complete_ns: parameters.get("complete_ns"),
            gave_up: AtomicBool::new(false),
        };
        let work = Arc::new(work);
        if parameters.get("processors") > 0 && parameters.text("machine") == "calibrated" {
            return calibrated(&work, parameters, bench);
        }
        let machine = sim::Options {
            processors: work.devices,
            costs: Some(sim::Costs {
                switch_ns: parameters.get("switch_ns"),
                wake_ns: parameters.get("wake_ns"),
                ..sim::Costs::default()
            }),
            steps_max: u64::MAX,
            ..sim::Options::new(bench.seed_of_round())
        };
        let is_modelled = parameters.get("processors") > 0;
        let body = {
            let work = work.clone();
            move || match is_modelled {
                true => sim::run(&machine, move || work.run()).result.map_err(|e| Error::Failed(e.to_string()))?,
                false => work.run(),
            }
        };
        let body = task::spawn("tags-run", body).map_err(thread)?;
        let clock = Clock::real();
        while !body.is_finished() {
            clock.sleep(Duration::from_millis(1));
            work.gave_up.store(bench.stopped(), Ordering::Relaxed);
        }
        let done = body.join().map_err(|_| Error::Failed("a thread panicked".into()))??;
        if bench.stopped() {
            return Err(Error::Interrupted);
        }
        record(done, bench)
    }
}

fn record(done: Done, bench: &mut Bench<'_>) -> Result<()> {
    let (requests, stats) = (done.latency.len(), done.stats);
    bench.took("request", requests, done.ns, done.latency);
    bench.empty(requests)?;
    bench.count("requests", requests);
    let per_request = |n: u64| n as f64 / requests as f64;
    bench.measured("switches_per_request", per_request(done.switches));
    bench.measured("waits_per_request", per_request(stats.waits));
    bench.measured("wakes_per_request", per_request(stats.wakes));
    bench.measured("wakes_in_vain_per_request", per_request(stats.wakes_in_vain));
    bench.measured("overtakings_per_request", per_request(stats.overtakings));
    bench.measured("longest_wait_ns", stats.longest_wait_ns as f64);
    Ok(())
}

/// On modelled processors with measured costs: at these, at half and at twice their value.
fn calibrated(work: &Arc<Work>, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
    let work = work.clone();
    for run in processors::run(bench, parameters, None, move || work.run())? {
        let seconds = run.value.ns as f64 / 1e9;
        bench.measured(&format!("requests{}_per_s", run.ending), run.value.latency.len() as f64 / seconds);
        if run.ending.is_empty() {
            run.record(bench, parameters.get("processors"));
            record(run.value, bench)?;
        }
    }
    Ok(())
}

/// The work of a trial: the same on real threads and on a modelled machine.
struct Work {
    config: TagConfig,
    threads: u64,
    /// Requests of a thread.
    each: u64,
    latency: Duration,
    devices: usize,
    submit_ns: u64,
    complete_ns: u64,
    gave_up: AtomicBool,
}

/// The figures of a trial.
struct Done {
    latency: Histogram<u64>,
    switches: u64,
    /// From the threads' start to the last completion.
    ns: u64,
    stats: TagStats,
}

impl Work {
    fn run(self: &Arc<Work>) -> Result<Done> {
        let set = Arc::new(TagSet::new(self.config));
        let clock = Clock::real();
        let (mut devices, mut completes) = (Vec::new(), Vec::new());
        for _ in 0..self.devices {
            let device = Arc::new(Device::new(self, clock.clone()));
            devices.push(device.clone());
            completes.push(task::spawn("tags-device", move || device.complete()).map_err(thread)?);
        }
        let mut threads = Vec::new();
        // No thread begins before all are there.
        let start = Arc::new(Mutex::new(&CLASS, ()));
        let held = start.lock();
        for i in 0..self.threads as usize {
            let (work, set, device, start) =
                (self.clone(), set.clone(), devices[i % self.devices].clone(), start.clone());
            let requests = move || {
                drop(start.lock());
                work.requests(&set, &device)
            };
            threads.push(task::spawn("tags", requests).map_err(thread)?);
        }
        let begin_ns = clock.now_ns();
        drop(held);
        let (mut latency, mut switches) = (empty_histogram()?, 0);
        for thread in threads {
            let (its, voluntary) = thread.join().map_err(|_| Error::Failed("a thread panicked".into()))??;
            latency.add(its).map_err(|e| Error::Failed(e.to_string()))?;
            switches += voluntary;
        }
        let mut ns = 0;
        for (device, completes) in devices.iter().zip(completes) {
            device.stop();
            let last = completes.join().map_err(|_| Error::Failed("the device panicked".into()))?;
            ns = last.saturating_sub(begin_ns).max(ns);
        }
        Ok(Done { latency, switches, ns, stats: set.stats() })
    }

    /// One thread's: how long each took, and how often it slept.
    fn requests(&self, set: &Arc<TagSet>, device: &Arc<Device>) -> Result<(Histogram<u64>, u64)> {
        let clock = Clock::real();
        let mut latency = empty_histogram()?;
        let before = voluntary_switches();
        for _ in 0..self.each {
            if self.gave_up.load(Ordering::Relaxed) {
                break;
            }
            let start = clock.now_ns();
            let done = Waiter::new();
            let (device, completed) = (device.clone(), done.clone());
            sim::compute(self.submit_ns);
            TagSet::start(set, 0, 4096, Box::new(move |tag| device.submit(tag, completed)));
            done.wait();
            latency.saturating_record(clock.now_ns() - start);
        }
        Ok((latency, voluntary_switches() - before))
    }
}

/// Of the calling thread.
fn voluntary_switches() -> u64 {
    if sim::active() { sim::sleeps() } else { Switches::of_this_thread().voluntary }
}

/// Requests under way: when each is due, its tag, and the thread that waits for it.
#[derive(Default)]
struct UnderWay {
    requests: VecDeque<(u64, TagGuard, Waiter<()>)>,
    stop: bool,
}

struct Device {
    latency: Duration,
    complete_ns: u64,
    clock: Clock,
    under_way: Mutex<UnderWay>,
    more: Condvar,
}

impl Device {
    fn new(work: &Work, clock: Clock) -> Device {
        Device {
            latency: work.latency,
            complete_ns: work.complete_ns,
            clock,
            under_way: Mutex::new(&CLASS, UnderWay::default()),
            more: Condvar::new(),
        }
    }

    fn submit(&self, tag: TagGuard, done: Waiter<()>) {
        let now = self.clock.now_ns();
        let mut under_way = self.under_way.lock();
        let idle = under_way.requests.is_empty();
        under_way.requests.push_back((now + self.latency.as_nanos() as u64, tag, done));
        drop(under_way);
        if idle {
            self.more.notify_one();
        }
    }

    /// Ends the device's thread.
    fn stop(&self) {
        self.under_way.lock().stop = true;
        self.more.notify_one();
    }

    /// Completes requests until the end; when the last was complete.
    fn complete(&self) -> u64 {
        sim::device();
        if !sim::active() {
            // Timers of 100 us are to be that, and not half as much more; and an interrupt waits for no thread's turn.
            // Both are wishes.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            let _ = rustix::process::setpriority_process(None, -20);
        }
        let (mut due, mut last_ns) = (Vec::new(), 0);
        loop {
            let mut under_way = self.under_way.lock();
            while under_way.requests.is_empty() {
                if under_way.stop {
                    return last_ns;
                }
                self.more.wait(&mut under_way);
            }
            let now = self.clock.now_ns();
            while under_way.requests.front().is_some_and(|(at, ..)| *at <= now) {
                due.extend(under_way.requests.pop_front());
            }
            let next = under_way.requests.front().map_or(now, |(at, ..)| *at);
            drop(under_way);
            if due.is_empty() {
                self.clock.sleep(Duration::from_nanos(next - now));
                continue;
            }
            sim::interrupt(|| {
                for (_, tag, done) in due.drain(..) {
                    sim::compute(self.complete_ns);
                    drop(tag);
                    done.set(());
                }
            });
            last_ns = self.clock.now_ns();
        }
    }
}
