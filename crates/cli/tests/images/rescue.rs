//! Damaged images: which parts are read, with which options, and the exit status.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{CommandResult, Dir, debugfs, extant, tool};

const MIB: u64 = 1 << 20;

/// An image of 64 MiB with three files of 5 MiB in /s, of which a cut at 20 MiB leaves one.
fn filled(dir: &Dir) -> String {
    let (image, source) = (dir.text("disk.img"), dir.text("src/s"));
    fs::create_dir_all(&source).expect("directory");
    for (i, byte) in [(1, 3u8), (2, 5), (3, 7)] {
        let content: Vec<u8> = (0..5 * MIB as usize).map(|at| byte.wrapping_mul((at / 3) as u8)).collect();
        fs::write(format!("{source}/f{i}"), content).expect("file");
    }
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-d", &dir.text("src"), &image, "64M"]);
    image
}

fn cut(image: &str, len: u64) {
    fs::File::options().write(true).open(image).expect("image").set_len(len).expect("cut");
}

fn overwrite(image: &str, at: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(image).expect("image").write_all_at(bytes, at).expect("written");
}

/// The number of a file in an image.
fn number(image: &str, path: &str) -> String {
    let said = extant(&["stat", "--json", &format!("{image}:{path}")]).ok();
    serde_json::from_str::<serde_json::Value>(&said).expect("JSON")["inode"].to_string()
}

/// The byte at which the inode with this number begins, and the size of an inode.
fn inode_at(image: &str, number: &str) -> (u64, usize) {
    let said = debugfs(image, &format!("imap <{number}>"));
    let (_, place) = said.split_once("located at block ").expect("imap");
    let (block, offset) = place.trim().split_once(", offset ").expect("imap");
    let offset = u64::from_str_radix(offset.trim_start_matches("0x"), 16).expect("a number");
    (block.parse::<u64>().expect("a number") * 1024 + offset, 256)
}

#[track_caller]
fn hurt(ran: CommandResult, said: &[&str]) -> Vec<u8> {
    let out = ran.out.clone();
    ran.fails(4, said);
    out
}

#[test]
fn every_reading_verb_reads_a_cut_image_and_exits_with_4() {
    let dir = Dir::new();
    let image = filled(&dir);
    let whole = extant(&["ls", "-R", &image]).ok();
    cut(&image, 20 * MIB);
    let lost = ["disk.img: superblock at byte 1024: file system of 67108864 bytes", "behind the device's end is lost"];
    let at = |path: &str| format!("{image}:{path}");
    assert_eq!(String::from_utf8_lossy(&hurt(extant(&["ls", "--rescue", "-R", &image]), &lost)), whole);
    let (f1, s) = (at("/s/f1"), at("/s"));
    for args in [
        &["tree", &image][..],
        &["find", &image, "-name", "f1"],
        &["du", &s],
        &["df", &image],
        &["stat", &f1],
        &["info", &image],
        &["xattr", "list", &f1],
    ] {
        let ran = extant(&[&args[..1], &["--rescue"], &args[1..]].concat());
        assert!(!hurt(ran, &lost).is_empty() || args[0] == "xattr", "{args:?}");
    }
    let first = fs::read(dir.path("src/s/f1")).expect("file");
    assert!(hurt(extant(&["cat", "--rescue", &f1]), &lost) == first);
    // The other files are named, with the number of missing bytes.
    let out = hurt(
        extant(&["cat", "--rescue", &at("/s/f3"), &f1]),
        &["disk.img: /s/f3: ", " bytes cannot be read, and are zeros instead: "],
    );
    assert!(out.len() == 10 << 20 && out.ends_with(&first));
    extant(&["cat", "--rescue", &at("/none"), &f1]).fails(8, &["disk.img: /none: no such file"]);
    for args in [&["touch", "--rescue", &f1][..], &["rm", "--rescue", &f1], &["script", "--rescue", &image]] {
        extant(args).fails(1, &["--rescue reads"]);
    }
}

