//! The file system as a FUSE server: `extant_fs::Filesystem` behind the trait [`Server`](crate::Server).
//!
//! Main types: [`FsServer`], [`ServerOptions`]. Inside:
//! - `serve.rs`: the operations; `control.rs`: requests to the mount as a whole;
//! - `nodes.rs`: the inodes that the kernel knows; `openers.rs`: open files;
//! - `convert.rs`: values; `errno.rs`: error numbers;
//! - `detached.rs`: replies sent later; `helper.rs`: threads that may wait; `pauses.rs`: writers that wait.
//!
//! What it does not do, because the kernel does: permissions (by mode, owner and ACL); the page cache and its
//! writeback; the cache of names and attributes; locks; copying ranges. Cached names and attributes never expire,
//! except attributes of directories, because no other process changes the device. While a file is open, the kernel
//! keeps its inode. With `no_open` the server has no state for it: all handles are 0. Otherwise an open file holds the
//! inode, and a cursor in the inode's ledger of lost writes (`openers.rs`).
//!
//! # Locking
//! `fuse nodes` (150) and `fuse replies` (210), leaves; `fuse unmount result`, `fuse notifier` (2), `fuse helper` and
//! `fuse pauses` (3), leaves too.

mod control;
mod convert;
mod detached;
mod direct;
mod errno;
mod helper;
mod nodes;
mod openers;
mod options;
mod pauses;
mod serve;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::sync::atomic::{AtomicBool, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::{Cred, Filesystem, INODE_BYTES, InodeRef, Mounted};

use self::detached::Outstanding;
pub use self::direct::DirectIo;
pub use self::errno::errno;
use self::helper::Helper;
use self::nodes::{Node, Nodes, RequestInode};
use self::openers::Openers;
pub use self::options::ServerOptions;
use self::pauses::Pauses;
use crate::Errno;
use crate::abi::ROOT_ID;
use crate::mount::Callers;
use crate::sys::kernel_uid;
use crate::transport::notify::Notifier;
use crate::transport::reply::ReplyEntry;
use crate::transport::session::Hold;
use crate::types::{Attr, Entry, Request};

static RESULT_CLASS: LockClass = LockClass::new("fuse unmount result", 2);
static NOTIFIER_CLASS: LockClass = LockClass::new("fuse notifier", 2);

/// A change of names changes a directory's attributes, and the kernel then drops its cached attributes. An earlier
/// reply that is still in flight would be cached for as long as this.
const DIRECTORY_VALID: Duration = Duration::from_secs(1);

/// The share of the cache for inodes that the server holds for the kernel but could drop.
const HELD_SHARE: u64 = 8;

/// Serves one mounted file system.
pub struct FsServer {
    fs: Mounted,
    options: ServerOptions,
    /// Shared with the file system, which reports inodes that lose their last name.
    nodes: Arc<Nodes>,
    outstanding: Outstanding,
    helper: Helper,
    /// Writers that wait for the device.
    pauses: Pauses,
    /// Freezes and thaws. It has a thread of its own, because a job on another thread may wait for a request that the
    /// freeze holds back.
    controller: Helper,
    /// Trims, which wait while the mount is frozen; also growth and quotas.
    trimmer: Helper,
    hold: Mutex<Option<Hold>>,
    callers: Mutex<Callers>,
    /// The user who mounted the file system.
    owner: u32,
    /// After a shutdown, requests fail.
    down: Arc<AtomicBool>,
    openers: Openers,
    /// The part of the option that the kernel can do.
    direct_io: OnceLock<DirectIo>,
    /// The options negotiated with the kernel.
    no_open: AtomicBool,
    dont_mask: AtomicBool,
    writeback: AtomicBool,
    notifier: Mutex<Option<Notifier>>,
    unmount_result: Mutex<Option<extant_fs::Result<()>>>,
}

impl FsServer {
    /// Takes over the file system: [`Server::destroy`](crate::Server::destroy) unmounts it.
    ///
    /// # Errors
    /// The root directory cannot be read, or is not a directory.
    pub fn new(fs: Mounted, options: ServerOptions) -> extant_fs::Result<FsServer> {
        let root = match &options.root {
            Some(path) => fs.walk(path, true)?,
            None => fs.root()?,
        };
        if !root.is_dir() {
            return Err(extant_fs::Error::NotDirectory);
        }
        let nodes = Arc::new(Nodes::new(&root));
        let nameless = nodes.clone();
        fs.serving().when_nameless(move |inode| nameless.keep_nameless(inode));
        let pauses = Pauses::new(&fs);
        Ok(FsServer {
            fs,
            options,
            nodes,
            outstanding: Outstanding::new(),
            openers: Openers::new(),
            direct_io: OnceLock::new(),
            helper: Helper::new(),
            pauses,
            controller: Helper::new(),
            trimmer: Helper::new(),
            hold: Mutex::new(&NOTIFIER_CLASS, None),
            callers: Mutex::new(&NOTIFIER_CLASS, Callers::default()),
            owner: kernel_uid().as_raw(),
            down: Arc::new(AtomicBool::new(false)),
            no_open: AtomicBool::new(false),
            dont_mask: AtomicBool::new(false),
            writeback: AtomicBool::new(false),
            notifier: Mutex::new(&NOTIFIER_CLASS, None),
            unmount_result: Mutex::new(&RESULT_CLASS, None),
        })
    }

    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// Sets the session's channel for notifications ([`Session::notifier`](crate::Session::notifier)). SEEK_DATA and
    /// SEEK_HOLE use it to have dirty pages in holes written first. Without it, the kernel answers these seeks itself,
    /// as if there were no holes.
    pub fn set_notifier(&self, notifier: Notifier) {
        *self.notifier.lock() = Some(notifier);
    }

