//! A journal while an image is mounted: the state of the image meanwhile, and that no trace remains afterwards. The
//! power cuts are in `crates/testkit/tests/crash.rs`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_block::device::MemDevice;
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{BorrowJournal, Cred, Filesystem, MountOptions, Mounted, NewNode, WriteFlags, probe_superblock};
use extant_ondisk::features::Compat;
use extant_ondisk::superblock::{FsState, SuperBlock};
use extant_oracle::{arg, debugfs, e2fsck, expect_clean, mke2fs, tool};

fn image(dir: &Path, args: &[&str], size: &str) -> PathBuf {
    let path = dir.join("disk.img");
    let _ = std::fs::remove_file(&path);
    mke2fs(&path, args, size);
    path
}

fn load(path: &Path) -> Arc<MemDevice> {
    Arc::new(MemDevice::load(path).expect("loaded"))
}

fn options(borrow_journal: BorrowJournal) -> MountOptions {
    MountOptions { threads: false, seed: Some(1), borrow_journal, ..MountOptions::default() }
}

fn mount(dev: &Arc<MemDevice>, mode: BorrowJournal) -> Mounted {
    Filesystem::mount(dev.clone(), options(mode)).unwrap_or_else(|e| panic!("{e}"))
}

fn write_file(fs: &Filesystem, name: &str, len: usize) {
    let f =
        fs.create(&fs.root().expect("root"), name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
    let content = vec![0x5A; len];
    assert_eq!(fs.write(&f, 0, &content, WriteFlags::default()).expect("write"), len);
    fs.fsync(&f, false).expect("fsync");
}

fn super_of(dev: &MemDevice) -> SuperBlock {
    probe_superblock(dev).expect("superblock").0
}

fn has_journal(dev: &MemDevice) -> bool {
    super_of(dev).compat().contains(Compat::HAS_JOURNAL)
}

/// `dumpe2fs -h` without the lines that every mount changes.
fn summary(path: &Path) -> String {
    let text = tool("dumpe2fs", &["-h", arg(path)]);
    let changes = ["Last mount", "Last write", "Mount count", "Lifetime writes", "Checksum:"];
    text.lines().filter(|l| !changes.iter().any(|c| l.starts_with(c))).collect::<Vec<_>>().join("\n")
}

const KINDS: [(&[&str], &str); 6] = [
    (&["-t", "ext2"], "64M"),
    (&["-t", "ext2", "-b", "1024"], "600M"),
    (&["-t", "ext2", "-b", "2048", "-I", "128"], "80M"),
    (&["-t", "ext4", "-O", "^has_journal"], "64M"),
    (&["-t", "ext4", "-O", "^has_journal,^64bit,^metadata_csum,uninit_bg", "-b", "1024"], "300M"),
    (&["-t", "ext4", "-O", "^has_journal,meta_bg,^resize_inode", "-I", "128"], "300M"),
];

#[test]
fn a_clean_unmount_leaves_no_trace_of_the_journal() {
    let dir = tempfile::tempdir().expect("tempdir");
    for (args, size) in KINDS {
        let path = image(dir.path(), args, size);
        let (before, inode) = (summary(&path), debugfs(&path, "inode_dump <8>").expect("debugfs"));
        let dev = load(&path);
        for round in 0..2 {
            let fs = mount(&dev, BorrowJournal::IfClean);
            assert!(fs.has_borrowed_journal() && has_journal(&dev), "{args:?}");
            write_file(&fs, "file", 200_000);
            let root = fs.root().expect("root");
            fs.unlink(&root, b"file").expect("unlink");
            drop(root);
            fs.unmount().unwrap_or_else(|e| panic!("{args:?}, round {round}: {e}"));
        }
        dev.save(&path).expect("saved");
        expect_clean(&path).expect("clean");
        assert_eq!(summary(&path), before, "{args:?}");
        assert_eq!(debugfs(&path, "inode_dump <8>").expect("debugfs"), inode, "{args:?}");
    }
}

/// Without an unmount the image has a journal to replay, for every program.
#[test]
fn an_image_has_a_journal_after_a_crash() {
    let dir = tempfile::tempdir().expect("tempdir");
    for (args, size) in KINDS {
        let path = image(dir.path(), args, size);
        let dev = load(&path);
        let fs = mount(&dev, BorrowJournal::IfClean);
        write_file(&fs, "file", 50_000);
        fs.abandon();
        dev.save(&path).expect("saved");
        assert!(
            has_journal(&dev) && super_of(&dev).needs_recovery() && super_of(&dev).state().contains(FsState::VALID)
        );
        let by_fsck = dir.path().join("fsck.img");
        std::fs::copy(&path, &by_fsck).expect("copied");
        let fsck = e2fsck(&by_fsck, &["-p"]).expect("e2fsck");
        assert!(fsck.code <= 1, "{args:?}: {}", fsck.output);
        expect_clean(&by_fsck).expect("clean");
        // After e2fsck, too, it is a borrowed journal, and it is used even if the mount would borrow none.
        for (dev, mode) in [(load(&by_fsck), BorrowJournal::IfClean), (dev, BorrowJournal::Never)] {
            let fs = mount(&dev, mode);
            assert!(fs.has_borrowed_journal(), "{args:?}");
            assert_eq!(fs.getattr(&fs.walk(b"file", true).expect("there")).size, 50_000);
            fs.unmount().expect("unmount");
            assert!(!has_journal(&dev), "{args:?}");
            dev.save(&path).expect("saved");
            expect_clean(&path).expect("clean");
        }
    }
}

#[test]
fn unsuitable_images_get_no_journal() {
    let dir = tempfile::tempdir().expect("tempdir");
    let cases: [(&[&str], &str, BorrowJournal); 4] = [
        (&["-t", "ext2", "-b", "1024"], "1900K", BorrowJournal::Always),
        (&["-t", "ext2", "-b", "4096"], "16M", BorrowJournal::Always),
        (&["-t", "ext2", "-r", "0", "-O", "none"], "32M", BorrowJournal::Always),
        (&["-t", "ext2"], "64M", BorrowJournal::Never),
    ];
    for (args, size, mode) in cases {
        let path = image(dir.path(), args, size);
        let dev = load(&path);
        let fs = mount(&dev, mode);
        assert!(!fs.has_borrowed_journal() && !has_journal(&dev), "{args:?} {size}");
        write_file(&fs, "file", 10_000);
        fs.unmount().expect("unmount");
        dev.save(&path).expect("saved");
        expect_clean(&path).expect("clean");
    }
    // A read-only mount borrows nothing.
    let dev = load(&image(dir.path(), &["-t", "ext2"], "64M"));
    let before = dev.stats().write_bytes;
    let fs =
        Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options(BorrowJournal::Always) }).expect("ro");
    fs.unmount().expect("unmount");
    assert_eq!(dev.stats().write_bytes, before);
}

