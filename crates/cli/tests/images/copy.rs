//! `extant cp`: in, out, and refusals.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::common::{Dir, big, debugfs, extant, fsck_clean, patch, run, tool, whole_disk};

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
        // Without the extra fields of large inodes there are no nanoseconds.
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
        extant(&["cp", "-r", "--privileges", &format!("{image}:/new"), &out]).ok();
        assert_eq!(listing(&tree), listing(&out));
        assert!(std::fs::metadata(format!("{out}/sparse")).expect("file").blocks() < 1000, "the hole was filled");
        assert!(debugfs(&image, "stat /new/sparse").contains("Size: 52428800"));
        let value = run("getfattr", &["--only-values", "-n", "user.colour", &format!("{out}/big")]);
        assert_eq!(value.out, b"blue");
        // debugfs reads the same content.
        let dump = dir.text("dump");
        debugfs(&image, &format!("dump /new/big {dump}"));
        assert!(std::fs::read(dump).expect("dump") == big());

        // The same copy again, over the existing files; then into the root of the image, and out of it.
        extant(&["cp", "-r", &format!("{tree}/."), &format!("{image}:/")]).ok();
        extant(&["cp", "-r", &format!("{tree}/."), &format!("{image}:/")]).ok();
        fsck_clean(&image);
        let all = dir.text("all");
        extant(&["cp", "-r", "--privileges", &format!("{image}:/"), &all]).ok();
        std::fs::remove_dir_all(format!("{all}/new")).expect("the first copy");
        tool("touch", &["-d", "@1000000000", &all, &tree]);
        assert_eq!(listing(&tree), listing(&all));
    }
}

/// A tree with labels or ACLs needs one block per distinct set of attributes, not one per file.
#[test]
fn copied_files_with_equal_attributes_share_a_block() {
    let dir = Dir::new();
    let (tree, image) = (dir.text("labelled"), dir.empty_image("a.img", &["-I", "128"]));
    let make =
        format!("mkdir {tree} && cd {tree} && touch a b c d && setfattr -n user.label -v {} a b c", "x".repeat(500));
    tool("sh", &["-c", &make]);
    extant(&["cp", "-r", &tree, &format!("{image}:/in")]).ok();
    extant(&["cp", "-r", &format!("{image}:/in"), &format!("{image}:/again")]).ok();
    let block_of = |path: &str| {
        let stat = debugfs(&image, &format!("stat {path}"));
        stat.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a block").to_owned()
    };
    let shared = block_of("/in/a");
    assert_ne!(shared, "0");
    for path in ["/in/b", "/in/c", "/again/a", "/again/b", "/again/c"] {
        assert_eq!(block_of(path), shared, "{path}");
    }
    assert_eq!(block_of("/again/d"), "0");
    fsck_clean(&image);
    extant(&["rm", "-r", &format!("{image}:/in")]).ok();
    fsck_clean(&image);
    let value = extant(&["xattr", "get", "user.label", &format!("{image}:/again/c")]).ok();
    assert_eq!(value.trim_end(), "x".repeat(500));
}

#[test]
fn a_copy_goes_into_a_directory_or_takes_the_new_name() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    let here = dir.text("here");
    std::fs::create_dir(&here).expect("directory");
    extant(&["cp", "--privileges", &at("/etc/passwd"), &at("link"), &here]).ok();
    let read = |name: &str| std::fs::read_to_string(dir.path(name)).expect("file");
    assert_eq!(read("here/passwd"), "root:x:0:0::/root:/bin/sh\n");
    // Followed without -r, copied as a link with it.
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
fn errors_of_copies_name_file_and_cause() {
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
        .fails(8, &["/big: a file that is not a directory is in the way"]);
    extant(&["cp", "no.img:/x", &out]).fails(8, &["no.img: No such file or directory"]);
    // One failure does not stop the others.
    std::fs::create_dir(&out).expect("directory");
    extant(&["cp", &at("/none"), &at("/empty"), &out]).fails(8, &["/none: no such file"]);
    assert!(dir.path("out/empty").exists());
    fsck_clean(&image);
}

#[test]
fn a_full_image_is_reported_and_stays_clean() {
    let dir = Dir::new();
    let image = dir.empty_image("small.img", &["-b", "1024"]);
    let data = dir.text("data");
    std::fs::write(&data, vec![7; 30 << 20]).expect("file");
    extant(&["cp", &data, &format!("{image}:/data")]).fails(8, &["small.img: /data: no space left"]);
    fsck_clean(&image);
}

