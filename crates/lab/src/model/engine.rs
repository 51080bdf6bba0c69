//! `engine`: threads use a mounted file system beside each other, whose image lies in memory. It measures how much of
//! its speed one thread keeps when others work, too, and which locks of the engine take the rest.
//!
//! Each of `threads` threads (two, if that is 0) does `operations` operations. `work=create`: it makes a file of 8 KiB
//! in its own directory, and removes the one that it made before the last [`LIVE`]. `work=fsync`: a file of 22,528
//! bytes is made, synced and removed. `work=read`: 4 KiB at a random place of one file, which all share and the cache
//! holds.
//!
//! The image's device takes no time of its own; a request is a copy in memory. With `processors=0` threads and time are
//! real. With `processors=N` there is a thread on each of N modelled processors ([`super::processors`]), which the
//! engine's own threads share.
//!
//! # Locking
//! `engine model` is held until all threads are there; no other lock is taken under it.

use std::sync::{Arc, OnceLock};

use extant_base::clock::Clock;
use extant_base::policy::Table;
use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};
use extant_base::task;
use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Filesystem, InodeRef, MountOptions, Mounted, NewNode, WriteFlags};
use extant_mballoc::Policy;
use hdrhistogram::Histogram;

use super::processors::{self, PROCESSORS_MAX, Profiled, Shared};
use super::{Bench, Model, empty_histogram, thread};
use crate::error::{Error, Result};
use crate::target::tools::Tool;
use crate::workload::Parameters;

static CLASS: LockClass = LockClass::new("engine model", 0);

/// Bytes of the image.
const IMAGE: u64 = 16 << 30;
/// Bytes of a new file, of one that is synced, of a read, and of the file that is read.
const SMALL: usize = 8192;
const SYNCED: usize = 22_528;
const READ: usize = 4096;
const WHOLE: u64 = 16 << 20;
/// Files that a thread leaves behind itself.
const LIVE: u64 = 32;

const WORKS: [&str; 3] = ["create", "fsync", "read"];

/// See the page.
pub struct Engine;

