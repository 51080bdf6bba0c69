//! `extant unmount`: unmounts, and waits for the server's end.
//!
//! See [`crate::status`] for how it learns of it.
//!
//! # Locking
//! None.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_block::device::is_locked;
use extant_fuse::{Errno, FuseError};

use crate::args::{UnmountArgs, UnmountHelper};
use crate::failure::{Failure, MOUNT, Result, SYSTEM, warn};
use crate::image::ImageSpec;
use crate::mount_table::{self, Mount};
use crate::status::{Ended, Watch};
use crate::text;

/// How long a busy mount is tried again.
const BUSY_PATIENCE_NS: u64 = 1_000_000_000;

pub fn run(args: &UnmountArgs) -> Result<()> {
    let name = shown(&args.dir);
    let Some(mount) = mount_table::find(&args.dir)? else {
        return Err(Failure::new(MOUNT, format!("{name}: not mounted")));
    };
    if !mount.is_extant() {
        return Err(Failure::new(
            MOUNT,
            format!("{name}: mounted, but not by extant (type {})", text::shown(mount.fs_type.as_bytes())),
        ));
    }
    // Before: afterwards the server may be done with it.
    let watch = Watch::open(&mount.device, mount.user_id.unwrap_or(0));
    take_down(&mount, args.lazy).map_err(|e| Failure::new(MOUNT, explain(&mount, &e)))?;
    if args.lazy {
        return Ok(());
    }
    // One of several places where it is seen (a bind mount): its server goes on.
    let elsewhere = mount_table::read()?.into_iter().find(|other| other.device == mount.device);
    if let Some(other) = elsewhere {
        if args.verbose {
            println!("{} is still mounted on {}", shown(&mount.source), shown(&other.dir));
        }
        return Ok(());
    }
    wait(&mount, watch)?;
    if args.verbose {
        println!("{} unmounted from {}", shown(&mount.source), shown(&mount.dir));
    }
    Ok(())
}

/// As umount(8) calls its helpers.
pub fn run_helper(args: UnmountHelper) -> Result<()> {
    if args.fake {
        return Ok(());
    }
    run(&UnmountArgs { dir: args.dir, lazy: args.lazy, verbose: args.verbose })
}

/// Paths and texts are other people's: fit for a terminal.
fn shown(path: &Path) -> String {
    text::shown(path.as_os_str().as_bytes())
}

/// Unmounts. What is busy only in passing is given a moment: a program that has been started and not run yet still has
/// the files of the one that starts it.
fn take_down(mount: &Mount, lazy: bool) -> std::result::Result<(), FuseError> {
    let clock = Clock::real();
    loop {
        match extant_fuse::unmount(&mount.dir, lazy) {
            Err(e) if is_busy(&e) && clock.now_ns() < BUSY_PATIENCE_NS => clock.sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

fn is_busy(e: &FuseError) -> bool {
    match e {
        FuseError::Unmount { errno, .. } => *errno == Errno::BUSY,
        FuseError::Fusermount { what, .. } => what.contains("busy"),
        _ => false,
    }
}

fn explain(mount: &Mount, e: &FuseError) -> String {
    let dir = shown(&mount.dir);
    if is_busy(e) {
        format!("{dir}: busy: a file in it is open, or somebody's directory (lsof {dir})")
    } else {
        text::shown(e.to_string().as_bytes())
    }
}

/// Waits until the server is done, saying so when it takes long.
fn wait(mount: &Mount, mut watch: Option<Watch>) -> Result<()> {
    let image = shown(&mount.source);
    let clock = Clock::real();
    let mut pause = Duration::from_millis(1);
    let mut next_word_ns = 1_000_000_000;
    let ended = loop {
        let ended = match &mut watch {
            Some(watch) => watch.poll(),
            None => is_free(&mount.source).then_some(Ended::Unknown),
        };
        if let Some(ended) = ended {
            break ended;
        }
        if clock.now_ns() > next_word_ns {
            warn(&format!("{image}: still being written ({} s)", clock.now_ns() / 1_000_000_000));
            next_word_ns = clock.now_ns().saturating_mul(2);
        }
        clock.sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    let failed = |message: String| Err(Failure::new(SYSTEM, message));
    match ended {
        Ended::Unmounted => Ok(()),
        Ended::Failed(why) => {
            if let Some(watch) = watch {
                watch.clear();
            }
            failed(why.lines().map(|line| text::shown(line.as_bytes())).collect::<Vec<_>>().join("\n"))
        }
        Ended::Unknown => failed(format!(
            "{image}: unmounted, but the server has left no word of how it ended: look at it with 'extant info' or e2fsck -fn"
        )),
        Ended::Died => {
            if let Some(watch) = watch {
                watch.clear();
            }
            failed(format!("{image}: the server had died; the next mount recovers what it had committed"))
        }
    }
}

/// Whether no server has the image: it would have locked it. One that we may not look at counts as free.
fn is_free(source: &Path) -> bool {
    let image = ImageSpec::parse(source.as_os_str(), None).path;
    !is_locked(&image).unwrap_or(false)
}
