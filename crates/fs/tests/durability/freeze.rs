//! Freezing, remounting and unmounting: one after the other, however they are called, with nothing acknowledged that is
//! then lost, and nobody left waiting.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::{sim, task};
use extant_block::device::{Catch, CrashDevice, Fault, FaultyDevice, HeldDevice, MemDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{
    BorrowJournal, Cred, Error, Filesystem, MountOptions, NewNode, OnError, SetAttr, SetTime, probe_superblock,
};
use extant_ondisk::features::Compat;
use extant_ondisk::superblock::FsState;

const EXT2: &[&str] = &["-t", "ext2", "-b", "4096"];

fn device(args: &[&str]) -> Arc<MemDevice> {
    // A journal is lent where it takes at most a quarter of what is free.
    Arc::new(image(if args == EXT2 { 64 } else { 16 }, args, &[]))
}

fn options(threads: bool) -> MountOptions {
    MountOptions { threads, seed: Some(1), ..MountOptions::default() }
}

fn try_create(fs: &Filesystem, name: &str) -> extant_fs::Result<()> {
    fs.create(&fs.root()?, name.as_bytes(), NewNode::file(0o644), Cred::default()).map(drop)
}

fn unlink(fs: &Filesystem, name: &str) {
    fs.unlink(&fs.root().expect("root"), name.as_bytes()).expect("unlink");
}

/// Gives others the time to come to where they have to wait.
fn pause() {
    Clock::real().sleep(Duration::from_millis(100));
}

fn bytes_of(dev: &MemDevice) -> Vec<u8> {
    let mut all = vec![0; dev.size_bytes() as usize];
    dev.read_at(0, &mut all, BioFlags::empty()).expect("memory");
    all
}

#[test]
fn a_frozen_mount_does_not_become_writable() {
    bounded(|| {
        let dev = device(EXT4);
        let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
        assert!(fs.freeze().expect("frozen"));
        assert!(matches!(fs.remount(false), Err(Error::Busy(_))));
        assert!(fs.is_frozen() && !fs.freeze().expect("frozen already"));
        assert!(fs.thaw() && !fs.thaw());
        // Frozen while it is read-only.
        fs.remount(true).expect("read-only");
        assert!(fs.freeze().expect("frozen"));
        assert!(matches!(fs.remount(false), Err(Error::Busy(_))));
        assert!(!probe_superblock(&*dev).expect("superblock").0.needs_recovery());
        assert!(fs.thaw());
        fs.remount(false).expect("writable");
        try_create(&fs, "f").expect("create");
        // Read-only while it is frozen: whoever waits is told.
        assert!(fs.freeze().expect("frozen"));
        let waits = start("create", {
            let fs = Arc::clone(&fs);
            move || try_create(&fs, "late")
        });
        pause();
        fs.remount(true).expect("read-only");
        assert!(matches!(waits.join(), Err(Error::ReadOnly)));
        assert!(!fs.is_frozen());
        fs.unmount().expect("unmount");
        assert!(matches!(fs.freeze(), Err(Error::ReadOnly)));
        crate::common::tools::assert_clean(&dev);
    });
}

/// One thread is about to freeze, with everything still to be written, when another comes.
fn while_freezing(other: fn(&Filesystem) -> bool) -> (Scene, extant_fs::Result<bool>, bool) {
    let scene = Disk::new(64, EXT4).mount(production());
    let f = create(&scene, "f");
    put(&scene, &f, 0, &[7; 20_000]);
    drop(f);
    scene.disk.held.catch(Catch::hold().writes());
    let freezing = start("freeze", {
        let fs = scene.shared();
        move || fs.freeze()
    });
    assert!(scene.disk.held.wait_held(1, LONG), "nothing is written");
    let mut second = start("the other", {
        let fs = scene.shared();
        move || other(&fs)
    });
    second.ends_within(GRACE);
    scene.disk.held.let_go();
    let frozen = freezing.join();
    let second = second.join();
    (scene, frozen, second)
}

#[test]
fn a_remount_waits_for_who_freezes() {
    bounded(|| {
        let (scene, frozen, remounted) = while_freezing(|fs| fs.remount(true).is_ok());
        assert!(matches!(frozen, Ok(true)), "{frozen:?}");
        assert!(remounted && scene.is_read_only() && !scene.is_frozen());
        let cut = scene.disk.after_cut();
        assert_eq!(content_of(&cut, "f").map(|c| c.len()), Some(20_000), "it was acknowledged");
        scene.unmount().expect("unmount");
    });
}

#[test]
fn a_thaw_waits_for_who_freezes() {
    bounded(|| {
        let (scene, frozen, thawed) = while_freezing(Filesystem::thaw);
        assert!(matches!(frozen, Ok(true)) && thawed);
        let creates = start("create", {
            let fs = scene.shared();
            move || try_create(&fs, "after")
        });
        creates.join().expect("the mount runs again");
        scene.sync().expect("sync");
        assert!(content_of(&scene.disk.after_cut(), "after").is_some());
        scene.unmount().expect("unmount");
    });
}

#[test]
fn an_unmount_waits_for_who_freezes() {
    bounded(|| {
        let (scene, frozen, unmounted) = while_freezing(|fs| fs.unmount().is_ok());
        assert!(matches!(frozen, Ok(true)) && unmounted && !scene.is_frozen());
        let cut = scene.disk.after_cut();
        assert_eq!(content_of(&cut, "f").map(|c| c.len()), Some(20_000));
    });
}

/// A change that waits at the gate when the mount is cut off never happens, and is not called durable.
#[test]
fn a_change_that_waits_at_a_frozen_mount_is_refused_once_the_mount_is_abandoned() {
    bounded(|| {
        for panics in [false, true] {
            let dev = device(EXT4);
            let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
            let shared = Arc::clone(&fs);
            let f = create(&shared, "before");
            assert!(fs.freeze().expect("frozen"));
            let writes = start("write and fsync", {
                let (fs, f) = (shared.clone(), f.clone());
                move || {
                    let written = try_create(&fs, "late");
                    (written, fs.fsync(&f, false))
                }
            });
            pause();
            if panics {
                start("panics", move || {
                    let _fs = fs;
                    std::panic::panic_any("on purpose, with a frozen mount");
                })
                .ends_within(LONG);
            } else {
                fs.abandon();
            }
            let (written, synced) = writes.join();
            assert!(matches!(written, Err(Error::ReadOnly)), "{panics}: {written:?}");
            assert!(synced.is_err(), "{panics}: durable on a mount that was cut off");
            assert!(shared.unmount().is_err());
            // As it was frozen.
            crate::common::tools::assert_clean(&dev);
            let after = remounted(dev.snapshot());
            assert!(content_of(&after, "late").is_none() && content_of(&after, "before").is_some());
        }
    });
}

/// Another operation comes while the last steps of an unmount wait for the write of the superblock.
#[test]
fn an_operation_during_an_unmount_is_refused_and_does_not_hang() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let f = create(&scene, "f");
        put(&scene, &f, 0, b"content");
        scene.sync().expect("sync");
        chmod(&scene, &f, 0o600).expect("chmod");
        // The last transaction is in the log; the superblock of the file system follows.
        let held = &scene.disk.held;
        held.catch(Catch::hold().writes().range(1024..2048).once());
        let unmounts = start("unmount", {
            let fs = scene.shared();
            move || fs.unmount()
        });
        assert!(held.wait_held(1, LONG), "the superblock is not written");
        let (fs, g) = (scene.shared(), f.clone());
        let mut syncs = start("fsync", move || fs.fsync(&g, false));
        let fs = scene.shared();
        let mut creates = start("create", move || try_create(&fs, "late"));
        let fs = scene.shared();
        let mut again = start("second unmount", move || fs.unmount());
        assert!(!again.ends_within(GRACE), "the first has not ended");
        creates.ends_within(GRACE);
        syncs.ends_within(GRACE);
        held.let_go();
        unmounts.join().expect("unmount");
        again.join().expect("as the first");
        assert!(matches!(creates.join(), Err(Error::ReadOnly)), "it would be gone");
        let _ = syncs.join();
        assert_eq!(content_of(&scene.disk.after_cut(), "late"), None);
    });
}

