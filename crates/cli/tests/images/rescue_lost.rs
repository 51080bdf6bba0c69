//! `--rescue` if names are lost. Every reading verb and a mount show the same files, at least as many as `e2fsck -fy`
//! leaves on a copy. The exit status and the last line report damage.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::{Dir, Unmounted, debugfs, extant, in_time, patch, run, tool};
use extant_testkit::mount::fuse_works;
use extant_testkit::oracle::e2fsck;

/// An image of `files` files with different contents in directories of a few levels, including `/etc`.
fn filled(dir: &Dir, files: usize, block: u64, size: &str) -> String {
    let top = dir.path("src");
    for i in 0..files {
        let place = match i % 4 {
            0 => "etc".to_owned(),
            1 => format!("etc/{}/conf", i % 40),
            2 => format!("usr/share/{}", i % 100),
            _ => "var/a/b/c".to_owned(),
        };
        fs::create_dir_all(top.join(&place)).expect("directories");
        fs::write(top.join(place).join(format!("file-{i}")), vec![(i % 255 + 1) as u8; i + 1]).expect("file");
    }
    let image = dir.text("whole.img");
    let (inodes, block) = ((files * 2 + 200).to_string(), block.to_string());
    let top = top.to_str().expect("UTF-8");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", &block, "-N", &inodes, "-d", top, &image, size]);
    image
}

/// The contents of all regular files below a directory: first byte and length.
fn contents(top: &Path) -> Vec<(u8, usize)> {
    let (mut all, mut left) = (Vec::new(), vec![top.to_owned()]);
    while let Some(dir) = left.pop() {
        // Reading a damaged directory of a mount ends with an error.
        for entry in fs::read_dir(dir).expect("directory").map_while(Result::ok) {
            let kind = entry.file_type().expect("a type");
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                let bytes = fs::read(entry.path()).expect("file");
                all.push((bytes.first().copied().unwrap_or(0), bytes.len()));
            }
        }
    }
    all.sort_unstable();
    all
}

fn block_of(image: &str, what: &str) -> u64 {
    debugfs(image, &format!("bmap {what} 0")).trim().parse().expect("a block")
}

/// The first block of each inode table.
fn tables(image: &str) -> Vec<u64> {
    let said = tool("dumpe2fs", &[image]);
    let starts = said.split("Inode table at ").skip(1);
    starts.map(|rest| rest.split('-').next().and_then(|n| n.parse().ok()).expect("a block")).collect()
}

/// Copies the tree of an image. Returns the contents, the exit status, and the last line of the messages.
fn copied(dir: &Dir, image: &str, options: &[&str]) -> (Vec<(u8, usize)>, Option<i32>, String) {
    let out = dir.path("out");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir(&out).expect("directory");
    let from = format!("{image}:/");
    let args = [&["cp", "-r"], options, &[&from, out.to_str().expect("UTF-8")]].concat();
    let ran = in_time(&args);
    (contents(&out), ran.code, ran.err.lines().last().unwrap_or_default().to_owned())
}

/// The name of a kind of damage, and the function that damages an image.
type Damage<'a> = (&'a str, &'a dyn Fn(&str));

