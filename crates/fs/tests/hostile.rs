//! Damaged images: with any bytes, mounting, walking, writing and unmounting return, without a panic, in bounded time
//! and memory.
//!
//! The images and the damage come from `extant_testkit::damage::random`. Extant itself has filled images of several
//! kinds, so that directories are indexed and extents scattered. Some have a journal to replay. Bytes of their
//! metadata are changed from a seed. A failure prints kind and seed; `EXTANT_SEED=kind:seed cargo test -p extant-fs
//! --test hostile` repeats it.

#[path = "hostile/exercise.rs"]
mod exercise;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::task;
use extant_block::BlockDevice;
use extant_block::device::{MemDevice, OffsetDevice};
use extant_fs::{Filesystem, MountOptions};
use extant_ondisk::InodeNr;
use extant_testkit::damage::random;
use extant_testkit::tests_of_cases;

/// The number of tests that share the kinds.
const PARTS: usize = 6;
/// Longer than any case takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// After this long, in all tests together, the remaining cases wait for the next run.
const BUDGET_NS: u64 = 60_000_000_000;
/// A case needs a few tens of MiB. Sizes that only the image claims must not add to that.
const MEMORY_MAX_KIB: u64 = 1_500_000;

fn options(read_only: bool, seed: u64) -> MountOptions {
    MountOptions { threads: false, seed: Some(seed), read_only, cache_bytes: 16 << 20, ..MountOptions::default() }
}

/// Runs everything on one image. Returns how far it came: 0 refused, 1 mounted read-only, 2 read-write.
fn case(dev: &MemDevice, seed: u64) -> u32 {
    let mut reached = 0;
    let copy = Arc::new(dev.snapshot());
    if let Ok(fs) = Filesystem::mount(copy.clone(), options(true, seed)) {
        reached = 1;
        exercise::look_around(&fs);
        let _ = fs.unmount();
        let (stats, before) = (copy.stats(), dev.snapshot());
        assert_eq!((stats.writes, stats.write_zeroes, stats.discards), (0, 0, 0), "a read-only mount wrote");
        assert_eq!(copy.first_difference(&before).expect("compared"), None);
    }
    rescue(dev, seed);
    let copy = Arc::new(dev.snapshot());
    if let Ok(fs) = Filesystem::mount(copy.clone(), options(false, seed)) {
        reached = 2;
        let found = exercise::look_around(&fs);
        exercise::change(&fs, &found);
        drop(found);
        fs.step();
        let _ = fs.unmount();
    }
    // The image that it wrote must be readable again.
    if reached == 2
        && let Ok(fs) = Filesystem::mount(copy, options(false, seed))
    {
        exercise::look_around(&fs);
        let _ = fs.unmount();
    }
    reached
}

/// Mounts the image for rescue, and in one case of four without its end. Nothing may be written, and all calls
/// return, also for images that are otherwise refused.
fn rescue(dev: &MemDevice, seed: u64) {
    let whole = dev.size_bytes();
    let len = if seed.is_multiple_of(4) { (whole / 97 * (seed % 97) + 8192) & !4095 } else { whole };
    let short: Arc<dyn BlockDevice> = Arc::new(OffsetDevice::new(Arc::new(dev.snapshot()), 0, len).expect("a part"));
    let copy = Arc::new(dev.snapshot());
    for dev in [copy.clone(), short] {
        for superblock in [None, Some(8193 * 1024)] {
            let options = MountOptions { rescue: true, superblock, ..options(false, seed) };
            let Ok(fs) = Filesystem::mount(dev.clone(), options) else { continue };
            exercise::look_around(&fs);
            for ino in (1..40).map(InodeNr) {
                if let Ok(inode) = fs.iget_by_number(ino) {
                    let _ = fs.read(&inode, 0, &mut [0; 8192]);
                }
            }
            assert!(fs.is_read_only());
            let _ = fs.unmount();
        }
    }
    let stats = copy.stats();
    assert_eq!((stats.writes, stats.write_zeroes, stats.discards), (0, 0, 0), "a mount that rescues wrote");
    assert_eq!(copy.first_difference(dev).expect("compared"), None);
}

/// The peak memory of this process, in KiB.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Content in inodes, and a directory that ignores case, behind those of [`random::KINDS`].
const MORE: [(&[&str], bool); 2] = [
    (&["-t", "ext4", "-b", "1024", "-O", "inline_data,^metadata_csum", "-I", "512"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "casefold,^metadata_csum"], false),
];
const KINDS: usize = random::KINDS.len() + MORE.len();

fn run(index: usize, seeds: std::ops::Range<u64>, clock: &Clock, until_ns: u64) -> [u32; 3] {
    let (kind, crashed) = random::KINDS.into_iter().chain(MORE).nth(index).expect("a kind");
    let base = random::filled(kind, crashed);
    let places = random::pieces(&base);
    assert!(places.len() > 50, "{kind:?}: {} pieces", places.len());
    let mut reached = [0; 3];
    for seed in seeds {
        if clock.now_ns() > until_ns {
            break;
        }
        let dev = base.snapshot();
        random::strike(&dev, &places, &mut Rng::new(seed << 8 | index as u64));
        let (tell, told) = mpsc::channel();
        let worker = task::spawn("hostile", move || {
            let _ = tell.send(case(&dev, seed));
        })
        .expect("thread");
        let hint = format!("repeat with EXTANT_SEED={index}:{seed} ({})", kind.join(" "));
        match told.recv_timeout(PATIENCE) {
            Ok(how_far) => reached[how_far as usize] += 1,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs; {hint}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => panic!("panicked (above); {hint}"),
        }
        worker.join().expect("ended");
        let peak = memory_peak_kib();
        assert!(peak < MEMORY_MAX_KIB, "{peak} KiB of memory; {hint}");
    }
    reached
}

/// Neither a panic nor a hang, with every sixth kind from this one on.
fn survives(part: usize) {
    let clock = Clock::real();
    if let Ok(one) = std::env::var("EXTANT_SEED") {
        let (index, seed) = one.split_once(':').expect("kind:seed");
        let (index, seed): (usize, u64) = (index.parse().expect("a number"), seed.parse().expect("a number"));
        if index % PARTS == part {
            run(index, seed..seed + 1, &clock, u64::MAX);
        }
        return;
    }
    let soak = std::env::var_os("EXTANT_SOAK").is_some();
    let (cases, budget_ns) = if soak { (2_000, u64::MAX / 2) } else { (60, BUDGET_NS / PARTS as u64) };
    let mut total = [0; 3];
    let kinds: Vec<usize> = (part..KINDS).step_by(PARTS).collect();
    for (nth, index) in kinds.iter().enumerate() {
        // Each kind gets its share of the time, however long the ones before took.
        let until = budget_ns / kinds.len() as u64 * (nth as u64 + 1);
        let reached = run(*index, 0..cases, &clock, until);
        (0..3).for_each(|i| total[i] += reached[i]);
    }
    println!("refused {}, read-only {}, written {}", total[0], total[1], total[2]);
    assert!(total[2] > 8, "most damage must leave something to work with: {total:?}");
}

tests_of_cases!(
    no_damaged_image_causes_a_panic_or_a_hang,
    survives,
    first_part_of_the_kinds: 0,
    second_part_of_the_kinds: 1,
    third_part_of_the_kinds: 2,
    fourth_part_of_the_kinds: 3,
    fifth_part_of_the_kinds: 4,
    last_part_of_the_kinds: super::PARTS - 1,
);
