//! A mount that has stopped writing, because the image is damaged or its log cannot be written, reports that to every
//! caller that requires durability; and the image records the error.

use std::sync::Arc;

use crate::common::*;
use extant_block::device::{Catch, Fault, FaultyDevice, MemDevice};
use extant_block::{BioFlags, BioOp, BlockDevice};
use extant_fs::{Error, Filesystem, InodeRef, MountOptions, NewNode, OnError, WriteFlags, probe_superblock};
use extant_ondisk::superblock::FsState;

/// A mount with a directory whose block is damaged.
fn damaged(errors: OnError) -> Scene {
    damaged_of(EXT4, errors)
}

fn damaged_of(kind: &[&str], errors: OnError) -> Scene {
    let disk = Disk::new(64, kind);
    let needle = "a-name-that-is-nowhere-else";
    {
        let scene = disk.mount(production());
        let root = scene.root().expect("root");
        let dir = scene.create(&root, b"dir", NewNode::directory(0o755), Default::default()).expect("mkdir");
        drop(scene.create(&dir, needle.as_bytes(), NewNode::file(0o644), Default::default()).expect("create"));
        drop(dir);
        scene.unmount().expect("unmount");
    }
    let places = disk.blocks_with(needle.as_bytes());
    assert!(!places.is_empty());
    for at in places {
        disk.crash.write_at(at, &[&[0xEE; BLOCK as usize]], BioFlags::FUA).expect("damaged");
    }
    disk.mount(MountOptions { errors: Some(errors), ..production() })
}

fn look_at_the_damage(fs: &Filesystem) {
    let dir = fs.lookup(&fs.root().expect("root"), b"dir").expect("the directory");
    fs.lookup(&dir, b"x").expect_err("a damaged block");
}

/// Requests durability in every way, each on its own mount. Returns the false acknowledgements.
fn untrue(make: impl Fn() -> (Scene, InodeRef), stop: impl Fn(&Scene)) -> Vec<String> {
    let mut wrong = Vec::new();
    for ack in ACKS {
        let (scene, f) = make();
        put(&scene, &f, 0, &[7; 10_000]);
        stop(&scene);
        for again in 0..2 {
            let result = ack.ask(&scene, &f);
            let there = content_of(&scene.disk.after_cut(), "precious").unwrap_or_default();
            if result.is_ok() && there != [7; 10_000] {
                wrong.push(format!("{ack:?}, call {again}: ok, {} of 10000 bytes are there", there.len()));
            }
            if ack == Ack::Unmount {
                break;
            }
        }
        if ack != Ack::Unmount {
            let result = scene.unmount();
            let there = content_of(&scene.disk.after_cut(), "precious").unwrap_or_default();
            if result.is_ok() && there != [7; 10_000] {
                wrong.push(format!("unmount after {ack:?}: ok, {} of 10000 bytes are there", there.len()));
            }
        }
    }
    wrong
}

