//! The file system as a FUSE server: `extant_fs::Filesystem` behind the trait [`Server`](crate::Server).
//!
//! Main types: [`FsServer`], [`ServerOptions`]. Inside: `serve.rs` (the operations), `nodes.rs` (what the kernel
//! knows), `errno.rs` (the error numbers), `convert.rs` (values), `control.rs` (what is asked of the mount as a whole),
//! `detached.rs` (replies sent later), `helper.rs` (threads that may wait), `openers.rs` (open files), `pauses.rs`
//! (writers that wait).
//!
//! What the kernel does and this does not: permissions (by mode, owner and ACL), the page cache and its writeback, the
//! cache of names and attributes, which never expires (but for attributes of directories), because nobody else changes
//! the device; locks; copying ranges.
//! While a file is open the kernel keeps its inode. With `no_open` nothing else is kept of it: its handles are all 0.
//! Otherwise the open file holds the inode, and its cursor in the inode's ledger of lost writes (`openers.rs`).
//!
//! # Locking
//! `fuse nodes` (150) and `fuse replies` (210), leaves; `fuse unmount result`, `fuse notifier` (2), `fuse helper` and
//! `fuse pauses` (3), leaves too.

mod control;
mod convert;
mod detached;
mod errno;
mod helper;
mod nodes;
mod openers;
mod options;
mod pauses;
mod serve;

use std::sync::Arc;
use std::time::Duration;

use extant_base::clock::Clock;
use extant_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use extant_base::sync::{LockClass, Mutex};
use extant_fs::{Caller, Cred, Filesystem, INODE_BYTES, InodeRef, Mounted};

use self::detached::Outstanding;
pub use self::errno::errno;
use self::helper::Helper;
use self::nodes::{InUse, Node, Nodes};
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

/// A change of names changes a directory's attributes. The kernel then knows that those it has are no longer true, but
/// would believe an answer from before, that is still on its way, for as long as this says.
const DIRECTORY_VALID: Duration = Duration::from_secs(1);

/// For how long after an unlink space may be expected to come, and how often and after what pauses it is looked for.
const SPACE_HOPE_NS: u64 = 500_000_000;
const SPACE_RETRIES: u32 = 3;
const SPACE_PAUSE: Duration = Duration::from_millis(10);

/// Of the cache, what inodes may take that are held for the kernel but need not be.
const HELD_SHARE: u64 = 8;

/// Serves one mounted file system.
pub struct FsServer {
    fs: Mounted,
    options: ServerOptions,
    /// Shared with the file system, which tells of inodes that lose their last name.
    nodes: Arc<Nodes>,
    outstanding: Outstanding,
    helper: Helper,
    /// Writers that wait for the device.
    pauses: Pauses,
    /// Freezes and thaws; on its own, for a job of the others may wait for what is kept back meanwhile.
    controller: Helper,
    /// Trims, which waits while the mount is frozen.
    trimmer: Helper,
    hold: Mutex<Option<Hold>>,
    callers: Mutex<Callers>,
    /// The user who mounted.
    owner: u32,
    /// Since a shutdown nothing is served any more.
    down: Arc<AtomicBool>,
    openers: Openers,
    /// What was agreed on with the kernel.
    no_open: AtomicBool,
    dont_mask: AtomicBool,
    writeback: AtomicBool,
    /// When a name was last taken away, by `clock`.
    unlinked_ns: AtomicU64,
    clock: Clock,
    notifier: Mutex<Option<Notifier>>,
    unmount_result: Mutex<Option<extant_fs::Result<()>>>,
}

