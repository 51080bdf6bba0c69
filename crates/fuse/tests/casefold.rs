//! Directories that ignore case, seen through the kernel, which knows names by their bytes: no name that it caches may
//! outlive a change that another spelling made.

mod common;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Served, Setup, can_mount};
use extant_fuse::ServerOptions;
use extant_testkit::kinds::kind;
use extant_testkit::oracle::{expect_clean, make_image};
use rustix::fs::{CWD, RenameFlags, renameat_with};

struct Bench {
    _dir: tempfile::TempDir,
    image: PathBuf,
    mnt: PathBuf,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().expect("directory");
        let mut options = kind("ext4", "casefold", None, 1024).options;
        options.size = 64 << 20;
        let image = make_image(dir.path(), &options).expect("image");
        let mnt = dir.path().join("mnt");
        fs::create_dir(&mnt).expect("mount point");
        Bench { _dir: dir, image, mnt }
    }

    /// Serves it, with the directory `d`, which ignores case.
    fn serve(&self, server: ServerOptions) -> Served {
        let m = Setup { server, ..Setup::default() }.serve(&self.image, &self.mnt);
        fs::create_dir(m.at("d")).expect("mkdir");
        assert!(ignore_case(&m.at("d"), true));
        m
    }
}

fn ignore_case(path: &Path, on: bool) -> bool {
    let sign = if on { "+F" } else { "-F" };
    Command::new("chattr").arg(sign).arg(path).output().expect("chattr").status.success()
}

/// The server's ways to show directories.
fn ways() -> [ServerOptions; 3] {
    let standard = ServerOptions::default;
    [
        standard(),
        ServerOptions { no_opendir: false, no_open: false, ..standard() },
        ServerOptions { readdirplus: false, writeback_cache: true, ..standard() },
    ]
}

#[track_caller]
fn missing(path: impl AsRef<Path>) {
    let found = fs::symlink_metadata(path.as_ref());
    assert!(found.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound), "{:?}: {found:?}", path.as_ref());
}

#[track_caller]
fn ino(path: impl AsRef<Path>) -> u64 {
    fs::symlink_metadata(path.as_ref()).unwrap_or_else(|e| panic!("{:?}: {e}", path.as_ref())).ino()
}

/// As `ls -l` does: reads all names, and then the attributes of each.
fn list(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .expect("listed")
        .map(|entry| {
            let entry = entry.expect("entry");
            entry.metadata().expect("attributes");
            entry.file_name().into_string().expect("UTF-8")
        })
        .collect();
    names.sort();
    names
}