impl Model for Engine {
    fn name(&self) -> &'static str {
        "engine"
    }

    fn summary(&self) -> &'static str {
        "threads use a file system in memory beside each other (work: create, fsync, read): how long an operation takes"
    }

    fn headline(&self) -> &'static str {
        "operation_ns"
    }

    fn policies(&self) -> Table {
        Policy::TABLE
    }

    fn parameters(&self) -> Parameters {
        processors::parameters(
            Parameters::new().with_text("work", "create").with("threads", 0).with("operations", 1000),
        )
    }

    fn check(&self, parameters: &Parameters) -> Result<()> {
        let within = |name: &str, most: u64| match parameters.get(name) {
            n if (1..=most).contains(&n) => Ok(()),
            n => Err(Error::Usage(format!("{name}={n}: from 1 to {most}"))),
        };
        processors::check_threads(parameters, PROCESSORS_MAX)?;
        within("operations", 1_000_000)?;
        let work = parameters.text("work");
        if !WORKS.contains(&work) {
            return Err(Error::Usage(format!("work={work}: {}", WORKS.join(", "))));
        }
        processors::check(parameters)
    }

    fn is_exact(&self, parameters: &Parameters) -> bool {
        processors::is_modelled(parameters)
    }

    fn has_virtual_time(&self, parameters: &Parameters) -> bool {
        processors::is_modelled(parameters)
    }

    fn profiled(&self) -> Vec<Profiled> {
        let of = |work: &'static str| Profiled {
            key: key(work),
            make: Arc::new(move || -> Result<Shared> {
                let site = Arc::new(Site::new(Policy::default(), 1, 2, work)?);
                let run: Shared = Arc::new(move |thread, n| site.work(thread, n).map(drop));
                Ok(run)
            }),
            together: [0, 1],
            clocks: 2.0,
            operations: 400,
        };
        WORKS.map(of).into()
    }

    fn run(&self, policy: &str, parameters: &Parameters, bench: &mut Bench<'_>) -> Result<()> {
        let policy = Policy::from_name(policy).map_err(|e| Error::Usage(e.to_string()))?;
        let named = WORKS.into_iter().find(|work| *work == parameters.text("work"));
        let (work, each) = (named.unwrap_or(WORKS[0]), parameters.get("operations"));
        let seed = bench.seed();
        base()?;
        if processors::is_modelled(parameters) {
            let count = parameters.get("processors");
            let body = move || together(Site::new(policy, seed, count, work)?, count, each);
            for run in processors::run(bench, parameters, Some(&key(work)), body)? {
                bench.measured(&format!("operation{}_ns", run.ending), run.value.operation_ns(count));
                if run.ending.is_empty() {
                    run.record(bench, count);
                    record(bench, run.value)?;
                }
            }
            return Ok(());
        }
        let count = processors::real_threads(parameters);
        let crowd = together(Site::new(policy, seed, count, work)?, count, each)?;
        bench.measured("operation_ns", crowd.operation_ns(count));
        record(bench, crowd)?;
        if bench.is_stopped() {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

/// The work's code in the table of costs.
fn key(work: &str) -> String {
    format!("engine/{work}")
}

fn failed(e: impl std::fmt::Display) -> Error {
    Error::Failed(format!("the modelled engine: {e}"))
}

/// A new file system. Each run works on a copy.
fn base() -> Result<Arc<MemDevice>> {
    static BASE: OnceLock<Arc<MemDevice>> = OnceLock::new();
    if let Some(base) = BASE.get() {
        return Ok(base.clone());
    }
    let dir = tempfile::tempdir().map_err(failed)?;
    let path = dir.path().join("engine.img");
    let file = std::fs::File::create(&path).map_err(Error::file(&path))?;
    file.set_len(IMAGE).map_err(Error::file(&path))?;
    let options = ["-q", "-F", "-t", "ext4", "-i", "65536", "-U", "37654248-1153-4ee2-aa1f-c466cee294c1"];
    let extended = ["-E", "lazy_itable_init=0,lazy_journal_init=0,hash_seed=e7d90f93-ca2c-4196-a95d-a6729363dd2a"];
    Tool::new("mke2fs").args(options).args(extended).arg(&path).run()?;
    let base = MemDevice::load(&path).map_err(failed)?;
    Ok(BASE.get_or_init(|| Arc::new(base)).clone())
}

/// A mounted file system with what the threads need.
struct Site {
    fs: Mounted,
    work: &'static str,
    directories: Vec<InodeRef>,
    read: Option<InodeRef>,
}

impl Site {
    fn new(policy: Policy, seed: u64, threads: u64, work: &'static str) -> Result<Site> {
        let base: Arc<dyn BlockDevice> = base()?;
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::over(base));
        let options = MountOptions { alloc_policy: policy, seed: Some(seed), ..MountOptions::default() };
        let fs = Filesystem::mount(device, options).map_err(failed)?;
        let root = fs.root().map_err(failed)?;
        let make = |n: u64| {
            fs.create(&root, format!("d{n}").as_bytes(), NewNode::directory(0o755), Cred::default()).map_err(failed)
        };
        let directories = (0..threads).map(make).collect::<Result<_>>()?;
        let read = if work == "read" {
            let file = fs.create(&root, b"read", NewNode::file(0o644), Cred::default()).map_err(failed)?;
            for at in (0..WHOLE).step_by(1 << 20) {
                fs.write(&file, at, &[b'r'; 1 << 20], WriteFlags::default()).map_err(failed)?;
            }
            fs.fsync(&file, false).map_err(failed)?;
            Some(file)
        } else {
            None
        };
        Ok(Site { fs, work, directories, read })
    }

    /// The work of the thread `number`: how long each operation took.
    fn work(&self, number: u64, operations: u64) -> Result<Histogram<u64>> {
        let mut took = empty_histogram()?;
        let (clock, mut rng) = (Clock::real(), Rng::new(number));
        let dir = &self.directories[number as usize % self.directories.len()];
        for n in 0..operations {
            let start = clock.now_ns();
            match &self.read {
                Some(file) => {
                    let (at, mut bytes) = (rng.below(WHOLE / READ as u64) * READ as u64, [0; READ]);
                    self.fs.read(file, at, &mut bytes).map_err(failed)?;
                }
                None if self.work == "fsync" => {
                    let file = self.file(dir, n, &[b's'; SYNCED])?;
                    self.fs.fsync(&file, false).map_err(failed)?;
                    drop(file);
                    self.remove(dir, n)?;
                }
                None => {
                    drop(self.file(dir, n, &[b'c'; SMALL])?);
                    if let Some(old) = n.checked_sub(LIVE) {
                        self.remove(dir, old)?;
                    }
                }
            }
            took.saturating_record(clock.now_ns() - start);
        }
        for n in operations.saturating_sub(LIVE)..operations {
            if self.work == "create" {
                self.remove(dir, n)?;
            }
        }
        Ok(took)
    }

    fn file(&self, dir: &InodeRef, n: u64, data: &[u8]) -> Result<InodeRef> {
        let name = format!("f{n}");
        let file = self.fs.create(dir, name.as_bytes(), NewNode::file(0o644), Cred::default()).map_err(failed)?;
        self.fs.write(&file, 0, data, WriteFlags::default()).map_err(failed)?;
        Ok(file)
    }

    fn remove(&self, dir: &InodeRef, n: u64) -> Result<()> {
        self.fs.unlink(dir, format!("f{n}").as_bytes()).map_err(failed)
    }
}

/// The results of all threads, and the time that they took together.
struct Crowd {
    took: Histogram<u64>,
    ns: u64,
}

impl Crowd {
    /// The time by the operations of one thread.
    fn operation_ns(&self, threads: u64) -> f64 {
        self.ns as f64 * threads as f64 / self.took.len() as f64
    }
}

fn record(bench: &mut Bench<'_>, crowd: Crowd) -> Result<()> {
    let operations = crowd.took.len();
    bench.took("operation", operations, crowd.ns, crowd.took);
    bench.empty(operations)?;
    bench.count("operations", operations);
    Ok(())
}

/// `count` threads work at the same time.
fn together(site: Site, count: u64, each: u64) -> Result<Crowd> {
    let site = Arc::new(site);
    let start = Arc::new(Mutex::new(&CLASS, ()));
    let held = start.lock();
    let mut threads = Vec::new();
    for number in 0..count {
        let (site, start) = (site.clone(), start.clone());
        let run = move || {
            drop(start.lock());
            site.work(number, each)
        };
        threads.push(task::spawn("engine", run).map_err(thread)?);
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
    let site = Arc::into_inner(site).ok_or_else(|| failed("a thread still uses it"))?;
    let Site { fs, directories, read, .. } = site;
    drop((directories, read));
    fs.unmount().map_err(failed)?;
    Ok(Crowd { took, ns })
}
