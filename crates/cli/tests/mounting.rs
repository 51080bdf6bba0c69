//! Requirements of mount(8), umount(8), fstab and their users beyond reading and writing.

mod common;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{
    CommandResult, Dir, Unmounted, debugfs, extant, extant_path, fsck_clean, in_time, run, tool, umount, wait_until,
    whole_disk,
};
use extant_base::clock::Clock;
use extant_base::task;
use extant_testkit::mount::{fuse_works, is_mount_point, loop_mounts_work};
use rustix::process::{Pid, Signal, geteuid, kill_process};

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

/// Runs as an ordinary user, who may open /dev/fuse.
fn as_nobody(args: &[&str]) -> CommandResult {
    run("setpriv", &[&["--reuid=65534", "--regid=65534", "--clear-groups"], args].concat())
}

#[test]
fn a_fakeroot_mount_accepts_any_owner_and_mode_from_any_user() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o755)).expect("mode");
    for options in ["fakeroot", "no_default_permissions,uid=0,gid=0"] {
        let (mnt, _mounts) = place(&dir, &format!("mnt-{}", options.len()));
        // Made by root for other users: the checks are the same as for a user's own mount.
        extant(&["mount", "-o", &format!("allow_other,{options}"), &image, &mnt]).ok();
        let name = format!("{mnt}/{}", options.len());
        let script = "mkdir -m 0 $0 $0/etc 2>/dev/null; chmod 700 $0; touch $0/file && chmod 0 $0/file && echo text >> $0/file \
                      && cat $0/file && mkdir -p $0/a/b && chmod 0 $0/a $0 && ls $0/a";
        let done = as_nobody(&["sh", "-c", script, &name]);
        assert_eq!((done.code, String::from_utf8_lossy(&done.out).as_ref()), (Some(0), "text\nb\n"), "{}", done.err);
        if options == "fakeroot" {
            as_nobody(&["chown", "12:34", &format!("{name}/file")]).ok();
            as_nobody(&["chmod", "6755", &format!("{name}/file")]).ok();
            let meta = std::fs::metadata(format!("{name}/file")).expect("there");
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12, 34, 0o6755));
        }
        extant(&["unmount", &mnt]).ok();
        fsck_clean(&image);
    }
    let stat = debugfs(&image, "stat /8/file");
    assert!(stat.contains("User:    12   Group:    34") && stat.contains("Mode:  06755"), "{stat}");
}

/// Runs a script with mount(8)'s helpers installed, visible only to it.
fn with_helpers(dir: &Dir, script: &str, args: &[&str]) -> Option<CommandResult> {
    let links = dir.text("helpers");
    std::fs::create_dir_all(&links).expect("directory");
    for name in ["mount.fuse.extant", "mount.fuseblk.extant", "umount.fuse.extant", "umount.fuseblk.extant"] {
        let _ = std::os::unix::fs::symlink(extant_path(), format!("{links}/{name}"));
    }
    let whole = format!("set -e; mount --bind $1 $(readlink -f /sbin); shift; {script}");
    let all = [&["--mount", "sh", "-c", &whole, "sh", &links], args].concat();
    if run("unshare", &["--mount", "true"]).code != Some(0) {
        eprintln!("skipped: no mount namespaces");
        return None;
    }
    Some(run("unshare", &all))
}

#[test]
fn umount_8_returns_when_everything_is_in_the_image() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    // The bind mount of the links hides all other tools, so the copies are examined afterwards.
    let script = "for i in 1 2 3 4 5; do mount -t fuse.extant -o defaults,nofail,_netdev,x-a=b $1 $2; \
                  head -c 8000000 /dev/zero > $2/new$i; umount $2; cat $1 > $3$i; done; stat -c %a /run/extant";
    let copy = dir.text("copy");
    let Some(done) = with_helpers(&dir, script, &[&image, &mnt, &copy]) else { return };
    assert_eq!(done.ok(), "700\n");
    for i in 1..=5 {
        fsck_clean(&format!("{copy}{i}"));
        assert!(debugfs(&format!("{copy}{i}"), &format!("stat /new{i}")).contains("Size: 8000000"));
    }
}

