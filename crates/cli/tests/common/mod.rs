//! Common code for the tests of the command: running it, and making images.
#![allow(dead_code)] // each test file uses only its part

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::LoopDevice;
pub use extant_testkit::oracle::tool;

/// The result of a command.
#[derive(Debug)]
pub struct CommandResult {
    pub code: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl CommandResult {
    /// Asserts success without a message, and returns the output as text. A message about a slow unmount is allowed,
    /// because it occurs on a busy machine.
    #[track_caller]
    pub fn ok(self) -> String {
        let complaint: Vec<&str> = self.err.lines().filter(|line| !line.contains(": still being written (")).collect();
        assert_eq!((self.code, complaint), (Some(0), vec![]), "{}", String::from_utf8_lossy(&self.out));
        String::from_utf8(self.out).expect("UTF-8")
    }

    /// Asserts this status, and a message that contains all of these words.
    #[track_caller]
    pub fn fails(self, code: i32, words: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{}{}", self.err, String::from_utf8_lossy(&self.out));
        for word in words {
            assert!(self.err.contains(word), "'{word}' is not in: {}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self.err
    }
}

pub fn extant_path() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_extant"))
}

/// Makes `to` an executable copy of `from`. It uses install(1), because a child that another test has just forked could
/// hold a descriptor of `to`. Executing a file that is open for writing fails with ETXTBSY.
#[track_caller]
pub fn install(from: &str, to: &str) {
    tool("install", &["-m", "755", from, to]);
}

/// A copy of the command at `to`, for users who cannot enter its own directory.
#[track_caller]
pub fn copy_program(to: &str) {
    install(extant_path().to_str().expect("UTF-8"), to);
}

pub fn run(program: impl AsRef<OsStr>, args: &[&str]) -> CommandResult {
    let name = program.as_ref().to_owned();
    let done = Command::new(&name)
        .args(args)
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", name.display()));
    CommandResult {
        code: done.status.code(),
        out: done.stdout,
        err: String::from_utf8_lossy(&done.stderr).into_owned(),
    }
}

pub fn extant(args: &[&str]) -> CommandResult {
    run(extant_path(), args)
}

/// The host's python3, which any user may run: the first in PATH may belong to root only.
pub fn python() -> &'static str {
    if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" }
}

/// Runs `extant` with arguments; kills it after a minute.
pub fn in_time(args: &[&str]) -> CommandResult {
    run("timeout", &[&["60", extant_path().to_str().expect("UTF-8")], args].concat())
}

#[track_caller]
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let clock = Clock::real();
    while !done() {
        assert!(clock.now_ns() < 60_000_000_000, "no success within a minute: {what}");
        clock.sleep(Duration::from_millis(5));
    }
}

/// umount(8). The child of another test holds this test's files open from its fork until its exec, so "busy" may be
/// temporary. It may also have the mount in a mount namespace of its own.
#[track_caller]
pub fn umount(args: &[&str]) {
    let device = LoopDevice::of_mount(Path::new(args.last().expect("a directory")));
    let mut ran = run("umount", args);
    for _ in 0..100 {
        if ran.code == Some(0) || !ran.err.contains("busy") {
            break;
        }
        Clock::real().sleep(Duration::from_millis(50));
        ran = run("umount", args);
    }
    assert_eq!(ran.code, Some(0), "umount {args:?}: {}", ran.err);
    assert!(device.wait(), "umount {args:?}: mounted elsewhere");
}

#[track_caller]
pub fn debugfs(image: &str, request: &str) -> String {
    extant_testkit::oracle::debugfs(image, request).unwrap()
}

#[track_caller]
pub fn fsck_clean(image: &str) {
    extant_testkit::oracle::expect_clean(image).unwrap();
}

