//! Renames at a limit, or in a tree with a loop.

use std::sync::Arc;

use extant_base::{sim, task};
use extant_block::device::MemDevice;
use extant_ondisk::inode::LINK_MAX;

use super::*;

use crate::forgetful::Forgetful;
use crate::{MountOptions, Mounted};

fn mounted() -> (Arc<MemDevice>, Mounted) {
    let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-N", "8192"], "16M"));
    let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    (dev, fs)
}

fn mkdir(fs: &Filesystem, dir: &InodeRef, name: &[u8]) -> InodeRef {
    fs.create(dir, name, NewNode::directory(0o755), Cred::default()).expect("mkdir")
}

/// Exchanging a directory with a file adds a link to the file's parent, in either direction.
#[test]
fn an_exchange_respects_the_maximum_of_links() {
    let (dev, fs) = mounted();
    let root = fs.root().expect("root");
    let [a, full] = [b"a".as_slice(), b"full"].map(|name| mkdir(&fs, &root, name));
    mkdir(&fs, &a, b"d");
    fs.create(&full, b"x", NewNode::file(0o644), Cred::default()).expect("create");
    let exchange = RenameFlags { exchange: true, ..RenameFlags::default() };
    full.meta.write().desc.links = LINK_MAX;
    for (from, to) in [((&a, b"d"), (&full, b"x")), ((&full, b"x"), (&a, b"d"))] {
        let r = fs.rename(from.0, from.1, to.0, to.1, exchange);
        assert!(matches!(r, Err(Error::TooManyLinks)), "{r:?}");
    }
    full.meta.write().desc.links = LINK_MAX - 1;
    fs.rename(&a, b"d", &full, b"x", exchange).expect("one more");
    assert_eq!((a.links(), full.links()), (2, LINK_MAX));
    // Two directories can be exchanged even at the limit.
    mkdir(&fs, &a, b"e");
    fs.rename(&a, b"e", &full, b"x", exchange).expect("the number of links is the same");
    full.meta.write().desc.links = 3;
    fs.setattr(&full, &crate::SetAttr { mode: Some(0o700), ..crate::SetAttr::default() }).expect("chmod");
    drop((root, a, full));
    fs.unmount().expect("unmount");
    crate::tools::assert_clean(&dev);
}

/// Only in a damaged image do directories contain each other. Detecting that takes a few steps, not one for each
/// possible inode.
#[test]
fn a_rename_finds_a_loop_of_directories_in_a_few_steps() {
    let (_dev, fs) = mounted();
    let root = fs.root().expect("root");
    let way: Vec<InodeRef> = (0..6u8).map(|i| mkdir(&fs, &root, &[b'a' + i])).collect();
    fs.create(&root, b"file", NewNode::file(0o644), Cred::default()).expect("create");
    let mut handle = fs.start(16).expect("handle");
    // Two directories that lead into a loop of four.
    for (i, up) in [1, 2, 3, 4, 5, 2].into_iter().enumerate() {
        DirView::new(&fs, &way[i]).set_dotdot(&mut handle, way[up].ino).expect("..");
    }
    handle.finish();
    let before = fs.cache.stats.hits.get();
    let r = fs.rename(&root, b"file", &way[0], b"g", RenameFlags::default());
    assert!(matches!(r, Err(Error::Corrupt { .. })), "{r:?}");
    let looks = fs.cache.stats.hits.get() - before;
    assert!(looks < 100, "{looks} reads of blocks");
}

/// Before its first change, a rename has read the block of the old name and the block of the moved directory's `..`.
/// They remain in memory while the new directory grows, even if the cache runs short of memory.
#[test]
fn a_rename_reads_no_block_after_its_first_change() {
    for features in ["dir_index", "^dir_index"] {
        rename_short_of_memory(features);
    }
}

fn rename_short_of_memory(features: &str) {
    let dev = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024", "-N", "1024", "-O", features], "8M"));
    let (forgetful, fs) = Forgetful::mount(dev.clone());
    let root = fs.root().expect("root");
    let [from, to] = [b"from".as_slice(), b"to"].map(|name| mkdir(&fs, &root, name));
    let name = |i: u32| format!("{i:0>200}").into_bytes();
    // Create all of them first, so that the map of the other directory stays small.
    for i in 0..60 {
        mkdir(&fs, &from, &name(i));
    }
    let (mut moves, mut renames) = (0, 0);
    for i in 0..60 {
        // If the map of the new directory is unreadable, its new block is freed, and nothing else has changed.
        let go = |from: &InodeRef, old: &[u8], new: &[u8]| {
            let rename = || fs.rename(from, old, &to, new, RenameFlags::default());
            let (renamed, grown) = forgetful.run(&fs, rename);
            assert!(!fs.is_read_only(), "{features}, {i}: {renamed:?}");
            if renamed.is_err() {
                rename().expect("again");
            }
            u32::from(grown && renamed.is_ok())
        };
        moves += go(&from, &name(i), &name(i));
        // Rename within the directory, perhaps to another leaf.
        renames += go(&to, &name(i / 2), &name(1000 + i));
        fs.rename(&to, &name(1000 + i), &to, &name(i / 2), RenameFlags::default()).expect("back");
    }
    assert!(renames > 0 && (moves > 0 || features == "^dir_index"), "{features}: {moves} and {renames}");
    drop((root, from, to));
    fs.unmount().expect("unmount");
    crate::tools::assert_clean(&dev);
}

/// The search for a loop reads the directories above without their locks, while other threads add names there. An
/// intermediate state must not count as damage.
#[test]
fn a_growing_directory_above_does_not_count_as_damaged() {
    let dev = crate::tools::made(&["-t", "ext4", "-b", "1024"], "8M");
    let name = |i: u32| format!("{i:0>200}").into_bytes();
    let mut wrong = Vec::new();
    for seed in 0..600 {
        let options = MountOptions { threads: false, seed: Some(1), ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::new(dev.snapshot()), options).expect("mounted");
        let p = mkdir(&fs, &fs.root().expect("root"), b"p");
        let [a, b] = [b"a", b"b"].map(|name| mkdir(&fs, &p, name));
        drop(mkdir(&fs, &a, b"d"));
        for i in 0..24 {
            drop(mkdir(&fs, &p, &name(i)));
        }
        assert!(fs.freeze().expect("everything is home") && fs.thaw());
        fs.cache.drop_clean();
        let strategy = sim::Strategy::Priorities { changes: 1, steps: 120 };
        let shared = Arc::clone(&fs);
        let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
            let (fs, above) = (shared.clone(), p.clone());
            let grows = task::spawn("grows", move || (100..108).for_each(|i| drop(mkdir(&fs, &above, &name(i)))));
            shared.rename(&a, b"d", &b, b"d", RenameFlags::default()).map_err(|e| e.to_string())?;
            grows.expect("thread").join().expect("joined");
            Ok::<(), String>(())
        });
        let renamed = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        if renamed.is_err() || fs.stats.errors.get() > 0 {
            wrong.push((seed, renamed));
        }
        fs.abandon();
    }
    assert!(wrong.is_empty(), "{} of 600 schedules: {:?}", wrong.len(), wrong.first());
}
