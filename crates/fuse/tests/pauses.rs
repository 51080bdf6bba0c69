//! Writers that wait for the device do not block other users of the mount.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{Setup, can_mount};
use extant_base::clock::Clock;
use extant_base::task;
use extant_block::device::{Catch, HeldDevice, MemDevice};
use extant_testkit::oracle::{MkfsOptions, make_image};

const PIECE: usize = 1 << 20;
/// The most workers that a mount has.
const WORKERS: usize = 16;
const WRITERS: usize = WORKERS + 8;
/// More pieces than may be dirty, so that every writer has to wait.
const PIECES: usize = 16;

/// Waits for a condition that must become true, because a test that hangs would report less.
fn until(what: &str, mut come: impl FnMut() -> bool) {
    let clock = Clock::real();
    for _ in 0..60_000 {
        if come() {
            return;
        }
        clock.sleep(Duration::from_millis(1));
    }
    panic!("did not happen: {what}");
}

/// Releases the device before the mount ends, even if a test fails.
struct HoldRelease(Arc<HeldDevice>);

impl Drop for HoldRelease {
    fn drop(&mut self) {
        self.0.let_go();
    }
}

/// The device accepts no data at all, so that all writers wait. Threads: the writers, the workers, the flusher.
#[test]
fn a_mount_serves_others_while_more_writers_wait_than_it_has_workers() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let image = make_image(dir.path(), &MkfsOptions::new("ext4", 256 << 20)).expect("image");
    let disk = Arc::new(HeldDevice::new(Arc::new(MemDevice::load(&image).expect("loaded"))).expect("thread"));
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).expect("mount point");
    let options = extant_fs::MountOptions { cache_bytes: 16 << 20, ..Setup::default().fs };
    let mut m = Setup { fs: options, ..Setup::default() }.serve_device(disk.clone(), &mnt);
    disk.catch(Catch::hold().writes().data());
    let _let_go = HoldRelease(disk.clone());
    let stop = Arc::new(AtomicBool::new(false));
    let (begun, written) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let writers: Vec<_> = (0..WRITERS)
        .map(|n| {
            let mut file = File::create(m.at(&format!("f{n}"))).expect("created");
            let (begun, written, stop) = (begun.clone(), written.clone(), stop.clone());
            let write = move || {
                for _ in (0..PIECES).take_while(|_| !stop.load(Ordering::SeqCst)) {
                    begun.fetch_add(1, Ordering::SeqCst);
                    file.write_all(&[n as u8; PIECE]).expect("written");
                    written.fetch_add(1, Ordering::SeqCst);
                }
            };
            task::spawn("writer", write).expect("a thread")
        })
        .collect();
    until("too much is dirty", || m.server().filesystem().serving().is_full_of_dirty());
    let waiting = || begun.load(Ordering::SeqCst) - written.load(Ordering::SeqCst);
    until("every writer waits", || waiting() == WRITERS);
    let (done, served) = channel();
    let name = m.at("new");
    let others = move || {
        for n in 0..100 {
            let name = name.with_extension(n.to_string());
            fs::write(&name, b"").expect("created");
            fs::metadata(&name).expect("looked up");
        }
        done.send(()).expect("heard");
    };
    let _others = task::spawn("others", others).expect("a thread");
    let answered = served.recv_timeout(Duration::from_secs(60));
    let still = waiting();
    stop.store(true, Ordering::SeqCst);
    disk.let_go();
    for writer in writers {
        writer.join().expect("written");
    }
    assert_eq!(answered, Ok(()), "other requests were not served");
    // A writer that finished before too much was dirty may have continued with its next write.
    assert!(still > WORKERS, "only {still} writers wait");
    for n in 0..WRITERS {
        let content = fs::read(m.at(&format!("f{n}"))).expect("read");
        assert!(content.len() >= PIECE && content.iter().all(|b| *b == n as u8), "file {n}");
    }
    m.end().expect("unmounted");
}
