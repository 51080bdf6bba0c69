//! Does the kernel use this image right now, and when does it stop?
//!
//! Main functions: [`same_image_in_use`]; [`unmount`], and [`LoopDevice`], to be waited for after an unmount.
//!
//! Asked of `/proc/self/mountinfo` (which file systems are mounted, by device number) and of
//! `/sys/block/loop*/loop/backing_file` (which file stands behind a loop device). Mounts in other mount namespaces are
//! not seen.
//!
//! # Locking
//! None.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use extant_base::clock::Clock;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Says who uses the image or block device at `path`, or `None`. Answers for what this process can see; a path that
/// cannot be looked at is not in use.
pub fn same_image_in_use(path: &Path) -> Option<String> {
    range_in_use(path, 0, None)
}

/// As [`same_image_in_use`], of some bytes of it: `len` from `start` on, or all from there.
pub(super) fn range_in_use(path: &Path, start: u64, len: Option<u64>) -> Option<String> {
    let end = len.map_or(u64::MAX, |len| start.saturating_add(len));
    let meta = fs::metadata(path).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if meta.file_type().is_block_device() {
        let rdev = meta.rdev();
        let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
        if let Some(dir) = mount_point(&mounts, &number) {
            return Some(format!("mounted by the kernel at {dir}"));
        }
    }
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("loop") {
            continue;
        }
        let dir = entry.path();
        let Ok(backing) = fs::read_to_string(dir.join("loop/backing_file")) else { continue };
        let Ok(other) = fs::metadata(backing.trim_end_matches('\n')) else { continue };
        if (other.dev(), other.ino()) != (meta.dev(), meta.ino()) {
            continue;
        }
        // The loop device itself, and its partitions: their folders are named after it.
        let partitions = fs::read_dir(&dir).into_iter().flatten().flatten();
        let partitions = partitions.filter(|p| p.file_name().to_string_lossy().starts_with(&name)).map(|p| p.path());
        let base = number_in(&dir.join("loop/offset")).unwrap_or(0);
        for device in std::iter::once(dir.clone()).chain(partitions) {
            // Sectors of 512 bytes; the loop device itself has no start.
            let from = base.saturating_add(number_in(&device.join("start")).unwrap_or(0).saturating_mul(512));
            let size = number_in(&device.join("size")).unwrap_or(u64::MAX).saturating_mul(512);
            if from >= end || from.saturating_add(size) <= start {
                continue;
            }
            let Ok(number) = fs::read_to_string(device.join("dev")) else { continue };
            if let Some(at) = mount_point(&mounts, number.trim()) {
                let device = device.file_name().unwrap_or_default().to_string_lossy();
                return Some(format!("mounted by the kernel through /dev/{device} at {at}"));
            }
        }
    }
    None
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The first mount point of the device `number` ("major:minor").
fn mount_point(mountinfo: &str, number: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let device = fields.nth(2)?;
        let at = fields.nth(1)?;
        (device == number).then(|| unescape(at))
    })
}

/// Undoes the kernel's `\040` for blanks and the like.
fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let bytes = field.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let code = bytes.get(i + 1..i + 4).and_then(|d| std::str::from_utf8(d).ok());
        match code.and_then(|d| u8::from_str_radix(d, 8).ok()) {
            Some(byte) if bytes[i] == b'\\' => {
                out.push(byte);
                i += 4;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// How long a mount may be busy, and how long its loop device may take to go after the unmount.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unmounts what the kernel has mounted on `dir`, and waits until its image is complete. What is busy only in passing
/// is tried again, for a minute at most: who has just been forked has all that his parent has open, until he executes
/// something.
pub fn unmount(dir: &Path) -> io::Result<()> {
    let (device, clock) = (LoopDevice::of_mount(dir), Clock::real());
    while let Err(e) = rustix::mount::unmount(dir, UnmountFlags::empty()) {
        if e != Errno::BUSY || u128::from(clock.now_ns()) > PATIENCE.as_nanos() {
            return Err(e.into());
        }
        clock.sleep(Duration::from_millis(2));
    }
    match device.wait() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::TimedOut, "still mounted in another mount namespace")),
    }
}

/// The loop device under a mount of the kernel's, if there is one that goes with its last user. An unmount takes a
/// mount away, and the file system goes with the last one: a mount namespace that was made meanwhile (of a process that
/// has just begun, of a service) has a copy of it, and as long as that lives, the image is not complete. The device
/// tells.
#[derive(Debug)]
pub struct LoopDevice(Option<Backing>);

#[derive(Debug)]
struct Backing {
    /// Names the image; goes with the device.
    file: PathBuf,
    image: String,
}

impl LoopDevice {
    /// Of what is mounted on `dir`, to be asked before the unmount.
    pub fn of_mount(dir: &Path) -> LoopDevice {
        LoopDevice(Backing::of_mount(dir))
    }

    /// Waits for a minute at most until it has let go of the image, and says whether it has.
    #[must_use]
    pub fn wait(&self) -> bool {
        let Some(backing) = &self.0 else { return true };
        let clock = Clock::real();
        while fs::read_to_string(&backing.file).is_ok_and(|image| image == backing.image) {
            if u128::from(clock.now_ns()) > PATIENCE.as_nanos() {
                return false;
            }
            clock.sleep(Duration::from_millis(2));
        }
        true
    }
}

impl Backing {
    fn of_mount(dir: &Path) -> Option<Backing> {
        // Without a question to a server, which may not answer.
        let stat = statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
        let device = PathBuf::from(format!("/sys/dev/block/{}:{}/loop", stat.stx_dev_major, stat.stx_dev_minor));
        if number_in(&device.join("autoclear")) != Some(1) {
            return None;
        }
        let file = device.join("backing_file");
        let image = fs::read_to_string(&file).ok()?;
        Some(Backing { file, image })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount_point_by_number() {
        let table = "22 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
                     99 28 7:12 / /mnt/a\\040b rw,relatime - ext4 /dev/loop12 rw\n";
        assert_eq!(mount_point(table, "7:12").as_deref(), Some("/mnt/a b"));
        assert_eq!(mount_point(table, "7:1"), None);
        assert_eq!(mount_point("garbage", "7:1"), None);
    }
}