/// The user who mounted requests the lock of the server's status file, with every kind of lock, and gets one as soon as
/// the server has ended. The user holds a lock on the directory all the time.
#[test]
fn unmount_by_root_does_not_wait_for_a_lock_of_the_user_who_mounted() {
    if skipped() {
        return;
    }
    for killed in [false, true] {
        let dir = Dir::new();
        let image = dir.empty_image("disk.img", &[]);
        std::fs::set_permissions(dir.path("."), PermissionsExt::from_mode(0o755)).expect("mode");
        let (mnt, _mounts) = place(&dir, "mnt");
        tool("chown", &["65534", &image, &mnt]);
        let program = dir.text("extant");
        common::copy_program(&program);
        let mounted = as_nobody(&["env", "-u", "XDG_RUNTIME_DIR", &program, "mount", "-v", &image, &mnt]);
        if mounted.err.contains("fusermount3") {
            return eprintln!("skipped: an ordinary user cannot mount: {}", mounted.err);
        }
        let said = mounted.ok();
        let server = said.lines().next().and_then(|line| line.rsplit(' ').next()).expect("a number").to_owned();
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("table");
        let line = table.lines().find(|line| line.contains(&mnt)).expect("mounted");
        let word = format!("/tmp/extant-65534/{}", line.split(' ').nth(2).expect("a device"));
        let mut locker = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", common::python(), "-c", LOCKER, &word])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut said = String::new();
        let out = locker.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut said).expect("said");
        assert_eq!(said, "waiting\n");
        if killed {
            tool("kill", &["-s", "STOP", &server]);
        }
        let at = mnt.clone();
        let unmount = task::spawn("unmount", move || in_time(&["unmount", &at])).expect("started");
        if killed {
            wait_until("the unmount", || !is_mount_point(Path::new(&mnt)));
            tool("kill", &["-s", "KILL", &server]);
        }
        let unmounted = unmount.join().expect("ended");
        drop(locker.stdin.take());
        assert!(locker.wait().expect("waited").success());
        if killed {
            unmounted.fails(2, &["disk.img: the server had died"]);
        } else {
            unmounted.ok();
            fsck_clean(&image);
        }
    }
}

/// Prints "waiting" when a process of its own waits for each lock, or holds it.
const LOCKER: &str = "
import fcntl, os, signal, struct, sys, time
path = sys.argv[1]
F_OFD_SETLKW = 38
lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
locks = [
    lambda: fcntl.flock(os.open(os.path.dirname(path), os.O_RDONLY), fcntl.LOCK_EX),
    lambda: fcntl.flock(os.open(path, os.O_RDWR), fcntl.LOCK_EX),
    lambda: fcntl.lockf(os.open(path, os.O_RDWR), fcntl.LOCK_EX),
    lambda: fcntl.fcntl(os.open(path, os.O_RDWR), F_OFD_SETLKW, lock),
]
children = []
for take in locks:
    child = os.fork()
    if child == 0:
        take()
        signal.pause()
    children.append(child)
def sleeps(child):
    return open(f'/proc/{child}/stat').read().rsplit(') ', 1)[1][0] == 'S'
while not all(sleeps(child) for child in children):
    time.sleep(0.01)
print('waiting', flush=True)
sys.stdin.read()
for child in children:
    os.kill(child, signal.SIGKILL)
";

#[test]
fn a_mount_needs_a_directory_and_no_type() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext2", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    extant(&["mount", &image]).fails(1, &["where?", "DIRECTORY"]);
    extant(&["mount", "-t", "xfs", &image, &mnt]).fails(1, &["xfs", "ext4"]);
    extant(&["mount", "-t", "ext4", &image, &mnt]).ok();
    extant(&["unmount", &mnt]).ok();
    extant(&["unmount", &dir.text("nowhere")]).fails(32, &["nowhere: no such file or directory"]);
}

#[test]
fn a_mount_right_after_an_unmount_waits_for_the_old_server() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    for round in 0..5 {
        extant(&["mount", &image, &mnt]).ok();
        std::fs::write(format!("{mnt}/new{round}"), vec![round; 4 << 20]).expect("written");
        // Without the helper, umount(8) does not wait.
        umount(&["-i", &mnt]);
    }
    assert_eq!(extant(&["ls", &image]).code, Some(0));
    extant(&["mount", &image, &mnt]).ok();
    let (other, _mounts) = place(&dir, "other");
    for refused in [&["mount", &image, &other][..], &["cat", &image, "new0"], &["rm", &format!("{image}:/new0")]] {
        let code = if refused[0] == "mount" { 32 } else { 8 };
        extant(refused).fails(code, &["disk.img: in use: mounted on ", &mnt, "served by process ", "(extant)"]);
    }
    extant(&["unmount", &image]).ok();
    fsck_clean(&image);
}

