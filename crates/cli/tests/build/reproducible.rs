//! The same commands on copies of one image leave the same bytes. Also checks the traces that a command leaves in an
//! image.

use std::process::Command;

use crate::common::{Dir, extant, extant_path, fsck_clean, tool};

const DATE: i64 = 1_000_000_000;

/// Runs a command with SOURCE_DATE_EPOCH.
fn dated(date: &str, args: &[&str]) -> std::process::Output {
    Command::new(extant_path()).args(args).env("SOURCE_DATE_EPOCH", date).output().expect("extant")
}

#[track_caller]
fn dated_ok(args: &[&str]) {
    let done = dated(&DATE.to_string(), args);
    assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Directories, links and 600 files, some older than the date.
fn tree(dir: &Dir) -> String {
    let top = dir.path("t");
    for d in 0..20 {
        let sub = top.join(format!("d{}", d * 7 % 20));
        std::fs::create_dir_all(&sub).expect("directory");
        for f in 0..30 {
            std::fs::write(sub.join(format!("f{f}")), vec![b'x'; (d * 997 + f * 131) % 40_000]).expect("file");
        }
    }
    std::fs::hard_link(top.join("d0/f0"), top.join("hard")).expect("link");
    std::os::unix::fs::symlink("d0", top.join("link")).expect("link");
    let old = top.join("d1/f1");
    tool("touch", &["-d", "@900000000.5", old.to_str().expect("UTF-8")]);
    top.to_str().expect("UTF-8").to_owned()
}

/// Times of inodes and of the superblock that are later than the date.
fn later(image: &str) -> Vec<String> {
    let found = extant(&["find", "--json", image]).out;
    let files: serde_json::Value = serde_json::from_slice(&found).expect("JSON");
    let files = files.as_array().expect("a list").iter().filter(|file| file["path"] != "/lost+found");
    let mut late = Vec::new();
    for file in files {
        for key in ["atime", "mtime", "ctime", "crtime"] {
            let seconds = file[key].as_str().and_then(|time| time.split('.').next()?.parse::<i64>().ok());
            // mke2fs made the root, and no command has read it since.
            let root = file["path"] == "/" && matches!(key, "atime" | "crtime");
            if !root && seconds.is_some_and(|seconds| seconds > DATE) {
                late.push(format!("{}: {key}", file["path"]));
            }
        }
    }
    let info: serde_json::Value = serde_json::from_slice(&extant(&["info", "--json", image]).out).expect("JSON");
    if info["filesystem"]["write_time"].as_i64().is_none_or(|time| time > DATE) {
        late.push("write_time".into());
    }
    late
}

/// The test compares whole files, including the journal.
#[test]
fn the_same_commands_at_one_source_date_leave_the_same_image() {
    let dir = Dir::new();
    let top = tree(&dir);
    let base = dir.text("base.img");
    for fs_type in ["ext4", "ext2"] {
        tool("mke2fs", &["-q", "-F", "-t", fs_type, &base, "64M"]);
        let lines = dir.text("lines");
        std::fs::write(&lines, "mkdir -p /x/y\ntouch /x/y/z\nln -s z /x/l\nmknod /x/p p\nrm -r /copy/d3\n")
            .expect("lines");
        let images = ["one.img", "two.img"].map(|name| dir.text(name));
        for image in &images {
            std::fs::copy(&base, image).expect("copied");
            dated_ok(&["cp", "-r", &top, &format!("{image}:/copy")]);
            dated_ok(&["script", image, &lines]);
            dated_ok(&["mkdir", &format!("{image}:/verb")]);
            dated_ok(&["xattr", "set", "user.a", "b", &format!("{image}:/verb")]);
            dated_ok(&["mv", &format!("{image}:/verb"), &format!("{image}:/moved")]);
            // Another time, other processes, other access times.
            let _ = std::fs::read(format!("{top}/d1/f1"));
        }
        fsck_clean(&images[0]);
        let [one, two] = images.each_ref().map(|image| std::fs::read(image).expect("image"));
        let different = one.iter().zip(&two).filter(|(a, b)| a != b).count();
        assert_eq!((different, one.len()), (0, two.len()), "{fs_type}");
        assert_eq!(later(&images[0]), Vec::<String>::new(), "{fs_type}");
        let old = extant(&["stat", &images[0], "/copy/d1/f1"]).ok();
        assert!(old.contains("Modify: 1998-07-09 16:00:00.5"), "{old}");
    }
}

/// Runs every verb that changes an image, one after the other.
#[test]
fn verbs_leave_the_same_image_on_one_processor_and_on_all() {
    let dir = Dir::new();
    let top = tree(&dir);
    let base = dir.text("base.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &base, "64M"]);
    let lines = dir.text("lines");
    std::fs::write(&lines, format!("mkdir /s\nput -r {top}/d1 /s/d1\nln /s/d1/f2 /s/f\nrm -r /copy/d4\n"))
        .expect("lines");
    let extant = extant_path().to_str().expect("UTF-8");
    let [one, all] = [&["taskset", "-c", "0", extant][..], &["env", extant]].map(|prefix| {
        let image = dir.text(&format!("{}.img", prefix[0]));
        std::fs::copy(&base, &image).expect("copied");
        let at = |path: &str| format!("{image}:{path}");
        for verb in [
            &["cp", "-r", &top, &at("/copy")][..],
            &["cp", &lines, &at("/lines")],
            &["mkdir", "-p", &at("/a/b")],
            &["ln", &at("/lines"), &at("/a/hard")],
            &["ln", "-s", "b", &at("/a/soft")],
            &["mv", &at("/a/hard"), &at("/a/b/hard")],
            &["chmod", "-R", "u+x", &at("/copy/d2")],
            &["chown", "-R", "5:6", &at("/copy/d3")],
            &["mknod", &at("/a/null"), "c", "1", "3"],
            &["touch", &at("/a/new"), &at("/copy/d1/f1")],
            &["xattr", "set", "user.a", "b", &at("/a/new")],
            &["rm", "-r", &at("/copy/d5")],
            &["script", "--atomic", &image, &lines],
        ] {
            let verb = [verb, &["--seed", "7"]].concat();
            let ran = Command::new(prefix[0])
                .args(&prefix[1..])
                .args(&verb)
                .env("SOURCE_DATE_EPOCH", DATE.to_string())
                .output()
                .expect("extant");
            assert!(ran.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&ran.stderr));
        }
        fsck_clean(&image);
        std::fs::read(&image).expect("image")
    });
    assert_eq!(one.iter().zip(&all).filter(|(a, b)| a != b).count(), 0);
}

#[test]
fn an_invalid_source_date_is_refused() {
    let dir = Dir::new();
    let image = dir.empty_image("i.img", &[]);
    let before = std::fs::read(&image).expect("image");
    for wrong in ["yesterday", "1.5", "99999999999999999999"] {
        let done = dated(wrong, &["touch", &format!("{image}:/x")]);
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(1));
        assert!(said.contains("SOURCE_DATE_EPOCH") && said.contains(wrong), "{said}");
    }
    assert!(std::fs::read(&image).expect("image") == before);
    assert!(dated("", &["touch", &format!("{image}:/x")]).status.success(), "an empty value counts as not set");
}

