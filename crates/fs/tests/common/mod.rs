//! Shared by the tests of racing threads, of faults and of power cuts: a disk whose requests can be held, failed and
//! lost, and threads that are joined with a time limit.
#![allow(dead_code)] // each test binary uses its part

pub use extant_oracle::memory as tools;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use extant_base::task;
use extant_block::device::{CrashDevice, HeldDevice, MemDevice};
use extant_block::{BioFlags, BlockDevice};
use extant_fs::{
    Cred, FallocateMode, Filesystem, InodeRef, MountOptions, Mounted, NewNode, Result, SetAttr, WriteFlags,
};

/// After this time, something hangs.
pub const LONG: Duration = Duration::from_secs(60);
/// How long a test watches for an event that must not happen. On a slow machine this may miss a fault, but never
/// reports a false one.
pub const GRACE: Duration = Duration::from_millis(400);
pub const EIO: i32 = 5;
pub const BLOCK: u64 = 4096;
/// Arguments of mke2fs: an ordinary file system, and one of four block groups, each with its own bitmaps, which must
/// be read.
pub const EXT4: &[&str] = &["-t", "ext4", "-b", "4096"];
pub const GROUPS: &[&str] = &["-t", "ext4", "-b", "4096", "-g", "4096", "-O", "^flex_bg,^metadata_csum,^uninit_bg"];
/// The content of free blocks, as if files had been deleted there.
pub const SECRET: &[u8; 8] = b"SECRETS!";

/// Runs a test, and fails it if it has not ended after a few minutes.
pub fn bounded(body: impl FnOnce() + Send + 'static) {
    let mut body = start("test", body);
    assert!(body.ends_within(4 * LONG), "the test hangs");
    body.join();
}

/// A thread that is joined with a time limit.
pub struct Running<T> {
    what: String,
    from: Receiver<T>,
    got: Option<T>,
    died: bool,
}

pub fn start<T: Send + 'static>(what: &str, f: impl FnOnce() -> T + Send + 'static) -> Running<T> {
    let (to, from) = channel();
    let run = move || {
        let _ = to.send(f());
    };
    task::spawn(what, run).expect("thread");
    Running { what: what.to_owned(), from, got: None, died: false }
}

