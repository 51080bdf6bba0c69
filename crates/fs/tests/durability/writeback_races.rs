//! Writeback and concurrent reads, writes and fsyncs. Written data can be read again at any moment and is durable
//! once that is acknowledged: while its blocks are in flight, after they have arrived but before they are mapped, and
//! after they have failed.

use std::time::Duration;

use crate::common::*;
use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_block::device::Catch;
use extant_fs::MountOptions;

/// A file with a written block at its start and unwritten ones from block 10 on, without dirty data.
fn half_preallocated(scene: &Scene, name: &str) -> extant_fs::InodeRef {
    let f = create(scene, name);
    put(scene, &f, 0, &[1; BLOCK as usize]);
    preallocate(scene, &f, 10 * BLOCK, 10 * BLOCK);
    scene.fsync(&f, false).expect("fsync");
    f
}

#[test]
fn data_that_has_reached_unwritten_blocks_is_read_and_kept() {
    bounded(|| {
        let scene = Disk::of_secrets(64, EXT4).mount(production());
        let f = half_preallocated(&scene, "log");
        put(&scene, &f, 10, &[2; 10]);
        put(&scene, &f, 10 * BLOCK, &[7; 100]);
        // The first block's write is slow, the one into the unwritten block is not.
        let before = scene.disk.held.data_writes();
        scene.disk.held.catch(Catch::hold().writes().data().once());
        let writeback = Ack::Fsync.start(&scene, &f);
        assert!(scene.disk.held.wait_held(1, LONG), "the first block is not written");
        scene.disk.held.wait_data_writes(before + 1, 10 * GRACE);
        let read = get(&scene, &f, 10 * BLOCK, 100);
        put(&scene, &f, 10 * BLOCK + 200, &[9; 100]);
        scene.disk.held.let_go();
        writeback.join().0.expect("nothing failed");
        scene.fsync(&f, false).expect("fsync");
        let now = get(&scene, &f, 10 * BLOCK, 300);
        let cut = scene.disk.after_cut();
        let later = content_of(&cut, "log").expect("there")[10 * BLOCK as usize..][..300].to_vec();
        let wanted = [[7; 100], [0; 100], [9; 100]].concat();
        let wrong = |got: &[u8]| got.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        assert_eq!(
            (wrong(&read), wrong(&now), wrong(&later)),
            (0, 0, 0),
            "wrong bytes: read back while its block was converted; after another write to the block; after a power cut"
        );
    });
}

#[test]
fn an_fsync_waits_until_unwritten_blocks_are_converted() {
    bounded(|| {
        let clock = Clock::virtual_at(1_700_000_000);
        let options = MountOptions { clock: clock.clone(), commit_interval_s: Some(10_000), ..production() };
        let scene = Disk::new(64, GROUPS).mount(options);
        let (f, other, third) = (create(&scene, "log"), create(&scene, "other"), create(&scene, "third"));
        preallocate(&scene, &f, 0, 16 * BLOCK);
        scene.sync().expect("sync");
        put(&scene, &f, 0, &[7; 1000]);
        // mkdir waits for the device. So does the commit that another thread wants, and every thread that needs a
        // handle.
        scene.disk.held.catch(Catch::hold().reads().meta().once());
        let fs = scene.shared();
        let slow = start("mkdir", move || {
            let root = fs.root().expect("root");
            fs.create(&root, b"dir", extant_fs::NewNode::directory(0o755), extant_fs::Cred::default()).map(drop)
        });
        assert!(scene.disk.held.wait_held(1, LONG), "mkdir does not read a bitmap");
        put(&scene, &other, 0, b"x");
        let commit = Ack::Fsync.start(&scene, &other);
        let (done, over) = (std::sync::Arc::new(AtomicU64::new(0)), std::sync::Arc::new(AtomicBool::new(false)));
        let (fs, count, stop) = (scene.shared(), done.clone(), over.clone());
        let mut probe = start("probe", move || {
            while !stop.load(Ordering::Acquire) {
                chmod(&fs, &third, 0o600).expect("chmod");
                count.fetch_add(1, Ordering::AcqRel);
            }
        });
        // Until no handle starts any more.
        let mut last = u64::MAX;
        while last != done.load(Ordering::Acquire) {
            last = done.load(Ordering::Acquire);
            probe.ends_within(GRACE / 2);
        }
        // Now the flusher runs.
        let before = scene.disk.held.data_writes();
        clock.advance(Duration::from_secs(6));
        scene.disk.held.wait_data_writes(before + 1, 10 * GRACE);
        let mut answer = Ack::Fdatasync.start(&scene, &f);
        answer.ends_within(GRACE);
        over.store(true, Ordering::Release);
        scene.disk.held.let_go();
        let (result, events) = answer.join();
        result.expect("nothing failed");
        let found = content_of(&scene.disk.after_cut_at(events), "log").expect("there");
        let lost = found[..1000].iter().filter(|b| **b != 7).count();
        assert_eq!(lost, 0, "bytes of 1000 lost by a power cut after fdatasync said ok");
        slow.join().expect("mkdir");
        commit.join().0.expect("nothing failed");
        probe.join();
    });
}

