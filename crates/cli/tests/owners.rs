//! The owners of files that a command creates in an image.

mod common;

use common::{Dir, debugfs, extant, fsck_clean, run, tool};

/// Owner and group in the image.
fn owner(image: &str, path: &str) -> (u32, u32) {
    let stat: serde_json::Value = serde_json::from_slice(&extant(&["stat", "--json", image, path]).out).expect("JSON");
    let id = |key: &str| stat[key].as_u64().expect("a number") as u32;
    (id("uid"), id("gid"))
}

/// An image that every user may write, with a directory of 7:8, and one of 7:9 whose group is inherited. Also a copy of
/// the program that every user may start.
fn image_for_all(dir: &Dir) -> (String, String) {
    use std::os::unix::fs::PermissionsExt;
    let image = dir.empty_image("i.img", &[]);
    extant(&["mkdir", "--owner", "7:8", &format!("{image}:/d")]).ok();
    extant(&["mkdir", "-m", "2755", "--owner", "7:9", &format!("{image}:/s")]).ok();
    let program = dir.text("extant");
    common::copy_program(&program);
    for (name, mode) in [(".", 0o777), ("i.img", 0o666)] {
        std::fs::set_permissions(dir.path(name), PermissionsExt::from_mode(mode)).expect("mode");
    }
    (image, program)
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root, to become another user");
    }
    root
}

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65533", "--clear-groups"];

#[test]
fn new_files_get_the_owner_of_their_directory() {
    if !is_root() {
        return;
    }
    let dir = Dir::new();
    let (image, program) = image_for_all(&dir);
    std::fs::write(dir.path("file"), "text").expect("file");
    std::fs::write(dir.path("lines"), "mkdir -p /d/m/n\nput file /d/put\n").expect("script");
    let as_nobody = |args: &[&str]| {
        let done = std::process::Command::new("setpriv")
            .args(NOBODY)
            .arg(&program)
            .args(args)
            .current_dir(dir.path("."))
            .output()
            .expect("setpriv");
        assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
    };
    let at = |path: &str| format!("{image}:{path}");
    as_nobody(&["mkdir", "-p", &at("/d/x/y")]);
    as_nobody(&["touch", &at("/d/x/touched"), &at("/s/touched"), &at("/top")]);
    as_nobody(&["ln", "-s", "x", &at("/d/link")]);
    as_nobody(&["mknod", &at("/d/fifo"), "p"]);
    as_nobody(&["cp", "file", &at("/d/copied")]);
    as_nobody(&["script", &image, "lines"]);
    let of_directory = ["x", "x/y", "x/touched", "link", "fifo", "copied", "m", "m/n", "put"];
    for name in of_directory {
        assert_eq!(owner(&image, &format!("/d/{name}")), (7, 8), "{name}");
    }
    assert_eq!((owner(&image, "/s/touched"), owner(&image, "/top")), ((7, 9), (0, 0)));
    // -p keeps the owner in the image, and --owner sets one.
    as_nobody(&["cp", "-p", "file", &at("/d/kept")]);
    assert_eq!(owner(&image, "/d/kept"), (0, 0));
    as_nobody(&["touch", "--owner", "root:", &at("/d/given")]);
    as_nobody(&["touch", "--owner", ":5", &at("/d/group")]);
    assert_eq!((owner(&image, "/d/given"), owner(&image, "/d/group")), ((0, 0), (7, 5)));
    fsck_clean(&image);
}

/// Both follow one rule: a verb creates the same owner as a mount without privilege.
#[test]
fn a_verb_and_a_mount_give_new_files_the_same_owner() {
    if !is_root() || !std::path::Path::new("/dev/fuse").exists() {
        return;
    }
    let dir = Dir::new();
    let (image, _) = image_for_all(&dir);
    let mnt = dir.text("mnt");
    std::fs::create_dir(&mnt).expect("directory");
    // The options that the server of an unprivileged user has.
    if extant(&["mount", "-o", "uid=4711,gid=4712", &image, &mnt]).code != Some(0) {
        eprintln!("skipped: cannot mount");
        return;
    }
    std::fs::write(format!("{mnt}/d/mounted"), "x").expect("written");
    std::fs::write(format!("{mnt}/s/mounted"), "x").expect("written");
    extant(&["unmount", &mnt]).ok();
    assert_eq!((owner(&image, "/d/mounted"), owner(&image, "/s/mounted")), ((7, 8), (7, 9)));
}

