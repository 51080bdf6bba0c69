//! The process behind a mount.
//!
//! Order: resolve the mount point, once → open the image (exclusively) → mount the file system (including replay) →
//! mount on the directory → report it → drop privileges ([`crate::server::sandbox`]) → serve → unmount the file system
//! (in the server's `destroy`) → close the image → report the result ([`crate::server::status`]).
//!
//! Root mounts a block device as `fuseblk`, so that umount(2) waits for the server and syncfs(2) works. The kernel
//! opens the device exclusively for such a mount, so the server closes its own exclusive open right before it
//! ([`DeviceClaim`]).
//!
//! SIGTERM, SIGINT and, except under nohup(1), SIGHUP unmount. A busy mount is detached instead, and served until its
//! last user has finished. On another signal, the server makes everything durable that it has received, and exits at
//! once, leaving an image that needs recovery. (This loses pages that are still in the kernel's cache, written through
//! a mapping or with `-o writeback_cache`.)
//!
//! # Locking
//! None.

use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use extant_block::device::IoMode;
use extant_fs::{Filesystem, Mounted};
use extant_fuse::{
    Errno, FsServer, FuseError, MountKind, MountPoint, ServerOptions, Session, Unmounter, kernel_gid, kernel_uid,
};
use extant_image::{DeviceClaim, probe};
use extant_lab::measure::Recorded;
use extant_lab::measure::engine::Probe;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use signal_hook::iterator::Signals;

use crate::claim;
use crate::failure::{Failure, MOUNT, Result, SYSTEM, USAGE, plain, plain_text, warn};
use crate::image::{self, Access, ImageSpec, Part, WRITE_THROUGH_BYTES, open_device};
use crate::mount_options::{self, MountConfig};
use crate::mount_table;
use crate::server::cgroup::{self, Group};
use crate::server::headroom::Watch;
use crate::server::log;
use crate::server::sandbox;
use crate::server::signals;
use crate::server::status::ServerStatus;
use crate::text::shown;

/// A background server reports with this line that the mount exists.
pub const MOUNTED: &[u8] = b"mounted\n";

/// An image, its mount point and its options.
#[derive(Debug)]
pub struct Job {
    /// The image, with an absolute path.
    pub spec: ImageSpec,
    /// The mount point's path, for messages.
    pub dir: PathBuf,
    pub config: MountConfig,
    /// The text of the options in `config`, for a later remount to compare with.
    pub options: String,
    pub verbose: bool,
    /// Whether another process reads this process's standard output, waiting for [`MOUNTED`].
    pub background: bool,
    /// The file for statistics of the mount (`extant lab`).
    pub stats: Option<(PathBuf, Recorded)>,
}

/// Mounts at `point`, and serves until the mount is gone.
pub fn serve(job: Job, point: MountPoint) -> Result<()> {
    enough_files()?;
    // The process was started as /proc/self/exe, and would appear as "exe" in process lists.
    let _ = std::fs::write("/proc/self/comm", "extant");
    let root = kernel_uid().is_root();
    if !job.config.no_sandbox {
        sandbox::prepare((root && job.spec.is_block_device()).then_some(&*job.spec.path));
    }
    let (fs, claim) = open(&job, root)?;
    // Created now, because the sandbox forbids opening it later.
    let stats = job.stats.as_ref().and_then(|(file, _)| create_stats(file));
    let probe = job.stats.as_ref().map(|(_, recorded)| Probe::start(&fs, *recorded));
    let shared = Arc::clone(&fs);
    let removes = job.config.no_sandbox;
    let result = run(&job, point, root, fs, claim);
    if let (Some(probe), Some(file), Some((path, _))) = (probe, stats, &job.stats) {
        write_stats(probe, &shared, file, path);
    }
    drop(shared);
    // The lock on the image ends when the device is closed, which the file system owns.
    match result {
        Ok((status, result)) => {
            if let Some(status) = status {
                status.finish(result.clone(), removes);
            }
            result.map_err(|e| Failure::new(SYSTEM, e))
        }
        Err(e) => Err(e),
    }
}

/// Closes descriptors that the caller passed on by accident: they would stay open as long as the mount.
pub fn let_go_of_files() {
    let open: Vec<i32> = match std::fs::read_dir("/proc/self/fd") {
        Ok(entries) => entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect(),
        // Without /proc, all numbers up to the limit.
        Err(_) => {
            let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((FILES_TRIED, 0));
            (0..limit.min(FILES_TRIED) as i32).collect()
        }
    };
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The descriptor of the listing itself is already closed.
        let _ = nix::unistd::close(fd);
    }
}

/// The highest descriptor to close if there is no list of open ones.
const FILES_TRIED: u64 = 1 << 16;

/// For the device, its flush, a ring, and a descriptor of /dev/fuse per worker.
const FILES_LEAST: u64 = 64;

