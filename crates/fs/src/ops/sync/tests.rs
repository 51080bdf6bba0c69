//! An asynchronous fsync returns without waiting, and calls back when its data is durable.

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::Waiter;
use extant_base::task;
use extant_block::BlockDevice;
use extant_block::device::{Catch, HeldDevice};
use extant_cache::LossCursor;
use extant_journal::Durability;

use crate::ops::credits;
use crate::ops::no_space::tests::take_all;
use crate::{Cred, FallocateMode, Filesystem, InodeRef, MountOptions, NewNode, Result, WriteFlags};

const BLOCK: usize = 1024;
/// The time limit for an event, and the time for which the tests watch that an event does not happen.
const LONG: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_millis(50);

fn mounted() -> (Arc<HeldDevice>, crate::Mounted) {
    let dev = crate::tools::made(&["-t", "ext4", "-b", "1024"], "16M");
    let held = Arc::new(HeldDevice::new(Arc::new(dev)).expect("held"));
    (held.clone(), mount(held))
}

fn mount(dev: Arc<dyn BlockDevice>) -> crate::Mounted {
    let options = MountOptions { commit_interval_s: Some(3600), seed: Some(1), ..MountOptions::default() };
    Filesystem::mount(dev, options).expect("mounted")
}

fn new_file(fs: &Filesystem, name: &str) -> InodeRef {
    let root = fs.root().expect("root");
    fs.create(&root, name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create")
}

fn put(fs: &Filesystem, f: &InodeRef, byte: u8) {
    assert_eq!(fs.write(f, 0, &[byte; BLOCK], WriteFlags::default()).expect("write"), BLOCK);
}

/// Calls it on a separate thread, which must return.
fn fsync_async(fs: &crate::Mounted, f: &InodeRef) -> Waiter<Result<()>> {
    let (answer, returned) = (Waiter::new(), Waiter::new());
    let (tell, back, fs, f) = (answer.clone(), returned.clone(), Arc::clone(fs), f.clone());
    let asking = move || {
        fs.serving().fsync_async(&f, LossCursor::thread(), false, Box::new(move |r| tell.set(r)));
        back.set(());
    };
    let thread = task::spawn("asks", asking).expect("thread");
    let since = std::time::Instant::now();
    while !returned.is_set() {
        assert!(since.elapsed() < LONG, "the fsync holds its thread");
        Clock::real().sleep(Duration::from_millis(1));
    }
    thread.join().expect("joined");
    answer
}

fn assert_open(answers: &[Waiter<Result<()>>], why: &str) {
    Clock::real().sleep(GRACE);
    assert!(answers.iter().all(|a| !a.is_set()), "answered while {why}");
}

fn assert_written(fs: &Filesystem, f: &InodeRef) {
    assert!(f.pages.dirty_bytes() == 0 && f.writes.is_idle(), "inode {}", f.ino);
    assert_eq!(f.meta.read().desc.size, BLOCK as u64);
    assert!(!f.meta.read().lazy_times && !f.synced_by(false).is_after(fs.journal.committed_tid()));
}

/// Another thread holds the inode, such as a truncation or the flusher.
#[test]
fn not_for_who_has_the_inode() {
    let (_, fs) = mounted();
    let (f, g) = (new_file(&fs, "f"), new_file(&fs, "g"));
    put(&fs, &f, 1);
    put(&fs, &g, 1);
    let guard = f.wb.lock();
    let answers = [fsync_async(&fs, &f), fsync_async(&fs, &f)];
    // An fsync of another inode need not wait for them.
    fsync_async(&fs, &g).wait().expect("g");
    assert_open(&answers, "somebody else has the inode");
    drop(guard);
    answers.iter().for_each(|a| a.wait().expect("f"));
    assert_written(&fs, &f);
    assert_written(&fs, &g);
}

/// Blocks to be mapped, blocks to be converted, and changed times each need a handle. The requests complete on another
/// thread, or while they are being sent.
#[test]
fn not_for_a_transaction_that_closes() {
    let at_once = Arc::new(crate::tools::made(&["-t", "ext4", "-b", "1024"], "16M"));
    let all = ["mapped", "converted", "times"];
    for (fs, names) in [(mounted().1, &all[..]), (mount(at_once), &all), (mounted().1, &["times"])] {
        fsync_while_a_transaction_closes(&fs, names);
    }
}

fn fsync_while_a_transaction_closes(fs: &crate::Mounted, names: &[&str]) {
    let files: Vec<_> = names.iter().map(|name| new_file(fs, name)).collect();
    for (name, f) in names.iter().zip(&files) {
        match *name {
            "converted" => {
                let allocate = FallocateMode::Allocate { keep_size: false };
                fs.fallocate(f, allocate, 0, BLOCK as u64).expect("preallocated");
            }
            "times" => put(fs, f, 1),
            _ => {}
        }
    }
    fs.sync().expect("sync");
    files.iter().for_each(|f| put(fs, f, 2));
    assert!(files.iter().all(|f| f.meta.read().lazy_times));
    let open = fs.start(credits::INODE).expect("handle");
    let closing = Waiter::new();
    let tell = closing.clone();
    fs.journal.commit_async(Some(fs.journal.running_tid()), Durability::Full, Box::new(move |r| tell.set(r)));
    let other = Arc::clone(fs);
    let closes = move || {
        while let Some(handle) = other.try_start(1) {
            handle.finish();
        }
    };
    task::spawn("looks", closes).expect("thread").join().expect("it closes");
    let answers: Vec<_> = files.iter().map(|f| fsync_async(fs, f)).collect();
    assert_open(&answers, "the transaction closes");
    open.finish();
    closing.wait().expect("committed");
    answers.iter().for_each(|a| a.wait().expect("durable"));
    files.iter().for_each(|f| assert_written(fs, f));
}

/// The block is being written and has become dirty again, twice.
#[test]
fn not_for_an_earlier_write() {
    let (held, fs) = mounted();
    let (f, g) = (new_file(&fs, "f"), new_file(&fs, "g"));
    put(&fs, &f, 1);
    fs.sync().expect("sync");
    held.catch(Catch::hold().writes().data());
    let answers: Vec<_> = (2..5)
        .map(|byte| {
            put(&fs, &f, byte);
            fsync_async(&fs, &f)
        })
        .collect();
    assert!(held.wait_held(1, LONG));
    assert_open(&answers, "the first is held");
    assert_eq!(held.held().len(), 1, "{:?}", held.held());
    // The second write begins. The mount's only thread for this may wait there, but g need not wait for it.
    held.release(held.held()[0].id);
    answers[0].wait().expect("the first");
    assert!(held.wait_held(1, LONG));
    put(&fs, &g, 1);
    let answer = fsync_async(&fs, &g);
    assert!(held.wait_held(2, LONG));
    held.let_go();
    answer.wait().expect("g");
    answers[1..].iter().for_each(|a| a.wait().expect("f"));
    assert_written(&fs, &f);
    let mut byte = [0];
    fs.read(&f, 0, &mut byte).expect("read");
    assert_eq!(byte, [4]);
}

/// All free space becomes available only with the next commit.
#[test]
fn not_for_space() {
    let (_, fs) = mounted();
    let (f, g) = (new_file(&fs, "f"), new_file(&fs, "g"));
    fs.write(&g, 0, &[1; 2000 * BLOCK], WriteFlags::default()).expect("write");
    drop(g);
    fs.sync().expect("sync");
    take_all(&fs);
    fs.sync().expect("sync");
    fs.unlink(&fs.root().expect("root"), b"g").expect("unlink");
    fs.evictor().drain();
    put(&fs, &f, 1);
    // The commit that frees the space cannot begin before this handle ends.
    let open = fs.start(credits::INODE).expect("handle");
    let answer = fsync_async(&fs, &f);
    assert_open(std::slice::from_ref(&answer), "there is no space");
    assert!(fs.placement.alloc.pending_blocks() > 0);
    open.finish();
    answer.wait().expect("nothing is lost");
    assert_written(&fs, &f);
    assert_eq!(fs.writeback.flusher.dirty_bytes(), 0);
}

/// An fsync during or after the end of the mount gets a result.
#[test]
fn not_beside_the_end_of_the_mount() {
    for _ in 0..20 {
        let (_, fs) = mounted();
        let files: Vec<_> = (0..8).map(|i| new_file(&fs, &i.to_string())).collect();
        files.iter().for_each(|f| put(&fs, f, 1));
        let (other, asked) = (Arc::clone(&fs), files.clone());
        let asking = move || {
            let mut answers = Vec::new();
            for f in asked.iter().cycle().take(400) {
                let answer = Waiter::new();
                let tell = answer.clone();
                other.serving().fsync_async(f, LossCursor::thread(), false, Box::new(move |r| tell.set(r)));
                answers.push(answer);
            }
            // After the end of the mount the result is an error, but there is one.
            answers.iter().filter(|a| a.wait().is_ok()).count()
        };
        let thread = task::spawn("asks", asking).expect("thread");
        fs.unmount().expect("unmount");
        thread.join().expect("answered, all");
        files.iter().for_each(|f| assert_written(&fs, f));
    }
}
