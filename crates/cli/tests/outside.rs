//! Programs write, request durability and read again on real mounts, while the server's own threads work: no
//! acknowledged data is lost.
//!
//! `EXTANT_ROUNDS` sets how often each test runs (20), `EXTANT_LOAD` how many processes spin meanwhile (0).

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::{Dir, debugfs, extant_path, fsck_clean, run, tool};
use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::task;
use extant_testkit::mount::{ExtantMount, Mounted, fuse_works, loop_mounts_work};
use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fdatasync, syncfs};

const PAGE: u64 = 4096;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

/// Processes that only consume processor time.
struct Load(Vec<Child>);

impl Load {
    fn start() -> Load {
        // They end by themselves if this process is killed.
        let spin = || Command::new("sh").args(["-c", "ulimit -t 3600; while :; do :; done"]).spawn().expect("sh");
        Load((0..number("EXTANT_LOAD", 0)).map(|_| spin()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs the rounds; `round` returns the losses in it.
fn rounds(mut round: impl FnMut(u64) -> Option<String>) {
    if !fuse_works() || !loop_mounts_work() {
        eprintln!("SKIPPED: mounting needs root and /dev/fuse");
        return;
    }
    let _load = Load::start();
    let n = number("EXTANT_ROUNDS", 20);
    let lost: Vec<String> = (0..n).filter_map(|i| round(i).map(|what| format!("round {i}: {what}"))).collect();
    assert!(lost.is_empty(), "in {} of {n} rounds: {lost:#?}", lost.len());
}

struct Place {
    _dir: Dir,
    image: PathBuf,
    mnt: PathBuf,
}

impl Place {
    fn new(mib: u64) -> Place {
        let dir = Dir::new();
        let (image, mnt) = (dir.path("disk.img"), dir.path("mnt"));
        tool("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", image.to_str().expect("UTF-8"), &format!("{mib}M")]);
        fs::create_dir(&mnt).expect("mount point");
        Place { _dir: dir, image, mnt }
    }

    fn mount_of(&self, what: &Path, options: &[&str]) -> Box<ExtantMount> {
        let options = [&["-f"], options].concat();
        Box::new(ExtantMount::new(extant_path(), &options, what, &self.mnt).expect("mounted"))
    }

    fn mount(&self) -> Box<ExtantMount> {
        self.mount_of(&self.image, &[])
    }

    fn image(&self) -> &str {
        self.image.to_str().expect("UTF-8")
    }
}

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> task::JoinHandle<T> {
    task::spawn("test", f).expect("thread")
}

fn preallocated(path: &Path, len: u64) -> File {
    let f = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).expect("create");
    fallocate(&f, FallocateFlags::empty(), 0, len).expect("fallocate");
    f
}

/// An image file or a block device, with the kernel's writeback cache or without it. The requests that reach the
/// server, and their times, differ.
struct Mounts {
    place: Place,
    device: Option<Loop>,
    options: &'static [&'static str],
}

impl Mounts {
    fn new(round: u64) -> Mounts {
        let place = Place::new(256);
        let device = (round & 1 == 1).then(|| Loop::new(place.image()));
        Mounts { place, device, options: if round & 2 == 2 { &["-o", "no_writeback_cache"] } else { &[] } }
    }

    fn mount(&self) -> Box<ExtantMount> {
        self.place.mount_of(self.device.as_ref().map_or(&self.place.image, |d| &d.0), self.options)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.mnt.join(name)
    }

