//! Examining images without mounting them: ls, cat, stat, tree and info, compared with debugfs and dumpe2fs.

use crate::common::{Dir, big, debugfs, extant, loop_mounts_work, patch, run, tool, umount, whole_disk};
use extant_testkit::oracle::run_command;

#[test]
fn ls_lists_what_debugfs_lists() {
    for fs_type in ["ext2", "ext3", "ext4"] {
        let dir = Dir::new();
        let image = dir.image(fs_type, &["-b", "1024"]);
        let ours = extant(&["ls", &image]);
        assert_eq!(ours.code, Some(0));
        let mut names: Vec<&[u8]> = ours.out.strip_suffix(b"\n").expect("lines").split(|b| *b == b'\n').collect();
        // One name contains a newline.
        let odd = names.iter().position(|n| *n == b"odd\xff").expect("the odd name, raw");
        assert_eq!(names.remove(odd + 1), b"name");
        let theirs = debugfs(&image, "ls -p /");
        let count = theirs.lines().filter(|l| l.starts_with('/') && !l.contains("/./") && !l.contains("/../")).count();
        assert_eq!(names.len(), count, "{theirs}");
        assert!(names.is_sorted());

        let long = String::from_utf8_lossy(&extant(&["ls", "-l", &image]).out).into_owned();
        assert!(long.contains("link -> etc/passwd\n"), "{long}");
        let sparse = long.lines().find(|l| l.ends_with(" sparse")).expect("sparse");
        assert!(sparse.starts_with("-rw-r--r-- 1") && sparse.contains(" 52428800 "), "{sparse}");
        assert!(long.contains("\nprw-r--r-- 1"), "{long}");
        let one = extant(&["ls", "-l", &image, "etc/passwd"]).ok();
        assert!(one.starts_with("-rwsr-x--x 1 "), "{one}");
        assert!(one.contains(" 26 2001-09-09 01:46 etc/passwd\n"), "{one}");
        let all = extant(&["ls", "-R", &image, "/etc"]).ok();
        assert_eq!(all, "/etc:\ndeep\npasswd\n\n/etc/deep:\ner\n\n/etc/deep/er:\nfile\n");
    }
}

/// The verbs accept `IMAGE:PATH`, and common options of ls(1) are no errors.
#[test]
fn an_image_and_a_path_may_be_one_word() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let word = |path: &str| format!("{image}:{path}");
    assert_eq!(extant(&["ls", &word("/etc")]).ok(), extant(&["ls", &image, "/etc"]).ok());
    assert_eq!(extant(&["ls", &word("")]).out, extant(&["ls", &image]).out);
    assert_eq!(extant(&["cat", &word("etc/deep/er/file"), "empty", &word("/etc/deep/er/file")]).ok(), "deep\ndeep\n");
    assert_eq!(extant(&["stat", &word("/etc")]).ok(), extant(&["stat", &image, "/etc"]).ok());
    assert_eq!(extant(&["tree", &word("/etc")]).ok(), extant(&["tree", &image, "/etc"]).ok());
    extant(&["ls", &word("/nothing")]).fails(8, &["disk.img: /nothing: no such file"]);
    extant(&["stat", &word("/etc"), "/etc"]).fails(1, &["one path at a time: /etc or /etc"]);
    extant(&["stat", &image]).fails(1, &["of which file?", "extant info"]);
    extant(&["cat", &image]).fails(1, &["which files of"]);
    // A host path after an image is an error.
    extant(&["find", &image, "/etc"]).fails(8, &["/etc: not an image; in ", "disk.img:/etc"]);

    let long = extant(&["ls", "-l", &image]).out;
    for usual in ["-la", "-l1", "-lA", "-n", "-aAn"] {
        assert_eq!(extant(&["ls", usual, &image]).out, long, "{usual}");
    }
    assert_eq!(extant(&["ls", "-a", &image]).out, extant(&["ls", &image]).out);
}

/// `info` does not report an image as mountable if it is not.
#[test]
fn info_reports_a_truncated_image() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    assert!(extant(&["info", &image]).ok().contains("Extant:      read and write"));
    let file = std::fs::OpenOptions::new().write(true).open(&image).expect("opened");
    let whole = file.metadata().expect("size").len();
    file.set_len(whole / 2).expect("cut");
    let info = extant(&["info", &image]);
    assert!(info.code == Some(0) && info.err.contains("behind the device's end is lost"), "{info:?}");
    let info = String::from_utf8_lossy(&info.out);
    assert!(info.contains(&format!("file system of {whole} bytes on a device of {}", whole / 2)), "{info}");
    assert!(!info.contains("read and write"), "{info}");
}

