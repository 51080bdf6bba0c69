//! An image served in this process, as a mount under test.
#![allow(dead_code)] // each test binary uses only its part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_base::task;
use extant_block::BlockDevice;
use extant_block::device::{Engine, FileDevice, IoMode, OpenOptions};
use extant_fs::{Atime, Filesystem};
use extant_fuse::{FsServer, FuseError, MountOptions, ServerOptions, Session, Unmounter};
use extant_testkit::mount::Mounted;
use extant_testkit::{Error, Result};

/// How to serve an image.
#[derive(Clone)]
pub struct Setup {
    pub fs: extant_fs::MountOptions,
    pub server: ServerOptions,
    pub mount: MountOptions,
    pub io: IoMode,
    pub engine: Engine,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            fs: extant_fs::MountOptions { keep_clean: false, seed: Some(7), atime: Atime::Never, ..Default::default() },
            server: ServerOptions::default(),
            mount: MountOptions { nosuid: false, nodev: false, allow_other: true, ..MountOptions::default() },
            io: IoMode::Buffered,
            engine: Engine::Psync,
        }
    }
}

/// A served image; dropping it unmounts.
pub struct Served {
    pub path: PathBuf,
    /// None after the end of the mount, which also releases the lock on the image.
    pub server: Option<Arc<FsServer>>,
    unmounter: Unmounter,
    thread: Option<task::JoinHandle<std::result::Result<(), FuseError>>>,
}

impl Setup {
    pub fn serve(&self, image: &Path, dir: &Path) -> Served {
        let open =
            OpenOptions { read_only: self.fs.read_only, io: self.io, engine: self.engine, ..OpenOptions::default() };
        self.serve_device(Arc::new(FileDevice::open(image, open).expect("image opened")), dir)
    }

    pub fn serve_device(&self, device: Arc<dyn BlockDevice>, dir: &Path) -> Served {
        let fs = Filesystem::mount(device, self.fs.clone()).unwrap_or_else(|e| panic!("{e}"));
        let server = Arc::new(FsServer::new(fs, self.server.clone()).expect("root"));
        let session = Session::mount(server.clone(), dir, &self.mount).expect("mounted");
        server.set_notifier(session.notifier());
        let unmounter = session.unmounter();
        let thread = task::spawn("session", move || session.run()).expect("thread");
        Served { path: dir.to_owned(), server: Some(server), unmounter, thread: Some(thread) }
    }

    /// A function that mounts, as the differential runner expects it.
    pub fn mounting(self) -> impl Fn(&Path, &Path) -> Result<Box<dyn Mounted>> {
        move |image, dir| Ok(Box::new(self.serve(image, dir)))
    }
}

impl Served {
    pub fn server(&self) -> &FsServer {
        self.server.as_ref().expect("not ended")
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Unmounts, waits for the end of the server, and returns its result.
    pub fn end(&mut self) -> std::result::Result<(), String> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        let Some(server) = self.server.take() else { return Ok(()) };
        let mut unmounted = Ok(());
        eventually(|| {
            unmounted = self.unmounter.unmount(false);
            unmounted.is_ok()
        });
        if let Err(e) = unmounted {
            self.unmounter.unmount(true).map_err(|e| e.to_string())?;
            thread.join().map_err(|_| "the session panicked")?.map_err(|e| e.to_string())?;
            return Err(e.to_string());
        }
        thread.join().map_err(|_| "the session panicked")?.map_err(|e| e.to_string())?;
        let (inodes, _) = server.node_counts();
        if inodes != 0 {
            return Err(format!("{inodes} inodes are still held"));
        }
        server.unmount_result().ok_or("not unmounted")?.map_err(|e| e.to_string())
    }
}

impl Mounted for Served {
    fn unmount(mut self: Box<Self>) -> Result<()> {
        self.end().map_err(|difference| Error::Mismatch { what: "the end of the mount".into(), difference })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("{}: {e}", self.path.display());
        }
    }
}

/// Whether the condition becomes true within a minute, which suffices on a busy machine.
pub fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let clock = extant_base::clock::Clock::real();
    let end = clock.now_ns() + 60_000_000_000;
    loop {
        if is_so() {
            return true;
        }
        if clock.now_ns() > end {
            return false;
        }
        clock.sleep(std::time::Duration::from_millis(10));
    }
}

pub fn can_mount() -> bool {
    let can = extant_testkit::mount::loop_mounts_work() && extant_testkit::mount::fuse_works();
    if !can {
        eprintln!("SKIPPED: mounting needs root and /dev/fuse");
    }
    can
}