/// A directory that is removed after the test.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(tempfile::tempdir().expect("directory"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// A tree for making images, with every kind of file; returns its path.
    pub fn tree(&self) -> String {
        let top = self.path("src");
        std::fs::create_dir_all(top.join("etc/deep/er")).expect("directories");
        let write = |name: &str, data: &[u8]| std::fs::write(top.join(name), data).expect("file");
        write("etc/passwd", b"root:x:0:0::/root:/bin/sh\n");
        write("etc/deep/er/file", b"deep\n");
        write("big", &big());
        write("empty", b"");
        std::os::unix::fs::symlink("etc/passwd", top.join("link")).expect("link");
        std::os::unix::fs::symlink("/etc", top.join("absolute")).expect("link");
        std::os::unix::fs::symlink("self", top.join("self")).expect("link");
        use std::os::unix::ffi::OsStrExt;
        std::fs::write(top.join(OsStr::from_bytes(b"odd\xff\nname")), b"odd").expect("file");
        let sparse = std::fs::File::create(top.join("sparse")).expect("file");
        sparse.set_len(50 << 20).expect("size");
        use std::os::unix::fs::FileExt;
        sparse.write_all_at(b"in the middle", 20_000_000).expect("write");
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(top.join("etc/passwd"), PermissionsExt::from_mode(0o4751)).expect("mode");
        for name in ["etc/passwd", "big", "etc"] {
            tool("touch", &["-d", "2001-09-09T01:46:40Z", top.join(name).to_str().expect("UTF-8")]);
        }
        tool("mkfifo", &[top.join("fifo").to_str().expect("UTF-8")]);
        top.to_str().expect("UTF-8").to_owned()
    }

    /// An image made from [`Dir::tree`].
    pub fn image(&self, fs_type: &str, extra: &[&str]) -> String {
        let (tree, image) = (self.tree(), self.text("disk.img"));
        let args = [&["-q", "-F", "-t", fs_type, "-L", "a label", "-d", &tree], extra, &[&image, "64M"]].concat();
        tool("mke2fs", &args);
        image
    }

    /// An image of 16 MiB without files.
    pub fn empty_image(&self, name: &str, extra: &[&str]) -> String {
        let image = self.text(name);
        tool("mke2fs", &[&["-q", "-F", "-t", "ext4"], extra, &[&image, "16M"]].concat());
        image
    }
}

/// Content in which each word contains its offset.
pub fn big() -> Vec<u8> {
    (0..700_000u32).flat_map(u32::to_le_bytes).collect()
}

/// Changes bytes of a file.
pub fn patch(file: &str, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(file).expect("open");
    file.write_all_at(bytes, offset).expect("write");
}

/// A disk with an MBR: partition 1 is swap, partition 2 is the given image, and the logical partition 5 is the same
/// image.
pub fn whole_disk(path: &str, image: &str) {
    use std::io::{Seek, SeekFrom, Write};
    let content = std::fs::read(image).expect("image");
    let sectors = (content.len() / 512) as u32;
    let entry = |kind: u8, start: u32, len: u32| {
        let mut e = [0u8; 16];
        e[4] = kind;
        e[8..12].copy_from_slice(&start.to_le_bytes());
        e[12..16].copy_from_slice(&len.to_le_bytes());
        e
    };
    let (two, extended) = (4096, 4096 + sectors);
    let mut disk = std::fs::File::create(path).expect("disk");
    disk.set_len(u64::from(extended + sectors + 4096) * 512).expect("size");
    let mut table = |at: u32, entries: &[[u8; 16]]| {
        disk.seek(SeekFrom::Start(u64::from(at) * 512 + 446)).expect("seek");
        disk.write_all(&entries.concat()).expect("write");
        disk.seek(SeekFrom::Start(u64::from(at) * 512 + 510)).expect("seek");
        disk.write_all(&[0x55, 0xaa]).expect("write");
    };
    table(0, &[entry(0x82, 2048, 2048), entry(0x83, two, sectors), entry(0x05, extended, sectors + 2048)]);
    table(extended, &[entry(0x83, 2048, sectors)]);
    for at in [two, extended + 2048] {
        disk.seek(SeekFrom::Start(u64::from(at) * 512)).expect("seek");
        disk.write_all(&content).expect("write");
    }
}

/// Whether the tests may use the kernel's own driver.
pub fn loop_mounts_work() -> bool {
    extant_testkit::mount::loop_mounts_work()
}

/// A mount point that is always unmounted at the end.
pub struct Unmounted(pub String);

impl Unmounted {
    /// A directory of this name, to mount on.
    pub fn at(dir: &Dir, name: &str) -> Unmounted {
        let mnt = dir.text(name);
        std::fs::create_dir(&mnt).expect("directory");
        Unmounted(mnt)
    }
}

impl Drop for Unmounted {
    fn drop(&mut self) {
        if extant_testkit::mount::is_mount_point(Path::new(&self.0)) {
            run("umount", &["-i", "-l", &self.0]);
        }
    }
}