#[test]
fn two_partitions_of_one_image_are_written_at_once() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    let ((one, _m1), (two, _m2)) = (place(&dir, "one"), place(&dir, "two"));
    let (second, fifth) = (format!("{disk}@2"), format!("{disk}@5"));
    extant(&["mount", &second, &one]).ok();
    extant(&["mount", &fifth, &two]).ok();
    for mnt in [&one, &two] {
        std::fs::write(format!("{mnt}/mine"), mnt).expect("written");
    }
    extant(&["mount", &second, &two]).fails(32, &["whole.img@2: in use: mounted on "]);
    extant(&["info", &disk]).ok();
    // Ambiguous: several partitions are mounted.
    extant(&["unmount", &disk]).fails(32, &["several partitions are mounted", "whole.img@2 on ", "whole.img@5 on "]);
    assert!(is_mount_point(Path::new(&one)) && is_mount_point(Path::new(&two)));
    extant(&["unmount", &second]).ok();
    assert!(is_mount_point(Path::new(&two)));
    // A single mounted partition needs no number.
    extant(&["unmount", &disk]).ok();
    assert_eq!(extant(&["cat", &second, "mine"]).ok(), one);
    assert_eq!(extant(&["cat", &fifth, "mine"]).ok(), two);
}

#[test]
fn a_partition_of_a_device_is_a_block_device_to_the_kernel() {
    if skipped() || !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    let (mnt, _mounts) = place(&dir, "mnt");
    for partitioned in [true, false] {
        let kind: &[&str] = if partitioned { &["-P"] } else { &[] };
        let device = tool("losetup", &[kind, &["-f", "--show", &disk]].concat()).trim().to_owned();
        let part = format!("{device}@2");
        let tried = std::panic::catch_unwind(|| {
            extant(&["mount", "-o", "loop", &part, &mnt]).ok();
            let table = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("table");
            let line = table.lines().find(|l| l.contains(&mnt)).expect("mounted").to_owned();
            assert!(line.contains(" fuseblk.extant "), "{line}");
            std::fs::write(format!("{mnt}/{partitioned}"), "x").expect("written");
            // For this type, umount(8) waits.
            umount(&["-i", &mnt]);
            assert_eq!(extant(&["cat", &part, &partitioned.to_string()]).ok(), "x");
        });
        tool("losetup", &["-d", &device]);
        tried.expect("see the output above");
    }
}

#[test]
fn free_blocks_are_discarded_and_the_label_is_set() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &["-b", "1024"]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let blocks = || std::fs::metadata(&image).expect("there").blocks() * 512;
    extant(&["mount", &image, &mnt]).ok();
    let keep: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    std::fs::write(format!("{mnt}/keep"), &keep).expect("written");
    std::fs::write(format!("{mnt}/gone"), vec![1; 20 << 20]).expect("written");
    rustix::fs::fsync(std::fs::File::open(format!("{mnt}/gone")).expect("open")).expect("fsync");
    let before = blocks();
    let free = || rustix::fs::statvfs(&mnt).map(|s| s.f_bfree * s.f_frsize).expect("statvfs");
    let full = free();
    std::fs::remove_file(format!("{mnt}/gone")).expect("removed");
    // The kernel sends FORGET, and does not wait for an answer.
    wait_until("its blocks", || free() > full + (15 << 20));
    let said = tool("fstrim", &["-v", &mnt]);
    assert!(said.contains("trimmed"), "{said}");
    assert!(blocks() + (15 << 20) < before, "{} of {before} are left", blocks());
    assert_eq!(std::fs::read(format!("{mnt}/keep")).expect("read"), keep);
    // As in the kernel's driver: no run can be longer than a group.
    run("fstrim", &["-m", "1G", &mnt]).fails(1, &["Invalid argument"]);
    as_nobody(&["fstrim", &mnt]).fails(1, &["fstrim"]);
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);

    extant(&["mount", "-o", "discard", &image, &mnt]).ok();
    std::fs::write(format!("{mnt}/gone"), vec![1; 20 << 20]).expect("written");
    rustix::fs::fsync(std::fs::File::open(format!("{mnt}/gone")).expect("open")).expect("fsync");
    let before = blocks();
    std::fs::remove_file(format!("{mnt}/gone")).expect("removed");
    extant(&["unmount", &mnt]).ok();
    assert!(blocks() + (15 << 20) < before, "{} of {before} are left", blocks());
    fsck_clean(&image);
}

