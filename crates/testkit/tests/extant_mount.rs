//! [`ExtantMount`] with shell scripts in place of the binary: one leaves the mount behind, one does not exit, one
//! fails, one hangs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use extant_testkit::Error;
use extant_testkit::kinds::kind;
use extant_testkit::mount::{ExtantMount, Mounted, is_mount_point, loop_mounts_work};
use extant_testkit::oracle::{expect_clean, make_image};

struct Scene {
    dir: tempfile::TempDir,
    image: PathBuf,
    mnt: PathBuf,
}

fn scene() -> Scene {
    let dir = tempfile::tempdir().unwrap();
    let image = make_image(dir.path(), &kind("ext2", "", None, 1024).options).unwrap();
    let mnt = dir.path().join("mnt");
    std::fs::create_dir(&mnt).unwrap();
    Scene { dir, image, mnt }
}

fn script(dir: &Path, mount: &str) -> PathBuf {
    let path = dir.join("fake");
    let text = format!("#!/bin/sh\ncase $1 in\nmount) shift; {mount} ;;\nunmount) exec umount \"$2\" ;;\nesac\n");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The cases run sequentially: a child of another test that starts while a script is being written would have it open
/// for writing.
#[test]
fn servers_are_waited_for_told_of_and_killed() {
    if loop_mounts_work() {
        both_a_background_and_a_foreground_server_are_waited_for();
        failure_and_dropping();
    }
}

fn both_a_background_and_a_foreground_server_are_waited_for() {
    let stays = r#"mount -o loop "$1" "$2" && while mountpoint -q "$2"; do sleep 0.02; done"#;
    for (mount, foreground) in [(r#"exec mount -o loop "$1" "$2""#, false), (stays, true)] {
        let s = scene();
        let m = ExtantMount::new(&script(s.dir.path(), mount), &[], &s.image, &s.mnt).unwrap();
        assert!(is_mount_point(&s.mnt));
        assert!(!foreground || m.pid().is_some());
        std::fs::write(s.mnt.join("x"), b"1").unwrap();
        Box::new(m).unmount().unwrap();
        assert!(!is_mount_point(&s.mnt));
        expect_clean(&s.image).unwrap();
    }
}

fn failure_and_dropping() {
    let s = scene();
    let fails = script(s.dir.path(), "echo no such luck >&2; exit 7");
    match ExtantMount::new(&fails, &["-o", "x"], &s.image, &s.mnt) {
        Err(Error::Command { code: Some(7), output, .. }) => assert!(output.contains("no such luck")),
        other => panic!("{:?}", other.map(|_| ())),
    }
    let hangs = script(s.dir.path(), r#"mount -o loop "$1" "$2" && exec sleep 1000"#);
    let m = ExtantMount::new(&hangs, &[], &s.image, &s.mnt).unwrap();
    let pid = m.pid().unwrap();
    drop(m);
    assert!(!is_mount_point(&s.mnt));
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "the server was killed");
}
