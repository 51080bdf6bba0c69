//! Tests of files: exclusion, short files, the kernel's mounts, offsets.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use nix::fcntl::{FcntlArg, fcntl};

use super::model::{content, submit_one};
use crate::device::*;
use crate::queue::BioWait;
use crate::{AlignedBuf, Bio, BioData, BioFlags, BioOp, BioVec, BusyBy, Completion, EndIo, Error};

const NONE: BioFlags = BioFlags::empty();

fn each_way(f: impl Fn(IoMode, Engine)) {
    for io in [IoMode::Direct, IoMode::Buffered] {
        for engine in [Engine::Psync, Engine::IoUring] {
            f(io, engine);
        }
    }
}

#[test]
fn one_writer_or_many_readers() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let writer = FileDevice::create(&path, 1 << 20, OpenOptions::default()).expect("created");
    assert!(matches!(FileDevice::open(&path, OpenOptions::default()), Err(Error::Busy { .. })));
    assert!(matches!(FileDevice::open(&path, OpenOptions::read_only()), Err(Error::Busy { .. })));
    drop(writer);
    let a = FileDevice::open(&path, OpenOptions::read_only()).expect("opened");
    let _b = FileDevice::open(&path, OpenOptions::read_only()).expect("opened");
    let e = FileDevice::open(&path, OpenOptions::default()).map(|_| ()).expect_err("readers are there");
    assert!(e.to_string().contains("image") && e.to_string().contains("in use"), "{e}");
    assert!(matches!(a.write_at(0, &[&[0; 512]], NONE), Err(Error::ReadOnly { .. })));
    a.flush().expect("nothing to flush");
}

#[test]
fn a_path_that_is_no_image_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    for path in [dir.path().join("missing"), dir.path().to_owned(), "/dev/null".into()] {
        assert!(matches!(FileDevice::open(&path, OpenOptions::default()), Err(Error::Open { .. })), "{path:?}");
    }
    let path = dir.path().join("image");
    std::fs::write(&path, [1; 8192]).expect("written");
    let window = |offset, len| FileDevice::open(&path, OpenOptions { offset, len, ..OpenOptions::default() });
    assert!(matches!(window(4096, Some(8192)), Err(Error::Open { .. })));
    assert!(matches!(window(100, None), Err(Error::Open { .. })));
    assert!(matches!(window(u64::MAX, Some(8192)), Err(Error::Open { .. })));
    let dev = window(4096, None).expect("inside");
    assert_eq!(dev.size_bytes(), 4096);
    dev.write_at(0, &[&[9; 512]], BioFlags::FUA).expect("written");
    drop(dev);
    let bytes = std::fs::read(&path).expect("read");
    assert_eq!((bytes[4095], bytes[4096], bytes[4608]), (1, 9, 1));
}

#[test]
fn next_data_skips_holes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let file = std::fs::File::create(&path).expect("created");
    file.set_len(16 << 20).expect("a hole");
    let open = |offset, len| FileDevice::open(&path, OpenOptions { offset, len, ..OpenOptions::read_only() });
    let next = |offset, len, at| open(offset, len).expect("opened").next_data(at).expect("found");
    // On a file system that does not know its holes, everything is data.
    if next(0, None, 0).is_none() {
        std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], 8 << 20).expect("written");
        assert_eq!(next(0, None, 0), Some(8 << 20));
        assert_eq!(next(0, None, (8 << 20) + 1), Some((8 << 20) + 1));
        assert_eq!(next(0, None, 9 << 20), None);
        assert_eq!(next(4 << 20, Some(8 << 20), 0), Some(4 << 20), "counted from the window's start");
        assert_eq!(next(0, Some(4 << 20), 0), None, "data behind the window does not count");
        let whole = Arc::new(open(0, None).expect("opened"));
        let window = |start, len| OffsetDevice::new(whole.clone(), start, len).expect("inside");
        assert_eq!(first_data(&window(4 << 20, 8 << 20)), Some(4 << 20));
        assert_eq!(first_data(&window(0, 4 << 20)), None);
        assert_eq!(first_data(&ReadOnlyDevice::new(whole)), Some(8 << 20));
    }
    let unaware = FaultyDevice::new(Arc::new(MemDevice::new(4096)));
    assert_eq!(unaware.next_data(512).expect("answered"), Some(512), "a device that does not know its holes");
    assert_eq!(unaware.next_data(4096).expect("answered"), None);
}

