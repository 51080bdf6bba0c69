//! The requests and replies of a [`Server`](crate::Server) as plain values, independent of the wire format.
//!
//! Main types: [`Request`], [`Attr`], [`Entry`], [`SetAttr`], [`Statfs`], and the argument groups of single operations.
//!
//! # Locking
//! None.

use std::time::Duration;

use extant_base::clock::Timespec;

use crate::abi;

pub use crate::abi::{ForgetOne as Forget, OpenFlags};

/// A timeout that means "until notified" (2^31 s): correct while nothing else changes the device.
pub const FOREVER: Duration = Duration::from_secs(1 << 31);

/// The sender of a request. Linux: `struct fuse_in_header`.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Identifies the request while it is unanswered; INTERRUPT refers to it.
    pub unique: u64,
    pub uid: u32,
    pub gid: u32,
    /// 0 for requests of the kernel itself (writeback, readahead by a kernel worker).
    pub pid: u32,
}

/// Attributes of an inode. Linux: `struct kstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attr {
    /// st_ino, which need not be the nodeid.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes.
    pub blocks: u64,
    pub atime: Timespec,
    pub mtime: Timespec,
    pub ctime: Timespec,
    /// Birth; only STATX returns it.
    pub btime: Option<Timespec>,
    /// File type and permissions (S_IF* | 07777).
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Device number of a device file, as [`make_rdev`] packs it.
    pub rdev: u32,
    /// Preferred I/O size, bytes.
    pub blksize: u32,
    /// STATX_ATTR_* bits; only STATX returns them.
    pub attributes: u64,
    /// The STATX_ATTR_* bits that the file system supports.
    pub attributes_mask: u64,
}

/// Packs a device number for the protocol. Linux: `new_encode_dev`.
pub fn make_rdev(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// Undoes [`make_rdev`]: (major, minor). Linux: `new_decode_dev`.
pub fn split_rdev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

fn sx_time(t: Timespec) -> abi::SxTime {
    abi::SxTime { tv_sec: t.sec, tv_nsec: t.nsec, reserved: 0 }
}

const STATX_BASIC_STATS: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

impl Attr {
    pub(crate) fn to_abi(self) -> abi::Attr {
        abi::Attr {
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.sec as u64,
            mtime: self.mtime.sec as u64,
            ctime: self.ctime.sec as u64,
            atimensec: self.atime.nsec,
            mtimensec: self.mtime.nsec,
            ctimensec: self.ctime.nsec,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.blksize,
            flags: 0,
        }
    }

    pub(crate) fn to_statx(self) -> abi::Statx {
        let (rdev_major, rdev_minor) = split_rdev(self.rdev);
        abi::Statx {
            mask: STATX_BASIC_STATS | if self.btime.is_some() { STATX_BTIME } else { 0 },
            blksize: self.blksize,
            attributes: self.attributes,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            mode: self.mode as u16,
            ino: self.ino,
            size: self.size,
            blocks: self.blocks,
            attributes_mask: self.attributes_mask,
            atime: sx_time(self.atime),
            btime: self.btime.map(sx_time).unwrap_or_default(),
            ctime: sx_time(self.ctime),
            mtime: sx_time(self.mtime),
            rdev_major,
            rdev_minor,
            ..abi::Statx::default()
        }
    }
}

/// A name that was resolved or created. Its delivery adds one to the kernel's lookup count of `nodeid`.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The inode's number in later requests; never 0. The root directory is [`abi::ROOT_ID`].
    pub nodeid: u64,
    /// (nodeid, generation) is never reused while the mount lives.
    pub generation: u64,
    pub attr: Attr,
    /// How long the kernel may cache the name.
    pub entry_valid: Duration,
    /// How long the kernel may cache the attributes.
    pub attr_valid: Duration,
}

impl Entry {
    pub(crate) fn to_abi(self) -> abi::EntryOut {
        abi::EntryOut {
            nodeid: self.nodeid,
            generation: self.generation,
            entry_valid: self.entry_valid.as_secs(),
            attr_valid: self.attr_valid.as_secs(),
            entry_valid_nsec: self.entry_valid.subsec_nanos(),
            attr_valid_nsec: self.attr_valid.subsec_nanos(),
            attr: self.attr.to_abi(),
        }
    }
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The server's current time (UTIME_NOW).
    Now,
    At(Timespec),
}

