//! `extant undelete`: files that the kernel deleted are restored unchanged, and no incomplete file is reported as
//! whole.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::common::{Dir, extant, fsck_clean, loop_mounts_work, tool};
use sha2::{Digest, Sha256};

type Sums = BTreeMap<String, [u8; 32]>;

/// The sums of all regular files below a directory, by path.
fn sums(top: &Path) -> Sums {
    let mut found = Sums::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("listed").map(|entry| entry.expect("entry")) {
            let (path, kind) = (entry.path(), entry.file_type().expect("kind"));
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() {
                let name = path.strip_prefix(top).expect("below").to_str().expect("UTF-8").to_owned();
                found.insert(name, Sha256::digest(fs::read(&path).expect("read")).into());
            }
        }
    }
    found
}

/// Bytes that differ from file to file.
fn content(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at + 1).wrapping_mul(seed * 2 + 12_345) >> 7) as u8).collect()
}

/// Makes 300 files in a mount of the kernel's ext4, deletes them, and returns their sums.
fn deleted(dir: &Dir, image: &str, options: &[&str], afterwards: impl FnOnce(&Path)) -> Sums {
    let _ = fs::remove_file(image);
    tool("mke2fs", &[&["-q", "-F", "-t", "ext4"], options, &[image, "128M"]].concat());
    let mount = dir.path("mnt");
    fs::create_dir_all(&mount).expect("directory");
    let text = mount.to_str().expect("UTF-8");
    tool("mount", &["-o", "loop", image, text]);
    let top = mount.join("home");
    for at in 0..300 {
        let below = top.join(format!("user{}", at % 7));
        fs::create_dir_all(&below).expect("directory");
        // The files between them fragment some of these.
        fs::write(below.join(format!("file {at}")), content(at, 1 + at * at * 7 % 90_000)).expect("written");
    }
    tool("sync", &["-f", text]);
    let kept = sums(&top);
    crate::common::umount(&[text]);
    tool("mount", &["-o", "loop", image, text]);
    // A read updates times in the inodes, as in normal use; the next commit contains the whole table.
    for name in kept.keys() {
        tool("touch", &["-a", top.join(name).to_str().expect("UTF-8")]);
    }
    tool("sync", &["-f", text]);
    fs::remove_dir_all(&top).expect("removed");
    tool("sync", &["-f", text]);
    afterwards(&mount);
    crate::common::umount(&[text]);
    kept
}

/// Every file that was copied as whole has the content of its original.
fn compare(found: &Sums, kept: &Sums) -> usize {
    for (name, sum) in found.iter().filter(|(name, _)| !name.ends_with(".partial")) {
        let original = name.strip_prefix("home/").and_then(|name| kept.get(name));
        assert!(original == Some(sum), "{name}: called whole, and is not");
    }
    found.keys().filter(|name| !name.ends_with(".partial")).count()
}

#[test]
fn three_hundred_deleted_files_come_back_whole() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = dir.text("disk.img");
    for options in
        [&["-b", "4096"][..], &["-b", "1024", "-O", "^metadata_csum,^64bit"], &["-b", "4096", "-O", "fast_commit"]]
    {
        let kept = deleted(&dir, &image, options, |_| {});
        let before = fs::read(&image).expect("image");
        let out = dir.path("found");
        let _ = fs::remove_dir_all(&out);
        let said = extant(&["undelete", "-o", out.to_str().expect("UTF-8"), &image]).ok();
        let whole = compare(&sums(&out), &kept);
        println!("{options:?}: {whole} of 300: {said}");
        assert!(whole >= 290, "{options:?}: {whole} whole: {said}");
        let listed = extant(&["undelete", "-l", &image]).ok();
        assert!(listed.contains("home/user0/file 0\n") && listed.contains("whole  "), "{listed}");
        assert!(fs::read(&image).expect("image") == before, "the image has changed");
        fsck_clean(&image);
    }
}

#[test]
fn files_whose_blocks_were_used_again_are_never_called_whole() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let mut partial = 0;
    for round in 0..3 {
        let kept = deleted(&dir, &image, &["-b", "4096"], |mount| {
            // Other files take blocks, and some of them are deleted again.
            for at in 0..40 {
                let path = mount.join(format!("later {at}"));
                fs::write(&path, content(1000 + at, 100_000 * (1 + round))).expect("written");
            }
            tool("sync", &["-f", mount.to_str().expect("UTF-8")]);
            for at in 0..20 {
                fs::remove_file(mount.join(format!("later {at}"))).expect("removed");
            }
        });
        let out = dir.path("found");
        let _ = fs::remove_dir_all(&out);
        let said = extant(&["undelete", "--partial", "-o", out.to_str().expect("UTF-8"), &image]).ok();
        let mut found = sums(&out);
        partial += found.keys().filter(|name| name.ends_with(".partial")).count();
        found.retain(|name, _| name.starts_with("home/"));
        compare(&found, &kept);
        assert!(said.contains(" partial; "), "{said}");
    }
    assert!(partial > 0, "no file lost its blocks: the test shows nothing");
}

#[test]
fn an_empty_answer_is_status_4_and_a_full_directory_is_refused() {
    let dir = Dir::new();
    let image = dir.empty_image("fresh.img", &[]);
    extant(&["undelete", &image]).fails(4, &["no deleted file was found", "photorec"]);
    let plain = dir.empty_image("plain.img", &["-O", "^has_journal"]);
    extant(&["undelete", &plain]).fails(4, &["it has no journal"]);
    fs::create_dir(dir.path("full")).expect("directory");
    fs::write(dir.path("full/file"), "").expect("file");
    extant(&["undelete", "-o", &dir.text("full"), &image]).fails(8, &["not empty"]);
    extant(&["undelete", "--since", "whenever", &image]).fails(1, &["is not a time"]);
}
