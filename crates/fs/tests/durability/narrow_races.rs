//! Races between two neighbouring steps and everything that another thread does between them. Random schedules hit
//! those once in ten thousand. Threads of one mount in production's configuration, no fault, and schedules of
//! `extant_base::sim` with long interruptions. One thread checks whether a block has content while its writeback
//! ends. Another calls fsync for times that a third one is writing, with a power cut at each answer.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use extant_base::clock::Clock;
use extant_base::{sim, task};
use extant_block::BlockDevice;
use extant_block::device::{CrashDevice, LateDevice, Lateness, MemDevice};
use extant_fs::{Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Seek, SetAttr};

const SCHEDULES: u64 = 120;
/// Consecutive files in each schedule.
const FILES: usize = 50;
const LATE: Lateness = Lateness { threads: 1, inline_permille: 0, held_permille: 0, longest: Duration::ZERO };

fn small() -> MemDevice {
    image(16, &["-t", "ext4", "-b", "1024"], &[])
}

/// Runs `act` on a mount of the device in the schedule of that seed.
fn in_schedule<T: Send + 'static>(
    seed: u64,
    device: Arc<dyn BlockDevice>,
    act: impl FnOnce(&Arc<Filesystem>) -> T + Send + 'static,
) -> T {
    // Often enough that one of two neighbouring steps is interrupted until the other threads run out of work.
    let strategy = sim::Strategy::Priorities { changes: 400, steps: 40_000 };
    let options = sim::Options { strategy, ..sim::Options::new(seed) };
    let outcome = sim::run(&options, move || {
        let late = Arc::new(LateDevice::new(device, LATE, None).expect("threads"));
        let fs = Filesystem::mount(late.clone(), MountOptions { seed: Some(1), ..production() }).expect("mounted");
        let r = act(&fs);
        fs.unmount().expect("unmount");
        drop(fs);
        late.stop();
        r
    });
    outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"))
}

fn all_right(results: impl Iterator<Item = Result<(), String>>) {
    let wrong: Vec<String> = results.filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{} of {SCHEDULES} schedules: {:?}", wrong.len(), wrong.first());
}

/// In each schedule: files with data under writeback, and `act` on them.
fn explored(preallocated: bool, act: fn(&Filesystem, &InodeRef) -> Result<(), String>) {
    let image = small();
    all_right((0..SCHEDULES).map(|seed| {
        in_schedule(seed, Arc::new(image.snapshot()), move |fs| {
            (0..FILES).try_for_each(|i| {
                let f = create(fs, &format!("f{i}"));
                if preallocated {
                    preallocate(fs, &f, 0, 8192);
                }
                put(fs, &f, 0, &[7; 8192]);
                fs.serving().fsync_async(&f, extant_fs::LossCursor::thread(), true, Box::new(|r| r.expect("fsync")));
                act(fs, &f)
            })
        })
    }));
}

fn zeros(fs: &Filesystem, f: &InodeRef, from: usize, to: usize) -> Result<(), String> {
    let now = content(fs, f);
    match (from..to).find(|at| now[*at] != 0) {
        Some(at) => Err(format!("byte {at} is {}", now[at])),
        None => Ok(()),
    }
}

#[test]
fn punching_a_block_races_with_the_end_of_its_writeback() {
    explored(false, |fs, f| {
        fs.fallocate(f, FallocateMode::PunchHole, 1500, 300).expect("punched");
        zeros(fs, f, 1500, 1800)
    });
}

#[test]
fn truncating_in_a_block_races_with_the_end_of_its_writeback() {
    explored(true, |fs, f| {
        let sized = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(f, &sized(1500)).expect("cut");
        fs.setattr(f, &sized(4000)).expect("grown");
        zeros(fs, f, 1500, 4000)
    });
}

#[test]
fn seek_finds_data_whose_writeback_ends() {
    explored(true, |fs, f| match fs.seek(f, 0, Seek::Hole) {
        Ok(8192) => Ok(()),
        found => Err(format!("the first hole is at {found:?}")),
    });
}

#[test]
fn an_fsync_covers_times_that_another_thread_is_writing() {
    const ROUNDS: usize = 15;
    let image = small();
    all_right((0..SCHEDULES).map(|seed| {
        let crash = Arc::new(CrashDevice::from_image(&image));
        let seen = crash.clone();
        let answers = in_schedule(seed, crash.clone(), move |fs| {
            let f = create(fs, "f");
            put(fs, &f, 0, &[1; 100]);
            fs.sync().expect("sync");
            let mut answers = Vec::new();
            for _ in 0..ROUNDS {
                extant_base::clock::Clock::real().sleep(Duration::from_millis(20));
                put(fs, &f, 0, &[2; 100]);
                let other = {
                    let (fs, f) = (fs.clone(), f.clone());
                    task::spawn("other", move || fs.fsync(&f, false).expect("fsync")).expect("thread")
                };
                fs.fsync(&f, false).expect("fsync");
                answers.push((fs.getattr(&f).mtime, seen.write_log()));
                other.join().expect("joined");
            }
            answers
        });
        answers.into_iter().enumerate().try_for_each(|(round, (mtime, events))| {
            let cut = remounted(crash.state_keeping(events, |_| false).expect("state"));
            let f = cut.lookup(&cut.root().expect("root"), b"f").expect("there");
            let durable = cut.getattr(&f).mtime;
            if durable == mtime {
                Ok(())
            } else {
                Err(format!("seed {seed}, round {round}: {durable:?} for {mtime:?}"))
            }
        })
    }));
}

