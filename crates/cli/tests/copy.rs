//! `extant cp`: in, out, and what it refuses.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use common::{Dir, big, debugfs, extant, fsck_clean, patch, run, tool};

/// Kinds, modes, owners, sizes, times, links and contents of a tree, as lines.
fn listing(top: &str) -> String {
    let find = "find . -name lost+found -prune -o \\( -type d -printf '%y %m %U %G - %T@ %P\\n' -o -printf '%y %m %U %G %s %T@ %P %l\\n' \\)";
    let script = format!("cd {top} && {{ {find}; find . -type f -exec sha256sum {{}} + ; }} | LC_ALL=C sort");
    let done = run("sh", &["-c", &script]);
    assert_eq!(done.code, Some(0), "{}", done.err);
    String::from_utf8_lossy(&done.out).into_owned()
}

#[test]
fn a_tree_survives_in_and_out() {
    for options in
        [&["-b", "1024"][..], &["-O", "^has_journal"], &["-O", "^extents,^metadata_csum,^64bit", "-I", "128"]]
    {
        let dir = Dir::new();
        let (tree, image) = (dir.tree(), dir.empty_image("a.img", options));
        // Without the extra words of large inodes there are no nanoseconds.
        tool("sh", &["-c", &format!("find {tree} -exec touch -h -d @1000000000 {{}} +")]);
        if rustix::process::geteuid().is_root() {
            tool("chown", &["-h", "1234:70000", &format!("{tree}/link"), &format!("{tree}/big")]);
            tool("mknod", &[&format!("{tree}/device"), "c", "300", "70000"]);
            tool("touch", &["-d", "@1000000000", &format!("{tree}/device"), &tree]);
        }
        tool("setfattr", &["-n", "user.colour", "-v", "blue", &format!("{tree}/big")]);
        extant(&["cp", "-r", &tree, &format!("{image}:/new")]).ok();
        fsck_clean(&image);
        let out = dir.text("out");
        extant(&["cp", "-r", &format!("{image}:/new"), &out]).ok();
        assert_eq!(listing(&tree), listing(&out));
        assert!(std::fs::metadata(format!("{out}/sparse")).expect("file").blocks() < 1000, "the hole was filled");
        assert!(debugfs(&image, "stat /new/sparse").contains("Size: 52428800"));
        let value = run("getfattr", &["--only-values", "-n", "user.colour", &format!("{out}/big")]);
        assert_eq!(value.out, b"blue");
        // And the kernel's own tool sees the same content.
        let dump = dir.text("dump");
        debugfs(&image, &format!("dump /new/big {dump}"));
        assert!(std::fs::read(dump).expect("dump") == big());

        // Once more over it, into the root of the image and out of it.
        extant(&["cp", "-r", &format!("{tree}/."), &format!("{image}:/")]).ok();
        extant(&["cp", "-r", &format!("{tree}/."), &format!("{image}:/")]).ok();
        fsck_clean(&image);
        let all = dir.text("all");
        extant(&["cp", "-r", &format!("{image}:/"), &all]).ok();
        std::fs::remove_dir_all(format!("{all}/new")).expect("the first copy");
        tool("touch", &["-d", "@1000000000", &all, &tree]);
        assert_eq!(listing(&tree), listing(&all));
    }
}

#[test]
fn where_a_copy_goes() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    let here = dir.text("here");
    std::fs::create_dir(&here).expect("directory");
    extant(&["cp", &at("/etc/passwd"), &at("link"), &here]).ok();
    let read = |name: &str| std::fs::read_to_string(dir.path(name)).expect("file");
    assert_eq!(read("here/passwd"), "root:x:0:0::/root:/bin/sh\n");
    // Followed without -r, kept with it.
    assert!(dir.path("here/link").symlink_metadata().expect("file").is_file());
    extant(&["cp", "-r", &at("link"), &dir.text("kept")]).ok();
    assert!(dir.path("kept").is_symlink());

    std::fs::write(dir.path("new"), "new\n").expect("file");
    extant(&["cp", &dir.text("new"), &at("/etc")]).ok();
    extant(&["cp", &dir.text("new"), &at("/etc/passwd")]).ok();
    extant(&["cp", &at("/etc/new"), &at("/etc/deep/again")]).ok();
    for path in ["/etc/new", "/etc/passwd", "/etc/deep/again"] {
        assert_eq!(debugfs(&image, &format!("cat {path}")), "new\n");
    }
    fsck_clean(&image);
    // From one image to another.
    let other = dir.empty_image("other.img", &[]);
    extant(&["cp", "-r", &at("/etc"), &format!("{other}:/")]).ok();
    assert_eq!(debugfs(&other, "cat /etc/deep/er/file"), "deep\n");
    fsck_clean(&other);
}

