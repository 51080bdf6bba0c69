//! `extant unmount`: unmounts, and waits for the server to finish.
//!
//! [`crate::server::status`] describes how it learns that. If the server cannot report it, the image itself serves as
//! evidence. Its superblock marks it as mounted, and that mark is removed last, after all other writes. The server ends
//! when the last mount namespace has released the mount. If another namespace keeps it, there is nothing to wait for.
//! With `--force`, a server has limited time to answer.
//!
//! The mount point is resolved once: a busy mount is retried, and by then a link may have replaced a directory above it
//! ([`MountPoint`](extant_fuse::MountPoint)).
//!
//! # Locking
//! None.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::task;
use extant_block::device::{has_writer, is_locked};
use extant_fuse::{Errno, FuseError, Unmounting, kernel_uid};
use extant_image::Mount;
use extant_ondisk::superblock::FsState;

use crate::args::{UnmountArgs, UnmountHelper};
use crate::failure::{Failure, MOUNT, Result, SYSTEM, mention, plain_text, warn};
use crate::image::{Access, Claim, ImageSpec};
use crate::mount_table::{self, FoundMount};
use crate::namespace;
use crate::server::status::{ServerExit, Watch};
use crate::text;

/// How long to retry a busy mount.
const BUSY_PATIENCE_NS: u64 = 1_000_000_000;
/// How long to wait before printing a message to the user.
const WORD_NS: u64 = 1_000_000_000;
/// How long to wait for a copy of the mount in another mount namespace. Most copies belong to a process that has just
/// started, and that will unmount the mounts that it does not need.
const NAMESPACE_PATIENCE_NS: u64 = 4_000_000_000;
/// With `--force`, how long a server may take to answer a request.
const ANSWER_PATIENCE_NS: u64 = 3_000_000_000;
/// With `--force`, how long a server that has answered may take to write everything.
const FORCED_PATIENCE_NS: u64 = 60_000_000_000;
/// How long to wait for a server that does not report its end, or whose status file another user writes. By then
/// another process may have locked the image or the file.
const WORDLESS_PATIENCE_NS: u64 = 120_000_000_000;

/// Unmounts each mount, and prints the errors of all. The exit status is the highest of them.
pub fn run(args: &UnmountArgs) -> Result<()> {
    let mut worst = Ok(());
    for dir in &args.dirs {
        let Err(e) = one(dir, args) else { continue };
        if args.dirs.len() == 1 {
            return Err(e);
        }
        e.print();
        let before = worst.as_ref().map_or_else(|e: &Failure| e.status, |()| 0);
        worst = Err(Failure::silent(e.status.max(before)));
    }
    worst
}

fn one(dir: &Path, args: &UnmountArgs) -> Result<()> {
    let name = shown(dir);
    let Some(found) = mount_table::find(dir)? else {
        let missing = dir.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let what = if missing { "no such file or directory, and not mounted" } else { "not mounted" };
        return Err(Failure::new(MOUNT, format!("{name}: {what}")));
    };
    if !found.mount.is_extant() {
        return Err(Failure::new(
            MOUNT,
            format!("{name}: mounted, but not by extant (type {})", text::shown(found.mount.fs_type.as_bytes())),
        ));
    }
    down(&found, args)
}

/// Unmounts a mount of Extant.
pub fn down(found: &FoundMount, args: &UnmountArgs) -> Result<()> {
    let mount = &found.mount;
    // Opened before the unmount: afterwards the server may have ended.
    let watch = Watch::open(&mount.device, mount.user_id.unwrap_or(0));
    let witness = Witness::new(mount);
    let deaf = args.force && !answers(found);
    take_down(found, args.lazy, deaf).map_err(|e| Failure::new(MOUNT, explain(mount, &e)))?;
    if args.lazy {
        return Ok(());
    }
    if deaf {
        let image = shown(&mount.source);
        return Err(Failure::new(
            SYSTEM,
            format!("{image}: unmounted, but the server does not answer: what it has not written may be lost"),
        ));
    }
    // One of several mounts of the file system (a bind mount): its server continues.
    let elsewhere = extant_image::mounts().unwrap_or_default().into_iter().find(|other| other.is_same(mount));
    if let Some(other) = elsewhere {
        if args.verbose {
            mention(&format!("{} is still mounted on {}", shown(&mount.source), shown(&other.dir)));
        }
        return Ok(());
    }
    wait(mount, watch, &witness, args.force)?;
    if args.verbose {
        mention(&format!("{} unmounted from {}", shown(&mount.source), shown(&mount.dir)));
    }
    Ok(())
}

