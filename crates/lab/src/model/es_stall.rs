//! `es-stall`: one thread looks up entries of an inode while another has the extent-status cache give entries of the
//! same inode back. It measures how long lookups take meanwhile.
//!
//! The inode has `entries` entries, none of which merges with another. A thread looks up random ones for `alone_ms`,
//! and goes on while the shrinker is called for `scan` entries at a time until `reclaim` of them have gone. Both are
//! real threads, so all but the entries at the beginning is measured, and depends on what else the machine does.
//!
//! With `processors=N` there are N modelled processors ([`super::processors`]): one calls the shrinker, a thread on
//! each of the others looks up. `inodes` inodes share these threads, and the entries that go. Between two lookups a
//! thread computes for up to [`BETWEEN_NS`]. Without that, lookups and calls of the shrinker would soon keep step, and
//! each call might find the lock taken.
//!
//! A call of the shrinker does not wait for the inode's lock: a call that finds it taken frees nothing, and the next
//! one tries again (`calls_in_vain`).
//!
//! # Locking
//! None of its own.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_base::sim;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task::{self, JoinHandle};
use extant_es::{EsCache, EsInode, EsPolicyKind, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};
use hdrhistogram::Histogram;

use super::processors::{self, Profiled, Shared};
use super::{Bench, Model, empty_histogram, thread};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const ENTRIES_MAX: u64 = 20_000_000;

/// More calls than this for one run mean that the lookups never let go of the lock.
const CALLS_MAX: u64 = 100_000_000;
/// The longest time that a thread on a modelled processor spends on the result of a lookup.
const BETWEEN_NS: u64 = 200;

/// See the page.
pub struct EsStall;

impl Model for EsStall {
    fn name(&self) -> &'static str {
        "es-stall"
    }

    fn summary(&self) -> &'static str {
        "lookups of one thread while the extent-status cache gives entries of the same inode back"
    }

    fn headline(&self) -> &'static str {
        "longest_lookup_ns"
    }

    fn policies(&self) -> Table {
        EsPolicyKind::TABLE
    }

    fn parameters(&self) -> Parameters {
        let own =
            Parameters::new().with("entries", 20_000).with("reclaim", 5_000).with("scan", 128).with("alone_ms", 5);
        processors::parameters(own.with("inodes", 1))
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let (entries, reclaim) = (parameters.get("entries"), parameters.get("reclaim"));
        if entries == 0 || entries > ENTRIES_MAX || reclaim > entries {
            let why = format!("entries=: from 1 to {ENTRIES_MAX}; reclaim=: no more than those");
            return Err(Error::Usage(why));
        }
        if parameters.get("scan") == 0 || parameters.get("alone_ms") > 60_000 {
            return Err(Error::Usage("scan=: at least 1; alone_ms=: at most a minute".into()));
        }
        if !(1..=processors::PROCESSORS_MAX).contains(&parameters.get("inodes")) {
            return Err(Error::Usage(format!("inodes=: from 1 to {}", processors::PROCESSORS_MAX)));
        }
        match (parameters.get("processors"), parameters.get("inodes")) {
            (1, _) => Err(Error::Usage("processors=: 0, or at least 2, one of them for the shrinker".into())),
            (0, 2..) => Err(Error::Usage("inodes=: more than one with processors= only".into())),
            // Lookups that are spread over all processors leave the lock of one inode hardly ever free.
            (n, inodes) if n > inodes + 1 => {
                let why = format!("processors={n}: needs inodes={} at least, one a lookup", n - 1);
                Err(Error::Usage(why))
            }
            _ => processors::check(parameters),
        }
    }

    fn is_exact(&self, parameters: &Parameters) -> bool {
        processors::is_modelled(parameters)
    }

    fn has_virtual_time(&self, parameters: &Parameters) -> bool {
        processors::is_modelled(parameters)
    }

    fn profiled(&self) -> Vec<Profiled> {
        let of = |policy: EsPolicyKind| Profiled {
            key: key(policy.name()),
            make: Arc::new(move || -> Result<Shared> {
                let (cache, inode) = filled(policy, 40_000, 1);
                let work: Shared = Arc::new(move |number, n| {
                    let mut rng = Rng::new(number);
                    for i in 1..=n {
                        black_box(inode[0].lookup(LogicalBlock(2 * rng.below(40_000) as u32)));
                        if i.is_multiple_of(128) {
                            cache.shrink(128);
                        }
                    }
                    Ok(())
                });
                Ok(work)
            }),
            together: [0, 1],
            clocks: 0.0,
            operations: 4_000,
        };
        EsPolicyKind::ALL.into_iter().map(of).collect()
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let kind = EsPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let entries = parameters.get("entries") as u32;
        if processors::is_modelled(parameters) {
            return modelled(kind, parameters, bench);
        }
        let (cache, inodes) = filled(kind, entries, 1);
        let inode = inodes[0].clone();
        bench.count("entries_kept", cache.entries());

        let alone = Looks::start(&inode, entries, bench.rng())?;
        Clock::real().sleep(Duration::from_millis(parameters.get("alone_ms")));
        let looked = alone.stop()?;
        let lookups = looked.took.len();
        bench.took("alone", lookups, looked.ns, looked.took);
        bench.empty(lookups)?;

        let beside = Looks::start(&inode, entries, bench.rng())?;
        let shrunk = shrink(&cache, parameters, || bench.is_stopped());
        let looked = beside.stop()?;
        let shrunk = shrunk?;
        let freed = shrunk.freed;
        bench.measured("longest_lookup_ns", looked.took.max() as f64);
        bench.took("lookup", looked.took.len(), looked.ns, looked.took);
        bench.took("call", shrunk.calls.len(), shrunk.ns, shrunk.calls);
        bench.measured("calls_in_vain", shrunk.in_vain as f64);
        bench.measured("entries_reclaimed", freed as f64);
        let (wanted, left) = (parameters.get("reclaim"), cache.evictable());
        if freed < wanted && left > 0 {
            return Err(Error::Failed(format!("{freed} entries went of {wanted}, and {left} could have gone")));
        }
        Ok(())
    }
}

