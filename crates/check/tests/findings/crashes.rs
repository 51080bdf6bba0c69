//! The state after a power cut is no damage: the log is replayed in memory, and orphans wait for their deletion.
//!
//! The images are those of the crash explorer: ext4 with blocks of 4 KiB, and of 1 KiB with an orphan file, ext3, and
//! ext4 and ext2 without a journal of their own, for which Extant borrows one. Without any journal a power cut leaves
//! damage.

use std::sync::Arc;

use extant_base::clock::Clock;
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Note, Options, check};
use extant_ondisk::features::Compat;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use extant_testkit::crash::explore::{clean, mend};
use extant_testkit::crash::workload::{EPOCH_S, options_for};
use extant_testkit::crash::{CrashImage, Explore, IMAGES, record, state_files};

/// One in this many states goes through e2fsck, too.
const EXTERNAL_EVERY: usize = 6;

/// Checks up to `states` states of a workload. Returns how many had a journal, and how many had something in it to
/// replay.
fn states_are_clean(image: &CrashImage, seed: u64, ops: usize, states: usize) -> (usize, usize) {
    let dir = state_files();
    let base = image.build(dir.path()).unwrap_or_else(|e| panic!("{}: {e}", image.name));
    let options = options_for(image, Clock::virtual_at(EPOCH_S));
    let recording =
        record(image, &base, seed, ops, options, &|d| d).unwrap_or_else(|e| panic!("{} seed {seed}: {e}", image.name));
    let (mut checked, mut replayed) = (0, 0);
    for (at, spec) in Explore::spread(recording.device.write_log(), states).states.into_iter().enumerate() {
        let what = format!("{} seed {seed} state {spec}", image.name);
        let state = spec.image(&recording.device, seed).expect("an image");
        let device: Arc<dyn BlockDevice> = Arc::new(state.snapshot());
        let mut bytes = [0; SUPERBLOCK_SIZE];
        state.read_at(SUPERBLOCK_OFFSET, &mut bytes, BioFlags::empty()).expect("memory");
        let sb = SuperBlock::decode(&bytes, SUPERBLOCK_OFFSET).unwrap_or_else(|e| panic!("{what}: {e}"));
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            // A journal is being added or removed; e2fsck -p clears its remains.
            continue;
        }
        checked += 1;
        let options = Options { threads: 2, now: EPOCH_S + 100_000, ..Options::default() };
        let report = check(&device, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(!report.is_damaged() && report.complete, "{what}: {found:#?}, {:?}", report.notes);
        replayed += usize::from(report.notes.iter().any(|note| matches!(note, Note::Replayed { .. })));
        if at.is_multiple_of(EXTERNAL_EVERY) {
            let file = dir.path().join("state");
            state.save(&file).expect("saved");
            mend(&file).and_then(|()| clean(&file, "after e2fsck -p")).unwrap_or_else(|e| panic!("{what}: {e}"));
        }
    }
    (checked, replayed)
}

fn number(name: &str, or: usize) -> usize {
    std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(or)
}

fn every_image(seed: usize, ops: usize, states: usize) {
    for (index, image) in IMAGES.iter().enumerate() {
        let (checked, replayed) = states_are_clean(image, (seed + index) as u64, ops, states);
        println!("{}: {checked} states, {replayed} of them with a log to replay", image.name);
        assert!(checked > states * 3 / 4 && replayed > states / 2, "{}: {checked}, {replayed}", image.name);
    }
}

#[test]
fn a_power_cut_leaves_no_damage() {
    every_image(number("EXTANT_CRASH_SEED", 11), 500, number("EXTANT_CRASH_STATES", 12));
}

#[test]
#[ignore = "some minutes: make soak"]
fn soak_five_hundred_power_cuts_leave_no_damage() {
    every_image(number("EXTANT_CRASH_SEED", 21), 2200, number("EXTANT_CRASH_STATES", 105));
}