#[test]
fn cp_copies_what_can_be_read_and_names_the_rest() {
    let dir = Dir::new();
    let image = filled(&dir);
    // In the middle of the second file.
    let second = extant(&["stat", "--json", &format!("{image}:/s/f2")]).ok();
    let second: serde_json::Value = serde_json::from_str(&second).expect("JSON");
    let start = second["extents"][0]["physical"].as_u64().expect("a block") * 1024;
    let kept = 2 * MIB + 1024;
    cut(&image, start + kept);
    let out = dir.text("out");
    let ran = extant(&["cp", "-r", "--rescue", &format!("{image}:/s"), &out]);
    let missing = 5 * MIB - kept;
    let said = ran.fails(4, &[&format!("disk.img: /s/f2: {missing} bytes cannot be read"), "disk.img: /s/f3: "]);
    assert!(!said.contains("f1"), "{said}");
    let read = |path: String| fs::read(path).expect("file");
    assert!(read(format!("{out}/f1")) == read(dir.text("src/s/f1")));
    let (copy, original) = (read(format!("{out}/f2")), read(dir.text("src/s/f2")));
    assert_eq!(copy.len(), original.len());
    assert!(copy[..kept as usize] == original[..kept as usize] && copy[kept as usize..].iter().all(|b| *b == 0));
    // From one image into another.
    let good = dir.text("good.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &good, "32M"]);
    extant(&["cp", "-r", "--rescue", &format!("{image}:/s"), &format!("{good}:/")]).fails(4, &["/s/f2: "]);
    crate::common::fsck_clean(&good);
    assert!(extant(&["cat", &format!("{good}:/s/f1")]).out == read(dir.text("src/s/f1")));
    // Without --rescue, a damaged file is not copied.
    extant(&["cp", "-r", &format!("{image}:/s"), &dir.text("plain")]).fails(8, &["disk.img: "]);
}

#[test]
fn a_sound_image_is_rescued_with_status_0() {
    let dir = Dir::new();
    let image = filled(&dir);
    let plain = extant(&["ls", "-lR", &image]).ok();
    let ran = extant(&["ls", "--rescue", "-lR", &image]);
    assert_eq!((ran.code, String::from_utf8_lossy(&ran.out).into_owned()), (Some(0), plain));
    assert_eq!(ran.err, format!("extant: {image}: 3 files found, 0 hurt, none without a name\n"));
    extant(&["info", "--rescue", &image]).ok();
    extant(&["cat", "--rescue", &format!("{image}:/none")]).fails(8, &["no such file"]);
    extant(&["ls", "--rescue", &dir.text("no.img")]).fails(8, &["No such file"]);
}

#[test]
fn damage_that_prevents_a_mount_names_the_next_step() {
    let dir = Dir::new();
    let whole = filled(&dir);
    let (at, size) = inode_at(&whole, "8");
    let image = dir.text("hurt.img");
    let damages: [&dyn Fn(); 3] = [
        // No journal inode; a journal behind the cut; descriptors and all their copies.
        &|| overwrite(&image, at, &vec![0; size]),
        &|| cut(&image, 20 * MIB),
        &|| [2, 8194, 24578, 40962, 57346].iter().for_each(|block| overwrite(&image, block * 1024, &[0; 1024])),
    ];
    let next = ["hurt.img: ", "--rescue (a mount: -o rescue) reads what is there, 'e2fsck -fn' shows what is damaged"];
    for damage in damages {
        fs::copy(&whole, &image).expect("copied");
        damage();
        extant(&["ls", &image]).fails(8, &next);
        extant(&["cp", "-r", &format!("{image}:/s"), &dir.text("no")]).fails(8, &next);
        fs::create_dir_all(dir.path("mnt")).expect("directory");
        extant(&["mount", "-o", "ro", &image, &dir.text("mnt")]).fails(32, &next);
        let out = hurt(extant(&["cat", "--rescue", &format!("{image}:/s/f1")]), &["hurt.img: "]);
        assert!(out == fs::read(dir.path("src/s/f1")).expect("file"));
    }
}

#[test]
fn a_superblock_can_be_chosen() {
    let dir = Dir::new();
    let image = filled(&dir);
    let plain = extant(&["ls", "-R", &image]).ok();
    overwrite(&image, 0, &[0; 9 << 10]);
    let ran = extant(&["ls", "-R", "--sb", "24577", &image]);
    assert_eq!((ran.code, String::from_utf8_lossy(&ran.out).into_owned()), (Some(0), plain.clone()), "{}", ran.err);
    assert!(ran.err.contains("using the backup superblock at block 24577, as requested"), "{}", ran.err);
    let info = extant(&["info", "--sb", "24577", &image]);
    assert!(String::from_utf8_lossy(&info.out).contains("this is the backup at block 24577"), "{info:?}");
    extant(&["ls", "--sb", "2", &image]).fails(8, &["superblock at byte 2048: magic"]);
    extant(&["touch", "--sb", "24577", &format!("{image}:/x")]).fails(8, &["the backup superblock at block 24577"]);
    extant(&["ls", "--sb", "0", &image]).fails(1, &["--sb"]);
    fs::create_dir(dir.path("mnt")).expect("directory");
    extant(&["mount", "-o", "sb=24577", &image, &dir.text("mnt")]).fails(32, &["mount read-only (-o ro)"]);
    // After another program has overwritten the image, the message names the new format and the remaining backup.
    tool("mkswap", &[&image]);
    extant(&["ls", &image]).fails(8, &["swap space", "a copy of an ext superblock is at block 8193 of it: --sb 8193"]);
    extant(&["info", &image]).fails(8, &["--sb 8193"]);
    assert_eq!(String::from_utf8_lossy(&extant(&["ls", "-R", "--sb", "8193", &image]).out), plain);
}

#[test]
fn stat_shows_extents_as_debugfs_does() {
    let dir = Dir::new();
    let image = filled(&dir);
    let sparse = dir.text("sparse");
    let file = fs::File::create(&sparse).expect("file");
    for at in [0, 100, 9000] {
        file.write_all_at(b"island", at * 1024).expect("written");
    }
    extant(&["cp", &sparse, &format!("{image}:/sparse")]).ok();
    tool("debugfs", &["-w", "-R", "fallocate /sparse 20000 20009", &image]);
    let json = extant(&["stat", "--json", &format!("{image}:/sparse")]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let extents = json["extents"].as_array().expect("a list");
    let shown: Vec<String> = extents
        .iter()
        .map(|e| {
            let [logical, physical, length] = ["logical", "physical", "length"].map(|k| e[k].as_u64().expect(k));
            format!("{logical} {physical} {length} {}", e["unwritten"])
        })
        .collect();
    // "(0):8451, (100):8452, (20000[u]-20009[u]):8453-8462": single blocks would be valid, too.
    let dumped = debugfs(&image, "ex /sparse");
    let wanted: Vec<String> = dumped
        .lines()
        .filter(|line| line.trim_start().starts_with("0/ 0") || line.trim_start().starts_with("1/ 1"))
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().filter(|w| *w != "-").collect();
            let flag = words.last() == Some(&"Uninit");
            let length = words[words.len() - 1 - usize::from(flag)];
            // Level and number of the entry come first, as "0/ 0   1/ 4".
            format!("{} {} {length} {flag}", words[4], words[6])
        })
        .collect();
    assert_eq!(shown, wanted, "{dumped}");
    assert_eq!(shown.len(), 4);
    let text = extant(&["stat", &format!("{image}:/sparse")]).ok();
    assert!(text.contains("Extent:      logical     physical     length"), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.ends_with("10  unwritten")), "{text}");
}