impl<T> Running<T> {
    pub fn ends_within(&mut self, at_most: Duration) -> bool {
        if self.got.is_none() && !self.died {
            match self.from.recv_timeout(at_most) {
                Ok(value) => self.got = Some(value),
                Err(RecvTimeoutError::Disconnected) => self.died = true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
        true
    }

    pub fn join(mut self) -> T {
        assert!(self.ends_within(LONG), "{} hangs", self.what);
        self.got.unwrap_or_else(|| panic!("{} panicked", self.what))
    }
}

/// A disk that knows the possible states after a power cut, under one whose requests can be held.
#[derive(Clone)]
pub struct Disk {
    pub crash: Arc<CrashDevice>,
    pub held: Arc<HeldDevice>,
}

/// An image of mke2fs over this content.
pub fn image(mib: usize, args: &[&str], content: &[u8]) -> MemDevice {
    let dir = tempfile::tempdir().expect("tempdir");
    let path = dir.path().join("disk.img");
    std::fs::write(&path, content).expect("written");
    std::fs::File::options().write(true).open(&path).expect("open").set_len((mib << 20) as u64).expect("resized");
    // The content remains wherever the file system writes nothing.
    let extended = format!("nodiscard,lazy_itable_init=0,lazy_journal_init=0,hash_seed={}", extant_oracle::SEED);
    extant_oracle::mke2fs(&path, &[&["-E", &extended], args].concat(), &format!("{mib}M"));
    MemDevice::load(&path).expect("loaded")
}

impl Disk {
    /// An image of mke2fs.
    pub fn new(mib: usize, args: &[&str]) -> Disk {
        Disk::over(mib, args, &[])
    }

    /// As before, with free blocks full of [`SECRET`].
    pub fn of_secrets(mib: usize, args: &[&str]) -> Disk {
        Disk::over(mib, args, &SECRET.repeat((mib << 20) / SECRET.len()))
    }

    fn over(mib: usize, args: &[&str], content: &[u8]) -> Disk {
        Disk::from(&image(mib, args, content))
    }

    fn from(image: &MemDevice) -> Disk {
        let crash = Arc::new(CrashDevice::from_image(image));
        let held = Arc::new(HeldDevice::new(crash.clone()).expect("thread"));
        Disk { crash, held }
    }

    pub fn mount(&self, options: MountOptions) -> Scene {
        let fs = Filesystem::mount(self.held.clone(), options).expect("mounted");
        Scene { fs: Some(fs), disk: self.clone() }
    }

    /// The state after a power cut now, mounted.
    pub fn after_cut(&self) -> Mounted {
        self.after_cut_at(self.crash.write_log())
    }

    /// The state after a power cut at the time when the device had seen this many requests.
    pub fn after_cut_at(&self, events: usize) -> Mounted {
        remounted(self.crash.state_keeping(events, |_| false).expect("state"))
    }

    /// The blocks that contain these bytes now, as offsets on the device.
    pub fn blocks_with(&self, needle: &[u8]) -> Vec<u64> {
        let mut found = Vec::new();
        let mut buf = vec![0; BLOCK as usize];
        for at in (0..self.crash.size_bytes()).step_by(BLOCK as usize) {
            self.crash.read_at(at, &mut buf, BioFlags::empty()).expect("read");
            if buf.windows(needle.len()).any(|w| w == needle) {
                found.push(at);
            }
        }
        found
    }
}

/// A mount on a disk. Held requests are released before the mount is dropped; otherwise a failing test would hang.
pub struct Scene {
    fs: Option<Mounted>,
    pub disk: Disk,
}

impl Scene {
    pub fn shared(&self) -> Arc<Filesystem> {
        Arc::clone(self)
    }
}

impl Deref for Scene {
    type Target = Arc<Filesystem>;
    fn deref(&self) -> &Arc<Filesystem> {
        self.fs.as_ref().expect("until it is dropped")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.disk.held.let_go();
        let fs = self.fs.take();
        if std::thread::panicking() {
            // One of its threads may be the one that hangs.
            std::mem::forget(fs);
        }
    }
}

/// Options of the FUSE mount of a block device.
pub fn production() -> MountOptions {
    MountOptions { keep_clean: false, seed: Some(1), ..MountOptions::default() }
}

/// Options of the FUSE mount of an image file.
pub fn production_through() -> MountOptions {
    MountOptions { write_through_bytes: Some(65536), ..production() }
}

pub fn remounted(image: MemDevice) -> Mounted {
    let options = MountOptions { threads: false, seed: Some(2), ..MountOptions::default() };
    Filesystem::mount(Arc::new(image), options).expect("mounted again")
}

pub fn create(fs: &Filesystem, name: &str) -> InodeRef {
    fs.create(&fs.root().expect("root"), name.as_bytes(), NewNode::file(0o644), Cred::default()).expect("create")
}

pub fn put(fs: &Filesystem, f: &InodeRef, at: u64, data: &[u8]) {
    assert_eq!(fs.write(f, at, data, WriteFlags::default()).expect("write"), data.len());
}

pub fn preallocate(fs: &Filesystem, f: &InodeRef, at: u64, len: u64) {
    fs.fallocate(f, FallocateMode::Allocate { keep_size: false }, at, len).expect("fallocate");
}

pub fn chmod(fs: &Filesystem, f: &InodeRef, mode: u16) -> Result<()> {
    fs.setattr(f, &SetAttr { mode: Some(mode), ..SetAttr::default() }).map(|_| ())
}

pub fn get(fs: &Filesystem, f: &InodeRef, at: u64, len: usize) -> Vec<u8> {
    let mut buf = vec![0xEE; len];
    let n = fs.read(f, at, &mut buf).expect("read");
    buf.truncate(n);
    buf
}

pub fn content(fs: &Filesystem, f: &InodeRef) -> Vec<u8> {
    get(fs, f, 0, fs.getattr(f).size as usize)
}

/// The content of a file by its name; `None` if it does not exist.
pub fn content_of(fs: &Filesystem, name: &str) -> Option<Vec<u8>> {
    let f = fs.lookup(&fs.root().expect("root"), name.as_bytes()).ok()?;
    Some(content(fs, &f))
}

/// syncfs(2), waiting.
pub fn syncfs(fs: &Filesystem) -> Result<()> {
    let waiter = extant_base::sync::Waiter::new();
    let tell = waiter.clone();
    fs.sync_async(Box::new(move |r| tell.set(r)));
    waiter.wait()
}

/// The ways in which a caller can learn that its writes are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    Fsync,
    Fdatasync,
    Sync,
    Syncfs,
    Unmount,
}

pub const ACKS: [Ack; 5] = [Ack::Fsync, Ack::Fdatasync, Ack::Sync, Ack::Syncfs, Ack::Unmount];

impl Ack {
    pub fn ask(self, fs: &Filesystem, f: &InodeRef) -> Result<()> {
        match self {
            Ack::Fsync => fs.fsync(f, false),
            Ack::Fdatasync => fs.fsync(f, true),
            Ack::Sync => fs.sync(),
            Ack::Syncfs => syncfs(fs),
            Ack::Unmount => fs.unmount(),
        }
    }

    /// Requests it on a thread; returns also how many requests the device had seen at the answer.
    pub fn start(self, scene: &Scene, f: &InodeRef) -> Running<(Result<()>, usize)> {
        let (fs, f, crash) = (scene.shared(), f.clone(), scene.disk.crash.clone());
        start(&format!("{self:?}"), move || {
            let r = self.ask(&fs, &f);
            (r, crash.write_log())
        })
    }
}

/// The complaints of e2fsck after a mount has replayed the journal and freed the orphans; `None` if there are none.
pub fn complaints(image: MemDevice) -> Option<String> {
    let image = Arc::new(image);
    let fs =
        Filesystem::mount(image.clone(), MountOptions { threads: false, ..MountOptions::default() }).expect("mounted");
    fs.unmount().expect("unmounted");
    drop(fs);
    let (code, said) = tools::e2fsck(&image, &["-fn"]);
    (code != 0).then_some(said)
}

/// How many bytes of [`SECRET`] the data contains.
pub fn secret_bytes(data: &[u8]) -> usize {
    data.windows(SECRET.len()).filter(|w| w == SECRET).count() * SECRET.len()
}
