//! `tags`: threads do synchronous requests, one after the other, on a device that takes the same time for each and has
//! `depth` tags: what waiting for a tag costs, and whom.
//!
//! Real threads, locks and time: how often a thread sleeps, is woken and finds nothing depends on when that happens.
//! The device is one thread; it completes each request `latency_us` after its start, those that are due together one
//! after the other, as an interrupt does.
//!
//! What it does not do: I/O, batches.
//!
//! # Locking
//! `tags model` guards what the device has under way; no other lock is taken under it.

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{Condvar, LockClass, Mutex, Waiter};
use extant_base::task;
use extant_block::queue::{TagConfig, TagGuard, TagPolicyKind, TagSet};
use hdrhistogram::Histogram;

use super::{Bench, Model, empty_histogram, thread};
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
        Parameters::new()
            .with("depth", 8)
            .with("threads", 64)
            .with("wait_queues", 8)
            .with("latency_us", 100)
            .with("requests", 10_000)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let within = |name: &str, most: u64| match parameters.get(name) {
            n if (1..=most).contains(&n) => Ok(()),
            n => Err(Error::Usage(format!("{name}={n}: from 1 to {most}"))),
        };
        within("depth", 4096)?;
        within("threads", 4096)?;
        within("wait_queues", 64)?;
        within("latency_us", 1_000_000)
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let policy = TagPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let config = TagConfig {
            depth: parameters.get("depth") as u32,
            policy,
            wait_queues: parameters.get("wait_queues") as u32,
        };
        let set = Arc::new(TagSet::new(config));
        let device = Arc::new(Device::new(Duration::from_micros(parameters.get("latency_us"))));
        let completes = {
            let device = device.clone();
            task::spawn("tags-device", move || device.complete()).map_err(thread)?
        };
        let each = parameters.get("requests").div_ceil(parameters.get("threads"));
        let gave_up = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        // Nobody begins before all are there.
        let start = Arc::new(Mutex::new(&CLASS, ()));
        let held = start.lock();
        for _ in 0..parameters.get("threads") {
            let (set, device, start, gave_up) = (set.clone(), device.clone(), start.clone(), gave_up.clone());
            let work = move || {
                drop(start.lock());
                requests(&set, &device, each, &gave_up)
            };
            threads.push(task::spawn("tags", work).map_err(thread)?);
        }
        let clock = Clock::real();
        drop(held);
        while !threads.iter().all(task::JoinHandle::is_finished) && !bench.stopped() {
            clock.sleep(Duration::from_millis(1));
        }
        gave_up.store(bench.stopped(), Ordering::Relaxed);
        let (mut latency, mut switches) = (empty_histogram()?, 0);
        for thread in threads {
            let (its, voluntary) = thread.join().map_err(|_| Error::Failed("a thread panicked".into()))??;
            latency.add(its).map_err(|e| Error::Failed(e.to_string()))?;
            switches += voluntary;
        }
        let ns = device.stop();
        completes.join().map_err(|_| Error::Failed("the device panicked".into()))?;
        if bench.stopped() {
            return Err(Error::Interrupted);
        }
        let (done, stats) = (latency.len(), set.stats());
        bench.took("request", done, ns, latency);
        bench.empty(done)?;
        bench.count("requests", done);
        let per_request = |n: u64| n as f64 / done as f64;
        bench.measured("switches_per_request", per_request(switches));
        bench.measured("waits_per_request", per_request(stats.waits));
        bench.measured("wakes_per_request", per_request(stats.wakes));
        bench.measured("wakes_in_vain_per_request", per_request(stats.wakes_in_vain));
        bench.measured("overtakings_per_request", per_request(stats.overtakings));
        bench.measured("longest_wait_ns", stats.longest_wait_ns as f64);
        Ok(())
    }
}

/// One thread's: how long each took, and how often it slept.
fn requests(set: &Arc<TagSet>, device: &Arc<Device>, each: u64, gave_up: &AtomicBool) -> Result<(Histogram<u64>, u64)> {
    let clock = Clock::real();
    let mut latency = empty_histogram()?;
    let before = Switches::of_this_thread();
    for _ in 0..each {
        if gave_up.load(Ordering::Relaxed) {
            break;
        }
        let start = clock.now_ns();
        let done = Waiter::new();
        let (device, completed) = (device.clone(), done.clone());
        TagSet::start(set, 0, 4096, Box::new(move |tag| device.submit(tag, completed)));
        done.wait();
        latency.saturating_record(clock.now_ns() - start);
    }
    Ok((latency, Switches::of_this_thread().voluntary - before.voluntary))
}

/// What is under way: when it is due, its tag, and who waits for it.
#[derive(Default)]
struct UnderWay {
    requests: VecDeque<(u64, TagGuard, Waiter<()>)>,
    stop: bool,
    first_ns: Option<u64>,
    last_ns: u64,
}

struct Device {
    latency: Duration,
    clock: Clock,
    under_way: Mutex<UnderWay>,
    more: Condvar,
}

impl Device {
    fn new(latency: Duration) -> Device {
        let under_way = Mutex::new(&CLASS, UnderWay::default());
        Device { latency, clock: Clock::real(), under_way, more: Condvar::new() }
    }

    fn submit(&self, tag: TagGuard, done: Waiter<()>) {
        let now = self.clock.now_ns();
        let mut under_way = self.under_way.lock();
        under_way.first_ns.get_or_insert(now);
        let idle = under_way.requests.is_empty();
        under_way.requests.push_back((now + self.latency.as_nanos() as u64, tag, done));
        drop(under_way);
        if idle {
            self.more.notify_one();
        }
    }

    /// Ends the device's thread; nanoseconds from its first request's start to its last one's end.
    fn stop(&self) -> u64 {
        let mut under_way = self.under_way.lock();
        under_way.stop = true;
        let ns = under_way.last_ns - under_way.first_ns.unwrap_or(under_way.last_ns);
        drop(under_way);
        self.more.notify_one();
        ns
    }

    fn complete(&self) {
        // Timers of 100 us are to be that, and not half as much more; and an interrupt waits for no thread's turn. Both
        // are wishes.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let _ = rustix::process::setpriority_process(None, -20);
        let mut due = Vec::new();
        loop {
            let mut under_way = self.under_way.lock();
            while under_way.requests.is_empty() {
                if under_way.stop {
                    return;
                }
                self.more.wait(&mut under_way);
            }
            let now = self.clock.now_ns();
            while under_way.requests.front().is_some_and(|(at, ..)| *at <= now) {
                due.extend(under_way.requests.pop_front());
            }
            under_way.last_ns = now;
            let next = under_way.requests.front().map_or(now, |(at, ..)| *at);
            drop(under_way);
            if due.is_empty() {
                self.clock.sleep(Duration::from_nanos(next - now));
            }
            for (_, tag, done) in due.drain(..) {
                drop(tag);
                done.set(());
            }
        }
    }
}
