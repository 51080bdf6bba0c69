//! `es-stall`: one thread looks up entries of an inode while another has the extent-status cache give entries of the
//! same inode back. It measures how long lookups take meanwhile.
//!
//! The inode has `entries` entries, none of which merges with another. A thread looks up random ones for `alone_ms`,
//! and goes on while the shrinker is called for `scan` entries at a time until `reclaim` of them have gone. Both are
//! real threads, so all but the entries at the beginning is measured, and depends on what else the machine does.
//!
//! A call of the shrinker does not wait for the inode's lock: a call that finds it taken frees nothing, and the next
//! one tries again (`calls_in_vain`).
//!
//! # Locking
//! None of its own.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task::{self, JoinHandle};
use extant_es::{EsCache, EsInode, EsPolicyKind, EsState};
use extant_ondisk::{BlockNr, InodeNr, LogicalBlock};
use hdrhistogram::Histogram;

use super::{Bench, Model, empty_histogram, thread};
use crate::error::{Error, Result};
use crate::workload::Parameters;

const ENTRIES_MAX: u64 = 20_000_000;

/// More calls than this for one run mean that the lookups never let go of the lock.
const CALLS_MAX: u64 = 100_000_000;

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
        Parameters::new().with("entries", 20_000).with("reclaim", 5_000).with("scan", 128).with("alone_ms", 5)
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
        Ok(())
    }

    fn is_exact(&self, _: &Parameters) -> bool {
        false
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let kind = EsPolicyKind::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let entries = parameters.get("entries") as u32;
        let cache = EsCache::new(kind, Clock::real(), None);
        let inode = Arc::new(cache.attach(InodeNr(12)));
        for entry in 0..entries {
            inode.insert(LogicalBlock(2 * entry), 1, written(entry));
        }
        bench.count("entries_kept", cache.entries());

        let alone = Looks::start(&inode, entries, bench.rng())?;
        Clock::real().sleep(Duration::from_millis(parameters.get("alone_ms")));
        let looked = alone.stop()?;
        let lookups = looked.took.len();
        bench.took("alone", lookups, looked.ns, looked.took);
        bench.empty(lookups)?;

        let beside = Looks::start(&inode, entries, bench.rng())?;
        let shrunk = shrink(&cache, parameters, bench);
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

fn shrink(cache: &EsCache, parameters: &Parameters, bench: &Bench<'_>) -> Result<Shrunk> {
    let (wanted, scan) = (parameters.get("reclaim"), parameters.get("scan"));
    let clock = Clock::real();
    let mut shrunk = Shrunk { calls: empty_histogram()?, ns: 0, freed: 0, in_vain: 0 };
    while shrunk.freed < wanted && cache.evictable() > 0 && shrunk.calls.len() < CALLS_MAX {
        if bench.is_stopped() {
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
        if stop.load(Ordering::Relaxed) {
            return Ok(looked);
        }
    }
}