/// The code in the table of costs.
fn key(policy: &str) -> String {
    format!("es-stall/{policy}")
}

/// A cache with inodes that share so many entries.
fn filled(kind: EsPolicyKind, entries: u32, inodes: u32) -> (EsCache, Vec<Arc<EsInode>>) {
    let cache = EsCache::new(kind, Clock::real(), None);
    let inodes: Vec<_> = (0..inodes).map(|nr| Arc::new(cache.attach(InodeNr(12 + nr)))).collect();
    for inode in &inodes {
        for entry in 0..entries / inodes.len() as u32 {
            inode.insert(LogicalBlock(2 * entry), 1, written(entry));
        }
    }
    (cache, inodes)
}

/// Threads on all modelled processors but one look up while that one shrinks.
fn modelled(kind: EsPolicyKind, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
    let (count, seed) = (parameters.get("processors"), bench.seed());
    let (own, name) = (parameters.clone(), kind.name());
    let body = move || -> Result<(u64, Looked, Shrunk)> {
        let (inodes, entries) = (own.get("inodes") as u32, own.get("entries") as u32);
        let (cache, inodes) = filled(kind, entries, inodes);
        let kept = cache.entries();
        let each = (entries / inodes.len() as u32).max(1);
        let mut looks = Vec::new();
        for (number, inode) in (1..count).zip(inodes.iter().cycle()) {
            looks.push(Looks::start(inode, each, Rng::new(seed ^ number << 32))?);
        }
        let shrunk = shrink(&cache, &own, || false);
        let mut all = Looked { took: empty_histogram()?, ns: 0 };
        looks.iter().for_each(|look| look.stop.store(true, Ordering::Relaxed));
        for look in looks {
            let its = look.stop()?;
            all.ns += its.ns;
            all.took.add(its.took).map_err(|e| Error::Failed(e.to_string()))?;
        }
        Ok((kept, all, shrunk?))
    };
    for run in processors::run(bench, parameters, Some(&key(name)), body)? {
        let (_, looked, _) = &run.value;
        bench.measured(&format!("longest_lookup{}_ns", run.ending), looked.took.max() as f64);
        bench.measured(&format!("lookup_p999{}_ns", run.ending), looked.took.value_at_quantile(0.999) as f64);
        if !run.ending.is_empty() {
            continue;
        }
        run.record(bench, count);
        let (kept, looked, shrunk) = run.value;
        bench.count("entries_kept", kept);
        let lookups = looked.took.len();
        bench.took("lookup", lookups, looked.ns, looked.took);
        bench.empty(lookups)?;
        bench.took("call", shrunk.calls.len(), shrunk.ns, shrunk.calls);
        bench.measured("calls_in_vain", shrunk.in_vain as f64);
        bench.measured("entries_reclaimed", shrunk.freed as f64);
    }
    Ok(())
}

