//! `extant mount`: mounts, and leaves a server in the background.
//!
//! The background server is this binary again, started before anything is opened: threads and rings do not survive a
//! fork. It reports "mounted" through its standard output, which is a pipe. It inherits this process's standard error,
//! and this process exits with its exit status.
//!
//! # Locking
//! None.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use extant_block::device::NbdAddress;
use extant_fuse::{Control, Errno, FuseError, MountPoint, kernel_uid};
use extant_lab::measure::Recorded;
use rustix::fs::Mode;

use crate::args::{MountArgs, MountHelper, UnmountArgs};
use crate::commands::freeze::NOT_PRIVILEGED;
use crate::commands::unmount;
use crate::failure::{Failure, MOUNT, Result, SYSTEM, USAGE, mention, plain, plain_text, warn};
use crate::image::{ImageSpec, Part};
use crate::mount_options::MountConfig;
use crate::mount_table::{self, FoundMount};
use crate::namespace;
use crate::program;
use crate::server::log;
use crate::server::serve::{self, Job, MOUNTED};
use crate::server::status::Watch;
use crate::text::shown;

pub fn run(mut args: MountArgs) -> Result<()> {
    // The switches stand for words of -o, and as with mount(8) they come last.
    for (said, word) in [(args.read_only, "ro"), (args.read_write, "rw")] {
        if said {
            args.options.push(word.to_owned());
        }
    }
    let mut config = MountConfig::parse(&args.options, args.sloppy).map_err(Failure::usage)?;
    if args.foreground || args.background_server {
        // Before the descriptors that the caller has passed on are closed.
        config.read_keys().map_err(|e| Failure::new(MOUNT, e))?;
    }
    if config.remount {
        // The image may have been renamed or removed.
        let dir = args.dir.as_deref().unwrap_or(Path::new(&args.image));
        return remount(MountPoint::open(dir).map_err(unusable)?, &args.options);
    }
    let Some(dir) = &args.dir else {
        return Err(Failure::usage(format!("where? `extant mount {} DIRECTORY`", shown(args.image.as_bytes()))));
    };
    let point = resolve(dir, &config, args.background_server)?;
    mount_on(args, config, point)
}

/// Resolves the mount point once, before opening the image, which may take long.
fn resolve(dir: &Path, config: &MountConfig, background_server: bool) -> Result<MountPoint> {
    let point = if background_server {
        // This process has not opened any files yet.
        serve::let_go_of_files();
        let parent = std::io::stdin().as_fd().try_clone_to_owned();
        MountPoint::handed_over(parent.map_err(|e| Failure::new(SYSTEM, plain(&e)))?, dir)
    } else if let Some(mode) = config.mkdir {
        // As mount(8) does for `X-mount.mkdir`, which mount(8) does not pass on.
        MountPoint::create(dir, Mode::from_raw_mode(mode))
    } else {
        MountPoint::open(dir)
    };
    point.map_err(unusable)
}

fn unusable(e: FuseError) -> Failure {
    Failure::new(MOUNT, plain_text(&e.to_string()))
}

fn mount_on(args: MountArgs, mut config: MountConfig, point: MountPoint) -> Result<()> {
    let part = Part::from_options(config.partition, config.offset);
    let mut spec = ImageSpec::parse(&args.image).or(part);
    if part != Part::Any && part != spec.part {
        return Err(Failure::usage(format!("{}: the name and an option ({part}) exclude each other", spec.shown())));
    }
    // The server changes its working directory, and unmounting needs the image's absolute path.
    if !NbdAddress::is_one(spec.path.as_os_str().as_bytes()) {
        spec.path = spec.path.canonicalize().map_err(|e| {
            let denied = e.kind() == std::io::ErrorKind::PermissionDenied;
            Failure::io(&spec.path, e).with_status(if denied { USAGE } else { MOUNT })
        })?;
    }
    let spec = spec.resolved();
    let mut options = args.options.join(",");
    if !config.fs.read_only && spec.is_read_only_device() {
        // As mount(8) does.
        if args.background_server || args.foreground {
            warn(&format!("{}: write-protected, mounted read-only", spec.shown()));
        }
        (config.fs.read_only, config.fuse.read_only) = (true, true);
        options.push_str(",ro");
    }
    let job = Job {
        spec,
        dir: point.path().to_owned(),
        config,
        options,
        verbose: args.verbose,
        background: args.background_server,
        stats: args.stats.clone().map(|file| (file, args.stats_of)),
    };
    if args.foreground || args.background_server {
        return serve::serve(job, point);
    }
    start_server(&args, &job, &point)
}

