//! The process behind a mount.
//!
//! Order: open the image (which claims it) → mount the file system (replay and all) → mount on the directory → say so →
//! give up what is not needed any more ([`crate::sandbox`]) → serve → the file system's unmount (in the server's
//! `destroy`) → let go of the image → say how it went ([`crate::status`]).
//!
//! A block device is mounted as `fuseblk` by root: then umount(2) waits for the server, and syncfs(2) works. The kernel
//! claims the device itself for such a mount, so ours ends right before it. If there is no mount in the end, the device
//! is only written to once it is claimed again; a device that is somebody else's by then is left as it is ([`Claim`]).
//!
//! SIGTERM, SIGINT and, but under nohup(1), SIGHUP unmount. A mount that is busy is detached instead, and is served
//! until its last user has gone; another signal then makes everything durable that the kernel has handed over, and ends
//! at once, leaving an image that needs recovery. (Pages that were written through a mapping or with
//! `-o writeback_cache`, and that the kernel still holds, are lost then.)
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::BioFlags;
use extant_block::device::{BlockDevice, Engine, FileDevice, IoMode, OpenOptions};
use extant_fs::{Filesystem, JournalDevice, Mounted};
use extant_fuse::{Errno, FsServer, FuseError, MountKind, ServerOptions, Session, Unmounter};
use extant_lab::measure::Recorded;
use extant_lab::measure::engine::Probe;
use extant_ondisk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, SuperBlock};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::fs::{Mode, OFlags};
use rustix::process::{getegid, geteuid};
use signal_hook::iterator::Signals;

use crate::cgroup;
use crate::failure::{Failure, MOUNT, Result, SYSTEM, USAGE, plain, plain_text, warn};
use crate::image::{self, Access, ImageSpec, WRITE_THROUGH_BYTES, open_device, open_whole};
use crate::log;
use crate::mount_options::MountConfig;
use crate::mount_table;
use crate::sandbox;
use crate::signals;
use crate::status::ServerStatus;
use crate::text::shown;

/// What a server in the background says once the mount is there.
pub const MOUNTED: &[u8] = b"mounted\n";

/// What to mount where.
#[derive(Debug)]
pub struct Job {
    /// With an absolute path.
    pub spec: ImageSpec,
    pub dir: PathBuf,
    pub config: MountConfig,
    /// What `config` was read from, for a remount to compare with.
    pub options: String,
    pub verbose: bool,
    /// Somebody reads our standard output, waiting for [`MOUNTED`].
    pub background: bool,
    /// Where to write what the mount did (`extant lab`).
    pub stats: Option<(PathBuf, Recorded)>,
}

/// Mounts and serves until the mount is gone.
pub fn serve(job: Job) -> Result<()> {
    if job.background {
        let_go_of_files();
    }
    enough_files()?;
    // Started as /proc/self/exe, it would be called "exe" by whoever lists processes.
    let _ = std::fs::write("/proc/self/comm", "extant");
    let root = geteuid().is_root();
    if !job.config.no_sandbox {
        sandbox::prepare((root && job.spec.is_block_device()).then_some(&*job.spec.path));
    }
    let (fs, claim) = open(&job, root)?;
    // Later it could not be opened any more.
    let stats = job.stats.as_ref().and_then(|(file, _)| create_stats(file));
    let probe = job.stats.as_ref().map(|(_, recorded)| Probe::start(&fs, *recorded));
    let shared = Arc::clone(&fs);
    let result = run(&job, root, fs, claim);
    if let (Some(probe), Some(file), Some((path, _))) = (probe, stats, &job.stats) {
        write_stats(probe, &shared, file, path);
    }
    drop(shared);
    // The claim on the image ends with the device, which the file system owns.
    match result {
        Ok((status, result)) => {
            if let Some(status) = status {
                status.finish(result.clone());
            }
            result.map_err(|e| Failure::new(SYSTEM, e))
        }
        Err(e) => Err(e),
    }
}

