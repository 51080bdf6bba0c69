//! The cost of a growth while mounted: it depends on the new groups, and not on the bytes of the new size.

use std::sync::Arc;

use extant_block::device::{MemDevice, TracedDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{Filesystem, GrowTo, MountOptions};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

const SMALL: u64 = 64 << 20;
const LARGE: u64 = 1 << 40;

/// An image of 64 MiB on a device of 1 TiB, with descriptors reserved for that.
fn image() -> MemDevice {
    let small = extant_oracle::memory::made(&["-t", "ext4", "-b", "4096", "-E", "resize=268435456"], "64M");
    let large = MemDevice::new(LARGE);
    let mut piece = vec![0; 1 << 20];
    for at in (0..SMALL).step_by(piece.len()) {
        small.read_at(at, &mut piece, BioFlags::empty()).expect("read");
        if piece.iter().any(|byte| *byte != 0) {
            large.write_at(at, &[&piece], BioFlags::empty()).expect("written");
        }
    }
    large
}

#[test]
fn a_growth_to_a_tebibyte_writes_what_its_groups_need() {
    let traced = Arc::new(TracedDevice::new(Arc::new(image())));
    let options = MountOptions { threads: false, seed: Some(1), cache_bytes: 64 << 20, ..MountOptions::default() };
    let fs = Filesystem::mount(traced.clone(), options).expect("mounted");
    let before = traced.records().len();
    ALLOCATOR.reset_peak_usage();
    let allocated = ALLOCATOR.current_usage();
    let grown = fs.grow(GrowTo::Device).expect("grown");
    assert_eq!((grown.after * 4096, grown.groups), (LARGE, 8192));
    let peak = (ALLOCATOR.peak_usage() - allocated) as u64;
    fs.unmount().expect("unmount");
    let writes = traced.records().split_off(before);
    let bytes: u64 = writes.iter().filter(|r| r.op == BioOp::Write).map(|r| r.end() - r.offset).sum();
    let (requests, flushes) = (
        writes.iter().filter(|r| r.op == BioOp::Write).count(),
        writes.iter().filter(|r| r.op == BioOp::Flush).count(),
    );
    println!("{requests} writes of {bytes} bytes, {flushes} flushes, {peak} bytes of memory");
    // A step for each flex group of 16 groups. It writes two bitmaps, and superblock and descriptors through the log;
    // a backup in it costs the blocks reserved for descriptors as well. In the end the backups are renewed.
    let (steps, backups, table) = (8192 / 16, 21, 128 + 1);
    let most = steps * 6 + backups * table * 4;
    assert!(bytes <= most * 4096, "{bytes} bytes, {} expected at most", most * 4096);
    assert!(requests as u64 <= 4 * steps, "{requests} requests");
    assert!(flushes as u64 <= 2 * steps, "{flushes} flushes");
    assert!(peak <= 64 << 20, "{peak} bytes");
}
