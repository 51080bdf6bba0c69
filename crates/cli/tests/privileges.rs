//! The users that may shut down, remount, freeze, thaw, trim and label a mount: its owner, and processes with
//! CAP_SYS_ADMIN in the server's user namespace. Also the users that may access a mount that checks no permissions.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use common::{Dir, Unmounted, extant, extant_path, fsck_clean, run, tool};
use extant_testkit::mount::fuse_works;
use rustix::process::geteuid;

const NOBODY: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

/// The first python3 in root's PATH may be in a directory that other users cannot enter.
const PYTHON: &str = "/usr/bin/python3";

/// Sends each control ioctl to a mount, and prints its name and the error number. The shutdown is the last one.
const CONTROLS: &str = r#"
import fcntl, os, sys
label, device = b"new".ljust(256, b"\0"), os.open(sys.argv[1], os.O_RDONLY)
for name, number, argument in (
    ("trim", 0xc0185879, b"\0" * 8 + b"\xff" * 8 + b"\0" * 8), ("label", 0x41009432, label),
    ("freeze", 0xeb01, 0), ("thaw", 0xeb02, 0), ("read-only", 0xeb03, 0), ("read-write", 0xeb04, 0),
    ("shutdown", 0x8004587d, b"\2\0\0\0"),
):
    try:
        fcntl.ioctl(device, number, argument)
        print(name, 0)
    except OSError as error:
        print(name, error.errno)
"#;

const DONE: i32 = 0;

fn answers(errno: i32) -> String {
    ["trim", "label", "freeze", "thaw", "read-only", "read-write", "shutdown"]
        .map(|name| format!("{name} {errno}\n"))
        .concat()
}

/// The output of [`CONTROLS`], run by `command`.
#[track_caller]
fn controls(command: &[&str], mnt: &str) -> String {
    let all = [command, &[PYTHON, "-c", CONTROLS, mnt]].concat();
    tool(all[0], &all[1..])
}

fn skipped() -> bool {
    let skip = !fuse_works() || !geteuid().is_root();
    if skip {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    skip
}

/// An image and a directory to mount it on, both open to all users.
fn image_and_mount(dir: &Dir) -> (String, Unmounted) {
    let image = dir.empty_image("disk.img", &[]);
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o755)).expect("mode");
    let mount = Unmounted::at(dir, "mnt");
    (image, mount)
}

/// A process that prints a line when it is ready, and lives until its standard input ends.
struct Waiting {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Waiting {
    fn start(command: &[&str]) -> Waiting {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("read");
        assert_eq!(line, "ready\n");
        Waiting { child, input, output }
    }

    /// Lets the process continue; returns its output.
    fn end(mut self) -> String {
        let mut input = self.input.take().expect("once");
        input.write_all(b"go on\n").expect("written");
        drop(input);
        let said = std::io::read_to_string(&mut self.output).expect("read");
        assert!(self.child.wait().expect("ended").success(), "{said}");
        said
    }
}

#[test]
fn controls_need_cap_sys_admin_in_the_user_namespace_of_the_server() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, mount) = image_and_mount(&dir);
    let mnt = &mount.0;
    for options in ["rw", "no_sandbox"] {
        extant(&["mount", "-o", options, &image, mnt]).ok();
        let no_capability = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
        assert_eq!(controls(&no_capability, mnt), answers(libc::EPERM), "{options}: without capabilities");
        let others = ["setpriv", "--bounding-set=-sys_admin"];
        assert_eq!(controls(&others, mnt), answers(libc::EPERM), "{options}: with all others");
        let user = [&["setpriv"], &NOBODY[..]].concat();
        assert_eq!(controls(&user, mnt), answers(libc::EPERM), "{options}: another user");
        if run("unshare", &["-Ur", "true"]).code == Some(0) {
            let inside = controls(&["unshare", "-Ur"], mnt);
            assert_eq!(inside, answers(libc::EPERM), "{options}: in a user namespace");
            assert_eq!(in_a_namespace_that_looks_like_ours(mnt), answers(libc::EPERM), "{options}: with all users");
        }
        // In a PID namespace whose processes the server can see.
        assert_eq!(controls(&["unshare", "--pid", "--fork"], mnt), answers(DONE), "{options}: root");
        extant(&["unmount", mnt]).ok();
        fsck_clean(&image);
    }
}

/// As on the kernel's file systems. For the reader of an overlay, the kernel makes the request as user 0, and no
/// attribute is hidden.
#[test]
fn names_of_trusted_attributes_are_shown_to_privileged_callers() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, mount) = image_and_mount(&dir);
    let mnt = &mount.0;
    let file = format!("{mnt}/file");
    let names = |command: &[&str]| {
        let script = "import os, sys; print(os.listxattr(sys.argv[1]))";
        let all = [command, &[PYTHON, "-c", script, &file]].concat();
        tool(all[0], &all[1..])
    };
    for options in ["rw", "no_sandbox"] {
        extant(&["mount", "-o", options, &image, mnt]).ok();
        std::fs::write(&file, "").expect("file");
        for name in ["trusted.secret", "user.open"] {
            tool("setfattr", &["-n", name, "-v", "x", &file]);
        }
        assert!(names(&["env"]).contains("trusted.secret"), "{options}");
        let (some, none) =
            (names(&["setpriv", "--bounding-set=-sys_admin"]), names(&[&["setpriv"], &NOBODY[..]].concat()));
        assert_eq!((some.as_str(), none.as_str()), ("['user.open']\n", "['user.open']\n"), "{options}");
        extant(&["unmount", mnt]).ok();
    }
}