/// What the caller had open and passed on by accident: it would stay open as long as the mount.
pub fn let_go_of_files() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let open: Vec<i32> = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The directory's own is closed by now. Nothing of ours is open yet.
        let _ = nix::unistd::close(fd);
    }
}

/// The device, its flush, a ring, and a descriptor of /dev/fuse for each worker.
const FILES_LEAST: u64 = 64;

/// Fails early where the mount would fail halfway.
fn enough_files() -> Result<()> {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return Ok(()) };
    if soft >= FILES_LEAST {
        return Ok(());
    }
    if hard >= FILES_LEAST && setrlimit(Resource::RLIMIT_NOFILE, FILES_LEAST, hard).is_ok() {
        return Ok(());
    }
    Err(Failure::new(SYSTEM, format!("only {soft} files may be open at once (ulimit -n); a mount needs {FILES_LEAST}")))
}

/// Failing here is no failure of the mount: who wanted the file will miss it.
fn create_stats(path: &Path) -> Option<File> {
    File::create(path).inspect_err(|e| warn(&format!("{}: {}", path.display(), plain(e)))).ok()
}

/// As there.
fn write_stats(probe: Probe, fs: &Filesystem, mut file: File, path: &Path) {
    let report = probe.finish(fs);
    let text = serde_json::to_vec(&report).map_err(std::io::Error::other);
    if let Err(e) = text.and_then(|text| file.write_all(&text)) {
        warn(&format!("{}: {}", path.display(), plain(&e)));
    }
}

/// Our claim on a block device: before the kernel's own claim for a mount of it, and after that if the mount ends in
/// the middle.
struct Claim {
    spec: ImageSpec,
    access: Access,
    claimed: Option<Arc<dyn BlockDevice>>,
    /// What the file system has.
    dev: Arc<dyn BlockDevice>,
}

impl Claim {
    /// Lets go of it for `mount`. Should that fail, the file system is ended here: whoever was faster may have the
    /// device, or have had it, and then nothing more is written to it.
    fn lend<T>(&mut self, fs: &Filesystem, mount: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = super_block(&*self.dev);
        self.claimed = None;
        let failed = match mount() {
            Err(e) if !fs.is_read_only() => e,
            done => return done,
        };
        let ended = match self.again(fs, || Ok(super_block(&*self.dev)? == before?)) {
            Ok(_held) => fs.unmount().map_err(|e| format!("{}: unmount: {e}", self.spec.shown())),
            Err(e) => Err(e.message),
        };
        match ended {
            Ok(()) => Err(failed),
            Err(e) => {
                failed.print();
                Err(Failure::new(failed.status, e))
            }
        }
    }

    /// Claims it once more. If somebody else has it, or has had it (it is not the `same`), the file system is cut off.
    fn again(&self, fs: &Filesystem, same: impl FnOnce() -> Result<bool>) -> Result<Arc<dyn BlockDevice>> {
        let again = open_whole(&self.spec, &self.access).and_then(|claimed| match same()? {
            true => Ok(claimed),
            false => Err(Failure::op(format!("{}: somebody else has changed it", self.spec.shown()))),
        });
        again.map_err(|e| {
            fs.cut_off();
            Failure { message: format!("{}; nothing more is written to it, and it may need recovery", e.message), ..e }
        })
    }

    /// The kernel has ended the mount by force, and perhaps let go of the device, while there is more to write to it.
    /// A mount that stays, dead, has it still. What is returned is to be held until the file system is unmounted.
    fn regain(&self, fs: &Filesystem, is_mounted: impl Fn() -> bool) -> Option<Arc<dyn BlockDevice>> {
        let clock = Clock::real();
        while !fs.is_read_only() {
            // First the connection ends, then the mount, then the claim.
            let over = clock.now_ns() > FORCED_PATIENCE_NS;
            if !is_mounted() && (over || self.is_free()) {
                return self.again(fs, || self.is_ours(fs)).inspect_err(Failure::print).ok();
            }
            if over {
                return None;
            }
            clock.sleep(Duration::from_millis(2));
        }
        None
    }

