//! `extant export`: how other tar programs read the archive, and the result of an export that fails.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::common::{Dir, debugfs, extant, extant_path, fsck_clean, loop_mounts_work, run, tool};
use extant_testkit::mount::{LoopMount, Mounted};
use extant_testkit::oracle::debugfs_write;
use extant_testkit::tree::{Fingerprint, diff, fingerprint};
use rustix::fs::{FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

/// As [`fingerprint`], without access times, which no archive restores, and without sockets.
fn shown(top: &Path) -> Fingerprint {
    let mut all = fingerprint(top).expect("fingerprint");
    for info in all.values_mut() {
        info.atime = (0, 0);
    }
    all.retain(|_, info| info.kind != extant_testkit::tree::Kind::Socket);
    all
}

/// Fills `top` with every kind of file that an archive can contain, made by root.
fn fill(top: &Path) {
    let at = |name: &str| top.join(name);
    let text = |name: &str| at(name).to_str().expect("UTF-8").to_owned();
    std::fs::create_dir_all(at("d/empty")).expect("directories");
    std::fs::write(at("file"), "content\n").expect("file");
    std::fs::hard_link(at("file"), at("d/hard")).expect("link");
    std::os::unix::fs::symlink("../file", at("d/soft")).expect("link");
    std::fs::hard_link(at("d/soft"), at("soft too")).expect("link");
    std::os::unix::fs::symlink("t".repeat(300), at("long target")).expect("link");
    for (name, kind, device) in [
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("disk", FileType::BlockDevice, makedev(4000, 1_000_000)),
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
    ] {
        mknodat(rustix::fs::CWD, at(name), kind, Mode::from_raw_mode(0o640), device).expect(name);
    }
    std::fs::hard_link(at("fifo"), at("fifo too")).expect("link");
    // The header has room for names of 100 bytes, including "./".
    for len in [97, 98, 99, 255] {
        std::fs::write(at(&"n".repeat(len)), len.to_string()).expect("file");
    }
    let deep = format!("{}/{}", "a".repeat(200), "b".repeat(200));
    std::fs::create_dir_all(at(&deep)).expect("directories");
    std::fs::write(at(&format!("{deep}/file")), "deep").expect("file");
    std::fs::hard_link(at(&format!("{deep}/file")), at("z")).expect("link");
    std::fs::write(top.join(std::ffi::OsStr::from_bytes(b"odd\xff\nname")), "odd").expect("file");
    for (name, parts, size) in [
        ("middle", &[(5 << 20, 3000)][..], 20 << 20),
        ("nothing but a hole", &[], 3 << 20),
        ("hole at the end", &[(0, 5000)], 1 << 20),
        ("hole at the start", &[(1 << 20, 777)], (1 << 20) + 777),
        ("over 8 GiB", &[(0, 1), (9 << 30, 4096)], (9 << 30) + 4096),
    ] {
        let file = std::fs::File::create(at(name)).expect("file");
        for (offset, len) in parts {
            file.write_all_at(&vec![b'x'; *len], *offset).expect("data");
        }
        file.set_len(size).expect("size");
    }
    for (name, attribute, value) in [
        ("file", "user.zero", &b"a\0\n=b"[..]),
        ("file", "user.empty", b""),
        ("file", "user.a=b%3D", b"name"),
        ("file", "trusted.t", b"t"),
        ("d", "user.of a directory", b"d"),
        ("hole at the end", "user.sparse", b"s"),
        ("null", "trusted.device", b"n"),
        ("file", "security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
    ] {
        setxattr(at(name), attribute, value, XattrFlags::empty()).expect(attribute);
    }
    tool("setfacl", &["-m", "u:1000:rw,g:4000000:r,m::rw", &text("file")]);
    tool("setfacl", &["-m", "u:5:rwx,d:u:7:rwx,d:g:8:r", &text("d")]);
    tool("chown", &["4000000000:3000000", &text("middle")]);
    tool("chmod", &["6751", &text("hole at the end")]);
    tool("chmod", &["1777", &text("d/empty")]);
    for (name, seconds, nanos) in [("file", 1_234_567_890, 123_456_789), ("null", 9_000_000_000, 5)] {
        let time = UNIX_EPOCH + Duration::new(seconds, nanos);
        set_time(&at(name), time);
    }
    set_time(&at("d/empty"), UNIX_EPOCH - Duration::from_millis(1500));
    set_time(top, UNIX_EPOCH + Duration::new(1_000_000_000, 1));
}

fn set_time(path: &Path, time: SystemTime) {
    let seconds = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => format!("@{}.{:09}", after.as_secs(), after.subsec_nanos()),
        Err(before) => format!("@-{:.9}", before.duration().as_secs_f64()),
    };
    tool("touch", &["-h", "-d", &seconds, path.to_str().expect("UTF-8")]);
}

/// An image with [`fill`]'s tree in it; `None` if this machine cannot make one.
fn filled(dir: &Dir) -> Option<String> {
    if !loop_mounts_work() {
        eprintln!("skipped: needs root and loop devices");
        return None;
    }
    let image = dir.text("from.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", &image, "64M"]);
    std::fs::create_dir(dir.path("from")).expect("directory");
    let mount = LoopMount::new(Path::new(&image), &dir.path("from"), "").expect("mounted");
    fill(&dir.path("from"));
    Box::new(mount).unmount().expect("unmounted");
    Some(image)
}

