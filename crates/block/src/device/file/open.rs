//! Opening: options, exclusion, size, and the abilities of the file or device below.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use extant_base::clock::Clock;
use rustix::fs::{AtFlags, OFlags, SeekFrom, StatxFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Resource, getrlimit};

use super::in_use::{range_in_use, same_image_in_use};
use super::lock::{Range, claim, is_missing};
use super::options::Opened;
use super::{IoMode, KernelMount, Locking, OpenOptions, readers};
use crate::device::Limits;
use crate::error::{BusyBy, Error, Result};

/// An exclusive open and a lock exist for a short time after their owner. The kernel keeps the files of an io_uring
/// open after the ring is closed, and a process that was just forked has all descriptors until it executes a program.
const CLAIM_TRIES: u32 = 50;
const CLAIM_PAUSE: Duration = Duration::from_millis(10);

/// Linux's default of 1280 KiB, rounded to a power of two.
const TRANSFER_MAX: u32 = 1 << 20;

pub(super) fn open(path: &Path, name: &str, options: &OpenOptions, create: Option<u64>) -> Result<Opened> {
    let failed = |e: io::Error| Error::open(name, e);
    let existing = std::fs::metadata(path);
    let block_device = existing.as_ref().is_ok_and(|m| m.file_type().is_block_device());
    if let Ok(meta) = &existing
        && !block_device
        && !meta.is_file()
    {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "neither a file nor a block device")));
    }
    // This is only for the message.
    let mounted = || same_image_in_use(path).ok().flatten();
    let tries = if block_device { CLAIM_TRIES } else { 0 };
    let opened =
        until_free(tries, || pause_unless(mounted()), || open_data(path, options, block_device, create.is_some()));
    let (mut data, io) = match opened {
        Err(e) if block_device => return Err(held(name, e, mounted(), BusyBy::ExclusiveOpen)),
        opened => opened.map_err(failed)?,
    };
    let meta = data.metadata().map_err(failed)?;
    if meta.file_type().is_block_device() != block_device || !(block_device || meta.is_file()) {
        return Err(failed(io::Error::other("replaced while it was being opened")));
    }
    if !options.read_only && !block_device {
        let len = meta.len().max(create.unwrap_or(0));
        within_limit(options.len.map_or(len, |len| options.offset.saturating_add(len))).map_err(failed)?;
    }
    let mut unguarded = Vec::new();
    if !block_device && options.lock != Locking::None {
        data = lock_range(data, path, name, options, &mut unguarded)?;
    }
    // This is checked after the lock, so that two opens by this program cannot both succeed.
    if !(options.read_only && options.allow_mounted) {
        refuse_mounted(path, name, options, &mut unguarded)?;
    }
    if let Some(size) = create
        && !block_device
        && meta.len() < size
    {
        data.set_len(size).map_err(failed)?;
    }
    let end = rustix::fs::seek(&data, SeekFrom::End(0)).map_err(|e| failed(e.into()))?;
    let start = options.offset;
    let size = options.len.unwrap_or(end.saturating_sub(start));
    let limits = limits(&data, &meta, io, block_device).map_err(failed)?;
    if start > end || start.checked_add(size).is_none_or(|e| e > end) {
        let what = format!("{size} bytes at byte {start} wanted, but it ends at {end}");
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, what)));
    }
    if !start.is_multiple_of(u64::from(limits.logical_block)) {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "offset is not a multiple of the block size")));
    }
    Ok(Opened { data, io, block_device, start, size, limits, unguarded })
}

/// Pauses before the next attempt to claim a file, unless a mount uses it, which lasts longer than the attempts.
fn pause_unless(mounted: Option<KernelMount>) -> bool {
    if mounted.is_none() {
        Clock::real().sleep(CLAIM_PAUSE);
    }
    mounted.is_none()
}

/// The error of a claim that failed with `e`: for EBUSY, with the mount that uses the file, or `otherwise`.
fn held(name: &str, e: io::Error, mounted: Option<KernelMount>, otherwise: BusyBy) -> Error {
    match e.raw_os_error() == Some(libc::EBUSY) {
        true => busy(name, mounted.map_or(otherwise, BusyBy::Kernel)),
        false => Error::open(name, e),
    }
}

