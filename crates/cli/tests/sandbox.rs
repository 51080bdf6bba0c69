//! The privileges that the server of a mount has dropped, and that the mount works without them.

mod common;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Dir, debugfs, extant, extant_path, fsck_clean, run, tool, umount, wait_until};
use extant_testkit::mount::{fuse_works, is_mount_point, loop_mounts_work};
use rustix::process::{Pid, Signal, geteuid, kill_process};

/// CAP_SYS_NICE and CAP_SYS_RESOURCE.
const KEPT: u64 = 1 << 23 | 1 << 24;

struct Mounted(String);

impl Drop for Mounted {
    fn drop(&mut self) {
        if is_mount_point(Path::new(&self.0)) {
            run("umount", &["-i", "-l", &self.0]);
        }
    }
}

fn place(dir: &Dir) -> Mounted {
    let mnt = dir.text("mnt");
    std::fs::create_dir(&mnt).expect("directory");
    Mounted(mnt)
}

/// A mount point in another user's directory that is closed to all others.
fn in_a_closed_directory(dir: &Dir) -> Mounted {
    let home = dir.text("home");
    std::fs::create_dir(&home).expect("directory");
    let mnt = Mounted(format!("{home}/mnt"));
    std::fs::create_dir(&mnt.0).expect("directory");
    tool("chown", &["65534:65534", &home]);
    std::fs::set_permissions(&home, PermissionsExt::from_mode(0o700)).expect("mode");
    mnt
}

fn skipped() -> bool {
    let skip = !fuse_works() || !geteuid().is_root();
    if skip {
        eprintln!("skipped: needs root and /dev/fuse");
    }
    skip
}

/// The process ID in "… served by process 12".
fn server(said: &str) -> i32 {
    said.lines()
        .next()
        .and_then(|line| line.rsplit(' ').next())
        .and_then(|pid| pid.parse().ok())
        .expect("the number of the server")
}

/// NoNewPrivs, Seccomp, CapEff and CapPrm of each thread of a process.
fn threads(pid: i32) -> BTreeSet<(String, String, u64, u64)> {
    let all = std::fs::read_dir(format!("/proc/{pid}/task")).expect("alive").flatten();
    let status = all.filter_map(|t| std::fs::read_to_string(t.path().join("status")).ok());
    let of = |status: &str, key: &str| {
        let line = status.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':')).expect("a line of it");
        line.trim().to_owned()
    };
    let hex = |status: &str, key: &str| u64::from_str_radix(&of(status, key), 16).expect("a set");
    status.map(|s| (of(&s, "NoNewPrivs"), of(&s, "Seccomp"), hex(&s, "CapEff"), hex(&s, "CapPrm"))).collect()
}

/// Waits until the process is confined. A thread drops its privileges first; a thread that has not run yet still has
/// them.
#[track_caller]
fn confined(pid: i32) {
    wait_until("that the last thread begins", || {
        let threads = threads(pid);
        assert!(!threads.is_empty());
        assert!(threads.iter().all(|(no_new_privs, seccomp, ..)| no_new_privs == "1" && seccomp == "2"), "{threads:?}");
        threads.iter().all(|(.., effective, permitted)| (effective | permitted) & !KEPT == 0)
    });
}

fn end_by_signal(pid: i32, mnt: &str) {
    kill_process(Pid::from_raw(pid).expect("a number"), Signal::TERM).expect("sent");
    wait_until("the end of the mount", || !is_mount_point(Path::new(mnt)));
}

#[test]
fn a_confined_server_does_all_that_a_mount_does() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = place(&dir);
    let at = |name: &str| format!("{}/{name}", mnt.0);
    for round in 0..3 {
        let pid = server(&extant(&["mount", "-v", &image, &mnt.0]).ok());
        confined(pid);
        let data: Vec<u8> = (0..6_000_000u32).map(|i| (i >> (3 + round)) as u8).collect();
        std::fs::write(at("file"), &data).expect("written");
        rustix::fs::fsync(std::fs::File::open(at("file")).expect("open")).expect("fsync");
        std::fs::write(at("gone"), &data).expect("written");
        std::fs::remove_file(at("gone")).expect("removed");
        assert!(tool("fstrim", &["-v", &mnt.0]).contains("trimmed"));
        tool("chattr", &["+d", &at("file")]);
        extant(&["freeze", &mnt.0]).ok();
        extant(&["thaw", &mnt.0]).ok();
        extant(&["mount", "-o", "remount,ro", &image, &mnt.0]).ok();
        extant(&["mount", "-o", "remount,rw", &image, &mnt.0]).ok();
        // Many clients at once start more workers.
        tool("sh", &["-c", &format!("for i in 1 2 3 4 5; do cp {0} {0}$i & done; wait", at("file"))]);
        // All threads that have started since then.
        confined(pid);
        match round {
            0 => umount(&["-i", &mnt.0]),
            1 => extant(&["unmount", &mnt.0]).ok().clear(),
            _ => end_by_signal(pid, &mnt.0),
        }
        // Waits for the server.
        assert_eq!(extant(&["cat", &image, "file5"]).out, data);
        fsck_clean(&image);
    }
    let pid = server(&extant(&["mount", "-v", "-o", "no_sandbox", &image, &mnt.0]).ok());
    assert!(threads(pid).iter().all(|(no_new_privs, seccomp, ..)| no_new_privs == "0" && seccomp == "0"));
    assert!(threads(pid).iter().any(|(.., effective, _)| effective & !KEPT != 0));
    extant(&["unmount", &mnt.0]).ok();
}