/// Fails early if too few descriptors are allowed, instead of halfway through the mount.
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

/// Creates the file for statistics. An error does not fail the mount; only the statistics will be missing.
fn create_stats(path: &Path) -> Option<File> {
    File::create(path).inspect_err(|e| warn(&format!("{}: {}", path.display(), plain(e)))).ok()
}

/// Writes the statistics. An error does not fail the mount either.
fn write_stats(probe: Probe, fs: &Filesystem, mut file: File, path: &Path) {
    let report = probe.finish(fs);
    let text = serde_json::to_vec(&report).map_err(std::io::Error::other);
    if let Err(e) = text.and_then(|text| file.write_all(&text)) {
        warn(&format!("{}: {}", path.display(), plain(&e)));
    }
}

/// Opens the image and mounts the file system in this process. The claim is for a future `fuseblk` mount.
pub(crate) fn open(job: &Job, root: bool) -> Result<(Mounted, Option<Arc<DeviceClaim>>)> {
    let as_mount = |e: Failure| if e.status == USAGE { e } else { e.with_status(MOUNT) };
    let config = &job.config;
    let block = job.spec.is_block_device();
    let io = config.io.unwrap_or(if block { IoMode::Direct } else { IoMode::Buffered });
    let access = Access {
        io,
        engine: config.engine,
        by_superblock: config.fs.superblock.is_some(),
        claim: if config.no_lock { image::Claim::IfPossible } else { image::Claim::Required },
        write_member: config.write_member,
        tell: image::tell,
        ..Access::tool(config.fs.read_only)
    };
    // The mount will be a `fuseblk` mount.
    let claim = match block && root {
        true => Some(Arc::new(DeviceClaim::open(&job.spec, &access).map_err(|e| as_mount(e.into()))?)),
        false => None,
    };
    let dev = match &claim {
        Some(claim) => claim.clone(),
        None => open_device(&job.spec, &access).map_err(as_mount)?,
    };
    let mut options = config.fs.clone();
    let image = job.spec.shown();
    if let Ok((sb, _)) = probe(&*dev) {
        // Without a replay, the journal's contents need not be preserved.
        if options.no_recovery && !options.read_only {
            if sb.needs_recovery() {
                return Err(Failure::new(
                    MOUNT,
                    format!(
                        "{image}: its journal has to be replayed before anything is written, and norecovery forbids \
                         that: mount with ro,norecovery, or without norecovery"
                    ),
                ));
            }
            options.no_recovery = false;
        }
        for note in config.notes.iter().chain(&mount_options::notes_on(&sb, options.errors.is_none())) {
            warn(&format!("{image}: {note}"));
        }
    }
    if let Some(path) = &config.journal_path {
        let read_only = options.read_only || options.no_recovery || options.rescue || dev.read_only();
        let io =
            config.io.unwrap_or(if ImageSpec::parse(path.as_os_str()).is_block_device() { IoMode::Direct } else { io });
        let access = Access { read_only, io, ..access.clone() };
        options.journal_device = Some(image::open_journal(path.as_os_str(), &job.spec, &access).map_err(as_mount)?);
    }
    if !config.cache_given {
        options.cache_bytes = cgroup::default_cache(options.cache_bytes);
    }
    options.mounted_on = Some(job.dir.to_string_lossy().into_owned());
    options.write_through_bytes = (!block && io == IoMode::Buffered).then_some(WRITE_THROUGH_BYTES);
    let fs = image::mount(dev, options).map_err(as_mount)?;
    Ok((fs, claim))
}

/// The options that are passed to the kernel.
fn kernel_options(job: &Job, root: bool, fs: &Mounted, kind: MountKind) -> extant_fuse::MountOptions {
    let config = &job.config;
    let mut fuse = config.fuse.clone();
    fuse.kind = kind;
    fuse.fsname = match kind {
        // A path that the kernel opens.
        MountKind::FuseBlk { .. } => job.spec.path.clone().into(),
        MountKind::Fuse => job.spec.source().into(),
    };
    fuse.read_only |= fs.is_read_only();
    // If permissions are not checked, every user who may access the mount may do everything.
    fuse.allow_other = config.allow_other.unwrap_or(root && config.checks_permissions());
    fuse.default_permissions = config.checks_permissions();
    fuse
}

