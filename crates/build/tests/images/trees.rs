//! Trees of directories: everything that an image can store arrives, and unreadable entries are named.

use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use crate::common::{bytes, find, is_root, lines, make_tree};
use extant_build::Result;
use extant_build::source::{Options, Source};
use extant_build::tree::{self, Body, Id, Owners};
use extant_ondisk::time::Timestamp;

fn read(path: &Path) -> Result<Source> {
    Source::directory(path, Options::default())
}

fn line<'a>(lines: &'a [String], path: &str) -> &'a str {
    let start = format!("{path}/ ");
    lines.iter().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {path} in {lines:#?}"))
}

#[test]
fn a_directory_arrives_with_everything_that_an_image_can_hold() {
    let dir = tempfile::tempdir().expect("directory");
    make_tree(dir.path());
    let source = read(dir.path()).expect("read");
    let tree = &source.tree;
    let lines = lines(tree);
    let has = |path: &str, parts: &[&str]| {
        let line = line(&lines, path);
        assert!(parts.iter().all(|part| line.contains(part)), "{line} has {parts:?}");
    };
    has("", &["#0 40755", "links 4", "(1000000008, 123456789)"]);
    has("/dir/file", &["100644", "(1000000000, 123456789)", "links 3 8 None", "user.comment=text"]);
    has("/dir/none", &["links 1 0 None", "(-86400, 250000000)", "user.comment=text"]);
    has("/dir", &["user.binary=\\x00\\n\\xff=5 user.x=y\\n"]);
    has("/link", &["120777", "Symlink("]);
    has("/fifo", &["10600", "Special", "(1000000003, 123456789)"]);
    has("/empty", &["41777", "links 2"]);
    has("/dir/hole", &["100000 Some([])"]);
    has("/dir/sparse", &["3145728 Some([1048576..1056768, 3141632..3145728])"]);
    if is_root() {
        has("/null", &["20640", "Device { major: 1, minor: 3 }"]);
        has("/dir/disk", &["60640", "Device { major: 300, minor: 70000 }"]);
        has("/dir/below", &["4000000000:3000000"]);
        has("/link", &["5:6"]);
        has("/dir/a", &["1000:100", "security.capability=", "trusted.overlay.x=y"]);
        has("/dir/A", &["104", "system.posix_acl_access="]);
        has("/empty", &["system.posix_acl_default="]);
    }
    let third = find(tree, "dir/below/third").expect("there");
    assert_eq!(find(tree, "another name"), Some(third));
    let Body::File { size, content, .. } = tree.node(third).body else { panic!("a file") };
    assert_eq!(bytes(&*source.content, content, size), b"content\n");
    let sparse = find(tree, "dir/sparse").expect("there");
    let Body::File { size, content, .. } = tree.node(sparse).body else { panic!("a file") };
    assert_eq!(bytes(&*source.content, content, size), std::fs::read(dir.path().join("dir/sparse")).expect("read"));
}

