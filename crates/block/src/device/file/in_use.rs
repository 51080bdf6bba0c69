//! Finds out whether the kernel uses an image now, and when it stops.
//!
//! Main functions: [`same_image_in_use`] and [`writing_loop_device`]; [`unmount`], and [`LoopDevice`], which waits
//! for the end of an unmount.
//!
//! The answers come from `/proc/thread-self/mountinfo` (mounted file systems, by device number) and from
//! `/sys/block/loop*/loop/backing_file` (the file of each loop device). Mounts in other mount namespaces are not
//! visible.
//!
//! # Locking
//! None.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fmt, fs, io};

use extant_base::clock::Clock;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// The kernel's use of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelMount {
    /// The loop device, or the partition of one, in between.
    pub through: Option<PathBuf>,
    /// The directory; `None` if the table of mounts cannot be read.
    pub at: Option<String>,
}

impl fmt::Display for KernelMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let through = self.through.as_deref().unwrap_or(Path::new("")).display();
        match (&self.at, &self.through) {
            (Some(at), None) => write!(f, "mounted by the kernel at {at}"),
            (Some(at), Some(_)) => write!(f, "mounted by the kernel through {through} at {at}"),
            (None, _) => write!(f, "attached to {through} (without {MOUNTS} it is unknown whether it is mounted)"),
        }
    }
}

/// The kernel's use of the image or block device at `path`; `None` if it is not in use. The answer covers what this
/// process can see. A path that cannot be examined counts as not in use.
///
/// # Errors
/// Neither the table of mounts nor the loop devices can be read, so the answer is unknown.
pub fn same_image_in_use(path: &Path) -> io::Result<Option<KernelMount>> {
    range_in_use(path, 0, None)
}

/// The same as [`same_image_in_use`], for a range of it: `len` bytes from `start` on, or everything from there.
///
/// # Errors
/// The same.
pub fn range_in_use(path: &Path, start: u64, len: Option<u64>) -> io::Result<Option<KernelMount>> {
    let Ok(meta) = fs::metadata(path) else { return Ok(None) };
    let mounts = fs::read(MOUNTS);
    let at = |number: &[u8]| mounts.as_deref().ok().and_then(|mounts| mount_point(mounts, number));
    if meta.file_type().is_block_device() {
        let rdev = meta.rdev();
        let number = format!("{}:{}", rustix::fs::major(rdev), rustix::fs::minor(rdev));
        if let Some(dir) = at(number.as_bytes()) {
            return Ok(Some(KernelMount { through: None, at: Some(dir) }));
        }
    } else if let Err(e) = &mounts
        && fs::read_dir(LOOPS).is_err()
    {
        // For a block device, the exclusive open suffices: it fails while the device is mounted.
        return Err(io::Error::new(e.kind(), format!("{MOUNTS} and {LOOPS}: {e}")));
    }
    for Loop { dir, name, base } in loops_on(&meta) {
        // The loop device itself, and its partitions, whose directories are named after it.
        let partitions = fs::read_dir(&dir).into_iter().flatten().flatten();
        let partitions = partitions.filter(|p| p.file_name().to_string_lossy().starts_with(&name)).map(|p| p.path());
        for device in std::iter::once(dir.clone()).chain(partitions) {
            // The unit is a sector of 512 bytes; the loop device itself has no start.
            let from = base.saturating_add(number_in(&device.join("start")).unwrap_or(0).saturating_mul(512));
            if !touches(&device, from, start, len) {
                continue;
            }
            let Ok(number) = fs::read_to_string(device.join("dev")) else { continue };
            let at = at(number.trim().as_bytes());
            if at.is_some() || mounts.is_err() {
                let through = device.file_name().map(|name| Path::new("/dev").join(name));
                return Ok(Some(KernelMount { through, at }));
            }
        }
    }
    Ok(None)
}

const LOOPS: &str = "/sys/block";
/// The mounts of the calling thread, because a thread may have its own mount namespace.
const MOUNTS: &str = "/proc/thread-self/mountinfo";

/// A loop device whose backing file is the image.
struct Loop {
    /// The directory in sysfs.
    dir: PathBuf,
    name: String,
    /// The offset in the image at which it begins.
    base: u64,
}

/// The loop devices on `image`. Without sysfs, none is found.
fn loops_on(image: &fs::Metadata) -> impl Iterator<Item = Loop> {
    let image = (image.dev(), image.ino());
    fs::read_dir(LOOPS).into_iter().flatten().flatten().filter_map(move |entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        let dir = entry.path();
        let backing = fs::read(dir.join("loop/backing_file")).ok()?;
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let other = fs::metadata(OsStr::from_bytes(backing)).ok()?;
        let base = number_in(&dir.join("loop/offset")).unwrap_or(0);
        ((other.dev(), other.ino()) == image).then_some(Loop { dir, name, base })
    })
}

