//! fallocate(2) with ZERO_RANGE: zeros without writing them, on the existing blocks. Against a model, e2fsck, and
//! debugfs for the blocks.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, WriteFlags};

struct Bench {
    dev: Arc<MemDevice>,
    fs: Mounted,
}

fn options() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), ..MountOptions::default() }
}

fn mounted(args: &[&str], options: MountOptions) -> Bench {
    let dev = Arc::new(tools::made(args, "32M"));
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    Bench { dev, fs }
}

impl Bench {
    fn file(&self, name: &[u8]) -> InodeRef {
        let root = self.fs.root().expect("root");
        self.fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("create")
    }

    fn remount(&mut self) {
        self.fs.unmount().expect("unmount");
        tools::assert_clean(&self.dev);
        self.fs = Filesystem::mount(self.dev.clone(), options()).expect("mounted again");
    }
}

fn content(fs: &Filesystem, f: &InodeRef) -> Vec<u8> {
    let mut all = vec![0xFF; fs.getattr(f).size as usize];
    assert_eq!(fs.read(f, 0, &mut all).expect("read"), all.len());
    all
}

#[test]
fn zeroing_retains_the_blocks() {
    let mut b = mounted(&["-t", "ext4", "-b", "4096"], options());
    let f = b.file(b"f");
    let data: Vec<u8> = (0..64 * 4096u32).map(|i| i as u8 | 1).collect();
    b.fs.write(&f, 0, &data, WriteFlags::default()).expect("write");
    let blocks = {
        drop(f);
        b.remount();
        tools::debugfs(&b.dev, "blocks /f")
    };
    assert!(blocks.split_whitespace().count() >= 64, "{blocks}");
    let f = b.fs.walk(b"f", true).expect("there");
    let (free, used) = (b.fs.statfs().blocks_free, b.fs.getattr(&f).blocks);
    let (from, to) = (4096 * 10 + 100, 4096 * 50 + 7);
    b.fs.fallocate(&f, FallocateMode::ZeroRange { keep_size: true }, from, to - from).expect("zero range");
    let mut expected = data;
    expected[from as usize..to as usize].fill(0);
    assert_eq!(content(&b.fs, &f), expected);
    b.fs.sync().expect("sync");
    assert_eq!((b.fs.statfs().blocks_free, b.fs.getattr(&f).blocks), (free, used));
    drop(f);
    b.remount();
    tools::assert_clean(&b.dev);
    assert_eq!(tools::debugfs(&b.dev, "blocks /f"), blocks, "the same blocks as before");
    let extents = tools::debugfs(&b.dev, "dump_extents /f");
    assert!(extents.contains("Uninit"), "{extents}");
    let f = b.fs.walk(b"f", true).expect("there");
    assert_eq!(content(&b.fs, &f), expected);
    drop(f);
    b.fs.unmount().expect("unmount");
}

#[test]
fn zeroing_allocates_holes_and_sets_the_requested_size() {
    for keep_size in [false, true] {
        let mut b = mounted(&["-t", "ext4", "-b", "1024"], options());
        let f = b.file(b"f");
        b.fs.write(&f, 5000, &[7; 3000], WriteFlags::default()).expect("write");
        b.fs.fallocate(&f, FallocateMode::ZeroRange { keep_size }, 1024, 19 * 1024).expect("zero range");
        let size = if keep_size { 8000 } else { 20 * 1024 };
        assert_eq!(b.fs.getattr(&f).size, size);
        assert_eq!(b.fs.getattr(&f).blocks, 2 * 19, "the whole range, and nothing else");
        assert!(content(&b.fs, &f).iter().all(|b| *b == 0));
        drop(f);
        b.remount();
        let f = b.fs.walk(b"f", true).expect("there");
        assert_eq!((b.fs.getattr(&f).size, b.fs.getattr(&f).blocks), (size, 2 * 19));
        assert!(content(&b.fs, &f).iter().all(|b| *b == 0));
        drop(f);
        b.fs.unmount().expect("unmount");
    }
}

/// Indirect blocks have no unwritten state. As in the kernel, the call then fails rather than writing zeros.
#[test]
fn zeroing_fails_without_extents() {
    let b = mounted(&["-t", "ext3"], options());
    let f = b.file(b"f");
    b.fs.write(&f, 0, &[7; 8192], WriteFlags::default()).expect("write");
    for keep_size in [false, true] {
        let refused = b.fs.fallocate(&f, FallocateMode::ZeroRange { keep_size }, 0, 4096);
        assert!(matches!(refused, Err(Error::NotSupported(_))), "{refused:?}");
    }
    assert_eq!(content(&b.fs, &f), [7; 8192]);
    drop(f);
    b.fs.unmount().expect("unmount");
    tools::assert_clean(&b.dev);
}

#[test]
fn random_ranges_agree_with_a_model() {
    for (seed, through) in [(1u64, None), (2, Some(1024)), (3, None)] {
        let mut b = mounted(&["-t", "ext4", "-b", "1024"], MountOptions { write_through_bytes: through, ..options() });
        let mut rng = Rng::new(seed);
        let mut model: Vec<u8> = Vec::new();
        b.file(b"f");
        for round in 0..600 {
            let f = b.fs.walk(b"f", true).expect("there");
            let (from, len) = (rng.below(60_000), 1 + rng.below(20_000));
            let (at, to) = (from as usize, (from + len) as usize);
            match rng.below(10) {
                0..=3 => {
                    let n = b.fs.write(&f, from, &vec![round as u8 | 1; len as usize], WriteFlags::default());
                    assert_eq!(n.expect("write"), len as usize);
                    model.resize(model.len().max(to), 0);
                    model[at..to].fill(round as u8 | 1);
                }
                4..=7 => {
                    let keep_size = rng.one_in(2);
                    b.fs.fallocate(&f, FallocateMode::ZeroRange { keep_size }, from, len).expect("zero range");
                    if !keep_size {
                        model.resize(model.len().max(to), 0);
                    }
                    let end = to.min(model.len());
                    model[at.min(end)..end].fill(0);
                }
                8 => {
                    b.fs.fallocate(&f, FallocateMode::PunchHole, from, len).expect("punch");
                    let end = to.min(model.len());
                    model[at.min(end)..end].fill(0);
                }
                _ => b.fs.fsync(&f, false).expect("fsync"),
            }
            assert_eq!(b.fs.getattr(&f).size, model.len() as u64);
            if round % 20 == 0 {
                assert_eq!(content(&b.fs, &f), model, "seed {seed}, round {round}");
            }
            drop(f);
            if round % 100 == 99 {
                b.remount();
                let f = b.fs.walk(b"f", true).expect("there");
                assert_eq!(content(&b.fs, &f), model, "seed {seed}, round {round}, mounted again");
            }
        }
        b.fs.unmount().expect("unmount");
        tools::assert_clean(&b.dev);
    }
}

/// e2fsck would otherwise complain: a file of 2 GiB needs the feature, whichever operation extends it.
#[test]
fn extending_a_file_beyond_2_gib_sets_the_feature() {
    let mut bench = mounted(&["-b", "4096", "-t", "ext4", "-O", "^large_file,^resize_inode"], options());
    let f = bench.file(b"f");
    assert_eq!(bench.fs.write(&f, 1 << 31, &[1; 8192], WriteFlags::default()).expect("write"), 8192);
    bench.fs.fallocate(&f, FallocateMode::ZeroRange { keep_size: false }, 1 << 31, 8192).expect("zeroed");
    drop(f);
    bench.remount();
    assert!(tools::debugfs(&bench.dev, "features").contains("large_file"));
}