#[test]
fn a_seed_fixes_the_generations_of_inodes() {
    let dir = Dir::new();
    let generation = |seed: &str| {
        let image = dir.empty_image("i.img", &[]);
        extant(&["touch", "--seed", seed, &format!("{image}:/x")]).ok();
        let stat: serde_json::Value =
            serde_json::from_slice(&extant(&["stat", "--json", &image, "/x"]).out).expect("JSON");
        stat["generation"].as_u64().expect("a number")
    };
    assert_eq!(generation("7"), generation("7"));
    assert_ne!(generation("7"), generation("8"));
}

/// A verb does not count for e2fsck's "maximal mount count".
#[test]
fn a_verb_does_not_count_as_a_mount() {
    let dir = Dir::new();
    for fs_type in ["ext4", "ext2"] {
        let image = dir.text("i.img");
        tool("mke2fs", &["-q", "-F", "-t", fs_type, &image, "16M"]);
        let mounts = || {
            let info: serde_json::Value =
                serde_json::from_slice(&extant(&["info", "--json", &image]).out).expect("JSON");
            let of = &info["filesystem"];
            assert_eq!(of["state"], "clean");
            (of["mount_count"].clone(), of["mount_time"].clone(), of["last_mounted"].clone())
        };
        let before = mounts();
        extant(&["mkdir", &format!("{image}:/d")]).ok();
        extant(&["cp", &image, &format!("{image}:/d/x")]).fails(8, &["is the image that is written"]);
        extant(&["rm", "-r", &format!("{image}:/d")]).ok();
        assert_eq!(mounts(), before, "{fs_type}");
        fsck_clean(&image);
    }
}

/// A verb waits only for six flushes: the in-use mark, the log, the commit, the checkpoint, the empty log, and the
/// clean mark. Each of them protects against a power cut.
#[test]
fn a_verb_waits_for_six_flushes() {
    let dir = Dir::new();
    let image = dir.empty_image("i.img", &[]);
    let trace = dir.text("trace");
    let path = extant_path().to_str().expect("UTF-8");
    if let Err(e) = std::process::Command::new("strace").arg("-V").output() {
        return eprintln!("skipped: needs strace ({e})");
    }
    for (verb, name) in [(&["touch"][..], "f"), (&["mkdir", "-p"], "d"), (&["rm", "-f"], "f")] {
        let at = format!("{image}:/{name}");
        let calls = "trace=fdatasync,fsync,pwritev2,clone,clone3";
        let ran = crate::common::run("strace", &[&["-f", "-e", calls, "-o", &trace, path], verb, &[&at]].concat());
        if ran.err.contains("ptrace") {
            return eprintln!("skipped: processes may not be traced ({})", ran.err);
        }
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        let calls = std::fs::read_to_string(&trace).expect("trace");
        let of = |name: &str| calls.lines().filter(|line| line.contains(name)).count();
        assert!(of("fdatasync(") + of("fsync(") + of("RWF_DSYNC") <= 6, "{calls}");
        // One thread, for signals.
        assert!(of("clone") <= 1, "{calls}");
    }
    fsck_clean(&image);
}
