//! `extant resize`: images of many kinds grow and keep their files; what cannot grow is left as it is, with the reason.

mod common;

use std::fs;
use std::process::Command;

use common::{Dir, extant, fsck_clean, loop_mounts_work, patch, tool, whole_disk};

/// Ten and more kinds of image, as mke2fs makes them.
const KINDS: [(&str, &[&str]); 14] = [
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext2 2 KiB", &["-t", "ext2", "-b", "2048"]),
    ("ext3", &["-t", "ext3", "-b", "4096"]),
    ("ext4 1 KiB", &["-t", "ext4", "-b", "1024"]),
    ("ext4 4 KiB", &["-t", "ext4", "-b", "4096"]),
    ("without resize_inode", &["-t", "ext4", "-b", "4096", "-O", "^resize_inode"]),
    ("without flex_bg", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]),
    ("without 64bit and checksums", &["-t", "ext4", "-b", "4096", "-O", "^64bit,^metadata_csum"]),
    ("meta_bg", &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    ("bigalloc", &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    ("quota", &["-t", "ext4", "-b", "4096", "-O", "quota"]),
    ("sparse_super2", &["-t", "ext4", "-b", "1024", "-O", "sparse_super2"]),
    ("without a journal", &["-t", "ext4", "-b", "2048", "-O", "^has_journal"]),
    ("a short last group", &["-t", "ext4", "-b", "1024", "-g", "4096", "-N", "2000"]),
];

/// An image of 64 MiB with some files.
fn made(dir: &Dir, args: &[&str]) -> String {
    let image = dir.text("disk.img");
    let _ = fs::remove_file(&image);
    tool("mke2fs", &[&["-q", "-F"], args, &[&image, "65000K"]].concat());
    let tree = if dir.path("src").exists() { dir.text("src") } else { dir.tree() };
    extant(&["cp", "-r", &tree, &format!("{image}:/tree")]).ok();
    image
}

fn exported(image: &str) -> Vec<u8> {
    let ran = extant(&["export", image]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran.out
}

/// The number in a line of `dumpe2fs -h`.
fn number(image: &str, key: &str) -> u64 {
    let said = tool("dumpe2fs", &["-h", image]);
    let line = said.lines().find_map(|line| line.strip_prefix(key)).expect("a line");
    line.trim_start_matches(':').trim().parse().expect("a number")
}

/// Whether this kernel mounts the image for writing: one without quota takes an image with quota files read-only.
fn kernel_mounts(dir: &Dir, image: &str) -> bool {
    let mount = dir.text("mnt");
    fs::create_dir_all(&mount).expect("directory");
    let mounted = Command::new("mount").args(["-o", "loop", image, &mount]).output().expect("mount runs");
    if mounted.status.success() {
        common::umount(&[&mount]);
    }
    mounted.status.success()
}

fn kernel_takes(dir: &Dir, image: &str) {
    let mount = dir.text("mnt");
    fs::create_dir_all(&mount).expect("directory");
    tool("mount", &["-o", "loop", image, &mount]);
    fs::write(format!("{mount}/big"), vec![7; 8 << 20]).expect("written");
    common::umount(&[&mount]);
    fsck_clean(image);
}

#[test]
fn images_of_all_kinds_grow_and_keep_their_files() {
    let dir = Dir::new();
    let grown = dir.text("grown.img");
    for (kind, args) in KINDS {
        let image = match kind {
            // Extant does not write into these.
            "bigalloc" | "quota" => {
                let image = dir.text("disk.img");
                let _ = fs::remove_file(&image);
                tool("mke2fs", &[&["-q", "-F"], args, &[&image, "65000K"]].concat());
                image
            }
            _ => made(&dir, args),
        };
        let files = exported(&image);
        let mounts = loop_mounts_work() && kernel_mounts(&dir, &image);
        assert!(mounts || !loop_mounts_work() || kind == "quota", "{kind}: the kernel refuses the image of mke2fs");
        let (block, blocks) = (number(&image, "Block size"), number(&image, "Block count"));
        let group = block * number(&image, "Blocks per group");
        for size in [format!("+{block}"), format!("+{group}"), "8G".to_owned()] {
            fs::copy(&image, &grown).expect("copied");
            let said = extant(&["resize", &grown, &size]).ok();
            fsck_clean(&grown);
            assert!(exported(&grown) == files, "{kind}, {size}: other files");
            let (now, bytes) = (number(&grown, "Block count"), fs::metadata(&grown).expect("image").len());
            assert!(now > blocks || said.contains("nothing to do"), "{kind}, {size}: {said}");
            assert!(now * block <= bytes, "{kind}, {size}: {now} blocks, {bytes} bytes");
            assert!(!dir.path("grown.img.undo").exists(), "{kind}, {size}");
            if size == "8G" {
                assert_eq!(now * block, 8 << 30, "{kind}");
            }
            if mounts {
                kernel_takes(&dir, &grown);
            }
        }
    }
}

#[test]
fn images_of_all_kinds_shrink_and_keep_their_files() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    fs::write(dir.path("big"), common::big()).expect("file");
    fs::write(dir.path("filler"), vec![1; 40 << 20]).expect("file");
    let mut shrunk = 0;
    for (kind, args) in KINDS {
        if ["bigalloc", "quota"].contains(&kind) {
            continue;
        }
        let _ = fs::remove_file(&image);
        tool("mke2fs", &[&["-q", "-F"], args, &[&image, "120M"]].concat());
        // Files behind the filler lie behind the new end.
        let at = |path: &str| format!("{image}:{path}");
        let change = |args: &[&str]| {
            // Without room for a journal, it says so.
            let ran = extant(args);
            assert_eq!(ran.code, Some(0), "{kind}: {}", ran.err);
        };
        change(&["cp", &dir.text("filler"), &at("/one")]);
        change(&["cp", &dir.text("filler"), &at("/two")]);
        for number in 0..8 {
            change(&["cp", &dir.text("big"), &at(&format!("/file{number}"))]);
        }
        change(&["rm", &at("/one"), &at("/two")]);
        let (files, block) = (exported(&image), number(&image, "Block size"));
        let ran = extant(&["resize", &image, "60M"]);
        assert_eq!(ran.code, Some(0), "{kind}: {}", ran.err);
        fsck_clean(&image);
        assert!(exported(&image) == files, "{kind}: other files");
        let now = number(&image, "Block count") * block;
        assert!(now <= 60 << 20 && now > 50 << 20, "{kind}: {now}");
        assert_eq!(fs::metadata(&image).expect("image").len(), now, "{kind}");
        assert!(!dir.path("disk.img.undo").exists(), "{kind}");
        if loop_mounts_work() {
            kernel_takes(&dir, &image);
        }
        extant(&["resize", &image, "100M"]).ok();
        fsck_clean(&image);
        shrunk += 1;
    }
    assert_eq!(shrunk, KINDS.len() - 2);
}

#[test]
fn a_refused_shrink_leaves_the_image_and_names_the_reason() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^flex_bg", &image, "64M"]);
    fs::write(dir.path("filler"), vec![1; 30 << 20]).expect("file");
    extant(&["cp", &dir.text("filler"), &format!("{image}:/one")]).ok();
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "30M"]).fails(1, &["not shrunk", "do not fit", "extant mkfs --from image:"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
    // The kernel and Extant put directories of the root into different groups.
    for at in 0..16 {
        extant(&["mkdir", &format!("{image}:/dir{at}")]).ok();
    }
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "50M"])
        .fails(1, &["not shrunk: inode ", "its group would go", "extant mkfs --from image:"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}

#[test]
fn resize2fs_grows_it_further() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    extant(&["resize", &image, "300M"]).ok();
    fs::File::options().write(true).open(&image).expect("image").set_len(700 << 20).expect("longer");
    tool("resize2fs", &["-f", &image]);
    fsck_clean(&image);
    let said = extant(&["resize", &image, "+200M"]).ok();
    assert!(said.contains("900 MiB"), "{said}");
    fsck_clean(&image);
    fs::File::options().write(true).open(&image).expect("image").set_len(1 << 30).expect("longer");
    extant(&["resize", &image, "max"]).ok();
    fsck_clean(&image);
    let said = extant(&["resize", &image, "max"]).ok();
    assert!(said.contains("nothing to do"), "{said}");
}

