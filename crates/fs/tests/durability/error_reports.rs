//! The cost of errors for the device and the log, however often they occur.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::damaged::*;
use extant_base::clock::Clock;
use extant_block::BlockDevice;
use extant_block::device::MemDevice;
use extant_fs::{Cred, Error, Filesystem, Messages, MountOptions, NewNode, OnError};
use extant_ondisk::InodeNr;
use extant_ondisk::superblock::FsState;

const INTERVAL: Duration = Duration::from_secs(5);

/// An image with one file whose inode is damaged, and one whose attributes are.
fn damaged_twice(kind: &[&str]) -> Arc<MemDevice> {
    let mut inodes = Vec::new();
    let dev = made(kind, |fs, root| {
        for name in [b"f", b"g"] {
            let f = fs.create(root, name, NewNode::file(0o644), Cred::default()).expect("create");
            fs.set_xattr(&f, b"user.x", b"value", extant_fs::SetMode::Any).expect("xattr");
            inodes.push(f.ino);
        }
    });
    // A damaged map, and damaged attributes.
    edit_inode(&dev, inodes[0], |slot| slot[40..60].fill(0x77));
    edit_inode(&dev, inodes[1], |slot| {
        let at = 128 + 4 + usize::from(u16::from_le_bytes([slot[128], slot[129]]));
        slot[at + 2..at + 4].copy_from_slice(&[0xFF, 0xFF]);
    });
    dev
}

/// Writes and flushes that the device has seen.
fn cost(dev: &MemDevice) -> (u64, u64) {
    let stats = dev.stats();
    (stats.writes, stats.flushes)
}

/// stat(2) on a damaged inode in a loop neither fills the log nor keeps the device busy.
#[test]
fn ten_thousand_errors_cost_a_few_writes_and_lines() {
    const TIMES: u32 = 10_000;
    for kind in KINDS {
        for errors in [OnError::Continue, OnError::RemountReadOnly] {
            let what = format!("{kind:?}, {errors:?}");
            let dev = damaged_twice(kind);
            let (log, heard) = mpsc::channel::<String>();
            let (said, clock) = (RefCell::new(Vec::new()), Clock::virtual_at(1_000_000));
            let options = MountOptions {
                errors: Some(errors),
                clock: clock.clone(),
                messages: Messages::new(move |line| log.send(line.to_owned()).expect("heard")),
                ..options()
            };
            let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
            let root = fs.root().expect("root");
            let before = cost(&dev);
            let meet = |times: u32| {
                for _ in 0..times {
                    assert!(matches!(fs.lookup(&root, b"f"), Err(Error::Corrupt { .. })), "{what}");
                }
            };
            meet(TIMES);
            let (writes, flushes) = cost(&dev);
            // The superblock, and the journal's superblock when it stops.
            assert!(writes - before.0 <= 2 && flushes - before.1 <= 4, "{what}: {writes} {flushes} after {before:?}");
            assert!(super_of(&dev).state().contains(FsState::ERROR), "{what}: at once");
            let lines = || {
                said.borrow_mut().extend(heard.try_iter());
                said.borrow().len()
            };
            assert!((1..=12).contains(&lines()), "{what}: {} lines", lines());
            // Another kind of damage is reported again.
            let g = fs.lookup(&root, b"g").expect("its inode is whole");
            let known = (lines(), super_of(&dev).raw().s_error_count.get());
            assert!(matches!(fs.get_xattr(&g, b"user.x"), Err(Error::Corrupt { .. })), "{what}");
            let raw_count = |dev: &MemDevice| super_of(dev).raw().s_error_count.get();
            assert_eq!((known.1, raw_count(&dev)), (1, TIMES + 1), "{what}");
            assert!(lines() > known.0 && said.borrow()[known.0].contains("messages of errors suppressed"), "{what}");
            // Later the device and the log get another report.
            clock.advance(INTERVAL);
            let known = lines();
            meet(1);
            assert_eq!((raw_count(&dev), lines()), (TIMES + 2, known + 1), "{what}");
            meet(3);
            assert_eq!(raw_count(&dev), TIMES + 2, "{what}");
            clock.advance(INTERVAL);
            if errors == OnError::Continue {
                fs.step();
                assert_eq!(raw_count(&dev), TIMES + 5, "{what}: without another error");
            }
            meet(1);
            drop((root, g));
            let _ = fs.unmount();
            let sb = super_of(&dev);
            assert_eq!(sb.raw().s_error_count.get(), TIMES + 6, "{what}");
            assert_eq!(sb.raw().s_first_error_ino.get(), sb.raw().s_last_error_ino.get(), "{what}");
            assert!(InodeNr(sb.raw().s_first_error_ino.get()) > InodeNr(11), "{what}");
        }
    }
}
