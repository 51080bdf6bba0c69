//! How often a mount with one change waits for the device.

use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode};
use extant_oracle::{expect_clean, mke2fs};

/// Flushes and durable writes from the mount to the end of the unmount.
fn waits(dev: &Arc<FileDevice>, change: impl FnOnce(&Filesystem)) -> u64 {
    let before = dev.stats().flushes;
    let options = MountOptions { threads: false, counted: false, ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    change(&fs);
    fs.unmount().expect("unmounted");
    dev.stats().flushes - before
}

/// The mark that the image is in use; the log; its commit; the blocks at home; the empty log; the clean mark. Each
/// must be durable before the next begins, and the mount waits for each only once.
#[test]
fn one_change_waits_six_times() {
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("image");
    mke2fs(&image, &["-t", "ext4"], "16M");
    let dev = Arc::new(FileDevice::open(&image, OpenOptions::default()).expect("opened"));
    let made = waits(&dev, |fs| {
        let root = fs.root().expect("root");
        drop(fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("created"));
    });
    let removed = waits(&dev, |fs| fs.unlink(&fs.root().expect("root"), b"new").expect("unlinked"));
    assert_eq!((made, removed), (6, 6));
    assert!(waits(&dev, |_| {}) <= 3, "only the two marks: the log is already empty");
    drop(dev);
    expect_clean(&image).expect("clean");
}
