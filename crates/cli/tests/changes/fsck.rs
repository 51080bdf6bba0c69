//! `extant fsck`: exit statuses, lines, JSON, progress; -n changes nothing, and a repair can be undone.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::common::{Dir, extant, extant_path, run, tool};
use serde_json::Value;

const BLOCK: u64 = 4096;

fn made(dir: &Dir) -> String {
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-g", "8192", &image, "64M"]);
    image
}

fn overwrite(image: &str, at: u64, bytes: &[u8]) {
    fs::File::options().write(true).open(image).expect("image").write_all_at(bytes, at).expect("written");
}

/// Clears the bitmap of the first group's blocks.
fn damage(image: &str) {
    let said = tool("dumpe2fs", &[image]);
    let (_, place) = said.split_once("Block bitmap at ").expect("a bitmap");
    let block: u64 = place.split_once(' ').expect("a number").0.parse().expect("a number");
    overwrite(image, block * BLOCK, &[0; 64]);
}

#[test]
fn a_sound_image_has_no_damage_and_status_0() {
    let dir = Dir::new();
    let image = made(&dir);
    let said = extant(&["fsck", "-n", &image]).ok();
    assert!(said.contains(": clean, 11/"), "{said}");
    let said = extant(&["fsck", "-fn", "-v", "-t", &image]).ok();
    assert!(said.contains(": no damage, 11/") && said.contains("2 of them directories"), "{said}");
}