/// The bitmaps of an image without a clean unmount cannot be trusted with a journal, and it remains unclean until
/// e2fsck.
#[test]
fn unclean_images_get_a_journal_only_on_request() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = image(dir.path(), &["-t", "ext2"], "64M");
    let dev = load(&path);
    mount(&dev, BorrowJournal::Never).abandon();
    for (mode, borrows) in [(BorrowJournal::IfClean, false), (BorrowJournal::Always, true)] {
        let fs = mount(&dev, mode);
        assert_eq!(fs.has_borrowed_journal(), borrows);
        fs.unmount().expect("unmount");
        assert!(!super_of(&dev).state().contains(FsState::VALID) && !has_journal(&dev), "{mode:?}");
    }
    dev.save(&path).expect("saved");
    let fsck = e2fsck(&path, &["-p"]).expect("e2fsck");
    assert!(fsck.code <= 1, "{}", fsck.output);
    let dev = load(&path);
    let fs = mount(&dev, BorrowJournal::IfClean);
    assert!(fs.has_borrowed_journal());
    fs.unmount().expect("unmount");
}

/// Free space in fragments of a few blocks: the journal needs nodes of an extent tree, or is refused.
#[test]
fn a_journal_fits_fragmented_free_space_or_is_refused() {
    let dir = tempfile::tempdir().expect("tempdir");
    for (args, piece, borrows) in [
        (&["-t", "ext4", "-O", "^has_journal", "-b", "4096"][..], 64u64, true),
        (&["-t", "ext2", "-b", "4096"], 64, true),
        (&["-t", "ext2", "-b", "4096"], 2, false),
    ] {
        let path = image(dir.path(), args, "64M");
        let dev = load(&path);
        let fs = mount(&dev, BorrowJournal::Never);
        let root = fs.root().expect("root");
        let f = fs.create(&root, b"big", NewNode::file(0o644), Cred::default()).expect("create");
        let block = vec![7u8; 4096];
        for i in 0..15_000 {
            if fs.write(&f, i * 4096, &block, WriteFlags::default()).is_err() {
                break;
            }
        }
        fs.fsync(&f, false).expect("fsync");
        let mut at = 0;
        while at < 15_000 {
            fs.fallocate(&f, extant_fs::FallocateMode::PunchHole, at * 4096, piece * 4096).expect("punch");
            at += 2 * piece;
        }
        drop((f, root));
        fs.unmount().expect("unmount");
        let fs = mount(&dev, BorrowJournal::IfClean);
        assert_eq!(fs.has_borrowed_journal(), borrows, "{args:?}, pieces of {piece}");
        write_file(&fs, "file", 30_000);
        fs.unmount().expect("unmount");
        assert!(!has_journal(&dev));
        dev.save(&path).expect("saved");
        expect_clean(&path).expect("clean");
    }
}

