//! Encrypted files by their keys: verbs with `--key`, `extant encrypt`, a mount with `-o fscrypt_key=`.

use std::fs;
use std::path::Path;

use crate::common::{Dir, Unmounted, extant, extant_path, fsck_clean, run, tool};
use extant_testkit::mount::fuse_works;

/// An image with the feature, and a key; `/private` is encrypted with it.
fn encrypted(dir: &Dir) -> (String, String) {
    let (image, key) = (dir.text("e.img"), dir.text("key"));
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-O", "encrypt", &image, "24M"]);
    fs::write(&key, (0..64).collect::<Vec<u8>>()).expect("a key");
    extant(&["mkdir", &format!("{image}:/private")]).ok();
    extant(&["encrypt", "--key", &key, &format!("{image}:/private")]).ok();
    (image, key)
}

#[test]
fn verbs_read_and_write_encrypted_files_with_the_key() {
    let dir = Dir::new();
    let (image, key) = encrypted(&dir);
    let at = |path: &str| format!("{image}:{path}");
    let source = dir.tree();
    extant(&["cp", "-r", "--key", &key, &source, &at("/private")]).ok();
    extant(&["ln", "-s", "--key", &key, "a target", &at("/private/link")]).ok();
    fsck_clean(&image);
    extant(&["fsck", "-fn", &image]).ok();
    assert_eq!(extant(&["ls", "--key", &key, &at("/private")]).ok(), "link\nsrc\n");
    assert!(extant(&["ls", "-l", "--key", &key, &at("/private")]).ok().contains("link -> a target"));
    // Without the key, and with another one.
    let other = dir.text("other");
    fs::write(&other, [9; 64]).expect("a key");
    for keys in [&[][..], &["--key", &other]] {
        let listed = extant(&[&["ls", &at("/private")][..], keys].concat()).ok();
        assert!(listed.lines().count() == 2 && !listed.contains("src") && !listed.contains("link"), "{listed}");
        extant(&[&["cat", &at("/private/src/empty")][..], keys].concat()).fails(8, &["no such file"]);
        extant(&[&["touch", &at("/private/new")][..], keys].concat()).fails(8, &["is encrypted, and there is no key"]);
    }
    // Out again, whole.
    // A file with a set-ID mode loses it, with a message.
    assert_eq!(extant(&["cp", "-r", "--key", &key, &at("/private/src"), &dir.text("out")]).code, Some(0));
    let compared = run("diff", &["-r", "--no-dereference", "-x", "fifo", &source, &dir.text("out")]);
    assert_eq!(compared.code, Some(0), "{}", compared.err);
    let archive = dir.text("out.tar");
    extant(&["export", "--key", &key, &at("/private"), "-o", &archive]).ok();
    assert!(tool("tar", &["-tf", &archive]).contains("./src/empty\n"));
    extant(&["cp", &format!("{source}/empty"), &at("/plain")]).ok();
    extant(&["mv", "--key", &key, &at("/plain"), &at("/private/plain")]).fails(8, &["not encrypted as the directory"]);
    extant(&["encrypt", "--key", &other, &at("/private")]).fails(8, &["file exists"]);
    extant(&["rm", "-r", &at("/private")]).ok();
    fsck_clean(&image);
}

#[test]
fn bad_keys_are_refused_by_name() {
    let dir = Dir::new();
    let (image, key) = encrypted(&dir);
    let at = format!("{image}:/private");
    extant(&["ls", "--key", &dir.text("none"), &at]).fails(1, &["none: No such file"]);
    fs::write(dir.path("short"), [1; 15]).expect("written");
    extant(&["ls", "--key", &dir.text("short"), &at]).fails(1, &["a key of 15 bytes", "16 to 64"]);
    extant(&["encrypt", &at]).fails(1, &["--key"]);
    // A policy of version 1 takes the key of its descriptor, and all 64 bytes of it.
    fs::write(dir.path("half"), [1; 32]).expect("written");
    extant(&["mkdir", &format!("{image}:/v1")]).ok();
    let v1 = format!("{image}:/v1");
    extant(&["encrypt", "--policy", "v1", "--key", &dir.text("half"), &v1]).fails(8, &["AES-256-XTS needs 64"]);
    let named = format!("0123456789abcdef:{key}");
    extant(&["encrypt", "--policy", "v1", "--padding", "4", "--key", &named, &v1]).ok();
    extant(&["touch", "--key", &named, &format!("{v1}/file")]).ok();
    assert_eq!(extant(&["ls", "--key", &named, &v1]).ok(), "file\n");
    assert_ne!(extant(&["ls", "--key", &key, &v1]).ok(), "file\n");
    fsck_clean(&image);
}

#[test]
fn a_mount_with_the_key_reads_and_writes_encrypted_files() {
    if !fuse_works() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let (image, key) = encrypted(&dir);
    let mount = Unmounted::at(&dir, "mnt");
    let mnt = &mount.0;
    let private = Path::new(mnt).join("private");
    extant(&["mount", "-o", &format!("fscrypt_key={key}"), &image, mnt]).ok();
    let text: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
    fs::write(private.join("file"), &text).expect("written");
    std::os::unix::fs::symlink("file", private.join("link")).expect("linked");
    extant(&["unmount", mnt]).ok();
    fsck_clean(&image);
    // The key from a descriptor that the shell has opened.
    let script = format!("exec {} mount -o ro,fscrypt_key=fd:7 {image} {mnt} 7<{key}", extant_path().display());
    run("sh", &["-c", &script]).ok();
    let read = fs::read(private.join("link")).expect("read");
    let size = private.join("link").symlink_metadata().expect("a link").len();
    extant(&["unmount", mnt]).ok();
    assert!(read == text && size == 4);
    extant(&["mount", &image, mnt]).ok();
    let names: Vec<_> = fs::read_dir(&private).expect("listed").map(|e| e.expect("entry").file_name()).collect();
    // The target of the link leads nowhere. The kernel opens the file without asking, so its first read fails.
    let failed = names.iter().filter_map(|name| fs::read(private.join(name)).err()?.raw_os_error());
    let failed: std::collections::BTreeSet<i32> = failed.collect();
    let made = fs::write(private.join("new"), "").expect_err("no key");
    names.iter().for_each(|name| fs::remove_file(private.join(name)).expect("removed"));
    extant(&["unmount", mnt]).ok();
    assert_eq!((names.len(), made.raw_os_error()), (2, Some(126)));
    assert_eq!(failed, [libc::ENOENT, libc::ENOKEY].into());
    fsck_clean(&image);
    extant(&["mount", "-o", "fscrypt_key=/no/such/key", &image, mnt]).fails(32, &["/no/such/key: No such file"]);
}
