//! `extant info --scan`: its findings on damaged disks, and the commands that it prints.

use std::fs;

use crate::common::{Dir, debugfs, extant, extant_path, patch, run, tool, whole_disk};
use serde_json::Value;

const MIB: u64 = 1 << 20;

fn scan(image: &str) -> Value {
    let ran = extant(&["info", "--scan", "--json", image]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    serde_json::from_slice(&ran.out).expect("JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("{key}: {value}"))
}

fn numbers(values: &[Value], key: &str) -> Vec<u64> {
    values.iter().filter_map(|one| one[key].as_u64()).collect()
}

/// Checks that the printed commands work: both checkers find the superblock. (Without the journal, e2fsck -n stops
/// there.)
#[track_caller]
fn commands_work(dir: &Dir, fs: &Value) {
    let [ours, _, theirs] = &list(fs, "commands")[..] else { panic!("{fs}") };
    for command in [ours, theirs] {
        let command = command.as_str().expect("a command");
        let program = extant_path().display();
        let line = command.strip_prefix("extant").map_or(command.to_owned(), |rest| format!("{program}{rest}"));
        let ran = run("sh", &["-c", &format!("cd {} && {line}", dir.text("."))]);
        let said = format!("{}{}", String::from_utf8_lossy(&ran.out), ran.err);
        let found = ran.code.is_some_and(|code| code < 8) || said.contains("journal superblock is corrupt");
        assert!(found && !said.contains("Bad magic number"), "{command}: {said}");
    }
}

/// A new image of this size and with these options.
fn made(dir: &Dir, name: &str, size: u64, options: &[&str]) -> String {
    let image = dir.text(name);
    fs::File::create(&image).expect("image").set_len(size).expect("size");
    tool("mke2fs", &[&["-q", "-F"], options, &[&image]].concat());
    image
}

fn uuid_of(image: &str) -> String {
    let said = tool("dumpe2fs", &["-h", image]);
    said.lines().find_map(|line| line.strip_prefix("Filesystem UUID:")).expect("a UUID").trim().to_owned()
}

/// A disk without a partition table, with images in it.
fn disk_of(dir: &Dir, size: u64, images: &[(&str, u64)]) -> String {
    let disk = dir.text("disk.img");
    fs::File::create(&disk).expect("disk").set_len(size).expect("size");
    for (image, at) in images {
        let (from, to, seek) = (format!("if={image}"), format!("of={disk}"), format!("seek={}", at / MIB));
        tool("dd", &[&from, &to, &seek, "bs=1M", "conv=notrunc,sparse", "status=none"]);
    }
    disk
}

fn zero(image: &str, from: u64, bytes: u64) {
    patch(image, from, &vec![0; bytes as usize]);
}

#[test]
fn a_disk_whose_first_64_mib_are_gone_shows_where_its_file_system_began() {
    let dir = Dir::new();
    let part = made(&dir, "part.img", 240 * MIB, &["-t", "ext4", "-b", "4096", "-g", "8192", "-L", "data"]);
    let disk = disk_of(&dir, 256 * MIB, &[(&part, MIB)]);
    zero(&disk, 0, 64 * MIB);
    let found = scan(&disk);
    let [one] = &list(&found, "filesystems")[..] else { panic!("{found}") };
    assert_eq!((&one["start"], &one["partition"], &one["label"]), (&MIB.into(), &Value::Null, &"data".into()));
    assert_eq!(one["uuid"], uuid_of(&part));
    let superblocks = list(one, "superblocks");
    // Those of groups 0 and 1 were in the lost part.
    assert_eq!(numbers(superblocks, "group"), [3, 5, 7]);
    assert_eq!(numbers(superblocks, "block"), [3 * 8192, 5 * 8192, 7 * 8192]);
    assert!(superblocks.iter().all(|s| s["sound"] == true && s["descriptors_sound"] == 8), "{one}");
    let said = extant(&["info", "--scan", &disk]).ok();
    for words in ["Primary:     gone", "byte 1048576", "-b 24576 -B 4096", "sb=98304", "?offset=1048576'"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    commands_work(&dir, one);
    extant(&["fsck", "-fn", &disk]).fails(8, &["extant info --scan"]);
}

#[test]
fn an_image_with_a_broken_primary_is_used_by_its_backups() {
    let dir = Dir::new();
    let image = made(&dir, "disk.img", 64 * MIB, &["-t", "ext4", "-b", "1024"]);
    // A field that the checksum covers, and a backup whose descriptors are lost.
    patch(&image, 1024 + 120, b"another");
    zero(&image, 8194 << 10, 1024);
    let found = scan(&image);
    let [one] = &list(&found, "filesystems")[..] else { panic!("{found}") };
    let superblocks = list(one, "superblocks");
    assert_eq!(numbers(superblocks, "group"), [0, 1, 3, 5, 7]);
    let sound: Vec<_> = superblocks.iter().map(|s| s["sound"] == true).collect();
    assert_eq!(sound, [false, true, true, true, true]);
    assert!(superblocks[0]["damage"][0].as_str().is_some_and(|said| said.contains("checksum")), "{one}");
    assert_eq!(numbers(superblocks, "descriptors_sound"), [8, 0, 8, 8, 8]);
    assert!(one["commands"][0].as_str().is_some_and(|line| line.contains("-b 24577 -B 1024")), "{one}");
    commands_work(&dir, one);
}

/// An interrupted copy may end at any byte, and so may a partition after repartitioning.
#[test]
fn an_image_that_was_cut_and_a_partition_that_became_shorter_are_searched() {
    let dir = Dir::new();
    let image = made(&dir, "cut.img", 64 * MIB, &["-t", "ext4", "-b", "1024"]);
    std::fs::OpenOptions::new().write(true).open(&image).expect("opened").set_len(40 * MIB + 77).expect("cut");
    let found = scan(&image);
    assert_eq!(numbers(list(&found, "filesystems"), "start"), [0]);
    let image = made(&dir, "part.img", 16 * MIB, &["-t", "ext4"]);
    let disk = dir.text("whole.img");
    whole_disk(&disk, &image);
    // The size in sectors of the partition in slot 2 of the table, less one MiB.
    let mut table = vec![0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&std::fs::File::open(&disk).expect("opened"), &mut table, 446 + 16 + 12)
        .expect("read");
    let sectors = u32::from_le_bytes([table[0], table[1], table[2], table[3]]) - 2048;
    patch(&disk, 446 + 16 + 12, &sectors.to_le_bytes());
    let found = scan(&disk);
    let one = &list(&found, "filesystems")[0];
    assert!(one["partition"].is_null(), "{one}");
    commands_work(&dir, one);
    extant(&["info", "--scan", "--sb", "1", &disk]).fails(1, &["neither --sb nor --rescue"]);
}

#[test]
fn two_adjacent_file_systems_are_distinguished() {
    let dir = Dir::new();
    let first = made(&dir, "first.img", 20 * MIB, &["-t", "ext2", "-b", "1024", "-L", "first"]);
    let second = made(&dir, "second.img", 40 * MIB, &["-t", "ext3", "-b", "4096", "-L", "second"]);
    let disk = disk_of(&dir, 80 * MIB, &[(&first, 2 * MIB), (&second, 22 * MIB)]);
    let found = scan(&disk);
    let all = list(&found, "filesystems");
    assert_eq!(numbers(all, "start"), [2 * MIB, 22 * MIB]);
    assert!(all.iter().all(|fs| fs["inside"].is_null()), "{found}");
    assert_eq!((&all[0]["label"], &all[1]["label"]), (&"first".into(), &"second".into()));
    all.iter().for_each(|fs| commands_work(&dir, fs));
}

#[test]
fn partitions_are_named_by_their_numbers() {
    let dir = Dir::new();
    let image = made(&dir, "part.img", 16 * MIB, &["-t", "ext4"]);
    let disk = dir.text("whole.img");
    whole_disk(&disk, &image);
    let found = scan(&disk);
    assert_eq!(numbers(list(&found, "partitions"), "number"), [1, 2, 5]);
    let all = list(&found, "filesystems");
    // Two copies of one image, including the UUID.
    assert_eq!(numbers(all, "partition"), [2, 5]);
    all.iter().for_each(|fs| commands_work(&dir, fs));
    let one = scan(&format!("{disk}@5"));
    let starts = numbers(all, "start");
    assert_eq!(numbers(list(&one, "filesystems"), "start"), starts[1..]);
    starts.iter().for_each(|start| zero(&disk, *start, 4096));
    extant(&["fsck", "-fn", &disk]).fails(8, &["none of its partitions", "extant info --scan"]);
}

#[test]
fn random_bytes_contain_nothing_and_exit_with_8() {
    let dir = Dir::new();
    let image = dir.text("random.img");
    tool("dd", &["if=/dev/urandom", &format!("of={image}"), "bs=1M", "count=8", "status=none"]);
    // A magic number by itself is not a superblock.
    patch(&image, 3 * MIB + 56, &[0x53, 0xef]);
    extant(&["info", "--scan", &image]).fails(8, &["random.img", "no superblock", "photorec"]);
    let ran = extant(&["info", "--scan", "--json", &image]);
    let json: Value = serde_json::from_slice(&ran.out).expect("JSON");
    assert_eq!((ran.code, list(&json, "filesystems").len()), (Some(8), 0));
    extant(&["info", "--scan", &dir.text("missing.img")]).fails(8, &["missing.img"]);
    let empty = dir.text("empty.img");
    fs::File::create(&empty).expect("image").set_len(1 << 40).expect("size");
    // Holes are not read: that would take an hour.
    extant(&["info", "--scan", &empty]).fails(8, &["no superblock"]);
}

#[test]
fn image_files_inside_of_an_image_are_listed_separately() {
    let dir = Dir::new();
    let inner = made(&dir, "inner.img", 12 * MIB, &["-t", "ext2", "-b", "1024", "-L", "inner"]);
    let outer = made(&dir, "outer.img", 128 * MIB, &["-t", "ext4", "-b", "4096", "-g", "8192", "-L", "outer"]);
    extant(&["cp", &inner, &format!("{outer}:/")]).ok();
    for gone in [false, true] {
        if gone {
            zero(&outer, 0, 4096);
        }
        let found = scan(&outer);
        let all = list(&found, "filesystems");
        assert_eq!((&all[0]["label"], &all[0]["inside"]), (&"outer".into(), &Value::Null), "{found}");
        let groups = numbers(list(&all[0], "superblocks"), "group");
        assert_eq!(groups, [0, 1, 3][usize::from(gone)..]);
        assert!(all[1..].iter().all(|fs| fs["label"] == "inner" && fs["inside"] == 0), "{found}");
        assert!(all.len() > 1, "{found}");
        commands_work(&dir, &all[0]);
        let said = extant(&["info", "--scan", &outer]).ok();
        let (before, apart) = said.split_once("In the range of another one").expect("listed apart");
        assert!(before.contains("\"outer\"") && !before.contains("\"inner\""), "{said}");
        assert!(apart.contains("\"inner\"") && apart.contains("Inside:      that at byte 0"), "{said}");
    }
}

#[test]
fn copies_in_a_journal_are_no_file_systems() {
    // Once with backups, once with only the primary.
    for (group_blocks, groups) in [("8192", &[0, 1][..]), ("32768", &[0])] {
        copies_in_a_journal(group_blocks, groups);
    }
}

fn copies_in_a_journal(group_blocks: &str, groups: &[u64]) {
    let dir = Dir::new();
    let image = made(&dir, "disk.img", 64 * MIB, &["-t", "ext4", "-b", "4096", "-g", group_blocks]);
    let said = debugfs(&image, "stat <8>");
    let (_, runs) = said.split_once("EXTENTS:\n").expect("the journal's extents");
    let (_, first) = runs.split_once("):").expect("a run");
    let block: u64 = first.split(['-', ',', '\n']).next().and_then(|n| n.trim().parse().ok()).expect("a block");
    let bytes = fs::read(&image).expect("image");
    // A single superblock, and one with the descriptors behind it.
    patch(&image, (block + 20) * 4096, &bytes[..4096]);
    patch(&image, (block + 30) * 4096, &bytes[..8192]);
    let found = scan(&image);
    let [one] = &list(&found, "filesystems")[..] else { panic!("{found}") };
    assert_eq!(numbers(list(one, "superblocks"), "group"), groups);
    let copies = [20, 30].map(|n| (block + n) * 4096 + 1024);
    assert_eq!(numbers(list(&found, "copies"), "byte"), copies);
    // The same if only a backup is left.
    if groups.len() > 1 {
        zero(&image, 0, 4096);
        let found = scan(&image);
        let [one] = &list(&found, "filesystems")[..] else { panic!("{found}") };
        assert_eq!((&one["start"], numbers(list(one, "superblocks"), "group")), (&0.into(), groups[1..].to_vec()));
        assert_eq!(numbers(list(&found, "copies"), "byte"), copies);
    }
}

/// Kernels before 5.18 write the number 0 into all copies when they resize.
#[test]
fn copies_that_do_not_name_their_group_agree_on_a_start() {
    let dir = Dir::new();
    let options = ["-t", "ext4", "-b", "4096", "-g", "8192", "-O", "^metadata_csum"];
    let part = made(&dir, "part.img", 240 * MIB, &options);
    for group in [1, 3, 5, 7] {
        patch(&part, group * 8192 * 4096 + 90, &[0, 0]);
    }
    let disk = disk_of(&dir, 256 * MIB, &[(&part, 3 * MIB)]);
    zero(&disk, 0, 16 * MIB);
    let found = scan(&disk);
    let [one] = &list(&found, "filesystems")[..] else { panic!("{found}") };
    assert_eq!(one["start"], 3 * MIB);
    assert_eq!(numbers(list(one, "superblocks"), "group"), [1, 3, 5, 7]);
    commands_work(&dir, one);
}

/// With blocks of 1 KiB, the primary at 8 MiB lies where group 1 of a file system at byte 0 would have a backup.
#[test]
fn a_file_system_at_the_place_of_a_backup_is_not_checked_at_byte_0() {
    let dir = Dir::new();
    let part = made(&dir, "part.img", 30 * MIB, &["-t", "ext4", "-b", "1024"]);
    let disk = disk_of(&dir, 200 * MIB, &[(&part, 8 * MIB)]);
    extant(&["ls", &disk]).fails(8, &["begins at byte 8388608", "offset=8388608"]);
    extant(&["fsck", "-fn", &disk]).fails(8, &["begins at byte 8388608", "extant fsck -fn --offset 8388608"]);
    extant(&["fsck", "-fn", "--offset", "8388608", &disk]).ok();
    assert_eq!(extant(&["ls", "--offset", "8388608", &disk]).ok(), "lost+found\n");
}
