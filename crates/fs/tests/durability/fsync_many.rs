//! fsyncs of many files: together, and one after the other. Their cost in requests, the answer of each file, and that
//! no answer comes too early.

use std::sync::Arc;

use crate::common::*;
use extant_base::sync::{LockClass, Mutex, Waiter};
use extant_base::{sim, task};
use extant_block::BlockDevice;
use extant_block::device::{Catch, CrashDevice, IoStats};
use extant_fs::{Error, Filesystem, InodeRef, LossCursor, MountOptions, Mounted, Result, SyncPolicyKind};

static CLASS: LockClass = LockClass::new("answers", 0);

/// One fsync of all files; the answers in the order of the files, each of which comes once.
fn fsync_many(fs: &Filesystem, files: &[InodeRef]) -> Vec<Result<()>> {
    let answers = Arc::new(Mutex::new(&CLASS, (files.iter().map(|_| Vec::new()).collect::<Vec<_>>(), files.len())));
    let all = Waiter::new();
    let (tell, mine) = (all.clone(), answers.clone());
    let done = move |at: usize, r: Result<()>| {
        let mut answers = mine.lock();
        answers.0[at].push(r);
        answers.1 -= 1;
        if answers.1 == 0 {
            tell.set(());
        }
    };
    fs.serving().fsync_many(files, LossCursor::process(1), false, Arc::new(done));
    if !files.is_empty() {
        all.wait();
    }
    let answers = std::mem::take(&mut answers.lock().0);
    let once = |mut of_one: Vec<Result<()>>| {
        assert_eq!(of_one.len(), 1, "{of_one:?}");
        of_one.remove(0)
    };
    answers.into_iter().map(once).collect()
}

/// The byte that fills the file of this number.
fn byte_of(i: usize) -> u8 {
    (i % 255) as u8 + 1
}

/// New files of a block each.
fn new_files(fs: &Filesystem, range: std::ops::Range<usize>) -> Vec<InodeRef> {
    let make = |i: usize| {
        let f = create(fs, &format!("f{i}"));
        put(fs, &f, 0, &[byte_of(i); BLOCK as usize]);
        fs.release(&f);
        f
    };
    range.map(make).collect()
}

/// The requests of the device meanwhile.
fn counted<T>(scene: &Scene, f: impl FnOnce() -> T) -> (T, IoStats) {
    let before = scene.disk.crash.stats();
    let value = f();
    let after = scene.disk.crash.stats();
    (value, IoStats { writes: after.writes - before.writes, flushes: after.flushes - before.flushes, ..after })
}

fn assert_there(after: &Mounted, range: std::ops::Range<usize>) {
    for i in range {
        let content = content_of(after, &format!("f{i}")).unwrap_or_else(|| panic!("f{i} is gone"));
        assert!(content == [byte_of(i); BLOCK as usize], "f{i}: {} bytes", content.len());
    }
}

/// A hundred files need one commit, and share the requests for their data.
#[test]
fn many_files_share_requests() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let (files, _) = counted(&scene, || new_files(&scene, 0..200));
        let (answers, io) = counted(&scene, || fsync_many(&scene, &files));
        assert!(answers.iter().all(Result::is_ok));
        assert_there(&scene.disk.after_cut(), 0..200);
        // One or two requests for the data, one for a superblock of the journal, one for the log, one for the commit
        // block.
        assert!(io.writes <= 10, "{io:?}");
        assert_eq!(io.flushes, 2, "the commit block's PREFLUSH and FUA: {io:?}");
        let (answers, io) = counted(&scene, || fsync_many(&scene, &files));
        assert!(answers.iter().all(Result::is_ok));
        assert_eq!((io.writes, io.flushes), (0, 0), "no write since then");
        // An overwrite changes no transaction for its datasync to wait for, but must reach the medium.
        put(&scene, &files[7], 0, &[9; 16]);
        let (answers, io) = counted(&scene, || fsync_many(&scene, &files));
        assert!(answers.iter().all(Result::is_ok));
        assert!(io.flushes >= 1, "{io:?}");
        let after = scene.disk.after_cut();
        assert_eq!(content_of(&after, "f7").expect("there")[..16], [9; 16]);
    });
}

