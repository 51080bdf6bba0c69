//! Checks every target of a run before anything is written.
//!
//! # Locking
//! None.

use std::path::Path;

use extant_block::device::same_image_in_use;
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;

use super::tools::find;
use super::{EngineOptions, ImagePlan, Kind, Rig, is_block_device};
use crate::error::{Error, Result};
use crate::measure::extents;
use crate::measure::kernel::Tracefs;
use crate::workload::Needs;

/// Space on the host beyond the bytes that a trial writes: journal, inode tables, a file system's own blocks.
const SLACK_BYTES: u64 = 256 << 20;

/// The conditions of the checks besides the targets.
pub struct Rules<'a> {
    /// How images are made.
    pub plan: &'a ImagePlan,
    /// The space that the workload needs.
    pub needs: Needs,
    /// Whether existing files may be replaced.
    pub overwrite: bool,
    /// Whether file systems on block devices may be replaced.
    pub devices: bool,
    /// Whether trace events are recorded.
    pub events: bool,
    /// Checks options of `extant mount`.
    pub mount_options: &'a dyn Fn(&str) -> std::result::Result<(), String>,
}

/// Refuses the run if a contestant cannot work.
pub fn all(rigs: &[Rig], rules: &Rules<'_>) -> Result<()> {
    for rig in rigs {
        one(rig, rules).map_err(|why| Error::Target { label: rig.contestant.label.clone(), why })?;
    }
    Ok(())
}

fn one(rig: &Rig, rules: &Rules<'_>) -> std::result::Result<(), String> {
    let target = &rig.target;
    let root = rustix::process::geteuid().is_root();
    if target.kind == Kind::Dir {
        if !target.path.is_dir() {
            return Err(format!("{}: no such directory", target.path.display()));
        }
        if rules.needs.fill > 0 {
            return Err("it fills an image, and a directory is none: take engine:, mount:, kernel: or fuse2fs:".into());
        }
        let bytes = if rules.needs.guess { 0 } else { rules.needs.bytes };
        return room(&target.path, bytes.saturating_add(1 << 20));
    }
    for tool in ["mke2fs", "e2fsck"] {
        if find(tool).is_none() {
            return Err(format!("{tool} is missing (e2fsprogs)"));
        }
    }
    match is_block_device(&target.path) {
        true => device(rig, rules)?,
        false => image(rig, rules)?,
    }
    match target.kind {
        Kind::Engine => EngineOptions::parse(&rig.all_options()).map(drop)?,
        Kind::Mount => {
            (rules.mount_options)(&rig.all_options())?;
            fuse(root)?;
        }
        Kind::Fuse2fs => {
            if find("fuse2fs").is_none() {
                return Err("fuse2fs is missing".into());
            }
            fuse(root)?;
        }
        Kind::Kernel => {
            if !root {
                return Err("mounting by the kernel needs root".into());
            }
            for tool in ["losetup", "mount", "umount"] {
                if find(tool).is_none() {
                    return Err(format!("{tool} is missing (util-linux)"));
                }
            }
            if !Path::new("/dev/loop-control").exists() {
                return Err("there are no loop devices here (/dev/loop-control)".into());
            }
            if rules.events {
                Tracefs::get().map_err(|e| e.to_string())?;
            }
        }
        Kind::Dir => {}
    }
    Ok(())
}

/// Refuses an existing image if the engine cannot run a workload with these needs on it.
pub fn engine_on(rig: &Rig, needs: Needs) -> std::result::Result<(), String> {
    let options = EngineOptions::parse(&rig.all_options())?;
    let path = &rig.target.path;
    let metadata = path.metadata().map_err(|e| format!("{}: {e}", path.display()))?;
    if !metadata.is_file() {
        return Err(format!("{} is no regular file", path.display()));
    }
    if let Some(who) = same_image_in_use(path).map_err(|e| e.to_string())? {
        return Err(format!("{} is in use: {who}", path.display()));
    }
    in_use(path)?;
    let free = extents::free_bytes(path).map_err(|e| e.to_string())?;
    if needs.fill == 0 && needs.bytes > free {
        let (there, needed) = (free >> 20, needs.bytes.div_ceil(1 << 20));
        return Err(format!("{there} MiB are free in the image, and the work takes {needed} MiB at this scale"));
    }
    memory(if options.memory { stored(needs.in_image(metadata.len()), Some(&options)) } else { 0 })
}

fn fuse(root: bool) -> std::result::Result<(), String> {
    if !Path::new("/dev/fuse").exists() {
        return Err("FUSE is missing (/dev/fuse)".into());
    }
    if !root && find("fusermount3").is_none() {
        return Err("mounting without root needs fusermount3".into());
    }
    Ok(())
}