/// As a helper of umount(8).
pub fn run_helper(args: UnmountHelper) -> Result<()> {
    namespace::enter(args.namespace.as_deref())?;
    if args.fake {
        return Ok(());
    }
    run(&UnmountArgs { dirs: vec![args.dir], lazy: args.lazy, force: args.force, verbose: args.verbose })
}

/// Paths and texts may come from other users: make them safe for a terminal.
fn shown(path: &Path) -> String {
    text::shown(path.as_os_str().as_bytes())
}

/// Whether the server of a mount answers within a short time. The kernel's answer for a dead server counts.
fn answers(found: &FoundMount) -> bool {
    let Ok(root) = found.point.open_directory() else { return true };
    let answered = Arc::new(AtomicBool::new(false));
    let heard = answered.clone();
    // Runs on a thread that may be left behind.
    let asked = task::spawn("extant-ask", move || {
        let _ = rustix::fs::fstatfs(&root);
        // Closed before the report: an open descriptor keeps a mount busy.
        drop(root);
        heard.store(true, Ordering::Release);
    });
    let clock = Clock::real();
    while asked.is_ok() && !answered.load(Ordering::Acquire) && clock.now_ns() < ANSWER_PATIENCE_NS {
        clock.sleep(Duration::from_millis(10));
    }
    answered.load(Ordering::Acquire)
}

