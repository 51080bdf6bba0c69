//! The trait of a file system that a session serves, and the negotiation at INIT.
//!
//! Main types: [`Server`], [`Config`], [`InitOffer`].
//!
//! Replies: every operation gets a reply object that answers exactly once. The server may move it to another thread and
//! answer there, so that no worker waits for a disk or a commit. Names and data are borrowed from the worker's buffer,
//! so the server must copy them for that. A reply object that is dropped unanswered answers EIO.
//!
//! Lookup counts: the kernel counts one lookup per delivered [`ReplyEntry`], [`ReplyCreate`] and READDIRPLUS entry
//! except "." and "..". If the delivery fails (`Err`), the kernel has not counted it: the server takes back the count,
//! and an opened handle.
//!
//! # Locking
//! A worker holds its own rank-1 lock `fuse gate` while it calls an operation. The server may take any lock above.

use crate::transport::reply::*;
use crate::types::*;

/// The kernel's offer at INIT.
#[derive(Clone, Copy, Debug)]
pub struct InitOffer {
    /// Protocol minor version of the session.
    pub minor: u32,
    pub flags: crate::abi::InitFlags,
    /// Bytes.
    pub max_readahead: u32,
    /// True for `fuseblk`: the kernel will send SYNCFS and DESTROY.
    pub block_device: bool,
}

/// The options that the server requests at INIT. The kernel grants those that it has offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The kernel delays writes; it then maintains size, mtime and ctime of regular files.
    pub writeback_cache: bool,
    /// Files are never opened: OPEN is answered with ENOSYS, handles are 0, and truncation at open arrives as a
    /// SETATTR.
    pub no_open: bool,
    /// As `no_open`, for directories; the kernel then caches their entries.
    pub no_opendir: bool,
    pub readdirplus: bool,
    /// READDIRPLUS only if lookups follow.
    pub readdirplus_auto: bool,
    /// The server enforces ACLs and applies the umask itself (DONT_MASK).
    pub posix_acl: bool,
    /// The server answers LOOKUP of "." and ".." by nodeid, so that NFS handles stay valid.
    pub export_support: bool,
    pub cache_symlinks: bool,
    /// The server clears set-id bits if the `kill_suidgid` flags request it, and on every chown.
    pub handle_killpriv: bool,
    /// Resolution of timestamps, nanoseconds (10^9 for inodes of 128 bytes).
    pub time_gran: u32,
    /// Largest WRITE, bytes.
    pub max_write: u32,
    pub max_background: u16,
    pub congestion_threshold: u16,
    /// Bytes; the kernel's offer is the upper bound.
    pub max_readahead: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            writeback_cache: false,
            no_open: false,
            no_opendir: false,
            readdirplus: true,
            readdirplus_auto: true,
            posix_acl: false,
            export_support: false,
            cache_symlinks: true,
            handle_killpriv: true,
            time_gran: 1,
            max_write: 1 << 20,
            max_background: 64,
            congestion_threshold: 48,
            max_readahead: u32::MAX,
        }
    }
}