#[test]
fn next_data_of_memory_finds_pages_written_there_or_in_its_base() {
    let memory = MemDevice::new(64 << 20);
    memory.write_at(300 << 10, &[&[1; 512]], NONE).expect("written");
    memory.write_at(40 << 20, &[&[1; 512]], NONE).expect("written");
    assert_eq!(first_data(&memory), Some(300 << 10));
    assert_eq!(memory.next_data((300 << 10) + 700).expect("answered"), Some((300 << 10) + 700), "in the page");
    let far = memory.next_data(304 << 10).expect("answered").expect("data behind");
    assert!(far > 1 << 20 && far <= 40 << 20, "{far}: a hole may end early, never late");
    assert_eq!(memory.next_data((64 << 20) - 4096).expect("answered"), None);
    let over = MemDevice::over(Arc::new(memory));
    over.write_at(100 << 10, &[&[1; 512]], NONE).expect("written");
    assert_eq!(first_data(&over), Some(100 << 10));
    assert_eq!(over.next_data(104 << 10).expect("answered"), Some(300 << 10));
}

fn first_data(dev: &dyn BlockDevice) -> Option<u64> {
    dev.next_data(0).expect("answered")
}

#[test]
fn a_file_that_became_shorter_does_not_read_as_zeroes() {
    each_way(|io, engine| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        let options = OpenOptions { io, engine, ..OpenOptions::default() };
        let dev = FileDevice::create(&path, 1 << 20, options).expect("created");
        std::fs::OpenOptions::new().write(true).open(&path).expect("opened").set_len(8192).expect("cut");
        let mut buf = vec![0; 4096];
        dev.read_at(4096, &mut buf, NONE).expect("still there");
        for (at, len) in [(8192, 4096), (6144, 4096), (1000, 9000), (1 << 19, 512)] {
            let mut buf = vec![0; len];
            let e = dev.read_at(at, &mut buf, NONE).expect_err("past the end of the file");
            assert!(matches!(e, Error::Io { op: BioOp::Read, .. }), "{e}");
        }
        for (at, len) in [(8192u64, 4096usize), (6144, 4096)] {
            let done = submit_one(&dev, |end| Bio::read(at, AlignedBuf::zeroed(len), NONE, end));
            assert!(matches!(done.result, Err(Error::Io { op: BioOp::Read, .. })));
        }
    });
}

#[test]
fn odd_sizes_are_readable_to_the_last_byte() {
    each_way(|io, engine| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        std::fs::write(&path, (0..10_001u32).map(|i| i as u8).collect::<Vec<_>>()).expect("written");
        let dev = FileDevice::open(&path, OpenOptions { io, engine, ..OpenOptions::read_only() }).expect("opened");
        let mut buf = vec![0; 10_001 - 777];
        dev.read_at(777, &mut buf, NONE).expect("read");
        assert!(buf.iter().enumerate().all(|(i, b)| *b == (i + 777) as u8));
        assert!(matches!(dev.read_at(10_000, &mut [0; 2], NONE), Err(Error::OutOfRange { .. })));
    });
}

#[test]
fn an_open_image_never_grows() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let dev = FileDevice::create(&path, 1 << 20, OpenOptions::default()).expect("created");
    let e = dev.write_at(1 << 20, &[&[0; 512]], NONE).expect_err("past the end");
    assert!(matches!(e, Error::OutOfRange { .. }));
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 1 << 20);
}

/// Runs a command; `None` if it cannot be run or fails. Without root or loop devices, the test reports this and passes.
fn run(command: &str, args: &[&str]) -> Option<String> {
    extant_oracle::run_ok(command, args).ok().map(|out| out.trim().to_owned())
}

