//! Real mounts: the kernel on one side, a file system in memory on the other.

mod memfs;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicU64, Ordering};
use extant_base::task::{self, JoinHandle};
use extant_fuse::{Config, FuseError, MountKind, MountMethod, MountOptions, Notifier, Session, Unmounter, mount};
use memfs::MemFs;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags, copy_file_range, getxattr, getxattr_query,
    listxattr, openat, removexattr, renameat_with, setxattr, statx, syncfs,
};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

/// Whether this machine has FUSE and this user may mount; prints the reason if not.
fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    let device = extant_testkit::mount::fuse_works();
    if !(root && device) {
        eprintln!("SKIPPED: needs root (present: {root}) and /dev/fuse (present: {device})");
    }
    root && device
}

struct Mounted {
    dir: Option<tempfile::TempDir>,
    path: PathBuf,
    fs: Arc<MemFs>,
    unmounter: Unmounter,
    notifier: Notifier,
    server: Option<JoinHandle<Result<(), FuseError>>>,
}

fn start(fs: MemFs, options: &MountOptions) -> Mounted {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().canonicalize().expect("path");
    start_at(fs, options, path, Some(dir))
}

fn start_at(fs: MemFs, options: &MountOptions, path: PathBuf, dir: Option<tempfile::TempDir>) -> Mounted {
    let fs = Arc::new(fs);
    let session = Session::mount(fs.clone(), &path, options).expect("mounted");
    let (unmounter, notifier) = (session.unmounter(), session.notifier());
    let server = Some(task::spawn("server", move || session.run()).expect("thread"));
    Mounted { dir, path, fs, unmounter, notifier, server }
}

impl Mounted {
    fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Unmounts and waits until the server has ended.
    fn stop(&mut self) {
        // A process that another test is just starting may have this test's files open until its exec.
        wait_for(|| self.unmounter.unmount(false).is_ok());
        self.server.take().expect("once").join().expect("no panic").expect("ended well");
        assert_eq!(self.fs.counts.destroy.load(Ordering::Relaxed), 1);
        assert_eq!(self.fs.counts.after_destroy.load(Ordering::Relaxed), 0);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.server.is_some() {
            let _ = self.unmounter.unmount(true);
        }
        if std::thread::panicking() {
            // Leaving a directory behind is better than a test that hangs while it removes it.
            self.dir.take().map(tempfile::TempDir::keep);
        }
    }
}

fn wait_for(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "the condition did not become true");
        Clock::real().sleep(Duration::from_millis(5));
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).expect("listed").map(|e| e.expect("entry").file_name().into_string().expect("UTF-8")).collect()
}