/// A file system as the kernel calls it. `ino` and `parent` are nodeids; the root is [`crate::abi::ROOT_ID`].
///
/// Operations run on several threads at once. The defaults answer ENOSYS, after which the kernel stops sending some
/// operations: every server must implement `fsync`.
#[allow(unused_variables)]
pub trait Server: Send + Sync + 'static {
    /// The first call. Linux: FUSE_INIT.
    fn init(&self, offer: &InitOffer) -> Config {
        Config::default()
    }

    /// The result of the negotiation. Called directly after [`Server::init`], before any request.
    fn negotiated(&self, granted: &Config) {}

    /// The last call, exactly once, after all workers have stopped calling. Everything must be on disk when it
    /// returns. The kernel has dropped its references without FORGETs. For `fuseblk`, umount(2) waits for it.
    fn destroy(&self) {}

    /// An operation panicked (its caller got EIO). The server must no longer trust its memory; the mount continues.
    fn poisoned(&self) {}

    /// Called before each request. If true, the request fails with EIO. Exceptions are requests that need nothing from
    /// the device (attributes, the size of the file system) and requests that release something.
    fn is_down(&self) -> bool {
        false
    }

    fn lookup(&self, req: &Request, parent: u64, name: &[u8], reply: ReplyEntry) {
        reply.nosys();
    }

    /// The kernel drops references. No process waits for this call, but its worker serves no other request meanwhile.
    fn forget(&self, batch: &[Forget]) {}

    fn getattr(&self, req: &Request, ino: u64, fh: Option<u64>, reply: ReplyAttr) {
        reply.nosys();
    }

    fn statx(&self, req: &Request, ino: u64, fh: Option<u64>, reply: ReplyStatx) {
        reply.nosys();
    }

    fn setattr(&self, req: &Request, ino: u64, set: &SetAttr, reply: ReplyAttr) {
        reply.nosys();
    }

    fn readlink(&self, req: &Request, ino: u64, reply: ReplyData) {
        reply.nosys();
    }

    fn mknod(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        reply.nosys();
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        reply.nosys();
    }

    fn unlink(&self, req: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply.nosys();
    }

    fn rmdir(&self, req: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply.nosys();
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        reply.nosys();
    }

    fn rename(&self, req: &Request, args: &RenameArgs<'_>, reply: ReplyEmpty) {
        reply.nosys();
    }

    /// A new name `parent`/`name` for `ino`.
    fn link(&self, req: &Request, ino: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        reply.nosys();
    }

    /// `flags` are O_* flags; with O_TRUNC the file must be truncated in this call. Not called with `no_open`.
    fn open(&self, req: &Request, ino: u64, flags: u32, kill_suidgid: bool, reply: ReplyOpen) {
        reply.nosys();
    }

    fn read(&self, req: &Request, ino: u64, args: &ReadArgs, reply: ReplyData) {
        reply.nosys();
    }

    /// `data` starts at a page boundary of the worker's buffer.
    fn write(&self, req: &Request, ino: u64, args: &WriteArgs, data: &[u8], reply: ReplyWrite) {
        reply.nosys();
    }

    fn statfs(&self, req: &Request, ino: u64, reply: ReplyStatfs) {
        reply.nosys();
    }

    fn release(&self, req: &Request, ino: u64, args: &ReleaseArgs, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Must reply only when the data and, without `datasync`, the inode are durable.
    fn fsync(&self, req: &Request, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        reply.nosys();
    }

    fn fsyncdir(&self, req: &Request, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        reply.nosys();
    }

    /// syncfs(2) and sync(2); only `fuseblk` sends it.
    fn syncfs(&self, req: &Request, ino: u64, reply: ReplyEmpty) {
        reply.nosys();
    }

    fn setxattr(&self, req: &Request, ino: u64, name: &[u8], value: &[u8], args: &SetxattrArgs, reply: ReplyEmpty) {
        reply.nosys();
    }

    fn getxattr(&self, req: &Request, ino: u64, name: &[u8], reply: ReplyXattr) {
        reply.nosys();
    }

    /// The value is the list of names, each ended by NUL.
    fn listxattr(&self, req: &Request, ino: u64, reply: ReplyXattr) {
        reply.nosys();
    }

    fn removexattr(&self, req: &Request, ino: u64, name: &[u8], reply: ReplyEmpty) {
        reply.nosys();
    }

    /// One close(2) of possibly several on the same open file.
    fn flush(&self, req: &Request, ino: u64, fh: u64, lock_owner: u64, reply: ReplyEmpty) {
        reply.nosys();
    }

    /// Not called with `no_opendir`.
    fn opendir(&self, req: &Request, ino: u64, flags: u32, reply: ReplyOpen) {
        reply.nosys();
    }

    /// Entries whose cookie is after `offset` (0: from the start).
    fn readdir(&self, req: &Request, ino: u64, fh: u64, offset: u64, reply: ReplyDir) {
        reply.nosys();
    }

    fn readdirplus(&self, req: &Request, ino: u64, fh: u64, offset: u64, reply: ReplyDirPlus) {
        reply.nosys();
    }

    fn releasedir(&self, req: &Request, ino: u64, fh: u64, flags: u32, reply: ReplyEmpty) {
        reply.ok();
    }

    fn access(&self, req: &Request, ino: u64, mask: u32, reply: ReplyEmpty) {
        reply.nosys();
    }

    fn create(&self, req: &Request, parent: u64, name: &[u8], args: &CreateArgs, reply: ReplyCreate) {
        reply.nosys();
    }

    /// An open inode without a name. Linux: O_TMPFILE.
    fn tmpfile(&self, req: &Request, parent: u64, args: &CreateArgs, reply: ReplyCreate) {
        reply.nosys();
    }

    /// `whence` is SEEK_DATA (3) or SEEK_HOLE (4).
    fn lseek(&self, req: &Request, ino: u64, fh: u64, offset: u64, whence: u32, reply: ReplyLseek) {
        reply.nosys();
    }

    fn fallocate(&self, req: &Request, ino: u64, args: &FallocateArgs, reply: ReplyEmpty) {
        reply.nosys();
    }

    fn copy_file_range(&self, req: &Request, args: &CopyArgs, reply: ReplyCopy) {
        reply.nosys();
    }

    fn ioctl(&self, req: &Request, ino: u64, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        reply.nosys();
    }

    /// The device block behind block `block` (of `blocksize` bytes) of the file. Linux: FIBMAP; only `fuseblk` sends
    /// it.
    fn bmap(&self, req: &Request, ino: u64, blocksize: u32, block: u64, reply: ReplyBmap) {
        reply.nosys();
    }

    /// The caller of request `unique` got a signal. If the request is finished or has not arrived yet, ignoring the
    /// signal is correct. Answer EINTR to the original request only if nothing was changed.
    fn interrupt(&self, unique: u64) {}
}