struct Cleanup(Vec<(&'static str, Vec<String>)>);

impl Drop for Cleanup {
    fn drop(&mut self) {
        while let Some((command, args)) = self.0.pop() {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            // A mount is busy until the kernel has let go of a loop device in it. Another program may look at that.
            let ended = (0..100).any(|_| {
                let ended = run(command, &args).is_some();
                if !ended {
                    Clock::real().sleep(Duration::from_millis(50));
                }
                ended
            });
            assert!(ended || std::thread::panicking(), "{command} {args:?}");
        }
    }
}

#[test]
fn two_partitions_of_one_file_have_a_writer_each_and_no_byte_has_two() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    std::fs::File::create(&path).expect("made").set_len(4 << 20).expect("sized");
    let part = |offset, len| OpenOptions { offset, len, ..OpenOptions::default() };
    let first = FileDevice::open(&path, part(1 << 20, Some(1 << 20))).expect("the first");
    let second = FileDevice::open(&path, part(2 << 20, Some(1 << 20))).expect("the second");
    second.write_at(0, &[&[7; 512]], BioFlags::empty()).expect("written");
    for (start, len) in [(1 << 20, Some(1 << 20)), (0, Some((1 << 20) + 512)), ((3 << 20) - 512, None), (0, None)] {
        for read_only in [false, true] {
            let tried = FileDevice::open(&path, OpenOptions { read_only, ..part(start, len) });
            assert!(matches!(tried, Err(Error::Busy { .. })), "{start} {len:?}");
        }
    }
    FileDevice::open(&path, part(3 << 20, None)).expect("behind both");
    FileDevice::open(&path, OpenOptions { lock: Locking::None, ..OpenOptions::read_only() }).expect("a look");
    assert!(is_locked(&path, 0, None).expect("readable"));
    let written = |start, len| has_writer(&path, start, len).expect("readable");
    assert!(written(0, None) && written(1 << 20, Some(512)) && !written(3 << 20, None));
    drop(second);
    assert!(!written(2 << 20, Some(1 << 20)), "it does not overlap the first");
    drop(first);
    assert!(!is_locked(&path, 0, None).expect("readable"));
    let reader = FileDevice::open(&path, OpenOptions::read_only()).expect("a reader");
    assert!(is_locked(&path, 0, None).expect("readable") && !written(0, None));
    assert_eq!(reader.host_file().expect("open"), {
        let meta = path.metadata().expect("there");
        (meta.dev(), meta.ino())
    });
    drop(reader);
    let whole = FileDevice::open(&path, OpenOptions::default()).expect("the whole");
    let mut bytes = [0; 512];
    whole.read_at(2 << 20, &mut bytes, BioFlags::empty()).expect("read");
    assert_eq!(bytes, [7; 512]);
}

/// Takes the locks that QEMU takes when it opens an image (block/file-posix.c): it sets its bytes, and then looks for
/// contradictions.
fn qemu(path: &Path, writes: bool) -> Option<std::fs::File> {
    let file = std::fs::File::options().read(true).write(writes).open(path).expect("opened");
    let (does, denies): (&[i64], _) = if writes { (&[0, 1, 3], [1, 3]) } else { (&[0], [1, 3]) };
    let at = |kind: libc::c_int, start: i64| libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 1,
        l_pid: 0,
    };
    for start in does.iter().map(|n| 100 + n).chain(denies.iter().map(|n| 200 + n)) {
        fcntl(&file, FcntlArg::F_OFD_SETLK(&at(libc::F_RDLCK, start))).ok()?;
    }
    for start in does.iter().map(|n| 200 + n).chain(denies.iter().map(|n| 100 + n)) {
        let mut lock = at(libc::F_WRLCK, start);
        fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock)).expect("a file with locks");
        if libc::c_int::from(lock.l_type) != libc::F_UNLCK {
            return None;
        }
    }
    Some(file)
}

/// The image, a partition and a guest of QEMU, each as reader and as writer, in both orders.
#[test]
fn readers_go_together_with_a_guest_and_writers_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    std::fs::File::create(&path).expect("made").set_len(4 << 20).expect("sized");
    for (offset, len) in [(0, None), (0, Some(4 << 20)), (1 << 20, Some(1 << 20)), (2 << 20, None)] {
        let open = |writes: bool| {
            FileDevice::open(&path, OpenOptions { read_only: !writes, offset, len, ..OpenOptions::default() }).ok()
        };
        for (writes, guest_writes) in [(false, false), (false, true), (true, false), (true, true)] {
            let together = !writes && !guest_writes;
            let ours = open(writes).expect("free");
            assert_eq!(qemu(&path, guest_writes).is_some(), together, "{offset}: {writes}, then {guest_writes}");
            drop(ours);
            let theirs = qemu(&path, guest_writes).expect("free");
            assert_eq!(open(writes).is_some(), together, "{offset}: guest {guest_writes}, then {writes}");
            drop(theirs);
        }
    }
    let part = |read_only, offset| OpenOptions { read_only, offset, len: Some(1 << 20), ..OpenOptions::default() };
    for (one, other) in [(false, false), (false, true), (true, false), (true, true)] {
        let _one = FileDevice::open(&path, part(one, 1 << 20)).expect("the first partition");
        FileDevice::open(&path, part(other, 2 << 20)).expect("the second");
    }
}

