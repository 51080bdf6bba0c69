//! Power cuts at every write of seeded workloads, on every kind of image.
//!
//! `EXTANT_CRASH_SEED` chooses another workload, `EXTANT_CRASH_STATES` how many states of it (0: each event in every
//! mode), `EXTANT_CRASH_STATE` one state, as a failure prints it.

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_block::device::CrashDevice;
use extant_block::{Bio, BioFlags, BioOp, BlockDevice, Wrapper};
use extant_fs::{MetaPolicy, MountOptions};
use extant_testkit::crash::explore::interrupt_recovery;
use extant_testkit::crash::workload::{EPOCH_S, options_for};
use extant_testkit::crash::{
    CASEFOLD, CLUSTERS, CrashImage, ENCRYPTED, Explore, FAST_COMMIT, GROWING, IMAGES, INLINE, JOURNAL_DEV, QUOTA,
    Recording, TOGETHER, TWO_WAVES, VALUES, Wrap, explore, record, state_files,
};
use extant_testkit::tests_of_cases;

/// Operations per workload; with small transactions, the log wraps around several times.
const OPS: usize = 2200;
/// States per workload in the default run; `make soak` has thousands.
const STATES: usize = 150;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |v| v.parse().unwrap_or_else(|_| panic!("{name}={v}")))
}

fn image(name: &str) -> CrashImage {
    let more = [&QUOTA, &INLINE, &VALUES, &CASEFOLD, &TOGETHER, &ENCRYPTED, &FAST_COMMIT];
    *IMAGES
        .iter()
        .chain(&TWO_WAVES)
        .chain(more)
        .chain(&GROWING)
        .chain(&CLUSTERS)
        .chain(&JOURNAL_DEV)
        .find(|i| i.name == name)
        .expect("a known image")
}

fn run(image: &CrashImage, seed: u64, ops: usize, wrap: Wrap<'_>) -> Arc<Recording> {
    run_with(image, options_for(image, Clock::virtual_at(EPOCH_S)), seed, ops, wrap)
}

fn run_with(image: &CrashImage, options: MountOptions, seed: u64, ops: usize, wrap: Wrap<'_>) -> Arc<Recording> {
    let dir = state_files();
    let base = image.build(dir.path()).unwrap_or_else(|e| panic!("{}: {e}", image.name));
    let recording =
        record(image, &base, seed, ops, options, wrap).unwrap_or_else(|e| panic!("{} seed {seed}: {e}", image.name));
    Arc::new(recording)
}

fn explore_image(name: &str, seed: u64, ops: usize, states: usize, preen: bool) {
    explore_with(name, seed, ops, states, preen, MetaPolicy::default());
}

fn explore_with(name: &str, seed: u64, ops: usize, states: usize, preen: bool, meta_policy: MetaPolicy) {
    let image = image(name);
    let options = MountOptions { meta_policy, ..options_for(&image, Clock::virtual_at(EPOCH_S)) };
    let recording = run_with(&image, options, number("EXTANT_CRASH_SEED", seed), ops, &|d| d);
    let events = recording.device.write_log();
    let states = match number("EXTANT_CRASH_STATES", states as u64) as usize {
        0 => 6 * (events + 1),
        n => n,
    };
    let mut what = Explore::spread(events, states);
    what.preen = preen;
    let report = explore(&recording, &what);
    eprintln!(
        "{name}: {} operations, {events} events, {} commits, {} fast ones, {} blocks logged, {} checkpoints, {} joined attributes; {} states, {} of them also \
         recovered by e2fsck and the kernel",
        recording.history.ops.len(),
        recording.commits,
        recording.fast_commits,
        recording.logged,
        recording.checkpoints,
        recording.joined,
        report.states,
        report.external
    );
    report.expect_clean(&recording);
    if image.has_journal() && std::env::var("EXTANT_CRASH_STATE").is_err() {
        explore(&recording, &Explore::torn_commits(&recording, states / 15)).expect_clean(&recording);
    }
    if image.has_fast_commits() && std::env::var("EXTANT_CRASH_SEED").is_err() {
        assert!(recording.fast_commits > 15, "{} fast commits", recording.fast_commits);
    }
    // Fast commits spare most blocks of the log.
    if image.has_journal() && !image.has_fast_commits() && std::env::var("EXTANT_CRASH_SEED").is_err() {
        assert!(recording.logged > u64::from(image.log_blocks()), "the log never wrapped");
        assert!(recording.joined > 10, "files shared a block of attributes {} times", recording.joined);
    }
}

