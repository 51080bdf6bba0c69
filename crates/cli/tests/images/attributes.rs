//! `extant chattr`, `lsattr` and `trim`: flags as debugfs and the kernel see them, and space that is returned to the
//! host.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::common::{Dir, debugfs, extant, fsck_clean, loop_mounts_work, tool};

#[test]
fn flags_come_and_go_as_lsattr_shows_them() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    extant(&["mkdir", "-p", &at("/d/sub")]).ok();
    fs::write(dir.path("f"), "content").expect("file");
    extant(&["cp", &dir.text("f"), &at("/d/f")]).ok();
    extant(&["chattr", "+iA", &at("/d/f")]).ok();
    assert_eq!(extant(&["lsattr", &at("/d/f")]).ok(), "----i--A------e------- /d/f\n");
    assert!(debugfs(&image, "stat /d/f").contains("Flags: 0x80090"));
    extant(&["chattr", "-i", "+d", &at("/d/f")]).ok();
    extant(&["chattr", "=S", &at("/d/f")]).ok();
    assert_eq!(extant(&["lsattr", &at("/d/f")]).ok(), "--S-----------e------- /d/f\n");
    extant(&["chattr", "-R", "+d", &at("/d")]).ok();
    let listed = extant(&["lsattr", "-R", &at("/d")]).ok();
    assert!(listed.contains("--S---d-------e------- /d/f\n") && listed.contains("------d"), "{listed}");
    assert!(extant(&["lsattr", "-l", "-d", &at("/d")]).ok().contains("No_Dump, Extents"));
    extant(&["chattr", "+q", &at("/d/f")]).fails(1, &["'+q' is not a mode"]);
    extant(&["chattr", "+i", &at("/none")]).fails(8, &["/none"]);
    extant(&["chattr", "+i"]).fails(1, &["no file"]);
    extant(&["chattr", "+j", &at("/d/f")]).fails(8, &["/d/f"]);
    fsck_clean(&image);
}

#[test]
fn an_empty_directory_ignores_case_once_it_has_the_flag() {
    let dir = Dir::new();
    let image = dir.image("ext4", &["-O", "casefold"]);
    let at = |path: &str| format!("{image}:{path}");
    extant(&["mkdir", &at("/d")]).ok();
    extant(&["chattr", "+F", &at("/d")]).ok();
    assert_eq!(extant(&["lsattr", "-d", &at("/d")]).ok(), "--------------e--F---- /d\n");
    fs::write(dir.path("Foo"), "content").expect("file");
    extant(&["cp", &dir.text("Foo"), &at("/d/Foo")]).ok();
    extant(&["cat", &at("/D/foo")]).fails(8, &["/D"]);
    assert_eq!(extant(&["cat", &at("/d/fOO")]).out, b"content");
    extant(&["mkdir", &at("/d/FOO")]).fails(8, &["/d/FOO"]);
    extant(&["chattr", "-F", &at("/d")]).fails(8, &["/d"]);
    // Another spelling, with no clobber none, and no second name.
    extant(&["mv", &at("/d/foo"), &at("/d/FOO")]).ok();
    assert_eq!(extant(&["ls", &at("/d")]).ok(), "FOO\n");
    extant(&["mv", "-n", &at("/d/FOO"), &at("/d/foo")]).ok();
    extant(&["ln", &at("/d/foo"), &at("/d/other")]).ok();
    extant(&["mv", &at("/d/foo"), &at("/d/OTHER")]).fails(8, &["are the same file"]);
    assert!(debugfs(&image, "ls /d").contains("FOO"));
    extant(&["rm", &at("/d/foo"), &at("/d/OTHER")]).ok();
    extant(&["chattr", "-F", &at("/d")]).ok();
    let plain = dir.empty_image("plain.img", &[]);
    extant(&["mkdir", &format!("{plain}:/d")]).ok();
    extant(&["chattr", "+F", &format!("{plain}:/d")]).fails(8, &["casefold"]);
    fsck_clean(&image);
}

#[test]
fn trim_gives_the_host_its_room_back() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    let noise: Vec<u8> = (0..4u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(dir.path("noise"), &noise).expect("file");
    extant(&["cp", &dir.text("noise"), &at("/noise")]).ok();
    extant(&["cp", &dir.text("noise"), &at("/kept")]).ok();
    extant(&["rm", &at("/noise")]).ok();
    let before = fs::metadata(&image).expect("image").blocks();
    let said = extant(&["trim", &image]).ok();
    let after = fs::metadata(&image).expect("image").blocks();
    assert!(said.contains(" bytes) trimmed"), "{said}");
    assert!(after * 512 + (3 << 20) < before * 512, "{before} to {after} sectors");
    assert_eq!(extant(&["cat", &at("/kept")]).out, noise);
    fsck_clean(&image);
    extant(&["trim", "-o", "1T", &image]).fails(8, &["not trimmed"]);
    if loop_mounts_work() {
        let mount = dir.text("mnt");
        fs::create_dir_all(&mount).expect("directory");
        tool("mount", &["-o", "loop", &image, &mount]);
        let ran = extant(&["trim", &image]);
        crate::common::umount(&[&mount]);
        ran.fails(8, &[]);
    }
}
