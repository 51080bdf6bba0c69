//! Blocks of 8 to 64 KiB, larger than a page: all kinds of changes, cuts, and data that is read again.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::{CrashDevice, CrashMode, MemDevice};
use extant_fs::{
    Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, RenameFlags, SetAttr, SetMode,
    WriteFlags,
};

/// Blocks of these sizes, and the size of an image.
const SIZES: [(&str, &str); 4] = [("8192", "48M"), ("16384", "96M"), ("32768", "192M"), ("65536", "384M")];

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn made(block_size: &str, size: &str, more: &[&str]) -> Arc<MemDevice> {
    // The smallest journal, of 1,024 blocks.
    let journal = format!("size={}", block_size.parse::<u32>().expect("a number") / 1024);
    let args = ["-t", "ext4", "-b", block_size, "-N", "2048", "-J", &journal];
    Arc::new(tools::made(&[&args, more].concat(), size))
}

/// The byte at `at` of a content.
fn byte(seed: usize, at: usize) -> u8 {
    (at / 3 + at / 4096 + seed) as u8
}

fn bytes(seed: usize, from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| byte(seed, at)).collect()
}

fn write_all(fs: &Mounted, f: &InodeRef, seed: usize, from: usize, length: usize) {
    let data = bytes(seed, from, length);
    let mut done = 0;
    while done < length {
        done += fs.write(f, (from + done) as u64, &data[done..], WriteFlags::default()).expect("written");
    }
}

fn check(fs: &Mounted, f: &InodeRef, seed: usize, from: usize, length: usize) {
    let mut found = vec![0; length];
    let n = fs.read(f, from as u64, &mut found).expect("read");
    assert!(n == length && found == bytes(seed, from, length), "{from} {length}");
}

fn open(fs: &Mounted, path: &str) -> InodeRef {
    fs.walk(path.as_bytes(), true).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Changes of every kind; `round` names the files.
fn work(fs: &Mounted, round: usize) {
    let (root, cred) = (fs.root().expect("root"), Cred::default());
    let create = |name: &str| fs.create(&root, name.as_bytes(), NewNode::file(0o644), cred).expect("created");
    // Small writes in a block, in any order, and over its end.
    let f = create(&format!("small{round}"));
    for at in [70_000, 0, 5000, 12_000, 65_000, 130_000] {
        write_all(fs, &f, round, at, 4000);
        check(fs, &f, round, at, 4000);
    }
    fs.fsync(&f, false).expect("durable");
    write_all(fs, &f, round, 4000, 1000);
    // A large file with holes, cut and extended within a block.
    let g = create(&format!("large{round}"));
    write_all(fs, &g, round, 0, 700_000);
    fs.fallocate(&g, FallocateMode::PunchHole, 131_072, 262_144).expect("punched");
    fs.fallocate(&g, FallocateMode::Allocate { keep_size: false }, 700_000, 300_000).expect("allocated");
    fs.setattr(&g, &SetAttr { size: Some(650_001), ..SetAttr::default() }).expect("cut");
    write_all(fs, &g, round, 650_001, 90_000);
    fs.set_xattr(&g, b"user.large", &vec![round as u8; 3000], SetMode::Any).expect("set");
    // A directory of several blocks, with names that come and go.
    let dir = fs.create(&root, format!("dir{round}").as_bytes(), NewNode::directory(0o755), cred).expect("made");
    let name = |i: usize| format!("a name that is as long as many are, number {i:05}");
    for i in 0..400 {
        fs.create(&dir, name(i).as_bytes(), NewNode::file(0o600), cred).expect("created");
    }
    for i in (0..400).step_by(3) {
        fs.unlink(&dir, name(i).as_bytes()).expect("unlinked");
    }
    fs.rename(&dir, name(1).as_bytes(), &root, format!("moved{round}").as_bytes(), RenameFlags::default())
        .expect("renamed");
    fs.create(&root, format!("link{round}").as_bytes(), NewNode::symlink(&[b'l'; 2000]), cred).expect("linked");
    fs.sync().expect("synced");
}

fn verify(fs: &Mounted, round: usize) {
    let f = open(fs, &format!("/small{round}"));
    for (at, length) in [(0, 9000), (12_000, 4000), (65_000, 4000), (70_000, 4000), (130_000, 4000)] {
        check(fs, &f, round, at, length);
    }
    let g = open(fs, &format!("/large{round}"));
    check(fs, &g, round, 0, 131_072);
    check(fs, &g, round, 393_216, 740_001 - 393_216);
    let mut hole = vec![1; 262_144];
    fs.read(&g, 131_072, &mut hole).expect("read");
    assert!(hole.iter().all(|byte| *byte == 0));
    assert_eq!(fs.get_xattr(&g, b"user.large").expect("there"), vec![round as u8; 3000]);
    assert_eq!(fs.read_link(&open_link(fs, round)).expect("read"), vec![b'l'; 2000]);
    open(fs, &format!("/dir{round}/a name that is as long as many are, number 00002"));
    assert!(fs.walk(format!("/dir{round}/a name that is as long as many are, number 00003").as_bytes(), true).is_err());
}

fn open_link(fs: &Mounted, round: usize) -> InodeRef {
    fs.walk(format!("/link{round}").as_bytes(), false).expect("found")
}

#[test]
fn everything_that_is_written_is_read_again() {
    for (block_size, size) in SIZES {
        for through in [None, Some(65_536)] {
            let dev = made(block_size, size, &[]);
            for round in 0..2 {
                let options = MountOptions { write_through_bytes: through, keep_clean: round == 0, ..options() };
                let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
                work(&fs, round);
                (0..=round).for_each(|round| verify(&fs, round));
                fs.unmount().expect("unmounted");
                tools::assert_clean(&dev);
            }
            let fs = Filesystem::mount(dev.clone(), options()).expect("mounted again");
            (0..2).for_each(|round| verify(&fs, round));
            fs.unmount().expect("unmounted");
        }
    }
}

#[test]
fn a_cut_anywhere_leaves_a_clean_image() {
    for (i, (block_size, size)) in SIZES.into_iter().enumerate() {
        let crash = Arc::new(CrashDevice::from_image(&made(block_size, size, &["-O", "orphan_file"])));
        crash.declare_atomic(1024, 1024);
        let fs = Filesystem::mount(crash.clone(), options()).expect("mounted");
        work(&fs, 0);
        fs.unlink(&fs.root().expect("root"), b"large0").expect("unlinked");
        fs.unmount().expect("unmounted");
        let (mut rng, events) = (Rng::new(i as u64), crash.write_log());
        assert!(events > 12, "{events}");
        for at in (0..events).step_by((events / 6).max(1)) {
            let state = Arc::new(crash.state_after(at, &mut rng, CrashMode::RandomSubset).expect("state"));
            Filesystem::mount(state.clone(), options()).expect("mounted after a cut").unmount().expect("unmounted");
            tools::assert_clean(&state);
        }
    }
}
