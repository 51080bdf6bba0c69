//! The size on disk never uncovers bytes that a truncation cut off. They remain on the device behind the end of the
//! file until the last block is written again, and no operation may move the size over them before.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_block::BioOp;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_fs::{
    Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, OnError, SetAttr, WriteFlags,
};

const OLD: u8 = 0xAA;
const NEW: u8 = 0xBB;
const BLOCK: u64 = 4096;
/// The new size of the file, in the middle of its second block.
const CUT: u64 = 5000;
/// Writes of this size are written through.
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

/// The file's content in the next mount, after a power cut that retains all earlier writes.
fn after_cut(dev: &MemDevice) -> Vec<u8> {
    let fs = Filesystem::mount(Arc::new(dev.snapshot()), options()).expect("mounted after the crash");
    let f = fs.walk(b"f", true).expect("there");
    let mut content = vec![0; fs.getattr(&f).size as usize];
    assert_eq!(fs.read(&f, 0, &mut content).expect("read"), content.len());
    drop(f);
    fs.unmount().expect("unmount");
    content
}

type Step = fn(&Filesystem, &InodeRef);

/// The size that an append reaches, and the operation that then raises the size on disk.
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
fn truncated_bytes_do_not_reappear() {
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
            // Commits the running transaction, and writes no data of the file.
            fs.fsync(&make(&fs, b"other"), false).expect("fsync");
            let content = after_cut(&dev);
            assert!(content.len() as u64 >= CUT, "{kind}, {what}: {} bytes", content.len());
            assert!(content[..CUT as usize].iter().all(|b| *b == OLD), "{kind}, {what}");
            if let Some(at) = content[CUT as usize..].iter().position(|b| *b == OLD) {
                wrong.push(format!("{kind}, {what}: byte {} of {} came back", CUT as usize + at, content.len()));
            }
            drop(f);
            fs.unmount().expect("unmount");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A tail that was read is clean in memory, and zero behind the end; on the device it is unchanged.
#[test]
fn truncated_bytes_do_not_reappear_after_the_tail_was_read() {
    let grows: [(&str, Step); 4] = [
        ("write far behind", |fs, f| write(fs, f, 20_000, 20_001)),
        ("write through far behind", |fs, f| write(fs, f, 10 * BLOCK, 10 * BLOCK + THROUGH)),
        ("truncate up", |fs, f| resize(fs, f, 20_000)),
        ("allocate", |fs, f| fallocate(fs, f, FallocateMode::Allocate { keep_size: false }, 2 * BLOCK, 30_000)),
    ];
    let mut wrong = Vec::new();
    for kind in ["ext4", "ext3"] {
        for (what, grow) in grows {
            if kind == "ext3" && what == "allocate" {
                continue; // needs extents
            }
            let (dev, fs) = mounted(kind);
            let f = make(&fs, b"f");
            fs.write(&f, 0, &[OLD; 3 * BLOCK as usize], WriteFlags::default()).expect("write");
            fs.fsync(&f, false).expect("fsync");
            resize(&fs, &f, CUT);
            // Commits the truncation; its zeros are still in memory when the power fails.
            fs.fsync(&make(&fs, b"other"), false).expect("fsync");
            let cut = Arc::new(dev.snapshot());
            drop(f);
            fs.unmount().expect("unmount");
            let fs = Filesystem::mount(cut.clone(), options()).expect("mounted after the crash");
            let f = fs.walk(b"f", true).expect("there");
            assert_eq!(fs.read(&f, 0, &mut [0; 9000]).expect("read"), CUT as usize);
            grow(&fs, &f);
            fs.fsync(&f, false).expect("fsync");
            let content = after_cut(&cut);
            assert!(content.len() as u64 > CUT, "{kind}, {what}");
            if let Some(at) = content[CUT as usize..].iter().position(|b| *b == OLD) {
                wrong.push(format!("{kind}, {what}: byte {} of {} came back", CUT as usize + at, content.len()));
            }
            drop(f);
            fs.unmount().expect("unmount");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const ALLOCATE: FallocateMode = FallocateMode::Allocate { keep_size: false };

type Grow = fn(&Filesystem, &InodeRef) -> extant_fs::Result<()>;

/// The size does not move over a tail whose zeros did not reach the device, and the operation that would move it
/// fails.
#[test]
fn a_file_does_not_grow_over_an_unwritable_tail() {
    let grows: [(&str, Grow); 3] = [
        ("write far behind", |fs, f| fs.write(f, 20_000, &[NEW], WriteFlags::default()).map(drop)),
        ("truncate up", |fs, f| fs.setattr(f, &SetAttr { size: Some(20_000), ..SetAttr::default() }).map(drop)),
        ("allocate", |fs, f| fs.fallocate(f, FallocateMode::Allocate { keep_size: false }, 2 * BLOCK, 20_000)),
    ];
    let mut wrong = Vec::new();
    for keep_clean in [false, true] {
        for (what, grow) in grows {
            let disk = Arc::new(tools::made(&["-b", "4096", "-t", "ext4"], "32M"));
            let faulty = Arc::new(FaultyDevice::new(disk.clone()));
            let fs = Filesystem::mount(faulty.clone(), MountOptions { keep_clean, ..options() }).expect("mounted");
            let f = make(&fs, b"f");
            fs.write(&f, 0, &[OLD; 3 * BLOCK as usize], WriteFlags::default()).expect("write");
            fs.fsync(&f, false).expect("fsync");
            resize(&fs, &f, CUT);
            faulty.inject(Fault::eio().op(BioOp::Write).data().once());
            let grown = grow(&fs, &f);
            assert!(faulty.injected() > 0, "{what}: nothing failed");
            if grown.is_ok() {
                wrong.push(format!("{what}, keep_clean {keep_clean}: the operation succeeded"));
            }
            let _ = fs.sync();
            let content = after_cut(&disk);
            if content.iter().skip(CUT as usize).any(|b| *b == OLD) {
                wrong.push(format!("{what}, keep_clean {keep_clean}: truncated bytes reappeared"));
            }
            drop(f);
            let _ = fs.unmount();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The data that should replace the tail is lost, and then the file grows.
#[test]
fn truncated_bytes_do_not_reappear_if_the_data_over_them_is_lost() {
    let grows: [(&str, Grow); 3] = [
        ("write through behind", |fs, f| {
            fs.write(f, 2 * BLOCK, &[NEW; THROUGH as usize], WriteFlags::default()).map(drop)
        }),
        ("truncate up", |fs, f| fs.setattr(f, &SetAttr { size: Some(20_000), ..SetAttr::default() }).map(drop)),
        ("allocate", |fs, f| fs.fallocate(f, ALLOCATE, 2 * BLOCK, 20_000)),
    ];
    let mut wrong = Vec::new();
    for before in [false, true] {
        for (what, grow) in grows {
            let disk = Arc::new(tools::made(&["-b", "4096", "-t", "ext4"], "32M"));
            let faulty = Arc::new(FaultyDevice::new(disk.clone()));
            let fs = Filesystem::mount(faulty.clone(), options()).expect("mounted");
            let f = make(&fs, b"f");
            fs.write(&f, 0, &[OLD; 3 * BLOCK as usize], WriteFlags::default()).expect("write");
            fs.fsync(&f, false).expect("fsync");
            resize(&fs, &f, CUT);
            write(&fs, &f, CUT, 2 * BLOCK);
            faulty.inject(Fault::eio().op(BioOp::Write).data().once());
            if before {
                fs.fsync(&f, false).expect_err("it is lost");
            }
            let grown = grow(&fs, &f);
            assert!(faulty.injected() > 0, "{what}: nothing failed");
            let _ = fs.sync();
            let mut now = vec![0; fs.getattr(&f).size as usize];
            assert_eq!(fs.read(&f, 0, &mut now).expect("read"), now.len());
            // If the file did not grow, this mount shows the old content in place of the lost data.
            let now = grown.map(|()| now).unwrap_or_default();
            for (when, content) in [("now", now), ("after a cut", after_cut(&disk))] {
                if content.iter().skip(CUT as usize).any(|b| *b == OLD) {
                    wrong.push(format!("{what}, lost before it: {before}: truncated bytes reappeared {when}"));
                }
            }
            drop(f);
            let _ = fs.unmount();
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A truncation that could not free the blocks has truncated the file nevertheless: an operation that extends the
/// file frees them first, or fails.
#[test]
fn blocks_that_a_truncation_could_not_free_do_not_reappear() {
    let grows: [(&str, Grow); 3] = [
        ("write far behind", |fs, f| fs.write(f, 60 * BLOCK, &[NEW], WriteFlags::default()).map(drop)),
        ("truncate up", |fs, f| fs.setattr(f, &SetAttr { size: Some(60 * BLOCK), ..SetAttr::default() }).map(drop)),
        ("allocate", |fs, f| fs.fallocate(f, ALLOCATE, 0, 60 * BLOCK)),
    ];
    let mut wrong = Vec::new();
    for kind in ["ext4", "ext3", "ext2"] {
        for (what, grow) in grows {
            if kind != "ext4" && what == "allocate" {
                continue; // needs extents
            }
            let (disk, fs) = mounted(kind);
            let f = make(&fs, b"f");
            // More extents than fit the inode.
            for block in (0..60).step_by(2) {
                fs.write(&f, block * BLOCK, &[OLD; BLOCK as usize], WriteFlags::default()).expect("write");
            }
            drop(f);
            fs.unmount().expect("unmount");
            let faulty = Arc::new(FaultyDevice::new(disk.clone()));
            let errors = Some(OnError::Continue);
            let fs = Filesystem::mount(faulty.clone(), MountOptions { errors, ..options() }).expect("mounted");
            let f = fs.walk(b"f", true).expect("there");
            let cut = |size| fs.setattr(&f, &SetAttr { size: Some(size), ..SetAttr::default() });
            faulty.inject(Fault::eio().op(BioOp::Read));
            cut(0).expect_err("its map cannot be read");
            assert_eq!(fs.getattr(&f).size, 0, "{kind}");
            grow(&fs, &f).expect_err("its map is still unreadable");
            faulty.clear();
            grow(&fs, &f).expect("it can be read");
            fs.sync().expect("sync");
            let mut content = vec![0; fs.getattr(&f).size as usize];
            assert_eq!(fs.read(&f, 0, &mut content).expect("read"), content.len());
            assert!(content.len() as u64 >= 60 * BLOCK, "{kind}, {what}");
            if content.contains(&OLD) {
                wrong.push(format!("{kind}, {what}: truncated bytes reappeared"));
            }
            drop(f);
            fs.unmount().expect("unmount");
            let (status, said) = tools::e2fsck(&disk, &["-fn"]);
            assert!(status == 0, "{kind}, {what}: {said}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
