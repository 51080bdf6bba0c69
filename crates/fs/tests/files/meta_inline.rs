//! `meta_policy=inline`: each pointer block is directly before the data that it maps, however the file was written,
//! and no data is lost.

use std::sync::Arc;

use crate::common::*;
use extant_block::BioOp;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_fs::{Error, Filesystem, MetaPolicy, MountOptions, Mounted, WriteFlags};

const SMALL: &[&str] = &["-t", "ext3", "-b", "1024"];
const LARGE: &[&str] = &["-t", "ext3", "-b", "4096"];

fn inline() -> MountOptions {
    MountOptions { threads: false, seed: Some(1), meta_policy: MetaPolicy::Inline, ..MountOptions::default() }
}

fn mount(dev: &Arc<MemDevice>, options: MountOptions) -> Mounted {
    Filesystem::mount(dev.clone(), options).expect("mounted")
}

/// A pointer block and the next block in the order of the file: the next pointer block, or data.
struct Pair {
    pointers: u64,
    next: u64,
}

/// The blocks of a file according to debugfs.
fn pairs(dev: &MemDevice, name: &str) -> Vec<Pair> {
    let said = tools::debugfs(dev, &format!("stat {name}"));
    let (_, list) = said.split_once("BLOCKS:").expect("a list of blocks");
    let list = list.split("TOTAL").next().expect("before the sum").replace('\n', "");
    let entry = |entry: &str| {
        let (what, blocks) = entry.trim().split_once("):")?;
        Some((what.ends_with("IND"), blocks.split('-').next()?.parse().ok()?))
    };
    let entries: Vec<(bool, u64)> = list.split(", ").map(|e| entry(e).unwrap_or_else(|| panic!("{e:?}"))).collect();
    let pairs = entries.windows(2).filter(|w| w[0].0);
    pairs.map(|w| Pair { pointers: w[0].1, next: w[1].1 }).collect()
}

/// How many pointer blocks `name` has; each must be directly before its data.
fn all_in_front(dev: &MemDevice, name: &str) -> usize {
    let pairs = pairs(dev, name);
    for pair in &pairs {
        assert_eq!(pair.next, pair.pointers + 1, "{name}: {}", tools::debugfs(dev, &format!("stat {name}")));
    }
    pairs.len()
}

#[test]
fn each_pointer_block_is_before_its_data() {
    for (args, blocks, pointers) in [(SMALL, 65536, 1 + 1 + 255), (LARGE, 16384, 1 + 1 + 15)] {
        let dev = Arc::new(image(160, args, &[]));
        let fs = mount(&dev, inline());
        put(&fs, &create(&fs, "f"), 0, &vec![7; 64 << 20]);
        fs.unmount().expect("unmounted");
        assert_eq!(all_in_front(&dev, "f"), pointers, "{blocks} blocks");
        tools::assert_clean(&dev);
    }
}

/// Files that grow in turn, one piece at a time; checks how many pointer blocks the first has.
fn append_in_turn(args: &[&str], options: MountOptions, pieces: u64, bytes: usize) {
    const FILES: [&str; 4] = ["a", "b", "c", "d"];
    let dev = Arc::new(image(160, args, &[]));
    let fs = mount(&dev, options);
    let files = FILES.map(|name| create(&fs, name));
    for n in 0..pieces {
        for f in &files {
            put(&fs, f, n * bytes as u64, &vec![n as u8; bytes]);
            fs.fsync(f, false).expect("durable");
        }
    }
    drop(files);
    fs.unmount().expect("unmounted");
    for name in FILES {
        assert!(all_in_front(&dev, name) > 1, "{name}");
    }
    tools::assert_clean(&dev);
}

#[test]
fn files_that_grow_in_turn_have_each_pointer_block_before_its_data() {
    append_in_turn(LARGE, inline(), 64, 256 << 10);
    append_in_turn(LARGE, inline(), 1100, 12 << 10);
    append_in_turn(SMALL, inline(), 400, 7 << 10);
    append_in_turn(SMALL, inline(), 2000, 1 << 10);
}

