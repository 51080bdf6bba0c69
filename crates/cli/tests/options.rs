//! The effect of the words of `-o` on a mount, compared with the kernel's.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use common::{Dir, Unmounted, extant, extant_path, fsck_clean, run, tool, umount};
use extant_testkit::mount::{fuse_works, is_mount_point, loop_mounts_work};
use rustix::process::geteuid;

/// A directory to mount on, and its unmount at the end.
fn place(dir: &Dir, name: &str) -> (String, Unmounted) {
    let mount = Unmounted::at(dir, name);
    (mount.0.clone(), mount)
}

fn skipped() -> bool {
    let skip = !fuse_works() || !geteuid().is_root();
    if skip {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    skip
}

/// Group and mode of a file, a directory and a link that are created in a directory of group 100, and in one that also
/// has the set-group-ID bit.
fn made_in(mnt: &str) -> Vec<(u32, u32)> {
    let mut made = Vec::new();
    for (name, mode) in [("plain", 0o755), ("sgid", 0o2775)] {
        let dir = format!("{mnt}/{name}");
        std::fs::create_dir(&dir).expect("made");
        chown(&dir, None, Some(100)).expect("group");
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(mode)).expect("mode");
        std::fs::write(format!("{dir}/file"), "x").expect("written");
        std::fs::create_dir(format!("{dir}/sub")).expect("made");
        std::os::unix::fs::symlink("x", format!("{dir}/link")).expect("made");
        for name in ["file", "sub", "link"] {
            let meta = std::fs::symlink_metadata(format!("{dir}/{name}")).expect("there");
            made.push((meta.gid(), meta.mode()));
        }
    }
    made
}

#[test]
fn the_group_of_a_new_file_is_as_in_the_kernel() {
    if skipped() || !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let (mnt, _mounts) = place(&dir, "mnt");
    for (i, (tune, options)) in [
        (vec![], "rw"),
        (vec![], "grpid"),
        (vec!["-o", "bsdgroups"], "rw"),
        (vec!["-o", "bsdgroups"], "sysvgroups"),
        (vec!["-E", "mount_opts=bsdgroups"], "rw"),
    ]
    .into_iter()
    .enumerate()
    {
        let seen = ["extant", "kernel"].map(|who| {
            let image = dir.empty_image(&format!("{who}{i}.img"), &[]);
            if !tune.is_empty() {
                tool("tune2fs", &[&tune[..], &[&image]].concat());
            }
            if who == "extant" {
                extant(&["mount", "-o", options, &image, &mnt]).ok();
                let made = made_in(&mnt);
                extant(&["unmount", &mnt]).ok();
                fsck_clean(&image);
                made
            } else {
                tool("mount", &["-o", &format!("loop,{options}"), &image, &mnt]);
                let made = made_in(&mnt);
                umount(&[&mnt]);
                made
            }
        });
        assert_eq!(seen[0], seen[1], "{tune:?} {options}");
    }
}

#[test]
fn verbs_follow_the_group_options_in_the_superblock() {
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    tool("tune2fs", &["-o", "bsdgroups", &image]);
    extant(&["mkdir", &format!("{image}:/d")]).ok();
    extant(&["chown", ":100", &format!("{image}:/d")]).ok();
    extant(&["touch", &format!("{image}:/d/f")]).ok();
    let stat = extant(&["stat", "--json", &image, "/d/f"]).ok();
    assert!(stat.contains("\"gid\": 100") || stat.contains("\"gid\":100"), "{stat}");
}

#[test]
fn minixdf_counts_as_in_the_kernel() {
    if skipped() || !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    for options in ["bsddf", "minixdf"] {
        let blocks = || tool("stat", &["-f", "-c", "%b", &mnt]);
        extant(&["mount", "-o", options, &image, &mnt]).ok();
        let ours = blocks();
        extant(&["unmount", &mnt]).ok();
        tool("mount", &["-o", &format!("loop,{options}"), &image, &mnt]);
        assert_eq!(ours, blocks(), "{options}");
        umount(&[&mnt]);
    }
}