/// The effect of `xfs_io -x -c shutdown`, on a working mount and on a frozen one. Data confirmed by fsync is there
/// afterwards, and further requests fail. umount(8) and the server end normally, and the image is not marked as
/// damaged.
#[test]
fn a_shutdown_is_a_power_cut_on_demand() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let down = "import fcntl,os,sys; fcntl.ioctl(os.open(sys.argv[1],os.O_RDONLY),0x8004587d,b'\\2\\0\\0\\0')";
    for frozen in [false, true] {
        extant(&["mount", &image, &mnt]).ok();
        std::fs::write(format!("{mnt}/kept"), "as promised").expect("written");
        rustix::fs::fsync(std::fs::File::open(format!("{mnt}/kept")).expect("open")).expect("fsync");
        std::fs::write(format!("{mnt}/named"), "perhaps").expect("written");
        let mut late = None;
        if frozen {
            extant(&["freeze", &mnt]).ok();
            let path = format!("{mnt}/late");
            late = Some(task::spawn("late", move || std::fs::write(path, "late")).expect("started"));
            Clock::real().sleep(std::time::Duration::from_millis(100));
        }
        tool("python3", &["-c", down, &mnt]);
        let refused = |r: std::io::Result<()>| assert_eq!(r.expect_err("down").raw_os_error(), Some(5));
        if let Some(late) = late {
            refused(late.join().expect("ended"));
        }
        refused(std::fs::write(format!("{mnt}/after"), "x"));
        refused(std::fs::read_dir(&mnt).and_then(|mut names| names.next().expect("one").map(drop)));
        extant(&["unmount", &mnt]).ok();
        assert_eq!(replays(&image), !frozen);
        // First replayed in memory, then in the image.
        extant(&["mount", "-o", "ro", &image, &mnt]).ok();
        assert_eq!(std::fs::read_to_string(format!("{mnt}/kept")).expect("read"), "as promised");
        assert_eq!(replays(&image), !frozen, "nothing was written");
        extant(&["mount", "-o", "remount,rw", &mnt]).ok();
        assert_eq!(std::fs::read_to_string(format!("{mnt}/kept")).expect("read"), "as promised");
        assert!(std::fs::exists(format!("{mnt}/named")).expect("looked"), "its name was in the log");
        assert!(!std::fs::exists(format!("{mnt}/after")).expect("looked"));
        extant(&["unmount", &mnt]).ok();
        fsck_clean(&image);
    }
}

/// Whether the next mount has a log to replay.
fn replays(image: &str) -> bool {
    tool("dumpe2fs", &["-h", image]).contains("needs_recovery")
}

#[test]
fn a_frozen_mount_is_a_clean_image_and_its_writers_wait() {
    if skipped() {
        return;
    }
    for (fs_type, extra) in [("ext4", &[][..]), ("ext2", &["-b", "1024"])] {
        let dir = Dir::new();
        let image = dir.image(fs_type, extra);
        let (mnt, _mounts) = place(&dir, "mnt");
        extant(&["mount", &image, &mnt]).ok();
        std::fs::write(format!("{mnt}/before"), "x").expect("written");
        extant(&["freeze", &mnt]).ok();
        extant(&["freeze", &mnt]).fails(32, &["frozen already"]);
        let copy = dir.text("copy.img");
        std::fs::copy(&image, &copy).expect("copied");
        // More writers than workers.
        let mut writers: Vec<_> = (0..40)
            .map(|i| {
                Command::new("sh")
                    .args(["-c", &format!("echo {i} > {mnt}/etc/late{i}")])
                    .stdin(Stdio::null())
                    .spawn()
                    .expect("spawn")
            })
            .collect();
        // Meanwhile reads continue, except in the writers' directory, which the kernel has locked for one of them.
        assert_eq!(std::fs::read(format!("{mnt}/big")).expect("read"), common::big());
        assert!(std::fs::read(&image).expect("image") == std::fs::read(&copy).expect("copy"), "{fs_type}: it changed");
        extant(&["thaw", &mnt]).ok();
        for writer in &mut writers {
            assert!(writer.wait().expect("wait").success());
        }
        assert_eq!(
            std::fs::read_dir(format!("{mnt}/etc")).expect("list").filter(|e| e.as_ref().is_ok_and(is_late)).count(),
            40
        );
        extant(&["thaw", &mnt]).fails(32, &["not frozen"]);
        if fs_type == "ext4" {
            let info = extant(&["info", &copy]).ok();
            assert!(info.contains("State:       clean"), "{info}");
            assert_eq!(extant(&["cat", &copy, "before"]).ok(), "x");
        }
        fsck_clean(&copy);
        // An unmount thaws by itself.
        extant(&["freeze", &image]).ok();
        extant(&["unmount", &mnt]).ok();
        fsck_clean(&image);
    }
}

