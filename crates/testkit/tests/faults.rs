//! A device that fails requests: errors are returned, nothing panics or hangs, and acknowledged data is preserved.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::task;
use extant_block::device::{CrashDevice, Fault, FaultyDevice, MemDevice};
use extant_block::{BioOp, BlockDevice};
use extant_fs::{Cred, Filesystem, NewNode, WriteFlags};
use extant_testkit::crash::explore::mend;
use extant_testkit::crash::workload::{EPOCH_S, Workload, mount_options};
use extant_testkit::crash::{CrashImage, Cut, IMAGES, oracle, seen, state_files};
use extant_testkit::oracle::e2fsck;

/// The number of operations per run.
const OPS: usize = 160;
/// The number of faults per kind, image and duration, spread over the requests of the run.
const POINTS: u64 = 25;

/// Aborts the process if there is no progress for a minute, because an operation hangs.
struct Watchdog(Arc<AtomicU64>);

impl Watchdog {
    fn start(what: &'static str) -> Watchdog {
        let beat = Arc::new(AtomicU64::new(0));
        let seen = Arc::downgrade(&beat);
        task::spawn("watchdog", move || {
            let (clock, mut last, mut still) = (Clock::real(), 0, 0);
            while let Some(beat) = seen.upgrade() {
                let now = beat.load(Ordering::Relaxed);
                (still, last) = if now == last { (still + 1, last) } else { (0, now) };
                if still > 120 {
                    eprintln!("{what}: an operation hangs after {now} others");
                    std::process::abort();
                }
                drop(beat);
                clock.sleep(Duration::from_millis(500));
            }
        })
        .expect("watchdog");
        Watchdog(beat)
    }

    fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Outcome {
    /// The number of requests of this kind.
    requests: u64,
    struck: bool,
}

/// Runs the workload with one fault, continues to use the mount, and then checks the image.
fn run(image: &CrashImage, base: &MemDevice, op: BioOp, fault: Option<Fault>, dog: &Watchdog) -> Outcome {
    let what = format!("{} {op:?} {fault:?}", image.name);
    let device = Arc::new(CrashDevice::from_image(base));
    let faulty = Arc::new(FaultyDevice::new(device.clone()));
    let options = mount_options(Clock::virtual_at(EPOCH_S));
    let mut w = Workload::mount(*image, faulty.clone(), device.clone(), 31, options).expect("mounted before the fault");
    let always_flush = fault.as_ref().is_some_and(|_| op == BioOp::Flush);
    let before = device.stats();
    if let Some(fault) = fault {
        faulty.inject(fault);
    }
    let mut failed = None;
    while w.history.ops.len() < OPS && failed.is_none() {
        failed = w.step().err();
        dog.beat();
    }
    let struck = faulty.injected() > 0;
    if struck {
        w.give_up();
        afterwards(&w.fs, always_flush, &what, dog);
    } else {
        assert!(failed.is_none(), "{what}: failed without a fault: {failed:?}");
    }
    let now = device.stats();
    let requests = match op {
        BioOp::Read => now.reads - before.reads,
        BioOp::Flush => now.flushes - before.flushes,
        _ => now.writes - before.writes,
    };
    if struck {
        // It may fail, but it must return.
        let _ = w.fs.unmount();
        dog.beat();
        look(image, &w, &device, &what);
    }
    Outcome { requests, struck }
}

/// Continues to use the mount; each call may fail, but none may panic.
fn afterwards(fs: &Arc<Filesystem>, flushes_fail: bool, what: &str, dog: &Watchdog) {
    let mut synced = Vec::new();
    let cred = Cred::default();
    if let Ok(root) = fs.root() {
        for i in 0..4 {
            let name = format!("zz-{i}");
            if let Ok(f) = fs.create(&root, name.as_bytes(), NewNode::file(0o600), cred) {
                let _ = fs.write(&f, 0, &[i as u8; 5000], WriteFlags::default());
                synced.push(fs.fsync(&f, false));
                let mut buf = [0; 100];
                let _ = fs.read(&f, 0, &mut buf);
            }
            let _ = fs.unlink(&root, name.as_bytes());
            fs.step();
            dog.beat();
        }
        let _ = fs.read_dir(&root, 0, |_| true);
    }
    synced.push(fs.sync());
    let _ = fs.statfs();
    if flushes_fail {
        // A failed flush may have lost anything, so the journal must have stopped.
        assert!(fs.is_read_only(), "{what}: still writable after a failed flush");
        let root = fs.root().expect("reading goes on");
        assert!(fs.create(&root, b"zz-late", NewNode::file(0o600), cred).is_err(), "{what}: a change after the abort");
    }
}

/// Checks that the image can be repaired and has all acknowledged data.
fn look(image: &CrashImage, w: &Workload, device: &CrashDevice, what: &str) {
    let dir = state_files();
    let path = dir.path().join("left");
    device.live().save(&path).expect("saved");
    if mend(&path).is_err() {
        let f = e2fsck(&path, &["-fy"]).expect("e2fsck");
        assert!(f.code <= 1, "{what}: e2fsck -fy: {}\n{}", f.code, f.output);
    }
    let f = e2fsck(&path, &["-fn"]).expect("e2fsck");
    assert_eq!(f.code, 0, "{what}: after mending: {}", f.output);
    let mended = Arc::new(MemDevice::load(&path).expect("loaded"));
    let fs = Filesystem::mount(mended, mount_options(Clock::virtual_at(EPOCH_S + 100_000)))
        .unwrap_or_else(|e| panic!("{what}: {e}"));
    let tree = seen::by_extant(&fs).unwrap_or_else(|e| panic!("{what}: {e}"));
    let cut = Cut { events: device.write_log() + 1, in_flight: false };
    oracle::check_acknowledged(&w.history, &tree, cut).unwrap_or_else(|e| panic!("{what} ({}): {e}", image.name));
}

fn explore(op: BioOp, name: &'static str) {
    let dog = Watchdog::start(name);
    let mut struck = 0;
    for image in [IMAGES[0], IMAGES[2], IMAGES[4]] {
        let dir = state_files();
        let base = image.build(dir.path()).expect("image");
        let requests = run(&image, &base, op, None, &dog).requests;
        for i in 0..POINTS {
            let after = i * requests / POINTS + i % 3;
            for fault in [Fault::eio().op(op).after(after).once(), Fault::eio().op(op).after(after)] {
                struck += u64::from(run(&image, &base, op, Some(fault), &dog).struck);
            }
        }
    }
    assert!(struck > POINTS, "{name}: only {struck} faults struck");
    eprintln!("{name}: {struck} faults");
}

#[test]
fn writes_fail() {
    explore(BioOp::Write, "writes");
}

#[test]
fn flushes_fail() {
    explore(BioOp::Flush, "flushes");
}

#[test]
fn reads_fail() {
    explore(BioOp::Read, "reads");
}