/// A read-only mount uses the backup of a damaged descriptor; a writable mount refuses the image.
#[test]
fn info_reports_what_a_mount_refuses() {
    let dir = Dir::new();
    let image = dir.text("damaged.img");
    extant_testkit::oracle::mke2fs(&image, &["-t", "ext4", "-b", "4096"], "256M");
    let info = || String::from_utf8_lossy(&extant(&["info", &image]).out).into_owned();
    assert!(info().contains("State:       clean\nExtant:      read and write\n"), "{}", info());
    let descriptors = [0xa5; 4096];
    patch(&image, 4096, &descriptors);
    assert!(info().contains("State:       damaged, marked as clean\nExtant:      read-only (group desc"), "{}", info());
    extant(&["mkdir", &format!("{image}:/d")]).fails(8, &["group descriptor"]);
    // The check also counts with the backup.
    let checked = extant(&["fsck", "-fn", &image]);
    let said = String::from_utf8_lossy(&checked.out).into_owned();
    let (_, last) = said.trim_end().rsplit_once('\n').expect("lines");
    assert!(checked.code == Some(4) && last.contains(", 11/65536 files, "), "{said}");
    assert!(!said.contains("journal"), "{said}");
    // Damages the only backup as well.
    patch(&image, 32769 * 4096, &descriptors);
    assert!(info().contains("Extant:      none (group descriptor"), "{}", info());
}

/// Every block of an image with direct and mapped files, against debugfs's icheck and ncheck.
#[test]
fn a_block_leads_to_its_file() {
    for (fs_type, options) in [("ext2", &["-b", "1024"][..]), ("ext4", &["-b", "1024", "-O", "^flex_bg"])] {
        let dir = Dir::new();
        let image = dir.image(fs_type, options);
        extant(&["xattr", "set", "user.long", &"x".repeat(400), &format!("{image}:/etc/passwd")]).ok();
        // The blocks around the first block of a file with pointers to its blocks, and an attribute block.
        let first: u64 = debugfs(&image, "bmap /big 0").trim().parse().expect("a block");
        let attributes = debugfs(&image, "stat /etc/passwd");
        let attributes = attributes.lines().find_map(|line| line.split("File ACL: ").nth(1)).expect("a number");
        let blocks: Vec<u64> = (first - 40..first + 40).chain(attributes.trim().parse()).collect();
        let list: Vec<String> = blocks.iter().map(u64::to_string).collect();
        let owners = debugfs(&image, &format!("icheck {}", list.join(" ")));
        let inodes: Vec<(String, String)> = owners
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .map(|(block, ino)| (block.to_owned(), ino.trim().to_owned()))
            .filter(|(block, _)| block.starts_with(|c: char| c.is_ascii_digit()))
            .collect();
        assert_eq!(inodes.len(), blocks.len(), "{owners}");
        let mut owned = 0;
        for (block, ino) in inodes {
            let ran = extant(&["find", &image, "-block", &block]);
            let found = String::from_utf8_lossy(&ran.out).into_owned();
            let names = debugfs(&image, &format!("ncheck {ino}"));
            // debugfs does not name the root.
            let root = (ino == "2").then_some("").into_iter();
            let expected: Vec<&str> = names
                .lines()
                .filter_map(|line| line.split_once('\t'))
                .filter(|(number, _)| *number == ino)
                .map(|(_, path)| path.trim_start_matches("/"))
                .chain(root)
                .collect();
            owned += expected.len();
            let found: Vec<&str> = found.lines().map(|path| path.trim_start_matches("/")).collect();
            assert_eq!((ran.code, &found), (Some(0), &expected), "{fs_type}, block {block}: {}", ran.err);
            assert_eq!(found.is_empty(), ran.err.contains(&format!("block {block}: ")), "{block}: {}", ran.err);
        }
        assert!(owned > 40, "{owned}");
    }
}

