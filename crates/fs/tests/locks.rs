//! The lock table during a parallel untar with syncs: no lock may delay all operations.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::sync::{LockClass, Mutex, lock_table, set_lock_stats};
use extant_base::task;
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, RenameFlags, SetAttr, SetTime, WriteFlags};

/// The counts belong to the process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(&ALONE_CLASS, ());
static ALONE_CLASS: LockClass = LockClass::new("one test at a time", 0);

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
fn no_lock_delays_all_operations() {
    let _alone = ALONE.lock();
    let dev = Arc::new(tools::made(&["-t", "ext4"], "512M"));
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

/// How often an operation takes the locks that all operations share. The necessary ones: an inode becomes dirty once;
/// an inode that loses its last name enters and leaves the queue of evictions, and is evicted. Handles and orphans are
/// counted in shards. docs/locking.md has the table.
#[test]
fn an_operation_takes_the_shared_locks_as_often_as_it_must() {
    let _alone = ALONE.lock();
    let dev = Arc::new(tools::made(&["-t", "ext4"], "256M"));
    let options = MountOptions { keep_clean: false, threads: false, seed: Some(1), ..MountOptions::default() };
    let fs = Filesystem::mount(dev, options).expect("mounted");
    let cred = Cred::default();
    let top = fs.create(&fs.root().expect("root"), b"d", NewNode::directory(0o755), cred).expect("mkdir");
    let name = |n: u64| format!("f{n}").into_bytes();
    // The first use of everything, on a separate file.
    let warm = fs.create(&top, b"warm", NewNode::file(0o644), cred).expect("create");
    fs.write(&warm, 0, &[1; 100], WriteFlags::default()).expect("write");
    drop(warm);
    fs.unlink(&top, b"warm").expect("unlink");
    fs.sync().expect("sync");
    const N: u64 = 50;
    let files = std::cell::RefCell::new(Vec::new());
    let step = |what: &str, run: &dyn Fn(u64), wanted: &[(&str, u64)]| {
        let before = lock_table();
        set_lock_stats(true);
        (0..N).for_each(run);
        set_lock_stats(false);
        for row in lock_table() {
            let had = before.iter().find(|r| r.name == row.name).map_or(0, |r| r.acquired);
            // A shard of the journal needs the lock of all handles now and then.
            let now_and_then = if row.name == "journal state" { N / 10 } else { 0 };
            let each = (row.acquired - had).saturating_sub(now_and_then).div_ceil(N);
            if let Some((_, times)) = wanted.iter().find(|(name, _)| *name == row.name) {
                assert_eq!(each, *times, "{what}: how often '{}' is taken", row.name);
            }
        }
    };
    step(
        "create",
        &|n| files.borrow_mut().push(fs.create(&top, &name(n), NewNode::file(0o644), cred).expect("create")),
        &[
            ("journal state", 0),
            ("dirty inodes", 0),
            ("evictions", 0),
            ("orphans", 0),
            ("superblock", 0),
            ("renames", 0),
        ],
    );
    let write = |n: u64| {
        fs.write(&files.borrow()[n as usize], 0, &[1; 100], WriteFlags::default()).expect("write");
    };
    step("first write", &write, &[("journal state", 0), ("dirty inodes", 1), ("superblock", 0)]);
    step("later write", &write, &[("journal state", 0), ("dirty inodes", 0), ("superblock", 0)]);
    files.borrow_mut().clear();
    step(
        "rename",
        &|n| fs.rename(&top, &name(n), &top, &name(n + N), RenameFlags::default()).expect("rename"),
        &[
            ("journal state", 0),
            ("dirty inodes", 0),
            ("evictions", 1),
            ("orphans", 0),
            ("superblock", 0),
            ("renames", 1),
        ],
    );
    step(
        "unlink and evict",
        &|n| fs.unlink(&top, &name(n + N)).expect("unlink"),
        &[
            ("journal state", 0),
            ("dirty inodes", 1),
            ("evictions", 3),
            ("orphans", 0),
            ("superblock", 0),
            ("renames", 0),
        ],
    );
    drop(top);
    fs.unmount().expect("unmount");
}