/// A written block that merges with no other.
fn written(entry: u32) -> EsState {
    EsState::Written(BlockNr(10_000 + 3 * u64::from(entry)))
}

/// The results of the shrinker's calls.
struct Shrunk {
    calls: Histogram<u64>,
    ns: u64,
    freed: u64,
    in_vain: u64,
}

fn shrink(cache: &EsCache, parameters: &Parameters, is_stopped: impl Fn() -> bool) -> Result<Shrunk> {
    let (wanted, scan) = (parameters.get("reclaim"), parameters.get("scan"));
    let clock = Clock::real();
    let mut shrunk = Shrunk { calls: empty_histogram()?, ns: 0, freed: 0, in_vain: 0 };
    while shrunk.freed < wanted && cache.evictable() > 0 && shrunk.calls.len() < CALLS_MAX {
        if is_stopped() {
            return Err(Error::Interrupted);
        }
        let start = clock.now_ns();
        let freed = cache.shrink(scan);
        let took = clock.now_ns() - start;
        if freed > scan {
            return Err(Error::Failed(format!("a call for {scan} entries freed {freed}")));
        }
        shrunk.calls.saturating_record(took);
        shrunk.ns += took;
        shrunk.freed += freed;
        shrunk.in_vain += u64::from(freed == 0);
        task::yield_now();
    }
    Ok(shrunk)
}

/// How long each lookup took.
struct Looked {
    took: Histogram<u64>,
    ns: u64,
}

/// A thread that looks up random entries until it is stopped.
struct Looks {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Looked>>,
}

impl Looks {
    fn start(inode: &Arc<EsInode>, entries: u32, rng: Rng) -> Result<Looks> {
        let stop = Arc::new(AtomicBool::new(false));
        let (inode, stopped) = (Arc::clone(inode), Arc::clone(&stop));
        let thread = task::spawn("es-stall", move || look(&inode, entries, rng, &stopped)).map_err(thread)?;
        Ok(Looks { stop, thread })
    }

    fn stop(self) -> Result<Looked> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| Error::Failed("a thread panicked".into()))?
    }
}

fn look(inode: &EsInode, entries: u32, mut rng: Rng, stop: &AtomicBool) -> Result<Looked> {
    let clock = Clock::real();
    let mut looked = Looked { took: empty_histogram()?, ns: 0 };
    loop {
        let entry = rng.below(u64::from(entries)) as u32;
        let start = clock.now_ns();
        let found = inode.lookup(LogicalBlock(2 * entry));
        let took = clock.now_ns() - start;
        looked.took.saturating_record(took);
        looked.ns += took;
        if let Some(found) = found.filter(|found| found.state != written(entry)) {
            return Err(Error::Failed(format!("entry {entry} is {:?}", found.state)));
        }
        sim::compute(rng.below(BETWEEN_NS));
        if stop.load(Ordering::Relaxed) {
            return Ok(looked);
        }
    }
}
