//! Data that cannot be written: no reader sees what the blocks held before, fsync and its like report the loss, and the
//! data goes to other blocks where there are any.

use std::time::Duration;

use crate::common::*;
use extant_base::clock::Clock;
use extant_base::sync::Waiter;
use extant_block::BioFlags;
use extant_block::BlockDevice;
use extant_block::device::Catch;
use extant_fs::{FallocateMode, InodeRef, LossCursor, MountOptions, OnError, RenameFlags, Result, SetAttr, WriteFlags};

#[test]
fn a_failed_write_shows_nothing_of_a_deleted_file() {
    bounded(|| {
        let mut wrong = Vec::new();
        for (how, options) in [("delayed", production()), ("through", production_through())] {
            // If the file lies in one piece, one request may carry all of it. Then there is no second one to fail.
            let mut failed = 0;
            for nth in [0, 1] {
                let scene = Disk::of_secrets(64, EXT4).mount(options.clone());
                let f = create(&scene, "mine");
                put(&scene, &f, 0, &[1; BLOCK as usize]);
                scene.fsync(&f, false).expect("fsync");
                scene.disk.held.catch(Catch::fail(EIO).writes().data().after(nth).once());
                let written = scene.write(&f, BLOCK, &vec![2; 3 << 20], WriteFlags::default());
                let synced = scene.fsync(&f, false);
                let hit = scene.disk.held.caught() > 0;
                scene.disk.held.clear();
                failed += u32::from(hit);
                if hit && written.is_ok_and(|n| n == 3 << 20) && synced.is_ok() {
                    wrong.push(format!("{how}, write {nth} failed: no call reported it"));
                }
                let mut seen = vec![("in the mount", content(&scene, &f))];
                let _ = scene.sync();
                seen.push(("after a power cut", content_of(&scene.disk.after_cut(), "mine").expect("there")));
                drop(f);
                let _ = scene.unmount();
                seen.push(("after the unmount", content_of(&scene.disk.after_cut(), "mine").expect("there")));
                for (when, data) in seen {
                    if secret_bytes(&data) > 0 {
                        wrong.push(format!("{how}, write {nth} failed: {} bytes {when}", secret_bytes(&data)));
                    }
                }
            }
            assert!(failed > 0, "{how}: no write failed");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn a_power_cut_during_a_write_shows_nothing_of_a_deleted_file() {
    bounded(|| {
        let mut wrong = Vec::new();
        for (how, options) in [("delayed", production()), ("through", production_through())] {
            let scene = Disk::of_secrets(64, EXT4).mount(options);
            let f = create(&scene, "mine");
            scene.fsync(&f, false).expect("fsync");
            scene.disk.held.catch(Catch::hold().writes().data());
            let (fs, g) = (scene.shared(), f.clone());
            let writer = start("writer", move || {
                let _ = fs.write(&g, 0, &vec![2; 1 << 20], WriteFlags::default());
                fs.fsync(&g, false)
            });
            assert!(scene.disk.held.wait_held(1, LONG), "{how}: nothing is written");
            // The fsync of another file commits what there is. It may have to wait.
            let other = create(&scene, "other");
            let mut commit = Ack::Fsync.start(&scene, &other);
            commit.ends_within(GRACE);
            let data = content_of(&scene.disk.after_cut(), "mine").unwrap_or_default();
            if secret_bytes(&data) > 0 {
                wrong.push(format!("{how}: {} bytes", secret_bytes(&data)));
            }
            scene.disk.held.let_go();
            writer.join().expect("fsync");
            commit.join().0.expect("fsync");
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

/// The place of a group's block bitmap, as dumpe2fs prints it.
fn block_bitmap_of(disk: &Disk, group: u32) -> u64 {
    let (_, text) = tools::on_copy("dumpe2fs", &[], &disk.crash.live());
    let group = text.split(&format!("\nGroup {group}: ")).nth(1).expect("the group");
    let at = group.split("Block bitmap at ").nth(1).expect("its bitmap");
    at.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).expect("a number")
}

#[test]
fn data_goes_elsewhere_when_a_bitmap_is_bad() {
    bounded(|| {
        let disk = Disk::new(64, GROUPS);
        // The bitmap of the root directory's group, where its files go first.
        let bitmap = block_bitmap_of(&disk, 0) * BLOCK;
        let scene = disk.mount(production());
        drop(create(&scene, "before"));
        scene.unmount().expect("unmount");
        drop(scene);
        disk.crash.write_at(bitmap, &[&[0x5A; BLOCK as usize]], BioFlags::FUA).expect("damaged");
        let scene = disk.mount(MountOptions { errors: Some(OnError::Continue), ..production() });
        let f = create(&scene, "mine");
        put(&scene, &f, 0, &[7; 100_000]);
        let synced = scene.fsync(&f, false).map_err(|e| e.to_string());
        let found = content_of(&scene.disk.after_cut(), "mine").unwrap_or_default();
        assert!(
            synced.is_ok() && found == [7; 100_000],
            "one of four groups cannot be used: fsync {synced:?}, {} of 100000 bytes there",
            found.iter().filter(|b| **b == 7).count()
        );
    });
}

#[test]
fn data_goes_elsewhere_when_a_bitmap_cannot_be_read_again() {
    bounded(|| {
        let disk = Disk::new(64, &[GROUPS, &["-J", "size=4"]].concat());
        {
            let scene = disk.mount(production());
            put(&scene, &create(&scene, "large"), 0, &vec![1; 16 << 20]);
            scene.unmount().expect("unmount");
        }
        // Little memory: an unused bitmap leaves it.
        let options = MountOptions { cache_bytes: 8 << 20, keep_clean: true, ..production() };
        let scene = disk.mount(MountOptions { errors: Some(OnError::Continue), ..options });
        let f = create(&scene, "mine");
        put(&scene, &f, 0, &[7; 8000]);
        scene.fsync(&f, false).expect("fsync");
        // Until the log needs the bitmap no more.
        let before = scene.statistics().journal().checkpoints.get();
        while scene.statistics().journal().checkpoints.get() == before {
            chmod(&scene, &f, 0o600).expect("chmod");
            scene.fsync(&f, false).expect("fsync");
        }
        let large = scene.lookup(&scene.root().expect("root"), b"large").expect("large");
        for at in (0..16 << 20).step_by(65536) {
            get(&scene, &large, at, 65536);
        }
        scene.disk.held.catch(Catch::fail(EIO).reads().meta().once());
        put(&scene, &f, 8000, &[7; 16_000]);
        let synced = scene.fsync(&f, false).map_err(|e| e.to_string());
        let found = content_of(&scene.disk.after_cut(), "mine").unwrap_or_default();
        assert!(
            synced.is_ok() && found == [7; 24_000],
            "one of four groups cannot be used: fsync {synced:?}, {} of 24000 bytes there",
            found.iter().filter(|b| **b == 7).count()
        );
    });
}

/// The write of a block fails after the block was written to again. The newer data is written next, in a place that was
/// promised to it, also if the block is written or preallocated meanwhile. No promise is left over.
#[test]
fn a_lost_write_does_not_take_the_promise_of_a_newer_one() {
    bounded(|| {
        for again in ["nothing", "write", "preallocate"] {
            let scene = Disk::new(64, EXT4).mount(production());
            let f = create(&scene, "f");
            scene.sync().expect("sync");
            let free = scene.statfs().blocks_free;
            put(&scene, &f, 0, &[1; BLOCK as usize]);
            scene.disk.held.catch(Catch::hold().writes().data());
            let first = Ack::Fsync.start(&scene, &f);
            assert!(scene.disk.held.wait_held(1, LONG), "nothing is written");
            put(&scene, &f, 0, &[2; BLOCK as usize]);
            let lost = scene.disk.held.held()[0].id;
            scene.disk.held.fail(lost, EIO);
            assert!(first.join().0.is_err(), "{again}: the fsync reports no loss");
            let second = Ack::Fsync.start(&scene, &f);
            assert!(scene.disk.held.wait_held(1, LONG), "{again}: the newer data is not written");
            match again {
                "write" => put(&scene, &f, 0, &[3; BLOCK as usize]),
                "preallocate" => preallocate(&scene, &f, 0, BLOCK),
                _ => {}
            }
            scene.disk.held.let_go();
            let _ = second.join(); // another thread, which reports the loss of the first write, too
            let _ = scene.sync();
            scene.sync().expect("sync");
            assert_eq!(scene.stats.errors.get(), 0, "{again}: damage");
            assert_eq!(scene.statfs().blocks_free, free - 1, "{again}");
            let found = content_of(&scene.disk.after_cut(), "f").expect("there");
            assert_eq!(found, [if again == "write" { 3 } else { 2 }; BLOCK as usize], "{again}");
        }
    });
}

/// Processes that cannot be told apart share a cursor, which moves when one of them may have written again.
#[test]
fn every_fsync_with_the_shared_cursor_reports_a_loss_until_data_is_written() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let f = create(&scene, "mine");
        scene.fsync(&f, false).expect("fsync");
        scene.disk.held.catch(Catch::fail(EIO).writes().data());
        put(&scene, &f, 0, &[1; 100_000]);
        let fsync = |cursor| {
            let waiter = Waiter::new();
            let answer = waiter.clone();
            let done = Box::new(move |r: extant_fs::Result<()>| answer.set(r));
            scene.serving().fsync_async(&f, cursor, false, done);
            waiter.wait()
        };
        let sync = || {
            let waiter = Waiter::new();
            let answer = waiter.clone();
            scene.serving().sync_async(LossCursor::Shared, Box::new(move |r| answer.set(r)));
            waiter.wait()
        };
        let (shared, of) = (LossCursor::Shared, LossCursor::process);
        let lost = [fsync(shared.clone()), fsync(shared.clone()), sync(), sync(), fsync(of(7))];
        scene.disk.held.clear();
        let once = fsync(of(7));
        assert!(lost.iter().all(|r| r.is_err()) && once.is_ok(), "{lost:?}, {once:?}");
        put(&scene, &f, 0, &[2; 100_000]);
        let again = [fsync(shared.clone()), fsync(shared.clone()), sync(), fsync(of(8))];
        assert_eq!(again.each_ref().map(|r| r.is_ok()), [true, true, true, false], "{again:?}");
        scene.disk.held.catch(Catch::fail(EIO).writes().data());
        put(&scene, &f, 0, &[3; 100_000]);
        assert!(fsync(shared.clone()).is_err() && fsync(shared).is_err() && sync().is_err());
        scene.disk.held.clear();
    });
}

/// Memory is short and the file is closed; a later fsync reports the loss nevertheless.
#[test]
fn a_file_with_an_unseen_loss_stays_in_memory_until_an_fsync_reports_it() {
    bounded(|| {
        let scene = Disk::new(64, EXT4).mount(production());
        let f = create(&scene, "f");
        scene.sync().expect("sync");
        put(&scene, &f, 0, &[1; 8000]);
        drop(f);
        scene.disk.held.catch(Catch::fail(EIO).writes().data().once());
        // The sync moves a cursor of the mount's ledger, and none of the file's.
        scene.sync().expect_err("lost");
        for _ in 0..3 {
            scene.budget().shrink_all();
        }
        let f = scene.walk(b"f", true).expect("there");
        let synced = scene.fsync(&f, false);
        assert!(synced.is_err(), "fsync {synced:?}, {:?}", content_of(&scene.disk.after_cut(), "f").map(|c| c.len()));
        // Then it may leave like any other, once no thread uses it.
        drop(f);
        let clock = Clock::real();
        while scene.statistics().inodes().0 > 0 {
            scene.budget().shrink_all();
            assert!(clock.now_ns() < LONG.as_nanos() as u64, "the file stays in memory");
            clock.sleep(Duration::from_millis(1));
        }
    });
}

/// The kernel passes the answer of a syncfs on to no program if it asks for umount(8) or sync(2).
#[test]
fn the_end_of_a_mount_reports_a_loss_that_a_sync_has_hinted() {
    bounded(|| {
        type End = fn(&Scene) -> Result<()>;
        let ends: [(&str, End); 3] = [
            ("freeze", |fs| fs.freeze().map(drop)),
            ("read-only", |fs| fs.remount(true)),
            ("unmount", |fs| fs.unmount()),
        ];
        for (what, end) in ends {
            for cursor in [LossCursor::Shared, LossCursor::process(77)] {
                let scene = Disk::new(64, EXT4).mount(production());
                put(&scene, &create(&scene, "f"), 0, &[1; 8000]);
                scene.disk.held.catch(Catch::fail(EIO).writes().data().once());
                let waiter = Waiter::new();
                let answer = waiter.clone();
                scene.serving().sync_async(cursor, Box::new(move |r| answer.set(r)));
                waiter.wait().expect_err("lost");
                end(&scene).expect_err(what);
            }
        }
    });
}

/// Without an fsync, a crash leaves the old file or the whole new one. If a rename loses the new one, it keeps the old.
#[test]
fn a_rename_over_a_file_fails_if_the_data_of_its_source_is_lost() {
    bounded(|| {
        // The rename itself loses the data, or it was lost before and no party of the file has seen that.
        for before in [false, true] {
            let scene = Disk::new(64, EXT4).mount(production());
            put(&scene, &create(&scene, "f"), 0, &[1; 8000]);
            scene.sync().expect("sync");
            put(&scene, &create(&scene, "g"), 0, &[2; 8000]);
            scene.disk.held.catch(Catch::fail(EIO).writes().data().once());
            if before {
                scene.sync().expect_err("lost");
            }
            let root = scene.root().expect("root");
            let renamed = scene.rename(&root, b"g", &root, b"f", RenameFlags::default());
            scene.sync_names().expect("logged");
            let found = content_of(&scene.disk.after_cut(), "f").expect("there");
            assert!(found == [1; 8000], "lost {before}: rename {renamed:?}, {} bytes", found.len());
            assert!(renamed.is_err());
            // Once the source is written again, the rename succeeds.
            put(&scene, &scene.walk(b"g", true).expect("there"), 0, &[2; 8000]);
            scene.rename(&root, b"g", &root, b"f", RenameFlags::default()).expect("renamed");
            scene.sync_names().expect("logged");
            assert!(content_of(&scene.disk.after_cut(), "f").expect("there") == [2; 8000]);
        }
    });
}

/// An operation sets the size again after a loss, and an fsync follows. The file does not become shorter when it leaves
/// memory.
#[test]
fn a_size_that_is_set_after_a_loss_and_fsynced_is_durable() {
    bounded(|| {
        type Ask = fn(&Scene, &InodeRef, u64) -> Result<()>;
        let asks: [(&str, Ask); 3] = [
            ("fallocate", |fs, f, size| fs.fallocate(f, FallocateMode::Allocate { keep_size: false }, 0, size)),
            ("zero", |fs, f, size| fs.fallocate(f, FallocateMode::ZeroRange { keep_size: false }, size - 1000, 1000)),
            ("truncate", |fs, f, size| fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)),
        ];
        // With `more`, older data is dirty again. Its writeback moves the size no further than its own end.
        let cases = [(0, false), (100, false), (100, true), (BLOCK, false), (BLOCK, true)];
        for ((old, more), (what, ask)) in cases.into_iter().flat_map(|case| asks.map(|ask| (case, ask))) {
            let scene = Disk::new(64, EXT4).mount(production());
            let f = create(&scene, "f");
            put(&scene, &f, 0, &vec![1; old as usize]);
            scene.sync().expect("sync");
            // From the next block on, or writeback would write the old end again.
            put(&scene, &f, old.next_multiple_of(BLOCK), &[1; 8000]);
            let size = scene.getattr(&f).size;
            scene.disk.held.catch(Catch::fail(EIO).writes().data().once());
            scene.fsync(&f, false).expect_err("lost");
            if more {
                put(&scene, &f, 10, &[1; 10]);
            }
            ask(&scene, &f, size).unwrap_or_else(|e| panic!("{what}: {e}"));
            scene.fsync(&f, false).expect("durable");
            let wanted = [vec![1; old as usize], vec![0; (size - old) as usize]].concat();
            let cut = content_of(&scene.disk.after_cut(), "f").expect("there");
            assert!(cut == wanted, "{what}, from {old}, {more}: {} bytes after a power cut", cut.len());
            drop(f);
            for _ in 0..3 {
                scene.budget().shrink_all();
            }
            assert_eq!(scene.getattr(&scene.walk(b"f", true).expect("there")).size, size, "{what}, from {old}");
            let disk = scene.disk.clone();
            // The unmount reports the loss, too.
            scene.unmount().expect_err("lost");
            assert_eq!(complaints(disk.crash.state_keeping(disk.crash.write_log(), |_| true).expect("state")), None);
        }
    });
}
