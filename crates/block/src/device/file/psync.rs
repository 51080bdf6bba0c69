//! Plain system calls: preadv, pwritev, fallocate, each repeated until it is complete.
//!
//! A watched thread ([`extant_base::task::before_sleep`]) announces a call before that call waits for the disk. Data
//! in the page cache is read without waiting and without an announcement (RWF_NOWAIT); a write into the page cache
//! does not count as a wait.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};

use extant_base::task;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};

pub(super) use super::portable::short_file;

/// The maximum number of pieces per call in the kernel (`UIO_MAXIOV`).
const IOV_MAX: usize = 1024;

/// Reads the bytes that need no wait, and returns their number. The extra system call is only worth it for watched
/// threads.
fn read_cached(file: &File, at: u64, buf: &mut [u8]) -> usize {
    rustix::io::preadv2(file, &mut [IoSliceMut::new(buf)], at, ReadWriteFlags::NOWAIT).unwrap_or(0)
}

/// Fills `buf` from byte `at` of the file. The end of the file is an error, because a device has all of its bytes.
pub(super) fn read_full(file: &File, mut at: u64, mut buf: &mut [u8], direct: bool) -> io::Result<()> {
    if task::sleep_is_watched() {
        let n = if direct { 0 } else { read_cached(file, at, buf) };
        at += n as u64;
        buf = &mut buf[n..];
        if !buf.is_empty() {
            task::before_sleep();
        }
    }
    while !buf.is_empty() {
        match rustix::io::pread(file, &mut *buf, at) {
            Ok(0) => return Err(short_file()),
            Ok(n) => {
                at += n as u64;
                buf = &mut buf[n..];
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Fills as much of `buf` as the file contains, and at least `need` bytes. It is for O_DIRECT, so it always waits.
pub(super) fn read_at_least(file: &File, at: u64, buf: &mut [u8], need: usize) -> io::Result<()> {
    task::before_sleep();
    let mut done = 0;
    while done < need {
        match rustix::io::pread(file, &mut buf[done..], at + done as u64) {
            Ok(0) => return Err(short_file()),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Writes the pieces one after the other from byte `at` on, with RWF_DSYNC if `dsync`. Returns `Ok(false)` if this
/// kernel or file system has no RWF_DSYNC; then some or all bytes may be written, but none is known to be durable.
pub(super) fn write_full(file: &File, mut at: u64, pieces: &[&[u8]], dsync: bool) -> io::Result<bool> {
    let mut slices: Vec<IoSlice<'_>> = pieces.iter().filter(|p| !p.is_empty()).map(|p| IoSlice::new(p)).collect();
    let mut left = &mut slices[..];
    if dsync {
        task::before_sleep();
    }
    while !left.is_empty() {
        let now = &left[..left.len().min(IOV_MAX)];
        let written = if dsync {
            rustix::io::pwritev2(file, now, at, ReadWriteFlags::DSYNC)
        } else {
            rustix::io::pwritev(file, now, at)
        };
        match written {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                at += n as u64;
                IoSlice::advance_slices(&mut left, n);
            }
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if dsync => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

/// The first byte from `at` on that is not in a hole, by SEEK_DATA. For a file system that does not know its holes, and
/// for a block device, this is `at`.
pub(super) fn next_data(file: &File, at: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(at)),
        Err(e) => Err(e.into()),
    }
}

/// Returns `Ok(false)` if this is not supported here.
pub(super) fn fallocate(file: &File, mode: FallocateFlags, at: u64, len: u64) -> io::Result<bool> {
    loop {
        match rustix::fs::fallocate(file, mode, at, len) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
}