    /// Unmounts, checks that the image is clean, and describes a loss.
    fn end(self, lost: Option<String>) -> Option<String> {
        let on = if self.device.is_some() { "block device" } else { "image file" };
        drop(self.device);
        fsck_clean(self.place.image());
        lost.map(|what| format!("{on} {:?}: {what}", self.options))
    }
}

#[test]
#[ignore = "20 rounds of some seconds; make soak"]
fn soak_a_reader_behind_a_writer_of_a_preallocated_file() {
    rounds(|round| {
        const PAGES: u64 = 16384;
        let mounts = Mounts::new(round);
        let mount = mounts.mount();
        let path = mounts.at("f");
        let stamp = move |page: u64| (page ^ 0x5A5A_0000_0000 ^ round << 48).to_le_bytes();
        let f = Arc::new(preallocated(&path, PAGES * PAGE));
        f.sync_all().expect("fsync");
        let written = Arc::new(AtomicU64::new(0));
        let (to, seen, over) = (written.clone(), written.clone(), written.clone());
        let (syncs, f2) = (f.clone(), f.clone());
        let writer = spawn(move || {
            for page in 0..PAGES {
                f.write_all_at(&stamp(page), page * PAGE).expect("write");
                to.store(page + 1, Ordering::Release);
            }
        });
        let syncer = spawn(move || {
            while over.load(Ordering::Acquire) < PAGES {
                fdatasync(&*syncs).expect("fdatasync");
            }
        });
        let reader = spawn(move || {
            let f = File::open(path).expect("open");
            let mut wrong = 0;
            let mut page = 0;
            while page < PAGES {
                if page == seen.load(Ordering::Acquire) {
                    task::yield_now();
                    continue;
                }
                // Read from the server, if the kernel has dropped the page.
                let _ = fadvise(&f, page * PAGE, NonZeroU64::new(PAGE), Advice::DontNeed);
                let mut got = [0; 8];
                f.read_exact_at(&mut got, page * PAGE).expect("read");
                wrong += u64::from(got != stamp(page));
                page += 1;
            }
            wrong
        });
        writer.join().expect("writer");
        syncer.join().expect("syncer");
        let wrong = reader.join().expect("reader");
        f2.sync_all().expect("fsync");
        drop(f2);
        mount.unmount().expect("unmounted");
        let mount = mounts.mount();
        let f = File::open(mounts.at("f")).expect("open");
        let mut got = [0; 8];
        let gone = |page: &u64| {
            f.read_exact_at(&mut got, page * PAGE).expect("read");
            got != stamp(*page)
        };
        let later = (0..PAGES).filter(gone).count();
        drop(f);
        mount.unmount().expect("unmounted");
        let lost = wrong > 0 || later > 0;
        mounts.end(lost.then(|| format!("{wrong} of {PAGES} pages read wrong, {later} lost for good")))
    });
}

#[test]
#[ignore = "20 rounds of a quarter of a minute; make soak"]
fn soak_fsynced_records_in_preallocated_files() {
    rounds(|round| {
        const FILES: u64 = 16;
        const LEN: usize = 200;
        const MAX: u64 = (8 << 20) / LEN as u64;
        let mounts = Mounts::new(round);
        let mount = mounts.mount();
        let record = |file: u64, i: u64| {
            let mut r = [(i % 250 + 1) as u8; LEN];
            r[..8].copy_from_slice(&(file << 32 | i).to_le_bytes());
            r
        };
        // Long enough for the server's flusher to run several times.
        let clock = Clock::real();
        let until = clock.now_ns() + 11_000_000_000;
        let writers: Vec<_> = (0..FILES)
            .map(|n| {
                let (path, clock) = (mounts.at(&format!("log{n}")), clock.clone());
                spawn(move || {
                    let f = preallocated(&path, MAX * LEN as u64);
                    let mut i = 0;
                    while i < MAX && clock.now_ns() < until {
                        f.write_all_at(&record(n, i), i * LEN as u64).expect("write");
                        i += 1;
                        if i % (500 + n) == 0 {
                            fdatasync(&f).expect("fdatasync");
                        }
                    }
                    f.sync_all().expect("fsync");
                    i
                })
            })
            .collect();
        // The kernel never runs an fsync of a file during a write to it, but the server's own flusher and syncfs do.
        let (root, others) = (File::open(&mounts.place.mnt).expect("open"), clock.clone());
        let other = spawn(move || {
            while others.now_ns() < until {
                syncfs(root.as_fd()).expect("syncfs");
                others.sleep(Duration::from_millis(10));
            }
        });
        let counts: Vec<u64> = writers.into_iter().map(|w| w.join().expect("writer")).collect();
        other.join().expect("the other");
        mount.unmount().expect("unmounted");
        let mount = mounts.mount();
        let mut lost = 0;
        for (n, count) in counts.iter().enumerate() {
            let all = fs::read(mounts.at(&format!("log{n}"))).expect("read");
            lost += (0..*count).filter(|i| all[*i as usize * LEN..][..LEN] != record(n as u64, *i)).count();
        }
        mount.unmount().expect("unmounted");
        mounts.end((lost > 0).then(|| format!("{lost} of {} records lost", counts.iter().sum::<u64>())))
    });
}

/// A loop device, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn new(image: &str) -> Loop {
        Loop(PathBuf::from(tool("losetup", &["-f", "--show", image]).trim()))
    }

    /// The number of completed write requests.
    fn writes(&self) -> u64 {
        let name = self.0.file_name().and_then(|n| n.to_str()).expect("a name");
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).expect("stat");
        stat.split_whitespace().nth(4).and_then(|n| n.parse().ok()).expect("writes")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run("losetup", &["-d", self.0.to_str().expect("UTF-8")]);
    }
}

