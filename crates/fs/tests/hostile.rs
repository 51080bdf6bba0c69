//! Damaged images: whatever the bytes say, mounting, walking, writing and unmounting come back, without a panic, in
//! bounded time and memory.
//!
//! Images of several kinds are filled by Extant itself (so that directories are indexed and extents scattered), some
//! left with a journal to replay; then bytes of their metadata are changed at random, from a seed. A failure prints
//! kind and seed: `EXTANT_SEED=kind:seed cargo test -p extant-fs --test hostile` repeats that one.

#[path = "hostile/exercise.rs"]
mod exercise;

#[path = "common/tools.rs"]
mod tools;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::rng::Rng;
use extant_base::task;
use extant_block::device::{MemDevice, OffsetDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, SetMode, WriteFlags};
use extant_ondisk::InodeNr;

/// mke2fs arguments, and whether the image is left as a crash leaves it.
const KINDS: [(&[&str], bool); 8] = [
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], false),
    (&["-t", "ext4", "-b", "4096"], false),
    (&["-t", "ext3", "-b", "1024"], false),
    (&["-t", "ext2", "-b", "1024"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "metadata_csum_seed,orphan_file"], true),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit,^flex_bg", "-I", "128"], false),
    (&["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal,meta_bg,^resize_inode"], false),
];

/// Longer than any case takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// After this long, the rest of the cases is left for the next run.
const BUDGET_NS: u64 = 60_000_000_000;
/// A case needs a few tens of MiB; what only an image vouches for must not add to that.
const MEMORY_MAX_KIB: u64 = 1_500_000;

fn options(read_only: bool, seed: u64) -> MountOptions {
    MountOptions { threads: false, seed: Some(seed), read_only, cache_bytes: 16 << 20, ..MountOptions::default() }
}

