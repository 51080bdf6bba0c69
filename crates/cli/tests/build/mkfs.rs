//! `extant mkfs`: its result, its refusals, and the program names under which it can be called.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;

use crate::common::{CommandResult, Dir, extant, extant_path, fsck_clean, loop_mounts_work, run, tool, whole_disk};

fn as_program(dir: &Dir, name: &str, args: &[&str]) -> CommandResult {
    let path = dir.text(name);
    if !Path::new(&path).exists() {
        symlink(extant_path(), &path).expect("a link");
    }
    run(path, args)
}

fn superblock(image: &str) -> String {
    tool("dumpe2fs", &["-h", image])
}

#[test]
fn a_new_image_is_sparse_and_clean_and_can_be_written() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let said = extant(&["mkfs", &image, "1G"]).ok();
    assert!(said.contains("Creating filesystem with 262144 4k blocks and 65536 inodes\n"), "{said}");
    assert!(said.contains("backups stored on blocks: \n\t32768, 98304, 163840, 229376\n"), "{said}");
    assert_eq!(fs::metadata(&image).expect("image").len(), 1 << 30);
    assert!(fs::metadata(&image).expect("image").blocks() * 512 < 2 << 20);
    fsck_clean(&image);
    extant(&["fsck", "-fn", &image]).ok();
    fs::write(dir.path("file"), "content").expect("file");
    extant(&["cp", &dir.text("file"), &format!("{image}:/")]).ok();
    assert_eq!(extant(&["cat", &image, "/file"]).ok(), "content");
    fsck_clean(&image);
}

#[test]
fn letters_have_the_meaning_that_mke2fs_gives_them() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let uuid = "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d";
    let letters = ["-b", "2k", "-i", "64k", "-I", "512", "-L", "data", "-m", "1", "-e", "panic", "-M", "/srv"];
    let more = ["-O", "^has_journal", "-O", "^resize_inode", "-E", "stride=8,stripe_width=16", "-U", uuid, "-q"];
    let args = [&["mkfs"][..], &letters, &more, &[&image, "100M"]].concat();
    assert_eq!(extant(&args).ok(), "");
    let shown = superblock(&image);
    for line in [
        "Filesystem volume name:   data",
        "Last mounted on:          /srv",
        &format!("Filesystem UUID:          {uuid}"),
        "Errors behavior:          Panic",
        "Block count:              51200",
        "Reserved block count:     512",
        "Block size:               2048",
        "Inode size:\t          512",
        "RAID stride:              8",
        "RAID stripe width:        16",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(!shown.contains("has_journal") && !shown.contains("resize_inode"), "{shown}");
    fsck_clean(&image);
}

#[test]
fn a_file_system_is_overwritten_only_with_force() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    extant(&["mkfs", "-q", &image, "16M"]).ok();
    let before = fs::read(&image).expect("image");
    extant(&["mkfs", &image]).fails(1, &["disk.img: it has an ext2/3/4 file system; -F overwrites it"]);
    assert!(before == fs::read(&image).expect("image"), "a refusal changed the image");
    extant(&["mkfs", "-q", "-F", "-t", "ext2", &image]).ok();
    assert!(!superblock(&image).contains("has_journal"));
    fsck_clean(&image);
    fs::write(&image, b"\x1f\x8b\x08\0rest of it").expect("a file");
    extant(&["mkfs", &image, "8M"]).fails(1, &["disk.img: it holds data (compressed with gzip); -F overwrites it"]);
    // A file of zeros needs no protection, and the size of an existing file is used.
    fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("a file");
    extant(&["mkfs", "-q", &image]).ok();
    fsck_clean(&image);
}

