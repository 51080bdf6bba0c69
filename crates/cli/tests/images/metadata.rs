//! `extant image`: a copy of the metadata that checkers accept, without content, and without names on request.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::common::{Dir, debugfs, extant, fsck_clean, tool};

const SECRET: &[u8] = b"the content of a file that nobody may see";

fn made(dir: &Dir, kind: &[&str]) -> String {
    let image = dir.text("disk.img");
    let _ = fs::remove_file(&image);
    tool("mke2fs", &[&["-q", "-F"], kind, &[&image, "48M"]].concat());
    let tree = if dir.path("src").exists() { dir.text("src") } else { dir.tree() };
    let many = dir.path("src").join("many");
    fs::create_dir_all(&many).expect("directory");
    for at in 0..400 {
        fs::write(many.join(format!("a secret name of some length {at}")), SECRET).expect("file");
    }
    fs::write(dir.path("src").join("large"), vec![0x5a; 8 << 20]).expect("file");
    extant(&["cp", "-r", &tree, &format!("{image}:/tree")]).ok();
    image
}

fn has(file: &str, needle: &[u8]) -> bool {
    fs::read(file).expect("copy").windows(needle.len()).any(|window| window == needle)
}

#[test]
fn copies_are_sound_small_and_without_content() {
    let dir = Dir::new();
    let kinds: [&[&str]; 4] =
        [&["-t", "ext4"], &["-t", "ext4", "-b", "1024"], &["-t", "ext3", "-b", "4096"], &["-t", "ext2"]];
    for kind in kinds {
        let image = made(&dir, kind);
        let copy = dir.text("copy.img");
        let _ = fs::remove_file(&copy);
        extant(&["image", "-r", &image, &copy]).ok();
        fsck_clean(&copy);
        extant(&["fsck", "-fn", &copy]).ok();
        assert!(!has(&copy, SECRET), "{kind:?}: content");
        assert!(!has(&copy, &[0x5a; 4096]), "{kind:?}: content");
        assert!(has(&copy, b"a secret name of some length 7"), "{kind:?}");
        let (own, all) = (fs::metadata(&copy).expect("copy"), fs::metadata(&image).expect("image"));
        assert_eq!(own.len(), all.len(), "{kind:?}");
        assert!(own.blocks() < all.blocks(), "{kind:?}");
        assert_eq!(debugfs(&copy, "stat /tree/large"), debugfs(&image, "stat /tree/large"));
        extant(&["image", "-r", &image, &copy]).fails(8, &["copy.img", "exists"]);
    }
}

#[test]
fn scrambled_copies_have_no_names() {
    let dir = Dir::new();
    for kind in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext3", "-b", "4096"]] {
        let image = made(&dir, kind);
        let copy = dir.text("copy.img");
        let _ = fs::remove_file(&copy);
        extant(&["image", "-rs", &image, &copy]).ok();
        fsck_clean(&copy);
        extant(&["fsck", "-fn", &copy]).ok();
        assert!(!has(&copy, b"secret name"), "{kind:?}: a name");
        assert!(!has(&copy, SECRET), "{kind:?}: content");
        let count = |image: &str| extant(&["find", image, "-print0"]).out.split(|byte| *byte == 0).count();
        assert_eq!(count(&copy), count(&image), "{kind:?}");
        assert!(extant(&["ls", &copy]).ok().contains("lost+found"), "{kind:?}");
    }
}

#[test]
fn qcow2_copies_are_those_that_qemu_reads() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4"]);
    let (raw, qcow, back) = (dir.text("copy.img"), dir.text("copy.qcow2"), dir.text("back.img"));
    extant(&["image", "-r", &image, &raw]).ok();
    extant(&["image", "-Q", &image, &qcow]).ok();
    assert!(fs::read(&qcow).expect("copy").starts_with(b"QFI\xfb\0\0\0\x02"));
    if std::process::Command::new("qemu-img").arg("--version").output().is_err() {
        return;
    }
    tool("qemu-img", &["check", &qcow]);
    tool("qemu-img", &["convert", "-O", "raw", &qcow, &back]);
    assert!(fs::read(&raw).expect("copy") == fs::read(&back).expect("copy"), "other bytes");
}
