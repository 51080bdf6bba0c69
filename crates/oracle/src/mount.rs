//! Mounts that end with their value: the kernel's through a loop device, Extant's through its binary.
//!
//! A mount namespace that another program creates has a copy of every mount of that moment, and an unmount takes effect
//! only when that copy is gone, too. So a test mounts in a namespace of its own ([`loop_mounts_work`], [`fuse_works`]),
//! of which neither other programs nor other tests get copies.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::unmount;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change};
use rustix::thread::UnshareFlags;

use crate::{Error, Result, arg, journal_of, run_command, run_ok};

/// How long a mount may take to come up or to end, in seconds.
const PATIENCE_S: u64 = 60;

/// A mounted image. Dropping it unmounts too, but discards errors.
pub trait Mounted {
    /// Unmounts, and waits until everything is in the image.
    fn unmount(self: Box<Self>) -> Result<()>;
}

/// Polls `done` until it is true.
fn wait_until(mut done: impl FnMut() -> Result<bool>, seconds: u64) -> Result<bool> {
    let clock = Clock::real();
    let end = clock.now_ns() + seconds * 1_000_000_000;
    loop {
        if done()? {
            return Ok(true);
        }
        if clock.now_ns() > end {
            return Ok(false);
        }
        clock.sleep(Duration::from_millis(10));
    }
}

/// Whether something is mounted on `dir`. A dead FUSE mount, which answers with an error, counts.
pub fn is_mount_point(dir: &Path) -> bool {
    let Some(parent) = dir.parent().and_then(|p| p.metadata().ok()) else { return false };
    dir.metadata().map_or(true, |m| m.dev() != parent.dev())
}

/// The kernel's list of the calling thread's mounts; /proc/self/mounts is that of the first thread.
pub const MOUNTS: &str = "/proc/thread-self/mounts";

