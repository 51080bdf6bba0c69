//! Stress tests: many threads, random operations against a model, a server that is killed, and handles that survive the
//! eviction of every cache.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Served, Setup, can_mount};
use extant_base::rng::Rng;
use extant_fuse::ServerOptions;
use extant_testkit::kinds::{ImageKind, kind};
use extant_testkit::mount::{LoopMount, Mounted};
use extant_testkit::oracle::{e2fsck, expect_clean, make_image};
use extant_testkit::workload::Workload;
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::Errno;

struct Bench {
    _dir: tempfile::TempDir,
    image: PathBuf,
    mnt: PathBuf,
}

fn bench(kind: &ImageKind) -> Bench {
    let dir = tempfile::tempdir().expect("directory");
    let image = make_image(dir.path(), &kind.options).expect("image");
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).expect("mount point");
    Bench { _dir: dir, image, mnt }
}

fn drop_names(path: &Path) {
    rustix::mount::mount_remount(path, rustix::mount::MountFlags::empty(), c"").expect("remount");
}

#[test]
fn concurrent_threads_see_consistent_files() {
    if !can_mount() {
        return;
    }
    let small_cache = |mut setup: Setup| {
        setup.fs.cache_bytes = 8 << 20;
        setup
    };
    let plain = ServerOptions { writeback_cache: false, no_open: false, no_opendir: false, ..ServerOptions::default() };
    let setups = [
        (kind("ext4", "", None, 4096), Setup::default()),
        (kind("ext4", "orphan_file", None, 1024), small_cache(Setup::default())),
        (kind("ext3", "", None, 1024), small_cache(Setup { server: plain, ..Setup::default() })),
    ];
    for (kind, setup) in setups {
        let b = bench(&kind);
        let mut m = setup.serve(&b.image, &b.mnt);
        std::thread::scope(|s| {
            for t in 0..6u64 {
                let dir = m.at(&format!("t{t}"));
                fs::create_dir(&dir).expect("mkdir");
                s.spawn(move || Workload::new(40 + t).apply(&dir, 0..400));
            }
            // Names disappear from the kernel's cache, and files move between directories, while other threads use
            // them.
            let path = m.path.clone();
            s.spawn(move || {
                for i in 0..60 {
                    drop_names(&path);
                    let (a, b) = (path.join(format!("x{i}")), path.join(format!("t{}/x", i % 6)));
                    fs::write(&a, vec![1; 9000]).expect("write");
                    let f = fs::File::open(&a).expect("open");
                    fs::rename(&a, &b).expect("rename");
                    f.sync_all().expect("fsync");
                }
            });
        });
        m.end().unwrap_or_else(|e| panic!("{}: {e}", kind.name));
        expect_clean(&b.image).unwrap_or_else(|e| panic!("{e}"));
    }
}

/// Like fsx: one file, any operation, compared with a model.
#[expect(clippy::too_many_lines, reason = "one arm a random operation of the model")]
fn exercise(m: &Served, seed: u64, operations: usize) {
    const SIZE_MAX: u64 = 300_000;
    let mut rng = Rng::new(seed);
    let mut below = |n: u64| rng.below(n);
    let path = m.at("model");
    let open = || fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).expect("open");
    let mut file = open();
    file.set_len(0).expect("truncate");
    let mut model: Vec<u8> = Vec::new();
    let mut log = Vec::new();
    for i in 0..operations {
        let at = below(SIZE_MAX);
        let long = below(4) == 0;
        let len = 1 + below(if long { 60_000 } else { 6000 });
        let end = (at + len) as usize;
        let what = below(12);
        log.push((i, what, at, len));
        let zero = |model: &mut Vec<u8>, end: usize| {
            let end = end.min(model.len());
            if (at as usize) < end {
                model[at as usize..end].fill(0);
            }
        };
        let fallocate = |flags| match rustix::fs::fallocate(&file, flags, at, len) {
            Ok(()) => true,
            Err(Errno::OPNOTSUPP) => false,
            Err(e) => panic!("seed {seed}: {e}: {log:?}"),
        };
        match what {
            0..=3 => {
                let data: Vec<u8> = (0..len).map(|k| (i as u64 * 31 + k * 7 + 1) as u8).collect();
                file.write_all_at(&data, at).expect("write");
                model.resize(model.len().max(end), 0);
                model[at as usize..end].copy_from_slice(&data);
            }
            4 => {
                file.set_len(at).expect("truncate");
                model.resize(at as usize, 0);
            }
            5 if fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE) => zero(&mut model, end),
            6 => {
                let keep = below(2) == 0;
                let flags = if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                if fallocate(FallocateFlags::ZERO_RANGE | flags) {
                    zero(&mut model, end);
                    if !keep {
                        model.resize(model.len().max(end), 0);
                    }
                }
            }
            7 if fallocate(FallocateFlags::empty()) => model.resize(model.len().max(end), 0),
            8 => {
                file.sync_all().expect("fsync");
                rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).expect("fadvise");
            }
            9 => {
                drop(file);
                drop_names(&m.path);
                file = open();
            }
            10 => match rustix::fs::seek(&file, SeekFrom::Data(at)) {
                Ok(data) => {
                    let stop = (data as usize).min(model.len());
                    assert!(model[at as usize..stop].iter().all(|b| *b == 0), "seed {seed}: data skipped: {log:?}");
                }
                Err(Errno::NXIO) => {
                    let rest = model.get(at as usize..).unwrap_or_default();
                    assert!(rest.iter().all(|b| *b == 0), "seed {seed}: data not found: {log:?}");
                }
                Err(e) => panic!("{e}"),
            },
            _ => {}
        }
        if below(3) == 0 || i + 1 == operations {
            let mut got = vec![0; model.len() + 10];
            let n = loop_read(&file, &mut got);
            got.truncate(n);
            if got != model {
                let at = got.iter().zip(&model).position(|(a, b)| a != b);
                panic!("seed {seed}: {n} bytes for {}, first difference {at:?}: {log:?}", model.len());
            }
        }
    }
    drop(file);
    fs::write(m.at("expected"), &model).expect("write");
}