/// Whether a device that begins at byte `from` of the image contains any of the bytes from `start` on. `device` is its
/// directory in sysfs.
fn touches(device: &Path, from: u64, start: u64, len: Option<u64>) -> bool {
    let end = len.map_or(u64::MAX, |len| start.saturating_add(len));
    // The unit is a sector of 512 bytes, regardless of the sector size of the device.
    let size = number_in(&device.join("size")).unwrap_or(u64::MAX).saturating_mul(512);
    from < end && from.saturating_add(size) > start
}

/// The loop device that could write to `len` bytes from `start` on of the image file at `path`, or to everything from
/// there. The kernel's loop driver ignores locks, so its writes and ours would overwrite each other unnoticed.
pub fn writing_loop_device(path: &Path, start: u64, len: Option<u64>) -> Option<String> {
    let meta = fs::metadata(path).ok()?;
    let writes =
        |l: &Loop| number_in(&l.dir.join("ro")).is_none_or(|ro| ro == 0) && touches(&l.dir, l.base, start, len);
    loops_on(&meta).find(writes).map(|l| format!("/dev/{}", l.name))
}

fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The first mount point of the device `number` ("major:minor").
fn mount_point(mountinfo: &[u8], number: &[u8]) -> Option<String> {
    mountinfo.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| *b == b' ');
        let device = fields.nth(2)?;
        let at = fields.nth(1)?;
        (device == number).then(|| String::from_utf8_lossy(&unescape(at)).into_owned())
    })
}

/// A field of the kernel's table of mounts without escapes like `\040` for blanks.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let code = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        (rest, _) = match code {
            Some(byte) if *first == b'\\' => (&tail[3..], out.push(byte)),
            _ => (tail, out.push(*first)),
        };
    }
    out
}

/// The time for which a mount may be busy, and which its loop device may take to disappear after the unmount.
const PATIENCE: Duration = Duration::from_secs(60);

/// Unmounts the kernel's file system on `dir`, and waits until its image is complete. EBUSY is retried for at most a
/// minute, because it may be temporary: a child that was just forked has all open files of its parent until it executes
/// a program.
///
/// # Errors
/// The error of umount(2), EBUSY only after that minute; `TimedOut` if the image remains mounted in another mount
/// namespace.
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

/// The loop device under a mount of the kernel, if the device is removed with its last user.
///
/// An unmount removes one mount; the file system ends with the last one. A mount namespace that a new process or a
/// service has created in the meantime has a copy of the mount. While that copy exists, the image is incomplete, and
/// the loop device still exists.
#[derive(Debug)]
pub struct LoopDevice(Option<Backing>);

#[derive(Debug)]
struct Backing {
    /// The file that contains the path of the image; it disappears with the device.
    file: PathBuf,
    image: Vec<u8>,
}

impl LoopDevice {
    /// The loop device under the mount on `dir`. Must be called before the unmount.
    pub fn of_mount(dir: &Path) -> LoopDevice {
        LoopDevice(Backing::of_mount(dir))
    }

    /// Waits for at most a minute until the device has released the image. Returns whether it has.
    #[must_use]
    pub fn wait(&self) -> bool {
        let Some(backing) = &self.0 else { return true };
        let clock = Clock::real();
        while fs::read(&backing.file).is_ok_and(|image| image == backing.image) {
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
        // This sends no request to a server, which may not answer.
        let stat = statx(CWD, dir, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
        let device = PathBuf::from(format!("/sys/dev/block/{}:{}/loop", stat.stx_dev_major, stat.stx_dev_minor));
        if number_in(&device.join("autoclear")) != Some(1) {
            return None;
        }
        let file = device.join("backing_file");
        let image = fs::read(&file).ok()?;
        Some(Backing { file, image })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount_point_by_number() {
        let table = b"20 28 0:9 / /odd\xff rw - tmpfs none rw\n\
                      22 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
                      99 28 7:12 / /mnt/a\\040b rw,relatime - ext4 /dev/loop12 rw\n";
        assert_eq!(mount_point(table, b"7:12").as_deref(), Some("/mnt/a b"));
        assert_eq!(mount_point(table, b"7:1"), None);
        assert_eq!(mount_point(b"garbage", b"7:1"), None);
    }
}
