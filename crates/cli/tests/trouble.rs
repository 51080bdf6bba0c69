//! Exit statuses and messages for images that cannot be used.

mod common;

use std::os::unix::fs::FileExt;

use common::{Dir, extant, loop_mounts_work, patch, tool, whole_disk};
use extant_block::device::{Engine, FileDevice, OpenOptions};

/// Every tool that reads says the same, with status 8; a mount with 32.
#[track_caller]
fn all_fail(dir: &Dir, image: &str, words: &[&str]) {
    for args in [&["ls", image][..], &["cat", image, "/x"], &["stat", image, "/x"], &["tree", image], &["info", image]]
    {
        extant(args).fails(8, words);
    }
    extant(&["cp", &format!("{image}:/x"), &dir.text("out")]).fails(8, words);
    let mnt = dir.path("mnt");
    let _ = std::fs::create_dir(&mnt);
    extant(&["mount", image, mnt.to_str().expect("UTF-8")]).fails(32, words);
}

#[test]
fn not_an_image() {
    let dir = Dir::new();
    let file = dir.text("zeroes.img");
    std::fs::write(&file, vec![0; 1 << 20]).expect("file");
    all_fail(&dir, &file, &["extant: ", "zeroes.img: no ext2/3/4 file system"]);
    std::fs::write(&file, "text").expect("file");
    all_fail(&dir, &file, &["zeroes.img: no ext2/3/4 file system"]);
    std::fs::write(&file, "").expect("file");
    all_fail(&dir, &file, &["zeroes.img: no ext2/3/4 file system"]);
    let missing = dir.text("missing.img");
    all_fail(&dir, &missing, &["missing.img: No such file or directory"]);
    let directory = dir.text("a.dir");
    std::fs::create_dir(&directory).expect("directory");
    all_fail(&dir, &directory, &["a.dir: neither a file nor a block device"]);
}

#[test]
fn truncated() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    std::fs::File::options().write(true).open(&image).expect("open").set_len(20 << 20).expect("cut");
    for args in [&["ls", &image][..], &["cat", &image, "/x"], &["stat", &image, "/"], &["tree", &image]] {
        extant(args).fails(8, &["disk.img: ", "device"]);
    }
    // Its superblock can be looked at.
    assert_eq!(extant(&["info", &image]).code, Some(0));
}

#[test]
fn damaged_superblock() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    patch(&image, 1024 + 120, b"x");
    let info = extant(&["info", &image]);
    assert!(String::from_utf8_lossy(&info.out).contains("the primary is damaged"), "{info:?}");
    // Reading goes on with a backup; writing does not.
    let ls = extant(&["ls", &image]);
    assert_eq!(ls.code, Some(0), "{}", ls.err);
    assert!(ls.err.contains("using the backup superblock"), "{}", ls.err);
    let file = dir.text("src/empty");
    extant(&["cp", &file, &format!("{image}:/x")]).fails(8, &["disk.img: superblock at byte 1024: checksum", "backup"]);
}

#[test]
fn unknown_features() {
    let dir = Dir::new();
    // Without checksums, so that a bit can just be set.
    let image = dir.image("ext4", &["-O", "^metadata_csum"]);
    // s_feature_incompat, s_feature_ro_compat.
    let set = |at: u64, bit: u32| {
        let file = std::fs::File::options().read(true).write(true).open(&image).expect("open");
        let mut word = [0; 4];
        file.read_exact_at(&mut word, 1024 + at).expect("read");
        patch(&image, 1024 + at, &(u32::from_le_bytes(word) | bit).to_le_bytes());
        word
    };
    let before = set(0x60, 1 << 21);
    all_fail(&dir, &image, &["disk.img: unsupported: feature FEATURE_I21"]);
    patch(&image, 1024 + 0x60, &before);
    let before = set(0x60, 0x1_0000);
    extant(&["ls", &image]).fails(8, &["disk.img: unsupported: feature encrypt"]);
    let info = extant(&["info", &image]).ok();
    assert!(info.contains("Extant:      none (unsupported: feature encrypt)"), "{info}");
    patch(&image, 1024 + 0x60, &before);

    set(0x64, 1 << 28);
    assert_eq!(extant(&["ls", &image]).code, Some(0));
    let source = dir.text("src/empty");
    let refused = ["disk.img: cannot be mounted for writing because of: FEATURE_R28"];
    extant(&["cp", &source, &format!("{image}:/x")]).fails(8, &refused);
    extant(&["mount", &image, &dir.text("mnt")]).fails(32, &refused);
}