/// Locks the bytes of an image file. Returns the locked file, which may be another open of it. Adds the reason to
/// `unguarded` if the host cannot lock files and `options` permits that.
fn lock_range(data: File, path: &Path, name: &str, options: &OpenOptions, unguarded: &mut Vec<String>) -> Result<File> {
    let range = Range { start: options.offset, len: options.len };
    let mounted = || range_in_use(path, options.offset, options.len).ok().flatten();
    let locked = until_free(
        CLAIM_TRIES,
        || pause_unless(mounted()),
        || match claim(&data, range, !options.read_only)? {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        },
    );
    match locked {
        Ok(()) => Ok(data),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) && !options.read_only => {
            let taken = || busy(name, mounted().map_or(BusyBy::Lock, BusyBy::Kernel));
            pass_readers(data, path, options, range).ok().flatten().ok_or_else(taken)
        }
        Err(e) if !is_missing(&e) => Err(held(name, e, mounted(), BusyBy::Lock)),
        Err(e) if options.read_only || options.lock == Locking::IfPossible => {
            unguarded.push(format!("files cannot be locked here ({e})"));
            Ok(data)
        }
        Err(e) => Err(Error::NoLocks { device: name.to_owned(), source: e.into() }),
    }
}

/// Fails if the kernel has these bytes mounted or, for a writer, uses them for a loop device. Adds the reason to
/// `unguarded` if that is unknown.
fn refuse_mounted(path: &Path, name: &str, options: &OpenOptions, unguarded: &mut Vec<String>) -> Result<()> {
    match range_in_use(path, options.offset, options.len) {
        Ok(Some(by)) if by.at.is_some() || !options.read_only => return Err(busy(name, BusyBy::Kernel(by))),
        Ok(_) => {}
        // A reader changes nothing for the others.
        Err(_) if options.read_only => {}
        Err(e) => unguarded.push(format!("it is unknown whether the kernel has it mounted ({e})")),
    }
    Ok(())
}

/// The file, reopened for writing and locked together with holders that may only read it; `None` if there are other
/// holders.
fn pass_readers(data: File, path: &Path, options: &OpenOptions, range: Range) -> io::Result<Option<File>> {
    let reading = reopen(&data, path, true)?;
    // The lease that finds other writers requires that this process has the file open only for reading.
    drop(data);
    if !readers::are_all(&reading, range)? {
        return Ok(None);
    }
    let (data, _) = open_data(path, options, false, false)?;
    let (meta, other) = (reading.metadata()?, data.metadata()?);
    drop(reading);
    let is_same = (meta.dev(), meta.ino()) == (other.dev(), other.ino());
    Ok((is_same && readers::pass(&data, range)?).then_some(data))
}

/// Fails if a write up to byte `end` of a file would fail. Such a write would fail halfway, with a signal that ends the
/// process.
pub(super) fn within_limit(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < end => {
            let what =
                format!("it ends at byte {end}, and this process may write files only up to byte {limit} (ulimit -f)");
            Err(io::Error::new(io::ErrorKind::FileTooLarge, what))
        }
        _ => Ok(()),
    }
}

/// Retries the open up to `tries` times while it fails with EBUSY, and while `wait` returns true.
fn until_free<T>(tries: u32, mut wait: impl FnMut() -> bool, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..tries {
        match open() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) && wait() => {}
            result => return result,
        }
    }
    open()
}

fn busy(name: &str, by: BusyBy) -> Error {
    Error::Busy { device: name.to_owned(), by }
}

/// Opens for data. Falls back from O_DIRECT if the file system refuses it, or requires an alignment of more than 512
/// bytes for a file (an ext superblock has 1024 bytes at byte 1024). For a block device, the logical block size is the
/// alignment.
fn open_data(path: &Path, options: &OpenOptions, block_device: bool, create: bool) -> io::Result<(File, IoMode)> {
    let open = |direct: bool| {
        let mut flags = libc::O_CLOEXEC;
        if direct {
            flags |= libc::O_DIRECT;
        }
        if block_device && !options.read_only && options.exclusive {
            flags |= libc::O_EXCL;
        }
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(!options.read_only).custom_flags(flags);
        if create && !block_device {
            how.create(true);
        }
        how.open(path)
    };
    if options.io == IoMode::Direct {
        match open(true) {
            Ok(file) if block_device => return Ok((file, IoMode::Direct)),
            Ok(file) if direct_alignment(&file) <= 512 => return Ok((file, IoMode::Direct)),
            Ok(_) => {}
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
            Err(e) => return Err(e),
        }
    }
    Ok((open(false)?, IoMode::Buffered))
}

