//! Hosts without some facility: locks, /proc, a directory for the server's report, or permission to write large files.

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{CommandResult, Dir, Unmounted, debugfs, extant, extant_path, fsck_clean, install, run, tool};
use extant_testkit::mount::{fuse_works, is_mount_point};
use rustix::process::geteuid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

const ERRNO: &str = "EXTANT_TEST_LOCKS_ANSWER";
const ARGS: &str = "EXTANT_TEST_ARGS";
const BEGIN: &str = "it begins\n";

/// Replaces this process by `extant`, in which every file lock fails.
#[test]
#[ignore = "without_locks runs it in a process of its own"]
fn becomes_extant_without_locks() {
    let errno: u32 = std::env::var(ERRNO).expect("set").parse().expect("a number");
    let asks = |command: i32| {
        let is =
            SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, command as u64).expect("condition");
        SeccompRule::new(vec![is]).expect("rule")
    };
    let locks =
        [libc::F_GETLK, libc::F_SETLK, libc::F_SETLKW, libc::F_OFD_GETLK, libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    let rules = [(libc::SYS_fcntl, locks.map(asks).to_vec()), (libc::SYS_flock, Vec::new())].into();
    let arch = std::env::consts::ARCH.try_into().expect("an architecture with filters");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch).expect("filter");
    let program: BpfProgram = filter.try_into().expect("compiled");
    apply_filter(&program).expect("applied");
    print!("{BEGIN}");
    std::io::stdout().flush().expect("said");
    let args = std::env::var(ARGS).expect("set");
    panic!("{}", Command::new(extant_path()).args(args.split('\n')).exec());
}

fn without_locks(errno: i32, args: &[&str]) -> CommandResult {
    let test = ["--exact", "becomes_extant_without_locks", "--ignored", "--nocapture", "--test-threads=1"];
    let mut command = Command::new(std::env::current_exe().expect("this test"));
    let command = command.args(test).env(ERRNO, errno.to_string()).env(ARGS, args.join("\n"));
    let done = command.stdin(Stdio::null()).env("LC_ALL", "C").output().expect("started");
    let said = String::from_utf8_lossy(&done.stdout);
    let (_, out) = said.split_once(BEGIN).unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&done.stderr)));
    let err = String::from_utf8_lossy(&done.stderr).into_owned();
    CommandResult { code: done.status.code(), out: out.as_bytes().to_vec(), err }
}

#[test]
fn without_file_locks_an_image_is_read_and_written_only_on_request() {
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let file = dir.text("file");
    std::fs::write(&file, "hello\n").expect("written");
    extant(&["cp", &file, &format!("{image}:/")]).ok();
    let mount = Unmounted::at(&dir, "mnt");
    let mnt = &mount.0;
    for errno in [libc::ENOLCK, libc::ENOSYS, libc::EOPNOTSUPP, libc::EINVAL] {
        let warned = |ran: &CommandResult| {
            assert_eq!(ran.code, Some(0), "{}", ran.err);
            assert_eq!(ran.err.matches("files cannot be locked here").count(), 1, "{}", ran.err);
        };
        let read = without_locks(errno, &["cat", &format!("{image}:/file")]);
        warned(&read);
        assert_eq!(read.out, b"hello\n");
        let before = std::fs::read(&image).expect("read");
        let to = format!("{image}:/new{errno}");
        let refused = ["files cannot be locked here", "--no-lock", "-o no_lock"];
        without_locks(errno, &["cp", &file, &to]).fails(8, &refused);
        without_locks(errno, &["mount", &image, mnt]).fails(32, &refused);
        assert!(before == std::fs::read(&image).expect("read"), "the write was refused, but the image changed");
        warned(&without_locks(errno, &["cp", "--no-lock", &file, &to]));
        fsck_clean(&image);
        assert_eq!(extant(&["cat", &to]).ok(), "hello\n");
    }
    if fuse_works() {
        let mounted = without_locks(libc::ENOLCK, &["mount", "-o", "no_lock", &image, mnt]);
        assert_eq!(mounted.err.matches("files cannot be locked here").count(), 1, "{}", mounted.err);
        std::fs::write(format!("{mnt}/through"), "a mount").expect("written");
        // Neither a lock nor a status file shows the server's end.
        let ended = without_locks(libc::ENOLCK, &["unmount", mnt]);
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""));
        fsck_clean(&image);
        assert_eq!(extant(&["cat", &image, "through"]).ok(), "a mount");
    }
}