/// A directory in which one name is first a link to a place outside, and then a directory: the copy must stay inside.
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
    // "bb" twice: the link, and a directory.
    rename(b"aa", b"bb");
    // A name that is a path.
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
    extant(&["cp", "--privileges", &format!("{image}:/etc/passwd"), &out]).ok();
    let mode = std::fs::metadata(&out).expect("file").mode() & 0o7777;
    let expected = if rustix::process::geteuid().is_root() { 0o4751 } else { 0o751 };
    assert_eq!(mode, expected);
}

/// Privileges in an image reach the host only on request.
#[test]
fn privileges_stay_in_the_image() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &[]);
    for (name, mode) in [("suid", 0o4755), ("sgid", 0o2755)] {
        let file = dir.path(&format!("in/{name}"));
        std::fs::create_dir_all(dir.path("in")).expect("directory");
        std::fs::write(&file, name).expect("file");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("mode");
    }
    tool("mknod", &[&dir.text("in/disk"), "b", "7", "250"]);
    tool("setfattr", &["-n", "trusted.secret", "-v", "x", &dir.text("in/suid")]);
    let labelled = dir.text("in/sgid");
    tool("setcap", &["cap_net_raw+ep", &labelled]);
    extant(&["cp", "-r", &dir.text("in"), &format!("{image}:/in")]).ok();
    fsck_clean(&image);
    let out = |options: &[&str], name: &str| {
        let (from, to) = (format!("{image}:/in"), dir.text(name));
        let ran = extant(&[&["cp", "-r"], options, &[&from, &to]].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.err
    };
    let said = out(&[], "plain");
    assert!(said.contains("left out for safety: devices: 1, set-ID modes: 2, attributes: 2 (--privileges"), "{said}");
    let mode = |name: &str| std::fs::metadata(dir.path(name)).expect("file").mode() & 0o7777;
    assert_eq!((mode("plain/suid"), mode("plain/sgid"), dir.path("plain/disk").exists()), (0o755, 0o755, false));
    let attributes = |name: &str| tool("getfattr", &["-d", "-m", "-", "--absolute-names", &dir.text(name)]);
    assert_eq!((attributes("plain/suid"), attributes("plain/sgid")), (String::new(), String::new()));
    assert_eq!(out(&["--privileges"], "all"), "");
    assert_eq!((mode("all/suid"), mode("all/sgid"), dir.path("all/disk").exists()), (0o4755, 0o2755, true));
    assert!(
        attributes("all/suid").contains("trusted.secret") && attributes("all/sgid").contains("security.capability")
    );
}

/// While a copy makes fifos, another user with write access to the destination replaces each by a link to a foreign
/// file.
#[test]
fn a_swapped_node_leads_nowhere() {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &["-N", "2048"]);
    std::fs::create_dir(dir.path("in")).expect("directory");
    std::fs::create_dir(dir.path("out")).expect("directory");
    let names: Vec<String> = (0..800).map(|i| format!("f{i:03}")).collect();
    let fifos: Vec<String> = names.iter().map(|n| dir.text(&format!("in/{n}"))).collect();
    tool("mkfifo", &[&["-m", "777"], &fifos.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
    extant(&["cp", "-r", &dir.text("in"), &format!("{image}:/in")]).ok();
    let victim = dir.text("victim");
    std::fs::write(&victim, "secret").expect("file");
    std::fs::set_permissions(&victim, PermissionsExt::from_mode(0o600)).expect("mode");
    let out = dir.path("out");
    let (done, swapped) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for name in std::fs::read_dir(&out).into_iter().flatten().flatten() {
                    // As soon as the fifo exists; not the working directory, whose name is free again a moment later.
                    let path = name.path();
                    let hidden = name.file_name().as_encoded_bytes()[0] == b'.';
                    if !hidden && !path.is_symlink() && !path.is_dir() {
                        let _ = std::fs::remove_file(&path);
                        swapped.fetch_add(
                            u32::from(std::os::unix::fs::symlink(&victim, &path).is_ok()),
                            Ordering::Relaxed,
                        );
                    }
                }
            }
        });
        // On a busy machine the swapping thread may start late.
        let mut rounds = 0;
        let copied = loop {
            let copied = extant(&["cp", "-r", &format!("{image}:/in/."), &dir.text("out")]);
            rounds += 1;
            if copied.code != Some(0) || rounds == 100 || swapped.load(Ordering::Relaxed) > 200 {
                break copied;
            }
        };
        done.store(true, Ordering::Relaxed);
        assert_eq!(copied.code, Some(0), "{copied:?}");
    });
    let swapped = swapped.into_inner();
    assert!(swapped > 0, "no file was swapped during the copy");
    let meta = std::fs::metadata(&victim).expect("file");
    assert_eq!(meta.mode() & 0o7777, 0o600);
    assert!(meta.mtime() > 1_600_000_000 && std::fs::read(&victim).expect("file") == b"secret");
    let left = std::fs::read_dir(&out).expect("list").flatten().any(|e| e.file_name().as_encoded_bytes()[0] == b'.');
    assert!(!left, "the working directory is still there");
}