#[test]
fn gnu_tar_restores_an_exported_tree() {
    let dir = Dir::new();
    let Some(image) = filled(&dir) else { return };
    let archive = dir.text("a.tar");
    let ran = extant(&["export", &image, "-o", &archive]);
    assert_eq!((ran.code, ran.out.len()), (Some(0), 0), "{}", ran.err);
    assert_eq!(ran.err, format!("extant: {image}: /socket: socket left out: a tar archive has none\n"));
    let to = dir.text("to.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", &to, "64M"]);
    std::fs::create_dir(dir.path("to")).expect("directory");
    let mounts = [("from", &image, "ro"), ("to", &to, "")]
        .map(|(name, image, options)| LoopMount::new(Path::new(image), &dir.path(name), options).expect("mounted"));
    let into = dir.text("to");
    tool("tar", &["--xattrs", "--xattrs-include=*", "--acls", "-xpf", &archive, "-C", &into]);
    let [from, to] = ["from", "to"].map(|name| shown(&dir.path(name)));
    assert!(from.len() > 25, "{}", from.len());
    assert_eq!(diff(&from, &to), "");
    // Holes are restored.
    for (path, info) in from.iter().filter(|(_, info)| info.size > 1 << 20) {
        assert_eq!(to[path].blocks, info.blocks, "{}", path.display());
    }
    // Without attributes by name, tar still restores ACLs, which have their own records.
    let plain = dir.text("to/plain");
    std::fs::create_dir(&plain).expect("directory");
    tool("tar", &["--acls", "-xpf", &archive, "-C", &plain, "./d"]);
    for name in ["d", "d/hard"] {
        let acl = |top: &str| tool("getfacl", &["-n", "-c", &format!("{top}/{name}")]);
        assert_eq!(acl(&plain), acl(&dir.text("from")));
    }
    for mount in mounts {
        Box::new(mount).unmount().expect("unmounted");
    }
}

/// An image made from an export exports the same bytes.
#[test]
fn an_image_made_of_an_archive_exports_the_archive() {
    let dir = Dir::new();
    let Some(image) = filled(&dir) else { return };
    let [first, second] = ["first.tar", "second.tar"].map(|name| dir.text(name));
    assert_eq!(extant(&["export", &image, "-o", &first]).code, Some(0));
    for fs_type in ["ext4", "ext2"] {
        let made = dir.text("made.img");
        extant(&["mkfs", "-q", "-F", "-t", fs_type, "-I", "256", "--from", &first, "--size", "auto", &made]).ok();
        fsck_clean(&made);
        extant(&["export", &made, "-o", &second]).ok();
        let [a, b] = [&first, &second].map(|archive| std::fs::read(archive).expect("archive"));
        let list = |archive: &str| tool("tar", &["--xattrs", "--acls", "-tvvf", archive]);
        assert!(a == b, "{fs_type}:\n{}\n{}", list(&first), list(&second));
    }
}

#[test]
fn equal_trees_give_equal_archives() {
    let dir = Dir::new();
    let tree = dir.tree();
    let archive = |fs_type: &str, order: &[&str], attributes: [&str; 2]| {
        let image = dir.text("i.img");
        tool("mke2fs", &["-q", "-F", "-t", fs_type, &image, "64M"]);
        for name in order {
            extant(&["cp", "-a", &format!("{tree}/{name}"), &format!("{image}:/")]).ok();
        }
        for name in attributes {
            // Set by debugfs, because Extant would sort them.
            debugfs_write(&image, &format!("ea_set /big {name} value")).unwrap();
        }
        for path in ["/", "/lost+found"] {
            extant(&["touch", "-d", "@1000000000", &format!("{image}:{path}")]).ok();
        }
        let first = extant(&["export", &image]);
        let again = extant(&["export", &image]);
        assert!(first.code == Some(0) && first.out == again.out, "{}", first.err);
        first.out
    };
    let names = ["etc", "big", "empty", "link", "absolute", "self", "sparse", "fifo"];
    let mut other_way = names;
    other_way.reverse();
    let one = archive("ext4", &names, ["user.a", "user.b"]);
    assert!(one == archive("ext4", &other_way, ["user.b", "user.a"]));
    assert!(one.len() > 2_800_000 && one.len() < 3_000_000, "{}", one.len());
    std::fs::write(dir.path("a.tar"), &one).expect("archive");
    let listed = tool("tar", &["-tf", &dir.text("a.tar")]);
    let listed: Vec<&str> = listed.lines().collect();
    assert_eq!(listed[..4], ["./", "./absolute", "./big", "./empty"]);
    assert!(listed.is_sorted(), "{listed:?}");
}

