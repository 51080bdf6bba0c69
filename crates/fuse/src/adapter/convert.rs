//! Values of the protocol to values of the file system, and back.
//!
//! # Locking
//! None.

use extant_base::clock::Timespec;
use extant_fs as fs;
use extant_ondisk::inode::{DeviceNr, FileType};
use extant_ondisk::time::Timestamp;
use zerocopy::IntoBytes;

use crate::types::{self, Attr, SetTime, make_rdev, split_rdev};

const S_ISGID: u16 = 0o2000;
/// STATX_ATTR_{IMMUTABLE, APPEND, NODUMP}, which are the inode flags of the same names.
const STATX_ATTRIBUTES: u32 = 0x10 | 0x20 | 0x40;

pub(super) fn timespec(t: Timestamp) -> Timespec {
    Timespec { sec: t.seconds, nsec: t.nanos }
}

pub(super) fn timestamp(t: Timespec) -> Timestamp {
    Timestamp { seconds: t.sec, nanos: t.nsec }
}

pub(super) fn set_time(t: SetTime) -> fs::SetTime {
    match t {
        SetTime::Now => fs::SetTime::Now,
        SetTime::At(t) => fs::SetTime::At(timestamp(t)),
    }
}

/// What the kernel is shown; `uid` and `gid` override the image's.
pub(super) fn attr(a: &fs::Attr, uid: Option<u32>, gid: Option<u32>) -> Attr {
    Attr {
        ino: u64::from(a.ino.0),
        size: a.size,
        blocks: a.blocks,
        atime: timespec(a.atime),
        mtime: timespec(a.mtime),
        ctime: timespec(a.ctime),
        btime: a.crtime.map(timespec),
        mode: u32::from(a.mode),
        nlink: a.nlink,
        uid: uid.unwrap_or(a.uid),
        gid: gid.unwrap_or(a.gid),
        rdev: a.rdev.map_or(0, |d| make_rdev(d.major, d.minor)),
        blksize: a.block_size,
        attributes: u64::from(a.flags & STATX_ATTRIBUTES),
        attributes_mask: u64::from(STATX_ATTRIBUTES),
    }
}

pub(super) fn device(rdev: u32) -> DeviceNr {
    let (major, minor) = split_rdev(rdev);
    DeviceNr { major, minor }
}

/// The DT_* value of a directory entry.
pub(super) fn dirent_kind(kind: Option<FileType>) -> u32 {
    kind.map_or(0, |k| u32::from(k.mode_bits() >> 12))
}

/// The permission bits of a request's mode.
pub(super) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

pub(super) fn without_sgid(mode: u16) -> Option<u16> {
    (mode & S_ISGID != 0).then_some(mode & 0o7777 & !S_ISGID)
}

/// The FALLOC_FL_* combinations that the file system has.
pub(super) fn fallocate_mode(mode: u32) -> Option<fs::FallocateMode> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const ZERO_RANGE: u32 = 0x10;
    Some(match mode {
        0 => fs::FallocateMode::Allocate { keep_size: false },
        KEEP_SIZE => fs::FallocateMode::Allocate { keep_size: true },
        m if m == PUNCH_HOLE | KEEP_SIZE => fs::FallocateMode::PunchHole,
        ZERO_RANGE => fs::FallocateMode::ZeroRange { keep_size: false },
        m if m == ZERO_RANGE | KEEP_SIZE => fs::FallocateMode::ZeroRange { keep_size: true },
        _ => return None,
    })
}

/// Inode flags as `struct fsxattr` shows them: 28 bytes, of which only the first word says something.
pub(super) fn fsxattr(flags: u32) -> [u8; 28] {
    // (inode flag, FS_XFLAG_*): immutable, append, sync, noatime, nodump, project inheritance.
    const PAIRS: [(u32, u32); 6] =
        [(0x10, 0x08), (0x20, 0x10), (0x08, 0x20), (0x80, 0x40), (0x40, 0x80), (0x2000_0000, 0x200)];
    let xflags = PAIRS.iter().filter(|(flag, _)| flags & flag != 0).fold(0u32, |x, (_, xflag)| x | xflag);
    let mut out = [0; 28];
    out[..4].copy_from_slice(xflags.as_bytes());
    out
}

pub(super) fn statfs(s: &fs::StatFs) -> types::Statfs {
    types::Statfs {
        blocks: s.blocks,
        bfree: s.blocks_free,
        bavail: s.blocks_available,
        files: s.inodes,
        ffree: s.inodes_free,
        bsize: s.block_size,
        frsize: s.block_size,
        namelen: s.name_max,
    }
}
