//! Small images that claim to hold very much: memory is bounded, and so is time (a minute, by [`wait_until`]).

mod common;

use std::process::{Command, Stdio};

use common::{Dir, debugfs, extant_path, patch, tool, wait_until};

/// Whatever an image says, a command takes no more than this beside its cache of 256 MiB.
const BESIDE_CACHE_KIB: u64 = 64 << 10;
const CACHE_KIB: u64 = 256 << 10;

/// Runs `extant` to its end: the status, what it said, and the largest memory that it had, in KiB.
fn measured(args: &[&str]) -> (Option<i32>, String, u64) {
    let mut child = Command::new(extant_path())
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    wait_until("the command", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        peak = line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0).max(peak);
        child.try_wait().expect("status").is_some()
    });
    let done = child.wait_with_output().expect("ended");
    (done.status.code(), String::from_utf8_lossy(&done.stderr).into_owned(), peak)
}

/// A directory of 1 GiB in an image of 16 MiB: every pointer leads to one block of pointers, or to one block of names.
fn directory_of_one_block(dir: &Dir) -> String {
    let image = dir.text("bomb.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", "-O", "^dir_index,^resize_inode", &image, "16M"]);
    let (tree, blocks) = (dir.path("d"), dir.text("blocks"));
    std::fs::create_dir(&tree).expect("directory");
    for i in 0..60 {
        std::fs::write(tree.join(format!("{i:02}")), "").expect("file");
    }
    common::extant(&["cp", "-r", tree.to_str().expect("UTF-8"), &format!("{image}:/")]).ok();
    // Three blocks for pointers, one behind the other.
    std::fs::write(&blocks, vec![7; 3 << 10]).expect("file");
    common::extant(&["cp", &blocks, &format!("{image}:/")]).ok();
    let number = |name: &str, lblk: u32| -> u64 {
        debugfs(&image, &format!("bmap {name} {lblk}")).trim().parse().expect("a block")
    };
    let names = number("/d", 0);
    let pointers: Vec<u64> = (0..3).map(|lblk| number("/blocks", lblk)).collect();
    for (block, below) in pointers.iter().zip([names, pointers[0], pointers[1]]) {
        patch(&image, block << 10, &(below as u32).to_le_bytes().repeat(256));
    }
    let direct = (0..12).map(|i| format!("block[{i}] {names}"));
    let indirect = ["IND", "DIND", "TIND"].iter().zip(&pointers).map(|(name, block)| format!("block[{name}] {block}"));
    for field in direct.chain(indirect).chain(["size 1073741824".into(), "blocks 0x7fffffff".into()]) {
        tool("debugfs", &["-w", "-R", &format!("set_inode_field /d {field}"), &image]);
    }
    image
}

#[test]
fn listing_a_directory_that_repeats_one_block_takes_bounded_memory() {
    let dir = Dir::new();
    let image = directory_of_one_block(&dir);
    let (out, at) = (dir.text("out"), format!("{image}:/d"));
    for args in
        [&["ls", &image, "/d"][..], &["tree", &image, "/d"], &["find", &at], &["du", &at], &["cp", "-r", &at, &out]]
    {
        let (code, said, peak) = measured(args);
        assert_eq!(code, Some(8), "{args:?}: {said}");
        assert!(said.contains("entries with 60 names"), "{args:?}: {said}");
        assert!(peak > 0 && peak < BESIDE_CACHE_KIB + CACHE_KIB, "{args:?}: {peak} KiB");
    }
}