/// Cuts while a mount borrows a journal from the free space, or an unmount gives it back; one half of them.
fn explore_mounts((name, seed, quarter): (&str, u64, usize)) {
    let image = image(name);
    assert!(image.borrows, "{name}");
    let recording = run(&image, number("EXTANT_CRASH_SEED", seed), OPS, &|d| d);
    let mut what = Explore::mounts(&recording, STATES / 5);
    // The same states go to e2fsck and the kernel as without quarters.
    let states = (what.states.len() / 4).next_multiple_of(what.external_every);
    what.states = what.states.chunks(states).nth(quarter).expect("four quarters").to_vec();
    let report = explore(&recording, &what);
    eprintln!("{name}: {} states of mounts and unmounts", report.states);
    assert!(report.states > 0);
    report.expect_clean(&recording);
}

#[test]
fn ext4() {
    explore_image("ext4", 1, OPS, STATES, true);
}

#[test]
fn ext4_1k_with_orphan_file() {
    explore_image("ext4-1k", 2, OPS, STATES, true);
}

/// In each state, usage is that of the inodes: e2fsck compares them.
#[test]
fn ext4_with_quotas() {
    explore_image("ext4-quota", 6, OPS, STATES / 3, true);
}

/// Content moves out of inodes between any two writes.
#[test]
fn ext4_with_content_in_inodes() {
    explore_image("ext4-inline", 7, OPS, STATES / 3, true);
}

/// Names are found, removed, respelled and hashed in any case.
#[test]
fn ext4_with_directories_that_ignore_case() {
    explore_image("ext4-casefold", 12, OPS, STATES / 3, true);
}

/// Blocks of a cluster become durable at different times, and it is free with the last of them.
#[test]
fn ext4_with_clusters() {
    explore_image("ext4-bigalloc", 8, OPS, STATES / 3, true);
}

#[test]
fn ext4_1k_with_clusters() {
    explore_image("ext4-1k-bigalloc", 8, OPS, STATES / 3, true);
}

#[test]
fn ext4_with_these_features_together() {
    explore_image("ext4-together", 11, OPS, STATES / 3, true);
}

/// Fast commits between full ones: a cut leaves whole ones, which Extant and the kernel replay. e2fsck 1.47.0 does
/// not replay all of these logs, so they are off by default.
#[test]
fn ext4_with_fast_commits() {
    explore_image("ext4-fast-commit", 17, OPS, STATES, true);
}

/// Values of attributes get inodes, are shared, and are freed between any two writes.
#[test]
fn ext4_with_values_in_inodes() {
    explore_image("ext4-values", 8, OPS, STATES / 3, true);
}

/// Names and contents are ciphertext, in the log as well; the kernel reads them with the key.
#[test]
fn ext4_in_an_encrypted_directory() {
    explore_image("ext4-encrypted", 2, OPS, STATES / 3, true);
}

/// The power of both disks fails at the same moment, with different writes in their caches.
#[test]
fn ext4_with_its_journal_on_another_disk() {
    explore_image("ext4-journal-dev", 41, OPS, STATES / 3, true);
}

#[test]
fn ext3_with_its_journal_on_another_disk() {
    explore_image("ext3-journal-dev", 2, OPS, STATES / 3, true);
}

#[test]
fn ext3() {
    explore_image("ext3", 3, OPS, STATES, true);
}

/// A mount borrows a journal for an image without one, and the promises are the same.
#[test]
fn ext2() {
    explore_image("ext2", 5, OPS, STATES / 2, true);
}

#[test]
fn ext2_with_another_seed() {
    explore_image("ext2", 6, OPS, STATES / 2, true);
}

#[test]
fn ext4_without_journal() {
    explore_image("ext4-nojournal", 4, OPS, STATES / 2, true);
}

#[test]
fn ext4_without_journal_with_another_seed() {
    explore_image("ext4-nojournal", 7, OPS, STATES / 2, true);
}