fn loop_read(file: &fs::File, buf: &mut [u8]) -> usize {
    let mut at = 0;
    while at < buf.len() {
        match file.read_at(&mut buf[at..], at as u64).expect("read") {
            0 => break,
            n => at += n,
        }
    }
    at
}

#[test]
fn one_file_matches_a_model() {
    if !can_mount() {
        return;
    }
    let seeds = std::env::var("EXTANT_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4);
    let plain = ServerOptions { writeback_cache: false, ..ServerOptions::default() };
    let mut through = Setup::default();
    through.fs.write_through_bytes = Some(16 << 10);
    let setups = [
        ("ext4", 4096, Setup::default()),
        ("ext4", 1024, through.clone()),
        ("ext2", 1024, Setup::default()),
        ("ext4", 4096, Setup { server: plain, ..through }),
    ];
    for (fs_type, block_size, setup) in setups {
        for seed in 0..seeds {
            let b = bench(&kind(fs_type, "", None, block_size));
            let mut m = setup.serve(&b.image, &b.mnt);
            exercise(&m, seed, 250);
            m.end().expect("unmounted");
            expect_clean(&b.image).unwrap_or_else(|e| panic!("{fs_type} {block_size} seed {seed}: {e}"));
            let k = Box::new(LoopMount::new(&b.image, &b.mnt, "ro").expect("mounted"));
            let (model, expected) = (fs::read(b.mnt.join("model")), fs::read(b.mnt.join("expected")));
            let same = model.expect("read") == expected.expect("read");
            k.unmount().expect("unmounted");
            assert!(same, "{fs_type} {block_size} seed {seed}: the kernel reads other content");
        }
    }
}

/// The server half of the test below.
#[test]
#[ignore = "runs in a child process"]
fn child_server() {
    let var = |name| PathBuf::from(std::env::var_os(name).expect("set"));
    let served = Setup::default().serve(&var("EXTANT_TEST_IMAGE"), &var("EXTANT_TEST_MOUNT"));
    println!("\nready");
    loop {
        extant_base::clock::Clock::real().sleep(std::time::Duration::from_secs(1));
        assert!(served.server.is_some());
    }
}

#[test]
fn synced_data_survives_a_killed_server() {
    if !can_mount() {
        return;
    }
    for (round, kind) in [kind("ext4", "", None, 4096), kind("ext3", "", None, 1024)].iter().enumerate() {
        let b = bench(kind);
        let me = std::env::current_exe().expect("path");
        let mut child = Command::new(me)
            .args(["child_server", "--exact", "--ignored", "--nocapture"])
            .env("EXTANT_TEST_IMAGE", &b.image)
            .env("EXTANT_TEST_MOUNT", &b.mnt)
            .stdout(Stdio::piped())
            .spawn()
            .expect("child");
        let lines = BufReader::new(child.stdout.take().expect("pipe")).lines();
        assert!(lines.map_while(Result::ok).any(|l| l == "ready"));
        let synced = extant_base::sync::atomic::AtomicU64::new(0);
        let order = extant_base::sync::atomic::Ordering::SeqCst;
        let mut held = Vec::new();
        std::thread::scope(|s| {
            let (mnt, synced) = (&b.mnt, &synced);
            s.spawn(move || {
                // Ends when the server is killed.
                for i in 0..10_000u64 {
                    let write = || -> std::io::Result<()> {
                        let path = mnt.join(format!("f{i}"));
                        fs::write(mnt.join("new"), vec![i as u8; 3000 + i as usize * 11])?;
                        fs::File::open(mnt.join("new"))?.sync_all()?;
                        fs::rename(mnt.join("new"), &path)?;
                        fs::File::open(path)?.sync_all()
                    };
                    if write().is_err() {
                        return;
                    }
                    synced.store(i + 1, order);
                }
            });
            for i in 0..30 {
                let path = b.mnt.join(format!("orphan{i}"));
                if let Ok(f) = fs::File::create(&path) {
                    let _ = f.write_all_at(&[1; 200_000], 0);
                    let _ = fs::remove_file(&path);
                    held.push(f);
                }
            }
            while synced.load(order) < 40 + round as u64 * 20 {
                extant_base::clock::Clock::real().sleep(std::time::Duration::from_millis(5));
            }
            child.kill().expect("killed");
            child.wait().expect("reaped");
        });
        drop(held);
        let _ = Command::new("umount").arg("-l").arg(&b.mnt).status();
        let check = |dir: &Path, who: &str| {
            for i in 0..synced.load(order) {
                let data = fs::read(dir.join(format!("f{i}"))).unwrap_or_else(|e| panic!("{who}: f{i}: {e}"));
                assert!(data == vec![i as u8; 3000 + i as usize * 11], "{who}: f{i}");
            }
        };
        let copy = b.image.with_extension("copy");
        fs::copy(&b.image, &copy).expect("copied");
        let fsck = e2fsck(&copy, &["-fy"]).expect("e2fsck");
        assert!(fsck.code <= 1, "{}", fsck.output);
        expect_clean(&copy).unwrap_or_else(|e| panic!("{e}\nfirst pass:\n{}", fsck.output));
        let k = Box::new(LoopMount::new(&copy, &b.mnt, "").expect("mounted"));
        check(&b.mnt, "the kernel");
        k.unmount().expect("unmounted");
        let mut m = Setup::default().serve(&b.image, &b.mnt);
        check(&b.mnt, "extant");
        assert!(!m.at("orphan0").exists());
        m.end().expect("unmounted");
        expect_clean(&b.image).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn handles_survive_dropped_kernel_caches() {
    if !can_mount() {
        return;
    }
    let b = bench(&kind("ext4", "", None, 4096));
    let mut m = Setup::default().serve(&b.image, &b.mnt);
    fs::create_dir_all(m.at("a/b")).expect("mkdir");
    fs::write(m.at("a/b/f"), b"found").expect("write");
    let script = r#"
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
top, path, data = sys.argv[1:4]
h, mount = Handle(128, 0), ctypes.c_int()
assert libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), 0) == 0, ctypes.get_errno()
parent = Handle(128, 0)
assert libc.name_to_handle_at(-100, os.path.dirname(path).encode(), ctypes.byref(parent), ctypes.byref(mount), 0) == 0
libc.mount(None, top.encode(), None, 32, None)
top = os.open(top, os.O_RDONLY)
fd = libc.open_by_handle_at(top, ctypes.byref(h), os.O_RDONLY)
assert fd >= 0, ctypes.get_errno()
assert os.read(fd, 100) == data.encode()
os.close(fd)
fd = libc.open_by_handle_at(top, ctypes.byref(parent), os.O_RDONLY)
assert fd >= 0, ctypes.get_errno()
assert os.readlink("/proc/self/fd/%d" % fd) == os.path.dirname(path)
os.close(fd)
os.unlink(path)
for i in range(1200):
    fd = libc.open_by_handle_at(top, ctypes.byref(h), os.O_RDONLY)
    if fd < 0:
        break
    os.close(fd) # the kernel keeps the inode of a closed file until the reply to its release
    time.sleep(0.05)
assert fd < 0 and ctypes.get_errno() == 116, (fd, ctypes.get_errno())
"#;
    let out = Command::new("python3").args(["-c", script]).arg(&m.path).arg(m.at("a/b/f")).arg("found").output();
    match out {
        Err(_) => eprintln!("SKIPPED: no python3"),
        Ok(o) => assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr)),
    }
    m.end().expect("unmounted");
    expect_clean(&b.image).unwrap_or_else(|e| panic!("{e}"));
}
