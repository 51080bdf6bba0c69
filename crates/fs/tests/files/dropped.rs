//! A mount that ends without an unmount: dropped, cut off, or because one of its own threads died.

use std::sync::Arc;

use crate::common::*;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, Messages, MountOptions, NewNode};

fn device() -> Arc<MemDevice> {
    Arc::new(image(16, EXT4, &[]))
}

fn options(threads: bool) -> MountOptions {
    MountOptions { threads, seed: Some(1), ..MountOptions::default() }
}

#[test]
fn a_dropped_mount_unmounts() {
    for threads in [true, false] {
        let dev = device();
        let shared = {
            let fs = Filesystem::mount(dev.clone(), options(threads)).expect("mounted");
            let f = create(&fs, "f");
            put(&fs, &f, 0, b"content");
            Arc::clone(&fs)
        };
        let late = shared.root().and_then(|root| shared.create(&root, b"late", NewNode::file(0o644), Cred::default()));
        assert!(matches!(late, Err(Error::ReadOnly)), "{late:?}");
        let after =
            Filesystem::mount(dev.clone(), MountOptions { read_only: true, ..options(false) }).expect("mounted");
        assert!(!after.superblock().needs_recovery(), "clean");
        assert_eq!(content_of(&after, "f").expect("there"), b"content");
    }
}

#[test]
fn an_abandoned_mount_is_a_power_cut() {
    let dev = device();
    let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
    let f = create(&fs, "f");
    drop(f);
    fs.abandon();
    let after = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
    assert_eq!(content_of(&after, "f"), None, "no caller waited for it");
}

/// A shutdown retains the content of the log, refuses later operations, and does not mark the image as damaged. The
/// unmount after it has nothing to do.
#[test]
fn a_shutdown_is_a_power_cut_after_a_commit() {
    for (threads, frozen) in [(true, false), (false, false), (true, true)] {
        let dev = device();
        let fs = Filesystem::mount(dev.clone(), options(threads)).expect("mounted");
        let f = create(&fs, "f");
        put(&fs, &f, 0, b"content");
        if frozen {
            fs.freeze().expect("frozen");
        }
        fs.shut_down().expect("shut down");
        let root = fs.root().expect("root");
        let late = fs.create(&root, b"late", NewNode::file(0o644), Cred::default());
        assert!(matches!(late, Err(Error::ReadOnly)), "{late:?}");
        let fsync = fs.fsync(&f, false);
        assert!(matches!(fsync, Err(Error::Lost { .. })), "{fsync:?}");
        drop((root, f));
        fs.unmount().expect("nothing is left to fail");
        let after = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
        assert_eq!(after.superblock().raw().s_error_count.get(), 0);
        let content = content_of(&after, "f").expect("its name was logged");
        assert!(content.is_empty() || content == b"content", "{content:?}");
        assert_eq!(content.is_empty(), !frozen, "delayed data is lost, unless a freeze has written it");
        assert_eq!(content_of(&after, "late"), None);
    }
}

/// A shutdown does not hide an earlier loss.
#[test]
fn a_shutdown_reports_earlier_losses() {
    let faulty = Arc::new(extant_block::device::FaultyDevice::new(device()));
    let fs = Filesystem::mount(faulty.clone(), options(true)).expect("mounted");
    create(&fs, "f");
    faulty.inject(extant_block::device::Fault::eio().op(extant_block::BioOp::Write));
    assert!(fs.shut_down().is_err());
    assert!(fs.unmount().is_err());
}

#[test]
fn a_dropped_mount_reports_lost_writes() {
    let (tell, said) = std::sync::mpsc::channel();
    let messages = Messages::new(move |m| tell.send(m.to_owned()).expect("there"));
    let faulty = Arc::new(extant_block::device::FaultyDevice::new(device()));
    {
        let fs = Filesystem::mount(faulty.clone(), MountOptions { messages, ..options(true) }).expect("mounted");
        create(&fs, "f");
        faulty.inject(extant_block::device::Fault::eio().op(extant_block::BioOp::Write));
    }
    let said: Vec<String> = said.try_iter().collect();
    assert!(said.iter().any(|m| m.contains("unmount: ")), "{said:?}");
}

/// The thread that frees inodes dies while freeing one: no thread waits for it forever, and nothing is acknowledged
/// any more.
#[test]
fn a_thread_that_panics_stops_the_mount() {
    bounded(|| {
        let dev = Arc::new(extant_block::device::FaultyDevice::new(Arc::new(image(64, EXT4, &[]))));
        {
            let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
            preallocate(&fs, &create(&fs, "f"), 0, 40 << 20);
        }
        let messages = Messages::new(|m| assert!(!m.contains("Input/output"), "a panic in the sink of messages: {m}"));
        let fs = Filesystem::mount(dev.clone(), MountOptions { messages, ..options(true) }).expect("mounted");
        let root = fs.root().expect("root");
        let f = fs.lookup(&root, b"f").expect("there");
        fs.unlink(&root, b"f").expect("unlink");
        dev.inject(extant_block::device::Fault::eio().op(extant_block::BioOp::Read));
        drop(f);
        let clock = extant_base::clock::Clock::real();
        while fs.sync().is_ok() {
            assert!(clock.now_ns() < 30_000_000_000, "the mount still works");
            clock.sleep(std::time::Duration::from_millis(5));
        }
        assert!(fs.unmount().is_err());
    });
}

/// Freeing a file with blocks in many groups requests more credits in the middle of a change of its map. (Debug
/// builds check the order of locks. This once stopped the thread that frees inodes.)
#[test]
fn a_file_over_many_groups_is_freed() {
    bounded(|| {
        let dev = Arc::new(image(256, &["-q", "-F", "-t", "ext4", "-b", "1024"], &[]));
        let fs = Filesystem::mount(dev, options(true)).expect("mounted");
        let root = fs.root().expect("root");
        let free = fs.statfs().blocks_free;
        preallocate(&fs, &create(&fs, "f"), 0, 200 << 20);
        fs.unlink(&root, b"f").expect("unlink");
        fs.unmount().expect("unmount");
        assert!(fs.statfs().blocks_free + 8 >= free, "{} of {free}", fs.statfs().blocks_free);
    });
}