#[test]
fn a_directory_is_not_copied_into_itself() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    let into_itself = "cannot copy a directory, ";
    extant(&["cp", "-r", &at("/"), &at("/x")]).fails(8, &[into_itself, "disk.img: /, into itself, ", "disk.img: /x"]);
    extant(&["cp", "-r", &at("/etc"), &at("/etc/deep")]).fails(8, &[into_itself, "/etc/deep/etc"]);
    extant(&["cp", "-r", &at("/etc/."), &at("/etc/deep")]).fails(8, &[into_itself]);
    extant(&["cp", "-r", &at("/etc"), &at("/")]).fails(8, &["/etc: it is the same file"]);
    extant(&["cp", &at("/etc/passwd"), &at("/etc/passwd")]).fails(8, &["/etc/passwd: it is the same file"]);
    extant(&["cp", &at("/link"), &at("/etc")]).ok();
    extant(&["cp", &at("/etc/passwd"), &at("/link")]).fails(8, &["/link: it is the same file"]);
    extant(&["cp", "-r", &at("/etc"), &at("/copy")]).ok();
    assert_eq!(debugfs(&image, "cat /copy/deep/er/file"), "deep\n");
    assert_eq!(debugfs(&image, "cat /etc/passwd"), "root:x:0:0::/root:/bin/sh\n");
    // The image under another name, and a tree that contains the image.
    std::os::unix::fs::symlink(&image, dir.path("alias.img")).expect("link");
    extant(&["cp", &format!("{}:/etc/passwd", dir.text("alias.img")), &at("/alias")]).ok();
    std::fs::create_dir(dir.path("around")).expect("directory");
    let moved = dir.text("around/moved.img");
    std::fs::rename(&image, &moved).expect("rename");
    extant(&["cp", "-r", &dir.text("around"), &format!("{moved}:/around")])
        .fails(8, &["around/moved.img: is the image that is written"]);
    fsck_clean(&moved);
}