/// Four threads at once, each with files of its own: the files of a thread lie side by side, however the threads
/// interrupt each other. They share one list of preallocated blocks.
#[test]
fn files_written_together_are_adjacent() {
    const FILES: usize = 100;
    let image = image(64, EXT4, &[]);
    for seed in 0..10 {
        let device = Arc::new(CrashDevice::from_image(&image));
        let strategy = sim::Strategy::Random { preempt_permille: 50 };
        let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
            let options = MountOptions { locality_groups: 1, ..production() };
            let fs = Filesystem::mount(device.clone(), options).expect("mounted");
            let files: Vec<_> = (0..4).map(|t| new_files(&fs, t * FILES..(t + 1) * FILES)).collect();
            let before = device.stats();
            let calls = files.into_iter().map(|files| {
                let fs = Arc::clone(&fs);
                task::spawn("fsync_many", move || fsync_many(&fs, &files)).expect("thread")
            });
            let calls: Vec<_> = calls.collect();
            calls.into_iter().for_each(|call| assert!(call.join().expect("joined").iter().all(Result::is_ok)));
            let after_cut = device.state_keeping(device.write_log(), |_| false).expect("state");
            (device.stats().writes - before.writes, after_cut)
        });
        let (writes, after_cut) = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        // For each thread a run, which may end early if the thread waits for a commit, and the requests of at most one
        // commit: a superblock, the log, the commit block. (Files between those of other threads: 258 requests.)
        assert!(writes <= 4 * (2 + 3), "seed {seed}: {writes} requests");
        assert_there(&remounted(after_cut), 0..4 * FILES);
    }
}

/// No answer comes before the data is on the medium.
#[test]
fn an_fsync_of_many_files_answers_after_the_log_is_written() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let files = new_files(&scene, 0..3);
        let held = &scene.disk.held;
        held.catch(Catch::hold().op(extant_block::BioOp::Write).meta());
        let (fs, synced) = (scene.shared(), files.clone());
        let mut answers = start("fsync_many", move || fsync_many(&fs, &synced));
        assert!(held.wait_held(1, LONG), "the log is written");
        assert!(!answers.ends_within(GRACE), "answered before the log was");
        held.let_go();
        assert!(answers.join().iter().all(Result::is_ok));
        assert_there(&scene.disk.after_cut(), 0..3);
    });
}

/// One file twice, one of another mount, one whose data is lost: each has its own answer, once.
#[test]
fn every_file_of_a_common_fsync_has_its_own_answer() {
    bounded(|| {
        let (scene, other) = (Disk::new(64, EXT4).mount(production()), Disk::new(64, EXT4).mount(production()));
        let mut files = new_files(&scene, 0..4);
        files.push(files[2].clone());
        files.push(new_files(&other, 0..1).remove(0));
        // The request with the data of all four fails, and so does the third's when it is sent alone.
        let held = &scene.disk.held;
        held.catch(Catch::hold().writes().data());
        let (fs, synced) = (scene.shared(), files.clone());
        let answers = start("fsync_many", move || fsync_many(&fs, &synced));
        assert!(held.wait_held(1, LONG));
        let together = held.held()[0];
        assert_eq!(together.len, 4 * BLOCK, "{:?}", held.held());
        held.fail(together.id, EIO);
        assert!(held.wait_held(4, LONG), "each alone: {:?}", held.held());
        let third = held.held().into_iter().find(|r| r.offset == together.offset + 2 * BLOCK).expect("sent again");
        held.fail(third.id, EIO);
        held.let_go();
        let answers = answers.join();
        assert!(matches!(answers[5], Err(Error::Invalid(_))), "{:?}", answers[5]);
        let lost: Vec<bool> = answers[..5].iter().map(Result::is_err).collect();
        assert_eq!(lost, [false, false, true, false, true], "{answers:?}");
        let after = scene.disk.after_cut();
        assert_there(&after, 0..2);
        assert_there(&after, 3..4);
        assert!(fsync_many(&scene, &files[..4]).iter().all(Result::is_ok), "the loss is reported once");
        assert!(fsync_many(&scene, &[]).is_empty());
        drop(files);
    });
}

