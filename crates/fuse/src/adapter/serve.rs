//! The operations.
//!
//! Each operation finds the inode behind the nodeid, calls the file system, and answers. A request that waits for
//! durability (FSYNC, FSYNCDIR, SYNCFS) is answered by the thread that completes the commit, so that no worker waits.
//!
//! # Locking
//! None of its own beyond the module's.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use extant_fs::{
    Caller, Error, Filesystem, InodeRef, NewNode, OpenFor, RenameFlags, Seek, SetAttr as FsSetAttr, SetFlags, SetMode,
    WriteFlags,
};
use extant_ondisk::inode::{FileType, InodeFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::FsServer;
use super::convert::{self, permissions};
use super::direct::DirectIo;
use super::errno::errno;
use super::openers::{Openers, cursor_of_process};
use crate::Errno;
use crate::abi::ROOT_ID;
use crate::server::{Config, InitOffer, Server};
use crate::transport::dirbuf::DirAdd;
use crate::transport::reply::*;
use crate::types::*;

/// Evaluates to the value, or answers with the error and returns.
macro_rules! check {
    ($reply:ident, $result:expr) => {
        match $result {
            Ok(value) => value,
            Err(e) => return $reply.error(Errno::from(AsErrno::from(e))),
        }
    };
}

/// Both errors of the file system and error numbers, for `check!`.
struct AsErrno(Errno);

impl From<Error> for AsErrno {
    fn from(e: Error) -> AsErrno {
        AsErrno(errno(&e))
    }
}

impl From<Errno> for AsErrno {
    fn from(e: Errno) -> AsErrno {
        AsErrno(e)
    }
}

impl From<AsErrno> for Errno {
    fn from(e: AsErrno) -> Errno {
        e.0
    }
}

const O_ACCMODE: u32 = 0o3;
const O_WRONLY: u32 = 0o1;
const O_EXCL: u32 = 0o200;
const O_TRUNC: u32 = 0o1000;
const O_APPEND: u32 = 0o2000;
const RENAME_NOREPLACE: u32 = 1;
const RENAME_EXCHANGE: u32 = 2;
const RENAME_WHITEOUT: u32 = 4;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
const FS_IOC_GETFLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
const FS_IOC_SETFLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
const FS_IOC_GETVERSION: [u32; 2] = [0x8008_7601, 0x8004_7601];
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// The prefix of ACL names.
const ACLS: &[u8] = b"system.posix_acl_";

/// The offset in a notification that drops an inode's cached attributes but no cached content.
const ATTRIBUTES_ONLY: i64 = -1;

/// How the kernel treats a file that bypasses its page cache.
const DIRECT_FLAGS: OpenFlags = OpenFlags::DIRECT_IO.union(OpenFlags::PARALLEL_DIRECT_WRITES);

thread_local! {
    /// The nodeids in a READDIRPLUS reply.
    static NODEIDS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn empty(reply: ReplyEmpty, result: Result<(), Error>) {
    match result {
        Ok(()) => reply.ok(),
        Err(e) => reply.error(errno(&e)),
    }
}

impl FsServer {
    /// Keeps the kernel's cached pages of the inode, unless reads must reach the server to update the access time.
    fn cached_flags(&self, inode: &InodeRef, reads: bool) -> OpenFlags {
        match reads && self.fs.atime_is_due(inode) {
            true => OpenFlags::empty(),
            false => OpenFlags::KEEP_CACHE,
        }
    }

    fn make(&self, req: &Request, parent: u64, name: &[u8], umask: u32, node: NewNode<'_>, reply: ReplyEntry) {
        let dir = check!(reply, self.node(parent));
        let cred = self.cred(req, &dir, umask);
        let inode = check!(reply, caller(req).run(|| self.fs.create(&dir, name, node, cred)));
        check!(reply, self.after_change());
        self.answer_entry(&inode, reply);
    }

    fn direct_io(&self) -> DirectIo {
        self.direct_io.get().copied().unwrap_or_default()
    }

    fn answer_create(&self, inode: InodeRef, flags: u32, reply: ReplyCreate) {
        let Some(nodeid) = self.nodes.nodeid_of(inode.ino) else { return reply.error(Errno::UCLEAN) };
        let entry = self.entry(nodeid, &inode);
        // With `no_open` the kernel sends no RELEASE, once it has seen ENOSYS.
        let closes = !self.no_open.load(Ordering::Relaxed);
        let handle = if closes { self.opened(&inode) } else { 0 };
        let (handle, how) = match self.direct_io().of_new(flags & O_ACCMODE == O_WRONLY) {
            true => (Openers::direct(handle), DIRECT_FLAGS),
            false => (handle, OpenFlags::KEEP_CACHE),
        };
        self.nodes.add(nodeid, &inode, self.most_held());
        if reply.ok(&entry, handle, how).is_err() {
            self.nodes.forget(nodeid, 1);
            self.openers.remove(handle);
        }
    }

    /// A handle for a client that opens the inode.
    fn opened(&self, inode: &InodeRef) -> u64 {
        self.openers.add(self.fs.serving().open_cursor(inode), Some(inode.clone()))
    }

    fn answer_fsync(&self, req: &Request, ino: u64, handle: u64, datasync: bool, reply: ReplyEmpty) {
        let inode = check!(reply, self.node(ino));
        let ticket = self.outstanding.begin();
        let done = move |result| {
            empty(reply, result);
            drop(ticket);
        };
        let cursor = self.openers.cursor(handle, req.pid);
        self.fs.serving().fsync_async(&inode, cursor, datasync, Box::new(done));
    }

    /// Restricts a SETATTR if the owner shown overrides the owner stored.
    fn override_owner(&self, set: &mut FsSetAttr) -> Result<(), Errno> {
        for (shown, wanted) in [(self.options.uid, &mut set.uid), (self.options.gid, &mut set.gid)] {
            if let (Some(shown), Some(id)) = (shown, *wanted) {
                if shown != id {
                    return Err(Errno::PERM);
                }
                *wanted = None;
            }
        }
        Ok(())
    }

    /// chattr(1). Newer kernels have already checked owner and capabilities; older ones pass every request on.
    fn set_flags(&self, req: &Request, ino: u64, inode: InodeRef, set: SetFlags, reply: ReplyIoctl) {
        let attr = self.fs.getattr(&inode);
        let owner = self.options.uid.unwrap_or(attr.uid);
        if req.uid != 0 && req.uid != owner {
            return reply.error(Errno::PERM);
        }
        let set = SetFlags { privileged: req.uid == 0, ..set };
        let Some(notifier) = self.notifier.lock().clone() else { return reply.nosys() };
        let sync = self.options.sync;
        let answer = move |fs: &Filesystem, inode: &InodeRef, reply: ReplyIoctl| {
            check!(reply, fs.set_flags(inode, set));
            // The kernel does not know that the ctime has changed.
            let _ = notifier.inval_inode(ino, ATTRIBUTES_ONLY, 0);
            if sync {
                check!(reply, fs.fsync(inode, false));
            }
            reply.ok(0, &[]);
        };
        if set.flags.is_none_or(|f| f & !attr.flags & InodeFlags::IMMUTABLE.bits() == 0) {
            return answer(&self.fs, &inode, reply);
        }
        // The kernel's dirty pages of this inode were written before it becomes immutable, so they are flushed first.
        // Flushing needs workers, so no worker may wait for it.
        let Some(notifier) = self.notifier.lock().clone() else { return reply.nosys() };
        let (fs, ticket) = (self.fs.clone(), self.outstanding.begin());
        self.helper.submit(Box::new(move || {
            let _ = notifier.inval_inode(ino, 0, 0);
            answer(&fs, &inode, reply);
            drop((inode, fs));
            drop(ticket);
        }));
    }

    /// Whether the caller belongs to the file's group, as far as a request tells: it has no supplementary groups. Root
    /// counts as a member.
    fn is_member(&self, req: &Request, inode: &InodeRef) -> bool {
        req.uid == 0 || req.gid == self.options.gid.unwrap_or(self.fs.getattr(inode).gid)
    }

    /// Whether set-id bits are removed for this caller although nothing has been written. The kernel sends an empty
    /// SETATTR before a write. It also sends one for chown(2) without owner and group, which every user may call. So
    /// the bits are removed only for callers that could remove them anyway: root, the owner, and users that may write
    /// the file by its mode.
    fn may_take_privileges(&self, req: &Request, inode: &InodeRef) -> bool {
        let attr = self.fs.getattr(inode);
        let owns = req.uid == 0 || req.uid == self.options.uid.unwrap_or(attr.uid);
        owns || attr.mode & if self.is_member(req, inode) { 0o020 } else { 0o002 } != 0
    }

    /// Drops the kernel's cached attributes of an inode after a change that the kernel does not know of.
    fn forget_attributes(&self, ino: u64) {
        if let Some(notifier) = self.notifier.lock().clone() {
            let _ = notifier.inval_inode(ino, ATTRIBUTES_ONLY, 0);
        }
    }

    /// An ACL may have changed the mode. The kernel then drops its cached mode. Without a notification, it would cache
    /// an older answer that arrives later, indefinitely.
    fn note_acl(&self, ino: u64, name: &[u8]) {
        if name.starts_with(ACLS) {
            self.forget_attributes(ino);
        }
    }

    /// Runs a change of content that removes the set-id bits, if there are any.
    fn taking_privileges<T>(&self, ino: u64, inode: &InodeRef, takes: bool, change: impl FnOnce() -> T) -> T {
        let takes = takes && inode.mode() & 0o6000 != 0;
        let r = change();
        if takes {
            self.forget_attributes(ino);
        }
        r
    }

    /// With `dirsync` the caller waits until the change of a directory is durable.
    fn after_change(&self) -> Result<(), Error> {
        if self.options.dirsync { self.fs.sync_names() } else { Ok(()) }
    }

    /// With `sync` the caller waits until the change of an inode is durable.
    fn after_change_of(&self, inode: &InodeRef) -> Result<(), Error> {
        if self.options.sync { self.fs.fsync(inode, false) } else { Ok(()) }
    }

    fn list(&self, dir: &InodeRef, offset: u64, mut reply: ReplyDir) {
        let mut any = false;
        let listed = self.fs.read_dir(dir, offset, |e| {
            let added = reply.add(u64::from(e.ino.0), e.next_cookie, convert::dirent_kind(e.kind), e.name);
            any |= added != DirAdd::Full;
            added != DirAdd::Full
        });
        // As getdents(2): names first, and the error when there are no more.
        if !any {
            check!(reply, listed);
        }
        reply.ok();
    }

    fn list_plus(&self, dir: &InodeRef, offset: u64, mut reply: ReplyDirPlus) {
        let mut nodeids = NODEIDS.take();
        nodeids.clear();
        let (mut any, most) = (false, self.most_held());
        let listed = self.fs.read_dir(dir, offset, |e| {
            let (ino, next) = (u64::from(e.ino.0), e.next_cookie);
            let plain = |reply: &mut ReplyDirPlus| reply.add_plain(ino, next, convert::dirent_kind(e.kind), e.name);
            let added = match (self.nodes.nodeid_of(e.ino), e.name) {
                (_, b"." | b"..") | (None, _) => plain(&mut reply),
                (Some(nodeid), _) => match self.fs.iget(e.ino) {
                    Ok(inode) => {
                        let added = reply.add(&self.entry(nodeid, &inode), next, e.name);
                        if added == DirAdd::Added {
                            self.nodes.add(nodeid, &inode, most);
                            nodeids.push(nodeid);
                        }
                        added
                    }
                    // A LOOKUP of this name will report the error.
                    Err(_) => plain(&mut reply),
                },
            };
            any |= added != DirAdd::Full;
            added != DirAdd::Full
        });
        let delivered = match listed {
            Err(e) if !any => {
                reply.error(errno(&e));
                false
            }
            _ => reply.ok().is_ok(),
        };
        if !delivered {
            nodeids.iter().for_each(|nodeid| self.nodes.forget(*nodeid, 1));
        }
        NODEIDS.set(nodeids);
    }
}

/// The user and group whose share of the reserved space a request may use. They are those of its process, even if its
/// files are shown or stored as another user's.
fn caller(req: &Request) -> Caller {
    Caller { uid: req.uid, gid: req.gid }
}

fn open_for(flags: u32) -> OpenFor {
    OpenFor { write: flags & O_ACCMODE != 0, append: flags & O_APPEND != 0, truncate: flags & O_TRUNC != 0 }
}

fn answer_seek(reply: ReplyLseek, found: Result<u64, Error>) {
    match found {
        Ok(at) => reply.ok(at),
        Err(e) => reply.error(errno(&e)),
    }
}

/// The hole that an answer to lseek(2) depends on: where it begins and ends. None if the answer depends on no hole.
fn hole(fs: &Filesystem, inode: &InodeRef, offset: u64, what: Seek, found: &Result<u64, Error>) -> Option<(u64, u64)> {
    let size = fs.getattr(inode).size;
    let hole = match (what, found) {
        (Seek::Data, Ok(at)) => (offset, *at),
        (Seek::Data, Err(Error::NoSuchOffset)) => (offset, size),
        (Seek::Hole, Ok(at)) => (*at, fs.seek(inode, *at, Seek::Data).unwrap_or(size)),
        (_, Err(_)) => return None,
    };
    (hole.0 < hole.1).then_some(hole)
}

/// Repeats lseek(2) after the kernel has written its dirty pages in the holes that the answer depends on. `first` is
/// the first such hole; if it turns out to be data, the next ones follow.
fn seek_below(
    fs: &Filesystem,
    inode: &InodeRef,
    (offset, what): (u64, Seek),
    first: (u64, u64),
    write: impl Fn(u64, u64),
) -> Result<u64, Error> {
    let (start, mut end) = first;
    write(start, end);
    loop {
        let found = fs.seek(inode, offset, what);
        match hole(fs, inode, offset, what, &found) {
            // Each hole is behind the previous ones, so the loop ends.
            Some(next) if what == Seek::Hole && next.0 >= end => {
                write(next.0, next.1);
                end = next.1;
            }
            _ => return found,
        }
    }
}

impl Server for FsServer {
    fn init(&self, offer: &InitOffer) -> Config {
        let o = &self.options;
        let coarse_times = self.fs.geometry().want_extra_isize == 0;
        let writeback_cache = o.writeback_cache && !self.fs.is_read_only();
        let direct_io = self.direct_io.get_or_init(|| o.direct_io.granted(offer.minor, writeback_cache));
        Config {
            writeback_cache,
            no_open: o.no_open && !matches!(direct_io, DirectIo::From(_)),
            no_opendir: o.no_opendir,
            readdirplus: o.readdirplus,
            readdirplus_auto: true,
            posix_acl: o.posix_acl && o.xattrs && self.fs.has_acls(),
            // By number, a client could reach inodes outside the subdirectory.
            export_support: o.export_support && o.root.is_none(),
            cache_symlinks: true,
            handle_killpriv: true,
            time_gran: if coarse_times { 1_000_000_000 } else { 1 },
            max_write: o.max_write,
            max_background: o.max_background,
            congestion_threshold: o.max_background / 4 * 3,
            max_readahead: offer.max_readahead,
        }
    }

    fn negotiated(&self, granted: &Config) {
        self.no_open.store(granted.no_open, Ordering::Relaxed);
        self.dont_mask.store(granted.posix_acl, Ordering::Relaxed);
        self.writeback.store(granted.writeback_cache, Ordering::Relaxed);
    }

    fn destroy(&self) {
        self.destroy_now();
    }

    fn poisoned(&self) {
        self.fs.abort("an operation panicked");
    }

    fn is_down(&self) -> bool {
        self.down.load(Ordering::Acquire)
    }

    fn lookup(&self, _req: &Request, parent: u64, name: &[u8], reply: ReplyEntry) {
        let found = match name {
            b"." => return self.answer_entry(&*check!(reply, self.node_by_number(parent)), reply),
            // The mount shows nothing above its root.
            b".." if parent == ROOT_ID => Ok(check!(reply, self.node(parent)).clone()),
            b".." => self.fs.parent(&*check!(reply, self.node_by_number(parent))),
            _ => self.fs.lookup(&*check!(reply, self.node(parent)), name),
        };
        match found {
            Ok(inode) => self.answer_entry(&inode, reply),
            Err(Error::NotFound) => reply.negative(self.no_name_valid()),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn forget(&self, batch: &[Forget]) {
        for f in batch {
            self.nodes.forget(f.nodeid, f.nlookup);
        }
        // Inodes with no name and no user are freed here, because no caller waits for a FORGET.
        self.fs.serving().reap();
    }

    fn getattr(&self, _req: &Request, ino: u64, _fh: Option<u64>, reply: ReplyAttr) {
        let inode = check!(reply, self.node(ino));
        reply.ok(&self.attr(&inode), self.attr_valid(&inode));
    }

    fn statx(&self, _req: &Request, ino: u64, _fh: Option<u64>, reply: ReplyStatx) {
        let inode = check!(reply, self.node(ino));
        reply.ok(&self.attr(&inode), self.attr_valid(&inode));
    }

    fn setattr(&self, req: &Request, ino: u64, set: &SetAttr, reply: ReplyAttr) {
        let inode = check!(reply, self.node(ino));
        let mut wanted = FsSetAttr {
            mode: set.mode.map(permissions),
            uid: set.uid,
            gid: set.gid,
            size: set.size,
            atime: set.atime.map(convert::set_time),
            mtime: set.mtime.map(convert::set_time),
            ctime: set.ctime.map(convert::timestamp),
            kill_privileges: set.kill_suidgid,
        };
        check!(reply, self.override_owner(&mut wanted));
        let nothing = FsSetAttr { ctime: wanted.ctime, ..FsSetAttr::default() };
        if wanted == nothing && !inode.is_dir() && self.may_take_privileges(req, &inode) {
            // chown(2) without owner and group: its only effect is to remove the set-id bits.
            check!(reply, self.fs.drop_privileges(&inode, self.is_member(req, &inode)));
        }
        let attr = check!(reply, caller(req).run(|| self.fs.setattr(&inode, &wanted)));
        check!(reply, self.after_change_of(&inode));
        reply.ok(&convert::attr(&attr, self.options.uid, self.options.gid), self.attr_valid(&inode));
    }

    fn readlink(&self, _req: &Request, ino: u64, reply: ReplyData) {
        let inode = check!(reply, self.node(ino));
        let target = check!(reply, self.fs.read_link(&inode));
        let n = target.len().min(reply.size());
        reply.ok(&target[..n]);
    }

    fn mknod(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        let rdev = Some(convert::device(args.rdev));
        self.make(req, parent, name, args.umask, NewNode { mode: args.mode as u16, rdev, target: None }, reply);
    }

    fn mkdir(&self, req: &Request, parent: u64, name: &[u8], args: &MknodArgs, reply: ReplyEntry) {
        self.make(req, parent, name, args.umask, NewNode::directory(permissions(args.mode)), reply);
    }

    fn symlink(&self, req: &Request, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        self.make(req, parent, name, 0, NewNode::symlink(target), reply);
    }

    fn unlink(&self, _req: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let dir = check!(reply, self.node(parent));
        let done = self.fs.unlink(&dir, name);
        empty(reply, done.and_then(|()| self.after_change()));
    }

    fn rmdir(&self, _req: &Request, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let dir = check!(reply, self.node(parent));
        let done = self.fs.rmdir(&dir, name);
        empty(reply, done.and_then(|()| self.after_change()));
    }

    fn rename(&self, req: &Request, args: &RenameArgs<'_>, reply: ReplyEmpty) {
        let old = check!(reply, self.node(args.parent));
        let new = check!(reply, self.node(args.new_parent));
        if args.flags & !(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT) != 0 {
            return reply.error(Errno::INVAL);
        }
        let flags = RenameFlags {
            no_replace: args.flags & RENAME_NOREPLACE != 0,
            exchange: args.flags & RENAME_EXCHANGE != 0,
            whiteout: (args.flags & RENAME_WHITEOUT != 0).then(|| self.cred(req, &old, 0)),
        };
        let done = caller(req).run(|| self.fs.rename(&old, args.name, &new, args.new_name, flags));
        empty(reply, done.and_then(|()| self.after_change()));
    }

    fn link(&self, req: &Request, ino: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        let inode = check!(reply, self.node(ino));
        let dir = check!(reply, self.node(parent));
        check!(reply, caller(req).run(|| self.fs.link(&inode, &dir, name)));
        check!(reply, self.after_change());
        self.answer_entry(&inode, reply);
    }

    fn open(&self, _req: &Request, ino: u64, flags: u32, kill_suidgid: bool, reply: ReplyOpen) {
        let inode = check!(reply, self.node(ino));
        check!(reply, self.fs.may_open(&inode, open_for(flags)));
        if flags & O_TRUNC != 0 {
            let set = FsSetAttr { size: Some(0), kill_privileges: kill_suidgid, ..FsSetAttr::default() };
            check!(reply, self.taking_privileges(ino, &inode, kill_suidgid, || self.fs.setattr(&inode, &set)));
            check!(reply, self.after_change_of(&inode));
        }
        let handle = self.opened(&inode);
        let (handle, how) = match self.direct_io().of_size(inode.size()) {
            true => (Openers::direct(handle), DIRECT_FLAGS),
            false => (handle, self.cached_flags(&inode, flags & O_ACCMODE != O_WRONLY)),
        };
        if reply.ok(handle, how).is_err() {
            self.openers.remove(handle);
        }
    }

    fn read(&self, _req: &Request, ino: u64, args: &ReadArgs, reply: ReplyData) {
        let inode = check!(reply, self.node(ino));
        reply.fill(|buffer| {
            let read = self.fs.read(&inode, args.offset, buffer);
            read.inspect_err(|e| self.fs.serving().report_hurt(&inode, e)).map_err(|e| errno(&e))
        });
    }

    fn write(&self, req: &Request, ino: u64, args: &WriteArgs, data: &[u8], reply: ReplyWrite) {
        let inode = check!(reply, self.node(ino));
        // A page of a shared mapping arrives like one of the writeback cache. But only with that cache does the kernel
        // maintain the times itself, and send them with SETATTR.
        let keep_times = args.cached && self.writeback.load(Ordering::Relaxed);
        let direct = Openers::is_direct(args.fh) && !args.cached;
        let flags = WriteFlags {
            kill_privileges: args.kill_suidgid,
            // Before a write through its cache, the kernel removes them itself.
            kill_capabilities: direct,
            keep_times,
            from_cache: args.cached,
        };
        // Data in the kernel's cache was acknowledged long ago, and the process that writes it back is not the one that
        // wrote it.
        let caller = if args.cached { Caller::ROOT } else { caller(req) };
        let write = |at: usize| {
            let at_byte = args.offset + at as u64;
            caller.run(|| self.fs.serving().write_unpaced(&inode, at_byte, &data[at..], flags))
        };
        let (mut n, mut pause) = check!(reply, self.taking_privileges(ino, &inode, args.kill_suidgid, || write(0)));
        // No caller sees a short write of a cached page. So the page is written whole, or fsync(2) and close(2) report
        // an error.
        while args.cached && n < data.len() {
            let (more, for_more) = check!(reply, write(n));
            (n, pause) = (n + more, pause + for_more);
        }
        check!(reply, self.after_change_of(&inode));
        if pause.is_zero() {
            return reply.ok(n as u32);
        }
        let ticket = self.outstanding.begin();
        self.pauses.submit(pause, move || {
            reply.ok(n as u32);
            drop(ticket);
        });
    }

    fn statfs(&self, _req: &Request, _ino: u64, reply: ReplyStatfs) {
        reply.ok(&convert::statfs(&self.fs.statfs()));
    }

    fn release(&self, _req: &Request, ino: u64, args: &ReleaseArgs, reply: ReplyEmpty) {
        if args.flags & O_ACCMODE != 0
            && let Ok(inode) = self.node(ino)
        {
            self.fs.release(&inode);
        }
        self.openers.remove(args.fh);
        // The kernel may already have forgotten it.
        self.fs.serving().reap();
        reply.ok();
    }

    fn fsync(&self, req: &Request, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        self.answer_fsync(req, ino, fh, datasync, reply);
    }

    fn fsyncdir(&self, req: &Request, ino: u64, _fh: u64, datasync: bool, reply: ReplyEmpty) {
        self.answer_fsync(req, ino, 0, datasync, reply);
    }

    fn syncfs(&self, req: &Request, _ino: u64, reply: ReplyEmpty) {
        let ticket = self.outstanding.begin();
        let done = move |result| {
            empty(reply, result);
            drop(ticket);
        };
        // The kernel also sends this for sync(2) and umount(8), and passes the answer on to neither (Linux:
        // `sync_filesystem`).
        self.fs.serving().sync_async(cursor_of_process(req.pid), Box::new(done));
    }

    fn setxattr(&self, req: &Request, ino: u64, name: &[u8], value: &[u8], args: &SetxattrArgs, reply: ReplyEmpty) {
        if !self.options.xattrs {
            return reply.nosys();
        }
        let inode = check!(reply, self.node(ino));
        let mode = match args.flags {
            0 => SetMode::Any,
            XATTR_CREATE => SetMode::Create,
            XATTR_REPLACE => SetMode::Replace,
            _ => return reply.error(Errno::INVAL),
        };
        let mut done = caller(req).run(|| self.fs.set_xattr(&inode, name, value, mode));
        if done.is_ok()
            && args.kill_sgid
            && let Some(mode) = convert::without_sgid(self.fs.getattr(&inode).mode)
        {
            let set = FsSetAttr { mode: Some(mode), ..FsSetAttr::default() };
            done = self.fs.setattr(&inode, &set).map(|_| ());
        }
        self.note_acl(ino, name);
        empty(reply, done.and_then(|()| self.after_change_of(&inode)));
    }

    fn getxattr(&self, _req: &Request, ino: u64, name: &[u8], reply: ReplyXattr) {
        if !self.options.xattrs {
            return reply.nosys();
        }
        let inode = check!(reply, self.node(ino));
        let value = check!(reply, self.fs.get_xattr(&inode, name));
        reply.ok(&value);
    }

    fn listxattr(&self, req: &Request, ino: u64, reply: ReplyXattr) {
        if !self.options.xattrs {
            return reply.nosys();
        }
        let inode = check!(reply, self.node(ino));
        let names = check!(reply, self.fs.list_xattrs(&inode));
        let mut list = Vec::new();
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        // As Linux does: trusted attributes are shown only to users that may read them.
        let shown = names.iter().any(|name| is_trusted(name)) && req.uid == 0 && {
            let callers = self.callers.lock().clone();
            callers.may_see_trusted(req.pid)
        };
        for name in names.iter().filter(|name| shown || !is_trusted(name)) {
            list.extend_from_slice(name);
            list.push(0);
        }
        reply.ok(&list);
    }

    fn removexattr(&self, _req: &Request, ino: u64, name: &[u8], reply: ReplyEmpty) {
        if !self.options.xattrs {
            return reply.nosys();
        }
        let inode = check!(reply, self.node(ino));
        let done = self.fs.remove_xattr(&inode, name);
        self.note_acl(ino, name);
        empty(reply, done.and_then(|()| self.after_change_of(&inode)));
    }

    fn opendir(&self, _req: &Request, ino: u64, _flags: u32, reply: ReplyOpen) {
        let dir = check!(reply, self.node(ino));
        let _ = reply.ok(0, self.cached_flags(&dir, true) | OpenFlags::CACHE_DIR);
    }

    fn readdir(&self, _req: &Request, ino: u64, _fh: u64, offset: u64, reply: ReplyDir) {
        let dir = check!(reply, self.node(ino));
        self.list(&dir, offset, reply);
    }

    fn readdirplus(&self, _req: &Request, ino: u64, _fh: u64, offset: u64, reply: ReplyDirPlus) {
        let dir = check!(reply, self.node(ino));
        self.list_plus(&dir, offset, reply);
    }

    fn create(&self, req: &Request, parent: u64, name: &[u8], args: &CreateArgs, reply: ReplyCreate) {
        // The kernel then creates with MKNOD, which is one request as well, except for the first few files.
        if self.no_open.load(Ordering::Relaxed) && self.direct_io() == DirectIo::Never {
            return reply.nosys();
        }
        let dir = check!(reply, self.node(parent));
        let cred = self.cred(req, &dir, args.umask);
        let inode = match caller(req).run(|| self.fs.create(&dir, name, NewNode::file(permissions(args.mode)), cred)) {
            Err(Error::Exists) if args.flags & O_EXCL == 0 => {
                let inode = check!(reply, self.fs.lookup(&dir, name));
                check!(reply, self.fs.may_open(&inode, open_for(args.flags)));
                if inode.file_type() == Some(FileType::Regular) && args.flags & O_TRUNC != 0 {
                    let set = FsSetAttr { size: Some(0), kill_privileges: args.kill_suidgid, ..FsSetAttr::default() };
                    check!(reply, self.fs.setattr(&inode, &set));
                    check!(reply, self.after_change_of(&inode));
                }
                inode
            }
            other => check!(reply, other),
        };
        check!(reply, self.after_change());
        self.answer_create(inode, args.flags, reply);
    }

    fn tmpfile(&self, req: &Request, parent: u64, args: &CreateArgs, reply: ReplyCreate) {
        let dir = check!(reply, self.node(parent));
        let cred = self.cred(req, &dir, args.umask);
        let inode = check!(reply, caller(req).run(|| self.fs.tmpfile(&dir, permissions(args.mode), cred)));
        self.answer_create(inode, args.flags, reply);
    }

    fn bmap(&self, _req: &Request, ino: u64, blocksize: u32, block: u64, reply: ReplyBmap) {
        if !self.options.bmap {
            return reply.nosys();
        }
        let inode = check!(reply, self.node(ino));
        // The kernel interprets the answer in the same unit.
        if blocksize != self.fs.block_size() {
            return reply.error(Errno::INVAL);
        }
        match self.fs.bmap(&inode, block) {
            Ok(block) => reply.ok(block.map_or(0, |block| block.0)),
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn lseek(&self, _req: &Request, ino: u64, _fh: u64, offset: u64, whence: u32, reply: ReplyLseek) {
        let inode = check!(reply, self.node(ino));
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::INVAL),
        };
        // Dirty pages in the kernel's cache (without `writeback_cache`, of a shared mapping) look like a hole to the
        // server. The kernel writes them only when they are dropped. Its writes need workers, so no worker may wait for
        // them.
        let collects = self.writeback.load(Ordering::Relaxed);
        let mut first = None;
        if !collects {
            let found = self.fs.seek(&inode, offset, what);
            first = hole(&self.fs, &inode, offset, what, &found);
            if first.is_none() || self.fs.is_read_only() {
                return answer_seek(reply, found);
            }
            // The kernel's writes wait for the thaw. Until then everything that may be data counts as data, as if there
            // were no holes.
            if self.fs.is_frozen() {
                let size = self.fs.getattr(&inode).size;
                return reply.ok(if what == Seek::Data { offset } else { size });
            }
        }
        let Some(notifier) = self.notifier.lock().clone() else { return reply.nosys() };
        let (fs, ticket, inode) = (self.fs.clone(), self.outstanding.begin(), inode.clone());
        self.helper.submit(Box::new(move || {
            let write = |start: u64, end: u64| {
                let _ = notifier.inval_inode(ino, start as i64, (end - start) as i64);
            };
            let found = match first {
                Some(first) => seek_below(&fs, &inode, (offset, what), first, write),
                // The kernel maintains the size, too.
                None => {
                    write(0, 0);
                    fs.seek(&inode, offset, what)
                }
            };
            answer_seek(reply, found);
            drop((inode, fs));
            drop(ticket);
        }));
    }

    fn fallocate(&self, req: &Request, ino: u64, args: &FallocateArgs, reply: ReplyEmpty) {
        let inode = check!(reply, self.node(ino));
        let Some(mode) = convert::fallocate_mode(args.mode) else { return reply.error(Errno::OPNOTSUPP) };
        // The request does not say whether set-id bits must be removed; root keeps them.
        if req.uid != 0 {
            let drop = || self.fs.drop_privileges(&inode, self.is_member(req, &inode));
            check!(reply, self.taking_privileges(ino, &inode, true, drop));
        }
        let done = caller(req).run(|| self.fs.fallocate(&inode, mode, args.offset, args.length));
        empty(reply, done.and_then(|()| self.after_change_of(&inode)));
    }

    fn ioctl(&self, req: &Request, ino: u64, args: &IoctlArgs<'_>, reply: ReplyIoctl) {
        let Some(reply) = self.volume_ioctl(req, args, reply) else { return };
        let inode = check!(reply, self.node(ino));
        if FS_IOC_GETFLAGS.contains(&args.cmd) {
            let flags = extant_ondisk::inode::InodeFlags::USER_VISIBLE.bits() & self.fs.getattr(&inode).flags;
            reply.ok(0, flags.as_bytes());
        } else if FS_IOC_SETFLAGS.contains(&args.cmd) {
            let Ok((flags, _)) = u32::read_from_prefix(args.data) else { return reply.error(Errno::INVAL) };
            self.set_flags(req, ino, inode.clone(), SetFlags { flags: Some(flags), ..SetFlags::default() }, reply);
        } else if args.cmd == FS_IOC_FSSETXATTR {
            let set = check!(reply, convert::set_fsxattr(args.data, self.fs.getattr(&inode).flags));
            self.set_flags(req, ino, inode.clone(), set, reply);
        } else if FS_IOC_GETVERSION.contains(&args.cmd) {
            reply.ok(0, inode.generation.as_bytes());
        } else if args.cmd == FS_IOC_FSGETXATTR {
            // The kernel sends this request before it changes any flag.
            reply.ok(0, &convert::fsxattr(self.fs.getattr(&inode).flags, inode.project()));
        } else {
            reply.error(Errno::NOTTY);
        }
    }
}