#[test]
fn a_sector_of_a_disk_leads_to_its_file() {
    let dir = Dir::new();
    let image = dir.image("ext4", &["-b", "1024"]);
    let disk = dir.text("whole.img");
    whole_disk(&disk, &image);
    let block: u64 = debugfs(&image, "bmap /big 100").trim().parse().expect("a block");
    let json = |args: &[&str]| -> serde_json::Value { serde_json::from_str(&extant(args).ok()).expect("JSON") };
    let number = json(&["stat", "--json", &image, "/etc/passwd"])["inode"].to_string();
    assert_eq!(extant(&["find", &image, "-inode", &number]).ok(), "/etc/passwd\n");
    for start in json(&["info", "--json", &disk])["partitions"].as_array().expect("partitions") {
        let (Some(start), Some("ext4")) = (start["start"].as_u64(), start["filesystem"].as_str()) else { continue };
        let sector = (start / 512 + 2 * block + 1).to_string();
        assert_eq!(extant(&["find", &disk, "-sector", &sector]).ok(), "/big\n");
        let said =
            extant(&["find", &disk, "-sector", &(start / 512 + 2).to_string()]).fails(0, &["superblock and desc"]);
        assert!(said.contains("sector"), "{said}");
    }
}

#[test]
fn cat_prints_files() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    assert_eq!(extant(&["cat", &image, "/big"]).out, big());
    assert_eq!(extant(&["cat", &image, "/link"]).ok(), "root:x:0:0::/root:/bin/sh\n");
    assert_eq!(
        extant(&["cat", &image, "absolute/../etc/deep/er/file", "empty", "etc/deep/er/file"]).ok(),
        "deep\ndeep\n"
    );
    let sparse = extant(&["cat", &image, "sparse"]).out;
    assert_eq!(sparse.len(), 50 << 20);
    assert_eq!(&sparse[20_000_000..20_000_013], b"in the middle");
    // Files that can be printed are printed.
    let some = extant(&["cat", &image, "no/such", "etc/deep/er/file", "/etc", "self"]);
    assert_eq!(some.out, b"deep\n");
    some.fails(
        8,
        &["disk.img: no/such: no such file", "/etc: is a directory", "self: too many levels of symbolic links"],
    );
}

#[test]
fn a_closed_pipe_ends_the_command_quietly() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let script =
        format!("{} cat {image} /sparse | head -c 5 >/dev/null; echo ${{PIPESTATUS[0]}}", env!("CARGO_BIN_EXE_extant"));
    let done = run("bash", &["-c", &script]);
    assert_eq!(done.ok(), "141\n");
}

#[test]
fn stat_shows_what_debugfs_shows() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let shown = extant(&["stat", &image, "/etc/passwd"]).ok();
    let theirs = debugfs(&image, "stat /etc/passwd");
    let inode = theirs.lines().next().and_then(|l| l.split_whitespace().nth(1)).expect("number");
    assert!(shown.contains(&format!(" Inode: {inode} ")), "{shown}\n{theirs}");
    assert!(shown.contains("Access: (4751/-rwsr-x--x)"), "{shown}");
    assert!(shown.contains("Modify: 2001-09-09 01:46:40.000000000 +0000"), "{shown}");
    assert!(shown.contains("extents"), "{shown}");
    let link = extant(&["stat", &image, "link"]).ok();
    assert!(link.starts_with("  File: link -> etc/passwd\n") && link.contains("symbolic link"), "{link}");
    extant(&["stat", &image, "/none"]).fails(8, &["disk.img: /none: no such file or directory"]);
}

#[test]
fn tree_draws_every_level() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let drawn = extant(&["tree", &image, "/etc"]).ok();
    let expected = "/etc\n├── deep\n│   └── er\n│       └── file\n└── passwd\n\n2 directories, 2 other files\n";
    assert_eq!(drawn, expected);
    let flat = extant(&["tree", "-L", "1", &image, "/etc"]).ok();
    assert_eq!(flat, "/etc\n├── deep\n└── passwd\n\n1 directory, 1 other file\n");
    extant(&["tree", &image, "/big"]).fails(8, &["/big: not a directory"]);
}