/// Leaves the initial mount namespace of the process, where the caller may.
fn own_mounts() {
    static FIRST: OnceLock<u64> = OnceLock::new();
    let Ok(namespace) = std::fs::metadata("/proc/thread-self/ns/mnt").map(|m| m.ino()) else { return };
    if namespace != *FIRST.get_or_init(|| namespace) || !rustix::process::geteuid().is_root() {
        return;
    }
    // Not `unshare_unsafe`: the descriptors stay shared.
    #[allow(deprecated)]
    if rustix::thread::unshare(UnshareFlags::NEWNS).is_err() {
        return;
    }
    // Unmounts of the host happen here, too, and the host sees none of our mounts.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).expect("a slave of the host's");
    // Without propagation, copies of the host's mounts would stay, and their images would wait for these. Some image
    // may have a name that is not UTF-8.
    let table = std::fs::read(MOUNTS).unwrap_or_default();
    let table = String::from_utf8_lossy(&table);
    for line in table.lines().rev().filter(|line| line.contains(".extant ")) {
        if let Some(dir) = line.split(' ').nth(1) {
            let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

/// Whether this process may loop-mount; tests that need it print that they are skipped where it may not. From here on
/// the calling thread, its children and the programs that it runs have a mount namespace of their own.
pub fn loop_mounts_work() -> bool {
    own_mounts();
    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists()
}

/// Whether FUSE mounts can work here. From here on the calling thread, its children and the programs that it runs have
/// a mount namespace of their own.
pub fn fuse_works() -> bool {
    own_mounts();
    Path::new("/dev/fuse").exists()
}

/// A loop device over a file, for programs that take block devices alone.
pub struct AttachedFile {
    device: String,
}

impl AttachedFile {
    /// Attaches `file` to a free device.
    pub fn new(file: &Path) -> Result<AttachedFile> {
        let device = run_ok("losetup", &["--find", "--show", arg(file)])?.trim().to_owned();
        Ok(AttachedFile { device })
    }

    /// The device's path.
    pub fn path(&self) -> &str {
        &self.device
    }
}

impl Drop for AttachedFile {
    fn drop(&mut self) {
        let _ = run_command("losetup", &["-d", &self.device]);
    }
}

/// The kernel's own driver on an image file, through a loop device.
pub struct LoopMount {
    dir: PathBuf,
    mounted: bool,
    /// Detached behind the unmount.
    _journal: Option<AttachedFile>,
}

impl LoopMount {
    /// Mounts `image` on `dir` with `noatime,nodev` and `options` (`ro`, `errors=panic` …; may be empty).
    pub fn new(image: &Path, dir: &Path, options: &str) -> Result<LoopMount> {
        let mut all = "loop,noatime,nodev".to_owned();
        if !options.is_empty() {
            all = format!("{all},{options}");
        }
        let journal = journal_of(image).map(|path| AttachedFile::new(&path)).transpose()?;
        if let Some(journal) = &journal {
            all = format!("{all},journal_path={}", journal.path());
        }
        run_ok("mount", &["-o", &all, arg(image), arg(dir)])?;
        Ok(LoopMount { dir: dir.to_owned(), mounted: true, _journal: journal })
    }

    /// As [`LoopMount::new`]; makes `dir`, too. None, with a message, where loop mounts are not permitted. A failure
    /// ends the test.
    pub fn if_permitted(image: &Path, dir: &Path, options: &str) -> Option<Box<LoopMount>> {
        if !loop_mounts_work() {
            eprintln!("skipped: needs loop mounts");
            return None;
        }
        std::fs::create_dir_all(dir).expect("a mount point");
        Some(Box::new(LoopMount::new(image, dir, options).unwrap_or_else(|e| panic!("{e}"))))
    }
}

impl Mounted for LoopMount {
    fn unmount(mut self: Box<Self>) -> Result<()> {
        self.mounted = false;
        unmount(&self.dir).map_err(Error::io(format!("umount {}", self.dir.display())))
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        if self.mounted && unmount(&self.dir).is_err() {
            let _ = run_command("umount", &["-l", arg(&self.dir)]);
        }
    }
}

/// Extant on an image file, through its binary: `extant mount [OPTIONS] IMAGE DIR`, `extant unmount DIR`.
pub struct ExtantMount {
    binary: PathBuf,
    dir: PathBuf,
    /// The serving process when it stays in the foreground.
    child: Option<Child>,
    log: PathBuf,
    mounted: bool,
}

impl ExtantMount {
    /// Starts `binary mount OPTIONS IMAGE DIR` and waits until `dir` is a mount point. Its output goes to a file beside
    /// `dir` (`DIR.log`), and into the error if it fails.
    pub fn new(binary: &Path, options: &[&str], image: &Path, dir: &Path) -> Result<ExtantMount> {
        let log = dir.with_extension("log");
        let create_log = || std::fs::File::options().create(true).append(true).open(&log);
        let (out, err) = create_log()
            .and_then(|f| Ok((f.try_clone()?, f)))
            .map_err(Error::io(format!("create {}", log.display())))?;
        let journal = journal_of(image).map(|path| format!("journal_path={}", path.display()));
        let child = Command::new(binary)
            .arg("mount")
            .args(journal.iter().flat_map(|option| ["-o", option]))
            .args(options)
            .args([image, dir])
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|source| Error::Spawn { program: binary.display().to_string(), source })?;
        let mut mount =
            ExtantMount { binary: binary.to_owned(), dir: dir.to_owned(), child: Some(child), log, mounted: false };
        mount.wait_up(options)?;
        Ok(mount)
    }

    fn output(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn wait_up(&mut self, options: &[&str]) -> Result<()> {
        let command = || format!("{} mount {}", self.binary.display(), options.join(" "));
        let (dir, child) = (self.dir.clone(), &mut self.child);
        let mut failed = None;
        let up = wait_until(
            || {
                // A process that ends with success has left the mount to a background one.
                if let Some(status) = child.as_mut().and_then(|c| c.try_wait().ok().flatten()) {
                    *child = None;
                    failed = (!status.success()).then(|| status.code());
                }
                Ok(failed.is_some() || is_mount_point(&dir))
            },
            PATIENCE_S,
        )?;
        if let Some(code) = failed {
            return Err(Error::Command { command: command(), code, output: self.output() });
        }
        self.mounted = true;
        if up { Ok(()) } else { Err(Error::Timeout { what: command(), seconds: PATIENCE_S, output: self.output() }) }
    }

    /// The server's process id, when it runs in the foreground (for tests that kill it).
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the server as a crash would (SIGKILL), then detaches the dead mount. Only a server that stays in the
    /// foreground can be killed; one in the background sees an unmount, and ends in order.
    pub fn kill(mut self) -> Result<()> {
        self.force();
        Ok(())
    }

    /// Waits for the foreground server's end.
    fn wait_end(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        let mut status = None;
        let wait = || {
            status = child.try_wait().map_err(Error::io("wait for extant"))?;
            Ok(status.is_some())
        };
        let ended = wait_until(wait, PATIENCE_S);
        match status {
            Some(s) if s.success() => Ok(()),
            Some(s) => Err(Error::Command { command: "extant mount".into(), code: s.code(), output: self.output() }),
            None => {
                self.child = Some(child);
                ended?;
                let what = "the end of extant mount".to_owned();
                Err(Error::Timeout { what, seconds: PATIENCE_S, output: self.output() })
            }
        }
    }

    fn force(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::mem::take(&mut self.mounted) && is_mount_point(&self.dir) {
            let _ = run_command("umount", &["-l", arg(&self.dir)]);
        }
    }
}

impl Mounted for ExtantMount {
    fn unmount(mut self: Box<Self>) -> Result<()> {
        let (code, output) = run_command(&self.binary, &["unmount", arg(&self.dir)])?;
        if code != Some(0) {
            let command = format!("extant unmount {}", self.dir.display());
            return Err(Error::Command { command, code, output: output + &self.output() });
        }
        self.wait_end()?;
        let gone = wait_until(|| Ok(!is_mount_point(&self.dir)), PATIENCE_S)?;
        if !gone {
            let what = format!("unmounting {}", self.dir.display());
            return Err(Error::Timeout { what, seconds: PATIENCE_S, output: self.output() });
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for ExtantMount {
    fn drop(&mut self) {
        if self.mounted || self.child.is_some() {
            let _ = run_command(&self.binary, &["unmount", arg(&self.dir)]);
            if let Some(child) = &mut self.child {
                let _ = wait_until(|| Ok(child.try_wait().ok().flatten().is_some()), 5);
            }
            self.force();
        }
    }
}
