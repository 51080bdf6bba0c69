//! Files that bypass the kernel's page cache look the same to every program. The tests mix them with readers and
//! writers through the cache, change them in every way, and check the privileges that a write removes.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Served, Setup, can_mount};
use extant_base::rng::Rng;
use extant_fuse::{DirectIo, ServerOptions};
use extant_testkit::kinds::kind;
use extant_testkit::oracle::{expect_clean, make_image};
use rustix::fs::{FallocateFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;

const O_DIRECT: i32 = 0o40_000;
const SIZE_MAX: u64 = 400_000;
/// A valid `security.capability`: version 2, CAP_NET_RAW. Linux: `struct vfs_cap_data`.
const NET_RAW: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

struct Bench {
    _dir: tempfile::TempDir,
    image: PathBuf,
    served: Served,
}

fn bench(direct_io: DirectIo, no_open: bool) -> Bench {
    let dir = tempfile::tempdir().expect("directory");
    let mut options = kind("ext4", "", None, 4096).options;
    options.size = 64 << 20;
    let image = make_image(dir.path(), &options).expect("image");
    let mnt = dir.path().join("mnt");
    fs::create_dir(&mnt).expect("mount point");
    let server = ServerOptions { direct_io, no_open, ..ServerOptions::default() };
    let served = Setup { server, ..Setup::default() }.serve(&image, &mnt);
    Bench { _dir: dir, image, served }
}

impl Bench {
    fn end(mut self) {
        self.served.end().expect("unmounted");
        expect_clean(&self.image).expect("clean");
    }
}

const MODES: [(DirectIo, bool); 4] =
    [(DirectIo::Write, true), (DirectIo::Write, false), (DirectIo::From(4096), true), (DirectIo::From(0), true)];

/// One file, open in five ways.
struct Open {
    write_only: File,
    appends: File,
    both: File,
    direct: File,
    read_only: File,
}

impl Open {
    fn new(path: &PathBuf) -> Open {
        let write_only = OpenOptions::new().write(true).create_new(true).open(path).expect("create");
        let both = || OpenOptions::new().read(true).write(true).to_owned();
        Open {
            write_only,
            appends: OpenOptions::new().append(true).open(path).expect("open"),
            both: both().open(path).expect("open"),
            direct: both().custom_flags(O_DIRECT).open(path).expect("open"),
            read_only: File::open(path).expect("open"),
        }
    }
}

fn whole(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; SIZE_MAX as usize * 2];
    let mut n = 0;
    loop {
        match file.read_at(&mut bytes[n..], n as u64).expect("read") {
            0 => break,
            more => n += more,
        }
    }
    bytes.truncate(n);
    bytes
}

