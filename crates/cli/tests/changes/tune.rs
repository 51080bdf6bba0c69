//! `extant tune`: the same superblock as from tune2fs, images that stay valid, and refusals with the reason.

use std::fs;
use std::os::unix::fs::symlink;

use extant_testkit::tests_of_cases;

use crate::common::{Dir, extant, extant_path, fsck_clean, loop_mounts_work, patch, run, tool};

/// An image of 32 MiB with files, a directory of many names, and attributes.
fn made(dir: &Dir, args: &[&str]) -> String {
    let image = dir.text("disk.img");
    let _ = fs::remove_file(&image);
    tool("mke2fs", &[&["-q", "-F"], args, &[&image, "32M"]].concat());
    let tree = if dir.path("src").exists() { dir.text("src") } else { dir.tree() };
    for at in 0..300 {
        let many = dir.path("src").join("many");
        fs::create_dir_all(&many).expect("directory");
        fs::write(many.join(format!("a name that fills its directory {at}")), "x").expect("file");
    }
    extant(&["cp", "-r", &tree, &format!("{image}:/tree")]).ok();
    image
}

fn exported(image: &str) -> Vec<u8> {
    let ran = extant(&["export", image]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran.out
}

/// `dumpe2fs -h` without values that depend on the time, or on the blocks that an implementation chooses.
fn header(image: &str) -> Vec<String> {
    let said = tool("dumpe2fs", &["-h", image]);
    let moving =
        ["Last write time", "Checksum:", "Lifetime writes", "Journal checksum", "Journal sequence", "Journal start"];
    let kept = said.lines().filter(|line| !moving.iter().any(|start| line.starts_with(start)));
    kept.map(str::to_owned).collect()
}

fn kernel_takes(dir: &Dir, image: &str) {
    if !loop_mounts_work() {
        return;
    }
    let mount = dir.text("mnt");
    fs::create_dir_all(&mount).expect("directory");
    tool("mount", &["-o", "loop", image, &mount]);
    fs::write(format!("{mount}/more"), vec![7; 1 << 20]).expect("written");
    let names = fs::read_dir(format!("{mount}/tree/many")).expect("listed").count();
    crate::common::umount(&[&mount]);
    assert_eq!(names, 300);
    fsck_clean(image);
}

#[test]
fn letters_give_the_superblock_that_tune2fs_gives() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let (ours, theirs) = (dir.text("ours.img"), dir.text("theirs.img"));
    let files = exported(&image);
    let uuid = "01234567-89ab-cdef-0123-456789abcdef";
    let letters: [&[&str]; 18] = [
        &["-L", "a label"],
        &["-L", ""],
        &["-U", uuid],
        &["-U", "clear"],
        &["-m", "0"],
        &["-m", "7.5"],
        &["-r", "1000"],
        &["-e", "remount-ro"],
        &["-o", "journal_data,^acl"],
        &["-o", "^user_xattr,discard"],
        &["-c", "30"],
        &["-C", "3"],
        &["-i", "2w"],
        &["-u", "7", "-g", "8"],
        &["-M", "/mnt/elsewhere"],
        &["-E", "stride=16,stripe_width=64,hash_alg=tea,test_fs"],
        &["-E", "mount_opts=noatime", "-e", "panic"],
        &["-O", "metadata_csum_seed", "-U", uuid],
    ];
    for args in letters {
        fs::copy(&image, &ours).expect("copied");
        fs::copy(&image, &theirs).expect("copied");
        tool("tune2fs", &[args, &[&theirs]].concat());
        extant(&[&["tune"], args, &[&ours]].concat()).ok();
        assert_eq!(header(&ours), header(&theirs), "{args:?}");
        fsck_clean(&ours);
        assert!(exported(&ours) == files, "{args:?}: other files");
        assert!(!dir.path("ours.img.undo").exists(), "{args:?}");
    }
    kernel_takes(&dir, &ours);
}

