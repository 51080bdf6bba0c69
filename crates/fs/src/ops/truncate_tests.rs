//! The state of a file if a change of its map finds no space, or none before the next commit.

use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_ondisk::{InodeNr, LogicalBlock};

use crate::forgetful::Forgetful;
use crate::ops::mapping::Want;
use crate::ops::no_space::tests::take_all;
use crate::writeback::batch::WritebackReason;
use crate::{Cred, Error, FallocateMode, Filesystem, InodeRef, MountOptions, NewNode, WriteFlags};

const BLOCK: u64 = 1024;
const OLD: u8 = 1;
const NEW: u8 = 2;

fn mounted(keep_clean: bool) -> (Arc<MemDevice>, crate::Mounted) {
    let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024"], "8M"));
    (dev.clone(), mount(dev, keep_clean))
}

fn mount(dev: Arc<MemDevice>, keep_clean: bool) -> crate::Mounted {
    let options = MountOptions { threads: false, seed: Some(1), keep_clean, ..MountOptions::default() };
    Filesystem::mount(dev, options).expect("mounted")
}

fn put(fs: &Filesystem, f: &InodeRef, blocks: std::ops::Range<u64>, byte: u8) {
    let data = vec![byte; ((blocks.end - blocks.start) * BLOCK) as usize];
    assert_eq!(fs.write(f, blocks.start * BLOCK, &data, WriteFlags::default()).expect("write"), data.len());
}

fn content(fs: &Filesystem, f: &InodeRef) -> Vec<u8> {
    let mut all = vec![0xFF; fs.getattr(f).size as usize];
    assert_eq!(fs.read(f, 0, &mut all).expect("read"), all.len());
    all
}

/// Four extents fill the root of the map, so another one needs a block, and none is free. Each byte of the range may
/// then be zero or unchanged, but must not show older content.
#[test]
fn a_range_that_cannot_be_zeroed_or_punched_shows_no_old_content() {
    let zero = FallocateMode::ZeroRange { keep_size: true };
    for keep_clean in [false, true] {
        for (mode, range) in [(zero, 42..46), (zero, 18..46), (FallocateMode::PunchHole, 42..46)] {
            let what = format!("{mode:?} of {range:?}, keep_clean {keep_clean}");
            let (dev, fs) = mounted(keep_clean);
            let root = fs.root().expect("root");
            let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            for start in [0, 20, 40, 60] {
                put(&fs, &f, start..start + 10, OLD);
            }
            fs.fsync(&f, false).expect("fsync");
            // Ranges with content, a hole, and a range outside.
            for blocks in [22..26, 31..33, 40..50, 62..63] {
                put(&fs, &f, blocks, NEW);
            }
            let before = content(&fs, &f);
            let taken = take_all(&fs);
            let failed = fs.fallocate(&f, mode, range.start * BLOCK, (range.end - range.start) * BLOCK);
            assert!(matches!(failed, Err(Error::NoSpace)), "{what}: {failed:?}");
            let after = content(&fs, &f);
            let (from, to) = ((range.start * BLOCK) as usize, (range.end * BLOCK) as usize);
            for (at, (was, is)) in before.iter().zip(&after).enumerate() {
                let zeroed = *is == 0 && (from..to).contains(&at);
                assert!(is == was || zeroed, "{what}: byte {at} was {was} and is {is}");
            }
            // Later writes and reads do not change that.
            for (start, len) in taken {
                let mut handle = fs.start(8).expect("handle");
                fs.placement.free_blocks(&mut handle, InodeNr::ROOT, start, len).expect("freed");
                handle.finish();
            }
            fs.fsync(&f, false).expect("the delayed data is written");
            assert_eq!(content(&fs, &f), after, "{what}");
            drop((f, root));
            fs.unmount().expect("unmount");
            let fs = mount(dev, keep_clean);
            let f = fs.walk(b"f", true).expect("there");
            assert!(content(&fs, &f) == after, "{what}: mounted again");
            fs.fallocate(&f, mode, range.start * BLOCK, (range.end - range.start) * BLOCK).expect("there is space");
            assert!(content(&fs, &f)[from..to].iter().all(|b| *b == 0), "{what}");
            drop(f);
            fs.unmount().expect("unmount");
        }
    }
}