    /// Sets the session's means to hold requests back ([`Session::hold`](crate::Session::hold)): without it a mount
    /// cannot be frozen.
    pub fn set_hold(&self, hold: Hold) {
        *self.hold.lock() = Some(hold);
    }

    /// Sets the session's means to examine callers ([`Session::callers`](crate::Session::callers)). Without it this
    /// process examines them itself, and must keep the right to trace them.
    pub fn set_callers(&self, callers: Callers) {
        *self.callers.lock() = callers;
    }

    /// The result of unmounting the file system; `None` before [`Server::destroy`](crate::Server::destroy) has run.
    pub fn unmount_result(&self) -> Option<extant_fs::Result<()>> {
        self.unmount_result.lock().clone()
    }

    /// How many inodes the kernel knows, the root included, and how many references it has to them.
    pub fn node_counts(&self) -> (usize, u64) {
        self.nodes.counts()
    }

    /// How many known inodes stay in memory, regardless of the cache's size, because the kernel knows them.
    pub fn held_count(&self) -> usize {
        self.nodes.held()
    }

    /// How many open files have a handle of their own.
    pub fn open_count(&self) -> usize {
        self.openers.count()
    }

    /// How many inodes the server may hold for the kernel although it could drop them.
    fn most_held(&self) -> usize {
        (self.fs.budget().limit() / HELD_SHARE / INODE_BYTES) as usize
    }

    fn node(&self, nodeid: u64) -> Result<RequestInode<'_>, Errno> {
        self.known(nodeid)?.ok_or(Errno::STALE)
    }