    /// Nobody has mounted or checked it since.
    fn is_ours(&self, fs: &Filesystem) -> Result<bool> {
        // What is written past the log.
        let of_mount = |sb: &SuperBlock| (sb.mount_count(), sb.mount_time(), sb.incompat(), sb.state());
        let (found, _) = extant_fs::probe_superblock(&*self.dev).map_err(|e| Failure::op(e.to_string()))?;
        Ok(of_mount(&found) == of_mount(&fs.superblock()))
    }

    fn is_free(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        rustix::fs::open(&self.spec.path, flags, Mode::empty()).is_ok()
    }
}

/// As it is on the device.
fn super_block(dev: &dyn BlockDevice) -> Result<[u8; SUPERBLOCK_SIZE]> {
    let mut sb = [0; SUPERBLOCK_SIZE];
    dev.read_at(SUPERBLOCK_OFFSET, &mut sb, BioFlags::META)?;
    Ok(sb)
}

/// How long an unmount by force may take after it has ended the connection.
const FORCED_PATIENCE_NS: u64 = 500_000_000;

/// Opens the image and mounts the file system in this process. The claim: of what is to be a `fuseblk` mount.
fn open(job: &Job, root: bool) -> Result<(Mounted, Option<Claim>)> {
    let as_mount = |e: Failure| if e.status == USAGE { e } else { e.with_status(MOUNT) };
    let config = &job.config;
    let block = job.spec.is_block_device();
    // A part of a device, too: the kernel then claims the whole of it.
    let fuseblk = block && root;
    let io = config.io.unwrap_or(if block { IoMode::Direct } else { IoMode::Buffered });
    let mut access =
        Access { read_only: config.fs.read_only, io, engine: config.engine, offset: config.offset, exclusive: true };
    // Held while a replay may write, and let go of when the kernel is about to claim it.
    let how = Access { engine: Engine::Psync, ..access.clone() };
    let claimed = if fuseblk { Some(open_whole(&job.spec, &how).map_err(as_mount)?) } else { None };
    access.exclusive = !fuseblk;
    let dev = open_device(&job.spec, &access).map_err(as_mount)?;
    let lent = claimed.is_some().then(|| (job.spec.clone(), dev.clone()));
    let claim = lent.map(|(spec, dev)| Claim { spec, access: how, claimed, dev });
    let mut options = config.fs.clone();
    if let Some(path) = &config.journal_path {
        let open = OpenOptions { read_only: true, engine: Engine::Psync, ..OpenOptions::default() };
        let device = FileDevice::open(path, open).map_err(|e| as_mount(e.into()))?;
        options.journal_device = Some(JournalDevice(Arc::new(device)));
    }
    if !config.cache_given {
        options.cache_bytes = cgroup::default_cache(options.cache_bytes);
    }
    options.mounted_on = Some(job.dir.to_string_lossy().into_owned());
    options.write_through_bytes = (!block && io == IoMode::Buffered).then_some(WRITE_THROUGH_BYTES);
    let fs = image::mount(dev, options).map_err(as_mount)?;
    Ok((fs, claim))
}