/// A lock of another process is respected with any options.
#[test]
fn a_locked_image_is_not_written_even_with_no_lock() {
    if !fuse_works() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let mount = Unmounted::at(&dir, "mnt");
    let mnt = &mount.0;
    extant(&["mount", &image, mnt]).ok();
    let refused = extant(&["mkdir", "--no-lock", &format!("{image}:/new")]);
    extant(&["unmount", mnt]).ok();
    refused.fails(8, &["disk.img: in use: mounted on "]);
}

/// A root directory with the program, its libraries, an image and little else; `None` if it is not possible.
fn root(dir: &Dir) -> Option<String> {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    let root = dir.text("root");
    for name in ["dev", "m", "proc"] {
        std::fs::create_dir_all(format!("{root}/{name}")).expect("directory");
    }
    let program = extant_path().to_str().expect("UTF-8");
    install(program, &format!("{root}/x"));
    // A statically linked program needs none, and ldd(1) fails.
    let libraries = String::from_utf8_lossy(&run("ldd", &[program]).out).into_owned();
    for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
        let to = format!("{root}{library}");
        std::fs::create_dir_all(Path::new(&to).parent().expect("a directory")).expect("directory");
        std::fs::copy(library, &to).expect("copied");
        std::fs::set_permissions(&to, PermissionsExt::from_mode(0o755)).expect("mode");
    }
    tool("mknod", &[&format!("{root}/dev/fuse"), "c", "10", "229"]);
    tool("mknod", &[&format!("{root}/dev/null"), "c", "1", "3"]);
    std::fs::write(format!("{root}/f"), "hello\n").expect("written");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", &format!("{root}/i.img"), "16M"]);
    Some(root)
}

/// The namespace, with all its mounts, always ends with the script.
const NAMESPACE: [&str; 3] = ["-m", "--propagation", "private"];

/// Runs a script in a mount namespace of its own.
fn script(text: &str) -> CommandResult {
    run("unshare", &[&NAMESPACE[..], &["sh", "-ec", text]].concat())
}

#[test]
fn without_proc_a_tree_is_copied_with_its_attributes() {
    let dir = Dir::new();
    let Some(root) = root(&dir) else { return };
    let tree = format!("{root}/tree");
    std::fs::create_dir(&tree).expect("directory");
    std::fs::write(format!("{tree}/file"), "in the tree\n").expect("written");
    std::os::unix::fs::symlink("file", format!("{tree}/link")).expect("link");
    let link = format!("{tree}/link");
    let has_attribute = rustix::fs::lsetxattr(&link, "trusted.of", b"a link", rustix::fs::XattrFlags::empty()).is_ok();
    let copied = run("chroot", &[&root, "/x", "cp", "-r", "/tree", "/f", "/i.img:/"]);
    assert_eq!(copied.code, Some(0), "{}", copied.err);
    assert!(copied.err.contains("it is unknown whether the kernel has it mounted"), "{}", copied.err);
    run("chroot", &[&root, "/x", "cat", "/i.img:/tree/link"]).ok();
    let image = format!("{root}/i.img");
    fsck_clean(&image);
    assert_eq!(debugfs(&image, "cat /f"), "hello\n");
    assert_eq!(debugfs(&image, "cat /tree/file"), "in the tree\n");
    if has_attribute {
        assert!(debugfs(&image, "ea_list /tree/link").contains("a link"));
    } else {
        eprintln!("skipped: no attributes of symbolic links");
    }
}

