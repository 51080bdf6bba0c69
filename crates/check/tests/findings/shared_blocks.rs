//! Images with the feature shared_blocks (system images of Android): files share data, and nothing else is shared.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_check::{Options, check};
use extant_testkit::oracle::{debugfs, debugfs_write, e2fsck, mke2fs};

/// Two files with the same ten blocks, and the first of them.
fn image(path: &Path) -> u64 {
    let content = path.with_extension("content");
    std::fs::write(&content, vec![7; 40_000]).expect("written");
    let features = "^has_journal,^metadata_csum,^64bit,^resize_inode,^extent";
    mke2fs(path, &["-t", "ext4", "-b", "4096", "-O", features], "16M");
    let from = content.display();
    debugfs_write(path, &format!("write {from} a\nwrite {from} b\nmkdir d")).expect("files");
    let block = |name: &str, at: u32| -> u64 {
        debugfs(path, format!("bmap {name} {at}")).expect("a block").trim().parse().expect("a number")
    };
    let free = |what: &str| -> u64 {
        let stats = debugfs(path, "stats").expect("stats");
        let line = stats.lines().find(|line| line.trim_start().to_lowercase().starts_with(what)).expect("a line");
        line.split(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty()).expect("a number").parse().expect("one")
    };
    let (mut requests, first) = (String::new(), block("a", 0));
    for at in 0..10 {
        let _ = writeln!(requests, "freeb {}\nsif b block[{at}] {}", block("b", at), block("a", at));
    }
    let count = free("free blocks:") + 10;
    let _ =
        write!(requests, "ssv free_blocks_count {count}\nset_bg 0 free_blocks_count {count}\nfeature shared_blocks");
    debugfs_write(path, &requests).expect("shared");
    first
}

/// The number of findings of e2fsck's name, and whether there is any damage.
fn checked(path: &Path, name: &str) -> (usize, bool) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::load(path).expect("loaded"));
    let report = check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() }).expect("checked");
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    (report.findings.iter().filter(|finding| finding.problem.name() == name).count(), report.is_damaged())
}

#[test]
fn data_that_files_share_is_no_damage() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk.img");
    image(&path);
    let theirs = e2fsck(&path, &["-fn"]).expect("e2fsck");
    assert_eq!(theirs.code, 0, "{}", theirs.output);
    assert_eq!(checked(&path, "DUP_BLOCK"), (0, false));
}

/// A directory's block and a block of pointers are not data; e2fsck says nothing of the second.
#[test]
fn a_directory_that_shares_a_block_with_a_file_is_damage() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("disk.img");
    let first = image(&path);
    debugfs_write(&path, &format!("sif d block[0] {first}")).expect("edited");
    // Both files and the directory own it.
    assert_eq!(checked(&path, "DUP_BLOCK"), (3, true));
    image(&path);
    debugfs_write(&path, &format!("sif b block[IND] {first}")).expect("edited");
    assert_eq!(checked(&path, "DUP_BLOCK"), (3, true));
}
