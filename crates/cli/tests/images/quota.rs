//! `extant quota` on images and mounts, compared with e2fsprogs.

use std::process::Command;

use extant_testkit::mount::{ExtantMount, fuse_works};
use extant_testkit::oracle::{arg, expect_clean, mke2fs, tool};

fn extant(args: &[&str]) -> (i32, String, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_extant")).args(args).output().expect("ran");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (done.status.code().unwrap_or(-1), text(done.stdout), text(done.stderr))
}

fn ok(args: &[&str]) -> String {
    let (code, out, err) = extant(args);
    assert_eq!(code, 0, "{args:?}: {out}{err}");
    out
}

/// The fields of an owner's line, without its ID.
fn line(report: &str, id: u32) -> Vec<String> {
    let start = format!("#{id} ");
    let line = report.lines().find(|line| line.starts_with(&start));
    let line = line.unwrap_or_else(|| panic!("no owner {id}: {report}"));
    line.split_whitespace().skip(1).map(str::to_owned).collect()
}

#[test]
fn usage_and_limits_of_an_image_are_those_of_debugfs() {
    let dir = tempfile::tempdir().expect("tempdir");
    let image = dir.path().join("disk.img");
    mke2fs(
        &image,
        &["-t", "ext4", "-b", "4096", "-O", "quota,project", "-E", "quotatype=usrquota:grpquota:prjquota"],
        "32M",
    );
    let image = arg(&image);
    std::fs::write(dir.path().join("file"), vec![7; 100_000]).expect("written");
    let source = dir.path().join("file");
    ok(&["cp", "--owner", "1000:100", arg(&source), &format!("{image}:/f")]);
    ok(&["mkdir", "--owner", "1000:7", &format!("{image}:/d")]);
    let report = ok(&["quota", "report", "-u", image]);
    assert_eq!(line(&report, 1000), ["--", "104", "0", "0", "2", "0", "0"], "{report}");
    ok(&["quota", "set", "-u", "1000", "50", "1M", "5", "10", image]);
    ok(&["quota", "set", "-P", "42", "0", "2G", "0", "0", image]);
    ok(&["quota", "grace", "-u", "1day", "3600", image]);
    let report = ok(&["quota", "report", image]);
    for title in ["user quotas", "group quotas", "project quotas"] {
        assert!(report.contains(&format!("*** Report for {title} on ")), "{report}");
    }
    assert!(report.contains("Block grace time: 1days; Inode grace time: 01:00"), "{report}");
    let user = line(&report, 1000);
    assert_eq!(user[..4], ["+-", "104", "50", "1024"], "{report}");
    assert_eq!(user[user.len() - 3..], ["2", "5", "10"], "{report}");
    assert_eq!(line(&report, 42), ["--", "0", "0", "2097152", "0", "0", "0"]);
    // The same, read by debugfs.
    let by_debugfs = tool("debugfs", &["-R", "list_quota user", image]);
    let found = by_debugfs.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let found = found.into_iter().find(|words| words.first() == Some(&"1000"));
    let found = found.unwrap_or_else(|| panic!("{by_debugfs}"));
    assert_eq!(found[1..], ["106496", "50", "1024", "2", "5", "10"], "{by_debugfs}");
    expect_clean(image).expect("clean");
    let (code, _, err) = extant(&["quota", "set", "-u", "1", "1", "1", "x", "1", image]);
    assert_eq!(code, 1, "{err}");
}

#[test]
fn an_image_without_quotas_says_so() {
    let dir = tempfile::tempdir().expect("tempdir");
    let image = dir.path().join("disk.img");
    mke2fs(&image, &["-t", "ext4"], "16M");
    for args in [&["quota", "report"][..], &["quota", "set", "-u", "0", "1", "1", "1", "1"]] {
        let (code, out, err) = extant(&[args, &[arg(&image)]].concat());
        assert!(code == 8 && err.contains("feature quota") && out.is_empty(), "{code}: {out}{err}");
    }
}

#[test]
fn a_mount_enforces_limits_and_answers_for_them() {
    if !fuse_works() {
        eprintln!("skipped: no FUSE");
        return;
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let image = dir.path().join("disk.img");
    mke2fs(&image, &["-t", "ext4", "-O", "quota", "-E", "quotatype=usrquota:prjquota,root_owner=0:0"], "32M");
    let top = dir.path().join("mnt");
    std::fs::create_dir(&top).expect("made");
    let mount =
        ExtantMount::new(env!("CARGO_BIN_EXE_extant").as_ref(), &["-o", "usrquota"], &image, &top).expect("mounted");
    let at = arg(&top);
    std::fs::write(top.join("f"), vec![1; 50_000]).expect("written");
    let uid = rustix::process::getuid().as_raw();
    let report = ok(&["quota", "report", "-u", at]);
    assert!(line(&report, uid)[1].parse::<u64>().expect("a number") >= 52, "{report}");
    ok(&["quota", "set", "-u", "1000", "0", "100", "0", "3", at]);
    ok(&["quota", "grace", "-u", "60", "2hours", at]);
    let report = ok(&["quota", "report", at]);
    assert!(report.contains("Block grace time: 00:01; Inode grace time: 02:00"), "{report}");
    assert_eq!(line(&report, 1000), ["--", "0", "0", "100", "0", "0", "3"]);
    if uid == 0 {
        // Another user's limit is enforced: setpriv(1) writes as that user.
        let own = top.join("hers");
        std::fs::create_dir(&own).expect("made");
        std::os::unix::fs::chown(&own, Some(1000), Some(1000)).expect("given");
        let write = |bytes: &str| {
            let to = format!("of={}", arg(&own.join("data")));
            let args =
                ["--reuid=1000", "--clear-groups", "dd", "if=/dev/zero", &to, "bs=4096", &format!("count={bytes}")];
            let done = Command::new("setpriv").args(args).output().expect("ran");
            (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
        };
        let (written, said) = write("100");
        assert!(!written && said.contains("Disk quota exceeded"), "{said}");
        let (written, said) = write("20");
        assert!(written, "{said}");
        // That user sees only this row, and may set nothing.
        let as_user = |args: &[&str]| {
            let binary = env!("CARGO_BIN_EXE_extant");
            let before =
                ["--reuid=1000", "--regid=1000", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", binary];
            Command::new("setpriv").args(before).args(args).output().expect("ran")
        };
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("opened");
        let done = as_user(&["quota", "report", at]);
        let (seen, said) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{seen}{said}");
        assert_eq!(seen.lines().filter(|line| line.starts_with('#')).count(), 1, "{seen}");
        assert_eq!(line(&seen, 1000)[3], "100");
        let done = as_user(&["quota", "set", "-u", "1000", "0", "0", "0", "0", at]);
        assert!(!done.status.success());
        assert_eq!(line(&ok(&["quota", "report", "-u", at]), 1000)[3], "100");
    }
    drop(mount);
    expect_clean(&image).expect("clean");
}