#[test]
fn info_agrees_with_dumpe2fs() {
    for fs_type in ["ext2", "ext3", "ext4"] {
        let dir = Dir::new();
        let image = dir.image(fs_type, &[]);
        let text = extant(&["info", &image]).ok();
        assert!(text.contains(&format!("File system: {fs_type}, label \"a label\", UUID ")), "{text}");
        assert!(text.contains("State:       clean\n"), "{text}");
        let theirs = tool("dumpe2fs", &["-h", &image]);
        let field = |name: &str| {
            let line = theirs.lines().find(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{name}: {theirs}"));
            line[name.len()..].trim().to_owned()
        };
        let json: serde_json::Value = serde_json::from_str(&extant(&["info", "--json", &image]).ok()).expect("JSON");
        let fs = &json["filesystem"];
        for (ours, name) in [
            ("blocks", "Block count:"),
            ("blocks_free", "Free blocks:"),
            ("inodes", "Inode count:"),
            ("inodes_free", "Free inodes:"),
            ("block_size", "Block size:"),
            ("inode_size", "Inode size:"),
            ("blocks_reserved", "Reserved block count:"),
        ] {
            assert_eq!(fs[ours].to_string(), field(name), "{name}");
        }
        assert_eq!(fs["uuid"], field("Filesystem UUID:"));
        let mut theirs: Vec<String> = field("Filesystem features:").split_whitespace().map(str::to_owned).collect();
        let mut ours: Vec<String> = serde_json::from_value(fs["features"].clone()).expect("list");
        theirs.sort();
        ours.sort();
        assert_eq!(ours, theirs);
        assert_eq!(fs["journal"].is_null(), fs_type == "ext2");
    }
}

/// An image in its state after a crash: a copy made while the kernel had it mounted. The file `new` is only in the
/// journal.
fn crashed(dir: &Dir) -> Option<String> {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return None;
    }
    let image = dir.image("ext4", &[]);
    let (mnt, copy) = (dir.text("mnt"), dir.text("crashed.img"));
    std::fs::create_dir(&mnt).expect("directory");
    tool("mount", &["-o", "loop,commit=300", &image, &mnt]);
    let script = format!("echo from the journal > {mnt}/new && sync {mnt}/new && cp --sparse=always {image} {copy}");
    let written = run("sh", &["-c", &script]);
    umount(&[&mnt]);
    written.ok();
    Some(copy)
}

#[test]
fn reading_replays_in_memory_and_writes_nothing() {
    let mut made = None;
    // A sync(2) of any process on this machine may checkpoint all or some of the kernel's blocks.
    for _ in 0..5 {
        let dir = Dir::new();
        let Some(image) = crashed(&dir) else { return };
        let (_, without) = run_command("debugfs", &["-c", "-R", "stat /new", &image]).expect("debugfs");
        if without.contains("not found") {
            made = Some((dir, image));
            break;
        }
        eprintln!("home already: {without}");
    }
    let (dir, image) = made.expect("an image whose log has what home has not");
    let before = std::fs::read(&image).expect("image");

    assert_eq!(extant(&["cat", &image, "/new"]).ok(), "from the journal\n");
    assert!(String::from_utf8_lossy(&extant(&["ls", &image]).out).contains("\nnew\n"));
    extant(&["stat", &image, "new"]).ok();
    let info = extant(&["info", &image]).ok();
    assert!(info.contains("State:       needs recovery"), "{info}");
    assert!(info.contains(" to replay\n"), "{info}");
    let json: serde_json::Value = serde_json::from_str(&extant(&["info", "--json", &image]).ok()).expect("JSON");
    assert!(json["filesystem"]["journal"]["transactions_to_replay"].as_u64() > Some(0), "{json}");
    extant(&["cp", &format!("{image}:/new"), &dir.text("out")]).ok();
    assert!(before == std::fs::read(&image).expect("image"), "reading changed the image");

    // A command that writes replays the log in the image.
    extant(&["cp", &dir.text("out"), &format!("{image}:/newer")]).ok();
    crate::common::fsck_clean(&image);
    assert_eq!(debugfs(&image, "cat /new"), "from the journal\n");
    assert_eq!(debugfs(&image, "cat /newer"), "from the journal\n");
}