/// The behaviour that every mount must have, under any negotiation.
fn exercise(m: &Mounted) {
    let data: Vec<u8> = (0..3_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    fs::write(m.at("big"), &data).expect("written");
    assert_eq!(fs::metadata(m.at("big")).expect("stat").len(), data.len() as u64);
    assert!(fs::read(m.at("big")).expect("read") == data);
    let mut f = fs::OpenOptions::new().read(true).write(true).open(m.at("big")).expect("open");
    f.write_all_at(b"hello", 4094).expect("pwrite");
    f.sync_all().expect("fsync");
    f.sync_data().expect("fdatasync");
    f.seek(SeekFrom::Start(4094)).expect("seek");
    let mut five = [0; 5];
    f.read_exact(&mut five).expect("read");
    assert_eq!(&five, b"hello");
    drop(f);
    fs::OpenOptions::new().write(true).truncate(true).open(m.at("big")).expect("O_TRUNC");
    assert_eq!(fs::metadata(m.at("big")).expect("stat").len(), 0);
    assert_eq!(fs::read(m.at("big")).expect("read").len(), 0);

    fs::create_dir(m.at("d")).expect("mkdir");
    let many: BTreeSet<String> = (0..700).map(|i| format!("file-with-a-rather-long-name-{i}")).collect();
    for name in &many {
        fs::write(m.path.join("d").join(name), name).expect("small file");
    }
    assert_eq!(names(&m.at("d")), many);
    let sizes: u64 =
        fs::read_dir(m.at("d")).expect("listed").map(|e| e.expect("entry").metadata().expect("stat").len()).sum();
    assert_eq!(sizes, many.iter().map(|n| n.len() as u64).sum::<u64>());
    assert_eq!(fs::remove_dir(m.at("d")).expect_err("full").raw_os_error(), Some(39));

    fs::rename(m.at("d/file-with-a-rather-long-name-1"), m.at("moved")).expect("rename");
    let noreplace = renameat_with(CWD, m.at("moved"), CWD, m.at("big"), RenameFlags::NOREPLACE);
    assert_eq!(noreplace, Err(Errno::EXIST));
    renameat_with(CWD, m.at("moved"), CWD, m.at("big"), RenameFlags::EXCHANGE).expect("exchanged");
    assert_eq!(fs::metadata(m.at("moved")).expect("stat").len(), 0);
    fs::hard_link(m.at("big"), m.at("hard")).expect("link");
    assert_eq!(fs::metadata(m.at("big")).expect("stat").nlink(), 2);
    symlink("big", m.at("soft")).expect("symlink");
    assert_eq!(fs::read_link(m.at("soft")).expect("readlink"), Path::new("big"));
    fs::set_permissions(m.at("big"), fs::Permissions::from_mode(0o640)).expect("chmod");
    assert_eq!(fs::metadata(m.at("soft")).expect("stat").mode() & 0o7777, 0o640);

    let big = m.at("big");
    setxattr(&big, "user.k", b"v1", XattrFlags::CREATE).expect("setxattr");
    assert_eq!(setxattr(&big, "user.k", b"v2", XattrFlags::CREATE), Err(Errno::EXIST));
    let mut room = [0u8; 64];
    assert_eq!(getxattr(&big, "user.k", &mut room[..1]), Err(Errno::RANGE));
    assert_eq!(getxattr_query(&big, "user.k"), Ok(2));
    assert_eq!(getxattr(&big, "user.k", &mut room).map(|n| room[..n].to_vec()), Ok(b"v1".to_vec()));
    assert_eq!(listxattr(&big, &mut room).map(|n| room[..n].to_vec()), Ok(b"user.k\0".to_vec()));
    removexattr(&big, "user.k").expect("removexattr");
    assert_eq!(getxattr(&big, "user.k", &mut room), Err(Errno::NODATA));

    let sx = statx(CWD, &big, AtFlags::empty(), StatxFlags::BASIC_STATS | StatxFlags::BTIME).expect("statx");
    assert_eq!((sx.stx_btime.tv_sec, sx.stx_btime.tv_nsec), (1234, 5));
    let st = rustix::fs::statfs(&big).expect("statfs");
    assert_eq!((st.f_blocks, st.f_bavail, st.f_files), (1000, 300, 77));
    let (a, b) = (fs::File::open(&big).expect("open"), fs::File::create(m.at("copy")).expect("create"));
    assert_eq!(copy_file_range(&a, None, &b, None, 5), Ok(5));
    drop((a, b));
    assert_eq!(fs::read(m.at("copy")).expect("read"), b"file-");

    let tmp = openat(CWD, &m.path, OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).expect("O_TMPFILE");
    let mut tmp = fs::File::from(tmp);
    tmp.write_all(b"nameless").expect("write");
    tmp.seek(SeekFrom::Start(0)).expect("seek");
    let mut text = String::new();
    tmp.read_to_string(&mut text).expect("read");
    assert_eq!(text, "nameless");
    drop(tmp);
    assert_eq!(m.fs.counts.tmpfile.load(Ordering::Relaxed), 1);

    // Unlinked but open.
    let f = fs::OpenOptions::new().read(true).write(true).open(m.at("copy")).expect("open");
    fs::remove_file(m.at("copy")).expect("unlink");
    f.write_all_at(b"still", 0).expect("write after unlink");
    let mut five = [0; 5];
    f.read_exact_at(&mut five, 0).expect("read after unlink");
    assert_eq!(&five, b"still");
    drop(f);
    fs::remove_dir_all(m.at("d")).expect("removed");
}

/// Many threads, each in its own directory, while names are looked up and dropped.
fn storm(m: &Mounted) {
    let threads: Vec<_> = (0..8)
        .map(|t| {
            let dir = m.at(&format!("t{t}"));
            let job = move || {
                fs::create_dir(&dir).expect("mkdir");
                for i in 0..200 {
                    let (a, b) = (dir.join(format!("a{i}")), dir.join("b"));
                    fs::write(&a, vec![i as u8; 100 * i]).expect("write");
                    fs::rename(&a, &b).expect("rename");
                    assert_eq!(fs::read(&b).expect("read"), vec![i as u8; 100 * i]);
                }
                fs::remove_dir_all(&dir).expect("removed");
            };
            task::spawn("storm", job).expect("thread")
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().expect("no panic"));
}

#[test]
fn every_combination_of_options_serves() {
    if !can_mount() {
        return;
    }
    let plain = Config { readdirplus: false, cache_symlinks: false, handle_killpriv: false, ..Config::default() };
    let configs = [
        Config::default(),
        plain,
        Config { writeback_cache: true, readdirplus_auto: false, max_write: 128 << 10, ..Config::default() },
        Config { no_open: true, no_opendir: true, export_support: true, ..Config::default() },
        Config { no_open: true, no_opendir: true, writeback_cache: true, posix_acl: true, ..Config::default() },
    ];
    for config in configs {
        let mut m = start(MemFs::new(config), &MountOptions { fsname: "a,b".into(), ..MountOptions::default() });
        exercise(&m);
        storm(&m);
        if config.no_open {
            assert_eq!(m.fs.counts.open.load(Ordering::Relaxed), 0);
            assert_eq!(m.fs.counts.opendir.load(Ordering::Relaxed), 0);
        }
        if config.readdirplus {
            assert!(m.fs.counts.readdirplus.load(Ordering::Relaxed) > 0);
        }
        let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
        let line = table.lines().find(|l| l.contains(m.path.to_str().expect("UTF-8"))).expect("listed");
        assert!(line.contains("fuse.extant a,b") && line.contains("nosuid,nodev"), "{line}");
        m.stop();
        assert_eq!(m.fs.counts.init.load(Ordering::Relaxed), 1);
        assert_eq!(m.fs.counts.undelivered.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn the_kernel_forgets_every_lookup() {
    if !can_mount() {
        return;
    }
    let config = Config { readdirplus_auto: false, ..Config::default() };
    let mut m = start(MemFs::new(config), &MountOptions::default());
    exercise(&m);
    storm(&m);
    // Another process may empty the kernel's caches at any time, but not of an open file.
    let open = fs::File::open(m.at("big")).expect("open");
    assert!(m.fs.lookups() > 0);
    drop(open);
    // A remount makes the kernel drop its cached names, and with them the inodes.
    wait_for(|| {
        mount_remount(&m.path, MountFlags::NOSUID | MountFlags::NODEV, c"").expect("remount");
        m.fs.lookups() == 0
    });
    // root, big, moved, hard (= big), soft
    assert_eq!(m.fs.nodes(), 4);
    m.stop();
}

#[test]
fn a_panic_fails_one_request_and_is_reported() {
    if !can_mount() {
        return;
    }
    let mut m = start(MemFs::new(Config::default()), &MountOptions::default());
    for n in 1..=5 {
        assert_eq!(fs::metadata(m.at("panic")).expect_err("EIO").raw_os_error(), Some(5));
        // The caller may get its error just before the server gets the report.
        wait_for(|| m.fs.counts.poisoned.load(Ordering::Relaxed) == n);
    }
    fs::write(m.at("after"), "fine").expect("the mount lives");
    m.stop();
}

#[test]
fn notifications_make_the_kernel_request_again() {
    if !can_mount() {
        return;
    }
    let mut m = start(MemFs::new(Config::default()), &MountOptions::default());
    fs::write(m.at("f"), "data").expect("written");
    let ino = fs::metadata(m.at("f")).expect("stat").ino();
    assert_eq!(fs::read(m.at("f")).expect("read"), b"data");
    assert_eq!(fs::read(m.at("f")).expect("read"), b"data");
    let before = m.fs.counts.read.load(Ordering::Relaxed);
    assert_eq!(fs::read(m.at("f")).expect("read"), b"data");
    assert_eq!(m.fs.counts.read.load(Ordering::Relaxed), before, "cached");
    m.notifier.inval_inode(ino, 0, 0).expect("told");
    assert_eq!(fs::read(m.at("f")).expect("read"), b"data");
    assert!(m.fs.counts.read.load(Ordering::Relaxed) > before, "the kernel sent another request");
    let before = m.fs.lookups();
    m.notifier.inval_entry(1, b"f", false).expect("told");
    assert!(fs::metadata(m.at("f")).is_ok());
    assert!(m.fs.lookups() != before || m.fs.counts.forget.load(Ordering::Relaxed) > 0);
    assert_eq!(m.notifier.inval_entry(1, b"none", false), Err(Errno::NOENT));
    let notifier = m.notifier.clone();
    m.stop();
    assert_eq!(notifier.inval_inode(ino, 0, 0), Err(Errno::NODEV));
}

/// A loop device over a temporary file, detached when dropped.
struct Loop {
    device: String,
    _file: tempfile::NamedTempFile,
}

impl Loop {
    fn new() -> Option<Loop> {
        let file = tempfile::NamedTempFile::new().expect("file");
        file.as_file().set_len(8 << 20).expect("size");
        let out = Command::new("losetup").args(["--find", "--show"]).arg(file.path()).output();
        match out {
            Ok(o) if o.status.success() => {
                Some(Loop { device: String::from_utf8(o.stdout).expect("UTF-8").trim().into(), _file: file })
            }
            other => {
                eprintln!("SKIPPED: no loop device: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

#[test]
fn fuseblk_delivers_syncfs_and_umount_waits_for_destroy() {
    if !can_mount() {
        return;
    }
    let Some(device) = Loop::new() else { return };
    let takes = Duration::from_millis(700);
    for config in [Config::default(), Config { writeback_cache: true, no_open: true, ..Config::default() }] {
        let mut fs = MemFs::new(config);
        fs.destroy_takes = takes;
        let options = MountOptions {
            kind: MountKind::FuseBlk { blksize: 1024 },
            fsname: device.device.clone().into(),
            allow_other: true,
            ..MountOptions::default()
        };
        let mut m = start(fs, &options);
        exercise(&m);
        storm(&m);
        syncfs(fs::File::open(&m.path).expect("open")).expect("syncfs");
        assert!(m.fs.counts.syncfs.load(Ordering::Relaxed) >= 1);
        let open = fs::File::open(m.at("big")).expect("open");
        assert!(m.unmounter.unmount(false).is_err(), "busy");
        assert_eq!(m.fs.counts.destroy.load(Ordering::Relaxed), 0);
        drop(open);
        let start = Instant::now();
        // umount(8) without the helper of an installed Extant (`-i`), because this server belongs to a test. The child
        // process of another test may also have the file open until its exec.
        wait_for(|| Command::new("umount").arg("-i").arg(&m.path).status().expect("umount").success());
        assert!(start.elapsed() >= takes, "umount came back after {:?}", start.elapsed());
        assert_eq!(m.fs.counts.destroy.load(Ordering::Relaxed), 1);
        m.server.take().expect("once").join().expect("no panic").expect("ended well");
        assert_eq!(m.fs.counts.destroy.load(Ordering::Relaxed), 1);
        assert_eq!(m.fs.counts.after_destroy.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn the_limits_of_the_page_cache_are_lifted() {
    if !can_mount() {
        return;
    }
    let mut m = start(MemFs::new(Config::default()), &MountOptions::default());
    let dev = fs::metadata(&m.path).expect("stat").dev();
    let dir = format!("/sys/class/bdi/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    if Path::new(&dir).exists() {
        let knob = |name: &str| fs::read_to_string(format!("{dir}/{name}")).expect("knob").trim().to_owned();
        assert_eq!((knob("read_ahead_kb").as_str(), knob("max_ratio").as_str()), ("1024", "100"));
        assert_eq!(knob("strict_limit"), "0");
    } else {
        eprintln!("SKIPPED: no {dir}");
    }
    m.stop();
}

/// Runs in the child process of the tests below: mounts at a path from the environment and serves forever.
#[test]
#[ignore = "the server half of other tests"]
fn child_server() {
    let path = PathBuf::from(std::env::var_os("EXTANT_TEST_MOUNT").expect("a path"));
    let fs = MemFs::new(Config::default());
    let session = Session::mount(Arc::new(fs), &path, &MountOptions::default()).expect("mounted");
    println!("\nready");
    session.run().expect("served");
}

fn child(test: &str, path: &Path, prefix: &[&str]) -> Command {
    let me = std::env::current_exe().expect("path");
    let mut words = prefix.to_vec();
    let me = me.to_str().expect("UTF-8");
    words.extend([me, test, "--exact", "--ignored", "--nocapture"]);
    let mut c = Command::new(words[0]);
    c.args(&words[1..]).env("EXTANT_TEST_MOUNT", path);
    c
}

#[test]
fn a_mount_whose_server_was_killed_is_replaced() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().canonicalize().expect("path");
    let mut server = child("child_server", &path, &[]).stdout(Stdio::piped()).spawn().expect("child");
    let lines = BufReader::new(server.stdout.take().expect("pipe")).lines();
    assert!(lines.map_while(Result::ok).any(|l| l == "ready"));
    fs::write(path.join("f"), "lost").expect("served");
    assert!(!mount::is_dead(&path));
    // Attributes are cached forever, so stat(2) would not notice the end of the server.
    let _cached = fs::metadata(&path).expect("stat");
    server.kill().expect("killed");
    server.wait().expect("reaped");
    assert!(mount::is_dead(&path));
    let mut m = start_at(MemFs::new(Config::default()), &MountOptions::default(), path.clone(), None);
    assert!(!m.at("f").exists());
    exercise(&m);
    m.stop();
    assert!(!mount::is_dead(&path));
    assert_eq!(names(&path).len(), 0, "the mount is gone");
}

/// The kernel's number of the connection behind a mount (Linux: fuse_ctl_add_conn).
fn connection(path: &Path) -> u64 {
    let device = fs::metadata(path).expect("stat").dev();
    u64::from(rustix::fs::major(device)) << 20 | u64::from(rustix::fs::minor(device))
}

/// Aborts a connection. Returns false, after printing the reason, if the kernel does not show its connections.
fn abort(connection: u64) -> bool {
    let dir = tempfile::tempdir().expect("directory");
    if rustix::mount::mount("none", dir.path(), "fusectl", MountFlags::empty(), None).is_err() {
        eprintln!("SKIPPED: no fusectl");
        return false;
    }
    let aborted = fs::write(dir.path().join(connection.to_string()).join("abort"), "1");
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    aborted.expect("aborted");
    true
}

#[test]
fn an_aborted_connection_ends_the_server_and_detaches() {
    if !can_mount() {
        return;
    }
    let mut m = start(MemFs::new(Config::default()), &MountOptions::default());
    fs::write(m.at("f"), "x").expect("written");
    let connection = connection(&m.path);
    m.fs.unmounter.set(m.unmounter.clone()).expect("once");
    if !abort(connection) {
        return m.stop();
    }
    m.server.take().expect("once").join().expect("no panic").expect("ended");
    assert_eq!(m.fs.counts.destroy.load(Ordering::Relaxed), 1);
    assert!(m.fs.mounted_at_destroy.load(Ordering::Acquire), "the mount exists until all data is written");
    assert!(!m.unmounter.is_mounted());
}

/// MNT_FORCE ends the connection first, and then finds that the mount is busy.
#[test]
fn a_busy_mount_does_not_stay_after_mnt_force() {
    if !can_mount() {
        return;
    }
    let mut m = start(MemFs::new(Config::default()), &MountOptions::default());
    let open = fs::File::create(m.at("f")).expect("created");
    let forced = rustix::mount::unmount(&m.path, rustix::mount::UnmountFlags::FORCE);
    assert_eq!(forced, Err(rustix::io::Errno::BUSY));
    m.server.take().expect("once").join().expect("no panic").expect("ended");
    assert_eq!(m.fs.counts.destroy.load(Ordering::Relaxed), 1);
    assert!(!m.unmounter.is_mounted());
    drop(open);
}

/// The report must not wait for operations that have not returned: after MNT_FORCE another process may open the device.
#[test]
fn a_lost_connection_is_reported_while_a_worker_is_in_an_operation() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let fs = Arc::new(MemFs::new(Config::default()));
    let mut session = Session::mount(fs.clone(), dir.path(), &MountOptions::default()).expect("mounted");
    let unmounter = session.unmounter();
    let told = count_when_lost(&mut session);
    let server = task::spawn("server", move || session.run()).expect("thread");
    fs.statfs_waits.store(true, Ordering::Release);
    let path = dir.path().to_owned();
    let client = task::spawn("client", move || rustix::fs::statfs(&path)).expect("thread");
    wait_for(|| fs.counts.statfs.load(Ordering::Relaxed) == 1);
    let busy = openat(CWD, dir.path(), OFlags::PATH, Mode::empty()).expect("the root");
    let forced = rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::FORCE);
    assert_eq!(forced, Err(rustix::io::Errno::BUSY));
    wait_for(|| told.load(Ordering::Relaxed) == 1);
    assert!(client.join().expect("no panic").is_err());
    assert_eq!(fs.counts.destroy.load(Ordering::Relaxed), 0);
    fs.statfs_waits.store(false, Ordering::Release);
    server.join().expect("no panic").expect("ended");
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!((of(&fs.counts.destroy), of(&told)), (1, 1));
    assert!(!unmounter.is_mounted());
    drop(busy);
}

/// The kernel then closes the device while an unmount in progress still writes to it.
#[test]
fn another_worker_reports_a_connection_lost_during_destroy() {
    if !can_mount() {
        return;
    }
    let Some(device) = Loop::new() else { return };
    let dir = tempfile::tempdir().expect("directory");
    let fs = Arc::new(MemFs::new(Config::default()));
    let options = MountOptions {
        kind: MountKind::FuseBlk { blksize: 1024 },
        fsname: device.device.clone().into(),
        workers: Some(1),
        ..MountOptions::default()
    };
    let mut session = Session::mount(fs.clone(), dir.path(), &options).expect("mounted");
    let unmounter = session.unmounter();
    let told = count_when_lost(&mut session);
    let server = task::spawn("server", move || session.run()).expect("thread");
    let connection = connection(dir.path());
    fs.destroy_waits.store(true, Ordering::Release);
    // Another test's child process may have it open until its exec.
    let umount = task::spawn("umount", move || wait_for(|| unmounter.unmount(false).is_ok())).expect("thread");
    wait_for(|| fs.destroying.load(Ordering::Acquire));
    let aborted = abort(connection);
    if aborted {
        wait_for(|| told.load(Ordering::Relaxed) == 1);
    }
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    assert_eq!(of(&fs.counts.destroy), 0);
    fs.destroy_waits.store(false, Ordering::Release);
    umount.join().expect("no panic");
    server.join().expect("no panic").expect("ended");
    assert_eq!((of(&fs.counts.destroy), of(&told)), (1, u64::from(aborted)));
}

/// Counts how often the session has reported the loss of its connection.
fn count_when_lost(session: &mut Session<MemFs>) -> Arc<AtomicU64> {
    let told = Arc::new(AtomicU64::new(0));
    let tell = told.clone();
    session.when_lost(move || {
        tell.fetch_add(1, Ordering::Relaxed);
    });
    told
}

#[test]
fn a_session_that_never_runs_is_unmounted() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().expect("directory");
    let fs = Arc::new(MemFs::new(Config::default()));
    let session = Session::mount(fs.clone(), dir.path(), &MountOptions::default()).expect("mounted");
    let unmounter = session.unmounter();
    assert!(unmounter.is_mounted());
    drop(session);
    assert!(!unmounter.is_mounted());
    assert_eq!(fs.counts.destroy.load(Ordering::Relaxed), 1);
}

#[test]
fn mount_errors_name_the_reason() {
    if !can_mount() {
        return;
    }
    let fs = || Arc::new(MemFs::new(Config::default()));
    let missing = Session::mount(fs(), Path::new("/no/such/place"), &MountOptions::default());
    assert!(matches!(missing, Err(FuseError::MountPoint { errno: Errno::NOENT, .. })));
    let file = tempfile::NamedTempFile::new().expect("file");
    let not_dir = Session::mount(fs(), file.path(), &MountOptions::default());
    assert!(matches!(not_dir, Err(FuseError::MountPoint { errno: Errno::NOTDIR, .. })));
    let dir = tempfile::tempdir().expect("directory");
    let blk =
        MountOptions { kind: MountKind::FuseBlk { blksize: 4096 }, fsname: "/no/device".into(), ..Default::default() };
    assert!(matches!(Session::mount(fs(), dir.path(), &blk), Err(FuseError::Mount { kind: "fuseblk", .. })));
}

#[test]
fn fusermount3_mounts_and_unmounts() {
    if !can_mount() {
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("SKIPPED: no fusermount3");
        return;
    }
    let options = MountOptions { method: MountMethod::Fusermount, fsname: "a,b".into(), ..MountOptions::default() };
    let mut m = start(MemFs::new(Config::default()), &options);
    exercise(&m);
    let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
    assert!(table.lines().any(|l| l.contains(m.path.to_str().expect("UTF-8")) && l.contains("fuse.extant a,b")));
    let open = fs::OpenOptions::new().read(true).custom_flags(0).open(m.at("big")).expect("open");
    assert!(m.unmounter.unmount(false).is_err(), "busy");
    drop(open);
    m.stop();
}

/// Runs inside `unshare -Urm`: root only in a user namespace, which any user may create.
#[test]
#[ignore = "the inner half of a_user_namespace_is_enough"]
fn child_in_namespace() {
    let mut m = start(MemFs::new(Config::default()), &MountOptions::default());
    exercise(&m);
    storm(&m);
    m.stop();
    println!("\nserved in a namespace");
}

#[test]
fn a_user_namespace_is_enough() {
    if !can_mount() {
        return;
    }
    let able = Command::new("unshare").args(["-Urm", "true"]).status().is_ok_and(|s| s.success());
    if !able {
        eprintln!("SKIPPED: no user namespaces");
        return;
    }
    let out = child("child_in_namespace", Path::new("/"), &["unshare", "-Urm"]).output().expect("child");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(
        out.status.success() && text.contains("served in a namespace"),
        "{text}{}",
        String::from_utf8_lossy(&out.stderr)
    );
}
