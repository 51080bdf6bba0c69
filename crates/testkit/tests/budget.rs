//! Memory is bounded by the budget, not by the size of the image or the number of files.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_block::device::MemDevice;
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};
use extant_testkit::crash::state_files;
use extant_testkit::oracle::{MkfsOptions, make_image};

const BUDGET: u64 = 64 << 20;
/// The maximum lag of reclaim: it runs after an operation and takes frames that are not in use.
const SLACK: u64 = 8 << 20;
const PINNED_MAX: u64 = 16 << 20;
const PER_DIR: usize = 2_000;

/// Creates `count` small files on a sparse image of 1 TiB, then deletes them all, in one mount.
fn create_and_unlink(count: usize) {
    let dir = state_files();
    let path = make_image(dir.path(), &MkfsOptions::new("ext4", 1 << 40)).expect("mke2fs");
    let dev = Arc::new(MemDevice::load(&path).expect("loaded"));
    std::fs::remove_file(&path).expect("removed");
    let options = MountOptions { threads: false, seed: Some(5), cache_bytes: BUDGET, ..MountOptions::default() };
    let fs = Filesystem::mount(dev, options).expect("mounted");
    let root = fs.root().expect("root");
    let cred = Cred::default();
    let mut used_max = 0;
    let mut look = |fs: &Filesystem| used_max = fs.budget().used().max(used_max);
    let dirs = count.div_ceil(PER_DIR);
    for d in 0..dirs {
        let dir = fs.create(&root, format!("d{d}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
        for i in 0..PER_DIR.min(count - d * PER_DIR) {
            let f = fs.create(&dir, format!("f{i}").as_bytes(), NewNode::file(0o644), cred).expect("create");
            if i % 8 == 0 {
                fs.write(&f, 0, &[d as u8; 3000], WriteFlags::default()).expect("write");
            }
            drop(f);
            if i % 256 == 0 {
                fs.step();
            }
            look(&fs);
        }
    }
    for d in 0..dirs {
        let dir = fs.walk(format!("d{d}").as_bytes(), true).expect("dir");
        for i in 0..PER_DIR.min(count - d * PER_DIR) {
            fs.unlink(&dir, format!("f{i}").as_bytes()).expect("unlink");
            look(&fs);
        }
        drop(dir);
        fs.rmdir(&root, format!("d{d}").as_bytes()).expect("rmdir");
        fs.step();
    }
    let s = fs.statistics().journal();
    let pinned = s.pinned_bytes_peak.load(Ordering::Relaxed);
    eprintln!(
        "{count} files: at most {} KiB in use, {} KiB pinned by the journal, {} commits, {} checkpoints, {} blocks logged",
        used_max >> 10,
        pinned >> 10,
        s.commits.get(),
        s.checkpoints.get(),
        s.blocks.get()
    );
    assert!(pinned <= PINNED_MAX, "the journal pinned {pinned} bytes");
    assert!(used_max <= BUDGET + SLACK, "{used_max} bytes in use");
    drop(root);
    fs.unmount().expect("unmounted");
}

#[test]
fn a_hundred_thousand_files_on_a_tebibyte() {
    create_and_unlink(100_000);
}

#[test]
#[ignore = "a million files: minutes"]
fn a_million_files_on_a_tebibyte() {
    create_and_unlink(1_000_000);
}