#[test]
fn an_fsync_of_many_files_fails_once_the_journal_has_stopped() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let files = new_files(&scene, 0..3);
        assert!(fsync_many(&scene, &files).iter().all(Result::is_ok));
        put(&scene, &files[1], 0, &[7; 16]);
        create(&scene, "more");
        scene.disk.held.catch(Catch::fail(EIO).writes().meta());
        let answers = fsync_many(&scene, &files);
        assert!(answers.iter().all(Result::is_err), "the journal has stopped: {answers:?}");
        assert!(fsync_many(&scene, &files).iter().all(Result::is_err));
        drop(files);

        let scene = Disk::new(64, EXT4);
        let fs = scene.mount(production());
        drop(new_files(&fs, 0..2));
        fs.unmount().expect("unmounted");
        drop(fs);
        let fs = scene.mount(MountOptions { read_only: true, ..production() });
        let root = fs.root().expect("root");
        let files: Vec<_> = [b"f0", b"f1"].iter().map(|name| fs.lookup(&root, *name).expect("there")).collect();
        assert!(fsync_many(&fs, &files).iter().all(Result::is_ok), "no dirty data");
    });
}

/// Fsyncs of new files, one after the other, in the order of their names and in another order.
#[test]
fn an_fsync_of_one_file_after_another_carries_the_next_ones_along() {
    bounded(|| {
        for (policy, backwards) in SyncPolicyKind::ALL.into_iter().flat_map(|p| [(p, false), (p, true)]) {
            let scene = Disk::new(64, EXT4).mount(MountOptions { sync_policy: policy, ..production() });
            let files = new_files(&scene, 0..120);
            let ((), io) = counted(&scene, || {
                for i in 0..files.len() {
                    let at = if backwards { files.len() - 1 - i } else { i };
                    scene.fsync(&files[at], false).expect("fsync");
                    // No answer comes too early.
                    if i % 40 == 3 {
                        assert_there(&scene.disk.after_cut(), at..at + 1);
                    }
                }
            });
            assert_there(&scene.disk.after_cut(), 0..120);
            match policy {
                SyncPolicyKind::Vanilla => assert!(io.flushes >= 2 * 120, "{io:?}"),
                SyncPolicyKind::Ahead => assert!(io.flushes <= 2 * 3 && io.writes <= 20, "{backwards}: {io:?}"),
            }
        }
    });
}

/// Neither a file that others write, nor a large one.
#[test]
fn an_fsync_carries_small_new_closed_files_along() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let old = create(&scene, "old");
        put(&scene, &old, 0, &[1; BLOCK as usize]);
        scene.sync().expect("sync");
        let large = create(&scene, "large");
        put(&scene, &large, 0, &vec![1; 1 << 20]);
        put(&scene, &old, 0, &[2; BLOCK as usize]);
        let open = create(&scene, "open");
        put(&scene, &open, 0, &[3; BLOCK as usize]);
        let again = create(&scene, "again");
        put(&scene, &again, 0, &[3; BLOCK as usize]);
        scene.release(&again);
        put(&scene, &again, BLOCK, &[3; BLOCK as usize]);
        let files = new_files(&scene, 0..3);
        scene.fsync(&files[0], false).expect("fsync");
        scene.fsync(&files[1], false).expect("fsync");
        let after = scene.disk.after_cut();
        assert_there(&after, 0..3);
        assert_eq!(content_of(&after, "old").expect("there"), [1; BLOCK as usize]);
        for name in ["large", "open", "again"] {
            assert_eq!(content_of(&after, name).expect("there").len(), 0, "{name}");
        }
    });
}

