//! The most memory that a check allocates. One test at a time, so that no other test allocates meanwhile.

use std::path::Path;
use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::sync::{LockClass, Mutex};
use extant_block::device::{FileDevice, MemDevice, OpenOptions};
use extant_block::{BioFlags, BlockDevice};
use extant_check::{Finding, KEPT_MAX, Options, Problem, Report, check};
use extant_ondisk::bitmap;
use extant_ondisk::inode::RawInode;
use extant_testkit::damage::edit::{EXTENTS_FL, set_half, set_word};
use extant_testkit::damage::{Edit, random};
use extant_testkit::oracle::{MkfsOptions, make_image};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const DIRECTORIES: u64 = 40;
const FILES_PER_DIRECTORY: u64 = 1000;
const FILES: u64 = DIRECTORIES * FILES_PER_DIRECTORY;
const BLOCK: u64 = 4096;
/// Bytes of an entry: eight, and a name of 28.
const ENTRY: u64 = 36;

static CLASS: LockClass = LockClass::new("memory test", 1);

/// The test that holds this is the only one that allocates.
static ALONE: Mutex<()> = Mutex::new(&CLASS, ());

/// Checks the image; returns the report, and the bytes that were allocated at the peak.
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

/// 16 MiB, two bits for each block, and the memory for inodes, directories' blocks and names in directories without an
/// index.
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
    // Superblock and descriptors stay as they were, so that the rest is checked.
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
fn a_block_takes_two_bits() {
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

/// A directory's inode: the block that it begins with, and how many there are.
fn set_directory(inode: &mut RawInode, block: u64, blocks: u64) {
    inode.i_mode.set(0o40755);
    inode.i_links_count.set(2);
    inode.i_size_lo.set(blocks as u32 * 1024);
    inode.i_blocks_lo.set(blocks as u32 * 2);
    inode.i_flags.set(EXTENTS_FL);
    inode.i_block = [0; 60];
    for (at, half) in [(0, 0xf30a), (2, 1), (4, 4), (16, blocks as u16)] {
        set_half(&mut inode.i_block, at, half);
    }
    set_word(&mut inode.i_block, 20, block as u32);
}

fn set_entry(bytes: &mut [u8], at: usize, ino: u32, len: usize, name: &str) {
    set_word(bytes, at, ino);
    set_half(bytes, at + 4, len as u16);
    (bytes[at + 6], bytes[at + 7]) = (name.len() as u8, 2);
    bytes[at + 8..][..name.len()].copy_from_slice(name.as_bytes());
}

/// The free blocks of all groups, which have 8192 blocks each, but not of the last one.
fn free_blocks(edit: &mut Edit) -> Vec<u64> {
    let groups = edit.groups() - 1;
    let free = |group: u32| -> Vec<u64> {
        let first = 1 + u64::from(group) * 8192;
        let free = |map: &mut [u8]| (0..8192).filter(|bit| !bitmap::test(map, *bit)).collect::<Vec<u32>>();
        edit.block_bitmap(group, free).into_iter().map(|bit| first + u64::from(bit)).collect()
    };
    (0..groups).flat_map(free).collect()
}

/// A directory `/top` with `count` directories of one block each.
fn directories_of_a_block(count: u32) -> MemDevice {
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("top")).expect("a directory");
    let mut options = MkfsOptions::new("ext4", u64::from(count) * 1024 + (100 << 20));
    let features = "^metadata_csum,^uninit_bg,^dir_index,^resize_inode";
    let (inodes, tree) = ((count + 4096).to_string(), tree.to_str().expect("UTF-8"));
    let args = ["-b", "1024", "-I", "128", "-N", &inodes, "-O", features, "-d", tree];
    options.extra_args = args.map(str::to_owned).into();
    let mut edit = Edit::new(&MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded"));
    let (top, first) = (edit.ino("/top"), edit.free_ino());
    let list = count.div_ceil(64) as usize;
    let mut blocks = free_blocks(&mut edit);
    let at = blocks.windows(list).position(|run| run[list - 1] - run[0] == list as u64 - 1).expect("a run");
    let list: Vec<u64> = blocks.drain(at..at + list).collect();
    edit.inode(top, |inode| set_directory(inode, list[0], list.len() as u64));
    for (part, block) in list.iter().enumerate() {
        edit.block(*block, |bytes| {
            for slot in 0..64 {
                let child = part as u32 * 64 + slot;
                let ino = if child < count { first + child } else { 0 };
                set_entry(bytes, slot as usize * 16, ino, 16, &format!("{child:06}"));
            }
        });
    }
    for (ino, block) in (first..first + count).zip(blocks) {
        edit.inode(ino, |inode| set_directory(inode, block, 1));
        edit.block(block, |bytes| {
            set_entry(bytes, 0, ino, 12, ".");
            set_entry(bytes, 12, top, 1012, "..");
        });
    }
    edit.finish()
}

#[test]
fn blocks_bound_the_memory_for_directories() {
    let _alone = ALONE.lock();
    let directories = 150_000;
    let device: Arc<dyn BlockDevice> = Arc::new(directories_of_a_block(directories));
    for threads in [1, 2, 8] {
        let (report, peak) = checked_device(device.clone(), threads);
        assert!(report.totals.directories > directories.into(), "{:?}", report.counts);
        // The first two stand where `.` and `..` belong.
        assert_eq!(report.count(Problem::UnconnectedDir), 2, "{:?}", report.findings);
        let most = (16 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + 24 * u64::from(directories);
        assert!(peak <= most, "{peak} bytes with {threads} threads, bound {most}");
    }
}

/// An image with `count` files, each with one empty block of pointers.
fn files_with_maps(count: u32) -> MemDevice {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = MkfsOptions::new("ext2", u64::from(count) * 1024 + (100 << 20));
    let inodes = (count + 4096).to_string();
    options.extra_args = ["-b", "1024", "-I", "128", "-N", &inodes, "-O", "^resize_inode"].map(str::to_owned).into();
    let mut edit = Edit::new(&MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded"));
    let first = edit.free_ino();
    for (ino, block) in (first..first + count).zip(free_blocks(&mut edit)) {
        edit.inode(ino, |inode| {
            inode.i_mode.set(0o100_644);
            inode.i_links_count.set(1);
            inode.i_blocks_lo.set(2);
            set_word(&mut inode.i_block, 12 * 4, block as u32);
        });
    }
    edit.finish()
}

#[test]
fn memory_does_not_grow_with_the_number_of_maps() {
    let _alone = ALONE.lock();
    let files = 150_000;
    let device: Arc<dyn BlockDevice> = Arc::new(files_with_maps(files));
    for threads in [1, 2, 8] {
        let (report, peak) = checked_device(device.clone(), threads);
        assert_eq!(report.count(Problem::UnattachedInode), files.into(), "{:?}", report.counts);
        let findings = 2 * report.findings.len() * size_of::<Finding>();
        let most = (16 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + findings as u64;
        assert!(peak <= most, "{peak} bytes with {threads} threads, bound {most}");
    }
}

/// Two directories of pointers, half a million in each, with the value `pointer` of a block of their own.
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

/// Many files whose maps lead to the same blocks of pointers.
fn files_with_the_same_pointers(count: u32) -> MemDevice {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = MkfsOptions::new("ext2", 64 << 20);
    let inodes = (count + 4096).to_string();
    options.extra_args = ["-b", "4096", "-I", "128", "-N", &inodes, "-O", "^resize_inode"].map(str::to_owned).into();
    let mut edit = Edit::new(&MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded"));
    let first = edit.free_ino();
    let blocks = edit.free_blocks(count as usize + 1024);
    let (shared, own) = blocks.split_at(1024);
    for (ino, block) in (first..first + count).zip(own) {
        edit.inode(ino, |inode| {
            inode.i_mode.set(0o100_644);
            inode.i_links_count.set(1);
            set_word(&mut inode.i_block, 13 * 4, *block as u32);
        });
        edit.block(*block, |bytes| {
            for (slot, to) in shared.iter().enumerate() {
                set_word(bytes, slot * 4, *to as u32);
            }
        });
    }
    edit.finish()
}

#[test]
fn pointers_of_files_to_the_same_blocks_take_no_memory_each() {
    let _alone = ALONE.lock();
    let device: Arc<dyn BlockDevice> = Arc::new(files_with_the_same_pointers(4096));
    for threads in [1, 8] {
        let (report, peak) = checked_device(device.clone(), threads);
        // Four million pointers lead to a thousand blocks.
        assert!(report.count(Problem::DupBlock) > 1_000_000, "{:?}", report.counts);
        let findings = 2 * report.findings.len() * size_of::<Finding>();
        let most = (16 << 20) + report.totals.blocks / 4 + 8 * report.totals.inodes + findings as u64;
        assert!(peak <= most, "{peak} bytes with {threads} threads, bound {most}");
    }
}
