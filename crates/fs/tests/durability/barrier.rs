//! Every acknowledgement of durability is true, whatever other threads are doing at that moment: overwrites in
//! flight, inodes that the flusher is about to write. And no caller waits for writes that began after its call.

use std::time::Duration;

use crate::common::*;
use extant_base::clock::Clock;
use extant_block::device::Catch;
use extant_fs::{MountOptions, NewNode};

/// A file of two blocks, durable, with a part of its first block overwritten in memory.
fn overwritten() -> (Scene, extant_fs::InodeRef) {
    let scene = Disk::new(64, EXT4).mount(production());
    let f = create(&scene, "db");
    put(&scene, &f, 0, &[1; 2 * BLOCK as usize]);
    scene.fsync(&f, false).expect("fsync");
    scene.sync().expect("sync");
    put(&scene, &f, 1000, &[2; 100]);
    (scene, f)
}

/// As before, with the overwrite held in flight and this acknowledgement pending.
fn asked_in_flight(ack: Ack) -> (Scene, Running<(extant_fs::Result<()>, usize)>) {
    let (scene, f) = overwritten();
    let held = &scene.disk.held;
    held.catch(Catch::hold().writes().data());
    let answer = ack.start(&scene, &f);
    assert!(held.wait_held(1, LONG), "{ack:?}: the overwrite is not written");
    (scene, answer)
}

#[test]
fn an_acknowledgement_waits_for_overwrites_in_flight() {
    bounded(|| {
        let mut wrong = Vec::new();
        for ack in ACKS {
            let (scene, mut answer) = asked_in_flight(ack);
            let held = &scene.disk.held;
            let early = answer.ends_within(GRACE);
            held.let_go();
            let (result, events) = answer.join();
            result.expect("nothing failed");
            let cut = scene.disk.after_cut_at(events);
            let found = content_of(&cut, "db").expect("there");
            if found[1000..1100] != [2; 100] {
                wrong.push(format!("{ack:?} ok (before the write had ended: {early}), byte 1000 is {}", found[1000]));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn an_acknowledgement_reports_an_overwrite_that_fails_in_flight() {
    bounded(|| {
        let mut wrong = Vec::new();
        for ack in ACKS {
            let (scene, mut answer) = asked_in_flight(ack);
            let held = &scene.disk.held;
            answer.ends_within(GRACE);
            held.clear();
            held.fail(held.held()[0].id, EIO);
            let (result, events) = answer.join();
            let there = content_of(&scene.disk.after_cut_at(events), "db").is_some_and(|c| c[1000] == 2);
            if result.is_ok() && !there {
                wrong.push(format!("{ack:?} ok"));
            }
        }
        assert!(wrong.is_empty(), "the write failed: {wrong:?}");
    });
}

/// The flusher takes all due inodes at once; the first one blocks it.
fn busy_flusher(disk: Disk, files: usize, len: usize) -> Scene {
    let clock = Clock::virtual_at(1_700_000_000);
    let options = MountOptions { clock: clock.clone(), commit_interval_s: Some(10_000), ..production() };
    let scene = disk.mount(options);
    // A write into unwritten blocks waits for the device.
    let first = create(&scene, "first");
    preallocate(&scene, &first, 0, 4 * BLOCK);
    scene.sync().expect("sync");
    put(&scene, &first, 0, &[9; 100]);
    for i in 0..files {
        put(&scene, &create(&scene, &format!("f{i}")), 0, &vec![i as u8 | 1; len]);
    }
    scene.disk.held.catch(Catch::hold().writes().data().once());
    clock.advance(Duration::from_secs(6));
    assert!(scene.disk.held.wait_held(1, LONG), "the flusher does not write what is due");
    scene
}

#[test]
fn an_acknowledgement_covers_inodes_that_the_flusher_is_writing() {
    bounded(|| {
        let mut wrong = Vec::new();
        for ack in [Ack::Sync, Ack::Syncfs, Ack::Unmount] {
            let scene = busy_flusher(Disk::new(64, EXT4), 50, 8192);
            let f = scene.root().expect("root");
            let mut answer = ack.start(&scene, &f);
            let early = answer.ends_within(GRACE);
            scene.disk.held.let_go();
            let (result, events) = answer.join();
            result.expect("nothing failed");
            let cut = scene.disk.after_cut_at(events);
            let lost = (0..50).filter(|i| content_of(&cut, &format!("f{i}")) != Some(vec![*i as u8 | 1; 8192])).count();
            let first = content_of(&cut, "first").is_some_and(|c| c[..100] == [9; 100]);
            if lost > 0 || !first {
                wrong.push(format!(
                    "{ack:?} ok (while the flusher was busy: {early}): {lost} of 50 files lost, first {first}"
                ));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn unmount_ends_while_the_flusher_writes_more_inodes_than_fit_the_log() {
    bounded(|| {
        // One block of the inode table for every four files, and a log of 1,024 blocks, of which a transaction may
        // use 255.
        let disk = Disk::new(128, &["-t", "ext4", "-b", "4096", "-I", "1024", "-N", "4000", "-J", "size=4"]);
        let scene = busy_flusher(disk, 2500, 100);
        let root = scene.root().expect("root");
        let mut answer = Ack::Unmount.start(&scene, &root);
        answer.ends_within(GRACE);
        scene.disk.held.let_go();
        assert!(answer.ends_within(LONG), "the unmount does not end");
        answer.join().0.expect("nothing failed");
        let after = scene.disk.after_cut();
        let lost = (0..2500).filter(|i| content_of(&after, &format!("f{i}")) != Some(vec![*i as u8 | 1; 100])).count();
        assert_eq!(lost, 0, "files of 2500 that are not as written after the unmount");
    });
}

#[test]
fn an_fsync_does_not_wait_for_writes_that_begin_after_it() {
    bounded(|| {
        let (scene, f) = overwritten();
        let held = &scene.disk.held;
        held.catch(Catch::hold().writes().data());
        let mut first = Ack::Fsync.start(&scene, &f);
        assert!(held.wait_held(1, LONG), "the first write");
        let mine = held.held()[0].id;
        // A writer that always has one more in flight.
        put(&scene, &f, BLOCK + 1000, &[3; 100]);
        let second = Ack::Fsync.start(&scene, &f);
        assert!(held.wait_held(2, LONG), "the second write");
        held.release(mine);
        let ended = first.ends_within(LONG / 4);
        let late = held.held().len();
        held.let_go();
        assert!(ended, "the first fsync's data is written, and it still waits, with {late} later writes in flight");
        let (result, events) = first.join();
        result.expect("nothing failed");
        assert_eq!(content_of(&scene.disk.after_cut_at(events), "db").expect("there")[1000], 2);
        second.join().0.expect("nothing failed");
    });
}

/// The names in a directory are its data.
#[test]
fn an_fdatasync_of_a_directory_covers_its_names() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let root = scene.root().expect("root");
        let dir = scene.create(&root, b"dir", NewNode::directory(0o755), Default::default()).expect("mkdir");
        scene.fsync(&dir, false).expect("fsync");
        drop(scene.create(&dir, b"new", NewNode::file(0o644), Default::default()).expect("create"));
        scene.fsync(&dir, true).expect("fdatasync");
        let cut = scene.disk.after_cut();
        cut.walk(b"dir/new", true).expect("the name is there");
    });
}