#[test]
fn a_write_preserves_the_rest_of_a_block_whose_writeback_ends_meanwhile() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let f = create(&scene, "db");
        put(&scene, &f, 0, &[1; 2 * BLOCK as usize]);
        scene.fsync(&f, false).expect("fsync");
        put(&scene, &f, 100, &[2; 100]);
        let held = &scene.disk.held;
        held.catch(Catch::hold().writes().data().once());
        let writeback = Ack::Fsync.start(&scene, &f);
        assert!(held.wait_held(1, LONG), "the first block is not written");
        let on_its_way = held.held()[0].id;
        // A write that needs the rest of the second block, and has that of the first in memory.
        held.catch(Catch::hold().reads().data().once());
        let (fs, g) = (scene.shared(), f.clone());
        let writer = start("write", move || put(&fs, &g, BLOCK - 50, &[3; 100]));
        held.wait_held(2, 10 * GRACE);
        let before = held.data_writes();
        held.release(on_its_way);
        held.wait_data_writes(before + 1, 10 * GRACE);
        held.let_go();
        writer.join();
        writeback.join().0.expect("nothing failed");
        scene.fsync(&f, false).expect("fsync");
        let mut wanted = vec![1; 2 * BLOCK as usize];
        wanted[100..200].fill(2);
        wanted[BLOCK as usize - 50..BLOCK as usize + 50].fill(3);
        let now = content(&scene, &f);
        let wrong = now.iter().zip(&wanted).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "wrong bytes of {}", wanted.len());
        assert!(content_of(&scene.disk.after_cut(), "db").expect("there") == wanted, "after a power cut");
    });
}

#[test]
fn an_error_affects_only_its_own_blocks() {
    bounded(|| {
        let disk = Disk::of_secrets(64, EXT4);
        let scene = disk.mount(production());
        let mut wrong = Vec::new();
        for round in 0..30 {
            let f = half_preallocated(&scene, &format!("f{round}"));
            let held = &scene.disk.held;
            held.catch(Catch::hold().writes().data());
            put(&scene, &f, 10, &[2; 10]);
            let mut first = Ack::Fsync.start(&scene, &f);
            assert!(held.wait_held(1, LONG), "the first block is not written");
            // Until the journal waits for it, too.
            first.ends_within(GRACE / 8);
            put(&scene, &f, 10 * BLOCK, &[3; 100]);
            let mut second = Ack::Fsync.start(&scene, &f);
            assert!(held.wait_held(2, LONG), "the unwritten block is not written");
            second.ends_within(GRACE / 8);
            held.clear();
            let ids: Vec<u64> = held.held().iter().map(|r| r.id).collect();
            held.fail(ids[1], EIO);
            held.release(ids[0]);
            let told = [first.join().0, second.join().0].iter().filter(|r| r.is_err()).count();
            let read = get(&scene, &f, 10 * BLOCK, BLOCK as usize);
            let cut = scene.disk.after_cut();
            let later = content_of(&cut, &format!("f{round}")).expect("there")[10 * BLOCK as usize..].to_vec();
            if secret_bytes(&read) + secret_bytes(&later) > 0 || told == 0 {
                wrong.push((round, secret_bytes(&read), secret_bytes(&later), told));
            }
        }
        assert!(
            wrong.is_empty(),
            "in {} of 30 rounds a block whose write failed shows data of a deleted file, or no fsync failed: {:?} \
             (round, bytes read, bytes after a power cut, fsyncs that failed)",
            wrong.len(),
            wrong.first()
        );
    });
}

