//! `alloc-threads`: threads allocate beside each other on an empty made-up disk. It measures how much of its speed one
//! thread keeps when others allocate, too.
//!
//! Each of `threads` threads (two, if that is 0) does `operations` allocations. `work=small-files`: a file of six
//! blocks is allocated and freed, with a goal in a flex group by the thread's number. `work=append`: a file grows by
//! two blocks at a time to 1 MiB and is freed then; the goals are the same. `work=fallocate`: the same with requests as
//! ext4 makes them for fallocate(2), of that length and without preallocation (Baokun Li's test of 2025,
//! will-it-scale's fallocate2). An operation's time does not include freeing a file that has grown; `operation_ns`,
//! which is the whole time by the operations of one thread, does.
//!
//! The disk accepts every mark and does no I/O. With `processors=0` threads and time are real: all but the operations
//! is measured. With `processors=N` there is a thread on each of N modelled processors ([`super::processors`]).
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
    RequestFlags,
};
use extant_ondisk::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use hdrhistogram::Histogram;

use super::disk::failed;
use super::processors::{self, Profiled, Shared};
use super::{Bench, Model, empty_histogram, thread};
use crate::error::{Error, Result};
use crate::workload::Parameters;

static CLASS: LockClass = LockClass::new("alloc-threads model", 0);

const FLEX: u32 = 16;
const BLOCKS_PER_GROUP: u32 = 32768;

