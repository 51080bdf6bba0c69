//! Mounts that also exist in another mount namespace. A namespace begins as a copy of all mounts. Only a process of the
//! same test gets copies of a test's mounts ([`extant_testkit::mount`]).

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Dir, Unmounted, extant, extant_path, fsck_clean, in_time, run, wait_until};
use extant_testkit::mount::{fuse_works, is_mount_point};
use rustix::process::geteuid;

fn skipped() -> bool {
    let skip = !fuse_works() || !geteuid().is_root();
    if skip {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    skip
}

fn place(dir: &Dir) -> (String, Unmounted) {
    let mount = Unmounted::at(dir, "mnt");
    (mount.0.clone(), mount)
}

/// A process with a mount namespace of its own, a copy of all present mounts.
struct ForeignNamespace(Child);

impl ForeignNamespace {
    fn new() -> Option<ForeignNamespace> {
        ForeignNamespace::of("/proc/thread-self/ns/mnt")
    }

    /// A copy of another mount namespace.
    fn of(namespace: &str) -> Option<ForeignNamespace> {
        // Opened here, where "self" refers to the caller.
        let namespace = std::fs::canonicalize(Path::new(namespace).parent().expect("a folder")).expect("a process");
        let mut child = Command::new("nsenter")
            .arg(format!("--mount={}/mnt", namespace.display()))
            .args(["unshare", "--mount", "--propagation", "private", "sleep", "300"])
            .stdin(Stdio::null())
            .spawn()
            .expect("spawn");
        // Its namespace is complete when it has executed the other program.
        wait_until("sleep", || {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", child.id())).unwrap_or_default();
            child.try_wait().expect("asked").is_some() || name == "sleep\n"
        });
        if child.try_wait().expect("asked").is_some() {
            eprintln!("skipped: no mount namespaces");
            return None;
        }
        Some(ForeignNamespace(child))
    }

    fn namespace(&self) -> String {
        format!("/proc/{}/ns/mnt", self.0.id())
    }

    fn has_mounted(&self, dir: &str) -> bool {
        let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.0.id())).expect("table");
        table.lines().any(|line| line.contains(&format!(" {dir} ")))
    }
}

impl Drop for ForeignNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_unmount_does_not_wait_for_another_mount_namespace() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir);
    extant(&["mount", &image, &mnt]).ok();
    let Some(elsewhere) = ForeignNamespace::new() else { return };
    std::fs::write(format!("{mnt}/new"), "new").expect("written");
    let process = format!("process {}", elsewhere.0.id());
    in_time(&["unmount", &mnt]).fails(2, &["disk.img: unmounted here, but still mounted in another", &process]);
    assert!(!is_mount_point(Path::new(&mnt)) && elsewhere.has_mounted(&mnt));
    drop(elsewhere);
    assert_eq!(extant(&["cat", &image, "new"]).ok(), "new");
    fsck_clean(&image);
}

/// Any program may create a mount namespace while a test's mount exists. The first thread's namespace is the one in
/// which the test program was started.
#[test]
fn mounts_of_a_test_are_not_copied_into_the_namespaces_of_other_programs() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir);
    extant(&["mount", &image, &mnt]).ok();
    let Some(other) = ForeignNamespace::of(&format!("/proc/{0}/task/{0}/ns/mnt", std::process::id())) else { return };
    assert!(is_mount_point(Path::new(&mnt)) && !other.has_mounted(&mnt));
    in_time(&["unmount", &mnt]).ok();
    fsck_clean(&image);
}

/// mount(8) and umount(8) let their helpers enter the namespace of `-N`.
#[test]
fn helpers_work_in_the_mount_namespace_of_the_option() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir);
    let helper = |name: &str| {
        std::os::unix::fs::symlink(extant_path(), dir.path(name)).expect("link");
        dir.text(name)
    };
    let (mount, umount) = (helper("mount.fuse.extant"), helper("umount.fuse.extant"));
    let Some(elsewhere) = ForeignNamespace::new() else { return };
    let namespace = elsewhere.namespace();
    run(&mount, &[&image, &mnt, "-N", &namespace, "-o", "rw"]).ok();
    assert!(!is_mount_point(Path::new(&mnt)) && elsewhere.has_mounted(&mnt));
    run(&umount, &[&mnt]).fails(32, &["mnt: not mounted"]);
    run(&umount, &[&mnt, "-N", &namespace]).ok();
    assert!(!elsewhere.has_mounted(&mnt));
    fsck_clean(&image);
    for args in [&[&mount[..], &image, &mnt, "-N", "/none"], &[&umount, &mnt, "-N", "/none"][..]] {
        run(args[0], &args[1..]).fails(32, &["/none: this mount namespace cannot be entered: No such file"]);
    }
}