#[expect(clippy::too_many_lines, reason = "one arm a random operation")]
fn exercise(path: &PathBuf, seed: u64, operations: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut below = |n: u64| rng.below(n);
    let file = Open::new(path);
    let mut model: Vec<u8> = Vec::new();
    let mut log = Vec::new();
    for i in 0..operations {
        let aligned = below(2) == 0;
        let most = if below(4) == 0 { 150_000 } else { 9000 };
        let (mut at, mut len) = (below(SIZE_MAX / 2), 1 + below(most));
        if aligned {
            (at, len) = (at / 4096 * 4096, len.next_multiple_of(4096));
        }
        let end = (at + len) as usize;
        let what = below(14);
        log.push((i, what, at, len));
        let data: Vec<u8> = (0..len).map(|k| (i as u64 * 31 + k * 7 + 1) as u8).collect();
        let put = |model: &mut Vec<u8>, at: u64| {
            let end = at as usize + data.len();
            model.resize(model.len().max(end), 0);
            model[at as usize..end].copy_from_slice(&data);
        };
        let fallocate = |flags| rustix::fs::fallocate(&file.both, flags, at, len).expect("fallocate");
        match what {
            0..=2 => {
                file.write_only.write_all_at(&data, at).expect("write");
                put(&mut model, at);
            }
            3 | 4 => {
                file.both.write_all_at(&data, at).expect("write");
                put(&mut model, at);
            }
            5 => {
                file.direct.write_all_at(&data, at).expect("write");
                put(&mut model, at);
            }
            6 if (model.len() as u64) < SIZE_MAX => {
                use std::io::Write;
                let end = model.len() as u64;
                (&file.appends).write_all(&data).expect("append");
                put(&mut model, end);
            }
            7 => {
                file.write_only.set_len(at).expect("truncate");
                model.resize(at as usize, 0);
            }
            8 => {
                fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
                let end = end.min(model.len());
                model.get_mut(at as usize..end).unwrap_or_default().fill(0);
            }
            9 => {
                fallocate(FallocateFlags::ZERO_RANGE);
                model.resize(model.len().max(end), 0);
                model[at as usize..end].fill(0);
            }
            10 => match rustix::fs::seek(&file.read_only, SeekFrom::Data(at)) {
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
            // The target is behind the source, so that they do not overlap.
            11 if end <= model.len() => {
                let (mut from, mut to) = (at, at + len);
                let copied = rustix::fs::copy_file_range(
                    &file.read_only,
                    Some(&mut from),
                    &file.write_only,
                    Some(&mut to),
                    len as usize,
                );
                let copied = copied.unwrap_or_else(|e| panic!("seed {seed}: copy_file_range: {e}: {log:?}"));
                let source = model[at as usize..at as usize + copied].to_vec();
                model.resize(model.len().max(end + copied), 0);
                model[end..end + copied].copy_from_slice(&source);
            }
            12 => {
                let sink = tempfile::tempfile().expect("file");
                let mut from = at;
                let sent = rustix::fs::sendfile(&sink, &file.read_only, Some(&mut from), len as usize).expect("sent");
                let expected = &model[(at as usize).min(model.len())..end.min(model.len())];
                assert_eq!(sent, expected.len(), "seed {seed}: {log:?}");
                assert!(whole(&sink) == expected, "seed {seed}: sendfile sends other bytes: {log:?}");
            }
            _ => file.both.sync_all().expect("fsync"),
        }
        let again = File::open(path).expect("open");
        let readers =
            [("cached", &file.read_only), ("read and write", &file.both), ("O_DIRECT", &file.direct), ("new", &again)];
        for (name, reader) in readers {
            let got = whole(reader);
            if got != model {
                let at = got.iter().zip(&model).position(|(a, b)| a != b);
                panic!("seed {seed}, {name}: {} bytes of {}, first wrong {at:?}: {log:?}", got.len(), model.len());
            }
        }
    }
    model
}

#[test]
fn any_mixture_of_open_files_matches_a_model() {
    if !can_mount() {
        return;
    }
    let seeds = std::env::var("EXTANT_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2);
    for (direct_io, no_open) in MODES {
        let mut b = bench(direct_io, no_open);
        let models: Vec<_> = (0..seeds).map(|seed| exercise(&b.served.at(&format!("f{seed}")), seed, 120)).collect();
        b.served.end().expect("unmounted");
        let mnt = b.served.path.clone();
        b.served = Setup::default().serve(&b.image, &mnt);
        for (seed, model) in models.iter().enumerate() {
            assert!(fs::read(b.served.at(&format!("f{seed}"))).expect("read") == *model, "{direct_io:?}, seed {seed}");
        }
        b.end();
    }
}

/// The kernel does not ask for the file's capabilities before a direct write. Root keeps set-ID bits, but a program
/// that is overwritten must not keep its capabilities.
#[test]
fn a_direct_write_takes_the_capabilities_of_a_file_away() {
    if !can_mount() {
        return;
    }
    for (direct_io, no_open) in MODES {
        let b = bench(direct_io, no_open);
        let path = b.served.at("program");
        let file = OpenOptions::new().write(true).create_new(true).open(&path).expect("create");
        file.write_all_at(&[1; 8192], 0).expect("write");
        let writes: [(&str, &dyn Fn()); 3] = [
            ("direct", &|| file.write_all_at(b"x", 0).expect("write")),
            ("cached", &|| {
                let other = OpenOptions::new().write(true).open(&path).expect("open");
                other.write_all_at(b"y", 0).expect("write");
            }),
            ("truncate", &|| file.set_len(5000).expect("truncate")),
        ];
        for (how, write) in writes {
            rustix::fs::setxattr(&path, "security.capability", &NET_RAW, XattrFlags::empty()).expect("setcap");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).expect("chmod");
            write();
            let left = rustix::fs::getxattr(&path, "security.capability", &mut [0; 64]);
            assert_eq!(left, Err(Errno::NODATA), "{direct_io:?}: a write ({how}) leaves the capability");
            // Other changes remove both: the kernel does not say which of them it means.
            if how == "direct" {
                let mode = fs::metadata(&path).expect("stat").permissions().mode();
                assert_eq!(mode & 0o7777, 0o4755, "{direct_io:?}: root keeps the bits");
            }
        }
        drop(file);
        b.end();
    }
}

#[test]
fn a_write_of_another_user_takes_the_set_id_bits_away() {
    if !can_mount() {
        return;
    }
    for (direct_io, no_open) in MODES {
        let b = bench(direct_io, no_open);
        let path = b.served.at("program");
        fs::set_permissions(&b.served.path, fs::Permissions::from_mode(0o777)).expect("chmod");
        // The shell opens the file before its bits are set, and writes afterwards.
        let script = format!("exec 3>{0}; echo a >&3; chmod 6777 {0}; echo b >&3", path.display());
        use std::os::unix::process::CommandExt;
        let status = Command::new("sh").args(["-c", &script]).uid(1234).gid(1234).status().expect("sh");
        assert!(status.success());
        assert_eq!(fs::read(&path).expect("read"), b"a\nb\n");
        let mode = fs::metadata(&path).expect("stat").permissions().mode();
        assert_eq!(mode & 0o7777, 0o777, "{direct_io:?}");
        b.end();
    }
}

/// The kernel drops its cached pages of the whole range before it sends the first request of a write. A page that a
/// reader brings back before the last request has been served must not stay.
#[test]
fn a_cached_reader_sees_what_a_direct_writer_has_written() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 3 << 20;
    let b = bench(DirectIo::Write, true);
    let path = b.served.at("counter");
    let writer = OpenOptions::new().write(true).create_new(true).open(&path).expect("create");
    let mut data = vec![0; LEN];
    writer.write_all_at(&data, 0).expect("write");
    let (written, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let reader = File::open(&path).expect("open");
            let mut stale = None;
            while !ends.load(Ordering::SeqCst) {
                let least = written.load(Ordering::SeqCst);
                let mut bytes = [0; 8];
                reader.read_exact_at(&mut bytes, LEN as u64 - 8).expect("read");
                let seen = u64::from_le_bytes(bytes);
                if seen < least {
                    stale = Some((seen, least));
                }
            }
            stale
        });
        for n in 1..100u64 {
            data[LEN - 8..].copy_from_slice(&n.to_le_bytes());
            assert_eq!(writer.write_at(&data, 0).expect("write"), LEN);
            written.store(n, Ordering::SeqCst);
        }
        ends.store(true, Ordering::SeqCst);
        assert_eq!(reader.join().expect("joined"), None, "what was read after that was written");
    });
    drop(writer);
    b.end();
}

