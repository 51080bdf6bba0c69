//! Properties of every workload: the same operations from the same seed on every target, and the promised phases.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_base::task::ThreadId;

use super::*;
use crate::vfs::{Node, Op, PosixVfs, Stat, Vfs, VfsResult, Worker};

static CLASS: LockClass = LockClass::new("test", 0);

/// A directory that records the operations of each thread.
struct Recording {
    dir: tempfile::TempDir,
    below: PosixVfs,
    slow: f64,
    /// The time of the last `mkdir` below the root.
    mkdir_ns: AtomicU64,
    seen: Mutex<HashMap<ThreadId, (u64, DefaultHasher)>>,
}

impl Recording {
    fn new() -> Recording {
        let dir = tempfile::tempdir().unwrap();
        let below = PosixVfs::open(dir.path()).unwrap();
        let seen = Mutex::new(&CLASS, HashMap::new());
        Recording { dir, below, slow: 0.0, mkdir_ns: AtomicU64::new(0), seen }
    }

    fn note(&self, what: impl Hash) {
        let mut seen = self.seen.lock();
        let (count, hasher) = seen.entry(extant_base::task::current().id()).or_default();
        *count += 1;
        what.hash(hasher);
    }

    /// Sorted, because the assignment of parts to threads does not matter.
    fn sum(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<_> = self.seen.lock().values().map(|(count, h)| (*count, h.finish())).collect();
        all.sort_unstable();
        all
    }
}

impl Vfs for Recording {
    fn slow(&self) -> f64 {
        self.slow
    }
    fn mkdir(&self, path: &str) -> VfsResult<()> {
        self.note(("mkdir", path));
        let clock = Clock::real();
        let result = self.below.mkdir(path);
        self.mkdir_ns.store(clock.now_ns(), Ordering::Relaxed);
        result
    }
    fn create(&self, path: &str) -> VfsResult<Node> {
        self.note(("create", path));
        self.below.create(path)
    }
    fn open(&self, path: &str) -> VfsResult<Node> {
        self.note(("open", path));
        self.below.open(path)
    }
    fn write_at(&self, node: &Node, offset: u64, data: &[u8]) -> VfsResult<()> {
        self.note(("write", offset, data));
        self.below.write_at(node, offset, data)
    }
    fn read_at(&self, node: &Node, offset: u64, buf: &mut [u8]) -> VfsResult<usize> {
        let n = self.below.read_at(node, offset, buf)?;
        self.note(("read", offset, &buf[..n]));
        Ok(n)
    }
    fn fsync(&self, _: &Node) -> VfsResult<()> {
        self.note("fsync");
        Ok(())
    }
    fn fdatasync(&self, _: &Node) -> VfsResult<()> {
        self.note("fdatasync");
        Ok(())
    }
    fn close(&self, node: Node) -> VfsResult<()> {
        self.note("close");
        self.below.close(node)
    }
    fn unlink(&self, path: &str) -> VfsResult<()> {
        self.note(("unlink", path));
        self.below.unlink(path)
    }
    fn rmdir(&self, path: &str) -> VfsResult<()> {
        self.note(("rmdir", path));
        self.below.rmdir(path)
    }
    fn rename(&self, from: &str, to: &str) -> VfsResult<()> {
        self.note(("rename", from, to));
        self.below.rename(from, to)
    }
    fn stat(&self, path: &str) -> VfsResult<Stat> {
        let stat = self.below.stat(path)?;
        self.note(("stat", path, stat.directory || stat.size > 0));
        Ok(stat)
    }
    fn readdir(&self, path: &str) -> VfsResult<u64> {
        let n = self.below.readdir(path)?;
        self.note(("readdir", path, n));
        Ok(n)
    }
    fn symlink(&self, target: &str, path: &str) -> VfsResult<()> {
        self.note(("symlink", target, path));
        self.below.symlink(target, path)
    }
    fn truncate(&self, node: &Node, size: u64) -> VfsResult<()> {
        self.note(("truncate", size));
        self.below.truncate(node, size)
    }
    fn sync_all(&self) -> VfsResult<()> {
        self.note("sync");
        Ok(())
    }
}

impl Place for Recording {
    fn vfs(&self) -> Result<&dyn Vfs> {
        Ok(self)
    }
    fn space(&self) -> Result<Space> {
        Ok(Space { block_bytes: 4096, blocks: 6144, free_blocks: 6000 })
    }
    fn cold(&mut self) -> Result<Settled> {
        let measures = [("device_seconds".to_owned(), 7.0)].into();
        Ok(Settled { seconds: 1000.0, measures })
    }
}

/// For each thread: operations, and a hash of them.
type Sums = Vec<(u64, u64)>;
/// Name, operations, bytes.
type Phases = Vec<(String, u64, u64)>;