#[test]
fn damage_is_listed_with_status_4_and_left_as_it_is() {
    let dir = Dir::new();
    let image = made(&dir);
    damage(&image);
    let before = fs::read(&image).expect("image");
    let ran = extant(&["fsck", "-fn", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(ran.code, Some(4), "{said}{}", ran.err);
    assert!(said.contains("group 0: the block bitmap's checksum is 0x"), "{said}");
    assert!(said.contains("are marked as free, but are used"), "{said}");
    assert!(said.lines().last().is_some_and(|line| line.contains(": damaged, ")), "{said}");
    let json: Value = serde_json::from_slice(&extant(&["fsck", "-fn", "--json", &image]).out).expect("JSON");
    assert_eq!(json["damaged"], true);
    let codes: Vec<_> = json["findings"].as_array().expect("findings").iter().map(|one| &one["code"]).collect();
    assert!(codes.iter().any(|code| *code == "0x05001b") && codes.iter().any(|code| *code == "0x050005"), "{json}");
    for threads in ["1", "2", "8"] {
        let again = extant(&["fsck", "-fn", "--threads", threads, &image]);
        assert_eq!(String::from_utf8_lossy(&again.out), said);
    }
    assert!(before == fs::read(&image).expect("image"), "the image has changed");
}

#[test]
fn without_a_letter_and_a_terminal_fsck_does_nothing_and_exits_with_16() {
    let dir = Dir::new();
    let image = made(&dir);
    extant(&["fsck", &image]).fails(16, &["no terminal", "give -n, -p or -y"]);
    extant(&["fsck", "-n", "--no-such-option", &image]).fails(16, &["--no-such-option"]);
    extant(&["fsck", "-n", "-b", "32768", "-B", "1000", &image]).fails(16, &["-B"]);
}

#[test]
fn an_image_without_a_superblock_has_status_8() {
    let dir = Dir::new();
    let image = dir.text("zeros.img");
    fs::write(&image, vec![0; 8 << 20]).expect("written");
    extant(&["fsck", "-n", &image]).fails(8, &["no ext2, ext3 or ext4 superblock"]);
    extant(&["fsck", "-n", &dir.text("none.img")]).fails(8, &["none.img"]);
}

#[test]
fn a_truncated_image_has_status_4_and_its_losses_are_listed() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "4096", "-g", "8192", &image, "128M"]);
    let cut = |bytes| fs::File::options().write(true).open(&image).and_then(|file| file.set_len(bytes)).expect("cut");
    cut(80 << 20);
    let ran = extant(&["fsck", "-fn", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(ran.code, Some(4), "{said}{}", ran.err);
    assert!(said.contains("the file system claims 32768 blocks, the device has 20480"), "{said}");
    // The fourth group's block bitmap.
    assert!(said.contains("4096 bytes from byte ") && said.contains(" cannot be read"), "{said}");
    cut(1024);
    extant(&["fsck", "-fn", &image]).fails(8, &["no ext2, ext3 or ext4 superblock"]);
}

#[test]
fn a_lost_superblock_is_replaced_by_a_backup() {
    let dir = Dir::new();
    let image = made(&dir);
    overwrite(&image, 1024, &[0; 1024]);
    let ran = extant(&["fsck", "-n", &image]);
    assert_eq!(ran.code, Some(4), "{}", ran.err);
    assert!(ran.err.contains("the backup of the superblock at byte 33554432 is used"), "{}", ran.err);
    let ran = extant(&["fsck", "-n", "-b", "8192", "-B", "4096", &image]);
    assert!(ran.err.contains("at byte 33554432"), "{}", ran.err);
    extant(&["fsck", "-n", "-b", "5000", "-B", "4096", &image]).fails(8, &["block 5000 is no superblock"]);
}

#[test]
fn progress_is_written_to_a_descriptor_as_e2fsck_does() {
    let dir = Dir::new();
    let image = made(&dir);
    let script = r#""$1" fsck -fn -C 3 "$2" 3>"$3""#;
    let (program, lines) = (crate::common::extant_path().to_str().expect("UTF-8"), dir.text("progress"));
    assert_eq!(run("sh", &["-c", script, "sh", program, &image, &lines]).code, Some(0));
    let lines = fs::read_to_string(&lines).expect("lines");
    let first: Vec<&str> = lines.lines().next().expect("a line").split(' ').collect();
    assert_eq!((first[0], first.len()), ("1", 4), "{lines}");
    assert!(lines.lines().any(|line| line.starts_with("5 ")), "{lines}");
}

/// The command lines of genimage and Yocto, under e2fsck's names.
#[test]
fn a_link_named_fsck_ext4_takes_the_letters_of_e2fsck() {
    let dir = Dir::new();
    let image = made(&dir);
    for name in ["e2fsck", "fsck.ext4", "fsck.ext3", "fsck.ext2"] {
        let link = dir.text(name);
        std::os::unix::fs::symlink(extant_path(), &link).expect("link");
        run(&link, &["-pvfD", &image]).ok();
        run(&link, &["-fy", "-C", "-1", "-E", "discard", &image]).ok();
        run(&link, &[&image]).fails(16, &["no terminal"]);
        run(&link, &["--no-such", &image]).fails(16, &["--no-such"]);
        assert!(run(&link, &["-V"]).ok().contains(env!("CARGO_PKG_VERSION")));
    }
}

/// The exit status of `e2fsck -fn`.
fn e2fsck(image: &str) -> Option<i32> {
    extant_testkit::oracle::e2fsck(image, &["-fn"]).ok().map(|fsck| fsck.code)
}

#[test]
fn a_repair_that_needs_no_person_is_made_by_p() {
    let dir = Dir::new();
    let image = made(&dir);
    let change = "write /etc/hostname file\nset_inode_field file links_count 7";
    extant_testkit::oracle::debugfs_write(&image, change).expect("damaged");
    let ran = extant(&["fsck", "-fp", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(ran.code, Some(1), "{said}{}", ran.err);
    assert!(said.contains("one transaction of the journal") && said.contains("repaired in 1 steps"), "{said}");
    assert_eq!(e2fsck(&image), Some(0));
    extant(&["fsck", "-fp", &image]).ok();
}

#[test]
fn a_repair_that_needs_a_person_is_left_to_y_and_can_be_undone() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", &image, "8M"]);
    extant_testkit::oracle::debugfs_write(&image, "write /etc/hostname file\nset_inode_field file block[0] 99999")
        .expect("damaged");
    let before = fs::read(&image).expect("image");
    extant(&["fsck", "-fp", &image]).fails(4, &["a person has to decide", "extant fsck -y"]);
    assert!(before == fs::read(&image).expect("image"), "-p has changed the image");
    let ran = extant(&["fsck", "-fn", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert!(ran.code == Some(4) && said.contains("plan: inode 12: write its map"), "{said}");
    assert!(before == fs::read(&image).expect("image"), "-n has changed the image");
    let ran = extant(&["fsck", "-fy", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(ran.code, Some(1), "{said}{}", ran.err);
    assert!(said.contains("disk.img.undo"), "{said}");
    assert_eq!(e2fsck(&image), Some(0));
    let repaired = fs::read(&image).expect("image");
    let record = dir.text("disk.img.undo");
    // Any other change is not undone.
    extant(&["mkdir", &format!("{image}:/new")]).ok();
    extant(&["fsck", "--undo", &record, &image]).fails(8, &["has changed since", "-f"]);
    fs::write(&image, &repaired).expect("written");
    extant(&["fsck", "--undo", &record, &image]).ok();
    assert!(before == fs::read(&image).expect("image"), "not undone");
    fs::write(&image, &repaired).expect("written");
    tool("e2undo", &[&record, &image]);
    assert!(before == fs::read(&image).expect("image"), "not undone by e2undo");
}

#[test]
fn totals_and_multi_mount_protection_alone_are_repaired_by_p() {
    let dir = Dir::new();
    let image = made(&dir);
    extant_testkit::oracle::debugfs_write(&image, "set_super_value free_blocks_count 7").expect("damaged");
    assert_eq!(extant(&["fsck", "-fn", &image]).code, Some(0));
    let ran = extant(&["fsck", "-fp", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert!(ran.code == Some(1) && said.contains("the superblock's totals are right now"), "{said}{}", ran.err);
    extant(&["fsck", "-fp", &image]).ok();
    let image = dir.text("mmp.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum", &image, "16M"]);
    let said = tool("dumpe2fs", &["-h", &image]);
    let (_, block) = said.split_once("MMP block number:").expect("a block");
    let block: u64 = block.split_whitespace().next().expect("a number").parse().expect("a number");
    // The sequence number that an interrupted checker leaves.
    overwrite(&image, block * BLOCK + 4, &0xe24d_4d50u32.to_le_bytes());
    for args in [&["fsck", "-fy", &image][..], &["tune", "-L", "x", &image], &["resize", &image, "24M"]] {
        let ran = extant(args);
        assert!(ran.code != Some(0) && ran.err.contains("a checker uses it"), "{args:?}: {}", ran.err);
    }
    extant(&["tune", "-E", "clear_mmp", &image]).ok();
    overwrite(&image, block * BLOCK, &[0xff]);
    extant(&["fsck", "-fn", &image]).fails(4, &[]);
    assert_eq!(extant(&["fsck", "-fp", &image]).code, Some(1));
    extant(&["fsck", "-fn", &image]).ok();
    assert_eq!(e2fsck(&image), Some(0));
}

/// An ext2 image with two files that share a block.
fn sharing(dir: &Dir, name: &str) -> String {
    let image = dir.text(name);
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", &image, "8M"]);
    for file in ["one", "two"] {
        fs::write(dir.path(file), file.repeat(2000)).expect("written");
        let write = format!("write {} {file}", dir.text(file));
        extant_testkit::oracle::debugfs_write(&image, &write).expect("written");
    }
    let shared = crate::common::debugfs(&image, "bmap one 3");
    let change = format!("set_inode_field two block[3] {}", shared.trim());
    extant_testkit::oracle::debugfs_write(&image, &change).expect("damaged");
    image
}

#[test]
fn shared_blocks_are_copied_or_become_holes_as_asked() {
    let dir = Dir::new();
    for (rule, lost) in [("copy", 0), ("winner", 1), ("hole", 2)] {
        let image = sharing(&dir, &format!("{rule}.img"));
        let ran = extant(&["fsck", "-fy", &format!("--shared={rule}"), &image]);
        let said = String::from_utf8_lossy(&ran.out).into_owned();
        assert_eq!(ran.code, Some(1), "{said}{}", ran.err);
        assert_eq!(said.matches("loses: ").count(), lost, "{said}");
        assert_eq!(e2fsck(&image), Some(0), "{rule}");
        let holes = ["one", "two"]
            .iter()
            .filter(|file| crate::common::debugfs(&image, &format!("bmap {file} 3")).trim() == "0");
        assert_eq!(holes.count(), lost, "{rule}");
    }
}

#[test]
fn the_backup_that_b_names_becomes_the_superblock() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", &image, "16M"]);
    let uuid = |image: &str| {
        let said = tool("dumpe2fs", &["-h", image]);
        said.lines().find(|line| line.contains("UUID")).expect("a UUID").to_owned()
    };
    let sound = uuid(&image);
    for damage in [&[0; 1024][..], &[0x55; 16]] {
        // Damages all of the superblock, or only the UUID, without a checksum that would reveal it.
        overwrite(&image, if damage.len() == 16 { 1024 + 0x68 } else { 1024 }, damage);
        extant(&["fsck", "-fy", "-b", "5000", "-B", "1024", &image]).fails(8, &["block 5000 is no superblock"]);
        let ran = extant(&["fsck", "-fy", "-b", "8193", "-B", "1024", &image]);
        let said = String::from_utf8_lossy(&ran.out).into_owned();
        assert_eq!(ran.code, Some(1), "{said}{}", ran.err);
        assert!(said.contains("the superblock is repaired, no other damage"), "{said}");
        assert_eq!((uuid(&image), e2fsck(&image)), (sound.clone(), Some(0)));
    }
}

#[test]
fn without_undo_a_repair_leaves_no_file() {
    let dir = Dir::new();
    let image = sharing(&dir, "disk.img");
    let ran = extant(&["fsck", "-fy", "--no-undo", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(ran.code, Some(1), "{said}{}", ran.err);
    assert!(said.contains("without a record of the old ones"), "{said}");
    assert!(!fs::exists(dir.path("disk.img.undo")).expect("looked") && e2fsck(&image) == Some(0));
}

/// The host has no space for some blocks of a sparse image.
#[test]
fn a_write_that_fails_has_status_8_and_says_how_to_go_on() {
    let dir = Dir::new();
    let full = dir.text("full");
    fs::create_dir(&full).expect("a directory");
    let mounted = run("mount", &["-t", "tmpfs", "-o", "size=4M", "none", &full]);
    if mounted.code != Some(0) {
        println!("skipped: no mounts here: {}", mounted.err);
        return;
    }
    let _unmount = crate::common::Unmounted(full.clone());
    let image = format!("{full}/disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "4096", "-O", "^resize_inode", &image, "512M"]);
    // Punches a hole in the image file for each block bitmap.
    let said = tool("dumpe2fs", &[&image]);
    for (_, place) in said.match_indices("Block bitmap at ").map(|(at, text)| said.split_at(at + text.len())) {
        let block: String = place.chars().take_while(char::is_ascii_digit).collect();
        let at = block.parse::<u64>().expect("a number") * BLOCK;
        tool("fallocate", &["-p", "-o", &at.to_string(), "-l", "4096", &image]);
    }
    let old = dir.text("old.img");
    tool("cp", &["--sparse=always", &image, &old]);
    let fill = |free: u64| {
        let _ = fs::write(format!("{full}/fill"), vec![1; 8 << 20]);
        let file = fs::File::options().write(true).open(format!("{full}/fill")).expect("opened");
        let len = file.metadata().expect("its size").len();
        file.set_len(len / BLOCK * BLOCK - free * BLOCK).expect("cut");
    };
    let again = format!("'extant fsck -y {image}'");
    // There is no space for the record, which is removed again.
    fill(3);
    extant(&["fsck", "-fy", &image]).fails(8, &["the image is not changed", "-z FILE"]);
    assert!(!fs::exists(format!("{full}/disk.img.undo")).expect("looked"));
    tool("cmp", &[&image, &old]);
    // There is space for the record and for two bitmaps.
    fill(12);
    extant(&["fsck", "-fy", &image]).fails(8, &["may be written in part", "No space left", "--undo", &again]);
    extant(&["fsck", "-fy", &image]).fails(8, &["interrupted", "--undo"]);
    fs::remove_file(format!("{full}/fill")).expect("removed");
    extant(&["fsck", "--undo", &format!("{full}/disk.img.undo"), &image]).ok();
    tool("cmp", &[&image, &old]);
    let ran = extant(&["fsck", "-fy", &image]);
    assert_eq!((ran.code, e2fsck(&image)), (Some(1), Some(0)), "{}", ran.err);
}

/// Runs the command on a pseudo terminal, and types a line after each question. Returns the screen and the status.
fn at_a_terminal(args: &[&str], lines: &[&str]) -> (String, Option<i32>) {
    const TYPIST: &str = r#"
import os, pty, select, sys
lines = [line for line in sys.argv[1].split(",") if line]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[2], sys.argv[2:])
screen, seen = b"", 0
while True:
    if not select.select([terminal], [], [], 60)[0]:
        sys.exit("it asks and waits: " + screen.decode())
    try:
        more = os.read(terminal, 4096)
    except OSError:
        break
    if not more:
        break
    screen += more
    if screen.endswith(b"] ") and screen.count(b"] ") > seen and lines:
        seen = screen.count(b"] ")
        os.write(terminal, lines.pop(0).encode() + b"\n")
sys.stdout.write(screen.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;
    let mut all = vec!["-c", TYPIST];
    let typed = lines.join(",");
    all.extend([typed.as_str(), extant_path().to_str().expect("UTF-8"), "fsck", "-f"]);
    all.extend(args);
    let ran = run(crate::common::python(), &all);
    (format!("{}{}", String::from_utf8_lossy(&ran.out), ran.err), ran.code)
}

#[test]
fn at_a_terminal_each_step_is_asked_about() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "1024", &image, "8M"]);
    let files = ["one", "two", "three"];
    let change: Vec<String> = files
        .iter()
        .flat_map(|file| [format!("write /etc/hostname {file}"), format!("set_inode_field {file} links_count 7")])
        .collect();
    extant_testkit::oracle::debugfs_write(&image, &change.join("\n")).expect("damaged");
    let before = fs::read(&image).expect("image");
    let links = |file: &str| crate::common::debugfs(&image, &format!("stat {file}")).contains("Links: 1");
    // Help, one step declined, and end of file.
    let (screen, code) = at_a_terminal(&[&image], &["?", "no", "no", "no"]);
    assert_eq!(code, Some(4), "{screen}");
    assert!(screen.contains("Nothing is written before") && screen.contains("set the link count to 1"), "{screen}");
    assert!(before == fs::read(&image).expect("image"), "{screen}");
    // All steps accepted, but not written.
    let (screen, code) = at_a_terminal(&[&image], &["y", "a", "n"]);
    assert_eq!(code, Some(4), "{screen}");
    assert!(screen.contains("3 steps, 0 losses, and then nothing is wrong"), "{screen}");
    assert!(before == fs::read(&image).expect("image"), "{screen}");
    // One step declined, the others written.
    let (screen, code) = at_a_terminal(&[&image], &["n", "y", "y", "y"]);
    assert_eq!(code, Some(5), "{screen}");
    assert_eq!(files.map(links), [false, true, true], "{screen}");
    let (screen, code) = at_a_terminal(&[&image], &["a", "y"]);
    assert_eq!((code, e2fsck(&image)), (Some(1), Some(0)), "{screen}");
}

#[test]
fn a_finding_in_the_superblock_names_its_field() {
    let dir = Dir::new();
    let image = dir.text("disk.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext2", "-b", "4096", &image, "16M"]);
    // s_log_groups_per_flex.
    overwrite(&image, 1024 + 0x174, &[40]);
    let ran = extant(&["fsck", "-fn", &image]);
    let said = String::from_utf8_lossy(&ran.out).into_owned();
    assert!(said.contains("superblock, s_log_groups_per_flex: the impossible value 40 (limit 31)"), "{said}");
    let json: Value = serde_json::from_slice(&extant(&["fsck", "-fn", "--json", &image]).out).expect("JSON");
    assert_eq!(json["findings"][0]["field"], "s_log_groups_per_flex", "{json}");
}