/// A thread that fsyncs alone commits without the journal's thread. While another thread commits, it joins the queue.
#[test]
fn a_lone_fsync_commits_without_the_journals_thread() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let alone = || scene.statistics().journal().commits_alone.get();
        let files = new_files(&scene, 0..6);
        scene.fsync(&files[0], false).expect("fsync");
        assert_eq!((alone(), scene.statistics().journal().commits.get()), (1, 1));
        let held = &scene.disk.held;
        held.catch(Catch::hold().writes().meta().once());
        let fsync = |at: usize, f: &InodeRef| {
            put(&scene, f, BLOCK, &[at as u8; 100]);
            let (fs, f) = (scene.shared(), f.clone());
            start("fsync", move || fs.fsync(&f, false))
        };
        let first = fsync(1, &files[1]);
        assert!(held.wait_held(1, LONG), "its log is being written");
        let mut others = [fsync(2, &files[2]), fsync(3, &files[3])];
        assert!(!others[0].ends_within(GRACE) && !others[1].ends_within(GRACE), "their transaction is not even closed");
        held.let_go();
        first.join().expect("fsync");
        others.into_iter().for_each(|o| o.join().expect("fsync"));
        assert_eq!(alone(), 2, "the first alone, the others by the journal's thread");
        assert!(scene.statistics().journal().commits.get() <= 4);
        let after = scene.disk.after_cut();
        for at in 1..4 {
            let found = content_of(&after, &format!("f{at}")).expect("there");
            assert_eq!(found[BLOCK as usize..], [at as u8; 100]);
        }
    });
}

/// A commit on a user's thread that fails or panics stops the journal, as one on the journal's thread does.
#[test]
fn a_lone_commit_that_fails_stops_the_journal() {
    bounded(|| {
        // A request that fails once is repeated, piece by piece.
        for (rule, panics) in [(Catch::fail(EIO), false), (Catch::panic().once(), true)] {
            let scene = Disk::new(64, EXT4).mount(production());
            let files = new_files(&scene, 0..3);
            scene.fsync(&files[0], false).expect("fsync");
            put(&scene, &files[1], BLOCK, &[5; 100]);
            scene.disk.held.catch(rule.writes().meta());
            let (fs, f) = (scene.shared(), files[1].clone());
            let run = move || std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fs.fsync(&f, false)));
            match start("fsync", run).join() {
                Ok(answer) => assert!(!panics && answer.is_err(), "{answer:?}"),
                Err(_) => assert!(panics),
            }
            for f in &files {
                assert!(scene.fsync(f, false).is_err(), "the journal has a gap");
            }
            assert!(fsync_many(&scene, &files).iter().all(Result::is_err));
            assert!(scene.sync().is_err());
            assert_there(&scene.disk.after_cut(), 0..1);
        }
    });
}

/// After an abandoned mount the image may be mounted again: neither the journal's thread nor a lone commit logs any
/// more.
#[test]
fn an_abandoned_mount_waits_for_a_lone_commit() {
    bounded(|| {
        let disk = Disk::new(64, EXT4);
        let fs = Filesystem::mount(disk.held.clone(), production()).expect("mounted");
        let f = new_files(&fs, 0..1).remove(0);
        disk.held.catch(Catch::hold().writes().meta().once());
        let (shared, g) = (Arc::clone(&fs), f.clone());
        let fsync = start("fsync", move || shared.fsync(&g, false));
        assert!(disk.held.wait_held(1, LONG), "the log is written");
        let shared = Arc::clone(&fs);
        let mut left = start("abandon", move || fs.abandon());
        assert!(!left.ends_within(GRACE), "a commit writes to the log");
        disk.held.let_go();
        left.join();
        let written = disk.crash.write_log();
        let _ = fsync.join();
        assert_eq!(disk.crash.write_log(), written);
        drop((f, shared));
    });
}