#[test]
fn what_cannot_be_copied() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    let out = dir.text("out");
    extant(&["cp", &dir.text("src/big"), &out]).fails(1, &["neither source nor destination is in an image"]);
    extant(&["cp", &at("/etc"), &out]).fails(8, &["disk.img: /etc: is a directory (copy it with -r)"]);
    extant(&["cp", &at("/none"), &out]).fails(8, &["disk.img: /none: no such file or directory"]);
    extant(&["cp", &at("/big"), &dir.text("no/such/dir")]).fails(8, &["no/such", "No such file or directory"]);
    extant(&["cp", &dir.text("src/big"), &at("/no/such/dir")]).fails(8, &["disk.img: /no/such/: no such file"]);
    extant(&["cp", &at("/big"), &at("/empty"), &dir.text("src/empty")]).fails(8, &["src/empty: not a directory"]);
    extant(&["cp", "-r", &dir.text("src/etc"), &at("/big")])
        .fails(8, &["/big: something that is no directory is in the way"]);
    extant(&["cp", "no.img:/x", &out]).fails(8, &["no.img: No such file or directory"]);
    // One bad apple does not stop the others.
    std::fs::create_dir(&out).expect("directory");
    extant(&["cp", &at("/none"), &at("/empty"), &out]).fails(8, &["/none: no such file"]);
    assert!(dir.path("out/empty").exists());
    fsck_clean(&image);
}

#[test]
fn a_full_image_says_so_and_stays_clean() {
    let dir = Dir::new();
    let image = dir.empty_image("small.img", &["-b", "1024"]);
    let data = dir.text("data");
    std::fs::write(&data, vec![7; 30 << 20]).expect("file");
    extant(&["cp", &data, &format!("{image}:/data")]).fails(8, &["small.img: /data: no space left"]);
    fsck_clean(&image);
}

/// A directory in which one name is first a link that leads away and then a directory: what comes out must stay inside.
#[test]
fn a_hostile_tree_does_not_lead_out() {
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &["-O", "^metadata_csum,^dir_index", "-b", "1024"]);
    let victim = dir.text("victim");
    std::fs::create_dir(&victim).expect("directory");
    std::fs::create_dir_all(dir.path("in/aa")).expect("directory");
    std::fs::write(dir.path("in/aa/planted"), "gotcha").expect("file");
    std::os::unix::fs::symlink(&victim, dir.path("in/bb")).expect("link");
    std::fs::write(dir.path("in/cc"), "plain").expect("file");
    extant(&["cp", "-r", &dir.text("in"), &format!("{image}:/in")]).ok();
    let rename = |from: &[u8], to: &[u8]| {
        let bytes = std::fs::read(&image).expect("image");
        // An entry: inode, length, name length 2, type, name.
        let found = bytes.windows(4).enumerate().filter(|(_, w)| w[0] == 2 && w[2..] == *from).map(|(i, _)| i + 2);
        for at in found.collect::<Vec<_>>() {
            patch(&image, at as u64, to);
        }
    };
    // Twice "bb": the link, and a directory.
    rename(b"aa", b"bb");
    // And a name that is a path.
    rename(b"cc", b"./");
    let copied = extant(&["cp", "-r", &format!("{image}:/in"), &dir.text("out")]);
    assert!(!copied.err.contains("panicked") && copied.code != Some(0), "{copied:?}");
    assert!(!dir.path("victim/planted").exists());
}

#[test]
fn private_content_is_never_readable_by_others() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let out = dir.text("out");
    std::fs::write(&out, "old").expect("file");
    std::fs::set_permissions(&out, PermissionsExt::from_mode(0o666)).expect("mode");
    extant(&["cp", &format!("{image}:/etc/passwd"), &out]).ok();
    let mode = std::fs::metadata(&out).expect("file").mode() & 0o7777;
    let expected = if rustix::process::geteuid().is_root() { 0o4751 } else { 0o751 };
    assert_eq!(mode, expected);
}