    /// The inode behind a nodeid; `None` if the kernel does not know it.
    fn known(&self, nodeid: u64) -> Result<Option<RequestInode<'_>>, Errno> {
        let inode = match (self.nodes.get(nodeid), self.nodes.ino_of(nodeid)) {
            (Some(Node::Held(inode)), _) => inode,
            (Some(Node::Known { generation }), Some(ino)) => {
                self.fs.serving().iget_again(ino, generation).map_err(|e| errno(&e))?
            }
            _ => return Ok(None),
        };
        Ok(Some(self.in_use(nodeid, inode)))
    }

    fn in_use(&self, nodeid: u64, inode: InodeRef) -> RequestInode<'_> {
        RequestInode { inode, nodes: &self.nodes, nodeid, most: self.most_held() }
    }

    /// An inode by number, as file handles name it. The kernel may ask for an inode that it does not know. An inode
    /// that no name reaches is refused.
    fn node_by_number(&self, nodeid: u64) -> Result<RequestInode<'_>, Errno> {
        if let Some(inode) = self.known(nodeid)? {
            return Ok(inode);
        }
        let ino = self.nodes.ino_of(nodeid).ok_or(Errno::STALE)?;
        if ino.0 < self.fs.geometry().first_ino || !self.fs.geometry().contains_inode(ino) {
            return Err(Errno::STALE);
        }
        let inode = self.fs.iget(ino).map_err(|e| match errno(&e) {
            Errno::UCLEAN | Errno::OPNOTSUPP => Errno::STALE,
            other => other,
        })?;
        Ok(self.in_use(nodeid, inode))
    }

    fn attr(&self, inode: &InodeRef) -> Attr {
        convert::attr(&self.fs.getattr(inode), self.options.uid, self.options.gid)
    }

    /// How long the kernel may cache an inode's attributes.
    fn attr_valid(&self, inode: &InodeRef) -> Duration {
        let longest = if inode.is_dir() { DIRECTORY_VALID } else { Duration::MAX };
        self.options.attr_timeout.min(longest)
    }

    /// How long the kernel may believe that a name leads to an inode. It knows names by their bytes: in a directory
    /// that ignores case, removing `foo` must not leave `FOO` behind. A rename takes a name and its validity from any
    /// directory into one that ignores case, so this holds for the whole file system. The kernel has one name at most
    /// for a directory, whose other spelling takes that one's place.
    fn name_valid(&self, inode: &InodeRef) -> Duration {
        if self.fs.may_ignore_case() && !inode.is_dir() { Duration::ZERO } else { self.options.entry_timeout }
    }

    /// How long the kernel may believe that there is no such name. Creating `FOO` makes `foo` exist, and a directory
    /// can begin to ignore case.
    fn no_name_valid(&self) -> Duration {
        if self.fs.may_ignore_case() { Duration::ZERO } else { self.options.negative_timeout }
    }

    fn entry(&self, nodeid: u64, inode: &InodeRef) -> Entry {
        Entry {
            nodeid,
            // The protocol fixes the root's nodeid, and the kernel uses it without a generation.
            generation: if nodeid == ROOT_ID { 0 } else { u64::from(inode.generation) },
            attr: self.attr(inode),
            entry_valid: self.name_valid(inode),
            attr_valid: self.attr_valid(inode),
        }
    }

    /// Sends the kernel an entry for an inode, and counts the reference unless that fails.
    fn answer_entry(&self, inode: &InodeRef, reply: ReplyEntry) {
        let Some(nodeid) = self.nodes.nodeid_of(inode.ino) else { return reply.error(Errno::UCLEAN) };
        let entry = self.entry(nodeid, inode);
        // Counted first: the kernel may send FORGET before this thread continues.
        self.nodes.add(nodeid, inode, self.most_held());
        if reply.ok(&entry).is_err() {
            self.nodes.forget(nodeid, 1);
        }
    }

    /// Owner, group and umask for a new inode in `dir`.
    fn cred(&self, req: &Request, dir: &InodeRef, umask: u32) -> Cred {
        let mut cred = Cred { uid: req.uid, gid: req.gid, umask: 0 };
        if self.dont_mask.load(Ordering::Relaxed) {
            cred.umask = (umask & 0o777) as u16;
        }
        match (self.options.uid.is_some(), self.options.gid.is_some()) {
            (false, false) => cred,
            (uid, gid) => cred.of_directory(&self.fs.getattr(dir), uid, gid),
        }
    }

    /// Ends a freeze, if there is one, after the controller's current job. Once the mount is detached from its
    /// directory, no process can thaw it any more. A process that waits for the thaw would keep the mount alive.
    pub fn thaw(&self) {
        let Some(hold) = self.hold.lock().clone() else { return };
        let (fs, ticket) = (self.fs.clone(), self.outstanding.begin());
        self.controller.submit(Box::new(move || {
            if fs.thaw() {
                hold.end();
            }
            drop(fs);
            drop(ticket);
        }));
    }

    fn destroy_now(&self) {
        // A reply may wait for the thaw. Only requests that have already arrived can freeze the mount again.
        self.thaw();
        self.outstanding.wait();
        *self.notifier.lock() = None;
        self.openers.clear();
        self.nodes.clear();
        let result = self.fs.unmount();
        *self.unmount_result.lock() = Some(result);
    }
}

#[cfg(test)]
mod tests;