#[test]
fn a_mount_that_damage_made_read_only_acknowledges_nothing() {
    bounded(|| {
        let make = || {
            let scene = damaged(OnError::RemountReadOnly);
            let f = create(&scene, "precious");
            (scene, f)
        };
        let wrong = untrue(make, |scene| {
            look_at_the_damage(scene);
            assert!(scene.is_read_only());
        });
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn a_mount_whose_journal_has_stopped_acknowledges_nothing() {
    bounded(|| {
        let make = || {
            let scene = Disk::new(64, EXT4).mount(production());
            let f = create(&scene, "precious");
            (scene, f)
        };
        let wrong = untrue(make, |scene| {
            scene.disk.held.catch(Catch::fail(EIO).writes().meta());
            scene.sync().expect_err("the log cannot be written");
            scene.disk.held.clear();
        });
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn a_commit_that_fails_without_threads_stops_the_journal() {
    bounded(|| {
        let disk = Disk::new(64, &["-t", "ext4", "-N", "20000", "-J", "size=4"]);
        let scene = disk.mount(MountOptions { threads: false, ..production() });
        // The log fails once, in a commit for a thread that needs room in it.
        scene.disk.held.catch(Catch::fail(EIO).writes().meta());
        let root = scene.root().expect("root");
        let mut n = 0;
        while scene.create(&root, format!("a{n}").as_bytes(), NewNode::file(0o644), Default::default()).is_ok() {
            n += 1;
            assert!(n < 20_000, "no commit was needed");
        }
        scene.disk.held.clear();
        let mut acknowledged = Vec::new();
        for i in 0..10 {
            let name = format!("b{i}");
            let Ok(f) = scene.create(&root, name.as_bytes(), NewNode::file(0o644), Default::default()) else {
                continue;
            };
            if scene.write(&f, 0, b"hello", WriteFlags::default()).is_ok() && scene.fsync(&f, false).is_ok() {
                acknowledged.push(name);
            }
        }
        let cut = scene.disk.after_cut();
        let lost = acknowledged.iter().filter(|name| content_of(&cut, name).as_deref() != Some(b"hello")).count();
        assert_eq!(lost, 0, "lost, of {} files whose fsync succeeded after the log had failed", acknowledged.len());
    });
}

#[test]
fn an_error_is_recorded_in_the_image_at_once() {
    bounded(|| {
        for errors in [OnError::Continue, OnError::RemountReadOnly] {
            let scene = damaged(errors);
            look_at_the_damage(&scene);
            let cut = std::sync::Arc::new(scene.disk.crash.durable().expect("state"));
            let raw = probe_superblock(&*cut).expect("superblock").0;
            // Or it is in the log.
            let options = MountOptions { read_only: true, ..MountOptions::default() };
            let replayed = Filesystem::mount(cut, options).expect("mounted").superblock();
            let seen = [raw, replayed].map(|sb| (sb.state().contains(FsState::ERROR), sb.error_count()));
            assert!(
                seen.iter().any(|(error, count)| *error && *count > 0),
                "{errors:?}: after a power cut the superblock says (error, count) {seen:?}"
            );
        }
    });
}

/// `errors=continue`: the log contains a superblock older than the error. Its replay must not overwrite the error in
/// the image, not even before the mount continues.
#[test]
fn a_replay_does_not_undo_a_recorded_error() {
    bounded(|| {
        let descriptors = BLOCK..2 * BLOCK;
        let faults = [Fault::eio().op(BioOp::Flush), Fault::eio().op(BioOp::Read).range(descriptors)];
        for fault in faults {
            let scene = damaged_of(&["-t", "ext4", "-b", "4096", "-O", "^orphan_file"], OnError::Continue);
            // The head of the list of orphans is in the superblock.
            let _open = create(&scene, "open");
            scene.unlink(&scene.root().expect("root"), b"open").expect("unlink");
            scene.sync_names().expect("logged");
            look_at_the_damage(&scene);
            let cut = Arc::new(scene.disk.crash.durable().expect("state"));
            let told = |dev: &MemDevice| {
                let sb = probe_superblock(dev).expect("superblock").0;
                (sb.state().contains(FsState::ERROR), sb.error_count(), sb.raw().s_first_error_ino.get())
            };
            let before = told(&cut);
            assert!(before.0 && before.1 == 1 && before.2 > 0, "{before:?}");
            let faulty = Arc::new(FaultyDevice::new(cut.clone()));
            faulty.inject(fault);
            assert!(Filesystem::mount(faulty, production()).is_err());
            assert_eq!(told(&cut), before);
            let read_only = MountOptions { read_only: true, ..production() };
            let fs = Filesystem::mount(cut, read_only).expect("mounted");
            assert!(fs.superblock().state().contains(FsState::ERROR));
        }
    });
}

#[test]
fn an_operation_that_panics_is_not_committed_in_part() {
    bounded(|| {
        let disk = Disk::new(64, GROUPS);
        let scene = disk.mount(production());
        let root = scene.root().expect("root");
        drop(create(&scene, "before"));
        scene.sync().expect("sync");
        // mkdir reads the bitmap for its inode number, then the one for its block: the second read panics.
        scene.disk.held.catch(Catch::panic().reads().meta().after(1).once());
        let fs = scene.shared();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            fs.create(&root, b"dir", NewNode::directory(0o755), Default::default()).map(drop)
        }));
        assert!(panicked.is_err(), "mkdir reads no second bitmap");
        scene.disk.held.clear();
        let result = scene.sync().map_err(|e| e.to_string());
        let found = complaints(scene.disk.crash.durable().expect("state"));
        assert!(found.is_none(), "sync {result:?}; e2fsck after a power cut: {}", found.unwrap_or_default());
    });
}

/// Returns the number of an inode that has been deleted, as in a file handle.
fn by_number(fs: &Filesystem, f: InodeRef) -> extant_ondisk::InodeNr {
    let ino = f.ino;
    drop(f);
    fs.unlink(&fs.root().expect("root"), b"gone").expect("unlink");
    fs.serving().reap();
    ino
}

#[test]
fn a_handle_of_a_deleted_inode_is_stale_and_does_no_harm() {
    bounded(|| {
        for remount in [false, true] {
            let disk = Disk::new(64, EXT4);
            let mut scene = disk.mount(MountOptions { errors: Some(OnError::RemountReadOnly), ..production() });
            let f = create(&scene, "gone");
            put(&scene, &f, 0, &[1; 20_000]);
            scene.fsync(&f, false).expect("fsync");
            let ino = by_number(&scene, f);
            scene.sync().expect("sync");
            if remount {
                scene.unmount().expect("unmount");
                drop(scene);
                scene = disk.mount(MountOptions { errors: Some(OnError::RemountReadOnly), ..production() });
            }
            let answer = scene.iget(ino).map(|_| ());
            assert!(matches!(answer, Err(Error::Stale(_))), "{answer:?}");
            scene.serving().reap();
            // The eviction thread may hold it.
            let f = create_or_say(&scene, remount);
            scene.fsync(&f, false).expect("fsync");
            drop(f);
            assert!(!scene.is_read_only());
            scene.unmount().expect("unmount");
            assert_eq!(complaints(scene.disk.crash.durable().expect("state")), None);
        }
    });
}

fn create_or_say(scene: &Scene, remount: bool) -> InodeRef {
    let root = scene.root().expect("root");
    scene
        .create(&root, b"next", NewNode::file(0o644), Default::default())
        .unwrap_or_else(|e| panic!("after a stale handle (mounted again: {remount}): create: {e}"))
}

/// A directory whose only block is full.
fn full_directory(fs: &Filesystem, block: u64) -> InodeRef {
    let root = fs.root().expect("root");
    let dir = fs.create(&root, b"full", NewNode::directory(0o755), Default::default()).expect("mkdir");
    for i in 0.. {
        let name = format!("{i:0>240}");
        drop(fs.create(&dir, name.as_bytes(), NewNode::file(0o644), Default::default()).expect("create"));
        if fs.getattr(&dir).size > block {
            fs.unlink(&dir, name.as_bytes()).expect("unlink");
            panic!("a second block before the first was full");
        }
        // Entries of 248 bytes after "." and "..", before a checksum.
        if (i + 2) * 248 + 24 + 12 > block {
            return dir;
        }
    }
    unreachable!()
}

#[test]
fn a_link_that_fails_during_the_unlink_of_the_last_name_leaves_an_orphan() {
    bounded(|| {
        let disk = Disk::new(64, GROUPS);
        {
            let scene = disk.mount(production());
            drop(full_directory(&scene, BLOCK));
            let f = create(&scene, "only");
            put(&scene, &f, 0, &[1; 20_000]);
            drop(f);
            scene.unmount().expect("unmount");
        }
        let scene = disk.mount(production());
        let root = scene.root().expect("root");
        let (dir, f) = (scene.lookup(&root, b"full").expect("full"), scene.lookup(&root, b"only").expect("only"));
        // The blocks that both operations look up are in memory.
        assert!(scene.lookup(&dir, b"x").is_err());
        // The new name needs a block, but the bitmap for it is unreadable.
        scene.disk.held.catch(Catch::hold().reads().meta());
        let (fs, d, g) = (scene.shared(), dir.clone(), f.clone());
        let linking = start("link", move || fs.link(&g, &d, "n".repeat(240).as_bytes()));
        assert!(scene.disk.held.wait_held(1, LONG), "link reads no bitmap");
        scene.disk.held.clear();
        let fs = scene.shared();
        let mut unlinking = start("unlink", move || fs.unlink(&fs.root().expect("root"), b"only"));
        unlinking.ends_within(10 * GRACE);
        scene.disk.held.catch(Catch::fail(EIO).reads().meta());
        for r in scene.disk.held.held() {
            scene.disk.held.fail(r.id, EIO);
        }
        linking.join().expect_err("no block can be allocated");
        scene.disk.held.clear();
        unlinking.join().expect("unlink");
        let _ = scene.sync();
        // The file is open when the power fails.
        let cut: MemDevice = scene.disk.crash.durable().expect("state");
        let found = complaints(cut).unwrap_or_default();
        drop((f, dir));
        // An orphan must appear there, unless the mount was configured to distrust the orphans of a damaged image.
        assert!(!found.contains("Unattached inode"), "e2fsck after a power cut: {found}");
    });
}

/// The data is on the device, but nothing can point to it any more: the file's size must not change.
#[test]
fn a_write_that_cannot_be_mapped_does_not_extend_the_file() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production_through());
        let f = create(&scene, "f");
        scene.fsync(&f, false).expect("fsync");
        scene.disk.held.catch(Catch::hold().writes().data());
        let (fs, g) = (scene.shared(), f.clone());
        let writer = start("writer", move || fs.write(&g, 1 << 20, &[1; 65536], WriteFlags::default()));
        assert!(scene.disk.held.wait_held(1, LONG), "nothing is written");
        scene.abort("a test");
        scene.disk.held.let_go();
        writer.join().expect_err("aborted");
        assert_eq!(scene.getattr(&f).size, 0);
    });
}