/// Kinds of images, and features to add and remove.
const KINDS: [(&str, &[&str]); 5] = [
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext3", &["-t", "ext3", "-b", "4096"]),
    ("ext4", &["-t", "ext4", "-b", "1024", "-O", "metadata_csum,64bit"]),
    ("ext4 4 KiB", &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,uninit_bg"]),
    ("flex", &["-t", "ext4", "-b", "1024", "-g", "4096", "-O", "^resize_inode,metadata_csum"]),
];

/// On every third kind.
fn features_come_and_go(part: usize) {
    let dir = Dir::new();
    let ours = dir.text("ours.img");
    let steps = [
        "^has_journal",
        "has_journal",
        "^dir_index",
        "dir_index",
        "metadata_csum",
        "^metadata_csum",
        "^uninit_bg",
        "uninit_bg",
        "^filetype",
        "filetype",
        "^resize_inode",
        "mmp",
        "^mmp",
        "metadata_csum,metadata_csum_seed",
        "^metadata_csum_seed",
        "has_journal,orphan_file",
        "^orphan_file",
        "^orphan_file,^has_journal,^metadata_csum",
        "large_dir,huge_file,dir_nlink,extra_isize,large_file",
        "^large_file,^dir_nlink",
    ];
    for (kind, args) in KINDS.into_iter().skip(part).step_by(3) {
        let image = made(&dir, args);
        let files = exported(&image);
        fs::copy(&image, &ours).expect("copied");
        for step in steps {
            // The inodes of ext2 and ext3 have 256 bytes, without room for some features; refusals change nothing.
            let before = fs::read(&ours).expect("image");
            let ran = extant(&["tune", "-O", step, &ours]);
            if ran.code != Some(0) {
                assert_eq!(ran.code, Some(1), "{kind}: {step}: {}", ran.err);
                assert!(fs::read(&ours).expect("image") == before, "{kind}: {step}: changed, and refused: {}", ran.err);
                assert!(
                    ran.err.contains("cannot be") || ran.err.contains("would leave damage"),
                    "{kind}: {step}: {}",
                    ran.err
                );
                continue;
            }
            fsck_clean(&ours);
            assert!(exported(&ours) == files, "{kind}: {step}: other files");
            let names = tool("dumpe2fs", &["-h", &ours]);
            let line = names.lines().find(|line| line.starts_with("Filesystem features:")).expect("features");
            let has = |name: &str| line.split_whitespace().any(|word| word == name);
            for word in step.split(',') {
                let gone = word.strip_prefix('^');
                assert_eq!(has(gone.unwrap_or(word)), gone.is_none(), "{kind}: {step}: {line}");
            }
        }
        kernel_takes(&dir, &ours);
    }
}

tests_of_cases!(
    features_come_and_go_and_the_kernel_takes_the_image,
    features_come_and_go,
    first_third: 0,
    second_third: 1,
    last_third: 2,
);

#[test]
fn a_uuid_rewrites_every_checksum() {
    let dir = Dir::new();
    for (kind, args) in KINDS {
        let image = made(&dir, args);
        let files = exported(&image);
        extant(&["tune", "-U", "random", &image]).ok();
        fsck_clean(&image);
        assert!(exported(&image) == files, "{kind}: other files");
        kernel_takes(&dir, &image);
    }
}

#[test]
fn the_list_is_that_of_tune2fs() {
    let dir = Dir::new();
    for (kind, args) in KINDS {
        let image = made(&dir, args);
        tool("tune2fs", &["-L", "name", "-i", "3m", "-e", "panic", "-E", "stride=4", &image]);
        let theirs = tool("tune2fs", &["-l", &image]);
        let ours = extant(&["tune", "-l", &image]).ok();
        let trim = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
        assert_eq!(trim(&ours), trim(&theirs)[1..], "{kind}");
    }
}

#[test]
fn tune2fs_and_e2label_are_names_of_the_command() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4"]);
    for name in ["tune2fs", "e2label"] {
        symlink(extant_path(), dir.path(name)).expect("link");
    }
    let (tune2fs, e2label) = (dir.path("tune2fs"), dir.path("e2label"));
    run(&tune2fs, &["-c", "-1", "-i", "0", "-L", "first", &image]).ok();
    assert_eq!(run(&e2label, &[&image]).ok(), "first\n");
    run(&e2label, &[&image, "second"]).ok();
    assert!(run(&tune2fs, &["-l", &image]).ok().contains("Filesystem volume name:   second\n"));
    run(&e2label, &[&image, "seventeen letters"]).fails(1, &["the label has 17 bytes"]);
    fsck_clean(&image);
}

#[test]
fn a_refused_change_leaves_the_image_and_names_the_reason() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4", "-b", "1024"]);
    let before = fs::read(&image).expect("image");
    let mkfs = "extant mkfs --from image:";
    extant(&["tune", "-O", "^64bit", &image]).fails(1, &["feature 64bit cannot be removed", mkfs]);
    extant(&["tune", "-O", "bigalloc", &image]).fails(1, &["feature bigalloc cannot be added", mkfs]);
    extant(&["tune", "-O", "no_such", &image]).fails(1, &["-O no_such: no such feature"]);
    extant(&["tune", "-I", "512", &image]).fails(1, &["inodes keep their size", "-I BYTES NEW"]);
    extant(&["tune", "-m", "51", &image]).fails(1, &["0 to 50 percent"]);
    extant(&["tune", "-U", "short", &image]).fails(1, &["-U short: it takes a UUID"]);
    extant(&["tune", "-e", "explode", &image]).fails(1, &["continue, remount-ro or panic"]);
    extant(&["tune", &image]).fails(1, &["nothing to change"]);
    extant(&["tune", "-L", "x", &dir.text("none.img")]).fails(1, &["none.img"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
    if loop_mounts_work() {
        let mount = dir.text("mnt");
        fs::create_dir_all(&mount).expect("directory");
        tool("mount", &["-o", "loop", &image, &mount]);
        let ran = extant(&["tune", "-L", "x", &image]);
        crate::common::umount(&[&mount]);
        ran.fails(1, &["disk.img"]);
    }
    let said = tool("dumpe2fs", &[&image]);
    let (_, place) = said.split_once("Block bitmap at ").expect("a bitmap");
    let block: u64 = place.split_once(' ').expect("a number").0.parse().expect("a number");
    patch(&image, block * 1024, &[0; 64]);
    let before = fs::read(&image).expect("image");
    extant(&["tune", "-L", "x", &image]).fails(1, &["it is damaged", "extant fsck -fn"]);
    assert!(fs::read(&image).expect("image") == before, "the image has changed");
}

#[test]
fn the_old_blocks_undo_a_change() {
    let dir = Dir::new();
    let image = made(&dir, &["-t", "ext4"]);
    let (before, record) = (fs::read(&image).expect("image"), dir.text("old.e2undo"));
    let said = extant(&["tune", "-z", &record, "-U", "random", &image]).ok();
    assert!(said.contains("--undo"), "{said}");
    extant(&["fsck", "--undo", &record, &image]).ok();
    assert!(fs::read(&image).expect("image") == before, "not the old blocks");
}