#[test]
fn a_failed_unmount_is_told_again() {
    let faulty = Arc::new(FaultyDevice::new(device(EXT4)));
    let fs = Filesystem::mount(faulty.clone(), options(true)).expect("mounted");
    try_create(&fs, "f").expect("create");
    faulty.inject(Fault::eio().op(BioOp::Write));
    assert!(fs.unmount().is_err());
    assert!(fs.unmount().is_err(), "nothing has become better");
}

/// A remounted mount whose borrowed journal cannot be given back ends all the same.
#[test]
fn an_unmount_that_cannot_begin_ends_the_mount() {
    bounded(|| {
        let faulty = Arc::new(FaultyDevice::new(device(EXT2)));
        let lent = MountOptions { borrow_journal: BorrowJournal::Always, ..options(true) };
        let fs = Filesystem::mount(faulty.clone(), lent).expect("mounted");
        assert!(fs.has_borrowed_journal());
        fs.remount(true).expect("read-only");
        faulty.inject(Fault::eio().op(BioOp::Write));
        assert!(fs.unmount().is_err());
        let weak = Arc::downgrade(&fs);
        drop(fs);
        // Its threads look for it ten times a second, unless they have ended.
        Clock::real().sleep(Duration::from_millis(300));
        assert!(weak.upgrade().is_none());
        assert_eq!(Arc::strong_count(&faulty), 1, "a thread of the mount still has the device");
    });
}