#[test]
fn hard_links_stay_hard_links() {
    let dir = Dir::new();
    let (image, other) = (dir.empty_image("a.img", &[]), dir.empty_image("b.img", &[]));
    std::fs::create_dir_all(dir.path("in/sub")).expect("directories");
    std::fs::write(dir.path("in/one"), "same").expect("file");
    for name in ["two", "sub/three"] {
        std::fs::hard_link(dir.path("in/one"), dir.path("in").join(name)).expect("link");
    }
    tool("mkfifo", &[&dir.text("in/pipe")]);
    std::fs::hard_link(dir.path("in/pipe"), dir.path("in/sub/pipe")).expect("link");
    extant(&["cp", "-r", &dir.text("in"), &format!("{image}:/in")]).ok();
    extant(&["cp", "-r", &format!("{image}:/in"), &format!("{other}:/in")]).ok();
    extant(&["cp", "-r", &format!("{image}:/in"), &format!("{image}:/again")]).ok();
    for (image, top) in [(&image, "in"), (&other, "in"), (&image, "again")] {
        fsck_clean(image);
        for name in ["one", "two", "sub/three"] {
            assert!(debugfs(image, &format!("stat /{top}/{name}")).contains("Links: 3"), "{image} {top}/{name}");
        }
        assert!(debugfs(image, &format!("stat /{top}/sub/pipe")).contains("Links: 2"), "{image}");
    }
    let out = dir.text("out");
    // Twice: existing files are replaced.
    for _ in 0..2 {
        extant(&["cp", "-r", &format!("{other}:/in"), &out]).ok();
        std::fs::rename(&out, dir.path("kept")).expect("rename");
        let inode = |name: &str| std::fs::symlink_metadata(dir.path("kept").join(name)).expect("file").ino();
        assert!(inode("one") == inode("two") && inode("one") == inode("sub/three"));
        assert!(inode("pipe") == inode("sub/pipe"));
        std::fs::rename(dir.path("kept"), &out).expect("rename");
        extant(&["cp", "-r", &format!("{other}:/in/."), &out]).ok();
    }
    // Two sources of one command.
    std::fs::create_dir(dir.path("both")).expect("directory");
    extant(&["cp", &format!("{image}:/in/one"), &format!("{image}:/in/sub/three"), &dir.text("both")]).ok();
    assert_eq!(std::fs::metadata(dir.path("both/three")).expect("file").nlink(), 2);
    // If a later source replaces one name of a file, the file's other names stay.
    std::fs::create_dir_all(dir.path("clash/sub")).expect("directories");
    std::fs::write(dir.path("clash/one"), "different").expect("file");
    let (first, second) = (dir.text("in/one"), dir.text("clash/one"));
    extant(&["cp", &first, &second, &dir.text("in/two"), &format!("{image}:/")]).ok();
    assert_eq!((debugfs(&image, "cat /one"), debugfs(&image, "cat /two")), ("different".into(), "same".into()));
    fsck_clean(&image);
}

#[test]
fn a_link_as_destination_is_followed() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    std::fs::write(dir.path("new"), "new\n").expect("file");
    let new = dir.text("new");
    extant(&["cp", &new, &at("/link")]).ok();
    assert_eq!(debugfs(&image, "cat /etc/passwd"), "new\n");
    assert!(debugfs(&image, "stat /link").contains("symlink"));
    // A link to a directory, a link to itself, and a dangling link.
    extant(&["cp", &new, &at("/absolute")]).ok();
    assert_eq!(debugfs(&image, "cat /etc/new"), "new\n");
    extant(&["cp", &new, &at("/self")]).fails(8, &["/self: too many levels of symbolic links"]);
    std::os::unix::fs::symlink("gone", dir.path("dangling")).expect("link");
    extant(&["cp", "-r", &dir.text("dangling"), &at("/")]).ok();
    extant(&["cp", &new, &at("/dangling")]).fails(8, &["/dangling: not written through a dangling symbolic link"]);
    fsck_clean(&image);
    // The same on the host; but links that the copy itself made are not followed.
    std::fs::write(dir.path("real"), "old").expect("file");
    std::os::unix::fs::symlink("real", dir.path("alias")).expect("link");
    extant(&["cp", &at("/etc/new"), &dir.text("alias")]).ok();
    assert_eq!(std::fs::read(dir.path("real")).expect("file"), b"new\n");
    extant(&["cp", &at("/etc/new"), &dir.text("dangling")]).fails(8, &["dangling: not written through a dangling"]);
    std::fs::create_dir_all(dir.path("trap/a")).expect("directory");
    std::fs::create_dir_all(dir.path("trap/b")).expect("directory");
    std::fs::create_dir(dir.path("target")).expect("directory");
    std::os::unix::fs::symlink(dir.path("real"), dir.path("trap/a/x")).expect("link");
    std::fs::write(dir.path("trap/b/x"), "planted").expect("file");
    extant(&["cp", "-r", &dir.text("trap"), &at("/trap")]).ok();
    extant(&["cp", "-r", &at("/trap/a/x"), &at("/trap/b/x"), &dir.text("target")])
        .fails(8, &["target/x: not written through a symbolic link that was just copied"]);
    assert_eq!(std::fs::read(dir.path("real")).expect("file"), b"new\n");
}