#[test]
fn every_verb_that_creates_takes_names_of_owners() {
    let dir = Dir::new();
    let image = dir.empty_image("i.img", &[]);
    std::fs::write(dir.path("file"), "text").expect("file");
    let at = |path: &str| format!("{image}:{path}");
    let given = ["--owner", "daemon:bin"];
    let lines = dir.text("lines");
    std::fs::write(&lines, "mkdir /e\ntouch --owner 3 /e/f\n").expect("script");
    let verbs: [(&str, &[&str]); 6] = [
        ("mkdir", &["-p", &at("/d/sub")]),
        ("touch", &[&at("/d/touched")]),
        ("ln", &["-s", "x", &at("/d/link")]),
        ("mknod", &[&at("/d/null"), "c", "1", "3"]),
        ("cp", &[&dir.text("file"), &at("/d/copied")]),
        ("script", &[&image, &lines]),
    ];
    for (verb, args) in verbs {
        extant(&[&[verb], &given[..], args].concat()).ok();
    }
    let id = |kind: &str, name: &str| -> u32 {
        tool("getent", &[kind, name]).split(':').nth(2).and_then(|id| id.parse().ok()).expect("a number")
    };
    let wanted = (id("passwd", "daemon"), id("group", "bin"));
    for name in ["/d", "/d/sub", "/d/touched", "/d/link", "/d/null", "/d/copied", "/e"] {
        assert_eq!(owner(&image, name), wanted, "{name}");
    }
    assert_eq!(owner(&image, "/e/f"), (3, wanted.1), "a line overrides its script");
    extant(&["touch", "--owner", "no-such-user", &at("/x")]).fails(1, &["this host knows no such user"]);
    fsck_clean(&image);
}

/// A root file system that an unprivileged user builds under fakeroot is stored with the owners that fakeroot shows.
#[test]
fn copies_store_what_fakeroot_shows() {
    if !is_root() || run("fakeroot", &["true"]).code != Some(0) {
        eprintln!("skipped: needs fakeroot");
        return;
    }
    let dir = Dir::new();
    let (image, program) = image_for_all(&dir);
    let script = format!(
        "cd {0} && mkdir r && echo s > r/shadow && cp /bin/true r/su && chown 0:42 r/shadow && chmod 640 r/shadow &&
         chown 0:0 r/su && chmod 4755 r/su && mknod r/null c 1 3 && {program} cp -r r/. {image}:/ &&
         {program} touch {image}:/d/touched",
        dir.text(".")
    );
    // Copied out again: the files look the same under fakeroot.
    let out = format!(
        "{script} && {program} cp -r --privileges {image}:/ out && cd out && stat -c '%A %u %g %t %n' shadow su null"
    );
    let user = [&NOBODY[..], &["fakeroot", "bash", "-c", &out]].concat();
    let shown = run("setpriv", &user).ok();
    assert_eq!(shown, "-rw-r----- 0 42 0 shadow\n-rwsr-xr-x 0 0 0 su\ncrw-r--r-- 0 0 1 null\n");
    let look = |path: &str| debugfs(&image, &format!("stat {path}"));
    assert!(look("/shadow").contains("Mode:  0640") && owner(&image, "/shadow") == (0, 42));
    assert!(look("/su").contains("Mode:  04755"), "{}", look("/su"));
    assert!(look("/null").contains("Type: character special"), "{}", look("/null"));
    assert_eq!(
        (owner(&image, "/su"), owner(&image, "/d/touched")),
        ((0, 0), (0, 0)),
        "under fakeroot the caller is root"
    );
    fsck_clean(&image);
}

/// Under fakeroot a mount still belongs to the user: fusermount(1) makes it, and its end is reported.
#[test]
fn a_mount_under_fakeroot_is_unmounted_cleanly() {
    if !is_root() || run("fakeroot", &["true"]).code != Some(0) {
        eprintln!("skipped: needs fakeroot");
        return;
    }
    let dir = Dir::new();
    let (image, program) = image_for_all(&dir);
    let script = format!(
        "cd {0} && mknod fuse c 10 229 && chmod 666 fuse && mount --bind fuse /dev/fuse || exit 77
         exec setpriv {1} fakeroot bash -c 'mkdir mnt && {program} mount {image} mnt && touch mnt/made && \
         {program} unmount mnt'",
        dir.text("."),
        NOBODY.join(" ")
    );
    let done = run("unshare", &["-m", "--propagation", "private", "bash", "-c", &script]);
    if done.code == Some(77) {
        eprintln!("skipped: needs /dev/fuse and a mount namespace ({})", done.err);
        return;
    }
    done.ok();
    assert_eq!(owner(&image, "/made"), (0, 0));
    fsck_clean(&image);
}
