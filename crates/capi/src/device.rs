//! Devices whose functions are C's.
//!
//! Main type: [`Callbacks`], which `extant::device::from_io_with_sync` turns into a device.
//!
//! # Locking
//! None of its own: the device around it calls one function at a time (`library device`).

use std::io::{self, Read, Seek, SeekFrom, Write};

use crate::border::User;
use crate::fault::{EFAULT, EINVAL, Fault, Result};
use crate::types::{extant_device, extant_flush_fn, extant_read_fn, extant_release_fn, extant_write_fn};

/// The functions of a device and the position of the next read or write.
pub struct Callbacks {
    user: User,
    bytes: u64,
    at: u64,
    read: extant_read_fn,
    write: extant_write_fn,
    flush: extant_flush_fn,
    release: extant_release_fn,
}

impl Callbacks {
    pub fn new(device: &extant_device) -> Result<Callbacks> {
        if device.read.is_none() {
            return Err(Fault::new(EFAULT, "the function 'read' of the device is NULL"));
        }
        if i64::try_from(device.bytes).is_err() {
            return Err(Fault::new(EINVAL, format!("a device of {} bytes: no device is so large", device.bytes)));
        }
        let extant_device { bytes, user, read, write, flush, release, .. } = *device;
        Ok(Callbacks { user: User::new(user), bytes, at: 0, read, write, flush, release })
    }

    pub fn can_write(&self) -> bool {
        self.write.is_some()
    }

    /// Makes durable what was written.
    pub fn sync(&mut self) -> io::Result<()> {
        self.flush.map_or(Ok(()), |flush| answer(flush(self.user.get())))
    }
}

/// An error that is no number of Linux becomes EIO: a text for it would be wrong.
pub fn answer(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        -4095..0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Err(io::Error::from_raw_os_error(crate::fault::EIO)),
    }
}

impl Read for Callbacks {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(read) = self.read else { return Ok(0) };
        answer(read(self.user.get(), buf.as_mut_ptr().cast(), buf.len(), self.at))?;
        self.at += buf.len() as u64;
        Ok(buf.len())
    }
}

impl Write for Callbacks {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let Some(write) = self.write else { return Err(io::ErrorKind::ReadOnlyFilesystem.into()) };
        answer(write(self.user.get(), data.as_ptr().cast(), data.len(), self.at))?;
        self.at += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sync()
    }
}

impl Seek for Callbacks {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            release(self.user.get());
        }
    }
}