/// Runs a small version; returns the operations, and the names of the phases with their counts.
fn record(workload: &dyn Workload, seed: u64, operations: Option<&Path>) -> (Sums, Phases) {
    let mut parameters = workload.parameters(0.001);
    if workload.name() == "reaim-disk" {
        parameters.set("processes=1,3").unwrap();
        parameters.set("jobs_per_process=30").unwrap();
    }
    let mut place = Recording::new();
    let stop = AtomicBool::new(false);
    let mut context = Context::new(&mut place, &parameters, seed, true, &stop, operations, &|_| {});
    workload.run(&mut context).unwrap();
    let phases = context.phases.iter().map(|p| (p.name.clone(), p.operations, p.bytes)).collect();
    drop(context);
    let needs = workload.needs(&parameters);
    let left = std::fs::read_dir(place.dir.path()).unwrap().count() as u64;
    assert!(needs.files >= left, "{}: {} files, {} expected", workload.name(), left, needs.files);
    (place.sum(), phases)
}

#[test]
fn one_syncfs_stands_for_all_fsyncs() {
    let workload = find("fsmark").unwrap();
    let mut parameters = workload.parameters(0.001);
    parameters.set("syncfs=1").unwrap();
    let mut place = Recording::new();
    let stop = AtomicBool::new(false);
    let mut context = Context::new(&mut place, &parameters, 1, true, &stop, None, &|_| {});
    workload.run(&mut context).unwrap();
    let of = |name: &str| context.phases.iter().find(|p| p.name == name).unwrap().operations;
    assert_eq!(of("fsync"), of("write"));
    let seen: HashMap<_, _> = context.histograms.iter().map(|(op, h)| (op.name(), h.len())).collect();
    assert_eq!((seen.get("sync"), seen.get("fsync").copied().unwrap_or(0)), (Some(&1), 0), "{seen:?}");
}

fn list(lines: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    file
}

#[test]
fn the_seed_determines_the_operations() {
    let operations = list(
        "{\"op\":\"create\",\"path\":\"a\"}\n{\"op\":\"write\",\"path\":\"a\",\"bytes\":70000}\n\
         {\"op\":\"fsync\",\"path\":\"a\"}\n\n{\"op\":\"close\",\"path\":\"a\"}\n\
         {\"op\":\"mkdir\",\"path\":\"d\",\"process\":1}\n{\"op\":\"symlink\",\"path\":\"d/l\",\"to\":\"x\",\"process\":1}\n",
    );
    // A user's program need not do the same work twice.
    for workload in all().iter().filter(|w| !w.needs_directory()) {
        let name = workload.name();
        let operations = (name == "replay").then_some(operations.path());
        let (first, phases) = record(*workload, 1, operations);
        let (again, same) = record(*workload, 1, operations);
        assert_eq!(first, again, "{name}");
        assert_eq!(phases, same, "{name}");
        // The written content also depends on the seed.
        assert_ne!(first, record(*workload, 2, operations).0, "{name}");
        let headline = if name == "reaim-disk" { "disk-3" } else { workload.headline() };
        let found = phases.iter().find(|(phase, ..)| phase == headline);
        assert!(found.is_some_and(|(_, operations, _)| *operations > 0), "{name}: {phases:?}");
    }
}

#[test]
fn the_headline_is_not_over_before_its_work_is_durable() {
    for (name, setting) in [("kernel-tree", "headers=1"), ("fio-mix", "jobs=1"), ("small-files", "fsync=0")] {
        let workload = find(name).unwrap();
        let mut parameters = workload.parameters(0.001);
        parameters.set(setting).unwrap();
        assert!(workload.durable(&parameters), "{name}");
        let mut place = Recording::new();
        let stop = AtomicBool::new(false);
        let mut context = Context::new(&mut place, &parameters, 1, true, &stop, None, &|_| {});
        context.until_durable(workload.headline());
        workload.run(&mut context).unwrap();
        // Emptying the caches, which made everything durable, took a thousand seconds; otherwise the unmount will.
        let slow = context.phases.iter().filter(|p| p.seconds >= 1000.0).map(|p| p.name.as_str()).collect::<Vec<_>>();
        match context.headline() {
            None => assert_eq!(slow, [workload.headline()], "{name}"),
            Some(open) => assert!(open == workload.headline() && slow.is_empty(), "{name}: {slow:?}"),
        }
        assert_eq!(context.headline().is_none(), name == "kernel-tree", "{name}");
    }
    let fsynced = find("small-files").unwrap();
    assert!(!fsynced.durable(&fsynced.parameters(1.0)), "each file is fsynced");
}

