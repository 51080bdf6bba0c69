//! Open files.
//!
//! Main type: [`OpenFile`].
//!
//! # Locking
//! `c position` (2): the position of one file, for the length of a read or write at it. `extant_pread` and
//! `extant_pwrite` take none.

use std::ffi::c_int;

use extant::{File, OpenOptions};
use extant_base::sync::{LockClass, Mutex};

use crate::attributes::stat_of;
use crate::border::{Out, Source, Target, Text};
use crate::fault::{EINVAL, Fault};
use crate::handles::{Handle, Object};
use crate::types::{
    EXTANT_APPEND, EXTANT_CREATE, EXTANT_NEW, EXTANT_READ, EXTANT_TRUNCATE, EXTANT_WRITE, extant_file, extant_fs,
    extant_metadata,
};

static CLASS: LockClass = LockClass::new("c position", 2);

/// A file, and the position at which `extant_read` and `extant_write` go on.
pub struct OpenFile {
    file: File,
    position: Mutex<u64>,
    appends: bool,
}

const FLAGS: u32 = EXTANT_READ | EXTANT_WRITE | EXTANT_APPEND | EXTANT_CREATE | EXTANT_NEW | EXTANT_TRUNCATE;

/// A count for C.
fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

export! {
    /// Opens a file. flags are EXTANT_READ and the like; mode has the permissions of a file that is created. There is
    /// no umask. Close it with extant_close.
    fn extant_open(fs: Handle<extant_fs>, path: Text, flags: u32, mode: u32, file: Out<Handle<extant_file>>) -> c_int {
        file.check()?;
        if flags & !FLAGS != 0 {
            return Err(Fault::new(EINVAL, format!("unknown flags {flags:#x}")));
        }
        let has = |flag: u32| flags & flag != 0;
        let mut options = OpenOptions::new();
        options.read(has(EXTANT_READ)).write(has(EXTANT_WRITE)).append(has(EXTANT_APPEND)).create(has(EXTANT_CREATE));
        options.create_new(has(EXTANT_NEW)).truncate(has(EXTANT_TRUNCATE)).mode(mode);
        let opened = options.open(&fs.get()?, path.path()?)?;
        let opened = OpenFile { file: opened, position: Mutex::new(&CLASS, 0), appends: has(EXTANT_APPEND) };
        file.put(Handle::new(Object::File(opened.into())))?;
        Ok(0)
    }

    /// Closes a file. Its data is durable after extant_fsync or extant_unmount, and not by this.
    fn extant_close(file: Handle<extant_file>) -> c_int {
        file.take()?;
        Ok(0)
    }

    /// Reads up to size bytes at the position of the file, which moves. Returns how many there were: 0 at the end.
    fn extant_read(file: Handle<extant_file>, buffer: Target, size: usize) -> i64 {
        let (open, buffer) = (file.get()?, buffer.of(size)?);
        let mut position = open.position.lock();
        let n = open.file.read_at(buffer, *position)?;
        *position += n as u64;
        Ok(count(n))
    }

    /// Writes size bytes at the position of the file, which moves. Returns how many were written: all of them, unless
    /// the image is full.
    fn extant_write(file: Handle<extant_file>, data: Source, size: usize) -> i64 {
        let (open, data) = (file.get()?, data.of(size)?);
        let mut position = open.position.lock();
        let n = open.file.write_at(data, *position)?;
        *position = if open.appends { open.file.metadata()?.len() } else { *position + n as u64 };
        Ok(count(n))
    }

    /// Reads from byte offset on, without a change of the position.
    fn extant_pread(file: Handle<extant_file>, buffer: Target, size: usize, offset: u64) -> i64 {
        Ok(count(file.get()?.file.read_at(buffer.of(size)?, offset)?))
    }

    /// Writes at byte offset, without a change of the position.
    fn extant_pwrite(file: Handle<extant_file>, data: Source, size: usize, offset: u64) -> i64 {
        Ok(count(file.get()?.file.write_at(data.of(size)?, offset)?))
    }

    /// Moves the position. whence is SEEK_SET (0), SEEK_CUR (1) or SEEK_END (2). Returns the new position.
    fn extant_seek(file: Handle<extant_file>, offset: i64, whence: c_int) -> i64 {
        let open = file.get()?;
        let mut position = open.position.lock();
        let base = match whence {
            0 => 0,
            1 => *position,
            2 => open.file.metadata()?.len(),
            _ => return Err(Fault::new(EINVAL, format!("{whence} is no 'whence' of a seek"))),
        };
        let to = base.checked_add_signed(offset).and_then(|to| i64::try_from(to).ok());
        let to = to.ok_or_else(|| Fault::new(EINVAL, "a seek out of range"))?;
        *position = to.unsigned_abs();
        Ok(to)
    }

    /// Cuts the file, or extends it with zeroes that take no space.
    fn extant_ftruncate(file: Handle<extant_file>, bytes: u64) -> c_int {
        file.get()?.file.set_len(bytes)?;
        Ok(0)
    }

    /// Makes content and attributes durable. -EIO or -ENOSPC if a write of this file was lost.
    fn extant_fsync(file: Handle<extant_file>) -> c_int {
        file.get()?.file.sync_all()?;
        Ok(0)
    }

    /// As extant_fsync, without attributes that reading the content does not need.
    fn extant_fdatasync(file: Handle<extant_file>) -> c_int {
        file.get()?.file.sync_data()?;
        Ok(0)
    }

    /// The attributes of an open file.
    fn extant_fstat(file: Handle<extant_file>, stat: Out<extant_metadata>) -> c_int {
        stat.put(stat_of(&file.get()?.file.metadata()?))?;
        Ok(0)
    }
}
