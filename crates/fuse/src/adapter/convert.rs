//! Conversions between values of the protocol and values of the file system.
//!
//! # Locking
//! None.

use extant_base::clock::Timespec;
use extant_fs as fs;
use extant_ondisk::inode::{DeviceNr, FileType, InodeFlags};
use extant_ondisk::time::Timestamp;
use zerocopy::{FromBytes, IntoBytes};

use crate::Errno;
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

/// The attributes that the kernel sees; `uid` and `gid` override those of the image.
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

/// The FALLOC_FL_* combinations that the file system supports.
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

/// (inode flag, `FS_XFLAG_*`), as Linux's `fileattr_fill_flags` pairs them.
const XFLAGS: [(InodeFlags, u32); 7] = [
    (InodeFlags::IMMUTABLE, 0x08),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
    (InodeFlags::PROJINHERIT, 0x200),
    (InodeFlags::DAX, 0x8000),
];
/// Bytes of `struct fsxattr`: flags, extent size, extents, project, extent size for copy-on-write, 8 unused.
const FSXATTR_BYTES: usize = 28;
const FSX_PROJID: usize = 12;

/// The reply to `FS_IOC_FSGETXATTR`.
pub(super) fn fsxattr(flags: u32, project: u32) -> [u8; FSXATTR_BYTES] {
    let flags = InodeFlags::from_bits_retain(flags);
    let xflags = XFLAGS.iter().filter(|(flag, _)| flags.contains(*flag)).fold(0u32, |x, (_, xflag)| x | xflag);
    let mut out = [0; FSXATTR_BYTES];
    out[..4].copy_from_slice(xflags.as_bytes());
    out[FSX_PROJID..FSX_PROJID + 4].copy_from_slice(project.as_bytes());
    out
}

/// The change that `FS_IOC_FSSETXATTR` requests for an inode with these flags. Flags that it cannot express do not
/// change.
pub(super) fn set_fsxattr(data: &[u8], flags: u32) -> Result<fs::SetFlags, Errno> {
    let word = |at: usize| {
        let bytes = data.get(at..).ok_or(Errno::INVAL)?;
        u32::read_from_prefix(bytes).map(|(word, _)| word).map_err(|_| Errno::INVAL)
    };
    let xflags = word(0)?;
    let known = XFLAGS.iter().fold(0, |x, (_, xflag)| x | xflag);
    if xflags & !known != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let mut flags = InodeFlags::from_bits_retain(flags) & InodeFlags::USER_VISIBLE;
    for (flag, xflag) in XFLAGS {
        flags.set(flag, xflags & xflag != 0);
    }
    Ok(fs::SetFlags { flags: Some(flags.bits()), project: Some(word(FSX_PROJID)?), privileged: false })
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