#[test]
fn a_file_that_is_something_else_is_overwritten_only_with_force() {
    let dir = Dir::new();
    let image = dir.text("target");
    let ustar = |magic: &[u8]| [&[b'n'; 257][..], magic, &[0; 1000]].concat();
    let mut squashfs = b"hsqs".to_vec();
    squashfs.resize(4096, 1);
    let at = |place: usize, magic: &[u8]| [vec![1; place], magic.to_vec(), vec![0; 4096]].concat();
    let known: Vec<(Vec<u8>, &str)> = vec![
        (ustar(b"ustar\0"), "a tar archive"),
        (ustar(b"ustar  \0"), "a tar archive"),
        (fs::read(extant_path()).expect("program"), "a program"),
        (b"#!/bin/sh\nexit 0\n".to_vec(), "a program"),
        (at(0, b"070701"), "a cpio archive"),
        (at(0, b"!<arch>\ndebian-binary"), "a Debian package"),
        (at(0, b"PK\x03\x04"), "a zip archive"),
        (at(0, b"SQLite format 3\0"), "a SQLite database"),
        (at(0, b"%PDF-1.7"), "a PDF document"),
        (at(0, b"\x89PNG\r\n\x1a\n"), "a picture"),
        (at(0, b"\xed\xab\xee\xdb"), "a package of RPM"),
        (at(1024, b"\xe2\xe1\xf5\xe0"), "an EROFS file system"),
        (at(32769, b"CD001"), "an ISO 9660 file system"),
        (squashfs, "a squashfs file system"),
    ];
    for (content, name) in known {
        fs::write(&image, &content).expect("written");
        extant(&["mkfs", "-q", &image, "8M"]).fails(1, &["target: it holds data (", name, "; -F overwrites it"]);
        assert!(fs::read(&image).expect("file") == content, "{name}: a refusal changed the file");
        extant(&["mkfs", "-q", "-F", &image, "8M"]).ok();
        fsck_clean(&image);
    }
    // A real archive of each format, including the oldest.
    fs::write(dir.path("f"), "content").expect("file");
    for format in ["v7", "oldgnu", "gnu", "ustar", "posix"] {
        tool("tar", &["-cf", &image, &format!("--format={format}"), "-C", &dir.text("."), "f"]);
        extant(&["mkfs", "-q", &image, "8M"]).fails(1, &["target: it holds data (a tar archive); -F overwrites it"]);
    }
    // A file system of which only a backup superblock is left.
    fs::remove_file(&image).expect("removed");
    extant(&["mkfs", "-q", &image, "16M"]).ok();
    crate::common::patch(&image, 1024, &[0; 1024]);
    let said = "target: it has a backup of an ext2/3/4 file system; -F overwrites it";
    extant(&["mkfs", "-q", &image, "16M"]).fails(1, &[said]);
    // A program that is called by another program cannot ask.
    as_program(&dir, "mkfs.ext4", &["-q", &image]).ok();
}