/// The alignment in bytes that O_DIRECT requires of memory, offsets and lengths; large if O_DIRECT is not possible at
/// all.
fn direct_alignment(file: &File) -> u32 {
    if let Ok(st) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        && st.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        return match st.stx_dio_mem_align.max(st.stx_dio_offset_align) {
            0 => u32::MAX,
            n => n,
        };
    }
    // Before Linux 6.1, it must be tried. A read of an empty file proves nothing, so O_DIRECT is then assumed to work.
    let mut probe = crate::buf::AlignedBuf::zeroed(512);
    match rustix::io::pread(file, &mut probe[..], 512) {
        Err(rustix::io::Errno::INVAL) => 4096,
        _ => 512,
    }
}

fn limits(file: &File, meta: &Metadata, io: IoMode, block_device: bool) -> io::Result<Limits> {
    let (logical, physical) = if block_device {
        (rustix::fs::ioctl_blksszget(file)?, rustix::fs::ioctl_blkpbszget(file)?)
    } else {
        let physical = u32::try_from(meta.blksize()).unwrap_or(4096).clamp(512, 65536);
        (512, physical)
    };
    let logical = if io == IoMode::Buffered { 512 } else { logical.max(512) };
    Ok(Limits {
        logical_block: logical,
        physical_block: physical.max(logical),
        max_transfer: TRANSFER_MAX,
        discard: true,
        volatile_cache: true,
    })
}

/// Another open file description of the file that `file` has open at `path`. It has a separate record of the write-back
/// errors that it has reported. So a flush on it misses no error that another description has reported first.
pub(super) fn reopen(file: &File, path: &Path, read_only: bool) -> io::Result<File> {
    let open = |path: &Path, more| {
        let mut how = std::fs::OpenOptions::new();
        how.read(true).write(!read_only).custom_flags(libc::O_CLOEXEC | more).open(path)
    };
    let number = format!("/proc/self/fd/{}", file.as_raw_fd());
    open(Path::new(&number), 0)
        .or_else(|_| {
            // Without /proc, the file is opened by its name, if that is still the same file. A FIFO that has replaced
            // it must not block us.
            let again = open(path, libc::O_NONBLOCK)?;
            let (meta, other) = (file.metadata()?, again.metadata()?);
            if (meta.dev(), meta.ino()) != (other.dev(), other.ino()) {
                return file.try_clone();
            }
            fcntl_setfl(&again, fcntl_getfl(&again)? - OFlags::NONBLOCK)?;
            Ok(again)
        })
        .or_else(|_| file.try_clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_waits_for_an_exclusive_open_that_ends() {
        let answers = |codes: &'static [i32]| {
            let mut left = codes.iter();
            move || match left.next() {
                Some(0) => Ok("opened"),
                code => Err(io::Error::from_raw_os_error(*code.expect("an answer"))),
            }
        };
        let outcome = |tries, codes, go_on: bool| {
            let mut waits = 0;
            let result = until_free(
                tries,
                || {
                    waits += 1;
                    go_on
                },
                answers(codes),
            );
            (result.map_err(|e| e.raw_os_error()), waits)
        };
        assert_eq!(outcome(2, &[libc::EBUSY, libc::EBUSY, 0], true), (Ok("opened"), 2));
        assert_eq!(outcome(2, &[libc::EBUSY; 3], true), (Err(Some(libc::EBUSY)), 2));
        assert_eq!(outcome(2, &[libc::EBUSY, libc::EACCES], true), (Err(Some(libc::EACCES)), 1));
        assert_eq!(outcome(2, &[libc::EBUSY], false), (Err(Some(libc::EBUSY)), 1));
        assert_eq!(outcome(0, &[0], true), (Ok("opened"), 0));
    }
}
