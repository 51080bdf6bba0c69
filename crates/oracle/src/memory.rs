//! The e2fsprogs on images in memory: making, checking, inspecting and editing them. A tool that fails ends the test.
//!
//! # Locking
//! None.

use std::path::Path;

use extant_block::device::MemDevice;

use crate::{arg, run_command};

/// UUID and hash seed of every image. The places of directories and their splits depend on them.
pub const SEED: &str = "5eed5eed-5eed-45ee-8eed-5eed5eed5eed";

/// Exit status and output.
pub fn run(program: &str, args: &[&str]) -> (i32, String) {
    let (code, said) = run_command(Path::new(program), args).unwrap_or_else(|e| panic!("{e}"));
    (code.unwrap_or(-1), said)
}

/// Makes an image at `path`; `args` override the seed.
pub fn mke2fs(path: &Path, args: &[&str], size: &str) {
    let seed = format!("hash_seed={SEED}");
    let all = [&["-q", "-F", "-U", SEED, "-E", &seed], args, &[arg(path), size]].concat();
    let (code, said) = run("mke2fs", &all);
    assert_eq!(code, 0, "mke2fs {args:?}: {said}");
}

/// An image of mke2fs, in memory.
pub fn made(args: &[&str], size: &str) -> MemDevice {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    mke2fs(&path, args, size);
    MemDevice::load(&path).expect("loaded")
}

/// Runs `program` with `args` on a copy of the image.
pub fn on_copy(program: &str, args: &[&str], dev: &MemDevice) -> (i32, String) {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    dev.save(&path).expect("saved");
    run(program, &[args, &[arg(&path)]].concat())
}

/// The result of e2fsck with `args`.
pub fn e2fsck(dev: &MemDevice, args: &[&str]) -> (i32, String) {
    on_copy("e2fsck", args, dev)
}

/// Checks that `e2fsck -fn` reports nothing.
pub fn assert_clean(dev: &MemDevice) {
    let (code, said) = e2fsck(dev, &["-fn"]);
    assert_eq!(code, 0, "e2fsck -fn: {said}");
}

/// The answer of debugfs to a request.
pub fn debugfs(dev: &MemDevice, request: &str) -> String {
    let (code, said) = on_copy("debugfs", &["-R", request], dev);
    assert_eq!(code, 0, "debugfs -R '{request}': {said}");
    // The first line is the program's name.
    said.lines().filter(|l| !l.starts_with("debugfs ")).collect::<Vec<_>>().join("\n").trim().to_owned()
}

/// The image after requests to debugfs that write.
pub fn edited(dev: &MemDevice, requests: &[&str]) -> MemDevice {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    dev.save(&path).expect("saved");
    for request in requests {
        // debugfs reports failures only as additional output, besides its name and the number of a file that it made.
        let (code, said) = run("debugfs", &["-w", "-R", request, arg(&path)]);
        let known = |line: &str| line.starts_with("debugfs 1.") || line.starts_with("Allocated inode: ");
        assert!(code == 0 && said.lines().all(known), "debugfs -R '{request}': {said}");
    }
    MemDevice::load(&path).expect("loaded")
}