/// An image with directories `dir` and `other` whose blocks are damaged.
fn with_damage(args: &[&str]) -> Arc<MemDevice> {
    let dev = device(args);
    let needle = "a-name-that-is-nowhere-else";
    {
        let fs = Filesystem::mount(dev.clone(), options(false)).expect("mounted");
        let root = fs.root().expect("root");
        for name in [b"dir".as_slice(), b"other"] {
            let dir = fs.create(&root, name, NewNode::directory(0o755), Cred::default()).expect("mkdir");
            fs.create(&dir, needle.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create");
        }
    }
    // The directories' blocks, and their copies in the log, which nobody looks at.
    for (n, block) in bytes_of(&dev).chunks(BLOCK as usize).enumerate() {
        if block.windows(needle.len()).any(|w| w == needle.as_bytes()) {
            dev.write_at(n as u64 * BLOCK, &[&[0xEE; BLOCK as usize]], BioFlags::empty()).expect("memory");
        }
    }
    dev
}

fn meet_damage(fs: &Filesystem) {
    meet_damage_in(fs, "dir");
}

fn meet_damage_in(fs: &Filesystem, name: &str) {
    let dir = fs.lookup(&fs.root().expect("root"), name.as_bytes()).expect("dir");
    fs.lookup(&dir, b"x").expect_err("a damaged block");
}

fn has_error(dev: &dyn BlockDevice) -> bool {
    probe_superblock(dev).expect("superblock").0.state().contains(FsState::ERROR)
}

/// `errors=remount-ro`, and damage that is met when the mount is read-only already.
#[test]
fn damage_met_while_remounted_read_only_writes_nothing() {
    let dev = with_damage(EXT4);
    let options = MountOptions { errors: Some(OnError::RemountReadOnly), ..options(true) };
    let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
    fs.remount(true).expect("read-only");
    let before = bytes_of(&dev);
    meet_damage(&fs);
    assert!(bytes_of(&dev) == before, "a read-only mount has written");
    // Nothing was lost by it: the mount may write again, and then tells the superblock.
    fs.remount(false).expect("writable");
    try_create(&fs, "f").expect("create");
    fs.unmount().expect("unmount");
    assert!(has_error(&*dev));
    let after = Filesystem::mount(dev, self::options(false)).expect("mounted");
    assert!(content_of(&after, "f").is_some());
}

/// Damage that a frozen mount finds goes to the superblock when the mount is thawed, becomes read-only, or ends.
#[test]
fn damage_met_while_frozen_is_written_when_it_is_not() {
    for errors in [OnError::Continue, OnError::RemountReadOnly] {
        for then in ["thaw", "unmount", "read-only"] {
            let dev = with_damage(EXT4);
            let options = MountOptions { errors: Some(errors), ..options(true) };
            let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
            assert!(fs.freeze().expect("frozen"));
            let before = bytes_of(&dev);
            meet_damage(&fs);
            assert!(bytes_of(&dev) == before, "{errors:?}: a frozen mount has written");
            let goes_on = errors == OnError::Continue;
            match then {
                "thaw" => {
                    assert!(fs.thaw());
                    assert!(has_error(&*dev), "{errors:?}");
                    let in_use = probe_superblock(&*dev).expect("superblock").0.needs_recovery();
                    assert_eq!(in_use, goes_on);
                    assert_eq!(try_create(&fs, "f").is_ok(), goes_on);
                }
                "read-only" if goes_on => {
                    fs.remount(true).expect("read-only");
                    assert!(has_error(&*dev), "{errors:?}");
                    assert!(!probe_superblock(&*dev).expect("superblock").0.needs_recovery());
                }
                _ => {}
            }
            assert_eq!(fs.unmount().is_ok(), goes_on, "{errors:?}, {then}");
            assert!(has_error(&*dev), "{errors:?}, {then}");
        }
    }
}

/// A holder of the file system of a mount that failed and was unmounted may still read it. Another process may have the
/// device by then.
#[test]
fn damage_met_after_an_unmount_writes_nothing() {
    for errors in [OnError::RemountReadOnly, OnError::Continue] {
        for first in ["dir", "none"] {
            let dev = with_damage(EXT4);
            let faulty = Arc::new(FaultyDevice::new(dev.clone()));
            let options = MountOptions { errors: Some(errors), ..options(true) };
            let fs = Filesystem::mount(faulty.clone(), options).expect("mounted");
            if first == "dir" {
                meet_damage(&fs);
            } else {
                // The unmount fails instead.
                try_create(&fs, "f").expect("create");
                faulty.inject(Fault::eio().op(BioOp::Flush).once());
            }
            assert_eq!(fs.unmount().is_err(), first == "none" || errors == OnError::RemountReadOnly);
            assert!(has_error(&*dev), "{errors:?}, {first}");
            let before = bytes_of(&dev);
            meet_damage_in(&fs, "other");
            assert!(bytes_of(&dev) == before, "{errors:?}, {first}: written after the unmount");
        }
    }
}

/// A mount is cut off because another process may have the device: also one that has failed, running or frozen.
#[test]
fn damage_met_after_a_mount_was_cut_off_writes_nothing() {
    for errors in [OnError::RemountReadOnly, OnError::Continue] {
        for first in ["damage", "frozen, damage", "none"] {
            let dev = with_damage(EXT4);
            let options = MountOptions { errors: Some(errors), ..options(true) };
            let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
            if first.starts_with("frozen") {
                assert!(fs.freeze().expect("frozen"));
            }
            if first.ends_with("damage") {
                meet_damage(&fs);
            }
            fs.cut_off();
            let before = bytes_of(&dev);
            meet_damage_in(&fs, "other");
            assert!(fs.unmount().is_err());
            assert!(bytes_of(&dev) == before, "{errors:?}, {first}: written after the end");
        }
    }
}

/// `errors=remount-ro`, and the mount fails while it is being turned read-only: the journal knows, and the image.
#[test]
fn a_mount_that_fails_on_its_way_to_read_only_says_so() {
    bounded(|| {
        let scene = damaged_scene(MountOptions { errors: Some(OnError::RemountReadOnly), ..production() });
        scene.sync().expect("sync");
        // The log's own superblock: nothing else is left to write.
        scene.disk.held.catch(Catch::hold().writes().meta().once());
        let fs = scene.shared();
        let remount = start("remount", move || fs.remount(true));
        assert!(scene.disk.held.wait_held(1, LONG), "the log is not emptied");
        meet_damage(&scene);
        scene.disk.held.let_go();
        remount.join().expect_err("failed meanwhile");
        assert!(has_error(&*scene.disk.crash));
        scene.unmount().expect_err("failed");
    });
}

/// The superblock's own bytes, wherever blocks begin.
const SUPERBLOCK: std::ops::Range<u64> = 1024..2048;

fn damaged_scene(options: MountOptions) -> Scene {
    let crash = Arc::new(CrashDevice::from_image(&with_damage(EXT4)));
    let held = Arc::new(HeldDevice::new(crash.clone()).expect("thread"));
    Disk { crash, held }.mount(options)
}

/// A report of damage during a thaw must not replace the mark that the mount is in use by an older superblock.
#[test]
fn damage_met_during_a_thaw_keeps_the_mark() {
    bounded(|| {
        let scene = damaged_scene(MountOptions { errors: Some(OnError::Continue), ..production() });
        assert!(scene.freeze().expect("frozen"));
        let held = &scene.disk.held;
        held.catch(Catch::hold().writes().range(SUPERBLOCK).once());
        let fs = scene.shared();
        let mut reads = start("a reader", move || meet_damage(&fs));
        if reads.ends_within(GRACE) {
            held.clear();
        }
        assert!(scene.thaw());
        held.let_go();
        reads.join();
        let f = create(&scene, "f");
        put(&scene, &f, 0, b"content");
        scene.fsync(&f, false).expect("fsync");
        let cut = scene.disk.after_cut();
        assert_eq!(content_of(&cut, "f").as_deref(), Some(&b"content"[..]), "the log was thrown away");
    });
}

/// The same with an unmount that gives the journal back.
#[test]
fn damage_met_during_an_unmount_does_not_bring_the_journal_back() {
    let image = with_damage(EXT2);
    for seed in 0..60 {
        let dev = Arc::new(image.snapshot());
        let seen = dev.clone();
        let outcome = sim::run(&sim::Options::new(seed), move || {
            let borrow_journal = BorrowJournal::Always;
            let fs = Filesystem::mount(dev, MountOptions { borrow_journal, ..options(false) }).expect("mounted");
            let over = Arc::new(AtomicBool::new(false));
            let reader = |_| {
                let (fs, over) = (Arc::clone(&fs), over.clone());
                let meets = move || {
                    while !over.load(Ordering::Relaxed) {
                        meet_damage(&fs);
                    }
                };
                task::spawn("reader", meets).expect("thread")
            };
            let readers: Vec<_> = (0..3).map(reader).collect();
            meet_damage(&fs);
            fs.unmount().expect("unmount");
            over.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().expect("joined"));
        });
        outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let sb = probe_superblock(&*seen).expect("superblock").0;
        assert!(!sb.compat().contains(Compat::HAS_JOURNAL) && !sb.needs_recovery(), "seed {seed}");
        assert!(sb.state().contains(FsState::ERROR), "seed {seed}: it was met before the unmount");
    }
}