/// The changes of a SETATTR; `None` leaves a field unchanged. All of them belong into one transaction. Linux: `struct
/// iattr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    pub fh: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// Sent by the kernel under the writeback cache, where the kernel maintains the times.
    pub ctime: Option<Timespec>,
    /// Clear the set-user-id bit, and the set-group-id bit of a group-executable file.
    pub kill_suidgid: bool,
    pub lock_owner: Option<u64>,
}

/// Mode, mask and flags of CREATE and TMPFILE.
#[derive(Clone, Copy, Debug)]
pub struct CreateArgs {
    pub mode: u32,
    /// The server applies it only if DONT_MASK was negotiated ([`Config::posix_acl`](crate::Config::posix_acl)).
    pub umask: u32,
    /// O_* flags.
    pub flags: u32,
    pub kill_suidgid: bool,
}

/// Mode, mask and device of MKNOD and MKDIR (where `rdev` is 0).
#[derive(Clone, Copy, Debug)]
pub struct MknodArgs {
    pub mode: u32,
    /// As in [`CreateArgs::umask`].
    pub umask: u32,
    pub rdev: u32,
}

/// Both names of a RENAME.
#[derive(Clone, Copy, Debug)]
pub struct RenameArgs<'a> {
    pub parent: u64,
    pub name: &'a [u8],
    pub new_parent: u64,
    pub new_name: &'a [u8],
    /// RENAME_NOREPLACE (1), RENAME_EXCHANGE (2), RENAME_WHITEOUT (4).
    pub flags: u32,
}

/// Where a READ reads.
#[derive(Clone, Copy, Debug)]
pub struct ReadArgs {
    /// 0 when files are not opened ([`Config::no_open`](crate::Config::no_open)).
    pub fh: u64,
    /// Bytes.
    pub offset: u64,
    /// Bytes; the reply may be shorter only at the end of the file.
    pub size: u32,
    /// O_* flags of the open file.
    pub flags: u32,
    pub lock_owner: Option<u64>,
}

/// Where a WRITE writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteArgs {
    pub fh: u64,
    /// Bytes.
    pub offset: u64,
    /// O_* flags of the open file.
    pub flags: u32,
    /// From the kernel's page cache: the kernel chose `fh` by a guess, and the times arrive later with SETATTR.
    pub cached: bool,
    /// Clear the set-user-id bit, and the set-group-id bit of a group-executable file.
    pub kill_suidgid: bool,
    pub lock_owner: Option<u64>,
}

/// How a file is closed.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseArgs {
    pub fh: u64,
    pub flags: u32,
    pub flush: bool,
    pub lock_owner: u64,
}

/// How a SETXATTR sets.
#[derive(Clone, Copy, Debug)]
pub struct SetxattrArgs {
    /// XATTR_CREATE (1), XATTR_REPLACE (2).
    pub flags: u32,
    /// Setting system.posix_acl_access must clear the set-group-id bit.
    pub kill_sgid: bool,
}

/// The operation of a FALLOCATE.
#[derive(Clone, Copy, Debug)]
pub struct FallocateArgs {
    pub fh: u64,
    pub offset: u64,
    pub length: u64,
    /// FALLOC_FL_*.
    pub mode: u32,
}

/// Source and target of a COPY_FILE_RANGE.
#[derive(Clone, Copy, Debug)]
pub struct CopyArgs {
    pub ino_in: u64,
    pub fh_in: u64,
    pub offset_in: u64,
    pub ino_out: u64,
    pub fh_out: u64,
    pub offset_out: u64,
    pub length: u64,
    pub flags: u64,
}

/// An ioctl whose argument has the size and direction that its number encodes.
#[derive(Clone, Copy, Debug)]
pub struct IoctlArgs<'a> {
    pub fh: u64,
    pub cmd: u32,
    /// The caller's third argument, not interpreted.
    pub arg: u64,
    /// The input.
    pub data: &'a [u8],
    /// Largest size of the output, bytes.
    pub out_size: u32,
    pub directory: bool,
    pub compat: bool,
}

/// Linux: `struct kstatfs`. Counts are in units of `frsize` bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub frsize: u32,
    pub namelen: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_packing() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (0xfff, 0xfffff)] {
            assert_eq!(split_rdev(make_rdev(major, minor)), (major, minor));
        }
    }

    #[test]
    fn times_before_1970_keep_their_sign() {
        let attr = Attr { mtime: Timespec { sec: -5, nsec: 7 }, ..Attr::default() };
        assert_eq!(attr.to_abi().mtime as i64, -5);
        assert_eq!(attr.to_statx().mtime.tv_sec, -5);
        assert_eq!(attr.to_statx().mask & STATX_BTIME, 0);
    }
}