#[test]
fn inodes_are_numbered_directory_by_directory_and_names_ascend() {
    let dir = tempfile::tempdir().expect("directory");
    for name in ["b/1", "b/c/2", "a/3", "d/4"] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, name).expect("written");
    }
    let tree = read(dir.path()).expect("read").tree;
    let number = |path| find(&tree, path).expect("there").0;
    let paths = ["", "a", "b", "d", "a/3", "b/1", "b/c", "b/c/2", "d/4"];
    assert_eq!(paths.map(number), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_tree_deeper_than_a_path_can_be_long_is_read() {
    let dir = tempfile::tempdir().expect("directory");
    // 40 × 201 bytes.
    let name = "d".repeat(200);
    let mut at = std::fs::File::open(dir.path()).expect("opened");
    for _ in 0..40 {
        rustix::fs::mkdirat(&at, &*name, rustix::fs::Mode::from_raw_mode(0o755)).expect("made");
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::RDONLY;
        at = rustix::fs::openat(&at, &*name, flags, rustix::fs::Mode::empty()).expect("opened").into();
    }
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY;
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    let file: std::fs::File = rustix::fs::openat(&at, "file", flags, mode).expect("made").into();
    file.write_all_at(b"deep", 0).expect("written");
    let source = read(dir.path()).expect("read");
    let id = find(&source.tree, &format!("{}file", format!("{name}/").repeat(40))).expect("there");
    let Body::File { size, content, .. } = source.tree.node(id).body else { panic!("a file") };
    assert_eq!(bytes(&*source.content, content, size), b"deep");
}

#[test]
fn links_to_directories_are_not_followed() {
    let dir = tempfile::tempdir().expect("directory");
    symlink("..", dir.path().join("up")).expect("a link");
    symlink(".", dir.path().join("here")).expect("a link");
    assert_eq!(read(dir.path()).expect("read").tree.len(), 3);
}

/// The error for a file that changes between the walk and the end of its reading.
fn after(change: impl FnOnce(&Path)) -> String {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("file");
    std::fs::write(&path, [7; 5000]).expect("written");
    let source = read(dir.path()).expect("read");
    let id = find(&source.tree, "file").expect("there");
    let Body::File { size, content, .. } = source.tree.node(id).body else { panic!("a file") };
    change(&path);
    let read = source.content.open(content).and_then(|file| {
        file.read_at(0, &mut vec![0; size as usize])?;
        file.finish()
    });
    let said = read.expect_err("it changed").to_string();
    assert!(said.starts_with(&path.display().to_string()), "{said}");
    said
}

#[test]
fn a_file_that_changes_after_the_walk_is_refused() {
    let open = |path: &Path| std::fs::File::options().write(true).open(path).expect("opened");
    assert!(after(|path| open(path).set_len(10).expect("cut")).ends_with("changed while it was read"));
    assert!(after(|path| open(path).set_len(6000).expect("grown")).ends_with("changed while it was read"));
    assert!(after(|path| std::fs::remove_file(path).expect("removed")).ends_with("No such file or directory"));
    let replaced = after(|path| {
        let other = path.with_file_name("other");
        std::fs::write(&other, [8; 5000]).expect("written");
        let time = std::fs::metadata(path).and_then(|data| data.modified()).expect("a time");
        open(&other).set_modified(time).expect("set");
        std::fs::rename(other, path).expect("renamed");
    });
    assert!(replaced.ends_with("changed while it was read"));
    let with_time = |path: &Path, nanos: u64, change: &dyn Fn(&Path)| {
        let time = std::fs::metadata(path).and_then(|data| data.modified()).expect("a time");
        change(path);
        open(path).set_modified(time + std::time::Duration::from_nanos(nanos)).expect("set");
    };
    let grown = after(|path| with_time(path, 0, &|path| open(path).set_len(6000).expect("grown")));
    assert!(grown.ends_with("changed while it was read"));
    assert!(after(|path| with_time(path, 1, &|_| ())).ends_with("changed while it was read"));
    let linked = after(|path| {
        std::fs::rename(path, path.with_file_name("other")).expect("renamed");
        symlink("other", path).expect("a link");
    });
    assert!(linked.contains("cannot be opened"), "{linked}");
}

#[test]
fn a_file_that_changes_while_it_is_read_is_refused_at_its_end() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("file");
    std::fs::write(&path, [7; 5000]).expect("written");
    let source = read(dir.path()).expect("read");
    let id = find(&source.tree, "file").expect("there");
    let Body::File { content, .. } = source.tree.node(id).body else { panic!("a file") };
    let file = source.content.open(content).expect("opened");
    file.read_at(0, &mut [0; 4000]).expect("read");
    std::fs::File::options().write(true).open(&path).expect("opened").set_len(4500).expect("cut");
    let said = file.read_at(4000, &mut [0; 1000]).expect_err("shorter").to_string();
    assert!(said.ends_with("file: became shorter while it was read"), "{said}");
    let said = file.finish().expect_err("changed").to_string();
    assert!(said.ends_with("file: changed while it was read"), "{said}");
}

#[test]
fn a_source_that_is_no_directory_is_refused() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("file");
    std::fs::write(&path, b"").expect("written");
    let said = read(&path).err().expect("refused").to_string();
    assert!(said.ends_with("file: Not a directory"), "{said}");
    let said = read(&dir.path().join("none")).err().expect("refused").to_string();
    assert!(said.ends_with("none: No such file or directory"), "{said}");
}