/// A freeze that fails has not unmarked the device. The superblock in memory belongs to a transaction.
#[test]
fn a_freeze_that_fails_leaves_the_superblock_alone() {
    let dev = Arc::new(image(16, &["-t", "ext4", "-b", "4096", "-O", "^orphan_file"], &[]));
    let faulty = Arc::new(FaultyDevice::new(dev.clone()));
    let fs = Filesystem::mount(faulty.clone(), MountOptions { keep_clean: false, ..options(false) }).expect("mounted");
    let (f, _g) = (create(&fs, "f"), create(&fs, "g"));
    fs.sync().expect("sync");
    put(&fs, &f, 0, &[7; 3 * BLOCK as usize]);
    unlink(&fs, "g");
    faulty.inject(Fault::eio().op(BioOp::Write).data());
    let home = |dev: &MemDevice| bytes_of(dev)[1024..2048].to_vec();
    let before = home(&dev);
    assert!(matches!(fs.freeze(), Err(Error::Lost { .. })));
    assert!(home(&dev) == before, "the superblock was written past the log");
    faulty.clear();
    assert!(fs.freeze().expect("told") && fs.thaw());
    try_create(&fs, "h").expect("goes on");
}

/// An operation panicked while the mount was read-only: it writes nothing, and stays so.
#[test]
fn a_mount_aborted_while_read_only_stays_so() {
    let dev = device(EXT4);
    let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
    fs.remount(true).expect("read-only");
    let before = bytes_of(&dev);
    fs.abort("a panic");
    assert!(bytes_of(&dev) == before, "a read-only mount has written");
    assert!(matches!(fs.remount(false), Err(Error::ReadOnly)));
    fs.unmount().expect("unmount");
    crate::common::tools::assert_clean(&dev);
}