/// Writing to preallocated blocks splits their extent, which needs a block for the map. The only free blocks become
/// available with a commit. The explorer found this once in 156,000 schedules (full-disk): the data was lost, and fsync
/// failed.
#[test]
fn data_in_preallocated_blocks_waits_for_the_commit_that_frees_space() {
    let (_dev, fs) = mounted(false);
    let root = fs.root().expect("root");
    let [f, g] =
        [b"f", b"g"].map(|name| fs.create(&root, name, NewNode::file(0o644), Cred::default()).expect("create"));
    fs.fallocate(&f, FallocateMode::Allocate { keep_size: false }, 0, 200 * BLOCK).expect("preallocated");
    put(&fs, &g, 0..50, OLD);
    drop(g);
    fs.sync().expect("sync");
    take_all(&fs);
    fs.sync().expect("sync");
    fs.unlink(&root, b"g").expect("unlink");
    fs.evictor().drain();
    for start in [20, 60, 100, 140, 180] {
        put(&fs, &f, start..start + 5, NEW);
    }
    let commits = fs.statistics().journal().commits.get();
    fs.fsync(&f, false).expect("nothing is lost");
    assert!(fs.statistics().journal().commits.get() > commits + 1, "it had to wait for space");
    let all = content(&fs, &f);
    let written = all.iter().filter(|b| **b == NEW).count() as u64;
    assert_eq!(written, 25 * BLOCK);
}

/// An operation that fails must not have extended the file to the end of its last block.
#[test]
fn a_failed_extension_does_not_change_the_size() {
    for keep_clean in [false, true] {
        for (what, grow) in [
            ("write far behind", (|fs, f| fs.write(f, 20_000, &[NEW], WriteFlags::default()).map(drop)) as Grow),
            ("allocate", |fs, f| fs.fallocate(f, FallocateMode::Allocate { keep_size: false }, 4 * BLOCK, 20_000)),
        ] {
            let (_dev, fs) = mounted(keep_clean);
            let root = fs.root().expect("root");
            let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
            fs.write(&f, 0, &[OLD; 1500], WriteFlags::default()).expect("write");
            fs.fsync(&f, false).expect("fsync");
            take_all(&fs);
            let grown = grow(&fs, &f);
            assert!(matches!(grown, Err(Error::NoSpace)), "{what}: {grown:?}");
            assert_eq!(content(&fs, &f), [OLD; 1500], "{what}, keep_clean {keep_clean}");
        }
    }
}

type Grow = fn(&Filesystem, &InodeRef) -> crate::Result<()>;

/// A hole that was read is cached, but still a hole: punching it needs no space.
#[test]
fn a_cached_hole_can_be_punched_on_a_full_disk() {
    let (_dev, fs) = mounted(true);
    let root = fs.root().expect("root");
    let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
    put(&fs, &f, 40..41, OLD);
    fs.fsync(&f, false).expect("fsync");
    let before = content(&fs, &f);
    take_all(&fs);
    let promised = fs.placement.alloc.reserved_blocks();
    fs.fallocate(&f, FallocateMode::PunchHole, 10 * BLOCK + 100, 5 * BLOCK).expect("a hole in a hole");
    assert_eq!(content(&fs, &f), before);
    let half = 20 * BLOCK + BLOCK / 2;
    fs.setattr(&f, &crate::SetAttr { size: Some(half), ..crate::SetAttr::default() }).expect("less");
    assert_eq!(content(&fs, &f), vec![0; half as usize]);
    assert_eq!(fs.placement.alloc.reserved_blocks(), promised, "nothing was reserved");
}

/// The data has blocks, but there is no space for the node of the map that would contain the last of them.
#[test]
fn a_file_retains_the_mapped_part_of_its_data_if_the_rest_finds_no_space() {
    let dev = Arc::new(crate::tools::made(&["-t", "ext3", "-b", "1024"], "8M"));
    let fs = mount(dev, false);
    let root = fs.root().expect("root");
    let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
    fs.sync().expect("sync");
    let why = WritebackReason::Background;
    let chosen = fs.choose_blocks(&f, LogicalBlock(0), 16, Want::Written, None, why).expect("chosen").0;
    assert_eq!(chosen.len, 16);
    take_all(&fs);
    let (mapped, r) = fs.map_written(&f, LogicalBlock(0), chosen, 16 * BLOCK);
    assert!(matches!(r, Err(Error::NoSpace)), "{r:?}");
    assert_eq!((mapped, f.meta.read().desc.size), (12, 12 * BLOCK));
}