#[test]
fn options_of_cp() {
    use std::process::Stdio;
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &[]);
    let at = |path: &str| format!("{image}:{path}");
    std::fs::create_dir_all(dir.path("in/sub")).expect("directory");
    std::fs::write(dir.path("in/sub/file"), "one").expect("file");
    let (from, to) = (dir.text("in"), at("/in"));
    let said = extant(&["cp", "-rv", "--owner", "1234:70000", &from, &to]).ok();
    assert_eq!(
        said,
        format!(
            "'{from}' -> '{image}: /in'\n'{from}/sub' -> '{image}: /in/sub'\n'{from}/sub/file' -> '{image}: /in/sub/file'\n"
        )
    );
    assert!(debugfs(&image, "stat /in/sub/file").contains("User:  1234   Group: 70000"));
    assert!(debugfs(&image, "stat /in/sub").contains("User:  1234   Group: 70000"));
    std::fs::write(dir.path("in/sub/file"), "two").expect("file");
    extant(&["cp", "-r", "-n", &format!("{from}/."), &to]).ok();
    assert_eq!(debugfs(&image, "cat /in/sub/file"), "one");
    extant(&["cp", "-a", &format!("{from}/."), &to]).ok();
    assert_eq!(debugfs(&image, "cat /in/sub/file"), "two");
    extant(&["cp", "--owner", "no-such-user", &from, &to]).fails(1, &["this host knows no such user"]);
    extant(&["cp", "--owner", "1:1", &at("/in/sub/file"), &dir.text("out")]).fails(1, &["into an image"]);

    let mut child = std::process::Command::new(crate::common::extant_path())
        .args(["cp", "-", &at("/streamed")])
        .stdin(Stdio::piped())
        .spawn()
        .expect("started");
    std::io::Write::write_all(&mut child.stdin.take().expect("pipe"), &big()).expect("written");
    assert!(child.wait().expect("ended").success());
    assert!(extant(&["cp", &at("/streamed"), "-"]).out == big());
    extant(&["cp", "-", &at("/")]).fails(8, &["standard input needs a name"]);
    extant(&["cp", "-", "-"]).fails(1, &["neither source nor destination"]);
    fsck_clean(&image);
}

/// A forgotten colon, or an image that contains a file of its own name, as a hostile one may: the image is neither
/// emptied nor replaced.
#[test]
fn an_image_is_not_copied_over_itself() {
    const REFUSED: &str = "disk.img: is the image that is copied from";
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    std::fs::write(dir.path("small"), "small").expect("file");
    let (small, at) = (dir.text("small"), |path: &str| format!("{image}:{path}"));
    let script = |options: &[&str], lines: &str| {
        std::fs::write(dir.path("script"), lines).expect("file");
        extant(&[&["script"], options, &[&image, &dir.text("script")]].concat())
    };
    for (prepare, others) in [
        ("put $ /disk.img", &[][..]),
        ("rm /disk.img\nln -s x /disk.img", &[]),
        // Two names of one file: the copy would create the second as a hard link.
        ("rm /disk.img\nput $ /also\nln /also /disk.img", &["also"]),
        ("rm /disk.img /also\nmknod /disk.img p", &[]),
    ] {
        script(&[], &prepare.replace('$', &small)).ok();
        let before = std::fs::read(&image).expect("image");
        extant(&["cp", "-r", &at("/"), &dir.text(".")]).fails(8, &[REFUSED]);
        assert!(std::fs::read(&image).expect("still there") == before, "{prepare}");
        for name in others {
            assert_eq!(std::fs::read_to_string(dir.path(name)).expect("copied"), "small");
        }
    }
    script(&[], &format!("put {small} /x")).ok();
    let before = std::fs::read(&image).expect("image");
    extant(&["cp", &at("/x"), &image]).fails(8, &[REFUSED]);
    // The image under another name.
    std::os::unix::fs::symlink(&image, dir.path("alias")).expect("link");
    std::fs::hard_link(&image, dir.path("second")).expect("link");
    for name in ["alias", "second"] {
        extant(&["cp", &at("/x"), &dir.text(name)]).fails(8, &["is the image that is copied from"]);
    }
    assert!(std::fs::read(&image).expect("image") == before);
    for options in [&[][..], &["--atomic"]] {
        script(options, &format!("mkdir /q\nget /x {image}")).fails(1, &[REFUSED, "line 2"]);
        fsck_clean(&image);
        assert_eq!(extant(&["cat", &image, "/x"]).ok(), "small");
        assert_eq!(extant(&["stat", &image, "/q"]).code == Some(0), options.is_empty());
        extant(&["rm", "-rf", &at("/q")]).ok();
    }
}