#[test]
fn a_busy_mount_is_detached_at_a_signal() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = place(&dir);
    let pid = server(&extant(&["mount", "-v", &image, &mnt.0]).ok());
    let open = std::fs::File::create(format!("{}/open", mnt.0)).expect("created");
    end_by_signal(pid, &mnt.0);
    use std::io::Write;
    (&open).write_all(b"still served").expect("written");
    drop(open);
    assert_eq!(extant(&["cat", &image, "open"]).ok(), "still served");
    fsck_clean(&image);
}

/// A server that may not look at the mount point does not conclude that it is unmounted.
#[test]
fn a_mount_in_a_closed_directory_ends_at_a_signal() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = in_a_closed_directory(&dir);
    let pid = server(&extant(&["mount", "-v", &image, &mnt.0]).ok());
    std::fs::write(format!("{}/new", mnt.0), "new").expect("written");
    end_by_signal(pid, &mnt.0);
    assert_eq!(extant(&["cat", &image, "new"]).ok(), "new");
    fsck_clean(&image);
}

/// The server does not leave a dead mount there either.
#[test]
fn a_dead_mount_in_a_closed_directory_does_not_stay() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = in_a_closed_directory(&dir);
    extant(&["mount", &image, &mnt.0]).ok();
    let open = std::fs::File::create(format!("{}/open", mnt.0)).expect("created");
    let forced = rustix::mount::unmount(&mnt.0, rustix::mount::UnmountFlags::FORCE);
    assert_eq!(forced, Err(rustix::io::Errno::BUSY));
    wait_until("the end of the mount", || !is_mount_point(Path::new(&mnt.0)));
    drop(open);
    assert_eq!(extant(&["cat", &image, "open"]).ok(), "");
    fsck_clean(&image);
}