#[test]
fn in_use() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let device = |read_only| {
        let options = OpenOptions { read_only, engine: Engine::Psync, ..OpenOptions::default() };
        FileDevice::open(&image, options).expect("opened")
    };
    let lock = device(false);
    let me = format!("disk.img: in use: process {} (", std::process::id());
    // A process that has it for writing, and is not about to end.
    all_fail(&dir, &image, &[&me]);
    drop(lock);
    // Readers do not mind readers.
    let _lock = device(true);
    assert_eq!(extant(&["ls", &image]).code, Some(0));
    extant(&["cp", &dir.text("src/empty"), &format!("{image}:/x")]).fails(8, &[&me]);
}

#[test]
fn mounted_by_the_kernel() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let dir = Dir::new();
    let (image, kernel) = (dir.image("ext4", &[]), dir.text("kernel"));
    std::fs::create_dir(&kernel).expect("directory");
    tool("mount", &["-o", "loop,ro", &image, &kernel]);
    let tried = std::panic::catch_unwind(|| {
        all_fail(&dir, &image, &["disk.img: in use: mounted by the kernel through /dev/loop", &kernel]);
    });
    tool("umount", &[&kernel]);
    tried.unwrap();
}

#[test]
fn bad_mount_options() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = dir.text("mnt");
    std::fs::create_dir(&mnt).expect("directory");
    let try_options = |options: &str| extant(&["mount", "-o", options, &image, &mnt]);
    try_options("ro,frobnicate").fails(1, &["unknown mount option 'frobnicate'; 'extant help mount' lists them"]);
    try_options("cache=lots").fails(1, &["mount option 'cache=lots': 'lots' is not a size"]);
    try_options("data=journal").fails(1, &["'journal' is none of ordered, writeback"]);
    try_options("mb_policy=best").fails(1, &["'best' is none of vanilla, "]);
    try_options("offset=1M,partition=1").fails(1, &["exclude each other"]);
    try_options("offset=1G").fails(32, &["disk.img: offset 1073741824 is past the end"]);
    try_options("offset=1M").fails(32, &["no ext2/3/4 file system"]);
    try_options("partition=1").fails(32, &["no partition table"]);
    extant(&["mount", &image]).fails(1, &["DIR"]);
    extant(&["mount", &image, &dir.text("none")]).fails(32, &["none", "not a usable mount point"]);
    extant(&["mount", &image, &image]).fails(32, &["not a usable mount point"]);
    // A failed mount leaves nothing to recover.
    common::fsck_clean(&image);
    let disk = dir.text("whole.img");
    whole_disk(&disk, &image);
    extant(&["mount", &disk, &mnt]).fails(32, &["whole.img: a whole disk", "-o partition=N", "   5 "]);
    extant(&["unmount", &mnt]).fails(32, &["mnt: not mounted"]);
    extant(&["unmount", "/proc"]).fails(32, &["/proc: mounted, but not by extant (type proc)"]);
}

/// As mount(8) calls it.
#[test]
fn mount_helper() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let helper = dir.text("mount.fuse.extant");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_extant"), &helper).expect("link");
    let mnt = dir.text("mnt");
    std::fs::create_dir(&mnt).expect("directory");
    common::run(&helper, &[&image, &mnt, "-o", "rw,frobnicate"]).fails(1, &["unknown mount option 'frobnicate'"]);
    common::run(&helper, &[&image, &mnt, "-f", "-n", "-o", "rw,noauto,user,nofail,x-systemd.idle-timeout=1"]).ok();
    common::run(&helper, &[&image, &mnt, "-f", "-s", "-o", "frobnicate"]).ok();
}