/// Checks a block device: it must be large enough and not in use, and the user must know that its content will be lost.
fn device(rig: &Rig, rules: &Rules<'_>) -> std::result::Result<(), String> {
    let path = &rig.target.path;
    let shown = path.display();
    if rules.plan.is_copy() {
        return Err(format!("{shown} is a block device: copies (--image) are made in files"));
    }
    // An exclusive open fails while the kernel, another program or a partition's mount uses the device.
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| match e {
        Errno::BUSY => format!("{shown} is in use: mounted, or opened by another program"),
        e => format!("{shown}: {e}"),
    })?;
    let there = rustix::fs::seek(&opened, SeekFrom::End(0)).map_err(|e| format!("{shown}: {e}"))?;
    let (bytes, needed) = (rules.plan.bytes, rules.needs.in_image(rules.plan.bytes));
    if bytes > there {
        let (bytes, there) = (bytes >> 20, there >> 20);
        return Err(format!("{shown} has {there} MiB, the file system would have {bytes}: name a smaller --size"));
    }
    if needed.saturating_add(needed / 10) > bytes && rules.needs.fill == 0 && !rules.needs.guess {
        let (bytes, needed) = (bytes >> 20, needed.div_ceil(1 << 20));
        return Err(format!("{bytes} MiB (--size) are too little: the work takes {needed} MiB at this scale"));
    }
    if !rules.devices {
        return Err(format!(
            "{shown} is a block device: each trial makes a new file system on it, and what is there is lost; to \
             allow that, say --yes"
        ));
    }
    Ok(())
}

/// Checks the place of the image: the directory must exist, and the file must not belong to another user or be in use.
/// The place must be large enough.
fn image(rig: &Rig, rules: &Rules<'_>) -> std::result::Result<(), String> {
    let path = &rig.target.path;
    let shown = path.display();
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(format!("{}: no such directory", parent.display()));
    }
    if let Some(original) = rules.plan.original(path) {
        let original = original.display();
        return Err(format!(
            "{shown} is the image that is copied (--image {original}): name another file for the copies"
        ));
    }
    match path.symlink_metadata() {
        Ok(m) if !m.is_file() => return Err(format!("{shown} is no regular file: images are made afresh, in files")),
        Ok(m) => {
            if let Some(who) = same_image_in_use(path).map_err(|e| e.to_string())? {
                return Err(format!("{shown} is in use: {who}"));
            }
            if m.len() > 0 && !rules.overwrite {
                return Err(format!("{shown} exists and would be replaced: remove it, or say --overwrite"));
            }
            in_use(path)?;
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(e) => return Err(format!("{shown}: {e}")),
    }
    let (bytes, free) = (rules.plan.bytes, rules.plan.room);
    let work = match rules.needs.guess {
        true => rules.needs.in_image(bytes).min(free),
        false => rules.needs.in_image(bytes),
    };
    let least = work.saturating_add(work / 10);
    if least > free && rules.needs.fill == 0 && !rules.needs.guess {
        let least = least.div_ceil(1 << 20);
        return Err(match rules.plan.is_copy() {
            true => format!("{} MiB are free in the image: the work takes {least} MiB at this scale", free >> 20),
            false => format!("an image of {} MiB is too small: the work takes {least} MiB at this scale", bytes >> 20),
        });
    }
    if bytes < 8 << 20 {
        return Err(format!("an image of {bytes} bytes is too small"));
    }
    let options = EngineOptions::parse(&rig.all_options()).ok().filter(|_| rig.target.kind == Kind::Engine);
    let kept = stored(work, options.as_ref());
    memory(if options.is_some_and(|o| o.memory) { kept } else { 0 })?;
    room(parent, kept.saturating_add(rules.plan.stored).saturating_add(SLACK_BYTES))
}

/// If data is dropped, metadata takes less than one in this many bytes. An indirect block maps 1,024 blocks of 4 KiB,
/// and the rest of a file's metadata is small, except for small files.
const METADATA_PART: u64 = 128;

/// The number of bytes that the host stores for this many bytes of file data.
fn stored(bytes: u64, options: Option<&EngineOptions>) -> u64 {
    if options.is_some_and(|o| o.metadata_only) { bytes / METADATA_PART } else { bytes }
}

/// Refuses an image in use: servers lock the image that they serve.
fn in_use(path: &Path) -> std::result::Result<(), String> {
    match extant_block::device::is_locked(path, 0, None) {
        Ok(false) => Ok(()),
        Ok(true) => Err(format!("{} is in use by another process", path.display())),
        // If locks cannot show it, the mount reports it.
        Err(e) if e.kind() == std::io::ErrorKind::Unsupported => Ok(()),
        Err(_) => Err(format!("{} cannot be read", path.display())),
    }
}

fn memory(bytes: u64) -> std::result::Result<(), String> {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.split_whitespace().next()?.parse().ok());
    match available.map(|kib: u64| kib << 10) {
        Some(there) if bytes > there / 2 => {
            Err(format!("the work takes {} MiB of memory; {} MiB are available", bytes >> 20, there >> 20))
        }
        _ => Ok(()),
    }
}

fn room(dir: &Path, bytes: u64) -> std::result::Result<(), String> {
    let stat = rustix::fs::statvfs(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let there = stat.f_bavail.saturating_mul(stat.f_frsize);
    if there < bytes {
        return Err(format!(
            "{}: {} MiB are free, and the work takes {} MiB at this scale",
            dir.display(),
            there >> 20,
            bytes >> 20
        ));
    }
    Ok(())
}