/// Runs the mount on the directory, from beginning to end. Returns the result of unmounting the file system.
#[allow(clippy::type_complexity)]
fn run(
    job: &Job,
    point: MountPoint,
    root: bool,
    fs: Mounted,
    claim: Option<Arc<DeviceClaim>>,
) -> Result<(Option<ServerStatus>, std::result::Result<(), String>)> {
    let config = &job.config;
    let image = job.spec.shown();
    // If the server is dropped on an error path, the mount ends, and its marks are removed.
    let give_up = |message: String| Failure::new(MOUNT, message);
    // Without support of the driver, the kernel's buffers are at most a page. It needs the size for FIBMAP alone.
    let blksize = fs.block_size().min(rustix::param::page_size() as u32);
    let kind = if claim.is_some() { MountKind::FuseBlk { blksize } } else { MountKind::Fuse };
    let fuse = kernel_options(job, root, &fs, kind);
    let mut options = server_options(config, root);
    options.bmap = job.spec.part == Part::Any && matches!(kind, MountKind::FuseBlk { .. });
    let options_root = options.root.clone();
    let server = match FsServer::new(fs, options) {
        Ok(server) => Arc::new(server),
        Err(e) => {
            let at = options_root.map(|root| format!(": X-mount.subdir={}", shown(&root))).unwrap_or_default();
            return Err(give_up(format!("{image}{at}: {e}")));
        }
    };
    // From the mount on, a signal unmounts. A signal that arrives before the thread runs is queued for it.
    let signals = Signals::new(signals::ending());
    let mount = || {
        let mounted = Session::mount_at(server.clone(), &point, &fuse);
        mounted.map_err(|e| give_up(format!("{image}: {}", explain(&e))))
    };
    let session = match claim {
        Some(claim) => {
            let mut session = claim::lend(&claim, server.filesystem(), mount)?;
            let server = server.clone();
            session.when_lost(move || claim::connection_ended(&claim, server.filesystem()));
            session
        }
        None => mount()?,
    };
    server.set_notifier(session.notifier());
    server.set_hold(session.hold());
    server.set_callers(session.callers());
    let unmounter = session.unmounter();
    // An open mount point would keep its file system busy.
    drop(point);
    let device = unmounter.device().map(mount_table::number);
    let status = device.as_ref().and_then(|device| ServerStatus::create(device, &job.options));
    // None of these is possible inside the sandbox.
    let group = Group::open();
    let log = if job.background {
        leave_session();
        log::Log::find(&image, device.as_deref())
    } else {
        None
    };
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
        go_into_background(log);
    } else if job.verbose {
        let dir = shown(job.dir.as_os_str().as_bytes());
        warn(&format!("{image} mounted on {dir}; to end, unmount it or press Ctrl-C"));
    }
    let watch = watch_memory(group, server.filesystem());
    let _watch = watch.inspect_err(|e| warn(&format!("{image}: the cache keeps its size: {e}"))).ok();
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

fn watch_memory(group: Option<Group>, fs: &Arc<Filesystem>) -> std::result::Result<Watch, String> {
    let group = group.ok_or("no control group reports the free memory (memory.max, memory.limit_in_bytes)")?;
    Watch::start(group, fs).map_err(|e| format!("no thread to watch the memory of the control group: {}", plain(&e)))
}

fn server_options(config: &MountConfig, root: bool) -> ServerOptions {
    let mut options = ServerOptions::default();
    // Without privilege the caller owns everything, unless `fakeroot` requests the owners in the image.
    let mine = !root && !config.fakeroot;
    options.uid = config.uid.or(mine.then(|| kernel_uid().as_raw()));
    options.gid = config.gid.or(mine.then(|| kernel_gid().as_raw()));
    options.root = config.subdir.as_ref().map(|dir| dir.as_os_str().as_bytes().to_vec());
    options.writeback_cache = config.writeback_cache.unwrap_or(options.writeback_cache);
    options.direct_io = config.direct_io;
    // A kernel that enforces ACLs checks all permissions.
    options.posix_acl = config.checks_permissions();
    (options.sync, options.dirsync) = (config.fuse.sync, config.fuse.dirsync);
    if config.no_xattr {
        options.xattrs = false;
        options.posix_acl = false;
    }
    // To record exact access times, the kernel must send a request before it reads from its cache.
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

/// Leaves the caller's session and directory.
fn leave_session() {
    // The process is not a group leader, so this cannot fail. If it did, the only effect would be SIGHUP when the
    // terminal closes.
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir("/");
}

/// Reports that the mount exists, and closes the caller's standard streams.
fn go_into_background(log: Option<log::Log>) {
    let _ = std::io::stdout().write_all(MOUNTED);
    let _ = std::io::stdout().flush();
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        if !log.is_some_and(log::take_standard_error) {
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
            // An unmount waits for requests held back by a freeze, and waiting writers keep a mount busy.
            thaw(&server);
            // Another process has unmounted it, or is doing so; a second signal forces the end.
            if !unmounter.is_mounted() {
                detached = true;
                continue;
            }
            match unmounter.unmount(false) {
                Ok(()) => continue,
                // The agent can look where this process cannot: it has found no mount of this server.
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
    log::end();
    std::process::exit(SYSTEM.into());
}