#[test]
fn an_image_that_the_kernel_has_mounted_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let (image, mount) = (dir.path().join("image"), dir.path().join("a mount"));
    std::fs::create_dir(&mount).expect("made");
    let (image_s, mount_s) = (image.to_str().expect("utf-8"), mount.to_str().expect("utf-8"));
    extant_oracle::mke2fs(&image, &[], "4M");
    assert_eq!(same_image_in_use(&image).expect("a table"), None);
    let Some(lo) = run("losetup", &["-f", "--show", image_s]) else {
        eprintln!("skipped: no loop device to be had");
        return;
    };
    let mut cleanup = Cleanup(vec![("losetup", vec!["-d".to_owned(), lo.clone()])]);
    drop(FileDevice::open(&image, OpenOptions::default()).expect("attached, but not mounted"));
    if run("mount", &[&lo, mount_s]).is_none() {
        eprintln!("skipped: cannot mount");
        return;
    }
    cleanup.0.push(("umount", vec![mount_s.to_owned()]));
    let by = same_image_in_use(&image).expect("a table").expect("in use");
    assert_eq!(by.to_string(), format!("mounted by the kernel through {lo} at {mount_s}"));
    for options in [OpenOptions::default(), OpenOptions::read_only()] {
        assert!(matches!(FileDevice::open(&image, options), Err(Error::Busy { by: BusyBy::Kernel(b), .. }) if b == by));
    }
    FileDevice::open(&image, OpenOptions { allow_mounted: true, ..OpenOptions::read_only() }).expect("on request");
    let e = FileDevice::open(&lo, OpenOptions::default()).map(|_| ()).expect_err("the device is mounted");
    assert!(matches!(&e, Error::Busy { by: BusyBy::Kernel(b), .. } if b.at.as_deref() == Some(mount_s)), "{e}");
}

#[test]
fn block_devices_read_write_discard_and_exclude() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0xAA; 4 << 20]).expect("written");
    let Some(lo) = run("losetup", &["-f", "--show", image.to_str().expect("utf-8")]) else {
        eprintln!("skipped: no loop device to be had");
        return;
    };
    let _cleanup = Cleanup(vec![("losetup", vec!["-d".to_owned(), lo.clone()])]);
    each_way(|io, engine| {
        let options = OpenOptions { io, engine, ..OpenOptions::default() };
        let dev = FileDevice::open(&lo, options.clone()).expect("opened");
        assert_eq!(dev.size_bytes(), 4 << 20);
        assert_eq!(dev.limits().logical_block, 512);
        assert!(matches!(FileDevice::open(&lo, options), Err(Error::Busy { .. })), "exclusive");
        dev.write_at(512, &[&[1; 512], &[2; 512]], BioFlags::FUA | BioFlags::PREFLUSH).expect("written");
        dev.discard(1 << 20, 1 << 20).expect("discarded");
        dev.write_zeroes(2 << 20, 65536, BioFlags::FUA).expect("zeroed");
        dev.flush().expect("flushed");
        let mut buf = vec![0; 3 << 20];
        dev.read_at(0, &mut buf, NONE).expect("read");
        assert_eq!((buf[511], buf[512], buf[1024], buf[1536]), (0xAA, 1, 2, 0xAA));
        assert!(buf[1 << 20..(2 << 20) + 65536].iter().all(|b| *b == 0));
        assert_eq!(buf[(2 << 20) + 65536], 0xAA);
    });
}

#[test]
fn write_zeroes_frees_storage_only_with_unmap() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    std::fs::write(&image, vec![0xAA; 4 << 20]).expect("written");
    let taken = || std::fs::metadata(&image).expect("there").blocks() * 512;
    let dev = FileDevice::open(&image, OpenOptions::default()).expect("opened");
    dev.write_zeroes(0, MIB, BioFlags::FUA).expect("zeroed");
    assert!(taken() >= 4 * MIB, "{}", taken());
    dev.write_zeroes(0, 3 * MIB, BioFlags::UNMAP | BioFlags::FUA).expect("unmapped");
    assert!((MIB..2 * MIB).contains(&taken()), "{}", taken());
    let mut buf = vec![0; 4 << 20];
    dev.read_at(0, &mut buf, NONE).expect("read");
    assert!(buf[..3 << 20].iter().all(|b| *b == 0) && buf[3 << 20..].iter().all(|b| *b == 0xAA));
}