/// Every other write of a job is made durable, and every write is to a block that the file already had.
#[test]
fn fio_mix_syncs_what_it_overwrites() {
    let workload = find("fio-mix").unwrap();
    let mut parameters = workload.parameters(0.0);
    for setting in
        ["jobs=1", "files_per_job=1", "file_bytes=65536", "job_bytes=81920", "block_bytes=8192", "run_blocks=5"]
    {
        parameters.set(setting).unwrap();
    }
    let run = |parameters: &Parameters| {
        let mut place = Recording::new();
        let stop = AtomicBool::new(false);
        let mut context = Context::new(&mut place, parameters, 1, true, &stop, None, &|_| {});
        workload.run(&mut context).unwrap();
        let content = std::fs::read(place.dir.path().join("job0/f0")).unwrap();
        let holes = content.chunks(8192).filter(|block| block.iter().all(|b| *b == 0)).count();
        (place.sum().iter().map(|(calls, _)| calls).sum::<u64>(), holes)
    };
    let (calls, holes) = run(&parameters);
    assert!(holes > 0, "ten writes into eight blocks, in two runs");
    parameters.set("fdatasync=2").unwrap();
    assert_eq!(run(&parameters), (calls + 5, holes));
    parameters.set("laid_out=1").unwrap();
    assert_eq!(run(&parameters).1, 0);
}

#[test]
fn names_are_unique_and_known() {
    let mut names: Vec<&str> = all().iter().map(|w| w.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all().len());
    let e = find("small-file").err().map(|e| e.to_string()).unwrap_or_default();
    assert!(all().iter().all(|w| e.contains(w.name())), "{e}");
}

#[test]
fn parameters_are_the_source_s_at_scale_one() {
    let p = find("small-files").unwrap().parameters(1.0);
    assert_eq!((p.get("processes"), p.get("count"), p.get("bytes")), (16, 100, 22_528));
    let p = find("fio-mix").unwrap().parameters(1.0);
    assert_eq!((p.get("jobs"), p.get("files_per_job"), p.get("job_bytes")), (25, 10, 20 << 30));
    let p = find("reaim-disk").unwrap().parameters(1.0);
    assert_eq!(p.list("processes"), [1, 41, 81, 161, 321]);
    let mut p = find("small-files").unwrap().parameters(0.5);
    assert_eq!(p.get("count"), 50);
    p.set("count=200").unwrap();
    assert_eq!(p.get("count"), 200);
    assert!(p.set("count=many").is_err() && p.set("count").is_err());
    assert!(p.set("colour=1").unwrap_err().to_string().contains("batch, bytes, count"));
}

#[test]
fn a_list_that_leaves_the_target_is_refused() {
    let replay = find("replay").unwrap();
    for bad in [
        "{\"op\":\"create\",\"path\":\"/etc/x\"}",
        "{\"op\":\"create\",\"path\":\"a/../../x\"}",
        "{\"op\":\"rename\",\"path\":\"a\",\"to\":\"../x\"}",
        "{\"op\":\"explode\",\"path\":\"a\"}",
        "{\"op\":\"mkdir\",\"path\":\"a\",\"process\":100000}",
        "{\"op\":\"mkdir\",\"mode\":7}",
        "not json",
        "",
    ] {
        let file = list(bad);
        let e = check_inputs(replay, Some(file.path())).unwrap_err();
        assert!(e.is_usage(), "{bad}: {e}");
    }
    assert!(check_inputs(replay, None).is_err());
    assert!(check_inputs(find("untar").unwrap(), Some(Path::new("/etc/passwd"))).is_err());
}

#[test]
fn a_failed_or_stopped_process_ends_the_phase() {
    let parameters = Parameters::new();
    let mut place = Recording::new();
    let stop = AtomicBool::new(false);
    let mut context = Context::new(&mut place, &parameters, 1, true, &stop, None, &|_| {});
    let e = context.phase("x", 3, |w, process| if process == 1 { w.unlink("none") } else { Ok(()) }).unwrap_err();
    assert_eq!(e.to_string(), "unlink none: No such file or directory (os error 2)");
    stop.store(true, extant_base::sync::atomic::Ordering::Relaxed);
    let e = context.phase("x", 2, |w, p| w.mkdir(&format!("d{p}"))).unwrap_err();
    assert!(matches!(e, Error::Interrupted), "{e}");
    assert!(context.phases.is_empty());
}

#[test]
fn a_slowed_target_takes_longer_by_the_given_part() {
    let (clock, stop) = (quanta::Clock::new(), AtomicBool::new(false));
    let vfs = Recording { slow: 3.0, ..Recording::new() };
    for i in 0..20 {
        let mut worker = Worker::new(&vfs, &clock, true, 1, &[0; 16], &stop);
        worker.mkdir(&format!("d{i}")).unwrap();
        let (_, _, histograms) = worker.finish();
        let (_, latency) = histograms.iter().find(|(op, _)| *op == Op::Mkdir).expect("recorded");
        let below = vfs.mkdir_ns.load(Ordering::Relaxed);
        // One clock is the processor's counter, the other that of the machine: their difference is far smaller than
        // this.
        assert!(latency.len() == 1 && latency.max() as f64 > 3.9 * below as f64, "{} of {below} ns", latency.max());
    }
}
