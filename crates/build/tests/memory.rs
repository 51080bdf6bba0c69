//! The memory for making an image: 64 MiB, plus 400 bytes and the name for each entry, the tree included.

use peak_alloc::PeakAlloc;

use extant_block::device::{FileDevice, IoMode, OpenOptions};
use extant_build::Result;
use extant_build::content::{ContentPlan, Spare, add_lost_found, fit};
use extant_build::options::{Fact, Request};
use extant_build::plan::Plan;
use extant_build::tree::{self, Attributes, Builder, Content, ReadAt};
use extant_build::write::write_with_progress;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const MIB: usize = 1 << 20;
const FIXED: usize = 64 * MIB;
const ENTRY: usize = 400;

/// Files that hold the letter x.
struct Letters;

impl Content for Letters {
    fn open(&self, _: u64) -> Result<Box<dyn ReadAt + '_>> {
        Ok(Box::new(Letters))
    }
}

impl ReadAt for Letters {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(b'x');
        Ok(())
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}

fn request(fs_type: &str) -> Request {
    Request { fs_type: Some(fs_type.into()), block_size: Some(4096), ..Request::default() }
}

fn fact() -> Fact {
    Fact { device_bytes: 0, sector_size: 0, zeroed: true, now: 0, random: [1; 32], user: (0, 0) }
}

/// A tenth of the entries is in one directory.
fn entries_take_little(count: usize) {
    let before = ALLOCATOR.current_usage();
    let mut builder = Builder::new(tree::Options::default());
    let mut names = 0;
    for i in 0..count {
        let directory = if i % 10 == 0 { 0 } else { i / 100 };
        let name = format!("{directory}/a-name-of-the-usual-length-{i}");
        names += name.len();
        let attributes = Attributes { mode: 0o644, ..Attributes::default() };
        builder.file(name.as_bytes(), attributes, (i % 9000) as u64, None, i as u64).unwrap();
    }
    let mut tree = builder.finish().unwrap();
    add_lost_found(&mut tree).unwrap();
    let (options, bytes) = fit(&request("ext4"), &fact(), &tree, Spare::DEFAULT).unwrap();
    // The builder's own memory is measured in another test.
    ALLOCATOR.reset_peak_usage();
    let plan = ContentPlan::new(&options, &tree, &Letters).unwrap();
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let io = OpenOptions { io: IoMode::Buffered, ..OpenOptions::default() };
    let device = FileDevice::create(dir.path().join("image"), bytes, io).unwrap();
    write_with_progress(&device, &plan, 8, &|_| ()).unwrap();
    let peak = ALLOCATOR.peak_usage() - before;
    let most = FIXED + count * ENTRY + names;
    println!("{count} entries: {} MiB of {} MiB", peak / MIB, most / MIB);
    assert!(peak <= most, "{peak} bytes for {count} entries, at most {most}");
}

/// The plan of a file that is far larger than memory, and bytes from its middle.
fn a_large_file_takes_nothing(fs_type: &str) {
    const SIZE: u64 = 100 << 30;
    let before = ALLOCATOR.current_usage();
    let mut builder = Builder::new(tree::Options::default());
    let attributes = Attributes { mode: 0o644, ..Attributes::default() };
    builder.file(b"large", attributes, SIZE, None, 0).unwrap();
    let mut tree = builder.finish().unwrap();
    add_lost_found(&mut tree).unwrap();
    ALLOCATOR.reset_peak_usage();
    let (options, _) = fit(&request(fs_type), &fact(), &tree, Spare::DEFAULT).unwrap();
    let plan = ContentPlan::new(&options, &tree, &Letters).unwrap();
    let mut sum = 0;
    let mut buf = vec![0; 4 * MIB];
    for piece in plan.pieces() {
        sum += u64::from(piece.blocks) << 12;
        let from = piece.blocks / 2;
        let len = ((piece.blocks - from) as usize * 4096).min(buf.len());
        buf[..len].fill(0);
        plan.fill(piece.key, from, &mut buf[..len]).unwrap();
    }
    assert!(sum > SIZE);
    let peak = ALLOCATOR.peak_usage() - before;
    println!("{fs_type}: {} MiB", peak / MIB);
    assert!(peak <= FIXED, "{peak} bytes");
}

/// One test, because the counter counts for the whole process.
#[test]
fn images_of_many_files_and_of_a_large_one_take_little_memory() {
    entries_take_little(20_000);
    a_large_file_takes_nothing("ext2");
    a_large_file_takes_nothing("ext4");
}

#[test]
#[ignore = "soak: a million files"]
fn soak_images_of_a_million_files_take_little_memory() {
    entries_take_little(1_000_000);
}