/// The mount on the directory, from its beginning to its end, and what the file system's unmount came to.
#[allow(clippy::type_complexity)]
fn run(
    job: &Job,
    root: bool,
    fs: Mounted,
    claim: Option<Claim>,
) -> Result<(Option<ServerStatus>, std::result::Result<(), String>)> {
    let config = &job.config;
    let image = job.spec.shown();
    // Dropped on the way, the mount ends: what it marked is unmarked.
    let give_up = |message: String| Failure::new(MOUNT, message);
    let mut fuse = config.fuse.clone();
    let kind = if claim.is_some() { MountKind::FuseBlk { blksize: fs.block_size() } } else { MountKind::Fuse };
    fuse.kind = kind;
    fuse.fsname = match kind {
        // The kernel opens it.
        MountKind::FuseBlk { .. } => job.spec.path.to_string_lossy().into_owned(),
        MountKind::Fuse => job.spec.source().to_string_lossy().into_owned(),
    };
    fuse.read_only |= fs.is_read_only();
    fuse.allow_other = config.allow_other.unwrap_or(root);
    fuse.default_permissions = config.checks_permissions();
    let mut options = server_options(config, root);
    let whole = job.spec.partition.is_none() && config.offset.is_none();
    options.bmap = whole && matches!(kind, MountKind::FuseBlk { .. });
    let server = match FsServer::new(fs, options) {
        Ok(server) => Arc::new(server),
        Err(e) => return Err(give_up(format!("{image}: {e}"))),
    };
    // Resolved before there is a mount on it: to look into it takes a server that serves.
    let dir = mount_table::absolute(&job.dir);
    // From the mount on a signal unmounts: one that comes before the thread is there waits for it.
    let signals = Signals::new(signals::ending());
    let mount = || {
        let mounted = Session::mount(server.clone(), &job.dir, &fuse);
        mounted.map_err(|e| give_up(format!("{image}: {}", explain(&e))))
    };
    let session = match claim {
        Some(mut claim) => {
            let mut session = claim.lend(server.filesystem(), mount)?;
            let (server, unmounter) = (server.clone(), session.unmounter());
            session.when_lost(move || Box::new(claim.regain(server.filesystem(), || unmounter.is_mounted())));
            session
        }
        None => mount()?,
    };
    server.set_notifier(session.notifier());
    server.set_hold(session.hold());
    let unmounter = session.unmounter();
    let device = mount_table::find_at(&dir).ok().flatten().filter(|m| m.is_extant()).map(|m| m.device);
    let status = device.as_deref().and_then(|device| ServerStatus::create(device, &job.options));
    if !config.no_sandbox
        && let Err(e) = sandbox::enter(&unmounter)
    {
        warn(&format!("{image}: the server keeps more privileges than it needs: {e}"));
    }
    let signals = signals.and_then(|signals| watch_signals(signals, unmounter, Arc::downgrade(&server)));
    if let Err(e) = &signals {
        warn(&format!("{image}: signals will not unmount: {}", plain(e)));
    }
    if job.background {
        go_into_background();
    } else if job.verbose {
        let dir = shown(job.dir.as_os_str().as_bytes());
        warn(&format!("{image} mounted on {dir}; to end, unmount it or press Ctrl-C"));
    }
    let served = session.run();
    if let Ok(signals) = signals {
        signals.close();
    }
    let unmounted = match server.unmount_result() {
        Some(result) => result.map_err(|e| format!("{image}: not everything could be written: {e}")),
        None => Err(format!("{image}: the server ended without unmounting")),
    };
    let result = unmounted.and(served.map_err(|e| format!("{image}: {e}")));
    if job.verbose && !job.background && result.is_ok() {
        warn(&format!("{image} unmounted"));
    }
    Ok((status, result))
}

fn server_options(config: &MountConfig, root: bool) -> ServerOptions {
    let mut options = ServerOptions::default();
    // Without privilege everything is the caller's, unless the image's owners are wanted.
    let mine = !root && !config.fakeroot;
    options.uid = config.uid.or(mine.then(|| geteuid().as_raw()));
    options.gid = config.gid.or(mine.then(|| getegid().as_raw()));
    options.writeback_cache = config.writeback_cache.unwrap_or(options.writeback_cache);
    // A kernel that enforces ACLs checks everything.
    options.posix_acl = config.checks_permissions();
    (options.sync, options.dirsync) = (config.fuse.sync, config.fuse.dirsync);
    if config.no_xattr {
        options.xattrs = false;
        options.posix_acl = false;
    }
    // Who wants every access time has the kernel ask before it reads from its cache.
    let asked = config.fuse.strictatime.then_some(false);
    if let Some(no_open) = config.no_open.or(asked) {
        options.no_open = no_open;
        options.no_opendir = no_open;
    }
    options
}

