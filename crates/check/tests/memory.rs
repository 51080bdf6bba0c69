//! What a check takes from the allocator at most. One test at a time, so that nobody else allocates.

use std::path::Path;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};
use extant_block::device::{FileDevice, MemDevice, OpenOptions};
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Finding, KEPT_MAX, Options, Problem, Report, check};
use extant_testkit::damage::edit::set_word;
use extant_testkit::damage::{Edit, random};
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

static CLASS: LockClass = LockClass::new("memory test", 1);

/// Whoever has this is alone with the allocator.
static ALONE: Mutex<()> = Mutex::new(&CLASS, ());

/// Checks the image; what came out, and the bytes that were allocated at the peak.
fn checked(image: &Path, threads: usize) -> (Report, u64) {
    checked_device(Arc::new(FileDevice::open(image, OpenOptions::read_only()).expect("opened")), threads)
}

fn checked_device(device: Arc<dyn BlockDevice>, threads: usize) -> (Report, u64) {
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
    let _alone = ALONE.lock();
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

#[test]
fn what_is_known_of_blocks_is_two_bits_each() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().expect("directory");
    let mut options = MkfsOptions::new("ext4", 1 << 40);
    options.extra_args = ["-N", "131072"].map(str::to_owned).into();
    let image = make_image(dir.path(), &options).expect("made");
    let (report, peak) = checked(&image, 2);
    assert!(report.complete && report.counts.is_empty(), "{:?}", report.counts);
    assert_eq!(report.totals.blocks, 1 << 28);
    let most = (16 << 20) + report.totals.blocks / 4;
    assert!(peak <= most, "{peak} bytes, bound {most}");
}

#[test]
fn what_is_known_of_directories_is_bounded_by_their_blocks() {
    let _alone = ALONE.lock();
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    let directories = 60_000u64;
    for directory in 0..directories {
        std::fs::create_dir_all(tree.join(format!("{}/{}", directory / 250, directory % 250))).expect("a directory");
    }
    let mut options = MkfsOptions::new("ext4", 160 << 20);
    let tree = tree.to_str().expect("UTF-8");
    options.extra_args = ["-b", "1024", "-I", "128", "-N", "61000", "-d", tree].map(str::to_owned).into();
    let image = make_image(dir.path(), &options).expect("made");
    for threads in [1, 2] {
        let (report, peak) = checked(&image, threads);
        assert!(report.complete && report.counts.is_empty(), "{:?}", report.counts);
        assert!(report.totals.directories > directories);
        // Less is left for directories than there is for everything.
        let most = (12 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + 24 * directories;
        assert!(peak <= most, "{peak} bytes with {threads} threads, bound {most}");
    }
}

/// Two directories of pointers, half a million in each, all of which say `pointer`, which is told a block for itself.
fn directories_of_pointers(pointer: fn(u64) -> u32) -> MemDevice {
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    for name in ["a", "b"] {
        std::fs::create_dir_all(tree.join(name)).expect("a directory");
    }
    let mut options = MkfsOptions::new("ext2", 32 << 20);
    options.extra_args = ["-b", "4096", "-d", tree.to_str().expect("UTF-8")].map(str::to_owned).into();
    let image = MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded");
    let mut edit = Edit::new(&image);
    let blocks = edit.free_blocks(2 * 513 + 1);
    let value = pointer(blocks[0]);
    for (name, blocks) in ["/a", "/b"].iter().zip(blocks[1..].chunks(513)) {
        edit.inode(*name, |inode| set_word(&mut inode.i_block, 13 * 4, blocks[0] as u32));
        edit.block(blocks[0], |bytes| {
            for (slot, below) in blocks[1..].iter().enumerate() {
                set_word(bytes, slot * 4, *below as u32);
            }
        });
        for below in &blocks[1..] {
            edit.block(*below, |bytes| (0..1024).for_each(|slot| set_word(bytes, slot * 4, value)));
        }
    }
    edit.finish()
}

#[test]
fn pointers_of_directories_to_one_block_take_no_memory_each() {
    let _alone = ALONE.lock();
    let device: Arc<dyn BlockDevice> = Arc::new(directories_of_pointers(|block| block as u32));
    let (one, _) = checked_device(device.clone(), 1);
    for threads in [1, 8] {
        let (report, peak) = checked_device(device.clone(), threads);
        assert!(report.count(Problem::DupBlock) > 1_000_000, "{:?}", report.counts);
        let findings = 2 * report.findings.len() * size_of::<Finding>();
        let most = (16 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + findings as u64;
        assert!(peak <= most, "{peak} bytes with {threads} threads, bound {most}");
        assert_eq!((report.findings, report.counts), (one.findings.clone(), one.counts.clone()));
    }
}

#[test]
fn threads_have_no_findings_of_their_own() {
    let _alone = ALONE.lock();
    let device: Arc<dyn BlockDevice> = Arc::new(directories_of_pointers(|_| u32::MAX));
    for threads in [1, 64] {
        let (report, peak) = checked_device(device.clone(), threads);
        assert!(report.count(Problem::IllegalBlockNum) > 1_000_000, "{:?}", report.counts);
        assert!(report.findings.len() < 2 * KEPT_MAX);
        let findings = 2 * report.findings.len() * size_of::<Finding>();
        let most = (16 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + findings as u64;
        assert!(peak <= most, "{peak} bytes with {threads} threads, bound {most}");
    }
}