/// The same while it is frozen; the thaw tells the device.
#[test]
fn a_mount_aborted_while_frozen_writes_when_it_is_thawed() {
    bounded(|| {
        let dev = device(EXT4);
        let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
        assert!(fs.freeze().expect("frozen"));
        let before = bytes_of(&dev);
        let waits = start("create", {
            let fs = Arc::clone(&fs);
            move || try_create(&fs, "late")
        });
        fs.abort("a panic");
        assert!(bytes_of(&dev) == before, "a frozen mount has written");
        assert!(fs.is_read_only() && fs.sync().is_err());
        assert!(fs.thaw());
        assert!(matches!(waits.join(), Err(Error::ReadOnly)));
        assert!(has_error(&*dev));
        assert!(fs.unmount().is_err());
    });
}

#[test]
fn an_inode_that_loses_its_last_user_while_read_only_is_freed_once_writable() {
    for (args, threads) in [(EXT4, true), (EXT2, true), (EXT4, false), (EXT2, false)] {
        for again in [true, false] {
            let dev = device(args);
            let fs = Filesystem::mount(dev.clone(), options(threads)).expect("mounted");
            let f = create(&fs, "f");
            put(&fs, &f, 0, &[7; 100_000]);
            unlink(&fs, "f");
            fs.remount(true).expect("read-only");
            drop(f);
            if again {
                fs.remount(false).expect("writable");
                fs.sync().expect("sync");
                fs.step();
            }
            let borrowed = fs.has_borrowed_journal();
            fs.unmount().expect("unmount");
            if again || borrowed {
                crate::common::tools::assert_clean(&dev);
                assert_eq!(fs.statistics().inodes().1, 0, "{args:?}");
            }
            let has_journal = probe_superblock(&*dev).expect("superblock").0.compat().contains(Compat::HAS_JOURNAL);
            assert_eq!(has_journal, args == EXT4, "{args:?}, {again}: a borrowed journal was not given back");
        }
    }
}

