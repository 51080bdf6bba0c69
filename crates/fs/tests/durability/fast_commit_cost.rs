//! The cost of an fsync with and without fast commits, on an image file: a tool that prints a table.
//!
//! `cargo test --release -p extant-fs --test durability fast_commit_cost -- --ignored --nocapture`; TMPDIR is on the
//! disk to measure.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use extant_block::BlockDevice;
use extant_block::device::{FileDevice, OpenOptions};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, WriteFlags};
use extant_oracle::{e2fsck, mke2fs};

/// Rounds in turns; the tables have the medians.
const ROUNDS: usize = 5;

struct Cost {
    fsyncs_per_s: f64,
    log_blocks: f64,
    flushes: f64,
    fast: u64,
    full: u64,
}

/// `threads` threads append to a file each, and fsync it, `count` times. Or each time a new file is written.
fn run(image: &Path, threads: usize, count: usize, fast_commits: bool, new_files: bool) -> Cost {
    let dev = Arc::new(FileDevice::open(image, OpenOptions::default()).expect("opened"));
    let options = MountOptions { fast_commits, seed: Some(1), ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    let root = fs.root().expect("root");
    let create = |name: &str| fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
    // The first inodes share a block with the journal's, and need full commits.
    (0..8).for_each(|n| drop(create(&format!("first{n}"))));
    let files: Vec<_> = (0..threads).map(|n| create(&format!("file{n}"))).collect();
    fs.sync().expect("sync");
    let counts = || {
        let s = fs.statistics().journal();
        [s.blocks.get(), s.commits.get(), s.fast_blocks.get(), s.fast_commits.get(), dev.stats().flushes]
    };
    let (before, start) = (counts(), Instant::now());
    std::thread::scope(|scope| {
        for (n, file) in files.iter().enumerate() {
            let (fs, create) = (&fs, &create);
            scope.spawn(move || {
                for i in 0..count {
                    let new = new_files.then(|| create(&format!("new{n}-{i}")));
                    let (file, at) = new.as_ref().map_or((file, i as u64 * 4096), |new| (new, 0));
                    fs.write(file, at, &[i as u8; 4096], WriteFlags::default()).expect("write");
                    fs.fsync(file, false).expect("fsync");
                }
            });
        }
    });
    let (after, seconds) = (counts(), start.elapsed().as_secs_f64());
    let [blocks, commits, fast_blocks, fast, flushes] = [0, 1, 2, 3, 4].map(|i| after[i] - before[i]);
    drop((root, files));
    fs.unmount().expect("unmounted");
    let fsyncs = (threads * count) as f64;
    // A full commit also has a descriptor and a commit block.
    let log_blocks = (blocks + 2 * commits + fast_blocks) as f64 / fsyncs;
    Cost { fsyncs_per_s: fsyncs / seconds, log_blocks, flushes: flushes as f64 / fsyncs, fast, full: commits }
}

#[test]
#[ignore = "a tool: a minute"]
fn fsyncs_with_and_without_fast_commits() {
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("disk.img");
    println!(
        "| work | threads | fast_commit | fsyncs/s | log blocks per fsync | flushes per fsync | fast, full commits |"
    );
    println!("|---|---|---|---|---|---|---|");
    for (new_files, threads, count) in
        [(false, 1, 2000), (false, 16, 400), (false, 1000, 10), (true, 1, 1500), (true, 16, 200), (true, 1000, 5)]
    {
        let mut costs = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (on, costs) in [true, false].into_iter().zip(&mut costs) {
                let features =
                    ["-t", "ext4", "-O", "fast_commit,orphan_file", "-J", "size=64", "-E", "lazy_itable_init=0"];
                mke2fs(&image, &features, "1G");
                costs.push(run(&image, threads, count, on, new_files));
                let fsck = e2fsck(&image, &["-fn"]).expect("e2fsck");
                assert_eq!(fsck.code, 0, "{}", fsck.output);
            }
        }
        for (on, costs) in ["on", "off"].into_iter().zip(&mut costs) {
            costs.sort_by(|a, b| a.fsyncs_per_s.total_cmp(&b.fsyncs_per_s));
            let Cost { fsyncs_per_s, log_blocks, flushes, fast, full } = &costs[ROUNDS / 2];
            let (least, most) = (costs[0].fsyncs_per_s, costs[ROUNDS - 1].fsyncs_per_s);
            let work = if new_files { "new file" } else { "append" };
            println!(
                "| {work} | {threads} | {on} | {fsyncs_per_s:.0} ({least:.0} to {most:.0}) | {log_blocks:.2} | {flushes:.2} | {fast}, {full} |"
            );
            assert!(*fast == 0 || on == "on");
        }
    }
}
