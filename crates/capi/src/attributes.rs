//! Attributes of files: stat, permissions, owners, times, extended attributes.
//!
//! # Locking
//! None.

use std::ffi::c_int;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use extant::{FileType, Metadata};

use crate::border::{Out, PlainInput, Source, Target, Text};
use crate::fault::{EINVAL, Fault, Result};
use crate::handles::Handle;
use crate::names::answer;
use crate::types::{EXTANT_UNCHANGED, extant_fs, extant_metadata, extant_time};

/// The bits of `st_mode` for a kind of file.
pub fn kind_bits(kind: FileType) -> u32 {
    match kind {
        FileType::Fifo => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Dir => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::File => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
        _ => 0,
    }
}

fn time_of(time: SystemTime) -> extant_time {
    let whole = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => extant_time { seconds: whole(after), nanoseconds: after.subsec_nanos() },
        Err(e) => match e.duration().subsec_nanos() {
            0 => extant_time { seconds: -whole(e.duration()), nanoseconds: 0 },
            nanos => extant_time { seconds: -whole(e.duration()) - 1, nanoseconds: 1_000_000_000 - nanos },
        },
    }
}

/// The time that C passes; `None` for NULL.
fn system_time(time: PlainInput<extant_time>) -> Result<Option<SystemTime>> {
    let Some(extant_time { seconds, nanoseconds }) = time.get() else { return Ok(None) };
    let wrong = || Fault::new(EINVAL, format!("{seconds} s and {nanoseconds} ns are no time"));
    if nanoseconds >= 1_000_000_000 {
        return Err(wrong());
    }
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|s| s.checked_add(Duration::from_nanos(nanoseconds.into()))).ok_or_else(wrong).map(Some)
}

pub fn stat_of(metadata: &Metadata) -> extant_metadata {
    let (rdev_major, rdev_minor) = metadata.device().unwrap_or_default();
    extant_metadata {
        ino: metadata.ino(),
        bytes: metadata.len(),
        blocks: metadata.blocks(),
        mode: kind_bits(metadata.file_type()) | metadata.mode(),
        nlink: metadata.nlink(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev_major,
        rdev_minor,
        accessed: time_of(metadata.accessed()),
        modified: time_of(metadata.modified()),
        changed: time_of(metadata.changed()),
        created: metadata.created().map_or(extant_time { seconds: 0, nanoseconds: 0 }, time_of),
    }
}

fn changed(id: u32) -> Option<u32> {
    (id != EXTANT_UNCHANGED).then_some(id)
}

export! {
    /// The attributes of a file. A symbolic link is followed.
    fn extant_stat(fs: Handle<extant_fs>, path: Text, stat: Out<extant_metadata>) -> c_int {
        stat.put(stat_of(&fs.get()?.metadata(path.path()?)?))?;
        Ok(0)
    }

    /// The attributes of a file, or of the symbolic link itself.
    fn extant_lstat(fs: Handle<extant_fs>, path: Text, stat: Out<extant_metadata>) -> c_int {
        stat.put(stat_of(&fs.get()?.symlink_metadata(path.path()?)?))?;
        Ok(0)
    }

    /// Sets the permission bits.
    fn extant_chmod(fs: Handle<extant_fs>, path: Text, mode: u32) -> c_int {
        fs.get()?.set_permissions(path.path()?, mode)?;
        Ok(0)
    }

    /// Sets owner and group; EXTANT_UNCHANGED leaves one as it is. A symbolic link is followed.
    fn extant_chown(fs: Handle<extant_fs>, path: Text, uid: u32, gid: u32) -> c_int {
        fs.get()?.chown(path.path()?, changed(uid), changed(gid))?;
        Ok(0)
    }

    /// As extant_chown, of a symbolic link itself.
    fn extant_lchown(fs: Handle<extant_fs>, path: Text, uid: u32, gid: u32) -> c_int {
        fs.get()?.lchown(path.path()?, changed(uid), changed(gid))?;
        Ok(0)
    }

    /// Sets the times of the last access and the last change; NULL leaves one as it is.
    fn extant_utimes(
        fs: Handle<extant_fs>, path: Text, accessed: PlainInput<extant_time>, modified: PlainInput<extant_time>
    ) -> c_int {
        fs.get()?.set_times(path.path()?, system_time(accessed)?, system_time(modified)?)?;
        Ok(0)
    }

    /// The value of an extended attribute, whose name has its prefix, as in "user.mime_type". Returns its length.
    /// -ENODATA if there is none; -ERANGE if it does not fit; if size is 0, only the length is returned.
    fn extant_getxattr(fs: Handle<extant_fs>, path: Text, name: Text, buffer: Target, size: usize) -> i64 {
        answer(&fs.get()?.get_xattr(path.path()?, name.bytes()?)?, buffer, size)
    }

    /// Sets an extended attribute, new or not.
    fn extant_setxattr(fs: Handle<extant_fs>, path: Text, name: Text, value: Source, size: usize) -> c_int {
        fs.get()?.set_xattr(path.path()?, name.bytes()?, value.of(size)?)?;
        Ok(0)
    }

    /// Removes an extended attribute.
    fn extant_removexattr(fs: Handle<extant_fs>, path: Text, name: Text) -> c_int {
        fs.get()?.remove_xattr(path.path()?, name.bytes()?)?;
        Ok(0)
    }

    /// The names of a file's extended attributes, each ended by a zero. Returns the length of all. -ERANGE if they do
    /// not fit; if size is 0, only the length is returned.
    fn extant_listxattr(fs: Handle<extant_fs>, path: Text, buffer: Target, size: usize) -> i64 {
        let mut all = Vec::new();
        for name in fs.get()?.list_xattrs(path.path()?)? {
            all.extend_from_slice(&name);
            all.push(0);
        }
        answer(&all, buffer, size)
    }
}
