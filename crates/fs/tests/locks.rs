//! The lock table over a parallel untar with syncs: no lock may be one that all operations wait for.

use std::process::Command;
use std::sync::Arc;

use extant_base::sync::{lock_table, set_lock_stats};
use extant_base::task;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, SetAttr, SetTime, WriteFlags};

const THREADS: u64 = 4;
const FILES: u64 = 1500;

fn untar(fs: &Arc<Filesystem>, n: u64) {
    let cred = Cred::default();
    let root = fs.root().expect("root");
    let top = fs.create(&root, format!("tree{n}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
    let mut dir = top.clone();
    for i in 0..FILES {
        if i % 50 == 0 {
            dir = fs.create(&top, format!("d{i}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
        }
        let f = fs.create(&dir, format!("f{i}").as_bytes(), NewNode::file(0o644), cred).expect("create");
        fs.write(&f, 0, &vec![n as u8; 5_000 + (i as usize * 131) % 40_000], WriteFlags::default()).expect("write");
        let set = SetAttr { uid: Some(1000), gid: Some(1000), mtime: Some(SetTime::Now), ..Default::default() };
        fs.setattr(&f, &set).expect("setattr");
        if i % 20 == 0 {
            fs.fsync(&f, false).expect("fsync");
        }
    }
    fs.sync().expect("sync");
}

#[test]
fn no_lock_is_one_that_all_operations_wait_for() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    let out = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&path).arg("512M").output().expect("mke2fs");
    assert!(out.status.success());
    let dev = Arc::new(MemDevice::load(&path).expect("loaded"));
    let fs = Filesystem::mount(dev, MountOptions::default()).expect("mounted");
    set_lock_stats(true);
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let fs = fs.clone();
            task::spawn("untar", move || untar(&fs, n)).expect("thread")
        })
        .collect();
    for t in threads {
        t.join().expect("untar");
    }
    set_lock_stats(false);
    fs.unmount().expect("unmount");
    // create, write, setattr for each file.
    let operations = THREADS * FILES * 3;
    println!("{:<22}{:>10}{:>10}{:>12}{:>12}{:>12}", "lock", "acquired", "contended", "avg ns", "total ns", "max ns");
    for row in lock_table() {
        println!(
            "{:<22}{:>10}{:>10}{:>12}{:>12}{:>12}",
            row.name,
            row.acquired,
            row.contended,
            row.wait_ns_total.checked_div(row.contended).unwrap_or(0),
            row.wait_ns_total,
            row.wait_ns_max
        );
        // Background threads wait in condition variables, not for locks; `folio` and `inode` belong to one file.
        assert!(
            row.contended * 5 < operations,
            "'{}' was waited for {} times in {operations} operations",
            row.name,
            row.contended
        );
    }
}