/// As a helper of mount(8).
pub fn run_helper(args: MountHelper) -> Result<()> {
    namespace::enter(args.namespace.as_deref())?;
    if args.fake {
        MountConfig::parse(&args.options, args.sloppy).map_err(Failure::usage)?;
        return Ok(());
    }
    let MountHelper { source, target, mut options, sloppy, verbose, .. } = args;
    if options.iter().any(|o| o.split(',').any(|o| o == "remount")) {
        return run(MountArgs { verbose, sloppy, ..mount_args(source, target, options) });
    }
    let parse = |options: &[String]| MountConfig::parse(options, sloppy).map_err(Failure::usage);
    let point = resolve(&target, &parse(&options)?, false)?;
    // fstab is searched for the names of the mount, because a link could lead elsewhere later.
    let source = extant_image::absolute(Path::new(&source));
    options.insert(0, from_fstab(&source, point.path()));
    let config = parse(&options)?;
    mount_on(MountArgs { verbose, sloppy, ..mount_args(source.into(), target, options) }, config, point)
}

fn mount_args(image: OsString, dir: PathBuf, options: Vec<String>) -> MountArgs {
    MountArgs {
        image,
        dir: Some(dir),
        options,
        read_only: false,
        read_write: false,
        foreground: false,
        verbose: false,
        sloppy: false,
        kind: None,
        stats: None,
        stats_of: Recorded::NONE,
        background_server: false,
    }
}

/// The options in fstab that mount(8) has not passed on. They are options that are its defaults but not Extant's, which
/// only root's mounts get, and the part of the image to mount.
fn from_fstab(source: &Path, target: &Path) -> String {
    let root = kernel_uid().is_root();
    let listed = extant_image::fstab_options(source, target);
    let listed = listed.unwrap_or_default();
    let allowed: Vec<&str> = listed
        .split(',')
        .filter(|o| root && matches!(*o, "suid" | "dev") || o.starts_with("X-mount.subdir="))
        .collect();
    allowed.join(",")
}

/// Makes a mount read-only, or writable again: the kernel's view of it, for root, and the server's. FUSE does not
/// report a remount to the server, so this sends an ioctl. No other options can change. Options that the server would
/// have to apply are refused, unless the mount already has them. (mount(8) passes on those in fstab.)
fn remount(point: MountPoint, options: &[String]) -> Result<()> {
    let name = shown(point.path().as_os_str().as_bytes());
    let failed = |what: &str| Failure::new(MOUNT, format!("{name}: {what}"));
    let found = match mount_table::find_at(point)? {
        Ok(found) if found.mount.is_extant() => found,
        _ => return Err(failed("not a mount of Extant")),
    };
    let mount = &found.mount;
    let root = kernel_uid().is_root();
    let recorded = Watch::open(&mount.device, mount.user_id.unwrap_or(0)).and_then(|mut watch| watch.options());
    let known = recorded.clone().or_else(|| extant_image::fstab_options(&mount.source, &mount.dir)).unwrap_or_default();
    // An option that is not given keeps its value.
    let mut now = vec![known, "suid,dev".to_owned(), mount.super_options.clone(), mount.options.clone()];
    let read = |options: &[String]| MountConfig::parse(options, true).map_err(Failure::usage);
    let fixed = read(&now)?.fixed(root);
    for option in options.iter().flat_map(|list| list.split(',')) {
        now.push(option.to_owned());
        if read(&now)?.fixed(root) != fixed {
            let option = shown(option.as_bytes());
            return Err(failed(&format!("a remount cannot change '{option}': unmount it, and mount it again")));
        }
    }
    let config = read(&now)?;
    let read_only = config.fs.read_only;
    let said = options.iter().flat_map(|list| list.split(',')).rfind(|option| matches!(*option, "ro" | "rw"));
    let began = read(&[recorded.clone().unwrap_or_default()])?.fs;
    if began.read_only && began.no_recovery && said == Some("rw") {
        return Err(failed("it was mounted read-only with norecovery: unmount it, and mount it again"));
    }
    let spec = ImageSpec::parse(mount.source.as_os_str()).or(Part::from_options(config.partition, config.offset));
    if !read_only && spec.is_read_only_device() {
        return Err(failed("cannot remount read-write: the device is write-protected"));
    }
    if said == Some("rw") {
        // A loop device may have been attached while the mount was read-only.
        extant_image::refuse_loop_device(&spec).map_err(|e| Failure::from(e).with_status(MOUNT))?;
    }
    let kernel = || match root.then(|| found.point.remount(found.top, &config.fuse)) {
        Some(Err(FuseError::Mount { errno: Errno::BUSY, .. })) => Err(failed("busy: a file in it is open for writing")),
        Some(Err(e)) => Err(failed(&plain_text(&e.to_string()))),
        Some(Ok(())) | None => Ok(()),
    };
    let refused = |e| match e {
        Errno::ROFS => failed("it was mounted read-only: unmount it, and mount it again"),
        Errno::BUSY => failed("busy: it is frozen; thaw it first"),
        Errno::PERM => failed(NOT_PRIVILEGED),
        e => failed(&plain(&e.into())),
    };
    // The kernel becomes read-only first and writable last, so the server never refuses a write that the kernel allows.
    if read_only {
        kernel()?;
        return tell_server(&found, true)?.map_err(refused);
    }
    let mut options = options.to_vec();
    options.insert(0, recorded.unwrap_or_default());
    match tell_server(&found, false)? {
        Ok(()) => kernel(),
        Err(Errno::ROFS) if began.read_only => mount_for_writing(&found, &options),
        Err(e) => Err(refused(e)),
    }
}