/// A mount that fails later removes the journal.
#[test]
fn a_failed_mount_leaves_no_journal() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = image(dir.path(), &["-t", "ext2", "-b", "4096"], "64M");
    let dev = load(&path);
    // The root is not a directory any more.
    let table = debugfs(&path, "imap <2>").expect("debugfs");
    let block = table.split("located at block ").nth(1).and_then(|t| t.split(',').next());
    let block: u64 = block.and_then(|b| b.parse().ok()).unwrap_or_else(|| panic!("{table}"));
    let mut sector = [0; 512];
    dev.read_at(block * 4096, &mut sector, BioFlags::META).expect("read");
    sector[256..258].copy_from_slice(&0o100_644u16.to_le_bytes());
    dev.write_at(block * 4096, &[&sector], BioFlags::META).expect("written");
    let before = super_of(&dev);
    assert!(Filesystem::mount(dev.clone(), options(BorrowJournal::IfClean)).is_err());
    let after = super_of(&dev);
    assert_eq!((before.compat(), before.incompat(), before.state()), (after.compat(), after.incompat(), after.state()));
    assert_eq!(before.free_blocks(), after.free_blocks());
}

/// Adding and removing the journal cost a bounded number of requests, whatever the size.
#[test]
fn a_journal_for_a_tebibyte_costs_few_requests() {
    let dir = tempfile::tempdir().expect("tempdir");
    let dev = load(&image(dir.path(), &["-t", "ext4", "-O", "^has_journal"], "1T"));
    let cost = |mode: BorrowJournal| {
        let before = dev.stats();
        let fs = mount(&dev, mode);
        assert_eq!(fs.has_borrowed_journal(), mode == BorrowJournal::IfClean);
        fs.unmount().expect("unmount");
        let after = dev.stats();
        (after.reads - before.reads, after.writes - before.writes, after.write_bytes - before.write_bytes)
    };
    let without = cost(BorrowJournal::Never);
    let with = cost(BorrowJournal::IfClean);
    eprintln!("requests and bytes written without and with: {without:?} {with:?}");
    assert!(with.0 < 3 * without.0 + 100 && with.1 < without.1 + 60, "{without:?} {with:?}");
    assert!(with.2 < 1 << 20, "{} bytes written", with.2);
}
