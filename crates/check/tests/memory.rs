//! What a check takes from the allocator at most, for many files and for many findings. One test, so that nobody else
//! allocates.

use std::path::Path;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::{FileDevice, MemDevice, OpenOptions};
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Finding, Options, Report, check};
use extant_testkit::damage::random;
use extant_testkit::oracle::{MkfsOptions, make_image};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const DIRECTORIES: u64 = 40;
const FILES_PER_DIRECTORY: u64 = 1000;
const FILES: u64 = DIRECTORIES * FILES_PER_DIRECTORY;
const BLOCK: u64 = 4096;
/// Of an entry: eight bytes and a name of 28.
const ENTRY: u64 = 36;

/// Checks the image; what came out, and the bytes that were allocated at the peak.
fn checked(image: &Path, threads: usize) -> (Report, u64) {
    let device: Arc<dyn BlockDevice> = Arc::new(FileDevice::open(image, OpenOptions::read_only()).expect("opened"));
    let options = Options { threads, now: 2_000_000_000, ..Options::default() };
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let report = check(&device, &options).expect("checked");
    (report, (ALLOCATOR.peak_usage() - before) as u64)
}

/// 16 MiB, two bits for each block, and what inodes, directories' blocks and names in directories without an index add.
fn bound(report: &Report) -> u64 {
    let directory_blocks = FILES * ENTRY / BLOCK + DIRECTORIES;
    (16 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + 24 * directory_blocks + 8 * FILES
}

#[test]
fn the_memory_of_a_check_is_bounded() {
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    for directory in 0..DIRECTORIES {
        let at = tree.join(directory.to_string());
        std::fs::create_dir_all(&at).expect("a directory");
        for file in 0..FILES_PER_DIRECTORY {
            std::fs::write(at.join(format!("a file with some name {file:06}")), b"").expect("a file");
        }
    }
    let mut options = MkfsOptions::new("ext4", 256 << 20);
    // mke2fs makes no indexes.
    options.extra_args = ["-N", "50000", "-d", tree.to_str().expect("UTF-8")].map(str::to_owned).into();
    let image = make_image(dir.path(), &options).expect("made");
    let sound = MemDevice::load(&image).expect("loaded");
    for threads in [1, 2] {
        let (report, peak) = checked(&image, threads);
        assert!(report.complete && report.counts.is_empty(), "{:?}", report.counts);
        assert!(report.totals.inodes_used > FILES);
        assert!(peak <= bound(&report), "{peak} bytes with {threads} threads, bound {}", bound(&report));
    }

    let (mut rng, places) = (Rng::new(1), random::pieces(&sound));
    let damaged = sound.snapshot();
    for _ in 0..3000 {
        random::strike(&damaged, &places, &mut rng);
    }
    // Superblock and descriptors as they were: the rest is to be checked.
    let mut head = vec![0; 64 << 10];
    sound.read_at(0, &mut head, BioFlags::empty()).expect("memory");
    damaged.write_at(0, &[&head], BioFlags::empty()).expect("memory");
    damaged.save(&image).expect("saved");
    drop((sound, damaged));
    for threads in [1, 2] {
        let (report, peak) = checked(&image, threads);
        let found = report.counts.values().sum::<u64>();
        assert!(report.complete && found > 1000, "{found} findings: {:?}", report.counts);
        // Each thread has findings of its own, and a vector that grows has up to twice the room.
        let findings = 4 * report.findings.len() as u64 * size_of::<Finding>() as u64;
        let most = bound(&report) + findings;
        assert!(peak <= most, "{peak} bytes with {threads} threads and {found} findings, bound {most}");
    }
}