/// Sends a remount to the mount's server, and returns the server's answer.
fn tell_server(found: &FoundMount, read_only: bool) -> Result<std::result::Result<(), Errno>> {
    let root = found.point.open_root(found.top);
    let root = root.map_err(|e| Failure::io(found.point.path(), std::io::Error::from(e)).with_status(MOUNT))?;
    if read_only {
        // Writes the kernel's dirty pages; the server itself reports an error.
        let _ = rustix::fs::syncfs(&root);
    }
    Ok(extant_fuse::control(&root, if read_only { Control::ReadOnly } else { Control::ReadWrite }))
}

/// Replaces a mount whose server was mounted read-only: it cannot write the image, and has replayed the log only in
/// memory. The old mount must not be in use, and must belong to the caller, because any user can give a mount any
/// source. The first of `options` are the old mount's.
fn mount_for_writing(found: &FoundMount, options: &[String]) -> Result<()> {
    let old = &found.mount;
    let name = shown(old.dir.as_os_str().as_bytes());
    let failed = |what: &str| Failure::new(MOUNT, format!("{name}: it was mounted read-only{what}"));
    if old.user_id != Some(kernel_uid().as_raw()) {
        return Err(failed(" by another user; only that user may do this"));
    }
    if extant_image::mounts()?.iter().any(|other| other.id != old.id && other.is_same(old)) {
        return Err(failed(", and elsewhere, too: unmount it there, or here, and mount it again"));
    }
    let again = |options: &[String]| {
        let options = options.iter().map(|list| without_remount(list)).collect::<Vec<_>>();
        let config = MountConfig::parse(&options, false).map_err(Failure::usage)?;
        let point = found.point.try_clone().map_err(|e| Failure::new(SYSTEM, plain(&e)))?;
        mount_on(mount_args(old.source.clone().into_os_string(), old.dir.clone(), options), config, point)
    };
    let how = UnmountArgs { dirs: Vec::new(), lazy: false, force: false, verbose: false };
    unmount::down(found, &how)?;
    again(options).inspect_err(|_| {
        // Restores the old mount; the caller gets the error of the new mount.
        let _ = again(&options[..1]);
    })
}

fn without_remount(list: &str) -> String {
    without(list, |word| word == "remount")
}

/// The words of `-o` except those that name a part of the image. That part is in the [`ImageSpec`]: if the kernel has a
/// device for the partition, the server opens that device as a whole.
fn without_part(list: &str) -> String {
    without(list, |word| word.starts_with("partition=") || word.starts_with("offset="))
}

fn without(list: &str, leave_out: impl Fn(&str) -> bool) -> String {
    list.split(',').filter(|word| !leave_out(word)).collect::<Vec<_>>().join(",")
}

/// Starts the server. It gets the mount point's parent directory as its standard input: a path would be resolved again.
fn start_server(args: &MountArgs, job: &Job, point: &MountPoint) -> Result<()> {
    let system = |what: &str, e: std::io::Error| Failure::new(SYSTEM, format!("{what}: {}", plain(&e)));
    let mut command = Command::new(program::itself());
    command.arg0("extant").args(["mount", "--background-server"]);
    for options in args.options.iter().map(|options| without_part(options)).filter(|options| !options.is_empty()) {
        command.arg("-o").arg(options);
    }
    if job.spec.part != Part::Any {
        command.arg("-o").arg(job.spec.part.to_string());
    }
    if args.sloppy {
        command.arg("-s");
    }
    command.arg("--").arg(&job.spec.path).arg(&job.dir);
    let parent = point.parent().try_clone_to_owned().map_err(|e| system("cannot start the server", e))?;
    let mut child =
        command.stdin(parent).stdout(Stdio::piped()).spawn().map_err(|e| system("cannot start the server", e))?;
    let mut said = Vec::new();
    if let Some(mut pipe) = child.stdout.take() {
        pipe.read_to_end(&mut said).map_err(|e| system("cannot read from the server", e))?;
    }
    if said == MOUNTED {
        if args.verbose {
            let dir = shown(job.dir.as_os_str().as_bytes());
            mention(&format!("{} mounted on {dir}, served by process {}", job.spec.shown(), child.id()));
            let device = mount_table::find(&job.dir).ok().flatten().map(|found| found.mount.device);
            mention(&format!("its messages go {}", log::where_messages_go(device.as_deref())));
        }
        return Ok(());
    }
    let status = child.wait().map_err(|e| system("cannot wait for the server", e))?;
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        // The server has printed the reason.
        Some(code) if code != 0 => Err(Failure::silent(code)),
        _ => Err(Failure::new(SYSTEM, format!("the server ended before it had mounted: {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_gets_the_part_once() {
        assert_eq!(without_part("ro,partition=2,noatime"), "ro,noatime");
        assert_eq!(without_part("offset=1M"), "");
        assert_eq!(without_part("ro,io=direct"), "ro,io=direct");
    }
}