#[test]
fn times_owners_and_maps_of_the_caller_are_applied() {
    let dir = tempfile::tempdir().expect("directory");
    make_tree(dir.path());
    let resolve = |_, name: &str| (name == "alice").then_some(1234);
    let text = b"# whose\nuid 0 100000 65536\ngid 0 200000 65536\n/dir/below/** alice:7\n./dir/with space :8\n";
    let owners = Owners::parse("owners", text, &resolve).expect("parsed");
    let clamp = Timestamp::from_seconds(1_000_000_002);
    let tree = tree::Options { clamp: Some(clamp), owners, ..tree::Options::default() };
    let source = Source::directory(dir.path(), Options { tree, ..Options::default() }).expect("read");
    let node = |path: &str| source.tree.node(find(&source.tree, path).expect("there"));
    assert!((0..source.tree.len() as u32).all(|id| source.tree.node(Id(id)).mtime <= clamp));
    assert_eq!(node("dir/file").mtime, Timestamp { seconds: 1_000_000_000, nanos: 123_456_789 });
    for path in ["dir/below", "dir/below/deep/x", "dir/below/third", "dir/file"] {
        assert_eq!((node(path).uid, node(path).gid), (1234, 7), "{path}");
    }
    if is_root() {
        assert_eq!((node("dir").uid, node("dir").gid), (100_000, 200_000));
        assert_eq!((node("dir/with space").uid, node("dir/with space").gid), (100_000, 8));
    }
    let tree = tree::Options { owner: Some((3, 4)), ..tree::Options::default() };
    let source = Source::directory(dir.path(), Options { tree, ..Options::default() }).expect("read");
    assert!((0..source.tree.len() as u32).map(|id| source.tree.node(Id(id))).all(|n| (n.uid, n.gid) == (3, 4)));
}

#[test]
fn bad_lines_of_an_owners_file_are_named() {
    for (text, said) in [
        ("\nx\n", "line 2: expected PATH UID[:GID], or uid or gid FROM TO [COUNT]"),
        ("x bob", "line 1: bob is not a number and no user's name"),
        ("x 1:bob", "line 1: bob is not a number and no group's name"),
        ("x -1", "line 1: -1 is not a number and no user's name"),
        ("x 4294967296", "line 1: 4294967296 is not a number and no user's name"),
        ("uid 1", "line 1: expected uid FROM TO [COUNT]"),
        ("uid 1 2 0", "line 1: COUNT is not a number above 0"),
        ("uid 1 4294967295 2", "line 1: 2 numbers from 4294967295 on reach beyond 4294967295"),
        ("gid 5 0 5\ngid 9 1", "line 2: 9 to 9 overlap 5 to 9 of a line above"),
        ("gid 5 0 5\ngid 1 1 5", "line 2: 1 to 5 overlap 5 to 9 of a line above"),
    ] {
        let error = Owners::parse("own\x1b", text.as_bytes(), &|_, _| None).expect_err("refused");
        assert_eq!(error.to_string(), format!("own?: {said}"));
    }
    let dir = tempfile::tempdir().expect("directory");
    let owners = Owners::parse("owners", b"none 1", &|_, _| None).expect("parsed");
    let tree = tree::Options { owners, ..tree::Options::default() };
    let said = Source::directory(dir.path(), Options { tree, ..Options::default() }).err().expect("refused");
    assert_eq!(said.to_string(), "owners: line 1: no entry none");
}

/// The environment variable by which the second run of this test, under fakeroot, finds its tree.
const FAKED: &str = "EXTANT_TEST_FAKED_TREE";

#[test]
fn fakeroot_decides_what_a_tree_has() {
    if let Some(dir) = std::env::var_os(FAKED) {
        let tree = read(dir.as_ref()).expect("read").tree;
        let line = |path: &str| line(&lines(&tree), path).to_owned();
        assert!(line("/file").contains("104755 5:6 "), "{}", line("/file"));
        assert!(line("/null").contains("20644 0:7 "), "{}", line("/null"));
        assert!(line("/null").contains("Device { major: 1, minor: 3 }"), "{}", line("/null"));
        assert!(line("").contains("40755 8:9 "), "{}", line(""));
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    std::fs::write(dir.path().join("file"), b"x").expect("written");
    let program = std::env::current_exe().expect("this program");
    let script = "chown 5:6 file && chmod 4755 file && mknod null c 1 3 && chmod 644 null && chown 0:7 null && \
                  chmod 755 . && chown 8:9 . && exec \"$0\" --exact trees::fakeroot_decides_what_a_tree_has --nocapture";
    let mut fakeroot = std::process::Command::new("fakeroot");
    fakeroot.args(["sh", "-c", script]).arg(program).current_dir(dir.path()).env(FAKED, dir.path());
    let out = fakeroot.output().expect("fakeroot");
    assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    // The host has other attributes.
    let tree = read(dir.path()).expect("read").tree;
    assert!(line(&lines(&tree), "/null").contains(" 100644 "), "fakeroot makes a file of a device");
}