fn explain(e: &FuseError) -> String {
    match e {
        FuseError::Device { errno: Errno::NOENT | Errno::NODEV } => {
            plain_text(&format!("{e} (the kernel module 'fuse' is missing)"))
        }
        e => plain_text(&e.to_string()),
    }
}

/// Says that the mount is there and lets go of everything that is the caller's: terminal, directory, standard streams.
fn go_into_background() {
    // Not a group leader, so this cannot fail; and if it did, only a hang-up of the terminal would tell.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
    let _ = std::io::stdout().write_all(MOUNTED);
    let _ = std::io::stdout().flush();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        if !log::take_standard_error() && !log::to_own_file() {
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    }
}

fn watch_signals(
    mut signals: Signals,
    unmounter: Unmounter,
    server: Weak<FsServer>,
) -> std::io::Result<signal_hook::iterator::Handle> {
    let handle = signals.handle();
    extant_base::task::spawn("extant-signals", move || {
        let mut detached = false;
        for _ in signals.forever() {
            if detached {
                end_at_once(&server);
            }
            // Who unmounts waits for what is kept back, and writers that wait keep a mount busy.
            thaw(&server);
            // By somebody else; or it is being unmounted, and who signals again insists.
            if !unmounter.is_mounted() {
                detached = true;
                continue;
            }
            match unmounter.unmount(false) {
                Ok(()) => continue,
                // The process that unmounts may look where this one may not: it has found no mount of ours.
                Err(FuseError::Unmount { errno: Errno::INVAL, .. }) => {
                    detached = true;
                    continue;
                }
                Err(_) => {}
            }
            let dir = shown(unmounter.path().as_os_str().as_bytes());
            match unmounter.unmount(true) {
                Ok(()) => {
                    warn(&format!("{dir} is busy: detached, and served until its last user is gone"));
                    detached = true;
                }
                Err(e) => warn(&plain_text(&format!("{dir} cannot be unmounted: {e}"))),
            }
        }
    })?;
    Ok(handle)
}

fn thaw(server: &Weak<FsServer>) {
    if let Some(server) = server.upgrade() {
        server.thaw();
    }
}

