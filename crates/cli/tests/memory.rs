//! The memory of a real server while the kernel knows tens of thousands of its files, and while other processes in
//! its control group need memory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode};
use extant_testkit::mount::{ExtantMount, Mounted, fuse_works};
use extant_testkit::oracle::{arg, expect_clean, mke2fs, tool};

const RESIDENT_MAX_KIB: u64 = 200 << 10;
/// With `cache=16M` and 100,000 names, whose inodes would take 130 MiB.
const WALK_MAX_KIB: u64 = 80 << 10;

/// `VmHWM` of the process, in KiB.
fn peak_kib(server: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{server}/status")).expect("alive");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// An image with `directories` times 1,000 empty files.
fn image_of_names(image: &Path, directories: usize) {
    mke2fs(image, &["-t", "ext4", "-N", "200000"], "1G");
    let device = FileDevice::open(image, OpenOptions::default()).expect("opened");
    let fs = Filesystem::mount(Arc::new(device), MountOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let (root, cred) = (fs.root().expect("root"), Cred { uid: 0, gid: 0, umask: 0 });
    for d in 0..directories {
        let dir = fs.create(&root, format!("d{d:03}").as_bytes(), NewNode::directory(0o755), cred).expect("created");
        for f in 0..1000 {
            fs.create(&dir, format!("file-{f:04}").as_bytes(), NewNode::file(0o644), cred).expect("created");
        }
    }
    drop(root);
    fs.unmount().unwrap_or_else(|e| panic!("{e}"));
}

/// The number of names below `dir`; afterwards the kernel knows all of them.
fn find(dir: &Path) -> usize {
    tool("find", &[arg(dir), "-printf", "%s\\n"]).lines().count()
}

fn files_in(dir: &Path, directories: usize) {
    for d in 0..directories {
        let sub = dir.join(format!("d{d:03}"));
        fs::create_dir(&sub).expect("mkdir");
        for f in 0..100 {
            fs::write(sub.join(format!("f{f:02}")), vec![f as u8; f * 97 + d]).expect("write");
        }
    }
}

/// With `cache=64M`: extracts 100 times `directories` files from an archive, writes one large file, and deletes
/// everything.
fn bounded(directories: usize, large_mib: u64) {
    if !fuse_works() {
        eprintln!("SKIPPED: no FUSE mounts here");
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let (image, archive, tree, at) = (path("image"), path("archive.tar"), path("tree"), path("mnt"));
    fs::create_dir(&tree).and_then(|()| fs::create_dir(&at)).expect("mkdir");
    files_in(&tree, directories);
    tool("tar", &["cf", arg(&archive), "-C", arg(&tree), "."]);
    fs::remove_dir_all(&tree).expect("removed");
    mke2fs(&image, &["-t", "ext4", "-N", "200000"], &format!("{}M", large_mib + 2048));

    let binary = Path::new(env!("CARGO_BIN_EXE_extant"));
    let mount = ExtantMount::new(binary, &["-f", "-o", "cache=64M"], &image, &at).expect("mounted");
    let server = mount.pid().expect("in the foreground");
    tool("tar", &["xf", arg(&archive), "-C", arg(&at)]);
    let unpacked = peak_kib(server);
    let to = format!("of={}", at.join("large").display());
    tool("dd", &["if=/dev/zero", "bs=1M", "status=none", &format!("count={large_mib}"), &to]);
    let written = peak_kib(server);
    for entry in fs::read_dir(&at).expect("read").flatten() {
        let entry = entry.path();
        if !entry.ends_with("lost+found") {
            let removed = if entry.is_dir() { fs::remove_dir_all(&entry) } else { fs::remove_file(&entry) };
            removed.unwrap_or_else(|e| panic!("{}: {e}", entry.display()));
        }
    }
    let peak = peak_kib(server);
    Box::new(mount).unmount().expect("unmounted");
    eprintln!("peak KiB: unpacked {unpacked}, written {written}, deleted {peak}");
    assert!(peak <= RESIDENT_MAX_KIB, "unpacked {unpacked}, written {written}, deleted {peak} KiB");
    expect_clean(&image).unwrap_or_else(|e| panic!("{e}"));
}

#[test]
fn resident_memory_stays_under_200_mib() {
    bounded(60, 512);
}

#[test]
#[ignore = "takes minutes and 10 GiB of disk"]
fn soak_resident_memory_stays_under_200_mib() {
    bounded(600, 8192);
}

#[test]
fn a_walk_over_many_names_stays_within_the_cache() {
    if !fuse_works() {
        eprintln!("SKIPPED: no FUSE mounts here");
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let (image, at) = (dir.path().join("image"), dir.path().join("mnt"));
    fs::create_dir(&at).expect("mkdir");
    image_of_names(&image, 100);
    let binary = Path::new(env!("CARGO_BIN_EXE_extant"));
    let mount = ExtantMount::new(binary, &["-f", "-o", "cache=16M"], &image, &at).expect("mounted");
    let server = mount.pid().expect("in the foreground");
    // The root and lost+found.
    assert_eq!(find(&at), 100 * 1001 + 2);
    let peak = peak_kib(server);
    Box::new(mount).unmount().expect("unmounted");
    eprintln!("peak KiB: {peak}");
    assert!(peak <= WALK_MAX_KIB, "{peak} KiB");
}

/// A control group with a limit, or the reason why there is none. Removed at drop.
struct Limited(PathBuf);

impl Limited {
    fn new(limit: u64) -> Result<Limited, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|e| format!("/proc/self/cgroup: {e}"))?;
        let name = format!("extant-test-{}", std::process::id());
        let (dir, file) = if groups.lines().any(|line| line.split(':').nth(1) == Some("memory")) {
            (Path::new("/sys/fs/cgroup/memory").join(name), "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup").join(name), "memory.max")
        };
        fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let group = Limited(dir);
        let set = fs::write(group.0.join(file), limit.to_string());
        set.map_err(|e| format!("{}: {e}", group.0.join(file).display()))?;
        Ok(group)
    }

    /// A script that runs `program` inside the group.
    fn wrap(&self, program: &Path, at: &Path) -> PathBuf {
        let procs = self.0.join("cgroup.procs");
        let script = format!("#!/bin/sh\necho $$ > {} && exec {} \"$@\"\n", procs.display(), program.display());
        fs::write(at, script).expect("written");
        fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("executable");
        at.to_owned()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // The last process of the group may still be ending.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            Clock::real().sleep(Duration::from_millis(20));
        }
        eprintln!("{} could not be removed", self.0.display());
    }
}