#[test]
fn refusals_name_the_option_and_the_next_step_and_make_nothing() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let refused: [(&[&str], &str); 26] = [
        (&["-O", "nosuch"], "feature nosuch: it is not known"),
        (
            &["-O", "journal_dev", "-J", "size=4"],
            "-O journal_dev: it makes a journal of the whole device; leave -j and -J out",
        ),
        (&["-O", "^extent"], "-O 64bit: it needs extents; add -O extent, or -O ^64bit"),
        (&["-O", "bigalloc,^extent,^64bit"], "-O bigalloc: it needs extents"),
        (&["-O", "meta_bg"], "add -O ^resize_inode"),
        (&["-O", "^sparse_super"], "it contradicts resize_inode; add -O ^resize_inode"),
        (&["-O", "metadata_csum_seed,^metadata_csum"], "it needs metadata_csum"),
        (&["-O", "orphan_file,^has_journal"], "-O orphan_file: it needs a journal"),
        (&["-b", "3000"], "-b 3000: it takes a power of two from 1024 to 65536"),
        (&["-b", "much"], "-b much: it takes bytes"),
        (&["-C", "16k"], "-C 16384: clusters need the feature bigalloc; add -O bigalloc"),
        (&["-g", "100"], "-g 100: it takes a multiple of 8 from 256 to"),
        (&["-G", "3"], "-G 3: it takes a power of two"),
        (&["-i", "100"], "-i 100: it takes bytes for each inode, from 1024"),
        (&["-I", "100"], "-I 100: it takes a power of two from 128 to"),
        (&["-m", "51"], "-m 51: it takes a percentage from 0 to 50"),
        (&["-N", "1000000"], "do not fit"),
        (&["-b", "4096", "-J", "size=1"], "the journal has 256 blocks; it must have 1024 to"),
        (&["-J", "size=1000"], "is too big for"),
        (&["-J", "device="], "-J device: it takes a journal's device, such as /dev/sdb1"),
        (&["-c", "-c"], "-c: Extant does not look for bad blocks; leave it out"),
        (&["-l", "list"], "-l: Extant keeps no list of bad blocks; leave it out"),
        (&["-S"], "-S: Extant makes whole file systems only"),
        (&["-U", "much"], "-U much: it takes a UUID, clear, random, time or content"),
        (&["-E", "stride=x"], "-E stride=x: it takes a number"),
        (&["-T", "small", "-t", "xfs"], "-t xfs: unknown type; use ext2, ext3 or ext4"),
    ];
    for (args, words) in refused {
        let all = [&["mkfs"][..], args, &[&image, "64M"]].concat();
        extant(&all).fails(1, &[words]);
        assert!(!Path::new(&image).exists(), "{args:?} left a file");
    }
    extant(&["mkfs", &image]).fails(1, &["disk.img: it does not exist; give a size after it, such as 1G"]);
    extant(&["mkfs", &image, "0"]).fails(1, &["size 0"]);
    extant(&["mkfs", &image, "16k"]).fails(1, &["disk.img: "]);
    extant(&["mkfs", &dir.text("."), "1M"]).fails(1, &["it is a directory"]);
    assert!(!Path::new(&image).exists());
}

#[test]
fn an_unreadable_source_leaves_no_image() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    extant(&["mkfs", "-d", &dir.text("missing"), &image, "16M"]).fails(1, &["missing"]);
    assert!(!Path::new(&image).exists());
}

#[test]
fn an_image_that_is_mounted_or_locked_is_refused() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let (image, mnt) = (dir.text("disk.img"), dir.text("mnt"));
    fs::create_dir(&mnt).expect("directory");
    extant(&["mkfs", "-q", &image, "16M"]).ok();
    let before = fs::read(&image).expect("image");
    extant(&["mount", "-r", &image, &mnt]).ok();
    extant(&["mkfs", "-q", "-F", &image]).fails(1, &["disk.img"]);
    extant(&["unmount", &mnt]).ok();
    assert!(before == fs::read(&image).expect("image"), "a refusal changed the image");
    extant(&["mkfs", "-q", "-F", &image]).ok();
}

#[test]
fn a_partition_is_filled_and_its_neighbours_stay() {
    let dir = Dir::new();
    let (one, disk) = (dir.text("one.img"), dir.text("disk.img"));
    extant(&["mkfs", "-q", &one, "16M"]).ok();
    whole_disk(&disk, &one);
    let table = fs::read(&disk).expect("disk")[..4096].to_vec();
    extant(&["mkfs", &disk]).fails(1, &["it has a partition table; -F overwrites it"]);
    extant(&["mkfs", &format!("{disk}@2")]).fails(1, &["-F overwrites it"]);
    extant(&["mkfs", "-q", "-F", "-L", "inside", &format!("{disk}@2")]).ok();
    assert!(table == fs::read(&disk).expect("disk")[..4096], "the table changed");
    let shown = extant(&["info", &format!("{disk}@2")]).ok();
    assert!(shown.contains("inside"), "{shown}");
    for partition in [2, 5] {
        extant(&["fsck", "-fn", &format!("{disk}@{partition}")]).ok();
    }
}