#[test]
fn a_number_names_a_file_in_every_verb() {
    let dir = Dir::new();
    let image = filled(&dir);
    let ino = number(&image, "/s/f1");
    let parent = number(&image, "/s");
    let content = fs::read(dir.path("src/s/f1")).expect("file");
    let by_number = format!("{image}:<{ino}>");
    assert!(extant(&["cat", &by_number]).out == content);
    assert!(extant(&["cat", &image, &format!("<{ino}>")]).out == content);
    assert!(extant(&["cat", &format!("{image}:<{parent}>/f1")]).out == content);
    assert_eq!(extant(&["ls", &format!("{image}:<{parent}>")]).ok(), "f1\nf2\nf3\n");
    extant(&["cp", &by_number, &dir.text("copy")]).ok();
    assert!(fs::read(dir.path("copy")).expect("file") == content);
    for verb in [&["stat"][..], &["du"], &["find"], &["xattr", "list"], &["ls", "-l"]] {
        extant(&[verb, &[by_number.as_str()]].concat()).ok();
    }
    extant(&["tree", &format!("{image}:<{parent}>")]).ok();
    // The journal's inode is visible, but not its content.
    assert!(extant(&["stat", &format!("{image}:<8>")]).ok().contains("regular"));
    extant(&["cat", &format!("{image}:<4000>")]).fails(8, &["<4000>", "--rescue may still read"]);
    // A deleted file whose map still exists.
    tool("debugfs", &["-w", "-R", "unlink /s/f1", &image]);
    tool("debugfs", &["-w", "-R", &format!("sif <{ino}> links_count 0"), &image]);
    extant(&["cat", &by_number]).fails(8, &["--rescue may still read"]);
    assert!(extant(&["cat", "--rescue", &by_number]).out == content);
}