/// Opening, reading and closing never wait for the thaw, however often. Otherwise the kernel's limit of pending
/// requests would be reached.
#[test]
fn a_frozen_mount_can_be_read_any_number_of_times() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    for (device, options) in [(false, "no_open=0"), (false, "strictatime"), (true, "no_open=0")] {
        if device && !loop_mounts_work() {
            continue;
        }
        let source = match device {
            true => tool("losetup", &["-f", "--show", &image]).trim().to_owned(),
            false => image.clone(),
        };
        extant(&["mount", "-o", options, &source, &mnt]).ok();
        (0..100).for_each(|i| std::fs::write(format!("{mnt}/f{i}"), vec![1; 100_000]).expect("written"));
        // After the remount the kernel has cached nothing, and has to send requests.
        extant(&["unmount", &mnt]).ok();
        extant(&["mount", "-o", options, &source, &mnt]).ok();
        extant(&["freeze", &mnt]).ok();
        let script = format!("for i in $(seq 0 99); do cat {mnt}/f$i > /dev/null || exit 1; done");
        let mut reader = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().expect("spawn");
        let mut ended = None;
        for _ in 0..600 {
            ended = reader.try_wait().expect("wait");
            if ended.is_some() {
                break;
            }
            Clock::real().sleep(Duration::from_millis(50));
        }
        extant(&["thaw", &mnt]).ok();
        reader.wait().expect("wait");
        assert!(ended.is_some_and(|status| status.success()), "{source}, {options}: {ended:?}");
        extant(&["unmount", &mnt]).ok();
        if device {
            tool("losetup", &["-d", &source]);
        }
    }
    fsck_clean(&image);
}

/// A request that waits for the thaw must not prevent it: neither a remount, which is refused, nor trims sent just
/// before the freeze.
#[test]
fn a_frozen_mount_can_always_be_thawed() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    extant(&["mount", &image, &mnt]).ok();
    extant(&["freeze", &mnt]).ok();
    let late = format!("echo late > {mnt}/late");
    let mut writer = Command::new("sh").args(["-c", &late]).stdin(Stdio::null()).spawn().expect("spawn");
    extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(200));
    in_time(&["mount", "-o", "remount,rw", &image, &mnt]).fails(32, &["busy"]);
    in_time(&["thaw", &mnt]).ok();
    assert!(writer.wait().expect("wait").success());
    for _ in 0..12 {
        let trims: Vec<_> =
            (0..4).map(|_| Command::new("fstrim").arg(&mnt).stdin(Stdio::null()).spawn().expect("spawn")).collect();
        in_time(&["freeze", &mnt]).ok();
        in_time(&["thaw", &mnt]).ok();
        for mut trim in trims {
            assert!(trim.wait().expect("wait").success());
        }
    }
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
}

/// Before a freeze, the kernel writes its dirty pages to the server.
#[test]
fn a_freeze_includes_the_kernels_dirty_pages() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, copy) = (dir.image("ext4", &[]), dir.text("copy.img"));
    let (mnt, _mounts) = place(&dir, "mnt");
    extant(&["mount", "-o", "writeback_cache", &image, &mnt]).ok();
    std::fs::write(format!("{mnt}/new"), "content").expect("written");
    extant(&["freeze", &mnt]).ok();
    std::fs::copy(&image, &copy).expect("copied");
    extant(&["thaw", &mnt]).ok();
    assert_eq!(extant(&["cat", &copy, "new"]).ok(), "content");
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
}

fn is_late(entry: &std::fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("late")
}