#[test]
fn partitions_are_offered_and_opened() {
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    for args in [&["ls", &disk][..], &["cat", &disk, "/x"], &["stat", &disk, "/"], &["tree", &disk]] {
        let said = extant(args).fails(8, &["whole.img: a whole disk", "--partition N", "64 MiB  Linux", "Linux swap"]);
        assert!(said.lines().any(|l| l.starts_with("   5 ")), "{said}");
    }
    let info = extant(&["info", &disk]).ok();
    assert!(info.contains("3 partitions"), "{info}");
    assert!(info.contains("Partition 2: ext4 \"a label\", clean"), "{info}");
    let json: serde_json::Value = serde_json::from_str(&extant(&["info", "--json", &disk]).ok()).expect("JSON");
    assert_eq!(json["partitions"][1]["filesystem"], "ext4");
    for number in ["2", "5"] {
        let named = format!("{disk}@{number}");
        let text = "root:x:0:0::/root:/bin/sh\n";
        assert_eq!(extant(&["cat", "--partition", number, &disk, "/etc/passwd"]).ok(), text);
        assert_eq!(extant(&["cat", &named, "/etc/passwd"]).ok(), text);
        extant(&["cp", "--privileges", &format!("{named}:/etc/passwd"), &dir.text("out")]).ok();
        extant(&["cp", &dir.text("out"), &format!("{named}:/copy")]).ok();
        assert_eq!(extant(&["cat", &named, "/copy"]).ok(), text);
    }
    extant(&["ls", "--partition", "3", &disk]).fails(8, &["whole.img: no partition 3; there are:"]);
    extant(&["ls", "--partition", "1", &disk]).fails(8, &["no ext2/3/4 file system"]);
    extant(&["ls", "--partition", "1", &image]).fails(8, &["partition 1 wanted, but there is no partition table"]);
    let part = dir.text("part.img");
    let (start, count) = ("bs=512", "skip=4096");
    tool("dd", &["status=none", start, count, "count=131072", &format!("if={disk}"), &format!("of={part}")]);
    crate::common::fsck_clean(&part);
}

const COMMANDS: &str = "mount unmount info ls cat stat tree find du df cp rm mkdir ln mv chmod chown mknod touch xattr script \
                        completions man";

#[test]
fn help_completions_and_manual_pages_are_printed() {
    let help = extant(&["--help"]).ok();
    for command in COMMANDS.split_whitespace() {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        let own = extant(&[command, "--help"]).ok();
        assert!(own.contains("Example"), "{own}");
    }
    assert!(extant(&["--version"]).ok().starts_with("extant "));
    assert!(extant(&["completions", "bash"]).ok().contains("unmount"));
    assert!(extant(&["completions", "zsh"]).ok().contains("#compdef extant"));
    assert!(extant(&["man"]).ok().contains(".TH extant"));
    let dir = Dir::new();
    extant(&["man", &dir.text("man1")]).ok();
    assert!(dir.path("man1/extant.1").exists() && dir.path("man1/extant-mount.1").exists());
    assert_eq!(extant(&["frobnicate"]).code, Some(1));
    assert_eq!(extant(&["ls"]).code, Some(1));
}

/// A directory of 200 names with an unreadable block: every command processes as much as possible, and reports the
/// loss.
#[test]
fn names_lost_by_damage_are_reported() {
    let dir = Dir::new();
    let (tree, image) = (dir.path("names/d"), dir.text("damaged.img"));
    std::fs::create_dir_all(&tree).expect("directories");
    for n in 0..200 {
        std::fs::write(tree.join(format!("name-{n:03}")), "x").expect("file");
    }
    let options = ["-q", "-F", "-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^dir_index"];
    tool("mke2fs", &[&options[..], &["-d", &dir.text("names"), &image, "16M"]].concat());
    let blocks = debugfs(&image, "blocks /d");
    let second: u64 = blocks.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a second block");
    patch(&image, second * 1024 + 4, &[3, 0]);
    let at = |path: &str| format!("{image}:{path}");
    let (file, lines, out) = (dir.text("names/d/name-000"), dir.text("lines"), dir.text("out"));
    std::fs::write(&lines, "chmod -R go-w /d\n").expect("file");
    for args in [
        &["cp", "-r", &at("/d"), &out][..],
        &["find", &at("/d")],
        &["du", &at("/d")],
        &["chmod", "-R", "go-w", &at("/d")],
        &["chown", "-R", "5:6", &at("/d")],
        &["script", &image, &lines],
    ] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(8), "{args:?}: {}", ran.err);
        assert!(ran.err.contains("damaged.img: "), "{args:?}: {}", ran.err);
    }
    // The remaining files are processed.
    let copied = std::fs::read_dir(&out).expect("copied").count();
    assert!((100..200).contains(&copied), "{copied}");
    assert!(debugfs(&image, "stat /d/name-000").contains("User:     5   Group:     6"));
    // An atomic script changes nothing.
    extant(&["script", "--atomic", &image, &lines]).fails(8, &["damaged.img: ", "nothing was changed"]);
    // This copy does not read the damaged directory.
    extant(&["cp", &file, &at("/new")]).ok();
}