#[test]
fn noacl_and_nouser_xattr_hide_acls_and_user_attributes() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let attributes = || tool("getfattr", &["-d", "-m", "-", "--absolute-names", &mnt]);
    extant(&["mount", &image, &mnt]).ok();
    tool("setfacl", &["-m", "u:7:rwx,d:u:7:rwx", &mnt]);
    tool("setfattr", &["-n", "user.x", "-v", "y", &mnt]);
    extant(&["unmount", &mnt]).ok();

    extant(&["mount", "-o", "noacl", &image, &mnt]).ok();
    assert!(!attributes().contains("posix_acl") && attributes().contains("user.x"), "{}", attributes());
    std::fs::create_dir(format!("{mnt}/sub")).expect("made");
    extant(&["unmount", &mnt]).ok();

    extant(&["mount", "-o", "nouser_xattr", &image, &mnt]).ok();
    assert!(attributes().contains("posix_acl") && !attributes().contains("user.x"), "{}", attributes());
    let inherited = tool("getfacl", &["-n", "--absolute-names", &format!("{mnt}/sub")]);
    assert!(!inherited.contains("user:7"), "made without ACLs: {inherited}");
    assert_ne!(run("setfattr", &["-n", "user.z", "-v", "y", &mnt]).code, Some(0));
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
}

#[test]
fn a_word_with_another_effect_is_noted_once_and_mounts() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    for (options, said) in [
        ("errors=panic", &["errors=panic", "read-only instead"][..]),
        ("data=journal,noatime", &["data=journal", "data=ordered"]),
        (
            "noacl,nouser_xattr,nogrpid,bsddf,block_validity,orlov,i_version,debug,stripe=16,barrier=0,x-systemd.a=b",
            &[],
        ),
    ] {
        let ran = extant(&["mount", "-o", options, &image, &mnt]);
        assert_eq!((ran.code, ran.err.lines().count()), (Some(0), said.len().min(1)), "{options}: {}", ran.err);
        assert!(said.iter().all(|word| ran.err.contains(word)), "{}", ran.err);
        // Options of fstab are repeated at a remount.
        extant(&["mount", "-o", &format!("remount,ro,{options}"), &image, &mnt]).ok();
        extant(&["unmount", &mnt]).ok();
    }
    tool("tune2fs", &["-e", "panic", &image]);
    tool("debugfs", &["-w", "-R", "ssv mount_opts nodelalloc,usrjquota=a", &image]);
    let ran = extant(&["mount", &image, &mnt]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.err.contains("errors=panic") && ran.err.contains("usrjquota") && !ran.err.contains("nodelalloc"));
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
}

/// Linux: "required journal recovery suppressed and not mounted read-only".
#[test]
fn norecovery_writes_only_without_a_log_to_replay() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    extant(&["mount", "-o", "rw,noload", &image, &mnt]).ok();
    std::fs::write(format!("{mnt}/file"), "x").expect("written");
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
    extant(&["mount", "-o", "noload", &image, &mnt]).ok();
    std::fs::write(format!("{mnt}/file"), "y").expect_err("read-only");
    extant(&["unmount", &mnt]).ok();
    tool("debugfs", &["-w", "-R", "feature needs_recovery", &image]);
    extant(&["mount", "-o", "rw,noload", &image, &mnt]).fails(32, &["norecovery", "ro,norecovery"]);
    extant(&["mount", "-o", "ro,noload", &image, &mnt]).ok();
    extant(&["unmount", &mnt]).ok();
}