#[test]
fn files_written_through_have_each_pointer_block_before_its_data() {
    let through = || MountOptions { write_through_bytes: Some(4096), ..inline() };
    append_in_turn(LARGE, through(), 64, 256 << 10);
    append_in_turn(SMALL, through(), 300, 8 << 10);
}

/// Pieces of one pointer array that are written at once need one pointer block, not one each.
#[test]
fn a_sparse_file_has_each_pointer_block_before_its_first_data() {
    let dev = Arc::new(image(64, SMALL, &[]));
    let fs = mount(&dev, inline());
    let f = create(&fs, "f");
    for n in 0..120 {
        for within in [1, 3, 60] {
            put(&fs, &f, (n * 256 + 12 + within) * 1024, &[1; 1024]);
        }
    }
    drop(f);
    fs.unmount().expect("unmounted");
    assert_eq!(all_in_front(&dev, "f"), 1 + 1 + 119);
    tools::assert_clean(&dev);
}

/// The capacity of a disk, and statfs's values on the way, with files that grow in turn until there is no space.
fn filled(meta_policy: MetaPolicy, write_through_bytes: Option<u64>) -> Vec<(u64, u64, u64)> {
    let dev = Arc::new(image(24, &[SMALL, &["-m", "3"]].concat(), &[]));
    let fs = mount(&dev, MountOptions { meta_policy, write_through_bytes, ..inline() });
    let files = ["a", "b", "c"].map(|name| create(&fs, name));
    let mut steps = Vec::new();
    for n in 0.. {
        let mut written = 0;
        for (i, f) in files.iter().enumerate() {
            let data = vec![n as u8; 9000 * (i + 1)];
            written += match fs.write(f, fs.getattr(f).size, &data, WriteFlags::default()) {
                Ok(n) => n,
                Err(Error::NoSpace) => 0,
                Err(e) => panic!("{e}"),
            };
            fs.fsync(f, false).expect("accepted writes reach the disk");
        }
        let space = fs.statfs();
        steps.push((written as u64, space.blocks_free, space.blocks_available));
        if written == 0 {
            break;
        }
    }
    drop(files);
    fs.unmount().expect("unmounted");
    tools::assert_clean(&dev);
    steps
}

#[test]
fn a_disk_has_the_capacity_of_vanilla() {
    for through in [None, Some(4096)] {
        let (vanilla, inline) = (filled(MetaPolicy::Vanilla, through), filled(MetaPolicy::Inline, through));
        assert!(vanilla.len() > 100);
        assert_eq!(inline, vanilla, "through {through:?}");
    }
}

/// The data cannot be written: the preallocation for its pointer blocks must be free again.
#[test]
fn a_failed_write_frees_its_blocks() {
    for through in [None, Some(4096)] {
        let dev = Arc::new(image(24, SMALL, &[]));
        let faulty = Arc::new(FaultyDevice::new(dev.clone()));
        let options = MountOptions { write_through_bytes: through, ..inline() };
        let fs = Filesystem::mount(faulty.clone(), options).expect("mounted");
        let f = create(&fs, "f");
        fs.sync().expect("synced");
        let before = fs.statfs().blocks_free;
        for round in 0..20u64 {
            faulty.inject(Fault::eio().op(BioOp::Write).data());
            let written = fs.write(&f, (12 + 256 * round) * 1024, &[3; 100 << 10], WriteFlags::default());
            let durable = fs.fsync(&f, false);
            assert!(written.is_err() || durable.is_err(), "round {round}");
            faulty.clear();
        }
        drop(f);
        fs.unlink(&fs.root().expect("root"), b"f").expect("unlinked");
        let _tells_of_lost_writes = fs.sync();
        fs.sync().expect("synced");
        assert_eq!(fs.statfs().blocks_free, before, "through {through:?}");
        // All of the space can be allocated.
        let g = create(&fs, "g");
        let mut at = 0;
        while let Ok(n) = fs.write(&g, at, &[4; 8192], WriteFlags::default()) {
            at += n as u64;
        }
        fs.fsync(&g, false).expect("durable");
        drop(g);
        assert_eq!(fs.statfs().blocks_available, 0);
        fs.unmount().expect("unmounted");
        tools::assert_clean(&dev);
    }
}
