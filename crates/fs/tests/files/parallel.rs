//! Several threads on one mount with all background threads. e2fsck checks the image afterwards, and the debug build
//! checks the lock order meanwhile.

use extant_oracle::memory as tools;

use std::sync::Arc;

use extant_base::rng::Rng;
use extant_base::task;
use extant_fs::{Cred, FallocateMode, Filesystem, MountOptions, NewNode, RenameFlags, SetAttr, WriteFlags};

fn worker(fs: &Arc<Filesystem>, n: u64, rounds: u64) {
    let cred = Cred::default();
    let root = fs.root().expect("root");
    let mine = fs.create(&root, format!("t{n}").as_bytes(), NewNode::directory(0o755), cred).expect("mkdir");
    let shared = fs.lookup(&root, b"shared").expect("shared");
    let mut rng = Rng::new(n);
    for i in 0..rounds {
        let dir = if rng.one_in(3) { &shared } else { &mine };
        let name = format!("f{}", rng.below(40));
        let name = name.as_bytes();
        match rng.below(12) {
            0..=4 => {
                if let Ok(f) = fs.create(dir, name, NewNode::file(0o644), cred) {
                    let data = vec![i as u8; 1 + rng.below(60_000) as usize];
                    fs.write(&f, rng.below(20_000), &data, WriteFlags::default()).expect("write");
                    if rng.one_in(4) {
                        fs.fsync(&f, rng.one_in(2)).expect("fsync");
                    }
                }
            }
            5 => {
                if let Ok(f) = fs.lookup(dir, name) {
                    fs.setattr(&f, &SetAttr { size: Some(rng.below(50_000)), ..Default::default() }).expect("truncate");
                }
            }
            6 => {
                if let Ok(f) = fs.lookup(dir, name) {
                    let mut buf = vec![0; 30_000];
                    fs.read(&f, rng.below(10_000), &mut buf).expect("read");
                    let _ = fs.fallocate(&f, FallocateMode::PunchHole, rng.below(30_000), 1 + rng.below(20_000));
                }
            }
            7 => {
                let to = format!("f{}", rng.below(40));
                let other = if rng.one_in(2) { &shared } else { &mine };
                let _ = fs.rename(dir, name, other, to.as_bytes(), RenameFlags::default());
            }
            8 => {
                if let Ok(f) = fs.lookup(dir, name) {
                    let _ = fs.link(&f, &shared, format!("l{}", rng.below(40)).as_bytes());
                }
            }
            9 => fs.sync().expect("sync"),
            _ => {
                let _ = fs.unlink(dir, name);
            }
        }
    }
}

#[test]
fn four_threads_leave_a_clean_image() {
    for (kind, seed) in [
        (&["-t", "ext4"][..], 1),
        (&["-t", "ext4", "-b", "1024", "-O", "orphan_file"], 2),
        (&["-t", "ext3"], 3),
        (&["-t", "ext2"], 4),
    ] {
        let dev = Arc::new(tools::made(kind, "64M"));
        let options = MountOptions {
            cache_bytes: 16 << 20,
            write_through_bytes: (seed % 2 == 0).then_some(32_768),
            ..MountOptions::default()
        };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let root = fs.root().expect("root");
        fs.create(&root, b"shared", NewNode::directory(0o755), Cred::default()).expect("mkdir");
        drop(root);
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let fs = fs.clone();
                task::spawn("worker", move || worker(&fs, seed * 10 + n, 600)).expect("thread")
            })
            .collect();
        for t in threads {
            t.join().expect("worker");
        }
        fs.unmount().expect("unmount");
        drop(fs);
        tools::assert_clean(&dev);
    }
}