/// Through a shared mapping, too, in both directions.
#[test]
fn a_mapping_and_a_direct_writer_see_each_other() {
    if !can_mount() {
        return;
    }
    let script = r#"
import mmap, os, sys
path = sys.argv[1]
w = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
os.write(w, b"a" * 20000)
f = os.open(path, os.O_RDWR)
m = mmap.mmap(f, 20000)
assert m[5000:5003] == b"aaa"
os.pwrite(w, b"bcd", 5000)
assert m[5000:5003] == b"bcd", m[5000:5003]
m[9000:9003] = b"xyz"
assert os.pread(f, 3, 9000) == b"xyz"
os.pwrite(w, b"e", 9001)
assert m[9000:9003] == b"xez", m[9000:9003]
"#;
    for (direct_io, no_open) in MODES {
        let b = bench(direct_io, no_open);
        let path = b.served.at("mapped");
        let out = Command::new("python3").args(["-c", script]).arg(&path).output().expect("python3");
        assert!(out.status.success(), "{direct_io:?}: {}", String::from_utf8_lossy(&out.stderr));
        let mut bytes = Vec::new();
        File::open(&path).expect("open").read_to_end(&mut bytes).expect("read");
        assert_eq!((&bytes[5000..5003], &bytes[9000..9003]), (&b"bcd"[..], &b"xez"[..]));
        b.end();
    }
}