#[test]
fn the_engine_is_the_requested_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let with = |engine| OpenOptions { engine, ..OpenOptions::default() };
    let dev = FileDevice::create(&path, 1 << 20, with(Engine::Psync)).expect("created");
    assert_eq!(dev.engine(), Engine::Psync);
    drop(dev);
    let dev = FileDevice::create(&path, 1 << 20, with(Engine::Portable)).expect("created");
    assert_eq!((dev.engine(), dev.io_mode()), (Engine::Portable, IoMode::Buffered));
    drop(dev);
    // Some containers refuse io_uring; then the other tests test the fallback.
    let dev = FileDevice::create(&path, 1 << 20, with(Engine::IoUring)).expect("created");
    eprintln!("engine {:?}, mode {:?}", dev.engine(), dev.io_mode());
}

/// There are far more requests than slots, from threads that end immediately, with flushes in between. All complete,
/// and all writes can be read.
#[test]
fn requests_of_threads_that_have_ended_complete() {
    const THREADS: u64 = 8;
    const EACH: u64 = 300;
    each_way(|io, engine| {
        let dir = tempfile::tempdir().expect("a directory");
        let options = OpenOptions { io, engine, ..OpenOptions::default() };
        let size = THREADS * EACH * 4096;
        let dev = Arc::new(FileDevice::create(dir.path().join("image"), size, options).expect("created"));
        let wait = Arc::new(BioWait::new());
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let (dev, wait) = (dev.clone(), wait.clone());
                extant_base::task::spawn("submitter", move || {
                    for i in 0..EACH {
                        let at = (i * THREADS + t) * 4096;
                        let buf = Arc::new(AlignedBuf::from_slice(&content(at, 4096, 1)));
                        let flags = if i % 50 == 7 { BioFlags::FUA | BioFlags::PREFLUSH } else { NONE };
                        let halves = [(0, 1024), (1024, 3072)];
                        let vecs = halves.map(|(offset, len)| BioVec { buf: buf.clone(), offset, len }).to_vec();
                        dev.submit(Bio::write(at, vecs, flags, wait.end_io()));
                        if i % 40 == 0 {
                            dev.submit(Bio::flush(wait.end_io()));
                        }
                    }
                })
                .expect("thread")
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("joined"));
        let done = wait.wait();
        assert_eq!(done.len() as u64, THREADS * (EACH + EACH.div_ceil(40)));
        assert!(done.iter().all(|c| c.result.is_ok()));
        let mut all = vec![0; size as usize];
        dev.read_at(0, &mut all, NONE).expect("read");
        for at in (0..size).step_by(4096) {
            assert!(all[at as usize..][..4096] == content(at, 4096, 1), "at {at}");
        }
        let stats = dev.stats();
        assert_eq!((stats.writes, stats.write_bytes), (THREADS * EACH, size));
        assert_eq!(stats.flushes, THREADS * (EACH.div_ceil(40) + 2 * 6));
    });
}

/// A completion may submit again, even if the ring is full, and may be the last owner of the device.
#[test]
fn completions_may_submit_and_drop_the_device() {
    struct Chain {
        dev: Arc<FileDevice>,
        at: u64,
        left: u32,
        done: Box<dyn EndIo>,
    }
    impl EndIo for Chain {
        fn end_io(self: Box<Self>, c: Completion) {
            c.result.as_ref().expect("read");
            if self.left == 0 {
                let Chain { dev, done, .. } = *self;
                drop(dev);
                return done.end_io(c);
            }
            let BioData::Read(buf) = c.data else { panic!("a read returns its buffer") };
            let dev = self.dev.clone();
            let next = Chain { at: (self.at + 4096) % (1 << 20), left: self.left - 1, ..*self };
            dev.submit(Bio::read(next.at, buf, NONE, Box::new(next)));
        }
    }
    each_way(|io, engine| {
        let dir = tempfile::tempdir().expect("a directory");
        let options = OpenOptions { io, engine, ..OpenOptions::default() };
        let dev = Arc::new(FileDevice::create(dir.path().join("image"), 1 << 20, options).expect("created"));
        let wait = Arc::new(BioWait::new());
        for i in 0..400 {
            let chain = Chain { dev: dev.clone(), at: i * 512, left: 10, done: wait.end_io() };
            dev.submit(Bio::read(i * 512, AlignedBuf::zeroed(512), NONE, Box::new(chain)));
        }
        drop(dev);
        assert_eq!(wait.wait().len(), 400);
    });
}

