//! Each request of a mount that has something to recover, and of the unmount after it, fails once. The mount may
//! fail, but the next one finds everything. A journal that could not be written leaves an image with errors, and
//! orphans may then remain. A failed read does not.
//!
//! One thread. The log contains files, names, attributes, a truncation and orphans as of a power cut. The journal is
//! the image's own, with its orphans in the file or on the list, or a borrowed one. Each request fails alone, and
//! with the two after it: a failed readahead, or a failed write of merged neighbours, is repeated in single requests.

use extant_oracle::memory as tools;
use std::sync::Arc;

use extant_block::BioOp;
use extant_block::device::{Fault, FaultyDevice, MemDevice};
use extant_fs::{Cred, Filesystem, MountOptions, NewNode, OnError, SetAttr, SetMode, WriteFlags, probe_superblock};
use extant_ondisk::superblock::FsState;
use extant_testkit::tests_of_cases;

use crate::tree::{assert_same, tree};

fn options(errors: OnError) -> MountOptions {
    MountOptions { threads: false, seed: Some(1), errors: Some(errors), ..MountOptions::default() }
}

/// Only the data is home; everything else is in the log.
fn after_a_power_cut(kind: &[&str]) -> MemDevice {
    let dev = Arc::new(tools::made(kind, "24M"));
    let fs = Filesystem::mount(dev.clone(), options(OnError::Continue)).expect("mounted");
    let root = fs.root().expect("root");
    let dir = fs.create(&root, b"dir", NewNode::directory(0o755), Cred::default()).expect("directory");
    let name = |i: usize| format!("file-with-a-rather-long-name-{i}");
    let of = |i: usize| if i.is_multiple_of(2) { &root } else { &dir };
    let files: Vec<_> = (0..60)
        .map(|i| {
            let f = fs.create(of(i), name(i).as_bytes(), NewNode::file(0o644), Cred::default()).expect("file");
            fs.write(&f, 3000 * i as u64, &[i as u8; 20_000], WriteFlags::default()).expect("written");
            f
        })
        .collect();
    fs.sync().expect("sync");
    fs.set_xattr(&files[3], b"user.name", &[7; 600], SetMode::Any).expect("attribute");
    fs.setattr(&files[5], &SetAttr { size: Some(100), ..SetAttr::default() }).expect("truncated");
    fs.rename(&root, name(2).as_bytes(), &dir, b"moved", Default::default()).expect("moved");
    for i in [10, 33, 40, 59] {
        fs.unlink(of(i), name(i).as_bytes()).expect("unlinked");
    }
    let nameless = fs.tmpfile(&root, 0o600, Cred::default()).expect("file");
    fs.write(&nameless, 0, &[9; 30_000], WriteFlags::default()).expect("written");
    fs.sync().expect("sync");
    let cut = dev.snapshot();
    fs.abandon();
    cut
}

tests_of_cases!(
    a_request_that_fails_during_a_recovery_loses_nothing,
    fail_each,
    ext4_with_an_orphan_file: &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
    ext4_with_an_orphan_list: &["-t", "ext4", "-b", "4096", "-O", "^orphan_file"],
    ext3: &["-t", "ext3", "-b", "1024"],
    ext2: &["-t", "ext2", "-b", "1024"],
    ext4_without_journal: &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
);

fn fail_each(kind: &[&str]) {
    let image = after_a_power_cut(kind);
    let whole = Arc::new(image.snapshot());
    Filesystem::mount(whole.clone(), options(OnError::Continue)).expect("mounted").unmount().expect("unmounted");
    tools::assert_clean(&whole);
    let wanted = tree(whole);
    assert_eq!(wanted.len(), 57, "{kind:?}");
    for errors in [OnError::Continue, OnError::RemountReadOnly] {
        for (op, times) in [(BioOp::Read, 1), (BioOp::Read, 3), (BioOp::Write, 1), (BioOp::Write, 3), (BioOp::Flush, 1)]
        {
            let mut failed = 0;
            for n in 0.. {
                let who = format!("{kind:?}, {errors:?}: {op:?} {n}, {times} times");
                let dev = Arc::new(image.snapshot());
                let faulty = Arc::new(FaultyDevice::new(dev.clone()));
                faulty.inject(Fault::eio().op(op).after(n).times(times));
                let told = Filesystem::mount(faulty.clone(), options(errors)).and_then(|fs| fs.unmount());
                failed += u32::from(told.is_err());
                let next = Filesystem::mount(dev.clone(), options(OnError::Continue)).and_then(|fs| fs.unmount());
                assert!(next.is_ok(), "{who}: {told:?}, then {next:?}");
                assert_same(&tree(dev.clone()), &wanted, &format!("{who}: {told:?}"));
                let marked = probe_superblock(&*dev).expect("superblock").0.state().contains(FsState::ERROR);
                assert!(op != BioOp::Read || !marked, "{who}: {told:?}");
                // A sample: e2fsck takes longer than everything else.
                if n.is_multiple_of(5) && !marked {
                    tools::assert_clean(&dev);
                }
                if faulty.injected() == 0 {
                    assert!(told.is_ok(), "{who}: {told:?}");
                    break;
                }
            }
            assert!(failed > 0, "{kind:?}, {errors:?}: {op:?}");
        }
    }
}