fn end_at_once(server: &Weak<FsServer>) {
    if let Some(server) = server.upgrade() {
        let _ = server.filesystem().sync();
    }
    std::process::exit(SYSTEM.into());
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::process::Command;

    use extant_fs::{Cred, NewNode};
    use extant_testkit::oracle::{MkfsOptions, make_image};

    use super::*;

    /// An image on a loop device, for as long as it is there.
    struct Loop {
        _dir: tempfile::TempDir,
        spec: ImageSpec,
    }

    impl Loop {
        fn new() -> Loop {
            let dir = tempfile::tempdir().expect("directory");
            let image = make_image(dir.path(), &MkfsOptions::new("ext4", 16 << 20)).expect("image");
            let made = Command::new("losetup").args(["-f", "--show"]).arg(image).output().expect("losetup");
            let path = String::from_utf8(made.stdout).expect("a path").trim().into();
            Loop { _dir: dir, spec: ImageSpec { path, partition: None } }
        }

        fn job(&self) -> Job {
            Job {
                spec: self.spec.clone(),
                dir: "/nowhere".into(),
                config: MountConfig::parse(&[], false).expect("options"),
                options: String::new(),
                verbose: false,
                background: false,
                stats: None,
            }
        }

        /// As somebody else would have it.
        fn claim(&self) -> Result<Arc<dyn BlockDevice>> {
            open_whole(&self.spec, &Access::tool(false))
        }

        fn bytes(&self) -> Vec<u8> {
            std::fs::read(&self.spec.path).expect("read")
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("-d").arg(&self.spec.path).status();
        }
    }

    /// What `mount` fails with, and whether the bytes of the device are then the ones that it left; and its end.
    fn failed(device: &Loop, mount: impl FnOnce()) -> (Failure, bool, Vec<u8>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let left = Cell::new(Vec::new());
        let lent = claim.expect("a claim").lend(&fs, || {
            mount();
            left.set(device.bytes());
            Err::<(), _>(Failure::new(MOUNT, "refused"))
        });
        let e = lent.expect_err("no mount");
        drop(fs);
        let now = device.bytes();
        (e, left.take() == now, now)
    }

    fn needs_recovery(bytes: &[u8]) -> bool {
        let sb = &bytes[SUPERBLOCK_OFFSET as usize..];
        u32::from_le_bytes([sb[96], sb[97], sb[98], sb[99]]) & 4 != 0
    }

    /// What is on the device once a mount with something to write has been ended by force, after `between`; and whether
    /// anything was written since.
    fn forced(device: &Loop, still_mounted: bool, between: impl FnOnce()) -> (bool, Vec<u8>) {
        let (fs, claim) = open(&device.job(), true).expect("mounted");
        let root = fs.root().expect("root");
        drop(fs.create(&root, b"new", NewNode::file(0o644), Cred::default()).expect("create"));
        drop(root);
        let mut claim = claim.expect("a claim");
        // The kernel's own is left out: it is gone.
        claim.lend(&fs, || Ok(())).expect("lent");
        between();
        let before = device.bytes();
        let held = claim.regain(&fs, || still_mounted);
        let _ = fs.unmount();
        drop((held, fs));
        let after = device.bytes();
        (before == after, after)
    }

    #[test]
    fn a_mount_that_is_forced_leaves_alone_what_is_somebody_elses() {
        if !geteuid().is_root() || !extant_testkit::mount::loop_mounts_work() {
            eprintln!("skipped: needs loop devices");
            return;
        }
        let device = Loop::new();
        // Nobody was there, and the mount is gone; or it stays, and has the device.
        for still_mounted in [false, true] {
            let (same, now) = forced(&device, still_mounted, || {});
            assert_eq!((same, needs_recovery(&now)), (false, false), "{still_mounted}");
            let _ = Command::new("debugfs").args(["-w", "-R", "rm new"]).arg(&device.spec.path).output();
        }
        // Somebody has it.
        let mut other = None;
        let (same, _) = forced(&device, false, || other = device.claim().ok());
        assert!(other.is_some() && same, "written to");
        drop(other);
        // Somebody had it.
        let (same, _) = forced(&device, false, || {
            let checked = Command::new("e2fsck").args(["-fy"]).arg(&device.spec.path).output().expect("e2fsck");
            assert!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
        });
        assert!(same, "written to");
    }

    #[test]
    fn a_mount_that_fails_leaves_alone_what_is_somebody_elses() {
        if !geteuid().is_root() || !extant_testkit::mount::loop_mounts_work() {
            eprintln!("skipped: needs loop devices");
            return;
        }
        let device = Loop::new();
        // Nobody was there: as if there had been no mount.
        let (e, same, now) = failed(&device, || {});
        assert_eq!((e.status, e.message.as_str(), same, needs_recovery(&now)), (MOUNT, "refused", false, false));
        // Somebody has it.
        let mut other = None;
        let (e, same, _) = failed(&device, || other = device.claim().ok());
        assert!(other.is_some() && same, "written to: {}", e.message);
        assert!(e.message.contains("in use") && e.message.contains("nothing more is written"), "{}", e.message);
        assert_eq!(e.status, MOUNT);
        drop(other);
        // Somebody had it, and has changed it.
        let (e, same, _) = failed(&device, || {
            let other = device.claim().expect("claimed");
            let mut sb = super_block(&*other).expect("read");
            sb[120..126].copy_from_slice(b"theirs");
            other.write_at(SUPERBLOCK_OFFSET, &[&sb], BioFlags::FUA).expect("written");
        });
        assert!(same, "written to: {}", e.message);
        assert!(e.message.contains("changed") && e.message.contains("nothing more is written"), "{}", e.message);
    }
}