#[test]
fn a_path_is_exported_as_the_top() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let list = |args: &[&str]| {
        let ran = extant(&[&["export"], args].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        std::fs::write(dir.path("a.tar"), &ran.out).expect("archive");
        tool("tar", &["-tf", &dir.text("a.tar")])
    };
    let below = "./\n./deep/\n./deep/er/\n./deep/er/file\n./passwd\n";
    for args in [&[&image[..], "/etc"][..], &[&image, "etc/"], &[&format!("{image}:/etc")], &[&image, "/absolute"]] {
        assert_eq!(list(args), below, "{args:?}");
    }
    assert_eq!(list(&[&image, "/etc/passwd"]), "./passwd\n");
    assert!(list(&[&image]).starts_with("./\n./absolute\n"));
    extant(&["export", &image, "/none"]).fails(8, &["/none: no such file"]);
}

/// GNU tar and bsdtar must fail; GNU tar would accept a stream that only lacks its end mark.
#[track_caller]
fn refused_by_tar(archive: &str) {
    let ran = run("tar", &["-tf", archive]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    // bsdtar is not among the packages that `make test` installs.
    if let Ok(ran) = std::process::Command::new("bsdtar").args(["-tf", archive]).output() {
        assert_eq!(ran.status.code(), Some(1));
    }
}

#[test]
fn a_failed_export_leaves_no_archive_that_looks_complete() {
    let dir = Dir::new();
    let image = dir.image("ext4", &["-b", "1024"]);
    let archive = dir.text("a.tar");
    // Damage to the map of one file, and to a directory; and a file whose data is behind the end of the device.
    for (damage, path) in [
        ("sif /big block[0] 0", "/big"),
        ("sif /etc/deep block[5] 0x7fffffff", "/etc/deep"),
        ("sif /etc/passwd mode 0", "/etc/passwd"),
    ] {
        let damaged = dir.text("damaged.img");
        std::fs::copy(&image, &damaged).expect("copied");
        debugfs_write(&damaged, damage).unwrap();
        let ran = extant(&["export", &damaged]);
        std::fs::write(&archive, &ran.out).expect("archive");
        ran.fails(8, &[&format!("damaged.img: {path}: "), "the export ends here"]);
        refused_by_tar(&archive);
        std::fs::remove_file(&archive).expect("removed");
        extant(&["export", &damaged, "-o", &archive]).fails(8, &[path]);
        let left: Vec<_> =
            std::fs::read_dir(dir.path("")).expect("list").map(|e| e.expect("entry").file_name()).collect();
        assert!(left.iter().all(|name| name != "a.tar" && !name.as_bytes().starts_with(b".extant-")), "{left:?}");
        // With --rescue the archive is complete except for the damaged files.
        let rescued = extant(&["export", "--rescue", &damaged, "-o", &archive]);
        rescued.fails(4, &[&format!("damaged.img: {path}: ")]);
        let listed = tool("tar", &["-tf", &archive]);
        assert!(listed.contains("./empty\n") && listed.contains("./sparse\n"), "{listed}");
        std::fs::remove_file(&archive).expect("removed");
    }
}

#[test]
fn encrypted_files_are_refused_by_name() {
    let dir = Dir::new();
    let image = dir.text("encrypted.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "encrypt", &image, "16M"]);
    let requests = "mkdir a\nmkdir secret\nmkdir secret/name\nsif secret flags 0x80800\nsif secret/name flags 0x80800";
    debugfs_write(&image, requests).unwrap();
    let archive = dir.text("a.tar");
    let ran = extant(&["export", &image]);
    std::fs::write(&archive, &ran.out).expect("archive");
    ran.fails(8, &["encrypted.img: /secret: ", "is encrypted, and there is no key"]);
    refused_by_tar(&archive);
    extant(&["export", "--rescue", &image, "-o", &archive])
        .fails(4, &["encrypted.img: /secret: ", "is encrypted, and there is no key"]);
    assert!(debugfs(&image, "ls -p /secret").contains("name"), "the image has the file");
    assert_eq!(tool("tar", &["-tf", &archive]), "./\n./a/\n./lost+found/\n");
}

#[test]
fn the_output_is_neither_a_terminal_nor_the_image() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let before = std::fs::read(&image).expect("image");
    extant(&["export", &image, "-o", &image]).fails(8, &["is the image that is exported"]);
    assert!(std::fs::read(&image).expect("image") == before);
    let export = format!("{} export {image}", extant_path().display());
    let on_terminal = run("script", &["-qec", &export, "/dev/null"]);
    let said = String::from_utf8_lossy(&on_terminal.out).into_owned();
    assert!(on_terminal.code == Some(1) && said.contains("to a terminal"), "{said}{}", on_terminal.err);
    extant(&["export", &image, "-o", "/dev/null"]).ok();
    extant(&["export", &image, "-o", &dir.text("none/a.tar")]).fails(8, &["none: No such file"]);
    // The usual mode of a new file.
    let archive = dir.text("a.tar");
    run("sh", &["-c", &format!("umask 027; {export} -o {archive}")]).ok();
    assert_eq!(tool("stat", &["-c", "%a", &archive]), "640\n");
}

#[test]
fn an_export_ends_quietly_when_its_reader_does() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let command =
        format!("{} export {image} | head -c 1000 >/dev/null; echo ${{PIPESTATUS[0]}}", extant_path().display());
    assert_eq!(run("bash", &["-c", &command]).ok(), "141\n");
}