#[test]
#[ignore = "20 rounds of half a minute; make soak"]
fn soak_syncfs_beside_the_flusher_survives_a_kill() {
    rounds(|_| {
        const FILES: usize = 4000;
        const LEN: usize = 8192;
        let clock = Clock::real();
        let place = Place::new(256);
        let device = Loop::new(place.image());
        let mount = place.mount_of(&device.0, &[]);
        let kind = tool("findmnt", &["-n", "-o", "FSTYPE", place.mnt.to_str().expect("UTF-8")]);
        assert!(kind.starts_with("fuseblk"), "{kind}");
        let byte = |i: usize| (i % 250 + 1) as u8;
        let root = File::open(&place.mnt).expect("open");
        let start = clock.now_ns();
        for i in 0..FILES {
            fs::write(place.mnt.join(format!("f{i}")), vec![byte(i); LEN]).expect("write");
        }
        // Data that is five seconds old is due: as soon as the device has work again, the flusher writes it.
        while clock.now_ns() < start + 4_600_000_000 {
            clock.sleep(Duration::from_millis(10));
        }
        let before = device.writes();
        while device.writes() < before + 300 && clock.now_ns() < start + 12_000_000_000 {
            clock.sleep(Duration::from_micros(500));
        }
        syncfs(root.as_fd()).expect("syncfs");
        let pid = mount.pid().expect("in the foreground");
        drop(root);
        tool("kill", &["-s", "KILL", &pid.to_string()]);
        mount.kill().expect("killed");
        let mount = place.mount_of(&device.0, &[]);
        let whole = |i: &usize| fs::read(place.mnt.join(format!("f{i}"))).is_ok_and(|data| data == vec![byte(*i); LEN]);
        let lost = (0..FILES).filter(|i| !whole(i)).count();
        mount.unmount().expect("unmounted");
        drop(device);
        fsck_clean(place.image());
        (lost > 0).then(|| format!("{lost} of {FILES} files lost, syncfs had said ok"))
    });
}

/// Overwrites the first block of a directory of the image.
fn damage(place: &Place, dir: &str) {
    let block: u64 = debugfs(place.image(), &format!("bmap {dir} 0")).trim().parse().expect("a block");
    common::patch(place.image(), block * PAGE, &[0xEE; PAGE as usize]);
}

#[test]
#[ignore = "20 rounds; make soak"]
fn soak_a_mount_made_read_only_by_an_error_reports_it() {
    rounds(|_| {
        let place = Place::new(64);
        let mount = place.mount();
        fs::create_dir(place.mnt.join("dir")).expect("mkdir");
        fs::write(place.mnt.join("dir/a"), "a").expect("write");
        mount.unmount().expect("unmounted");
        damage(&place, "/dir");
        let mount = place.mount_of(&place.image, &["-o", "errors=remount-ro"]);
        let mut f = File::create(place.mnt.join("precious")).expect("create");
        f.write_all(&[7; 9000]).expect("write");
        fs::metadata(place.mnt.join("dir/x")).expect_err("a damaged directory");
        let refused = fs::write(place.mnt.join("new"), "x").expect_err("read-only");
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        let synced = [f.sync_all().is_ok(), f.sync_data().is_ok()];
        drop(f);
        let unmounted = mount.unmount().is_ok();
        let mount = place.mount_of(&place.image, &["-o", "ro"]);
        let there = fs::read(place.mnt.join("precious")).unwrap_or_default();
        mount.unmount().expect("unmounted");
        let whole = there == [7; 9000];
        (!whole && (synced != [false; 2] || unmounted)).then(|| {
            format!("fsync, fdatasync ok: {synced:?}, unmount ok: {unmounted}, {} of 9000 bytes there", there.len())
        })
    });
}

#[test]
#[ignore = "20 rounds; make soak"]
fn soak_a_handle_of_a_deleted_file_does_no_harm() {
    rounds(|_| {
        let place = Place::new(64);
        let mount = place.mount_of(&place.image, &["-o", "errors=remount-ro"]);
        fs::write(place.mnt.join("gone"), vec![1; 20_000]).expect("write");
        let script = r#"
import ctypes, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_char * 128)]
top, path = sys.argv[1:3]
h, mount = Handle(128, 0), ctypes.c_int()
assert libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), 0) == 0, ctypes.get_errno()
top = os.open(top, os.O_RDONLY)
os.unlink(path)
os.sync()
stale = 0
for i in range(200):
    fd = libc.open_by_handle_at(top, ctypes.byref(h), os.O_RDONLY)
    if fd >= 0:
        os.close(fd)
    elif ctypes.get_errno() == 116:
        stale += 1
    time.sleep(0.002)
print(stale)
"#;
        let asked = Command::new("python3")
            .args(["-c", script])
            .args([&place.mnt, &place.mnt.join("gone")])
            .stdin(Stdio::null())
            .output()
            .expect("python3");
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
        let write = || -> std::io::Result<()> {
            let mut f = File::create(place.mnt.join("precious"))?;
            f.write_all(&[7; 9000])?;
            f.sync_all()
        };
        let written = write();
        let unmounted = mount.unmount().is_ok();
        let stale = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
        (written.is_err() || !unmounted).then(|| {
            format!("after {stale} stale handles of 200 tries: a new file {written:?}, unmount ok: {unmounted}")
        })
    });
}