/// Unmounts. Retries a mount that is busy for a short time: a program that is just starting still has the files of its
/// parent. `deaf`: the server does not answer the kernel's requests during the unmount.
fn take_down(found: &FoundMount, lazy: bool, deaf: bool) -> std::result::Result<(), FuseError> {
    let how = Unmounting { lazy, force: deaf && kernel_uid().is_root() };
    let clock = Clock::real();
    loop {
        match found.point.unmount(found.top, how) {
            Err(e) if is_busy(&e) && clock.now_ns() < BUSY_PATIENCE_NS => clock.sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

fn is_busy(e: &FuseError) -> bool {
    matches!(e, FuseError::Unmount { errno: Errno::BUSY, .. })
}

fn explain(mount: &Mount, e: &FuseError) -> String {
    let dir = shown(&mount.dir);
    if is_busy(e) {
        format!("{dir}: busy: a process has a file open in it, or its working directory (lsof {dir})")
    } else if matches!(e, FuseError::Unmount { errno: Errno::INVAL, .. }) {
        format!("{dir}: not unmounted: another mount has taken its place, or none")
    } else {
        text::shown(plain_text(&e.to_string()).as_bytes())
    }
}

/// Waits until the server has finished, and prints a message if that takes long.
fn wait(mount: &Mount, mut watch: Option<Watch>, witness: &Witness, force: bool) -> Result<()> {
    let image = shown(&mount.source);
    let failed = |message: String| Err(Failure::new(SYSTEM, message));
    let patience_ns = match &watch {
        _ if force => FORCED_PATIENCE_NS,
        Some(_) if mount.user_id.is_none_or(|uid| uid == kernel_uid().as_raw()) => u64::MAX,
        _ => WORDLESS_PATIENCE_NS,
    };
    let clock = Clock::real();
    let mut pause = Duration::from_millis(1);
    let mut next_word_ns = WORD_NS;
    let ended = loop {
        let ended = match &mut watch {
            Some(watch) => watch.poll(),
            None => witness.ended(),
        };
        if let Some(ended) = ended {
            break ended;
        }
        let seconds = clock.now_ns() / 1_000_000_000;
        if clock.now_ns() > patience_ns {
            return failed(format!("{image}: unmounted, but after {seconds} s another process still writes it"));
        }
        if clock.now_ns() > next_word_ns {
            if clock.now_ns() > NAMESPACE_PATIENCE_NS
                && let Some(pid) = extant_image::seen_by(mount)
            {
                return failed(format!(
                    "{image}: unmounted here, but still mounted in another mount namespace, that of process {pid}: \
                     it is complete when it is unmounted there, too"
                ));
            }
            warn(&format!("{image}: still being written ({seconds} s)"));
            next_word_ns = clock.now_ns().saturating_mul(2);
        }
        clock.sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    match ended {
        ServerExit::Unmounted => Ok(()),
        ServerExit::Failed(why) => {
            if let Some(watch) = watch {
                watch.clear();
            }
            failed(why.lines().map(|line| text::shown(line.as_bytes())).collect::<Vec<_>>().join("\n"))
        }
        ServerExit::Unknown => failed(format!(
            "{image}: unmounted, but the server has not reported its end: check the image with 'extant info' or e2fsck -fn"
        )),
        ServerExit::Died => {
            if let Some(watch) = watch {
                watch.clear();
            }
            failed(format!("{image}: the server had died; the next mount recovers what it had committed"))
        }
    }
}

/// The image of a mount, as evidence for the end of a server that does not report it.
struct Witness {
    spec: ImageSpec,
    place: (u64, Option<u64>),
    /// Whether the mount is read-only.
    read_only: bool,
    /// The state of its superblock before the unmount.
    before: Option<InUseMarks>,
}

impl Witness {
    /// Must be called before the unmount.
    fn new(mount: &Mount) -> Witness {
        let spec = ImageSpec::parse(mount.source.as_os_str());
        let place = extant_image::place(&spec).unwrap_or((0, None));
        let read_only = mount.super_options.split(',').any(|option| option == "ro");
        let before = InUseMarks::of(&spec);
        Witness { spec, place, read_only, before }
    }

    /// How the server has ended. `None` while the lock on the image shows that it is running.
    fn ended(&self) -> Option<ServerExit> {
        let locked = has_writer(&self.spec.path, self.place.0, self.place.1);
        if matches!(locked, Ok(true)) {
            return None;
        }
        let complete = || Some(self.before?.is_over(InUseMarks::of(&self.spec)?));
        // While other programs hold read locks, a server holds no lock of its own.
        let beside_readers = || is_locked(&self.spec.path, self.place.0, self.place.1).unwrap_or(false);
        if !self.read_only && locked.is_ok() && complete() == Some(false) && beside_readers() {
            return None;
        }
        match locked {
            _ if self.read_only || complete() == Some(true) => Some(ServerExit::Unmounted),
            // Then only the superblock shows it, if it can be read.
            Err(e) if e.kind() == ErrorKind::Unsupported => (complete().is_none()).then_some(ServerExit::Unknown),
            _ => Some(ServerExit::Unknown),
        }
    }
}

/// The marks of a mounted image in its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct InUseMarks {
    needs_recovery: bool,
    not_valid: bool,
}

impl InUseMarks {
    /// Reads the marks, even if the image is in use.
    fn of(spec: &ImageSpec) -> Option<InUseMarks> {
        // This open takes no lock, and ignores existing locks.
        let access = Access { claim: Claim::None, ..Access::tool(true) };
        let opened = extant_image::open(spec, &access).ok()?;
        let (sb, _) = extant_image::probe(&*opened.device).ok()?;
        Some(InUseMarks { needs_recovery: sb.needs_recovery(), not_valid: !sb.state().contains(FsState::VALID) })
    }

    /// Whether the mark has been removed `now`: "needs recovery" for an image with a log, otherwise "not valid".
    fn is_over(self, now: InUseMarks) -> bool {
        match self {
            InUseMarks { needs_recovery: true, .. } => !now.needs_recovery,
            InUseMarks { not_valid, .. } => not_valid && now == InUseMarks { needs_recovery: false, not_valid: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_shows_a_clean_end_only_if_it_showed_its_use() {
        let says = |needs_recovery, not_valid| InUseMarks { needs_recovery, not_valid };
        assert!(says(true, false).is_over(says(false, false)));
        // The superblock was not valid before the mount.
        assert!(says(true, true).is_over(says(false, true)));
        assert!(says(false, true).is_over(says(false, false)));
        for (before, now) in [
            (says(true, false), says(true, false)),
            (says(false, true), says(false, true)),
            (says(false, true), says(true, false)),
            (says(false, false), says(false, false)),
        ] {
            assert!(!before.is_over(now), "{before:?} {now:?}");
        }
    }
}