impl FsServer {
    /// Takes the file system over: [`Server::destroy`](crate::Server::destroy) unmounts it.
    ///
    /// # Errors
    /// The directory that is to be the root cannot be read, or is none.
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
        fs.when_nameless(move |inode| nameless.keep_nameless(inode));
        let pauses = Pauses::new(&fs);
        Ok(FsServer {
            fs,
            options,
            nodes,
            outstanding: Outstanding::new(),
            openers: Openers::new(),
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
            unlinked_ns: AtomicU64::new(0),
            clock: Clock::real(),
            notifier: Mutex::new(&NOTIFIER_CLASS, None),
            unmount_result: Mutex::new(&RESULT_CLASS, None),
        })
    }

    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// The session's way to talk to the kernel unasked ([`Session::notifier`](crate::Session::notifier)). SEEK_DATA and
    /// SEEK_HOLE need it to have dirty pages of holes written first; without it the kernel answers them by itself,
    /// seeing no holes.
    pub fn set_notifier(&self, notifier: Notifier) {
        *self.notifier.lock() = Some(notifier);
    }

    /// The session's way to keep requests back ([`Session::hold`](crate::Session::hold)): without it a mount cannot be
    /// frozen.
    pub fn set_hold(&self, hold: Hold) {
        *self.hold.lock() = Some(hold);
    }

    /// The session's way to look at callers ([`Session::callers`](crate::Session::callers)): without it this process
    /// looks itself, for which it must keep the right to trace them.
    pub fn set_callers(&self, callers: Callers) {
        *self.callers.lock() = callers;
    }

    /// What unmounting the file system came to; `None` before [`Server::destroy`](crate::Server::destroy) has run.
    pub fn unmount_result(&self) -> Option<extant_fs::Result<()>> {
        self.unmount_result.lock().clone()
    }

    /// Inodes that the kernel knows, the root included, and how often it was told of them.
    pub fn node_counts(&self) -> (usize, u64) {
        self.nodes.counts()
    }

    /// Those of them that are in memory because the kernel knows them, whatever the cache has room for.
    pub fn held_count(&self) -> usize {
        self.nodes.held()
    }

    /// Open files that the kernel names by a handle of theirs.
    pub fn open_count(&self) -> usize {
        self.openers.count()
    }

    /// How many inodes may be held for the kernel, while they can be let go of.
    fn most_held(&self) -> usize {
        (self.fs.budget().limit() / HELD_SHARE / INODE_BYTES) as usize
    }

    fn node(&self, nodeid: u64) -> Result<InUse<'_>, Errno> {
        self.known(nodeid)?.ok_or(Errno::STALE)
    }

    /// The inode behind a nodeid; `None` if the kernel was not told of it.
    fn known(&self, nodeid: u64) -> Result<Option<InUse<'_>>, Errno> {
        let inode = match (self.nodes.get(nodeid), self.nodes.ino_of(nodeid)) {
            (Some(Node::Held(inode)), _) => inode,
            (Some(Node::Known { generation }), Some(ino)) => {
                self.fs.iget_again(ino, generation).map_err(|e| errno(&e))?
            }
            _ => return Ok(None),
        };
        Ok(Some(self.in_use(nodeid, inode)))
    }

    fn in_use(&self, nodeid: u64, inode: InodeRef) -> InUse<'_> {
        InUse { inode, nodes: &self.nodes, nodeid, most: self.most_held() }
    }

    /// An inode by number, as handles name them: the kernel may ask for one that it was never told of, and what is not
    /// reachable by any name is refused.
    fn node_by_number(&self, nodeid: u64) -> Result<InUse<'_>, Errno> {
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

    fn note_unlink(&self) {
        self.unlinked_ns.store(self.clock.now_ns(), Ordering::Relaxed);
    }

    /// Runs `op` for `caller`, and again if there was no space although something was just unlinked: its blocks become
    /// free when the kernel's FORGET is served, which another worker may be about to do.
    fn with_space<T>(&self, caller: Caller, op: impl Fn() -> extant_fs::Result<T>) -> extant_fs::Result<T> {
        let op = || caller.run(&op);
        for _ in 0..SPACE_RETRIES {
            match op() {
                Err(e) if e.is_no_space() => {
                    let since = self.clock.now_ns().saturating_sub(self.unlinked_ns.load(Ordering::Relaxed));
                    if since > SPACE_HOPE_NS {
                        return Err(e);
                    }
                    self.clock.sleep(SPACE_PAUSE);
                }
                other => return other,
            }
        }
        op()
    }

    fn attr(&self, inode: &InodeRef) -> Attr {
        convert::attr(&self.fs.getattr(inode), self.options.uid, self.options.gid)
    }

    /// How long the kernel may believe an inode's attributes.
    fn attr_valid(&self, inode: &InodeRef) -> Duration {
        let longest = if inode.is_dir() { DIRECTORY_VALID } else { Duration::MAX };
        self.options.attr_timeout.min(longest)
    }

    fn entry(&self, nodeid: u64, inode: &InodeRef) -> Entry {
        Entry {
            nodeid,
            // The root's number is the protocol's own, which knows it with none.
            generation: if nodeid == ROOT_ID { 0 } else { u64::from(inode.generation) },
            attr: self.attr(inode),
            entry_valid: self.options.entry_timeout,
            attr_valid: self.attr_valid(inode),
        }
    }

    /// Tells the kernel of an inode, and counts it unless that fails.
    fn answer_entry(&self, inode: &InodeRef, reply: ReplyEntry) {
        let Some(nodeid) = self.nodes.nodeid_of(inode.ino) else { return reply.error(Errno::UCLEAN) };
        let entry = self.entry(nodeid, inode);
        // Counted first: the kernel may forget before this thread goes on.
        self.nodes.add(nodeid, inode, self.most_held());
        if reply.ok(&entry).is_err() {
            self.nodes.forget(nodeid, 1);
        }
    }

    /// Whose a new inode in `dir` will be.
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

    /// Ends a freeze, if there is one, after what the controller has begun: of a mount that was detached from its
    /// directory nobody can do so any more, and who waits for it keeps the mount.
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
        // A reply may wait for the thaw; nobody can freeze any more but who has asked for it already.
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