#[test]
fn a_block_device_is_filled() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = dir.text("disk.img");
    fs::write(&image, vec![0xa5; 32 << 20]).expect("an image of rubbish");
    let device = tool("losetup", &["--find", "--show", &image]);
    let device = device.trim();
    let made = extant(&["mkfs", "-q", device]);
    tool("losetup", &["-d", device]);
    made.ok();
    fsck_clean(&image);
}

#[test]
fn a_block_device_keeps_no_storage_and_no_trace_of_its_old_content() {
    if !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let (old, disk, file) = (dir.image("ext4", &["-b", "1024"]), dir.text("disk"), dir.text("file"));
    let make = |words: &[&str]| {
        let mut command = std::process::Command::new(extant_path());
        command.args(["mkfs", "-q", "-F", "-U", "clear"]).args(words).env("SOURCE_DATE_EPOCH", "1700000000");
        assert!(command.status().expect("it runs").success(), "{words:?}");
    };
    make(&[&file, "64M"]);
    for (words, is_sparse) in [(&[][..], true), (&["-E", "discard"], true), (&["-E", "nodiscard"], false)] {
        fs::copy(&old, &disk).expect("an old file system");
        let device = tool("losetup", &["--find", "--show", &disk]);
        make(&[words, &[device.trim()]].concat());
        tool("losetup", &["-d", device.trim()]);
        assert!(fs::read(&disk).expect("disk") == fs::read(&file).expect("file"), "{words:?}: other bytes");
        let taken = fs::metadata(&disk).expect("disk").blocks() * 512;
        assert_eq!(taken < 4 << 20, is_sparse, "{words:?}: {taken} bytes");
    }
}

#[test]
fn nothing_is_made_in_a_dry_run() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    let said = extant(&["mkfs", "-n", "-v", &image, "10G"]).ok();
    assert!(said.contains("Creating filesystem with 2621440 4k blocks and 655360 inodes\n"), "{said}");
    assert!(said.contains("Groups: 80 of 32768 blocks and 8192 inodes\n"), "{said}");
    assert!(!Path::new(&image).exists());
    extant(&["mkfs", "-q", &image, "16M"]).ok();
    let before = fs::read(&image).expect("image");
    extant(&["mkfs", "-n", &image]).ok();
    assert!(before == fs::read(&image).expect("image"));
}

#[test]
fn the_name_of_the_program_determines_the_type() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    for (name, journal, extents) in
        [("mke2fs", false, false), ("mkfs.ext2", false, false), ("mkfs.ext3", true, false), ("mkfs.ext4", true, true)]
    {
        // Programs that call mkfs by this name cannot answer a question, so it overwrites existing content.
        as_program(&dir, name, &["-q", &image, "32M"]).ok();
        let shown = superblock(&image);
        assert_eq!(shown.contains("has_journal"), journal, "{name}: {shown}");
        assert_eq!(shown.contains(" extent "), extents, "{name}: {shown}");
        fsck_clean(&image);
    }
    let said = as_program(&dir, "mkfs.ext4", &["-V"]).ok();
    assert!(said.contains("mke2fs "), "{said}");
    as_program(&dir, "mkfs.ext4", &["-O", "nosuch", &image]).fails(1, &["feature nosuch"]);
    as_program(&dir, "mke2fs", &["-q", "-t", "ext4", &image]).ok();
    assert!(superblock(&image).contains(" extent "));
}

#[test]
fn the_same_source_date_makes_the_same_bytes() {
    let dir = Dir::new();
    let made = |name: &str| {
        let image = dir.text(name);
        let mut command = std::process::Command::new(extant_path());
        command.args(["mkfs", "-q", &image, "16M"]).env("SOURCE_DATE_EPOCH", "1700000000");
        assert!(command.status().expect("it runs").success());
        fs::read(image).expect("image")
    };
    let (one, two) = (made("one"), made("two"));
    assert!(one == two);
    let mut word = [0; 4];
    fs::File::open(dir.path("one")).expect("image").read_exact_at(&mut word, 1024 + 0x108).expect("s_mkfs_time");
    assert_eq!(u32::from_le_bytes(word), 1_700_000_000);
}
