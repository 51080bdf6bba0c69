//! The cost of a repair, in bytes read from the device and bytes allocated, beside those of a check of the same image.
//! One test at a time, so that no other test allocates meanwhile.

mod judge;

use std::path::Path;
use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex};
use extant_block::BlockDevice;
use extant_block::device::{CowDevice, MemDevice};
use extant_check::check;
use extant_repair::{Decision, End, Outcome, prove};
use extant_testkit::damage::Edit;
use extant_testkit::oracle::{MkfsOptions, make_image};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

static CLASS: LockClass = LockClass::new("cost test", 1);
static ALONE: Mutex<()> = Mutex::new(&CLASS, ());

const FILES_PER_DIRECTORY: usize = 1000;
/// The log of the image with many files, which is searched for older copies of what is damaged.
const LOG_BYTES: u64 = 4 << 20;

/// A cost: bytes read from the device, bytes allocated at the peak, and hundredths of a second of processor time. The
/// time is only shown.
#[derive(Clone, Copy, Debug)]
struct Cost {
    read: u64,
    allocated: u64,
    #[allow(dead_code, reason = "only shown")]
    ticks: u64,
}

/// The processor time of this process so far: `utime` and `stime` of proc(5).
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("read");
    let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

fn measured<T>(image: &MemDevice, work: impl FnOnce(Arc<dyn BlockDevice>) -> T) -> (T, Cost) {
    let device: Arc<dyn BlockDevice> = Arc::new(image.snapshot().into_read_only());
    ALLOCATOR.reset_peak_usage();
    let (before, start) = (ALLOCATOR.current_usage(), ticks());
    let done = work(device.clone());
    let ticks = ticks() - start;
    let allocated = (ALLOCATOR.peak_usage() - before) as u64;
    (done, Cost { read: device.stats().read_bytes, allocated, ticks })
}

fn repaired(image: &MemDevice) -> (Outcome, Cost) {
    let options = judge::options();
    measured(image, |device| {
        prove(Arc::new(CowDevice::new(device)), &options, &mut |_, _| Decision::Yes).expect("planned")
    })
}

fn checked(image: &MemDevice) -> Cost {
    let options = judge::options().check;
    measured(image, |device| check(&device, &options).expect("checked")).1
}

/// An image of this many bytes with the tree that `fill` makes.
fn made(bytes: u64, options: &[&str], fill: impl FnOnce(&Path)) -> MemDevice {
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(&tree).expect("a directory");
    fill(&tree);
    let mut all = MkfsOptions::new("ext4", bytes);
    all.extra_args =
        options.iter().chain(&["-d", tree.to_str().expect("UTF-8")]).map(|one| (*one).to_owned()).collect();
    MemDevice::load(&make_image(dir.path(), &all).expect("made")).expect("loaded")
}

/// An image with this many empty files in directories of a thousand, and one whose mode has no type.
fn one_broken(files: usize, bytes: u64) -> MemDevice {
    let inodes = (files + files / 5).to_string();
    let sound = made(bytes, &["-b", "4096", "-N", &inodes, "-J", "size=4"], |tree| {
        for directory in 0..files / FILES_PER_DIRECTORY {
            let at = tree.join(format!("d{directory}"));
            std::fs::create_dir_all(&at).expect("a directory");
            (0..FILES_PER_DIRECTORY).for_each(|file| std::fs::write(at.join(format!("f{file}")), b"").expect("a file"));
        }
    });
    let mut edit = Edit::new(&sound);
    edit.inode("/d7/f500", |inode| inode.i_mode.set(0o644));
    edit.finish()
}

fn assert_costs_two_checks(damaged: &MemDevice) {
    let check = checked(damaged);
    let (outcome, repair) = repaired(damaged);
    println!("check {check:?}, repair {repair:?}, {} steps", outcome.steps.len());
    assert_eq!(outcome.end, End::Proved);
    assert!(outcome.losses.iter().all(|loss| !loss.lost.is_content()), "{:?}", outcome.losses);
    // The first check, the one after the step, what the census of losses reads, and the log, once.
    let bound = check.read * 5 / 2 + LOG_BYTES;
    assert!(repair.read <= bound, "a check reads {} bytes, the repair {}", check.read, repair.read);
    assert!(repair.allocated <= check.allocated + (64 << 20), "{check:?} {repair:?}");
}

#[test]
fn one_broken_file_among_many_costs_two_checks() {
    let _alone = ALONE.lock();
    assert_costs_two_checks(&one_broken(20_000, 64 << 20));
}

#[test]
#[ignore = "some minutes, and a gigabyte: make soak"]
fn soak_one_broken_file_among_600_000_costs_two_checks() {
    let _alone = ALONE.lock();
    assert_costs_two_checks(&one_broken(600_000, 1 << 30));
}

/// Two files that share this many blocks.
fn sharers(blocks: u64) -> MemDevice {
    let sound = made((64 << 20) + blocks * 2560, &["-b", "1024"], |tree| {
        std::fs::write(tree.join("a"), vec![7; blocks as usize * 1024]).expect("a file");
        std::fs::write(tree.join("b"), b"").expect("a file");
    });
    let mut edit = Edit::new(&sound);
    let first = edit.raw_inode(edit.ino("/a"));
    edit.inode("/b", |inode| {
        (inode.i_block, inode.i_flags, inode.i_size_lo) = (first.i_block, first.i_flags, first.i_size_lo);
        inode.i_blocks_lo = first.i_blocks_lo;
    });
    edit.finish()
}

/// Each number of blocks is twice the one before.
fn assert_linear(blocks: [u64; 3]) {
    let costs: Vec<Cost> = blocks
        .map(sharers)
        .iter()
        .map(|image| {
            let base = checked(image).read;
            let (outcome, cost) = repaired(image);
            assert_eq!(outcome.end, End::Proved, "{:?}", outcome.left);
            assert!(outcome.losses.is_empty(), "{:?}", outcome.losses);
            // The cost that all images of this size have is no part of the growth.
            Cost { read: cost.read.saturating_sub(2 * base), ..cost }
        })
        .collect();
    println!("{costs:?}");
    for pair in costs.windows(2) {
        assert!(pair[1].read * 10 <= pair[0].read * 22, "{costs:?}");
        assert!(pair[1].allocated * 10 <= pair[0].allocated * 22, "{costs:?}");
    }
}

/// The largest has a run that is longer than an extent may be.
#[test]
fn shared_blocks_cost_by_their_number() {
    let _alone = ALONE.lock();
    assert_linear([10_000, 20_000, 40_000]);
}

#[test]
#[ignore = "a minute, and 7 GiB: make soak"]
fn soak_a_million_shared_blocks_cost_by_their_number() {
    let _alone = ALONE.lock();
    assert_linear([250_000, 500_000, 1_000_000]);
}
