//! The size on disk never uncovers what a truncation cut off: bytes behind the end of the file stay on the device until
//! the last block is written again, and no operation may move the size over them before.

#[path = "common/tools.rs"]
mod tools;

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_fs::{Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, SetAttr, WriteFlags};

const OLD: u8 = 0xAA;
const NEW: u8 = 0xBB;
const BLOCK: u64 = 4096;
/// Where the file is cut, in the middle of its second block.
const CUT: u64 = 5000;
/// Writes of this size go through.
const THROUGH: u64 = 1 << 16;

fn options() -> MountOptions {
    let write_through_bytes = Some(THROUGH);
    MountOptions { threads: false, seed: Some(1), write_through_bytes, ..MountOptions::default() }
}

fn mounted(kind: &str) -> (Arc<MemDevice>, Mounted) {
    let dev = Arc::new(tools::made(&["-b", "4096", "-t", kind], "32M"));
    let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
    (dev, fs)
}

fn make(fs: &Filesystem, name: &[u8]) -> InodeRef {
    fs.create(&fs.root().expect("root"), name, NewNode::file(0o644), Cred::default()).expect("create")
}

fn resize(fs: &Filesystem, f: &InodeRef, size: u64) {
    fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }).expect("truncate");
}

fn write(fs: &Filesystem, f: &InodeRef, from: u64, to: u64) {
    let data = vec![NEW; (to - from) as usize];
    assert_eq!(fs.write(f, from, &data, WriteFlags::default()).expect("write"), data.len());
}

fn fallocate(fs: &Filesystem, f: &InodeRef, mode: FallocateMode, from: u64, to: u64) {
    fs.fallocate(f, mode, from, to - from).expect("fallocate");
}

type Step = fn(&Filesystem, &InodeRef);

/// What the file is appended up to, and what raises its size on disk then.
const ALL: [(&str, u64, Step); 10] = [
    ("truncate up", 9000, |fs, f| resize(fs, f, 20_000)),
    ("truncate up from within the block", 5100, |fs, f| resize(fs, f, 20_000)),
    ("truncate down to more than is on disk", 20_000, |fs, f| resize(fs, f, 15_000)),
    ("punch at the end", 9000, |fs, f| fallocate(fs, f, FallocateMode::PunchHole, 2 * BLOCK, 9000)),
    ("punch in the middle", 20_000, |fs, f| fallocate(fs, f, FallocateMode::PunchHole, 3 * BLOCK, 4 * BLOCK)),
    ("write through behind", 2 * BLOCK, |fs, f| write(fs, f, 2 * BLOCK, 2 * BLOCK + THROUGH)),
    ("write through far behind", 9000, |fs, f| write(fs, f, 10 * BLOCK, 10 * BLOCK + THROUGH)),
    ("allocate", 9000, |fs, f| fallocate(fs, f, FallocateMode::Allocate { keep_size: false }, 2 * BLOCK, 30_000)),
    ("zero", 9000, |fs, f| fallocate(fs, f, FallocateMode::ZeroRange { keep_size: false }, 2 * BLOCK, 30_000)),
    ("zero, size kept", 9000, |fs, f| {
        fallocate(fs, f, FallocateMode::ZeroRange { keep_size: true }, 2 * BLOCK, 30_000)
    }),
];

#[test]
fn what_was_cut_off_does_not_come_back() {
    let mut wrong = Vec::new();
    for kind in ["ext4", "ext3"] {
        for (what, appended, raise) in ALL {
            if kind == "ext3" && ["allocate", "zero", "zero, size kept"].contains(&what) {
                continue; // need extents
            }
            let (dev, fs) = mounted(kind);
            let f = make(&fs, b"f");
            fs.write(&f, 0, &[OLD; 3 * BLOCK as usize], WriteFlags::default()).expect("write");
            fs.fsync(&f, false).expect("fsync");
            resize(&fs, &f, CUT);
            write(&fs, &f, CUT, appended);
            raise(&fs, &f);
            // Commits what is running, and writes nothing of the file.
            fs.fsync(&make(&fs, b"other"), false).expect("fsync");
            let crashed = Filesystem::mount(Arc::new(dev.snapshot()), options()).expect("mounted after the crash");
            let g = crashed.walk(b"f", true).expect("there");
            let mut content = vec![0; crashed.getattr(&g).size as usize];
            assert_eq!(crashed.read(&g, 0, &mut content).expect("read"), content.len());
            assert!(content.len() as u64 >= CUT, "{kind}, {what}: {} bytes", content.len());
            assert!(content[..CUT as usize].iter().all(|b| *b == OLD), "{kind}, {what}");
            if let Some(at) = content[CUT as usize..].iter().position(|b| *b == OLD) {
                wrong.push(format!("{kind}, {what}: byte {} of {} came back", CUT as usize + at, content.len()));
            }
            drop((f, g));
            crashed.unmount().expect("unmount");
            fs.unmount().expect("unmount");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
