//! Cases that the differential runs do not cover: lifetimes, durability, handles, options, limits.

mod common;

use std::fs;
use std::io::{BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::time::Duration;

use common::{Served, Setup, can_mount, eventually};
use extant_block::BioOp;
use extant_block::device::{Fault, FaultAction, FaultyDevice, FileDevice, OpenOptions};
use extant_fuse::ServerOptions;
use extant_testkit::kinds::kind;
use extant_testkit::oracle::{expect_clean, make_image};

struct Bench {
    _dir: tempfile::TempDir,
    image: std::path::PathBuf,
    mnt: std::path::PathBuf,
}

fn bench() -> Bench {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = kind("ext4", "", None, 4096).options;
    options.size = 64 << 20;
    let image = make_image(dir.path(), &options).expect("image");
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).expect("mount point");
    Bench { _dir: dir, image, mnt }
}

impl Bench {
    fn serve(&self, setup: &Setup) -> Served {
        setup.serve(&self.image, &self.mnt)
    }
}

#[test]
fn files_are_created_and_removed() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    fs::write(m.at("a"), vec![7; 100_000]).expect("written");
    assert_eq!(fs::read(m.at("a")).expect("read"), vec![7; 100_000]);
    fs::create_dir(m.at("d")).expect("mkdir");
    fs::hard_link(m.at("a"), m.at("d/b")).expect("link");
    assert_eq!(fs::metadata(m.at("a")).expect("stat").nlink(), 2);
    fs::rename(m.at("a"), m.at("d/c")).expect("rename");
    std::os::unix::fs::symlink("d/c", m.at("s")).expect("symlink");
    assert_eq!(fs::read(m.at("s")).expect("read").len(), 100_000);
    let f = fs::OpenOptions::new().append(true).open(m.at("s")).expect("open");
    (&f).write_all(b"tail").expect("append");
    f.sync_all().expect("fsync");
    assert_eq!(f.metadata().expect("stat").len(), 100_004);
    drop(f);
    fs::File::open(m.at("d")).expect("open").sync_all().expect("fsync of a directory");
    assert_eq!(fs::read_dir(m.at("d")).expect("list").count(), 2);
    fs::remove_file(m.at("d/b")).expect("unlink");
    assert_eq!(fs::metadata(m.at("s")).expect("stat").nlink(), 1);
    assert!(fs::metadata(m.at("none")).is_err());
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
    let mut m = b.serve(&Setup::default());
    assert_eq!(fs::read(m.at("s")).expect("read").len(), 100_004);
    m.end().expect("unmounted");
}