#[test]
fn a_missing_name_is_found_once_another_spelling_is_created() {
    if !can_mount() {
        return;
    }
    for server in ways() {
        let b = Bench::new();
        let mut m = b.serve(server);
        let d = m.at("d");
        missing(d.join("foo"));
        missing(d.join("Foo"));
        fs::write(d.join("FOO"), "content").expect("created");
        assert_eq!(fs::read(d.join("foo")).expect("read"), b"content");
        assert_eq!(ino(d.join("Foo")), ino(d.join("FOO")));
        assert_eq!(fs::File::create_new(d.join("foO")).err().map(|e| e.kind()), Some(ErrorKind::AlreadyExists));
        assert_eq!(fs::create_dir(d.join("fOO")).err().map(|e| e.kind()), Some(ErrorKind::AlreadyExists));
        assert!(fs::hard_link(d.join("FOO"), d.join("foo")).is_err());
        // Created by each other kind of call.
        for name in ["dir", "link", "symlink", "moved"] {
            missing(d.join(name));
        }
        fs::create_dir(d.join("DIR")).expect("mkdir");
        fs::hard_link(d.join("foo"), d.join("LINK")).expect("link");
        std::os::unix::fs::symlink("foo", d.join("SYMLINK")).expect("symlink");
        fs::write(m.at("outside"), "").expect("created");
        fs::rename(m.at("outside"), d.join("MOVED")).expect("rename");
        for name in ["dir", "link", "symlink", "moved"] {
            assert_eq!(ino(d.join(name)), ino(d.join(name.to_uppercase())));
        }
        // A directory that is missing a name when it begins to ignore case.
        fs::create_dir(m.at("later")).expect("mkdir");
        missing(m.at("later/x"));
        assert!(ignore_case(&m.at("later"), true) && !ignore_case(&d, false));
        fs::write(m.at("later/X"), "").expect("created");
        assert_eq!(ino(m.at("later/x")), ino(m.at("later/X")));
        // Other directories of the image do not.
        fs::write(m.at("case"), "").expect("created");
        missing(m.at("CASE"));
        fs::write(m.at("CASE"), "").expect("created");
        assert_ne!(ino(m.at("CASE")), ino(m.at("case")));
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

#[test]
fn a_name_is_missing_once_another_spelling_is_removed() {
    if !can_mount() {
        return;
    }
    for server in ways() {
        let b = Bench::new();
        let mut m = b.serve(server);
        let d = m.at("d");
        fs::write(d.join("Foo"), "").expect("created");
        assert_eq!(ino(d.join("Foo")), ino(d.join("foo")));
        assert_eq!(list(&d), ["Foo"]);
        fs::remove_file(d.join("foo")).expect("unlink");
        for name in ["foo", "Foo", "FOO"] {
            missing(d.join(name));
        }
        assert!(list(&d).is_empty());
        // Renamed, and replaced.
        fs::write(d.join("Foo"), "1").expect("created");
        fs::write(d.join("Bar"), "2").expect("created");
        assert_eq!(list(&d), ["Bar", "Foo"]);
        assert_eq!(
            (fs::read(d.join("foo")).expect("read"), fs::read(d.join("bar")).expect("read")),
            (b"1".to_vec(), b"2".to_vec())
        );
        fs::rename(d.join("FOO"), d.join("BAR")).expect("rename");
        missing(d.join("Foo"));
        missing(d.join("foo"));
        for name in ["Bar", "bar", "BAR"] {
            assert_eq!(fs::read(d.join(name)).expect("read"), b"1", "{name}");
        }
        // Exchanged under names that the kernel has not seen.
        fs::write(d.join("Other"), "3").expect("created");
        assert_eq!((list(&d), ino(d.join("other")) == ino(d.join("bar"))), (vec!["Bar".into(), "Other".into()], false));
        renameat_with(CWD, d.join("BAR"), CWD, d.join("OTHER"), RenameFlags::EXCHANGE).expect("exchange");
        for (name, content) in [("Bar", b"3"), ("bar", b"3"), ("Other", b"1"), ("other", b"1")] {
            assert_eq!(fs::read(d.join(name)).expect("read"), content, "{name}");
        }
        // A name that the kernel came to know in a directory with case.
        fs::write(m.at("plain"), "").expect("created");
        assert_eq!(ino(m.at("plain")), ino(m.at("plain")));
        fs::rename(m.at("plain"), d.join("plain")).expect("rename");
        fs::remove_file(d.join("PLAIN")).expect("unlink");
        missing(d.join("plain"));
        assert_eq!(fs::File::create_new(d.join("plain")).err().map(|e| e.to_string()), None);
        // The other case of one name: the kernel sees two names of one file, as above its own ext4.
        fs::rename(d.join("plain"), d.join("PLAIN")).expect("nothing to do");
        assert_eq!(list(&d), ["Bar", "Other", "plain"]);
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

#[test]
fn directories_are_entered_and_removed_in_any_case() {
    if !can_mount() {
        return;
    }
    for server in ways() {
        let b = Bench::new();
        let mut m = b.serve(server);
        let d = m.at("d");
        fs::create_dir(d.join("Sub")).expect("mkdir");
        fs::write(d.join("sub/File"), "content").expect("created");
        for path in ["SUB/FILE", "Sub/file", "sub/File"] {
            assert_eq!(fs::read(d.join(path)).expect("read"), b"content", "{path}");
        }
        assert_eq!((list(&d), list(&d.join("SUB"))), (vec!["Sub".into()], vec!["File".into()]));
        let inside = Command::new("sh")
            .arg("-c")
            .arg("cd Sub && test -e ../SUB/file && cat ../sub/FILE")
            .current_dir(&d)
            .output();
        assert_eq!(inside.expect("sh").stdout, b"content");
        fs::remove_file(d.join("SUB/file")).expect("unlink");
        missing(d.join("sub/File"));
        fs::remove_dir(d.join("SUB")).expect("rmdir");
        for name in ["Sub", "sub", "SUB"] {
            missing(d.join(name));
        }
        fs::create_dir(d.join("sUB")).expect("mkdir");
        assert_eq!(ino(d.join("Sub")), ino(d.join("sUB")));
        // A directory that the kernel knows moves in, and out by another spelling.
        fs::create_dir_all(m.at("tree/below")).expect("mkdir");
        fs::write(m.at("tree/below/f"), "").expect("created");
        fs::rename(m.at("tree"), d.join("Tree")).expect("rename");
        assert_eq!(ino(d.join("TREE/below/f")), ino(d.join("tree/below/f")));
        missing(d.join("tree/BELOW"));
        fs::rename(d.join("tREE"), m.at("out")).expect("rename");
        for name in ["Tree", "tree", "TREE", "tREE"] {
            missing(d.join(name));
        }
        assert!(fs::read(m.at("out/below/f")).is_ok());
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

/// Three threads make and remove one name by three spellings. Each creation is matched by a removal, or the name is
/// there at the end.
#[test]
fn threads_that_use_other_spellings_see_each_others_changes() {
    if !can_mount() {
        return;
    }
    let b = Bench::new();
    let mut m = b.serve(ServerOptions::default());
    let d = m.at("d");
    let run = |name: &'static str, d: PathBuf| {
        move || {
            let (mut made, mut removed) = (0i64, 0i64);
            for _ in 0..400 {
                made += i64::from(fs::File::create_new(d.join(name)).is_ok());
                let _ = fs::symlink_metadata(d.join(name));
                removed += i64::from(fs::remove_file(d.join(name)).is_ok());
            }
            made - removed
        }
    };
    let threads =
        ["name", "NAME", "Name"].map(|name| extant_base::task::spawn(name, run(name, d.clone())).expect("thread"));
    let left: i64 = threads.into_iter().map(|thread| thread.join().expect("no panic")).sum();
    assert_eq!(left, list(&d).len() as i64, "each creation, and each removal, succeeded once");
    for name in ["name", "NAME", "Name", "nAME"] {
        assert_eq!(d.join(name).exists(), left == 1);
    }
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}