#[test]
fn mount_has_the_switches_of_mount_8() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    for (args, read_only) in [
        (&["-r"][..], true),
        (&["--read-only", "-o", "noatime"], true),
        (&["-o", "ro", "-w"], false),
        (&["-r", "--rw"], false),
        (&["--options", "ro,noatime"], true),
        (&["--options=noatime", "-o", "ro"], true),
    ] {
        extant(&[&["mount"], args, &[&image, &mnt]].concat()).ok();
        assert_eq!(std::fs::write(format!("{mnt}/file"), "x").is_err(), read_only, "{args:?}");
        extant(&["unmount", &mnt]).ok();
    }
    let made = dir.text("a/b");
    let _mount = Unmounted(made.clone());
    extant(&["mount", "-o", "X-mount.mkdir=700", &image, &made]).ok();
    extant(&["unmount", &made]).ok();
    assert_eq!(std::fs::metadata(&made).expect("made").mode() & 0o777, 0o700);
}

#[test]
fn unmount_tries_each_mount_and_fails_with_the_highest_status() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (a, _a) = place(&dir, "a");
    let (b, _b) = place(&dir, "b");
    let mount = || {
        for (name, mnt) in [("a.img", &a), ("b.img", &b)] {
            let image = dir.empty_image(name, &[]);
            extant(&["mount", &image, mnt]).ok();
        }
    };
    mount();
    extant(&["unmount", &a, &b]).ok();
    assert!(!is_mount_point(Path::new(&a)) && !is_mount_point(Path::new(&b)));
    mount();
    let missing = dir.text("missing");
    let said = extant(&["umount", &missing, &a, &missing, &b]).fails(32, &["not mounted"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(!is_mount_point(Path::new(&a)) && !is_mount_point(Path::new(&b)));
    extant(&["unmount"]).fails(1, &["DIR"]);
}

/// No path leads to the neighbouring directories.
#[test]
fn a_mount_of_a_subdirectory_shows_nothing_else() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let word = |path: &str| format!("X-mount.subdir={path}");
    extant(&["mount", "-o", &word("etc/deep"), &image, &mnt]).ok();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(&mnt).expect("listed").map(|e| e.expect("entry").file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["er"]);
    assert_eq!(std::fs::read_to_string(format!("{mnt}/er/file")).expect("read"), "deep\n");
    std::fs::rename(format!("{mnt}/er/file"), format!("{mnt}/moved")).expect("renamed");
    std::fs::hard_link(format!("{mnt}/moved"), format!("{mnt}/er/linked")).expect("linked");
    std::fs::create_dir(format!("{mnt}/er/new")).expect("made");
    let beside = std::fs::metadata(format!("{mnt}/..")).expect("there");
    assert_eq!(beside.ino(), std::fs::metadata(dir.path(".")).expect("there").ino(), "the host's directory");
    tool("sync", &["-f", &mnt]);
    extant(&["mount", "-o", &format!("remount,ro,{}", word("etc")), &image, &mnt]).fails(32, &["cannot change"]);
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
    assert_eq!(extant(&["cat", &image, "/etc/deep/moved"]).ok(), "deep\n");
    for (path, why) in [("etc/none", "No such file"), ("etc/passwd", "Not a directory")] {
        let said = extant(&["mount", "-o", &word(path), &image, &mnt]).fails(32, &[path]);
        assert!(said.to_lowercase().contains(&why.to_lowercase()), "{said}");
        assert!(!is_mount_point(Path::new(&mnt)));
    }
    fsck_clean(&image);
}

/// mount(8) does not pass this option on, and without it the helper would show everything.
#[test]
fn the_helper_takes_the_subdirectory_from_fstab() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    std::fs::write(dir.path("fstab"), format!("{image} {mnt} fuse.extant nofail,X-mount.subdir=etc/deep 0 0\n"))
        .expect("written");
    let helper = dir.text("mount.fuse.extant");
    std::os::unix::fs::symlink(extant_path(), &helper).expect("link");
    // In a mount namespace with another /etc/fstab.
    let script = format!(
        "mount --bind {fstab} /etc/fstab && {helper} {image} {mnt} -o rw && ls {mnt} && {extant} unmount {mnt}",
        fstab = dir.text("fstab"),
        extant = extant_path().display()
    );
    let ran = run("unshare", &["-m", "--propagation", "private", "sh", "-ec", &script]);
    assert_eq!(ran.ok(), "er\n");
    fsck_clean(&image);
}