#[test]
fn an_unlinked_open_file_lives_until_it_is_closed() {
    if !can_mount() {
        return;
    }
    for no_open in [true, false] {
        let b = bench();
        let server = ServerOptions { no_open, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        let before = m.server().filesystem().statfs().blocks_free;
        let mut f = fs::OpenOptions::new().read(true).write(true).create_new(true).open(m.at("f")).expect("create");
        f.write_all(&vec![1; 1 << 20]).expect("write");
        f.sync_all().expect("fsync");
        fs::remove_file(m.at("f")).expect("unlink");
        f.write_all(&vec![2; 1 << 20]).expect("write");
        f.sync_all().expect("fsync");
        f.seek(SeekFrom::Start(0)).expect("seek");
        let mut back = Vec::new();
        f.read_to_end(&mut back).expect("read");
        assert_eq!(back.len(), 2 << 20);
        assert!(m.server().filesystem().statfs().blocks_free <= before - 512);
        drop(f);
        let freed = eventually(|| m.server().filesystem().statfs().blocks_free >= before);
        assert!(freed, "the blocks of a closed unlinked file are not free (no_open {no_open})");
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

/// Two such files do not fit into the image, and the server learns of the release only after its reply to the unlink.
#[test]
fn a_file_that_was_just_unlinked_counts_as_space() {
    if !can_mount() {
        return;
    }
    for no_open in [true, false] {
        let b = bench();
        let server = ServerOptions { no_open, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        let free = m.server().filesystem().statfs();
        let data = vec![7; (free.blocks_available * u64::from(m.server().filesystem().block_size()) * 2 / 3) as usize];
        for round in 0..10 {
            fs::write(m.at("f"), &data).unwrap_or_else(|e| panic!("no_open {no_open}, round {round}: {e}"));
            fs::remove_file(m.at("f")).expect("unlink");
        }
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

#[test]
fn o_tmpfile_can_get_a_name() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    const O_TMPFILE: i32 = 0o20_200_000;
    let f = fs::OpenOptions::new().read(true).write(true).custom_flags(O_TMPFILE).open(&m.path).expect("tmpfile");
    f.write_all_at(b"content", 0).expect("write");
    let from = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&f));
    rustix::fs::linkat(
        rustix::fs::CWD,
        from.as_str(),
        rustix::fs::CWD,
        m.at("named"),
        rustix::fs::AtFlags::SYMLINK_FOLLOW,
    )
    .expect("linked");
    drop(f);
    let g = fs::OpenOptions::new().write(true).custom_flags(O_TMPFILE).open(&m.path).expect("tmpfile");
    g.write_all_at(b"lost", 0).expect("write");
    drop(g);
    assert_eq!(fs::read(m.at("named")).expect("read"), b"content");
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn the_kernel_forgets_every_lookup() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    for d in 0..4 {
        fs::create_dir(m.at(&format!("d{d}"))).expect("mkdir");
        for i in 0..300 {
            fs::write(m.at(&format!("d{d}/file-{i}")), b"x").expect("write");
        }
    }
    // If another test drops the machine's caches meanwhile, this only becomes faster.
    assert!(eventually(|| {
        for d in 0..4 {
            for e in fs::read_dir(m.at(&format!("d{d}"))).expect("list") {
                e.expect("entry").metadata().expect("stat");
            }
        }
        m.server().node_counts().0 > 1000
    }));
    let flags = rustix::mount::MountFlags::empty();
    eventually(|| {
        rustix::mount::mount_remount(&m.path, flags, c"").expect("remount");
        m.server().node_counts() == (1, 0)
    });
    assert_eq!(m.server().node_counts(), (1, 0));
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn the_mounting_user_can_own_everything() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    std::os::unix::fs::chown(&m.path, Some(11), Some(12)).expect("chown");
    m.end().expect("unmounted");
    let mut m = b.serve(&Setup { server: ServerOptions::owned_by(1000, 1001), ..Setup::default() });
    fs::write(m.at("new"), b"x").expect("write");
    let meta = fs::metadata(m.at("new")).expect("stat");
    assert_eq!((meta.uid(), meta.gid()), (1000, 1001));
    std::os::unix::fs::chown(m.at("new"), Some(1000), Some(1001)).expect("nothing to do");
    let other = std::os::unix::fs::chown(m.at("new"), Some(5), None).expect_err("refused");
    assert_eq!(other.raw_os_error(), Some(1));
    m.end().expect("unmounted");
    let mut m = b.serve(&Setup::default());
    let meta = fs::metadata(m.at("new")).expect("stat");
    assert_eq!((meta.uid(), meta.gid()), (11, 12));
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn a_read_only_mount_changes_nothing() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    fs::write(m.at("f"), b"kept").expect("write");
    m.end().expect("unmounted");
    let before = fs::read(&b.image).expect("image");
    let mut setup = Setup::default();
    setup.fs.read_only = true;
    for kernel_knows in [true, false] {
        setup.mount.read_only = kernel_knows;
        let mut m = b.serve(&setup);
        assert_eq!(fs::read(m.at("f")).expect("read"), b"kept");
        assert_eq!(fs::write(m.at("g"), b"x").expect_err("refused").raw_os_error(), Some(30));
        assert_eq!(fs::remove_file(m.at("f")).expect_err("refused").raw_os_error(), Some(30));
        m.end().expect("unmounted");
    }
    assert!(before == fs::read(&b.image).expect("image"), "the image changed");
}

#[test]
fn birth_times_flags_and_generations_are_visible() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    fs::write(m.at("f"), b"x").expect("write");
    let created = fs::metadata(m.at("f")).expect("stat").created().expect("btime");
    assert!(created.elapsed().expect("past").as_secs() < 60);
    let run = |program: &str, args: &[&str]| {
        let out = std::process::Command::new(program).args(args).arg(m.at("f")).output().expect(program);
        (out.status.success(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (ok, flags) = run("lsattr", &[]);
    assert!(ok && flags.contains('e'), "{flags}");
    assert!(run("chattr", &["+i"]).0);
    assert!(run("lsattr", &[]).1.split(' ').next().expect("flags").contains('i'));
    // The kernel does not know the flag, and accepts the write; the error comes later.
    let f = fs::OpenOptions::new().write(true).open(m.at("f")).expect("open");
    assert!(f.write_all_at(b"y", 0).and_then(|()| f.sync_all()).is_err());
    drop(f);
    assert!(run("chattr", &["-i"]).0);
    assert!(run("lsattr", &["-v"]).0);
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn a_change_of_content_clears_set_id_bits() {
    if !can_mount() {
        return;
    }
    // The owner, and a user that writes as a member of a supplementary group, which a request does not contain.
    let owner = ["--reuid=65534", "--regid=65533", "--clear-groups"];
    let member = ["--reuid=65532", "--regid=65532", "--groups=65534"];
    for (writeback_cache, no_open) in [(true, true), (false, true), (true, false), (false, false)] {
        let b = bench();
        let server = ServerOptions { writeback_cache, no_open, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        fs::set_permissions(&m.path, fs::Permissions::from_mode(0o777)).expect("chmod");
        for (who, mode) in [(owner, 0o777), (member, 0o770)] {
            for (name, script) in [
                ("w", "echo x >> $F"),
                ("t", ": > $F"),
                ("d", "dd if=/dev/zero of=$F bs=4k count=1 conv=notrunc"),
                ("a", "fallocate -l 8192 $F"),
            ] {
                fs::write(m.at(name), b"old").expect("write");
                std::os::unix::fs::chown(m.at(name), Some(65534), Some(65534)).expect("chown");
                fs::set_permissions(m.at(name), fs::Permissions::from_mode(0o6000 | mode)).expect("chmod");
                let status = std::process::Command::new("setpriv")
                    .args(who)
                    .args(["sh", "-c", script])
                    .env("F", m.at(name))
                    .stderr(std::process::Stdio::null())
                    .status()
                    .expect("setpriv");
                assert!(status.success(), "{script}");
                let seen = fs::metadata(m.at(name)).expect("stat").mode() & 0o7777;
                assert_eq!(seen, mode, "{who:?}: {script} (writeback {writeback_cache}, no_open {no_open})");
            }
        }
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

#[test]
fn holes_are_found_also_below_dirty_pages() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    let f = fs::File::create(m.at("f")).expect("create");
    f.write_all_at(&[1; 4096], 1 << 20).expect("write");
    f.set_len(3 << 20).expect("truncate");
    let seek = |from| rustix::fs::seek(&f, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 4096));
    f.write_all_at(&[2; 4096], 2 << 20).expect("write");
    assert_eq!(seek(rustix::fs::SeekFrom::Data((1 << 20) + 4096)), Ok(2 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Data((2 << 20) + 4096)), Err(rustix::io::Errno::NXIO));
    drop(f);
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

/// A process writes to a shared mapping without any request: only the kernel knows the pages.
#[test]
fn holes_are_found_also_below_pages_of_a_shared_mapping() {
    if !can_mount() {
        return;
    }
    let script = r#"
import mmap, os, sys
P = 4096
for name in ["sparse", "preallocated"]:
    fd = os.open(sys.argv[1] + "/" + name, os.O_RDWR | os.O_CREAT)
    if name == "sparse":
        os.ftruncate(fd, 64 * P)
    else:
        os.posix_fallocate(fd, 0, 64 * P)
    os.pwrite(fd, b"d" * P, 0)
    pages = mmap.mmap(fd, 64 * P)
    def at(offset, whence):
        try:
            return os.lseek(fd, offset * P, whence) / P
        except OSError as e:
            return e.errno
    found = [at(1, os.SEEK_DATA)]
    pages[20 * P] = 1
    found += [at(1, os.SEEK_DATA), at(20, os.SEEK_HOLE), at(21, os.SEEK_DATA)]
    pages[1 * P] = 1
    found += [at(0, os.SEEK_HOLE), at(1, os.SEEK_HOLE), at(2, os.SEEK_HOLE)]
    # Between two pages of data no hole remains.
    pages[22 * P] = 1
    found += [at(21, os.SEEK_DATA)]
    pages[21 * P] = 1
    found += [at(20, os.SEEK_HOLE)]
    pages[63 * P] = 1
    found += [at(23, os.SEEK_DATA), at(63, os.SEEK_HOLE)]
    print(name, *(int(n) for n in found))
"#;
    for writeback_cache in [false, true] {
        let b = bench();
        let server = ServerOptions { writeback_cache, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        let out = std::process::Command::new("python3").args(["-c", script]).arg(&m.path).output().expect("python3");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let found = "6 20 21 6 2 2 2 22 23 63 64";
        let expected = format!("sparse {found}\npreallocated {found}\n");
        assert_eq!(String::from_utf8_lossy(&out.stdout), expected, "writeback {writeback_cache}");
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

/// While the mount is frozen, dirty pages cannot be written, and lseek(2) changes nothing. It does not wait for the
/// thaw, and reports data where there may be some.
#[test]
fn a_frozen_mount_reports_data_where_holes_have_dirty_pages() {
    if !can_mount() {
        return;
    }
    let script = r#"
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
pages = mmap.mmap(fd, 1 << 20)
pages[4096] = 1
print("dirty", flush=True)
sys.stdin.readline()
print(os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE), flush=True)
sys.stdin.readline()
print(os.lseek(fd, 0, os.SEEK_DATA), os.lseek(fd, 0, os.SEEK_HOLE), flush=True)
"#;
    let b = bench();
    let mut m = b.serve(&Setup::default());
    let mut child = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(m.at("f"))
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let (mut tell, said) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
    let (line, lines) = std::sync::mpsc::channel();
    let reader = extant_base::task::spawn("reader", move || {
        std::io::BufReader::new(said).lines().for_each(|l| line.send(l.expect("text")).expect("awaited"));
    })
    .expect("thread");
    let next = || lines.recv_timeout(std::time::Duration::from_secs(20)).ok();
    assert_eq!(next().as_deref(), Some("dirty"));
    assert_eq!(m.server().filesystem().freeze().ok(), Some(true));
    tell.write_all(b"\n").expect("told");
    let frozen = next();
    m.server().filesystem().thaw();
    tell.write_all(b"\n").expect("told");
    let thawed = next();
    assert!(child.wait().expect("ended").success());
    reader.join().expect("no panic");
    assert_eq!((frozen.as_deref(), thawed.as_deref()), (Some("0 1048576"), Some("4096 0")));
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

/// After an OPEN was answered with ENOSYS, the kernel sends no RELEASE for any file.
#[test]
fn files_without_a_release_are_not_counted_as_open() {
    if !can_mount() {
        return;
    }
    for no_open in [true, false] {
        let b = bench();
        let server = ServerOptions { no_open, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        fs::write(m.at("f"), b"x").expect("write");
        fs::read(m.at("f")).expect("read");
        const O_TMPFILE: i32 = 0o20_200_000;
        for _ in 0..100 {
            let f = fs::OpenOptions::new().write(true).custom_flags(O_TMPFILE).open(&m.path).expect("tmpfile");
            f.write_all_at(b"content", 0).expect("write");
            f.sync_all().expect("fsync");
        }
        let closed = eventually(|| m.server().open_count() == 0);
        assert!(closed, "{} files are open (no_open {no_open})", m.server().open_count());
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

/// The device's content after a power cut at this moment and a replay of its log.
fn after_a_power_cut(b: &Bench) -> extant_fs::Mounted {
    let copy = b.image.with_extension("copy");
    fs::copy(&b.image, &copy).expect("copied");
    let device = extant_block::device::FileDevice::open(&copy, Default::default()).expect("image opened");
    let fs = extant_fs::Filesystem::mount(std::sync::Arc::new(device), Setup::default().fs);
    fs.unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn with_sync_a_change_of_attributes_is_durable_when_it_returns() {
    if !can_mount() {
        return;
    }
    use rustix::fs::{FallocateFlags, XattrFlags, fallocate, removexattr, setxattr};
    let mut lost = Vec::new();
    for no_open in [true, false] {
        let b = bench();
        let server = ServerOptions { sync: true, no_open, ..ServerOptions::default() };
        let mut setup = Setup { server, ..Setup::default() };
        setup.fs.commit_interval_s = Some(3600);
        let mut m = b.serve(&setup);
        let f = fs::File::create(m.at("f")).expect("create");
        f.write_all_at(&[1; 10_000], 0).expect("write");
        let mut expect = |what, durable: &dyn Fn(&extant_fs::Filesystem, &extant_fs::InodeRef) -> bool| {
            let cut = after_a_power_cut(&b);
            let inode = cut.lookup(&cut.root().expect("root"), b"f").expect("there");
            if !durable(&cut, &inode) {
                lost.push((what, no_open));
            }
            // Makes this change durable in any case, so that the next one is tested alone.
            f.sync_all().expect("fsync");
        };
        setxattr(m.at("f"), "user.a", b"1", XattrFlags::empty()).expect("setxattr");
        expect("setxattr", &|fs, inode| fs.get_xattr(inode, b"user.a").is_ok());
        removexattr(m.at("f"), "user.a").expect("removexattr");
        expect("removexattr", &|fs, inode| fs.get_xattr(inode, b"user.a").is_err());
        fallocate(&f, FallocateFlags::empty(), 0, 100_000).expect("fallocate");
        expect("fallocate", &|fs, inode| fs.getattr(inode).size == 100_000);
        let chattr = std::process::Command::new("chattr").arg("+d").arg(m.at("f")).status().expect("chattr");
        assert!(chattr.success());
        const NODUMP: u32 = 0x40;
        expect("chattr", &|fs, inode| fs.getattr(inode).flags & NODUMP != 0);
        drop(fs::File::create(m.at("f")).expect("truncated"));
        expect("O_TRUNC", &|fs, inode| fs.getattr(inode).size == 0);
        drop(f);
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
    assert!(lost.is_empty(), "lost, and whether with no_open: {lost:?}");
}

#[test]
fn many_fsyncs_share_commits_and_unmount_waits_for_them() {
    if !can_mount() {
        return;
    }
    let b = bench();
    // On a device that flushes at once, each thread could finish before the next one calls.
    let device = FaultyDevice::new(Arc::new(FileDevice::open(&b.image, OpenOptions::default()).expect("image opened")));
    device.inject(Fault::new(FaultAction::Delay(Duration::from_millis(20))).op(BioOp::Flush));
    let mut m = Setup::default().serve_device(Arc::new(device), &b.mnt);
    let (threads, rounds) = (16, 8);
    std::thread::scope(|s| {
        for t in 0..threads {
            let path = m.at(&format!("t{t}"));
            s.spawn(move || {
                let f = fs::File::create(path).expect("create");
                for i in 0..rounds {
                    f.write_all_at(&[t; 5000], i * 5000).expect("write");
                    f.sync_all().expect("fsync");
                }
            });
        }
    });
    let commits = m.server().filesystem().statistics().journal().commits.get();
    assert!(commits < u64::from(threads) * rounds / 2, "{commits} commits");
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn holes_and_truncation_keep_the_neighbouring_data() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    fs::write(m.at("punched"), vec![9; 100_000]).expect("write");
    let f = fs::OpenOptions::new().write(true).open(m.at("punched")).expect("open");
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&f, flags, 5000, 60_000).expect("punch");
    drop(f);
    // Grown over a hole and truncated before any of it has reached the image.
    let f = fs::File::create(m.at("cut")).expect("create");
    f.write_all_at(b"x", 1 << 20).expect("write");
    drop(f);
    let f = fs::OpenOptions::new().write(true).open(m.at("cut")).expect("open");
    f.set_len(70_000).expect("truncate");
    drop(f);
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
    let mut m = b.serve(&Setup::default());
    let mut expected = vec![9; 100_000];
    expected[5000..65_000].fill(0);
    assert!(fs::read(m.at("punched")).expect("read") == expected);
    assert_eq!(fs::read(m.at("cut")).expect("read"), vec![0; 70_000]);
    m.end().expect("unmounted");
}

#[test]
fn chown_without_a_new_owner_clears_set_id_bits() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let b = bench();
        let server = ServerOptions { writeback_cache, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        fs::write(m.at("f"), b"x").expect("write");
        fs::set_permissions(m.at("f"), fs::Permissions::from_mode(0o6755)).expect("chmod");
        std::os::unix::fs::chown(m.at("f"), None, None).expect("chown");
        assert_eq!(fs::metadata(m.at("f")).expect("stat").mode() & 0o7777, 0o755);
        m.end().expect("unmounted");
    }
}

/// chown(2) without a new owner needs no permission, and must not change a file that the caller may not write.
#[test]
fn chown_without_a_new_owner_keeps_set_id_bits_of_other_users_files() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let b = bench();
        let server = ServerOptions { writeback_cache, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        fs::set_permissions(&m.path, fs::Permissions::from_mode(0o777)).expect("chmod");
        let chown = "import os,sys; os.chown(sys.argv[1], -1, -1)";
        for (mode, after) in [(0o6755, 0o6755), (0o6775, 0o6775), (0o4711, 0o4711), (0o6757, 0o757)] {
            let f = m.at("f");
            fs::write(&f, b"x").expect("write");
            fs::set_permissions(&f, fs::Permissions::from_mode(mode)).expect("chmod");
            let status = std::process::Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "python3", "-c", chown])
                .arg(&f)
                .env("PATH", "/usr/bin:/bin")
                .status()
                .expect("setpriv");
            assert!(status.success(), "{mode:o}: {status}");
            assert_eq!(fs::metadata(&f).expect("stat").mode() & 0o7777, after, "{mode:o}");
            let filesystem = m.server().filesystem();
            let stored = filesystem.lookup(&filesystem.root().expect("root"), b"f").expect("there");
            assert_eq!(filesystem.getattr(&stored).mode & 0o7777, after as u16, "{mode:o}");
        }
        m.end().expect("unmounted");
    }
}

#[test]
fn a_full_image_reports_enospc_and_recovers() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let b = bench();
        let server = ServerOptions { writeback_cache, ..ServerOptions::default() };
        let mut m = b.serve(&Setup { server, ..Setup::default() });
        let before = m.server().filesystem().statfs().blocks_free;
        for round in 0..3 {
            let f = fs::File::create(m.at("big")).expect("create");
            let mut failed = None;
            for i in 0..100 {
                let wrote = f.write_all_at(&vec![round; 1 << 20], i << 20);
                if let Err(e) = wrote.and_then(|()| f.sync_all()) {
                    failed = e.raw_os_error();
                    break;
                }
            }
            assert_eq!(failed, Some(28), "writeback {writeback_cache}");
            drop(f);
            // Small operations must still succeed, or fail with the same error.
            let small = fs::write(m.at("small"), b"x").map_err(|e| e.raw_os_error());
            assert!(matches!(small, Ok(()) | Err(Some(28))), "{small:?}");
            fs::remove_file(m.at("big")).expect("unlink");
            let _ = fs::remove_file(m.at("small"));
            fs::write(m.at("after"), vec![3; 5 << 20]).expect("room again");
            assert_eq!(fs::read(m.at("after")).expect("read").len(), 5 << 20);
            fs::remove_file(m.at("after")).expect("unlink");
        }
        fs::File::open(&m.path).expect("open").sync_all().expect("fsync");
        eventually(|| m.server().filesystem().statfs().blocks_free == before);
        assert_eq!(m.server().filesystem().statfs().blocks_free, before);
        m.end().expect("unmounted");
        expect_clean(&b.image).expect("clean");
    }
}

/// Data that write(2) accepted is there; write(2) refuses data that does not fit.
#[test]
fn a_full_image_refuses_the_write_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    let f = fs::File::create(m.at("big")).expect("create");
    let (mut end, mut refused) = (0u64, None);
    while refused.is_none() && end < 1 << 30 {
        match f.write_at(&[(end % 251) as u8; 100_000], end) {
            Ok(n) => end += n as u64,
            Err(e) => refused = Some(e),
        }
    }
    let refused = refused.expect("smaller than a gibibyte");
    assert_eq!(refused.raw_os_error(), Some(28));
    f.sync_all().expect("all accepted data fits");
    drop(f);
    m.end().expect("unmounted");
    let mut m = b.serve(&Setup::default());
    let data = fs::read(m.at("big")).expect("read");
    assert_eq!(data.len() as u64, end);
    for (i, part) in data.chunks(100_000).enumerate() {
        assert!(part.iter().all(|b| *b == (i as u64 * 100_000 % 251) as u8), "part {i}");
    }
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn a_write_that_fits_in_part_returns_the_written_length() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    let f = fs::File::create(m.at("big")).expect("create");
    let data = vec![0xA5; 3_000_000];
    let mut end = 0u64;
    loop {
        let n = f.write_at(&data, end).expect("at least a part");
        end += n as u64;
        assert_eq!(f.metadata().expect("stat").len(), end);
        if n < data.len() {
            break;
        }
    }
    assert_eq!(f.write_at(&data, end).expect_err("full").raw_os_error(), Some(28));
    f.sync_all().expect("the accepted data fits");
    drop(f);
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
    let mut m = b.serve(&Setup::default());
    let back = fs::read(m.at("big")).expect("read");
    assert_eq!(back.len() as u64, end);
    assert!(back.iter().all(|b| *b == 0xA5));
    m.end().expect("unmounted");
}

#[test]
fn the_reserve_is_for_root_only() {
    if !can_mount() {
        return;
    }
    let b = bench();
    fs::set_permissions(b.image.parent().expect("parent"), fs::Permissions::from_mode(0o755)).expect("chmod");
    let mut m = b.serve(&Setup::default());
    let reserve = m.server().filesystem().superblock().reserved_blocks();
    assert!(reserve > 100);
    fs::set_permissions(&m.path, fs::Permissions::from_mode(0o777)).expect("chmod");
    let copied = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=1M", "count=200"])
        .arg(format!("of={}", m.at("f").display()))
        .uid(1000)
        .gid(1000)
        .output()
        .expect("dd");
    assert!(!copied.status.success());
    let said = String::from_utf8_lossy(&copied.stderr);
    assert!(said.contains("No space left"), "{said}");
    let full = m.server().filesystem().statfs();
    assert!(full.blocks_free >= reserve && full.blocks_available == 0, "{full:?}");
    fs::write(m.at("roots"), vec![1; 256 << 10]).expect("root may");
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn a_rename_can_leave_a_whiteout() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    fs::write(m.at("old"), b"content").expect("write");
    fs::create_dir(m.at("d")).expect("mkdir");
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(rustix::fs::CWD, m.at(from), rustix::fs::CWD, m.at(to), flags)
    };
    use rustix::fs::RenameFlags;
    rename("old", "d/new", RenameFlags::WHITEOUT).expect("renamed");
    assert_eq!(fs::read(m.at("d/new")).expect("read"), b"content");
    let left = fs::symlink_metadata(m.at("old")).expect("a whiteout");
    assert_eq!((left.mode() & 0o170_000, left.rdev()), (0o020_000, 0));
    let both = rename("d/new", "old", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE);
    assert_eq!(both, Err(rustix::io::Errno::INVAL));
    fs::remove_file(m.at("old")).expect("unlink");
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn a_zeroed_range_keeps_its_blocks() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let mut m = b.serve(&Setup::default());
    fs::write(m.at("f"), vec![7; 1 << 20]).expect("write");
    let f = fs::OpenOptions::new().read(true).write(true).open(m.at("f")).expect("open");
    f.sync_all().expect("fsync");
    let blocks = f.metadata().expect("stat").blocks();
    use rustix::fs::FallocateFlags;
    rustix::fs::fallocate(&f, FallocateFlags::ZERO_RANGE, 5000, 900_000).expect("zero range");
    f.sync_all().expect("fsync");
    assert_eq!(f.metadata().expect("stat").blocks(), blocks);
    drop(f);
    m.end().expect("unmounted");
    let mut m = b.serve(&Setup::default());
    let mut expected = vec![7; 1 << 20];
    expected[5000..905_000].fill(0);
    assert!(fs::read(m.at("f")).expect("read") == expected);
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}

#[test]
fn without_xattrs_the_kernel_stops_requesting_attributes() {
    if !can_mount() {
        return;
    }
    let b = bench();
    let server = ServerOptions { xattrs: false, ..ServerOptions::default() };
    let mut m = b.serve(&Setup { server, ..Setup::default() });
    fs::write(m.at("f"), b"x").expect("write");
    let set = rustix::fs::setxattr(m.at("f"), "user.a", b"1", rustix::fs::XattrFlags::empty());
    assert_eq!(set, Err(rustix::io::Errno::OPNOTSUPP));
    m.end().expect("unmounted");
    expect_clean(&b.image).expect("clean");
}