#[test]
fn without_proc_an_image_is_mounted_and_unmounted() {
    if !fuse_works() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let Some(root) = root(&dir) else { return };
    let image = format!("{root}/i.img");
    // The mounts are unknown, so the unmount does nothing.
    run("chroot", &[&root, "/x", "unmount", "/m"]).fails(8, &["/proc/self/mountinfo"]);
    std::fs::create_dir(format!("{root}/tmp")).expect("directory");
    let ran = script(&format!(
        "cd {root}; chroot . /x mount /i.img /m; echo new > m/new; chroot . /x unmount /m; chroot . /x cat /i.img:/new"
    ));
    assert_eq!((ran.code, ran.out.as_slice()), (Some(0), &b"new\n"[..]), "{}", ran.err);
    assert!(!is_mount_point(Path::new(&format!("{root}/m"))));
    fsck_clean(&image);
}

/// There is no /run, and no /tmp: the server cannot leave a report.
#[test]
fn an_unmount_without_a_report_examines_the_image() {
    if !fuse_works() {
        eprintln!("skipped: needs /dev/fuse");
        return;
    }
    let dir = Dir::new();
    let Some(root) = root(&dir) else { return };
    let image = format!("{root}/i.img");
    let with_proc = |text: &str| script(&format!("cd {root}; mount --bind /proc proc; {text}"));
    let ran = with_proc("chroot . /x mount /i.img /m; echo new > m/new; chroot . /x unmount /m");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    fsck_clean(&image);
    assert_eq!(debugfs(&image, "cat /new"), "new\n");
    // A mount without writes.
    let ran = with_proc("chroot . /x mount -o ro /i.img /m; chroot . /x unmount /m");
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    // A killed server is not a success.
    let ran = with_proc(
        "chroot . /x mount -v /i.img /m > said; kill -9 $(sed -n 's/.*process //p' said); chroot . /x unmount /m",
    );
    ran.fails(2, &["i.img: unmounted, but the server has not reported its end"]);
}

/// As podman, buildah and `unshare -r` create it: the caller is root only inside the namespace.
#[test]
fn root_of_a_user_namespace_learns_how_its_mount_ended() {
    let usable = fuse_works() && geteuid().is_root();
    if !usable || run("setpriv", &["--reuid", "65534", "--clear-groups", "unshare", "-rm", "true"]).code != Some(0) {
        eprintln!("skipped: needs root, /dev/fuse and user namespaces");
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (top, device) = (dir.text("."), dir.text("fuse"));
    common::copy_program(&dir.text("x"));
    std::fs::create_dir(dir.path("m")).expect("directory");
    tool("chmod", &["777", &top, &dir.text("m")]);
    tool("chown", &["65534", &image]);
    // A device that every user may open, only in this namespace.
    let ran = script(&format!(
        "cd {top}; mknod fuse c 10 229; chmod 666 fuse; mount --bind {device} /dev/fuse; \
         exec setpriv --reuid 65534 --regid 65534 --clear-groups env -u XDG_RUNTIME_DIR \
         unshare -rm sh -ec './x mount disk.img m; echo new > m/new; ./x unmount m'"
    ));
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    fsck_clean(&image);
    assert_eq!(extant(&["cat", &image, "new"]).ok(), "new\n");
}

/// `ulimit -f`, in blocks of 512 bytes or of a kilobyte.
#[test]
fn a_limit_on_the_size_of_files_causes_an_error_not_a_signal() {
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let (file, mount) = (dir.text("file"), Unmounted::at(&dir, "mnt"));
    let mnt = &mount.0;
    std::fs::write(&file, vec![7; 4 << 20]).expect("written");
    let extant = extant_path().to_str().expect("UTF-8");
    let limited = |limit: &str, command: &str| run("sh", &["-c", &format!("{limit}; exec {extant} {command}")]);
    let refused = ["disk.img: it ends at byte 16777216", "ulimit -f"];
    limited("ulimit -f 100", &format!("cp {file} {image}:/")).fails(8, &refused);
    if fuse_works() {
        limited("ulimit -f 100", &format!("mount {image} {mnt}")).fails(32, &refused);
    }
    fsck_clean(&image);
    // The user's own limit is for new files.
    limited("ulimit -S -f 100", &format!("cp {file} {image}:/")).ok();
    fsck_clean(&image);
    // A file copied out of the image is a new one.
    limited("ulimit -f 100", &format!("cp {image}:/file {file}.out")).fails(8, &["file.out: File too large"]);
}