/// Without a journal, no orphan list records unlinked open files, so the image is not marked clean while there are any.
#[test]
fn without_a_journal_an_image_with_unlinked_files_is_not_clean() {
    for threads in [true, false] {
        let dev = device(EXT2);
        let options = MountOptions { borrow_journal: BorrowJournal::Never, ..options(threads) };
        let fs = Filesystem::mount(dev.clone(), options).expect("mounted");
        let is_clean = || probe_superblock(&*dev).expect("superblock").0.state().contains(FsState::VALID);
        let f = create(&fs, "f");
        put(&fs, &f, 0, &[7; 100_000]);
        unlink(&fs, "f");
        assert!(fs.freeze().expect("frozen"));
        assert!(!is_clean(), "frozen");
        assert!(fs.thaw());
        fs.remount(true).expect("read-only");
        assert!(!is_clean(), "read-only");
        fs.remount(false).expect("writable");
        drop(f);
        fs.remount(true).expect("read-only");
        assert!(is_clean());
        fs.unmount().expect("unmount");
        crate::common::tools::assert_clean(&dev);
    }
}

/// Dirty data of an unlinked file waits for no thread at a frozen mount, and no thread waits for it.
#[test]
fn an_unlinked_file_keeps_nobody_at_a_frozen_mount() {
    bounded(|| {
        for threads in [true, false] {
            let dev = device(EXT4);
            let fs = Filesystem::mount(dev.clone(), options(threads)).expect("mounted");
            let (f, g) = (create(&fs, "f"), create(&fs, "g"));
            put(&fs, &f, 0, b"content");
            unlink(&fs, "f");
            unlink(&fs, "g");
            let times = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
            fs.setattr(&f, &times).expect("futimens");
            assert!(fs.freeze().expect("frozen"));
            let before = bytes_of(&dev);
            let works = start("fsync, and the end of an orphan", {
                let fs = Arc::clone(&fs);
                move || {
                    fs.fsync(&f, false).expect("fsync");
                    let mut byte = [0];
                    fs.read(&f, 0, &mut byte).expect("read");
                    drop(g);
                    fs.serving().reap();
                    if !threads {
                        fs.step();
                    }
                    f
                }
            });
            let f = works.join();
            assert!(bytes_of(&dev) == before);
            assert!(fs.thaw());
            drop(f);
            fs.unmount().expect("unmount");
            assert_eq!(fs.statistics().inodes().1, 0, "freed after the thaw");
            crate::common::tools::assert_clean(&dev);
        }
    });
}