const GROWN: &str = "EXTANT_TEST_GROWS_TO_MIB";

/// A process that grows by 50 MiB per second.
#[test]
#[ignore = "the neighbour of no_process_is_killed_beside_a_growing_neighbour"]
fn neighbour() {
    let Some(mib) = std::env::var(GROWN).ok().and_then(|mib| mib.parse::<usize>().ok()) else { return };
    let clock = Clock::real();
    let mut held = Vec::new();
    for n in 0..mib / 5 {
        held.push(vec![n as u8 | 1; 5 << 20]);
        clock.sleep(Duration::from_millis(100));
    }
    println!("it holds {} MiB", held.iter().map(Vec::len).sum::<usize>() >> 20);
}

#[test]
fn no_process_is_killed_beside_a_growing_neighbour() {
    if !fuse_works() {
        eprintln!("SKIPPED: no FUSE mounts here");
        return;
    }
    let group = match Limited::new(200 << 20) {
        Ok(group) => group,
        Err(e) => return eprintln!("SKIPPED: no control group can be made: {e}"),
    };
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let (image, at) = (path("image"), path("mnt"));
    fs::create_dir(&at).expect("mkdir");
    image_of_names(&image, 100);
    let binary = group.wrap(Path::new(env!("CARGO_BIN_EXE_extant")), &path("extant"));
    let mount = ExtantMount::new(&binary, &["-f", "-o", "cache=100M"], &image, &at).expect("mounted");
    let server = mount.pid().expect("in the foreground");
    assert_eq!(find(&at), 100 * 1001 + 2);
    let full = peak_kib(server);
    let itself = group.wrap(&std::env::current_exe().expect("this test"), &path("neighbour"));
    let args = ["--exact", "neighbour", "--ignored", "--nocapture", "--test-threads=1"];
    let grown = Command::new(itself).args(args).env(GROWN, "150").output().expect("started");
    let said = String::from_utf8_lossy(&grown.stdout);
    assert!(grown.status.success() && said.contains("it holds 150 MiB"), "{}: {said}", grown.status);
    assert!(full > 60 << 10, "both would have had room: {full} KiB beside 150 MiB of 200");
    // The server is alive, and serves requests.
    assert_eq!(find(&at), 100 * 1001 + 2);
    Box::new(mount).unmount().expect("unmounted");
    expect_clean(&image).unwrap_or_else(|e| panic!("{e}"));
}