/// Runs [`CONTROLS`] in a user namespace with the maps of the first one. Processes with CAP_SETUID can create it.
fn in_a_namespace_that_looks_like_ours(mnt: &str) -> String {
    let script = "echo ready && read word && exec python3 -c \"$0\" \"$1\"";
    let inside = Waiting::start(&["unshare", "--user", "sh", "-c", script, CONTROLS, mnt]);
    for map in ["uid_map", "gid_map", "projid_map"] {
        let map = format!("/proc/{}/{map}", inside.child.id());
        std::fs::write(&map, "0 0 4294967295").expect("privileged");
        assert_eq!(
            std::fs::read_to_string(&map).expect("read"),
            std::fs::read_to_string("/proc/self/uid_map").expect("read")
        );
    }
    inside.end()
}

#[test]
fn controls_are_refused_to_callers_that_the_server_cannot_examine() {
    if skipped() || run("unshare", &["--pid", "--fork", "true"]).code != Some(0) {
        return;
    }
    let dir = Dir::new();
    let (image, mount) = image_and_mount(&dir);
    let mnt = &mount.0;
    // In the namespace, /proc shows the processes outside, so the process IDs there belong to other processes.
    let script =
        "\"$0\" mount \"$1\" \"$2\" && echo ready && read word && python3 -c \"$3\" \"$2\"; \"$0\" unmount \"$2\"";
    let program = extant_path().to_str().expect("UTF-8");
    let server = Waiting::start(&["unshare", "--pid", "--fork", "sh", "-c", script, program, &image, mnt, CONTROLS]);
    let outside = controls(&["env"], mnt);
    let inside = server.end();
    assert_eq!(outside, answers(libc::EPERM), "the kernel has no number for the caller");
    assert_eq!(inside, answers(libc::EPERM), "the number is another process's");
    fsck_clean(&image);
}

#[test]
fn controls_of_a_users_mount_are_allowed_to_its_owner_only() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, mount) = image_and_mount(&dir);
    let mnt = &mount.0;
    for path in [&image, mnt] {
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
    }
    let (program, conf) = (dir.text("extant"), dir.text("fuse.conf"));
    common::copy_program(&program);
    std::fs::write(&conf, "user_allow_other\n").expect("written");
    let user = NOBODY.join(" ");
    let script = format!(
        "mount --bind {conf} /etc/fuse.conf && setpriv {user} {program} mount -o allow_other {image} {mnt} || exit 77
         setpriv --bounding-set=-all --inh-caps=-all $PYTHON -c \"$0\" {mnt}
         setpriv {user} $PYTHON -c \"$0\" {mnt}
         setpriv {user} {program} unmount {mnt}"
    );
    let done = run("unshare", &["--mount", "env", &format!("PYTHON={PYTHON}"), "sh", "-c", &script, CONTROLS]);
    if done.code == Some(77) || run("unshare", &["--mount", "true"]).code != Some(0) {
        eprintln!("skipped: no mounts by users: {}", done.err);
        return;
    }
    assert_eq!(done.ok(), answers(libc::EPERM) + &answers(DONE));
    fsck_clean(&image);
}

#[test]
fn freeze_and_remount_name_the_capability_that_they_need() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, mount) = image_and_mount(&dir);
    let mnt = &mount.0;
    extant(&["mount", &image, mnt]).ok();
    let program = extant_path().to_str().expect("UTF-8");
    let bare = |args: &[&str]| run("setpriv", &[&["--bounding-set=-all", "--inh-caps=-all", program], args].concat());
    bare(&["freeze", mnt]).fails(1, &[mnt, "CAP_SYS_ADMIN"]);
    bare(&["mount", "-o", "remount,rw", mnt]).fails(32, &[mnt, "CAP_SYS_ADMIN"]);
    extant(&["unmount", mnt]).ok();
}

/// Owners and modes deny no user access to such a mount.
#[test]
fn mounts_that_check_no_permissions_serve_their_owner_only() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, mount) = image_and_mount(&dir);
    let mnt = &mount.0;
    let as_nobody = |args: &[&str]| run("setpriv", &[&NOBODY[..], args].concat());
    for (options, serves_all) in [
        ("fakeroot", false),
        ("no_default_permissions", false),
        ("fakeroot,allow_other", true),
        ("no_default_permissions,allow_other", true),
        ("fakeroot,default_permissions", true),
        ("rw", true),
    ] {
        extant(&["mount", "-o", options, &image, mnt]).ok();
        std::fs::write(format!("{mnt}/file"), "root's\n").expect("written");
        let read = as_nobody(&["cat", &format!("{mnt}/file")]);
        assert_eq!(read.code == Some(0), serves_all, "{options}: {}", read.err);
        extant(&["unmount", mnt]).ok();
    }
}