#[test]
fn a_file_system_grows_to_the_end_of_its_partition() {
    let dir = Dir::new();
    let small = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let (room, disk) = (dir.text("room.img"), dir.text("whole.img"));
    fs::copy(&small, &room).expect("copied");
    fs::File::options().write(true).open(&room).expect("image").set_len(100 << 20).expect("longer");
    whole_disk(&disk, &room);
    let bytes = fs::metadata(&disk).expect("disk").len();
    let disk = format!("{disk}@2");
    let files = exported(&disk);
    extant(&["resize", &disk, "200M"]).fails(1, &["not grown", "the partition has", "give max"]);
    let said = extant(&["resize", &disk, "max"]).ok();
    assert!(said.contains("100 MiB"), "{said}");
    assert_eq!(fs::metadata(dir.text("whole.img")).expect("disk").len(), bytes);
    assert!(exported(&disk) == files);
    extant(&["fsck", "-fn", &disk]).ok();
}

#[test]
fn an_image_that_cannot_grow_is_left_as_it_is_with_the_reason() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024", "-O", "^resize_inode"]);
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "2M"]).fails(1, &["disk.img: not shrunk", "extant mkfs --from image:"]);
    extant(&["resize", &image, "8G"]).fails(1, &["descriptors have no room for more", "extant mkfs --from image:"]);
    extant(&["resize", &image, "min"]).fails(1, &["give a size", "--size auto"]);
    extant(&["resize", &image, "much"]).fails(1, &["'much' is not a size"]);
    extant(&["resize", &dir.text("none.img"), "1G"]).fails(1, &["none.img"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
    let said = tool("dumpe2fs", &[&image]);
    let (_, place) = said.split_once("Block bitmap at ").expect("a bitmap");
    let block: u64 = place.split_once(' ').expect("a number").0.parse().expect("a number");
    patch(&image, block * 1024, &[0; 64]);
    let before = fs::read(&image).expect("image");
    extant(&["resize", &image, "+8M"]).fails(1, &["it is damaged", "extant fsck -fn"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}

#[test]
fn an_image_in_use_does_not_grow() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let (mount, bytes) = (dir.text("mnt"), fs::metadata(&image).expect("image").len());
    fs::create_dir_all(&mount).expect("directory");
    tool("mount", &["-o", "loop", &image, &mount]);
    let ran = extant(&["resize", &image, "+8M"]);
    common::umount(&[&mount]);
    ran.fails(1, &["disk.img"]);
    assert_eq!(fs::metadata(&image).expect("image").len(), bytes);
}

#[test]
fn the_old_blocks_undo_a_growth() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "4096"]);
    let (before, record) = (fs::read(&image).expect("image"), dir.text("old.e2undo"));
    let said = extant(&["resize", "-z", &record, &image, "1G"]).ok();
    assert!(said.contains("--undo") && said.contains("1 GiB"), "{said}");
    fsck_clean(&image);
    extant(&["fsck", "--undo", &record, &image]).ok();
    assert!(fs::read(&image).expect("image").starts_with(&before), "not the old blocks");
    fsck_clean(&image);
}

#[test]
fn a_full_or_short_host_leaves_the_old_file() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "4096"]);
    let before = fs::read(&image).expect("image");
    let limited = format!("ulimit -f 100000; exec '{}' resize '{image}' 2G", common::extant_path().display());
    let ran = Command::new("bash").args(["-c", &limited]).output().expect("bash runs");
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("disk.img: "), "{said}");
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}