/// Kernels leave an empty pointer array when they punch all blocks in it.
#[test]
fn removing_a_file_frees_its_empty_pointer_array() {
    for slot in ["DIND", "TIND"] {
        let dev = Arc::new(crate::tools::made(&["-t", "ext2", "-b", "1024"], "8M"));
        let fs = mount(dev.clone(), false);
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        put(&fs, &f, 0..1, OLD);
        drop((root, f));
        fs.unmount().expect("unmount");
        let free = crate::tools::debugfs(&dev, "ffb 1 7000");
        let block = free.split_whitespace().last().expect("a free block");
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("disk.img");
        let edits = [&format!("sif f block[{slot}] {block}"), "sif f blocks 4"];
        crate::tools::edited(&dev, &edits).save(&path).expect("saved");
        // e2fsck corrects the counts of free blocks.
        let fsck = extant_oracle::e2fsck(&path, &["-fy"]).expect("e2fsck");
        assert_eq!(fsck.code, 1, "{}", fsck.output);
        let dev = Arc::new(MemDevice::load(&path).expect("loaded"));
        crate::tools::assert_clean(&dev);
        assert!(crate::tools::debugfs(&dev, "stat f").contains(&format!("({slot}):{block}")), "it is still there");
        let fs = mount(dev.clone(), false);
        fs.unlink(&fs.root().expect("root"), b"f").expect("unlink");
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }
}

/// A node that is about to be split has been read before, and is not evicted meanwhile.
#[test]
fn a_map_reads_no_block_after_its_first_change() {
    for mode in [FallocateMode::ZeroRange { keep_size: true }, FallocateMode::PunchHole] {
        let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024"], "8M"));
        let (forgetful, fs) = Forgetful::mount(dev.clone());
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
        // One full leaf.
        for i in 0..84 {
            put(&fs, &f, 20 * i..20 * i + 10, OLD);
        }
        fs.fsync(&f, false).expect("fsync");
        let (changed, met) = forgetful.run(&fs, || fs.fallocate(&f, mode, 843 * BLOCK, 3 * BLOCK));
        assert!(met, "{mode:?}: a node was allocated");
        assert!(changed.is_ok() && !fs.is_read_only(), "{mode:?}: {changed:?}");
        let all = content(&fs, &f);
        let old = all.iter().filter(|b| **b == OLD).count() as u64;
        assert_eq!(old, (84 * 10 - 3) * BLOCK, "{mode:?}");
        drop((root, f));
        fs.unmount().expect("unmount");
        crate::tools::assert_clean(&dev);
    }
}

/// Whether the last node fits in the root is known only when it is the only one left. If it is unreadable then, it is
/// too late for an error.
#[test]
fn a_map_does_not_shrink_if_its_last_node_is_unreadable() {
    let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024"], "8M"));
    let (forgetful, fs) = Forgetful::mount(dev.clone());
    let root = fs.root().expect("root");
    let f = fs.create(&root, b"f", NewNode::file(0o644), Cred::default()).expect("create");
    // A full leaf, and one with three extents.
    for i in 0..87 {
        put(&fs, &f, 20 * i..20 * i + 10, OLD);
    }
    fs.fsync(&f, false).expect("fsync");
    let (punched, met) = forgetful.run(&fs, || fs.fallocate(&f, FallocateMode::PunchHole, 0, 1680 * BLOCK));
    assert!(met, "a node was freed");
    assert!(punched.is_ok() && !fs.is_read_only(), "{punched:?}");
    let old = content(&fs, &f).iter().filter(|b| **b == OLD).count() as u64;
    assert_eq!(old, 30 * BLOCK);
    drop((root, f));
    fs.unmount().expect("unmount");
    let (code, said) = crate::tools::e2fsck(&dev, &["-fn"]);
    assert!(code == 0 || !said.contains("differences") && !said.contains("i_blocks"), "{said}");
}
