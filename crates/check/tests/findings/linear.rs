//! A check is linear in the image's bytes, however many pointers lead to a block: the tests count reads of blocks, not
//! seconds.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_block::device::{MemDevice, TracedDevice};
use extant_block::{BioOp, BlockDevice};
use extant_check::{Options, Report, check};
use extant_testkit::damage::Edit;
use extant_testkit::damage::edit::{EXTENTS_FL, set_half, set_word};
use extant_testkit::oracle::{MkfsOptions, make_image};

const BLOCK: u64 = 4096;

/// A file system with the files `/a`, `/b` and `/c`, ready to be changed.
fn three_files(fs_type: &'static str) -> Edit {
    let dir = tempfile::tempdir().expect("directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(&tree).expect("a directory");
    for name in ["a", "b", "c"] {
        std::fs::write(tree.join(name), b"contents").expect("a file");
    }
    let mut options = MkfsOptions::new(fs_type, 32 << 20);
    let tree = tree.to_str().expect("UTF-8");
    options.extra_args = ["-b", "4096", "-O", "^metadata_csum,^has_journal", "-d", tree].map(str::to_owned).into();
    Edit::new(&MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded"))
}

/// Checks the image; returns the report, and how often each block was read.
fn checked(image: MemDevice) -> (Report, BTreeMap<u64, u32>) {
    let traced = Arc::new(TracedDevice::new(Arc::new(image)));
    let device: Arc<dyn BlockDevice> = traced.clone();
    let report = check(&device, &Options { threads: 2, now: 2_000_000_000, ..Options::default() }).expect("checked");
    let mut times = BTreeMap::new();
    for read in traced.records().iter().filter(|record| record.op == BioOp::Read) {
        for block in read.offset / BLOCK..read.end().div_ceil(BLOCK) {
            *times.entry(block).or_insert(0) += 1;
        }
    }
    (report, times)
}

/// Asserts that the walk reads each of the blocks once, and the walk for the owners of doubly claimed blocks once more.
/// Nothing else is read much more often, though bitmaps and tables may be neighbours.
fn assert_read_once_a_walk(nodes: &[u64], image: MemDevice) {
    let (report, times) = checked(image);
    assert!(report.complete && report.is_damaged(), "{:?}", report.counts);
    for node in nodes {
        assert_eq!(times.get(node), Some(&2), "block {node}");
    }
    // The first block has the superblock, which several readers search.
    let often = times.iter().filter(|(block, times)| **block > 1 && **times > 3);
    assert_eq!(often.collect::<Vec<_>>(), vec![], "{:?}", report.counts);
    assert!(report.totals.read_bytes < 96 << 20, "{} bytes read", report.totals.read_bytes);
    let findings: u64 = report.counts.values().sum();
    assert!(findings < 1 << 20, "{findings} findings: {:?}", report.counts);
}

/// 305 free blocks, so far apart that none is read along with its neighbours.
fn apart(edit: &Edit) -> Vec<u64> {
    edit.free_blocks(305 * 8).into_iter().step_by(8).collect()
}

fn fill(edit: &mut Edit, block: u64, pointer: u64) {
    edit.block(block, |bytes| (0..1024).for_each(|slot| set_word(bytes, slot * 4, pointer as u32)));
}

#[test]
fn a_block_of_pointers_is_read_once_however_many_pointers_lead_to_it() {
    let mut edit = three_files("ext2");
    let blocks = apart(&edit);
    let [triple, double, single, data, circle] = blocks[..5] else { panic!("five blocks") };
    // 1024³ ways to one block.
    edit.inode("/a", |inode| set_word(&mut inode.i_block, 14 * 4, triple as u32));
    for (from, to) in [(triple, double), (double, single), (single, data)] {
        fill(&mut edit, from, to);
    }
    // A map that leads back to itself.
    edit.inode("/b", |inode| set_word(&mut inode.i_block, 14 * 4, circle as u32));
    fill(&mut edit, circle, circle);
    // Many blocks of pointers to one.
    let (own, many) = (blocks[5], &blocks[6..]);
    edit.inode("/c", |inode| set_word(&mut inode.i_block, 14 * 4, own as u32));
    edit.block(own, |bytes| (0..1024).for_each(|slot| set_word(bytes, slot * 4, many[slot % many.len()] as u32)));
    for block in many {
        fill(&mut edit, *block, single);
    }
    let nodes = [&[triple, double, single, circle, own], many].concat();
    assert_read_once_a_walk(&nodes, edit.finish());
}

/// A node whose entries all lead to `child`: each for as many logical blocks as a full tree has there.
fn node(bytes: &mut [u8], entries: u16, depth: u16, child: u64) {
    for (at, half) in [(0, 0xf30a), (2, entries), (4, entries), (6, depth)] {
        set_half(bytes, at, half);
    }
    for entry in 0..usize::from(entries) {
        let at = 12 + 12 * entry;
        set_word(bytes, at, entry as u32 * 340u32.pow(depth.into()));
        if depth > 0 {
            set_word(bytes, at + 4, child as u32);
            set_word(bytes, at + 8, 0);
        } else {
            set_word(bytes, at + 4, 1);
            set_word(bytes, at + 8, child as u32);
        }
    }
}

#[test]
fn a_node_of_extents_is_read_once_however_many_entries_lead_to_it() {
    let mut edit = three_files("ext4");
    let blocks = apart(&edit);
    let [upper, middle, leaf, data, circle] = blocks[..5] else { panic!("five blocks") };
    let root = |edit: &mut Edit, name: &str, child: u64| {
        edit.inode(name, |inode| {
            inode.i_flags.set(EXTENTS_FL);
            node(&mut inode.i_block, 4, 3, child);
        });
    };
    root(&mut edit, "/a", upper);
    for (block, depth, child) in [(upper, 2, middle), (middle, 1, leaf), (leaf, 0, data)] {
        edit.block(block, |bytes| node(bytes, 340, depth, child));
    }
    root(&mut edit, "/b", circle);
    edit.block(circle, |bytes| node(bytes, 340, 2, circle));
    let (own, many) = (blocks[5], &blocks[6..]);
    root(&mut edit, "/c", own);
    edit.block(own, |bytes| {
        node(bytes, 340, 2, 0);
        (0..340).for_each(|entry| set_word(bytes, 12 + 12 * entry + 4, many[entry % many.len()] as u32));
    });
    for block in many {
        edit.block(*block, |bytes| node(bytes, 340, 1, leaf));
    }
    let nodes = [&[upper, middle, leaf, circle, own], many].concat();
    assert_read_once_a_walk(&nodes, edit.finish());
}

#[test]
fn an_inode_table_is_not_read_for_every_group_that_names_it() {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = MkfsOptions::new("ext4", 1 << 30);
    // 128 groups with tables of 512 KiB.
    let features = "flex_bg,^uninit_bg,^metadata_csum,^has_journal";
    options.extra_args = ["-b", "1024", "-I", "256", "-N", "262144", "-O", features].map(str::to_owned).into();
    let mut edit = Edit::new(&MemDevice::load(&make_image(dir.path(), &options).expect("made")).expect("loaded"));
    let table = edit.group_desc(0).bg_inode_table_lo.get();
    for group in 1..edit.groups() {
        edit.group_copies(group, |raw| raw.bg_inode_table_lo.set(table));
    }
    let (report, times) = checked(edit.finish());
    assert!(report.complete && report.is_damaged(), "{:?}", report.counts);
    let most = times.values().max().copied().unwrap_or(0);
    // 16 MiB are 32 tables, and there is a second walk, for the owners.
    assert!((60..80).contains(&most), "a block is read {most} times");
}
