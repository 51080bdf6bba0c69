//! Flag sets of the protocol. Linux: the `FUSE_*`, `FATTR_*` and `FOPEN_*` constants.

use bitflags::bitflags;

bitflags! {
    /// INIT capabilities; bits 32..63 travel as `flags2`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const POSIX_LOCKS = 1 << 1;
        const ATOMIC_O_TRUNC = 1 << 3;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const SPLICE_WRITE = 1 << 7;
        const SPLICE_MOVE = 1 << 8;
        const SPLICE_READ = 1 << 9;
        const FLOCK_LOCKS = 1 << 10;
        const HAS_IOCTL_DIR = 1 << 11;
        const AUTO_INVAL_DATA = 1 << 12;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const HANDLE_KILLPRIV = 1 << 19;
        const POSIX_ACL = 1 << 20;
        const ABORT_ERROR = 1 << 21;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const MAP_ALIGNMENT = 1 << 26;
        const SUBMOUNTS = 1 << 27;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const SECURITY_CTX = 1 << 32;
        const HAS_INODE_DAX = 1 << 33;
        const CREATE_SUPP_GROUP = 1 << 34;
        const HAS_EXPIRE_ONLY = 1 << 35;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const PASSTHROUGH = 1 << 37;
        const NO_EXPORT_SUPPORT = 1 << 38;
        const HAS_RESEND = 1 << 39;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
        const REQUEST_TIMEOUT = 1 << 42;
    }

    /// The attributes that a SETATTR changes. Linux: `FATTR_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const FH = 1 << 6;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const LOCKOWNER = 1 << 9;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }

    /// How the kernel treats an open file. Linux: `FOPEN_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct OpenFlags: u32 {
        /// Bypass the kernel's page cache.
        const DIRECT_IO = 1 << 0;
        /// Keep the file's pages in the kernel's cache.
        const KEEP_CACHE = 1 << 1;
        const NONSEEKABLE = 1 << 2;
        /// The kernel may cache the entries of this directory.
        const CACHE_DIR = 1 << 3;
        const STREAM = 1 << 4;
        /// No FLUSH at close (has no effect with the writeback cache).
        const NOFLUSH = 1 << 5;
        /// Direct writes to one file may run in parallel.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// GETATTR and STATX: `fh` is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// OPEN and CREATE with O_TRUNC: clear the set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// WRITE from the kernel's page cache; the kernel chose the handle by a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// WRITE must clear the set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub const READ_LOCKOWNER: u32 = 1 << 1;
pub const RELEASE_FLUSH: u32 = 1 << 0;
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// SETXATTR of system.posix_acl_access must clear the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// The ioctl came through a directory.
pub const IOCTL_DIR: u32 = 1 << 4;
/// The ioctl came from a 32-bit process.
pub const IOCTL_COMPAT: u32 = 1 << 0;
/// NOTIFY_INVAL_ENTRY: let the entry expire, but keep what is below it.
pub const EXPIRE_ONLY: u32 = 1 << 0;