/// Everything at once from many threads: it ends, and what was acknowledged is there.
#[test]
fn freezes_thaws_and_remounts_of_many_threads_end() {
    bounded(|| {
        let dev = device(EXT4);
        let fs = Filesystem::mount(dev.clone(), options(true)).expect("mounted");
        let changers: Vec<_> = (0..3)
            .map(|n| {
                let fs = Arc::clone(&fs);
                start("changes the mount", move || {
                    for round in 0..40 {
                        match (round + n) % 4 {
                            0 => drop(fs.freeze()),
                            1 => drop(fs.remount(true)),
                            2 => drop(fs.remount(false)),
                            _ => drop(fs.thaw()),
                        }
                    }
                })
            })
            .collect();
        let writers: Vec<_> = (0..3)
            .map(|n| {
                let fs = Arc::clone(&fs);
                start("writes", move || {
                    let mut durable = Vec::new();
                    for i in 0..60 {
                        let name = format!("f{n}-{i}");
                        if try_create(&fs, &name).is_ok() && fs.sync_names().is_ok() {
                            durable.push(name);
                        }
                    }
                    durable
                })
            })
            .collect();
        // As a writer, it waits while the mount is frozen.
        let labels = Arc::clone(&fs);
        let labels = start("names it", move || (0..20).for_each(|_| drop(labels.set_label(b"other"))));
        changers.into_iter().for_each(Running::join);
        fs.thaw();
        let _ = fs.remount(false);
        let durable: Vec<String> = writers.into_iter().flat_map(Running::join).collect();
        labels.join();
        fs.unmount().expect("unmount");
        crate::common::tools::assert_clean(&dev);
        let after = Filesystem::mount(dev, options(false)).expect("mounted");
        for name in durable {
            assert!(content_of(&after, &name).is_some(), "{name}");
        }
    });
}

/// A label need not be UTF-8, and is where others look for it, not in the log alone.
#[test]
fn a_label_is_bytes() {
    for threads in [false, true] {
        let dev = device(EXT4);
        let fs = Filesystem::mount(dev.clone(), options(threads)).expect("mounted");
        for label in [&b"caf\xe9"[..], b"", b"sixteen bytes ok"] {
            try_create(&fs, &format!("{}", label.len())).expect("something in the log");
            fs.set_label(label).expect("label");
            assert_eq!(fs.label(), label);
            let mut there = [0; 16];
            dev.read_at(1024 + 120, &mut there, BioFlags::default()).expect("read");
            assert_eq!(there[..label.len()], *label);
            assert!(there[label.len()..].iter().all(|byte| *byte == 0));
        }
        fs.unmount().expect("unmount");
        crate::common::tools::assert_clean(&dev);
    }
}

/// A freeze, say for a copy of the image, reports data that was lost by it or before, but only once.
#[test]
fn freezing_tells_of_lost_data_once() {
    bounded(|| {
        for before in [false, true] {
            let scene = Disk::new(16, EXT4).mount(production());
            let f = create(&scene, "f");
            put(&scene, &f, 0, &[5; 3 * BLOCK as usize]);
            scene.fsync(&f, false).expect("fsync");
            put(&scene, &f, BLOCK, &[6; BLOCK as usize]);
            scene.disk.held.catch(Catch::fail(EIO).writes().data());
            if before {
                scene.fsync(&f, false).expect_err("lost");
            }
            assert!(scene.freeze().is_err(), "{before}");
            assert!(!scene.is_frozen());
            scene.disk.held.let_go();
            assert!(scene.freeze().expect("told"));
            assert!(scene.thaw());
            try_create(&scene, "g").expect("goes on");
        }
    });
}
