//! Trees whose paths exceed the longest path of the kernel: memory must not grow with the square of the depth, nor
//! descriptors with the depth.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::common::{Dir, extant_path, fsck_clean, tool};
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::walk::{Visit, Walk};
use extant_fs::{Cred, Filesystem, MountOptions, Mounted, NewNode};

/// With names this long, the paths of all levels take 280 MB in total, and the longest alone 0.4 MB.
const LEVELS: usize = 1500;
const NAME_LEN: usize = 250;
const RESIDENT_MAX_KIB: u64 = 100 << 10;
const DESCRIPTORS_MAX: u32 = 64;

fn open(image: &str) -> Mounted {
    let device = FileDevice::open(image, OpenOptions::default()).expect("opened");
    Filesystem::mount(Arc::new(device), MountOptions::default()).expect("mounted")
}

fn deep(dir: &Dir, name: &str) -> String {
    let image = dir.text(name);
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "8192", &image, "64M"]);
    let fs = open(&image);
    let mut at = fs.root().expect("root");
    for _ in 0..LEVELS {
        at = fs.create(&at, &[b'd'; NAME_LEN], NewNode::directory(0o755), Cred::default()).expect("directory");
        fs.create(&at, b"f", NewNode::file(0o644), Cred::default()).expect("file");
    }
    drop(at);
    fs.unmount().expect("unmounted");
    image
}

/// Counts the directories and files.
fn count(image: &str, path: &[u8]) -> (usize, usize) {
    let fs = open(image);
    let top = fs.walk(path, true).expect("top");
    let mut walk = Walk::new(&fs, path, top);
    let (mut dirs, mut files) = (0, 0);
    while let Some(visit) = walk.next() {
        match visit.expect("readable") {
            Visit::Name(inode) if inode.is_dir() => dirs += 1,
            Visit::Name(_) => files += 1,
            Visit::Left(_) => {}
        }
    }
    drop(walk);
    fs.unmount().expect("unmounted");
    (dirs, files)
}

/// The largest memory of a process, in KiB; polled until it ends.
fn peak_kib(child: &mut Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        peak = line.and_then(|l| l.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0).max(peak);
        if child.try_wait().expect("status").is_some() {
            return peak;
        }
        extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(1));
    }
}

/// Runs the command with few descriptors, and returns its memory.
fn bounded(args: &[&str]) -> u64 {
    let limited = format!("ulimit -n {DESCRIPTORS_MAX} && exec \"$0\" \"$@\"");
    let mut child = Command::new("sh")
        .args(["-c", &limited])
        .arg(extant_path())
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let peak = peak_kib(&mut child);
    let done = child.wait_with_output().expect("ended");
    assert!(done.status.success(), "{args:?}: {} {}", done.status, String::from_utf8_lossy(&done.stderr));
    peak
}

#[test]
fn neither_memory_nor_descriptors_grow_with_depth() {
    let dir = Dir::new();
    let image = deep(&dir, "deep.img");
    let other = dir.text("other.img");
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "8192", &other, "64M"]);
    let (top, out) = (format!("{image}:/"), dir.text("out"));
    std::fs::create_dir(&out).expect("directory");
    let mut peaks = vec![
        ("tree", bounded(&["tree", &image])),
        ("tree -0", bounded(&["tree", "-0", &image])),
        ("export", bounded(&["export", &image])),
        ("ls -R", bounded(&["ls", "-R", &image])),
        ("cp to another image", bounded(&["cp", "-r", &top, &format!("{other}:/")])),
        ("cp out", bounded(&["cp", "-r", &top, &out])),
    ];
    // One directory more: lost+found.
    assert_eq!(count(&other, b"/"), (LEVELS + 1, LEVELS));
    fsck_clean(&other);
    tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "8192", &other, "64M"]);
    peaks.push(("cp in", bounded(&["cp", "-r", &format!("{out}/."), &format!("{other}:/")])));
    tool("rm", &["-rf", &out]);
    assert_eq!(count(&other, b"/"), (LEVELS + 1, LEVELS));
    fsck_clean(&other);
    eprintln!("{peaks:?} KiB");
    for (what, peak) in &peaks {
        assert!((1..=RESIDENT_MAX_KIB).contains(peak), "{what}: {peak} KiB; {peaks:?}");
    }
}