tests_of_cases!(
    mounts_and_unmounts,
    explore_mounts,
    of_ext2_first_quarter: ("ext2", 5, 0),
    of_ext2_second_quarter: ("ext2", 5, 1),
    of_ext2_third_quarter: ("ext2", 5, 2),
    of_ext2_last_quarter: ("ext2", 5, 3),
    of_ext4_without_journal_first_quarter: ("ext4-nojournal", 4, 0),
    of_ext4_without_journal_second_quarter: ("ext4-nojournal", 4, 1),
    of_ext4_without_journal_third_quarter: ("ext4-nojournal", 4, 2),
    of_ext4_without_journal_last_quarter: ("ext4-nojournal", 4, 3),
);

/// A cut during a growth leaves the file system after one of the steps, and everything that was acknowledged.
fn explore_growth((name, seed): (&str, u64)) {
    let image = &image(name);
    let recording = run(image, number("EXTANT_CRASH_SEED", seed), OPS / 2, &|d| d);
    let growths = &recording.history.growths;
    assert!(growths.len() > 5, "{}: {} growths", image.name, growths.len());
    assert!(growths.iter().map(|growth| growth.sizes.len()).max() > Some(2), "{}: no steps", image.name);
    let what = Explore::growths(&recording, number("EXTANT_CRASH_STATES", STATES as u64 / 2) as usize);
    let report = explore(&recording, &what);
    eprintln!("{}: {} growths, {} states", image.name, growths.len(), report.states);
    report.expect_clean(&recording);
    if std::env::var("EXTANT_CRASH_STATE").is_err() {
        explore(&recording, &Explore::spread(recording.device.write_log(), STATES / 5)).expect_clean(&recording);
    }
}

tests_of_cases!(
    file_systems_that_grow_while_they_are_mounted,
    explore_growth,
    ext4: ("ext4-grows", 31),
    ext3: ("ext3-grows", 32),
    ext2: ("ext2-grows", 33),
);

/// Metadata is in zones, or in front of its data; recovery mounts without the policy.
fn explore_policy((name, seed, policy): (&str, u64, MetaPolicy)) {
    explore_with(name, seed, OPS, STATES / 5, true, policy);
}

tests_of_cases!(
    metadata_where_other_policies_put_it,
    explore_policy,
    metacluster: ("ext3", 21, MetaPolicy::Metacluster),
    zones: ("ext2", 22, MetaPolicy::Zones),
    zones_all: ("ext4-1k", 23, MetaPolicy::ZonesAll),
    inline: ("ext3", 3, MetaPolicy::Inline),
);

/// With `journal=none`, `e2fsck -fy` repairs every state and everything acknowledged is there. `-p` is not always
/// enough: see [`ext2_mended_by_preen`].
#[test]
fn ext2_in_two_waves() {
    explore_image("ext2-two-waves", 5, OPS, STATES, false);
}

/// Extents without a journal, with trees that fit into the inodes. [`ext4_in_two_waves_deep_trees`] shows the failures
/// of deeper trees.
#[test]
fn ext4_in_two_waves() {
    explore_image("ext4-two-waves", 4, 500, STATES, false);
}

/// Known failure: a removed name can leave its directory before the inode's link count is on the device ("Unattached
/// inode"); `e2fsck -p` does not repair that. The same holds for the kernel's ext2.
#[test]
#[ignore = "known failure: needs an order of writes that two waves cannot give"]
fn ext2_mended_by_preen() {
    explore_image("ext2-two-waves", 5, OPS, STATES, true);
}

/// Known failure: splitting a node of an extent tree (or of a directory's index) moves entries between blocks that
/// reach the device one by one. A cut in between loses entries that were durable. The same holds for the kernel's ext4.
#[test]
#[ignore = "known failure: splitting a tree node is not atomic without a log"]
fn ext4_in_two_waves_deep_trees() {
    explore_image("ext4-two-waves", 4, OPS, STATES, false);
}

/// The power fails again during the recovery from the first failure; Extant, e2fsck and the kernel recover in turn.
fn interrupt_recoveries(ops: usize, states: usize, cuts: usize) {
    for (name, seed) in
        [("ext4", 11), ("ext4-1k", 12), ("ext3", 13), ("ext2", 14), ("ext4-nojournal", 15), ("ext4-journal-dev", 16)]
    {
        let recording = run(&image(name), number("EXTANT_CRASH_SEED", seed), ops, &|d| d);
        let states = Explore::spread(recording.device.write_log(), states).states;
        let [extant, e2fsck, kernel] = interrupt_recovery(&recording, &states, cuts)
            .unwrap_or_else(|e| panic!("{name}, seed {}: {e}", recording.seed));
        eprintln!(
            "{name}: recoveries cut off, then done by Extant: {extant}, by e2fsck: {e2fsck}, by the kernel: {kernel}"
        );
        assert!(extant > 0 && e2fsck > 0);
    }
}

