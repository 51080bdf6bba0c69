//! `alloc-threads`: threads allocate beside each other on an empty made-up disk. It measures how much of its speed one
//! thread keeps when others allocate, too.
//!
//! Each of `threads` threads does `operations` allocations. `work=small-files`: a file of six blocks is allocated and
//! freed, with a goal in one of seven flex groups by the thread's number. `work=append`: a file grows by two blocks at
//! a time to 1 MiB and is freed then; the goals are the same. An operation's time does not include freeing an appended
//! file; `operation_ns`, which is wall time by the operations of one thread, does.
//!
//! The disk accepts every mark and does no I/O. Real threads and time: all but the operations is measured.
//!
//! # Locking
//! `alloc-threads model` is held until all threads are there; no other lock is taken under it.

use std::ops::Range;
use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_mballoc::{
    Allocator, Error as AllocError, Geometry, GroupStore, GroupSummary, InodePreallocation, Options, Policy, Request,
};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use hdrhistogram::Histogram;

use super::disk::failed;
use super::{Bench, Model, empty_histogram, thread};
use crate::error::{Error, Result};
use crate::workload::Parameters;

static CLASS: LockClass = LockClass::new("alloc-threads model", 0);

const GROUPS: u32 = 128;
const FLEX: u32 = 16;
const BLOCKS_PER_GROUP: u32 = 32768;

/// Blocks of a small file, of one append, and of a file that is appended to.
const SMALL: u32 = 6;
const STEP: u32 = 2;
const WHOLE: u32 = 256;

/// See the page.
pub struct AllocThreads;

impl Model for AllocThreads {
    fn name(&self) -> &'static str {
        "alloc-threads"
    }

    fn summary(&self) -> &'static str {
        "threads allocate beside each other (work: small-files, append): how long an operation of one takes"
    }

    fn headline(&self) -> &'static str {
        "operation_ns"
    }

    fn policies(&self) -> Table {
        Policy::TABLE
    }

    fn parameters(&self) -> Parameters {
        Parameters::new().with_text("work", "small-files").with("threads", 2).with("operations", 1280)
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let within = |name: &str, most: u64| match parameters.get(name) {
            n if (1..=most).contains(&n) => Ok(()),
            n => Err(Error::Usage(format!("{name}={n}: from 1 to {most}"))),
        };
        within("threads", 256)?;
        within("operations", 100_000_000)?;
        work(parameters.text("work")).map(drop)
    }

    fn is_exact(&self, _: &Parameters) -> bool {
        false
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let work = work(parameters.text("work"))?;
        let (count, each) = (parameters.get("threads"), parameters.get("operations"));
        let allocator = allocator(policy)?;
        let start = Arc::new(Mutex::new(&CLASS, ()));
        let held = start.lock();
        let mut threads = Vec::new();
        for number in 0..count {
            let (allocator, start) = (allocator.clone(), start.clone());
            let run = move || {
                drop(start.lock());
                work(&allocator, number, each)
            };
            threads.push(task::spawn("alloc-threads", run).map_err(thread)?);
        }
        let clock = Clock::real();
        let before = clock.now_ns();
        drop(held);
        let mut took = empty_histogram()?;
        for thread in threads {
            let its = thread.join().map_err(|_| Error::Failed("a thread panicked".into()))??;
            took.add(its).map_err(|e| Error::Failed(e.to_string()))?;
        }
        let ns = clock.now_ns() - before;
        let done = took.len();
        bench.took("allocate", done, ns, took);
        bench.empty(done)?;
        bench.count("operations", done);
        bench.measured("operation_ns", ns as f64 * count as f64 / done as f64);
        if bench.is_stopped() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

type Work = fn(&Allocator<Empty>, u64, u64) -> Result<Histogram<u64>>;

fn work(name: &str) -> Result<Work> {
    match name {
        "small-files" => Ok(small_files),
        "append" => Ok(append),
        other => Err(Error::Usage(format!("work={other}: small-files or append"))),
    }
}

/// A disk on which nothing is used when it is made, and that accepts every mark.
struct Empty;

impl GroupStore for Empty {
    type Txn = ();
    type Error = AllocError;
    type Prepared = ();

    fn load(&self, _: GroupNr) -> std::result::Result<Vec<u8>, AllocError> {
        Ok(vec![0; BLOCKS_PER_GROUP as usize / 8])
    }

    fn prepare(&self, (): &mut (), _: GroupNr) -> std::result::Result<(), AllocError> {
        Ok(())
    }

    fn mark(&self, (): &mut (), _: GroupNr, (): &(), _: Range<u32>, _: bool) -> std::result::Result<(), AllocError> {
        Ok(())
    }
}

fn allocator(policy: &str) -> Result<Arc<Allocator<Empty>>> {
    let policy = Policy::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
    let geometry = Geometry {
        blocks_count: u64::from(GROUPS) * u64::from(BLOCKS_PER_GROUP),
        first_data_block: 0,
        blocks_per_group: BLOCKS_PER_GROUP,
        groups: GROUPS,
        cluster_bits: 0,
        flex_bg_size: FLEX,
        stripe: 0,
        block_size: 4096,
    };
    let summary = GroupSummary { free: BLOCKS_PER_GROUP, block_uninit: false, maps: 0 };
    let options = Options { policy, ..Options::default() };
    let allocator = Allocator::new(Arc::new(Empty), geometry, &vec![summary; GROUPS as usize], options);
    allocator.map(Arc::new).map_err(failed)
}

/// The file of a thread, and where it wants its blocks.
fn file(thread: u64) -> (Arc<InodePreallocation>, Option<BlockNr>) {
    let group = 1 + u64::from(FLEX) * (thread % 7);
    (Arc::new(InodePreallocation::new(InodeNr(11 + thread as u32))), Some(BlockNr(group * u64::from(BLOCKS_PER_GROUP))))
}

fn free(allocator: &Allocator<Empty>, start: BlockNr, len: u32) -> Result<()> {
    let freed = allocator.free(&mut (), start, u64::from(len)).map_err(failed)?;
    allocator.release(&freed);
    Ok(())
}

fn small_files(allocator: &Allocator<Empty>, thread: u64, operations: u64) -> Result<Histogram<u64>> {
    let (owner, goal) = file(thread);
    let clock = Clock::real();
    let mut took = empty_histogram()?;
    for _ in 0..operations {
        let start = clock.now_ns();
        let request = Request::data(&owner, goal, LogicalBlock(0), SMALL, u64::from(SMALL));
        let got = allocator.allocate(&mut (), &request).map_err(failed)?;
        free(allocator, got.start, got.len)?;
        took.saturating_record(clock.now_ns() - start);
    }
    Ok(took)
}

fn append(allocator: &Allocator<Empty>, thread: u64, operations: u64) -> Result<Histogram<u64>> {
    let (owner, goal) = file(thread);
    let clock = Clock::real();
    let mut took = empty_histogram()?;
    let mut mine = Vec::new();
    for operation in 0..operations {
        let at = operation as u32 * STEP % WHOLE;
        let start = clock.now_ns();
        let request = Request::data(&owner, goal, LogicalBlock(at), STEP, u64::from(at + STEP));
        let got = allocator.allocate(&mut (), &request).map_err(failed)?;
        took.saturating_record(clock.now_ns() - start);
        mine.push((got.start, got.len));
        if at + STEP == WHOLE || operation + 1 == operations {
            allocator.discard_preallocations(&owner);
            mine.drain(..).try_for_each(|(start, len)| free(allocator, start, len))?;
        }
    }
    Ok(took)
}