#[test]
fn a_remount_turns_writing_off_and_on() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    extant(&["mount", "-o", "noexec", &image, &mnt]).ok();
    let open = std::fs::File::create(format!("{mnt}/open")).expect("created");
    let remount = |how: &str| extant(&["mount", "-o", how, &image, &mnt]);
    remount("remount,ro").fails(32, &["open for writing"]);
    drop(open);
    // As mount(8) calls it: with only the directory.
    extant(&["mount", "-o", "remount,ro", &mnt]).ok();
    let refused = std::fs::write(format!("{mnt}/no"), "x").expect_err("read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // The image is as clean as after an unmount, although it is mounted.
    fsck_clean(&image);
    let table = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("table");
    let line = table.lines().find(|l| l.contains(&mnt)).expect("mounted").to_owned();
    assert!(line.contains(" ro,nosuid,nodev,noexec"), "{line}");
    // From now on another process may write to the image.
    let device = tool("losetup", &["-f", "--show", &image]).trim().to_owned();
    remount("remount,rw").fails(32, &["in use by /dev/loop"]);
    tool("losetup", &["-d", &device]);
    remount("remount,rw").ok();
    std::fs::write(format!("{mnt}/yes"), "x").expect("writable");
    let Some(done) = with_helpers(
        &dir,
        "mount -o remount,ro $2; ! touch $2/no 2>/dev/null; mount -o remount,rw $2; touch $2/again",
        &[&image, &mnt],
    ) else {
        return;
    };
    done.ok();
    remount("remount,ro").ok();
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
    assert_eq!(extant(&["cat", &image, "yes"]).ok(), "x");
    // A mount that began read-only is replaced by a new mount, unless it is in use.
    extant(&["mount", "-o", "ro,noexec", &image, &mnt]).ok();
    let open = std::fs::File::open(format!("{mnt}/yes")).expect("open");
    remount("remount,rw").fails(32, &["busy"]);
    std::fs::write(format!("{mnt}/no"), "x").expect_err("read-only");
    drop(open);
    remount("remount,rw").ok();
    std::fs::write(format!("{mnt}/then"), "x").expect("writable");
    let table = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("table");
    let line = table.lines().find(|l| l.contains(&mnt)).expect("mounted");
    assert!(line.contains(" rw,nosuid,nodev,noexec"), "{line}");
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&image);
    // A norecovery mount cannot become writable; and if the remount fails, the mount is restored.
    extant(&["mount", "-o", "norecovery", &image, &mnt]).ok();
    remount("remount,rw").fails(32, &["mounted read-only"]);
    extant(&["unmount", &mnt]).ok();
    let second = dir.text("second");
    std::fs::create_dir(&second).expect("made");
    for at in [&mnt, &second] {
        extant(&["mount", "-o", "ro", &image, at]).ok();
    }
    remount("remount,rw").fails(32, &["in use"]);
    assert_eq!(std::fs::read_to_string(format!("{mnt}/then")).expect("mounted again"), "x");
    extant(&["unmount", &second]).ok();
    extant(&["unmount", &mnt]).ok();
}

/// As mount(8): a write-protected device is mounted read-only, with a message.
#[test]
fn a_write_protected_device_is_mounted_read_only() {
    if skipped() || !loop_mounts_work() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let device = tool("losetup", &["-r", "-f", "--show", &image]).trim().to_owned();
    let tried = std::panic::catch_unwind(|| {
        let said = extant(&["mount", &device, &mnt]);
        assert_eq!((said.code, said.err), (Some(0), format!("extant: {device}: write-protected, mounted read-only\n")));
        let refused = std::fs::write(format!("{mnt}/no"), "x").expect_err("read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        extant(&["mount", "-o", "remount,rw", &mnt]).fails(32, &["write-protected"]);
        assert!(std::fs::read_dir(&mnt).expect("still mounted").next().is_some());
        umount(&["-i", &mnt]);
    });
    tool("losetup", &["-d", &device]);
    tried.expect("see the output above");
}

#[test]
fn words_of_fstab_are_accepted_and_mistakes_get_a_one_line_error() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    for options in [
        "sync,strictatime,lazytime,async",
        "dirsync,discard,loop",
        "defaults,user,users,noauto,auto,nofail,_netdev,x-systemd.automount,comment=any thing,rw,exec,noexec,nodiratime",
        "dev,suid",
    ] {
        extant(&["mount", "-o", options, &image, &mnt]).ok();
        std::fs::write(format!("{mnt}/new"), options).expect("written");
        let table = std::fs::read_to_string(extant_testkit::mount::MOUNTS).expect("table");
        let line = table.lines().find(|l| l.contains(&mnt)).expect("mounted").to_owned();
        assert_eq!(line.contains("nosuid") && line.contains("nodev"), options != "dev,suid", "{line}");
        assert_eq!(line.contains("dirsync"), options.contains("dirsync"), "{line}");
        extant(&["unmount", &mnt]).ok();
        fsck_clean(&image);
    }
    let said = extant(&["mount", "-o", "ro,noatme", &image, &mnt]).fails(1, &["'noatme'", "did you mean 'noatime'?"]);
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_dirsync_mount_has_every_name_in_the_log() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, copy) = (dir.image("ext4", &[]), dir.text("copy.img"));
    let (mnt, _mounts) = place(&dir, "mnt");
    for options in ["dirsync,commit=300", "sync,commit=300"] {
        extant(&["mount", "-o", options, &image, &mnt]).ok();
        std::fs::write(format!("{mnt}/new"), "x").expect("written");
        std::fs::rename(format!("{mnt}/new"), format!("{mnt}/renamed")).expect("renamed");
        // The state after a power cut at this moment.
        std::fs::copy(&image, &copy).expect("copied");
        assert_eq!(extant(&["cat", &copy, "renamed"]).code, Some(0), "{options}");
        if options.starts_with("sync") {
            assert_eq!(extant(&["cat", &copy, "renamed"]).ok(), "x");
        }
        std::fs::remove_file(format!("{mnt}/renamed")).expect("removed");
        extant(&["unmount", &mnt]).ok();
    }
}

