//! The e2fsprogs for the tests of this crate: making, checking and inspecting images. Crates above have
//! `extant_testkit::oracle`, which depends on this one.
#![allow(dead_code)] // each test binary uses its part

use std::path::Path;
use std::process::Command;

use extant_block::device::MemDevice;

/// UUID and hash seed of every image. The places of directories and their splits depend on them.
pub const SEED: &str = "5eed5eed-5eed-45ee-8eed-5eed5eed5eed";

/// Exit status and output.
pub fn run(program: &str, args: &[&str]) -> (i32, String) {
    let out = Command::new(program).args(args).env("LC_ALL", "C").output().unwrap_or_else(|e| panic!("{program}: {e}"));
    let said = [out.stdout, out.stderr].concat();
    (out.status.code().unwrap_or(-1), String::from_utf8_lossy(&said).into_owned())
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("a test's own path is UTF-8")
}

/// Makes an image at `path`; `args` override the seed.
pub fn mke2fs(path: &Path, args: &[&str], size: &str) {
    let seed = format!("hash_seed={SEED}");
    let all = [&["-q", "-F", "-U", SEED, "-E", &seed], args, &[utf8(path), size]].concat();
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
fn on_copy(program: &str, args: &[&str], dev: &MemDevice) -> (i32, String) {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    dev.save(&path).expect("saved");
    run(program, &[args, &[utf8(&path)]].concat())
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
        let (code, said) = run("debugfs", &["-w", "-R", request, utf8(&path)]);
        let known = |line: &str| line.starts_with("debugfs 1.") || line.starts_with("Allocated inode: ");
        assert!(code == 0 && said.lines().all(known), "debugfs -R '{request}': {said}");
    }
    MemDevice::load(&path).expect("loaded")
}