/// An image of `kind` with a few hundred files, an indexed directory, scattered extents and attributes.
fn filled(kind: &[&str], crashed: bool) -> MemDevice {
    let dev = Arc::new(tools::made(kind, "24M"));
    let fs = Filesystem::mount(dev.clone(), options(false, 1)).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    let cred = Cred::default();
    let root = fs.root().expect("root");
    let d = fs.create(&root, b"dir", NewNode::directory(0o755), cred).expect("mkdir");
    for i in 0..250u32 {
        let name = format!("file-{i}-with-a-name-that-fills-directory-blocks");
        let f = fs.create(&d, name.as_bytes(), NewNode::file(0o644), cred).expect("create");
        fs.write(&f, 0, &vec![i as u8; (i as usize * 37) % 9_000], WriteFlags::default()).expect("write");
        if i % 5 == 0 {
            fs.set_xattr(&f, b"user.small", b"value", SetMode::Any).expect("xattr");
        }
        if i % 20 == 0 {
            fs.set_xattr(&f, b"user.large", &[b'L'; 700], SetMode::Any).expect("xattr");
        }
    }
    let sparse = fs.create(&d, b"sparse", NewNode::file(0o644), cred).expect("create");
    for i in 0..400u64 {
        fs.write(&sparse, i * 9_000, b"island", WriteFlags::default()).expect("write");
    }
    let mut at = d.clone();
    for i in 0..6 {
        at = fs.create(&at, format!("deep-{i}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
        fs.create(&at, b"short", NewNode::symlink(b"../target"), cred).expect("symlink");
        fs.create(&at, b"long", NewNode::symlink(&[b'x'; 200]), cred).expect("symlink");
    }
    fs.link(&sparse, &at, b"hard").expect("link");
    fs.sync().expect("sync");
    if crashed {
        // An orphan and a transaction that is only in the log.
        let open = fs.create(&root, b"open", NewNode::file(0o600), cred).expect("create");
        fs.write(&open, 0, &[1; 50_000], WriteFlags::default()).expect("write");
        fs.unlink(&root, b"open").expect("unlink");
        fs.sync().expect("sync");
        let copy = dev.snapshot();
        drop((open, sparse, at, d, root));
        fs.unmount().expect("unmount");
        return copy;
    }
    drop((sparse, at, d, root));
    fs.unmount().expect("unmount");
    dev.snapshot()
}

/// The 1 KiB pieces of the image that hold something; file content of this test is constant, so it is left out.
fn interesting(dev: &MemDevice) -> Vec<u64> {
    let mut places = Vec::new();
    let mut buf = [0; 1024];
    for at in (0..dev.size_bytes()).step_by(1024) {
        dev.read_at(at, &mut buf, BioFlags::empty()).expect("memory");
        if buf.iter().any(|&b| b != buf[0]) {
            places.push(at);
        }
    }
    places
}

/// Changes a few bytes of one or several pieces.
fn damage(dev: &MemDevice, places: &[u64], rng: &mut Rng) {
    for _ in 0..1 + rng.below(6) {
        let at = match rng.below(10) {
            0 => 1024,
            1 => places[rng.below(12.min(places.len() as u64)) as usize],
            _ => places[rng.below(places.len() as u64) as usize],
        };
        let mut buf = [0; 1024];
        dev.read_at(at, &mut buf, BioFlags::empty()).expect("memory");
        for _ in 0..1 + rng.below(8) {
            // Mostly aligned fields with values at the edge, where arithmetic overflows.
            let i = rng.below(1021) as usize;
            match rng.below(6) {
                0 => buf[i] ^= 1 << rng.below(8),
                1 => buf[i] = rng.next_u32() as u8,
                2 => buf[i & !3..][..4].fill(0xFF),
                3 => buf[i & !3..][..4].fill(0),
                4 => {
                    let near = rng.below(1 << 16) as u32;
                    buf[i & !3..][..4].copy_from_slice(&near.to_le_bytes());
                }
                _ => {
                    let from = rng.below(1021) as usize & !3;
                    buf.copy_within(from..from + 4, i & !3);
                }
            }
        }
        if at == 1024 && rng.one_in(2) {
            // Keep it an ext superblock often enough.
            buf[0x38..0x3A].copy_from_slice(&[0x53, 0xEF]);
        }
        dev.write_at(at, &[&buf], BioFlags::empty()).expect("memory");
    }
}

/// One image through all it has to stand. Returns how far it came: 0 refused, 1 mounted read-only, 2 read-write.
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
    // What it wrote must be readable in turn.
    if reached == 2
        && let Ok(fs) = Filesystem::mount(copy, options(false, seed))
    {
        exercise::look_around(&fs);
        let _ = fs.unmount();
    }
    reached
}

/// The image as one to be rescued, and in one case of four without its end: nothing is written, and whatever is refused
/// otherwise comes back as well.
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

/// The most memory that this process ever had, in KiB.
fn memory_peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn run(index: usize, seeds: std::ops::Range<u64>, clock: &Clock, until_ns: u64) -> [u32; 3] {
    let (kind, crashed) = KINDS[index];
    let base = filled(kind, crashed);
    let places = interesting(&base);
    assert!(places.len() > 50, "{kind:?}: {} pieces", places.len());
    let mut reached = [0; 3];
    for seed in seeds {
        if clock.now_ns() > until_ns {
            break;
        }
        let dev = base.snapshot();
        damage(&dev, &places, &mut Rng::new(seed << 8 | index as u64));
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

#[test]
fn no_damaged_image_brings_it_down() {
    let clock = Clock::real();
    if let Ok(one) = std::env::var("EXTANT_SEED") {
        let (index, seed) = one.split_once(':').expect("kind:seed");
        let seed: u64 = seed.parse().expect("a number");
        run(index.parse().expect("a number"), seed..seed + 1, &clock, u64::MAX);
        return;
    }
    let soak = std::env::var_os("EXTANT_SOAK").is_some();
    let (cases, budget_ns) = if soak { (2_000, u64::MAX / 2) } else { (60, BUDGET_NS) };
    let mut total = [0; 3];
    for index in 0..KINDS.len() {
        // Each kind gets its share of the time, whatever the ones before used.
        let until = budget_ns / KINDS.len() as u64 * (index as u64 + 1);
        let reached = run(index, 0..cases, &clock, until);
        (0..3).for_each(|i| total[i] += reached[i]);
    }
    println!("refused {}, read-only {}, written {}", total[0], total[1], total[2]);
    assert!(total[2] > 50, "most damage must leave something to work with: {total:?}");
}