#[test]
fn a_partition_is_not_copied_into_itself() {
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    std::fs::write(dir.path("script"), format!("put {disk} /inside")).expect("file");
    extant(&["script", &format!("{disk}@2"), &dir.text("script")])
        .fails(1, &["whole.img: is the image that is written"]);
    extant(&["cp", &disk, &format!("{disk}@2:/inside")]).fails(8, &["whole.img: is the image that is written"]);
    // Another image, opened only for reading, may be copied.
    let other = dir.empty_image("other.img", &[]);
    extant(&["cp", "-r", &format!("{other}:/lost+found"), &other, &format!("{image}:/")]).ok();
    fsck_clean(&image);
}

#[test]
fn a_path_that_ends_in_a_slash_is_a_directory() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let at = |path: &str| format!("{image}:{path}");
    extant(&["cp", &dir.text("src/empty"), &at("/none/")]).fails(8, &["/none/: not a directory"]);
    extant(&["cp", &at("/empty"), &dir.text("none/")]).fails(8, &["none/: not a directory"]);
    extant(&["cp", "-", &at("/none/")]).fails(8, &["/none/: not a directory"]);
    assert!(!dir.path("none").exists());
    extant(&["stat", &image, "/none"]).fails(8, &["no such file"]);
    extant(&["cp", "-r", &at("/etc/deep"), &dir.text("made/")]).ok();
    assert!(dir.path("made/er/file").exists());
}

/// As cp(1): the content is written, mode and owner do not change.
#[test]
fn another_users_writable_file_is_written() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to become another user");
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mode = |name: &str, mode| {
        std::fs::set_permissions(dir.path(name), PermissionsExt::from_mode(mode)).expect("mode");
    };
    crate::common::copy_program(&dir.text("extant"));
    std::fs::write(dir.path("theirs"), "a longer text than that").expect("file");
    for (name, bits) in [(".", 0o755), ("extant", 0o755), ("disk.img", 0o644), ("theirs", 0o666)] {
        mode(name, bits);
    }
    let (program, from) = (dir.text("extant"), format!("{image}:/etc/deep/er/file"));
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", &program, "cp", &from, &dir.text("theirs")];
    run("setpriv", &nobody).ok();
    let meta = dir.path("theirs").metadata().expect("there");
    assert_eq!(std::fs::read_to_string(dir.path("theirs")).expect("file"), "deep\n");
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o666));
}

/// As in the kernel: a write removes capabilities.
#[test]
fn a_copy_removes_capabilities_of_the_old_content() {
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let ping = format!("{image}:/big");
    let capability = "0x0100000200200000000000000000000000000000";
    extant(&["xattr", "set", "security.capability", capability, &ping]).ok();
    extant(&["xattr", "set", "user.kept", "yes", &ping]).ok();
    extant(&["cp", &dir.text("src/empty"), &ping]).ok();
    assert_eq!(extant(&["xattr", "list", &ping]).ok(), "user.kept\n");
    fsck_clean(&image);
}

