//! A mount that nobody unmounts: what was acknowledged is there afterwards.

mod common;

use std::sync::Arc;

use common::*;
use extant_block::device::MemDevice;
use extant_fs::{Error, Filesystem, Messages, MountOptions};

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
        let root = shared.root();
        assert!(root.is_err() || matches!(shared.sync(), Err(Error::ReadOnly) | Ok(())), "ended");
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
    assert_eq!(content_of(&after, "f"), None, "nobody waited for it");
}

#[test]
fn a_dropped_mount_says_what_it_lost() {
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