#[test]
fn a_server_has_enough_descriptors_and_keeps_none_of_its_caller() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let mount = format!("exec {} mount {image} {mnt}", extant_path().display());
    for few in ["8", "16", "32"] {
        run("sh", &["-c", &format!("ulimit -n {few}; {mount}")]).fails(2, &["files may be open at once (ulimit -n)"]);
    }
    assert!(!is_mount_point(Path::new(&mnt)));
    let secret = dir.text("secret");
    run("sh", &["-c", &format!("ulimit -Sn 16; exec 7>{secret}; {mount}")]).ok();
    let said = tool("sh", &["-c", &format!("find /proc/[0-9]*/fd -lname {secret} 2>/dev/null; true")]);
    assert_eq!(said, "");
    extant(&["unmount", &mnt]).ok();
}

/// Whether each thread of the process has stopped: field 3 of its stat, after a name in parentheses.
fn all_stopped(pid: i32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("there");
    let mut stats = threads.map(|thread| std::fs::read_to_string(thread.expect("entry").path().join("stat")));
    stats.all(|stat| stat.is_ok_and(|stat| stat[stat.rfind(')').expect("a name")..].starts_with(") T")))
}

#[test]
fn a_server_that_does_not_answer_is_unmounted_by_force() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    // `unmount -f` waits for a server that answers.
    extant(&["mount", &image, &mnt]).ok();
    std::fs::write(format!("{mnt}/first"), "first").expect("written");
    in_time(&["unmount", "-f", &mnt]).ok();
    fsck_clean(&image);
    // Through io_uring the kernel itself waits for the stopped threads.
    let said = extant(&["mount", "-v", "-o", "transport=dev", &image, &mnt]).ok();
    let first = said.lines().next().unwrap_or_default();
    let pid: i32 = first.rsplit(' ').next().and_then(|pid| pid.parse().ok()).expect("the number of the server");
    let signal = |signal| kill_process(Pid::from_raw(pid).expect("a number"), signal).expect("sent");
    std::fs::write(format!("{mnt}/second"), "second").expect("written");
    signal(Signal::STOP);
    // The threads stop one after the other, and one that still runs may answer.
    wait_until("all of the server to stop", || all_stopped(pid));
    let forced = in_time(&["unmount", "-f", &mnt]);
    signal(Signal::CONT);
    forced.fails(2, &["disk.img: unmounted, but the server does not answer"]);
    assert!(!is_mount_point(Path::new(&mnt)));
    // Data that the server had received is not lost.
    assert_eq!(extant(&["cat", &image, "second"]).ok(), "second");
    fsck_clean(&image);
}

/// If a server has left no report of its end, the lock and the superblock of this partition show it, not those of
/// another.
#[test]
fn one_partition_does_not_wait_for_another() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let (image, disk) = (dir.image("ext4", &[]), dir.text("whole.img"));
    whole_disk(&disk, &image);
    let ((one, _m1), (two, _m2), (three, _m3)) = (place(&dir, "one"), place(&dir, "two"), place(&dir, "three"));
    let (second, fifth) = (format!("{disk}@2"), format!("{disk}@5"));
    extant(&["mount", &second, &one]).ok();
    extant(&["mount", &fifth, &two]).ok();
    // The message names the mount of this partition, not the newest mount.
    let said = extant(&["mount", &second, &three]).fails(32, &["whole.img@2: in use: mounted on ", &one]);
    assert!(!said.contains(&two), "{said}");
    let number = std::fs::metadata(&one).expect("there").dev();
    let word = format!("/run/extant/{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    std::fs::remove_file(word).expect("the server's word");
    in_time(&["unmount", &one]).ok();
    extant(&["unmount", &two]).ok();
    assert!(extant(&["info", &second]).ok().contains("State:       clean"));
}

#[test]
fn nosymfollow_forbids_following_symbolic_links() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let link = format!("{mnt}/link");
    extant(&["mount", "-o", "nosymfollow", &image, &mnt]).ok();
    let follow = || std::fs::read(&link).map_err(|e| e.raw_os_error());
    assert_eq!(follow(), Err(Some(libc::ELOOP)));
    assert_eq!(std::fs::read_link(&link).expect("read"), Path::new("etc/passwd"));
    // A remount without the option does not change it.
    extant(&["mount", "-o", "remount,ro", &image, &mnt]).ok();
    assert_eq!(follow(), Err(Some(libc::ELOOP)));
    extant(&["mount", "-o", "remount,symfollow", &image, &mnt]).ok();
    assert!(follow().is_ok());
    extant(&["unmount", &mnt]).ok();
}