#[test]
fn an_ordinary_users_mount_ends_and_reports_it_despite_a_foreign_directory() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    dir.image("ext4", &["-E", "root_owner=65534:65534"]);
    for name in ["mnt", "runtime"] {
        std::fs::create_dir(dir.path(name)).expect("directory");
    }
    std::fs::set_permissions(dir.path("runtime"), PermissionsExt::from_mode(0o700)).expect("mode");
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o755)).expect("mode");
    for name in ["disk.img", "mnt", "runtime"] {
        tool("chown", &["65534:65534", &dir.text(name)]);
    }
    // Runs in a mount namespace with a /dev/fuse for every user, and in /tmp another user's directory with this user's
    // name.
    let script = r#"
        mount --bind "$1" /mnt && mknod -m 666 /mnt/node c 10 229 && mount --bind /mnt/node /dev/fuse &&
        mount -t tmpfs none /tmp && mkdir -m 777 /tmp/extant-65534 || exit 77
        user() { setpriv --reuid=65534 --regid=65534 --clear-groups env XDG_RUNTIME_DIR=/mnt/runtime "$@"; }
        user "$2" --version >/dev/null && : <>/dev/fuse || exit 77
        set -e
        for end in signal unmount; do
            said=$(user "$2" mount -v /mnt/disk.img /mnt/mnt | head -n 1)
            server=${said##* }
            grep -h -E '^(NoNewPrivs|Seccomp|CapEff|CapPrm):' /proc/$server/task/*/status | sort -u
            user sh -c "echo $end > /mnt/mnt/$end"
            case $end in
                signal) kill -TERM $server; while grep -q ' /mnt/mnt ' /proc/self/mountinfo; do sleep 0.02; done ;;
                unmount) user "$2" unmount /mnt/mnt ;;
            esac
            user "$2" cat /mnt/disk.img $end
        done
        ls -A /tmp/extant-65534"#;
    let exe = extant_path().to_str().expect("UTF-8");
    let done = run("unshare", &["--mount", "sh", "-c", script, "sh", &dir.text("."), exe]);
    if done.code == Some(77) {
        eprintln!("skipped: an ordinary user cannot mount here: {}", done.err);
        return;
    }
    let each = |end| format!("CapEff:0000000000000000 CapPrm:0000000000000000 NoNewPrivs:1 Seccomp:2 {end}");
    let said = done.ok().replace(":\t", ":").replace('\n', " ");
    assert_eq!(said.trim_end(), format!("{} {}", each("signal"), each("unmount")));
    fsck_clean(&dir.text("disk.img"));
}

#[test]
fn the_process_that_unmounts_ends_with_the_server() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = place(&dir);
    let pid = server(&extant(&["mount", "-v", &image, &mnt.0]).ok());
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("children");
    let agent: i32 = children.trim().parse().expect("one");
    let name = std::fs::read_to_string(format!("/proc/{agent}/comm")).expect("alive");
    assert_eq!(name.trim(), "extant-unmount");
    // The agent has neither the image nor /dev/fuse open.
    let open = std::fs::read_dir(format!("/proc/{agent}/fd")).expect("descriptors").flatten();
    let open: Vec<_> = open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    assert!(open.iter().all(|to| !to.ends_with("disk.img") && !to.ends_with("fuse")), "{open:?}");
    kill_process(Pid::from_raw(pid).expect("a number"), Signal::KILL).expect("sent");
    wait_until("the agent's end", || !Path::new(&format!("/proc/{agent}/cwd")).exists());
}

#[test]
fn a_loop_device_on_the_image_prevents_a_writable_mount() {
    if skipped() || !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let mnt = place(&dir);
    let device = tool("losetup", &["-f", "--show", &image]).trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        extant(&["mount", &image, &mnt.0]).fails(32, &["disk.img: in use by ", &device]);
        assert!(!is_mount_point(Path::new(&mnt.0)));
        extant(&["mount", "-o", "ro", &image, &mnt.0]).ok();
        extant(&["unmount", &mnt.0]).ok();
    });
    tool("losetup", &["-d", &device]);
    tried.expect("see the output above");
    extant(&["mount", &image, &mnt.0]).ok();
    extant(&["unmount", &mnt.0]).ok();
    assert!(debugfs(&image, "stats").contains("clean"));
}

/// Tools also refuse such an image, because the writes of the loop device are unpredictable.
#[test]
fn a_loop_device_on_the_image_prevents_writes_by_tools() {
    if !loop_mounts_work() {
        eprintln!("skipped: needs loop devices");
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let disk = dir.text("whole.img");
    common::whole_disk(&disk, &image);
    let (file, lines) = (dir.text("src/big"), dir.text("lines"));
    std::fs::write(&lines, "mkdir /new\n").expect("file");
    let before = std::fs::read(&image).expect("image");
    let device = tool("losetup", &["-f", "--show", &image]).trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        let at = |path: &str| format!("{image}:{path}");
        for args in [
            &["rm", &at("/big")][..],
            &["cp", &file, &at("/new")],
            &["mv", &at("/big"), &at("/new")],
            &["script", &image, &lines],
            &["script", "--atomic", &image, &lines],
        ] {
            extant(args).fails(8, &["disk.img: in use by ", &device]);
        }
        assert!(std::fs::read(&image).expect("image") == before, "the image has changed");
        assert_eq!(extant(&["cat", &at("/etc/passwd")]).ok(), "root:x:0:0::/root:/bin/sh\n");
    });
    tool("losetup", &["-d", &device]);
    tried.expect("see the output above");
    // For a part of an image, only loop devices that overlap it count.
    let one = ["-f", "--show", "-o", "1048576", "--sizelimit", "1048576", &disk];
    let device = tool("losetup", &one).trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        extant(&["mkdir", &format!("{disk}@2:/new")]).ok();
    });
    tool("losetup", &["-d", &device]);
    tried.expect("another part");
    let device = tool("losetup", &["-f", "--show", "-o", "2097152", &disk]).trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        extant(&["mkdir", &format!("{disk}@2:/more")]).fails(8, &["whole.img@2: in use by ", &device]);
    });
    tool("losetup", &["-d", &device]);
    tried.expect("its part");
    extant(&["mkdir", &format!("{disk}@2:/more")]).ok();
}

#[test]
fn messages_about_a_mount_are_safe_for_a_terminal() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.text("a\u{1b}]0;title\u{7}.img");
    std::fs::rename(dir.image("ext4", &[]), &image).expect("renamed");
    let mnt = Mounted(dir.text("m\u{1b}[2Jnt"));
    std::fs::create_dir(&mnt.0).expect("directory");
    let other = dir.text("other");
    std::fs::create_dir(&other).expect("directory");
    let plain = |said: &str, words: &[&str]| {
        assert!(said.chars().all(|c| c == '\n' || !c.is_control()), "{said:?}");
        assert!(words.iter().all(|word| said.contains(word)), "{said:?}");
    };
    plain(&extant(&["mount", "-v", &image, &mnt.0]).ok(), &["]0;title", "[2Jnt"]);
    plain(&extant(&["mount", &image, &other]).fails(32, &["in use"]), &["]0;title", "[2Jnt"]);
    let busy = std::fs::File::create(format!("{}/open", mnt.0)).expect("created");
    plain(&extant(&["unmount", &mnt.0]).fails(32, &["busy"]), &["[2Jnt"]);
    drop(busy);
    plain(&extant(&["unmount", "-v", &mnt.0]).ok(), &["]0;title", "[2Jnt"]);
    plain(&extant(&["unmount", &mnt.0]).fails(32, &["not mounted"]), &["[2Jnt"]);
}