/// Groups of the disk where costs are measured, and unless another number is asked for.
const GROUPS: u64 = 128;
const GROUPS_MAX: u64 = 1 << 16;

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
        "threads allocate beside each other (work: small-files, append, fallocate): how long an operation of one takes"
    }

    fn headline(&self) -> &'static str {
        "operation_ns"
    }

    fn policies(&self) -> Table {
        Policy::TABLE
    }

    fn parameters(&self) -> Parameters {
        let own = Parameters::new().with_text("work", "small-files").with("threads", 0).with("operations", 1280);
        processors::parameters(own.with("groups", GROUPS))
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let within = |name: &str, most: u64| match parameters.get(name) {
            n if (1..=most).contains(&n) => Ok(()),
            n => Err(Error::Usage(format!("{name}={n}: from 1 to {most}"))),
        };
        processors::check_threads(parameters, 256)?;
        within("operations", 100_000_000)?;
        let (groups, flex) = (parameters.get("groups"), u64::from(FLEX));
        if !(2 * flex..=GROUPS_MAX).contains(&groups) || groups % flex != 0 {
            return Err(Error::Usage(format!(
                "groups={groups}: a multiple of {flex} from {} to {GROUPS_MAX}",
                2 * flex
            )));
        }
        processors::check(parameters)?;
        work(parameters.text("work")).map(drop)
    }

    fn is_exact(&self, parameters: &Parameters) -> bool {
        processors::is_modelled(parameters)
    }

    fn has_virtual_time(&self, parameters: &Parameters) -> bool {
        processors::is_modelled(parameters)
    }

    fn profiled(&self) -> Vec<Profiled> {
        let of = |policy: &'static str, name: &'static str| Profiled {
            key: key(name, policy),
            make: Arc::new(move || -> Result<Shared> {
                let (disk, work) = (Disk::new(policy, GROUPS)?, work(name)?);
                let run: Shared = Arc::new(move |thread, n| work(&disk, thread, n).map(drop));
                Ok(run)
            }),
            together: [0, Disk::goals(GROUPS)],
            clocks: 2.0,
            operations: 4_000,
        };
        Policy::TABLE.rows.iter().flat_map(|row| WORKS.map(|work| of(row.name, work))).collect()
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let name = parameters.text("work");
        let (work, each, groups) = (work(name)?, parameters.get("operations"), parameters.get("groups"));
        if processors::is_modelled(parameters) {
            let (of, count) = (policy.to_owned(), parameters.get("processors"));
            let body = move || together(&Disk::new(&of, groups)?, work, count, each);
            let runs = processors::run(bench, parameters, Some(&key(name, policy)), body)?;
            for run in runs {
                let crowd = run.value.operation_ns(count);
                bench.measured(&format!("operation{}_ns", run.ending), crowd);
                if run.ending.is_empty() {
                    run.record(bench, count);
                    record(bench, run.value)?;
                }
            }
            return Ok(());
        }
        let count = processors::real_threads(parameters);
        let done = together(&Disk::new(policy, groups)?, work, count, each)?;
        bench.measured("operation_ns", done.operation_ns(count));
        record(bench, done)?;
        if bench.is_stopped() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

/// The work's code in the table of costs.
fn key(work: &str, policy: &str) -> String {
    format!("alloc-threads/{work}/{policy}")
}

/// The results of all threads, and the time that they took together.
struct Crowd {
    done: Done,
    ns: u64,
}

impl Crowd {
    fn operation_ns(&self, threads: u64) -> f64 {
        self.ns as f64 * threads as f64 / self.done.took.len() as f64
    }
}

fn record(bench: &mut Bench<'_>, crowd: Crowd) -> Result<()> {
    let Crowd { done, ns } = crowd;
    let operations = done.took.len();
    bench.took("allocate", operations, ns, done.took);
    bench.empty(operations)?;
    bench.count("operations", operations);
    if done.files > 0 {
        bench.measured("extents_per_file", done.extents as f64 / done.files as f64);
        bench.measured("extents_per_file_max", done.extents_max as f64);
    }
    Ok(())
}

/// `count` threads work at the same time.
fn together(disk: &Arc<Disk>, work: Work, count: u64, each: u64) -> Result<Crowd> {
    let start = Arc::new(Mutex::new(&CLASS, ()));
    let held = start.lock();
    let mut threads = Vec::new();
    for number in 0..count {
        let (disk, start) = (disk.clone(), start.clone());
        let run = move || {
            drop(start.lock());
            work(&disk, number, each)
        };
        threads.push(task::spawn("alloc-threads", run).map_err(thread)?);
    }
    let clock = Clock::real();
    let before = clock.now_ns();
    drop(held);
    let mut done = Done::new()?;
    for thread in threads {
        let its = thread.join().map_err(|_| Error::Failed("a thread panicked".into()))??;
        done.add(its)?;
    }
    Ok(Crowd { ns: clock.now_ns() - before, done })
}

/// The results of a thread.
struct Done {
    took: Histogram<u64>,
    /// Files that have grown to their whole size, and their extents.
    files: u64,
    extents: u64,
    extents_max: u64,
}

impl Done {
    fn new() -> Result<Done> {
        Ok(Done { took: empty_histogram()?, files: 0, extents: 0, extents_max: 0 })
    }

    fn add(&mut self, other: Done) -> Result<()> {
        self.took.add(other.took).map_err(|e| Error::Failed(e.to_string()))?;
        self.files += other.files;
        self.extents += other.extents;
        self.extents_max = self.extents_max.max(other.extents_max);
        Ok(())
    }

    fn file(&mut self, pieces: &[(BlockNr, u32)]) {
        let follows = |w: &&[(BlockNr, u32)]| w[0].0.0 + u64::from(w[0].1) == w[1].0.0;
        let extents = (pieces.len() - pieces.windows(2).filter(follows).count()) as u64;
        self.files += 1;
        self.extents += extents;
        self.extents_max = self.extents_max.max(extents);
    }
}

type Work = fn(&Disk, u64, u64) -> Result<Done>;

const WORKS: [&str; 3] = ["small-files", "append", "fallocate"];

fn work(name: &str) -> Result<Work> {
    match name {
        "small-files" => Ok(small_files),
        "append" => Ok(|disk, thread, n| grow(disk, thread, n, RequestFlags::NONE)),
        "fallocate" => Ok(|disk, thread, n| grow(disk, thread, n, RequestFlags::NO_PREALLOC)),
        other => Err(Error::Usage(format!("work={other}: {}", WORKS.join(", ")))),
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

/// The disk and its allocator.
struct Disk {
    allocator: Allocator<Empty>,
    groups: u64,
}

impl Disk {
    fn new(policy: &str, groups: u64) -> Result<Arc<Disk>> {
        let policy = Policy::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let geometry = Geometry {
            blocks_count: groups * u64::from(BLOCKS_PER_GROUP),
            first_data_block: 0,
            blocks_per_group: BLOCKS_PER_GROUP,
            groups: groups as u32,
            cluster_bits: 0,
            flex_bg_size: FLEX,
            stripe: 0,
            block_size: 4096,
        };
        let summary = GroupSummary { free: BLOCKS_PER_GROUP, block_uninit: false, maps: 0 };
        let options = Options { policy, ..Options::default() };
        let allocator = Allocator::new(Arc::new(Empty), geometry, &vec![summary; groups as usize], options);
        Ok(Arc::new(Disk { allocator: allocator.map_err(failed)?, groups }))
    }

    /// Flex groups with goals: all but the last.
    fn goals(groups: u64) -> u64 {
        groups / u64::from(FLEX) - 1
    }

    /// The file of a thread, and where it wants its blocks.
    fn file(&self, thread: u64) -> (Arc<InodePreallocation>, Option<BlockNr>) {
        let group = 1 + u64::from(FLEX) * (thread % Disk::goals(self.groups));
        let goal = BlockNr(group * u64::from(BLOCKS_PER_GROUP));
        (Arc::new(InodePreallocation::new(InodeNr(11 + thread as u32))), Some(goal))
    }

    fn free(&self, start: BlockNr, len: u32) -> Result<()> {
        let freed = self.allocator.free(&mut (), start, u64::from(len)).map_err(failed)?;
        self.allocator.release(&freed);
        Ok(())
    }
}

fn small_files(disk: &Disk, thread: u64, operations: u64) -> Result<Done> {
    let (owner, goal) = disk.file(thread);
    let clock = Clock::real();
    let mut done = Done::new()?;
    for _ in 0..operations {
        let start = clock.now_ns();
        let request = Request::data(&owner, goal, LogicalBlock(0), SMALL, u64::from(SMALL));
        let got = disk.allocator.allocate(&mut (), &request).map_err(failed)?;
        disk.free(got.start, got.len)?;
        done.took.saturating_record(clock.now_ns() - start);
    }
    Ok(done)
}

fn grow(disk: &Disk, thread: u64, operations: u64, flags: RequestFlags) -> Result<Done> {
    let (owner, goal) = disk.file(thread);
    let clock = Clock::real();
    let mut done = Done::new()?;
    let mut mine: Vec<(BlockNr, u32)> = Vec::new();
    let mut behind = goal;
    for operation in 0..operations {
        let at = operation as u32 * STEP % WHOLE;
        // With preallocation the goal hardly matters; without it the file's last block is the best place to continue.
        let near = if flags == RequestFlags::NONE { goal } else { behind };
        let start = clock.now_ns();
        let request = Request { flags, ..Request::data(&owner, near, LogicalBlock(at), STEP, u64::from(at + STEP)) };
        let got = disk.allocator.allocate(&mut (), &request).map_err(failed)?;
        done.took.saturating_record(clock.now_ns() - start);
        mine.push((got.start, got.len));
        behind = Some(BlockNr(got.start.0 + u64::from(got.len)));
        if at + STEP == WHOLE || operation + 1 == operations {
            if at + STEP == WHOLE {
                done.file(&mine);
            }
            disk.allocator.discard_preallocations(&owner);
            mine.drain(..).try_for_each(|(start, len)| disk.free(start, len))?;
            behind = goal;
        }
    }
    Ok(done)
}
