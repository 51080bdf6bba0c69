//! The e2fsprogs on images in memory: making, checking, inspecting and editing them. A tool that fails ends the test.
//!
//! # Locking
//! None.

use std::path::{Path, PathBuf};

use extant_block::device::MemDevice;

use crate::{arg, mke2fs, run_command};

/// An image of mke2fs, in memory.
pub fn made(args: &[&str], size: &str) -> MemDevice {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    mke2fs(&path, args, size);
    load(&path)
}

fn load(path: &Path) -> MemDevice {
    MemDevice::load(path).expect("loaded")
}

/// The result of `work` on a copy of the image in a file.
fn with_copy<T>(dev: &MemDevice, work: impl FnOnce(PathBuf) -> crate::Result<T>) -> T {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    dev.save(&path).expect("saved");
    work(path).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs `program` with `args` on a copy of the image. Returns its exit status and output.
pub fn on_copy(program: &str, args: &[&str], dev: &MemDevice) -> (i32, String) {
    let (code, said) = with_copy(dev, |path| run_command(program, &[args, &[arg(&path)]].concat()));
    (code.unwrap_or(-1), said)
}

/// The result of e2fsck with `args`.
pub fn e2fsck(dev: &MemDevice, args: &[&str]) -> (i32, String) {
    on_copy("e2fsck", args, dev)
}

/// Checks that `e2fsck -fn` reports nothing.
pub fn assert_clean(dev: &MemDevice) {
    with_copy(dev, crate::expect_clean);
}

/// The answer of debugfs to requests.
pub fn debugfs(dev: &MemDevice, requests: &str) -> String {
    with_copy(dev, |path| crate::debugfs(path, requests))
}

/// The image after requests to debugfs that write.
pub fn edited(dev: &MemDevice, requests: &[&str]) -> MemDevice {
    with_copy(dev, |path| crate::debugfs_write(&path, &requests.join("\n")).map(|()| load(&path)))
}