/// An option that a remount cannot change is refused, and the message names it. Options in effect may be repeated, as
/// fstab does.
#[test]
fn a_remount_changes_its_options_or_fails() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let line = || {
        let table = std::fs::read_to_string("/proc/thread-self/mountinfo").expect("table");
        table.lines().find(|line| line.contains(&mnt)).expect("mounted").to_owned()
    };
    extant(&["mount", "-o", "noatime,commit=60,sync,cache=64M", &image, &mnt]).ok();
    // Unmounted by its directory, because the image may have been renamed.
    let moved = dir.text("moved.img");
    std::fs::rename(&image, &moved).expect("renamed");
    let remount = |options: &str| extant(&["mount", "-o", &format!("remount,{options}"), &image, &mnt]);
    for (options, named) in [
        ("relatime", "relatime"),
        ("ro,strictatime", "strictatime"),
        ("commit=30", "commit=30"),
        ("cache=32M,ro", "cache=32M"),
        ("errors=continue", "errors=continue"),
        ("async", "async"),
        ("norecovery", "norecovery"),
        ("uid=7", "uid=7"),
    ] {
        remount(options).fails(32, &["mnt: a remount cannot change ", &format!("'{named}'")]);
    }
    assert!(line().contains(" rw,nosuid,nodev,noatime "), "{}", line());
    for options in ["noatime,commit=60,ro", "sync,cache=64M,data=ordered,noexec", "rw,allow_other,x-any"] {
        remount(options).ok();
    }
    assert!(line().contains("noatime") && line().contains(",sync"), "{}", line());
    std::fs::write(format!("{mnt}/new"), "x").expect("written");
    extant(&["unmount", &mnt]).ok();
    extant(&["mount", "-o", "strictatime", &moved, &mnt]).ok();
    assert!(!line().contains("relatime") && !line().contains("noatime"), "{}", line());
    extant(&["mount", "-o", "remount,ro", &moved, &mnt]).ok();
    assert!(!line().contains("relatime") && line().contains(" ro,"), "{}", line());
    extant(&["unmount", &mnt]).ok();
    fsck_clean(&moved);
}

/// The kernel could answer these reads from its page cache: the file is a whole page, and has been read before.
#[test]
fn access_times_move_according_to_the_option() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.image("ext4", &[]);
    let (mnt, _mounts) = place(&dir, "mnt");
    let (file, sub) = (format!("{mnt}/file"), format!("{mnt}/sub"));
    let (all, first, none) = ([true; 3], [true, false, false], [false; 3]);
    // (options; whether the first, second and third read of a newly written file change its access time; the same for a
    // new directory)
    for (options, of_file, of_directory) in [
        ("strictatime", all, all),
        ("no_open=0,relatime", first, first),
        ("no_open=0,noatime", none, none),
        ("strictatime,nodiratime", all, none),
    ] {
        extant(&["mount", "-o", options, &image, &mnt]).ok();
        std::fs::write(&file, [7; 4096]).expect("written");
        std::fs::create_dir(&sub).expect("made");
        let read = |path: &str| match path == file {
            true => assert_eq!(std::fs::read(path).expect("read"), [7; 4096]),
            false => assert_eq!(std::fs::read_dir(path).expect("listed").count(), 0),
        };
        for (path, moved) in [(&file, of_file), (&sub, of_directory)] {
            let mut last = std::fs::metadata(path).expect("there").accessed().expect("known");
            for (n, moves) in moved.into_iter().enumerate() {
                Clock::real().sleep(Duration::from_millis(20));
                read(path);
                let now = std::fs::metadata(path).expect("there").accessed().expect("known");
                assert_eq!(now > last, moves, "{options}: reading {n} of {path}");
                last = now;
            }
        }
        std::fs::remove_dir(&sub).expect("removed");
        extant(&["unmount", &mnt]).ok();
    }
    fsck_clean(&image);
}

#[test]
fn a_missing_mount_point_is_reported_without_error_numbers() {
    if skipped() {
        return;
    }
    let dir = Dir::new();
    let image = dir.empty_image("disk.img", &[]);
    let said = extant(&["mount", &image, &dir.text("none")])
        .fails(32, &["none: not a usable mount point: No such file or directory"]);
    assert!(!said.contains("os error"), "{said}");
}
