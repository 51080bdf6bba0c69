//! The attributes of a file, as `std::fs::Metadata` has them.
//!
//! Main types: [`Metadata`], [`FileType`].
//!
//! # Locking
//! None.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use extant_fs::Attr;
use extant_ondisk::inode;
use extant_ondisk::time::Timestamp;

/// The attributes of a file when they were read.
///
/// ```
/// let fs = extant::Image::memory(16 << 20).format()?.mount()?;
/// fs.write("/letter", "Dear reader")?;
/// let metadata = fs.metadata("/letter")?;
/// assert!(metadata.is_file() && metadata.len() == 11 && metadata.mode() == 0o644);
/// assert!(metadata.modified() <= std::time::SystemTime::now());
/// # Ok::<(), extant::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(pub(crate) Attr);

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A file with data.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// No kind that the format knows: the inode is damaged.
    Unknown,
}

impl FileType {
    /// Whether it is a file with data.
    pub fn is_file(self) -> bool {
        self == FileType::File
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self == FileType::Dir
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == FileType::Symlink
    }

    pub(crate) fn of_mode(mode: u16) -> FileType {
        FileType::of(inode::FileType::from_mode(mode))
    }

    pub(crate) fn of(kind: Option<inode::FileType>) -> FileType {
        match kind {
            Some(inode::FileType::Regular) => FileType::File,
            Some(inode::FileType::Directory) => FileType::Dir,
            Some(inode::FileType::Symlink) => FileType::Symlink,
            Some(inode::FileType::Fifo) => FileType::Fifo,
            Some(inode::FileType::Socket) => FileType::Socket,
            Some(inode::FileType::CharDevice) => FileType::CharDevice,
            Some(inode::FileType::BlockDevice) => FileType::BlockDevice,
            None => FileType::Unknown,
        }
    }
}

impl Metadata {
    /// The kind of the file.
    pub fn file_type(&self) -> FileType {
        FileType::of_mode(self.0.mode)
    }

    /// Whether it is a file with data.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a symbolic link; only [`crate::Fs::symlink_metadata`] and listings return such.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Bytes of content.
    #[allow(clippy::len_without_is_empty, reason = "as std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// The permission bits, `0o7777` at most.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.mode & 0o7777)
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// The group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// The inode number.
    pub fn ino(&self) -> u64 {
        u64::from(self.0.ino.0)
    }

    /// Names of the file; 1 for a directory with too many subdirectories to count.
    pub fn nlink(&self) -> u32 {
        self.0.nlink
    }

    /// Storage in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Of a device inode, its major and minor number.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.0.rdev.map(|rdev| (rdev.major, rdev.minor))
    }

    /// The last change of the content.
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// The last access.
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    /// The last change of the inode (`ctime`).
    pub fn changed(&self) -> SystemTime {
        system_time(self.0.ctime)
    }

    /// The creation; `None` if the inode has no room for it.
    pub fn created(&self) -> Option<SystemTime> {
        self.0.crtime.map(system_time)
    }
}

fn system_time(t: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(t.seconds.unsigned_abs());
    let second = if t.seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    second + Duration::from_nanos(u64::from(t.nanos))
}

/// The nearest time that a timestamp can hold.
pub(crate) fn timestamp(t: SystemTime) -> Timestamp {
    let seconds = |d: Duration| i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    match t.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: seconds(after), nanos: after.subsec_nanos() },
        Err(e) => {
            let before = e.duration();
            match before.subsec_nanos() {
                0 => Timestamp { seconds: -seconds(before), nanos: 0 },
                nanos => Timestamp { seconds: (-seconds(before)).saturating_sub(1), nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_the_epoch_survive_both_ways() {
        for (seconds, nanos) in [(0, 0), (1, 999_999_999), (-1, 1), (-2_147_483_648, 0), (15_032_385_535, 5)] {
            let t = Timestamp { seconds, nanos };
            assert_eq!(timestamp(system_time(t)), t);
        }
    }
}