/// Binds the calling thread to one processor, on request with a priority above all others: it then preempts a thread
/// that wakes it at that very instruction. Without the privilege this has no effect.
fn on_one_processor(first: bool) {
    let Ok(me) = std::fs::read_link("/proc/thread-self") else { return };
    let Some(tid) = me.file_name().and_then(|n| n.to_str()).map(str::to_owned) else { return };
    let run = |program: &str, args: &[&str]| {
        let _ = std::process::Command::new(program).args(args).arg(&tid).output();
    };
    run("taskset", &["-pc", "0"]);
    if first {
        run("chrt", &["-f", "-p", "1"]);
    }
}

#[test]
fn the_size_on_disk_covers_an_append_that_writeback_overtakes() {
    bounded(|| {
        const FILES: usize = 150;
        const LEN: usize = 512 << 10;
        let scene = Disk::new(192, EXT4).mount(production());
        let (to, from) = std::sync::mpsc::channel::<extant_fs::InodeRef>();
        let fs = scene.shared();
        // Writes back the files that the other thread appends to.
        let syncer = start("syncer", move || {
            on_one_processor(true);
            let (clock, mut rng) = (Clock::real(), extant_base::rng::Rng::new(1));
            while let Ok(f) = from.recv() {
                clock.sleep(Duration::from_micros(rng.below(200)));
                fs.fsync(&f, false).expect("fsync");
            }
        });
        let (fs, crash) = (scene.shared(), scene.disk.crash.clone());
        let writer = start("writer", move || {
            on_one_processor(false);
            let data = vec![5; LEN];
            for i in 0..FILES {
                let f = create(&fs, &format!("f{i}"));
                to.send(f.clone()).expect("the other runs");
                put(&fs, &f, 0, &data);
                fs.fsync(&f, false).expect("fsync");
            }
            crash.write_log()
        });
        let events = writer.join();
        syncer.join();
        let cut = scene.disk.after_cut_at(events);
        let sizes: Vec<usize> = (0..FILES).map(|i| content_of(&cut, &format!("f{i}")).expect("there").len()).collect();
        let short = sizes.iter().filter(|n| **n != LEN).count();
        assert_eq!(
            short,
            0,
            "files of {FILES} whose size is not on disk after a successful fsync, the shortest {:?}",
            sizes.iter().min()
        );
    });
}

/// Readahead spans a dirty block. By the time it ends, the block may have been written and evicted. Its old copy must
/// not replace the data of an acknowledged fsync.
#[test]
fn readahead_does_not_return_older_data_than_a_concurrent_write() {
    bounded(|| {
        let disk = Disk::new(64, EXT4);
        {
            let scene = disk.mount(production());
            put(&scene, &create(&scene, "large"), 0, &vec![1; 24 << 20]);
            let f = create(&scene, "f");
            put(&scene, &f, 0, &[1; 64 * BLOCK as usize]);
            // Behind a hole, so that it takes a request of its own.
            put(&scene, &f, 66 * BLOCK, &b"the end ".repeat(4096));
            scene.unmount().expect("unmount");
        }
        let end = disk.blocks_with(b"the end ")[0];
        let scene = disk.mount(MountOptions { cache_bytes: 8 << 20, keep_clean: true, ..production() });
        let root = scene.root().expect("root");
        let [f, large] = [&b"f"[..], b"large"].map(|name| scene.lookup(&root, name).expect("there"));
        put(&scene, &f, 40 * BLOCK, b"newer");
        scene.disk.held.catch(Catch::hold().reads().range(end..end + 1));
        let (fs, g) = (scene.shared(), f.clone());
        let reader = start("reader", move || get(&fs, &g, 0, BLOCK as usize));
        // If the readahead does not reach so far, it just ends.
        let ahead = scene.disk.held.wait_held(1, GRACE);
        scene.fsync(&f, false).expect("fsync");
        for _ in 0..2 {
            for at in (0..24 << 20).step_by(65536) {
                get(&scene, &large, at, 65536);
            }
        }
        scene.disk.held.let_go();
        assert_eq!(reader.join(), [1; BLOCK as usize]);
        assert_eq!(get(&scene, &f, 40 * BLOCK, 5), b"newer", "read ahead meanwhile: {ahead}");
        // A later write of a part of the block takes the rest from memory.
        put(&scene, &f, 40 * BLOCK + 100, b"other part");
        scene.fsync(&f, false).expect("fsync");
        let found = content_of(&scene.disk.after_cut(), "f").expect("there");
        assert_eq!(&found[40 * BLOCK as usize..][..5], b"newer");
    });
}