/// Buffered writes to a disk that cannot store them: the page cache accepts them, and the flush fails. Every later
/// flush fails, too, although the kernel reports the error only once.
#[test]
fn a_failed_flush_is_for_good() {
    for engine in [Engine::Psync, Engine::IoUring, Engine::Portable] {
        let dir = tempfile::tempdir().expect("a directory");
        let mount = dir.path().to_str().expect("utf-8");
        if run("mount", &["-t", "tmpfs", "-o", "size=1m", "none", mount]).is_none() {
            eprintln!("skipped: cannot mount");
            return;
        }
        let mut cleanup = Cleanup(vec![("umount", vec![mount.to_owned()])]);
        let image = dir.path().join("image");
        std::fs::File::create(&image).expect("made").set_len(8 << 20).expect("sized");
        let Some(lo) = run("losetup", &["-f", "--show", image.to_str().expect("utf-8")]) else {
            eprintln!("skipped: no loop device to be had");
            return;
        };
        cleanup.0.push(("losetup", vec!["-d".to_owned(), lo.clone()]));
        let options = OpenOptions { io: IoMode::Buffered, engine, ..OpenOptions::default() };
        let dev = FileDevice::open(&lo, options).expect("opened");
        dev.flush().expect("nothing written yet");
        dev.write_at(0, &[&content(0, 4 << 20, 1)], NONE).expect("into the page cache");
        let flush = || submit_one(&dev, Bio::flush).result;
        flush().expect_err("a megabyte cannot hold it");
        for _ in 0..2 {
            assert!(matches!(dev.flush(), Err(Error::Io { op: BioOp::Flush, .. })));
            flush().expect_err("still lost");
            let buf = Arc::new(AlignedBuf::zeroed(512));
            let vecs = vec![BioVec { buf, offset: 0, len: 512 }];
            let done = submit_one(&dev, |end| Bio::write(0, vecs, BioFlags::PREFLUSH, end));
            done.result.expect_err("the writes before it are lost");
        }
        drop(dev);
    }
}

#[test]
fn a_file_grows_durably_and_reads_as_zeroes_there() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    std::fs::write(&path, [7; 8192]).expect("written");
    for options in [OpenOptions::default(), OpenOptions { offset: 4096, ..OpenOptions::default() }] {
        let device = FileDevice::open(&path, options).expect("opened");
        let size = device.size_bytes();
        device.grow(size).expect("as long already");
        assert_eq!(device.size_bytes(), size);
        device.grow(size + 65536).expect("longer");
        let mut bytes = [1; 512];
        device.read_at(size + 65024, &mut bytes, NONE).expect("read");
        assert_eq!((bytes, device.size_bytes()), ([0; 512], size + 65536));
        device.write_at(size, &[&[9; 512]], NONE).expect("written");
        // The host made it longer in the meantime.
        let longer = std::fs::metadata(&path).expect("file").len() + 4096;
        std::fs::File::options().write(true).open(&path).expect("open").set_len(longer).expect("longer");
        assert_eq!(device.measure().expect("measured"), size + 65536 + 4096);
    }
}

#[test]
fn a_part_of_a_file_keeps_its_size() {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    std::fs::write(&path, [7; 16384]).expect("written");
    let part = OpenOptions { offset: 4096, len: Some(4096), ..OpenOptions::default() };
    let device = FileDevice::open(&path, part).expect("opened");
    assert_eq!(device.measure().expect("measured"), 4096);
    assert!(matches!(device.grow(8192), Err(Error::FixedSize { size: 4096, wanted: 8192, .. })));
    drop(device);
    let device = FileDevice::open(&path, OpenOptions::read_only()).expect("opened");
    assert!(matches!(device.grow(32768), Err(Error::ReadOnly { .. })));
    assert_eq!(std::fs::metadata(&path).expect("file").len(), 16384);
}