#[test]
fn a_layout_gives_the_image_that_the_archive_gives() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let text = |name: &str| dir.text(name);
    let (archive, layout, again) = (text("a.tar"), text("layout"), text("again"));
    extant(&["export", &image, "-o", &archive]).ok();
    extant(&["export", "--format", "oci", "-o", &format!("{layout}:latest"), &image]).ok();
    std::fs::create_dir(&again).expect("a directory that is empty");
    extant(&["export", "--format=oci", "-o", &format!("{again}:latest"), &image]).ok();
    tool("diff", &["-r", &layout, &again]);
    let made = |from: &str, name: &str| {
        let mut command = std::process::Command::new(extant_path());
        command.args(["mkfs", "-q", "-U", "content", "--size", "auto", "--from", from, &text(name)]);
        assert!(command.env("SOURCE_DATE_EPOCH", "1700000000").status().expect("it runs").success(), "{from}");
        std::fs::read(text(name)).expect("image")
    };
    let expected = made(&archive, "tar.img");
    for (i, word) in [format!("oci:{layout}:latest"), format!("oci:{layout}")].iter().enumerate() {
        assert!(made(word, &format!("{i}.img")) == expected, "{word}");
    }
    // An existing layout is not extended, and a failed export leaves nothing.
    extant(&["export", "--format", "oci", "-o", &layout, &image]).fails(8, &["layout: it is not empty; name another"]);
    tool("diff", &["-r", &layout, &again]);
    extant(&["export", "--format", "oci", &image]).fails(1, &["name it with -o DIR or -o DIR:TAG"]);
    for tag in ["", "a b", "a/b"] {
        extant(&["export", "--format", "oci", "-o", &format!("{}:{tag}", text("new")), &image])
            .fails(1, &["a tag has letters"]);
    }
    assert!(!Path::new(&text("new")).exists());
}

#[test]
fn a_layout_that_fails_is_removed() {
    let dir = Dir::new();
    let image = dir.image("ext4", &["-b", "1024"]);
    let (new, empty) = (dir.text("new"), dir.text("empty"));
    std::fs::create_dir(&empty).expect("directory");
    for (damage, word, status) in
        [("sif /big block[0] 0", "/big: ", 4), ("mkdir .wh.name", "/.wh.name: names that begin with .wh.", 8)]
    {
        let damaged = dir.text("damaged.img");
        std::fs::copy(&image, &damaged).expect("copied");
        debugfs_write(&damaged, damage).unwrap();
        for layout in [&new, &empty] {
            extant(&["export", "--format", "oci", "-o", layout, &damaged]).fails(8, &[word]);
        }
        assert!(!Path::new(&new).exists());
        assert_eq!(std::fs::read_dir(&empty).expect("list").count(), 0);
        extant(&["export", "--rescue", "--format", "oci", "-o", &new, &damaged]).fails(status, &[word]);
        assert!(Path::new(&new).join("index.json").exists());
        std::fs::remove_dir_all(&new).expect("removed");
    }
}

#[test]
fn commands_that_only_read_have_no_options_for_writing() {
    for command in ["info", "ls", "cat", "stat", "tree", "find", "du", "df", "export"] {
        let help = extant(&[command, "--help"]).ok();
        assert!(!help.contains("--seed") && !help.contains("--no-lock") && help.contains("--rescue"), "{help}");
    }
    let help = extant(&["rm", "--help"]).ok();
    assert!(help.contains("--seed") && help.contains("--no-lock"), "{help}");
}