#[test]
fn a_rescue_mount_reads_sound_files_and_fails_for_damaged_ones() {
    if !extant_testkit::mount::fuse_works() {
        eprintln!("skipped: needs FUSE");
        return;
    }
    let dir = Dir::new();
    let image = filled(&dir);
    cut(&image, 20 * MIB);
    let mnt = dir.text("mnt");
    fs::create_dir(&mnt).expect("directory");
    let ran = extant(&["mount", "-o", "rescue", &image, &mnt]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("data behind the device's end is lost"), "{}", ran.err);
    let whole = fs::read(Path::new(&mnt).join("s/f1")).expect("read") == fs::read(dir.path("src/s/f1")).expect("file");
    let lost = fs::read(Path::new(&mnt).join("s/f3")).expect_err("lost").raw_os_error();
    let written = fs::write(Path::new(&mnt).join("new"), "").expect_err("read-only").raw_os_error();
    extant(&["unmount", &mnt]).ok();
    // EIO, EROFS.
    assert_eq!((whole, lost, written), (true, Some(5), Some(30)));
}

#[test]
fn encrypted_files_have_names_and_no_content() {
    let dir = Dir::new();
    let image = dir.text("e.img");
    let plain = dir.text("plain");
    fs::write(&plain, "hello\n").expect("file");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "encrypt", &image, "16M"]);
    for request in [
        &format!("write {plain} plain"),
        "mkdir secret",
        &format!("write {plain} secret/name"),
        "sif secret flags 0x80800",
        "sif secret/name flags 0x80800",
    ] {
        tool("debugfs", &["-w", "-R", request, &image]);
    }
    assert_eq!(extant(&["cat", &format!("{image}:/plain")]).ok(), "hello\n");
    // "name" in base64url.
    assert_eq!(extant(&["ls", &format!("{image}:/secret")]).ok(), "bmFtZQ\n");
    extant(&["cat", &format!("{image}:/secret/bmFtZQ")]).fails(8, &["is encrypted, and there is no key"]);
    extant(&["cp", "-r", &format!("{image}:/."), &dir.text("out")]).fails(8, &["/secret/bmFtZQ", "no key"]);
    assert_eq!(fs::read(dir.path("out/plain")).expect("copied"), b"hello\n");
    extant(&["touch", &format!("{image}:/x")]).ok();
    extant(&["touch", &format!("{image}:/secret/x")]).fails(8, &["is encrypted, and there is no key"]);
    if extant_testkit::mount::fuse_works() {
        let mnt = dir.text("mnt");
        fs::create_dir(&mnt).expect("directory");
        extant(&["mount", "-o", "ro", &image, &mnt]).ok();
        let read = fs::read(Path::new(&mnt).join("secret/bmFtZQ")).expect_err("no key").raw_os_error();
        extant(&["unmount", &mnt]).ok();
        assert_eq!(read, Some(126), "ENOKEY");
    }
}