/// The copy has all bytes of the file, even if its size says 0.
#[test]
fn files_are_read_to_their_end() {
    let dir = Dir::new();
    let image = dir.empty_image("a.img", &[]);
    let at = |path: &str| format!("{image}:{path}");
    extant(&["cp", "/proc/version", &at("/version")]).ok();
    assert_eq!(extant(&["cat", &image, "/version"]).out, std::fs::read("/proc/version").expect("version"));
    let sys = "/sys/kernel/mm/transparent_hugepage/enabled";
    if let Ok(content) = std::fs::read(sys) {
        extant(&["cp", sys, &at("/sys")]).ok();
        assert_eq!(extant(&["cat", &image, "/sys"]).out, content);
    }
    // The content of a device, and of a named pipe, is read as by cp(1).
    extant(&["cp", "/dev/null", &at("/null")]).ok();
    assert!(debugfs(&image, "stat /null").contains("Type: regular"), "{}", debugfs(&image, "stat /null"));
    let program = crate::common::extant_path().to_str().expect("UTF-8");
    tool("bash", &["-c", &format!("{program} cp <(echo x) {}", at("/x"))]);
    assert_eq!(extant(&["cat", &image, "/x"]).ok(), "x\n");
    let fifo = dir.text("fifo");
    tool("mkfifo", &[&fifo]);
    tool("bash", &["-c", &format!("(sleep 0.2; echo y) > {fifo} & {program} cp {fifo} {}; wait", at("/y"))]);
    assert_eq!(extant(&["cat", &image, "/y"]).ok(), "y\n");
    // A socket cannot be read by its name.
    let socket = dir.text("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("bound");
    extant(&["cp", &socket, &at("/socket")]).fails(8, &["socket: No such device or address"]);
    // With -r the fifo itself is copied.
    extant(&["cp", "-r", &fifo, &at("/fifo")]).ok();
    assert!(debugfs(&image, "stat /fifo").contains("Type: FIFO"));
    fsck_clean(&image);
}

/// The image of [`Dir::image`], with unreadable attributes of a file, a link and a directory.
fn without_attributes(dir: &Dir) -> String {
    let damaged = dir.image("ext4", &["-b", "1024"]);
    let names = ["/big", "/link", "/etc"];
    for name in names {
        let set = ["xattr", "set", "-P", "trusted.large", &"x".repeat(600), &format!("{damaged}:{name}")];
        extant(&set).ok();
    }
    for name in names {
        let stat = debugfs(&damaged, &format!("stat {name}"));
        let block = stat.split("File ACL: ").nth(1).and_then(|rest| rest.split_whitespace().next()).expect("a block");
        patch(&damaged, block.parse::<u64>().expect("a number") * 1024, &[0; 4]);
    }
    damaged
}

/// Unreadable attributes are reported as errors; everything else is copied.
#[test]
fn unreadable_attributes_are_reported_and_the_rest_is_copied() {
    if !crate::common::loop_mounts_work() {
        eprintln!("skipped: needs loop mounts");
        return;
    }
    let dir = Dir::new();
    let (damaged, image, mnt) = (without_attributes(&dir), dir.empty_image("a.img", &[]), dir.text("mnt"));
    std::fs::create_dir(&mnt).expect("directory");
    tool("mount", &["-o", "loop,ro", &damaged, &mnt]);
    let tried = std::panic::catch_unwind(|| {
        for name in ["big", "link", "etc"] {
            let ran = extant(&["cp", "-a", &format!("{mnt}/{name}"), &format!("{image}:/{name}")]);
            ran.fails(8, &[&format!("mnt/{name}: extended attributes: ")]);
        }
        assert!(extant(&["cat", &image, "/big"]).out == big(), "the content is complete");
        assert!(debugfs(&image, "stat /link").contains("Fast link dest: \"etc/passwd\""), "the link is complete");
        assert!(debugfs(&image, "stat /etc").contains("Mode:  0755"), "the directory has its mode");
    });
    crate::common::umount(&[&mnt]);
    tried.unwrap();
    fsck_clean(&image);
}

/// The same when copying out of an image; several names of one link stay one file.
#[test]
fn unreadable_attributes_in_an_image_are_reported_once() {
    let dir = Dir::new();
    let (damaged, image, out) = (without_attributes(&dir), dir.empty_image("a.img", &[]), dir.text("out"));
    tool("debugfs", &["-w", "-R", "ln /link /again", &damaged]);
    tool("debugfs", &["-w", "-R", "sif /link links_count 2", &damaged]);
    tool("debugfs", &["-w", "-R", "sif /big mode 0100660", &damaged]);
    for to in [&format!("{image}:/out"), &out] {
        let ran = extant(&["cp", "-r", &format!("{damaged}:/"), to]);
        let said = ran.fails(8, &["disk.img: /etc: ", "disk.img: /again: ", "disk.img: /big: attributes at block"]);
        assert!(!said.contains("/link"), "reported twice: {said}");
    }
    fsck_clean(&image);
    assert!(debugfs(&image, "stat /out/again").contains("Links: 2"));
    assert!(debugfs(&image, "stat /out/etc").contains("Mode:  0755"), "the directory has its mode");
    assert!(extant(&["cat", &image, "/out/big"]).out == big(), "the content is complete");
    assert_eq!(std::fs::read_link(dir.path("out/link")).expect("a link").to_str(), Some("etc/passwd"));
    assert!(std::fs::metadata(dir.path("out/etc")).expect("a directory").mode() & 0o777 == 0o755);
    let inode = |name: &str| dir.path("out").join(name).symlink_metadata().expect("a link").ino();
    assert_eq!(inode("link"), inode("again"));
    assert!(std::fs::read(dir.path("out/big")).expect("a file") == big(), "the content is complete");
    // The unreadable attribute may be an ACL that denied access to the group.
    assert_eq!(std::fs::metadata(dir.path("out/big")).expect("a file").mode() & 0o777, 0o600);
}

/// Attributes that an ordinary user can see but not copy are counted.
#[test]
fn attributes_that_are_left_out_are_counted() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root, to become nobody");
        return;
    }
    let dir = Dir::new();
    let (image, program) = (dir.empty_image("a.img", &[]), dir.text("extant"));
    crate::common::copy_program(&program);
    let files = dir.path("files");
    std::fs::create_dir(&files).expect("directory");
    for name in ["one", "two", "plain"] {
        std::fs::write(files.join(name), name).expect("file");
    }
    // cap_net_raw=ep
    for name in ["one", "two"] {
        let set = ["-n", "security.capability", "-v", "0x0100000200200000000000000000000000000000"];
        let path = files.join(name);
        tool("setfattr", &[&set[..], &[path.to_str().expect("UTF-8")]].concat());
    }
    for path in [&dir.text(""), &image] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o777)).expect("mode");
    }
    let files = dir.text("files");
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let copy = |to: &str| [&program[..], "cp", "-a", &files, to].map(str::to_owned);
    let copied = run("setpriv", &[&nobody[..], &copy(&format!("{image}:/new")).each_ref().map(|s| &s[..])].concat());
    assert_eq!((copied.code, copied.err.as_str()), (Some(0), "extant: attributes that only root copies: 2 left out\n"));
    extant(&["cp", "-a", &files, &format!("{image}:/whole")]).ok();
    assert_eq!(extant(&["xattr", "list", &format!("{image}:/whole/one")]).ok(), "security.capability\n");
}

