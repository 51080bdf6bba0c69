//! The memory of a real server while the kernel remembers tens of thousands of its files.

use std::fs;
use std::path::Path;
use std::process::Command;

use extant_testkit::mount::{ExtantMount, Mounted, fuse_works};
use extant_testkit::oracle::expect_clean;

const RESIDENT_MAX_KIB: u64 = 200 << 10;

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}: {status}");
}

/// `VmHWM` of the process, in KiB.
fn peak_kib(server: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{server}/status")).expect("alive");
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
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

/// With `cache=64M`: 100 times `directories` files out of an archive, one large file, all deleted.
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
    run(Command::new("tar").arg("cf").arg(&archive).arg("-C").arg(&tree).arg("."));
    fs::remove_dir_all(&tree).expect("removed");
    let size = (large_mib << 20) + (2 << 30);
    fs::File::create(&image).and_then(|f| f.set_len(size)).expect("an image");
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-N", "200000"]).arg(&image));

    let binary = Path::new(env!("CARGO_BIN_EXE_extant"));
    let mount = ExtantMount::new(binary, &["-f", "-o", "cache=64M"], &image, &at).expect("mounted");
    let server = mount.pid().expect("in the foreground");
    run(Command::new("tar").arg("xf").arg(&archive).arg("-C").arg(&at));
    let unpacked = peak_kib(server);
    run(Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "status=none", &format!("count={large_mib}")])
        .arg(format!("of={}", at.join("large").display())));
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