#[test]
fn recovery_is_interrupted() {
    interrupt_recoveries(250, 8, 6);
}

#[test]
#[ignore = "long: every write of every recovery"]
fn soak_recovery_is_interrupted_at_every_write() {
    interrupt_recoveries(1000, 12, usize::MAX);
}

/// More workloads and states: `cargo test --release -p extant-testkit --test crash -- --ignored soak`.
#[test]
#[ignore = "takes long; EXTANT_CRASH_ROUNDS sets how long"]
fn soak() {
    for round in 0..number("EXTANT_CRASH_ROUNDS", 4) {
        for (i, image) in IMAGES.iter().chain(&TWO_WAVES).enumerate() {
            let states = number("EXTANT_CRASH_STATES", 3000) as usize;
            let (ops, preen) = if image.has_journal() { (OPS, true) } else { (500, false) };
            explore_image(image.name, 1000 + round * 10 + i as u64, ops, states, preen);
        }
    }
}

/// The requests that a [`Liar`] drops.
#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// Flushes, and flags that request one.
    Flushes,
    /// Every fifth write of file data.
    Data,
}

/// A device that reports success for requests that it has dropped.
struct Liar {
    below: Arc<CrashDevice>,
    lie: Lie,
    writes: AtomicU64,
}

impl Liar {
    fn wrap(below: Arc<CrashDevice>, lie: Lie) -> Arc<dyn BlockDevice> {
        Arc::new(Liar { below, lie, writes: AtomicU64::new(0) })
    }
}

impl Wrapper for Liar {
    fn inner(&self) -> &dyn BlockDevice {
        &*self.below
    }

    fn submit(&self, mut bio: Bio) {
        if self.lie == Lie::Flushes {
            bio.flags.remove(BioFlags::PREFLUSH | BioFlags::FUA);
        }
        let lost = match self.lie {
            Lie::Flushes => bio.op == BioOp::Flush,
            Lie::Data => {
                bio.op == BioOp::Write
                    && !bio.flags.contains(BioFlags::META)
                    && self.writes.fetch_add(1, Ordering::Relaxed) % 5 == 4
            }
        };
        if lost { bio.complete(Ok(())) } else { self.below.submit(bio) }
    }
    fn write_at(&self, offset: u64, pieces: &[&[u8]], mut flags: BioFlags) -> extant_block::Result<()> {
        if self.lie == Lie::Flushes {
            flags.remove(BioFlags::PREFLUSH | BioFlags::FUA);
        }
        self.below.write_at(offset, pieces, flags)
    }
    fn flush(&self) -> extant_block::Result<()> {
        if self.lie == Lie::Flushes { Ok(()) } else { self.below.flush() }
    }
    fn write_zeroes(&self, offset: u64, len: u64, flags: BioFlags) -> extant_block::Result<()> {
        self.below.write_zeroes(offset, len, flags)
    }
}

/// The explorer must be able to fail: without flushes, no acknowledged data is safe.
#[test]
fn canary_lost_flushes_are_found() {
    // With a journal on another disk, only the file system's disk lies.
    for name in ["ext4", "ext2", "ext4-journal-dev"] {
        let recording = run(&image(name), 21, 120, &|d| Liar::wrap(d, Lie::Flushes));
        let mut what = Explore::spread(recording.device.write_log(), 60);
        (what.external_every, what.failures_max) = (0, 1);
        let report = explore(&recording, &what);
        assert!(!report.failures.is_empty(), "{name}: no failure in {} states", report.states);
    }
}

/// The content oracle must be able to fail: a block that was mapped but never written shows its old content.
#[test]
fn canary_lost_data_is_found() {
    for name in ["ext4", "ext3", "ext4-nojournal"] {
        let recording = run(&image(name), 22, 200, &|d| Liar::wrap(d, Lie::Data));
        let mut what = Explore::spread(recording.device.write_log(), 60);
        (what.external_every, what.failures_max, what.preen) = (0, 1, false);
        let report = explore(&recording, &what);
        assert!(report.failures.iter().any(|f| f.what.contains(": byte ")), "{name}: {report:?}");
    }
}
