//! Power cuts at every write of seeded workloads, on every kind of image.
//!
//! `EXTANT_CRASH_SEED` chooses another workload, `EXTANT_CRASH_STATES` how many states of it (0: each event in every mode),
//! `EXTANT_CRASH_STATE` one state, as a failure prints it.

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_block::device::CrashDevice;
use extant_block::{Bio, BioFlags, BioOp, BlockDevice, IoStats, Limits};
use extant_testkit::crash::explore::interrupt_recovery;
use extant_testkit::crash::workload::{EPOCH_S, mount_options};
use extant_testkit::crash::{CrashImage, Explore, IMAGES, Recording, Wrap, explore, record, state_files};

/// Operations of one workload; with small transactions that is some rounds through the log.
const OPS: usize = 700;
/// States of one workload in the default run. Five images make more than two thousand.
const STATES: usize = 450;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |v| v.parse().unwrap_or_else(|_| panic!("{name}={v}")))
}

fn image(name: &str) -> CrashImage {
    *IMAGES.iter().find(|i| i.name == name).expect("a known image")
}

fn run(image: &CrashImage, seed: u64, ops: usize, wrap: Wrap<'_>) -> Arc<Recording> {
    let dir = state_files();
    let base = image.build(dir.path()).unwrap_or_else(|e| panic!("{}: {e}", image.name));
    let options = mount_options(Clock::virtual_at(EPOCH_S));
    let recording =
        record(image, &base, seed, ops, options, wrap).unwrap_or_else(|e| panic!("{} seed {seed}: {e}", image.name));
    Arc::new(recording)
}

fn explore_image(name: &str, seed: u64, states: usize) {
    let image = image(name);
    let recording = run(&image, number("EXTANT_CRASH_SEED", seed), OPS, &|d| d);
    let events = recording.device.write_log();
    let states = match number("EXTANT_CRASH_STATES", states as u64) as usize {
        0 => 6 * (events + 1),
        n => n,
    };
    let report = explore(&recording, &Explore::spread(events, states));
    eprintln!(
        "{name}: {} operations, {events} events, {} commits, {} blocks logged, {} checkpoints; {} states, {} of them also \
         recovered by e2fsck and the kernel",
        recording.history.ops.len(),
        recording.commits,
        recording.logged,
        recording.checkpoints,
        report.states,
        report.external
    );
    report.expect_clean(&recording);
    if image.has_journal() && std::env::var("EXTANT_CRASH_SEED").is_err() {
        assert!(recording.logged > u64::from(image.journal_blocks), "the log never wrapped");
    }
}

#[test]
fn ext4() {
    explore_image("ext4", 1, STATES);
}

#[test]
fn ext4_1k_with_orphan_file() {
    explore_image("ext4-1k", 2, STATES);
}

#[test]
fn ext3() {
    explore_image("ext3", 3, STATES);
}

#[test]
fn ext4_without_journal() {
    explore_image("ext4-nojournal", 4, STATES);
}

#[test]
fn ext2() {
    explore_image("ext2", 5, STATES);
}

/// The power fails again while the first failure is being recovered from.
#[test]
fn recovery_is_interrupted() {
    for (name, seed) in [("ext4", 11), ("ext4-1k", 12), ("ext3", 13)] {
        let recording = run(&image(name), number("EXTANT_CRASH_SEED", seed), 250, &|d| d);
        let states = Explore::spread(recording.device.write_log(), 12).states;
        let tried = interrupt_recovery(&recording, &states, 12)
            .unwrap_or_else(|e| panic!("{name}, seed {}: {e}", recording.seed));
        eprintln!("{name}: {tried} recoveries cut off");
    }
}

/// More workloads, more states: `cargo test --release -p extant-testkit --test crash -- --ignored soak`.
#[test]
#[ignore = "takes long; EXTANT_CRASH_ROUNDS sets how long"]
fn soak() {
    for round in 0..number("EXTANT_CRASH_ROUNDS", 4) {
        for (i, image) in IMAGES.iter().enumerate() {
            explore_image(image.name, 1000 + round * 10 + i as u64, number("EXTANT_CRASH_STATES", 3000) as usize);
        }
    }
}

/// A device whose flushes, and the flags that ask for one, get lost on the way.
struct LosesFlushes(Arc<CrashDevice>);

impl BlockDevice for LosesFlushes {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn read_only(&self) -> bool {
        false
    }
    fn submit(&self, mut bio: Bio) {
        bio.flags.remove(BioFlags::PREFLUSH | BioFlags::FUA);
        if bio.op == BioOp::Flush {
            return bio.complete(Ok(()));
        }
        self.0.submit(bio);
    }
    fn read_at(&self, offset: u64, buf: &mut [u8], flags: BioFlags) -> extant_block::Result<()> {
        self.0.read_at(offset, buf, flags)
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], flags: BioFlags) -> extant_block::Result<()> {
        self.0.write_at(offset, pieces, flags.difference(BioFlags::PREFLUSH | BioFlags::FUA))
    }
    fn flush(&self) -> extant_block::Result<()> {
        Ok(())
    }
    fn discard(&self, offset: u64, len: u64) -> extant_block::Result<()> {
        self.0.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.0.write_zeroes(offset, len, flags)
    }
    fn stats(&self) -> IoStats {
        self.0.stats()
    }
}

/// The explorer must be able to fail: without flushes nothing that was acknowledged is safe.
#[test]
fn canary_lost_flushes_are_found() {
    for name in ["ext4", "ext2"] {
        let recording = run(&image(name), 21, 120, &|d| Arc::new(LosesFlushes(d)));
        let mut what = Explore::spread(recording.device.write_log(), 60);
        (what.external_every, what.failures_max) = (0, 1);
        let report = explore(&recording, &what);
        assert!(!report.failures.is_empty(), "{name}: no failure in {} states", report.states);
    }
}

/// And the content oracle: data that is not ordered before its metadata shows what lay there before.
#[test]
fn canary_unordered_data_is_found() {
    let dir = state_files();
    let image = image("ext4");
    let base = image.build(dir.path()).expect("image");
    let options = extant_fs::MountOptions {
        data: extant_fs::DataMode::Writeback,
        ..mount_options(Clock::virtual_at(EPOCH_S))
    };
    let recording = Arc::new(record(&image, &base, 22, 200, options, &|d| d).expect("recorded"));
    let mut what = Explore::spread(recording.device.write_log(), 400);
    (what.external_every, what.failures_max) = (0, 1);
    let report = explore(&recording, &what);
    assert!(report.failures.iter().any(|f| f.what.contains("POISON") || f.what.contains("byte")), "{:?}", report);
}