/// As cp(1) of coreutils 9.3, for usr-merged trees. Without the option a directory does not replace a link.
#[test]
fn links_to_directories_are_kept_on_demand() {
    let dir = Dir::new();
    let image = dir.empty_image("i.img", &[]);
    let at = |path: &str| format!("{image}:{path}");
    std::fs::create_dir_all(dir.path("l/lib/modules")).expect("directories");
    std::fs::write(dir.path("l/lib/modules/x"), "m").expect("file");
    extant(&["mkdir", "-p", &at("/usr/lib")]).ok();
    extant(&["ln", "-s", "usr/lib", &at("/lib")]).ok();
    let from = format!("{}/.", dir.text("l"));
    extant(&["cp", "-r", &from, &at("/")]).fails(8, &["a file that is not a directory is in the way"]);
    extant(&["cp", "-r", "--keep-directory-symlink", &from, &at("/")]).ok();
    assert_eq!(extant(&["cat", &at("/usr/lib/modules/x")]).ok(), "m");
    assert!(extant(&["ls", "-ld", &at("/lib")]).ok().contains("lib -> usr/lib"));
    // A link that does not lead to a directory blocks the copy, and so does a link that came with the sources.
    extant(&["ln", "-sfn", "nowhere", &at("/lib")]).ok();
    extant(&["cp", "-r", "--keep-directory-symlink", &from, &at("/")]).fails(8, &["not a directory is in the way"]);
    std::fs::create_dir_all(dir.path("m")).expect("directory");
    std::os::unix::fs::symlink("/usr", dir.path("m/etc")).expect("link");
    std::fs::create_dir_all(dir.path("n/etc/evil")).expect("directory");
    let (m, n) = (format!("{}/.", dir.text("m")), format!("{}/.", dir.text("n")));
    extant(&["cp", "-r", "--keep-directory-symlink", &m, &n, &at("/")]).fails(8, &["not a directory is in the way"]);
    assert!(!extant(&["ls", &at("/usr")]).ok().contains("evil"));
    // A link must not lead a directory into itself.
    extant(&["mkdir", "-p", &at("/s/d/e"), &at("/t")]).ok();
    extant(&["ln", "-s", "/s/d/e", &at("/t/d")]).ok();
    extant(&["cp", "-r", "--keep-directory-symlink", &at("/s/."), &at("/t")]).fails(8, &["leads into the directory"]);
    extant(&["cp", "-r", "--keep-directory-symlink", &at("/s"), &dir.text("out")]).fails(1, &["into an image"]);
    fsck_clean(&image);
}