fn eight_damages(files: usize, block: u64, size: &str) {
    let dir = Dir::new();
    let whole = filled(&dir, files, block, size);
    let (one, first) = (block as usize, if block == 1024 { 2 } else { 1 });
    let all = contents(&dir.path("src"));
    assert_eq!(all.len(), files);
    let (root, etc, table) = (block_of(&whole, "<2>"), block_of(&whole, "/etc"), tables(&whole)[0]);
    let noise: Vec<u8> = (0..16 * 4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let zeros = vec![0; 1 << 20];
    let half = fs::metadata(&whole).expect("image").len() * 3 / 10;
    let damages: [Damage<'_>; 8] = [
        ("superblock zeroed", &|image| patch(image, 1024, &zeros[..1024])),
        ("descriptors scribbled", &|image| patch(image, first * block, &noise[..one])),
        ("cut", &|image| fs::File::options().write(true).open(image).expect("image").set_len(half).expect("cut")),
        ("block of the root scribbled", &|image| patch(image, root * block, &noise[..one])),
        ("first block of the inode table zeroed", &|image| patch(image, table * block, &zeros[..one])),
        ("first MiB zeroed", &|image| patch(image, 0, &zeros)),
        ("block of /etc zeroed", &|image| patch(image, etc * block, &zeros[..one])),
        ("16 blocks of the inode tables scribbled", &|image| patch(image, (table + 4) * block, &noise[..16 * one])),
    ];
    for (what, damage) in damages {
        let (hurt, mended) = (dir.text("hurt.img"), dir.text("mended.img"));
        fs::copy(&whole, &hurt).expect("copied");
        damage(&hurt);
        fs::copy(&hurt, &mended).expect("copied");
        let fsck = e2fsck(&mended, &["-fy"]).expect("e2fsck");
        let theirs = if fsck.code < 4 { copied(&dir, &mended, &[]).0 } else { Vec::new() };
        let (ours, status, line) = copied(&dir, &hurt, &["--rescue"]);
        assert_eq!(status, Some(4), "{what}: {line}");
        assert!(line.contains(" files whole, ") && line.contains(" without a name"), "{what}: {line}");
        let set = |of: &[(u8, usize)]| of.iter().copied().collect::<BTreeSet<_>>();
        let lost: Vec<_> = set(&theirs).difference(&set(&ours)).copied().collect();
        assert!(lost.is_empty(), "{what}: e2fsck leaves {lost:?}");
        assert!(ours.len() >= theirs.len(), "{what}: {} files, {} after e2fsck", ours.len(), theirs.len());
        // Only damage to inodes, or to the end of the image, loses files.
        let loses = what.contains("inode") || what.contains("MiB") || what == "cut";
        assert!(loses || ours == all, "{what}: {} of {files} files; {line}", ours.len());
    }
}

#[test]
fn a_rescue_copies_no_fewer_files_than_e2fsck_leaves() {
    eight_damages(400, 1024, "24M");
}

#[test]
#[ignore = "minutes: eight images of 7,000 files, each copied twice"]
fn soak_a_rescue_copies_no_fewer_of_thousands_of_files_than_e2fsck_leaves() {
    eight_damages(7000, 4096, "512M");
}

/// The block of a directory and the root's inode are lost, and one file has a bad attribute block.
#[test]
fn every_verb_shows_what_no_name_leads_to() {
    let dir = Dir::new();
    let image = filled(&dir, 40, 4096, "16M");
    let etc = block_of(&image, "/etc");
    let number = |path: &str| {
        let json = extant(&["stat", "--json", &format!("{image}:{path}")]).ok();
        serde_json::from_str::<serde_json::Value>(&json).expect("JSON")["inode"].as_u64().expect("a number")
    };
    let (file, conf) = (number("/etc/file-0"), number("/etc/1"));
    patch(&image, etc * 4096, &[0; 4096]);
    // Ten files and ten directories were in /etc itself.
    let names = 10 + 10;
    let hurt = |args: &[&str]| {
        let ran = in_time(&[&args[..1], &["--rescue"], &args[1..]].concat());
        let line = ran.err.lines().last().unwrap_or_default().to_owned();
        assert_eq!(ran.code, Some(4), "{args:?}: {}", ran.err);
        assert!(ran.err.contains(&format!("{names} inodes have no name")), "{args:?}: {}", ran.err);
        (String::from_utf8(ran.out).expect("UTF-8"), line, ran.err)
    };
    let at = |path: &str| format!("{image}:{path}");
    let (listed, line, _) = hurt(&["ls", &at("/lost+found")]);
    assert_eq!(listed.lines().count(), names);
    assert!(listed.lines().any(|name| name == format!("#{file}")), "{listed}");
    assert!(line.ends_with(&format!("{names} without a name (#INODE in /lost+found)")), "{line}");
    let below = format!("/lost+found/#{conf}/conf/file-1");
    let (found, line, said) = hurt(&["find", &at("/"), "-type", "f"]);
    assert!(found.lines().count() == 40 && found.lines().any(|path| path == below), "{found}");
    assert!(line.contains("40 files found, 1 hurt, 20 without a name"), "{line}");
    assert!(said.contains("whole.img: /etc: directory"), "the path of the damaged directory: {said}");
    assert!(hurt(&["tree", &image]).0.contains(&format!("#{conf}")));
    assert!(hurt(&["du", "-a", &at("/")]).0.lines().any(|line| line.ends_with(&below)));
    assert!(hurt(&["stat", &at(&format!("/lost+found/#{file}"))]).0.contains(&format!("Inode: {file}")));
    assert_eq!(hurt(&["cat", &at(&format!("/lost+found/#{file}"))]).0, "\u{1}");
    let (json, ..) = hurt(&["ls", "--json", "-lR", &image]);
    assert!(json.contains(&below), "{json}");
    // An archive, and a mount.
    let tar = dir.text("all.tar");
    let (_, line, _) = hurt(&["export", "-o", &tar, &image]);
    assert!(line.contains("40 files whole, 1 hurt, 20 without a name"), "{line}");
    let members = tool("tar", &["-tf", &tar]);
    assert!(members.lines().any(|name| name == format!(".{below}")), "{members}");
    if fuse_works() {
        let mnt = Unmounted::at(&dir, "mnt");
        let ran = extant(&["mount", "-o", "rescue", &image, &mnt.0]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let lost = Path::new(&mnt.0).join("lost+found");
        let seen = fs::read_dir(&lost).expect("listed").count();
        let content = fs::read(lost.join(format!("#{file}"))).expect("read");
        let all = contents(Path::new(&mnt.0).join("lost+found").as_path()).len();
        let etc = fs::read_dir(Path::new(&mnt.0).join("etc")).expect("opened").last();
        extant(&["unmount", &mnt.0]).ok();
        assert_eq!((seen, content, all), (names, vec![1], 20));
        assert!(matches!(etc, Some(Err(_))), "a directory without a word of its damage: {etc:?}");
    }
    // Without a root inode there is still a tree.
    tool("debugfs", &["-w", "-R", "clri <2>", &image]);
    let ran = in_time(&["find", "--rescue", &image, "-type", "f"]);
    assert_eq!((ran.code, ran.out.split(|byte| *byte == b'\n').count()), (Some(4), 41), "{}", ran.err);
    if fuse_works() {
        let mnt = Unmounted::at(&dir, "rootless");
        let ran = extant(&["mount", "-o", "rescue", &image, &mnt.0]);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let all = contents(Path::new(&mnt.0));
        extant(&["unmount", &mnt.0]).ok();
        assert_eq!(all, contents(&dir.path("src")));
    }
}

/// One hash of the index is wrong: the kernel lists 63, 237 or 279 of 300 names without an error.
#[test]
fn an_index_with_a_wrong_hash_hides_no_name_in_silence() {
    for value in [0xFFFF_FFFEu32, 0] {
        let dir = Dir::new();
        let image = dir.empty_image("index.img", &["-b", "1024", "-O", "^metadata_csum"]);
        let tree = dir.path("d");
        fs::create_dir_all(&tree).expect("directory");
        (0..300).for_each(|i| fs::write(tree.join(format!("name-{i:0>20}")), "x").expect("file"));
        extant(&["cp", "-r", &dir.text("d"), &format!("{image}:/")]).ok();
        let index = block_of(&image, "/d");
        patch(&image, index * 1024 + 32 + 8, &value.to_le_bytes());
        let (at, out) = (format!("{image}:/d"), dir.text("out"));
        let count = |ran: &crate::common::CommandResult| ran.out.windows(5).filter(|bytes| bytes == b"name-").count();
        for args in [&["ls", &at][..], &["find", &at], &["tree", &at]] {
            let ran = extant(args);
            assert_eq!(ran.code, Some(8), "{args:?}: {} names, {}", count(&ran), ran.err);
            let ran = extant(&[&args[..1], &["--rescue"], &args[1..]].concat());
            assert_eq!((ran.code, count(&ran)), (Some(0), 300), "{args:?}: {}", ran.err);
        }
        extant(&["cp", "-r", &at, &out]).fails(8, &["directory"]);
        extant(&["export", &image, "/d"]).fails(8, &["directory"]);
        let _ = fs::remove_dir_all(&out);
        extant(&["cp", "-r", "--rescue", &at, &out]);
        assert_eq!(fs::read_dir(&out).expect("copied").count(), 300);
        let tar = dir.text("all.tar");
        extant(&["export", "--rescue", "-o", &tar, &image, "/d"]);
        assert_eq!(tool("tar", &["-tf", &tar]).matches("name-").count(), 300);
        if !fuse_works() {
            continue;
        }
        for (options, whole) in [("ro", false), ("rescue", true)] {
            let mnt = Unmounted::at(&dir, options);
            extant(&["mount", "-o", options, &image, &mnt.0]).ok();
            let listed = run("ls", &["-l", &format!("{}/d", mnt.0)]);
            extant(&["unmount", &mnt.0]).ok();
            assert_eq!((listed.code == Some(0), whole && count(&listed) < 300), (whole, false), "{}", listed.err);
        }
    }
}

/// Damages the attributes, one byte of a link, and a size that is not a multiple of the block size. Each loses only
/// itself.
#[test]
fn an_archive_of_a_rescue_has_files_without_their_attributes() {
    let dir = Dir::new();
    let image = dir.empty_image("hurt.img", &["-b", "1024", "-O", "^metadata_csum"]);
    fs::write(dir.path("f"), "content\n").expect("file");
    extant(&["cp", &dir.text("f"), &format!("{image}:/f")]).ok();
    extant(&["chmod", "675", &format!("{image}:/f")]).ok();
    extant(&["xattr", "set", "user.large", &"v".repeat(300), &format!("{image}:/f")]).ok();
    extant(&["ln", "-s", &"t".repeat(100), &format!("{image}:/link")]).ok();
    let stat = debugfs(&image, "stat /f");
    let acl = stat.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a block");
    patch(&image, acl.parse::<u64>().expect("a number") * 1024, &[9]);
    tool("debugfs", &["-w", "-R", "sif /link size 110", &image]);
    let tar = dir.text("all.tar");
    extant(&["export", "-o", &tar, &image]).fails(8, &["hurt.img: /f: attributes"]);
    let said =
        extant(&["export", "--rescue", "-o", &tar, &image]).fails(4, &["/f: attributes", "/link: symbolic link"]);
    assert!(said.lines().last().is_some_and(|line| line.contains("0 files whole, 2 hurt")), "{said}");
    assert_eq!(tool("tar", &["-xOf", &tar, "./f"]), "content\n");
    // The group's bits may be the mask of an ACL.
    assert!(tool("tar", &["-tvf", &tar, "./f"]).starts_with("-rw-r-xr-x"));
    // The link's row is printed without its target.
    let ran = extant(&["ls", "-l", "--rescue", &image]);
    let out = String::from_utf8_lossy(&ran.out);
    assert!(ran.code == Some(4) && out.lines().any(|line| line.ends_with(" link")), "{out}");
}

/// An inode number may be that of a deleted file, of an inode that was never used, or of an empty file.
#[test]
fn a_deleted_or_unused_inode_is_no_empty_file() {
    let dir = Dir::new();
    for kind in ["ext2", "ext4"] {
        let image = dir.text(&format!("{kind}.img"));
        tool("mke2fs", &["-q", "-F", "-t", kind, &image, "16M"]);
        fs::write(dir.path("f"), "content\n").expect("file");
        fs::write(dir.path("empty"), "").expect("file");
        for name in ["f", "empty"] {
            extant(&["cp", &dir.text(name), &format!("{image}:/{name}")]).ok();
        }
        let number = |name: &str| {
            let json = extant(&["stat", "--json", &format!("{image}:/{name}")]).ok();
            serde_json::from_str::<serde_json::Value>(&json).expect("JSON")["inode"].to_string()
        };
        let (f, empty) = (number("f"), number("empty"));
        extant(&["rm", &format!("{image}:/f")]).ok();
        let cat = |number: &str| extant(&["cat", "--rescue", &format!("{image}:<{number}>")]);
        cat(&f).fails(4, &[&format!("<{f}>: inode of inode {f}: deleted")]);
        cat("2000").fails(4, &["<2000>: inode of inode 2000: never used, or nothing is left of it"]);
        let ran = cat(&empty);
        assert_eq!((ran.code, ran.out), (Some(0), vec![]), "{}", ran.err);
    }
}