/// A lookup by number reads the inode's table while another thread looks it up, unlinks and frees it.
#[test]
fn a_lookup_by_number_does_not_find_an_inode_freed_meanwhile() {
    let image = Arc::new(small());
    let options = || MountOptions { threads: false, seed: Some(1), ..production() };
    let ino = {
        let fs = Filesystem::mount(image.clone(), options()).expect("mounted");
        create(&fs, "f").ino
    };
    all_right((0..SCHEDULES).map(|seed| {
        let fs = Filesystem::mount(Arc::new(image.snapshot()), options()).expect("mounted");
        let shared = Arc::clone(&fs);
        // One thread is interrupted once, and the other runs to its end.
        let strategy = sim::Strategy::Priorities { changes: 1, steps: 80 };
        let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
            let other = shared.clone();
            let delete = move || {
                other.unlink(&other.root().expect("root"), b"f").expect("unlink");
                other.serving().reap();
            };
            let deletes = task::spawn("unlink", delete).expect("thread");
            let found = shared.iget(ino);
            deletes.join().expect("joined");
            found.map_or(0, |f| shared.getattr(&f).nlink)
        });
        let links = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        fs.serving().reap();
        let again = fs.iget(ino).is_ok();
        fs.unmount().expect("unmount");
        match (links, again) {
            (0, false) => Ok(()),
            found => Err(format!("seed {seed}: {found:?}")),
        }
    }));
}

/// Pending times are written while their inode is freed and its number reused: the new inode must not change.
#[test]
fn times_of_a_freed_inode_are_not_written_over_the_next_one() {
    let image = small();
    all_right((0..SCHEDULES).map(|seed| {
        let dev = Arc::new(image.snapshot());
        let strategy = sim::Strategy::Priorities { changes: 60, steps: 12_000 };
        let shared = dev.clone();
        let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
            let options = MountOptions { threads: false, seed: Some(1), ..production() };
            let fs = Filesystem::mount(shared, options).expect("mounted");
            (0..10).for_each(|i| drop(create(&fs, &format!("f{i}"))));
            fs.sync().expect("sync");
            let root = fs.root().expect("root");
            for i in 0..10 {
                let f = fs.lookup(&root, format!("f{i}").as_bytes()).expect("there");
                let times = SetAttr { mtime: Some(extant_fs::SetTime::Now), ..SetAttr::default() };
                fs.setattr(&f, &times).expect("times");
            }
            // Until the times are due.
            Clock::real().sleep(Duration::from_secs(10));
            let other = Arc::clone(&fs);
            let flusher = task::spawn("flusher", move || other.step()).expect("thread");
            for i in 0..10 {
                fs.unlink(&root, format!("f{i}").as_bytes()).expect("unlink");
                fs.serving().reap();
                let g = create(&fs, &format!("g{i}"));
                fs.fsync(&g, false).expect("fsync");
            }
            flusher.join().expect("joined");
            drop(root);
            fs.unmount().expect("unmount");
        });
        outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let (code, said) = tools::e2fsck(&dev, &["-fn"]);
        if code == 0 { Ok(()) } else { Err(format!("seed {seed}: {said}")) }
    }));
}

/// In each schedule: one thread truncates a file while `other` removes its name, or adds its first. The state after a
/// power cut, right then and at the end, must be intact once it has been mounted.
fn cut_while(tmpfile: bool, other: fn(&Filesystem, &InodeRef)) {
    // So many extents that the truncation takes several handles.
    let image = image(16, &["-t", "ext4", "-b", "1024", "-J", "size=1"], &[]);
    let options = || MountOptions { threads: false, seed: Some(1), ..production() };
    all_right((0..SCHEDULES).map(|seed| {
        let dev = Arc::new(image.snapshot());
        let fs = Filesystem::mount(dev.clone(), options()).expect("mounted");
        let f = match tmpfile {
            true => fs.tmpfile(&fs.root().expect("root"), 0o600, Cred::default()).expect("tmpfile"),
            false => create(&fs, "f"),
        };
        for block in (0..2000).step_by(2) {
            put(&fs, &f, block * 1024, &[7; 1024]);
        }
        fs.fsync(&f, false).expect("fsync");
        let (shared, cut, device) = (Arc::clone(&fs), f.clone(), dev.clone());
        let strategy = sim::Strategy::Priorities { changes: 2, steps: 400 };
        let outcome = sim::run(&sim::Options { strategy, ..sim::Options::new(seed) }, move || {
            let (fs, f) = (Arc::clone(&shared), cut.clone());
            let cuts = task::spawn("truncate", move || {
                fs.setattr(&f, &SetAttr { size: Some(100), ..SetAttr::default() }).expect("truncate");
            });
            other(&shared, &cut);
            shared.sync_names().expect("commit");
            let middle = device.snapshot();
            cuts.expect("thread").join().expect("joined");
            middle
        });
        let middle = outcome.result.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        fs.sync().expect("sync");
        let (recorded, nameless) = (fs.statistics().inodes().1, fs.getattr(&f).nlink == 0);
        drop(f);
        let after = dev.snapshot();
        fs.abandon();
        if recorded != usize::from(nameless) {
            return Err(format!("seed {seed}: {recorded} recorded, nameless: {nameless}"));
        }
        for crashed in [middle, after] {
            let dev = Arc::new(crashed);
            Filesystem::mount(dev.clone(), options()).expect("mounted").unmount().expect("unmount");
            let (code, said) = tools::e2fsck(&dev, &["-fn"]);
            if code != 0 {
                return Err(format!("seed {seed}: {said}"));
            }
        }
        Ok(())
    }));
}

#[test]
fn a_file_unlinked_during_its_truncation_remains_recorded() {
    cut_while(false, |fs, _| fs.unlink(&fs.root().expect("root"), b"f").expect("unlink"));
}

#[test]
fn a_file_linked_during_its_truncation_remains_recorded() {
    cut_while(true, |fs, f| fs.link(f, &fs.root().expect("root"), b"f").expect("link"));
}
